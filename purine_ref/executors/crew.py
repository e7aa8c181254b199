"""The threads that drive the ranks of one process, one each: who has yet to begin a run, and who is in it. A monitor.

Changing state, guarded by one lock: `_run`, the run that is called; `_called`, the ranks that have yet to begin it;
`_busy`, how many are in it; and `_closed`, after which all are sent home. A call can be taken back until it is taken.
"""

from __future__ import annotations

import threading

from purine_ref.executors.base import PATIENCE, Run


class Crew:
    """The calls to `size` ranks."""

    def __init__(self, size: int) -> None:
        self._lock = threading.Lock()
        self._calls = threading.Condition(self._lock)  # notified when ranks are called, or sent home
        self._ended = threading.Condition(self._lock)  # notified when no rank is in the run or will begin it
        self._size = size
        self._run: Run | None = None
        self._called: set[int] = set()
        self._busy = 0
        self._closed = False

    def call(self, run: Run) -> None:
        """Have every rank begin the run."""
        with self._lock:
            self._run = run
            self._called = set(range(self._size))
            self._calls.notify_all()

    def wait(self, run: Run) -> None:
        """Sleep until no rank is in the run or will begin it."""
        with self._lock:
            while not self._ended.wait_for(lambda: self._run is not run or self._idle(), PATIENCE):
                pass  # look for signals, and sleep again
            if self._run is run:
                self._run = None  # so that nobody keeps an ended run, and its errors, alive

    def halt(self, seconds: float) -> bool:
        """Take back what nobody has begun, and wait so long for the others; returns whether all have ended."""
        with self._lock:
            self._called.clear()
            self._ended.notify_all()
            return self._ended.wait_for(self._idle, seconds)

    def close(self) -> None:
        """Send all ranks home, those in a run when it has ended."""
        with self._lock:
            self._closed = True
            self._calls.notify_all()

    # For the ranks ----------------------------------------------------------------------------------------------

    def take(self, rank: int) -> bool:
        """Sleep until there is a run to begin, and True; False when it is time to go home."""
        with self._lock:
            while not self._closed:
                if rank in self._called:
                    self._called.remove(rank)
                    self._busy += 1
                    return True
                self._calls.wait()
            return False

    def end(self) -> None:
        """Say that the rank's part of the run has ended."""
        with self._lock:
            self._busy -= 1
            if self._idle():
                self._ended.notify_all()

    def _idle(self) -> bool:
        return self._busy == 0 and not self._called
