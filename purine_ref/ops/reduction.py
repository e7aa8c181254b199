"""Sums and means over axes of one tensor, and the broadcast that is their gradient.

Order of a sum: the reduced axes are brought to the end, and their elements are added in C order, pairwise in float64
(a float32 running sum of 2^20 times 0.1 is off by 4), then cast to the dtype of the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from purine_ref.operation import Array, Axis, Call, Cost, Kernels, Operation, Wiring, traffic
from purine_ref.ops.arithmetic import Scale
from purine_ref.ops.attributes import assign, integer, number
from purine_ref.ops.axes import MeanAxis, at, front_axes, mean_axis, shape_of_part
from purine_ref.ops.exactness import divided_quantum, keeps_exact, scaled_quantum
from purine_ref.ops.summing import LinearOperation, Steps
from purine_ref.rounding import multiple
from purine_ref.tensor import Tensor, as_shape


def sum_over(xp: Any, x: Array, axes: Sequence[int]) -> Array:
    """The float64 sums of `x` over `axes`, which count from the front; the other axes stay, in their order."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    shape = tuple(x.shape[axis] for axis in kept)
    reduced = math.prod(x.shape[axis] for axis in axes)
    rows = xp.ascontiguousarray(x.transpose(*kept, *axes)).reshape(math.prod(shape), reduced)
    return rows.sum(axis=1, dtype=xp.float64).reshape(shape)


