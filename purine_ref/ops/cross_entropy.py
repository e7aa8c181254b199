"""The softmax cross-entropy, a loss for classes, and its gradient. Inside, everything is float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from purine_ref.errors import OperatorError
from purine_ref.operation import Array, Axis, Call, Cost, Kernels, Operation, Wiring, traffic
from purine_ref.ops.axes import at
from purine_ref.ops.loss import Loss
from purine_ref.ops.softmax import exponentials, roundings_inside, sum_of_others, variance_through
from purine_ref.rounding import FUNCTION, WIDE, gamma, roundings, sum_variance, uniform
from purine_ref.tensor import Tensor


def check_labels(operation: Operation, kernels: Kernels, label: Array, classes: int, ignore: int | None = None) -> None:
    """Refuse a label that is neither one of 0..classes-1 nor `ignore`: an OperatorError names the first."""
    suspect = label.view(kernels.xp.uint64) >= classes  # a label below 0 is a large one without its sign
    kernels.refuse(suspect, label, partial(_complain, operation, classes, ignore))


def _complain(operation: Operation, classes: int, ignore: int | None, label: Array) -> None:
    """Raise OperatorError, naming the first, where a label is neither a class nor ignored."""
    wrong = (label < 0) | (label >= classes)
    if ignore is not None:
        wrong &= label != ignore
    for first in np.argwhere(wrong)[:1].tolist():
        came = f"{int(label[tuple(first)])} at index {first}"
        raise OperatorError(f"{operation.name}: expected labels from 0 to {classes - 1}, got {came}")


@dataclass(frozen=True)
class _CrossEntropy(Loss):
    ignore: int | None = None

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """n: the batch; and what follows the classes. The loss is a sum over them.

        None for a mean that ignores a label, unless `samples` is given: how many count is not known beforehand.
        """
        if self.reduction == "mean" and self.ignore is not None and self.samples is None:
            return ()
        logits, label = inputs[-2:]
        whole = at(*(None for _ in inputs[:-2]))
        axes = []
        for place, extent in enumerate(label.shape):
            axis = place + 1 if place else 0
            result = axis if outputs[0].shape == logits.shape else None
            axes.append(Axis(f"axis{axis}" if axis else "n", extent, (*whole, *at(axis, place)), at(result)))
        return self._divided_axes(axes, label.size)

    def _require_logits_and_label(self, logits: Tensor, label: Tensor) -> None:
        self.require_float(logits, "logits")
        self.require(len(logits.shape) >= 2, "logits of shape (N, K) or (N, K, ...)", logits)
        self.require(logits.shape[1] > 0, "one class or more along axis 1 of the logits", logits)
        expected = Tensor(logits.shape[:1] + logits.shape[2:], "int64")
        self.require((label.shape, label.dtype) == (expected.shape, expected.dtype), f"label {expected}", label)

    def _valid_rows(self, xp: Any, logits: Array, label: Array) -> tuple[Array | None, Array, Array]:
        """(valid, rows, labels): which samples count, flat, None for all; the logits of each (M, K); the labels (M,).

        A sample that does not count has logits and label 0: how many there are is not waited for. Labels may be wrong.
        """
        rows, labels = self._rows(xp, logits), label.reshape(-1)
        if self.ignore is None:
            return None, rows, labels
        valid = labels != self.ignore
        return valid, self._counted(xp, rows, valid), xp.where(valid, labels, 0)

    @staticmethod
    def _rows(xp: Any, logits: Array) -> Array:
        """(N, K, ...) as (M, K), a row for each sample."""
        return logits if logits.ndim == 2 else xp.moveaxis(logits, 1, -1).reshape(-1, logits.shape[1])

    @staticmethod
    def _counted(xp: Any, rows: Array, valid: Array | None) -> Array:
        """Rows (M, ...) with 0 for samples that do not count."""
        return rows if valid is None else xp.where(valid[:, None], rows, 0)

    def _divided_by(self, xp: Any, valid: Array | None, label: Array) -> Any:
        """The divisor, an array where it is the number of samples that count."""
        if valid is None or self.samples is not None or self.reduction != "mean":
            return self._divisor(label.size)
        return xp.maximum(valid.sum(), 1)

    def _all_rows(self, xp: Any, rows: Array, valid: Array | None, label: Array) -> Array:
        """Rows (M, K) in the shape of the logits, with 0 for samples that do not count."""
        every = self._counted(xp, rows, valid)
        return every if label.ndim == 1 else xp.moveaxis(every.reshape(*label.shape, rows.shape[1]), -1, 1)


@dataclass(frozen=True)
class SoftmaxCrossEntropy(_CrossEntropy):
    """{ logits, label } >> SoftmaxCrossEntropy >> { loss }

    logits (N, K) or (N, K, ...), floating point; label (N) or (N, ...), int64, 0..K-1; loss (), as the logits.
    loss = sum over samples of log sum_k exp(logits_k - m) - (logits_label - m), with m the sample's largest logit.
    `reduction="mean"` divides by the number of samples that count. A sample whose label is `ignore` does not count.
    `samples`: see SampleMean.
    """

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Shape (). Raises ShapeError unless the shape of the label is that of the logits without axis 1."""
        self.require_inputs(inputs, "logits label")
        self._require_logits_and_label(inputs[0], inputs[1])
        return (Tensor((), inputs[0].dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Raises OperatorError for a label outside the classes, and for a sample whose logits are all -inf."""
        xp = kernels.xp
        losses, valid = self._losses(kernels, *inputs)
        total = losses.sum() if valid is None else xp.where(valid, losses, 0).sum()
        outputs[0][...] = total / self._divided_by(xp, valid, losses)

    def _losses(self, kernels: Kernels, logits: Array, label: Array) -> tuple[Array, Array | None]:
        """The losses of all samples, float64 (M,), by the device's loop if it has one; and which of them count."""
        xp, loop = kernels.xp, getattr(kernels, "cross_entropy", None)
        valid, rows, labels = self._valid_rows(xp, logits, label)
        if loop is not None:
            losses = xp.empty(len(labels), xp.float64)
            if loop(rows, labels, losses):
                return losses, valid
        check_labels(self, kernels, label, logits.shape[1], self.ignore)  # raises where the loop has no result
        shifted, _, total = exponentials(self, kernels, rows, 1)
        return xp.log(total)[:, 0] - shifted[xp.arange(len(labels)), labels], valid

    def gradient(self, wiring: Wiring) -> None:
        """{ dloss, logits, label } >> SoftmaxCrossEntropyGradient >> { dlogits }"""
        if wiring.wants[0]:
            operation = SoftmaxCrossEntropyGradient(self.reduction, self.ignore, samples=self.samples)
            wiring.add(operation, [wiring.gradient(0), *wiring.inputs], [0])

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """Per logit: compare, subtract, exponential, add; per sample: logarithm, subtract, add."""
        return Cost(4 * inputs[0].size + 3 * inputs[1].size, traffic(inputs, outputs))

    def bound(self, call: Call) -> tuple[Array, ...]:
        """What each sample's loss is off by in float64, their sum, a division, and the loss's rounding."""
        losses, errors = self._samples(call)
        return (
            (errors.sum() + gamma(losses.size + 1, WIDE) * losses.sum())
            + roundings(call.xp, 1, call.outputs[0], call.unit),
        )

    def noise(self, call: Call) -> tuple[Array | None, ...]:
        """Those of the samples' losses, of their sum, and of the loss's rounding."""
        losses, errors = self._samples(call)
        inside = uniform(errors).sum() + sum_variance(losses.size + 1, losses.sum(), (losses * losses).sum(), WIDE)
        return (inside + uniform(roundings(call.xp, 1, call.outputs[0], call.unit)),)

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """(softmax - onehot) / divisor."""
        xp, (logits, label) = call.xp, call.inputs
        valid, rows, labels = self._valid_rows(call.xp, logits, label)
        _, powers, total = exponentials(self, call.kernels, rows, 1)
        slope = powers / total
        slope[xp.arange(len(labels)), labels] = sum_of_others(xp, slope, 1)[xp.arange(len(labels)), labels]
        squares = self._counted(xp, slope * slope * self._rows(xp, call.variances[0]), valid)
        return (squares.sum() / self._divided_by(xp, valid, labels) ** 2,)

    def _samples(self, call: Call) -> tuple[Array, Array]:
        """What each sample adds to the loss, and what that can be off by in float64: see `softmax.LogSoftmax`."""
        xp = call.xp
        valid, rows, labels = self._valid_rows(call.xp, *call.inputs)
        shifted, powers, total = exponentials(self, call.kernels, rows, 1)
        own = xp.take_along_axis(shifted, labels[:, None], axis=1)
        losses, counts = xp.log(total) - own, roundings_inside(xp, shifted, powers, total, 1)
        errors = FUNCTION * xp.abs(xp.log(total)) + counts + xp.abs(own) + xp.abs(losses)
        losses, errors = self._counted(xp, losses, valid), self._counted(xp, errors, valid)
        divisor = self._divided_by(xp, valid, labels)
        return losses / divisor, WIDE * errors / divisor


@dataclass(frozen=True)
class SoftmaxCrossEntropyGradient(_CrossEntropy):
    """{ dloss, logits, label } >> SoftmaxCrossEntropyGradient >> { dlogits }

    dloss (); the others as in SoftmaxCrossEntropy. dlogits = dloss (softmax(logits) - onehot(label)) / divisor, with
    the divisor of the loss; 0 for samples that do not count.
    """

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensor of the logits. Raises ShapeError as SoftmaxCrossEntropy does, and unless dloss is ()."""
        self.require_inputs(inputs, "dloss logits label")
        self._require_logits_and_label(inputs[1], inputs[2])
        self.require_same_dtype(inputs[:2])
        self.require(inputs[0].shape == (), "dloss of shape ()", inputs[0])
        return (inputs[1],)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Raises OperatorError as SoftmaxCrossEntropy does."""
        xp, loop = kernels.xp, getattr(kernels, "cross_entropy_gradient", None)
        (dloss, logits, label), (dlogits,) = inputs, outputs
        valid, rows, labels = self._valid_rows(xp, logits, label)
        divisor = self._divided_by(xp, valid, labels)
        if loop is not None:
            slope = dlogits if rows is logits else xp.empty(rows.shape, xp.float64)
            if loop(rows, labels, float(dloss) / divisor, slope):
                if slope is not dlogits:
                    dlogits[...] = self._all_rows(xp, slope, valid, label)
                return
        check_labels(self, kernels, label, logits.shape[1], self.ignore)  # raises where the loop has no result
        _, powers, total = exponentials(self, kernels, rows, 1)
        slope = powers / total
        slope[xp.arange(len(labels)), labels] -= 1
        slope *= dloss.astype(xp.float64) / divisor
        dlogits[...] = self._all_rows(xp, slope, valid, label)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """Per logit: compare, subtract, exponential, add, divide, subtract, multiply."""
        return Cost(7 * outputs[0].size, traffic(inputs, outputs))

    def bound(self, call: Call) -> tuple[Array, ...]:
        """What the softmax is off by in float64, a difference, a quotient and a product; then the result's rounding."""
        xp, (dloss, _, label) = call.xp, call.inputs
        valid, labels, shifted, powers, total = self._softmax(call)
        inside = FUNCTION + xp.where(powers > 0, xp.abs(shifted), 0) + roundings_inside(xp, shifted, powers, total, 1)
        error = WIDE * (inside + 1) * powers / total * xp.abs(dloss) / self._divided_by(xp, valid, labels)
        dlogits = call.outputs[0]
        return (
            self._all_rows(xp, error, valid, label) + 3 * WIDE * xp.abs(dlogits) + roundings(xp, 1, dlogits, call.unit),
        )

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """(softmax - onehot) / divisor from dloss, and the softmax's own slopes times dloss / divisor."""
        xp, (dloss, _, label) = call.xp, call.inputs
        valid, labels, _, powers, total = self._softmax(call)
        y = powers / total
        if index == 0:
            y[xp.arange(len(labels)), labels] -= 1
            rows = y * y * call.variances[0]
        else:
            rows = dloss * dloss * variance_through(xp, y, self._rows(xp, call.variances[1]), 1)
        return (self._all_rows(xp, rows / self._divided_by(xp, valid, labels) ** 2, valid, label),)

    def _softmax(self, call: Call) -> tuple[Array, ...]:
        """(valid, labels, shifted, powers, total) of the samples that count."""
        valid, rows, labels = self._valid_rows(call.xp, *call.inputs[1:])
        return valid, labels, *exponentials(self, call.kernels, rows, 1)
