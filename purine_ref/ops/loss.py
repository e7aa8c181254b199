"""Losses: one number, of shape (), from a batch; and their gradients, which multiply by the gradient of that number.

Sums are taken in float64 over the elements in C order, pairwise, and cast to the dtype of the input at the end. The
loss of an empty batch is 0, and so is its gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from purine_ref.errors import OperatorError
from purine_ref.operation import Array, Axis, Cost, Kernels, Operation, Wiring, elementwise_axes, traffic
from purine_ref.ops.attributes import assign, choice, integer
from purine_ref.ops.axes import MeanAxis, at, mean_axis
from purine_ref.ops.exactness import divided_quantum
from purine_ref.ops.softmax import exponentials
from purine_ref.tensor import Tensor

REDUCTIONS = ("mean", "sum")
"""The mean over samples, or the sum."""


def check_labels(operation: Operation, xp: Any, label: Array, valid: Array, classes: int) -> None:
    """Raise OperatorError, naming the first, where a `valid` label is not one of 0..classes-1."""
    wrong = valid & ((label < 0) | (label >= classes))
    if wrong.any():
        first = tuple(int(i) for i in xp.argwhere(wrong)[0])
        raise OperatorError(
            f"{operation.name}: expected labels from 0 to {classes - 1}, got {int(label[first])} at index {list(first)}"
        )


@dataclass(frozen=True)
class SampleMean(Operation):
    """The base of operations that may divide by a number of samples.

    `samples` is that number where a call sees only a part of them; None stands for those that the call sees.
    """

    samples: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.samples is not None:
            assign(self, samples=integer(self.samples, f"{self.name} samples", 0))

    def part(self, axis: Axis, start: int, stop: int) -> Operation:
        """A mean divides by the samples of the whole."""
        return replace(self, samples=axis.divisor) if isinstance(axis, MeanAxis) else self

    def mean_divisor(self, seen: int) -> int:
        """What a mean over `seen` samples divides by; 1 where there is none."""
        return max(seen if self.samples is None else self.samples, 1)


@dataclass(frozen=True)
class _Loss(SampleMean):
    reduction: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice(self.reduction, f"{self.name} reduction", REDUCTIONS)

    def _divisor(self, seen: int) -> int:
        return self.mean_divisor(seen) if self.reduction == "mean" else 1

    def _divided_axes(self, axes: Iterable[Axis], seen: int) -> tuple[Axis, ...]:
        return tuple(mean_axis(axis, self._divisor(seen)) if self.reduction == "mean" else axis for axis in axes)


@dataclass(frozen=True)
class _CrossEntropy(_Loss):
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

    def _valid_rows(self, xp: Any, logits: Array, label: Array) -> tuple[Array, Array, Array]:
        """(valid, rows, labels): which of all rows count, flat; those rows (M, K); and their labels (M,)."""
        valid = xp.ones(label.shape, bool) if self.ignore is None else label != self.ignore
        check_labels(self, xp, label, valid, logits.shape[1])
        rows = xp.moveaxis(logits, 1, -1)[valid]
        return valid.reshape(-1), rows, label[valid]


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
        _, rows, labels = self._valid_rows(xp, *inputs)
        shifted, _, total = exponentials(self, xp, rows, 1)
        losses = xp.log(total) - xp.take_along_axis(shifted, labels[:, None], axis=1)
        outputs[0][...] = losses.sum() / self._divisor(len(labels))

    def gradient(self, wiring: Wiring) -> None:
        """{ dloss, logits, label } >> SoftmaxCrossEntropyGradient >> { dlogits }"""
        if wiring.wants[0]:
            operation = SoftmaxCrossEntropyGradient(self.reduction, self.ignore, samples=self.samples)
            wiring.add(operation, [wiring.gradient(0), *wiring.inputs], [0])

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """Per logit: compare, subtract, exponential, add; per sample: logarithm, subtract, add."""
        return Cost(4 * inputs[0].size + 3 * inputs[1].size, traffic(inputs, outputs))


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
        xp = kernels.xp
        dloss, logits, label = inputs
        valid, rows, labels = self._valid_rows(xp, logits, label)
        _, powers, total = exponentials(self, xp, rows, 1)
        slope = powers / total
        slope[xp.arange(len(labels)), labels] -= 1
        every = xp.zeros((label.size, logits.shape[1]), xp.float64)
        every[valid] = slope * (dloss.astype(xp.float64) / self._divisor(len(labels)))
        outputs[0][...] = xp.moveaxis(every.reshape(*label.shape, logits.shape[1]), -1, 1)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """Per logit: compare, subtract, exponential, add, divide, subtract, multiply."""
        return Cost(7 * outputs[0].size, traffic(inputs, outputs))


@dataclass(frozen=True)
class _Squared(_Loss):
    @property
    def exact(self) -> bool:
        """Exact; a mean over a batch that is no power of two is refused by `quantum`, which knows the batch."""
        return True

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """Every axis of x. The loss is a sum over them."""
        x = inputs[-1]
        axes = elementwise_axes(inputs, (x,))
        if outputs[0].shape != x.shape:
            axes = tuple(replace(axis, outputs=at(None)) for axis in axes)
        return self._divided_axes(axes, x.shape[0])

    def _divided(self, quantum: int, x: Tensor) -> tuple[int, ...]:
        return (divided_quantum(self, quantum, self._divisor(x.shape[0]), "batch in a mean"),)


@dataclass(frozen=True)
class SquaredError(_Squared):
    """{ x, target } >> SquaredError >> { loss }

    x and target: (N, ...), floating point, of one shape; loss (). loss = sum of (x - target)^2 / 2 over all elements;
    `reduction="mean"` divides by the batch N, not by the number of elements (the EuclideanLoss of Caffe). `samples`:
    see SampleMean.
    """

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Shape (). Raises ShapeError unless x and target agree and have a batch axis."""
        self.require_inputs(inputs, "x target")
        self.require_same(inputs)
        self.require(len(inputs[0].shape) > 0, "x of shape (N, ...)", inputs[0])
        return (Tensor((), inputs[0].dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Half the sum of squares, over the divisor."""
        difference = kernels.xp.subtract(*inputs, dtype=kernels.xp.float64)
        outputs[0][...] = self._half_sum(difference)

    def _half_sum(self, difference: Array) -> Array:
        # ravel gives C order, whatever the strides: the order of the sum is part of the result.
        squares = (difference * difference).ravel()
        return squares.sum() / 2 / self._divisor(len(difference))

    def gradient(self, wiring: Wiring) -> None:
        """{ dloss, x, target } >> SquaredErrorGradient >> { dx }, and with the sign -1 to the target."""
        for index, sign in enumerate((1, -1)):
            if wiring.wants[index]:
                operation = SquaredErrorGradient(self.reduction, sign, samples=self.samples)
                wiring.add(operation, [wiring.gradient(0), *wiring.inputs], [index])

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """Per element: subtract, multiply, add."""
        return Cost(3 * inputs[0].size, traffic(inputs, outputs))

    def magnitude(
        self, kernels: Kernels, inputs: Sequence[Array], bounds: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        """As `compute`, with the sum of the bounds for the difference."""
        outputs[0][...] = self._half_sum(kernels.xp.add(*bounds, dtype=kernels.xp.float64))

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """Twice the least of the inputs, less 1 for the half, less that of the divisor."""
        return self._divided(2 * min(exponents) - 1, inputs[0])


@dataclass(frozen=True)
class SquaredErrorGradient(_Squared):
    """{ dloss, x, target } >> SquaredErrorGradient >> { dx }

    dloss (); x, target and dx of one shape. dx = sign dloss (x - target) / divisor, with the divisor of the loss.
    """

    sign: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.sign in (1, -1), "a sign of 1 or -1", self.sign)

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensor of x. Raises ShapeError unless x and target agree and dloss is ()."""
        self.require_inputs(inputs, "dloss x target")
        self.require_same(inputs[1:])
        self.require_same_dtype(inputs)
        self.require(inputs[0].shape == (), "dloss of shape ()", inputs[0])
        self.require(len(inputs[1].shape) > 0, "x of shape (N, ...)", inputs[1])
        return (inputs[1],)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """sign dloss (x - target) / divisor."""
        dloss, x, target = inputs
        outputs[0][...] = (x - target) * dloss / float(self.sign * self._divisor(len(x)))

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """Per element: subtract, multiply, divide."""
        return Cost(3 * outputs[0].size, traffic(inputs, outputs))

    def magnitude(
        self, kernels: Kernels, inputs: Sequence[Array], bounds: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        """As `compute`, with the sum of the bounds for the difference."""
        dloss, x, target = bounds
        replace(self, sign=1).compute(kernels, [dloss, x, -target], outputs)

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """That of dloss, plus the least of the others, less that of the divisor."""
        return self._divided(exponents[0] + min(exponents[1:]), inputs[1])
