"""The threaded executor: a pool of workers for the CPUs, one ordered worker for each (device, stream) elsewhere.

Which operator may start is decided by `lanes.Lanes`, under its lock; here are the threads. Operators compute outside
the lock, and so do the additions of rule R4. A worker that makes operators ready takes one of its lane itself, and
wakes a sleeping worker only for each of the others.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from purine_ref.devices.cpu import quiet
from purine_ref.executors.base import Executor, Run
from purine_ref.executors.lanes import Lane, Lanes
from purine_ref.graph import Graph
from purine_ref.schedule import order_ranks, require_one_each


class Threaded(Executor):
    """Runs with `threads` CPU workers; the keywords are those of `Executor`.

    Operators start first ready, first started; or by `ranks`, least first (see `critical_path`); or in the very
    `order` of a list of all names. Raises ValueError for fewer than one thread, an order that is not topological,
    ranks that are not one for each operator, and both at once.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        threads: int = 2,
        order: Sequence[str] | None = None,
        ranks: Sequence[float] | None = None,
        **keywords: Any,
    ) -> None:
        if threads < 1:
            raise ValueError(f"Threaded needs 1 thread or more, got {threads}")
        if order is not None and ranks is not None:
            raise ValueError("Threaded takes an order or ranks, got both")
        super().__init__(graph, **keywords)
        if order is not None:
            ranks = order_ranks(self.plan, order)
        elif ranks is not None:
            require_one_each(self.plan, "ranks", ranks)
        self._lanes = Lanes(self.plan, ranks, strict=order is not None)
        self._workers = [
            threading.Thread(target=self._work, args=(lane,), name=f"{graph.name}-{key}-{number}", daemon=True)
            for key, lane in self._lanes.by_key.items()
            for number in range(threads if key is None else 1)
        ]
        for worker in self._workers:
            worker.start()

    def _start(self, run: Run) -> None:
        if not self._lanes.start(run):
            self._refuse_while_computing()
        self._listen(run, partial(self._lanes.arrive, run))

    def _wait(self, run: Run) -> None:
        self._lanes.wait(run)

    def _halt(self, seconds: float) -> bool:
        return self._lanes.halt(seconds)

    def _stop(self) -> None:
        self._lanes.close()
        if self._halt_soon():  # else the workers that still compute go when they have ended
            for worker in self._workers:
                worker.join()

    def _work(self, lane: Lane) -> None:
        """One worker: take, compute, retire, until the executor closes. It never dies of an operator (rule R12)."""
        with quiet():
            self._serve(lane)

    def _serve(self, lane: Lane) -> None:
        lanes = self._lanes
        with lanes.lock:
            task = lanes.take(lane)
        while task is not None:
            run, op = task
            error = self._execute(run, op)
            complete: list[int] | None = None
            if error is None and (self._additive[op] or self._observer is not None):
                with lanes.lock:
                    complete = run.schedule.finish(op)
            if error is None:
                error = self._combine(op, complete or ())
            with lanes.lock:
                lanes.retire(run, op, complete, error, lane)
                if error is not None:
                    self._report_failure(op, error)
                run = task = error = None  # type: ignore[assignment]  # a sleeping worker keeps none of them alive
                task = lanes.take(lane)
