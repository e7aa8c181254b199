"""What others take for the same graphs: sorters, pools and dispatchers, as their users call them.

Each function takes a graph as lists of predecessors, prepares what need not be measured, and returns the work that is,
or its seconds. `graphlib` runs no operators; `futures` is the pool of the standard library, told of each operator as
it becomes ready; `dask.threaded.get` includes what it does to a graph first. PyTorch's autograd runs a backward pass,
which is its dispatcher; an operator that reads several blobs takes it two nodes, and the time is per node.
"""

from __future__ import annotations

import graphlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from purine_ref.benchmarks.shapes import Predecessors
from purine_ref.benchmarks.timing import seconds


def sort(sorter: graphlib.TopologicalSorter[int]) -> None:
    """The loop over `get_ready` and `done`."""
    while sorter.is_active():
        for node in sorter.get_ready():
            sorter.done(node)


def time_sort(predecessors: Predecessors) -> Mapping[str, float]:
    """A sorter can be used once; making and preparing it is left out, like `prepare` of the others."""
    sorter: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter(dict(enumerate(predecessors)))
    sorter.prepare()
    return seconds(partial(sort, sorter))


def nothing(*_: object) -> None:
    """What the operators do."""


def time_dask(predecessors: Predecessors, workers: int) -> Mapping[str, float]:
    """One call of `dask.threaded.get` for what no other operator reads."""
    import dask.threaded  # a peer, which need not be there

    tasks = {i: (nothing, *before) for i, before in enumerate(predecessors)}
    sinks = sorted(set(tasks).difference(*predecessors))
    return seconds(lambda: dask.threaded.get(tasks, sinks, num_workers=workers))


class Futures:
    """A `ThreadPoolExecutor` that is given each operator when the last of those that it reads has run."""

    def __init__(self, predecessors: Predecessors, workers: int) -> None:
        self._waiting = [len(before) for before in predecessors]
        self._consumers: list[list[int]] = [[] for _ in predecessors]
        for op, before in enumerate(predecessors):
            for other in before:
                self._consumers[other].append(op)
        self._pool = ThreadPoolExecutor(workers)
        self._lock = threading.Lock()  # guards `_waiting` and `_left`
        self._left = len(predecessors)
        self._ended = threading.Event()

    def run(self) -> None:
        """Run all, once. Raises RuntimeError when that takes a minute."""
        for op in [op for op, count in enumerate(self._waiting) if count == 0]:
            self._pool.submit(self._compute, op)
        if not self._ended.wait(60):
            raise RuntimeError(f"a pool of threads left {self._left} operators")
        self._pool.shutdown()

    def _compute(self, op: int) -> None:
        nothing()
        ready = []
        with self._lock:
            for consumer in self._consumers[op]:
                self._waiting[consumer] -= 1
                if self._waiting[consumer] == 0:
                    ready.append(consumer)
            self._left -= 1
            last = self._left == 0
        for consumer in ready:
            self._pool.submit(self._compute, consumer)
        if last:
            self._ended.set()


def time_futures(predecessors: Predecessors, workers: int) -> Mapping[str, float]:
    """One run of a new pool, whose threads are made while it runs."""
    return seconds(Futures(predecessors, workers).run)


def backward(predecessors: Predecessors) -> tuple[Callable[[], object], int]:
    """A backward pass of autograd, to be called again and again, and how many nodes it has."""
    import torch  # a peer, which need not be there

    start = torch.zeros(1, requires_grad=True)
    values: list[torch.Tensor] = []
    nodes = 0
    for before in predecessors:
        if len(before) < 2:
            values.append((values[before[0]] if before else start).neg())
            nodes += 1
        else:
            values.append(torch.stack([values[other] for other in before]).sum(0))
            nodes += 2
    read = {other for before in predecessors for other in before}
    total = torch.stack([value for op, value in enumerate(values) if op not in read]).sum()
    return partial(torch.autograd.grad, total, [start], retain_graph=True), nodes + 2
