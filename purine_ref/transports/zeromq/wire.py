"""What goes over the wire: headers in JSON, strictly checked, and the chunks of an array. No sockets, no state.

A message is one header frame, and for `data` a second frame with the bytes. A header is believed only when it is one
flat JSON object of a known kind, with that kind's keys and no other, each value of its type and within its range.
`docs/wire.md` is the protocol in words, for peers in other languages.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from purine_ref.errors import Refused
from purine_ref.tensor import DTYPES

MAGIC = "purine-ref"
VERSION = 1

HEADER_LIMIT = 65_536
"""Most bytes of a header."""

CHUNK = 524_288
"""Most bytes of an array in one message: a larger one goes in several, each full but the last."""

LIMIT = 2**63
"""Numbers in a header are below this."""

ROUTES = 512
"""Most entries of a list in one header."""

Header = dict[str, Any]
Check = Callable[[object], bool]


class Malformed(Refused):
    """A message that is not one of the protocol, whoever sent it."""


def _count(value: object) -> bool:
    return type(value) is int and 0 <= value < LIMIT


def _number(value: object) -> bool:
    return type(value) is float and math.isfinite(value)


def _text(limit: int) -> Check:
    return lambda value: type(value) is str and len(value) <= limit and _is_unicode(value)


def _is_unicode(text: str) -> bool:
    """Whether it can be written down: JSON can spell halves of characters, which nothing else can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _one_of(*values: str) -> Check:
    return lambda value: type(value) is str and value in values


def _list(item: Check, limit: int = ROUTES) -> Check:
    return lambda value: type(value) is list and len(value) <= limit and all(map(item, value))


def _tuple(*items: Check) -> Check:
    return lambda value: (
        type(value) is list
        and len(value) == len(items)
        and all(item(part) for item, part in zip(items, value, strict=True))
    )


_NAME = _text(1024)
_REASON = _text(4096)
_NONCE: Check = lambda value: _text(32)(value) and len(str(value)) == 32  # noqa: E731
_KEY: Check = lambda value: _text(40)(value) and len(str(value)) in (0, 40)  # noqa: E731 - of CURVE; empty without
_SENT = {"seq": _count, "ack": _count}  # what every message that must arrive carries

FIELDS: Mapping[str, Mapping[str, Check]] = {
    "hello": {
        "magic": _one_of(MAGIC),
        "version": _count,
        "world": _count,
        "rank": _count,
        "to": _count,
        "run": _NAME,
        "nonce": _NONCE,
        "listen": _NAME,
        "epoch": _count,
    },
    "welcome": {"epoch": _count, "received": _count},
    "refuse": {"reason": _REASON},
    "table": _SENT | {"ranks": _list(_tuple(_NAME, _NONCE, _KEY), 4096)},
    "ready": _SENT,
    "ping": {"at": _number},
    "pong": {"at": _number, "there": _number},
    "beat": {"ack": _count, "waits": _list(_tuple(_one_of("open", "receive", "send"), *[_count] * 4), 64)},
    "ack": {"ack": _count},
    "open": _SENT | {"session": _count, "name": _NAME, "fingerprint": _NAME, "early": _count},
    "data": _SENT
    | {
        "session": _count,
        "tag": _count,
        "iteration": _count,
        "dtype": _one_of(*DTYPES),
        "shape": _list(_count, 64),
        "offset": _count,
    },
    "expect": _SENT | {"routes": _list(_tuple(_count, _count, _count))},
    "want": _SENT | {"session": _count},
    "close": _SENT | {"session": _count},
    "abort": _SENT | {"session": _count, "reason": _REASON},
    "lost": {"rank": _count, "reason": _REASON, "waits": _list(_REASON)},
    "bye": _SENT,
}
"""By kind: the keys that its header has beside `kind`, and what each must be."""

_RULES = {kind: (frozenset({"kind", *fields}), tuple(fields.items())) for kind, fields in FIELDS.items()}

