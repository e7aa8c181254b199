"""The vocabulary of a GPU: CuPy's arrays, its matrix products, and the CUDA kernels.

Images are channels-last, as in the CPU's default kernel set, and convolutions are products of matrices with a row for
each pixel, in chunks that shapes alone fix. CuPy multiplies with TF32 only where `cuda_machine` is asked for it.
Nothing waits for the GPU: a call returns when its work is in the current stream. What a loop keeps for a moment lies in
scratch memory of that stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from purine_ref.devices.cuda.loops import CudaLoops
from purine_ref.devices.cuda.sources import OPTIONS, element_option, source
from purine_ref.operation import Array, Pair, RunKey, Window

THREADS = 256
"""Threads of a block."""

MOST_BLOCKS = 1 << 16
"""Blocks of a launch at most; the threads of a larger one take several items each."""

CHUNK = 1 << 26
"""Elements of unfolded patches at a time: 256 MiB in float32."""

SUM_ROWS = 1 << 12
"""Products of a weight gradient that are added up in the dtype, before the sum goes on in float64."""

Chunks = Iterable[tuple[int, int]]


class CupyLaunch:
    """Launches kernels in CuPy's current stream. Each family is compiled on first use, and kept by CuPy on disk."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._modules: dict[tuple[str, str], Any] = {}
        self._functions: dict[tuple[str, str, str], Any] = {}

    def __call__(self, family: str, kernel: str, dtype: Any, items: int, arguments: Sequence[Any]) -> None:
        """Put a kernel into the stream."""
        key = (family, dtype.name, kernel)
        if key not in self._functions:
            self._functions[key] = self._module(family, dtype).get_function(kernel)
        blocks = min(-(-items // THREADS), MOST_BLOCKS)
        self._functions[key]((blocks,), (THREADS,), tuple(arguments))

    def _module(self, family: str, dtype: Any) -> Any:
        """A family for one element type."""
        key = (family, dtype.name)
        if key not in self._modules:
            options = (*OPTIONS, element_option(dtype))
            self._modules[key] = self._cupy.RawModule(code=source(family), options=options)
        return self._modules[key]


class Current(Protocol):
    """What kernels need of the stream that they work in."""

    def scratch(self, slot: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array of any content, good until the slot is asked for again."""

    def copy(self, source: Array, target: Array) -> None:
        """target = source, from any memory to any other."""

    def refuse(self, suspect: Array, values: Array, complain: Callable[[Array], None]) -> None:
        """Later, call complain(values) where any of `suspect` is True."""

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Zeros in memory of the CPU from which the stream uploads."""

    def uploaded(self, number: Array) -> Array:
        """An array on the GPU with what `number` holds when the stream comes here."""


class CudaKernels(CudaLoops):
    """The vocabulary for one run. `xp` is CuPy, `launch` runs a kernel, `key` is that of the run.

    `here` gives the stream that is current on the calling thread.
    """

    name = "cuda"
    channels_last = True
    whole = True

    def __init__(self, key: RunKey, xp: Any, launch: Any, here: Callable[[], Current]) -> None:
        super().__init__(xp, launch)
        self.xp = xp
        self.transport: Any = None
        self._here = here
        self._iteration: Array | None = None  # page-locked, once something was drawn
        self._key = key

    @property
    def key(self) -> RunKey:
        """What random operations are keyed by. Whoever replays a recording sets it; the seed stays."""
        return self._key

    @key.setter
    def key(self, key: RunKey) -> None:
        """Have what is drawn from now on, and by replays, keyed so."""
        self._key = key
        if self._iteration is not None:
            self._iteration[0] = key.iteration

    @staticmethod
    def share(count: int, work: Callable[[int], object]) -> None:
        """Call work(i) for each i in range(count): the GPU itself does it side by side."""
        for item in range(count):
            work(item)

    @staticmethod
    def number(x: Array) -> Array:
        """x itself: kernels read it where it lies."""
        return x

    def scratch(self, slot: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array of any content, the current stream's own until it asks for that slot again."""
        return self._here().scratch(slot, shape, dtype)

    def refuse(self, suspect: Array, values: Array, complain: Callable[[Array], None]) -> bool:
        """Call complain(values) when the stream is synchronised, where any of `suspect` is True; returns False."""
        self._here().refuse(suspect, values, complain)
        return False

    def copy(self, source: Array, target: Array) -> None:
        """target = source, from any memory to any other, in the current stream."""
        self._here().copy(source, target)

    def _temporary(self, slot: str, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.scratch(slot, shape, dtype)

    def _word(self, iteration: int) -> Array:
        """The iteration, as an array of one uint64 that the GPU is given where the stream comes here: also in a replay.
        """
        if iteration != self._key.iteration:
            return super()._word(iteration)
        if self._iteration is None:
            self._iteration = self._here().pinned((1,), np.uint64)
            self._iteration[0] = iteration
        return self._here().uploaded(self._iteration)

    def convolution(self, x: Array, weight: Array, y: Array, window: Window) -> None:
        """Rows of y: rows of patches of x times the transposed matrix of weights."""
        kernel = weight.shape[2:]
        for c, k in _sides(x.shape[1], weight.shape[0], window.groups):
            factors, part = self._factors(weight[k]), y[:, k]
            rows = self.pixel_rows(part)
            target = self._rows("y", part.shape, y.dtype) if rows is None else rows
            for start, stop in chunks(target.shape[0], CHUNK // max(factors.shape[1], 1)):
                patches = self._patches(x[:, c], kernel, window, start, stop)
                self._product(patches, factors.T, target[start:stop])
            if rows is None:
                self.change_layout(_image(target, part.shape), part)

    def convolution_data(self, dy: Array, weight: Array, dx: Array, window: Window) -> None:
        """Rows of dy times the matrix of weights are the gradients of patches, which add up where they overlap."""
        kernel, image = weight.shape[2:], math.prod(dy.shape[2:])
        for c, k in _sides(dx.shape[1], weight.shape[0], window.groups):
            factors, rows = self._factors(weight[k]), self._settled("dy", dy[:, k])
            step = CHUNK // max(factors.shape[1] * image, 1)
            for start, stop in chunks(dy.shape[0], step):
                shape = ((stop - start) * image, factors.shape[1])
                patches = self.scratch("patches", shape, dx.dtype)
                self._product(rows[start * image : stop * image], factors, patches)
                self.fold(patches, dx[start:stop, c], kernel, window.stride, window.pads, window.dilation)

    def convolution_weight(self, dy: Array, x: Array, dweight: Array, window: Window) -> None:
        """Transposed rows of dy times rows of patches of x, summed over the chunks in float64."""
        kernel = dweight.shape[2:]
        for c, k in _sides(x.shape[1], dweight.shape[0], window.groups):
            rows, part = self._settled("dy", dy[:, k]), dweight[k]
            shape = (part.shape[0], math.prod(part.shape[1:]))
            total, product = self.scratch("total", shape, np.float64), self.scratch("product", shape, dweight.dtype)
            total[...] = 0
            for start, stop in chunks(rows.shape[0], SUM_ROWS):
                patches = self._patches(x[:, c], kernel, window, start, stop)
                self._product(rows[start:stop].T, patches, product)
                total += product
            part[...] = total.reshape(part.shape[0], *kernel, part.shape[1]).transpose(0, 3, 1, 2)

    @staticmethod
    def convolution_data_terms(weight: tuple[int, ...], groups: int) -> int:
        """The output channels, and then the patches that overlap."""
        return weight[0] // groups + math.prod(weight[2:]) - 1

    @staticmethod
    def convolution_weight_terms(dy: tuple[int, ...]) -> tuple[int, int]:
        """A chunk's rows in the dtype, then the chunks in float64."""
        rows = dy[0] * math.prod(dy[2:])
        return min(rows, SUM_ROWS), -(-rows // SUM_ROWS)

    def _patches(self, x: Array, kernel: Pair, window: Window, start: int, stop: int) -> Array:
        """Rows of patches: the pixels themselves where a patch is one, and where they lie so."""
        if kernel == (1, 1) and window.stride == (1, 1) and window.pads == ((0, 0), (0, 0)):
            return self._settled("x", x)[start:stop]
        patches = self.scratch("patches", (stop - start, math.prod(kernel) * x.shape[1]), x.dtype)
        self.unfold(x, kernel, window.stride, window.pads, window.dilation, start, patches)
        return patches

    def _product(self, a: Array, b: Array, out: Array) -> None:
        """The matrix product, written to `out` itself where that is contiguous."""
        if out.flags.c_contiguous:
            self.xp.matmul(a, b, out=out)
        else:
            out[...] = self.xp.matmul(a, b)

    def _settled(self, slot: str, array: Array) -> Array:
        """The rows of pixels of (N, C, H, W), a copy where it does not lie so."""
        rows = self.pixel_rows(array)
        if rows is None:
            rows = self._rows(slot, array.shape, array.dtype)
            self.change_layout(array, _image(rows, array.shape))
        return rows

    def _rows(self, slot: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """Rows of pixels of any content for (N, C, H, W)."""
        n, c, h, w = shape
        return self.scratch(f"rows of {slot}", (n * h * w, c), dtype)

    def _factors(self, weight: Array) -> Array:
        """(K, C, kh, kw) as the matrix (K, kh*kw*C), contiguous."""
        rows, shape = weight.transpose(0, 2, 3, 1), (weight.shape[0], math.prod(weight.shape[1:]))
        if rows.flags.c_contiguous:
            return rows.reshape(shape)
        factors = self.scratch("factors", shape, weight.dtype)
        factors.reshape(rows.shape)[...] = rows
        return factors


def chunks(length: int, step: int) -> Chunks:
    """Ranges of at most `step`, and of 1 at least, that make up `length`."""
    step = max(step, 1)
    return ((start, min(start + step, length)) for start in range(0, length, step))


def _image(rows: Array, shape: tuple[int, ...]) -> Array:
    """Rows of pixels as (N, C, H, W), the same memory."""
    n, c, h, w = shape
    return rows.reshape(n, h, w, c).transpose(0, 3, 1, 2)


def _sides(channels: int, outputs: int, groups: int) -> Iterator[tuple[slice, slice]]:
    """For each group its slices of the inputs' channels and of the outputs'."""
    c, k = channels // groups, outputs // groups
    return ((slice(g * c, g * c + c), slice(g * k, g * k + k)) for g in range(groups))
