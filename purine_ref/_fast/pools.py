"""The plain twins over pooling windows: the maximum and the average of each, and their gradients.

`loops.py` states what holds for all loops.
"""

from __future__ import annotations

import numpy as np

from purine_ref._fast.geometry import (
    Array,
    Pads,
    Pair,
    divisors,
    positions,
    quiet,
    require_array,
    require_index,
    require_out,
    require_places,
    require_shape,
    require_windows,
)


def max_pool(
    x: Array, kernel: Pair, stride: Pair, pads: Pads, size: Pair, out: tuple[Array, Array] | None = None
) -> tuple[Array, Array]:
    """The maximum of each window: x (N, C, H, W) -> y (N, C, oh, ow), index int64 (N, C, oh, ow), flat in the plane.

    Padding never wins; ties go to the first element in row-major order; the first NaN wins over everything, and a
    window of -inf yields its first element in the image. `out` is (y, index). Raises ValueError when a window holds no
    such element.
    """
    require_array(x, "x", 4)
    require_windows(x.shape[2:], kernel, stride, pads, size)
    shape = (*x.shape[:2], *size)
    y, index = (np.empty(shape, x.dtype), np.empty(shape, np.int64)) if out is None else out
    require_out(y, "out y", shape, x.dtype)
    require_out(index, "out index", shape, np.int64)
    y[...], index[...] = -np.inf, -1
    plane = np.arange(x.shape[2] * x.shape[3]).reshape(x.shape[2:])
    for _, inside, image in positions(x.shape[2:], kernel, stride, pads, (1, 1), size):
        best, place, candidate = y[(..., *inside)], index[(..., *inside)], x[(..., *image)]
        wins = (place < 0) | (candidate > best) | (np.isnan(candidate) & ~np.isnan(best))
        np.copyto(best, candidate, where=wins)
        np.copyto(place, plane[image], where=wins)
    return y, index


@quiet
def max_pool_scatter(dy: Array, index: Array, shape: tuple[int, ...], out: Array | None = None) -> Array:
    """The gradient of `max_pool`: dy, index (N, C, oh, ow) -> dx of `shape` (N, C, H, W).

    Where windows overlap, their gradients add in row-major order of the windows. Raises ValueError.
    """
    require_array(dy, "dy", 4)
    require_index(index, dy.shape, shape)
    require_places(index, shape[2] * shape[3])
    dx = np.empty(shape, dy.dtype) if out is None else out
    require_out(dx, "out", shape, dy.dtype)
    planes, area = shape[0] * shape[1], shape[2] * shape[3]
    flat = np.zeros(planes * area, dy.dtype)
    places = index + np.arange(planes).reshape(*shape[:2], 1, 1) * area
    np.add.at(flat, places.reshape(-1), dy.reshape(-1))
    dx[...] = flat.reshape(shape)
    return dx


@quiet
def average_pool(
    x: Array, kernel: Pair, stride: Pair, pads: Pads, size: Pair, count: str, out: Array | None = None
) -> Array:
    """The average of each window: x (N, C, H, W) -> y (N, C, oh, ow), padding being 0.

    The window's elements add in row-major order, then the sum is divided by the number of elements in the image and
    its declared padding (`count` "padded") or in the image alone ("valid"). Raises ValueError.
    """
    require_array(x, "x", 4)
    require_windows(x.shape[2:], kernel, stride, pads, size)
    divisor = divisors(x.shape[2:], kernel, stride, pads, size, count).astype(x.dtype)
    y = np.empty((*x.shape[:2], *size), x.dtype) if out is None else out
    require_out(y, "out", (*x.shape[:2], *size), x.dtype)
    y[...] = 0
    for _, inside, image in positions(x.shape[2:], kernel, stride, pads, (1, 1), size):
        y[(..., *inside)] += x[(..., *image)]
    y /= divisor
    return y


@quiet
def average_pool_scatter(
    dy: Array, shape: tuple[int, ...], kernel: Pair, stride: Pair, pads: Pads, count: str, out: Array | None = None
) -> Array:
    """The gradient of `average_pool`: dy (N, C, oh, ow) -> dx of `shape` (N, C, H, W).

    Each dy is divided first, by what the forward pass divided by; where windows overlap, the quotients add in
    row-major order of the kernel's positions. Raises ValueError.
    """
    require_array(dy, "dy", 4)
    require_shape(dy, "dy", (*shape[:2], *dy.shape[2:]))
    lengths, size = (shape[2], shape[3]), (dy.shape[2], dy.shape[3])
    require_windows(lengths, kernel, stride, pads, size)
    share = dy / divisors(lengths, kernel, stride, pads, size, count).astype(dy.dtype)
    dx = np.empty(shape, dy.dtype) if out is None else out
    require_out(dx, "out", shape, dy.dtype)
    dx[...] = 0
    for _, inside, image in positions(lengths, kernel, stride, pads, (1, 1), size):
        dx[(..., *image)] += share[(..., *inside)]
    return dx
