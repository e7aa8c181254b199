"""The loops over channels and over elements by CUDA kernels, and the generator.

The plain twins in `_fast/channels.py`, `normalization.py`, `elements.py` and `draws.py` say what they do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from purine_ref._fast.geometry import (
    WORD,
    philox_key,
    philox_range,
    quiet,
    require_alike,
    require_bias,
    require_channels,
    require_out,
)
from purine_ref.devices.cuda.arguments import KEY, axes, image, laid_as, reals, strides
from purine_ref.devices.cuda.launches import Launcher
from purine_ref.operation import Array


class NormalizationLoops(Launcher):
    """Normalisation across channels, and the sums over neighbouring channels."""

    def window_sum(self, x: Array, n: int, out: Array | None = None) -> Array:
        """Sums over n neighbouring channels, x (N, C, ...). Raises ValueError."""
        require_channels(x, n)
        y = self._target(out, x.shape, x.dtype)
        self._over("normalization", "window_sum", [x], [y], _reach(x, n))
        return y

    @quiet
    def lrn(self, x: Array, n: int, alpha: float, beta: float, k: float, out: Array) -> None:
        """out = x scale**-beta, x and out (N, C, ...). Raises ValueError."""
        require_channels(x, n)
        require_out(out, "out", x.shape, x.dtype)
        kernel = "lrn" if beta == 0.75 else "lrn_power"
        self._over("normalization", kernel, [x], [out], _reach(x, n), reals(x.dtype, alpha / n, k, beta))

    @quiet
    def lrn_gradient(self, dy: Array, x: Array, n: int, alpha: float, beta: float, k: float, out: Array) -> None:
        """The gradient of `lrn`, dy, x and out (N, C, ...), in two passes. Raises ValueError."""
        require_channels(x, n)
        require_alike({"x": x, "dy": dy}, {"out": out})
        reach, terms = _reach(x, n), [self._like("own", x), self._like("sums", x)]
        kernel = "lrn_terms" if beta == 0.75 else "lrn_power_terms"
        self._over("normalization", kernel, [dy, x], terms, reach, reals(x.dtype, alpha / n, k, beta))
        factor = reals(x.dtype, 2 * alpha / n * beta)
        self._over("normalization", "lrn_gradient", [x, *terms], [out], reach, factor)

    def _like(self, slot: str, x: Array) -> Array:
        """An array of any content that lies as x does."""
        return laid_as(x, self._temporary(slot, (x.size,), x.dtype))


def _reach(x: Array, n: int) -> int:
    """How many neighbours on either side there can be."""
    channels: int = x.shape[1]
    return min(n // 2, max(channels - 1, 0))


class ChannelLoops(Launcher):
    """Bias, bias with ReLU and its gradient, and the sums over each channel."""

    def add_bias(self, x: Array, bias: Array, out: Array) -> None:
        """out = x + bias: x and out (N, C, ...), bias (C,). Raises ValueError."""
        self._with_bias("add_bias", x, bias, out)

    def bias_relu(self, x: Array, bias: Array, out: Array) -> None:
        """A bias and a ReLU in one pass. Raises ValueError."""
        self._with_bias("bias_relu", x, bias, out)

    def _with_bias(self, kernel: str, x: Array, bias: Array, out: Array) -> None:
        require_bias(x, "x", bias, "bias")
        require_out(out, "out", x.shape, x.dtype)
        self._over("channels", kernel, [x], [out], bias, bias.strides[0] // bias.itemsize)

    def relu_bias_gradient(self, dy: Array, y: Array, dx: Array, dbias: Array) -> None:
        """dx = 0 where y <= 0, dy elsewhere, and dbias, the channels' sums of dx. Raises ValueError."""
        require_bias(dy, "dy", dbias, "dbias", wide=True)
        require_alike({"dy": dy, "y": y}, {"dx": dx})
        room = self._room(dx)
        images = image(dy), image(y), image(room)
        terms = self._terms(images[0])
        pairs = [part for one in images for part in (one, strides(one))]
        self._run("channels", "relu_bias_terms", dy.dtype, terms.size, *pairs, terms, axes(images[0].shape))
        self._settle(dx, room)
        self._sum(terms, dy.dtype, dbias)

    def bias_gradient(self, dy: Array, dbias: Array) -> None:
        """The sum of each channel: dy (N, C, ...) -> dbias (C,). Raises ValueError."""
        require_bias(dy, "dy", dbias, "dbias", wide=True)
        whole = image(dy)
        terms = self._terms(whole)
        arguments = whole, strides(whole), terms, axes(whole.shape)
        self._run("channels", "bias_terms", dy.dtype, terms.size, *arguments)
        self._sum(terms, dy.dtype, dbias)

    def _terms(self, whole: Array) -> Array:
        """Room for the terms of the channels' sums of (N, C, H, W), one for each four elements of an image."""
        n, c, h, w = whole.shape
        return self._temporary("terms", (n * -(-h * w // 4), c), np.float64)

    @quiet
    def _sum(self, terms: Array, dtype: np.dtype, dbias: Array) -> None:
        """dbias (C,), rounded to its dtype: the sums of terms (rows, C), in the order of the rows."""
        rows, channels = terms.shape
        sums = self._temporary("sums", (channels,), np.float64)
        self._run("channels", "channel_sums", dtype, channels, terms, sums, rows, channels)
        dbias[...] = sums


class ElementLoops(Launcher):
    """The ReLU, its gradient, the updates of parameters, and changes of layout."""

    def relu(self, x: Array, out: Array) -> None:
        """out = 0 where x <= 0, x elsewhere. Raises ValueError."""
        require_alike({"x": x}, {"out": out})
        self._over("elements", "relu_gradient", [x, x], [out], flat=True)

    def relu_gradient(self, dy: Array, y: Array, out: Array) -> None:
        """out = 0 where y <= 0, dy elsewhere. Raises ValueError."""
        require_alike({"dy": dy, "y": y}, {"out": out})
        self._over("elements", "relu_gradient", [dy, y], [out], flat=True)

    def momentum_update(
        self,
        weight: Array,
        gradient: Array,
        history: Array,
        rate: float,
        momentum: float,
        decay: float,
        new_weight: Array,
        new_history: Array,
    ) -> None:
        """SGD with momentum, the rate inside the history (Caffe). Raises ValueError."""
        arrays = {"weight": weight, "gradient": gradient, "history": history}
        outputs = {"new_weight": new_weight, "new_history": new_history}
        self._update("momentum_update", arrays, outputs, rate, (momentum, decay))

    def torch_update(
        self,
        weight: Array,
        gradient: Array,
        history: Array,
        rate: float,
        momentum: float,
        decay: float,
        new_weight: Array,
        new_history: Array,
    ) -> None:
        """SGD with momentum, the rate outside the history (torch.optim.SGD). Raises ValueError."""
        arrays = {"weight": weight, "gradient": gradient, "history": history}
        outputs = {"new_weight": new_weight, "new_history": new_history}
        self._update("torch_update", arrays, outputs, rate, (momentum, decay))

    def adagrad_update(
        self,
        weight: Array,
        gradient: Array,
        squares: Array,
        rate: float,
        epsilon: float,
        decay: float,
        new_weight: Array,
        new_squares: Array,
    ) -> None:
        """AdaGrad. Raises ValueError."""
        arrays = {"weight": weight, "gradient": gradient, "squares": squares}
        outputs = {"new_weight": new_weight, "new_squares": new_squares}
        self._update("adagrad_update", arrays, outputs, rate, (epsilon, decay))

    @quiet
    def _update(
        self,
        kernel: str,
        arrays: dict[str, Array],
        outputs: dict[str, Array],
        rate: Any,
        numbers: tuple[float, float],
    ) -> None:
        """The rate is a number, or an array of shape () that the kernel reads where it lies."""
        require_alike(arrays, outputs)
        written = list(outputs.values())
        dtype = written[0].dtype
        where = self._xp.asarray(rate, dtype)
        self._over("elements", kernel, list(arrays.values()), written, where, reals(dtype, *numbers), flat=True)

    def change_layout(self, x: Array, out: Array) -> None:
        """out = x, which have one shape and may lie in memory in different orders. Raises ValueError."""
        require_alike({"x": x}, {"out": out})
        self._over("layout", "change_layout", [x], [out], flat=True)


class DrawLoops(Launcher):
    """The random generator."""

    def philox(self, seed: int, stream: str, iteration: int, start: int, count: int) -> Array:
        """Elements start to start + count - 1 of a keyed random sequence, uint64. Raises ValueError."""
        iteration, block, skip, count = philox_range(iteration, start, count)
        key = np.array([philox_key(seed, stream)], KEY)
        words = self._xp.empty(count, np.uint64)
        numbers = np.uint64(block % WORD), skip, count
        items = -(-(skip + count) // 4) if count else 0
        self._run("draws", "philox", np.float32, items, words, *numbers, self._word(iteration), key)
        return words

    def _word(self, iteration: int) -> Array:
        """The iteration, as an array of one uint64."""
        return self._xp.asarray([iteration], np.uint64)
