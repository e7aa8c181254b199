"""Softmax and its logarithm along one axis, always shifted by the largest element, so that nothing overflows.

Inside, everything is float64, whatever the dtype of the input. A row of nothing but -inf has no softmax: that is an
error. A row with a NaN or with +inf becomes NaN, and no other row does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from purine_ref.errors import OperatorError
from purine_ref.operation import Array, Axis, Call, Cost, Kernels, Operation, Wiring, traffic
from purine_ref.ops.axes import common_axes, front_axis, numbered
from purine_ref.rounding import FUNCTION, WIDE, roundings
from purine_ref.tensor import Tensor


def exponentials(operation: Operation, kernels: Kernels, x: Array, axis: int) -> tuple[Array, Array, Array]:
    """(shifted, powers, total): x minus its largest along `axis`, exp of that, and the sum of that along `axis`.

    All are float64; `total` keeps the axis, with length 1. Raises OperatorError where a whole row is -inf.
    """
    xp = kernels.xp
    x = xp.ascontiguousarray(x)
    largest = x.max(axis=axis, keepdims=True)
    if kernels.refuse(xp.isinf(largest), largest, partial(_nowhere, operation, axis)):
        # inf - inf is NaN, but on a CPU with a warning; to subtract NaN says the same without one.
        largest = xp.where(largest == xp.inf, xp.nan, largest)
    shifted = xp.subtract(x, largest, dtype=xp.float64)
    powers = xp.exp(shifted)
    return shifted, powers, sum_along(xp, powers, axis)


def _nowhere(operation: Operation, axis: int, largest: Array) -> None:
    """Raise OperatorError where the largest element of a row is -inf."""
    count = int((largest == -np.inf).sum())
    if count:
        raise OperatorError(
            f"{operation.name}: expected one element or more above -inf along axis {axis}, got none in "
            f"{count} of {largest.size} rows"
        )


def sum_along(xp: Any, x: Array, axis: int) -> Array:
    """The float64 sums of `x` along `axis`, which stays, with length 1.

    They are taken over an array in C order: strides would choose the order of a sum, and so its bits.
    """
    return xp.ascontiguousarray(x).sum(axis=axis, keepdims=True, dtype=xp.float64)


def roundings_inside(xp: Any, shifted: Array, powers: Array, total: Array, axis: int) -> Array:
    """How many roundings in float64 `total` counts for, given what `exponentials` returned.

    A power is off by an exponential's error and by that of its exponent, and the sum by the powers' mean and K more.
    """
    reach = xp.where(powers > 0, xp.abs(shifted), 0)
    return FUNCTION + sum_along(xp, powers * reach, axis) / total + shifted.shape[axis]


def sum_of_others(xp: Any, x: Array, axis: int) -> Array:
    """For each element, the sum of all others along `axis`, with nothing taken away: 1 - y would lose a y near 1."""
    rows = xp.moveaxis(x, axis, -1)
    others = xp.zeros(rows.shape)
    others[..., 1:] = xp.cumsum(rows[..., :-1], axis=-1)
    others[..., :-1] += xp.cumsum(rows[..., :0:-1], axis=-1)[..., ::-1]
    return xp.moveaxis(others, -1, axis)


def variance_through(xp: Any, y: Array, variance: Array, axis: int) -> Array:
    """What variance gives a softmax y along `axis`: the slopes are y_i ([i = j] - y_j)."""
    others = sum_of_others(xp, y, axis)
    return y * y * (others * others * variance + sum_of_others(xp, y * y * variance, axis))


@dataclass(frozen=True)
class _RowOperation(Operation):
    axis: int = 1

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """Every axis but its own."""
        return common_axes(numbered(outputs[0], but=front_axis(self, self.axis, outputs[0])), inputs, outputs)


@dataclass(frozen=True)
class _AlongAxis(_RowOperation):
    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensor of x. Raises ShapeError unless x is floating point, with one element or more along the axis."""
        self.require_inputs(inputs, "x")
        self.require_float(inputs[0], "x")
        axis = front_axis(self, self.axis, inputs[0])
        self.require(inputs[0].shape[axis] > 0, f"one element or more along axis {self.axis}", inputs[0])
        return (inputs[0],)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """Per element: compare, subtract, exponential, add, and one to normalise."""
        return Cost(5 * outputs[0].size, traffic(inputs, outputs))


@dataclass(frozen=True)
class _AlongAxisGradient(_RowOperation):
    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensor of dy. Raises ShapeError unless dy and y agree and have the axis."""
        self.require_inputs(inputs, "dy y")
        self.require_same(inputs)
        front_axis(self, self.axis, inputs[0])
        return (inputs[0],)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """Per element: two products or an exponential and a product, an addition, a subtraction."""
        return Cost(4 * outputs[0].size, traffic(inputs, outputs))


@dataclass(frozen=True)
class Softmax(_AlongAxis):
    """{ x } >> Softmax >> { y }

    x and y: any shape, floating point. y = exp(x - m) / sum exp(x - m) along `axis`, with m the largest there.
    """

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Raises OperatorError where all elements along the axis are -inf."""
        _, powers, total = exponentials(self, kernels, inputs[0], self.axis)
        outputs[0][...] = powers / total

    def gradient(self, wiring: Wiring) -> None:
        """{ dy, y } >> SoftmaxGradient >> { dx }"""
        if wiring.wants[0]:
            wiring.add(SoftmaxGradient(self.axis), [wiring.gradient(0), wiring.outputs[0]], [0])

    def bound(self, call: Call) -> tuple[Array, ...]:
        """An exponential, a sum and a quotient in float64, and the result's rounding."""
        xp, y = call.xp, call.outputs[0]
        shifted, powers, total = exponentials(self, call.kernels, call.inputs[0], self.axis)
        inside = roundings_inside(xp, shifted, powers, total, self.axis)
        inside = inside + FUNCTION + 1 + xp.where(powers > 0, xp.abs(shifted), 0)
        return (inside * WIDE * y + roundings(xp, 1, y, call.unit),)

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """By the slopes y_i ([i = j] - y_j)."""
        return (variance_through(call.xp, call.outputs[0], call.variances[0], self.axis),)


