"""CUDA's streams as a backend of `devices/streams.py`: each a non-blocking stream of one GPU, with memory of its own.

Launching calls `compute` with the GPU and the stream current, so that all that CuPy and the kernels do goes there, and
returns while the GPU still works. What `refuse` suspects is looked at when the stream is synchronised, and so are
CUDA's own errors. Scratch memory belongs to a stream, by slot: within it, what comes later may overwrite it.

Changing state: that of a stream is touched by whoever launches into it, one at a time, and by who synchronises it.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from purine_ref.devices.cuda.copies import Copies
from purine_ref.devices.cuda.pinned import pinned_array
from purine_ref.devices.work import Work, noted
from purine_ref.operation import Array

FLAGS = 256
"""Refusals that a block of page-locked memory has room for."""


class Here(threading.local):
    """The stream that is current, for each thread."""

    stream: CudaStream | None = None

    def __call__(self) -> CudaStream:
        """That stream. Raises RuntimeError where there is none."""
        if self.stream is None:
            raise RuntimeError("no stream of a CUDA machine is current: use its `current(location, name)`")
        return self.stream


class CudaMark:
    """A point in a stream: an event, and whether what was launched before had failed already."""

    __slots__ = ("event", "failed")

    def __init__(self, event: Any, failed: bool) -> None:
        self.event = event
        self.failed = failed

    def synchronise(self) -> bool:
        """Block the host until the stream has come so far; False where it did not, or what was launched failed."""
        try:
            self.event.synchronize()
        except RuntimeError:  # CUDA's errors are; reported by the stream
            return False
        return not self.failed


@dataclass(frozen=True, slots=True)
class Refusal:
    """That something is suspect, once `flag` is set in page-locked memory: then `complain` is shown the values."""

    flag: Array
    values: Array
    complain: Callable[[Array], None]
    work: Work | None


class CudaStream:
    """A stream of GPU `gpu`. `name` is the queue's; `blocking` says that the host waits behind every launch."""

    captured = False

    def __init__(self, cupy: Any, gpu: int, name: str, here: Here, copies: Copies, *, blocking: bool = False) -> None:
        self.gpu = gpu
        self.name = name
        self._module = cupy
        self._here = here
        self._copies = copies
        self._blocking = blocking
        self._device = cupy.cuda.Device(gpu)
        with self._device:
            self.cupy = cupy.cuda.Stream(non_blocking=True)
        self._free: deque[Any] = deque()  # events that nobody waits for any more
        self._marked: deque[Any] = deque()
        self._buffers: dict[str, Array] = {}
        self._arrays: dict[tuple[str, tuple[int, ...], np.dtype], Array] = {}  # views of the buffers, made before
        self._stages: dict[tuple[tuple[int, ...], np.dtype], Array] = {}
        self._flags: list[Array] = []
        self.refusals: list[Refusal] = []
        self._work: Work | None = None
        self._names: list[str] = []  # the first work since the stream was synchronised, and the last
        self._failures: list[BaseException] = []
        self._failed = False

    # What the logic of streams calls -----------------------------------------------------------------------------

    def wait(self, mark: CudaMark) -> None:
        """Let all that is launched from now on come after `mark`; where that failed, it is skipped."""
        self._failed = self._failed or mark.failed
        self.cupy.wait_event(mark.event)

    def launch(self, work: Work) -> None:
        """Call `compute`, which puts its kernels and copies in. An error is kept, and later work is skipped."""
        if self._failed:
            return
        self._names[1:] = [work.name]
        try:
            self.put(work)
        except Exception as error:  # reported by `synchronise`
            self._failures.append(noted(work, error))
            self._failed = True

    def put(self, work: Work) -> None:
        """Call `compute` with the GPU and this stream current. Raises what it raises."""
        self._work = work
        try:
            with self.current():
                work.compute()
                if self._blocking:
                    self.cupy.synchronize()
        finally:
            self._work = None

    def mark(self) -> CudaMark:
        """A mark behind all that was launched so far."""
        event = self._free.popleft() if self._free else self.new_event()
        event.record(self.cupy)
        self._marked.append(event)
        return CudaMark(event, self._failed)

    def synchronise(self) -> list[BaseException]:
        """Block the host until all that was launched is done; returns what failed. Then the stream begins afresh."""
        marked, self._marked = self._marked, deque()
        failures, self._failures = self._failures, []
        refusals, self.refusals = self.refusals, []
        names, self._names = self._names, []
        try:
            with self.current():
                self.cupy.synchronize()
                failures += [error for refusal in refusals for error in complaints(self._module, refusal)]
        except RuntimeError as error:  # CUDA's errors are
            error.add_note(f"on {self.name}, in work from {' to '.join(map(repr, names)) or 'before'}")
            failures.append(error)
        self._free += marked
        self._failed = False
        return failures

    def settle(self) -> None:
        """Block the host until all that was launched is done, or failed; it is still to be synchronised."""
        try:
            self.cupy.synchronize()
        except RuntimeError:
            pass  # `synchronise` says so

    def close(self) -> None:
        """Wait for what was launched, and let go of memory."""
        self.settle()
        for held in (self._free, self._marked, self._buffers, self._arrays, self._stages, self._flags, self.refusals):
            held.clear()

    # What kernels ask for ----------------------------------------------------------------------------------------

    @contextmanager
    def current(self) -> Iterator[CudaStream]:
        """A context in which the GPU and this stream are CuPy's current ones, and `Here` gives this one."""
        before = self._here.stream
        with ExitStack() as stack:
            stack.enter_context(self._device)
            stack.enter_context(self.cupy)
            self._here.stream = self
            stack.callback(setattr, self._here, "stream", before)
            yield self

    def scratch(self, slot: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array of any content, good until this stream is asked for the same slot again."""
        key = (slot, shape, np.dtype(dtype))
        found = self._arrays.get(key)
        if found is None:
            size = math.prod(shape) * key[2].itemsize
            buffer = self._buffers.get(slot)
            if buffer is None or buffer.size < size:
                buffer = self._buffers[slot] = self._module.empty((max(size, 1),), np.uint8)
                self._arrays = {key: array for key, array in self._arrays.items() if key[0] != slot}
            found = self._arrays[key] = buffer[:size].view(key[2]).reshape(shape)
        return found

    def staging(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """A C-ordered page-locked array of any content, good until this stream asks for such a one again."""
        key = (shape, np.dtype(dtype))
        if key not in self._stages:
            self._stages[key] = pinned_array(self._module, *key)
        return self._stages[key]

    def copy(self, source: Array, target: Array) -> None:
        """target = source, from any memory to any other."""
        self._copies.copy(self, source, target)

    def uploaded(self, number: Array) -> Array:
        """A page-locked array of one number, copied to the GPU here: what it holds then counts, not what it holds now.
        """
        there = self.scratch("uploaded", number.shape, number.dtype)
        self.copy(number, there)
        return there

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Page-locked zeros, for whoever asks to keep."""
        return pinned_array(self._module, shape, dtype)

    def refuse(self, suspect: Array, values: Array, complain: Callable[[Array], None]) -> None:
        """Once the stream is synchronised, call complain(values) where any of `suspect` is True."""
        row, place = divmod(len(self.refusals), FLAGS)
        if row == len(self._flags):
            self._flags.append(pinned_array(self._module, (FLAGS,), bool))
        flag = self._flags[row][place : place + 1]
        self.copy(suspect.any().reshape(1), flag)
        self.refusals.append(Refusal(flag, values.copy(), complain, self._work))

    def new_event(self) -> Any:
        """An event of this GPU, without a time, which takes less."""
        with self._device:
            return self._module.cuda.Event(disable_timing=True)


def complaints(cupy: Any, refusal: Refusal) -> Iterator[BaseException]:
    """What is said against the values, once the work is done."""
    if not refusal.flag[0]:
        return
    try:
        refusal.complain(cupy.asnumpy(refusal.values))
    except Exception as error:
        yield error if refusal.work is None else noted(refusal.work, error)
