"""Wrong activations, softmax, losses, sums, dropout, movements, and metrics."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import numpy as np

from faults.fault import EXACT, LOOPS, REFERENCE, SLOPES, Fault, around, computing, misread, replaced, together
from purine_ref.devices.kernels import LoopKernels
from purine_ref.ops import (
    Bernoulli,
    Concat,
    Dropout,
    Mean,
    ReLU,
    ReLUGradient,
    Softmax,
    SoftmaxCrossEntropy,
    SoftmaxGradient,
    SquaredError,
    Sum,
    TopKAccuracy,
    reduction,
)

Array = Any


# Activations and softmax


def one_at_zero(self: ReLUGradient, dy: Array, y: Array, dx: Array) -> None:
    dx[...] = np.where(y < 0, 0, dy)


def in_the_input(right: Any, self: ReLU, kernels: Any, inputs: Any, outputs: Any) -> None:
    """The memory of x holds y afterwards."""
    right(self, kernels, inputs, outputs)
    if inputs[0].flags.writeable:
        inputs[0][...] = outputs[0]


def unshifted(right: Any, operation: Any, kernels: Any, x: Array, axis: int) -> tuple[Array, Array, Array]:
    with np.errstate(all="ignore"):
        powers = np.exp(x.astype(np.float64))
    return x.astype(np.float64), powers, powers.sum(axis=axis, keepdims=True)


def without_the_sum(self: SoftmaxGradient, dy: Array, y: Array, dx: Array) -> None:
    dx[...] = dy * y * (1 - y)


ACTIVATIONS = [
    Fault(
        "ReLU: derivative 1 at 0",
        "The gradient passes where the output is 0.",
        computing(ReLUGradient, one_at_zero),
        (f"ReLUGradient: {EXACT}",),
    ),
    Fault(
        "ReLU: NaN swallowed",
        "A NaN becomes 0.",
        computing(ReLU, lambda self, x, y: np.copyto(y, np.fmax(x, 0))),
        ("test_ops_values: test_op_15_relu_lets_nan_through",),
    ),
    Fault(
        "ReLU: input overwritten",
        "The operator leaves its result in its input too.",
        around(ReLU, "compute", in_the_input),
        ("ReLU: test_inputs_are_left_as_they_are",),
    ),
    Fault(
        "softmax: wrong axis",
        "The last axis is normalised, whatever axis was asked for.",
        misread(Softmax, lambda self: replace(self, axis=-1)),
        (f"Softmax: {LOOPS}", f"Softmax: {REFERENCE}"),
    ),
    Fault(
        "softmax: largest element not subtracted",
        "Exponentials are taken of the elements themselves, and overflow.",
        around(inspect.getmodule(Softmax), "exponentials", unshifted),
        ("test_ops_values: test_op_07_softmax_and_its_logarithm_along_any_axis",),
    ),
    Fault(
        "softmax: diagonal of the Jacobian alone",
        "The gradient leaves out what an element does to the others of its row.",
        computing(SoftmaxGradient, without_the_sum),
        (f"Softmax: {SLOPES}", f"SoftmaxGradient: {LOOPS}"),
    ),
]


# Losses and metrics


def next_label(
    right: Any, self: SoftmaxCrossEntropy, kernels: Any, logits: Array, label: Array
) -> tuple[Any, Array, Array]:
    valid, rows, labels = right(self, kernels, logits, label)
    return valid, rows, (labels + 1) % logits.shape[1]


def over_all_samples(right: Any, self: SoftmaxCrossEntropy, kernels: Any, inputs: Any, outputs: Any) -> None:
    right(self, kernels, inputs, outputs)
    if self.reduction == "mean" and inputs[1].size:
        outputs[0][...] *= np.mean(inputs[1] != self.ignore)


def over_all_elements(right: Any, self: SquaredError, kernels: Any, inputs: Any, outputs: Any) -> None:
    right(self, kernels, inputs, outputs)
    if self.reduction == "mean":
        outputs[0][...] *= len(inputs[0]) / max(inputs[0].size, 1)


def higher_class_first(right: Any, self: TopKAccuracy, kernels: Any, inputs: Any, outputs: Any) -> None:
    logits, label = inputs
    right(self, kernels, [logits[:, ::-1], logits.shape[1] - 1 - label], outputs)


LOSSES = [
    Fault(
        "cross entropy: label off by one",
        "The loss is that of the class after the label.",
        around(SoftmaxCrossEntropy, "_valid_rows", next_label),
        (f"SoftmaxCrossEntropy: {LOOPS}", f"SoftmaxCrossEntropy: {REFERENCE}", f"SoftmaxCrossEntropy: {SLOPES}"),
    ),
    Fault(
        "cross entropy: largest logit not subtracted",
        "Exponentials are taken of the logits themselves, and overflow.",
        together(  # in the operation's own spelling, for devices without the loop
            replaced(LoopKernels, "cross_entropy", None),
            around(inspect.getmodule(SoftmaxCrossEntropy), "exponentials", unshifted),
        ),
        ("test_ops_values: test_op_07_the_loss_is_a_log_of_a_sum_of_exponentials",),
    ),
    Fault(
        "cross entropy: mean for sum",
        "The loss is divided by the number of samples where their sum was asked for.",
        misread(SoftmaxCrossEntropy, lambda self: replace(self, reduction="mean")),
        (f"SoftmaxCrossEntropy: {LOOPS}", f"SoftmaxCrossEntropy: {SLOPES}"),
    ),
    Fault(
        "cross entropy: sum for mean",
        "The loss is not divided by the number of samples.",
        misread(SoftmaxCrossEntropy, lambda self: replace(self, reduction="sum")),
        (f"SoftmaxCrossEntropy: {LOOPS}", f"SoftmaxCrossEntropy: {SLOPES}"),
    ),
    Fault(
        "cross entropy: ignored samples counted",
        "The mean is over all samples, those too that are ignored.",
        around(SoftmaxCrossEntropy, "compute", over_all_samples),
        (f"SoftmaxCrossEntropy: {LOOPS}", "test_ops_values: test_ignored_samples_count_for_nothing"),
    ),
    Fault(
        "squared error: mean over elements",
        "The mean is over all elements in place of the batch.",
        around(SquaredError, "compute", over_all_elements),
        (
            f"SquaredError: {LOOPS}",
            f"SquaredError: {SLOPES}",
            f"SquaredError: {EXACT}",
            "test_ops_values: test_squared_error_is_half_the_squares_over_the_batch",
        ),
    ),
    Fault(
        "top-k: ties go to the higher class",
        "Of two classes of one score the higher counts as the better.",
        around(TopKAccuracy, "compute", higher_class_first),
        ("test_ops_values: test_top_k_takes_the_lower_class_of_a_tie",),
    ),
]


# Sums


def one_after_the_other(right: Any, xp: Any, x: Array, axes: Any) -> Array:
    """A running sum in the dtype of x."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    shape = [x.shape[axis] for axis in kept]
    rows = np.moveaxis(x, kept, range(len(kept))).reshape(*shape, -1)
    return np.cumsum(rows, axis=-1, dtype=x.dtype)[..., -1]


