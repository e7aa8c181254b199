"""When each stream of a device did each piece of work. An executor's observer cannot tell: for that one an operator
has ended when it is enqueued. `timeline` draws what was recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, cast

from purine_ref.devices import Device, Event, Work
from purine_ref.executors import Span
from purine_ref.tensor import Location

HOST = "host"
"""The lane of what the host does."""


class Clock(Protocol):
    """How moments are taken, from within work on a stream."""

    def begin(self) -> None:
        """Times are counted from about now on. Called when nothing runs."""

    def host(self) -> float:
        """When the host calls this."""

    def now(self) -> Any:
        """A moment, of the stream on which this is called."""

    def seconds(self, moment: Any) -> float:
        """When it was. Called when all that was enqueued is done."""


class HostClock:
    """The clock of the host, for devices whose streams are threads."""

    def begin(self) -> None:
        """Nothing to do."""

    def host(self) -> float:
        """Seconds."""
        return time.perf_counter()

    def now(self) -> float:
        """Seconds."""
        return time.perf_counter()

    def seconds(self, moment: float) -> float:
        """The same."""
        return moment


class GpuClock:
    """Events of CUDA: a moment is noted by the GPU when its stream gets there, and asked for afterwards.

    `cupy` is the module. Each GPU counts from an event of its own, which all make at about the same time.
    """

    def __init__(self, cupy: Any) -> None:
        self._cuda = cupy.cuda
        self._streams: list[Any] = []
        for number in range(self._cuda.runtime.getDeviceCount()):
            with self._cuda.Device(number):
                self._streams.append(self._cuda.Stream(non_blocking=True))
        self._began: list[Any] = []
        self._host = 0.0
        self.begin()

    def begin(self) -> None:
        """Have each GPU note when times begin."""
        self._began.clear()
        for number, stream in enumerate(self._streams):
            with self._cuda.Device(number), stream:
                self._began.append(self._event())
        self._host = time.perf_counter()

    def host(self) -> float:
        """From about the same beginning."""
        return time.perf_counter() - self._host

    def now(self) -> tuple[int, Any]:
        """The current device's number, and an event in the current stream."""
        return int(self._cuda.Device().id), self._event()

    def seconds(self, moment: tuple[int, Any]) -> float:
        """From the beginning."""
        number, event = moment
        return float(self._cuda.get_elapsed_time(self._began[number], event)) / 1e3

    def _event(self) -> Any:
        event = self._cuda.Event()
        event.record()
        return event


class StreamRecorder:
    """Records a span for each piece of work that a device does, its queue being the lane: operators and sums (rule R4).

    Streams write only through `append`, which is atomic. Read it between runs.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or HostClock()
        self._seen: list[tuple[Work, Any, Any]] = []
        self._enqueued: list[Span] = []

    def watch(self, devices: Callable[[Location], Device]) -> Callable[[Location], Device]:
        """The same devices, for an executor whose work is to be recorded."""
        return lambda location: cast(Device, _Watched(devices(location), self))

    @property
    def spans(self) -> tuple[Span, ...]:
        """What was recorded, in the order of the starts."""
        found = [
            Span(work.name, work.queue, self.clock.seconds(start), self.clock.seconds(end))
            for work, start, end in self._seen
        ]
        return tuple(sorted(found, key=lambda span: span.start))

    @property
    def enqueued(self) -> tuple[Span, ...]:
        """When the host enqueued each piece of work, on the lane `host`: it runs ahead of the streams."""
        return tuple(self._enqueued)

    @property
    def copies(self) -> frozenset[str]:
        """The names of the copies from place to place among them."""
        return frozenset(work.name for work, _, _ in self._seen if work.moves)

    def clear(self) -> None:
        """Forget what was recorded."""
        self._seen.clear()
        self._enqueued.clear()
        self.clock.begin()

    def submit(self, device: Device, work: Work) -> Event | None:
        """Have a device do the work."""
        start = self.clock.host()
        event = device.submit(replace(work, compute=self._timed(work)))
        self._enqueued.append(Span(work.name, HOST, start, self.clock.host()))
        return event

    def _timed(self, work: Work) -> Callable[[], None]:
        """What computes the work, and notes when it did."""

        def compute() -> None:
            """Compute between two moments."""
            start = self.clock.now()
            work.compute()
            self._seen.append((work, start, self.clock.now()))

        return compute


class _Watched:
    """A device that does work as another does, and has it recorded."""

    def __init__(self, device: Device, recorder: StreamRecorder) -> None:
        self._device = device
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def submit(self, work: Work) -> Event | None:
        """Do the work, or enqueue it."""
        return self._recorder.submit(self._device, work)
