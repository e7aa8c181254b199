"""Virtual devices: accelerators on a machine without any, asynchronous as a GPU is, with a race detector.

A `VirtualMachine` is the CPU and any number of devices, for one executor or several. Each (device, stream) is an
ordered queue with a thread of its own; submitting returns at once with an event, and work may start late by a seeded
delay. Each device has its own memory: work that touches an array of another place, and is not a copy, is refused.
`races` lists every pair of accesses that no event orders. These rules are the specification of a GPU device.

Changing state, guarded by `_lock`: numbers and clocks of the queues, the detector, whose memory an array is.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Sequence

from purine_ref.devices.cpu import CpuDevice
from purine_ref.devices.helpers import quiet
from purine_ref.devices.races import Race, RaceDetector, root_of
from purine_ref.devices.work import Event, UpstreamFailed, Work, noted
from purine_ref.errors import GraphError
from purine_ref.operation import Array
from purine_ref.tensor import Location, Tensor

LONGEST_DELAY = 5e-4
"""Seconds by which work may start late, at most."""


class VirtualEvent:
    """That a piece of work on `queue` is done; `clock` is what is known to be done with it."""

    def __init__(self, queue_name: str, clock: dict[str, int]) -> None:
        self.queue = queue_name
        self.clock = clock
        self._done = threading.Event()
        self._failed = False

    def wait(self) -> bool:
        """Block until the work is done; False when it failed or was skipped."""
        self._done.wait()
        return not self._failed

    @property
    def done(self) -> bool:
        """Whether the work is done."""
        return self._done.is_set()

    def set(self, *, failed: bool = False) -> None:
        """The work is done."""
        self._failed = failed
        self._done.set()


class VirtualMachine:
    """A CPU and virtual devices. `device` is an executor's `devices`; `seed` fixes the delays; `kernels` names the
    kernel set of all."""

    def __init__(self, *, seed: int = 0, longest_delay: float = LONGEST_DELAY, kernels: str = "numpy") -> None:
        self._kernels = kernels
        self._seed = seed
        self._longest = longest_delay
        self._lock = threading.Lock()
        self._detector = RaceDetector()
        self._devices: dict[Location, VirtualDevice] = {}
        self._queues: dict[str, _Queue] = {}
        self._numbers: dict[str, int] = {}
        self._clocks: dict[str, dict[str, int]] = {}
        self._owner: dict[int, tuple[Array, Location]] = {}  # by id of the root array, which is kept alive

    @property
    def races(self) -> list[Race]:
        """The races found so far."""
        return list(self._detector.races)

    def device(self, location: Location) -> VirtualDevice:
        """The device at a location; the CPU is one too, whose work is done when it is submitted."""
        with self._lock:
            return self._devices.setdefault(location, VirtualDevice(self, location, self._kernels))

    def close(self) -> None:
        """End all queues, after what was submitted to them."""
        with self._lock:
            queues, self._queues = list(self._queues.values()), {}
        for one in queues:
            one.close()

    def own(self, array: Array, tensor: Tensor, name: str) -> None:
        """Say whose memory an array is, and which blob's."""
        root = root_of(array)
        with self._lock:
            self._owner[id(root)] = (root, tensor.location)
            self._detector.name(root, repr(name))

    def admit(self, work: Work) -> VirtualEvent:
        """Give work its number and clock, and check its accesses. Raises GraphError for memory of another place."""
        with self._lock:
            self._require_own_memory(work)
            number = self._numbers[work.queue] = self._numbers.get(work.queue, 0) + 1
            clock = dict(self._clocks.get(work.queue, {})) if work.queue != "host" else {}
            for event in work.after:
                for name, known in getattr(event, "clock", {}).items():
                    clock[name] = max(known, clock.get(name, 0))
            self._detector.check(work.name, work.queue, number, clock, work.reads, work.writes)
            if work.queue != "host":
                clock[work.queue] = number
                self._clocks[work.queue] = clock
            return VirtualEvent(work.queue, clock)

    def enqueue(self, work: Work, event: VirtualEvent) -> None:
        """Put admitted work into its queue."""
        with self._lock:
            if work.queue not in self._queues:
                self._queues[work.queue] = _Queue(work.queue, self._seed, self._longest)
            self._queues[work.queue].put(work, event)

    def synchronise(self, location: Location) -> list[BaseException]:
        """Wait for all work of one device; returns what failed. When every device is idle, races start afresh."""
        prefix = f"{location}/"
        failures = [error for name, one in self._queue_items() if name.startswith(prefix) for error in one.drain()]
        with self._lock:
            if all(one.idle for one in self._queues.values()):
                self._detector.forget()
        return failures

    def _queue_items(self) -> list[tuple[str, _Queue]]:
        with self._lock:
            return list(self._queues.items())

    def _require_own_memory(self, work: Work) -> None:
        if work.moves:
            return
        for array in (*work.reads, *work.writes):
            _, owner = self._owner.get(id(root_of(array)), (None, work.location))
            if owner != work.location:
                where = f"operator {work.name!r} at {work.location}"
                raise GraphError(f"{where} touches memory of {owner}: a copy is missing")


