"""The rank's side of being launched: it ends when it is told to, and when whoever started it is gone.

The launcher holds the other end of the rank's standard input. It writes the name of a signal there, for a rank on
another host that it cannot send one, and when it dies the pipe ends: so the rank ends too, whatever killed the
launcher. On Linux the kernel kills the rank besides when the process that started it dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import BinaryIO

GRACE = 3.0
"""Seconds that a rank whose launcher is gone has to end by itself."""

PR_SET_PDEATHSIG = 1
"""Of `prctl`: the signal that a process gets when its parent dies."""

SIGNALS = {name.encode(): signal.Signals[name] for name in ("SIGINT", "SIGTERM")}
"""What may come down the line."""


class Terminated(KeyboardInterrupt):
    """A signal asked this process to end: to a run the same as an interrupt from the keyboard. `signal` is which."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"ended by {self.signal.name}")


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP raise Terminated inside the block, in the main thread; one that is ignored stays so.

    Python's own way with them is to end the process at once, and leave the other ranks to find out. Does nothing in
    other threads, which get no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    chosen = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, _terminate) for number in chosen}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _terminate(number: int, _: FrameType | None) -> None:
    raise Terminated(number)


def tie(grace: float = GRACE) -> None:
    """Tie this process to the one that started it, by its standard input, which then is empty for all others.

    When the line ends, SIGTERM is raised, and after `grace` seconds the process is killed. Call it in the main thread.
    """
    line = open(os.dup(0), "rb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # A shell starts what runs in the background with SIGINT ignored; a rank gets it only from its launcher.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_watch, args=(line, grace), name="lifeline", daemon=True).start()


def _watch(line: BinaryIO, grace: float) -> None:
    """Raise in the main thread what comes down the line; at its end, see to it that this process ends."""
    main = threading.main_thread().ident
    assert main is not None
    while word := line.readline(64):
        if (number := SIGNALS.get(word.strip())) is not None:
            signal.pthread_kill(main, number)  # to that thread, so that it wakes from a wait
    signal.pthread_kill(main, signal.SIGTERM)
    threading.Event().wait(grace)
    os.kill(os.getpid(), signal.SIGKILL)
