"""A picture of what a benchmark measured: bars with their spread, to be read without the table.

Each case and each entry of `PANELS` has a panel; a contestant has a bar, which ends at its median, with a line from the
least to the greatest value of the rounds, and its value beside it. Bars of ours are blue, of peers orange, of bounds
grey (Okabe and Ito's colours, which people who are colour-blind can tell apart). Where the largest bar is more than
`LOG` times the smallest the axis is logarithmic, and says so. Needs matplotlib, of the extra `plot`.
"""

from __future__ import annotations

import importlib.util
import io
import os
import secrets
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from purine_ref.benchmarks import handover
from purine_ref.benchmarks.timing import Series, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS: dict[str, dict[str, tuple[str, ...]]] = {
    "dispatch": {"processor time of each": ("processor",)},
    "graph": {"build and prepare, processor time per node": ("build + prepare",), "peak memory": ("peak memory",)},
    "compute": {"training steps": ("throughput",), "memory of a step": ("network memory",)},
    "scaling": {
        "training steps": ("throughput",),
        "how well workers are used": ("efficiency", "hidden copies", "hidden transfers"),
    },
    "gpu": {
        "training steps": ("throughput",),
        "where a step's time goes": ("product share", "hidden copies"),
        "bandwidth of loops": ("bandwidth",),
    },
    "transport": {"round trip": ("round trip",), "into the receiver's arrays": ("throughput",)},
}
"""For each benchmark the titles of its panels, and the metrics that are drawn in each; all else is in the table."""

LESS_IS_BETTER = ("ns", "us", "ms", "MB")
"""Units of costs."""

OURS, PEER, BOUND = "#0072B2", "#E69F00", "#999999"
BOUNDS = ("matmul", "counters")
PEERS = ("torch", "graphlib", "dask", "futures", "autograd", "Taskflow", "oneTBB", "raw", "pyzmq", "shared", "mpi4py")

LOG = 30.0
"""From this ratio of the largest bar to the smallest an axis is logarithmic."""

DPI = 144
ROW = 0.3
"""Inches of a bar's height, the gap below it included."""


class NoMatplotlib(Exception):
    """matplotlib is not installed; the message says how to get it."""


def require() -> None:
    """Raises NoMatplotlib where it is not installed: to be called before anything is measured."""
    if importlib.util.find_spec("matplotlib") is None:
        raise NoMatplotlib("a plot needs matplotlib: pip install 'purine_ref[plot]'")


def draw(bench: str, series: Sequence[Series], target: str, subtitle: str = "") -> None:
    """Write the picture of benchmark `bench` (a key of `PANELS`) to the PNG file `target`, beside and renamed.

    `subtitle` is a line such as the machine's description. Raises NoMatplotlib, OSError.
    """
    require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no window, no global state
    from matplotlib.figure import Figure

    panels = _panels(bench, series)
    heights = [max(2, len(rows)) * ROW + 0.75 for _, rows in panels] or [1.0]
    figure = Figure(figsize=(9.5, sum(heights) + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"purine-ref bench {bench}", x=0.01, ha="left", fontsize=13, fontweight="bold")
    grid = figure.subplots(len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, (title, rows) in zip(grid[:, 0], panels, strict=False):
        _bars(axes, title, rows)
    if not panels:
        grid[0, 0].text(0.5, 0.5, "nothing was measured", ha="center")
        grid[0, 0].set_axis_off()
    figure.supxlabel(_wrapped(subtitle), fontsize=7, color="0.35", x=0.01, ha="left")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DPI)
    _write(target, picture.getvalue())


def _panels(bench: str, series: Sequence[Series]) -> list[tuple[str, list[Series]]]:
    """A title and the rows of each panel: those of one case, of one unit. Ratios are drawn where they have a metric."""
    found = []
    for case in dict.fromkeys(one.case for one in series):
        for words, metrics in PANELS[bench].items():
            rows = [one for one in series if one.case == case and one.metric in metrics]
            unit = rows[0].unit if rows else ""
            rows = sorted((one for one in rows if one.unit == unit), key=lambda one: one.workers)
            if rows:
                found.append((f"{case}{_items(bench, rows)}: {words}", rows))
    return found


def _items(bench: str, rows: Sequence[Series]) -> str:
    if bench == "transport":
        return ""  # the case is the size
    what = {"dispatch": "operators", "graph": "nodes"}.get(bench, "images a step")
    what = "hand-overs" if rows[0].case == handover.CASE else what
    sizes = sorted({one.items for one in rows})
    return ", " + " and ".join(f"{size:,}" for size in sizes) + f" {what}"


def _bars(axes: Axes, title: str, rows: Sequence[Series]) -> None:
    """One panel, the first row on top."""
    medians = [statistics.median(one.values) for one in rows]
    places = [max(len(rows), 2) - number for number in range(len(rows))]
    spread = [
        [median - min(one.values) for median, one in zip(medians, rows, strict=True)],
        [max(one.values) - median for median, one in zip(medians, rows, strict=True)],
    ]
    axes.barh(places, medians, 0.7, color=[_colour(one.name) for one in rows])
    if any(len(one.values) > 1 for one in rows):
        axes.errorbar(medians, places, xerr=spread, fmt="none", ecolor="0.15", elinewidth=1.2, capsize=2.5)
    unit = rows[0].unit
    positive = [median for median in medians if median > 0]
    logarithmic = bool(positive) and max(positive) > LOG * min(positive)
    end = max([*(max(one.values) for one in rows), 1e-9])
    if logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(min(min(one.values) for one in rows if min(one.values) > 0) / 2, end * 3)
    else:
        axes.set_xlim(0, 1.05 if unit == "x" and end <= 1 else end * 1.15)
        axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.set_ylim(0.4, max(len(rows), 2) + 0.6)
    for place, one, median in zip(places, rows, medians, strict=True):
        axes.annotate(number(median), (max(one.values), place), xytext=(5, 0), textcoords="offset points",
                      va="center", fontsize=8)  # fmt: skip
    axes.set_yticks(places, [_label(one, rows) for one in rows], fontsize=8)
    better = "less is better" if unit in LESS_IS_BETTER else "more is better"
    axes.set_xlabel(f"{unit}, {better}{', logarithmic' if logarithmic else ''}", fontsize=8)
    axes.set_title(title, fontsize=10, loc="left")
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)


def _label(one: Series, rows: Sequence[Series]) -> str:
    """What a bar is: in ratios its metric, and its name where that does not tell it from another."""
    if one.unit == "x" and sum((row.metric, row.workers) == (one.metric, one.workers) for row in rows) > 1:
        return f"{one.metric}, {one.name}"
    name = one.metric if one.unit == "x" else one.name
    return f"{name}, {one.workers} worker{'s' if one.workers > 1 else ''}"


def _colour(name: str) -> str:
    first = name.split()[0].partition(".")[0].partition("+")[0]
    return BOUND if first in BOUNDS else PEER if first in PEERS else OURS


def _wrapped(text: str, width: int = 150) -> str:
    """Lines of at most about `width` characters, broken after semicolons."""
    lines: list[str] = [""]
    for part in filter(None, text.split("; ")):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += ("; " if lines[-1] else "") + part
    return "\n".join(lines)


def _write(target: str, content: bytes) -> None:
    """Write a file beside and renamed."""
    path = Path(target)
    beside = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
