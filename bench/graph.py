"""What a graph costs per node over its life: built, prepared, bound to memory, run once, and freed; and that it is linear.

Run it from the repository's root. Nodes are operators and blobs, one blob to an operator here. `bind` is the making of
an executor, which prepares once more and gives every blob memory. `free` is the garbage collection that follows
when the last reference is gone, which must leave nothing. The ratios compare the largest graph with the smallest: 1
where costs are linear.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Mapping
from functools import partial
from itertools import pairwise

import click
from shapes import SHAPES, Predecessors, build
from timing import Contestant, Series, measure, quiet_interrupt, save, show

from purine_ref.executors import Serial
from purine_ref.plan import prepare

FRACTIONS = (0.1, 0.3, 1.0)
"""The sizes, as parts of the largest."""

EPILOG = """\b
Examples:
  python bench/graph.py
  python bench/graph.py --operators 2000 --runs 3
  python bench/graph.py --json graph.json
"""


def life(predecessors: Predecessors) -> Mapping[str, float]:
    """Build, prepare, bind, run and free a graph; seconds of each. Raises RuntimeError when it outlives its time."""
    gc.collect()
    times = [time.perf_counter()]
    graph = build(predecessors, "bench")
    times.append(time.perf_counter())
    prepare(graph)
    times.append(time.perf_counter())
    executor = Serial(graph)
    times.append(time.perf_counter())
    executor.run()
    times.append(time.perf_counter())
    witness = weakref.ref(graph)
    executor.close()
    del graph, executor
    gc.collect()
    times.append(time.perf_counter())
    if witness() is not None:
        raise RuntimeError(f"a graph of {len(predecessors)} operators was not freed")
    spans = (end - start for start, end in pairwise(times))
    parts = dict(zip(("build", "prepare", "bind", "run", "free"), spans, strict=True))
    return {"build + prepare": parts["build"] + parts["prepare"], **parts}


def compare(case: str, operators: int, runs: int) -> list[Series]:
    """Graphs of one shape in all sizes, and the largest's cost over the smallest's."""
    sizes = sorted({max(1, round(operators * part)) for part in FRACTIONS})
    shapes = [SHAPES[case](size) for size in sizes]
    contestants = [Contestant(f"{len(s):,} operators", case, 2 * len(s), partial(life, s)) for s in shapes]
    series = measure(contestants, runs, case)
    smallest = {one.metric: one for one in series if one.name == contestants[0].name}
    largest = {one.metric: one for one in series if one.name == contestants[-1].name}
    name = f"{sizes[-1]:,} / {sizes[0]:,}"
    return [*series, *(largest[metric].over(smallest[metric], name) for metric in largest)]


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--operators", type=click.IntRange(1), default=100_000, show_default=True,
              help="Operators in the largest graph; others have a tenth and three tenths.")  # fmt: skip
@click.option("--runs", type=click.IntRange(1), default=5, show_default=True, help="Rounds after the warm-up.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Write the rows there; - is the output.")
def main(operators: int, runs: int, json_file: str | None) -> None:
    """Nanoseconds per node of building, preparing, binding, running and freeing graphs of three sizes."""
    gc.collect()
    gc.freeze()  # what was imported is not looked at again, so that `free` counts the graph alone
    notes = ["time per node, operators and blobs alike; the ratios are of the rounds, each with its own"]
    series = [one for case in SHAPES for one in compare(case, operators, runs)]
    if json_file != "-":
        show("graph", series, "nodes", notes)
    save(json_file, series, notes)


if __name__ == "__main__":
    with quiet_interrupt():
        main()
