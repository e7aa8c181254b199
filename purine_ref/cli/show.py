"""`purine-ref show`: draw a graph."""

from __future__ import annotations

import json
import time

import click

from purine_ref import models, view
from purine_ref.cli.report import CODES, json_option, seed_option, write_json
from purine_ref.conformance import Scheme, parse_scheme
from purine_ref.gradients import backward
from purine_ref.graph import Graph

EPILOG = """\b
Examples:
  purine-ref show --model lenet-digits | less
  purine-ref show --model lenet-digits --format svg > lenet.svg
  purine-ref show --model mlp-digits --scheme data:2@ranks --format svg > data.svg
  purine-ref show --model inception --part forward --format dot | dot -Tpdf > inception.pdf
"""

PARTS = ("forward", "backward", "update")


def parse_one_scheme(_: click.Context, parameter: click.Parameter, text: str | None) -> Scheme | None:
    """The scheme as written. Raises BadParameter, with what is accepted, for another."""
    try:
        return None if text is None else parse_scheme(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from None


@click.command(epilog=EPILOG)
@click.option("--model", type=click.Choice(list(models.MODELS)), default="lenet-digits", show_default=True)
@click.option("--format", "form", type=click.Choice(["text", "dot", "svg", "json"]), default="text", show_default=True)
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
    """Draw a network's graph on the output: as text, DOT, SVG, or JSON."""
    start = time.perf_counter()
    graph = build(model, part, batch, dtype)
    if scheme is not None:
        graph = scheme.compose(graph)
    if json_file != "-":
        click.echo(draw(graph, form), nl=form == "json")
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