# Most headers are of `data`, and there the time of JSON shows. They are written by a format, and what is written so is
# read by a pattern, which matches nothing that the checks would refuse; all else is left to the decoder.
_INT = "(?:0|[1-9][0-9]{0,17})"
_PLAIN_DATA = re.compile(
    rf'\{{"kind":"data","session":({_INT}),"tag":({_INT}),"iteration":({_INT}),"dtype":"({"|".join(DTYPES)})",'
    rf'"shape":\[((?:{_INT}(?:,{_INT}){{0,63}})?)\],"offset":({_INT}),"seq":({_INT}),"ack":({_INT})\}}'.encode()
)

SEQUENCED = frozenset(kind for kind, fields in FIELDS.items() if "seq" in fields)
"""The kinds that arrive once each, in order, whatever happens to the connection."""


def encode(header: Mapping[str, Any]) -> bytes:
    """A header's frame. The caller vouches for its fields."""
    return _ENCODER.encode(header).encode()


def encode_data(h: Mapping[str, Any]) -> bytes:
    """What `encode` makes of a header of kind `data`, sooner."""
    return (
        f'{{"kind":"data","session":{h["session"]},"tag":{h["tag"]},"iteration":{h["iteration"]},"dtype":"{h["dtype"]}",'
        f'"shape":[{",".join(map(str, h["shape"]))}],"offset":{h["offset"]},"seq":{h["seq"]},"ack":{h["ack"]}}}'
    ).encode()


def decode(data: bytes) -> Header:
    """The header in a frame. Raises Malformed for everything that `encode` would not write.

    A hello of another version has that version's fields: they are not looked at.
    """
    plain = _PLAIN_DATA.fullmatch(data)
    if plain is not None:
        return _plain_header(*plain.groups())
    if len(data) > HEADER_LIMIT:
        raise Malformed(f"a header of {len(data)} bytes; {HEADER_LIMIT} are the most")
    try:
        header = _DECODER.decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise Malformed(f"a header that is no JSON object: {error}") from None
    if type(header) is not dict:
        raise Malformed("a header that is no JSON object")
    kind = header.get("kind")
    rules = _RULES.get(kind) if type(kind) is str else None
    if rules is None:
        raise Malformed(f"a header of unknown kind {str(kind)[:40]!r}")
    if kind == "hello" and header.get("magic") == MAGIC and _count(header.get("version")):
        if header["version"] != VERSION:
            return header
    keys, checks = rules
    if header.keys() != keys:
        raise Malformed(f"a header of kind {kind} with other keys than {', '.join(key for key, _ in checks)}")
    for key, check in checks:
        if not check(header[key]):
            raise Malformed(f"a header of kind {kind} with a wrong {key}")
    return header


def _plain_header(
    session: bytes, tag: bytes, iteration: bytes, dtype: bytes, shape: bytes, offset: bytes, seq: bytes, ack: bytes
) -> Header:
    return {
        "kind": "data",
        "session": int(session),
        "tag": int(tag),
        "iteration": int(iteration),
        "dtype": dtype.decode(),
        "shape": [int(axis) for axis in shape.split(b",")] if shape else [],
        "offset": int(offset),
        "seq": int(seq),
        "ack": int(ack),
    }


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_DECODER = json.JSONDecoder(object_pairs_hook=_once_each, parse_constant=_refuse_constant)


def chunks(size: int) -> Iterator[tuple[int, int]]:
    """The (offset, end) of each chunk of an array of `size` bytes: one, empty, for an empty array."""
    yield 0, min(size, CHUNK)
    for offset in range(CHUNK, size, CHUNK):
        yield offset, min(size, offset + CHUNK)


def chunk_end(size: int, offset: int) -> int:
    """Where the chunk that begins at `offset` ends, in an array of `size` bytes."""
    return min(size, offset + CHUNK)
