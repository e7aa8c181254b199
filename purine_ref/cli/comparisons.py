"""Comparisons as tables for people and as JSON for scripts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from purine_ref.conformance import Comparison

MUST = {
    "bits": "every bit must agree",
    "bound": "errors must stay within their bounds",
    "exact": "exact form, every bit must agree",
}
"""What is demanded of a comparison, by its mode."""


def print_comparisons(console: Console, rows: Sequence[Comparison], verdict: str) -> None:
    """A table for each model, dtype and demand; then what was found, and the verdict."""
    for (model, dtype, mode), group in itertools.groupby(rows, lambda row: (row.model, row.dtype, row.mode)):
        title = f"{model}, {dtype}: {MUST[mode]}"
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column("scheme", no_wrap=True)
        for name in ("operators\nrun", "tensors\ncompared", "differing\nbits"):
            table.add_column(name, justify="right")
        for name in ("error /\nbound", "kinks") if mode == "bound" else ():
            table.add_column(name, justify="right")
        table.add_column("seconds", justify="right")
        table.add_column("verdict", no_wrap=True)
        for row in group:
            table.add_row(*_cells(row))
        console.print(table)
    for row in rows:
        if row.first is not None:
            console.print(f"{row.scheme} {row.model} {row.dtype}: first difference: {row.first}", soft_wrap=True)
        if row.unknown:
            what = f"{row.unknown:,} elements depend on a kink that was decided otherwise, and were not compared"
            console.print(f"{row.scheme} {row.model} {row.dtype}: {what}", soft_wrap=True)
    console.print(f"verdict: {verdict}")


def _cells(row: Comparison) -> list[str]:
    cells = [row.scheme, f"{row.operators:,}", f"{row.compared:,}", f"{row.differing:,}"]
    if row.bounded:
        cells += ["-" if row.ratio is None else f"{row.ratio:.3f}", f"{row.kinks:,}"]
    return [*cells, f"{row.seconds:.2f}", row.verdict]


def overall(rows: Sequence[Comparison]) -> str:
    """The verdict on all: fail if any failed, pass if all passed, else unknown."""
    verdicts = {row.verdict for row in rows}
    return "fail" if "fail" in verdicts else "pass" if verdicts == {"pass"} else "unknown"


def as_json(row: Comparison) -> dict[str, Any]:
    """A comparison under the keys that scripts read."""
    return {
        "scheme": row.scheme,
        "model": row.model,
        "dtype": row.dtype,
        "exact": row.exact,
        "operators": row.operators,
        "compared": row.compared,
        "differing": row.differing,
        "max_error_over_bound": row.max_error_over_bound,
        "verdict": row.verdict,
        "seconds": row.seconds,
        "kinks": row.kinks,
        "unknown": row.unknown,
        "first_difference": row.first,
    }
