"""Wrong convolutions, inner products, biases, pools, and LRN."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from faults.fault import EXACT, LOOPS, REFERENCE, SLOPES, Fault, around, computing, misread, together
from purine_ref._fast.geometry import divisors
from purine_ref.devices.cpu import CpuKernels
from purine_ref.devices.kernels import channels_last
from purine_ref.ops import (
    Bias,
    BiasGradient,
    Conv2d,
    Conv2dDataGradient,
    Conv2dWeightGradient,
    GlobalAveragePool2d,
    Linear,
    LinearWeightGradient,
    LRNGradient,
    normalization,
    pooling,
)

Array = Any


# Convolution


def flipped(right: Any, self: Conv2d, kernels: Any, inputs: Any, outputs: Any) -> None:
    x, weight = inputs
    right(self, kernels, [x, weight[:, :, ::-1, ::-1]], outputs)


def undilated(
    right: Any, x: Array, kernel: Any, stride: Any, pads: Any, dilation: Any, first: int, out: Array
) -> None:
    """As many patches as with the dilation, of elements that are beside each other."""
    rows, columns = (n - (d - 1) * (k - 1) for n, d, k in zip(x.shape[2:], dilation, kernel, strict=True))
    right(x[:, :, :rows, :columns], kernel, stride, pads, (1, 1), first, out)


def first_group_for_all(right: Any, channels: int, outputs: int, groups: int) -> Any:
    sides = list(right(channels, outputs, groups))
    return [(sides[0][0], k) for _, k in sides]


def where_touched(right: Any, self: Conv2dDataGradient, kernels: Any, inputs: Any, outputs: Any) -> None:
    """Elements of dx that no window touches are not written."""
    dy, weight = inputs
    dx, touched = np.zeros_like(outputs[0]), np.zeros_like(outputs[0])
    right(self, kernels, inputs, [dx])
    right(self, kernels, [np.ones_like(dy), np.ones_like(weight)], [touched])
    np.copyto(outputs[0], dx, where=touched > 0)


def over_the_batch(right: Any, self: Any, kernels: Any, inputs: Any, outputs: Any) -> None:
    """Divided by the number of samples."""
    right(self, kernels, inputs, outputs)
    outputs[0][...] /= max(len(inputs[0]), 1)


def turned_pads(self: Conv2d) -> Conv2d:
    return replace(self, pads=tuple(pad[::-1] for pad in self.pads))


CONVOLUTIONS = [
    Fault(
        "convolution: strides swapped",
        "The stride of the height is taken for the width, and the other way round.",
        misread(Conv2d, lambda self: replace(self, stride=self.stride[::-1]), "infer", "compute"),
        (f"Conv2d: {LOOPS}", f"Conv2d: {REFERENCE}"),
    ),
    Fault(
        "convolution: begin and end padding swapped",
        "Padding that is asked for before the image is put behind it.",
        misread(Conv2d, turned_pads),
        (f"Conv2d: {LOOPS}", f"Conv2d: {SLOPES}", "test_ops_geometry: test_op_22_padding_is_given_per_side"),
    ),
    Fault(
        "convolution: dilation ignored",
        "Patches are of neighbouring elements, whatever the dilation.",
        around(CpuKernels, "unfold", undilated),
        (f"Conv2d: {LOOPS}", f"Conv2dWeightGradient: {LOOPS}"),
    ),
    Fault(
        "convolution: groups ignored",
        "Every group sees the channels of the first.",
        around(channels_last, "_sides", first_group_for_all),
        (
            f"Conv2d: {LOOPS}",
            f"Conv2dWeightGradient: {LOOPS}",
            "test_ops_geometry: test_op_31_groups_keep_their_own_channels_and_biases",
        ),
    ),
    Fault(
        "convolution: kernel flipped",
        "A convolution as mathematics defines it, in place of a cross-correlation.",
        around(Conv2d, "compute", flipped),
        (f"Conv2d: {LOOPS}", f"Conv2d: {SLOPES}", "test_ops_geometry: test_op_20_the_kernel_is_not_flipped"),
    ),
    Fault(
        "convolution: untouched rows not written",
        "The data gradient writes only the elements that a window touched.",
        around(Conv2dDataGradient, "compute", where_touched),
        (f"Conv2dDataGradient: {LOOPS}", "Conv2dDataGradient: test_what_buffers_held_changes_no_bit"),
    ),
    Fault(
        "convolution: mean for sum over the images",
        "The weight gradient is divided by the number of samples.",
        around(Conv2dWeightGradient, "compute", over_the_batch),
        (f"Conv2dWeightGradient: {LOOPS}", f"Conv2d: {SLOPES}", f"Conv2d: {REFERENCE}"),
    ),
]


# Inner product and bias


def in_pixels(self: Linear, x: Array, weight: Array, y: Array) -> None:
    flat = np.moveaxis(x, 1, -1).reshape(len(x), weight.shape[1])
    y[...] = flat @ weight.T


def unturned(self: LinearWeightGradient, dy: Array, x: Array, dweight: Array) -> None:
    """The (in, out) matrix, read as if it were (out, in)."""
    flat = x.reshape(len(x), dweight.shape[1])
    dweight[...] = (flat.T @ dy).reshape(dweight.shape)


def along_the_last(self: Bias, x: Array, bias: Array, y: Array) -> None:
    np.add(x, np.resize(bias, x.shape[-1]), out=y)


def running_sum(self: BiasGradient, dy: Array, dbias: Array) -> None:
    """One element after the other in the dtype of dy."""
    rows = np.moveaxis(dy, self.axis, 0).reshape(len(dbias), dy.size // max(len(dbias), 1))
    dbias[...] = np.cumsum(rows, axis=1, dtype=dy.dtype)[:, -1] if rows.size else 0


PRODUCTS = [
    Fault(
        "inner product: flattened channels last",
        "The features of a sample are taken in H, W, C order.",
        computing(Linear, in_pixels),
        (
            f"Linear: {LOOPS}",
            f"Linear: {SLOPES}",
            "test_ops_geometry: test_op_27_x_is_flattened_channels_first",
        ),
    ),
    Fault(
        "inner product: weight gradient not transposed",
        "The elements of the weight gradient are in the order of its transpose.",
        computing(LinearWeightGradient, unturned),
        (
            f"LinearWeightGradient: {LOOPS}",
            f"Linear: {SLOPES}",
            "test_gradients: test_op_18_a_weight_that_is_used_twice",
        ),
    ),
    Fault(
        "bias: wrong axis",
        "The bias is added along the last axis, again and again.",
        computing(Bias, along_the_last),
        (f"Bias: {LOOPS}", f"Bias: {SLOPES}"),
    ),
    Fault(
        "bias: gradient added up in float32",
        "The gradient of the bias is a running sum in the dtype of its elements.",
        computing(BiasGradient, running_sum),
        ("test_ops_geometry: test_bias_gradient_of_many_float32_accumulates_in_float64",),
    ),
]


# Pools


def written(wrong: Any) -> Any:
    """`wrong` returns what a loop should; here it is written to `out`, where the loop is given one."""

    def replacement(right: Any, *arguments: Any, out: Any = None) -> Any:
        result = wrong(right, *arguments)
        if out is None:
            return result
        pairs = zip(out, result, strict=True) if isinstance(out, tuple) else [(out, result)]
        for target, array in pairs:
            target[...] = array
        return out

    return replacement


def last_of_equals(right: Any, x: Array, kernel: Any, stride: Any, pads: Any, size: Any) -> tuple[Array, Array]:
    y, index = right(x, kernel, stride, pads, size)
    height, width = x.shape[2:]
    for n, c, i, j in np.ndindex(y.shape):
        top, left = i * stride[0] - pads[0][0], j * stride[1] - pads[1][0]
        for h in range(max(top, 0), min(top + kernel[0], height)):
            for w in range(max(left, 0), min(left + kernel[1], width)):
                if x[n, c, h, w] == y[n, c, i, j]:
                    index[n, c, i, j] = h * width + w
    return y, index


def with_zeros(right: Any, x: Array, kernel: Any, stride: Any, pads: Any, size: Any) -> tuple[Array, Array]:
    """The maximum of the image in a frame of zeros."""
    framed = np.pad(x, ((0, 0), (0, 0), *pads))
    return right(framed, kernel, stride, ((0, 0), (0, 0)), size)[0], right(x, kernel, stride, pads, size)[1]


def without_nan(right: Any, x: Array, *window: Any) -> tuple[Array, Array]:
    return right(np.where(np.isnan(x), -np.inf, x).astype(x.dtype), *window)


def last_one_wins(right: Any, dy: Array, index: Array, shape: Any) -> Array:
    dx = np.zeros((*shape[:2], math.prod(shape[2:])), dy.dtype)
    for at in np.ndindex(dy.shape):
        dx[(*at[:2], index[at])] = dy[at]
    return dx.reshape(shape)


def whole_windows(right: Any, x: Array, kernel: Any, stride: Any, pads: Any, size: Any, count: str) -> Array:
    """Divided by the kernel's size, also where the last window hangs over."""
    y = right(x, kernel, stride, pads, size, count)
    right_divisors = divisors(x.shape[2:], kernel, stride, pads, size, count)
    return (y * (right_divisors / math.prod(kernel))).astype(x.dtype)


