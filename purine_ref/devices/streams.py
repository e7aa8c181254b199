"""The logic of streams, written once over a small backend: CuPy's streams, or those of the virtual devices.

Every (device, stream) is an ordered queue. `Queues.submit` puts one piece of work into its queue: the stream is first
told to wait for the marks of other queues that the work needs, then the work is launched, and a mark is made behind it
if anything elsewhere will wait for it. The CPU has no stream: there the host waits, computes, and is done.

A `Machine` is the CPU and the accelerators of one executor or several. It also records: what is submitted to a
`Recording` is put down instead of run, and can be launched as a whole ever after. A recording begins on its first
stream: every other waits for a mark of that before anything else (the fork), and that for all others in the end (the
join).

Changing state: the open streams, guarded by the lock of their `Queues`; of each, how much was launched and how far it
has waited for others, guarded by its own.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from purine_ref.devices.work import HOST, Event, Mark, UpstreamFailed, Work, queue_of
from purine_ref.tensor import Location


class Stream(Protocol):
    """An ordered queue of one device, as a backend has it. Calls for one stream come one at a time."""

    def wait(self, mark: Any) -> None:
        """Let all that is launched from now on come after `mark`, which a stream of the same backend made."""

    def launch(self, work: Work) -> None:
        """Put the work's `compute` in, and return."""

    def mark(self) -> Mark | None:
        """A mark behind all that was launched so far; None where that is done already, and nobody has to wait."""

    def synchronise(self) -> list[BaseException]:
        """Block the host until all that was launched is done; returns what failed since the last call."""

    def close(self) -> None:
        """End the stream, after all that was launched."""


class Host:
    """The CPU, for one piece of work: a stream whose waits block the thread, and whose work is done at once."""

    def __init__(self) -> None:
        self._ready = True

    def wait(self, mark: Any) -> None:
        """Block until the mark is reached."""
        self._ready = mark.synchronise() and self._ready

    def launch(self, work: Work) -> None:
        """Compute. Raises UpstreamFailed when what the work needs had failed."""
        if not self._ready:
            raise UpstreamFailed(work.name)
        work.compute()

    def mark(self) -> Mark | None:
        """None: all is done."""
        return None

    def synchronise(self) -> list[BaseException]:
        """Nothing to wait for."""
        return []

    def close(self) -> None:
        """Nothing to end."""


@dataclass(slots=True)
class _Queue:
    """A stream, how much was launched into it, and for each other queue the last number that it has waited for."""

    stream: Stream
    launched: int = 0
    waited: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def lacks(self, work: Work) -> list[Event]:
        """The events that the queue must wait for before the work: the last of each other queue, if it has not waited
        for that or a later one; and all of the host, which has no order of its own."""
        last: dict[str, Event] = {}
        for event in work.after:
            if event.queue not in (work.queue, HOST):
                last[event.queue] = max(event, last.get(event.queue, event), key=lambda one: one.number)
        lacking = [event for event in last.values() if event.number > self.waited.get(event.queue, 0)]
        return lacking + [event for event in work.after if event.queue == HOST]


class Queues:
    """The queues of some devices, opened by `opened` when they are first needed; `host` gives a CPU for each work."""

    def __init__(self, opened: Callable[[Location, str], Stream], host: Callable[[], Stream] = Host) -> None:
        self._opened = opened
        self._host = host
        self._lock = threading.Lock()
        self._queues: dict[str, _Queue] = {}

    def submit(self, work: Work) -> Event | None:
        """Launch the work behind what it needs; returns its event, or None where it is done.

        Raises UpstreamFailed on the CPU when what it needs had failed, and what the backend raises.
        """
        queue = self._queue(work.location, work.stream)
        with queue.lock:
            for event in queue.lacks(work):
                queue.stream.wait(event.required())
                queue.waited[event.queue] = event.number
            queue.stream.launch(work)
            queue.launched += 1
            mark = queue.stream.mark() if work.signals else None
            if mark is None and work.signals:
                return None
            return Event(work.name, work.queue, queue.launched, mark)

    def stream(self, location: Location, name: str) -> Stream:
        """The stream of that name of a device."""
        return self._queue(location, name).stream

    def _queue(self, location: Location, name: str) -> _Queue:
        if location.is_cpu:
            return _Queue(self._host())
        key = queue_of(location, name)
        with self._lock:
            if key not in self._queues:
                self._queues[key] = _Queue(self._opened(location, name))
            return self._queues[key]

    def streams(self, location: Location | None = None) -> list[Stream]:
        """The streams that are open, in the order of their opening; those of one device, or all."""
        with self._lock:
            items = list(self._queues.items())
        prefix = "" if location is None else f"{location}/"
        return [queue.stream for key, queue in items if key.startswith(prefix)]

    def close(self) -> None:
        """End all streams, after what was launched into them."""
        with self._lock:
            queues, self._queues = list(self._queues.values()), {}
        for queue in queues:
            queue.stream.close()


