"""The threaded executor: a pool of workers for the CPUs, one ordered worker for each (device, stream) elsewhere.

A *lane* is a queue of ready operators with its workers. Fixed: the lanes and the workers. Changing, all guarded by the
one `_lock`: each lane's queue, the current run and its schedule, `_started`, which counts operators that were taken
and have not ended, and `_accepting`, which is false once a run must start nothing more. Operators compute outside the
lock, and so do the additions of rule R4. A worker that makes operators ready takes one of its lane itself, and wakes
a sleeping worker only for each of the others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

from purine_ref.executors.base import Executor, Run
from purine_ref.graph import Graph, Op
from purine_ref.schedule import ReadyQueue, Turn, order_ranks

GRACE = 0.5
"""Seconds that an interrupted or closing run waits for operators that are computing."""

LaneKey = tuple[int, str] | None
"""(device, stream), or None for the pool of all CPUs."""

_log = logging.getLogger("purine_ref")


class _Lane:
    """A queue of ready operators, and the condition on which its workers sleep."""

    def __init__(self, lock: threading.Lock) -> None:
        self.queue = ReadyQueue()
        self.work = threading.Condition(lock)


class Threaded(Executor):
    """Runs with `threads` CPU workers; the keywords are those of `Executor`.

    Operators start first ready, first started; or by `ranks`, least first (see `critical_path`); or in the very
    `order` of a list of all names. Raises ValueError for fewer than one thread or an order that is not topological.
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
        super().__init__(graph, **keywords)
        self._strict = order is not None
        self._ranks = ranks if order is None else order_ranks(self.plan, order)
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)  # notified when a run's last operator has ended
        self._current: Run | None = None
        self._started = 0
        self._accepting = False
        self._closing = False
        self._lane_of = [_lane_key(op) for op in graph.ops]
        self._lanes = {key: _Lane(self._lock) for key in [None, *self._lane_of]}
        self._additive = [any(self.plan.producers[blob] > 1 for blob in blobs) for blobs in self.plan.outputs]
        self._workers = [
            threading.Thread(target=self._work, args=(lane,), name=f"{graph.name}-{key}-{number}", daemon=True)
            for key, lane in self._lanes.items()
            for number in range(threads if key is None else 1)
        ]
        for worker in self._workers:
            worker.start()

    # The calling thread -----------------------------------------------------------------------------------------

    def _start(self, run: Run) -> None:
        with self._lock:
            if self._started:
                busy = ", ".join(repr(op.name) for op in self._computing.values())
                raise RuntimeError(f"executor of graph {self.graph.name!r}: an interrupted run still computes {busy}")
            turn = Turn() if self._strict else None
            for lane in self._lanes.values():
                lane.queue = ReadyQueue(self._ranks, turn)
            self._current = run
            self._accepting = True
            self._push(run.schedule.ready(), None)

    def _wait(self, run: Run) -> None:
        try:
            with self._lock:
                self._ended.wait_for(lambda: not self._busy(run))
                if self._closing and run.schedule.active() and not run.failures:
                    raise RuntimeError(f"executor of graph {self.graph.name!r} was closed while it ran")
        except KeyboardInterrupt:
            self._halt()
            raise

    def _busy(self, run: Run) -> bool:
        return self._started > 0 or (self._accepting and run.schedule.active())

    def _halt(self) -> None:
        """Start nothing more, and give operators that are computing a moment to end."""
        with self._lock:
            self._accepting = False
            if not self._ended.wait_for(lambda: self._started == 0, GRACE):
                busy = ", ".join(repr(op.name) for op in self._computing.values())
                _log.warning("graph %r: still computing after %s s: %s", self.graph.name, GRACE, busy)

    def _stop(self) -> None:
        with self._lock:
            self._closing = True
            for lane in self._lanes.values():
                lane.work.notify_all()
        self._halt()
        for worker in self._workers:
            worker.join(GRACE)

    # The workers ------------------------------------------------------------------------------------------------

    def _work(self, lane: _Lane) -> None:
        """One worker: take, compute, retire, until the executor closes. It never dies of an operator (rule R12)."""
        with self._lock:
            task = self._take(lane)
        while task is not None:
            run, op = task
            error = self._execute(run, op)
            complete: list[int] | None = None
            if error is None and self._additive[op]:
                with self._lock:
                    complete = run.schedule.finish(op)
            if error is None:
                error = self._combine(op, complete or ())
            with self._lock:
                self._retire(run, op, complete, error, lane)
                run = task = None  # type: ignore[assignment]  # a sleeping worker keeps no run, and no error, alive
                error = None
                task = self._take(lane)

    def _take(self, lane: _Lane) -> tuple[Run, int] | None:
        """The next operator of the lane, sleeping until there is one; None when the executor closes."""
        while not self._closing:
            op = lane.queue.pop() if self._accepting else None
            if op is not None and self._current is not None:
                self._started += 1
                if self._strict:  # the next in the order may be ready in any lane
                    for other in self._lanes.values():
                        other.work.notify_all()
                return self._current, op
            lane.work.wait()
        return None

    def _retire(self, run: Run, op: int, complete: list[int] | None, error: BaseException | None, lane: _Lane) -> None:
        """Count an operator as ended, and queue those that it made ready."""
        self._started -= 1
        if error is not None:
            run.failures.append(error)
            self._accepting = False
        else:
            complete = run.schedule.finish(op) if complete is None else complete
            self._push(run.schedule.release(op, complete), lane)
        if not self._busy(run):
            self._ended.notify_all()

    def _push(self, ready: Sequence[int], own: _Lane | None) -> None:
        """Queue ready operators, and wake a worker for each, but for one that the calling worker takes itself."""
        for op in ready:
            lane = self._lanes[self._lane_of[op]]
            lane.queue.push(op)
            if lane is own:
                own = None
            else:
                lane.work.notify()


def _lane_key(op: Op) -> LaneKey:
    return None if op.location.is_cpu else (op.location.device, op.stream)
