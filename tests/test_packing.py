"""Packing blocks of memory: what clashes lies apart, and little is wasted."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from purine_ref.packing import ALIGNMENT, aligned, pack


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Blocks: a size, and a first and a last moment."""
    count = draw(st.integers(0, 12))
    block = st.tuples(st.integers(1, 500), st.integers(0, 20), st.integers(0, 8))
    return [(aligned(size), first, first + length) for size, first, length in (draw(block) for _ in range(count))]


@given(blocks=lives())
def test_blocks_that_live_at_once_lie_apart_and_no_byte_is_wasted_beyond_them(
    blocks: list[tuple[int, int, int]],
) -> None:
    clash = np.array([[a <= d and c <= b for _, c, d in blocks] for _, a, b in blocks], bool)
    offsets, total = pack([size for size, _, _ in blocks], clash)
    spans = [range(start, start + size) for start, (size, _, _) in zip(offsets, blocks, strict=True)]
    for one, span in enumerate(spans):
        assert span.start % ALIGNMENT == 0
        for other in np.flatnonzero(clash[one, :one]):
            assert span.stop <= spans[other].start or spans[other].stop <= span.start
    at_once = [sum(size for size, first, last in blocks if first <= now <= last) for now in range(30)]
    assert max(at_once) <= total <= sum(size for size, _, _ in blocks)
    assert total == max((span.stop for span in spans), default=0)


def test_the_smallest_gap_that_is_large_enough_is_taken() -> None:
    """Four blocks that all clash but for the last, which may lie where b or d are, and fits into d better."""
    sizes = [640, 320, 512, 128, 64]
    clash = np.ones((5, 5), bool)
    clash[4, [1, 3]] = clash[[1, 3], 4] = False
    offsets, total = pack(sizes, clash)
    assert (offsets[:4], total) == ([0, 1152, 640, 1472], 1600)
    assert offsets[4] == 1152


def test_nothing_needs_nothing() -> None:
    assert pack([], np.ones((0, 0), bool)) == ([], 0)
