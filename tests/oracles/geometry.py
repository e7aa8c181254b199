"""Convolution, inner product, bias, pooling and LRN, element by element."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any

from oracles import Array, Index, numbers, places, zeros


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
        for n, k, c, a, b in places((x[0], *weight)):
            h, w = top + a * dilation[0], left + b * dilation[1]
            channel = k // (weight[0] // groups) * weight[1] + c
            if 0 <= h < x[2] and 0 <= w < x[3]:
                yield (n, k, i, j), (n, channel, h, w), (k, c, a, b)


def convolution(x: Array, weight: Array, y: Index, *window: Any) -> Array:
    """y, of the given shape."""
    x, weight, result = numbers(x), numbers(weight), zeros(y)
    for at_y, at_x, at_weight in convolution_terms(x.shape, weight.shape, *window):
        result[at_y] += x[at_x] * weight[at_weight]
    return result


def convolution_data_gradient(dy: Array, weight: Array, x: Index, *window: Any) -> Array:
    """dx, of the given shape."""
    dy, weight, dx = numbers(dy), numbers(weight), zeros(x)
    for at_y, at_x, at_weight in convolution_terms(x, weight.shape, *window):
        dx[at_x] += dy[at_y] * weight[at_weight]
    return dx


def convolution_weight_gradient(dy: Array, x: Array, weight: Index, *window: Any) -> Array:
    """dweight, of the given shape."""
    dy, x, dweight = numbers(dy), numbers(x), zeros(weight)
    for at_y, at_x, at_weight in convolution_terms(x.shape, weight, *window):
        dweight[at_weight] += dy[at_y] * x[at_x]
    return dweight


def convolution_gradients(dy: Array, x: Array, weight: Array, *window: Any) -> tuple[Array, Array]:
    """dx and dweight."""
    dx = convolution_data_gradient(dy, weight, x.shape, *window)
    return dx, convolution_weight_gradient(dy, x, weight.shape, *window)


def linear(x: Array, weight: Array) -> Array:
    """y[n, o]: the sum over all places behind the batch axis, in row-major order, of x times the weight's next."""
    x, weight = numbers(x), numbers(weight)
    y = zeros((x.shape[0], weight.shape[0]))
    for n, o in places(y.shape):
        for i, at in enumerate(places(x.shape[1:])):
            y[n, o] += x[(n, *at)] * weight[o, i]
    return y


def linear_data_gradient(dy: Array, weight: Array, sample: Index) -> Array:
    """dx, whose samples are of shape `sample`."""
    dy, weight = numbers(dy), numbers(weight)
    dx = zeros((dy.shape[0], *sample))
    for n, o in places(dy.shape):
        for i, at in enumerate(places(sample)):
            dx[(n, *at)] += dy[n, o] * weight[o, i]
    return dx


def linear_weight_gradient(dy: Array, x: Array) -> Array:
    """dweight[o, i]: the sum over samples."""
    dy, x = numbers(dy), numbers(x)
    flat = list(places(x.shape[1:]))
    dweight = zeros((dy.shape[1], len(flat)))
    for n, o in places(dy.shape):
        for i, at in enumerate(flat):
            dweight[o, i] += dy[n, o] * x[(n, *at)]
    return dweight


def bias(x: Array, added: Array, axis: int) -> Array:
    """x plus the element of `added` for its place along `axis`."""
    x, added = numbers(x), numbers(added)
    y = zeros(x.shape)
    for at in places(x.shape):
        y[at] = x[at] + added[at[axis]]
    return y


def bias_gradient(dy: Array, axis: int) -> Array:
    """The sum of what lies at each place along `axis`."""
    dy = numbers(dy)
    dbias = zeros((dy.shape[axis],))
    for at in places(dy.shape):
        dbias[at[axis]] += dy[at]
    return dbias


def windows(size: int, kernel: int, stride: int, pad: Index, rounding: str) -> list[range]:
    """The positions that each pooling window covers; those below 0 and from `size` on are padding or overhang."""
    # Rounding up admits a window that lacks less than a stride, as long as it starts before the image ends.
    slack = stride - 1 if rounding == "ceil" else 0
    starts = range(-pad[0], size, stride)
    return [range(start, start + kernel) for start in starts if start + kernel <= size + pad[1] + slack]


def pooled(x: Index, kernel: Index, stride: Index, pads: tuple[Index, Index], rounding: str) -> Index:
    """The shape of y."""
    return (*x[:2], *(len(windows(x[2 + a], kernel[a], stride[a], pads[a], rounding)) for a in (0, 1)))


def pool_windows(x: Index, kernel: Index, stride: Index, pads: tuple[Index, Index], rounding: str) -> Iterator[Any]:
    """(i, j), the rows and the columns of every window, padding included."""
    axes = [windows(x[2 + a], kernel[a], stride[a], pads[a], rounding) for a in (0, 1)]
    for (i, rows), (j, columns) in product(enumerate(axes[0]), enumerate(axes[1])):
        yield (i, j), rows, columns


