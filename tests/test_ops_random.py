"""Draws (rule R7): each element is a function of seed, iteration, stream and its place in the undivided tensor."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purine_ref import _fast
from purine_ref.devices.cpu import CpuKernels
from purine_ref.errors import ShapeError
from purine_ref.operation import RunKey
from purine_ref.ops import Bernoulli, Constant, Dropout, Gaussian, Uniform
from support import apply, describe, junk

Array = Any
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
DRAWS = pytest.mark.parametrize("draw", [Uniform, Gaussian, Bernoulli])
SEEDS = st.integers(0, 2**64 - 1)
MOST = 2**64 - 1


def same(got: Array, want: Any) -> None:
    """Equal element for element, in value, dtype and shape."""
    np.testing.assert_array_equal(got, want, strict=True)


def word(index: int, seed: int, stream: str, iteration: int) -> int:
    """One word of the keyed sequence, drawn alone."""
    return int(_fast.loops.philox(seed, stream, iteration, index, 1)[0])


class FixedWords(CpuKernels):
    """Kernels whose every word is the same."""

    def __init__(self, value: int) -> None:
        super().__init__(RunKey())
        self.philox = lambda seed, stream, iteration, start, count: np.full(count, value, np.uint64)


def draw_with(operation: Any, value: int) -> Array:
    """What `operation` draws where every word is `value`."""
    [tensor] = operation.infer([])
    y = junk(tensor)
    operation.compute(FixedWords(value), [], [y])
    return y


@given(SEEDS, st.integers(0, 2**40), st.text(max_size=5), st.floats(-8, 8), st.floats(0.125, 8))
def test_each_element_is_the_documented_function_of_its_word(
    seed: int, iteration: int, stream: str, low: float, width: float
) -> None:
    for index in range(6):
        bits, first, second = (word(i, seed, stream, iteration) for i in (index, 2 * index, 2 * index + 1))
        unit, place = (bits >> 11) / 2**53, np.unravel_index(index, (3, 2))

        def element(operation: Any, place: Any = place) -> Any:
            return apply(operation, seed=seed, iteration=iteration)[0][place]

        high = low + width
        assert element(Uniform((3, 2), "float64", low, high, stream=stream)) == low + (high - low) * unit
        below = np.nextafter(np.float32(high), np.float32(low))
        coarse = np.float32(low + (high - low) * ((bits >> 40) / 2**24))
        assert element(Uniform((3, 2), "float32", low, high, stream=stream)) == min(coarse, below)
        assert element(Bernoulli((3, 2), keep=0.3, stream=stream)) == (unit < 0.3)
        radius = math.sqrt(-2 * math.log(1 - (first >> 11) / 2**53))
        want = low + width * radius * math.cos(2 * math.pi * ((second >> 11) / 2**53))
        got = element(Gaussian((3, 2), "float64", low, width, stream=stream))
        assert got == pytest.approx(want, rel=1e-13, abs=1e-13)


@st.composite
def windows(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(undivided shape, start, shape of the window): any axes, also none, and any lengths, also 0."""
    undivided = tuple(draw(st.lists(st.integers(0, 6), max_size=4)))
    start = tuple(draw(st.integers(0, length)) for length in undivided)
    return undivided, start, tuple(draw(st.integers(0, n - s)) for n, s in zip(undivided, start, strict=True))


@DRAWS
@DTYPES
@given(windows(), st.integers(0, 2**32), st.integers(0, 9))
def test_dp_09_any_window_draws_its_slice_of_the_undivided_tensor(
    draw: Any, dtype: str, case: Any, seed: int, iteration: int
) -> None:
    undivided, start, shape = case
    [whole] = apply(draw(undivided, dtype, stream="fc/drop"), seed=seed, iteration=iteration)
    [part] = apply(draw(shape, dtype, stream="fc/drop", window=(undivided, start)), seed=seed, iteration=iteration)
    same(part, whole[tuple(slice(s, s + n) for s, n in zip(start, shape, strict=True))])


