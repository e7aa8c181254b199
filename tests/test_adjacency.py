"""Edges in little memory: whatever is connected, in whatever order, comes back as pairs."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from purine_ref.adjacency import FEW, Edges, first_of, one_more, pairs


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3)), max_size=FEW + 4))
def test_edges_come_back_as_they_were_connected(connected: list[tuple[str, int]]) -> None:
    edges: Edges[Any] = None
    for count, (op, slot) in enumerate(connected):
        assert pairs(edges) == connected[:count]
        edges = one_more(edges, op, slot)
    assert pairs(edges) == connected
    assert first_of(edges) == (connected[0][0] if connected else None)


def test_one_edge_at_slot_0_takes_no_memory() -> None:
    op = object()
    assert one_more(None, op, 0) is op
