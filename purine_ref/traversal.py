"""Walks over a whole graph, all iterative: the topological order, and what a set of blobs needs (prune).

Functions from a `Graph`; they change nothing. Depth is no limit: chains of 100,000 operators walk like any other.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from purine_ref._fast.rows import Rows
from purine_ref.errors import CycleError, GraphError
from purine_ref.graph import Blob, Graph, Op


@dataclass(frozen=True, slots=True)
class Flat:
    """A graph's edges as integers, by the indices of operators and blobs.

    `inputs[op]` and `outputs[op]` are blobs, one an edge; `consumers[blob]` an operator for each edge out of the blob,
    in the order of connecting; `producers[blob]` counts the edges into it, and `waiting[op]` the input edges that are
    not satisfied when a run starts.
    """

    inputs: Rows
    outputs: Rows
    consumers: Rows
    producers: array[int]
    waiting: array[int]


def flatten(graph: Graph) -> Flat:
    """The edges of a graph; nothing is checked. Raises ValueError for more than int32 can count."""
    ops, blobs = len(graph.ops), len(graph.blobs)
    inputs = Rows([len(op.inputs) for op in graph.ops], [blob.index for op in graph.ops for blob in op.inputs])
    outputs = Rows([len(op.outputs) for op in graph.ops], [blob.index for op in graph.ops for blob in op.outputs])
    producers = np.bincount(outputs.flat, minlength=blobs)
    reader = np.repeat(np.arange(ops), np.diff(inputs.starts))  # the operator of each input edge
    by_blob = np.argsort(inputs.flat, kind="stable")  # operators of one blob stay in the order of their connecting
    consumers = Rows(np.bincount(inputs.flat, minlength=blobs), reader[by_blob])
    waiting = np.bincount(reader[producers[inputs.flat] > 0], minlength=ops)
    return Flat(inputs, outputs, consumers, _counts(producers), _counts(waiting))


def _counts(numbers: Any) -> array[int]:
    """As int32: a list takes twice the memory. Edges are counted in int32 already, so all fit."""
    return array("i", numbers.astype(np.int32).tobytes())


def topological_order(graph: Graph) -> list[Op]:
    """The operators, each after the producers of all its inputs, in the order in which they become ready.

    Raises CycleError, carrying a cycle's names, when there is one (rule R1).
    """
    return [graph.ops[index] for index in order_of(graph, flatten(graph))]


def order_of(graph: Graph, flat: Flat) -> list[int]:
    """The topological order as indices, of a graph that is flat already. Raises CycleError."""
    waiting, missing = flat.waiting.tolist(), flat.producers.tolist()
    starts, outputs, readers, consumers = flat.outputs.arrays() + flat.consumers.arrays()
    order = [op for op, count in enumerate(waiting) if count == 0]
    for op in order:  # grows while it is walked: a queue without removals
        for blob in outputs[starts[op] : starts[op + 1]]:
            missing[blob] -= 1
            if missing[blob] != 0:
                continue
            for consumer in consumers[readers[blob] : readers[blob + 1]]:
                waiting[consumer] -= 1
                if waiting[consumer] == 0:
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
