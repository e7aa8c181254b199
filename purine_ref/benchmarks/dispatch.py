"""What dispatching costs per operator: readiness alone, the executors, and two peers, on operators that do nothing.

`counters` is the least that plain Python can do with the plan's lists, with no checks. The row `NO_OP` is the readiness
tracker of this process (see `purine_ref._fast`) driven by its own loop: compiled, each operator is a C function that
does nothing. `readiness` is the same tracker asked from Python, operator by operator, as the threaded executor asks it.
`serial` and `threaded` are whole runs of the executors, in which operators are Python functions. Beside them are
`graphlib` of the standard library (the loop over `get_ready` and `done`), which runs no operators, and
`dask.threaded.get` (called as its users do, so with what it does to a graph first).
"""

from __future__ import annotations

import contextlib
import graphlib
import importlib.util
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial

from purine_ref._fast import FAST
from purine_ref.benchmarks.shapes import SHAPES, Predecessors, build
from purine_ref.benchmarks.timing import Contestant, Series, measure, seconds
from purine_ref.executors import Serial, Threaded
from purine_ref.executors.base import Executor
from purine_ref.graph import Graph
from purine_ref.plan import Plan
from purine_ref.schedule import Schedule

THREADS = (1, 2)

NO_OP = "C no-op loop" if FAST else "plain no-op loop"
"""The row of the tracker's own loop."""

NO_DASK = "dask is not installed, so its rows are left out: pip install 'dask>=2024.8'"


def count_down(plan: Plan) -> None:
    """The counters of rule R2, and nothing else."""
    waiting, missing = plan.waiting.copy(), plan.producers.copy()
    outputs, consumers = plan.outputs, plan.consumers
    queue = deque(plan.first)
    while queue:
        for blob in outputs[queue.popleft()]:
            missing[blob] -= 1
            if missing[blob] == 0:
                for consumer in consumers[blob]:
                    waiting[consumer] -= 1
                    if waiting[consumer] == 0:
                        queue.append(consumer)


def readiness(plan: Plan) -> None:
    """A run's readiness, as an executor asks for it."""
    schedule = Schedule(plan)
    queue = deque(schedule.ready())
    while queue:
        queue.extend(schedule.done(queue.popleft()))
    if schedule.active():
        raise RuntimeError("operators are left over")


def walk(plan: Plan) -> None:
    """A run's readiness by the tracker's own loop."""
    if Schedule(plan).walk(plan.first) != len(plan.order):
        raise RuntimeError("operators are left over")


def sort(sorter: graphlib.TopologicalSorter[int]) -> None:
    """The same by `graphlib`."""
    while sorter.is_active():
        for node in sorter.get_ready():
            sorter.done(node)


def time_sort(predecessors: Predecessors) -> Mapping[str, float]:
    """A sorter can be used once; making and preparing it is left out, like `prepare` of the others."""
    sorter: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter(dict(enumerate(predecessors)))
    sorter.prepare()
    return seconds(partial(sort, sorter))


def nothing(*_: object) -> None:
    """What the operators do, as a function for dask."""


def time_dask(predecessors: Predecessors, workers: int) -> Mapping[str, float]:
    """One call of `dask.threaded.get` for what no other operator reads."""
    import dask.threaded  # a peer, which need not be there

    tasks = {i: (nothing, *before) for i, before in enumerate(predecessors)}
    sinks = sorted(set(tasks).difference(*predecessors))
    return seconds(lambda: dask.threaded.get(tasks, sinks, num_workers=workers))


@contextlib.contextmanager
def executors(graph: Graph) -> Iterator[list[tuple[str, int, Executor]]]:
    """The executors under test with their names and workers, closed afterwards."""
    with contextlib.ExitStack() as stack:
        found: list[tuple[str, int, Executor]] = [("serial", 1, stack.enter_context(Serial(graph)))]
        found += [("threaded", n, stack.enter_context(Threaded(graph, threads=n))) for n in THREADS]
        yield found


def compare(case: str, operators: int, dask_operators: int, runs: int) -> list[Series]:
    """All contestants on one shape of graph, and how they compare."""
    predecessors = SHAPES[case](operators)
    with executors(build(predecessors, case)) as running:
        plan = running[0][2].plan
        contestants = [
            Contestant("counters", case, operators, partial(seconds, partial(count_down, plan))),
            Contestant(NO_OP, case, operators, partial(seconds, partial(walk, plan))),
            Contestant("readiness", case, operators, partial(seconds, partial(readiness, plan))),
            Contestant("graphlib", case, operators, partial(time_sort, predecessors)),
        ]
        contestants += [Contestant(name, case, operators, partial(seconds, e.run), n) for name, n, e in running]
        if dask_operators:
            small = SHAPES[case](dask_operators)
            peers = [Contestant("dask.threaded", case, len(small), partial(time_dask, small, n), n) for n in THREADS]
            contestants += peers
        series = measure(contestants, runs, case)
    return [*series, *ratios(series)]


def ratios(series: list[Series]) -> list[Series]:
    """How many times the processor time of ours the peers take that do the same, round by round."""
    found = {(one.name, one.workers): one for one in series if one.metric == "processor"}
    pairs = [("graphlib", "readiness", 1), ("graphlib", "serial", 1)]
    pairs += [("dask.threaded", "threaded", n) for n in THREADS]
    return [found[a, n].over(found[b, n], f"{a} / {b}") for a, b, n in pairs if (a, n) in found]


def run(operators: int, dask_operators: int, runs: int) -> tuple[list[Series], list[str]]:
    """All shapes, and notes on what was measured; dask gets graphs of at most `dask_operators`, none if that is 0."""
    notes = ["time per operator, processor time over all threads; ratios are taken within a round"]
    dask_operators = min(operators, dask_operators)
    if dask_operators and importlib.util.find_spec("dask") is None:
        dask_operators, notes = 0, [*notes, NO_DASK]
    elif 0 < dask_operators < operators:
        notes.append(f"dask.threaded runs graphs scaled down to {dask_operators:,} operators")
    return [one for case in SHAPES for one in compare(case, operators, dask_operators, runs)], notes
