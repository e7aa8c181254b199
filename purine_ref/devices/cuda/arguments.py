"""What kernels are given besides arrays: the structures of `common.cuh`, and arrays of any shape as images.

A structure is an array of one element with named fields, which CuPy passes to a kernel by value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from purine_ref.devices.kernels.rows import channels_last, is_dense
from purine_ref.operation import Array, Pair

AXES = np.dtype([(axis, "i8") for axis in "nchw"])
LINE = np.dtype([(field, "i8") for field in ("count", "kernel", "stride", "pad", "end", "dilation")])
WINDOWS = np.dtype([("rows", LINE), ("columns", LINE)])
KEY = np.dtype([("low", "u8"), ("high", "u8")])


def axes(numbers: Sequence[int]) -> Array:
    """A number for each axis of (N, C, H, W)."""
    return np.array([tuple(numbers)], AXES)


def strides(image: Array) -> Array:
    """The strides of (N, C, H, W) in elements."""
    return axes([step // image.itemsize for step in image.strides])


def windows(kernel: Pair, stride: Pair, pads: tuple[Pair, Pair], dilation: Pair, size: Pair) -> Array:
    """How windows lie on an image: `pads` is (begin, end) for each axis, `size` how many there are of each."""
    lines = [(size[a], kernel[a], stride[a], pads[a][0], pads[a][1], dilation[a]) for a in (0, 1)]
    return np.array([tuple(lines)], WINDOWS)


def reals(dtype: Any, *numbers: float) -> Array:
    """Some numbers, rounded to the arrays' dtype."""
    fields = [(f"number{k}", dtype) for k in range(len(numbers))]
    return np.array([tuple(float(number) for number in numbers)], fields)


def image(array: Array) -> Array:
    """(N, C, ...) as (N, C, H, W), the same memory unless there are more than four axes and they do not merge.

    The last axis stays the last. What has one axis, or none, becomes one row of one channel.
    """
    if array.ndim > 4:
        return array.reshape(*array.shape[:2], math.prod(array.shape[2:-1]), array.shape[-1])
    if array.ndim == 3:
        return array[:, :, None]
    return array[(..., None, None)] if array.ndim == 2 else array[(None,) * (4 - array.ndim)]


def line(array: Array) -> Array:
    """All elements of a C-contiguous array in a row."""
    return array.reshape(1, 1, 1, math.prod(array.shape))


def by_pixels(array: Array) -> int:
    """1 where the channels of (N, C, H, W) lie closer together than its columns, else 0: the order to write it in."""
    _, c, _, w = array.strides
    return int(abs(c) < abs(w))


def laid_as(like: Array, flat: Array) -> Array:
    """The flat array in the shape of `like`: channels-last where it lies so with nothing between, else in C order."""
    if like.ndim == 4 and not like.flags.c_contiguous and is_dense(like):
        return channels_last(flat, like.shape)
    return flat.reshape(like.shape)
