"""The readable kernel set: arrays in C order, and convolutions image by image.

All three convolutions are matrix products over `cols`, the patches that the kernel sees, one column per output pixel.
Products are taken image by image, so the bits of an image do not depend on the batch that it is in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from purine_ref.devices.kernels.base import LoopKernels
from purine_ref.operation import Array, Window

_BLOCK_BYTES = 1 << 20
"""Patches unfolded at a time, so that they are still in a cache when they are multiplied.

Of 256 KiB to 8 MiB this was fastest, or within a twentieth of it, for the layers of NIN and GoogLeNet."""


class PlainKernels(LoopKernels):
    """Convolutions by im2col and one matrix product for each image and group. The documents point to this set."""

    name = "plain"
    channels_last = False

    def convolution(self, x: Array, weight: Array, y: Array, window: Window) -> None:
        """Each image of y: the matrix of weights times the matrix of patches of x."""
        rows = _grouped(weight, window.groups)
        for images, cols in self._patches(x, weight.shape[2:], window):
            y[images] = np.matmul(rows, cols).reshape(y[images].shape)

    def convolution_data(self, dy: Array, weight: Array, dx: Array, window: Window) -> None:
        """Each image of dx: the transposed matrix of weights times dy gives the patches' gradients, which add up."""
        columns = _grouped(weight, window.groups).swapaxes(1, 2)
        patch = (dx.shape[1], *weight.shape[2:], *dy.shape[2:])
        for images in _blocks(dy.shape[0], math.prod(patch) * dy.itemsize):
            cols = np.matmul(columns, _grouped_pixels(dy[images], window.groups))
            shape = dx[images].shape
            cols = cols.reshape(shape[0], *patch)
            dx[images] = self.col2im(cols, shape, patch[1:3], window.stride, window.pads, window.dilation)

    def convolution_weight(self, dy: Array, x: Array, dweight: Array, window: Window) -> None:
        """Each image: dy times the transposed matrix of patches; over the images the sum is in float64."""
        total = np.zeros(_grouped_shape(dweight.shape, window.groups))
        for images, cols in self._patches(x, dweight.shape[2:], window):
            for partial in np.matmul(_grouped_pixels(dy[images], window.groups), cols.swapaxes(2, 3)):
                total += partial
        dweight[...] = total.reshape(dweight.shape)

    @staticmethod
    def convolution_data_terms(weight: tuple[int, ...], groups: int) -> int:
        """The output channels, and then the patches that overlap."""
        return weight[0] // groups + math.prod(weight[2:]) - 1

    @staticmethod
    def convolution_weight_terms(dy: tuple[int, ...]) -> tuple[int, int]:
        """An image's pixels in the dtype, then the images in float64."""
        return math.prod(dy[2:]), dy[0]

    def _patches(self, x: Array, kernel: tuple[int, ...], window: Window) -> Iterator[tuple[slice, Array]]:
        """Images and their matrices of patches, (images, groups, C/groups*kh*kw, oh*ow)."""
        for images in _blocks(x.shape[0], math.prod(x.shape[1:]) * math.prod(kernel) * x.itemsize):
            cols = self.im2col(x[images], kernel, window.stride, window.pads, window.dilation)
            depth = x.shape[1] // window.groups * math.prod(kernel)
            yield images, cols.reshape(cols.shape[0], window.groups, depth, math.prod(cols.shape[4:]))


def _grouped_shape(weight: tuple[int, ...], groups: int) -> tuple[int, ...]:
    """(groups, K/groups, C/groups*kh*kw): the matrices of weights, one per group."""
    return (groups, weight[0] // groups, math.prod(weight[1:]))


def _grouped(weight: Array, groups: int) -> Array:
    # Matrices are in C order: strides would choose the order of the products' sums, and so their bits.
    return np.ascontiguousarray(weight).reshape(_grouped_shape(weight.shape, groups))


def _grouped_pixels(y: Array, groups: int) -> Array:
    """(N, K, oh, ow) as (N, groups, K/groups, oh*ow), in C order."""
    shape = (y.shape[0], groups, y.shape[1] // groups, math.prod(y.shape[2:]))
    return np.ascontiguousarray(y).reshape(shape)


def _blocks(images: int, image_bytes: int) -> Iterator[slice]:
    """Slices of the batch, each of about `_BLOCK_BYTES` of patches and of one image at least."""
    step = max(1, _BLOCK_BYTES // max(1, image_bytes))
    return (slice(start, min(start + step, images)) for start in range(0, images, step))
