"""The loops over windows by CUDA kernels: the patches of convolutions, and pooling.

The plain twins in `_fast/patches.py` and `_fast/pools.py` say what they do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from purine_ref._fast.geometry import (
    Pads,
    convolved_size,
    require_array,
    require_index,
    require_out,
    require_rows,
    require_shape,
    require_windows,
)
from purine_ref._fast.patches import pixel_rows
from purine_ref.devices.cuda.arguments import axes, by_pixels, strides, windows
from purine_ref.devices.cuda.launches import Launcher
from purine_ref.operation import Array, Pair

NEAR = (1, 1)
"""The dilation of a pooling window."""


class PatchLoops(Launcher):
    """Patches as columns and as rows; there and back."""

    pixel_rows: Any = staticmethod(pixel_rows)

    def im2col(
        self, x: Array, kernel: Pair, stride: Pair, pads: Pads, dilation: Pair, out: Array | None = None
    ) -> Array:
        """x (N, C, H, W) -> cols (N, C, kh, kw, oh, ow). Raises ValueError."""
        require_array(x, "x", 4)
        size = convolved_size(x.shape[2:], kernel, stride, pads, dilation)
        shape = (*x.shape[:2], *kernel, *size)
        cols = self._target(out, shape, x.dtype)
        dense = self._room(cols)
        where = axes(x.shape), windows(kernel, stride, pads, dilation, size)
        self._run("patches", "im2col", x.dtype, dense.size, x, strides(x), dense, *where)
        return self._settle(cols, dense)

    def col2im(
        self,
        cols: Array,
        shape: tuple[int, ...],
        kernel: Pair,
        stride: Pair,
        pads: Pads,
        dilation: Pair,
        out: Array | None = None,
    ) -> Array:
        """cols (N, C, kh, kw, oh, ow) -> x of `shape` (N, C, H, W). Raises ValueError."""
        require_array(cols, "cols", 6)
        size = convolved_size((shape[2], shape[3]), kernel, stride, pads, dilation)
        require_shape(cols, "cols", (*shape[:2], *kernel, *size))
        x = self._target(out, shape, cols.dtype)
        where = axes(shape), windows(kernel, stride, pads, dilation, size), by_pixels(x)
        dense = self._xp.ascontiguousarray(cols)
        self._run("patches", "col2im", x.dtype, x.size, dense, x, strides(x), *where)
        return x

    def unfold(self, x: Array, kernel: Pair, stride: Pair, pads: Pads, dilation: Pair, first: int, out: Array) -> None:
        """x (N, C, H, W) -> out (rows, kh*kw*C), the patches from `first` on. Raises ValueError."""
        require_array(x, "x", 4)
        size = convolved_size(x.shape[2:], kernel, stride, pads, dilation)
        require_rows(out, "out", x, kernel, size, first, whole=False)
        require_out(out, "out", out.shape, x.dtype)
        where = axes(x.shape), windows(kernel, stride, pads, dilation, size), first, out.shape[0]
        self._run("patches", "unfold", x.dtype, out.size, x, strides(x), out, *where)

    def fold(self, rows: Array, dx: Array, kernel: Pair, stride: Pair, pads: Pads, dilation: Pair) -> None:
        """rows (N*oh*ow, kh*kw*C) -> dx (N, C, H, W). Raises ValueError."""
        require_array(dx, "dx", 4)
        require_out(dx, "dx", dx.shape, dx.dtype)
        size = convolved_size(dx.shape[2:], kernel, stride, pads, dilation)
        require_rows(rows, "rows", dx, kernel, size, 0, whole=True)
        where = axes(dx.shape), windows(kernel, stride, pads, dilation, size), by_pixels(dx)
        self._run("patches", "fold", dx.dtype, dx.size, rows, dx, strides(dx), *where)


class PoolLoops(Launcher):
    """The maximum and the average of windows, and their gradients."""

    def max_pool(
        self, x: Array, kernel: Pair, stride: Pair, pads: Pads, size: Pair, out: tuple[Array, Array] | None = None
    ) -> tuple[Array, Array]:
        """x (N, C, H, W) -> y, index (N, C, oh, ow). Raises ValueError."""
        require_array(x, "x", 4)
        require_windows(x.shape[2:], kernel, stride, pads, size)
        shape = (*x.shape[:2], *size)
        y = self._target(None if out is None else out[0], shape, x.dtype, "out y")
        index = self._target(None if out is None else out[1], shape, np.int64, "out index")
        where = axes(x.shape), windows(kernel, stride, pads, NEAR, size), by_pixels(y)
        arrays = x, strides(x), y, strides(y), index, strides(index)
        self._run("pools", "max_pool", x.dtype, y.size, *arrays, *where)
        return y, index

    def max_pool_scatter(self, dy: Array, index: Array, shape: tuple[int, ...], out: Array | None = None) -> Array:
        """dy, index (N, C, oh, ow) -> dx of `shape`, for any index; a thread for each plane. Raises ValueError."""
        require_array(dy, "dy", 4)
        require_index(index, dy.shape, shape)
        dx = self._target(out, shape, dy.dtype)
        arrays = dy, strides(dy), index, strides(index), dx, strides(dx)
        planes = shape[0] * shape[1]
        self._run("pools", "max_pool_scatter", dy.dtype, planes, *arrays, axes(shape), axes(dy.shape))
        return dx

    def max_pool_gather(
        self,
        dy: Array,
        index: Array,
        shape: tuple[int, ...],
        kernel: Pair | None,
        stride: Pair,
        pads: Pads,
        out: Array | None = None,
    ) -> Array:
        """As `max_pool_scatter`, for the index of a `max_pool` with these windows; a thread for each element of dx.

        Without a kernel the index may be any, and each plane has a thread. Raises ValueError.
        """
        if kernel is None:
            return self.max_pool_scatter(dy, index, shape, out=out)
        require_array(dy, "dy", 4)
        require_index(index, dy.shape, shape)
        size = (dy.shape[2], dy.shape[3])
        require_windows((shape[2], shape[3]), kernel, stride, pads, size)
        dx = self._target(out, shape, dy.dtype)
        where = axes(shape), windows(kernel, stride, pads, NEAR, size), by_pixels(dx)
        arrays = dy, strides(dy), index, strides(index), dx, strides(dx)
        self._run("pools", "max_pool_gather", dy.dtype, dx.size, *arrays, *where)
        return dx

    def average_pool(
        self, x: Array, kernel: Pair, stride: Pair, pads: Pads, size: Pair, count: str, out: Array | None = None
    ) -> Array:
        """x (N, C, H, W) -> y (N, C, oh, ow); `count` is "padded" or "valid". Raises ValueError."""
        require_array(x, "x", 4)
        require_windows(x.shape[2:], kernel, stride, pads, size)
        _require_count(count)
        y = self._target(out, (*x.shape[:2], *size), x.dtype)
        where = axes(x.shape), windows(kernel, stride, pads, NEAR, size), int(count == "padded"), by_pixels(y)
        self._run("pools", "average_pool", x.dtype, y.size, x, strides(x), y, strides(y), *where)
        return y

    def average_pool_scatter(
        self,
        dy: Array,
        shape: tuple[int, ...],
        kernel: Pair,
        stride: Pair,
        pads: Pads,
        count: str,
        out: Array | None = None,
    ) -> Array:
        """dy (N, C, oh, ow) -> dx of `shape` (N, C, H, W). Raises ValueError."""
        require_array(dy, "dy", 4)
        require_shape(dy, "dy", (*shape[:2], *dy.shape[2:]))
        lengths, size = (shape[2], shape[3]), (dy.shape[2], dy.shape[3])
        require_windows(lengths, kernel, stride, pads, size)
        _require_count(count)
        dx = self._target(out, shape, dy.dtype)
        where = axes(shape), windows(kernel, stride, pads, NEAR, size), int(count == "padded"), by_pixels(dx)
        self._run("pools", "average_pool_scatter", dy.dtype, dx.size, dy, strides(dy), dx, strides(dx), *where)
        return dx


def _require_count(count: str) -> None:
    if count not in ("padded", "valid"):
        raise ValueError(f"count: expected 'padded' or 'valid', got {count!r}")
