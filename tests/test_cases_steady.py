"""Steady arithmetic: sums that are rounded once, functions that are rounded correctly, and nothing else let through."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purine_ref.conformance.cases.functions import FUNCTIONS, cos, exp, expm1, log, power, tanh
from purine_ref.conformance.cases.steady import Steady, SteadyKernels, exact_sum, steady
from purine_ref.operation import RunKey

XP = SteadyKernels(RunKey()).xp


def near(got: float, want: float) -> bool:
    """Within an ULP of another implementation, which may be off by one."""
    return got == want or (got != got and want != want) or abs(got - want) <= math.ulp(want)


@given(st.floats(-709, 709))
def test_functions_are_those_of_the_library_within_an_ulp(x: float) -> None:
    assert near(exp(x), math.exp(x))
    assert near(tanh(x), math.tanh(x))
    assert near(expm1(x), math.expm1(x))
    assert near(cos(x), math.cos(x))
    if x > 0:
        assert near(log(x), math.log(x))


@given(st.floats(1e-30, 1e30), st.floats(-8, 8))
def test_powers_are_those_of_the_library_within_an_ulp(x: float, y: float) -> None:
    assert near(power(x, y), math.pow(x, y))


def test_functions_keep_their_digits_near_zero() -> None:
    for tiny in (1e-5, 1e-9, 1.1e-10, 9e-11, 1e-20, 5e-324):
        assert expm1(tiny) == math.expm1(tiny)
        assert tanh(tiny) == math.tanh(tiny)


@pytest.mark.parametrize(
    ("function", "arguments", "value"),
    [
        ("exp", (math.inf,), math.inf),
        ("exp", (-math.inf,), 0.0),
        ("exp", (math.nan,), math.nan),
        ("exp", (-1e308,), 0.0),
        ("expm1", (-math.inf,), -1.0),
        ("expm1", (math.inf,), math.inf),
        ("log", (0.0,), -math.inf),
        ("log", (-1.0,), math.nan),
        ("log", (math.inf,), math.inf),
        ("tanh", (-math.inf,), -1.0),
        ("tanh", (math.nan,), math.nan),
        ("power", (0.0, -0.75), math.inf),
        ("power", (math.inf, -0.75), 0.0),
        ("power", (math.nan, 0.5), math.nan),
        ("power", (-2.0, 3.0), -8.0),
        ("power", (-2.0, 0.5), math.nan),
        ("power", (2.0, 5000.0), math.inf),
    ],
)
def test_ends_of_functions(function: str, arguments: tuple[float, ...], value: float) -> None:
    got = FUNCTIONS[function](*arguments)
    assert got == value or (math.isnan(got) and math.isnan(value))


@given(st.lists(st.floats(-1e300, 1e300), max_size=12))
def test_a_sum_is_that_of_fractions_rounded_once(terms: list[float]) -> None:
    assert exact_sum(terms) == float(sum(map(Fraction, terms)))


def test_a_sum_whose_partial_sums_are_too_large_is_right() -> None:
    assert exact_sum([1e308, 1e308, -1e308]) == 1e308
    assert exact_sum([1e308, 1e308]) == math.inf
    assert exact_sum([-1e308, -1e308]) == -math.inf
    assert math.isnan(exact_sum([math.inf, -math.inf]))
    assert math.isnan(exact_sum([math.nan, 1.0]))


@given(st.integers(0, 3), st.integers(0, 4), st.integers(0, 3), st.integers(0, 99))
def test_a_product_of_matrices_is_exact_but_for_one_rounding(rows: int, inner: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-9, 9, (2, rows, inner)) * 1.0, rng.integers(-9, 9, (inner, columns)) * 1.0
    got = XP.matmul(a, b)
    assert isinstance(got, Steady)
    assert np.array_equal(np.asarray(got), a @ b)


@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2), (1, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_sums_along_axes_have_numpys_shapes(axis: Any, keepdims: bool) -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    got = steady(x).sum(axis=axis, keepdims=keepdims)
    assert np.array_equal(np.asarray(got), x.sum(axis=axis, keepdims=keepdims))
    assert got.shape == x.sum(axis=axis, keepdims=keepdims).shape
    assert np.array_equal(np.asarray(steady(x[:, :0]).sum(axis=1)), x[:, :0].sum(axis=1))


def test_a_sum_of_float32_is_taken_in_float64_and_rounded_once() -> None:
    tenth = np.full(2**16, 0.1, "f4")
    assert steady(tenth).sum() == np.float64(np.float32(0.1)) * 2**16


def test_what_has_no_steady_rule_is_refused() -> None:
    x = steady(np.ones((2, 2)))
    for wrong in (
        lambda: np.sin(x),
        lambda: np.multiply.reduce(x),
        lambda: np.dot(x, x),
        lambda: np.einsum("ij->i", x),
        lambda: np.trace(x),
        lambda: XP.linalg,
        lambda: np.logaddexp(x, x),
        lambda: x.dot(x),
        lambda: XP.einsum("ij->i", x),
        lambda: XP.sin(np.ones(2)),
        lambda: np.add.reduce(x, axis=0, where=np.array([[True], [False]])),
    ):
        with pytest.raises(TypeError, match=r"steady|matmul"):
            wrong()


def test_what_is_computed_from_a_steady_array_is_steady() -> None:
    x = XP.zeros((2, 3))
    for made in (x + 1, 2.0 * x, x[0], x.T, x.reshape(6), XP.where(x > 0, x, 1.0), XP.exp(x), x.sum(axis=0), x.max()):
        assert isinstance(made, Steady), made
    plain = np.ones((2, 3))
    plain += x  # an array of the base class stays, and is computed by the rules
    assert type(plain) is np.ndarray


def test_loops_give_steady_arrays() -> None:
    kernels = SteadyKernels(RunKey())
    y, index = kernels.max_pool(np.zeros((1, 1, 2, 2)), (2, 2), (1, 1), ((0, 0), (0, 0)), (1, 1))
    assert isinstance(y, Steady)
    assert isinstance(index, Steady)
    assert isinstance(kernels.philox(1, "s", 0, 0, 4), Steady)
