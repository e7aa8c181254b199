"""What a trace is judged against: the structure of a graph, from a `Graph` or from a file that describes one.

Only names, edges, places, streams, declared views and pairs matter, so a graph of operations that this package does not
know can be judged too. A file is a case (`purine-case/1`), its folder, or what `purine-ref show` writes as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from purine_ref._fast import Edges, Tracker
from purine_ref._fast.events import HAS_END, HAS_RECEIVED, HAS_SENT, HAS_START, Names, Place, Wiring
from purine_ref.conformance.tracing.overlaps import overlaps
from purine_ref.errors import GraphError, Refused
from purine_ref.graph import Blob, Graph
from purine_ref.names import nearest
from purine_ref.tensor import Location
from purine_ref.view import blob_to_json, location_to_json

MOST_BYTES = 2**28
"""A description of a graph that is larger than this is refused."""

MOST_PLACES = 2**31
"""Ranks and devices are less than this."""

REARRANGING = frozenset(("Concat", "Split", "Slice", "Reshape", "Identity"))
"""Operations that move nothing between views of one memory."""

FORMATS = ("purine-case/1", "purine-ref/graph/1", "purine-ref/show/1")


@dataclass(frozen=True)
class Structure:
    """A graph as the judge and its words need it: `blobs`, without operators; the operators' names; the wiring."""

    blobs: list[Blob]
    ops: list[str]
    wiring: Wiring
    places: list[Place]

    def names(self) -> Names:
        """A table for the lines of one trace."""
        numbers = {blob.name: number for number, blob in enumerate(self.blobs)}
        return Names({name: number for number, name in enumerate(self.ops)}, numbers, self.places)


def structure_of(graph: Graph) -> Structure:
    """The structure of a graph. Raises Refused for a cycle, or a copy between ranks of more than one blob."""
    described = {
        "name": graph.name,
        "blobs": [blob_to_json(blob) for blob in graph.blobs],
        "operators": [
            {
                "name": op.name,
                "operation": op.operation.name,
                "inputs": [blob.name for blob in op.inputs],
                "outputs": [blob.name for blob in op.outputs],
                "location": location_to_json(op.location),
                "stream": op.stream,
            }
            for op in graph.ops
        ],
        "pairs": [[current.name, following.name] for current, following in graph.pairs],
    }
    return structure_from(described)


def read_structure(path: str | Path) -> Structure:
    """The structure of the graph that a case folder or a JSON file describes. Raises Refused, with the place in it."""
    file = Path(path)
    if file.is_dir():
        file = file / "case.json"
    try:
        if file.stat().st_size > MOST_BYTES:
            raise Refused(f"{file}: {file.stat().st_size} bytes; a graph's description has at most {MOST_BYTES}")
        whole = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Refused(f"{file}: not JSON: {error}") from None
    form = (whole.get("format") or whole.get("schema")) if isinstance(whole, dict) else None
    if form not in FORMATS:
        raise Refused(f"{file}: 'format' or 'schema': expected one of {', '.join(FORMATS)}, got {form!r}")
    described = whole if form == "purine-ref/graph/1" else whole.get("graph")
    try:
        return structure_from(described)
    except Refused as error:
        raise Refused(f"{file}: {error}") from None


def structure_from(described: Any) -> Structure:
    """The structure that plain data describe, as `purine_ref.view.to_json` gives them; attributes are not looked at.

    Raises Refused, with the place in the data.
    """
    try:
        graph = _blobs(_part(described, "graph", dict))
        operators = _list(described, "graph", "operators")
        reading = _Reading(graph, operators)
        pairs = [_pair(graph, pair, f"pairs[{i}]") for i, pair in enumerate(_list(described, "graph", "pairs"))]
        return reading.structure(pairs)
    except GraphError as error:
        raise Refused(str(error)) from None


def _blobs(described: dict[str, Any]) -> Graph:
    """A graph with the blobs alone, which checks names, shapes and views."""
    graph = Graph("described")
    for index, entry in enumerate(_list(described, "graph", "blobs")):
        place = f"blobs[{index}]"
        name, shape, dtype = _text(entry, place, "name"), _list(entry, place, "shape"), _text(entry, place, "dtype")
        persistent = _part(entry.get("persistent", False), f"{place}.persistent", bool)
        try:
            if entry.get("view") is None:
                graph.blob(name, shape, dtype, _place(entry, place), persistent=persistent)
                continue
            view = _part(entry["view"], f"{place}.view", dict)
            box = [(int(a), int(b)) for a, b in _list(view, f"{place}.view", "box")]
            graph.view(_blob(graph, _text(view, f"{place}.view", "parent"), f"{place}.view.parent"), name, box, shape)
        except (GraphError, TypeError, ValueError) as error:
            raise Refused(f"{place}: {error}") from None
    return graph


