"""The plain twin of the walkers: threads that run the operators of a graph where each is a C function.

`Tracker.walk` is the loop of one thread; `Walkers` are several. A C function is given by its address, takes the
operator's number, an int32, and returns nothing; address 0 is one that does nothing. The compiled twin,
`_walkers.pxi`, runs them without the interpreter's lock, in any order that the graph allows, and lets helpers steal
from each other; this one calls them by ctypes, under one lock for the counting. What is to be run, how often, and
what is refused are the same.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from purine_ref._fast.edges import require_rows
from purine_ref._fast.pace import require_workers

Edges = Any
Tracker = Any
"""Those of the plain `tracker.py`, which imports this module."""


class Walkers:
    """Walker 0 is whoever calls `walk`; each of the `workers - 1` others is a thread that calls `serve`.

    `heavy` has a byte for each operator, not 0 where it is worth waking a helper; without it, helpers look after what
    does not get on. Raises ValueError for no workers, or for another number of bytes.
    """

    def __init__(self, edges: Edges, workers: int, heavy: bytes | None = None) -> None:
        require_workers(workers)
        if heavy is not None:
            require_rows("heavy", heavy, len(edges.waiting))
        self._edges = edges
        self._workers = workers
        self._change = threading.Condition()  # guards what follows; notified when there is more to do, or no more
        self._ready: deque[int] = deque()
        self._tracker: Tracker | None = None
        self._function: Callable[[int], object] | None = None
        self._running = 0
        self._closed = False

    def walk(self, tracker: Tracker, first: Sequence[int], function: int = 0) -> int:
        """Run every operator from the `first` on; returns how many there were, when all have ended.

        The walk cannot be interrupted. Raises ValueError for the tracker of another graph, RuntimeError for operators
        that are not ready or given twice, during another walk, and after `close`.
        """
        with self._change:
            self._admit(tracker, first)
            self._tracker, self._ready, walked = tracker, deque(first), tracker._left
            self._function = ctypes.CFUNCTYPE(None, ctypes.c_int32)(function) if function else None
            self._change.notify_all()
            while self._ready or self._running:
                if not self._step():
                    self._change.wait()
            self._tracker = None
            return int(walked - tracker._left)

    def serve(self, number: int) -> None:
        """Help in every walk, until the walkers are closed. Raises IndexError for a number that is no helper's."""
        if not 1 <= number < self._workers:
            raise IndexError(f"helper {number}: expected 1 to {self._workers - 1}")
        with self._change:
            while not self._closed:
                if not self._step():
                    self._change.wait()

    def close(self) -> None:
        """Send the helpers home. Raises RuntimeError in a walk."""
        with self._change:
            self._refuse("be closed")
            self._closed = True
            self._change.notify_all()

    def _refuse(self, what: str) -> None:
        if self._tracker is not None:
            raise RuntimeError(f"walkers cannot {what} while they walk")

    def _admit(self, tracker: Tracker, first: Sequence[int]) -> None:
        operators = len(self._edges.waiting)
        self._refuse("walk")
        if self._closed:
            raise RuntimeError("walkers cannot walk when they are closed")
        if len(tracker._waiting) != operators:
            raise ValueError(f"tracker: expected one of {operators} operators, got {len(tracker._waiting)}")
        if tracker._edges is not self._edges:
            raise ValueError("tracker: expected one of the walkers' edges, got one of others")
        for op in first:
            if tracker._waiting[op] != 0:
                raise RuntimeError(f"{self._edges.names[op]!r} cannot finish: it is {tracker.state(op)}")
        if len(set(first)) < len(first):
            raise RuntimeError("walkers cannot start an operator twice")

    def _step(self) -> bool:
        """Run one operator, outside the lock; returns whether there was one."""
        if not self._ready or self._tracker is None:
            return False
        op = self._ready.popleft()
        self._running += 1
        if self._function is not None:
            self._change.release()
            try:
                self._function(op)
            finally:
                self._change.acquire()
        self._running -= 1
        ready = self._tracker.done(op)
        self._ready.extend(ready)
        if len(ready) > 1 or not (self._ready or self._running):
            self._change.notify_all()
        return True
