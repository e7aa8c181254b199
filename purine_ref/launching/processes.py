"""Ranks as child processes: started together, what they print passed on, and all ended when one ends badly.

One thread does it all, in slices of time: it passes on output, looks who has ended, and at signals that came to this
process. Ranks run until all have ended. After the first bad end the others have `settle` seconds to find out and say
so themselves (a `PeerLost` tells more than a signal), then they get SIGTERM, and `grace` seconds later SIGKILL. A
SIGINT, SIGTERM or SIGHUP to this process goes to all ranks at once, and a second one kills them. Every rank leads a
process group, which is killed when the rank has ended: what it has started does not outlive it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from purine_ref.errors import Refused
from purine_ref.launching.exits import Ended, badness
from purine_ref.launching.output import Lines, Sink

SLICE = 0.05
"""Seconds of one wait for output; after each, ends and signals are looked at."""

GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL."""

DRAIN = 1.0
"""Seconds for the last output where others hold a rank's pipes open, and after a signal where the reader is slow."""

BLOCK = 1 << 16
"""Bytes of one read."""


@dataclass(frozen=True, slots=True)
class Start:
    """How to start one rank. `host` is where, None for here: another host's rank is not reached by signals.

    A `plain` rank has this process's standard output as its own, so what it prints there is printed as it is.
    """

    rank: int
    command: Sequence[str]
    environment: Mapping[str, str] | None = None
    host: str | None = None
    plain: bool = False


