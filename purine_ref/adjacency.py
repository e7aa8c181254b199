"""A node's edges of one kind in little memory: (operator, slot) for each, in the order of connecting. No state.

Most blobs have one producer and one consumer, at slot 0: then the operator itself stands for the edge. A pair for each
edge would be a quarter of a large graph's memory.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar, cast

T = TypeVar("T")

Edges: TypeAlias = T | tuple[Any, ...] | list[Any] | None
"""None without edges, the operator of a single one at slot 0, else operators and slots in turn."""

FEW = 16
"""How many operators and slots are kept in a tuple, which is copied for each edge more; a list takes more room."""


def one_more(edges: Edges[T], op: T, slot: int) -> Edges[T]:
    """The edges with one more, which comes last. A list that is given is changed."""
    if edges is None:
        return op if slot == 0 else (op, slot)
    if isinstance(edges, list):
        edges += (op, slot)
        return edges
    if not isinstance(edges, tuple):
        return (edges, 0, op, slot)
    return (*edges, op, slot) if len(edges) < FEW else [*edges, op, slot]


def pairs(edges: Edges[T]) -> list[tuple[T, int]]:
    """The edges as (operator, slot)."""
    if edges is None:
        return []
    if isinstance(edges, (tuple, list)):
        return list(zip(edges[::2], edges[1::2], strict=True))
    return [(edges, 0)]


def first_of(edges: Edges[T]) -> T | None:
    """The operator of the first edge; None without edges."""
    return cast("T", edges[0]) if isinstance(edges, (tuple, list)) else edges
