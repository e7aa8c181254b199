"""What the drawings of a graph share: its edges, what each node is for, scopes of names, colours, words.

Functions of a `Graph` that change nothing; for the modules of this package. All are linear in the graph.
"""

from __future__ import annotations

import colorsys
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from enum import StrEnum

from purine_ref.graph import Blob, Graph, Op
from purine_ref.parallel import Composed
from purine_ref.parallel.pieces import place_name
from purine_ref.tensor import Location

Node = Blob | Op
"""Either side of the bi-graph."""


class Kind(StrEnum):
    """What a node is for, in the order in which the drawings place them."""

    FORWARD = "forward"
    GRADIENT = "gradient"
    UPDATE = "update"


TINTS = {Kind.FORWARD: "#e4eefa", Kind.GRADIENT: "#fde8d8", Kind.UPDATE: "#e1f2e0"}
"""The fill of operators, by kind."""

_GRADIENT_NAME = re.compile(r"(?:.*/)?grad(?:\.\d+)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Edge:
    """One edge, in the direction of the data: one end is a blob, the other an operator."""

    tail: Node
    head: Node


def nodes(graph: Graph) -> list[Node]:
    """All blobs, then all operators, in the order of their making."""
    return [*graph.blobs, *graph.ops]


def edges(graph: Graph) -> Iterator[Edge]:
    """Every edge once: operator by operator, its inputs, then its outputs, in the order of their slots."""
    for op in graph.ops:
        yield from (Edge(blob, op) for blob in op.inputs)
        yield from (Edge(op, blob) for blob in op.outputs)


def edge_count(graph: Graph) -> int:
    """How many edges there are."""
    return sum(len(op.inputs) + len(op.outputs) for op in graph.ops)


def is_gradient(blob: Blob) -> bool:
    """Whether a blob holds a gradient: `backward` names them `<blob>/grad` and `<operator>/grad.<slot>`."""
    return _GRADIENT_NAME.fullmatch(blob.name) is not None


def kinds(graph: Graph) -> dict[Node, Kind]:
    """The kind of every node.

    An operator that writes a gradient is of the gradient. One that reads a gradient without writing one, or writes a
    value for the next run (the second of a swapped pair), is of the update. Every other is forward. In a composed graph
    an operator is of the kind of the serial one that it is a part of, and what moves or adds is of the kind of what
    made the first thing that it moves. A blob is of the kind of what writes it; without a producer it is of the first
    kind, in their order, among its readers.
    """
    found = _composed_kinds(graph) if isinstance(graph, Composed) else _op_kinds(graph)
    for blob in graph.blobs:
        around = [found[op] for op, _ in blob.producers or blob.consumers]
        first = next((kind for kind in Kind if kind in around), Kind.FORWARD)
        found[blob] = Kind.GRADIENT if is_gradient(blob) else first
    return found


def _op_kinds(graph: Graph) -> dict[Node, Kind]:
    following = {blob for _, blob in graph.pairs}
    return {op: _kind(op, following) for op in graph.ops}


def _composed_kinds(graph: Composed) -> dict[Node, Kind]:
    serial = _op_kinds(graph.serial)
    found: dict[Node, Kind] = {}
    for op in graph.ops:  # in the order of their making, which has what is moved before what moves it
        makers = [producer for blob in op.inputs[:1] for producer, _ in blob.producers[:1] if producer in found]
        moved = found[makers[0]] if makers else Kind.FORWARD
        found[op] = serial[graph.origin[op][0]] if op in graph.origin else moved
    return found


def _kind(op: Op, following: set[Blob]) -> Kind:
    if any(is_gradient(blob) for blob in op.outputs):
        return Kind.GRADIENT
    if any(is_gradient(blob) for blob in op.inputs) or not following.isdisjoint(op.outputs):
        return Kind.UPDATE
    return Kind.FORWARD


def node_names(graph: Graph) -> set[str]:
    """The names of all blobs and operators; of a composed graph, the serial graph's as well."""
    return {node.name for node in nodes(graph)} | (node_names(graph.serial) if isinstance(graph, Composed) else set())


def enclosing(name: str, names: Set[str]) -> str:
    """The longest proper prefix of a name, up to a slash, that is not among `names`, or ""."""
    scope = name.rpartition("/")[0]
    while scope in names:
        scope = scope.rpartition("/")[0]
    return scope


def scopes(graph: Graph) -> dict[Node, str]:
    """The scope of every node: the longest prefix of its name that is not itself the name of a node, or "".

    So `conv1/weight/grad`, which was made for the blob `conv1/weight`, is in `conv1`.
    """
    names = node_names(graph)
    return {node: enclosing(node.name, names) for node in nodes(graph)}


def places(graph: Graph) -> list[Location]:
    """The locations of the graph's nodes, in order."""
    return sorted({node.location for node in nodes(graph)})


def place_colours(graph: Graph) -> dict[Location, str]:
    """A colour for each location of the graph, as `#rrggbb`; hues a golden angle apart, so that all differ."""
    return {place: _colour(0.59 + 0.381966 * number) for number, place in enumerate(places(graph))}


def _colour(hue: float) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue % 1, 0.36, 0.5))


def shortened(node: Node, name: str, *, in_band: bool) -> str:
    """A name as a label: without the operation that ends it, before its part; in a band, without the place."""
    if isinstance(node, Op):
        name = re.sub(rf"/{re.escape(node.operation.name)}(?=[\[@]|$)", "", name, count=1)
    if in_band:
        name = re.sub(rf"@{place_name(node.location)}(?![d\d])", "", name, count=1)
    return name


def place_of(op: Op) -> str:
    """An operator's location, with its stream where that is not the usual one."""
    return str(op.location) if op.stream == "main" else f"{op.location}/{op.stream}"


def summary(graph: Graph) -> str:
    """Counts in words."""
    counts = {"operator": len(graph.ops), "blob": len(graph.blobs), "edge": edge_count(graph)}
    return ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts.items())


def memory(graph: Graph) -> str:
    """The graph's memory per location, in words."""
    return ", ".join(f"{place} {byte_size(count)}" for place, count in sorted(graph.memory().items())) or "none"


def byte_size(count: int) -> str:
    """Bytes as people write them: `940 B`, `1.3 KiB`, `12 MiB`."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}" if unit != "B" and size < 10 else f"{size:.0f} {unit}"


def printable(text: str) -> str:
    """`text` with a replacement sign for every character that has no place in a drawing, such as a control code."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
