"""A fault to plant: an operation whose float results are all too large by one factor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from purine_ref.graph import Graph, Op
from purine_ref.operation import Call, Kinks, Operation
from purine_ref.tensor import Tensor


@dataclass(frozen=True)
class TooLarge(Operation):
    """`operation` with its float outputs times `factor`. It moves no view: what it is for must be computed."""

    operation: Operation
    factor: float

    @property
    def selectors(self) -> frozenset[int]:  # type: ignore[override]
        return self.operation.selectors

    @property
    def in_place(self) -> bool:  # type: ignore[override]
        return self.operation.in_place

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return self.operation.infer(inputs)

    def compute(self, kernels: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.operation.compute(kernels, inputs, outputs)
        for y in outputs:
            if y.dtype.kind == "f":
                y *= self.factor

    def bound(self, call: Call) -> tuple[Any, ...]:
        return self.operation.bound(call)

    def noise(self, call: Call) -> tuple[Any, ...]:
        return self.operation.noise(call)

    def spread(self, call: Call, index: int) -> tuple[Any, ...]:
        return self.operation.spread(call, index)

    def kinks(self, call: Call) -> Kinks:
        return self.operation.kinks(call)


def plant(graph: Graph, op: Op, error: float) -> None:
    """Make the results of `op` too large by the relative `error`."""
    op.operation = TooLarge(op.operation, 1 + error)
