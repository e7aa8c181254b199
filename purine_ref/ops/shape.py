"""Operations that move elements and change none: concat, split, slice, reshape, identity, copy. Labels pass as well.

Those that have `rearranges` can be views of one buffer, where rule R5 allows; `compute` is what they mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, takewhile

from purine_ref.operation import Array, Axis, Box, Call, Cost, Kernels, Operation, Wiring, elementwise_axes, traffic
from purine_ref.ops.attributes import assign, integer
from purine_ref.ops.axes import at, common_axes, cut, front_axis, numbered, shape_of_part, with_length
from purine_ref.tensor import Location, Tensor, as_shape


class Movement(Operation):
    """An operation that only moves elements: exact, and without a FLOP."""

    @property
    def exact(self) -> bool:
        """Exact: nothing is computed."""
        return True

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """No FLOP; what is read and written."""
        return Cost(0, traffic(inputs, outputs))

    def bound(self, call: Call) -> tuple[Array, ...]:
        """Nothing is rounded."""
        return tuple(call.xp.zeros(y.shape) for y in call.outputs)

    def noise(self, call: Call) -> tuple[Array | None, ...]:
        """None."""
        return (None,) * len(call.outputs)

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """The variance of each element goes where the element goes."""
        arrays = [call.xp.zeros(x.shape) for x in call.inputs]
        arrays[index] = call.variances[index]
        outputs = tuple(call.xp.zeros(y.shape) for y in call.outputs)
        self.compute(call.kernels, arrays, outputs)
        return outputs


class MovementAlongAxis(Movement):
    """A movement along `axis`, the same for all places of the other axes."""

    axis: int

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """Every axis but its own."""
        return common_axes(numbered(outputs[0], but=front_axis(self, self.axis, outputs[0])), inputs, outputs)


@dataclass(frozen=True)
class Concat(MovementAlongAxis):
    """{ x1, x2, ... } >> Concat >> { y }

    All of one dtype, and of one shape but for `axis`, where y has the sum of the inputs' lengths; any may be 0.
    """

    axis: int

    rearranges = "join"

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The joined tensor. Raises ShapeError unless there is an input and all agree but for the axis."""
        self.require(len(inputs) > 0, "one input or more", "none")
        axis = front_axis(self, self.axis, inputs[0])
        for x in inputs[1:]:
            agree = len(x.shape) == len(inputs[0].shape) and with_length(x, axis, 0) == with_length(inputs[0], axis, 0)
            self.require(agree, f"inputs that agree with {inputs[0]} but for axis {self.axis}", x)
        return (with_length(inputs[0], axis, sum(x.shape[axis] for x in inputs)),)

    def boxes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Box, ...]:
        """Each input's place in y."""
        axis = front_axis(self, self.axis, outputs[0])
        return tuple(_box(outputs[0], axis, *part) for part in _bounds(x.shape[axis] for x in inputs))

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Write one input after the other."""
        axis = self.axis % inputs[0].ndim
        for x, (start, stop) in zip(inputs, _bounds(x.shape[axis] for x in inputs), strict=True):
            outputs[0][cut(axis, start, stop)] = x

    def gradient(self, wiring: Wiring) -> None:
        """{ dy } >> Slice >> { dx } for every input."""
        lengths = [blob.tensor.shape[self.axis] for blob in wiring.inputs]
        for index, (start, stop) in enumerate(_bounds(lengths)):
            if wiring.wants[index]:
                wiring.add(Slice(self.axis, start, stop), [wiring.gradient(0)], [index])


@dataclass(frozen=True)
class Split(MovementAlongAxis):
    """{ x } >> Split >> { y1, y2, ... }

    All of one dtype, and of one shape but for `axis`, where the outputs have `sizes`, which add up to x's length; any
    may be 0.
    """

    axis: int
    sizes: tuple[int, ...]

    rearranges = "split"

    def __post_init__(self) -> None:
        assign(self, sizes=tuple(integer(size, f"{self.name} sizes", 0) for size in self.sizes))
        self.require(len(self.sizes) > 0, "one size or more", self.sizes)

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """One tensor per size. Raises ShapeError unless the sizes add up to x's length along the axis."""
        self.require_inputs(inputs, "x")
        axis = front_axis(self, self.axis, inputs[0])
        length, total = inputs[0].shape[axis], sum(self.sizes)
        self.require(total == length, f"sizes that add up to {length}, the length of axis {self.axis}", total)
        return tuple(with_length(inputs[0], axis, size) for size in self.sizes)

    def boxes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Box, ...]:
        """Each output's place in x."""
        axis = front_axis(self, self.axis, inputs[0])
        return tuple(_box(inputs[0], axis, *part) for part in _bounds(self.sizes))

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Write one output after the other."""
        axis = self.axis % inputs[0].ndim
        for y, (start, stop) in zip(outputs, _bounds(self.sizes), strict=True):
            y[...] = inputs[0][cut(axis, start, stop)]

    def gradient(self, wiring: Wiring) -> None:
        """{ dy1, dy2, ... } >> Concat >> { dx }"""
        if wiring.wants[0]:
            parts = [wiring.gradient(index) for index in range(len(self.sizes))]
            wiring.add(Concat(self.axis), parts, [0])


@dataclass(frozen=True)
class Slice(MovementAlongAxis):
    """{ x } >> Slice >> { y }

    y: start..stop-1 of x along `axis`, everything along the others.
    """

    axis: int
    start: int
    stop: int

    rearranges = "split"

    def __post_init__(self) -> None:
        names = ("start", "stop")
        assign(self, **{name: integer(getattr(self, name), f"{self.name} {name}", 0) for name in names})
        self.require(self.start <= self.stop, "a start not beyond the stop", f"{self.start}..{self.stop}")

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The cut tensor. Raises ShapeError when the stop is beyond the axis."""
        self.require_inputs(inputs, "x")
        axis = front_axis(self, self.axis, inputs[0])
        length = inputs[0].shape[axis]
        self.require(self.stop <= length, f"a stop of {length} or less along axis {self.axis}", self.stop)
        return (with_length(inputs[0], axis, self.stop - self.start),)

    def boxes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Box, ...]:
        """The place of y in x."""
        return (_box(inputs[0], front_axis(self, self.axis, inputs[0]), self.start, self.stop),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Cut."""
        outputs[0][...] = inputs[0][cut(self.axis % inputs[0].ndim, self.start, self.stop)]

    def gradient(self, wiring: Wiring) -> None:
        """{ dy } >> PadSlice >> { dx }"""
        if wiring.wants[0]:
            length = wiring.inputs[0].tensor.shape[self.axis]
            wiring.add(PadSlice(self.axis, self.start, length), [wiring.gradient(0)], [0])


@dataclass(frozen=True)
class PadSlice(MovementAlongAxis):
    """{ x } >> PadSlice >> { y }

    y: `length` long along `axis`, as x along the others; x from `start` on, 0 elsewhere.
    """

    axis: int
    start: int
    length: int

    def __post_init__(self) -> None:
        names = ("start", "length")
        assign(self, **{name: integer(getattr(self, name), f"{self.name} {name}", 0) for name in names})

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The padded tensor. Raises ShapeError when x does not fit in."""
        self.require_inputs(inputs, "x")
        axis = front_axis(self, self.axis, inputs[0])
        room = self.length - self.start
        self.require(inputs[0].shape[axis] <= room, f"x of {room} or less along axis {self.axis}", inputs[0])
        return (with_length(inputs[0], axis, self.length),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Zeros, then x."""
        axis = self.axis % inputs[0].ndim
        outputs[0][...] = 0
        outputs[0][cut(axis, self.start, self.start + inputs[0].shape[axis])] = inputs[0]

    def gradient(self, wiring: Wiring) -> None:
        """{ dy } >> Slice >> { dx }"""
        if wiring.wants[0]:
            stop = self.start + wiring.inputs[0].tensor.shape[self.axis]
            wiring.add(Slice(self.axis, self.start, stop), [wiring.gradient(0)], [0])


@dataclass(frozen=True, slots=True)
class _ReshapeAxis(Axis):
    """An axis of a reshape to `shape`, of which no axis is -1."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Reshape(Movement):
    """{ x } >> Reshape >> { y }

    y: the elements of x in C order, in `shape`, of which one axis may be -1: what is left for it.
    """

    shape: tuple[int, ...]

    rearranges = "split"

    def __post_init__(self) -> None:
        assign(self, shape=as_shape(self.shape))
        right = self.shape.count(-1) <= 1 and min(self.shape, default=0) >= -1
        self.require(right, "a shape of integers of 0 or more, and -1 once at most", self.shape)

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """`shape`, resolved. Raises ShapeError when the number of elements differs, or -1 could be anything."""
        self.require_inputs(inputs, "x")
        known = math.prod(length for length in self.shape if length != -1)
        size = inputs[0].size
        if -1 not in self.shape:
            self.require(known == size, f"x of {known} elements", inputs[0])
            return (Tensor(self.shape, inputs[0].dtype),)
        self.require(known > 0 and size % known == 0, f"x of a multiple of {known} elements", inputs[0])
        shape = tuple(size // known if length == -1 else length for length in self.shape)
        return (Tensor(shape, inputs[0].dtype),)

    def boxes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Box, ...]:
        """All of x."""
        return (_whole(inputs[0]),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Write x in C order."""
        outputs[0][...] = inputs[0].reshape(outputs[0].shape)

    def gradient(self, wiring: Wiring) -> None:
        """{ dy } >> Reshape >> { dx }, to the shape of x."""
        if wiring.wants[0]:
            wiring.add(Reshape(wiring.inputs[0].tensor.shape), [wiring.gradient(0)], [0])

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """The leading axes on whose lengths x and y agree; what follows each is moved within it."""
        pairs = zip(inputs[0].shape, outputs[0].shape, strict=False)
        equal = takewhile(lambda lengths: lengths[0] == lengths[1], pairs)
        return tuple(
            _ReshapeAxis(f"axis{axis}", length, at(axis), at(axis), outputs[0].shape)
            for axis, (length, _) in enumerate(equal)
        )

    def part(self, axis: Axis, start: int, stop: int) -> Operation:
        """To the part of `shape`, without -1, which could be anything in a part of no indices."""
        whole = axis.shape if isinstance(axis, _ReshapeAxis) else self.shape
        shape = tuple(known if own == -1 else own for own, known in zip(self.shape, whole, strict=True))
        return replace(self, shape=shape_of_part(shape, axis.outputs[0], start, stop))


@dataclass(frozen=True)
class Identity(Movement):
    """{ x } >> Identity >> { y }

    y = x, of any shape and dtype.
    """

    in_place = True
    rearranges = "split"

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensor of x. Raises ShapeError unless x is the one input."""
        self.require_inputs(inputs, "x")
        return (inputs[0],)

    def boxes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Box, ...]:
        """All of x."""
        return (_whole(inputs[0]),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Write x."""
        outputs[0][...] = inputs[0]

    def gradient(self, wiring: Wiring) -> None:
        """{ dy } >> Identity >> { dx }"""
        if wiring.wants[0]:
            wiring.add(self, [wiring.gradient(0)], [0])

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """Every axis."""
        return elementwise_axes(inputs, outputs)


@dataclass(frozen=True)
class Copy(Movement):
    """{ x } >> Copy >> { y }

    y = x, of any shape and dtype, in memory of its own at `to`; None is the place of x.
    """

    to: Location | None = None

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensor of x, at `to`. Raises ShapeError unless x is the one input."""
        self.require_inputs(inputs, "x")
        return (inputs[0] if self.to is None else inputs[0].at(self.to),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Write x, maybe from one device's memory to another's."""
        kernels.copy(inputs[0], outputs[0])

    def gradient(self, wiring: Wiring) -> None:
        """{ dy } >> Copy >> { dx }, back to the place of x."""
        if wiring.wants[0]:
            wiring.add(Copy(wiring.inputs[0].tensor.location), [wiring.gradient(0)], [0])

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """Every axis."""
        return elementwise_axes(inputs, outputs)


def _bounds(lengths: Iterable[int]) -> list[tuple[int, int]]:
    """(start, stop) of parts of these lengths, laid one after the other."""
    return list(pairwise(accumulate(lengths, initial=0)))


def _whole(x: Tensor) -> Box:
    return tuple((0, length) for length in x.shape)


def _box(x: Tensor, axis: int, start: int, stop: int) -> Box:
    """start..stop-1 along `axis`, everything along the others."""
    whole = _whole(x)
    return (*whole[:axis], (start, stop), *whole[axis + 1 :])
