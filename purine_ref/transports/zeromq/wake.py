"""How a thread that sleeps until a file descriptor can be read is woken by other threads."""

from __future__ import annotations

import os
import threading


class Wake:
    """A file descriptor that can be read once somebody has roused, until the sleeper is ready for the next time."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._closed = False

    def rouse(self) -> None:
        """Wake the sleeper; nothing when it is gone."""
        with self._lock:  # else the number could be another file's by now
            if not self._closed:
                os.eventfd_write(self.descriptor, 1)

    def sleep(self) -> None:
        """Be ready for the next time."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            pass  # nobody has roused

    def close(self) -> None:
        """Let go of the descriptor."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.descriptor)
