"""Recording on virtual devices: what streams are told is put down in order, and told to the real ones by a replay.

The rules are those of a GPU's stream capture, and breaking one is an error. A stream takes part once it has waited for
a mark of one that does; the first does from the beginning. Only marks of the recording can be waited for, and not by
the host. In the end the first stream must know of all work of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from purine_ref.devices.races import Clock, Knowledge
from purine_ref.devices.streams import Stream
from purine_ref.devices.work import Mark, Work, queue_of
from purine_ref.tensor import Location

Command = Callable[[dict["TapeMark", Any]], None]
"""Tells one thing to a real stream, given the marks that this replay has made, by those of the recording."""


class TapeMark:
    """A point in a stream of a recording; `clock` says what comes before it."""

    def __init__(self, tape: VirtualTape, clock: Clock) -> None:
        self.tape = tape
        self.clock = dict(clock)

    def synchronise(self) -> bool:
        """Raises RuntimeError: nothing runs while it is recorded."""
        raise RuntimeError("the host cannot wait for a mark of a recording, in which nothing runs")


class VirtualTape:
    """One recording. `stream` finds the real stream of a place, `admit` raises GraphError for work that it refuses."""

    def __init__(self, stream: Callable[[Location, str], Stream], admit: Callable[[Work], None]) -> None:
        self._stream = stream
        self.admit = admit
        self._streams: list[TapeStream] = []
        self._commands: list[Command] = []
        self._open = True

    def open(self, location: Location, name: str) -> TapeStream:
        """A stream of the recording; the first takes part from the beginning."""
        stream = TapeStream(self, queue_of(location, name), self._stream(location, name), first=not self._streams)
        self._streams.append(stream)
        return stream

    def put(self, command: Command) -> None:
        """Put a command down. Raises RuntimeError when the recording has ended."""
        if not self._open:
            raise RuntimeError("the recording has ended, and takes no more commands")
        self._commands.append(command)

    def end(self) -> None:
        """The recording is complete. Raises RuntimeError where the first stream does not know of all that was done."""
        self._open = False
        for stream in self._streams:
            if stream.launched > self._streams[0].clock.get(stream.queue, 0):
                raise RuntimeError(f"stream {stream.queue} of the recording was not joined to the first one")

    def discard(self) -> None:
        """Take no more commands, and forget those that came."""
        self._open = False
        self._commands.clear()

    def replay(self) -> None:
        """Tell the real streams all of it."""
        marks: dict[TapeMark, Any] = {}
        for command in self._commands:
            command(marks)

    def close(self) -> None:
        """Forget the commands."""
        self._commands.clear()


class TapeStream:
    """A stream of a recording: it tells the tape what is to be told to the `real` one."""

    def __init__(self, tape: VirtualTape, queue: str, real: Stream, *, first: bool) -> None:
        self.queue = queue
        self._tape = tape
        self._real = real
        self._part = first
        self._knowledge = Knowledge(queue)

    @property
    def clock(self) -> Clock:
        """What is known here to be done before."""
        return self._knowledge.clock

    @property
    def launched(self) -> int:
        """How much work was put down here."""
        return self._knowledge.next - 1

    def wait(self, mark: Any) -> None:
        """Wait for a mark of the recording, and take part. Raises RuntimeError for another mark."""
        if not isinstance(mark, TapeMark) or mark.tape is not self._tape:
            raise RuntimeError(f"stream {self.queue} of a recording cannot wait for a mark from outside it")
        self._tape.put(lambda marks: self._real.wait(marks[mark]))
        self._knowledge.join(mark.clock)
        self._part = True

    def launch(self, work: Work) -> None:
        """Put the work down. Raises RuntimeError where the stream takes no part, GraphError for memory elsewhere."""
        self._require_part()
        self._tape.admit(work)
        self._tape.put(lambda marks: self._real.launch(work))
        self._knowledge.count()

    def mark(self) -> Mark:
        """A mark behind what was put down. Raises RuntimeError where the stream takes no part."""
        self._require_part()
        mark = TapeMark(self._tape, self._knowledge.clock)

        def make(marks: dict[TapeMark, Any]) -> None:
            """The mark of this replay."""
            marks[mark] = self._real.mark()

        self._tape.put(make)
        return mark

    def synchronise(self) -> list[BaseException]:
        """Nothing has run."""
        return []

    def close(self) -> None:
        """Nothing to end: the real stream goes on."""

    def _require_part(self) -> None:
        if not self._part:
            raise RuntimeError(
                f"stream {self.queue} takes no part in the recording: it has not waited for a mark of the first one"
            )
