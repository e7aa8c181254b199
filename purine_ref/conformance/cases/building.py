"""Graphs from the plain data of a case, and back. What `view.to_json` wrote builds the same graph again.

Whatever is wrong is refused with its place in the file, such as `graph.operators[3].inputs[0]`.
"""

from __future__ import annotations

from typing import Any

from purine_ref.conformance.cases.attributes import (
    location_of,
    operation_of,
    require_integer,
    require_list,
    require_object,
    require_text,
    shortened,
)
from purine_ref.devices import CpuDevice, Device
from purine_ref.errors import GraphError, Refused
from purine_ref.graph import Blob, Graph
from purine_ref.names import nearest
from purine_ref.operation import RandomOperation
from purine_ref.plan import Plan, prepare
from purine_ref.tensor import DTYPES, Location
from purine_ref.view import to_json

MEMORY = 1 << 30
"""Bytes of all blobs that a case may have unless told otherwise."""

MOST_AXES = 32
"""Axes of a blob, and no more."""

_CPU = CpuDevice()


def everywhere(_: Location) -> Device:
    """The CPU, whatever the location: a case's locations are names of places, not hardware."""
    return _CPU


def plan_of(graph: Graph) -> Plan:
    """The plan of a case's graph. Raises what `prepare` raises."""
    return prepare(graph, everywhere)


def graph_to_data(graph: Graph) -> dict[str, Any]:
    """The field `graph` of a case. Raises GraphError as `view.to_json`."""
    whole = to_json(graph)
    return {name: whole[name] for name in ("name", "blobs", "operators", "pairs")}


def graph_from_data(data: object, memory: int = MEMORY) -> Graph:
    """The graph of a case's field `graph`, checked as a whole. Raises Refused; `memory` is bytes of all blobs."""
    given = require_object(data, "graph", ("name", "blobs", "operators", "pairs"))
    graph = Graph(require_text(given["name"], "graph.name"))
    for index, blob in enumerate(require_list(given["blobs"], "graph.blobs")):
        _add_blob(graph, blob, f"graph.blobs[{index}]")
    _require_memory(graph, memory)
    for index, operator in enumerate(require_list(given["operators"], "graph.operators")):
        _add_operator(graph, operator, f"graph.operators[{index}]")
    for index, pair in enumerate(require_list(given["pairs"], "graph.pairs")):
        _add_pair(graph, pair, f"graph.pairs[{index}]")
    try:
        plan_of(graph)
    except GraphError as error:
        raise Refused(f"graph: {error}") from None
    return graph


def _require_memory(graph: Graph, memory: int) -> None:
    """Raise Refused when the blobs need more. Nothing of their size was made until now."""
    needed = sum(graph.memory().values())
    if needed > memory:
        largest = max(graph.blobs, key=lambda blob: blob.tensor.nbytes)
        raise Refused(
            f"graph.blobs: expected {memory} bytes in all at most, got {shortened(needed)}; the largest is "
            f"{largest.name!r} of {shortened(largest.tensor.nbytes)} bytes"
        )


def _add_blob(graph: Graph, data: object, where: str) -> None:
    given = require_object(data, where, ("name", "shape", "dtype", "location", "persistent"), ("view",))
    name = require_text(given["name"], f"{where}.name")
    axes = require_list(given["shape"], f"{where}.shape")
    if len(axes) > MOST_AXES:
        raise Refused(f"{where}.shape: expected at most {MOST_AXES} axes, got {len(axes)}")
    shape = tuple(require_integer(axis, f"{where}.shape[{i}]", 0) for i, axis in enumerate(axes))
    if given["dtype"] not in DTYPES:
        raise Refused(f"{where}.dtype: expected one of {', '.join(DTYPES)}, got {shortened(given['dtype'])}")
    if type(given["persistent"]) is not bool:
        raise Refused(f"{where}.persistent: expected true or false, got {shortened(given['persistent'])}")
    location = location_of(given["location"], f"{where}.location")
    try:
        if "view" in given:
            _add_view(graph, name, given, shape, location, where)
        else:
            graph.blob(name, shape, given["dtype"], location, persistent=given["persistent"])
    except GraphError as error:
        raise Refused(f"{where}: {error}") from None


def _add_view(
    graph: Graph, name: str, given: dict[str, Any], shape: tuple[int, ...], location: Location, where: str
) -> None:
    """Add a view, whose other fields must be what its parent makes them. Raises Refused, GraphError."""
    view = require_object(given["view"], f"{where}.view", ("parent", "box"))
    parent = _blob(graph, view["parent"], f"{where}.view.parent")
    bounds = []
    for axis, ends in enumerate(require_list(view["box"], f"{where}.view.box")):
        place = f"{where}.view.box[{axis}]"
        if len(require_list(ends, place)) != 2:
            raise Refused(f"{place}: expected [start, stop], got {len(ends)} elements")
        start, stop = (require_integer(end, f"{place}[{i}]", 0) for i, end in enumerate(ends))
        bounds.append((start, stop))
    if (given["dtype"], location, given["persistent"]) != (parent.dtype, parent.location, False):
        raise Refused(f"{where}: expected a view of {parent!r}, of its dtype and location and not persistent")
    graph.view(parent, name, bounds, shape)


def _add_operator(graph: Graph, data: object, where: str) -> None:
    required = ("name", "operation", "attributes", "inputs", "outputs", "location", "stream")
    given = require_object(data, where, required)
    operation = operation_of(given["operation"], given["attributes"], where)
    if isinstance(operation, RandomOperation) and not operation.stream:
        raise Refused(f"{where}.attributes.stream: expected the name of a stream, got ''")
    ends = []
    for side in ("inputs", "outputs"):
        names = require_list(given[side], f"{where}.{side}")
        ends.append([_blob(graph, name, f"{where}.{side}[{i}]") for i, name in enumerate(names)])
    name = require_text(given["name"], f"{where}.name")
    place = location_of(given["location"], f"{where}.location")
    stream = require_text(given["stream"], f"{where}.stream")
    try:
        graph.connect(ends[0], operation, ends[1], name=name, location=place, stream=stream)
    except GraphError as error:
        raise Refused(f"{where}: {error}") from None


def _add_pair(graph: Graph, data: object, where: str) -> None:
    if len(require_list(data, where)) != 2:
        raise Refused(f"{where}: expected [current, following], got {len(data)} elements")  # type: ignore[arg-type]
    current, following = (_blob(graph, name, f"{where}[{i}]") for i, name in enumerate(data))  # type: ignore[arg-type, var-annotated]
    if not (current.persistent and following.persistent):
        raise Refused(f"{where}: expected two persistent blobs, got {current!r} and {following!r}")
    try:
        graph.swap(current, following)
    except GraphError as error:
        raise Refused(f"{where}: {error}") from None


def _blob(graph: Graph, name: object, where: str) -> Blob:
    """The blob of that name. Raises Refused."""
    if isinstance(name, str) and name in graph:
        return graph[name]
    hint = nearest(name, [blob.name for blob in graph.blobs]) if isinstance(name, str) and len(name) < 200 else ""
    raise Refused(f"{where}: expected the name of a blob, got {shortened(name)}{hint}")
