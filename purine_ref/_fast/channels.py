"""The plain twins over channels: bias, bias with ReLU and its gradient, and the sums over each channel.

Arrays are (N, C, ...), channels on axis 1, in any memory order; `loops.py` states what holds for all loops.

A channel's sum is taken in float64 in one order, whatever the memory order. Image by image, with the image's elements
in row-major order, four at a time: total <- total + ((a + b) + (c + d)), from 0, and what is left at an image's end as
total + a, total + (a + b), or total + ((a + b) + c). So four additions, and all channels, need not wait for each other.
"""

from __future__ import annotations

import math

import numpy as np

from purine_ref._fast.geometry import (
    Array,
    quiet,
    require_alike,
    require_bias,
    require_out,
)


@quiet
def add_bias(x: Array, bias: Array, out: Array) -> None:
    """out = x + bias: x and out (N, C, ...), bias (C,); out may be x. Raises ValueError."""
    require_bias(x, "x", bias, "bias")
    require_out(out, "out", x.shape, x.dtype)
    out[...] = x + bias.reshape(-1, *[1] * (x.ndim - 2))


@quiet
def bias_relu(x: Array, bias: Array, out: Array) -> None:
    """A bias and a ReLU in one pass: out = v where v > 0, 0 elsewhere, with v = x + bias; a NaN passes.

    x and out (N, C, ...), bias (C,); out may be x. Raises ValueError.
    """
    require_bias(x, "x", bias, "bias")
    require_out(out, "out", x.shape, x.dtype)
    v = x + bias.reshape(-1, *[1] * (x.ndim - 2))
    out[...] = np.where(v <= 0, 0, v)


@quiet
def relu_bias_gradient(dy: Array, y: Array, dx: Array, dbias: Array) -> None:
    """The gradients of `bias_relu` in one pass: dx = 0 where y <= 0, dy elsewhere, and dbias, the channels' sums of dx.

    dy, y and dx (N, C, ...); dx may be dy or y. dbias (C,) is float64, or of dy's dtype, to which the sums are then
    rounded. This module states the order of the sums. Raises ValueError.
    """
    require_bias(dy, "dy", dbias, "dbias", wide=True)
    require_alike({"dy": dy, "y": y}, {"dx": dx})
    dx[...] = np.where(y <= 0, 0, dy)
    dbias[...] = channel_sums(dx)


@quiet
def bias_gradient(dy: Array, dbias: Array) -> None:
    """The sum of each channel: dy (N, C, ...) -> dbias (C,), float64 or of dy's dtype. Raises ValueError.

    This module states the order of the sums.
    """
    require_bias(dy, "dy", dbias, "dbias", wide=True)
    dbias[...] = channel_sums(dy)


def channel_sums(x: Array) -> Array:
    """x (N, C, ...) -> (C,), float64, in the order that this module states."""
    images, channels = x.shape[:2]
    planes = x.reshape(images, channels, math.prod(x.shape[2:])).astype(np.float64)
    whole = planes.shape[2] // 4 * 4
    a, b, c, d = (planes[:, :, k:whole:4] for k in range(4))
    terms = [(a + b) + (c + d)]
    left = [planes[:, :, k : k + 1] for k in range(whole, planes.shape[2])]
    if left:
        terms.append(sum(left[1:], left[0]))
    terms_by_channel = np.concatenate(terms, axis=2).transpose(1, 0, 2)
    rows = terms_by_channel.reshape(channels, math.prod(terms_by_channel.shape[1:]))
    # Unlike sum, accumulate adds one by one.
    return np.add.accumulate(np.concatenate([np.zeros((channels, 1)), rows], axis=1), axis=1)[:, -1]
