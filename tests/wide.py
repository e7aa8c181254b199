"""Kernels in extended precision: what an operation's formula means, to compare rounded results with.

`np.longdouble` has 64 bits of significand where the machine has such numbers (`PRECISE`), so its errors are a
thousandth of float64's. Operations take their float64 from `kernels.xp`, which here gives them the wider dtype.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from purine_ref._fast import loops
from purine_ref._fast.geometry import divisors
from purine_ref.operation import Operation, RunKey

PRECISE = np.finfo(np.longdouble).nmant > 60
"""Whether the wider dtype is wide enough to judge float64 by."""


class _Numpy:
    """numpy, but that float64 is the wider dtype."""

    float64 = np.longdouble

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def zeros(self, shape: Any, dtype: Any = np.longdouble) -> Any:
        return np.zeros(shape, dtype)


class WideKernels:
    """The kernels that add, element by element; those that only move, from the package."""

    xp: Any = _Numpy()
    key = RunKey()
    transport = None

    def im2col(self, x: Any, *window: Any) -> Any:
        return _wide(loops.im2col(x.astype(np.float64), *window))

    def max_pool(self, x: Any, *window: Any) -> Any:
        y, index = loops.max_pool(x.astype(np.float64), *window)
        return _wide(y), index

    def col2im(self, cols: Any, shape: Any, kernel: Any, stride: Any, pads: Any, dilation: Any) -> Any:
        x = np.zeros(shape, np.longdouble)
        for p, q, i, j in np.ndindex(cols.shape[2:]):
            h, w = i * stride[0] + p * dilation[0] - pads[0][0], j * stride[1] + q * dilation[1] - pads[1][0]
            if 0 <= h < shape[2] and 0 <= w < shape[3]:
                x[:, :, h, w] += cols[:, :, p, q, i, j]
        return x

    def max_pool_scatter(self, dy: Any, index: Any, shape: Any) -> Any:
        dx = np.zeros((*shape[:2], shape[2] * shape[3]), np.longdouble)
        for n, c, i, j in np.ndindex(dy.shape):
            dx[n, c, index[n, c, i, j]] += dy[n, c, i, j]
        return dx.reshape(shape)

    def average_pool(self, x: Any, kernel: Any, stride: Any, pads: Any, size: Any, count: str) -> Any:
        y = np.zeros((*x.shape[:2], *size), np.longdouble)
        for i, j, h, w in _windows(x.shape, kernel, stride, pads, size):
            y[:, :, i, j] += x[:, :, h, w]
        return y / divisors(x.shape[2:], kernel, stride, pads, size, count)

    def average_pool_scatter(self, dy: Any, shape: Any, kernel: Any, stride: Any, pads: Any, count: str) -> Any:
        dx, size = np.zeros(shape, np.longdouble), dy.shape[2:]
        share = dy / divisors(shape[2:], kernel, stride, pads, size, count)
        for i, j, h, w in _windows(shape, kernel, stride, pads, size):
            dx[:, :, h, w] += share[:, :, i, j]
        return dx

    def window_sum(self, x: Any, n: int) -> Any:
        channels = range(x.shape[1])
        near = [[d for d in channels if abs(c - d) <= n // 2] for c in channels]
        return np.stack([x[:, each].sum(axis=1) for each in near], axis=1)


def _windows(shape: Any, kernel: Any, stride: Any, pads: Any, size: Any) -> Any:
    """(i, j, h, w): window (i, j) holds element (h, w)."""
    for i, j, p, q in product(*map(range, size), *map(range, kernel)):
        h, w = i * stride[0] + p - pads[0][0], j * stride[1] + q - pads[1][0]
        if 0 <= h < shape[2] and 0 <= w < shape[3]:
            yield i, j, h, w


def _wide(array: Any) -> Any:
    return array if array.dtype.kind == "i" else array.astype(np.longdouble)


def exactly(operation: Operation, arrays: Any, tensors: Any) -> list[Any]:
    """The outputs of an operation on just these arrays, in the wider dtype."""
    outputs = [np.zeros(t.shape, np.longdouble if t.is_float else t.dtype) for t in tensors]
    operation.compute(WideKernels(), [_wide(array) for array in arrays], outputs)
    return outputs
