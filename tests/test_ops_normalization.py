"""LRN and its gradient: public bug cases, and each one's kind beyond the one input, against `oracles.geometry`."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import geometry as oracle
from purine_ref.errors import ShapeError
from purine_ref.ops.normalization import LRN, LRNGradient
from support import apply, backward

Array = Any


def channels(*values: float) -> Array:
    """One sample of one pixel."""
    return np.array(values, "float64").reshape(1, -1, 1, 1)


def near(got: Array, want: Any, places: int) -> None:
    """Equal to the figures of a report, rounded to `places` decimals."""
    assert np.abs(got.reshape(-1) - want).max() <= 0.5000001 * 10.0**-places


def test_op_06_alpha_is_divided_by_the_window() -> None:
    x = channels(1, 2, 3, 4, 5)
    near(apply(LRN(3, 1, 1, 1), x)[0], [0.375, 0.352941, 0.28125, 0.226415, 0.340909], 6)
    near(apply(LRN(3, 3, 1, 1), x)[0], [0.166667, 0.133333, 0.1, 0.078431, 0.119048], 6)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("operation", [LRN, LRNGradient])
def test_op_06_an_even_window_is_refused(operation: Any, n: int) -> None:
    message = rf"^{operation.__name__}: expected an odd n \(a window that is centred\), got {n}$"
    with pytest.raises(ShapeError, match=message):
        operation(n=n)


@given(
    st.tuples(*[st.integers(low, top) for low, top in ((0, 3), (1, 7), (1, 2), (1, 3))]),
    st.sampled_from([1, 3, 5, 9]),
    st.tuples(*[st.floats(0.1, 2)] * 3),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["float32", "float64"]),
)
def test_op_06_op_17_lrn_and_its_whole_jacobian(shape: Any, n: int, factors: Any, seed: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    x, dy = (rng.integers(-2, 3, shape[::-1]).astype(dtype).T for _ in range(2))
    alpha, beta, k = factors
    pixels, arrived = (np.moveaxis(a, 1, 3).reshape(-1, shape[1]).astype("float64") for a in (x, dy))

    def as_pixels(y: Array) -> Array:
        return np.moveaxis(y, 1, 3).reshape(-1, shape[1])

    # The scale rounds n + 2 times, its power scales that by beta at most 2 (and 1 more for the gradient's quotient).
    rounding = (3 * (n + 2) + 12) * np.finfo(dtype).eps
    want = oracle.lrn(pixels, n, alpha, beta, k)
    (y,) = apply(LRN(n, alpha, beta, k), x)
    assert (np.abs(as_pixels(y) - want) <= rounding * np.abs(want)).all()
    want, total = oracle.lrn_gradient(arrived, pixels, n, alpha, beta, k)
    (dx,) = backward(LRN(n, alpha, beta, k), [x], [dy])
    assert (np.abs(as_pixels(dx) - want) <= (rounding + n * np.finfo(dtype).eps) * total).all()


@pytest.mark.parametrize(
    ("dy", "want"),
    [
        (channels(1, 0, 0, 0, 0), [0.28125, -0.1875, 0, 0, 0]),
        (channels(1, 1, 1, 1, 1), [0.2397275, -0.1292306, -0.1091837, -0.1098681, -0.0520173]),
    ],
)
def test_op_17_the_gradient_has_its_neighbours_term(dy: Array, want: Any) -> None:
    near(backward(LRN(3, 1, 1, 1), [channels(1, 2, 3, 4, 5)], [dy])[0], want, 7)


@pytest.mark.parametrize("operation", [LRN, LRNGradient])
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("k", -2, "LRN: expected k > 0, got -2.0"),
        ("k", 0, "LRN: expected k > 0, got 0.0"),
        ("alpha", -1, "LRN: expected alpha >= 0, got -1.0"),
        ("beta", math.nan, "LRN beta: expected a finite number, got nan"),
        ("n", 0, "LRN n: expected an integer of 1 or more, got 0"),
        ("n", 3.0, "LRN n: expected an integer of 1 or more, got 3.0"),
    ],
)
def test_op_17_a_scale_without_a_power_is_refused(operation: Any, name: str, value: Any, expected: str) -> None:
    with pytest.raises(ShapeError, match=f"^{re.escape(expected.replace('LRN', operation.__name__))}$"):
        operation(**{name: value})
