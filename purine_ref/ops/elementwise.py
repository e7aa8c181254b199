"""The base of the operations that compute each element of their outputs from the elements at the same place."""

from __future__ import annotations

from collections.abc import Sequence

from purine_ref.operation import Axis, Operation, elementwise_axes
from purine_ref.tensor import Tensor


class ElementwiseOperation(Operation):
    """An operation whose tensors are all of one shape, but for those of shape () that every element needs."""

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """Every axis."""
        return elementwise_axes(inputs, outputs)
