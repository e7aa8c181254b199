"""A stand-in for CuPy: its names, over numpy's arrays, for machines without a GPU.

`fake_cupy(gpus=2)` makes a module with GPUs of its own. What is launched is done at once, in the order of the calls;
and every command is put down with its stream and what it reads and writes, so that `races` finds accesses that neither
a stream, an event nor the host's waiting orders. It is an error

- to touch an array while another GPU is current, or in the null stream; to mix in an array of numpy;
- to make the host wait for a value: `bool(array)`, `float(array)`, a mask as an index;
- to copy bytes that an allocation does not have, or in another direction than is said;
- to wait for an event that was not recorded; to launch into a stream of another GPU than the current one;
- while something is captured: to wait on the host, to take memory of the default pool, to wait for an event from
  outside, to end without having joined all streams.

What is captured is undone, and done again by each launch of the graph; memory of its pool holds garbage in between.
"""

from __future__ import annotations

import bisect
import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from cuda_shim import HostLaunch, parameters
from purine_ref.devices.cuda.kernels import MOST_BLOCKS, THREADS
from purine_ref.devices.cuda.sources import FAMILIES, OPTIONS, element_option, source
from purine_ref.devices.races import Knowledge, RaceDetector

WAITS = "the host would have to wait for the GPU"


class CUDARuntimeError(RuntimeError):
    """An error of CUDA, with its code."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Allocation:
    """Some memory: `root` is its bytes; `gpu` whose it is, None for page-locked memory of the CPU."""

    def __init__(self, root: np.ndarray, gpu: int | None) -> None:
        self.root = root
        self.gpu = gpu
        self.low = root.__array_interface__["data"][0]
        self.high = self.low + root.size


class PinnedMemoryPointer(bytearray):
    """Page-locked memory, which has the buffer protocol."""


class FakeArray(np.ndarray):
    """An array on a GPU. `of` is (module's state, number of the GPU)."""

    of: Any = None

    def __new__(
        cls, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None, order: str = "C"
    ) -> FakeArray:
        if memptr is None:
            raise TypeError("the stand-in makes arrays of its own by `empty`")
        state, memory = memptr.mem.state, memptr.mem
        held = state.locate(memory.ptr + memptr.offset, tuple(shape), np.dtype(dtype), strides)
        return state.wrapped(held, memory.device_id)

    def __array_finalize__(self, other: Any) -> None:
        self.of = getattr(other, "of", None)

    # Not without waiting

    def _wait(self, *_: Any) -> Any:
        raise AssertionError(WAITS)

    __bool__ = __float__ = __int__ = __index__ = __complex__ = item = tolist = nonzero = _wait

    @property
    def ctypes(self) -> Any:
        raise AttributeError("an array of CuPy has no ctypes")

    # CuPy's own

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=raw(self).ctypes.data)

    @property
    def device(self) -> Any:
        return SimpleNamespace(id=self.of[1])

    def get(self) -> np.ndarray:
        return self.of[0].fetched(self)

    # Commands

    def __array_function__(self, *_: Any) -> Any:
        raise TypeError("a function of numpy was called with an array of CuPy")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **more: Any) -> Any:
        return self.of[0].call(ufunc.__name__, getattr(ufunc, method), inputs, more, out)

    def __getitem__(self, key: Any) -> Any:
        keys = key if isinstance(key, tuple) else (key,)
        chosen = [one for one in keys if isinstance(one, np.ndarray)]
        if not chosen:
            found = np.ndarray.__getitem__(self, key)
            return found if isinstance(found, FakeArray) else np.ndarray.__getitem__(self, (*keys, ...))
        assert not any(one.dtype == bool for one in chosen), WAITS
        assert len(chosen) == len(keys), "the stand-in takes indices that are all arrays, or none"

        def take(whole: np.ndarray, *places: np.ndarray) -> np.ndarray:  # CuPy wraps what is out of bounds
            return whole[tuple(place % length for place, length in zip(places, whole.shape, strict=False))]

        return self.of[0].call("take", take, (self, *keys), {}, None)

    def __setitem__(self, key: Any, value: Any) -> None:
        state = self.of[0]
        keys = key if isinstance(key, tuple) else (key,)
        plain = tuple(raw(one) if isinstance(one, FakeArray) else one for one in keys)
        assert not any(isinstance(one, np.ndarray) and one.dtype == bool for one in plain), WAITS
        state.require(self, value, *keys)
        reads = [one for one in (value, *keys) if isinstance(one, FakeArray)]
        indexed = [one for one in plain if isinstance(one, np.ndarray)]
        target, held = raw(self), raw(value) if isinstance(value, FakeArray) else value
        writes = self if indexed else np.ndarray.__getitem__(self, (*keys, ...) if ... not in plain else keys)

        def run() -> None:
            at = tuple(one % n for one, n in zip(plain, target.shape, strict=False)) if indexed else plain
            target[at] = held

        state.submit("setitem", reads, [writes], run)

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))


