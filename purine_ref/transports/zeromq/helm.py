"""Who turns the loop of the sockets: its own thread, or one that waits for what the loop brings.

A message that goes from thread to thread costs a wake-up, and a wait for the interpreter, each time. So a thread that
waits turns the loop itself, if it can: whoever holds the helm is the thread of the sockets for that time, and there is
one at a time. When a wait is over, the loop's own thread leaves the helm free for a moment, since the next wait is
often near; after that it goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

REST = 0.001
"""Seconds that the helm may be free: what comes meanwhile, and finds nobody who waits, waits so long."""


class Helm:
    """The right to turn one loop. `turn` turns it once, and sleeps for so many seconds at most; `going` says whether
    it goes on; `steered` is told which thread, by its identifier, has the helm from now on, and 0 for none.
    """

    def __init__(
        self, turn: Callable[[float], None], going: Callable[[], bool], steered: Callable[[int], None]
    ) -> None:
        self._turn, self._going, self._steered = turn, going, steered
        self._lock = threading.Lock()  # held by whoever has it
        self._waiting: list[threading.Event] = []  # what threads wait for
        self._nudge = threading.Event()  # the loop's own thread is needed
        self._left = 0.0  # when it was let go
        self.failure: BaseException | None = None  # of a thread that waited

    def take(self) -> None:
        """Have it, on the loop's own thread, which lends it from then on and never lets go."""
        self._lock.acquire()
        self._steered(threading.get_ident())

    def lend(self) -> None:
        """Let those have it, on the loop's own thread, for whom something has come, until they have let it lie."""
        if not self._waiting or not all(event.is_set() for event in list(self._waiting)):
            return
        self._nudge.clear()
        self._let_go()
        while True:
            nudged = self._nudge.wait(REST)
            self._nudge.clear()
            if self._lock.acquire(blocking=False):
                if nudged or not self._going() or time.monotonic() - self._left >= REST:
                    self._steered(threading.get_ident())
                    return
                self._lock.release()

    def wait(self, arrived: threading.Event, seconds: float) -> bool:
        """Sleep, on any other thread, until something has arrived, or for so long; returns whether it has.

        The main thread only sleeps: a signal's handler may raise in it at any point.
        """
        if threading.current_thread() is threading.main_thread():
            return arrived.wait(seconds)
        if arrived.is_set():
            return True
        self._waiting.append(arrived)
        try:
            if not self._lock.acquire(blocking=False):
                return arrived.wait(seconds)
            until = time.monotonic() + seconds
            self._steer(arrived, until)
            return arrived.wait(max(0.0, until - time.monotonic()))  # where the loop has ended before
        finally:
            self._waiting.remove(arrived)

    def _steer(self, arrived: threading.Event, until: float) -> None:
        """Turn the loop until something has arrived."""
        self._steered(threading.get_ident())
        try:
            self._turn(0.0)  # sends what was posted
            while not arrived.is_set() and self._going() and (left := until - time.monotonic()) > 0:
                self._turn(left)
        except BaseException as error:
            self.failure = error  # the loop's own thread ends, and tells everyone
        finally:
            self._let_go()
            if len(self._waiting) > 1 or not self._going():
                self._nudge.set()

    def _let_go(self) -> None:
        self._steered(0)
        self._left = time.monotonic()
        self._lock.release()
