"""`to_json`: a graph as plain data, for other programs to read. Schema `purine-ref/graph/1`."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

from purine_ref.errors import GraphError
from purine_ref.graph import Blob, Graph, Op
from purine_ref.operation import Operation
from purine_ref.tensor import Location

SCHEMA = "purine-ref/graph/1"
"""Keys may be added under this number; none changes its meaning."""


def to_json(graph: Graph) -> dict[str, Any]:
    """The graph as dicts, lists, strings, numbers, booleans and None, which `json.dumps` writes as strict JSON.

    Blobs and operators are in the order of their making; an operator's inputs and outputs are blob names, one an edge,
    in the order of its slots. Order decides how several producers of a blob add (rule R4): it is that of the operators.
    `pairs` are swapped after each run; `parameters` have initial values and multipliers. Attributes are those of the
    operation's class: tuples become lists, a location its rank and device, inf and nan the strings "inf", "-inf",
    "nan". Cyclic graphs are described as well.

    Raises GraphError for an attribute that has no such form.
    """
    return {
        "schema": SCHEMA,
        "name": graph.name,
        "blobs": [blob_to_json(blob) for blob in graph.blobs],
        "operators": [_operator(op) for op in graph.ops],
        "pairs": [[current.name, following.name] for current, following in graph.pairs],
        "parameters": [_parameter(graph, blob) for blob in graph.parameters],
    }


def blob_to_json(blob: Blob) -> dict[str, Any]:
    """A blob as `to_json` has it."""
    described = {
        "name": blob.name,
        "shape": list(blob.shape),
        "dtype": blob.dtype,
        "location": location_to_json(blob.location),
        "persistent": blob.persistent,
    }
    if blob.view is not None:
        described["view"] = {"parent": blob.view.parent.name, "box": [list(bounds) for bounds in blob.view.box]}
    return described


def _operator(op: Op) -> dict[str, Any]:
    return {
        "name": op.name,
        **operation_to_json(op.operation, f"operator {op.name!r}"),
        "inputs": [blob.name for blob in op.inputs],
        "outputs": [blob.name for blob in op.outputs],
        "location": location_to_json(op.location),
        "stream": op.stream,
    }


def _parameter(graph: Graph, blob: Blob) -> dict[str, Any]:
    rate, decay = graph.multipliers[blob.name]
    initial = operation_to_json(graph.initial[blob.name], f"initial value of {blob.name!r}")
    return {"name": blob.name, "initial": initial, "rate": rate, "decay": decay}


def operation_to_json(operation: Operation, owner: str) -> dict[str, Any]:
    """`operation` and `attributes` of an operator, as `to_json` has them; `owner` says whose, in an error.

    Raises GraphError for an attribute that has no such form.
    """
    return {"operation": operation.name, "attributes": _attributes(operation, owner)}


def _attributes(holder: Any, owner: str) -> dict[str, Any]:
    names = [field.name for field in fields(holder)] if is_dataclass(holder) else list(vars(holder))
    return {name: _value(getattr(holder, name), f"{owner}: attribute {name!r}") for name in names}


def _value(value: Any, owner: str) -> Any:
    """A value of an attribute as plain data. Attributes nest as their classes do, which is not deep."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (tuple, list)):
        return [_value(part, owner) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return _attributes(value, owner)
    raise GraphError(
        f"{owner} has no JSON form: expected None, a boolean, a number, a string, a tuple or a dataclass of these, "
        f"got {type(value).__name__} {value!r}"
    )


def location_to_json(location: Location) -> dict[str, int]:
    """A place: rank, and device, which is below 0 for a CPU."""
    return {"rank": location.rank, "device": location.device}