def _method(name: str) -> Callable[..., Any]:
    function = getattr(np.ndarray, name)

    def method(self: FakeArray, *given: Any, **more: Any) -> Any:
        if name in ("reshape", "ravel"):
            seen = function(raw(self), *given, **more)
            if np.may_share_memory(seen, raw(self)) or not seen.size:  # nothing is put into a stream
                return self.of[0].wrapped(seen, self.of[1])
        return self.of[0].call(name, function, (self, *given), more, None)

    return method


for _name in ("copy", "astype", "ravel", "reshape", "flatten", "argmax", "argmin", "mean", "cumsum", "take", "clip"):
    setattr(FakeArray, _name, _method(_name))


def _fill(self: FakeArray, value: Any) -> None:
    self[...] = value


FakeArray.fill = _fill  # type: ignore[method-assign,assignment]


def raw(array: np.ndarray) -> np.ndarray:
    """The array as numpy's own."""
    return np.ndarray.view(array, np.ndarray)


class Capture:
    """A capture that goes on: its streams, what it has put down, and what must be undone."""

    def __init__(self, origin: Stream) -> None:
        self.origin = origin
        self.streams = {origin}
        self.commands: list[Command] = []
        self.before: list[tuple[np.ndarray, np.ndarray]] = []
        self.fresh: list[np.ndarray] = []
        self.detector = RaceDetector()


class Command:
    """One command of a stream."""

    def __init__(self, name: str, reads: Sequence[Any], writes: Sequence[Any], run: Callable[[], None]) -> None:
        self.name = name
        self.reads = reads
        self.writes = writes
        self.run = run


