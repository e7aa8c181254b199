"""The default kernel set: channels-last memory, and convolutions as products of matrices with a row for each pixel.

Patches are unfolded a chunk of rows at a time, into scratch that is still in a cache when it is multiplied. Chunks are
fixed by shapes alone, and so are the groups of chunks whose partial sums a weight gradient adds: who computes a chunk,
and how many threads there are, change no bit (rule R8).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from purine_ref._fast import loops
from purine_ref.devices.kernels.base import LoopKernels
from purine_ref.devices.kernels.rows import copied, empty_like, is_dense
from purine_ref.operation import Array, Pair, Window

CHUNK = 1 << 18
"""Elements of unfolded patches in a chunk: a megabyte in float32."""

LEAST_ROWS = 256
"""Rows of a chunk at least, so that a product is worth its packing; and at most `MOST_ROWS`."""

MOST_ROWS = 2048

FEW_ROWS = 192
"""Rows of a chunk at least, where a matrix has not many more: each chunk's product packs all weights again."""

SHARED = 1 << 23
"""Multiply-adds of a chunk that are worth waking a helper; smaller products are left whole."""

SMALL = 1 << 13
"""Weights that are too few to be brought into another order for a product."""

SUM_ROWS = 512
"""Rows of a weight gradient's chunk: so many products are added up in the dtype, before the sum goes on in float64."""

SUM_GROUPS = 8
"""Partial sums of a weight gradient, at most, which threads can make side by side."""

FEW = 1 << 10
"""Elements of a matrix that is copied into another order in next to no time."""

Chunks = tuple[Pair, ...]
"""Ranges of rows: (start, stop)."""


class Geometry(NamedTuple):
    """What a convolution's shapes fix, for one group of channels.

    `depth` is the elements of a patch; `pointwise` says that patches are the pixels themselves, and `narrow` that a
    matrix has one row or column: then BLAS multiplies by a vector, and there bits depend on how far rows are apart.
    `chunks` are those of the forward product, `images` those of the data gradient, `sums` those of the weight gradient.
    """

    kernel: Pair
    depth: int
    pointwise: bool
    narrow: bool
    chunks: Chunks
    images: Chunks
    sums: Chunks