@pytest.mark.parametrize("tests_before", [0, 3])
def test_dp_09_replicas_have_slices_of_the_serial_mask(tests_before: int) -> None:
    def mask(replica: int, replicas: int) -> Array:
        window = ((4000,), (replica * 4000 // replicas,))
        [drawn] = apply(Bernoulli((4000 // replicas,), stream="drop", window=window), seed=40, iteration=3)
        return drawn

    for _ in range(tests_before):
        same(apply(Dropout(train=False), np.ones(1000))[0], np.ones(1000))
    masks = [mask(replica, 4) for replica in range(4)]
    same(np.concatenate(masks), mask(0, 1))
    for a in range(4):
        same(mask(a, 4), masks[a])
        for b in range(a):
            assert 0.4 < (masks[a] == masks[b]).mean() < 0.6


@DRAWS
def test_dp_09_seed_iteration_and_stream_each_change_the_draw(draw: Any) -> None:
    [base] = apply(draw((40, 30), stream="a"), seed=1, iteration=2)
    others = [
        apply(draw((40, 30), stream="a"), seed=2, iteration=2)[0],
        apply(draw((40, 30), stream="a"), seed=1, iteration=1)[0],
        apply(draw((40, 30), stream="b"), seed=1, iteration=2)[0],
    ]
    same(apply(draw((40, 30), stream="a"), seed=1, iteration=2)[0], base)
    assert all((base != other).mean() > 0.4 for other in others)


@given(SEEDS)
def test_float32_and_float64_draw_the_same_elements(seed: int) -> None:
    def both(draw: Any) -> tuple[Array, Array]:
        return tuple(apply(draw((7, 5), dtype, stream="s"), seed=seed)[0] for dtype in ("float32", "float64"))

    coarse, fine = both(Bernoulli)
    same(coarse.astype("float64"), fine)
    coarse, fine = both(Gaussian)
    same(coarse, fine.astype("float32"))
    coarse, fine = both(Uniform)
    same(coarse.astype("float64"), np.floor(fine * 2**24) / 2**24)


@DTYPES
@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.9, 1), (-1, 1), (-3, -2.9), (1, 1 + 2**-20), (-1e30, 1e30)])
def test_uniform_reaches_low_and_never_high(low: float, high: float, dtype: str) -> None:
    ends = np.array([low, high], dtype)
    same(draw_with(Uniform((3, 2), dtype, low, high), 0), np.full((3, 2), ends[0]))
    top = draw_with(Uniform((3, 2), dtype, low, high), MOST)
    assert (top < ends[1]).all()
    assert (top >= ends[1] - (ends[1] - ends[0]) * 2.0**-3).all()


@DTYPES
@pytest.mark.parametrize(
    ("keep", "value", "want"), [(0, 0, 0), (2**-30, 2**34, 0), (2**-30, 2**34 - 1, 1), (1, MOST, 1)]
)
def test_bernoulli_keeps_below_and_compares_all_53_bits(keep: float, value: int, want: float, dtype: str) -> None:
    same(draw_with(Bernoulli((3, 2), dtype, keep=keep), value), np.full((3, 2), want, dtype))


@pytest.mark.parametrize("value", [0, MOST])
def test_gaussian_is_finite_for_every_word(value: int) -> None:
    assert np.isfinite(draw_with(Gaussian((3, 2), "float64"), value)).all()


def test_draws_have_their_moments() -> None:
    """Within five standard errors of 2**16 draws."""
    shape, error = (2**8, 2**8), 5 / 2**8
    [uniform], [gaussian], [bernoulli] = (
        apply(operation, seed=7)
        for operation in (Uniform(shape, low=-1, high=3), Gaussian(shape, mean=2, std=3), Bernoulli(shape, keep=0.3))
    )
    assert abs(uniform.mean() - 1) < error * 4 / math.sqrt(12)
    assert abs(gaussian.mean() - 2) < error * 3
    assert abs(gaussian.var() / 9 - 1) < error * math.sqrt(2)
    assert abs(bernoulli.mean() - 0.3) < error * math.sqrt(0.21)


@DTYPES
def test_constant_fills(dtype: str) -> None:
    same(apply(Constant(-2.5, (3, 2), dtype))[0], np.full((3, 2), -2.5, dtype))
    same(apply(Constant(3, (), "int64"))[0], np.array(3))
    assert describe(apply(Constant(np.float64(2), (0, 4), dtype))[0]).shape == (0, 4)


WINDOW = "expected a window of shape (3, 2) inside the undivided tensor, got "


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform((3, 2), "int64"), "Uniform: expected dtype of float32 or float64, got int64"),
        (lambda: Uniform((3,), low=1, high=1), "Uniform: expected low below high, got 1.0 and 1.0"),
        (lambda: Uniform((3,), high=math.inf), "Uniform high: expected a finite number, got inf"),
        (lambda: Gaussian((3,), std=-1), "Gaussian: expected a std of 0 or more, got -1.0"),
        (lambda: Bernoulli((3,), keep=1.5), "Bernoulli: expected a keep from 0 to 1, got 1.5"),
        (lambda: Bernoulli((3,), keep=math.nan), "Bernoulli keep: expected a finite number, got nan"),
        (lambda: Bernoulli((3, 2), window=((4, 2), (2, 0))), f"Bernoulli: {WINDOW}((4, 2), (2, 0))"),
        (lambda: Bernoulli((3, 2), window=((4, 2), (-1, 0))), f"Bernoulli: {WINDOW}((4, 2), (-1, 0))"),
        (lambda: Bernoulli((3, 2), window=((4,), (0,))), f"Bernoulli: {WINDOW}((4,), (0,))"),
        (lambda: Uniform((3,)).infer([describe(np.zeros(3))]), "Uniform: expected no inputs, got 1"),
        (lambda: Constant(2.5, (3,), "int64"), "Constant value: expected an integer, got 2.5"),
        (lambda: Constant(1e39, (3,)), "Constant: expected a value that float32 can hold, got 1e+39"),
        (lambda: Constant(2**63, (), "int64"), f"Constant: expected a value that int64 can hold, got {2**63}"),
        (lambda: Constant(1, (3,)).infer([describe(np.zeros(3))]), "Constant: expected no inputs, got 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=rf"^{re.escape(message)}$"):
        make()
