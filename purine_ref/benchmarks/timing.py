"""How every benchmark measures, so that figures of one run can be compared with each other.

A *contestant* does its work once and says how many seconds each part of it took. `measure` lets all contestants that
are to be compared take turns in one go: first each once, uncounted, then in every round each once, the order turned
round from one round to the next, so that a slow minute of the machine falls on all of them. What it gives are `Series`,
one value a round; tables show their medians with the least and the greatest. Python's cyclic garbage collector is
paused while the clock runs, as `timeit` does it, and run before.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Contestant:
    """Work to be measured: `once` returns seconds by metric, which are shared out among `items` (operators, nodes)."""

    name: str
    case: str
    items: int
    once: Callable[[], Mapping[str, float]]
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Series:
    """What one contestant reached in one metric: a value a round, in `unit`; `target` is the least that is wanted."""

    name: str
    case: str
    items: int
    workers: int
    metric: str
    unit: str
    values: tuple[float, ...]
    target: float | None = None

    def row(self) -> dict[str, Any]:
        """The series as a row of `--json`."""
        return {
            "name": self.name,
            "case": self.case,
            "workers": self.workers,
            "metric": self.metric,
            "unit": self.unit,
            "median": statistics.median(self.values),
            "min": min(self.values),
            "max": max(self.values),
            "runs": len(self.values),
            "items": self.items,
            **({} if self.target is None else {"target": self.target}),
        }

    def over(self, other: Series, name: str) -> Series:
        """How many times `other` this is, round by round, as a series of unit x under `name`."""
        ratios = tuple(a / b for a, b in zip(self.values, other.values, strict=True))
        return Series(name, self.case, self.items, self.workers, self.metric, "x", ratios)


class Found(NamedTuple):
    """What a benchmark measured, what is to be said about it, and who was left out, which is said too.

    `failed` are the parts that went wrong, where the others went on.
    """

    series: list[Series]
    notes: list[str]
    skipped: list[str]
    failed: Sequence[str] = ()

    @property
    def verdict(self) -> str:
        """pass where something was measured, and nothing failed."""
        return "pass" if self.series and not self.failed else "unknown"


@contextmanager
def paused_collector() -> Iterator[None]:
    """Within it no garbage is collected but by reference counts; before it all is."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def frozen() -> Iterator[None]:
    """Within it the collector looks at nothing that is there already, so at no library, which would take it long."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def seconds(work: Callable[[], object]) -> Mapping[str, float]:
    """How long one call takes by the clock on the wall, and how long processors work for it, in all threads.

    Where other processes keep the machine busy, the second says more.
    """
    with paused_collector():
        wall, processor = time.perf_counter(), time.process_time()
        work()
        return {"processor": time.process_time() - processor, "wall": time.perf_counter() - wall}


def measure(contestants: Sequence[Contestant], runs: int, label: str) -> list[Series]:
    """Let the contestants take turns for `runs` rounds after a warm-up; returns nanoseconds per item, in order."""
    found: list[dict[str, list[float]]] = [{} for _ in contestants]
    places = range(len(contestants))
    turns = [(number, place) for number in range(runs + 1) for place in (places if number % 2 else reversed(places))]
    errors = Console(stderr=True)
    with frozen():
        for number, place in track(turns, label, console=errors, transient=True, disable=not errors.is_terminal):
            for metric, taken in contestants[place].once().items():
                values = found[place].setdefault(metric, [])
                if number > 0:
                    values.append(taken * 1e9 / contestants[place].items)
    return [
        Series(c.name, c.case, c.items, c.workers, metric, "ns", tuple(values))
        for c, metrics in zip(contestants, found, strict=True)
        for metric, values in metrics.items()
    ]


@contextmanager
def status(text: str) -> Iterator[None]:
    """Say what takes long, on the standard error while it takes long, if that is a terminal."""
    errors = Console(stderr=True)
    with errors.status(text) if errors.is_terminal else nullcontext():
        yield


WIDTH = 132
"""Columns of a table where nothing says how wide it may be."""


def number(value: float) -> str:
    """A number for people: three digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}" if value else "0"


def table(title: str, series: Sequence[Series], items: str) -> Table:
    """The series for people, `items` being what the counts count."""
    whole = Table(title=title, title_justify="left")
    for heading in ("case", "what", "metric"):
        whole.add_column(heading, no_wrap=True)
    for heading in ("workers", items, "median", "min", "max", "unit", "runs"):
        whole.add_column(heading, justify="right", no_wrap=True)
    for case, group in groupby(series, lambda one: one.case):
        for one in group:
            row = one.row()
            figures = [number(row[key]) for key in ("median", "min", "max")]
            counts = [str(one.workers), f"{one.items:,}"]
            whole.add_row(case, one.name, one.metric, *counts, *figures, one.unit, str(row["runs"]))
        whole.add_section()
    return whole
