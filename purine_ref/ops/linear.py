"""The inner product, the bias, and their gradients. `Linear` flattens what follows the batch axis in C, H, W order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from purine_ref.operation import Array, Axis, Call, Cost, Kernels, Operation, Wiring, traffic
from purine_ref.ops.attributes import assign, integer
from purine_ref.ops.axes import at, front_axis, shape_of_part
from purine_ref.ops.product import ProductOperation
from purine_ref.ops.shape import Identity
from purine_ref.ops.sharing import MOST, in_pieces, summed_in_pieces
from purine_ref.ops.summing import LinearOperation, Steps
from purine_ref.rounding import roundings
from purine_ref.tensor import Tensor, as_shape


@dataclass(frozen=True)
class Linear(ProductOperation):
    """{ x, weight } >> Linear >> { y }

    Shapes: x (N, ...), weight (out, in) where in is the product of x's axes after the first, y (N, out).
    Formula: y[n,o] = sum over i of x[n,i] * weight[o,i], with x flattened in row-major (C, H, W) order.

    Raises ShapeError unless weight has two axes and its second is what x flattens to.
    """

    equation = "ni,oi->no"

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """y, of x's dtype. Raises ShapeError where the class says."""
        self.require_inputs(inputs, "x weight")
        self.require_same_dtype(inputs)
        x, weight = inputs
        return (Tensor(_output_shape(self, x.shape, weight.shape), x.dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """x times the transposed weight."""
        (x, weight), (y,) = inputs, outputs
        _product(kernels, _flat(kernels, x), _rows(kernels, weight).T, y)

    def gradient(self, wiring: Wiring) -> None:
        """LinearDataGradient for x, LinearWeightGradient for weight."""
        x, weight = wiring.inputs
        if wiring.wants[0]:
            wiring.add(LinearDataGradient(x.tensor.shape), [wiring.gradient(0), weight], [0])
        if wiring.wants[1]:
            wiring.add(LinearWeightGradient(), [wiring.gradient(0), x], [1])

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """A multiply-add (2 FLOPs) per weight and sample."""
        return _cost(inputs[0], inputs[1], inputs, outputs)

    def steps(self, call: Call) -> Steps:
        """One product and its additions."""
        return Steps(inner=call.inputs[1].shape[1])


@dataclass(frozen=True)
class LinearDataGradient(ProductOperation):
    """{ dy, weight } >> LinearDataGradient >> { dx }

    Shapes: dy (N, out), weight (out, in), dx = `shape` = (N, ...).
    Formula: dx[n,i] = sum over o of dy[n,o] * weight[o,i], in the shape of x.

    Raises ShapeError unless dy is what `Linear` makes of `shape` and weight.
    """

    shape: tuple[int, ...]

    equation = "no,oi->ni"

    def __post_init__(self) -> None:
        assign(self, shape=as_shape(self.shape))

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """dx, of dy's dtype. Raises ShapeError where the class says."""
        self.require_inputs(inputs, "dy weight")
        self.require_same_dtype(inputs)
        dy, weight = inputs
        expected = _output_shape(self, self.shape, weight.shape)
        self.require(dy.shape == expected, f"dy of shape {expected}", dy.shape)
        return (Tensor(self.shape, dy.dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """dy times weight."""
        (dy, weight), (dx,) = inputs, outputs
        _product(kernels, _rows(kernels, dy), _rows(kernels, weight), dx)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """As many FLOPs as `Linear`."""
        return _cost(inputs[0], inputs[1], inputs, outputs)

    def steps(self, call: Call) -> Steps:
        """One product and its additions."""
        return Steps(inner=call.inputs[1].shape[0])

    def part(self, axis: Axis, start: int, stop: int) -> Operation:
        """To the part of `shape`."""
        return replace(self, shape=shape_of_part(self.shape, axis.outputs[0], start, stop))


@dataclass(frozen=True)
class LinearWeightGradient(ProductOperation):
    """{ dy, x } >> LinearWeightGradient >> { dweight }

    Shapes: dy (N, out), x (N, ...), dweight (out, in).
    Formula: dweight[o,i] = sum over n of dy[n,o] * x[n,i]; zero for an empty batch.

    Raises ShapeError unless dy has two axes and as many samples as x.
    """

    equation = "no,ni->oi"

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """dweight, of dy's dtype. Raises ShapeError where the class says."""
        self.require_inputs(inputs, "dy x")
        self.require_same_dtype(inputs)
        dy, x = inputs
        self.require(len(dy.shape) == 2, "dy of shape (N, out)", dy.shape)
        weight = (dy.shape[1], math.prod(x.shape[1:]))
        expected = _output_shape(self, x.shape, weight)
        self.require(dy.shape == expected, f"dy of shape {expected}", dy.shape)
        return (Tensor(weight, dy.dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """The transposed dy times x."""
        (dy, x), (dweight,) = inputs, outputs
        _product(kernels, _rows(kernels, dy).T, _flat(kernels, x), dweight)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """As many FLOPs as `Linear`."""
        return _cost(inputs[1], outputs[0], inputs, outputs)

    def steps(self, call: Call) -> Steps:
        """One product and its additions."""
        return Steps(inner=call.inputs[0].shape[0])


@dataclass(frozen=True)
class Bias(Operation):
    """{ x, bias } >> Bias >> { y }

    Shapes: x of any shape, bias (C,) where C is the length of x's `axis`, y as x.
    Formula: y[..., c, ...] = x[..., c, ...] + bias[c].

    Raises ShapeError unless x has that axis and bias its length.
    """

    axis: int = 1

    loops = frozenset({"add_bias"})
    in_place = True

    def __post_init__(self) -> None:
        assign(self, axis=_axis(self))

    @property
    def exact(self) -> bool:
        """Sums only."""
        return True

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """y, of x's dtype. Raises ShapeError where the class says."""
        self.require_inputs(inputs, "x bias")
        self.require_same_dtype(inputs)
        x, bias = inputs
        axis = front_axis(self, self.axis, x)
        length = (x.shape[axis],)
        self.require(bias.shape == length, f"bias of shape {length} for axis {self.axis} of x {x.shape}", bias.shape)
        return (Tensor(x.shape, x.dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """x plus bias, spread along all other axes."""
        (x, bias), (y,) = inputs, outputs
        x, y = by_channels(kernels, self.axis, x), by_channels(kernels, self.axis, y)
        in_pieces(kernels, x, lambda part: kernels.add_bias(x[part], bias, y[part]))

    def gradient(self, wiring: Wiring) -> None:
        """The gradient of x is dy itself; `BiasGradient` for bias."""
        if wiring.wants[0]:
            wiring.add(Identity(), [wiring.gradient(0)], [0])
        if wiring.wants[1]:
            wiring.add(BiasGradient(self.axis), [wiring.gradient(0)], [1])

    def bound(self, call: Call) -> tuple[Array, ...]:
        """One addition."""
        return (roundings(call.xp, 1, call.outputs[0], call.unit),)

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """That of x, or of the bias wherever it is added."""
        arrays = [call.xp.zeros(x.shape) for x in call.inputs]
        arrays[index] = call.variances[index]
        y = call.xp.zeros(call.outputs[0].shape)
        self.compute(call.kernels, arrays, [y])
        return (y,)

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """Every axis of x; the bias lies along its own."""
        return tuple(Axis(name, length, at(x, bias), at(x)) for name, length, x, bias in _ends(self, inputs[0]))


@dataclass(frozen=True)
class BiasGradient(LinearOperation):
    """{ dy } >> BiasGradient >> { dbias }

    Shapes: dy of any shape, dbias (C,) where C is the length of dy's `axis`.
    Formula: dbias[c] = sum over all other axes of dy[..., c, ...], accumulated in float64, in the order of the loop
    `bias_gradient` with the axis moved to be the second; of a large dy in some ranges of images, and then over these.

    Raises ShapeError unless dy has that axis.
    """

    axis: int = 1

    loops = frozenset({"bias_gradient"})

    def __post_init__(self) -> None:
        assign(self, axis=_axis(self))

    @property
    def exact(self) -> bool:
        """Sums only."""
        return True

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """dbias, of dy's dtype. Raises ShapeError where the class says."""
        self.require_inputs(inputs, "dy")
        self.require_same_dtype(inputs)
        (dy,) = inputs
        return (Tensor((dy.shape[front_axis(self, self.axis, dy)],), dy.dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Sum over all axes but one."""
        (dy,), (dbias,) = inputs, outputs
        dy = by_channels(kernels, self.axis, dy)
        summed_in_pieces(kernels, dy, dbias, lambda part, total: kernels.bias_gradient(dy[part], total))

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """An addition per element of dy."""
        return Cost(inputs[0].size, traffic(inputs, outputs))

    def steps(self, call: Call) -> Steps:
        """The additions in float64, and the sum's rounding."""
        return Steps(wide=call.inputs[0].size // max(call.outputs[0].size, 1) + MOST, final=1)

    def squared(self, call: Call, arrays: Sequence[Array]) -> Array:
        """The factors are 1."""
        return self.applied(call, arrays)

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """Every axis of dy; all but that of the bias are summed over."""
        return tuple(Axis(name, length, at(dy), at(bias)) for name, length, dy, bias in _ends(self, inputs[0]))


def _output_shape(op: Operation, x: tuple[int, ...], weight: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of y = Linear(x, weight); raises ShapeError for whatever does not fit."""
    op.require(len(x) >= 2, "x of shape (N, ...) with two axes or more", x)
    op.require(len(weight) == 2, "weight of shape (out, in)", weight)
    flat = math.prod(x[1:])
    op.require(weight[1] == flat, f"weight of shape (out, {flat}) for x {x}", weight)
    return (x[0], weight[0])


def _rows(kernels: Kernels, array: Array) -> Array:
    """The array in C order, a copy only if it is not: strides would choose the order of sums, and so their bits."""
    return kernels.xp.ascontiguousarray(array)


def _product(kernels: Kernels, a: Array, b: Array, out: Array) -> None:
    """a times b into `out`, which is flattened in C order after its first axis."""
    if out.ndim == 2 and out.flags.c_contiguous:
        kernels.xp.matmul(a, b, out=out)
    else:
        out[...] = kernels.xp.matmul(a, b).reshape(out.shape)


def _flat(kernels: Kernels, x: Array) -> Array:
    """(N, ...) as (N, in); -1 would be ambiguous for an empty batch."""
    loop = getattr(kernels, "flatten", None)
    if loop is not None and x.ndim == 4 and not x.flags.c_contiguous:
        rows: Array = kernels.scratch("rows", (x.shape[0], math.prod(x.shape[1:])), x.dtype)
        loop(x, rows)
        return rows
    return _rows(kernels, x).reshape(x.shape[0], math.prod(x.shape[1:]))


def _cost(x: Tensor, weight: Tensor, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
    return Cost(2 * x.shape[0] * weight.size, traffic(inputs, outputs))


def by_channels(kernels: Kernels, axis: int, array: Array) -> Array:
    """The array seen with the axis of the bias as its second, as the loops have it."""
    if array.ndim == 1:
        return array[None]
    return array if axis == 1 else kernels.xp.moveaxis(array, axis, 1)


def _axis(op: Bias | BiasGradient) -> int:
    """The axis as a Python integer; negative ones count from the last axis."""
    return integer(op.axis, f"{op.name} axis")


def _ends(op: Bias | BiasGradient, x: Tensor) -> list[tuple[str, int, int, int | None]]:
    """For each axis of x its name, its length, itself, and the axis of the bias that it is."""
    own = front_axis(op, op.axis, x)
    return [(f"axis{axis}", length, axis, 0 if axis == own else None) for axis, length in enumerate(x.shape)]
