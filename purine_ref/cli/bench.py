"""`purine-ref bench`: what this machine reaches."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from purine_ref.benchmarks import dispatch as dispatching
from purine_ref.benchmarks import graph as graphs
from purine_ref.benchmarks.options import peers_option, runs_option, size_options, small_option
from purine_ref.benchmarks.timing import WIDTH, Series, machine, machine_line, table
from purine_ref.cli.report import CODES, json_option, output, seed_option, write_json

EPILOG = """\b
Examples:
  purine-ref bench dispatch
  purine-ref bench dispatch --operators 100000 --runs 3 --small 0
  purine-ref bench dispatch --peers taskflow,onetbb --json dispatch.json
  purine-ref bench graph
"""

GRAPH_EPILOG = """\b
Examples:
  purine-ref bench graph
  purine-ref bench graph --operators 2000 --peak 0 --runs 3
  purine-ref bench graph --peak 1000000 --json graph.json
"""


@click.group(epilog=EPILOG)
def bench() -> None:
    """Measure this machine: medians with their spread, beside peers that are installed."""


@bench.command(epilog=EPILOG)
@click.option("--operators", type=click.IntRange(1), default=10_000, show_default=True, help="Size of each graph.")
@runs_option
@peers_option
@small_option(1_000)
@seed_option
@json_option
def dispatch(operators: int, runs: int, small: int, peers: tuple[str, ...], seed: int, json_file: str | None) -> int:
    """Nanoseconds per operator, its blob included, for operators that do nothing.

    Graphs are a chain, layers of 100 that fan out and in, and random layers with 2.5 edges to an operator. Peers that
    are not installed are left out, with a word on what to install.
    """
    start = time.perf_counter()
    found = dispatching.run(operators, small, runs, peers)
    _report("dispatch", "operators", found.series, found.notes, found.skipped, start, seed, json_file)
    return CODES["pass"]


@bench.command(epilog=GRAPH_EPILOG)
@size_options
@runs_option
@seed_option
@json_option
def graph(operators: int, peak: int, runs: int, seed: int, json_file: str | None) -> int:
    """Nanoseconds per node of a graph's life, and the memory that it takes.

    A graph is built, prepared, bound to memory, run once, and freed.
    """
    start = time.perf_counter()
    series, notes = graphs.run(operators, peak, runs)
    _report("graph", "nodes", series, notes, [], start, seed, json_file)
    return CODES["pass"]


def _report(
    title: str,
    items: str,
    series: Sequence[Series],
    notes: Sequence[str],
    skipped: Sequence[str],
    start: float,
    seed: int,
    json_file: str | None,
) -> None:
    """The table, and the object for scripts."""
    console = output(json_file)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table(title, series, items))
    for note in (*notes, machine_line()):
        console.print(note, soft_wrap=True)
    facts = {
        "executed": len(series),
        "skipped": len(skipped),
        "seconds": time.perf_counter() - start,
        "seed": seed,
        "machine": machine(),
        "rows": [one.row() for one in series],
        "notes": list(notes),
    }
    write_json(json_file, "bench", "pass", facts)
