"""Virtual devices: accelerators on a machine without any, asynchronous as a GPU is, with a race detector.

A `VirtualMachine` is the CPU and any number of devices, for one executor or several, and one backend of `streams`. Each
(device, stream) is a thread that takes commands in order, and may start work late by a seeded delay. Each device has
its own memory: work that touches an array of another place, and is not a copy, is refused.

The race detector judges the calls that the logic of streams makes, as they come: a stream knows what it has waited for,
a mark what its stream knew, and `races` lists every pair of accesses of which the later did not know of the earlier.
These rules are the specification of a GPU.

Changing state, guarded by `lock`: what each stream knows, the detector, whose memory an array is.
"""

from __future__ import annotations

import queue
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial

from purine_ref.devices.cpu import CpuDevice
from purine_ref.devices.helpers import quiet
from purine_ref.devices.races import Clock, Knowledge, Race, RaceDetector, root_of
from purine_ref.devices.streams import Host, Machine
from purine_ref.devices.virtual_tape import VirtualTape
from purine_ref.devices.work import HOST, Event, Work, noted, queue_of
from purine_ref.errors import GraphError
from purine_ref.operation import Array
from purine_ref.tensor import Location, Tensor

LONGEST_DELAY = 5e-4
"""Seconds by which work may start late, at most."""


class VirtualMark:
    """A point in a stream; `clock` is what is known to be done there."""

    def __init__(self, clock: Clock) -> None:
        self.clock = dict(clock)
        self._reached = threading.Event()
        self._failed = False

    def synchronise(self) -> bool:
        """Block until the stream has come so far; False when what was launched before had failed or was skipped."""
        self._reached.wait()
        return not self._failed

    @property
    def reached(self) -> bool:
        """Whether the stream has come so far."""
        return self._reached.is_set()

    def set(self, *, failed: bool = False) -> None:
        """The stream has come so far."""
        self._failed = failed
        self._reached.set()


class VirtualMachine(Machine):
    """A CPU and virtual devices. `device` is an executor's `devices`; `seed` fixes the delays; `kernels` names the
    kernel set of all."""

    def __init__(self, *, seed: int = 0, longest_delay: float = LONGEST_DELAY, kernels: str = "numpy") -> None:
        super().__init__()
        self._kernels = kernels
        self._seed = seed
        self._longest = longest_delay
        self.lock = threading.Lock()
        self._detector = RaceDetector()
        self._devices: dict[Location, VirtualDevice] = {}
        self._owner: dict[int, tuple[weakref.ref[Array], Location]] = {}  # by id of the root array, while it is there

    @property
    def races(self) -> list[Race]:
        """The races found so far."""
        return list(self._detector.races)

    def device(self, location: Location) -> VirtualDevice:
        """The device at a location; the CPU is one too, whose work is done when it is submitted."""
        with self.lock:
            if location not in self._devices:
                self._devices[location] = VirtualDevice(self, location, self._kernels)
            return self._devices[location]

    def own(self, array: Array, tensor: Tensor, name: str) -> None:
        """Say whose memory an array is, and which blob's."""
        root = root_of(array)
        with self.lock:
            gone = weakref.ref(root, partial(self._disown, id(root)))
            self._owner[id(root)] = (gone, tensor.location)
            self._detector.name(root, repr(name))

    def _disown(self, key: int, _: weakref.ref[Array]) -> None:
        """An array is gone; it may go while the lock is held."""
        self._owner.pop(key, None)

    def require_own_memory(self, work: Work) -> None:
        """Raise GraphError where work that is no copy touches memory of another place."""
        for array in (*work.reads, *work.writes) if not work.moves else ():
            _, owner = self._owner.get(id(root_of(array)), (None, work.location))
            if owner != work.location:
                where = f"operator {work.name!r} at {work.location}"
                raise GraphError(f"{where} touches memory of {owner}: a copy is missing")

    def synchronise(self, location: Location) -> list[BaseException]:
        """Wait for all work of one device; returns what failed. When every device is idle, races start afresh."""
        failures = super().synchronise(location)
        with self.lock:
            if all(stream.idle for stream in self._live.streams() if isinstance(stream, VirtualStream)):
                self._detector.forget()
        return failures

    def judge(self, knowledge: Knowledge, work: Work) -> None:
        """Find the races of work that is launched where so much is known. Called under `lock`.

        Raises GraphError for memory of another place.
        """
        self.require_own_memory(work)
        self._detector.check(work.name, knowledge.queue, knowledge.next, knowledge.clock, work.reads, work.writes)

    def _open(self, location: Location, name: str) -> VirtualStream:
        return VirtualStream(self, queue_of(location, name), self._seed, self._longest)

    def _host(self) -> VirtualHost:
        return VirtualHost(self)

    def _tape(self) -> VirtualTape:
        return VirtualTape(self.stream, self.require_own_memory)


