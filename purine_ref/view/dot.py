"""`dot`: a graph in Graphviz's language, for its tools to lay out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from purine_ref.graph import Graph, Op
from purine_ref.tensor import Location
from purine_ref.view.parts import (
    TINTS,
    Kind,
    Node,
    edges,
    enclosing,
    kinds,
    memory,
    node_names,
    nodes,
    place_colours,
    place_of,
    printable,
    scopes,
    summary,
)


def dot(graph: Graph) -> str:
    """The graph as DOT text: ellipses for blobs, boxes for operators, a cluster for each scope of names.

    The border has the colour of the place, the fill of a box that of its kind. Cyclic graphs are drawn as well.
    """
    title = _quoted(f"{graph.name}: {summary(graph)}", f"memory before reuse: {memory(graph)}")
    lines = [
        "digraph {",
        f"  label={title}; labelloc=t; newrank=true;",
        '  graph [fontname="Helvetica", fontsize=14, style=rounded, color="#9aa7b6"];',
        '  node [fontname="Helvetica", fontsize=10, style=filled, fillcolor=white];',
        '  edge [color="#56657a", arrowsize=0.7];',
    ]
    lines += _clusters(graph)
    lines += [f"  {_identity(edge.tail)} -> {_identity(edge.head)};" for edge in edges(graph)]
    return "\n".join([*lines, "}", ""])


def _clusters(graph: Graph) -> Iterator[str]:
    """The nodes, each in the clusters of its scope; without recursion, since names nest as deep as they like."""
    scope_of = scopes(graph)
    members: dict[str, list[Node]] = defaultdict(list)
    for node in nodes(graph):
        members[scope_of[node]].append(node)
    inner = _nested(graph, members)
    colours, kind = place_colours(graph), kinds(graph)
    opened = 0
    stack: list[str | None] = [""]  # a scope to open, or None to close the latest
    while stack:
        scope = stack.pop()
        if scope is None:
            yield "  }"
            continue
        if scope:
            yield f"  subgraph cluster_{opened} {{ label={_quoted(scope)};"
            opened += 1
            stack.append(None)
        for node in members.get(scope, ()):
            yield f"  {_identity(node)} {_look(node, scope, kind[node], colours)};"
        stack += reversed(inner.get(scope, ()))


def _nested(graph: Graph, members: Mapping[str, list[Node]]) -> dict[str, list[str]]:
    """For every scope, those just within it, in the order in which the graph has them."""
    names = node_names(graph)
    inner: dict[str, dict[str, None]] = defaultdict(dict)
    for scope in members:
        while scope:
            outer = enclosing(scope, names)
            if scope in inner[outer]:
                break
            inner[outer][scope] = None
            scope = outer
    return {outer: list(found) for outer, found in inner.items()}


def _look(node: Node, scope: str, kind: Kind, colours: Mapping[Location, str]) -> str:
    """Its label has the name within its cluster, its tooltip the whole."""
    name = node.name[len(scope) + 1 :] if scope else node.name
    common = f'color="{colours[node.location]}", tooltip={_quoted(node.name)}'
    if isinstance(node, Op):
        label = _quoted(name, node.operation.name, *([place_of(node)] if len(colours) > 1 else []))
        return f'[shape=box, style="filled,rounded", label={label}, {common}, fillcolor="{TINTS[kind]}"]'
    width = ", penwidth=2" if node.persistent else ""
    return f"[shape=ellipse, label={_quoted(name, str(node.tensor))}, {common}{width}]"


def _identity(node: Node) -> str:
    return f"op{node.index}" if isinstance(node, Op) else f"blob{node.index}"


def _quoted(*lines: str) -> str:
    """A quoted string of lines, in which backslashes and HTML's entities, to Graphviz special, stand for themselves."""
    escaped = [printable(line).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    return '"' + "\\n".join(escaped) + '"'
