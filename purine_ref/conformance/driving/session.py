"""One session of `purine-drive/1`: requests in their order, each with a number and a time limit, over any channel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from purine_ref.conformance.driving.faults import PortFault
from purine_ref.conformance.driving.messages import PROTOCOL, Hello, accepted, encode, hello_of
from purine_ref.conformance.driving.process import Channel

LIMIT = 30.0
"""Seconds that a reply may take, unless the user says otherwise."""


class DriveSession:
    """A session with the port behind `channel`; `hello` is what it said. Changing: the number of the last request.

    `limit` are seconds for each reply, and may be changed between requests. Every method raises PortFault or
    Unsupported. A context manager: it ends the channel in any case. Raises PortFault when `hello` is not answered well.
    """

    def __init__(self, channel: Channel, limit: float = LIMIT) -> None:
        self.limit = limit
        self._channel = channel
        self._seq = 0
        try:
            self.hello: Hello = hello_of(self.ask("hello", protocol=PROTOCOL))
        except BaseException:
            channel.close()
            raise

    def ask(self, do: str, **keys: Any) -> dict[str, Any]:
        """Send one request and return its reply, which says that all is well."""
        self._seq += 1
        raw = self._channel.exchange(encode({"seq": self._seq, "do": do, **keys}), self.limit, do)
        return accepted(raw, self._seq, do)

    def load(self, case: Path) -> None:
        """Have the port load a case folder."""
        self.ask("load", case=str(case))

    def feed(self, iteration: int) -> None:
        """Have it take the feeds of an iteration of the loaded case."""
        self.ask("feed", iteration=iteration)

    def run(self, schedule: Sequence[str] | None = None) -> None:
        """Have it run the graph once, in an order of operators or in its own."""
        self.ask("run", schedule=None if schedule is None else list(schedule))

    def fetch(self, blob: str, file: Path) -> None:
        """Have it write what a blob holds. Raises PortFault "missing" when there is no file then."""
        self.ask("fetch", blob=blob, file=str(file))
        if not file.is_file():
            raise PortFault("missing", f"fetch of {blob!r}: the port says that it wrote {file}, which is not there")

    def trace(self, file: Path) -> None:
        """Have it write the trace of all runs since `load`. Raises PortFault "missing" when there is no file then."""
        self.ask("trace", file=str(file))
        if not file.is_file():
            raise PortFault("missing", f"trace: the port says that it wrote {file}, which is not there")

    def stop(self) -> None:
        """Ask it to end, and see that it does."""
        try:
            self.ask("stop")
            self._channel.finish()
        finally:
            self.close()

    def close(self) -> None:
        """End the channel, and the port's processes where they are ours."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
