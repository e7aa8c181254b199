"""What both twins of the tracker share: a graph's edges as flat int32 arrays, checked once, and the states in words.

A list of lists becomes two arrays in compressed sparse row form: row i is `flat[starts[i]:starts[i + 1]]`. Only the
twins call this module, so that both refuse the same edges in the same words. All refusals are ValueError: `prepare`
makes these lists from a graph that it has checked, and this is the last line of defence.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from purine_ref._fast.rows import LIMIT as LIMIT
from purine_ref._fast.rows import Rows
from purine_ref._fast.rows import require_size as require_size

Array = Any
"""A numpy array of int32."""

FINISHED = -1
"""An operator's count after `finish`. A count of 0 or more is that of its unsatisfied input edges."""

RELEASED = -2
"""An operator's count after `release`."""


def require_rows(what: str, rows: Sequence[Any], count: int) -> None:
    """Raises ValueError unless there is one row for each of `count` nodes."""
    if len(rows) != count:
        raise ValueError(f"{what}: expected one for each of {count}, got {len(rows)}")


def numbers(what: str, values: Sequence[int], bound: int = LIMIT) -> Array:
    """The values as int32. Raises ValueError for too many, or for one that is not from 0 to `bound`."""
    require_size(what, len(values))
    if isinstance(values, array) and values.typecode == "i":
        return _narrow(what, np.frombuffer(values, np.int32), bound)
    return _narrow(what, np.fromiter(values, np.int64, len(values)), bound)


def flatten(what: str, rows: Sequence[Sequence[int]], bound: int) -> tuple[Array, Array]:
    """`starts` and `flat` of rows of integers from 0 to `bound`. Raises ValueError for too many, or for another."""
    if isinstance(rows, Rows):
        return rows.starts, _narrow(what, rows.flat, bound)
    require_size(what, len(rows))
    sizes = [len(row) for row in rows]
    total = sum(sizes)
    require_size(what, total)
    starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(sizes, out=starts[1:])
    return starts, _narrow(what, np.fromiter(chain.from_iterable(rows), np.int64, total), bound)


def in_words(count: int) -> str:
    """An operator's state by its count."""
    if count > 0:
        return f"waiting for {count} input edges"
    return {0: "ready", FINISHED: "finished", RELEASED: "released"}.get(count, f"miscounted as {count}")


def _narrow(what: str, wide: Array, bound: int) -> Array:
    if wide.size and not 0 <= wide.min() <= wide.max() <= bound:
        raise ValueError(f"{what}: expected 0 to {bound}, got {wide.min()} to {wide.max()}")
    return wide.astype(np.int32, copy=False)
