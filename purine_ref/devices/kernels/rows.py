"""Channels-last images as matrices: one row for each pixel, one column for each channel.

An array of logical shape (N, C, H, W) lies *by pixels* when its channels are neighbours in memory and its pixels are
evenly spaced in row-major order: a whole channels-last array, or some channels of one. Then it is a matrix without
a copy, whose rows may be further apart than they are long. What lies otherwise is copied into that order first, so the
sums of a product are in one order, whatever the strides (rule R8).
"""

from __future__ import annotations

import numpy as np

from purine_ref.operation import Array


def channels_last(flat: Array, shape: tuple[int, ...]) -> Array:
    """The flat array as one of logical `shape` (N, C, H, W), whose memory is (N, H, W, C)."""
    n, c, h, w = shape
    return flat.reshape(n, h, w, c).transpose(0, 3, 1, 2)


def by_pixels(array: Array) -> bool:
    """Whether (N, C, H, W) lies by pixels. An axis of length 1 may have any stride."""
    n, c, h, w = array.shape
    images, channels, rows, columns = array.strides
    pixel = columns if w > 1 else rows if h > 1 else images if n > 1 else c * array.itemsize
    return bool(
        (c == 1 or channels == array.itemsize)
        and pixel >= c * array.itemsize
        and (h == 1 or rows == w * pixel)
        and (n == 1 or images == h * w * pixel)
    )


def is_dense(array: Array) -> bool:
    """Whether (N, C, H, W) lies channels-last with nothing between its pixels."""
    return bool(array.transpose(0, 2, 3, 1).flags.c_contiguous)


def settled(array: Array) -> Array:
    """The array, or if it does not lie by pixels a channels-last copy."""
    return array if by_pixels(array) else copied(array)


def copied(array: Array) -> Array:
    """A channels-last copy of (N, C, H, W)."""
    copy = empty_like(array)
    copy[...] = array
    return copy


def empty_like(array: Array) -> Array:
    """A channels-last array of the same shape and dtype, of any content."""
    return channels_last(np.empty(array.size, array.dtype), array.shape)
