"""How many times the serial executor's time the threaded one takes, on every graph that the suites run.

Run it from the repository's root. The graphs are the shapes of `bench dispatch` in sizes from 1 on, the networks that
verify runs in their training forms, serial and composed, networks as the generator of the oracle draws them, and the
golden cases. All graphs are on the CPU of one rank. Nothing is fed: what operators take rarely depends on values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from statistics import median

import click
from hypothesis import HealthCheck, Phase, given, settings
from rich.console import Console
from rich.table import Table
from script import save, start

from purine_ref.benchmarks import machine
from purine_ref.benchmarks.options import runs_option
from purine_ref.benchmarks.shapes import SHAPES, build
from purine_ref.benchmarks.timing import WIDTH, Contestant, Series, measure, seconds
from purine_ref.conformance.cases.golden import golden_cases
from purine_ref.conformance.examples import Example
from purine_ref.conformance.generator import examples
from purine_ref.conformance.networks import composed_graph
from purine_ref.conformance.schemes import parse_scheme
from purine_ref.executors import Executor, Serial, Threaded
from purine_ref.graph import Graph
from purine_ref.models import training_graph
from purine_ref.tensor import Location

SIZES = (1, 2, 10, 100, 1_000, 10_000)
MODELS = {"mlp-digits": 32, "lenet-digits": 32, "nin-digits": 8, "autoencoder-digits": 32, "lenet": 2, "inception": 2}
"""Networks and their batches."""

SCHEMES = ("serial", "data:2", "model:2", "pipeline:2x2", "hybrid:2x2", "data:2/model:2")
TURN = 20e-3
"""Seconds of one turn of a contestant, at the least: small graphs are run several times in a row."""

LIMIT = 1.1
"""The ratio that is promised."""

Made = tuple[str, Callable[[], Graph]]


def shapes() -> Iterator[Made]:
    """The shapes of `bench dispatch`."""
    for name, shape in SHAPES.items():
        for size in SIZES:
            yield f"{name}, {size:,}", partial(build, shape(size), name)


def networks() -> Iterator[Made]:
    """Training steps of the networks, under schemes."""
    for name, batch in MODELS.items():
        graph = training_graph(name, batch, "float32")
        for scheme in SCHEMES if name.endswith("digits") else SCHEMES[:2]:
            yield f"{name}, {scheme}", partial(parse_scheme(scheme).compose, graph)


def drawn(count: int) -> Iterator[Made]:
    """Networks and compositions that the generator draws, the same each time."""
    found: list[Example] = []

    @settings(max_examples=count, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(examples())
    def draw(example: Example) -> None:
        if all(place == (0, -1) for place in example.composition.places):
            found.append(example)

    draw()
    for number, example in enumerate(found):
        yield f"drawn {number}", partial(composed_graph, example)


def golden() -> Iterator[Made]:
    """The golden cases."""
    for case in golden_cases():
        graph = case.graph
        if all(blob.location == Location() for blob in graph.blobs):
            yield f"golden {case.name}", lambda graph=graph: graph  # type: ignore[misc]


def compared(name: str, graph: Graph, runs: int) -> list[Series]:
    """Processor time and the wall's of both executors, which take turns, and their ratios."""
    with ExitStack() as stack:
        made: list[tuple[str, int, Executor]] = [("serial", 1, stack.enter_context(Serial(graph)))]
        made += [("threaded", n, stack.enter_context(Threaded(graph, threads=n))) for n in (1, 2)]
        begun = time.perf_counter()
        made[0][2].run()
        made[0][2].run()
        count = max(1, int(2 * TURN / (time.perf_counter() - begun)))

        def turn(executor: Executor) -> None:
            for _ in range(count):
                executor.run()

        contestants = [
            Contestant(kind, name, count, partial(seconds, partial(turn, executor)), n) for kind, n, executor in made
        ]
        series = measure(contestants, runs, name)
    found = {(one.name, one.workers, one.metric): one for one in series}
    ratios = [
        one.over(found["serial", 1, metric], f"threaded / serial, {metric}")
        for (kind, _, metric), one in found.items()
        if kind == "threaded"
    ]
    return [*series, *ratios]


def report(found: list[list[Series]], console: Console, every: bool) -> None:
    """A row for each graph, or each beyond the limit: the time of a serial run, and the ratios."""
    table = Table(title="threaded / serial")
    for words in ("graph", "serial, us", "processor, 1", "processor, 2", "wall, 1", "wall, 2"):
        table.add_column(words, justify="left" if words == "graph" else "right")
    beyond = 0
    for series in found:
        ratios = {(one.metric, one.workers): one for one in series if one.unit == "x"}
        slow = any(median(ratios["processor", n].values) > LIMIT for n in (1, 2))
        beyond += slow
        if slow or every:
            cells = [
                f"{median(one.values):.2f} ({min(one.values):.2f} to {max(one.values):.2f})"
                for one in (ratios[metric, n] for metric in ("processor", "wall") for n in (1, 2))
            ]
            serial = next(one for one in series if (one.name, one.metric) == ("serial", "processor"))
            table.add_row(series[0].case, f"{median(serial.values) / 1e3:,.1f}", *cells)
    console.print(table)
    for n in (1, 2):
        medians = [
            median(one.values)
            for series in found
            for one in series
            if one.unit == "x" and (one.metric, one.workers) == ("processor", n)
        ]
        spread = f"{median(medians):.2f} ({min(medians):.2f} to {max(medians):.2f})"
        console.print(f"processor time with threads={n}, {len(medians)} graphs: {spread}")
    console.print(f"{beyond} of {len(found)} graphs take more than {LIMIT} times the serial executor's processor time")


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--drawn", "count", type=click.IntRange(1), default=100, show_default=True, help="Networks to draw.")
@click.option("--only", default="", help="Only graphs with these words in their names.")
@click.option("--all", "every", is_flag=True, help="Show every graph, not only those beyond the limit.")
@runs_option
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Write the rows there; - is the output.")
def main(count: int, only: str, every: bool, runs: int, json_file: str | None) -> None:
    """The threaded executor's time over the serial one's, on every graph that the suites run."""
    console = Console(highlight=False, width=WIDTH, stderr=json_file == "-")
    made = [one for kind in (shapes(), networks(), drawn(count), golden()) for one in kind if only in one[0]]
    found = [compared(name, make(), runs) for name, make in made]
    report(found, console, every)
    console.print(machine.line(), soft_wrap=True)
    save(json_file, [one for series in found for one in series])


if __name__ == "__main__":
    start(main)
