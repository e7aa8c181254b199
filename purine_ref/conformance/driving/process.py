"""A port as a child process: its own process group, requests and replies with time limits, and an end in any case.

One thread does it all: it waits for whichever of the three pipes moves, so a port that neither reads nor writes, or
floods its standard error, holds nothing up for longer than the limit. The child is looked at without being reaped
until `close`, so that its number cannot be another process's when its group is killed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Protocol

from purine_ref.conformance.driving.faults import PortFault
from purine_ref.conformance.driving.messages import LONGEST, printable, shown
from purine_ref.errors import Refused

TAIL = 2000
"""How many bytes of a port's standard error are kept: the last ones."""

SLICE = 0.1
"""Seconds after which a wait looks whether the process has ended: where others keep its pipes open, no end shows."""

STOPPING = 5.0
"""Seconds that a port has to end after `stop`."""

CLOSING = 1.0
"""Seconds that a port has to end after it closed its standard output, so that its exit code can be told."""

GOOD_END = "ended with exit code 0"
"""What `ended` says of a process that is content."""


class Channel(Protocol):
    """A way to send one message and get one back. `close` ends it, whatever state it is in."""

    def exchange(self, message: bytes, seconds: float, what: str) -> bytes:
        """The reply to a message. Raises PortFault, naming the request `what`, when there is none in time."""

    def finish(self) -> None:
        """Called after the reply to `stop`. Raises PortFault when the port does not end as it should."""

    def close(self) -> None:
        """Let go of everything; kill what belongs to the channel."""


class Process:
    """A child process whose standard streams are pipes. Raises Refused when it cannot be started."""

    def __init__(self, command: Sequence[str]) -> None:
        try:
            self._child = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
        except (OSError, ValueError) as error:
            raise Refused(f"the port {' '.join(command)!r} cannot be started: {error}") from None
        pipes = self._child.stdin, self._child.stdout, self._child.stderr
        self._pipes = [pipe for pipe in pipes if pipe is not None]
        self._in, self._out, self._err = (pipe.fileno() for pipe in self._pipes)
        self._received = bytearray()
        self._tail = bytearray()
        self._selector = selectors.DefaultSelector()
        for pipe in (self._in, self._out, self._err):
            os.set_blocking(pipe, False)
        self._selector.register(self._out, selectors.EVENT_READ)
        self._selector.register(self._err, selectors.EVENT_READ)

    # Messages -----------------------------------------------------------------------------------------------------

    def exchange(self, message: bytes, seconds: float, what: str) -> bytes:
        """Send a line and return the next one, without its end. Raises PortFault: see `faults.KINDS`."""
        deadline = time.monotonic() + seconds
        self._move(0.0, b"")
        if self._received:
            raise PortFault("disorder", f"{what}: nothing was asked for, but there came {shown(bytes(self._received))}")
        left = message + b"\n"
        while b"\n" not in self._received[:LONGEST]:
            if len(self._received) >= LONGEST:
                raise PortFault("garbage", f"{what}: a line of more than {LONGEST:,} bytes")
            if time.monotonic() >= deadline:
                raise PortFault("hung", f"{what}: no reply in {seconds:g} s{self.last_words()}")
            ended = self.ended()  # before the pipes are read: what it wrote last is still in them
            left = self._move(0.0 if ended else min(SLICE, max(0.0, deadline - time.monotonic())), left)
            self._require_life(ended, what)
        line, _, rest = self._received.partition(b"\n")
        self._received = rest
        return bytes(line)

    def _require_life(self, ended: str, what: str) -> None:
        """Raise PortFault when no reply can come any more: it has `ended`, or closed its output, and sent no line."""
        if b"\n" in self._received:
            return
        if not ended and self._out not in self._selector.get_map():
            ended = self.wait(CLOSING) or "closed its standard output"
        if ended:
            raise PortFault("crashed", f"{what}: the port {ended} before its reply{self.last_words()}")

    def _move(self, seconds: float, left: bytes) -> bytes:
        """Wait until something moves; read what there is, and write of `left` what fits. Returns what is left then."""
        if left:
            self._selector.register(self._in, selectors.EVENT_WRITE)
        try:
            events = self._selector.select(seconds)
        finally:
            if left:
                self._selector.unregister(self._in)
        for key, _ in events:
            if key.fd == self._in:
                left = self._write(left)
            else:
                self._read(key.fd)
        return left

    def _write(self, left: bytes) -> bytes:
        try:
            return left[os.write(self._in, left) :]
        except BrokenPipeError:  # that it has ended, or no longer reads, is found out by its silence
            return b""
        except BlockingIOError:
            return left

    def _read(self, pipe: int) -> bool:
        """Take what a pipe holds; returns whether there was anything."""
        try:
            data = os.read(pipe, 65536)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(pipe)
        elif pipe == self._out:
            self._received += data
        else:
            self._tail = (self._tail + data)[-TAIL:]
        return bool(data)

    # Ends -----------------------------------------------------------------------------------------------------------

    def ended(self) -> str:
        """How the process ended, in words; empty while it runs. It stays a zombie, so its number stays its own."""
        info = os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return ""
        if info.si_code == os.CLD_EXITED:
            return f"ended with exit code {info.si_status}"
        return f"was killed by {signal.Signals(info.si_status).name}"

    def wait(self, seconds: float) -> str:
        """Wait so long for the process to end, reading on; returns how it ended, or "" when it did not."""
        deadline = time.monotonic() + seconds
        while not (ended := self.ended()) and time.monotonic() < deadline:
            self._move(SLICE / 10, b"")
            if len(self._received) > LONGEST:
                del self._received[LONGEST:]  # too much already; it goes on being read, so that it can end
        if self._out in self._selector.get_map():
            self._read(self._out)
        return ended

    def finish(self) -> None:
        """After `stop`: the process must end by itself, with exit code 0 and without further output."""
        ended = self.wait(STOPPING)
        if not ended:
            raise PortFault("hung", f"stop: still running after {STOPPING:g} s{self.last_words()}")
        if ended != GOOD_END:
            raise PortFault("crashed", f"stop: the port {ended}{self.last_words()}")
        if self._received:
            raise PortFault("disorder", f"stop: there came more than the reply: {shown(bytes(self._received))}")

    def close_input(self) -> None:
        """Let it read the end of its standard input: nothing will be asked."""
        self._pipes[0].close()

    @property
    def output(self) -> bytes:
        """What it has written to its standard output and nobody has taken."""
        return bytes(self._received)

    def last_words(self) -> str:
        """The last lines of the standard error, behind "; its last words: ", or nothing."""
        for _ in range(TAIL):  # an end, for a port that never stops writing
            if self._err not in self._selector.get_map() or not self._read(self._err):
                break
        lines = self._tail.decode("utf-8", "replace").strip().splitlines()[-5:]
        return f"; its last words: {' | '.join(printable(line, 200) for line in lines)}" if lines else ""

    def close(self) -> None:
        """Kill the process's whole group, and let go of the pipes."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._selector.close()
        for pipe in self._pipes:
            pipe.close()
