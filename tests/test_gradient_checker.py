"""The gradient checker catches planted errors, and says so where it cannot decide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gradient_checker import Undecided, WrongGradient, central_slope, check_at_kink, check_gradient
from purine_ref.ops import MaxPool2d, ReLU
from suites.operations import compute
from support import backward

Array = Any
RNG = np.random.default_rng(0)
MASK = np.array([[1.0, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 1]])
FACTORS = RNG.standard_normal((3, 4))
X, W = RNG.standard_normal((3, 4)), RNG.standard_normal((4, 2))


def value(point: Sequence[Array]) -> float:
    """The sum of mask * tanh(x) * factors, plus half the sum of squares of x w."""
    x, w = point
    return float((MASK * np.tanh(x) * FACTORS).sum() + (np.dot(x, w) ** 2).sum() / 2)


def slopes(x: Array) -> Array:
    """The derivative of tanh, times the factors."""
    return (1 - np.tanh(x) ** 2) * FACTORS


FIRST, SECOND = MASK * slopes(X), X @ W @ W.T
DW = X.T @ (X @ W)
ONE_OFF = np.zeros_like(X)
ONE_OFF[2, 1] = 1e-6

WRONG = {
    "a wrong sign": FIRST - SECOND,
    "all of the wrong sign": -(FIRST + SECOND),
    "a missing term": SECOND,
    "the other term missing": FIRST,
    "a factor": 2 * FIRST + SECOND,
    "a factor near 1": (FIRST + SECOND) * (1 + 1e-6),
    "the mask of another element": np.roll(MASK, 1) * slopes(X) + SECOND,
    "no mask": slopes(X) + SECOND,
    "one element a little off": FIRST + SECOND + ONE_OFF,
    "one element swapped with another": (FIRST + SECOND)[:, [1, 0, 2, 3]],
    "NaN": FIRST * np.nan,
    "another shape": (FIRST + SECOND).T,
    "zeros": np.zeros_like(X),
}


@pytest.mark.parametrize("seed", range(5))
def test_a_right_gradient_passes(seed: int) -> None:
    check_gradient(value, [FIRST + SECOND, DW], [X, W], seed=seed)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("error", WRONG)
def test_a_planted_error_is_caught(error: str, seed: int) -> None:
    with pytest.raises(WrongGradient, match=r"^gradient 0: expected .+, got .+$"):
        check_gradient(value, [WRONG[error], DW], [X, W], seed=seed)


def test_the_message_names_the_wrong_gradient() -> None:
    with pytest.raises(WrongGradient, match=r"^gradient 1: expected a slope of \S+ within \S+, got \S+$"):
        check_gradient(value, [FIRST + SECOND, DW + 1e-3], [X, W])


@pytest.mark.parametrize(("at", "power"), [(0.7, 3), (-1.3, 7)])
def test_a_slope_is_within_its_bound(at: float, power: int) -> None:
    slope, error = central_slope(lambda t: (at + t) ** power, 2.0**-6)
    assert abs(slope - power * at ** (power - 1)) <= error <= 1e-6


# GC-04: float32 differences are noise


def test_gc_04_float32_differences_are_noise_and_float64_ones_are_not() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random(200), rng.random(200)

    def errors(dtype: str) -> list[float]:
        a, b = x.astype(dtype), y.astype(dtype)
        found = []
        for step in (1e-2, 1e-3, 1e-4, 1e-5):
            move = np.zeros(200, dtype)
            move[0] = step
            after, before = (float((moved * b).sum(dtype=dtype)) for moved in (a + move, a - move))
            found.append(abs((after - before) / (2 * step) / float(b[0]) - 1))
        return found

    single, double = errors("float32"), errors("float64")
    assert single[3] > 0.1
    assert single[3] > 100 * single[0] > 0
    assert max(double) < 1e-9


@pytest.mark.parametrize(("point", "gradient"), [("float32", "float64"), ("float64", "float32")])
def test_gc_04_anything_but_float64_is_refused(point: str, gradient: str) -> None:
    name = "point 0" if point == "float32" else "gradient 0"
    message = rf"^{name}: expected float64, since differences of anything less are noise, got float32$"
    with pytest.raises(TypeError, match=message):
        check_gradient(value, [np.ones(3, gradient)], [np.ones(3, point)])


def test_gc_04_a_value_that_rounds_to_float32_is_undecided() -> None:
    with pytest.raises(Undecided, match=r"^gradient 0: the slope \S+ may be wrong by \S+; is a kink near\?$"):
        check_gradient(lambda point: float(np.float32(value([point[0], W]))), [FIRST + SECOND], [X])


def test_a_value_of_nan_is_undecided() -> None:
    with pytest.raises(Undecided, match=r"^gradient 0: the slope nan may be wrong by nan; is a kink near\?$"):
        check_gradient(lambda point: math.nan, [FIRST], [X])


# GC-06: kinks


def relu_sum(point: Sequence[Array]) -> float:
    return float(compute(ReLU(), list(point))[0].sum())


NEAR = np.array([[0.5, 1e-4, -0.5]])


def test_gc_06_a_point_near_a_kink_is_undecided_unless_its_distance_is_known() -> None:
    [gradient] = backward(ReLU(), [NEAR], [np.ones_like(NEAR)])
    with pytest.raises(Undecided, match=r"^gradient 0: .*; is a kink near\?$"):
        check_gradient(relu_sum, [gradient], [NEAR])
    check_gradient(relu_sum, [gradient], [NEAR], distance=1e-4)
    with pytest.raises(WrongGradient, match=r"^gradient 0: .*$"):
        check_gradient(relu_sum, [np.array([[1.0, 0, 0]])], [NEAR], distance=1e-4)


def test_gc_06_at_a_kink_a_gradient_lies_between_the_slopes_of_its_sides() -> None:
    step = 1e-3
    move = np.array([[0, step, 0]])
    central = (relu_sum([NEAR + move]) - relu_sum([NEAR - move])) / (2 * step)
    assert central == pytest.approx(0.55)
    for accepted in (0.0, 0.55, 1.0):
        check_at_kink(relu_sum, np.array([[1, accepted, 0]]), NEAR, step=step)
    for rejected in ([1, 1.01, 0], [1, -0.01, 0], [0.99, 1, 0], [1, 1, 0.01], [1, math.nan, 0]):
        with pytest.raises(WrongGradient, match=r"^gradient at \(0, \d\): expected between .+ and .+, got .+$"):
            check_at_kink(relu_sum, np.array([rejected], float), NEAR, step=step)


def test_gc_06_the_first_of_tied_maxima_gets_the_gradient() -> None:
    pool, x = MaxPool2d((1, 2), (1, 2), ((0, 0), (1, 1)), "ceil"), np.array([[[[1.0, 1, 1, 8]]]])
    y, index = compute(pool, [x])
    assert (y.ravel().tolist(), index.ravel().tolist()) == ([1, 1, 8], [0, 1, 3])
    for window, winner in enumerate((0, 1, 3)):
        dy, row = np.zeros_like(y), np.zeros_like(x)
        dy[..., window], row[..., winner] = 1, 1
        [dx] = backward(pool, [x], [dy, None])
        np.testing.assert_array_equal(dx, row)
        check_at_kink(lambda point, dy=dy: float((compute(pool, list(point))[0] * dy).sum()), dx, x, step=1e-3)
