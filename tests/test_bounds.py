"""Rule R11, one operation at a time: worst cases that hold and are not idle, variances, and how they pass through.

What is exact is computed in extended precision (`wide.py`). Inputs are those of the operations' suite.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from operation_cases import ALL
from purine_ref.operation import Call, Operation
from purine_ref.ops import LRNGradient, MaxPool2d, TopKAccuracy
from purine_ref.ops.summing import LinearOperation
from purine_ref.rounding import UNITS, gamma, multiple, ordered_sum, sum_variance
from suites.operation_calls import as_float64, compute, vocabulary
from suites.operation_case import Case
from support import describe
from wide import PRECISE, exactly

CASES = [case for case in ALL if case.inputs]
DTYPES = ["float32", pytest.param("float64", marks=pytest.mark.skipif(not PRECISE, reason="no wider dtype here"))]
seeds = st.integers(0, 2**32 - 1)


class Once:
    """One call of a case's operation on rounded inputs: results, what they should be, and what the rules say."""

    def __init__(self, case: Case, dtype: str, seed: int) -> None:
        arrays = case.draw(dtype, seed=seed)
        self.got = compute(case.operation, arrays)
        self.exact = exactly(case.operation, arrays, case.operation.infer([describe(array) for array in arrays]))
        self.call = Call(vocabulary(), wide(arrays), wide(self.exact), UNITS[dtype])
        self.bounds = case.operation.bound(self.call)
        self.noises = case.operation.noise(self.call)

    def errors(self) -> Iterator[tuple[Any, Any, Any]]:
        """Of each float output what it is off by, its bound and its variance; integers must be right."""
        for got, exact, bound, noise in zip(self.got, self.exact, self.bounds, self.noises, strict=True):
            if got.dtype.kind == "i":
                np.testing.assert_array_equal(got, exact)
            else:
                yield np.abs(got.astype(exact.dtype) - exact).astype(np.float64), bound, noise


def wide(arrays: Any) -> list[Any]:
    """Floats as float64."""
    return [as_float64(np.asarray(array)) for array in arrays]


def over(part: Any, whole: Any) -> Any:
    """part / whole, and 0 where there is no part."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(part == 0, 0.0, part / whole)


# The worst case -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@given(case=st.sampled_from(CASES), seed=seeds)
def test_r11_no_call_is_off_by_more_than_its_bound(case: Case, dtype: str, seed: int) -> None:
    """Rule R11, local: |computed - exact| of one call on its actual inputs."""
    if dtype not in case.dtypes:
        return
    once = Once(case, dtype, seed)
    for error, bound, _ in once.errors():
        assert bound.shape == error.shape
        ratio = float(over(error, bound).max(initial=0.0))
        event(f"error/bound below {np.ceil(ratio * 4) / 4}")
        assert ratio <= 1


IDLE = 30
"""Calls over which the largest error must come near the bound."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_r11_bounds_hold_and_are_not_idle(case: Case, dtype: str) -> None:
    """The worst error comes near the bound: to a tenth, or to a third of the share of one of many terms.

    Where nothing is off, nothing is allowed: the bound is 0 wherever no result is rounded.
    """
    if dtype not in case.dtypes:
        return
    ratios, bounds, steps = [0.0], [], 1.0
    for seed in range(IDLE):
        once = Once(case, dtype, seed)
        for error, bound, _ in once.errors():
            ratios.append(float(over(error, bound).max(initial=0.0)))
            bounds.append(float(bound.max(initial=0.0)))
        steps = terms(case.operation, once.call)
    worst = max(ratios)
    assert worst <= 1
    if worst == 0:  # the quotient of an accuracy is in float64 here as well
        rounds = not case.operation.exact and not isinstance(case.operation, TopKAccuracy)
        assert max(bounds, default=0) == 0 or not rounds, "a bound for nothing"
    else:
        assert worst > 1 / max(10, 3 * steps), f"the worst of {IDLE} is {worst:.3f} of its bound"


def terms(operation: Operation, call: Call) -> float:
    """About how many roundings a result goes through."""
    steps = getattr(operation, "steps", lambda _: None)(call)
    inside = call.inputs[0].size if call.unit == UNITS["float64"] else 1  # what is in float64 for float32
    return float(np.max(steps.inner)) + steps.wide if steps else float(inside)


