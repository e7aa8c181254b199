"""What an executor tells its observer, beside the start of operators: ends, sums, failures, and the ends of runs.

While an observer is told of an operator, the thread counts as computing it: an observer must not wait for the run
that waits for it. Without an observer every method here returns at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from purine_ref.executors.observer import Observer, notify
from purine_ref.graph import Graph, Op
from purine_ref.plan import Plan


class Several(Protocol):
    """What knows at which operator a thread is that runs one after the other."""

    def running(self) -> Op | None:
        """The operator, or None between two."""


class Reporting:
    """The base of `Executor`, which has these attributes."""

    graph: Graph
    plan: Plan
    iteration: int
    _observer: Observer | None
    _clock: Callable[[], float]
    _computing: dict[int, Op | Several]

    def _busy_names(self) -> str:
        """The operators that are computing, for a message."""
        ops = [operator_of(computed) for computed in list(self._computing.values())]
        return ", ".join(repr(op.name) for op in ops if op is not None)

    def _report_end(self, error: BaseException | None) -> None:
        if self._observer is not None:
            notify(self._observer.ended, self.iteration, self._clock(), error)

    def _report_swaps(self) -> None:
        if self._observer is not None:
            for current, following in self.graph.pairs:
                notify(self._observer.swapped, current, following, self._clock())

    def _report_sum(self, blob: int) -> None:
        """Tell the observer that a blob's contributions were added, in the order of its edges."""
        if self._observer is not None and self.plan.producers[blob] > 1:
            for op, _ in self.graph.blobs[blob].producers:
                notify(self._observer.added, op, self.graph.blobs[blob], self._clock())

    def _finished(self, observer: Observer, op: Op) -> None:
        thread = threading.get_ident()
        self._computing[thread] = op  # an observer must not wait for the run that waits for it
        try:
            if hasattr(op.operation, "to") or op.operation.external:
                notify(observer.copied, op, self._clock())
            notify(observer.finished, op, self._clock())
        finally:
            del self._computing[thread]

    def _report_failure(self, index: int, error: BaseException) -> None:
        """Tell the observer that an operator failed; what it sees to start from now on was taken before."""
        if self._observer is not None:
            thread, op = threading.get_ident(), self.graph.ops[index]
            self._computing[thread] = op
            try:
                notify(self._observer.failed, op, self._clock(), error)
            finally:
                del self._computing[thread]


def operator_of(computed: Op | Several) -> Op | None:
    """The operator that a thread computes, by its entry among those who compute."""
    return computed if isinstance(computed, Op) else computed.running()