class Stream:
    """CuPy's class of that name."""

    state: Any = None
    null: Any = None

    def __init__(self, null: bool = False, ptds: bool = False, non_blocking: bool = False) -> None:
        assert non_blocking or null, "a stream must be non-blocking, else it waits for the null stream"
        self.device_id = self.state.here.device
        self.ptr = 0 if null else self.state.number()
        self.knowledge = Knowledge(f"stream {self.ptr} of GPU {self.device_id}")
        self.capture: Capture | None = None
        self.state.streams[self.ptr] = self

    def __enter__(self) -> Stream:
        if self.device_id != self.state.here.device:
            raise RuntimeError("the device that the stream is created on does not match with the current device")
        self.state.here.stack.append((self.device_id, self.state.here.streams.get(self.device_id)))
        self.state.here.streams[self.device_id] = self
        return self

    def __exit__(self, *_: Any) -> None:
        device, before = self.state.here.stack.pop()
        self.state.here.streams[device] = before

    def synchronize(self) -> None:
        with self.state.lock:
            self.state.host_waits(self.knowledge.clock)

    def wait_event(self, event: Event) -> None:
        with self.state.lock:
            assert event.clock is not None, "an event is waited for that was not recorded"
            self.state.count("wait")
            if event.capture is not None and self.capture is None:
                assert self.state.captures.get(event.capture.origin) is event.capture, "that capture has ended"
                self.capture = event.capture
                event.capture.streams.add(self)
            assert event.capture is self.capture, "a captured stream waits for an event from outside the capture"
            self.knowledge.join(event.clock)

    def record(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def begin_capture(self, mode: int | None = None) -> None:
        assert self.ptr, "cannot capture on the null stream"
        self.capture = self.state.captures[self] = Capture(self)

    def end_capture(self) -> Graph:
        capture = self.state.captures.pop(self, None)
        if capture is None:
            raise CUDARuntimeError(901, "no capture has begun in this stream")
        for stream in capture.streams:
            stream.capture = None
        self.state.undo(capture)
        for stream in capture.streams:
            known = self.knowledge.clock.get(stream.knowledge.queue, 0)
            if stream is not self and known < stream.knowledge.next - 1:
                raise CUDARuntimeError(904, f"{stream.knowledge.queue} was not joined to the capture's first stream")
        return Graph(self.state, capture)


class Event:
    """CuPy's class of that name."""

    state: Any = None

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.device_id = self.state.here.device
        self.timing = not disable_timing
        self.clock: dict[str, int] | None = None
        self.capture: Capture | None = None
        self.time = 0.0
        self.state.count("event")

    @property
    def done(self) -> bool:
        return self.clock is not None

    def record(self, stream: Stream | None = None) -> None:
        stream = self.state.stream() if stream is None else stream
        assert stream.device_id == self.device_id, "an event is recorded in a stream of another GPU"
        with self.state.lock:
            self.state.count("record")
            stream.knowledge.join(self.state.host)
            self.clock, self.capture, self.time = dict(stream.knowledge.clock), stream.capture, time.perf_counter()

    def synchronize(self) -> None:
        assert self.clock is not None, "an event is waited for that was not recorded"
        assert self.capture is None, "the host waits for an event of a capture"
        with self.state.lock:
            self.state.host_waits(self.clock)


class Graph:
    """A captured graph."""

    def __init__(self, state: State, capture: Capture) -> None:
        self._state = state
        self.commands = capture.commands
        self._fresh = capture.fresh

    def launch(self, stream: Stream | None = None) -> None:
        """Do it all in one stream; within the graph the capture has found the races."""
        stream = self._state.stream() if stream is None else stream
        reads = [array for command in self.commands for array in command.reads]
        writes = [array for command in self.commands for array in command.writes]

        def run() -> None:
            for array in self._fresh:
                array[...] = 0xC5
            for command in self.commands:
                command.run()

        with stream:
            self._state.submit("graph", reads, writes, run)


class Device:
    """CuPy's class of that name."""

    state: Any = None

    def __init__(self, device: int | None = None) -> None:
        self.id = self.state.here.device if device is None else device

    def __enter__(self) -> Device:
        self.state.here.devices.append(self.state.here.device)
        self.state.here.device = self.id
        return self

    def __exit__(self, *_: Any) -> None:
        self.state.here.device = self.state.here.devices.pop()

    def synchronize(self) -> None:
        for stream in list(self.state.streams.values()):
            if stream.device_id == self.id:
                stream.synchronize()


class Here(threading.local):
    """What is current on a thread."""

    def __init__(self) -> None:
        self.device = 0
        self.devices: list[int] = []
        self.streams: dict[int, Stream | None] = {}
        self.stack: list[tuple[int, Stream | None]] = []
        self.allocator: Any = None


class State:
    """What one module knows. `log` has (stream, command, what it reads, what it writes) of all that was launched."""

    def __init__(self, gpus: int, peers: bool) -> None:
        self.gpus = gpus
        self.peers = peers
        self.enabled: set[tuple[int, int]] = set()
        self.lock = threading.RLock()
        self.here = Here()
        self.streams: dict[int, Stream] = {}
        self.captures: dict[Stream, Capture] = {}
        self.host: dict[str, int] = {}
        self.detector = RaceDetector()
        self.log: list[tuple[str, str]] = []
        self.counts: dict[str, int] = {}
        self.fail: Callable[[str], None] = lambda name: None  # may raise, for a test
        self._lows: list[int] = []
        self._allocations: list[Allocation] = []
        self._numbers = 0
        self.module: Any = None

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    @property
    def races(self) -> list[Any]:
        """Accesses that nothing orders."""
        return list(self.detector.races)

    # Memory

    def register(self, root: np.ndarray, gpu: int | None) -> None:
        """Know an allocation, which is kept for good, so that no address comes twice."""
        one = Allocation(root, gpu)
        with self.lock:
            place = bisect.bisect(self._lows, one.low)
            self._lows.insert(place, one.low)
            self._allocations.insert(place, one)

    def allocation(self, address: int) -> Allocation | None:
        """Whose memory an address is; None for memory that is not page-locked."""
        with self.lock:
            place = bisect.bisect_right(self._lows, address) - 1
            found = self._allocations[place] if place >= 0 else None
        return found if found is not None and address < found.high else None

    def locate(self, address: int, shape: tuple[int, ...], dtype: np.dtype, strides: Any = None) -> np.ndarray:
        """Memory at an address as an array of numpy, over the root of its allocation."""
        one = self.allocation(address)
        assert one is not None, "an address that no GPU reaches"
        return np.ndarray(shape, dtype, one.root, address - one.low, strides)

    def wrapped(self, held: np.ndarray, gpu: int) -> FakeArray:
        """An array of numpy as one on that GPU."""
        array = np.ndarray.view(held, FakeArray)
        array.of = (self, gpu)
        return array

    def empty(self, shape: Any, dtype: Any = float, order: str = "C") -> FakeArray:
        shape, kind = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape), np.dtype(dtype)
        return self.like(np.empty(shape, kind, order))  # type: ignore[call-overload,no-any-return]

    def like(self, result: np.ndarray) -> FakeArray:
        """An array on the current GPU that lies as `result` does, of any content, by the current allocator."""
        gpu, capture = self.here.device, self.stream().capture
        root = np.full(max(result.nbytes, 1), 0xC5, np.uint8)
        self.count("allocate")
        self.register(root, gpu)
        if capture is not None:
            assert self.here.allocator is not None, "memory of the default pool was taken in a capture"
            capture.fresh.append(root)
        order = sorted(range(result.ndim), key=lambda axis: -abs(result.strides[axis]))
        flat = root[: result.nbytes].view(result.dtype).reshape([result.shape[axis] for axis in order])
        return self.wrapped(flat.transpose(np.argsort(order)), gpu)

    # Commands

    def stream(self) -> Stream:
        """The current stream."""
        found = self.here.streams.get(self.here.device)
        assert found is not None, "work was put into the null stream"
        return found

    def require(self, *values: Any) -> None:
        """What a command is given: arrays of the current GPU, and numbers."""
        for value in values:
            if isinstance(value, FakeArray):
                assert value.of[1] == self.here.device, f"an array of GPU {value.of[1]}, not of the current one"
            else:
                assert not isinstance(value, np.ndarray) or not value.ndim, "an array of numpy, not of CuPy"

    def call(self, name: str, function: Any, given: Sequence[Any], more: dict[str, Any], out: Any) -> Any:
        """A function over arrays: its results, new arrays or views, or `out`."""
        outs = [] if out is None else list(out) if isinstance(out, tuple) else [out]
        self.require(*given, *more.values(), *outs)
        plain = [raw(one) if isinstance(one, FakeArray) else one for one in given]
        keywords = {key: raw(one) if isinstance(one, FakeArray) else one for key, one in more.items()}
        reads = [one for one in (*given, *more.values()) if isinstance(one, FakeArray)]
        if outs:
            target = {"out": tuple(map(raw, outs)) if isinstance(out, tuple) else raw(outs[0])}
            self.submit(name, reads, outs, lambda: function(*plain, **keywords, **target))
            return outs[0]
        with self.lock, np.errstate(all="ignore"):
            result = function(*plain, **keywords)
        if not isinstance(result, (np.ndarray, np.generic)):
            return result
        result = np.asarray(result)
        for one in reads:
            if np.may_share_memory(result, raw(one)) and result.size:
                return self.wrapped(result, self.here.device)
        made = self.like(result)
        self.submit(name, reads, [made], lambda: np.copyto(raw(made), function(*plain, **keywords)))
        return made

    def submit(self, name: str, reads: Sequence[Any], writes: Sequence[Any], run: Callable[[], None]) -> None:
        """Put a command into the current stream: check it, put it down, do it."""
        stream = self.stream()
        assert stream.device_id == self.here.device, "a command for a stream of another GPU"
        with self.lock, np.errstate(all="ignore"):
            self.fail(name)
            self.count(name)
            knowledge = stream.knowledge
            knowledge.join(self.host)
            command = Command(f"{name} {self.number()}", list(map(raw, reads)), list(map(raw, writes)), run)
            self.log.append((knowledge.queue, command.name))
            known = dict(knowledge.clock)
            detector = self.detector if stream.capture is None else stream.capture.detector
            detector.check(command.name, knowledge.queue, knowledge.next, known, command.reads, command.writes)
            knowledge.count()
            if stream.capture is not None:
                stream.capture.before += [(array, array.copy()) for array in command.writes]
                stream.capture.commands.append(command)
            run()

    def undo(self, capture: Capture) -> None:
        """Nothing of a capture has happened, but that its races are known."""
        self.detector.races += capture.detector.races
        for array, was in reversed(capture.before):
            array[...] = was

    def host_waits(self, clock: Any) -> None:
        """The host knows what a stream or an event knew."""
        assert not self.captures, "the host waits while something is captured"
        self.count("host waits")
        for name, number in clock.items():
            self.host[name] = max(number, self.host.get(name, 0))
        streams = self.streams.values()
        if all(self.host.get(one.knowledge.queue, 0) >= one.knowledge.next - 1 for one in streams):
            self.detector.forget()

    def touched_by_host(self, name: str, reads: Sequence[Any], writes: Sequence[Any]) -> None:
        """The host computes on page-locked memory."""

        def located(array: np.ndarray) -> np.ndarray:
            return self.locate(array.ctypes.data, array.shape, array.dtype, array.strides)

        with self.lock:
            both = [list(map(located, (one for one in side if one.size))) for side in (reads, writes)]
            self.detector.check(f"{name} {self.number()}", "host", 0, dict(self.host), *both)

    def fetched(self, array: FakeArray) -> np.ndarray:
        """A copy for the host, which waits."""
        self.require(array)
        self.stream().synchronize()
        return raw(array).copy()

    # CUDA's runtime

    def memcpy(self, target: int, origin: int, size: int, kind: int, pointer: int) -> None:
        """Copy bytes in a stream."""
        ends = [self.allocation(address) for address in (target, origin)]
        ways = {1: (True, False), 2: (False, True), 3: (True, True)}
        assert tuple(one is not None and one.gpu is not None for one in ends) == ways[kind], "another kind of copy"
        stream = self.streams[pointer]
        for one, address in zip(ends, (target, origin), strict=True):
            if one is None:
                assert stream.capture is None, "memory that is not page-locked in a capture"
            else:
                assert address + size <= one.high, "a copy goes over the end of an allocation"
        self._moved(stream, ends, (target, origin), size)

    def memcpy_peer(self, target: int, to: int, origin: int, by: int, size: int, pointer: int) -> None:
        """Copy bytes between GPUs."""
        ends = [self.allocation(address) for address in (target, origin)]
        assert [one and one.gpu for one in ends] == [to, by], "a copy between other GPUs than is said"
        assert to == by or {(to, by), (by, to)} <= self.enabled, "a copy between GPUs that are no peers"
        self._moved(self.streams[pointer], ends, (target, origin), size)

    def _moved(self, stream: Stream, ends: Sequence[Allocation | None], at: tuple[int, int], size: int) -> None:
        arrays = [
            [] if one is None else [self.locate(address, (size,), np.dtype(np.uint8))]
            for one, address in zip(ends, at, strict=True)
        ]
        with self.module.cuda.Device(stream.device_id), stream:
            self.submit("memcpy", arrays[1], arrays[0], lambda: ctypes.memmove(at[0], at[1], size) and None)


