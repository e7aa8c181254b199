"""Activations, element by element, and their gradients, which read the output, so that each may work in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from purine_ref.operation import Array, Call, Cost, Kernels, Kinks, Operation, Wiring, traffic
from purine_ref.ops.elementwise import ElementwiseOperation
from purine_ref.ops.sharing import in_pieces
from purine_ref.rounding import FUNCTION, KAPPA, roundings
from purine_ref.tensor import Tensor


class _Activation(ElementwiseOperation):
    """{ x } >> Activation >> { y }, both of one shape; `flops` counts an exponential as one."""

    in_place = True
    flops: ClassVar[int] = 1

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensor of x. Raises ShapeError unless x is the one input and floating point."""
        self.require_inputs(inputs, "x")
        self.require_same_dtype(inputs)
        return (inputs[0],)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """`flops` per element."""
        return Cost(self.flops * outputs[0].size, traffic(inputs, outputs))


class _ActivationGradient(_Activation):
    """{ dy, y } >> ActivationGradient >> { dx }, all of one shape."""

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensor of dy. Raises ShapeError unless dy and y agree."""
        self.require_inputs(inputs, "dy y")
        self.require_same(inputs)
        return (inputs[0],)


@dataclass(frozen=True)
class ReLU(_Activation):
    """{ x } >> ReLU >> { y }

    x and y: any shape, floating point. y = x where x > 0, 0 elsewhere (also for -0.0); NaN passes through.
    """

    loops = frozenset({"relu"})

    @property
    def exact(self) -> bool:
        """Exact: it only selects."""
        return True

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Select."""
        # Not maximum(x, 0): which zero that gives for -0.0 depends on the vector unit.
        (x,), (y,) = inputs, outputs
        in_pieces(kernels, x, lambda part: kernels.relu(x[part], y[part]))

    def gradient(self, wiring: Wiring) -> None:
        """{ dy, y } >> ReLUGradient >> { dx }"""
        _wire_from_output(wiring, ReLUGradient())

    def bound(self, call: Call) -> tuple[Array, ...]:
        """Nothing is rounded."""
        return (call.xp.zeros(call.outputs[0].shape),)

    def noise(self, call: Call) -> tuple[Array | None, ...]:
        """None."""
        return (None,)

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """y is off by no more than x is; and by nothing where x is surely below 0."""
        xp, x, variance = call.xp, call.inputs[0], call.variances[0]
        return (xp.where(x <= -KAPPA * xp.sqrt(variance), 0, variance),)


@dataclass(frozen=True)
class ReLUGradient(_ActivationGradient):
    """{ dy, y } >> ReLUGradient >> { dx }

    All of one shape. dx = 0 where y <= 0, dy elsewhere: the derivative at 0 is 0, and where y is NaN dy passes.
    """

    loops = frozenset({"relu_gradient"})
    selectors = frozenset({1})

    @property
    def exact(self) -> bool:
        """Exact: it only selects."""
        return True

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Select by the sign of y."""
        (dy, y), (dx,) = inputs, outputs
        y = y if y.dtype == dy.dtype else y.astype(dy.dtype)  # bounds are in float64, by a float32 run's decisions
        in_pieces(kernels, dy, lambda part: kernels.relu_gradient(dy[part], y[part], dx[part]))

    def bound(self, call: Call) -> tuple[Array, ...]:
        """Nothing is rounded."""
        return (call.xp.zeros(call.outputs[0].shape),)

    def noise(self, call: Call) -> tuple[Array | None, ...]:
        """None."""
        return (None,)

    def slopes(self, call: Call, index: int) -> tuple[Array, ...]:
        """1 or 0; and dy, which appears or goes when y changes its sign."""
        dy, y = call.inputs
        return (call.xp.where(y <= 0, 0.0, 1.0) if index == 0 else dy,)

    def kinks(self, call: Call) -> Kinks:
        """Where y may be 0, or above it. A y whose error is 0 is what it is."""
        y, variance = call.inputs[1], call.variances[1]
        if variance is None:
            return Kinks(0, (None,))
        near = (y * y <= KAPPA**2 * variance) & (variance > 0)
        return Kinks(int(near.sum()), (near,))


@dataclass(frozen=True)
class Sigmoid(_Activation):
    """{ x } >> Sigmoid >> { y }

    x and y: any shape, floating point. y = 1 / (1 + exp(-x)), computed from exp(-|x|), which cannot overflow.
    """

    flops: ClassVar[int] = 4

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """1 / (1 + e) for x >= 0, e / (1 + e) for x < 0, with e = exp(-|x|)."""
        xp, x = kernels.xp, inputs[0]
        decay = xp.exp(-xp.abs(x))
        outputs[0][...] = xp.where(x < 0, decay, 1) / (1 + decay)

    def gradient(self, wiring: Wiring) -> None:
        """{ dy, y } >> SigmoidGradient >> { dx }"""
        _wire_from_output(wiring, SigmoidGradient())

    def bound(self, call: Call) -> tuple[Array, ...]:
        """An exponential, a sum, a quotient; the exponential's error is in numerator and denominator for x < 0."""
        return (roundings(call.xp, FUNCTION + 2, call.outputs[0], call.unit),)

    def slopes(self, call: Call, index: int) -> tuple[Array, ...]:
        """y (1 - y)."""
        y = call.outputs[0]
        return (y * (1 - y),)


