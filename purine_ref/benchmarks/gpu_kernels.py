"""The bandwidth that each loop of a GPU reaches, beside a plain copy of memory in the same run.

A loop is called on activations and parameters as large as NIN's, channels-last, in float32. Its bytes are those of its
inputs and outputs, each counted once, however often they are read. Calls are put behind a long product of matrices, so
that the stream is full when the first of them starts: what is measured is the GPU, and not how fast the host launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from purine_ref.benchmarks.timing import Contestant, measure
from purine_ref.devices.cuda import cuda_machine
from purine_ref.operation import Array, Kernels, RunKey
from purine_ref.tensor import Location
from purine_ref.view import GpuClock

COPY = "copy"
"""The row that all others are compared with."""

CALLS = 10
"""Calls of one round, one after the other."""

CHANNELS, EXTENT = 192, 32
"""Of the activations: those of NIN's first convolution."""

NARROW = 96
"""Channels of the images that are unfolded, of half the extent."""

KERNEL, STRIDE, PADS, NEAR = (3, 3), (2, 2), ((0, 0), (0, 0)), (1, 1)
AROUND = ((1, 1), (1, 1))
LRN = (5, 1e-4, 0.75, 1.0)
"""n, alpha, beta, k."""


class Probe(NamedTuple):
    """A loop, the bytes that it must move, and one call of it."""

    name: str
    nbytes: int
    call: Callable[[], object]


def bandwidths(images: int, runs: int) -> list[tuple[str, list[float]]]:
    """Bytes a second of the copy and of each loop, a value a round, on so many images.

    Raises GraphError where there is no GPU.
    """
    machine = cuda_machine()
    place = Location(0, 0)
    try:
        with machine.current(place, "main"):
            kernels = machine.device(place).kernels(RunKey(0))
            clock = GpuClock(machine.cupy)
            found = probes(kernels, images)
            ahead = _long_work(kernels.xp, 4096 if images >= 64 else 32)

            def timed(probe: Probe) -> Callable[[], Mapping[str, float]]:
                """Seconds of a call."""

                def once() -> Mapping[str, float]:
                    """A round."""
                    ahead()
                    start = clock.now()
                    for _ in range(CALLS):
                        probe.call()
                    end = clock.now()
                    end[1].synchronize()
                    return {"gpu": (clock.seconds(end) - clock.seconds(start)) / CALLS}

                return once

            contestants = [Contestant(probe.name, "loops", probe.nbytes, timed(probe)) for probe in found]
            measured = measure(contestants, runs, "loops of the GPU")
    finally:
        machine.close()
    return [(one.name, [1e9 / max(taken, 1e-12) for taken in one.values]) for one in measured]


def _long_work(xp: Any, size: int) -> Callable[[], object]:
    """A product of matrices that takes the GPU longer than the host takes to launch what follows."""
    a, b = xp.zeros((size, size), np.float32), xp.zeros((size, size), np.float32)
    return lambda: xp.matmul(a, a, out=b)


def probes(kernels: Kernels, images: int) -> list[Probe]:
    """The copy, and then every loop of the vocabulary."""
    return [probe for make in (_elements, _windows, _patches, _flat) for probe in make(kernels, images)]


def _pixels(kernels: Kernels, images: int, channels: int, extent: int) -> Array:
    """Images (N, C, H, W) of ones and zeros, channels-last."""
    rows = np.zeros((images, extent, extent, channels), np.float32)
    rows[:, ::2] = 1
    return kernels.xp.asarray(rows).transpose(0, 3, 1, 2)


def _probe(name: str, arrays: Sequence[Array], call: Callable[[], object]) -> Probe:
    return Probe(name, sum(array.nbytes for array in arrays), call)