def fake_cupy(gpus: int = 1, *, peers: bool = True, guards: bool = False, version: str = "14.0.0") -> Any:
    """A module with so many GPUs, which are each other's `peers` or not. With `guards`, kernels run between guards."""
    state = State(gpus, peers)
    module: Any = ModuleType("cupy")
    module.__version__ = version
    module.state = state
    state.module = module
    module.ndarray = FakeArray
    module.RawModule = _raw_module(state, guards)
    module.cuda = _cuda(state)
    module._core = _core(state)
    module.empty = state.empty
    module.asarray = lambda values, dtype=None: _asarray(state, values, dtype)
    module.asnumpy = state.fetched
    module.__getattr__ = lambda name: _Function(state, getattr(np, name)) if callable(
        getattr(np, name)
    ) and not isinstance(getattr(np, name), type) else getattr(np, name)
    return module


class _Function:
    """A function of numpy, or a method of one, over the stand-in's arrays."""

    def __init__(self, state: State, function: Any) -> None:
        self._state = state
        self._function = function

    def __call__(self, *given: Any, out: Any = None, **more: Any) -> Any:
        name = self._function.__name__
        if name == "copyto":
            target, *given_ = given
            where = {key: raw(one) if isinstance(one, FakeArray) else one for key, one in more.items()}
            plain = [raw(one) if isinstance(one, FakeArray) else one for one in given_]
            self._state.require(*given, *more.values())
            reads = [one for one in (*given_, *more.values()) if isinstance(one, FakeArray)]
            self._state.submit(name, reads, [target], lambda: np.copyto(raw(target), *plain, **where))
            return None
        return self._state.call(name, self._function, given, more, out)

    def __getattr__(self, name: str) -> Any:
        return _Function(self._state, getattr(self._function, name))


