"""Placing blocks of memory, some of which live at the same time, into as few bytes as may be: greedy, largest first.

Blocks whose lives clash get different bytes. Each goes where it fits best: into the least gap between the clashing
blocks that were placed before it, the first of equal ones, or behind them all. Largest first is a well-known heuristic
for this problem (dynamic storage allocation is NP-hard).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any
"""A numpy array."""

ALIGNMENT = 64
"""Bytes that every block's start is a multiple of: a cache line."""


def pack(sizes: Sequence[int], clash: Array) -> tuple[list[int], int]:
    """The offset of each block, and the bytes that all need together.

    `clash` is a symmetric matrix of booleans, which says of any two blocks whether they live at the same time.
    """
    size = np.array(sizes, np.int64)
    start = np.zeros(len(sizes), np.int64)
    placed = np.zeros(len(sizes), bool)
    for block in np.argsort(-size, kind="stable"):
        taken = np.flatnonzero(clash[block] & placed)
        start[block] = _best_gap(start[taken], start[taken] + size[taken], size[block])
        placed[block] = True
    return start.tolist(), int((start + size).max(initial=0))


def aligned(size: int) -> int:
    """The size rounded up to a multiple of `ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _best_gap(starts: Array, stops: Array, size: int) -> int:
    """Where the least gap of at least `size` bytes starts, between intervals in any order."""
    order = np.argsort(starts, kind="stable")
    ends = np.concatenate([[0], np.maximum.accumulate(stops[order])])  # of what lies before each, and of all
    gaps = starts[order] - ends[:-1]
    fit = np.flatnonzero(gaps >= size)
    return int(ends[fit[gaps[fit].argmin()]] if len(fit) else ends[-1])
