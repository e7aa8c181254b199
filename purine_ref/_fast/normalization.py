"""The plain twins of normalisation across channels, and of the sums over neighbouring channels that it needs.

Arrays are (N, C, ...), channels on axis 1, in any memory order; `loops.py` states what holds for all loops.
"""

from __future__ import annotations

import numpy as np

from purine_ref._fast.geometry import Array, quiet, require_alike, require_channels, require_out


@quiet
def window_sum(x: Array, n: int, out: Array | None = None) -> Array:
    """Sums over n neighbouring channels: x (N, C, ...) -> y of the same shape, n odd and of any size against C.

    y[:, c] adds x[:, c - (n-1)/2] to x[:, c + (n-1)/2], those that exist, by rising channel. Raises ValueError.
    """
    require_channels(x, n)
    y = np.empty(x.shape, x.dtype) if out is None else out
    require_out(y, "out", x.shape, x.dtype)
    y[...] = 0
    channels = x.shape[1]
    reach = min(n // 2, max(channels - 1, 0))
    for offset in range(-reach, reach + 1):
        first, stop = max(0, -offset), min(channels, channels - offset)
        y[:, first:stop] += x[:, first + offset : stop + offset]
    return y


@quiet
def lrn(x: Array, n: int, alpha: float, beta: float, k: float, out: Array) -> None:
    """Local response normalisation across channels: out = x scale**-beta, x and out (N, C, ...); out is not x.

    scale = k + alpha/n times the `window_sum` of the squares. For a beta of 0.75, scale**-beta is 1 / (r sqrt(r)) with
    r = sqrt(scale): x is divided by that product, and every step is rounded correctly. Else it is numpy's power.
    Raises ValueError.
    """
    require_channels(x, n)
    require_out(out, "out", x.shape, x.dtype)
    scale = float(k) + float(alpha / n) * window_sum(x * x, n)
    out[...] = _normalised(x, scale, beta)


@quiet
def lrn_gradient(dy: Array, x: Array, n: int, alpha: float, beta: float, k: float, out: Array) -> None:
    """The gradient of `lrn`: dy, x and out (N, C, ...); out is neither of the others.

    out = own - 2 alpha/n beta x window_sum(own x / scale) with own = dy scale**-beta, both as in `lrn`.
    Raises ValueError.
    """
    require_channels(x, n)
    require_alike({"x": x, "dy": dy}, {"out": out})
    scale = float(k) + float(alpha / n) * window_sum(x * x, n)
    own = _normalised(dy, scale, beta)
    out[...] = own - float(2 * alpha / n * beta) * x * window_sum(own * x / scale, n)


def _normalised(array: Array, scale: Array, beta: float) -> Array:
    if beta == 0.75:
        root = np.sqrt(scale)
        return array / (root * np.sqrt(root))
    return array * scale ** -float(beta)
