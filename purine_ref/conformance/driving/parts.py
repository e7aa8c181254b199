"""A graph as frozen parts, from which a smaller or otherwise changed graph is built anew.

A `Graph` only grows. What searches for a smaller one works on `Parts`: it leaves operators out, or changes shapes and
attributes, and builds; what does not fit raises, as building any graph does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from purine_ref.graph import Graph
from purine_ref.operation import Box, Operation
from purine_ref.tensor import Location, Tensor


@dataclass(frozen=True, slots=True)
class BlobPart:
    """One blob; `view` is (parent's name, box), or None."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    location: Location
    persistent: bool
    view: tuple[str, Box] | None = None


@dataclass(frozen=True, slots=True)
class OpPart:
    """One operator, with the names of its blobs."""

    name: str
    operation: Operation
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    location: Location
    stream: str


@dataclass(frozen=True, slots=True)
class Parts:
    """All of a graph but what initialises parameters."""

    blobs: tuple[BlobPart, ...]
    ops: tuple[OpPart, ...]
    pairs: tuple[tuple[str, str], ...] = ()

    def build(self, name: str = "graph") -> Graph:
        """The graph. Raises GraphError, ShapeError when the parts do not fit, KeyError when a blob is missing."""
        graph = Graph(name)
        made = {}
        for blob in self.blobs:
            if blob.view is None:
                options = {"location": blob.location, "persistent": blob.persistent}
                made[blob.name] = graph.blob(blob.name, blob.shape, blob.dtype, **options)  # type: ignore[arg-type]
            else:
                parent, box = blob.view
                made[blob.name] = graph.view(made[parent], blob.name, box, blob.shape)
        for op in self.ops:
            graph.connect(
                [made[name] for name in op.inputs],
                op.operation,
                [made[name] for name in op.outputs],
                name=op.name,
                location=op.location,
                stream=op.stream,
            )
        for current, following in self.pairs:
            graph.swap(made[current], made[following])
        return graph

    def keeping(self, names: Collection[str]) -> Parts:
        """Only these operators, the blobs that they touch, and the memory that these lie in."""
        ops = tuple(op for op in self.ops if op.name in names)
        by_name = {blob.name: blob for blob in self.blobs}
        needed = {name for op in ops for name in (*op.inputs, *op.outputs)}
        pending = list(needed)
        while pending:
            view = by_name[pending.pop()].view
            if view is not None and view[0] not in needed:
                needed.add(view[0])
                pending.append(view[0])
        blobs = tuple(blob for blob in self.blobs if blob.name in needed)
        return Parts(blobs, ops, tuple(pair for pair in self.pairs if set(pair) <= needed))

    def with_shapes(self, shapes: Mapping[str, tuple[int, ...]], operations: Mapping[str, Operation]) -> Parts:
        """With these shapes of sources and these operations, and every other shape as the operations then give.

        Raises GraphError, ShapeError where an operation does not take what it gets; views are refused.
        """
        blobs: dict[str, BlobPart] = {}
        for part in self.blobs:
            if part.view is not None:
                raise ValueError("views keep their shapes")
            blobs[part.name] = replace(part, shape=shapes.get(part.name, part.shape))
        ops = []
        for op in self.topological():
            operation = operations.get(op.name, op.operation)
            inputs = [Tensor(blobs[name].shape, blobs[name].dtype, blobs[name].location) for name in op.inputs]
            for name, tensor in zip(op.outputs, operation.infer(inputs), strict=True):
                blobs[name] = replace(blobs[name], shape=tensor.shape)
            ops.append(replace(op, operation=operation))
        place = {op.name: number for number, op in enumerate(self.ops)}
        ops.sort(key=lambda op: place[op.name])
        return Parts(tuple(blobs[part.name] for part in self.blobs), tuple(ops), self.pairs)

    def topological(self) -> list[OpPart]:
        """The operators, each behind those that write its inputs; by their own order where that leaves a choice."""
        left = {blob.name: 0 for blob in self.blobs}
        for op in self.ops:
            for name in op.outputs:
                left[name] += 1
        pending, order = list(self.ops), []
        while pending:
            waiting = []
            for op in pending:
                if any(left[name] for name in op.inputs):
                    waiting.append(op)
                    continue
                order.append(op)
                for name in op.outputs:
                    left[name] -= 1
            if len(waiting) == len(pending):
                raise ValueError("the operators have a cycle")
            pending = waiting
        return order


def parts_of(graph: Graph) -> Parts:
    """The parts of a graph."""
    blobs = tuple(
        BlobPart(b.name, b.shape, b.dtype, b.location, b.persistent,
                 None if b.view is None else (b.view.parent.name, b.view.box))
        for b in graph.blobs
    )  # fmt: skip
    ops = tuple(
        OpPart(op.name, op.operation, tuple(b.name for b in op.inputs), tuple(b.name for b in op.outputs),
               op.location, op.stream)
        for op in graph.ops
    )  # fmt: skip
    return Parts(blobs, ops, tuple((current.name, following.name) for current, following in graph.pairs))

