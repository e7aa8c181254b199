"""`purine-ref run` and `purine-ref diff`: run cases on the reference, and compare results with what a case expects."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from purine_ref.cli.report import CODES, json_option, number, output, output_file, seed_option, write_json
from purine_ref.conformance.cases import (
    CASE_FILE,
    EXECUTORS,
    MANIFEST,
    Case,
    Finding,
    Results,
    compare,
    largest_ratio,
    read_case,
    read_manifest,
    read_results,
    run_case,
    write_results,
)
from purine_ref.conformance.tracing import TraceWriter

RUN_EPILOG = """\b
Examples:
  purine-ref run cases/operators/Conv2d/03
  purine-ref run cases/parallel/perceptron-data-2/00 --executor ranks
  purine-ref run cases/training/sgd/00 --out results --trace trace.jsonl
  purine-ref run cases

A case has a seed of its own, which keys its random operators.
"""

DIFF_EPILOG = """\b
Examples:
  purine-ref diff cases/operators/Conv2d/03 results
  purine-ref diff cases/operators/Conv2d/03 other-cases/operators/Conv2d/03
"""

SHOWN = 10
"""Findings of a case that are printed; all are in the JSON object."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One case, and what was found. `ratio` is the largest error by its bound, of what agrees."""

    case: Case
    findings: Sequence[Finding]
    ratio: float


@click.command(epilog=RUN_EPILOG)
@click.argument("cases", metavar="CASE...", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False))
@click.option("--executor", type=click.Choice(list(EXECUTORS)), default="serial", show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True, help="Of threads, of each rank.")
@click.option("--out", metavar="DIR", type=click.Path(file_okay=False), help="Write the results of one case there.")
@output_file("--trace", help="Write the trace of one case there.")
@seed_option
@json_option
def run(
    cases: Sequence[str], executor: str, threads: int, out: str | None, trace: str | None, seed: int,
    json_file: str | None,
) -> int:  # fmt: skip
    """Run cases, or all of a folder of them, and compare with what they expect."""
    start = time.perf_counter()
    console = output(json_file)
    folders = [folder for each in cases for folder in case_folders(Path(each))]
    for option, target, what in (("--out", out, "results"), ("--trace", trace, "trace")):
        if target is not None and len(folders) != 1:
            raise click.UsageError(f"{option} takes the {what} of one case, got {len(folders)} cases")
    judged, refused = [], []
    for folder in folders:
        case = read_case(folder)
        if executor == "ranks" and any(not blob.location.is_cpu for blob in case.graph.blobs):
            refused.append(case.name)  # a transport is from CPU to CPU
            continue
        with TraceWriter(trace) if trace is not None else nullcontext() as writer:
            results = run_case(case, executor, threads=threads, observer=writer)
        if out is not None:
            write_results(case, results, out)
        judged.append(judge(case, results))
    facts = {"executor": executor, "threads": threads, "skipped": len(refused), "seed": seed}
    return report(console, json_file, "run", judged, facts, start)


@click.command(epilog=DIFF_EPILOG)
@click.argument("case", metavar="CASE", type=click.Path(exists=True, file_okay=False))
@click.argument("other", metavar="OTHER", type=click.Path(exists=True, file_okay=False))
@seed_option
@json_option
def diff(case: str, other: str, seed: int, json_file: str | None) -> int:
    """Compare OTHER with what CASE expects: a folder of results, or another case.

    Names the first tensor, in topological order, that is beyond its bound.
    """
    start = time.perf_counter()
    console = output(json_file)
    expected = read_case(case)
    if (Path(other) / CASE_FILE).exists():
        results: Results = {(e.iteration, e.blob): e.value for e in read_case(other).expected}
    else:
        results = read_results(expected, other)
    return report(console, json_file, "diff", [judge(expected, results)], {"skipped": 0, "seed": seed}, start)


def case_folders(path: Path) -> list[Path]:
    """The case in a folder, or all of its cases where it has a manifest. Raises Refused for a broken manifest."""
    if (path / MANIFEST).is_file():
        return [path / case["name"] for case in read_manifest(path)["cases"]]
    return [path]


def judge(case: Case, results: Results) -> Judged:
    """Compare results with a case."""
    findings = compare(case, results)
    wrong = {(finding.iteration, finding.blob) for finding in findings}
    agree = [e for e in case.expected if (e.iteration, e.blob) not in wrong]
    ratio = max((largest_ratio(e, results[e.iteration, e.blob]) for e in agree), default=0.0)
    return Judged(case, findings, ratio)


def report(
    console: Console,
    json_file: str | None,
    command: str,
    judged: Sequence[Judged],
    facts: Mapping[str, Any],
    start: float,
) -> int:
    """Print and write what was found; returns the exit code. Nothing compared is unknown."""
    failed = [each for each in judged if each.findings]
    for each in failed:
        for place, finding in enumerate(each.findings[:SHOWN]):
            console.print(f"{each.case.name}: {'first: ' if not place else ''}{finding}", markup=False, soft_wrap=True)
    compared = sum(len(each.case.expected) for each in judged)
    verdict = "fail" if failed else "pass" if compared else "unknown"
    worst = max((each.ratio for each in judged), default=0.0)
    console.print(
        f"{verdict}: {len(judged)} cases, {compared:,} tensors, {len(failed)} cases with others than expected, "
        f"{facts['skipped']} skipped; largest error within bounds: {worst:.3g} of its bound",
        soft_wrap=True,
    )
    whole = {
        "executed": compared,
        **facts,
        "seconds": time.perf_counter() - start,
        "cases": [as_json(each) for each in judged],
    }
    write_json(json_file, command, verdict, whole)
    return CODES[verdict]


def as_json(judged: Judged) -> dict[str, Any]:
    """One case under the keys that scripts read."""
    return {
        "case": judged.case.name,
        "compared": len(judged.case.expected),
        "max_error_over_bound": number(judged.ratio),
        "findings": [_finding(finding) for finding in judged.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    """A finding; what JSON has no number for is in words."""
    facts = {name: number(getattr(finding, name)) for name in ("got", "want", "bound")}
    return {
        "iteration": finding.iteration,
        "blob": finding.blob,
        "index": None if finding.index is None else list(finding.index),
        **facts,
        "wrong": finding.wrong,
        "words": str(finding),
    }