def other_count(right: Any, dy: Array, shape: Any, kernel: Any, stride: Any, pads: Any, count: str) -> Array:
    return right(dy, shape, kernel, stride, pads, {"padded": "valid", "valid": "padded"}[count])


def summed(right: Any, self: GlobalAveragePool2d, kernels: Any, inputs: Any, outputs: Any) -> None:
    right(self, kernels, inputs, outputs)
    outputs[0][...] *= math.prod(inputs[0].shape[2:])


POOLS = [
    Fault(
        "max pool: ties go to the last",
        "Of equal elements the last one of a window wins.",
        around(CpuKernels, "max_pool", written(last_of_equals)),
        (
            "test_ops_geometry: test_op_01_max_pool_takes_each_windows_first_maximum",
            f"MaxPool2d: {EXACT}",
        ),
    ),
    Fault(
        "max pool: padding wins",
        "Padding is zeros, which win over negative elements.",
        around(CpuKernels, "max_pool", written(with_zeros)),
        (f"MaxPool2d: {LOOPS}", f"MaxPool2d: {REFERENCE}"),
    ),
    Fault(
        "max pool: NaN swallowed",
        "A NaN is passed over as if it were the smallest element.",
        around(CpuKernels, "max_pool", written(without_nan)),
        ("test_ops_geometry: test_op_15_nan_wins_a_max_pool",),
    ),
    Fault(
        "max pool: overlapping windows overwrite",
        "Of several windows that one element won, only the last gives it a gradient.",
        around(CpuKernels, "max_pool_scatter", written(last_one_wins)),
        (f"MaxPool2dGradient: {LOOPS}", f"MaxPool2d: {SLOPES}"),
    ),
    Fault(
        "pools: ceil rounded down",
        "The last window, which hangs over the edge, is left out where it was asked for.",
        around(pooling, "pooled_size", lambda right, *axis: right(*axis[:4], "floor")),
        (f"MaxPool2d: {LOOPS}", f"AveragePool2d: {REFERENCE}"),
    ),
    Fault(
        "average pool: ceil overhang counted",
        "A window that hangs over the edge is divided by all of the kernel's elements.",
        around(CpuKernels, "average_pool", written(whole_windows)),
        (f"AveragePool2d: {LOOPS}", "test_ops_geometry: test_op_02_the_divisor_leaves_the_overhang_out"),
    ),
    Fault(
        "average pool: another divisor in backward",
        "The gradient counts the padding where the values do not, and the other way round.",
        around(CpuKernels, "average_pool_scatter", written(other_count)),
        (
            f"AveragePool2d: {SLOPES}",
            f"AveragePool2dGradient: {LOOPS}",
            "test_ops_geometry: test_op_02_average_pool_divides_alike_both_ways",
        ),
    ),
    Fault(
        "global average pool: sum for mean",
        "The sum of each plane is not divided by its size.",
        around(GlobalAveragePool2d, "compute", summed),
        (f"GlobalAveragePool2d: {LOOPS}", f"GlobalAveragePool2d: {SLOPES}"),
    ),
]


