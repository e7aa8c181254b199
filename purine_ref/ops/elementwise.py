"""The base of the operations that compute each element of their outputs from the elements at the same place."""

from __future__ import annotations

from collections.abc import Sequence

from purine_ref.operation import Array, Axis, Call, Operation, elementwise_axes
from purine_ref.tensor import Tensor


class ElementwiseOperation(Operation):
    """An operation whose tensors are all of one shape, but for those of shape () that every element needs."""

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """Every axis."""
        return elementwise_axes(inputs, outputs)

    def slopes(self, call: Call, index: int) -> tuple[Array, ...]:
        """The derivative of each output with respect to input `index`, element by element: arrays or numbers."""
        raise NotImplementedError(f"{self.name} must define slopes(call, index), or spread(call, index)")

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """Squared slopes times the variance."""
        slopes = zip(self.slopes(call, index), call.outputs, strict=True)
        return tuple(slope * slope * call.variances[index] + call.xp.zeros(y.shape) for slope, y in slopes)
