"""The base of the operations whose outputs are sums of terms: products of inputs, or shares of one input.

Their rounding errors follow from three things: how many roundings in a row a term goes through (`steps`), the sum of
the terms' absolute values, and the sum of their squares. An operation gives the three; the rules are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from purine_ref.operation import Array, Call, Operation
from purine_ref.rounding import WIDE, gamma, least, roundings, sum_variance, uniform


@dataclass(frozen=True, slots=True)
class Steps:
    """Roundings in a row: `inner` of terms and partial sums in the dtype, then `wide` in float64, then `final` ones."""

    inner: Any = 0
    wide: int = 0
    final: int = 0


class SummingOperation(Operation):
    """An operation of one output that is linear in each of its inputs but the selectors."""

    def steps(self, call: Call) -> Steps:
        """The roundings that a term goes through."""
        raise NotImplementedError(f"{self.name} must define steps(call)")

    def squared(self, call: Call, arrays: Sequence[Array]) -> Array:
        """The output with the terms' factors squared, for inputs that are `arrays`: the sum of squared terms."""
        raise NotImplementedError(f"{self.name} must define squared(call, arrays)")

    def bound(self, call: Call) -> tuple[Array, ...]:
        """gamma times the sum of the terms' absolute values, in the dtype and in float64; then the final roundings."""
        xp, steps = call.xp, self.steps(call)
        absolute = xp.abs(self.applied(call, [self._values(i, x, xp.abs) for i, x in enumerate(call.inputs)]))
        factor = gamma(steps.inner, call.unit) + gamma(steps.wide, WIDE)
        floor = xp.where(absolute == 0, 0.0, steps.inner * least(call.unit))
        return (factor * absolute + floor + roundings(xp, steps.final, call.outputs[0], call.unit),)

    def noise(self, call: Call) -> tuple[Array | None, ...]:
        """Those of the partial sums, in the dtype and in float64, and of the final roundings."""
        xp, steps, y = call.xp, self.steps(call), call.outputs[0]
        squares = self.squared(call, [self._values(i, x, xp.square) for i, x in enumerate(call.inputs)])
        variance = sum_variance(steps.inner, y, squares, call.unit) + sum_variance(steps.wide, y, squares, WIDE)
        underflow = xp.where(squares == 0, 0.0, steps.inner * uniform(least(call.unit)))
        return (variance + underflow + steps.final * uniform(roundings(xp, 1, y, call.unit)),)

    def applied(self, call: Call, arrays: Sequence[Array]) -> Array:
        """The output for inputs that are `arrays`, in float64."""
        output = call.xp.zeros(call.outputs[0].shape)
        self.compute(call.kernels, arrays, [output])
        return output

    def _values(self, index: int, array: Array, change: Any) -> Array:
        """`array` changed, unless it only selects."""
        return array if self.selects(index, array) else change(array)


class LinearOperation(SummingOperation):
    """An operation that is linear in its first input; the others, if any, select.

    Where it gives an element's multiple to several elements of the output (`copies`), their errors are the same, and a
    sum over all of them has `copies` times the variance that it would have from independent ones. So that much is given
    to each: right for what adds up all copies, as the gradients of biases and weights do, and too much for the rest.
    """

    def copies(self, call: Call) -> int:
        """How many elements of the output an element of the input goes to."""
        return 1

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """Squared factors times the variance, once for each copy; for a selector, what lies where it points to."""
        variance = call.variances[index] if index == 0 else call.xp.square(call.inputs[0]) * call.variances[index]
        return (self.copies(call) * self.squared(call, [variance, *call.inputs[1:]]),)
