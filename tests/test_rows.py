"""Rows of integers in flat arrays: what they hold, and what they refuse."""

from __future__ import annotations

from array import array
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purine_ref._fast.rows import LIMIT, Rows

LISTS = st.lists(st.lists(st.integers(0, LIMIT), max_size=4), max_size=6)


def made(lists: list[list[int]]) -> Rows:
    return Rows([len(row) for row in lists], [number for row in lists for number in row])


@given(LISTS)
def test_rows_are_what_they_were_made_of(lists: list[list[int]]) -> None:
    rows = made(lists)
    tuples = [tuple(row) for row in lists]
    assert (len(rows), list(rows), rows.lists()) == (len(lists), tuples, lists)
    assert [rows[i] for i in range(len(rows))] == tuples
    assert rows[1:] == tuples[1:]
    assert (rows == lists, rows == tuples, rows == made(lists)) == (True, True, True)
    starts, flat = rows.arrays()
    assert [flat[a:b] for a, b in pairwise(starts)] == [array("i", row) for row in lists]
    assert repr(rows) == repr(tuples)


def test_rows_that_differ_are_not_equal() -> None:
    rows = made([[1, 2], [], [3]])
    for other in ([[1, 2], []], [[1, 2], [], [4]], [[1], [2], [3]], [[1, 2], [], [3], []], 3):
        assert rows != other


def test_an_index_may_count_from_the_end_but_not_leave() -> None:
    rows = made([[1, 2], [], [3]])
    assert (rows[-1], rows[-3]) == ((3,), (1, 2))
    for index in (3, -4):
        with pytest.raises(IndexError):
            rows[index]


@pytest.mark.parametrize(("counts", "total"), [([2, 2], 4), ([1], 1), ([], 0), ([4, -1], 3), ([2**31, 3], 2**31 + 3)])
def test_lengths_that_are_not_those_of_the_rows_are_refused(counts: list[int], total: int) -> None:
    """Loops in C trust them."""
    with pytest.raises(ValueError, match=rf"^rows: expected 3 integers in rows of 0 or more, got {total}$"):
        Rows(counts, [0, 1, 2])


@pytest.mark.parametrize("value", [-1, LIMIT + 1, 2**32])
def test_integers_that_int32_cannot_hold_are_refused(value: int) -> None:
    """Among them one that would wrap round to a number that is right."""
    with pytest.raises(ValueError, match=rf"^rows: expected 0 to {LIMIT}, got {min(value, 1)} to {max(value, 1)}$"):
        Rows([2], np.array([1, value]))


def test_more_than_int32_can_count_is_refused() -> None:
    many = np.broadcast_to(np.int8(0), LIMIT + 1)  # no memory behind it
    with pytest.raises(ValueError, match=f"rows: expected at most {LIMIT}, which int32 can count, got {LIMIT + 1}"):
        Rows([LIMIT + 1], many)
