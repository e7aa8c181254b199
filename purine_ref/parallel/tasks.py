"""How an operator is divided: tasks, and the refiners that make them.

A `Task` is one part of one operator of the serial graph: `cuts` say which range of some of its axes it computes, and
`place` where. Every operator starts as one task, the whole of it. A *refiner* (data, model, pipeline, placed) replaces
each task by one or more; refiners are applied one after the other, so any scheme can be laid over any other. A refiner
spans `width` places: the task's place index becomes `index * width + offset`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from purine_ref.errors import GraphError
from purine_ref.graph import Blob, Graph, Op
from purine_ref.operation import Axis, End, Operation
from purine_ref.tensor import Tensor

Box = tuple[tuple[int, int], ...]
"""A part of a blob: start and stop per axis."""


@dataclass(frozen=True, slots=True)
class Task:
    """A part of an operator: the range `(start, stop)` of each axis that is cut, by name, and its place's index."""

    cuts: tuple[tuple[str, int, int], ...] = ()
    place: int = 0

    def range_of(self, axis: Axis) -> tuple[int, int]:
        """The indices of `axis` that the task computes."""
        return next(((start, stop) for name, start, stop in self.cuts if name == axis.name), (0, axis.extent))

    def cut(self, axis: Axis, start: int, stop: int) -> Task:
        """The task on a narrower range of one axis."""
        others = tuple(cut for cut in self.cuts if cut[0] != axis.name)
        return replace(self, cuts=(*others, (axis.name, start, stop)))

    def at(self, width: int, offset: int) -> Task:
        """The task at place `offset` of the `width` that its own place is divided into."""
        return replace(self, place=self.place * width + offset)


class Refiner(Protocol):
    """A rule that divides tasks."""

    @property
    def width(self) -> int:
        """How many places the rule divides each place into."""

    def refine(self, network: Network, op: Op, task: Task) -> list[Task]:
        """The tasks that replace `task`, with places from 0 to `width` - 1 inside the task's own.

        Raises GraphError, before anything runs, where the rule does not fit the operator.
        """


class Network:
    """A serial graph with what refiners ask about it: each operator's axes, and which of them mean the same.

    Two (blob, axis) pairs are of one *class* when an operator has one dimension in both. The batch is the class of
    axis 0 of the fed blobs that are not scalars.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._axes = {op: op.operation.axes(*_tensors(op)) for op in graph.ops}
        self._parent: dict[tuple[Blob, int], tuple[Blob, int]] = {}
        for op in graph.ops:
            for axis in self._axes[op]:
                ends = list(_unit_ends(op, axis))
                for end in ends[1:]:
                    self._join(ends[0], end)

    def axes(self, op: Op) -> tuple[Axis, ...]:
        """The dimensions along which the operator can be cut."""
        return self._axes[op]

    def class_of(self, blob: Blob, axis: int) -> tuple[Blob, int]:
        """The representative of a (blob, axis) pair's class."""
        end = (blob, axis)
        while self._parent.get(end, end) != end:
            self._parent[end] = self._parent.get(self._parent[end], self._parent[end])  # halve the path on the way
            end = self._parent[end]
        return end

    def axis_in(self, op: Op, classes: set[tuple[Blob, int]]) -> Axis | None:
        """The operator's first axis that belongs to one of the classes; None when it has none."""
        for axis in self._axes[op]:
            if any(self.class_of(*end) in classes for end in _unit_ends(op, axis)):
                return axis
        return None

    @cached_property
    def fed(self) -> list[Blob]:
        """The blobs that are fed for each run and have a batch axis: sources that are neither persistent nor scalar."""
        return [b for b in self.graph.blobs if not b.producers and not b.persistent and b.shape]

    @cached_property
    def batch(self) -> set[tuple[Blob, int]]:
        """The classes of the batch axis. Raises GraphError when fed blobs disagree on its length."""
        lengths = {blob.name: blob.shape[0] for blob in self.fed}
        if len(set(lengths.values())) > 1:
            raise GraphError(f"graph {self.graph.name!r}: fed blobs differ in their batch axis: {lengths}")
        return {self.class_of(blob, 0) for blob in self.fed}

    @property
    def batch_size(self) -> int:
        """Samples in the batch. Raises GraphError when no blob is fed."""
        if not self.fed:
            raise GraphError(f"graph {self.graph.name!r} has no fed blob with a batch axis to divide")
        return self.fed[0].shape[0]

    def require_no_batch(self, op: Op) -> None:
        """Raise GraphError for an operator that reads or gives samples but cannot be cut along the batch."""
        for blob in (*op.inputs, *op.outputs):
            if blob.shape and self.class_of(blob, 0) in self.batch:
                raise GraphError(
                    f"{op.describe()} cannot be divided along the batch, which {blob.name!r} has: use an operation "
                    "that can be, such as a loss with reduction='sum'"
                )

    def _join(self, one: tuple[Blob, int], other: tuple[Blob, int]) -> None:
        self._parent[self.class_of(*other)] = self.class_of(*one)


def _tensors(op: Op) -> tuple[list[Tensor], list[Tensor]]:
    return [b.tensor for b in op.inputs], [b.tensor for b in op.outputs]


def _unit_ends(op: Op, axis: Axis) -> Iterator[tuple[Blob, int]]:
    """The (blob, axis) pairs of a dimension that count index by index."""
    for blobs, ends in ((op.inputs, axis.inputs), (op.outputs, axis.outputs)):
        for blob, end in zip(blobs, ends, strict=True):
            if end is not None and end[1] == 1:
                yield blob, end[0]


def divide(extent: int, parts: int | Sequence[int]) -> list[tuple[int, int]]:
    """Ranges that divide `extent`: into a number of nearly equal parts, the larger first, or by their given lengths.

    Raises GraphError when lengths do not add up to `extent`.
    """
    if isinstance(parts, int):
        lengths = [extent // parts + (part < extent % parts) for part in range(parts)]
    else:
        lengths = list(parts)
    if sum(lengths) != extent or min(lengths, default=0) < 0:
        raise GraphError(f"parts of {lengths} do not divide {extent}")
    stops = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    return list(zip([0, *stops], stops, strict=False))


def part_of(operation: Operation, axes: Mapping[str, Axis], task: Task) -> Operation:
    """The operation of a task: cut along each of its axes in turn."""
    for name, start, stop in task.cuts:
        operation = operation.part(axes[name], start, stop)
    return operation


def box_of(blob: Blob, ends: Sequence[tuple[End, tuple[int, int]]]) -> Box:
    """The part of `blob` that a task touches, given where each cut axis lies in it and its range."""
    box = [(0, extent) for extent in blob.shape]
    for end, (start, stop) in ends:
        if end is not None:
            box[end[0]] = (start * end[1], stop * end[1])
    return tuple(box)
