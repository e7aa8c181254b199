"""What the loops over channels and elements must give: number by number, in the order of additions that they promise.

Numbers are numpy scalars of the arrays' dtype, so that each operation is rounded as the loops must round it. Nothing
here uses the package.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def expected_relu(x: Array, by: Array) -> Array:
    """x where `by` is positive or NaN, else 0."""
    out = np.zeros(x.shape, x.dtype)
    for at in np.ndindex(x.shape):
        if not by[at] <= 0:
            out[at] = x[at]
    return out


def expected_channel_sums(x: Array) -> Array:
    """Image by image, elements in row-major order, four at a time, in float64."""
    planes = x.reshape(*x.shape[:2], int(np.prod(x.shape[2:]))).astype(np.float64)
    total = np.zeros(x.shape[1])
    for n, c in np.ndindex(planes.shape[:2]):
        plane = planes[n, c]
        for start in range(0, len(plane), 4):
            group = plane[start : start + 4]
            if len(group) == 4:
                total[c] += (group[0] + group[1]) + (group[2] + group[3])
            else:
                term = group[0]
                for value in group[1:]:
                    term = term + value
                total[c] += term
    return total


def expected_window_sum(x: Array, n: int) -> Array:
    """Sums over the channels that exist, by rising channel, from 0."""
    y = np.zeros(x.shape, x.dtype)
    for c in range(x.shape[1]):
        for k in range(x.shape[1]):
            if abs(k - c) <= n // 2:
                y[:, c] += x[:, k]
    return y


def expected_lrn(x: Array, n: int, alpha: float, k: float) -> tuple[Array, Array]:
    """The scale, and x over its power 0.75."""
    dtype = x.dtype.type
    scale = dtype(k) + dtype(alpha / n) * expected_window_sum(x * x, n)
    root = np.sqrt(scale)
    return scale, x / (root * np.sqrt(root))


def expected_lrn_gradient(dy: Array, x: Array, n: int, alpha: float, k: float) -> Array:
    """The own term less what the element does to its neighbours' scales."""
    scale, own = expected_lrn(x, n, alpha, k)
    root = np.sqrt(scale)
    own = dy / (root * np.sqrt(root))
    return own - x.dtype.type(2 * alpha / n * 0.75) * x * expected_window_sum(own * x / scale, n)


def expected_update(rule: str, weight: Array, gradient: Array, state: Array, numbers: tuple[float, ...]) -> Any:
    """The new weight and state by `rule`, the name of a loop, with `numbers` (rate, momentum or epsilon, decay)."""
    rate, carry, decay = (weight.dtype.type(number) for number in numbers)
    slope = gradient + weight * decay
    if rule == "momentum_update":
        moved = state * carry + slope * rate
        return weight - moved, moved
    if rule == "torch_update":
        moved = state * carry + slope
        return weight - moved * rate, moved
    grown = state + slope * slope
    return weight - slope * rate / (np.sqrt(grown) + carry), grown
