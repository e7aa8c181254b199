"""The messages of `purine-drive/1`: requests to bytes, and bytes to replies, of which nothing is believed.

The protocol is the page `docs/porting/drive.md`. A message is a JSON object on one line; over ZeroMQ, in one frame.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from purine_ref.conformance.driving.faults import PortFault, Unsupported

PROTOCOL = "purine-drive/1"
"""The protocol's name and version."""

LONGEST = 1 << 20
"""The most bytes of a message, its end of line counted."""

ERRORS = ("definite", "indefinite", "unsupported")
"""The kinds of errors that a reply may tell of."""

DTYPES = ("float32", "float64", "int64")
"""The dtypes that a case may have."""

FLAGS = ("schedules", "streams", "locations", "views", "trace")
"""What a port may say that it can do; what it leaves out it cannot."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a port says of itself; the fields are those of the page's table."""

    name: str
    version: str
    operations: frozenset[str]
    dtypes: frozenset[str]
    workers: int = 1
    schedules: bool = False
    streams: bool = False
    locations: bool = False
    views: bool = False
    trace: bool = False


def encode(message: Mapping[str, Any]) -> bytes:
    """A message as UTF-8, without an end of line."""
    return json.dumps(message, ensure_ascii=False, allow_nan=False).encode()


def decode(raw: bytes) -> dict[str, Any]:
    """The object in a message. Raises PortFault "garbage" for anything else, quoting how it begins."""
    try:
        message = json.loads(raw.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise PortFault("garbage", f"expected a JSON object on one line, got {shown(raw)}") from None
    if not isinstance(message, dict):
        raise PortFault("garbage", f"expected a JSON object, got {shown(raw)}")
    return message


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def accepted(raw: bytes, seq: int, do: str) -> dict[str, Any]:
    """The reply to request `seq`, when it says that all is well.

    Raises PortFault "garbage" or "disorder" for what is no reply to that request, "error" for a reply that tells of an
    error, Unsupported for one that tells of something left out on purpose.
    """
    reply = decode(raw)
    got, ok = reply.get("seq"), reply.get("ok")
    if type(got) is not int or type(ok) is not bool:
        raise PortFault("garbage", f'{do}: a reply has "seq", an integer, and "ok", true or false; got {shown(raw)}')
    if got != seq:
        raise PortFault("disorder", f"{do}: expected the reply to request {seq}, got that to {got}")
    if not ok:
        raise _told(reply.get("error"), do, raw)
    return reply


def _told(error: object, do: str, raw: bytes) -> PortFault | Unsupported:
    """The exception for a reply that tells of an error."""
    kind = error.get("kind") if isinstance(error, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    if kind not in ERRORS or not isinstance(message, str):
        wanted = f'an "error" has a "kind", {", ".join(ERRORS)}, and a "message"'
        return PortFault("garbage", f"{do}: {wanted}; got {shown(raw)}")
    told = f"{do}: {printable(message, 500)}"
    return Unsupported(told) if kind == "unsupported" else PortFault("error", told, ending=kind == "indefinite")


def hello_of(reply: Mapping[str, Any]) -> Hello:
    """What a reply to `hello` says. Raises PortFault "garbage", naming the key that is wrong."""
    if reply.get("protocol") != PROTOCOL:
        raise PortFault("garbage", f'hello: expected "protocol": "{PROTOCOL}", got {_brief(reply.get("protocol"))}')
    for key in ("name", "version"):
        _require(isinstance(reply.get(key), str), key, "text", reply)
    for key in ("operations", "dtypes"):
        names = reply.get(key)
        _require(isinstance(names, list) and all(isinstance(n, str) for n in names), key, "a list of text", reply)
    unknown = sorted(set(reply["dtypes"]) - set(DTYPES))
    _require(not unknown, "dtypes", f"some of {', '.join(DTYPES)}", reply)
    workers = reply.get("workers", 1)
    _require(type(workers) is int and workers >= 1, "workers", "an integer, 1 or more", reply)
    for key in FLAGS:
        _require(type(reply.get(key, False)) is bool, key, "true or false", reply)
    flags = {key: bool(reply.get(key, False)) for key in FLAGS}
    names, version = printable(reply["name"], 60), printable(reply["version"], 60)
    return Hello(names, version, frozenset(reply["operations"]), frozenset(reply["dtypes"]), workers, **flags)


def _require(condition: bool, key: str, expected: str, reply: Mapping[str, Any]) -> None:
    if not condition:
        raise PortFault("garbage", f'hello: expected "{key}" to be {expected}, got {_brief(reply.get(key))}')


def _brief(value: object) -> str:
    return printable(repr(value), 80)


def shown(raw: bytes) -> str:
    """How bytes from a port begin, for a message to people."""
    return repr(raw) if len(raw) <= 80 else f"{raw[:80]!r}... ({len(raw):,} bytes)"


def printable(text: str, most: int) -> str:
    """Text from a port, without what a terminal would act on, and not longer than `most` characters."""
    clean = "".join(c if c.isprintable() else " " for c in text)
    return clean if len(clean) <= most else f"{clean[: most - 3]}..."
