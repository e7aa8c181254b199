"""The plain twin of the reader of a trace's lines: from JSON to rows of integers, or a refusal in words.

The compiled twin `_lines.pyx` has the same names, signatures, errors and numbers. It reads the usual spelling of a line
by itself, and leaves every other to `decode_line`, so that both refuse the same lines in the same words.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from purine_ref._fast.events import (
    ABSENT,
    END,
    FAILED,
    FAILED_THERE,
    KINDS,
    LARGEST,
    MISPLACED,
    MOST_IN_LINE,
    MOST_WORKERS,
    NUMBERS,
    OF_BLOB,
    OF_OP,
    RECEIVED,
    STOP,
    UNKNOWN,
    Names,
)

Array = Any
"""A numpy array of int64, with a row of six columns for each line."""

_KEYS = frozenset(("seq", "event", "iteration", "op", "blob", "worker", "time", "stream", "location"))


def encode_lines(lines: Sequence[bytes], names: Names, rows: Array) -> int:
    """Write a row for each line; returns how many. Raises ValueError for a bad line, with `args` (words, its index)."""
    for index, line in enumerate(lines):
        try:
            rows[index] = decode_line(line, names)
        except ValueError as error:
            raise ValueError(str(error), index) from None
    return len(lines)


def decode_line(line: bytes, names: Names) -> tuple[int, int, int, int, int, int]:
    """The event of a line, in any spelling. Raises ValueError, in words, for what is no event."""
    if len(line) >= MOST_IN_LINE:
        raise ValueError(f"longer than {MOST_IN_LINE} bytes")
    try:
        event = _DECODER.decode(line.decode("utf-8"))
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    if not isinstance(event, dict):
        raise ValueError(f"expected a JSON object, got {type(event).__name__}")
    if not _KEYS.issuperset(event):
        raise ValueError(f"unknown key {min(event.keys() - _KEYS)!r}; expected {', '.join(sorted(_KEYS))}")
    kind = _kind(event)
    iteration = ABSENT if kind == STOP else _integer(event, "iteration")
    for key, numbers in (("op", OF_OP), ("blob", OF_BLOB)):
        wanted, there = kind in numbers, key in event
        if wanted != there and not (key == "op" and kind == FAILED):
            raise ValueError(f"a line of {KINDS[kind]!r} {'lacks' if wanted else 'cannot have'} the key {key!r}")
    if kind == STOP and "iteration" in event:
        raise ValueError("a line of 'stop' cannot have the key 'iteration'")
    op, blob = _number(event, "op", names.ops), _number(event, "blob", names.blobs)
    worker = _worker(event, names)
    if isinstance(event.get("time", 0), bool) or not isinstance(event.get("time", 0), (int, float)):
        raise ValueError(f"'time': expected a number, got {event['time']!r}")
    kind, op = _placed(event, kind, op, names)
    return _integer(event, "seq"), kind, iteration, op, blob, worker


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _kind(event: dict[str, Any]) -> int:
    kind = event.get("event")
    if not isinstance(kind, str) or kind not in NUMBERS:
        raise ValueError(f"'event': expected one of {', '.join(NUMBERS)}, got {kind!r}")
    return NUMBERS[kind]


def _integer(event: dict[str, Any], key: str) -> int:
    value = event.get(key)
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"{key!r}: expected an integer from 0 to {LARGEST}, got {value!r}")
    return value


def _number(event: dict[str, Any], key: str, numbers: dict[str, int]) -> int:
    if key not in event:
        return ABSENT
    if not isinstance(event[key], str):
        raise ValueError(f"{key!r}: expected a name, got {event[key]!r}")
    return numbers.get(event[key], UNKNOWN)


def _worker(event: dict[str, Any], names: Names) -> int:
    if "worker" not in event:
        return ABSENT
    name = event["worker"]
    if not isinstance(name, str):
        raise ValueError(f"'worker': expected a name, got {name!r}")
    number = names.workers.setdefault(name, len(names.workers))
    if number >= MOST_WORKERS:
        raise ValueError(f"more than {MOST_WORKERS} names of workers")
    return number


def _placed(event: dict[str, Any], kind: int, op: int, names: Names) -> tuple[int, int]:
    """The kind, which for `failed` may depend on the place, and the operator, or MISPLACED."""
    location, stream = event.get("location"), event.get("stream")
    if (location is not None or stream is not None) and op == ABSENT:
        raise ValueError("'stream' and 'location' are an operator's, but the line has no 'op'")
    if "stream" in event and not isinstance(stream, str):
        raise ValueError(f"'stream': expected a name, got {stream!r}")
    place = None
    if "location" in event:
        place = _location(location)
    if op < 0:
        return kind, op
    source, target, own = names.places[op]
    if kind == FAILED and place == target != source:
        kind = FAILED_THERE
    expected = target if kind in (RECEIVED, END, FAILED_THERE) else source
    if (place is not None and place != expected) or (stream is not None and own is not None and stream != own):
        return kind, MISPLACED
    return kind, op


def _location(value: Any) -> tuple[int, int]:
    keys = {"rank", "device"}
    if not isinstance(value, dict) or value.keys() != keys or any(type(part) is not int for part in value.values()):
        raise ValueError(f'\'location\': expected {{"rank": r, "device": d}}, got {value!r}')
    return value["rank"], value["device"]


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