class Child:
    """One rank's process. It is looked at without being reaped until `close`, so that its number stays its own."""

    def __init__(self, start: Start, sinks: Sequence[Sink]) -> None:
        self.start = start
        self.asked = False  # to end
        # A rank 0 on a terminal writes there itself: its progress bar needs one.
        own = [start.rank == 0 and start.host is None and sink.terminal for sink in sinks]
        own[0] |= start.plain
        out, err = (None if directly else subprocess.PIPE for directly in own)
        try:
            self._process = subprocess.Popen(
                list(start.command), stdin=subprocess.PIPE, stdout=out, stderr=err, env=start.environment, bufsize=0,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise Refused(f"rank {start.rank}: {start.command[0]!r} cannot be started: {error.strerror}") from None
        pipes = zip((self._process.stdout, self._process.stderr), sinks, strict=True)
        self.lines = {pipe.fileno(): Lines(f"[{start.rank}] ", sink) for pipe, sink in pipes if pipe is not None}

    def ended(self) -> Ended | None:
        """How it ended; None while it runs."""
        info = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        code = info.si_status if info.si_code == os.CLD_EXITED else 128 + info.si_status
        return Ended(self.start.rank, code, self.asked, self.start.host)

    def ask(self, number: signal.Signals) -> None:
        """Ask it to end, by a signal, or down its lifeline where it is on another host."""
        self.asked = True
        if self.start.host is None:
            self._kill(number)
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{number.name}\n".encode())

    def kill(self) -> None:
        """End it, and all of its group; on another host, its lifeline ends with this end of the connection."""
        self.asked = True
        self._kill(signal.SIGKILL)

    def _kill(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Kill what is left of it, and let go of its pipes."""
        self._kill(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


class Running(Protocol):
    """A rank that was started, wherever; `Child` is one that is a process of this one."""

    start: Start

    @property
    def lines(self) -> Mapping[int, Lines]:
        """What becomes of its output, by the descriptors that it comes out of."""

    def ended(self) -> Ended | None:
        """How it ended; None while it runs."""

    def ask(self, number: signal.Signals) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it, and all that it has started."""

    def close(self) -> None:
        """Kill what is left of it, and let go of its output."""


def run_ranks(
    starts: Sequence[Start],
    settle: float,
    grace: float = GRACE,
    begin: Callable[[Start, Sequence[Sink]], Running] = Child,
) -> tuple[list[Ended], int]:
    """Run all ranks, each begun by `begin`; returns their ends in the order of time, and the signal that came, or 0.

    Their output goes to this process's, line by line behind the rank. Whatever this raises, no rank is left.
    Raises Refused for a command that cannot be started; BrokenPipeError when the reader of the output has gone.
    """
    with _signals() as came:
        run = _Run(settle, grace, came)
        try:
            for start in starts:
                run.children.append(begin(start, run.sinks))
            return run.to_the_end(), came[0] if came else 0
        finally:
            for child in run.children:
                child.close()


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """A list of the signals that come inside the block, instead of what they do else. Empty in other threads."""
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        """Remember it; the run looks soon."""
        came.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    chosen = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in chosen}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


class _Run:
    """The state of one run: who has ended, and when those that have not are asked to, and killed."""

    def __init__(self, settle: float, grace: float, came: Sequence[int]) -> None:
        self.children: list[Running] = []
        self.sinks = (Sink(sys.stdout), Sink(sys.stderr))
        self._settle = settle
        self._grace = grace
        self._came = came
        self._heard = 0  # how many of `came` have been acted on
        self._ask_at = self._kill_at = float("inf")
        self._ends: dict[int, Ended] = {}
        self._by_rank: dict[int, Running] = {}
        self._open: dict[int, Lines] = {}

    def to_the_end(self) -> list[Ended]:
        """Wait for all ranks to end and for their output to be written."""
        for child in self.children:
            self._by_rank[child.start.rank] = child
            self._open |= child.lines
        while len(self._ends) < len(self.children):
            self._pass_on(SLICE)
            self._look_for_ends()
            self._hear()
            self._keep_time()
        self._drain()
        return list(self._ends.values())

    def _drain(self) -> None:
        """Pass on the last output. A reader that is slow is waited for, unless a signal came."""
        until = time.monotonic() + DRAIN
        while (waiting := not all(sink.empty for sink in self.sinks)) or self._open:
            now = time.monotonic()
            if waiting and not self._came:
                until = now + DRAIN
            elif now >= until:
                return
            self._pass_on(SLICE)

    def _pass_on(self, seconds: float) -> None:
        """Read what there is of the ranks' output, and write what is taken; waits so long for either to be possible."""
        writers = {sink.descriptor: sink for sink in self.sinks if not sink.empty}
        with selectors.PollSelector() as selector:
            for descriptor in writers:
                selector.register(descriptor, selectors.EVENT_WRITE)
            for descriptor, lines in self._open.items():
                if not lines.sink.full:
                    selector.register(descriptor, selectors.EVENT_READ)
            for key, _ in selector.select(seconds):
                if key.fd in writers:
                    writers[key.fd].write()
                    continue
                data = os.read(key.fd, BLOCK)
                lines = self._open[key.fd] if data else self._open.pop(key.fd)
                lines.feed(data)

    def _look_for_ends(self) -> None:
        ends = [end for _ in range(2) for child in self._left() if (end := child.ended())]
        # Twice, for one that was looked at, died and took another with it, all in one look. The worst comes first then.
        for end in sorted(ends, key=lambda end: badness(end.code), reverse=True):
            if end.rank in self._ends:
                continue
            self._ends[end.rank] = end
            self._by_rank[end.rank].kill()  # what it has started
            if end.code != 0 and self._kill_at == float("inf"):  # none has been asked to end yet
                self._ask_at = min(self._ask_at, time.monotonic() + self._settle)

    def _hear(self) -> None:
        """Pass on a signal that came; kill at the second."""
        for number in self._came[self._heard :]:
            self._heard += 1
            if self._heard > 1:
                self._kill_at = 0.0
            else:
                self._ask(signal.Signals(number))

    def _keep_time(self) -> None:
        now = time.monotonic()
        if now >= self._kill_at:
            for child in self._left():
                child.kill()
        elif now >= self._ask_at:
            self._ask(signal.SIGTERM)

    def _ask(self, number: signal.Signals) -> None:
        """Ask all that are left to end, and see that they are killed if they do not."""
        for child in self._left():
            child.ask(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
        self._ask_at = float("inf")
        self._kill_at = time.monotonic() + self._grace

    def _left(self) -> list[Running]:
        return [child for child in self.children if child.start.rank not in self._ends]
