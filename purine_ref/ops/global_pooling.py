"""The average over the whole image, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from purine_ref.operation import Array, Axis, Call, Cost, Kernels, Operation, Wiring, traffic
from purine_ref.ops.attributes import assign
from purine_ref.ops.axes import shape_of_part
from purine_ref.ops.exactness import divided_quantum
from purine_ref.ops.summing import LinearOperation, Steps
from purine_ref.ops.windows import PlaneOperation
from purine_ref.tensor import Tensor, as_shape


@dataclass(frozen=True)
class GlobalAveragePool2d(PlaneOperation, LinearOperation):
    """{ x } >> GlobalAveragePool2d >> { y }

    Shapes: x (N, C, H, W), y (N, C, 1, 1).
    Formula: y = sum of the plane's elements, accumulated in float64, / (H * W).

    Raises ShapeError unless x has four axes and a plane at least one element.
    """

    @property
    def exact(self) -> bool:
        """When H * W is a power of two, which `quantum` checks."""
        return True

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """y, of x's dtype. Raises ShapeError where the class says."""
        self.require_inputs(inputs, "x")
        self.require_same_dtype(inputs)
        x = inputs[0].shape
        _plane(self, x)
        return (Tensor((*x[:2], 1, 1), inputs[0].dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Each plane's average."""
        (x,), (y,) = inputs, outputs
        rows = kernels.xp.ascontiguousarray(x)  # strides would choose the order of the sum
        y[...] = rows.sum(axis=(2, 3), dtype=kernels.xp.float64, keepdims=True) / _plane(self, x.shape)

    def gradient(self, wiring: Wiring) -> None:
        """GlobalAveragePool2dGradient."""
        if wiring.wants[0]:
            wiring.add(GlobalAveragePool2dGradient(wiring.inputs[0].tensor.shape), [wiring.gradient(0)], [0])

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """For each plane, an addition per element but the first, and a division."""
        return Cost(inputs[0].size, traffic(inputs, outputs))

    def steps(self, call: Call) -> Steps:
        """The additions and the division in float64, and the average's rounding."""
        return Steps(wide=_plane(self, call.inputs[0].shape) + 1, final=1)

    def squared(self, call: Call, arrays: Sequence[Array]) -> Array:
        """The factors are all 1 / (H * W)."""
        return self.applied(call, arrays) / _plane(self, call.inputs[0].shape)

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """Lower by the exponent of H * W. Raises OperatorError when that is not a power of two."""
        return (divided_quantum(self, exponents[0], _plane(self, inputs[0].shape), "number of averaged elements"),)


@dataclass(frozen=True)
class GlobalAveragePool2dGradient(PlaneOperation, LinearOperation):
    """{ dy } >> GlobalAveragePool2dGradient >> { dx }

    Shapes: dy (N, C, 1, 1), dx = `shape` = (N, C, H, W).
    Formula: dx = dy / (H * W) at every element of the plane.

    Raises ShapeError unless dy is what `GlobalAveragePool2d` makes of `shape`.
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        assign(self, shape=as_shape(self.shape))

    @property
    def exact(self) -> bool:
        """When H * W is a power of two, which `quantum` checks."""
        return True

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """dx, of dy's dtype. Raises ShapeError where the class says."""
        self.require_inputs(inputs, "dy")
        self.require_same_dtype(inputs)
        _plane(self, self.shape)
        expected = (*self.shape[:2], 1, 1)
        self.require(inputs[0].shape == expected, f"dy of shape {expected}", inputs[0].shape)
        return (Tensor(self.shape, inputs[0].dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Spread dy over the plane."""
        (dy,), (dx,) = inputs, outputs
        dx[...] = dy / _plane(self, dx.shape)

    def part(self, axis: Axis, start: int, stop: int) -> Operation:
        """To the part of `shape`."""
        return replace(self, shape=shape_of_part(self.shape, axis.outputs[0], start, stop))

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """A division per element of dy."""
        return Cost(inputs[0].size, traffic(inputs, outputs))

    def steps(self, call: Call) -> Steps:
        """The division."""
        return Steps(final=1)

    def squared(self, call: Call, arrays: Sequence[Array]) -> Array:
        """The factors are all 1 / (H * W)."""
        return self.applied(call, arrays) / _plane(self, self.shape)

    def copies(self, call: Call) -> int:
        """One for each element of the plane."""
        return _plane(self, self.shape)

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """Lower by the exponent of H * W. Raises OperatorError when that is not a power of two."""
        return (divided_quantum(self, exponents[0], _plane(self, self.shape), "number of averaged elements"),)


def _plane(op: Operation, x: tuple[int, ...]) -> int:
    """H * W; raises ShapeError when x has no image, or one without elements."""
    op.require(len(x) == 4, "x of shape (N, C, H, W)", x)
    op.require(min(x[2:]) >= 1, "an image of one element or more", x)
    return math.prod(x[2:])
