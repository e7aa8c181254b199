"""`purine-ref verify --explore`: all schedules of small training steps, or a sample of those of a model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from purine_ref.conformance import Scheme, Workload, parse_scheme, training_workload
from purine_ref.conformance.explore import Exploration
from purine_ref.conformance.small import SMALL, explore_scheme, small_workload

STEPS = 2
EXPLORED = (
    "serial",
    "data:2",
    "data:2@ranks",
    "data:2,server@ranks",
    "data:3,tree@ranks",
    "model:2",
    "model:2,input@virtual",
    "pipeline:2x2",
    "pipeline:2x2@virtual",
)
"""Schemes that are explored on every small network where none is asked for."""


@dataclass(frozen=True, slots=True)
class Explored:
    """The exploration of one scheme of one workload."""

    model: str
    dtype: str
    scheme: str
    result: Exploration
    seconds: float


def explored(
    models: Sequence[str], schemes: Sequence[Scheme], dtypes: Sequence[str], steps: int | None, batch: int, seed: int
) -> Iterator[Explored]:
    """Explore one after the other; the small networks where no model is named. Raises as `explore_scheme`."""
    chosen = schemes or [parse_scheme(text) for text in EXPLORED]
    for dtype in dtypes or ("float32",):
        workloads: list[Workload] = [training_workload(name, dtype, batch, steps or STEPS, seed) for name in models]
        for workload in workloads or [small_workload(name, dtype, steps or STEPS, seed) for name in SMALL]:
            for scheme in chosen:
                start = time.perf_counter()
                result = explore_scheme(workload, scheme, seed)
                yield Explored(workload.model, dtype, scheme.text, result, time.perf_counter() - start)


def print_explored(console: Console, rows: Sequence[Explored], verdict: str) -> None:
    """A table; then which schedules disagree, and the verdict."""
    title = "schedules: all must leave the same bits in every tensor"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("network", "scheme"):
        table.add_column(name, no_wrap=True)
    for name in ("operators", "schedules\nthere are", "pairs in\nconflict", "schedules\nrun"):
        table.add_column(name, justify="right")
    for name in ("which are", "verdict"):
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(row.model, row.scheme, *_cells(row.result))
    console.print(table)
    for row in rows:
        if row.result.disagreement is not None:
            console.print(f"{row.scheme} {row.model} {row.dtype}: {row.result}", soft_wrap=True)
    if any(row.result.complete for row in rows):
        console.print("all: every schedule is equivalent to one that was run.")
    if any(not row.result.complete for row in rows):
        console.print("a sample: drawn by random priorities; that they agree is no proof.")
    console.print(f"verdict: {verdict}")


def _cells(result: Exploration) -> list[str]:
    return [
        f"{result.operators:,}",
        _count(result.schedules),
        f"{result.conflicts:,}",
        f"{result.runs:,}",
        "all" if result.complete else "a sample",
        result.verdict,
    ]


def _count(schedules: int | None) -> str:
    """A number that stays narrow."""
    if schedules is None:
        return "uncounted"
    return f"{schedules:,}" if schedules < 10**9 else f"{schedules:.1e}"


def as_json(row: Explored) -> dict[str, Any]:
    """An exploration under the keys that scripts read."""
    found = row.result.disagreement
    return {
        "model": row.model,
        "dtype": row.dtype,
        "scheme": row.scheme,
        "operators": row.result.operators,
        "schedules": row.result.schedules,
        "conflicts": row.result.conflicts,
        "runs": row.result.runs,
        "complete": row.result.complete,
        "verdict": row.result.verdict,
        "seconds": row.seconds,
        "disagreement": None if found is None else {"one": found.one, "other": found.other, "blob": found.blob},
    }


def verdict_of(rows: Sequence[Explored]) -> str:
    """The verdict on all: fail if any failed, pass if all passed, else unknown."""
    verdicts = {row.result.verdict for row in rows}
    return "fail" if "fail" in verdicts else "pass" if verdicts == {"pass"} else "unknown"
