"""Copies between the memories of the CPU and of the GPUs, in the order of the current stream.

Where both sides are dense and in one memory order, bytes are moved: `memcpyAsync`, or `memcpyPeerAsync` between GPUs,
which go beside kernels. Where they are not, a kernel of the current GPU reads and writes both sides: its own memory,
page-locked memory, and that of GPUs whose peer it is. Between GPUs that are no peers the array goes through
page-locked memory, by a stream of the other GPU. Memory of the CPU that is not page-locked is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from purine_ref.devices.cuda.arguments import laid_as
from purine_ref.devices.cuda.pinned import is_pinned, pinned_array
from purine_ref.errors import GraphError
from purine_ref.operation import Array


class Ordered(Protocol):
    """What a copy needs of a stream: CuPy's stream, its GPU, and staging memory that it keeps."""

    cupy: Any
    gpu: int
    captured: bool

    def staging(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """A C-ordered page-locked array of any content, for use in this stream."""

    def current(self) -> Any:
        """A context in which the stream and its GPU are CuPy's current ones."""


class Copies:
    """The copies of one machine. `peers` are the pairs of GPUs that reach each other's memory; `bridge(gpu)` gives a
    stream of that GPU, for copies that need another than the current one."""

    def __init__(self, cupy: Any, peers: frozenset[tuple[int, int]], bridge: Any) -> None:
        self._cupy = cupy
        self._runtime = cupy.cuda.runtime
        self._peers = peers
        self._bridge = bridge

    def copy(self, stream: Ordered, source: Array, target: Array) -> None:
        """target = source, of one shape and dtype, in `stream`, which is current; one side is its GPU's or reached."""
        if not source.size:
            return
        ends = self._gpu(source), self._gpu(target)
        if None in ends and not is_pinned(self._cupy, source if ends[0] is None else target):
            self._waited(stream, source, target)
        elif None in ends or ends[0] == ends[1] or ends in self._peers:
            self._move(stream, source, target)
        else:
            stage = laid_as(source, stream.staging((source.size,), source.dtype))
            with self._at(stream, ends[0]) as there:
                self._move(there, source, stage)
            with self._at(stream, ends[1]) as there:
                self._move(there, stage, target)

    def _move(self, stream: Ordered, source: Array, target: Array) -> None:
        """Bytes where both sides lie alike, else a kernel."""
        if lie_alike(source, target):
            self._bytes(stream, source, target)
        elif self._gpu(source) == self._gpu(target) == stream.gpu:
            target[...] = source
        else:
            self._reached(stream, target)[...] = self._reached(stream, source)

    def _bytes(self, stream: Ordered, source: Array, target: Array) -> None:
        origin, end = self._gpu(source), self._gpu(target)
        where = self._address(target), self._address(source), source.nbytes
        if origin is not None and end is not None and origin != end:
            self._runtime.memcpyPeerAsync(where[0], end, where[1], origin, source.nbytes, stream.cupy.ptr)
            return
        kinds = {
            (True, False): self._runtime.memcpyHostToDevice,
            (False, True): self._runtime.memcpyDeviceToHost,
            (False, False): self._runtime.memcpyDeviceToDevice,
        }
        self._runtime.memcpyAsync(*where, kinds[origin is None, end is None], stream.cupy.ptr)

    def _waited(self, stream: Ordered, source: Array, target: Array) -> None:
        """By page-locked memory, of which the host itself copies from or to memory that is not.

        Raises GraphError where the stream is captured, since nobody can wait then.
        """
        if stream.captured:
            raise GraphError(
                "a copy from or to memory of the CPU that is not page-locked cannot be recorded: give the executor the "
                "devices of one CUDA machine for the CPU too"
            )
        stage = laid_as(source, pinned_array(self._cupy, (source.size,), source.dtype))
        stream.cupy.synchronize()
        if self._gpu(source) is None:
            stage[...] = source
            self._move(stream, stage, target)
            stream.cupy.synchronize()
        else:
            self._move(stream, source, stage)
            stream.cupy.synchronize()
            target[...] = stage

    @contextmanager
    def _at(self, stream: Ordered, gpu: int | None) -> Iterator[Ordered]:
        """A stream of that GPU, current, between what is in `stream` already and what will be."""
        if gpu == stream.gpu:
            yield stream
            return
        there = self._bridge(gpu)
        there.cupy.wait_event(self._event(stream))
        with there.current():
            yield there
            event = self._event(there)
        stream.cupy.wait_event(event)

    def _event(self, stream: Ordered) -> Any:
        """An event of the stream's GPU, at its end."""
        with self._cupy.cuda.Device(stream.gpu):
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record(stream.cupy)
        return event

    def _gpu(self, array: Array) -> int | None:
        """The GPU whose memory it is; None for the CPU's."""
        return int(array.device.id) if isinstance(array, self._cupy.ndarray) else None

    def _address(self, array: Array) -> int:
        """Where its first element is."""
        return int(array.data.ptr if isinstance(array, self._cupy.ndarray) else array.ctypes.data)

    def _reached(self, stream: Ordered, array: Array) -> Array:
        """The array as one that kernels of the stream's GPU take, the same memory."""
        if self._gpu(array) == stream.gpu:
            return array
        cuda = self._cupy.cuda
        memory = cuda.UnownedMemory(self._address(array), _extent(array), array, stream.gpu)
        return self._cupy.ndarray(array.shape, array.dtype, cuda.MemoryPointer(memory, 0), array.strides)


def lie_alike(one: Array, other: Array) -> bool:
    """Whether two arrays of one shape and dtype are dense, and their elements lie in one order."""
    steps = [(a, b, n) for a, b, n in zip(one.strides, other.strides, one.shape, strict=True) if n != 1]
    expected = one.itemsize
    for a, b, length in sorted(steps):
        if not a == b == expected:
            return False
        expected *= length
    return True


def _extent(array: Array) -> int:
    """Bytes from its first element to behind its last; strides are not negative."""
    return int(sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)) + array.itemsize)
