"""The vocabulary of a GPU: CuPy's arrays, its matrix products, and the CUDA kernels.

Images are channels-last, as in the CPU's default kernel set, and convolutions are products of matrices with a row for
each pixel, in chunks that shapes alone fix. CuPy multiplies with TF32 only where its variable CUPY_TF32 asks for it,
which `verify` must not have. Nothing waits for the GPU: a call returns when its work is in the current stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

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

    def __call__(self, family: str, kernel: str, dtype: Any, items: int, arguments: Sequence[Any]) -> None:
        """Put a kernel into the stream."""
        key = (family, dtype.name)
        if key not in self._modules:
            options = (*OPTIONS, element_option(dtype))
            self._modules[key] = self._cupy.RawModule(code=source(family), options=options)
        blocks = min(-(-items // THREADS), MOST_BLOCKS)
        self._modules[key].get_function(kernel)((blocks,), (THREADS,), tuple(arguments))


class CudaKernels(CudaLoops):
    """The vocabulary for one run. `xp` is CuPy, `launch` runs a kernel, `key` is that of the run."""

    name = "cuda"
    channels_last = True

    def __init__(self, key: RunKey, xp: Any, launch: Any) -> None:
        super().__init__(xp, launch)
        self.xp = xp
        self.key = key
        self.transport: Any = None

    @staticmethod
    def share(count: int, work: Callable[[int], object]) -> None:
        """Call work(i) for each i in range(count): the GPU itself does it side by side."""
        for item in range(count):
            work(item)

    def scratch(self, slot: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array of any content. CuPy keeps freed memory, and gives it out again in the order of the stream."""
        return self.xp.empty(shape, dtype)

    def convolution(self, x: Array, weight: Array, y: Array, window: Window) -> None:
        """Rows of y: rows of patches of x times the transposed matrix of weights."""
        kernel = weight.shape[2:]
        for c, k in _sides(x.shape[1], weight.shape[0], window.groups):
            factors, part = self._factors(weight[k]), y[:, k]
            rows = self.pixel_rows(part)
            target = self._rows(part.shape, y.dtype) if rows is None else rows
            for start, stop in chunks(target.shape[0], CHUNK // max(factors.shape[1], 1)):
                patches = self._patches(x[:, c], kernel, window, start, stop)
                target[start:stop] = self.xp.matmul(patches, factors.T)
            if rows is None:
                self.change_layout(_image(target, part.shape), part)

    def convolution_data(self, dy: Array, weight: Array, dx: Array, window: Window) -> None:
        """Rows of dy times the matrix of weights are the gradients of patches, which add up where they overlap."""
        kernel, image = weight.shape[2:], math.prod(dy.shape[2:])
        for c, k in _sides(dx.shape[1], weight.shape[0], window.groups):
            factors, rows = self._factors(weight[k]), self._settled(dy[:, k])
            step = CHUNK // max(factors.shape[1] * image, 1)
            for start, stop in chunks(dy.shape[0], step):
                patches = self.xp.matmul(rows[start * image : stop * image], factors)
                self.fold(patches, dx[start:stop, c], kernel, window.stride, window.pads, window.dilation)

    def convolution_weight(self, dy: Array, x: Array, dweight: Array, window: Window) -> None:
        """Transposed rows of dy times rows of patches of x, summed over the chunks in float64."""
        kernel = dweight.shape[2:]
        for c, k in _sides(x.shape[1], dweight.shape[0], window.groups):
            rows, part = self._settled(dy[:, k]), dweight[k]
            total = self.xp.zeros((part.shape[0], math.prod(part.shape[1:])), np.float64)
            for start, stop in chunks(rows.shape[0], SUM_ROWS):
                patches = self._patches(x[:, c], kernel, window, start, stop)
                total += self.xp.matmul(rows[start:stop].T, patches)
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
            return self._settled(x)[start:stop]
        patches = self.scratch("patches", (stop - start, math.prod(kernel) * x.shape[1]), x.dtype)
        self.unfold(x, kernel, window.stride, window.pads, window.dilation, start, patches)
        return patches

    def _settled(self, array: Array) -> Array:
        """The rows of pixels of (N, C, H, W), a copy where it does not lie so."""
        rows = self.pixel_rows(array)
        if rows is None:
            rows = self._rows(array.shape, array.dtype)
            self.change_layout(array, _image(rows, array.shape))
        return rows

    def _rows(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Rows of pixels of any content for (N, C, H, W)."""
        n, c, h, w = shape
        return self.xp.empty((n * h * w, c), dtype)

    def _factors(self, weight: Array) -> Array:
        """(K, C, kh, kw) as the matrix (K, kh*kw*C), contiguous."""
        rows = self.xp.ascontiguousarray(weight.transpose(0, 2, 3, 1))
        return rows.reshape(weight.shape[0], math.prod(weight.shape[1:]))


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
