"""Arithmetic on the spans of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from purine_ref.executors import Span


def hidden_time(copies: Iterable[Span], others: Sequence[Span]) -> float:
    """Seconds of `copies` in which another lane is in one of `others`, summed over the copies."""
    total = 0.0
    for copy in copies:
        within = [
            (max(copy.start, other.start), min(copy.end, other.end)) for other in others if other.lane != copy.lane
        ]
        total += covered([(start, end) for start, end in within if start < end])
    return total


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals (start, end)."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