@dataclass(frozen=True)
class _Reduction(LinearOperation):
    over: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.over is not None:
            assign(self, over=as_shape(self.over))

    @property
    def exact(self) -> bool:
        """Exact; a mean of a number of elements that is no power of two is refused by `quantum`."""
        return True

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The axes that stay. Raises ShapeError unless x is floating point and has the axes, each named once."""
        self.require_inputs(inputs, "x")
        self.require_float(inputs[0], "x")
        axes = front_axes(self, self.over, inputs[0])
        shape = tuple(length for axis, length in enumerate(inputs[0].shape) if axis not in axes)
        return (Tensor(shape, inputs[0].dtype),)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """One addition per element of x."""
        return Cost(inputs[0].size, traffic(inputs, outputs))

    def steps(self, call: Call) -> Steps:
        """The additions in float64, a division perhaps, and the result's rounding."""
        return Steps(wide=call.inputs[0].size // max(call.outputs[0].size, 1) + 1, final=1)

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """Every axis of x; those that do not stay are summed over."""
        places = _places(len(inputs[0].shape), front_axes(self, self.over, inputs[0]))
        return tuple(Axis(f"axis{x}", inputs[0].shape[x], at(x), at(y)) for x, y in enumerate(places))

    def _sum(self, kernels: Kernels, x: Array) -> Array:
        return sum_over(kernels.xp, x, self._reduced(x.ndim))

    def _reduced(self, count: int) -> Sequence[int]:
        """Which of `count` axes are reduced, in ascending order."""
        return range(count) if self.over is None else sorted(axis % count for axis in self.over)

    def _broadcast(self, wiring: Wiring, factor: float) -> None:
        if wiring.wants[0]:
            x = wiring.inputs[0].tensor
            operation = BroadcastTo(x.shape, front_axes(self, self.over, x), factor)
            wiring.add(operation, [wiring.gradient(0)], [0])


@dataclass(frozen=True)
class ReduceSum(_Reduction):
    """{ x } >> ReduceSum >> { y }

    x: any shape, floating point; y: x's shape without the axes in `over`, None for all of them. y = sum of x over them.
    """

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Sum in float64."""
        outputs[0][...] = self._sum(kernels, inputs[0])

    def squared(self, call: Call, arrays: Sequence[Array]) -> Array:
        """The factors are 1."""
        return self.applied(call, arrays)

    def gradient(self, wiring: Wiring) -> None:
        """{ dy } >> BroadcastTo >> { dx }"""
        self._broadcast(wiring, 1.0)


@dataclass(frozen=True)
class ReduceMean(_Reduction):
    """{ x } >> ReduceMean >> { y }

    x: any shape, floating point; y: x's shape without the axes in `over`, None for all of them. y = sum of x over them,
    divided by the number of elements in each sum; 0 where that number is 0. `count` is that number where x is only a
    part of what the mean is of.
    """

    count: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count is not None:
            assign(self, count=integer(self.count, f"{self.name} count", 1))

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Sum in float64, then divide."""
        x, y = inputs[0], outputs[0]
        y[...] = self._sum(kernels, x) / self._terms(x.shape)

    def gradient(self, wiring: Wiring) -> None:
        """{ dy } >> BroadcastTo(factor = 1 / number) >> { dx }"""
        self._broadcast(wiring, 1 / self._terms(wiring.inputs[0].tensor.shape))

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """Every axis of x; parts along those that do not stay are divided by the number of the whole."""
        axes, terms = super().axes(inputs, outputs), self._terms(inputs[0].shape)
        return tuple(mean_axis(axis, terms) if axis.outputs == at(None) else axis for axis in axes)

    def part(self, axis: Axis, start: int, stop: int) -> Operation:
        """Divided by the number of the whole."""
        return replace(self, count=axis.divisor) if isinstance(axis, MeanAxis) else self

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """That of x, divided by the number."""
        terms = self._terms(inputs[0].shape)
        return (divided_quantum(self, exponents[0], terms, "number of elements in a mean"),)

    def squared(self, call: Call, arrays: Sequence[Array]) -> Array:
        """The factors are 1 over the number of elements."""
        return self.applied(call, arrays) / self._terms(call.inputs[0].shape)

    def _terms(self, x: tuple[int, ...]) -> int:
        """How many elements go into each sum; 1 where there is none, to divide by."""
        return self.count or max(math.prod(x[axis] for axis in self._reduced(len(x))), 1)


@dataclass(frozen=True)
class BroadcastTo(LinearOperation):
    """{ x } >> BroadcastTo >> { y }

    y: `shape`, floating point; x: `shape` without the axes in `over`. y = factor x, repeated along them.
    """

    shape: tuple[int, ...]
    over: tuple[int, ...]
    factor: float = 1.0

    def __post_init__(self) -> None:
        assign(self, shape=as_shape(self.shape), factor=number(self.factor, f"{self.name} factor"))
        assign(self, over=front_axes(self, as_shape(self.over), Tensor(self.shape)))

    @property
    def exact(self) -> bool:
        """Exact where the factor is a power of two."""
        return keeps_exact(self.factor)

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """`shape`. Raises ShapeError unless x is floating point and of `shape` without `over`."""
        self.require_inputs(inputs, "x")
        self.require_float(inputs[0], "x")
        kept = tuple(length for axis, length in enumerate(self.shape) if axis not in self.over)
        self.require(inputs[0].shape == kept, f"x of shape {kept}", inputs[0].shape)
        return (Tensor(self.shape, inputs[0].dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Repeat factor x."""
        expanded = [1 if axis in self.over else length for axis, length in enumerate(self.shape)]
        outputs[0][...] = (inputs[0] * self.factor).reshape(expanded)

    def gradient(self, wiring: Wiring) -> None:
        """{ dy } >> ReduceSum >> { sum }, { sum } >> Scale >> { dx }"""
        if wiring.wants[0]:
            total = wiring.add(ReduceSum(self.over), [wiring.gradient(0)], [None])
            wiring.add(Scale(self.factor), total, [0])

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """Every axis of y; those that are repeated along need the whole x."""
        places = _places(len(self.shape), self.over)
        return tuple(Axis(f"axis{y}", self.shape[y], at(x), at(y)) for y, x in enumerate(places))

    def part(self, axis: Axis, start: int, stop: int) -> Operation:
        """To the part of `shape`."""
        return replace(self, shape=shape_of_part(self.shape, axis.outputs[0], start, stop))

    def magnitude(
        self, kernels: Kernels, inputs: Sequence[Array], bounds: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        """As `compute`, with the factor's absolute value."""
        replace(self, factor=abs(self.factor)).compute(kernels, bounds, outputs)

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """That of x times the factor."""
        return (scaled_quantum(self, exponents[0], self.factor),)

    def steps(self, call: Call) -> Steps:
        """One product, and a factor that may have to be rounded to the dtype."""
        return Steps(final=multiple(self.factor, call.unit))

    def squared(self, call: Call, arrays: Sequence[Array]) -> Array:
        """The square of the factor."""
        return self.applied(call, arrays) * self.factor

    def copies(self, call: Call) -> int:
        """One for each place along the repeated axes."""
        return int(call.outputs[0].size // max(call.inputs[0].size, 1))


def _places(count: int, over: Sequence[int]) -> list[int | None]:
    """For each of `count` axes its place when those in `over` are left out; None for those."""
    kept = [axis for axis in range(count) if axis not in over]
    return [kept.index(axis) if axis in kept else None for axis in range(count)]
