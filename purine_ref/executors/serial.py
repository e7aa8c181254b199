"""The serial executor: one operator after the other, on the thread that calls `run_async`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from purine_ref.executors.base import Executor, Run
from purine_ref.graph import Graph
from purine_ref.schedule import ReadyQueue, Turn, order_ranks


class Serial(Executor):
    """Runs operators first ready, first run; or in `order`, a list of all their names.

    The keywords are those of `Executor`. Raises ValueError for an order that is not topological.
    """

    def __init__(self, graph: Graph, *, order: Sequence[str] | None = None, **keywords: Any) -> None:
        super().__init__(graph, **keywords)
        self._ranks = None if order is None else order_ranks(self.plan, order)

    def _start(self, run: Run) -> None:
        queue = ReadyQueue(self._ranks, Turn())
        queue.extend(run.schedule.ready())
        while (op := queue.pop()) is not None:
            error = self._execute(run, op)
            complete = [] if error else run.schedule.finish(op)
            error = error or self._combine(op, complete)
            if error is not None:
                run.failures.append(error)
                return
            queue.extend(run.schedule.release(op, complete))

    def _wait(self, run: Run) -> None:
        """Nothing to wait for: `_start` returns when all is done."""
