"""`purine-ref check --strength`: which check finds which planted fault."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.table import Table

from purine_ref.cli.report import CODES, output, progress_bar, write_json
from purine_ref.conformance.driving import scratch
from purine_ref.conformance.driving.checking import Named
from purine_ref.conformance.strength import (
    COLUMNS,
    DISPATCHERS,
    MOST_OPERATORS,
    OPERATORS,
    Fault,
    Measure,
    Score,
    port_folder,
)

JOBS = 2
"""Faults that are measured at once: the port computes in a process of its own."""

SORTS = {"operators": OPERATORS, "dispatchers": DISPATCHERS}
"""The faults by what they are in."""


def strength(golden: Named, only: Sequence[str], examples: int, seed: int, json_file: str | None) -> int:
    """Plant each fault into the port in plain Python, check it, and print what found it; returns the exit code.

    `only` has names of sorts and patterns of faults' names; empty stands for all. Raises UsageError for one that
    matches nothing, Refused where the port is not there.
    """
    start = time.perf_counter()
    console = output(json_file)
    faults = chosen(only)
    source = port_folder()
    scores: list[Score] = []
    with scratch() as folder, progress_bar(console) as bar:
        task = bar.add_task("strength", total=None, note="")
        measure = Measure(source, Path(folder), golden, examples=examples, seed=seed,
                          seen=lambda name: bar.update(task, advance=1, note=f"the right port: {name}"))  # fmt: skip
        bar.update(task, completed=0, total=len(faults))
        for score in () if measure.problem else measure.scores(faults, JOBS):
            scores.append(score)
            bar.update(task, advance=1, note=score.fault.name)
    facts = {**_facts(scores, len(faults), measure.problem), "seconds": time.perf_counter() - start, "seed": seed}
    outcome = "unknown" if measure.problem else "pass" if _strong(facts) else "fail"
    for line in _lines(scores, facts):
        console.print(line, markup=False, soft_wrap=isinstance(line, str))
    console.print(f"verdict: {outcome}")
    write_json(json_file, "strength", outcome, facts)
    return CODES[outcome]


def chosen(only: Sequence[str]) -> list[Fault]:
    """The faults that are asked for. Raises UsageError for a name or pattern that matches none."""
    named = {f"{sort}/{fault.name}": fault for sort, faults in SORTS.items() for fault in faults}
    patterns = [text if "/" in text else f"{text}/*" if text in SORTS else f"*/{text}" for text in only] or ["*"]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            raise click.UsageError(f"--only {pattern!r} is none of the planted faults: {', '.join(sorted(named))}")
    return [fault for name, fault in named.items() if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _strong(facts: dict[str, Any]) -> bool:
    """Whether all faults were found, and half of what came back is small."""
    median = facts["median_operators"]
    return not facts["survivors"] and median is not None and median <= MOST_OPERATORS


def _facts(scores: Sequence[Score], planted: int, problem: str) -> dict[str, Any]:
    """The keys that scripts read."""
    sizes = [score.operators for score in scores if score.operators is not None]
    return {
        "executed": len(scores),
        "skipped": planted - len(scores),
        "killed": sum(score.killed for score in scores),
        "survivors": [score.fault.name for score in scores if not score.killed],
        "median_operators": statistics.median(sizes) if sizes else None,
        "problem": problem,
        "columns": {column: sum(score.found.get(column) is not None for score in scores) for column in COLUMNS},
        "faults": [
            {"name": score.fault.name, "about": score.fault.about, "file": score.fault.file,
             "operations": sorted(score.fault.operations), "found": score.found, "kind": score.kind,
             "operators": score.operators}
            for score in scores
        ],
    }  # fmt: skip


def _lines(scores: Sequence[Score], facts: dict[str, Any]) -> Iterator[str | Table]:
    """What people read."""
    if facts["problem"]:
        yield f"the port without a fault fails, so nothing was measured: {facts['problem']}"
        return
    yield _table(scores)
    by_column = ", ".join(f"{column} {count}" for column, count in facts["columns"].items())
    yield f"killed: {facts['killed']} of {facts['executed']} ({by_column}), in {facts['seconds']:.0f} s"
    yield f"operators of a case that came back: {facts['median_operators']} in the median"
    if facts["survivors"]:
        yield f"alive: {', '.join(facts['survivors'])}"


def _table(scores: Sequence[Score]) -> Table:
    """For each fault and check the case that found it: a golden case's name, or the number of a random graph."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("fault", no_wrap=True)
    for column in COLUMNS:
        named = column in ("golden", "trace")
        table.add_column(column, justify="left" if named else "right", no_wrap=not named, overflow="fold")
    table.add_column("ops", justify="right")
    for score in scores:
        cells = [_cell(score, column) for column in COLUMNS]
        table.add_row(score.fault.name, *cells, "" if score.operators is None else str(score.operators))
    return table


def _cell(score: Score, column: str) -> str:
    """Nothing where the check was not tried, - where it found nothing."""
    if column not in score.found:
        return ""
    place = score.found[column]
    return "-" if place is None else str(place).partition("/")[2] or str(place)