def max_pool(x: Array, *window: Any) -> dict[Index, tuple[Any, Index]]:
    """Place in y -> (value, place in x) of each window's first maximum; the first NaN wins."""
    x = numbers(x)
    best: dict[Index, tuple[Any, Index]] = {}
    for (i, j), rows, columns in pool_windows(x.shape, *window):
        for n, c, h, w in product(range(x.shape[0]), range(x.shape[1]), rows, columns):
            if not (0 <= h < x.shape[2] and 0 <= w < x.shape[3]):
                continue
            value, held = x[n, c, h, w], best.get((n, c, i, j), (None, ()))[0]
            if held is None or value > held or (value != value and held == held):
                best[n, c, i, j] = (value, (n, c, h, w))
    return best


def max_pool_arrays(x: Array, *window: Any) -> list[Array]:
    """y, and the winners' places in the plane, counted row by row."""
    shape = numbers(x).shape
    y, index = zeros(pooled(shape, *window)), zeros(pooled(shape, *window))
    for at, (value, place) in max_pool(x, *window).items():
        y[at], index[at] = value, place[2] * shape[3] + place[3]
    return [y, index]


def max_pool_gradient(dy: Array, index: Array, plane: Index) -> Array:
    """dx, whose planes are of shape `plane`: every dy goes to its winner."""
    dy, index = numbers(dy), numbers(index)
    dx = zeros((*dy.shape[:2], *plane))
    for n, c, i, j in places(dy.shape):
        h, w = divmod(index[n, c, i, j], plane[1])
        dx[n, c, h, w] += dy[n, c, i, j]
    return dx


def average_terms(
    x: Index, kernel: Index, stride: Index, pads: tuple[Index, Index], rounding: str, count: str
) -> Iterator[tuple[Index, Index, int]]:
    """Place in y, place in x, and divisor of every element that an average pool adds up."""
    for (i, j), rows, columns in pool_windows(x, kernel, stride, pads, rounding):
        inside = [(h, w) for h, w in product(rows, columns) if 0 <= h < x[2] and 0 <= w < x[3]]
        # What lies before the image is always padding; what lies after it may be overhang.
        ends = (x[2] + pads[0][1], x[3] + pads[1][1])
        padded = [(h, w) for h, w in product(rows, columns) if h < ends[0] and w < ends[1]]
        divisor = len(padded if count == "padded" else inside)
        for n, c, (h, w) in product(range(x[0]), range(x[1]), inside):
            yield (n, c, i, j), (n, c, h, w), divisor


def average_pool(x: Array, *window: Any) -> Array:
    """y: the sum of each window, then its quotient."""
    x = numbers(x)
    y, divisors = zeros(pooled(x.shape, *window[:4])), {}
    for at_y, at_x, divisor in average_terms(x.shape, *window):
        y[at_y] += x[at_x]
        divisors[at_y] = divisor
    for at, divisor in divisors.items():
        y[at] = y[at] / divisor
    return y


def average_pool_gradient(dy: Array, sample: Index, *window: Any) -> Array:
    """dx, whose samples are of shape `sample`: every dy is shared out over its window."""
    dy = numbers(dy)
    dx = zeros((dy.shape[0], *sample))
    for at_y, at_x, divisor in average_terms(dx.shape, *window):
        dx[at_x] += dy[at_y] / divisor
    return dx


def lrn_scale(x: Array, n: int, alpha: float, k: float) -> Array:
    """k + alpha/n * the sum of squares over each channel's window, for x (N, C, ...)."""
    x = numbers(x)
    scale = zeros(x.shape)
    for at in places(x.shape):
        scale[at] = float(k)
        for other in range(x.shape[1]):
            if abs(at[1] - other) <= n // 2:
                scale[at] += alpha / n * x[(at[0], other, *at[2:])] ** 2
    return scale


def lrn(x: Array, n: int, alpha: float, beta: float, k: float) -> Array:
    """y for x (N, C, ...)."""
    return numbers(x) * lrn_scale(x, n, alpha, k) ** -beta


def lrn_gradient(dy: Array, x: Array, n: int, alpha: float, beta: float, k: float) -> tuple[Array, Array]:
    """dx for x (N, C, ...), by the whole Jacobian; and the sum of its terms' absolute values."""
    dy, x, scale = numbers(dy), numbers(x), lrn_scale(x, n, alpha, k)
    dx, total = zeros(x.shape), zeros(x.shape)
    for at in places(x.shape):
        for other in range(x.shape[1]):
            there = (at[0], other, *at[2:])
            own, near = 0.0, 0.0
            if at == there:
                own = scale[at] ** -beta
            if abs(at[1] - other) <= n // 2:
                near = alpha / n * 2 * x[there] * beta * x[at] * scale[at] ** (-beta - 1)
            dx[there] += dy[at] * (own - near)
            total[there] += abs(dy[at]) * (abs(own) + abs(near))
    return dx, total


def global_average(x: Array) -> Array:
    """The mean of each plane, (N, C, 1, 1)."""
    x = numbers(x)
    y = zeros((*x.shape[:2], 1, 1))
    for n, c, h, w in places(x.shape):
        y[n, c, 0, 0] += x[n, c, h, w]
    return y * Fraction(1, x.shape[2] * x.shape[3])


def global_average_gradient(dy: Array, plane: Index) -> Array:
    """dx, whose planes are of shape `plane`."""
    dy = numbers(dy)
    dx = zeros((*dy.shape[:2], *plane))
    for n, c, h, w in places(dx.shape):
        dx[n, c, h, w] = dy[n, c, 0, 0] / (plane[0] * plane[1])
    return dx