def _asarray(state: State, values: Any, dtype: Any) -> Any:
    if isinstance(values, FakeArray):
        return values if dtype is None or values.dtype == dtype else values.astype(dtype)
    assert state.stream().capture is None, "values of the host in a capture"
    held = np.asarray(values, dtype)
    made = state.like(held)
    state.submit("asarray", [], [made], lambda: np.copyto(raw(made), held))
    return made


def _core(state: State) -> Any:
    linalg = SimpleNamespace(COMPUTE_TYPE_DEFAULT=1, COMPUTE_TYPE_TF32=7)
    return SimpleNamespace(
        _routines_linalg=linalg,
        set_compute_type=lambda dtype, kind: state.counts.__setitem__("compute type", kind),
    )


def _raw_module(state: State, guards: bool) -> type:
    class RawModule:
        """Takes a family's source and options, and gives functions by name."""

        def __init__(self, code: str, options: tuple[str, ...]) -> None:
            [self._family] = [family for family in FAMILIES if source(family) == code]
            *given, element = options
            assert tuple(given) == OPTIONS
            [self._dtype] = [one for one in map(np.dtype, ("float32", "float64")) if element_option(one) == element]
            assert not state.captures, "a module is loaded in a capture"

        def get_function(self, name: str) -> Callable[..., None]:
            """What launches one kernel: called with grid, block and arguments."""

            def launch(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
                assert 1 <= grid[0] <= MOST_BLOCKS
                assert block == (THREADS,)
                assert all(isinstance(one, (FakeArray, np.generic)) or one.dtype.names for one in arguments)
                arrays = [one for one in arguments if isinstance(one, FakeArray)]
                state.require(*arrays)
                plain = [raw(one) if isinstance(one, FakeArray) else one for one in arguments]
                start = HostLaunch((min(grid[0], 2), 16), guards=guards)  # one thread after the other
                words = parameters(self._family, self._dtype.name, name)
                writes = [one for one, word in zip(arguments, words, strict=True) if word.startswith("out")]
                reads = [one for one in arrays if not any(one is other for other in writes)]
                state.submit(name, reads, writes, lambda: start(self._family, name, self._dtype, grid[0], plain))

            return launch

    return RawModule


def _cuda(state: State) -> Any:
    class Memory:
        """Memory that is not the module's to free."""

        def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
            one = state.allocation(ptr)
            assert one is not None, "memory that is not page-locked"
            assert ptr + size <= one.high, "memory goes over the end of an allocation"
            assert one.gpu in (None, device_id) or (device_id, one.gpu) in state.enabled, "memory of a GPU out of reach"
            self.state, self.ptr, self.device_id = state, ptr, device_id

    class MemoryPool:
        """A pool of its own."""

        def malloc(self, size: int) -> None:
            raise AssertionError("the stand-in only asks whose it is")

    @contextmanager
    def using_allocator(allocator: Any = None) -> Iterator[None]:
        before, state.here.allocator = state.here.allocator, allocator
        try:
            yield
        finally:
            state.here.allocator = before

    def alloc_pinned_memory(size: int) -> Any:
        memory = PinnedMemoryPointer(b"\xc5" * size)
        state.count("pinned")
        state.register(np.frombuffer(memory, np.uint8), None)
        return memory

    def get_elapsed_time(start: Event, end: Event) -> float:
        assert start.timing and end.timing, "an event without a time"  # noqa: PT018
        return (end.time - start.time) * 1e3

    return SimpleNamespace(
        Stream=type("Stream", (Stream,), {"state": state}),
        Event=type("Event", (Event,), {"state": state}),
        Device=type("Device", (Device,), {"state": state}),
        MemoryPool=MemoryPool,
        MemoryPointer=lambda mem, offset: SimpleNamespace(mem=mem, offset=offset, ptr=mem.ptr + offset),
        UnownedMemory=Memory,
        PinnedMemoryPointer=PinnedMemoryPointer,
        alloc_pinned_memory=alloc_pinned_memory,
        using_allocator=using_allocator,
        get_elapsed_time=get_elapsed_time,
        get_current_stream=state.stream,
        runtime=_runtime(state),
    )


def _runtime(state: State) -> Any:
    def enable(peer: int) -> None:
        pair = (state.here.device, peer)
        if pair in state.enabled:
            raise CUDARuntimeError(704, "peer access is already enabled")
        state.enabled.add(pair)

    facts = {"name": b"stand-in", "major": 9, "minor": 0, "totalGlobalMem": 1 << 30, "multiProcessorCount": 2}
    return SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 13000,
        getDeviceCount=lambda: state.gpus,
        getDeviceProperties=lambda index: dict(facts),
        deviceCanAccessPeer=lambda one, other: int(state.peers),
        deviceEnablePeerAccess=enable,
        memcpyHostToDevice=1,
        memcpyDeviceToHost=2,
        memcpyDeviceToDevice=3,
        memcpyAsync=state.memcpy,
        memcpyPeerAsync=state.memcpy_peer,
    )
