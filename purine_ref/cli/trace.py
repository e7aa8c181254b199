"""`purine-ref trace`: judge what a dispatcher did."""

from __future__ import annotations

import time

import click

from purine_ref.cli.report import CODES, json_option, output, seed_option, write_json
from purine_ref.conformance.tracing import Verdict, judge_trace, read_structure
from purine_ref.errors import Refused

EPILOG = """\b
Examples:
  purine-ref trace trace.jsonl --graph cases/graphs/03
  purine-ref show --model mlp-digits --format json > mlp.json
  purine-ref trace trace.jsonl --graph mlp.json --json -
"""


@click.command(epilog=EPILOG)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--graph", "graph", required=True, type=click.Path(exists=True), metavar="CASE",
              help="A case folder, or a JSON file of a graph or a case.")  # fmt: skip
@seed_option
@json_option
def trace(file: str, graph: str, seed: int, json_file: str | None) -> int:
    """Judge a trace: whether a dispatcher may do these things in this order. Names the first bad event."""
    start = time.perf_counter()
    try:
        verdict = judge_trace(file, read_structure(graph))
    except Refused as error:
        verdict = Verdict("unknown", f"refused: {error}", 0, 0, 0)
    output(json_file).print(f"{verdict.verdict}: {verdict.words}", markup=False, soft_wrap=True)
    facts = {
        "executed": verdict.legal,
        "skipped": 0,
        "seconds": time.perf_counter() - start,
        "seed": seed,
        "operators": verdict.starts,
        "iterations": verdict.iterations,
        "line": verdict.line,
        "rule": verdict.rule,
        "edge": verdict.edge,
        "words": verdict.words,
    }
    write_json(json_file, "trace", verdict.verdict, facts)
    return CODES[verdict.verdict]
