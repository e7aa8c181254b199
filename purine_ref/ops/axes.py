"""Axes of tensors: checked, counted from the front, and cut; and the axes along which operations can be cut.

Pure functions, and one description, that operations of this package call from `infer`, `compute`, `axes` and `part`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from purine_ref.operation import Axis, End, Operation
from purine_ref.tensor import Tensor


def front_axis(operation: Operation, axis: int, tensor: Tensor) -> int:
    """`axis` counted from the front; a negative one counts from the back.

    Raises ShapeError in the name of `operation` when `tensor` has no such axis.
    """
    count = len(tensor.shape)
    operation.require(-count <= axis < count, f"an axis of the {count} of {tensor}", axis)
    return axis % count


def front_axes(operation: Operation, axes: Sequence[int] | None, tensor: Tensor) -> tuple[int, ...]:
    """`axes` counted from the front, in ascending order; all of them for None.

    Raises ShapeError in the name of `operation` when `tensor` has no such axis or when one is named twice.
    """
    if axes is None:
        return tuple(range(len(tensor.shape)))
    front = tuple(sorted(front_axis(operation, axis, tensor) for axis in axes))
    operation.require(len(set(front)) == len(front), "axes that differ", tuple(axes))
    return front


def cut(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    """The index of start..stop-1 along `axis`, an axis counted from the front, and of everything along the others."""
    return (slice(None),) * axis + (slice(start, stop),)


def with_length(tensor: Tensor, axis: int, length: int) -> Tensor:
    """A tensor as `tensor`, but with `length` elements along `axis`."""
    shape = list(tensor.shape)
    shape[axis] = length
    return Tensor(tuple(shape), tensor.dtype)


@dataclass(frozen=True, slots=True)
class MeanAxis(Axis):
    """An axis whose partial sums are divided by `divisor`: that of the whole, which a part alone does not see."""

    divisor: int


def mean_axis(axis: Axis, divisor: int) -> Axis:
    """`axis` of a mean that divides by `divisor`."""
    return MeanAxis(axis.name, axis.extent, axis.inputs, axis.outputs, divisor)


def at(*axes: int | None) -> tuple[End, ...]:
    """The ends at these axes of one tensor each, index by index; nowhere for None."""
    return tuple(None if axis is None else (axis, 1) for axis in axes)


def numbered(tensor: Tensor, but: int | None = None) -> dict[str, int]:
    """The axes of `tensor` by name, "axis0" and so on, without `but`."""
    return {f"axis{axis}": axis for axis in range(len(tensor.shape)) if axis != but}


def common_axes(axes: Mapping[str, int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
    """The named axes of output 0 as axes of an operation all of whose tensors have them in common."""
    return tuple(
        Axis(name, outputs[0].shape[axis], at(axis) * len(inputs), at(axis) * len(outputs))
        for name, axis in axes.items()
    )


def shape_of_part(shape: tuple[int, ...], end: End, start: int, stop: int) -> tuple[int, ...]:
    """`shape` with indices `start` to `stop` of a dimension that lies at `end`; as it is where that is nowhere."""
    if end is None:
        return shape
    axis, scale = end
    return (*shape[:axis], (stop - start) * scale, *shape[axis + 1 :])
