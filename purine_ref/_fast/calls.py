"""The plain twin of the calls: how to run each operator of a graph. The compiled twin is `_calls.pxi`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Call = tuple[Any, ...]
"""How to run one operator: (compute or None, place, inputs, outputs), of which anything may follow."""


class Calls(list[Call]):
    """How to run each operator: calls that are made ready once for many runs, so each cut to its four parts."""

    def __init__(self, calls: Iterable[Call]) -> None:
        super().__init__([call[:4] for call in calls])
