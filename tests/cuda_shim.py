"""The CUDA kernels on the CPU: their own sources, compiled as C++ and launched by loops over the grid.

A `HostLaunch` is what `CudaLoops` launches kernels by, on numpy arrays. It checks every argument against the kernel's
parameter, gives the kernel copies of the memory of its arrays with guards before and behind, and fails where it wrote
to a guard, to an input, or between the elements of an output. A `GpuLaunch` does the same with copies on a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from purine_ref.devices.cuda import require_gpu
from purine_ref.devices.cuda.loops import CudaLoops
from purine_ref.devices.cuda.sources import FOLDER, OPTIONS, element_option, kernels, source
from purine_ref.errors import GraphError

Array = Any
Shape = tuple[int, int]
"""Blocks, and threads of a block."""

SHIM = Path(__file__).with_name("cuda_host_shim.h")
STRICT = ("-std=c++17", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror")
SANITIZE = tuple(os.environ.get("CUDA_SHIM_SANITIZE", "").split())
"""More options, by which the tests are run again under sanitizers."""

GUARD = 0 if SANITIZE else 64
"""Bytes before and behind the memory of an array. A sanitizer guards the block of memory itself."""

SHAPES: tuple[Shape, ...] = ((1, 1), (1, 7), (3, 1), (2, 32), (40, 256))
"""One thread, fewer threads than there are elements mostly, and more."""


def require_compiler() -> None:
    """Skip where there is no compiler."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ here, which builds the kernels for the CPU (on Debian: apt-get install g++)")


_building = threading.Lock()


@functools.cache
def folder() -> tempfile.TemporaryDirectory[str]:
    """Where this process builds; it goes with the process."""
    return tempfile.TemporaryDirectory(prefix="cuda_shim_")


def library(family: str, dtype: str) -> ctypes.CDLL:
    """A family's kernels for one element type, built for the CPU by the first thread that asks for them."""
    with _building:
        return _built(family, dtype)


@functools.cache
def _built(family: str, dtype: str) -> ctypes.CDLL:
    exports = "".join(f"EXPORT({name})\n" for name in kernels(family))
    main = Path(folder().name, f"{family}_{dtype}.cpp")
    main.write_text(f'#include "{SHIM}"\n#include "{FOLDER / family}.cu"\n{exports}', "utf-8")
    built = main.with_suffix(".so")
    options = [*STRICT, *SANITIZE, "-fPIC", "-shared", element_option(np.dtype(dtype))]
    build(["g++", *options, "-o", str(built), str(main)])
    return ctypes.CDLL(str(built))


def build(command: list[str]) -> None:
    """Run a compiler, outside the sanitizer that this process may run under."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@functools.cache
def parameters(family: str, dtype: str, kernel: str) -> tuple[str, ...]:
    """A word for each parameter: `in8` and `out8` for pointers to so many bytes, `by8` for values of so many."""
    describe = getattr(library(family, dtype), f"describe_{kernel}")
    describe.restype = ctypes.c_char_p
    return tuple(describe().decode().split())


class HostLaunch:
    """Launches on the CPU. `shape` fixes blocks and threads; None varies them with the number of items.

    So does `falling` for the order of threads. `guards` is off only where memory is too large to be copied.
    """

    def __init__(self, shape: Shape | None = None, *, falling: bool | None = None, guards: bool = True) -> None:
        self.guards = guards
        self.shape = shape
        self.falling = falling
        self.launched: set[tuple[str, str, str]] = set()
        self.cupy: Any = None

    def __call__(self, family: str, kernel: str, dtype: np.dtype, items: int, arguments: Sequence[Any]) -> None:
        """Run a kernel to its end."""
        self.launched.add((family, kernel, dtype.name))
        words = parameters(family, dtype.name, kernel)
        assert len(words) == len(arguments), f"{kernel} has {len(words)} parameters, got {len(arguments)} arguments"
        grid, block = self.shape or SHAPES[items % len(SHAPES)]
        falling = bool(items % 2) if self.falling is None else self.falling
        arrays = [one for word, one in zip(words, arguments, strict=True) if not word.startswith("by")]
        outputs = [one for word, one in zip(words, arguments, strict=True) if word.startswith("out")]
        with guarded(arrays, outputs, self.cupy) if self.guards else _bare(arrays) as at:
            values = [_value(word, one, at) for word, one in zip(words, arguments, strict=True)]
            self._start(family, kernel, dtype, (grid, block), falling, values)

    def _start(
        self, family: str, kernel: str, dtype: np.dtype, shape: Shape, falling: bool, values: Sequence[Any]
    ) -> None:
        start(library(family, dtype.name), kernel, shape, falling, values)


class GpuLaunch(HostLaunch):
    """Launches on the current GPU, by `cupy`, in copies of the arrays' memory there."""

    def __init__(self, cupy: Any) -> None:
        super().__init__()
        self.cupy = cupy

    def _start(
        self, family: str, kernel: str, dtype: np.dtype, shape: Shape, falling: bool, values: Sequence[Any]
    ) -> None:
        options = (*OPTIONS, element_option(dtype))
        module = self.cupy.RawModule(code=source(family), options=options)
        module.get_function(kernel)((shape[0],), (shape[1],), tuple(values))


