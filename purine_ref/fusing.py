"""`fuse`: a graph in which a bias and the ReLU after it are one operator, and so are their gradients.

The new graph computes the same bits in fewer passes over memory (`ops.fused`). A pair is fused where nobody else has to
do with the blob between the two, so that it can vanish:

- `Bias` and `ReLU`: the ReLU alone reads the sum.
- `ReLUGradient` and `BiasGradient`: the gradient of the sum stays, since the layer before it reads it too.

Gradients are fused whether or not their forward operators are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from purine_ref.graph import Blob, Graph, Op
from purine_ref.operation import Operation
from purine_ref.ops import Bias, BiasGradient, BiasReLU, BiasReLUGradient, ReLU, ReLUGradient


def fuse(graph: Graph, keep: Iterable[str] = ()) -> Graph:
    """The fused graph: blobs and operators under their own names, a fused operator under that of its second.

    `keep` names blobs that must not vanish; `vanished` says which do. Everything else is carried over: parameters with
    their initial values and multipliers, views, swapped pairs, locations, streams, the order of a blob's producers
    (rule R4). Raises GraphError for a blob in `keep` that is not there.
    """
    kept = {graph[name] for name in keep}
    pairs = {second: first for first, second in _pairs(graph, kept)}
    return _rebuilt(graph, pairs)


def vanished(graph: Graph, keep: Iterable[str] = ()) -> list[str]:
    """The names of the blobs that `fuse` leaves out, in order."""
    kept = {graph[name] for name in keep}
    gone = {first.outputs[0] for first, second in _pairs(graph, kept) if type(first.operation) is Bias}
    return [blob.name for blob in graph.blobs if blob in gone]


def _pairs(graph: Graph, kept: set[Blob]) -> list[tuple[Op, Op]]:
    """The operators that become one with another, and that other, which takes their place."""
    parents = {blob.view.parent for blob in graph.blobs if blob.view is not None}
    found: list[tuple[Op, Op]] = []
    for op in graph.ops:
        middle = op.outputs[0] if type(op.operation) in (Bias, ReLUGradient) else None
        if middle is None or len(middle.producers) != 1 or middle.persistent or middle.view or middle in parents:
            continue
        second = _partner(op, middle, kept)
        if second is not None and (second.location, second.stream) == (op.location, op.stream):
            found.append((op, second))
    return found


def _partner(op: Op, middle: Blob, kept: set[Blob]) -> Op | None:
    """What `op` becomes one with."""
    if type(op.operation) is Bias:
        readers = [consumer for consumer, _ in middle.consumers]
        alone = len(readers) == 1 and isinstance(readers[0].operation, ReLU) and middle not in kept
        return readers[0] if alone else None
    sums = [consumer for consumer, _ in middle.consumers if isinstance(consumer.operation, BiasGradient)]
    return sums[0] if len(sums) == 1 else None


def _rebuilt(graph: Graph, pairs: dict[Op, Op]) -> Graph:
    """The graph with the second of each pair in the place of both."""
    gone = {first.outputs[0] for first in pairs.values() if type(first.operation) is Bias}
    firsts = set(pairs.values())
    new = Graph(graph.name)
    twin: dict[Blob, Blob] = {}
    for blob in graph.blobs:
        if blob not in gone:
            twin[blob] = new.blob(blob.name, blob.shape, blob.dtype, blob.location, persistent=blob.persistent)
    for blob, other in twin.items():
        if blob.view is not None:
            other.view = replace(blob.view, parent=twin[blob.view.parent])
    made: dict[Op, Op] = {}
    for op in graph.ops:
        if op in firsts:
            continue
        first = pairs.get(op)
        inputs, operation, outputs = (op.inputs, op.operation, op.outputs) if first is None else _fused(first, op)
        ends = [[twin[blob] for blob in side] for side in (inputs, outputs)]
        of = made.get(op.of) if op.of is not None else None
        made[op] = new.connect(ends[0], operation, ends[1], name=op.name, location=op.location, stream=op.stream, of=of)
        if first is not None:
            made[first] = made[op]
    for current, following in graph.pairs:
        new.swap(twin[current], twin[following])
    new.initial.update(graph.initial)
    new.multipliers.update(graph.multipliers)
    return new


def _fused(first: Op, second: Op) -> tuple[tuple[Blob, ...], Operation, tuple[Blob, ...]]:
    """Inputs, operation and outputs of two operators as one."""
    if type(first.operation) is Bias:
        return first.inputs, BiasReLU(first.operation.axis), second.outputs
    assert isinstance(second.operation, BiasGradient)
    return first.inputs, BiasReLUGradient(second.operation.axis), (*first.outputs, *second.outputs)
