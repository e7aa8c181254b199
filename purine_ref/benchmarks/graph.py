"""What a graph costs per node over its life: built, prepared, bound to memory, run once, and freed. It is linear.

Nodes are operators and blobs, one blob to an operator here. `bind` is the making of an executor, which prepares once
more and gives every blob memory. `free` is the garbage collection after the last reference is gone, which must leave
nothing. `with the collector` is `build + prepare` once more while Python's garbage collector runs when it likes: it
then looks at the growing graph again and again. The ratios compare the largest graph with the smallest; they are near 1
where costs are linear. All is one thread's work, so what is measured is the processor's time, which other processes on
the machine do not spend. `peak memory` is that of a process which builds, prepares, binds and runs one graph: all of
it, Python and numpy included.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise

from purine_ref.benchmarks.machine import greatest
from purine_ref.benchmarks.shapes import SHAPES, Predecessors, build
from purine_ref.benchmarks.timing import Contestant, Series, measure, paused_collector, status
from purine_ref.executors import Serial
from purine_ref.plan import prepare

CASES = ("chain", "layers of 100")
"""The shapes that are built; in the second a blob fans out to 100 operators, and 100 blobs are joined by one."""

FRACTIONS = (0.1, 0.3, 1.0)
"""The sizes, as parts of the largest."""

PEAK = "peak memory"


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


def peak(case: str, operators: int) -> Series:
    """The most memory of a new process in which one graph is built, prepared, bound and run, in millions of bytes."""
    spawn = multiprocessing.get_context("spawn")
    with status(f"{case}: {operators:,} operators in a process of their own"):
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            reached = pool.submit(_live, case, operators).result()
    return Series(f"{operators:,} operators", case, 2 * operators, 1, PEAK, "MB", (reached / 1e6,))


def _live(case: str, operators: int) -> int:
    """Build, prepare, bind and run a graph; returns the bytes that this process had at most."""
    graph = build(SHAPES[case](operators), "bench")
    prepare(graph)
    with Serial(graph) as executor:
        executor.run()
    return greatest()


def run(operators: int, largest: int, runs: int) -> tuple[list[Series], list[str]]:
    """All shapes, and notes on what was measured; memory of graphs of `largest` operators, of none if that is 0."""
    series = [one for case in CASES for one in compare(case, operators, runs)]
    if largest:
        series += [peak(case, largest) for case in SHAPES]
    notes = ["processor time per node, operators and blobs alike; ratios are taken within a round"]
    return series, notes
