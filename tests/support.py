"""How the tests call one operation on plain arrays, without a graph: `apply` forward, `backward` by its gradient rule.

Outputs are handed over filled with 7, so that an element which is never written shows. Inputs are compared, bit for
bit, after every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from purine_ref.devices.cpu import CpuKernels
from purine_ref.operation import Operation, RunKey
from purine_ref.tensor import Location, Tensor

JUNK = 7
"""What output buffers hold before an operation writes them."""


def describe(array: Any) -> Tensor:
    """The `Tensor` of a numpy array or scalar."""
    return Tensor(np.shape(array), np.asarray(array).dtype.name)


def junk(tensor: Tensor) -> np.ndarray:
    """A buffer for `tensor`, filled with `JUNK`."""
    return np.full(tensor.shape, JUNK, tensor.dtype)


def apply(operation: Operation, *arrays: Any, seed: int = 0, iteration: int = 0) -> list[np.ndarray]:
    """The outputs of `operation` on `arrays`, by the CPU kernels; asserts that the inputs are bit-unchanged."""
    inputs = [np.asarray(array) for array in arrays]
    before = [array.tobytes() for array in inputs]
    outputs = [junk(tensor) for tensor in operation.infer([describe(array) for array in inputs])]
    operation.compute(CpuKernels(RunKey(seed, iteration)), inputs, outputs)
    for index, (array, bits) in enumerate(zip(inputs, before, strict=True)):
        assert array.tobytes() == bits, f"{operation.name} changed its input {index}"
    return outputs


class ArrayBlob:
    """A blob that holds an array: what a gradient rule is given by `backward`."""

    def __init__(self, array: np.ndarray, location: Location = Location()) -> None:
        self.array = array
        self.tensor = describe(array).at(location)


class ArrayWiring:
    """A `Wiring` that computes at once. `gradients[i]` adds up what was wired into the gradient of input i.

    `added` lists the operations of the rule, in order.
    """

    def __init__(self, inputs: Sequence[Any], outputs: Sequence[Any], arrived: Sequence[Any], wants: Sequence[bool]):
        self.inputs = [ArrayBlob(np.asarray(a)) for a in inputs]
        self.outputs = [ArrayBlob(a) for a in outputs]
        self.arrived = arrived
        self.wants = wants
        self.gradients: list[np.ndarray | None] = [None] * len(self.inputs)
        self.added: list[Operation] = []

    def has_gradient(self, output: int) -> bool:
        """Whether a gradient arrived at that output."""
        return self.arrived[output] is not None

    def gradient(self, output: int) -> ArrayBlob:
        """The gradient that arrived, or zeros."""
        zeros = np.zeros_like(self.outputs[output].array)
        return ArrayBlob(np.asarray(self.arrived[output]) if self.has_gradient(output) else zeros)

    def add(self, operation: Operation, inputs: Sequence[Any], into: Sequence[int | None]) -> tuple[ArrayBlob, ...]:
        """Compute `operation` now, and add its outputs to the gradients that `into` names."""
        self.added.append(operation)
        results = apply(operation, *[blob.array for blob in inputs])
        for index, result in zip(into, results, strict=True):
            if index is not None:
                self._arrive(index, result)
        return tuple(ArrayBlob(result) for result in results)

    def _arrive(self, index: int, result: np.ndarray) -> None:
        assert result.shape == self.inputs[index].array.shape
        assert result.dtype == self.inputs[index].array.dtype
        held = self.gradients[index]
        self.gradients[index] = result if held is None else held + result


def backward(
    operation: Operation,
    inputs: Sequence[Any],
    arrived: Sequence[Any],
    wants: Sequence[bool] | None = None,
    seed: int = 0,
    iteration: int = 0,
) -> list[np.ndarray | None]:
    """The gradient of every wanted input, None for the others, by the gradient rule of `operation`.

    `arrived` holds the gradient of every output, None where none arrived. Unless given, `wants` is every
    floating-point input that the operation says is differentiable.
    """
    outputs = apply(operation, *inputs, seed=seed, iteration=iteration)
    if wants is None:
        wants = [describe(a).is_float and operation.differentiable(i) for i, a in enumerate(inputs)]
    wiring = ArrayWiring(inputs, outputs, arrived, wants)
    operation.gradient(wiring)
    for wanted, gradient in zip(wants, wiring.gradients, strict=True):
        assert wanted == (gradient is not None), f"{operation.name} must give the wanted gradients and no other"
    return wiring.gradients
