"""What a graph costs per node over its life: built, prepared, bound to memory, run once, and freed. It is linear.

Run it from the repository's root. Nodes are operators and blobs, one blob to an operator here. `bind` is the making of
an executor, which prepares once more and gives every blob memory. `free` is the garbage collection after the last
reference is gone, which must leave nothing. `with the collector` is `build + prepare` once more while Python's garbage
collector runs when it likes: it then looks at the growing graph again and again. The ratios compare the largest graph
with the smallest; they are near 1 where costs are linear. All is one thread's work, so what is measured is the
processor's time, which other processes on the machine do not spend.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Mapping
from functools import partial
from itertools import pairwise

import click
from script import save, show, start

from purine_ref.benchmarks.shapes import SHAPES, Predecessors, build
from purine_ref.benchmarks.timing import Contestant, Series, measure, paused_collector
from purine_ref.executors import Serial
from purine_ref.plan import prepare

CASES = ("chain", "layers of 100")
"""The shapes that are built; in the second a blob fans out to 100 operators, and 100 blobs are joined by one."""

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
    with paused_collector():
        times = [time.process_time()]
        graph = build(predecessors, "bench")
        times.append(time.process_time())
        prepare(graph)
        times.append(time.process_time())
        executor = Serial(graph)
        times.append(time.process_time())
        executor.run()
        times.append(time.process_time())
        witness = weakref.ref(graph)
        executor.close()
        del graph, executor
        gc.collect()
        times.append(time.process_time())
    if witness() is not None:
        raise RuntimeError(f"a graph of {len(predecessors)} operators was not freed")
    spans = (end - start for start, end in pairwise(times))
    parts = dict(zip(("build", "prepare", "bind", "run", "free"), spans, strict=True))
    collecting = time_collecting(predecessors)
    return {"build + prepare": parts["build"] + parts["prepare"], "with the collector": collecting, **parts}


def time_collecting(predecessors: Predecessors) -> float:
    """Seconds of building and preparing while the garbage collector runs as it does for users."""
    gc.collect()
    start = time.process_time()
    prepare(build(predecessors, "bench"))
    return time.process_time() - start


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
    notes = ["processor time per node, operators and blobs alike; ratios are taken within a round"]
    series = [one for case in CASES for one in compare(case, operators, runs)]
    if json_file != "-":
        show("graph", series, "nodes", notes)
    save(json_file, series, notes)


if __name__ == "__main__":
    start(main)
