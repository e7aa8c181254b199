"""A bias and a ReLU as one operation, and both of their gradients as one: the same bits in fewer passes over memory.

Each takes the rules of its rounding errors from the operations that it stands for. `fusing.fuse` puts them into a
graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from purine_ref.operation import Array, Axis, Call, Cost, Kernels, Kinks, Operation, Wiring, traffic
from purine_ref.ops.activation import ReLUGradient
from purine_ref.ops.attributes import assign, integer
from purine_ref.ops.axes import front_axis
from purine_ref.ops.linear import Bias, BiasGradient, by_channels
from purine_ref.ops.sharing import in_pieces, summed_in_pieces
from purine_ref.rounding import KAPPA
from purine_ref.tensor import Tensor


@dataclass(frozen=True)
class BiasReLU(Bias):
    """{ x, bias } >> BiasReLU >> { y }

    Shapes: x of any shape, bias (C,) where C is the length of x's `axis`, y as x.
    Formula: y = v where v > 0, 0 elsewhere, with v[..., c, ...] = x[..., c, ...] + bias[c]; NaN passes through.

    Raises ShapeError unless x has that axis and bias its length.
    """

    loops = frozenset({"bias_relu"})

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Add and select, in one pass."""
        (x, bias), (y,) = inputs, outputs
        x, y = by_channels(kernels, self.axis, x), by_channels(kernels, self.axis, y)
        in_pieces(kernels, x, lambda part: kernels.bias_relu(x[part], bias, y[part]))

    def gradient(self, wiring: Wiring) -> None:
        """`BiasReLUGradient` for both; `ReLUGradient` where the bias needs none."""
        if wiring.wants[1]:
            into = [0 if wiring.wants[0] else None, 1]
            wiring.add(BiasReLUGradient(self.axis), [wiring.gradient(0), wiring.outputs[0]], into)
        elif wiring.wants[0]:
            wiring.add(ReLUGradient(), [wiring.gradient(0), wiring.outputs[0]], [0])

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """An addition and a comparison per element."""
        return Cost(2 * outputs[0].size, traffic(inputs, outputs))

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """That of x, or of the bias wherever it is added; nothing where the sum is surely below 0."""
        xp, bias = call.xp, Bias(self.axis)
        total, value = xp.zeros(call.outputs[0].shape), xp.zeros(call.outputs[0].shape)
        arrays = [xp.zeros(x.shape) if v is None else v for x, v in zip(call.inputs, call.variances, strict=True)]
        bias.compute(call.kernels, arrays, [total])
        bias.compute(call.kernels, call.inputs, [value])
        (own,) = bias.spread(call, index)
        return (xp.where(value <= -KAPPA * xp.sqrt(total), 0, own),)


@dataclass(frozen=True)
class BiasReLUGradient(Operation):
    """{ dy, y } >> BiasReLUGradient >> { dx, dbias }

    Shapes: dy, y and dx of one shape, dbias (C,) where C is the length of their `axis`.
    Formula: dx = 0 where y <= 0, dy elsewhere; dbias[c] = sum over all other axes of dx[..., c, ...], accumulated in
    float64. The derivative at 0 is 0, and where y is NaN dy passes.

    Raises ShapeError unless dy and y agree and have that axis.
    """

    axis: int = 1

    loops = frozenset({"relu_bias_gradient"})
    in_place = True
    selectors = frozenset({1})

    def __post_init__(self) -> None:
        assign(self, axis=integer(self.axis, f"{self.name} axis"))

    @property
    def exact(self) -> bool:
        """A selection, and sums."""
        return True

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """dx and dbias, of dy's dtype. Raises ShapeError where the class says."""
        self.require_inputs(inputs, "dy y")
        self.require_same(inputs)
        dy = inputs[0]
        return (Tensor(dy.shape, dy.dtype), Tensor((dy.shape[front_axis(self, self.axis, dy)],), dy.dtype))

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Select by the sign of y, and sum up, in one pass."""
        (dy, y), (dx, dbias) = inputs, outputs
        y = y if y.dtype == dy.dtype else y.astype(dy.dtype)  # bounds are in float64, by a float32 run's decisions
        dy, y, dx = (by_channels(kernels, self.axis, array) for array in (dy, y, dx))

        def work(part: slice, total: Array) -> None:
            """One piece, and its sums."""
            kernels.relu_bias_gradient(dy[part], y[part], dx[part], total)

        summed_in_pieces(kernels, dy, dbias, work)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """A comparison and an addition per element."""
        return Cost(2 * inputs[0].size, traffic(inputs, outputs))

    def bound(self, call: Call) -> tuple[Array, ...]:
        """Nothing is rounded but the sums."""
        return (call.xp.zeros(call.outputs[0].shape), *self._sum().bound(self._sums(call)))

    def noise(self, call: Call) -> tuple[Array | None, ...]:
        """None but that of the sums."""
        return (None, *self._sum().noise(self._sums(call)))

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """That of the selected elements, and their sums'."""
        (dx,) = ReLUGradient().spread(self._selection(call), index)
        return (dx, *self._sum().spread(replace(self._sums(call), variances=[dx]), 0))

    def kinks(self, call: Call) -> Kinks:
        """Where y may be 0, or above it; a sum jumps where one of its elements does."""
        kinks = ReLUGradient().kinks(self._selection(call))
        (near,) = kinks.jumps
        if near is None:
            return Kinks(0, (None, None))
        others = tuple(axis for axis in range(near.ndim) if axis != self.axis % near.ndim)
        return Kinks(kinks.count, (near, near.any(axis=others)))

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """Every axis of dy; dbias is a sum over all but its own."""
        return tuple(
            Axis(axis.name, axis.extent, axis.inputs * 2, axis.inputs + axis.outputs)
            for axis in self._sum().axes(inputs[:1], outputs[1:])
        )

    def _sum(self) -> BiasGradient:
        return BiasGradient(self.axis)

    def _selection(self, call: Call) -> Call:
        """The call as one of `ReLUGradient`."""
        return replace(call, outputs=call.outputs[:1])

    def _sums(self, call: Call) -> Call:
        """The call as one of `BiasGradient`, whose input is without errors."""
        return replace(call, inputs=call.outputs[:1], outputs=call.outputs[1:], variances=[None])