# Local response normalisation


def own_term(self: LRNGradient, dy: Array, x: Array, dx: Array) -> None:
    scale = normalization._scale(self, CpuKernels, x)
    dx[...] = dy * scale**-self.beta


def undivided(right: Any, *arguments: Any) -> None:
    """Of the arguments (array, or arrays, n, alpha, beta, k, out), alpha is n times as large."""
    *arrays, n, alpha, beta, k, out = arguments
    right(*arrays, n, alpha * n, beta, k, out)


def rows_for_channels(right: Any, x: Array, *attributes: Any) -> None:
    *attributes, out = attributes
    turned = np.empty_like(out.swapaxes(1, -1))
    right(x.swapaxes(1, -1), *attributes, turned)
    out[...] = turned.swapaxes(1, -1)


NORMALIZATIONS = [
    Fault(
        "LRN: alpha not divided by n",
        "The sum of squares is multiplied by alpha, however wide the window is.",
        together(around(CpuKernels, "lrn", undivided), around(CpuKernels, "lrn_gradient", undivided)),
        (
            f"LRN: {LOOPS}",
            f"LRNGradient: {REFERENCE}",
            "test_ops_normalization: test_op_06_alpha_is_divided_by_the_window",
        ),
    ),
    Fault(
        "LRN: backward without the neighbours' term",
        "The gradient leaves out what an element does to the scales of its neighbours.",
        computing(LRNGradient, own_term),
        (
            f"LRN: {SLOPES}",
            f"LRNGradient: {LOOPS}",
            "test_ops_normalization: test_op_17_the_gradient_has_its_neighbours_term",
        ),
    ),
    Fault(
        "LRN: wrong axis",
        "The window lies over rows in place of channels.",
        around(CpuKernels, "lrn", rows_for_channels),
        (f"LRN: {LOOPS}", f"LRN: {REFERENCE}"),
    ),
]

ALL = [*CONVOLUTIONS, *PRODUCTS, *POOLS, *NORMALIZATIONS]
