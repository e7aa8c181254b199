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
    """The kernels that compute, element by element; those that only move, from the package."""

    xp: Any = _Numpy()
    key = RunKey()
    transport = None

    whole = False

    def number(self, x: Any) -> Any:
        return x

    def refuse(self, suspect: Any, values: Any, complain: Any) -> bool:
        if suspect.any():
            complain(values)
        return bool(suspect.any())

    def copy(self, source: Any, target: Any) -> None:
        target[...] = source

    def share(self, count: int, work: Any) -> None:
        for item in range(count):
            work(item)

    # Convolution

    def convolution(self, x: Any, weight: Any, y: Any, window: Any) -> None:
        patches, factors = self._patches(x, weight.shape, window), _by_group(weight, window.groups)
        y[...] = np.einsum("ngcpqij,gkcpq->ngkij", patches, factors).reshape(y.shape)

    def convolution_data(self, dy: Any, weight: Any, dx: Any, window: Any) -> None:
        rows = dy.reshape(dy.shape[0], window.groups, -1, *dy.shape[2:])
        cols = np.einsum("ngkij,gkcpq->ngcpqij", rows, _by_group(weight, window.groups))
        cols = cols.reshape(*dx.shape[:2], *cols.shape[3:])
        dx[...] = self.col2im(cols, dx.shape, weight.shape[2:], window.stride, window.pads, window.dilation)

    def convolution_weight(self, dy: Any, x: Any, dweight: Any, window: Any) -> None:
        rows = dy.reshape(dy.shape[0], window.groups, -1, *dy.shape[2:])
        patches = self._patches(x, dweight.shape, window)
        dweight[...] = np.einsum("ngkij,ngcpqij->gkcpq", rows, patches).reshape(dweight.shape)

    def _patches(self, x: Any, weight: Any, window: Any) -> Any:
        moved = loops.im2col(x.astype(np.float64), weight[2:], window.stride, window.pads, window.dilation)
        return _wide(moved).reshape(x.shape[0], window.groups, -1, *moved.shape[2:])

    def im2col(self, x: Any, *window: Any) -> Any:
        return _wide(loops.im2col(x.astype(np.float64), *window))

    def col2im(self, cols: Any, shape: Any, kernel: Any, stride: Any, pads: Any, dilation: Any) -> Any:
        x = np.zeros(shape, np.longdouble)
        for p, q, i, j in np.ndindex(cols.shape[2:]):
            h, w = i * stride[0] + p * dilation[0] - pads[0][0], j * stride[1] + q * dilation[1] - pads[1][0]
            if 0 <= h < shape[2] and 0 <= w < shape[3]:
                x[:, :, h, w] += cols[:, :, p, q, i, j]
        return x

    # Pooling

    def max_pool(self, x: Any, *window: Any, out: Any) -> None:
        y, index = loops.max_pool(x.astype(np.float64), *window)
        out[0][...], out[1][...] = y, index

    def max_pool_scatter(self, dy: Any, index: Any, shape: Any, out: Any) -> None:
        dx = np.zeros((*shape[:2], shape[2] * shape[3]), np.longdouble)
        for n, c, i, j in np.ndindex(dy.shape):
            dx[n, c, index[n, c, i, j]] += dy[n, c, i, j]
        out[...] = dx.reshape(shape)

    def max_pool_gather(self, dy: Any, index: Any, shape: Any, *window: Any, out: Any) -> None:
        self.max_pool_scatter(dy, index, shape, out)

    def average_pool(self, x: Any, kernel: Any, stride: Any, pads: Any, size: Any, count: str, out: Any) -> None:
        y = np.zeros((*x.shape[:2], *size), np.longdouble)
        for i, j, h, w in _windows(x.shape, kernel, stride, pads, size):
            y[:, :, i, j] += x[:, :, h, w]
        out[...] = y / divisors(x.shape[2:], kernel, stride, pads, size, count)

    def average_pool_scatter(
        self, dy: Any, shape: Any, kernel: Any, stride: Any, pads: Any, count: str, out: Any
    ) -> None:
        dx, size = np.zeros(shape, np.longdouble), dy.shape[2:]
        share = dy / divisors(shape[2:], kernel, stride, pads, size, count)
        for i, j, h, w in _windows(shape, kernel, stride, pads, size):
            dx[:, :, h, w] += share[:, :, i, j]
        out[...] = dx

    # Channels and elements

    def window_sum(self, x: Any, n: int) -> Any:
        channels = range(x.shape[1])
        near = [[d for d in channels if abs(c - d) <= n // 2] for c in channels]
        return np.stack([x[:, each].sum(axis=1) for each in near], axis=1)

    def lrn(self, x: Any, n: int, alpha: float, beta: float, k: float, out: Any) -> None:
        out[...] = x * (k + alpha / n * self.window_sum(x * x, n)) ** -beta

    def lrn_gradient(self, dy: Any, x: Any, n: int, alpha: float, beta: float, k: float, out: Any) -> None:
        scale = k + alpha / n * self.window_sum(x * x, n)
        own = dy * scale**-beta
        out[...] = own - 2 * alpha / n * beta * x * self.window_sum(own * x / scale, n)

    def bias_gradient(self, dy: Any, dbias: Any) -> None:
        dbias[...] = dy.sum(axis=(0, *range(2, dy.ndim)))

    def add_bias(self, x: Any, bias: Any, out: Any) -> None:
        out[...] = x + bias.reshape(-1, *[1] * (x.ndim - 2))

    def bias_relu(self, x: Any, bias: Any, out: Any) -> None:
        self.relu(x + bias.reshape(-1, *[1] * (x.ndim - 2)), out)

    def relu_bias_gradient(self, dy: Any, y: Any, dx: Any, dbias: Any) -> None:
        self.relu_gradient(dy, y, dx)
        self.bias_gradient(dx, dbias)

    def relu(self, x: Any, out: Any) -> None:
        out[...] = np.where(x <= 0, 0, x)

    def relu_gradient(self, dy: Any, y: Any, out: Any) -> None:
        out[...] = np.where(y <= 0, 0, dy)

    # Updates

    def momentum_update(
        self, weight: Any, gradient: Any, history: Any, rate: Any, momentum: float, decay: float, *new: Any
    ) -> None:
        new[1][...] = history * momentum + (gradient + weight * decay) * rate
        new[0][...] = weight - new[1]

    def torch_update(
        self, weight: Any, gradient: Any, history: Any, rate: Any, momentum: float, decay: float, *new: Any
    ) -> None:
        new[1][...] = history * momentum + gradient + weight * decay
        new[0][...] = weight - new[1] * rate

    def adagrad_update(
        self, weight: Any, gradient: Any, squares: Any, rate: Any, epsilon: float, decay: float, *new: Any
    ) -> None:
        slope = gradient + weight * decay
        new[1][...] = squares + slope * slope
        new[0][...] = weight - slope * rate / (np.sqrt(new[1]) + epsilon)


def _by_group(weight: Any, groups: int) -> Any:
    return weight.reshape(groups, -1, *weight.shape[1:])


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
