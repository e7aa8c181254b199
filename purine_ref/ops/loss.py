"""Losses: one number, of shape (), from a batch; and their gradients, which multiply by the gradient of that number.

Sums are taken in float64 over the elements in C order, pairwise, and cast to the dtype of the input at the end. The
loss of an empty batch is 0, and so is its gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from purine_ref.operation import Array, Axis, Call, Cost, Kernels, Operation, Wiring, elementwise_axes, traffic
from purine_ref.ops.attributes import assign, choice, integer
from purine_ref.ops.axes import MeanAxis, at, mean_axis
from purine_ref.ops.exactness import divided_quantum
from purine_ref.rounding import WIDE, gamma, roundings, sum_variance, uniform
from purine_ref.tensor import Tensor

REDUCTIONS = ("mean", "sum")
"""The mean over samples, or the sum."""


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
class Loss(SampleMean):
    """The base of losses and their gradients: sums over samples, divided by their number for a `reduction` of mean."""

    reduction: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice(self.reduction, f"{self.name} reduction", REDUCTIONS)

    def _divisor(self, seen: int) -> int:
        return self.mean_divisor(seen) if self.reduction == "mean" else 1

    def _divided_axes(self, axes: Iterable[Axis], seen: int) -> tuple[Axis, ...]:
        return tuple(mean_axis(axis, self._divisor(seen)) if self.reduction == "mean" else axis for axis in axes)


@dataclass(frozen=True)
class _Squared(Loss):
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

    def bound(self, call: Call) -> tuple[Array, ...]:
        """A difference, a square and the sums in float64, all of one sign, then a division, and the loss's rounding."""
        loss = call.outputs[0]
        return (gamma(call.inputs[0].size + 4, WIDE) * loss + roundings(call.xp, 1, loss, call.unit),)

    def noise(self, call: Call) -> tuple[Array | None, ...]:
        """That of the sum in float64, and of the loss's rounding."""
        loss, terms = call.outputs[0], self._terms(call)
        return (
            sum_variance(terms.size + 4, loss, (terms * terms).sum(), WIDE)
            + uniform(roundings(call.xp, 1, loss, call.unit)),
        )

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """(x - target)^2 over the divisor's square, and the variances, since the difference may be 0 but for them."""
        errors = [error for error in call.variances if error is not None]
        squares = call.xp.subtract(*call.inputs) ** 2 + sum(errors)
        return ((squares * call.variances[index]).sum() / self._divisor(len(call.inputs[0])) ** 2,)

    def _terms(self, call: Call) -> Array:
        """What the loss is the sum of."""
        return call.xp.subtract(*call.inputs) ** 2 / (2 * self._divisor(len(call.inputs[0])))

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

    def bound(self, call: Call) -> tuple[Array, ...]:
        """A difference, a product, a quotient."""
        return (roundings(call.xp, 3, call.outputs[0], call.unit),)

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """(x - target) / divisor, and plus or minus dloss / divisor."""
        dloss, x, target = call.inputs
        slope = (x - target if index == 0 else dloss) / self._divisor(len(x))
        return (slope * slope * call.variances[index],)

    def magnitude(
        self, kernels: Kernels, inputs: Sequence[Array], bounds: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        """As `compute`, with the sum of the bounds for the difference."""
        dloss, x, target = bounds
        replace(self, sign=1).compute(kernels, [dloss, x, -target], outputs)

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """That of dloss, plus the least of the others, less that of the divisor."""
        return self._divided(exponents[0] + min(exponents[1:]), inputs[1])