class _Reading:
    """The operators of a description, wired to the blobs."""

    def __init__(self, graph: Graph, operators: Sequence[Any]) -> None:
        self.graph = graph
        self.blobs = graph.blobs
        self.names: dict[str, int] = {}
        self.operations: list[str] = []
        self.needs: list[int] = []
        self.inputs: list[list[int]] = []
        self.outputs: list[list[int]] = []
        self.producers: list[list[int]] = [[] for _ in graph.blobs]
        self.consumers: list[list[int]] = [[] for _ in graph.blobs]
        self.places: list[Place] = []
        self.queues: list[int] = []
        self._queues: dict[tuple[int, int, str], int] = {}
        for index, entry in enumerate(operators):
            self._operator(graph, entry, f"operators[{index}]")

    def _operator(self, graph: Graph, entry: Any, place: str) -> None:
        name, index = _text(entry, place, "name"), len(self.names)
        if name in self.names:
            raise Refused(f"{place}.name: another operator has the name {name!r}")
        self.names[name] = index
        ends = [
            [_blob(graph, mention, f"{place}.{side}[{i}]") for i, mention in enumerate(_list(entry, place, side))]
            for side in ("inputs", "outputs")
        ]
        for rows, edges, blobs in ((self.inputs, self.consumers, ends[0]), (self.outputs, self.producers, ends[1])):
            rows.append([blob.index for blob in blobs])
            for blob in blobs:
                edges[blob.index].append(index)
        self.operations.append(_text(entry, place, "operation"))
        self._place(ends[0], ends[1], _place(entry, place), _text(entry, place, "stream"), place)

    def _place(self, inputs: list[Blob], outputs: list[Blob], here: Location, stream: str, place: str) -> None:
        """Where the operator reads and writes, its events, and its queue."""
        crosses = bool(inputs and outputs) and inputs[0].location.rank != outputs[0].location.rank
        if crosses and (len(inputs), len(outputs)) != (1, 1):
            raise Refused(f"{place}: a copy between ranks has one input and one output")
        source, target = (inputs[0].location, outputs[0].location) if crosses else (here, here)
        sends = crosses or (self.operations[-1] == "Send" and not outputs)
        receives = crosses or (self.operations[-1] == "Receive" and not inputs)
        needs = (HAS_START | HAS_SENT) * sends | (HAS_RECEIVED | HAS_END) * receives
        self.needs.append(needs or HAS_START | HAS_END)
        ends = (source.rank, source.device), (target.rank, target.device)
        self.places.append(Place(*ends, None if needs else stream))
        queued = not (needs or here.is_cpu)
        key = (here.rank, here.device, stream)
        self.queues.append(self._queues.setdefault(key, len(self._queues)) if queued else -1)

    def structure(self, pairs: list[tuple[int, int]]) -> Structure:
        """The whole. Raises Refused for a cycle."""
        try:
            shared = overlaps(self.graph)
        except ValueError as error:
            raise Refused(f"blobs: {error}") from None
        roots: list[Blob] = []
        for blob in self.blobs:  # what a view lies in was made before it
            roots.append(blob if blob.view is None else roots[blob.view.parent.index])
        ranks = {rank: number for number, rank in enumerate({end[0] for place in self.places for end in place[:2]})}
        wiring = Wiring(
            self.needs,
            self.inputs,
            self.outputs,
            self.queues,
            [ranks[place.source[0]] for place in self.places],
            [ranks[place.target[0]] for place in self.places],
            [0 if self._renames(op, roots) else 1 for op in range(len(self.needs))],
            self.producers,
            self.consumers,
            shared,
            [0 if row else 1 for row in self.producers],
            [1 if root.persistent else 0 for root in roots],
            pairs,
        )
        self._require_acyclic(wiring)
        return Structure(self.blobs, list(self.names), wiring, self.places)

    def _renames(self, op: int, roots: list[Blob]) -> bool:
        """Whether the operator finds its outputs where its inputs are."""
        mentioned = [*self.inputs[op], *self.outputs[op]]
        return self.operations[op] in REARRANGING and len({roots[blob].index for blob in mentioned}) == 1

    def _require_acyclic(self, wiring: Wiring) -> None:
        waiting, counts = wiring.waiting, [len(row) for row in wiring.producers]
        edges = Edges(list(self.names), waiting, counts, wiring.outputs, wiring.consumers)
        walked = Tracker(edges).walk([op for op, count in enumerate(waiting) if count == 0])
        if walked < len(waiting):
            raise Refused(f"operators: {len(waiting) - walked} are in a cycle or behind one (rule R1)")


def _part(value: Any, place: str, kind: type) -> Any:
    if not isinstance(value, kind):
        raise Refused(f"{place}: expected {kind.__name__}, got {type(value).__name__}")
    return value


def _field(entry: Any, place: str, key: str, kind: type) -> Any:
    _part(entry, place, dict)
    if key not in entry:
        raise Refused(f"{place}: the field {key!r} is missing")
    return _part(entry[key], f"{place}.{key}", kind)


def _list(entry: Any, place: str, key: str) -> list[Any]:
    found: list[Any] = _field(entry, place, key, list)
    return found


def _text(entry: Any, place: str, key: str) -> str:
    return str(_field(entry, place, key, str))


def _place(entry: Any, place: str) -> Location:
    location = _field(entry, place, "location", dict)
    numbers = [_field(location, f"{place}.location", key, int) for key in ("rank", "device")]
    if any(isinstance(number, bool) or abs(number) >= MOST_PLACES for number in numbers):
        raise Refused(f"{place}.location: expected integers of less than {MOST_PLACES}, got {location!r}")
    try:
        return Location(*numbers)
    except GraphError as error:
        raise Refused(f"{place}.location: {error}") from None


def _blob(graph: Graph, name: Any, place: str) -> Blob:
    if not isinstance(name, str) or name not in graph:
        hint = nearest(name, [blob.name for blob in graph.blobs]) if isinstance(name, str) else ""
        raise Refused(f"{place}: there is no blob {name!r}{hint}")
    return graph[name]


def _pair(graph: Graph, pair: Any, place: str) -> tuple[int, int]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise Refused(f"{place}: expected [current, following], got {pair!r}")
    current, following = (_blob(graph, name, f"{place}[{i}]") for i, name in enumerate(pair))
    graph.swap(current, following)
    return current.index, following.index
