"""Walks over a whole graph, all iterative: the topological order, and what a set of blobs needs (prune).

Functions from a `Graph`; they change nothing. Depth is no limit: chains of 100,000 operators walk like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from purine_ref.errors import CycleError, GraphError
from purine_ref.graph import Blob, Graph, Op


def topological_order(graph: Graph) -> list[Op]:
    """The operators, each after the producers of all its inputs, in the order in which they become ready.

    Raises CycleError, carrying a cycle's names, when there is one (rule R1).
    """
    missing = [len(blob.producers) for blob in graph.blobs]
    waiting = [len([blob for blob in op.inputs if blob.producers]) for op in graph.ops]
    order = [op for op in graph.ops if waiting[op.index] == 0]
    for op in order:  # grows while it is walked: a queue without removals
        for blob in op.outputs:
            missing[blob.index] -= 1
            for consumer, _ in blob.consumers if missing[blob.index] == 0 else ():
                waiting[consumer.index] -= 1
                if waiting[consumer.index] == 0:
                    order.append(consumer)
    if len(order) < len(graph.ops):
        raise CycleError(graph.name, _find_cycle(graph, waiting))
    return order


def _find_cycle(graph: Graph, waiting: Sequence[int]) -> list[str]:
    """Walk backwards among operators that never became ready: each has such a predecessor, so one comes twice."""
    op = next(op for op in graph.ops if waiting[op.index] > 0)
    path: list[str] = []
    place: dict[Op, int] = {}
    while op not in place:
        place[op] = len(path)
        before, blob = next((p, b) for b in op.inputs for p, _ in b.producers if waiting[p.index] > 0)
        path += [op.name, blob.name]
        op = before
    return [*path[place[op] :], op.name][::-1]


def needed(wanted: Iterable[Blob]) -> tuple[set[Blob], set[Op]]:
    """The blobs and operators that the `wanted` blobs depend on, themselves included."""
    blobs: set[Blob] = set()
    ops: set[Op] = set()
    stack = list(wanted)
    while stack:
        blob = stack.pop()
        if blob in blobs:
            continue
        blobs.add(blob)
        if blob.view is not None:
            stack.append(blob.view.parent)
        for op, _ in blob.producers:
            if op not in ops:
                ops.add(op)
                stack += [*op.inputs, *op.outputs]
    return blobs, ops


def prune(graph: Graph, wanted: Iterable[Blob], name: str | None = None) -> Graph:
    """A new graph of only what the `wanted` blobs need, under the same names.

    What only unwanted sinks need is dropped: data gradients that nobody reads, all gradients in testing. Raises
    GraphError for a wanted blob of another graph.
    """
    wanted = list(wanted)
    for blob in wanted:
        if blob.graph is not graph:
            raise GraphError(f"prune: blob {blob.name!r} is of graph {blob.graph.name!r}, not of {graph.name!r}")
    blobs, ops = needed(wanted)
    pruned = Graph(name or graph.name)
    twin: dict[Blob, Blob] = {}
    for blob in graph.blobs:
        if blob in blobs:
            twin[blob] = pruned.blob(blob.name, blob.shape, blob.dtype, blob.location, persistent=blob.persistent)
    for blob, new in twin.items():
        if blob.view is not None:
            new.view = replace(blob.view, parent=twin[blob.view.parent])
    made: dict[Op, Op] = {}
    for op in graph.ops:
        if op in ops:
            ends = [[twin[blob] for blob in side] for side in (op.inputs, op.outputs)]
            of = made.get(op.of) if op.of is not None else None
            made[op] = pruned.connect(
                ends[0], op.operation, ends[1], name=op.name, location=op.location, stream=op.stream, of=of
            )
    for current, following in graph.pairs:
        if current in twin and following in twin:
            pruned.swap(twin[current], twin[following])
    pruned.initial = {name: op for name, op in graph.initial.items() if name in pruned}
    pruned.multipliers = {name: pair for name, pair in graph.multipliers.items() if name in pruned}
    return pruned