class VirtualDevice(CpuDevice):
    """One place of a virtual machine, with the CPU's kernels."""

    asynchronous = True
    machine: VirtualMachine

    def __init__(self, machine: VirtualMachine, location: Location, kernels: str) -> None:
        super().__init__(kernels)
        self.machine = machine
        self._location = location
        self.name = f"virtual {location}"

    def allocate(self, tensor: Tensor, name: str = "", *, row_major: bool = False) -> Array:
        """A zeroed array in this device's memory, for the blob `name`."""
        array = super().allocate(tensor, name, row_major=row_major)
        self.machine.own(array, tensor.at(self._location), name)
        return array

    def submit(self, work: Work) -> Event | None:
        """Launch the work and return; on the CPU, wait for what it needs and do it.

        Raises UpstreamFailed on the CPU when what it needs had failed; GraphError for memory of another place.
        """
        return self.machine.submit(work)

    def synchronise(self) -> Sequence[BaseException]:
        """Wait for all work of the device; returns what failed."""
        return self.machine.synchronise(self._location)


class VirtualHost(Host):
    """The CPU for one piece of work, which knows what it has waited for, and makes marks that pass it on."""

    def __init__(self, machine: VirtualMachine) -> None:
        super().__init__()
        self._machine = machine
        self._knowledge = Knowledge(HOST)

    def wait(self, mark: VirtualMark) -> None:
        """Block until the mark is reached."""
        super().wait(mark)
        self._knowledge.join(mark.clock)

    def launch(self, work: Work) -> None:
        """Compute. Raises UpstreamFailed when what the work needs had failed; GraphError for memory elsewhere."""
        with self._machine.lock:
            self._machine.judge(self._knowledge, work)
        super().launch(work)

    def mark(self) -> VirtualMark:
        """A mark that is reached already: by it others know what the host knew."""
        mark = VirtualMark(self._knowledge.clock)
        mark.set()
        return mark


class VirtualStream:
    """A thread that does what it is told, in order. After a failure it skips all work until it is synchronised."""

    def __init__(self, machine: VirtualMachine, name: str, seed: int, longest_delay: float) -> None:
        self._machine = machine
        self._knowledge = Knowledge(name)
        self._steps: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._launched = self._done = 0  # pieces of work, by those who launch and by the thread
        self._delays = random.Random(f"{seed} {name}")
        self._longest = longest_delay
        self._never = threading.Event()
        self._failed = self._closed = False
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether all work that was launched is done."""
        return self._done == self._launched

    def wait(self, mark: VirtualMark) -> None:
        """Let all that is launched from now on come after `mark`."""
        with self._machine.lock:
            self._knowledge.join(mark.clock)
            self._tell(partial(self._wait, mark))

    def launch(self, work: Work) -> None:
        """Enqueue the work. Raises GraphError for memory of another place."""
        with self._machine.lock:
            self._machine.judge(self._knowledge, work)
            self._knowledge.count()
            self._launched += 1
            self._tell(partial(self._do, work))

    def mark(self) -> VirtualMark:
        """A mark behind all that was launched so far."""
        with self._machine.lock:
            mark = VirtualMark(self._knowledge.clock)
            self._tell(lambda: mark.set(failed=self._failed))
        return mark

    def synchronise(self) -> list[BaseException]:
        """Block until all that was launched is done; returns what failed since the last call."""
        failures: list[BaseException] = []
        end = threading.Event()

        def settle() -> None:
            """Hand over the failures, and go on without."""
            failures.extend(self._failures)
            self._failures.clear()
            self._failed = False
            end.set()

        with self._machine.lock:
            if self._closed:
                return failures
            self._tell(settle)
        end.wait()
        return failures

    def close(self) -> None:
        """End the thread after all that it was told."""
        with self._machine.lock:
            self._closed = True
            self._steps.put(None)
        self._thread.join()

    def _tell(self, step: Callable[[], None]) -> None:
        """Put a step in; called under the machine's lock. Raises RuntimeError when the stream is closed."""
        if self._closed:
            raise RuntimeError(f"stream {self._knowledge.queue} is closed, and takes nothing more")
        self._steps.put(step)

    def _serve(self) -> None:
        with quiet():
            while (step := self._steps.get()) is not None:
                step()
                del step

    def _wait(self, mark: VirtualMark) -> None:
        if not mark.synchronise():
            self._failed = True

    def _do(self, work: Work) -> None:
        """Do the work, perhaps late, or skip it."""
        if self._longest > 0 and self._delays.random() < 0.25:
            self._never.wait(self._delays.random() * self._longest)
        if not self._failed:
            try:
                work.compute()
            except BaseException as error:  # reported by `synchronise`; the thread goes on
                self._failures.append(noted(work, error))
                self._failed = True
        del work  # the frames of an error lead back to this one
        self._done += 1


def virtual_locations(count: int) -> list[Location]:
    """Devices 0 to count - 1 of rank 0."""
    return [Location(0, device) for device in range(count)]
