"""What several ranks print, as whole lines in one stream, each behind its rank: `[1] verdict: pass`.

A `Sink` never blocks its caller: what the reader does not take is kept, and `full` says when enough is. A stream
without a descriptor (a test's) takes all at once.
"""

from __future__ import annotations

import contextlib
import os
import select
from typing import TextIO

PIECE = select.PIPE_BUF
"""Bytes of one write: a pipe that can be written to has room for so many."""

ROOM = 1 << 16
"""Bytes that a sink keeps before it is full."""

LONGEST = 1 << 16
"""Bytes of a line after which it is broken in two."""

CLEAR = b"\r\x1b[2K"
"""Takes the cursor to the start of a terminal's line and erases it: there may be a progress bar, drawn again later."""


class Sink:
    """One stream of this process that several ranks write to. `descriptor` is -1 where the stream has none."""

    def __init__(self, stream: TextIO) -> None:
        self.terminal = stream.isatty()
        self.descriptor = -1
        self._stream = stream
        self._waiting = bytearray()
        with contextlib.suppress(OSError, AttributeError):  # io.UnsupportedOperation is an OSError
            stream.flush()
            self.descriptor = stream.fileno()

    @property
    def full(self) -> bool:
        """Whether what waits to be written is enough."""
        return len(self._waiting) >= ROOM

    @property
    def empty(self) -> bool:
        """Whether all has been written."""
        return not self._waiting

    def put(self, lines: bytes) -> None:
        """Have whole lines written. Raises BrokenPipeError when the reader has gone."""
        self._waiting += lines
        if self.descriptor < 0:
            self._stream.write(self._waiting.decode("utf-8", "replace"))
            self._waiting.clear()
        else:
            self.write()

    def write(self) -> None:
        """Write what the reader takes now; never waits. Raises BrokenPipeError."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLOUT)
        while self._waiting and poll.poll(0):
            del self._waiting[: os.write(self.descriptor, self._waiting[:PIECE])]


class Lines:
    """One stream of one rank: bytes as they come in, whole lines behind `prefix` out, into `sink`."""

    def __init__(self, prefix: str, sink: Sink) -> None:
        self.sink = sink
        self._prefix = (CLEAR if sink.terminal else b"") + prefix.encode()
        self._part = b""

    def feed(self, data: bytes) -> None:
        """More of the stream; empty at its end, when a last line is written without having had an end."""
        *lines, self._part = (self._part + data).split(b"\n")
        if self._part and (not data or len(self._part) > LONGEST):
            lines.append(self._part)
            self._part = b""
        if lines:
            self.sink.put(b"".join(self._prefix + line + b"\n" for line in lines))
