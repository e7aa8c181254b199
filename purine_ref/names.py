"""Names of blobs, operators and scopes: words joined by single slashes, such as `nin1/conv/weight`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from purine_ref.errors import GraphError


def checked_name(name: str) -> str:
    """`name`, if it is one. Raises GraphError otherwise."""
    if not isinstance(name, str) or not name or name != name.strip("/") or "//" in name or not name.isprintable():
        raise GraphError(f"a name must be printable words joined by single slashes, like 'nin1/conv', got {name!r}")
    return name


def nearest(name: str, names: Iterable[str]) -> str:
    """For an error message: the names that `name` may have meant, or nothing."""
    close = difflib.get_close_matches(name, names, n=3)
    return f"; nearest: {', '.join(close)}" if close else ""
