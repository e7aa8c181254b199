"""`purine-ref bench`: what this machine reaches."""

from __future__ import annotations

import time

import click

from purine_ref.benchmarks import dispatch as dispatching
from purine_ref.benchmarks.timing import WIDTH, machine, machine_line, table
from purine_ref.cli.report import CODES, json_option, output, seed_option, write_json

EPILOG = """\b
Examples:
  purine-ref bench dispatch
  purine-ref bench dispatch --operators 100000 --runs 3
  purine-ref bench dispatch --dask-operators 0 --json dispatch.json
"""


@click.group(epilog=EPILOG)
def bench() -> None:
    """Measure this machine: medians with their spread, beside peers that are installed."""


@bench.command(epilog=EPILOG)
@click.option("--operators", type=click.IntRange(1), default=10_000, show_default=True, help="Size of each graph.")
@click.option("--runs", type=click.IntRange(1), default=5, show_default=True, help="Rounds after the warm-up.")
@click.option("--dask-operators", type=click.IntRange(0), default=1_000, show_default=True,
              help="At most so many for dask, which takes long; 0 leaves it out.")  # fmt: skip
@seed_option
@json_option
def dispatch(operators: int, runs: int, dask_operators: int, seed: int, json_file: str | None) -> int:
    """Nanoseconds per operator, its blob included, for operators that do nothing.

    Graphs are a chain, layers of 100 that fan out and in, and random layers with 2.5 edges to an operator.
    """
    start = time.perf_counter()
    series, notes = dispatching.run(operators, dask_operators, runs)
    console = output(json_file)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table("dispatch", series, "operators"))
    for note in (*notes, machine_line()):
        console.print(note, soft_wrap=True)
    facts = {
        "executed": len(series),
        "skipped": int(dispatching.NO_DASK in notes),
        "seconds": time.perf_counter() - start,
        "seed": seed,
        "machine": machine(),
        "rows": [one.row() for one in series],
        "notes": notes,
    }
    write_json(json_file, "bench", "pass", facts)
    return CODES["pass"]