@dataclass(frozen=True)
class SigmoidGradient(_ActivationGradient):
    """{ dy, y } >> SigmoidGradient >> { dx }

    All of one shape. dx = dy y (1 - y).
    """

    flops: ClassVar[int] = 3

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """dy y (1 - y)."""
        dy, y = inputs
        outputs[0][...] = dy * y * (1 - y)

    def bound(self, call: Call) -> tuple[Array, ...]:
        """A difference and two products."""
        return (roundings(call.xp, 3, call.outputs[0], call.unit),)

    def slopes(self, call: Call, index: int) -> tuple[Array, ...]:
        """y (1 - y) and dy (1 - 2 y)."""
        dy, y = call.inputs
        return (y * (1 - y) if index == 0 else dy * (1 - 2 * y),)


@dataclass(frozen=True)
class Tanh(_Activation):
    """{ x } >> Tanh >> { y }

    x and y: any shape, floating point. y = tanh(x).
    """

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """tanh(x)."""
        kernels.xp.tanh(inputs[0], out=outputs[0])

    def gradient(self, wiring: Wiring) -> None:
        """{ dy, y } >> TanhGradient >> { dx }"""
        _wire_from_output(wiring, TanhGradient())

    def bound(self, call: Call) -> tuple[Array, ...]:
        """One function."""
        return (roundings(call.xp, FUNCTION, call.outputs[0], call.unit),)

    def slopes(self, call: Call, index: int) -> tuple[Array, ...]:
        """1 - y^2."""
        y = call.outputs[0]
        return ((1 - y) * (1 + y),)


@dataclass(frozen=True)
class TanhGradient(_ActivationGradient):
    """{ dy, y } >> TanhGradient >> { dx }

    All of one shape. dx = dy (1 - y^2), computed as dy (1 - y) (1 + y), which keeps its digits where |y| is near 1.
    """

    flops: ClassVar[int] = 4

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """dy (1 - y) (1 + y)."""
        dy, y = inputs
        outputs[0][...] = dy * (1 - y) * (1 + y)

    def bound(self, call: Call) -> tuple[Array, ...]:
        """A difference, a sum, and two products."""
        return (roundings(call.xp, 4, call.outputs[0], call.unit),)

    def slopes(self, call: Call, index: int) -> tuple[Array, ...]:
        """1 - y^2 and -2 dy y."""
        dy, y = call.inputs
        return ((1 - y) * (1 + y) if index == 0 else -2 * dy * y,)


def _wire_from_output(wiring: Wiring, operation: Operation) -> None:
    if wiring.wants[0]:
        wiring.add(operation, [wiring.gradient(0), wiring.outputs[0]], [0])