class Tape(Protocol):
    """What a backend records on: it opens streams whose commands are put down, and replays them."""

    def open(self, location: Location, name: str) -> Stream:
        """A stream of the recording. The first begins it; every other must wait for a mark of the first at once."""

    def end(self) -> None:
        """The recording is complete: the first stream has waited for all others."""

    def discard(self) -> None:
        """The recording will not be completed."""

    def replay(self) -> None:
        """Put all of it into the machine's own streams, behind what is there, and return."""

    def close(self) -> None:
        """Let go of it, after the last replay."""


class Recording:
    """Work that was put down once, and can be launched as a whole. Made by `Machine.record`."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._first: Stream | None = None
        self._fork: Any = None
        self._queues = Queues(self._open, _NoHost)

    def submit(self, work: Work) -> Event | None:
        """Put the work down, as `Queues.submit` would launch it."""
        return self._queues.submit(work)

    def _open(self, location: Location, name: str) -> Stream:
        """A stream that begins behind the fork."""
        stream = self._tape.open(location, name)
        if self._first is None:
            self._first, self._fork = stream, stream.mark()
        else:
            stream.wait(self._fork)
        return stream

    def join(self) -> None:
        """Have the first stream wait for all others, and end the recording."""
        for stream in self._queues.streams():
            if stream is not self._first and self._first is not None:
                self._first.wait(stream.mark())
        self._tape.end()

    def discard(self) -> None:
        """End the recording where something was raised while it was made."""
        self._tape.discard()

    def replay(self) -> None:
        """Launch all that was recorded, and return."""
        self._tape.replay()

    def close(self) -> None:
        """Let go of it, after the last replay."""
        self._tape.close()


class _NoHost(Host):
    """The CPU while something is recorded: it takes nothing."""

    def wait(self, mark: Any) -> None:
        """Nothing: `launch` refuses."""

    def launch(self, work: Work) -> None:
        """Raises RuntimeError."""
        raise RuntimeError(f"internal error: {work.name!r} computes on the CPU, and so cannot be recorded")


class Machine(ABC):
    """The CPU and the accelerators of one executor or several. A subclass says what a device is, as `device`."""

    def __init__(self) -> None:
        self._live = Queues(self._open, self._host)

    @abstractmethod
    def _open(self, location: Location, name: str) -> Stream:
        """A new stream of a device."""

    @abstractmethod
    def _tape(self) -> Tape:
        """Something to record on."""

    def _host(self) -> Stream:
        """A CPU for one piece of work."""
        return Host()

    def submit(self, work: Work) -> Event | None:
        """Launch the work behind what it needs, as `Queues.submit`."""
        return self._live.submit(work)

    def stream(self, location: Location, name: str) -> Stream:
        """The stream of that name of a device, which is opened if it is not there."""
        return self._live.stream(location, name)

    def synchronise(self, location: Location) -> list[BaseException]:
        """Wait for all that was launched on one device; returns what failed."""
        return [error for stream in self._live.streams(location) for error in stream.synchronise()]

    @contextmanager
    def record(self) -> Iterator[Recording]:
        """Within this context work can be submitted to the recording, which can be replayed after it."""
        recording = Recording(self._tape())
        try:
            yield recording
            recording.join()
        except BaseException:
            recording.discard()
            raise

    def close(self) -> None:
        """End all streams, after what was launched into them."""
        self._live.close()
