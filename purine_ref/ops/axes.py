"""Axes of tensors: checked, counted from the front, and cut. Pure functions that operations of this package call."""

from __future__ import annotations

from collections.abc import Sequence

from purine_ref.operation import Operation
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
