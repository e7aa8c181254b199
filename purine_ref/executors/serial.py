"""The serial executor: one operator after the other, on the thread that calls `run_async`.

That thread waits for a message from another rank only when it has nothing else to compute. Where nobody watches, and
no order or message decides, the loop over the operators is the schedule's own, which may be compiled.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from purine_ref.executors.base import PATIENCE, Executor, Run
from purine_ref.graph import Graph
from purine_ref.schedule import ReadyQueue, Turn, order_ranks


class _Arrivals:
    """External operators that may start, in the order in which they were put, by any thread."""

    def __init__(self) -> None:
        self._ops: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._more = threading.Event()

    def put(self, op: int) -> None:
        """Add one."""
        self._ops.put(op)
        self._more.set()

    def get(self, wait: Callable[[threading.Event, float], bool]) -> int | None:
        """The next one. Where there is none, `wait` for it, in such a way, for a short time; then perhaps None."""
        self._more.clear()  # first, or one that comes between these lines would be missed
        if self._ops.empty():
            wait(self._more, PATIENCE)
        return None if self._ops.empty() else self._ops.get()


class Serial(Executor):
    """Runs operators first ready, first run; or in `order`, a list of all their names.

    The keywords are those of `Executor`. Raises ValueError for an order that is not topological.
    """

    def __init__(self, graph: Graph, *, order: Sequence[str] | None = None, **keywords: Any) -> None:
        super().__init__(graph, **keywords)
        self._ranks = None if order is None else order_ranks(self.plan, order)

    def _start(self, run: Run) -> None:
        arrived = _Arrivals()
        self._listen(run, arrived.put)
        if self._uninterrupted(self._ranks):
            self._run_through(run)
        else:
            self._run_singly(run, arrived)

    def _run_through(self, run: Run) -> None:
        """Leave the run to the schedule's own loop."""
        thread = threading.get_ident()
        self._computing[thread] = run.schedule
        try:  # the binding is in no variable: an operator's error keeps this frame alive
            run.schedule.run(run.schedule.ready(), self._bound.calls, run.kernels, self._bound.combine)
        except BaseException as error:
            run.failures.append(self._failed(run.schedule.running(), error))
        finally:
            del self._computing[thread]

    def _run_singly(self, run: Run, arrived: _Arrivals) -> None:
        ready = ReadyQueue(self._ranks, Turn())
        ready.extend(run.schedule.ready())
        while not run.schedule.halted:
            op = ready.pop()
            if op is None:
                if not run.schedule.awaits():
                    return
                self._receive(run, ready, arrived)
                continue
            error = self._execute(run, op)
            complete = [] if error else run.schedule.finish(op)
            error = error or self._combine(op, complete)
            if error is not None:
                run.failures.append(error)
                self._report_failure(op, error)
                return
            ready.extend(run.schedule.release(op, complete))

    def _receive(self, run: Run, ready: ReadyQueue, arrived: _Arrivals) -> None:
        """Wait for the next message, or until it is time to look for signals and whether the run must end."""
        wait = threading.Event.wait if self.transport is None else self.transport.wait
        op = arrived.get(wait)
        if op is not None:
            ready.extend(run.schedule.arrive(op))

    def _wait(self, run: Run) -> None:
        """Nothing to wait for: `_start` returns when all is done."""

    def _stop(self) -> None:
        self._halt(0.0)

    def _halt(self, seconds: float) -> bool:
        run = self._run
        if run is not None:
            run.schedule.halted = True
        return True
