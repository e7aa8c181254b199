"""Convolution, inner product, pooling and LRN by loops over single elements; no line is shared with the package.

Everything is computed in float64 from the formula alone. With small integers as inputs every sum is exact, so that
results can be compared bit for bit in any dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

Array = Any
Index = tuple[int, ...]


def convolution_terms(
    x: Index, weight: Index, stride: Index, pads: tuple[Index, Index], dilation: Index, groups: int
) -> Iterator[tuple[Index, Index, Index]]:
    """Index into y, into x and into weight of every product that a convolution of these shapes adds up."""
    starts = [
        [at for at in range(-begin, size + end) if at + step * (kernel - 1) < size + end]
        for (begin, end), size, kernel, step in zip(pads, x[2:], weight[2:], dilation, strict=True)
    ]
    rows, columns = (enumerate(axis[::step]) for axis, step in zip(starts, stride, strict=True))
    for (i, top), (j, left) in product(rows, columns):
        for n, k, c, a, b in product(*map(range, (x[0], *weight))):
            h, w = top + a * dilation[0], left + b * dilation[1]
            channel = k // (weight[0] // groups) * weight[1] + c
            if 0 <= h < x[2] and 0 <= w < x[3]:
                yield (n, k, i, j), (n, channel, h, w), (k, c, a, b)


def convolution(x: Array, weight: Array, y: Index, *window: Any) -> Array:
    """y, of the given shape."""
    result = np.zeros(y)
    for at_y, at_x, at_weight in convolution_terms(x.shape, weight.shape, *window):
        result[at_y] += float(x[at_x]) * float(weight[at_weight])
    return result


def convolution_gradients(dy: Array, x: Array, weight: Array, *window: Any) -> tuple[Array, Array]:
    """dx and dweight."""
    dx, dweight = np.zeros(x.shape), np.zeros(weight.shape)
    for at_y, at_x, at_weight in convolution_terms(x.shape, weight.shape, *window):
        dx[at_x] += float(dy[at_y]) * float(weight[at_weight])
        dweight[at_weight] += float(dy[at_y]) * float(x[at_x])
    return dx, dweight


def windows(size: int, kernel: int, stride: int, pad: Index, rounding: str) -> list[range]:
    """The positions that each pooling window covers; those below 0 and from `size` on are padding or overhang."""
    # Rounding up admits a window that lacks less than a stride, as long as it starts before the image ends.
    slack = stride - 1 if rounding == "ceil" else 0
    starts = range(-pad[0], size, stride)
    return [range(start, start + kernel) for start in starts if start + kernel <= size + pad[1] + slack]


def pool_windows(x: Array, kernel: Index, stride: Index, pads: tuple[Index, Index], rounding: str) -> Iterator[Any]:
    """(i, j), the rows and the columns of every window, padding included."""
    axes = [windows(x.shape[2 + a], kernel[a], stride[a], pads[a], rounding) for a in (0, 1)]
    for (i, rows), (j, columns) in product(enumerate(axes[0]), enumerate(axes[1])):
        yield (i, j), rows, columns


def max_pool(x: Array, *window: Any) -> dict[Index, tuple[float, Index]]:
    """Place in y -> (value, place in x) of each window's first maximum; the first NaN wins."""
    best: dict[Index, tuple[float, Index]] = {}
    for (i, j), rows, columns in pool_windows(x, *window):
        for n, c, h, w in product(range(x.shape[0]), range(x.shape[1]), rows, columns):
            if not (0 <= h < x.shape[2] and 0 <= w < x.shape[3]):
                continue
            value, held = float(x[n, c, h, w]), best.get((n, c, i, j), (None, ()))[0]
            if held is None or value > held or (value != value and held == held):
                best[n, c, i, j] = (value, (n, c, h, w))
    return best


def average_terms(
    x: Array, kernel: Index, stride: Index, pads: tuple[Index, Index], rounding: str, count: str
) -> Iterator[tuple[Index, Index, int]]:
    """Place in y, place in x, and divisor of every element that an average pool adds up."""
    for (i, j), rows, columns in pool_windows(x, kernel, stride, pads, rounding):
        inside = [(h, w) for h, w in product(rows, columns) if 0 <= h < x.shape[2] and 0 <= w < x.shape[3]]
        # What lies before the image is always padding; what lies after it may be overhang.
        ends = (x.shape[2] + pads[0][1], x.shape[3] + pads[1][1])
        padded = [(h, w) for h, w in product(rows, columns) if h < ends[0] and w < ends[1]]
        divisor = len(padded if count == "padded" else inside)
        for n, c, (h, w) in product(range(x.shape[0]), range(x.shape[1]), inside):
            yield (n, c, i, j), (n, c, h, w), divisor


def lrn(x: Array, n: int, alpha: float, beta: float, k: float) -> Array:
    """y for x (N, C)."""
    return x * lrn_scale(x, n, alpha, k) ** -beta


def lrn_scale(x: Array, n: int, alpha: float, k: float) -> Array:
    """k + alpha/n * the sum of squares over each channel's window, for x (N, C)."""
    scale = np.full(x.shape, float(k))
    for i, c, other in product(range(x.shape[0]), range(x.shape[1]), range(x.shape[1])):
        if abs(c - other) <= n // 2:
            scale[i, c] += alpha / n * x[i, other] ** 2
    return scale


def lrn_gradient(dy: Array, x: Array, n: int, alpha: float, beta: float, k: float) -> tuple[Array, Array]:
    """dx for x (N, C), by the whole Jacobian; and the sum of its terms' absolute values."""
    scale = lrn_scale(x, n, alpha, k)
    dx, total = np.zeros(x.shape), np.zeros(x.shape)
    for i, c, other in product(range(x.shape[0]), range(x.shape[1]), range(x.shape[1])):
        own, near = 0.0, 0.0
        if c == other:
            own = scale[i, c] ** -beta
        if abs(c - other) <= n // 2:
            near = alpha / n * 2 * x[i, other] * beta * x[i, c] * scale[i, c] ** (-beta - 1)
        dx[i, other] += dy[i, c] * (own - near)
        total[i, other] += abs(dy[i, c]) * (abs(own) + abs(near))
    return dx, total