@dataclass(frozen=True)
class SoftmaxGradient(_AlongAxisGradient):
    """{ dy, y } >> SoftmaxGradient >> { dx }

    All of one shape. dx = y (dy - sum dy y), the sum along `axis` in float64.
    """

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """y (dy - sum dy y)."""
        xp = kernels.xp
        dy, y = inputs
        product = xp.multiply(dy, y, dtype=xp.float64)
        outputs[0][...] = y * (dy - sum_along(xp, product, self.axis))

    def bound(self, call: Call) -> tuple[Array, ...]:
        """Products, their sum, a difference and a product in float64, and the result's rounding."""
        xp, (dy, y) = call.xp, call.inputs
        inside = xp.abs(y) * (sum_along(xp, xp.abs(dy * y), self.axis) + xp.abs(dy))
        return ((y.shape[self.axis] + 2) * WIDE * inside + roundings(xp, 1, call.outputs[0], call.unit),)

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """The slopes are y_i ([i = j] - y_j) for dy, and [i = j] (dy_i - sum dy y) - y_i dy_j for y."""
        xp, (dy, y), variance = call.xp, call.inputs, call.variances[index]
        if index == 0:
            return (y * y * ((1 - y) ** 2 * variance + sum_of_others(xp, y * y * variance, self.axis)),)
        own = dy - sum_along(xp, dy * y, self.axis) - y * dy
        return (own * own * variance + y * y * sum_of_others(xp, dy * dy * variance, self.axis),)


@dataclass(frozen=True)
class LogSoftmax(_AlongAxis):
    """{ x } >> LogSoftmax >> { y }

    x and y: any shape, floating point. y = (x - m) - log sum exp(x - m) along `axis`, with m the largest there.
    An element of -inf beside a finite one gives -inf.
    """

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Raises OperatorError where all elements along the axis are -inf."""
        shifted, _, total = exponentials(self, kernels, inputs[0], self.axis)
        outputs[0][...] = shifted - kernels.xp.log(total)

    def bound(self, call: Call) -> tuple[Array, ...]:
        """A difference, a sum of exponentials, its logarithm, and a difference in float64; then the result's rounding.

        What the sum is off by relatively, its logarithm is off by absolutely.
        """
        xp, y = call.xp, call.outputs[0]
        shifted, powers, total = exponentials(self, call.kernels, call.inputs[0], self.axis)
        inside = roundings_inside(xp, shifted, powers, total, self.axis) + FUNCTION * xp.abs(xp.log(total))
        return ((inside + xp.abs(shifted) + xp.abs(y)) * WIDE + roundings(xp, 1, y, call.unit),)

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """The slopes are [i = j] - exp(y_j)."""
        xp, p, variance = call.xp, call.xp.exp(call.outputs[0]), call.variances[0]
        others = sum_of_others(xp, p, self.axis)
        return (others * others * variance + sum_of_others(xp, p * p * variance, self.axis),)

    def gradient(self, wiring: Wiring) -> None:
        """{ dy, y } >> LogSoftmaxGradient >> { dx }"""
        if wiring.wants[0]:
            wiring.add(LogSoftmaxGradient(self.axis), [wiring.gradient(0), wiring.outputs[0]], [0])


@dataclass(frozen=True)
class LogSoftmaxGradient(_AlongAxisGradient):
    """{ dy, y } >> LogSoftmaxGradient >> { dx }

    All of one shape. dx = dy - exp(y) sum dy, the sum along `axis` in float64.
    """

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """dy - exp(y) sum dy."""
        xp = kernels.xp
        dy, y = inputs
        # In C order, since the last bit of an exponential may depend on the stride.
        powers = xp.exp(xp.ascontiguousarray(y))
        outputs[0][...] = dy - powers * sum_along(xp, dy, self.axis)

    def bound(self, call: Call) -> tuple[Array, ...]:
        """An exponential in the dtype; a sum, a product and a difference in float64; then the result's rounding."""
        xp, (dy, y) = call.xp, call.inputs
        absolute, own = xp.exp(y) * sum_along(xp, xp.abs(dy), self.axis), xp.abs(sum_along(xp, dy, self.axis))
        inside = (y.shape[self.axis] + 2) * WIDE * (absolute + xp.abs(dy))
        power = roundings(xp, FUNCTION, xp.exp(y), call.unit)
        return (power * own + inside + roundings(xp, 1, call.outputs[0], call.unit),)

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """The slopes are [i = j] - exp(y_i) for dy, and -exp(y_i) sum dy for y."""
        xp, (dy, y), variance = call.xp, call.inputs, call.variances[index]
        p = xp.exp(y)
        if index == 1:
            return ((p * sum_along(xp, dy, self.axis)) ** 2 * variance,)
        return (xp.expm1(y) ** 2 * variance + p * p * sum_of_others(xp, variance, self.axis),)
