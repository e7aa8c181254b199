"""The kernel set `onednn`: the default set, with float32 convolutions by oneDNN, as such or as products of matrices.

oneDNN has no convolutions in float64, a call costs as much as a million products, and some of its code is not faster:
such convolutions are computed as the default set does, in float32 with oneDNN's product of matrices in the place of
BLAS's. Everything else is the default set's. Which code computes a convolution depends on its shapes, its dtype and
the kind of processor alone. Work is cut into groups of images that shapes fix, each computed by one thread (rule R8).
Images stay channels-last; weights, which are small, are brought into the order that oneDNN likes, once for each
operator.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from purine_ref.devices.kernels.channels_last import Chunks, NumpyKernels, even
from purine_ref.devices.kernels.rows import by_pixels, channels_last, empty_like, is_dense, settled
from purine_ref.devices.onednn import products
from purine_ref.devices.onednn.library import library
from purine_ref.devices.onednn.primitives import Kind, Layout, Primitive, Shape, convolution, reorder
from purine_ref.operation import Array, Window

WORTH = 1 << 22
"""Multiply-adds of a convolution that are worth a call of oneDNN."""

SHARED = 1 << 23
"""Multiply-adds of a group of images that are worth waking a helper."""

GROUPS = 8
"""Groups of images at most, which threads can compute side by side; in a weight gradient, its partial sums."""

SUM_ROWS = 768
"""Rows of pixels that are worth a partial sum of their own."""

MOST_SUM_ROWS = 2048
"""Rows of a product that adds up a weight gradient."""

SLOWER = frozenset({"ref:any", "gemm:ref", "gemm:jit", "jit:avx2", "jit_1x1:avx2", "brgconv_1x1:avx2",
                    "brg_fwd:avx2+brgconv_1x1:avx2", "jit_1x1:avx512_core"})  # fmt: skip
"""oneDNN's names for code of its own that the default set's products outrun, or equal with less memory.

That is all of its code for pixel by pixel convolutions and for weight gradients where there is AVX2 and no AVX-512, and
with AVX-512 that for pixel by pixel weight gradients."""

PIECE = 1 << 14
"""Elements of a weight gradient that are added up at a time."""


class Plan(NamedTuple):
    """What shapes fix: the groups of images, the primitive for each size of group, and the one that reorders weights.

    All groups have the weights, or their gradient, in one order: that which the first group's primitive likes.
    """

    images: Chunks
    primitives: dict[int, Primitive]
    reorder: Primitive
    weights: int


class OneDnnKernels(NumpyKernels):
    """Channels-last memory; float32 convolutions by oneDNN, all else as the default set has it."""

    name = "onednn"
    multiply = staticmethod(products.multiply)

    @staticmethod
    def sum_rows(rows: int) -> int:
        """As many as `_sums` leaves in a group of images, but no more than `MOST_SUM_ROWS`."""
        chunks = max(-(-rows // MOST_SUM_ROWS), min(max(rows // SUM_ROWS, 2), GROUPS))
        return -(-rows // chunks)

    @classmethod
    def require(cls) -> None:
        """Load oneDNN. Raises GraphError, saying what to install."""
        library()

    @classmethod
    def describe(cls) -> str:
        """What it is made of. Raises GraphError as `require` does."""
        return f"oneDNN {library().version} for float32 convolutions, as such or as products of matrices; else as numpy"

    def convolution(self, x: Array, weight: Array, y: Array, window: Window) -> None:
        """y, a group of images at a time."""
        if (plan := _plan("forward", x, weight, y, window)) is None:
            super().convolution(x, weight, y, window)
        else:
            self._map(plan, x, weight, y)

    def convolution_data(self, dy: Array, weight: Array, dx: Array, window: Window) -> None:
        """dx, a group of images at a time."""
        if (plan := _plan("data", dx, weight, dy, window)) is None:
            super().convolution_data(dy, weight, dx, window)
        else:
            self._map(plan, dy, weight, dx)

    def _map(self, plan: Plan, source: Array, weight: Array, target: Array) -> None:
        """Groups of images from `source` to `target`."""
        source = settled(source)
        result = target if by_pixels(target) else empty_like(target)
        factors = self.scratch("weights", (plan.weights,), np.float32)
        plan.reorder.run(self.scratch, weight if _is_plain(weight) else np.ascontiguousarray(weight), factors)

        def group(number: int) -> None:
            """One group of images."""
            images = slice(*plan.images[number])
            given, part = self._dense("source", source[images]), result[images]
            out = part if is_dense(part) else self._room("result", part.shape)
            plan.primitives[len(part)].run(self.scratch, given, factors, out)
            if out is not part:
                part[...] = out

        self.share(len(plan.images), group)
        if result is not target:
            target[...] = result

    def convolution_weight(self, dy: Array, x: Array, dweight: Array, window: Window) -> None:
        """Partial sums in float32, one for each group of images, added in float64 in the order of the images."""
        if (plan := _plan("weight", x, dweight, dy, window)) is None:
            super().convolution_weight(dy, x, dweight, window)
            return
        dy, x = settled(dy), settled(x)
        sums = self.scratch("sums", (len(plan.images), plan.weights), np.float32)

        def group(number: int) -> None:
            """One group of images."""
            images = slice(*plan.images[number])
            given, arrived = self._dense("source", dy[images]), self._dense("result", x[images])
            plan.primitives[len(given)].run(self.scratch, given, arrived, sums[number])

        self.share(len(plan.images), group)
        self.share(-(-plan.weights // PIECE), partial(self._add, sums))
        result = dweight if _is_plain(dweight) else np.empty(dweight.shape, np.float32)
        plan.reorder.run(self.scratch, sums[0], result)
        if result is not dweight:
            dweight[...] = result

    def _add(self, sums: Array, piece: int) -> None:
        """One piece of the sum of all rows, into the first."""
        columns = slice(piece * PIECE, (piece + 1) * PIECE)
        total = self.scratch("total", sums[0, columns].shape, np.float64)
        total[...] = sums[0, columns]
        for other in sums[1:, columns]:
            np.add(total, other, out=total)
        sums[0, columns] = total

    def _dense(self, slot: str, array: Array) -> Array:
        """An array that lies by pixels, with nothing between them."""
        if is_dense(array):
            return array
        copy = self._room(slot, array.shape)
        copy[...] = array
        return copy

    def _room(self, slot: str, shape: tuple[int, ...]) -> Array:
        """Scratch in the order of `shape`'s images."""
        return channels_last(self.scratch(slot, (math.prod(shape),), np.float32), shape)

    @staticmethod
    def convolution_data_terms(weight: tuple[int, ...], groups: int) -> int:
        """All products of an element, in whatever order."""
        return weight[0] // groups * math.prod(weight[2:])

    @staticmethod
    def convolution_weight_terms(dy: tuple[int, ...]) -> tuple[int, int]:
        """A group's rows in the dtype, then the groups in float64; or as the default set has it, if that is more."""
        inner, wide = NumpyKernels.convolution_weight_terms(dy)
        chunks = _sums(dy)
        pixels = math.prod(dy[2:])
        rows = max((stop - start for start, stop in chunks), default=0) * pixels
        return max(inner, rows, OneDnnKernels.sum_rows(dy[0] * pixels)), max(wide, len(chunks) + 1)