def _elements(kernels: Kernels, images: int) -> list[Probe]:
    """Loops over the elements of images, and over their channels."""
    x, dy, y = (_pixels(kernels, images, CHANNELS, EXTENT) for _ in range(3))
    bias = kernels.xp.ones(CHANNELS, np.float32)
    dbias = kernels.xp.ones(CHANNELS, np.float32)
    rowed = kernels.xp.zeros(x.shape, np.float32)
    change: Any = getattr(kernels, "change_layout")  # noqa: B009  # no operation calls it, so it is no vocabulary
    return [
        _probe(COPY, [x, y], lambda: kernels.xp.copyto(y, x)),
        _probe("change_layout", [x, rowed], lambda: change(x, rowed)),
        _probe("relu", [x, y], lambda: kernels.relu(x, y)),
        _probe("relu_gradient", [dy, x, y], lambda: kernels.relu_gradient(dy, x, y)),
        _probe("add_bias", [x, y], lambda: kernels.add_bias(x, bias, y)),
        _probe("bias_relu", [x, y], lambda: kernels.bias_relu(x, bias, y)),
        _probe("relu_bias_gradient", [dy, x, y], lambda: kernels.relu_bias_gradient(dy, x, y, dbias)),
        _probe("bias_gradient", [dy], lambda: kernels.bias_gradient(dy, dbias)),
        _probe("window_sum", [x, y], lambda: kernels.window_sum(x, LRN[0], y)),
        _probe("lrn", [x, y], lambda: kernels.lrn(x, *LRN, y)),
        _probe("lrn_gradient", [dy, x, y], lambda: kernels.lrn_gradient(dy, x, *LRN, y)),
    ]


def _windows(kernels: Kernels, images: int) -> list[Probe]:
    """Pooling with windows of 3x3, a stride of 2, and Caffe's rounding."""
    x, dx = (_pixels(kernels, images, CHANNELS, EXTENT) for _ in range(2))
    y, dy = (_pixels(kernels, images, CHANNELS, EXTENT // 2) for _ in range(2))
    index = kernels.xp.zeros((images, EXTENT // 2, EXTENT // 2, CHANNELS), np.int64).transpose(0, 3, 1, 2)
    window, size = (KERNEL, STRIDE, PADS), y.shape[2:]
    gather: Any = getattr(kernels, "max_pool_gather")  # noqa: B009
    return [
        _probe("max_pool", [x, y, index], lambda: kernels.max_pool(x, *window, size, (y, index))),
        _probe("max_pool_gather", [dy, index, dx], lambda: gather(dy, index, x.shape, *window, dx)),
        _probe("average_pool", [x, y], lambda: kernels.average_pool(x, *window, size, "padded", y)),
        _probe(
            "average_pool_scatter",
            [dy, dx],
            lambda: kernels.average_pool_scatter(dy, x.shape, *window, "padded", dx),
        ),
    ]


def _patches(kernels: Kernels, images: int) -> list[Probe]:
    """Patches of 3x3 windows that keep the extent, as rows, of which convolutions are products, and as columns."""
    x, dx = (_pixels(kernels, images, NARROW, EXTENT // 2) for _ in range(2))
    window = (KERNEL, NEAR, AROUND, NEAR)
    rows = kernels.xp.zeros((images * (EXTENT // 2) ** 2, 9 * NARROW), np.float32)
    cols = kernels.xp.zeros((images, NARROW, *KERNEL, EXTENT // 2, EXTENT // 2), np.float32)
    return [
        _probe("unfold", [x, rows], lambda: kernels.unfold(x, *window, 0, rows)),
        _probe("fold", [rows, dx], lambda: kernels.fold(rows, dx, *window)),
        _probe("im2col", [x, cols], lambda: kernels.im2col(x, *window, cols)),
        _probe("col2im", [cols, dx], lambda: kernels.col2im(cols, x.shape, *window, dx)),
    ]


def _flat(kernels: Kernels, images: int) -> list[Probe]:
    """Updates of parameters, and the generator."""
    count = images * CHANNELS * EXTENT**2
    weight, gradient, history, new_weight, new_history = (
        kernels.xp.ones(count, np.float32) for _ in range(5)
    )  # fmt: skip
    arrays = (weight, gradient, history, new_weight, new_history)
    rate = kernels.number(kernels.xp.asarray(np.float32(0.01)))
    ends = (rate, 0.9, 1e-4, new_weight, new_history)
    return [
        _probe("momentum_update", arrays, lambda: kernels.momentum_update(*arrays[:3], *ends)),
        _probe("torch_update", arrays, lambda: kernels.torch_update(*arrays[:3], *ends)),
        _probe("adagrad_update", arrays, lambda: kernels.adagrad_update(*arrays[:3], *ends)),
        Probe("philox", 8 * count, lambda: kernels.philox(0, "probe", 0, 0, count)),
    ]
