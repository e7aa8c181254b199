"""The plain twins: the loops that numpy lacks, or takes several passes for, vectorised with numpy.

They lie in files of one purpose, and all of them are named here: `patches` (convolution), `pools`, `channels` (bias,
sums over a channel), `normalization` (across channels), `elements` (ReLU, updates), `draws` (random numbers) and
`losses` (the samples of a classifier).

Images are (N, C, H, W), in float32 or float64 and of any strides; what goes in comes out. Pairs are (height, width) and
`pads` is ((height begin, height end), (width begin, width end)). Nothing is written to but `out`, and what a docstring
names as written; where `out` may be left out, the result is a new array in C order. Bits are fixed: every sum starts
from 0, is in the dtype of the input unless it says float64, and adds in the order that its function states, so an
image's result depends neither on the batch that it is in nor on the order of memory. The compiled twin `_loops.pyx` has
the same names, signatures, errors and bits (of a NaN only that it is one is promised); there, images that are C- or
channels-last contiguous, or slices of channels of such, are read and written where they lie, and others copied (for
`im2col` and `col2im`, those that are not in C order). Devices hold these functions; nobody else calls them.
"""

from __future__ import annotations

from purine_ref._fast.channels import add_bias, bias_gradient, bias_relu, relu_bias_gradient
from purine_ref._fast.draws import philox
from purine_ref._fast.elements import adagrad_update, momentum_update, relu, relu_gradient, torch_update
from purine_ref._fast.losses import count_hits as count_hits
from purine_ref._fast.losses import cross_entropy as cross_entropy
from purine_ref._fast.losses import cross_entropy_gradient as cross_entropy_gradient
from purine_ref._fast.normalization import lrn, lrn_gradient, window_sum
from purine_ref._fast.patches import col2im, fold, im2col, pixel_rows, unfold
from purine_ref._fast.patches import flatten as flatten
from purine_ref._fast.pools import average_pool, average_pool_scatter, max_pool, max_pool_scatter

__all__ = [
    "adagrad_update",
    "add_bias",
    "average_pool",
    "average_pool_scatter",
    "bias_gradient",
    "bias_relu",
    "col2im",
    "fold",
    "im2col",
    "lrn",
    "lrn_gradient",
    "max_pool",
    "max_pool_scatter",
    "momentum_update",
    "philox",
    "pixel_rows",
    "relu",
    "relu_bias_gradient",
    "relu_gradient",
    "torch_update",
    "unfold",
    "window_sum",
]

CPU_ONLY = ["count_hits", "cross_entropy", "cross_entropy_gradient", "flatten"]
"""Loops that a device may lack: operations look whether it has them, and are else spelled out over arrays."""