# The variance of rounding errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_r11_rounding_errors_have_no_more_than_their_variance(case: Case, dtype: str) -> None:
    """The mean of error^2 over variance, over elements and calls, is at most 1; a rule that has 0 has no error."""
    if dtype not in case.dtypes:
        return
    squares = []
    for seed in range(IDLE):
        for error, _, noise in Once(case, dtype, seed).errors():
            if noise is None:
                assert not error.any()
            else:
                squares.append(float(np.mean(over(error * error, noise))) if error.size else 0.0)
    assert np.mean(squares or [0.0]) < 1


def test_r11_the_variance_of_a_sum_is_that_of_additions_one_after_the_other() -> None:
    """For terms of either sign, and for terms of one sign, whose partial sums are large; up to what products have."""
    rng = np.random.default_rng(1)
    for terms_of, low in ((rng.standard_normal((20_000, 64)), 0.4), (rng.uniform(0.5, 1, (20_000, 64)), 0.5)):
        rounded = terms_of.astype(np.float32)
        running = np.zeros(len(rounded), np.float32)
        for column in rounded.T:
            running = running + column
        exact = rounded.astype(np.float64).sum(axis=1)
        variance = sum_variance(63, exact, (rounded.astype(np.float64) ** 2).sum(axis=1), UNITS["float32"])
        ratio = np.mean((running - exact) ** 2 / variance)
        assert low * 0.5 < ratio < 1, ratio


def test_r11_the_arithmetic_of_roundings() -> None:
    unit = UNITS["float32"]
    assert gamma(3, 0.25) == 3.0
    assert [multiple(factor, unit) for factor in (0.0, 1.0, -0.25, 3.0, 0.1)] == [0, 0, 0, 1, 2]
    assert multiple(0.1, UNITS["float64"]) == 1
    bound, variance = ordered_sum([np.array(4.0), np.array(-1.0), np.array(2.0)], 0.5)
    assert (float(bound), float(variance)) == (0.5 * 3 + 0.5 * 5, (1.5**2 + 2.5**2) / 3)
    assert ordered_sum([np.array(4.0)], 0.5) == (0.0, 0.0)


# How variances pass through -----------------------------------------------------------------------------------------

RUNS = 500
"""Perturbed runs: a variance found from them has a deviation of 6 %."""

ABOVE = {(MaxPool2d, 0), (LRNGradient, 1)}
"""Inputs for which a rule is an upper bound: the error of a maximum, and slopes that are added whatever their signs."""


def spreading() -> list[Any]:
    """Each case with each of its inputs that can err."""
    found = []
    for case in CASES:
        for index, array in enumerate(case.draw("float64")):
            if array.dtype.kind == "f" and not case.operation.selects(index, array) and array.size:
                found.append(pytest.param(case, index, id=f"{case.name}-{index}"))
    return found


@pytest.mark.parametrize(("case", "index"), spreading())
def test_r11_the_spread_is_the_variance_that_independent_errors_give(case: Case, index: int) -> None:
    """By perturbing one input's elements, each by its own deviation: the rule's variance must be what comes out."""
    arrays = case.draw("float64", seed=3)
    rng = np.random.default_rng(index)
    deviation = 1e-7 * rng.uniform(0.3, 3, arrays[index].shape) * (np.abs(arrays[index]) + 0.1)
    outputs = compute(case.operation, arrays)
    variances: list[Any] = [None] * len(arrays)
    variances[index] = deviation * deviation
    call = Call(vocabulary(), arrays, outputs, UNITS["float64"], variances)
    spreads = case.operation.spread(call, index)
    copies = case.operation.copies(call) if isinstance(case.operation, LinearOperation) else 1
    moved = list(arrays)
    sums = [np.zeros(y.shape) for y in outputs]
    for _ in range(RUNS):
        moved[index] = np.asarray(arrays[index] + deviation * rng.standard_normal(deviation.shape))
        for total, y, was in zip(sums, compute(case.operation, moved), outputs, strict=True):
            total += (y - was) ** 2
    for total, spread, y in zip(sums, spreads, outputs, strict=True):
        if y.dtype.kind == "i":
            continue
        assert spread.shape == y.shape
        ratio = over(total / RUNS, spread / copies)
        assert ratio.max(initial=0.0) < 1.4, ratio.max()
        if (type(case.operation), index) not in ABOVE and total.any():
            assert not spread[total == 0].any()
            off = 0.1 if total.size > 9 else 0.25
            assert abs(ratio[total > 0].mean() - 1) < off, ratio
            assert ratio[total > 1e-6 * total.max()].min() > 0.65
