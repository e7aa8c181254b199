"""The order in which a graph is read, and the row that each node of a drawing is in.

In a mirrored drawing the forward part runs down, and its gradient runs back up beside it: a gradient blob is in the row
of the blob that it is the gradient of, a gradient operator in the row of the operator whose rule it is, so that almost
every edge goes to the next row. Updates follow their gradients upwards.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence

from purine_ref.graph import Blob, Graph
from purine_ref.traversal import topological_order
from purine_ref.view.parts import Kind, Node

Rows = dict[Node, int]

_PART = r"(?=(?:[\[@].*)?$)"
"""Before the end of a serial name: after it, a composed graph says which part, and where."""

_GRADIENT = re.compile(f"/grad{_PART}", re.DOTALL)
_LAST = re.compile(rf"/[^/\[@]*{_PART}", re.DOTALL)


def before(node: Node) -> Sequence[Node]:
    """The tails of the edges to `node`, one an edge."""
    return [op for op, _ in node.producers] if isinstance(node, Blob) else node.inputs


def after(node: Node) -> Sequence[Node]:
    """The heads of the edges from `node`, one an edge."""
    return [op for op, _ in node.consumers] if isinstance(node, Blob) else node.outputs


def reading_order(graph: Graph) -> list[Node]:
    """All nodes in topological order; where that leaves a choice, operators in the order of their making.

    A blob comes just before the first operator that reads it. Raises CycleError.
    """
    topological_order(graph)  # for its error alone
    waiting = [sum(len(blob.producers) for blob in op.inputs) for op in graph.ops]
    ready = [op.index for op in graph.ops if waiting[op.index] == 0]  # ascending, so a heap already
    order: dict[Node, None] = {}
    while ready:
        op = graph.ops[heapq.heappop(ready)]
        order.update(dict.fromkeys(op.inputs))
        order[op] = None
        for blob in op.outputs:
            for consumer, _ in blob.consumers:
                waiting[consumer.index] -= 1
                if waiting[consumer.index] == 0:
                    heapq.heappush(ready, consumer.index)
    order.update(dict.fromkeys(graph.blobs))
    return list(order)


def straight_rows(graph: Graph) -> Rows:
    """Every node below all that it needs; side inputs, such as parameters, just above their use. Raises CycleError."""
    return _from_the_top(_longest_paths(reading_order(graph)))


def mirrored_rows(graph: Graph, kinds: Mapping[Node, Kind]) -> Rows:
    """Forward nodes as in `straight_rows`; the others beside them, and upwards from the losses. Raises CycleError."""
    order = reading_order(graph)
    rows = _longest_paths([node for node in order if kinds[node] is Kind.FORWARD])
    others = [node for node in order if kinds[node] is not Kind.FORWARD]
    models = _models(graph)
    hanging: set[Node] = set()
    for node in others:
        model, ahead = models.get(node, node), before(node)
        if not ahead or (model is node and all(tail in hanging for tail in ahead)):
            hanging.add(node)
        else:
            rows[node] = _upward_row(node, model, rows, kinds)
    for node in reversed(others):
        if node in hanging:  # made of sources alone: below what reads it, since that lies upwards
            rows[node] = max((rows[head] for head in after(node) if head in rows), default=0) + 1
    return _from_the_top(rows)


def _from_the_top(rows: Rows) -> Rows:
    top = min(rows.values(), default=0)
    return {node: row - top for node, row in rows.items()}


def _longest_paths(order: Iterable[Node]) -> Rows:
    """The length of the longest path to each node, within `order`; then side inputs are let down."""
    rows: Rows = {}
    for node in order:
        rows[node] = max((rows[tail] + 1 for tail in before(node) if tail in rows), default=0)
    hanging = _hanging(rows)
    for node in reversed(rows):
        below = [rows[head] for head in after(node) if head in rows]
        if node in hanging and below:
            rows[node] = min(below) - 1
    return rows


def _hanging(rows: Rows) -> set[Node]:
    """Side inputs: sources, such as parameters, and what is made of one source in a lone chain, such as a mask."""
    hanging: set[Node] = set()
    for node in rows:
        ahead = before(node)
        if not ahead or (len(ahead) == 1 and ahead[0] in hanging and len(after(ahead[0])) == 1):
            hanging.add(node)
    return hanging


def _models(graph: Graph) -> dict[Node, Node]:
    """What a gradient's node is named after: for `fc/y/grad` the blob `fc/y`, for `fc/Identity` the operator `fc`.

    In a composed graph it is the same part: for `fc/y/grad[0:3,:]@r1` the blob `fc/y[0:3,:]@r1`.
    """
    blobs = {blob.name: blob for blob in graph.blobs}
    ops = {op.name: op for op in graph.ops}
    named: list[tuple[Node, Node | None]] = [(blob, blobs.get(_GRADIENT.sub("", blob.name))) for blob in graph.blobs]
    named += [(op, ops.get(_LAST.sub("", op.name))) for op in graph.ops]
    return {node: model for node, model in named if model is not None}


def _upward_row(node: Node, model: Node, rows: Rows, kinds: Mapping[Node, Kind]) -> int:
    """The row of its model, or the one above all that it needs of its own part, if that is higher."""
    own = [rows[tail] for tail in before(node) if tail in rows and kinds[tail] is not Kind.FORWARD]
    if model in rows and kinds[node] is Kind.GRADIENT and model is not node:
        return min([rows[model], *(row - 1 for row in own)])
    return min(own or [rows[tail] for tail in before(node) if tail in rows] or [0]) - 1