def _plan(kind: Kind, x: Array, weight: Array, y: Array, window: Window) -> Plan | None:
    """How oneDNN is to compute a convolution, or a gradient in the place of one of the arrays; None when it is not."""
    if any(array.dtype != np.float32 for array in (x, weight, y)):
        return None
    pixels = not weight.flags.c_contiguous and is_dense(weight)
    return planned(kind, x.shape, weight.shape, y.shape, pixels, window)


@lru_cache(maxsize=1024)
def planned(kind: Kind, x: Shape, weight: Shape, y: Shape, pixels: bool, window: Window) -> Plan | None:
    """The plan for such shapes; None where a call is not worth it, or all that oneDNN has is slower.

    `pixels` says that weights lie by pixels; else they are in C order.
    """
    if math.prod(y) * math.prod(weight[1:]) < max(WORTH, 1):
        return None
    chunks = _sums(y) if kind == "weight" else _images(y[0], math.prod(y) * math.prod(weight[1:]))
    grouped = (window.groups, weight[0] // window.groups, *weight[1:])
    primitives: dict[int, Primitive] = {}
    like: Layout | Primitive = Layout(grouped, None)
    for size in dict.fromkeys(stop - start for start, stop in chunks):
        layouts = _by_pixels((size, *x[1:])), like, _by_pixels((size, *y[1:]))
        like = primitives[size] = convolution(kind, *layouts, window)
    if any(primitive.implementation in SLOWER for primitive in primitives.values()):
        return None
    own = Layout(grouped, _strides(weight, grouped[1], pixels))
    first = primitives[chunks[0][1] - chunks[0][0]]
    change = reorder(first, own) if kind == "weight" else reorder(own, first)
    return Plan(chunks, primitives, change, first.sizes[first.weights] // 4)


def _images(count: int, products: int) -> Chunks:
    """Groups of images for that many products in all."""
    return even(count, max(-(-count // GROUPS), SHARED * count // products))


def _sums(dy: Shape) -> Chunks:
    """Groups of images whose products a weight gradient adds in float32."""
    groups = min(max(dy[0] * math.prod(dy[2:]) // SUM_ROWS, 2), GROUPS)
    return even(dy[0], -(-dy[0] // groups))


def _by_pixels(shape: Shape) -> Layout:
    """Images that lie channels-last, with nothing between them."""
    _, c, h, w = shape
    return Layout(shape, (h * w * c, 1, w * c, c))


def _strides(weight: Shape, outputs: int, pixels: bool) -> Shape:
    """Of weights with an axis for the groups, of so many outputs each: by pixels, or in C order."""
    _, c, h, w = weight
    k, c, p, q = (c * h * w, 1, w * c, c) if pixels else (c * h * w, h * w, w, 1)
    return (outputs * k, k, c, p, q)


def _is_plain(weight: Array) -> bool:
    """Whether weights lie as a plan has them: in C order, or by pixels."""
    return bool(weight.flags.c_contiguous or is_dense(weight))
