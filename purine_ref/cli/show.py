"""`purine-ref show`: draw a graph, or what the streams of devices do in a step of it."""

from __future__ import annotations

import json
import time

import click

from purine_ref import models, view
from purine_ref.cli.report import CODES, json_option, seed_option, write_json
from purine_ref.conformance import Driven, Scheme, parse_scheme, training_workload
from purine_ref.gradients import backward
from purine_ref.graph import Graph

EPILOG = """\b
Examples:
  purine-ref show --model lenet-digits | less
  purine-ref show --model lenet-digits --format svg > lenet.svg
  purine-ref show --model mlp-digits --scheme data:2@ranks --format svg > data.svg
  purine-ref show --model inception --part forward --format dot | dot -Tpdf > inception.pdf
  purine-ref show --model mlp-digits --scheme data:2@virtual --format streams > streams.svg
"""

PARTS = ("forward", "backward", "update")
FORMATS = ("text", "dot", "svg", "json", "streams")


def parse_one_scheme(_: click.Context, parameter: click.Parameter, text: str | None) -> Scheme | None:
    """The scheme as written. Raises BadParameter, with what is accepted, for another."""
    try:
        return None if text is None else parse_scheme(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from None


@click.command(epilog=EPILOG)
@click.option("--model", type=click.Choice(list(models.MODELS)), default="lenet-digits", show_default=True)
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True,
              help="streams: run two training steps, and draw when streams worked in the second, as SVG.")  # fmt: skip
@click.option("--part", type=click.Choice(PARTS), default="update", show_default=True,
              help="How far to build: forward, with its gradients, or with its updates too.")  # fmt: skip
@click.option("--scheme", metavar="SCHEME", callback=parse_one_scheme, help="Draw the graph that it makes.")
@click.option("--batch", type=click.IntRange(min=1), default=32, show_default=True, help="Images in a batch.")
@click.option("--dtype", type=click.Choice(["float32", "float64"]), default="float32", show_default=True)
@seed_option
@json_option
def show(
    model: str, form: str, part: str, scheme: Scheme | None, batch: int, dtype: str, seed: int, json_file: str | None
) -> int:
    """Draw a network's graph on the output: as text, DOT, SVG, or JSON. Or run it, and draw what streams do."""
    start = time.perf_counter()
    graph = build(model, part, batch, dtype)
    if scheme is not None:
        graph = scheme.compose(graph)
    picture = draw_streams(model, scheme, batch, dtype, seed) if form == "streams" else draw(graph, form)
    if json_file != "-":
        click.echo(picture, nl=form == "json")
    facts = {"executed": 1, "skipped": 0, "seconds": time.perf_counter() - start, "seed": seed}
    write_json(json_file, "show", "pass", {**facts, "graph": view.to_json(graph)})
    return CODES["pass"]


def build(model: str, part: str, batch: int, dtype: str) -> Graph:
    """The graph of a model, up to `part`."""
    if part == "update":
        return models.training_graph(model, batch, dtype)
    graph = models.MODELS[model](batch, dtype=dtype)
    if part == "backward":
        backward(graph["loss"])
    return graph


def draw(graph: Graph, form: str) -> str:
    """The graph in one of the four forms."""
    if form == "json":
        return json.dumps(view.to_json(graph), indent=2)
    return {"text": view.text, "dot": view.dot, "svg": view.svg}[form](graph)


def draw_streams(model: str, scheme: Scheme | None, batch: int, dtype: str, seed: int) -> str:
    """When each stream did what, in the second training step under the scheme, as SVG.

    Raises UsageError for a scheme at a place without streams, GraphError where the place is not there.
    """
    recorder = view.StreamRecorder()
    if scheme is not None and scheme.drive is not None:
        workload = training_workload(model, dtype, batch, 2, seed)
        with scheme.drive(workload.graph, seed, Driven(streams=recorder)) as session:
            for step in range(2):
                recorder.clear()
                session.feed(workload.feeds(step))
                session.run()
            spans = recorder.spans
        if spans:
            adds = {span.op for span in spans if span.op.startswith("additions to ")}
            title = f"{model}, batch {batch}, {scheme.text}: one training step"
            return view.timeline(spans, title, copies=recorder.copies, adds=adds, enqueued=recorder.enqueued)
    raise click.UsageError("--format streams needs a --scheme at a place with streams, such as data:2@virtual")