class VirtualDevice(CpuDevice):
    """One place of a virtual machine, with the CPU's kernels."""

    asynchronous = True

    def __init__(self, machine: VirtualMachine, location: Location, kernels: str) -> None:
        super().__init__(kernels)
        self._machine = machine
        self._location = location
        self.name = f"virtual {location}"

    def allocate(self, tensor: Tensor, name: str = "", *, row_major: bool = False) -> Array:
        """A zeroed array in this device's memory, for the blob `name`."""
        array = super().allocate(tensor, name, row_major=row_major)
        self._machine.own(array, tensor.at(self._location), name)
        return array

    def submit(self, work: Work) -> Event:
        """Enqueue the work and return; on the CPU, wait for what it needs and do it.

        Raises UpstreamFailed on the CPU when what it needs had failed; GraphError for memory of another place.
        """
        event = self._machine.admit(work)
        if not self._location.is_cpu:
            self._machine.enqueue(work, event)
            return event
        if not all([before.wait() for before in work.after]):
            raise UpstreamFailed(work.name)
        work.compute()
        event.set()
        return event

    def synchronise(self) -> Sequence[BaseException]:
        """Wait for all work of the device; returns what failed."""
        return self._machine.synchronise(self._location)


class _Queue:
    """One stream: a thread that does work in order. After a failure it skips all work until it is drained."""

    def __init__(self, name: str, seed: int, longest_delay: float) -> None:
        self._tasks: queue.SimpleQueue[tuple[Work, VirtualEvent] | None] = queue.SimpleQueue()
        self._delays = random.Random(f"{seed} {name}")
        self._longest = longest_delay
        self._never = threading.Event()
        self._failures: list[BaseException] = []
        self._last: VirtualEvent | None = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether all work submitted so far is done."""
        last = self._last
        return last is None or last.done

    def put(self, work: Work, event: VirtualEvent) -> None:
        """Add work at the end; called under the machine's lock."""
        self._last = event
        self._tasks.put((work, event))

    def drain(self) -> list[BaseException]:
        """Wait for the last work; returns what failed since the last call."""
        if self._last is not None:
            self._last.wait()
        failures, self._failures = self._failures, []
        return failures

    def close(self) -> None:
        """End the thread after all work."""
        self._tasks.put(None)
        self._thread.join()

    def _serve(self) -> None:
        with quiet():
            while (task := self._tasks.get()) is not None:
                self._do(*task)
                del task

    def _do(self, work: Work, event: VirtualEvent) -> None:
        """Wait for what the work needs, perhaps longer, and do it."""
        ready = all([before.wait() for before in work.after]) and not self._failures
        if self._longest > 0 and self._delays.random() < 0.25:
            self._never.wait(self._delays.random() * self._longest)
        event.set(failed=not (ready and self._done(work)))

    def _done(self, work: Work) -> bool:
        try:
            work.compute()
        except BaseException as error:  # reported by `drain`; the thread goes on
            self._failures.append(noted(work, error))
            return False
        return True


def virtual_locations(count: int) -> list[Location]:
    """Devices 0 to count - 1 of rank 0."""
    return [Location(0, device) for device in range(count)]