def backwards(right: Any, self: Sum, kernels: Any, inputs: Any, outputs: Any) -> None:
    right(self, kernels, inputs[::-1], outputs)


SUMS = [
    Fault(
        "sum: float32 added one after the other",
        "A sum over axes is a running sum in the dtype of its elements.",
        around(reduction, "sum_over", one_after_the_other),
        ("test_ops_values: test_a_float32_sum_of_many_is_right_over_any_axes",),
    ),
    Fault(
        "sum: from the last to the first",
        "The inputs of a sum are added in the opposite order.",
        around(Sum, "compute", backwards),
        ("test_ops_values: test_sum_adds_in_the_order_of_its_inputs",),
    ),
    Fault(
        "mean: sum for mean",
        "The mean of several inputs is not divided by their number.",
        computing(Mean, lambda self, *arrays: np.copyto(arrays[-1], sum(arrays[1:-1], arrays[0]))),
        (f"Mean: {LOOPS}", f"Mean: {SLOPES}", f"Mean: {EXACT}"),
    ),
]


# Dropout and concat


def redrawn(self: Dropout, wiring: Any) -> None:
    """By a mask that is drawn anew for the gradient."""
    if wiring.wants[0]:
        x = wiring.inputs[0].tensor
        mask = wiring.add(Bernoulli(x.shape, x.dtype, keep=1 - self.ratio), [], [None]) if self.train else ()
        wiring.add(self, [wiring.gradient(0), *mask], [0])


def in_the_order_of_memory(self: Concat, *arrays: Array) -> None:
    """As if along the first axis, whatever the axis is."""
    arrays[-1][...] = np.concatenate([x.reshape(-1) for x in arrays[:-1]]).reshape(arrays[-1].shape)


def times_the_mask(right: Any, self: Dropout, kernels: Any, inputs: Any, outputs: Any) -> None:
    if not self.train:
        right(self, kernels, inputs, outputs)
        return
    with np.errstate(all="ignore"):
        outputs[0][...] = inputs[0] * inputs[1] * self.factor


OTHERS = [
    Fault(
        "dropout: mask redrawn in backward",
        "The gradient is dropped by another mask than the values were.",
        replaced(Dropout, "gradient", redrawn),
        (f"Dropout: {SLOPES}", "test_ops_values: test_op_23_each_backward_uses_the_mask_of_its_own_forward"),
    ),
    Fault(
        "dropout: scale missing",
        "What is kept is not scaled up in training, nor what is tested scaled down.",
        replaced(Dropout, "factor", 1.0),
        (f"Dropout: {LOOPS}", f"Dropout: {REFERENCE}", "test_ops_values: test_op_08_dropout_scales_once"),
    ),
    Fault(
        "dropout: values multiplied by the mask",
        "An infinity that is dropped becomes NaN.",
        around(Dropout, "compute", times_the_mask),
        ("test_ops_values: test_op_24_dropping_selects_and_does_not_multiply",),
    ),
    Fault(
        "concat: wrong axis",
        "The parts follow each other in memory, whatever the axis is.",
        computing(Concat, in_the_order_of_memory),
        (f"Concat: {LOOPS}", f"Concat: {SLOPES}", "Concat: test_boxes_are_where_the_parts_lie"),
    ),
]

ALL = [*ACTIVATIONS, *LOSSES, *SUMS, *OTHERS]
