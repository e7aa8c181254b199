"""Attributes of operations from plain data: what `view.to_json` wrote, checked against the class's annotations.

Nothing is guessed: every attribute must be there, of its own type, with lists for tuples, an object for a location,
and "inf" and "-inf" for what JSON has no number for. Values that the operation itself refuses are refused by it.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from purine_ref import ops
from purine_ref.errors import Refused, ShapeError
from purine_ref.operation import Operation
from purine_ref.tensor import Location
from purine_ref.view import operation_to_json

OPERATIONS: Mapping[str, type[Operation]] = {name: getattr(ops, name) for name in sorted(ops.__all__)}
"""The operations that a case may use, by name: all public ones."""

LARGEST = 2**63 - 1
"""The largest integer that an attribute may have, either sign."""


def operation_of(name: object, attributes: object, where: str) -> Operation:
    """The operation of that name with those attributes. Raises Refused, saying `where`, for anything else."""
    if not isinstance(name, str) or name not in OPERATIONS:
        raise Refused(f"{where}.operation: expected one of {', '.join(OPERATIONS)}; got {shortened(name)}")
    kinds, at = _kinds(name), f"{where}.attributes"
    given = require_object(attributes, at, kinds)
    decoded = {key: _decoded(kind, given[key], f"{at}.{key}") for key, kind in kinds.items()}
    try:
        operation = OPERATIONS[name](**decoded)
    except ShapeError as error:
        raise Refused(f"{at}: {error}") from None
    for key, value in operation_to_json(operation, where)["attributes"].items():
        if value != given[key]:  # such as one number for a pair: a reader must know one form alone
            raise Refused(f"{at}.{key}: expected it written as {value!r}, got {shortened(given[key])}")
    return operation


def location_of(data: object, where: str) -> Location:
    """A location from {"rank": r, "device": d}. Raises Refused."""
    given = require_object(data, where, ("rank", "device"))
    rank = require_integer(given["rank"], f"{where}.rank", 0)
    return Location(rank, require_integer(given["device"], f"{where}.device", -LARGEST))


def require_object(
    data: object, where: str, required: typing.Collection[str], optional: typing.Collection[str] = ()
) -> dict[str, Any]:
    """`data` itself, if it is an object with the `required` names and no others but `optional`. Raises Refused."""
    if not isinstance(data, dict):
        raise Refused(f"{where}: expected an object with {', '.join(required) or 'no names'}, got {shortened(data)}")
    for name in required:
        if name not in data:
            raise Refused(f"{where}.{name}: expected this field, got none")
    for name in data:
        if name not in required and name not in optional:
            raise Refused(f"{where}.{shortened(name)}: expected no such field; known are {', '.join(required)}")
    return data


def require_list(data: object, where: str) -> list[Any]:
    """`data` itself, if it is a list. Raises Refused."""
    if not isinstance(data, list):
        raise Refused(f"{where}: expected a list, got {shortened(data)}")
    return data


def require_text(data: object, where: str) -> str:
    """`data` itself, if it is a string that UTF-8 can hold. Raises Refused."""
    if not isinstance(data, str) or any("\ud800" <= letter <= "\udfff" for letter in data):
        raise Refused(f"{where}: expected a string, got {shortened(data)}")
    return data


def require_integer(data: object, where: str, least: int, most: int = LARGEST) -> int:
    """`data` itself, if it is an integer from `least` to `most`. Raises Refused."""
    if type(data) is not int or not least <= data <= most:
        raise Refused(f"{where}: expected an integer from {least} to {most}, got {shortened(data)}")
    return data


def shortened(data: object) -> str:
    """A value in a message, cut where it is long."""
    if isinstance(data, dict | list):
        return "an object" if isinstance(data, dict) else "a list"
    if type(data) is int and data.bit_length() > 256:  # which takes long to write down
        return f"an integer of {data.bit_length()} bits"
    text = repr(data)
    return text if len(text) <= 80 else f"{text[:77]}..."


@cache
def _kinds(name: str) -> dict[str, Any]:
    """The annotation of every attribute of an operation, in order."""
    operation = OPERATIONS[name]
    hints = typing.get_type_hints(operation)
    return {field.name: hints[field.name] for field in fields(operation)}  # type: ignore[arg-type]


def _decoded(kind: Any, data: Any, where: str) -> Any:
    """`data` as a value of the annotation `kind`. Raises Refused."""
    if isinstance(kind, types.UnionType):
        return _either(typing.get_args(kind), data, where)
    if typing.get_origin(kind) is tuple:
        return _tuple(typing.get_args(kind), data, where)
    return _SCALARS[kind](data, where)


def _either(kinds: tuple[Any, ...], data: Any, where: str) -> Any:
    """The first kind that fits."""
    refusals = []
    for kind in kinds:
        try:
            return _decoded(kind, data, where)
        except Refused as error:
            refusals.append(str(error))
    raise Refused("; or ".join(refusals))


def _tuple(kinds: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    """A tuple of any length of one kind, or of one element for each of `kinds`."""
    given = require_list(data, where)
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(given)
    if len(given) != len(kinds):
        raise Refused(f"{where}: expected {len(kinds)} elements, got {len(given)}")
    return tuple(_decoded(kind, each, f"{where}[{i}]") for i, (kind, each) in enumerate(zip(kinds, given, strict=True)))


def _float(data: Any, where: str) -> float:
    """A number. An integer stays one, since it is a constant's value of int64."""
    if data in ("inf", "-inf"):
        return float(data)
    if type(data) is int and abs(data) <= LARGEST:
        return data
    if type(data) is not float or not math.isfinite(data):
        raise Refused(f'{where}: expected a number, "inf" or "-inf", got {shortened(data)}')
    return data


def _boolean(data: Any, where: str) -> bool:
    if type(data) is not bool:
        raise Refused(f"{where}: expected true or false, got {shortened(data)}")
    return data


def _nothing(data: Any, where: str) -> None:
    if data is not None:
        raise Refused(f"{where}: expected null, got {shortened(data)}")


_SCALARS: Mapping[Any, Callable[[Any, str], Any]] = {
    int: lambda data, where: require_integer(data, where, -LARGEST - 1),
    float: _float,
    bool: _boolean,
    str: require_text,
    Location: location_of,
    types.NoneType: _nothing,
}