class NumpyKernels(LoopKernels):
    """Channels-last memory, products by numpy's BLAS, and compiled loops."""

    name = "numpy"
    channels_last = True

    @staticmethod
    def multiply(a: Array, b: Array, out: Array) -> None:
        """out = a b, of matrices that lie by rows or by columns."""
        np.matmul(a, b, out=out)

    @staticmethod
    def sum_rows(rows: int) -> int:
        """How many of the rows of a pixel by pixel weight gradient are added up in the dtype."""
        return SUM_ROWS

    def convolution(self, x: Array, weight: Array, y: Array, window: Window) -> None:
        """Rows of y: rows of patches of x times the transposed matrix of weights."""
        shape = geometry(weight.shape, y.shape, window)
        x, factors = _settled(x), _columns(weight, shape)
        result = y if loops.pixel_rows(y) is not None else empty_like(y)
        for c, k in _sides(x.shape[1], weight.shape[0], window.groups):
            part = _of(result, k)
            dense = _room(part, shape)
            columns = factors if k is _ALL else factors[:, k]
            self._forward(_read(_of(x, c), shape), columns, dense, shape, window)
            if dense is not part:
                part[...] = dense
        if result is not y:
            y[...] = result

    def _forward(self, x: Array, factors: Array, y: Array, shape: Geometry, window: Window) -> None:
        """One group."""
        rows = loops.pixel_rows(y)
        pixels = loops.pixel_rows(x) if shape.pointwise else None

        def product(number: int) -> None:
            """One chunk."""
            start, stop = shape.chunks[number]
            patches = self._patches(x, shape, window, start, stop) if pixels is None else pixels[start:stop]
            self.multiply(patches, factors, rows[start:stop])

        self.share(len(shape.chunks), product)

    def convolution_data(self, dy: Array, weight: Array, dx: Array, window: Window) -> None:
        """Rows of dy times the matrix of weights are the gradients of patches, which add up where they overlap."""
        shape = geometry(weight.shape, dy.shape, window)
        dy, factors = _settled(dy), _factors(weight, shape)
        result = dx if loops.pixel_rows(dx) is not None else empty_like(dx)
        for c, k in _sides(dx.shape[1], weight.shape[0], window.groups):
            part = _of(result, c)
            dense = _room(part, shape)
            self._backward(_read(_of(dy, k), shape), factors[k], dense, shape, window)
            if dense is not part:
                part[...] = dense
        if result is not dx:
            dx[...] = result

    def _backward(self, dy: Array, factors: Array, dx: Array, shape: Geometry, window: Window) -> None:
        """One group. With a kernel of more than an element, chunks are of whole images."""
        rows, image = loops.pixel_rows(dy), dy.shape[2] * dy.shape[3]
        pixels = loops.pixel_rows(dx) if shape.pointwise else None

        def product(number: int) -> None:
            """One chunk."""
            start, stop = shape.images[number]
            if pixels is not None:
                self.multiply(rows[start:stop], factors, pixels[start:stop])
                return
            patches = self.scratch("patches", (stop - start, shape.depth), dy.dtype)
            self.multiply(rows[start:stop], factors, patches)
            part = dx[start // image : stop // image]
            self.fold(patches, part, shape.kernel, window.stride, window.pads, window.dilation)

        self.share(len(shape.images), product)

    def convolution_weight(self, dy: Array, x: Array, dweight: Array, window: Window) -> None:
        """Transposed rows of dy times rows of patches of x, summed over the chunks in float64."""
        shape = geometry(dweight.shape, dy.shape, window, self.sum_rows(dy.shape[0] * math.prod(dy.shape[2:])))
        dy, x = _settled(dy), _settled(x)
        direct = dweight.transpose(0, 2, 3, 1)
        total = direct if direct.flags.c_contiguous else np.empty(direct.shape, direct.dtype)
        sums = total.reshape(dweight.shape[0], shape.depth)
        for c, k in _sides(x.shape[1], dweight.shape[0], window.groups):
            self._weight(_read(_of(dy, k), shape), _read(_of(x, c), shape), sums[k], shape, window)
        if total is not direct:
            direct[...] = total

    def _weight(self, dy: Array, x: Array, total: Array, shape: Geometry, window: Window) -> None:
        """One group: `total` (K, kh*kw*C) is what to fill."""
        rows, pixels = loops.pixel_rows(dy), loops.pixel_rows(x) if shape.pointwise else None

        def product(chunk: Pair, out: Array) -> None:
            """One chunk."""
            start, stop = chunk
            patches = self._patches(x, shape, window, start, stop) if pixels is None else pixels[start:stop]
            self.multiply(rows[start:stop].T, patches, out)

        if len(shape.sums) == 1:
            product(shape.sums[0], total)
            return
        count = dy.shape[0] * dy.shape[2] * dy.shape[3]
        if count * max(shape.depth, total.shape[0]) <= CHUNK and shape.sums:
            patches = self._patches(x, shape, window, 0, count) if pixels is None else pixels
            self._weight_at_once(rows, patches, total)
            return
        groups = even(len(shape.sums), -(-len(shape.sums) // SUM_GROUPS))
        sums = self.scratch("sums", (len(groups), *total.shape), np.float64)

        def group(number: int) -> None:
            """The sum of one group of chunks."""
            out = self.scratch("product", total.shape, total.dtype)
            sums[number] = 0
            for chunk in shape.sums[slice(*groups[number])]:
                product(chunk, out)
                np.add(sums[number], out, out=sums[number])

        if total.size * sum(stop - start for start, stop in shape.sums) < SHARED:
            for number in range(len(groups)):
                group(number)
        else:
            self.share(len(groups), group)
        for other in sums[1:]:
            np.add(sums[0], other, out=sums[0])
        total[...] = sums[0] if groups else 0

    def _weight_at_once(self, rows: Array, patches: Array, total: Array) -> None:
        """All chunks of a small product, whose sums are then added up in float64, in their order."""
        chunks, rest = divmod(len(rows), SUM_ROWS)
        products = self.scratch("products", (chunks + (rest > 0), *total.shape), total.dtype)
        whole = chunks * SUM_ROWS
        left, right = (part[:whole].reshape(chunks, SUM_ROWS, part.shape[1]) for part in (rows, patches))
        np.matmul(left.transpose(0, 2, 1), right, out=products[:chunks])
        if rest:
            np.matmul(rows[whole:].T, patches[whole:], out=products[chunks])
        self.bias_gradient(products.reshape(len(products), total.size), total.reshape(total.size))

    def _patches(self, x: Array, shape: Geometry, window: Window, start: int, stop: int) -> Array:
        """Rows of patches, in this thread's scratch."""
        patches = self.scratch("patches", (stop - start, shape.depth), x.dtype)
        self.unfold(x, shape.kernel, window.stride, window.pads, window.dilation, start, patches)
        return patches

    @staticmethod
    def convolution_data_terms(weight: tuple[int, ...], groups: int) -> int:
        """The output channels, and then the patches that overlap."""
        return weight[0] // groups + math.prod(weight[2:]) - 1

    @staticmethod
    def convolution_weight_terms(dy: tuple[int, ...]) -> tuple[int, int]:
        """A chunk's rows in the dtype, then the chunks and the groups in float64."""
        rows = dy[0] * math.prod(dy[2:])
        return min(rows, SUM_ROWS), -(-rows // SUM_ROWS) + SUM_GROUPS


@lru_cache(maxsize=1024)
def geometry(weight: tuple[int, ...], y: tuple[int, ...], window: Window, sum_rows: int = SUM_ROWS) -> Geometry:
    """The geometry of a convolution with such a weight (K, C/groups, kh, kw) and such a result (N, K, oh, ow).

    `sum_rows` are the rows of a chunk of the weight gradient, where patches are pixels.
    """
    kernel, depth, width = (weight[2], weight[3]), math.prod(weight[1:]), weight[0] // window.groups
    pointwise = kernel == (1, 1) and window.stride == (1, 1) and window.pads == ((0, 0), (0, 0))
    image = y[2] * y[3]
    rows = y[0] * image
    step = MOST_ROWS if pointwise else min(max(CHUNK // max(depth, 1), LEAST_ROWS), MOST_ROWS)
    worth = max(SHARED // max(depth * width, 1), 1)  # rows that are worth a helper
    pieces = min(max(rows // FEW_ROWS, 2), SUM_GROUPS)
    step = max(min(step, max(worth, -(-rows // pieces))), 1)
    whole = step if pointwise else max(step // max(image, 1), 1) * image
    narrow = min(depth, width) == 1
    sums = even(rows, sum_rows if pointwise else SUM_ROWS)
    return Geometry(kernel, depth, pointwise, narrow, even(rows, step), even(rows, whole), sums)


def even(length: int, step: int) -> Chunks:
    """Ranges of at most `step` that make up `length`."""
    return tuple((start, min(start + step, length)) for start in range(0, length, max(step, 1)))


def _factors(weight: Array, shape: Geometry) -> Array:
    """(K, C, kh, kw) as the matrix (K, kh*kw*C), contiguous."""
    return np.ascontiguousarray(weight.transpose(0, 2, 3, 1)).reshape(weight.shape[0], shape.depth)


def _columns(weight: Array, shape: Geometry) -> Array:
    """(K, C, kh, kw) as the matrix (kh*kw*C, K); by rows, which products take faster, where that is worth a copy."""
    if FEW < weight.size < SMALL:
        return _factors(weight, shape).T
    return np.ascontiguousarray(weight.transpose(2, 3, 1, 0)).reshape(shape.depth, weight.shape[0])


def _settled(array: Array) -> Array:
    """The array, or if it does not lie by pixels a channels-last copy."""
    return copied(array) if loops.pixel_rows(array) is None else array


def _read(array: Array, shape: Geometry) -> Array:
    """Channels of an array to read: where products are narrow, with nothing between their pixels."""
    return copied(array) if shape.narrow and not is_dense(array) else array


def _room(array: Array, shape: Geometry) -> Array:
    """Where to write channels of an array: there, or where products are narrow in memory as `_read` gives it."""
    return empty_like(array) if shape.narrow and not is_dense(array) else array


_ALL = slice(None)


def _of(array: Array, channels: slice) -> Array:
    """Some channels of an array, or itself."""
    return array if channels is _ALL else array[:, channels]


def _sides(channels: int, outputs: int, groups: int) -> Iterable[tuple[slice, slice]]:
    """For each group its slices of the inputs' channels and of the outputs'."""
    if groups == 1:
        return ((_ALL, _ALL),)
    c, k = channels // groups, outputs // groups
    return ((slice(g * c, g * c + c), slice(g * k, g * k + k)) for g in range(groups))
