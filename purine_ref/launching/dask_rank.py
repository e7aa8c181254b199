"""A rank as a task of a Dask worker: a process of its own there, whose output goes back to whoever started it.

The launcher and the tasks share two things by name at the scheduler: a queue of (rank, stream, bytes), and a variable
with a beat and the orders to ranks. A task whose launcher is silent ends its process; when the Dask worker itself dies,
the rank's lifeline ends it. Dask moves what is here by its own means, which trust everyone who reaches the scheduler.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from purine_ref.launching.environment import without_ranks

BLOCK = 1 << 14
"""Bytes of one piece of output, at most."""

LOOK = 0.25
"""Seconds between two looks at the orders."""

SLICE = 0.02
"""Seconds between two looks whether the process has ended."""

PUT = 2.0
"""Seconds of one try to hand on output."""

GRACE = 3.0
"""Seconds that a process has to end when its launcher is gone."""

INTERPRETER = "python"
"""The first word of a command that stands for the interpreter of the Dask worker."""


def free_port(host: str) -> int:
    """A port of an address of this machine that is free now."""
    family, kind, _, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as held:
        held.bind(where)
        port: int = held.getsockname()[1]
        return port


def run_rank(
    rank: int, command: Sequence[str], environment: Mapping[str, str], directory: str | None, run: str, silence: float
) -> int:
    """Run one rank's command to its end; returns its exit code, 128 + n for signal n.

    `environment` is added to this process's, less what may say that this is a rank of something else. `run` is the
    name of what is shared with the launcher, which is gone after `silence` seconds without a beat; then the command is
    ended. Whatever this raises, nothing of the command is left.
    """
    distributed = importlib.import_module("distributed")
    queue, orders = distributed.Queue(run), distributed.Variable(run)
    program = sys.executable if command[0] == INTERPRETER else command[0]
    process = subprocess.Popen(
        [program, *command[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        cwd=directory, env={**without_ranks(os.environ), **environment}, start_new_session=True,
    )  # fmt: skip
    over = threading.Event()
    readers = [
        threading.Thread(target=_pass_on, args=(stream, rank, number, queue, over), daemon=True)
        for number, stream in enumerate((process.stdout, process.stderr))
    ]
    try:
        for reader in readers:
            reader.start()
        _obey(process, rank, orders, silence)
    finally:
        _signal(process, signal.SIGKILL)  # what it has started, too
        code = process.wait()
        for reader in readers:
            reader.join(GRACE)
        over.set()
        assert process.stdin is not None
        process.stdin.close()  # until then it is tied to this process
    return code if code >= 0 else 128 - code


def _pass_on(stream: IO[bytes] | None, rank: int, number: int, queue: Any, over: threading.Event) -> None:
    """Put what comes out of a stream into the queue, piece by piece, as long as there may be somebody to read it."""
    assert stream is not None
    with stream:
        while data := stream.read(BLOCK):
            while not over.is_set():
                with contextlib.suppress(Exception):  # the queue is full, or the scheduler cannot be reached: try again
                    queue.put((rank, number, data), timeout=PUT)
                    break
                over.wait(LOOK)


def _obey(process: subprocess.Popen[bytes], rank: int, orders: Any, silence: float) -> None:
    """Pass on the orders to this rank until its process ends; return, too, when none are to be had for too long."""
    beat, order = -1, 0
    heard = time.monotonic()
    while not _over(process, LOOK):
        with contextlib.suppress(Exception):  # a scheduler that cannot be reached is silent
            said, given = orders.get(timeout=silence)
            if said != beat:
                beat, heard = said, time.monotonic()
            if given.get(str(rank), order) != order:
                order = given[str(rank)]
                _signal(process, signal.Signals(order))
        if time.monotonic() - heard > silence:
            _signal(process, signal.SIGTERM)
            _over(process, GRACE)
            return


def _over(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether the process has ended, by then. It is not reaped, so that its number stays its own."""
    until = time.monotonic() + seconds
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > until:
            return False
        time.sleep(SLICE)
    return True


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the process and all of its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
