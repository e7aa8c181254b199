"""`text`: a graph to read in a terminal, as paths from source to sink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from purine_ref.graph import Blob, Graph, Op
from purine_ref.view.parts import Kind, Node, edges, kinds, memory, place_of, places, printable, summary
from purine_ref.view.rows import after, before, reading_order

_SHORT = 3
"""Nodes of a path that fits on one line; a longer one has a line for each operator."""


def text(graph: Graph) -> str:
    """The graph as paths that have every edge once: those of each kind, then edges between kinds; and swapped pairs.

    `(name Operation @ place)` is an operator, `name dtype[shape]` a blob. Where a node is met again, it is its name
    alone. The order is that of the graph's making. Raises CycleError.
    """
    order = reading_order(graph)
    kind = kinds(graph)
    writer = _Writer(several_places=len(places(graph)) > 1)
    parts = {str(part): paths([node for node in order if kind[node] is part]) for part in Kind}
    parts["from part to part"] = ([edge.tail, edge.head] for edge in edges(graph) if kind[edge.tail] != kind[edge.head])
    lines = [f"{printable(graph.name)}: {summary(graph)}", f"memory before reuse: {memory(graph)}"]
    for part, found in parts.items():
        written = [line for path in found for line in writer.lines(path)]
        lines += ["", f"{part}:", *written] if written else []
    swapped = [f"{current.name} <-> {following.name}" for current, following in graph.pairs]
    lines += ["", "swapped after each run:", *swapped] if swapped else []
    return "\n".join([*lines, ""])


def paths(order: Sequence[Node]) -> Iterator[list[Node]]:
    """Paths within some nodes, which together have each edge between them once; none could be longer at either end.

    `order` is topological: what could precede a path has no edge left when the path's start is reached. A node without
    such edges is a path of its own, unless other nodes have edges with it.
    """
    within = set(order)
    ahead = {node: iter([head for head in after(node) if head in within]) for node in order}
    for start in order:
        if not before(start) and not after(start):
            yield [start]
        while (following := next(ahead[start], None)) is not None:
            path = [start]
            while following is not None:
                path.append(following)
                following = next(ahead[following], None)
            yield path


class _Writer:
    """Writes paths; `described` are the nodes that were shown in full."""

    def __init__(self, several_places: bool) -> None:
        self.several_places = several_places
        self.described: set[Node] = set()

    def lines(self, path: Sequence[Node]) -> Iterator[str]:
        """One line for a short path; else the first blob's, and one for each operator with what it makes."""
        words = [self.word(node) for node in path]
        if len(path) <= _SHORT:
            yield " -> ".join(words)
            return
        first = 1 if isinstance(path[0], Blob) else 2
        yield " -> ".join(words[:first])
        for start in range(first, len(words), 2):
            yield "  -> " + " -> ".join(words[start : start + 2])

    def word(self, node: Node) -> str:
        """The node in full at first, then its name."""
        known = node in self.described
        self.described.add(node)
        if isinstance(node, Op):
            return f"({node.name})" if known else f"({_operator(node)} @ {printable(place_of(node))})"
        return node.name if known else self.blob(node)

    def blob(self, blob: Blob) -> str:
        """Name, dtype and shape; its place if there are several; what it is a view of; whether it outlives a run."""
        words = [f"{blob.name} {blob.tensor}"]
        if self.several_places:
            words.append(f"@ {blob.location}")
        if blob.view is not None:
            words.append(f"in {blob.view.parent.name}{_box(blob)}")
        if blob.persistent:
            words.append("persistent")
        return " ".join(words)


def _operator(op: Op) -> str:
    """Name and operation; the name alone where it ends in the operation, as a gradient operator's does."""
    return op.name if op.name.rpartition("/")[2] == op.operation.name else f"{op.name} {op.operation.name}"


def _box(blob: Blob) -> str:
    """The part of its parent that a view is, as a slice; nothing where it is the whole."""
    assert blob.view is not None
    if blob.view.box == tuple((0, length) for length in blob.view.parent.shape):
        return ""
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in blob.view.box) + "]"
