"""The plain twin of the calls: how to run each operator of a graph. The compiled twin is `_calls.pxi`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Call = tuple[Any, ...]
"""How to run one operator: (compute or None, place, inputs, outputs), of which anything may follow."""


class Calls(list[Call]):
    """How to run each operator: calls that are made ready once for many runs, so each cut to its four parts."""

    def __init__(self, calls: Iterable[Call], order: Sequence[int] | None = None) -> None:
        """`order` has the operators in the order in which their calls come, one after the other; else it is theirs.

        Raises ValueError unless each comes once.
        """
        if order is None:
            super().__init__([call[:4] for call in calls])
            return
        found: list[Call | None] = [None] * len(order)
        for op, call in zip(order, calls, strict=True):
            if not 0 <= op < len(found) or found[op] is not None:
                raise ValueError(f"order: expected each of {len(found)} operators once, got {op}")
            found[op] = call[:4]
        super().__init__([call for call in found if call is not None])
