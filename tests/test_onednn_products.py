"""Products of matrices by oneDNN: right, on one thread, and the same bits wherever matrices lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purine_ref.devices.kernels import unusable
from purine_ref.devices.onednn import library, products

ABSENT = unusable("onednn")

pytestmark = pytest.mark.skipif(bool(ABSENT), reason=ABSENT)

SIZES = st.integers(2, 200)
GAPS = st.tuples(*[st.integers(0, 70)] * 3)
"""Elements between the end of a line and the next: of both factors, and of the product."""


def laid(matrix: Any, gap: int, transposed: bool = False) -> Any:
    """The same elements by rows, or by columns, with a gap of NaN after each line."""
    lines, length = matrix.shape[::-1] if transposed else matrix.shape
    memory = np.full((lines, length + gap), np.nan, np.float32)
    view = memory[:, :length].T if transposed else memory[:, :length]
    view[...] = matrix
    return view


def product(a: Any, b: Any, gap: int = 0) -> Any:
    """By oneDNN, in an array of its own."""
    out = laid(np.zeros((len(a), b.shape[1]), np.float32), gap)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "WORTH", 1)
        products.multiply(a, b, out)
    return np.array(out)


@settings(max_examples=40)
@given(SIZES, SIZES, SIZES, st.booleans(), st.booleans(), GAPS, st.integers(0, 1 << 30))
def test_values_are_right_and_gaps_change_no_bit(
    rows: int, depth: int, columns: int, down: bool, across: bool, gaps: tuple[int, int, int], seed: int
) -> None:
    """Each element is within the bound of a sum of `depth` products in float32 (rules R8 and R11)."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((rows, depth), (depth, columns)))
    got = product(laid(a, 0, down), laid(b, 0, across))
    assert product(laid(a, gaps[0], down), laid(b, gaps[1], across), gaps[2]).tobytes() == got.tobytes()
    wide, other = a.astype(np.float64), b.astype(np.float64)
    assert np.all(np.abs(got - wide @ other) <= np.abs(wide) @ np.abs(other) * depth * 2.0**-24)


def test_a_call_keeps_to_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    lib, limits = library.library(), []
    real = lib.sgemm
    monkeypatch.setattr(lib, "sgemm", lambda *given: (limits.append(lib._threads()), real(*given))[1])
    before = lib._threads()
    lib._set_threads(2)
    try:
        product(np.ones((4, 5), np.float32), np.ones((5, 6), np.float32))
        assert lib._threads() == 2
    finally:
        lib._set_threads(before)
    assert limits == [1]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.ones((3, 4)), np.ones((4, 5))),
        (np.ones((1, 4), np.float32), np.ones((4, 5), np.float32)),
        (np.ones((3, 8), np.float32)[:, ::2], np.ones((4, 5), np.float32)),
        (np.ones((3, 0), np.float32), np.ones((0, 5), np.float32)),
    ],
    ids=["float64", "vector", "apart", "empty"],
)
def test_what_oneDNN_does_not_take_is_multiplied_by_numpy(a: Any, b: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.library(), "sgemm", None)
    monkeypatch.setattr(products, "WORTH", 0)
    out = np.empty((len(a), b.shape[1]), a.dtype)
    products.multiply(a, b, out)
    assert np.array_equal(out, a @ b)
