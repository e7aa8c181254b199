"""The main job: run a graph under several schemes beside the serial executor, and compare every tensor after each step.

All run in lock step: each step feeds the same arrays to all, runs all, and compares what each holds with what the
serial executor holds: activations, gradients, update histories, and the parameters for the next step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from purine_ref.conformance.comparison import differing_elements
from purine_ref.conformance.schemes import Scheme
from purine_ref.executors import Executor, Serial
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Array


@dataclass(frozen=True, slots=True)
class Workload:
    """What to run: a graph, and what to feed it at each step, by blob name."""

    model: str
    dtype: str
    graph: Graph
    feeds: Callable[[int], dict[str, Array]]
    steps: int


@dataclass(slots=True)
class Comparison:
    """One scheme's result on one workload, growing step by step.

    `operators` counts operators run, `compared` tensors compared, `differing` elements that differ in any bit, over
    all steps. `first` names the first tensor that differed, in topological order, with the step.
    """

    scheme: str
    model: str
    dtype: str
    exact: bool = False
    operators: int = 0
    compared: int = 0
    differing: int = 0
    seconds: float = 0.0
    first: str | None = None
    steps: int = field(default=0, repr=False)

    @property
    def verdict(self) -> str:
        """pass when tensors were compared and no bit differs; unknown when nothing was compared; else fail."""
        if self.differing:
            return "fail"
        return "pass" if self.compared and self.operators else "unknown"

    @property
    def max_error_over_bound(self) -> float | None:
        """0 where every bit agrees; None where one does not, as no bound is derived for this comparison."""
        return None if self.differing or not self.compared else 0.0


def verify(
    workload: Workload, schemes: Sequence[Scheme], seed: int, progress: Callable[[Comparison], None] = lambda _: None
) -> list[Comparison]:
    """Compare every scheme with the serial executor; `progress` is called after each scheme's step.

    Raises what the executors raise: GraphError for a graph that fails its checks, and operators' own errors.
    """
    results = [Comparison(scheme.text, workload.model, workload.dtype) for scheme in schemes]
    executors: list[Executor] = []
    with Serial(workload.graph, seed=seed) as serial:
        names = list(comparable(serial))
        try:
            for scheme in schemes:
                executors.append(scheme.open(workload.graph, seed))  # one by one: if the next fails, this one is closed
            for step in range(workload.steps):
                arrays = workload.feeds(step)
                _run(serial, arrays)
                want = {name: serial.fetch(name) for name in names}
                for executor, result in zip(executors, results, strict=True):
                    _compare(executor, arrays, want, result)
                    progress(result)
        finally:
            for executor in executors:
                executor.close()
    return results


def comparable(executor: Executor) -> Iterator[str]:
    """The names of all blobs that hold their value after a run, in the topological order of what made these values.

    Left out: what was overwritten in place, and the blobs that a swap filled with the values before the update. What
    the swap brought in was made where the update wrote it.
    """
    swapped_in = dict(executor.graph.pairs)
    stale = set(swapped_in.values())
    position = {index: place for place, index in enumerate(executor.plan.order)}

    def made(blob: Blob) -> tuple[int, int]:
        producers = swapped_in.get(blob, blob).producers
        return max((position[op.index] for op, _ in producers), default=-1), blob.index

    for blob in sorted(executor.graph.blobs, key=made):
        if blob not in executor.plan.lost and blob not in stale:
            yield blob.name


def _run(executor: Executor, arrays: dict[str, Array]) -> float:
    executor.feed(arrays)
    start = time.perf_counter()
    executor.run()
    return time.perf_counter() - start


def _compare(executor: Executor, arrays: dict[str, Array], want: dict[str, Array], result: Comparison) -> None:
    result.seconds += _run(executor, arrays)
    result.operators += len(executor.graph.ops)
    for name, array in want.items():
        differing = differing_elements(executor.fetch(name), array)
        result.compared += 1
        result.differing += differing
        if differing and result.first is None:
            result.first = f"{name} at step {result.steps + 1}: {differing} of {array.size} elements differ"
    result.steps += 1
