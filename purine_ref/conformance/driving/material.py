"""A failing case as material for smaller ones: any subset of its operators is a case again.

What the operators that are left out would have delivered is fed instead, as the reference computed it. So a fault in
one operator soon stands alone, with just the values that show it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from purine_ref.conformance.cases.case import Case
from purine_ref.conformance.cases.reading import must_be_fed
from purine_ref.conformance.driving.parts import BlobPart, Parts, parts_of
from purine_ref.conformance.driving.solving import Solved, Values, solve
from purine_ref.operation import Array, Operation


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """A graph's parts, and for each iteration what every blob that nothing writes holds when it begins.

    `order` are the names of the operators as they are to start, or None.
    """

    parts: Parts
    seed: int
    held: tuple[Values, ...]
    order: tuple[str, ...] | None = None

    def case(self) -> Case:
        """The case, without expected entries. Raises GraphError, KeyError where the parts do not fit."""
        graph = self.parts.build("smaller")
        initial = {b.name: self.held[0][b.name] for b in graph.blobs if b.persistent and not b.producers}
        fed = [blob.name for blob in graph.blobs if must_be_fed(blob)]
        feeds = tuple({name: values[name] for name in fed} for values in self.held)
        return Case("smaller", "a failure, made smaller", self.seed, graph, initial, feeds, (), self.order)

    def solved(self) -> Solved:
        """The case with what it must give. Raises as `case` and `solve`."""
        return solve(self.case())

    def with_order(self, order: Sequence[str] | None) -> Material:
        """With another order."""
        return replace(self, order=None if order is None else tuple(order))

    def with_values(self, name: str, change: Mapping[int, Array]) -> Material:
        """With other values of one blob in some iterations."""
        held = tuple({**values, name: change[i]} if i in change else values for i, values in enumerate(self.held))
        return replace(self, held=held)

    def with_shapes(
        self, shapes: Mapping[str, tuple[int, ...]], operations: Mapping[str, Operation], last: bool = False
    ) -> Material:
        """With smaller sources, whose values are the first ones of each axis, or the last. Raises as
        `Parts.with_shapes`.
        """
        held = tuple(
            {name: _corner(array, shapes.get(name, array.shape), last) for name, array in values.items()}
            for values in self.held
        )
        return replace(self, parts=self.parts.with_shapes(shapes, operations), held=held)


def _corner(array: Array, shape: tuple[int, ...], last: bool) -> Array:
    """The first, or the last, elements of each axis."""
    starts = [length - kept if last else 0 for length, kept in zip(array.shape, shape, strict=True)]
    box = tuple(slice(start, start + kept) for start, kept in zip(starts, shape, strict=True))
    return np.array(array[box])


def whole(solved: Solved) -> Material:
    """All operators of a case, in all iterations."""
    return cut(solved, {op.name for op in solved.case.graph.ops}, range(len(solved.before)))


def cut(solved: Solved, names: Collection[str], iterations: Sequence[int]) -> Material:
    """Only these operators of a case, in these iterations, which follow one another.

    A blob that is set anew before an iteration, and in no pair any more, is fed before each. Raises KeyError where a
    value is needed that was overwritten.
    """
    parts = parts_of(solved.case.graph).keeping(names)
    written = {name for op in parts.ops for name in op.outputs}
    pairs = tuple((current, following) for current, following in parts.pairs if following in written)
    paired = {name for pair in pairs for name in pair}
    sources = [blob.name for blob in parts.blobs if blob.name not in written]
    held = tuple(
        {name: solved.before[i][name] if name in solved.before[i] else solved.after[i][name] for name in sources}
        for i in iterations
    )

    def lasts(blob: BlobPart) -> bool:
        """Whether what the blob holds outlives the iteration unchanged, or in a pair."""
        if blob.name not in held[0] or blob.name in paired:
            return blob.name in paired
        return all(np.array_equal(values[blob.name], held[0][blob.name], equal_nan=True) for values in held)

    blobs = tuple(replace(blob, persistent=blob.persistent and lasts(blob)) for blob in parts.blobs)
    order = solved.case.schedule
    kept = None if order is None else tuple(name for name in order if name in names)
    return Material(Parts(blobs, parts.ops, pairs), solved.case.seed, held, kept)