def start(built: ctypes.CDLL, kernel: str, shape: Shape, falling: bool, values: Sequence[Any]) -> None:
    """Launch a kernel that was built for the CPU, with arguments by value, addresses among them."""
    held = [ctypes.create_string_buffer(np.asarray(value).tobytes()) for value in values]
    pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(one) for one in held))
    getattr(built, f"launch_{kernel}")(*shape, int(falling), pointers)


def _value(word: str, argument: Any, at: dict[int, int]) -> Any:
    """What a kernel is given for an argument: an array's address, or the value."""
    size = int(word.lstrip("inoutby"))
    if not word.startswith("by"):
        assert argument.itemsize == size, f"elements of {size} bytes expected, got {argument.dtype}"
        return np.uint64(at[id(argument)])
    assert argument.nbytes == size, f"a value of {size} bytes expected, got {argument!r}"
    return argument


@contextmanager
def guarded(arrays: Sequence[Array], outputs: Sequence[Array], cupy: Any = None) -> Iterator[dict[int, int]]:
    """Copies of the arrays' memory between guards: addresses of first elements, by the arrays' ids.

    Arrays that share memory share it there too. At the end outputs are copied back, and all else must be as it was.
    With `cupy` the addresses are those of further copies, on the GPU.
    """
    spans = [_span(array) for array in arrays]
    blocks = [_Block(low, high) for low, high in _joined(spans)]
    own = {id(a): next(b for b in blocks if b.low <= low < b.high) for a, (low, _) in zip(arrays, spans, strict=True)}
    there = {block.low: cupy.asarray(block.memory) for block in blocks} if cupy else {}
    for block in blocks:
        block.base = int(there[block.low].data.ptr) if cupy else block.memory.ctypes.data
    yield {id(array): own[id(array)].address(array) for array in arrays}
    for block in blocks:
        if cupy:
            block.memory[...] = cupy.asnumpy(there[block.low])
    results = [own[id(array)].view(array).copy() for array in outputs]
    for array in outputs:
        own[id(array)].forgive(array)
    for block in blocks:
        block.check()
    for array, result in zip(outputs, results, strict=True):
        array[...] = result


@contextmanager
def _bare(arrays: Sequence[Array]) -> Iterator[dict[int, int]]:
    """The arrays where they are."""
    yield {id(array): array.ctypes.data for array in arrays}


def _span(array: Array) -> tuple[int, int]:
    """The first byte of an array, and the one behind its last; empty arrays get a byte."""
    low, high = np.lib.array_utils.byte_bounds(array)
    return low, max(high, low + 1)


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans, of which those that overlap are one."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if joined and low < joined[-1][1]:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return joined


class _Block:
    """A copy of some memory, from `low` to `high`, between guards."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        was = np.frombuffer((ctypes.c_char * (high - low)).from_address(low), np.uint8)
        self.memory = np.full(high - low + 2 * GUARD, 0xA5, np.uint8)
        self.memory[GUARD : GUARD + len(was)] = was
        self.before = self.memory.copy()
        self.base = 0  # where a kernel finds it

    def address(self, array: Array) -> int:
        """Where the array's first element is."""
        return int(self.base + GUARD + array.ctypes.data - self.low)

    def view(self, array: Array, memory: Array | None = None) -> Array:
        """The array as it is here."""
        held = self.memory if memory is None else memory
        return np.ndarray(array.shape, array.dtype, held, GUARD + array.ctypes.data - self.low, array.strides)

    def forgive(self, array: Array) -> None:
        """What was written to the array's elements was meant."""
        self.view(array)[...] = self.view(array, self.before)

    def check(self) -> None:
        """Nothing else was written to."""
        changed = np.flatnonzero(self.memory != self.before) - GUARD
        assert not changed.size, f"bytes {changed[:8]} were written to, of {self.high - self.low}"


def host_loops(shape: Shape | None = None, *, falling: bool | None = None) -> CudaLoops:
    """The CUDA kernels as loops over numpy's arrays."""
    return CudaLoops(np, HostLaunch(shape, falling=falling))


def gpu_loops() -> CudaLoops:
    """The same on GPU 0, or a skip that says why there is none."""
    try:
        require_gpu()
    except GraphError as error:
        pytest.skip(str(error))
    return CudaLoops(np, GpuLaunch(importlib.import_module("cupy")))
