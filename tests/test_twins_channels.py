"""One suite for both twins of the loops over channels and over elements, in every order of memory."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twin_cases import DTYPES, LAYOUTS, SEEDS, Array, assert_same, elements, lay_out, room
from twin_values import (
    expected_channel_sums,
    expected_lrn,
    expected_lrn_gradient,
    expected_relu,
    expected_update,
)
from twins import compiled, twin

OTHERS = [(2, 5), (3, 1), (2, 3, 4), (2, 3, 2, 2, 3)]  # not images
SHAPES = st.sampled_from(
    [(2, 3, 3, 5), (0, 3, 4, 4), (3, 1, 2, 2), (1, 70, 1, 1), (2, 4, 1, 7), (2, 2, 0, 3), *OTHERS]
)
WIDE = st.tuples(
    st.integers(0, 3), st.sampled_from([1, 3, 16, 63, 64, 65, 130]), st.integers(1, 5), st.sampled_from([1, 4, 9, 66])
)
"""Shapes that take the compiled loops through whole and cut blocks of channels and of elements."""
SETTINGS = [(0.1, 0.9, 5e-4), (0.1, 0.5, 0.0)]
RULES = ["momentum_update", "torch_update", "adagrad_update"]


@pytest.fixture(scope="module", params=["py", "cy"])
def loops(request: pytest.FixtureRequest) -> ModuleType:
    """Each twin in turn."""
    return twin(request.param)


def arrays(count: int, shape: tuple[int, ...], dtype: str, layout: str, seed: int, special: bool) -> list[Array]:
    """Different elements in one layout, read-only."""
    rng = np.random.default_rng(seed)
    return [lay_out(elements(rng, shape, dtype, special), layout) for _ in range(count)]


def same(got: Array, want: Array) -> None:
    """Equal bits, whatever the order of memory."""
    assert_same(np.ascontiguousarray(got), want)


@given(SHAPES, DTYPES, LAYOUTS, LAYOUTS, SEEDS, st.booleans())
def test_relus_select_by_the_sign_and_let_nan_pass(
    loops: ModuleType, shape: tuple[int, ...], dtype: str, layout: str, other: str, seed: int, special: bool
) -> None:
    x, y = arrays(2, shape, dtype, layout, seed, special)
    y = lay_out(y, other)
    bias = elements(np.random.default_rng(seed), shape[1:2], dtype, special)
    shifted = room(shape, dtype, other)
    loops.bias_relu(x, bias, shifted)
    with np.errstate(invalid="ignore"):
        v = np.ascontiguousarray(x) + bias.reshape(-1, *[1] * (len(shape) - 2))
    same(shifted, expected_relu(v, v))
    loops.add_bias(x, bias, shifted)
    same(shifted, v)
    out = room(shape, dtype, other)
    loops.relu(x, out)
    same(out, expected_relu(x, x))
    loops.relu_gradient(x, y, out)
    same(out, expected_relu(x, y))


@given(SHAPES, DTYPES, LAYOUTS, LAYOUTS, SEEDS, st.booleans())
def test_sums_over_channels_keep_the_stated_order(
    loops: ModuleType, shape: tuple[int, ...], dtype: str, layout: str, other: str, seed: int, special: bool
) -> None:
    dy, y = arrays(2, shape, dtype, layout, seed, special)
    kept = expected_relu(dy, y)
    with np.errstate(invalid="ignore"):
        sums, all_sums = expected_channel_sums(kept), expected_channel_sums(np.ascontiguousarray(dy))
    for wide in ("float64", dtype):
        dx, dbias, whole = room(shape, dtype, other), np.full(shape[1], 7, wide), np.full(shape[1], 7, wide)
        with np.errstate(all="raise"):
            loops.relu_bias_gradient(dy, y, dx, dbias)
            loops.bias_gradient(dy, whole)
        same(dx, kept)
        same(dbias, sums.astype(wide))
        same(whole, all_sums.astype(wide))


def test_a_sum_of_many_equal_numbers_is_exact_to_the_last_bit_of_float32(loops: ModuleType) -> None:
    """2**20 times 0.1f is 104857.60, not 104861.64."""
    total = np.zeros(1, np.float32)
    loops.bias_gradient(np.full((4, 1, 512, 512), 0.1, np.float32), total)
    assert total[0] == np.float32(104857.6015625)


@given(SHAPES, DTYPES, LAYOUTS, SEEDS, st.booleans())
def test_relus_work_in_place(
    loops: ModuleType, shape: tuple[int, ...], dtype: str, layout: str, seed: int, special: bool
) -> None:
    x, y = arrays(2, shape, dtype, layout, seed, special)
    bias = elements(np.random.default_rng(seed), shape[1:2], dtype, special)

    def own(array: Array) -> Array:
        copy = room(shape, dtype, layout)
        copy[...] = array
        return copy

    def call(name: str, inputs: tuple[Array, ...], out: Array, *more: Array) -> Array:
        getattr(loops, name)(*inputs, out, *more)
        return np.ascontiguousarray(out)

    a, fresh, sums, again = own(x), own(x), np.zeros(shape[1]), np.zeros(shape[1])
    assert_same(call("bias_relu", (a, bias), a), call("bias_relu", (x, bias), fresh))
    a = own(x)
    assert_same(call("add_bias", (a, bias), a), call("add_bias", (x, bias), fresh))
    a = own(x)
    assert_same(call("relu", (a,), a), call("relu", (x,), fresh))
    for place in (0, 1):
        b = [own(x), own(y)]
        assert_same(call("relu_gradient", tuple(b), b[place]), call("relu_gradient", (x, y), fresh))
        b = [own(x), own(y)]
        got = call("relu_bias_gradient", tuple(b), b[place], sums)
        assert_same(got, call("relu_bias_gradient", (x, y), fresh, again))
        assert_same(sums, again)


@given(SHAPES, st.sampled_from([1, 3, 5, 9, 10**30 + 1]), DTYPES, LAYOUTS, LAYOUTS, SEEDS, st.booleans())
def test_normalisation_rounds_step_by_step(
    loops: ModuleType, shape: tuple[int, ...], n: int, dtype: str, layout: str, other: str, seed: int, special: bool
) -> None:
    dy, x = arrays(2, shape, dtype, layout, seed, special)
    out = room(shape, dtype, other)
    with np.errstate(all="raise"):
        loops.lrn(x, n, 0.3, 0.75, 2.0, out)
    with np.errstate(all="ignore"):
        same(out, expected_lrn(np.ascontiguousarray(x), n, 0.3, 2.0)[1])
    with np.errstate(all="raise"):
        loops.lrn_gradient(dy, x, n, 0.3, 0.75, 2.0, out)
    with np.errstate(all="ignore"):
        same(out, expected_lrn_gradient(np.ascontiguousarray(dy), np.ascontiguousarray(x), n, 0.3, 2.0))


@pytest.mark.parametrize("beta", [0.5, 0.75, 1.0])
def test_normalisation_is_the_power_of_its_scale(loops: ModuleType, beta: float) -> None:
    dy, x = np.random.default_rng(5).standard_normal((2, 2, 7, 3, 2))
    y, dx = np.zeros((2, *x.shape))
    loops.lrn(x, 3, 0.7, beta, 1.5, y)
    loops.lrn_gradient(dy, x, 3, 0.7, beta, 1.5, dx)
    scale = 1.5 + 0.7 / 3 * loops.window_sum(x * x, 3)
    neighbours = loops.window_sum(dy * x * scale ** (-beta - 1), 3)
    np.testing.assert_allclose(y, x * scale**-beta, rtol=1e-14)
    np.testing.assert_allclose(dx, dy * scale**-beta - 2 * 0.7 / 3 * beta * x * neighbours, rtol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numpy_scalars_are_arrays_without_axes(loops: ModuleType, dtype: str) -> None:
    """What arithmetic leaves of such an array is a scalar."""
    x, y, z = (np.dtype(dtype).type(value) for value in (-0.5, 2.0, 0.25))
    out, other = np.full((), 7, dtype), np.full((), 7, dtype)
    loops.relu(x, out)
    assert out == 0
    loops.relu_gradient(x, y, out)
    assert out == x
    for rule in RULES:
        getattr(loops, rule)(x, y, z, 0.5, 0.5, 0.0, out, other)
        same(np.stack([out, other]), np.stack(expected_update(rule, *map(np.asarray, (x, y, z)), (0.5, 0.5, 0.0))))


@given(
    st.sampled_from([(5, 3, 2, 4), (7,), (3, 70), (2, 0), (130,), (2, 65, 1, 3)]),
    st.sampled_from(RULES),
    st.sampled_from(SETTINGS),
    DTYPES,
    LAYOUTS,
    LAYOUTS,
    SEEDS,
    st.booleans(),
)
def test_updates_round_step_by_step(
    loops: ModuleType,
    shape: tuple[int, ...],
    rule: str,
    numbers: tuple[float, float, float],
    dtype: str,
    layout: str,
    other: str,
    seed: int,
    special: bool,
) -> None:
    weight, gradient, state = arrays(3, shape, dtype, layout, seed, special)
    state = abs(state)
    with np.errstate(all="ignore"):
        values = (np.ascontiguousarray(array) for array in (weight, gradient, state))
        want = [np.asarray(array) for array in expected_update(rule, *values, numbers)]
    outs = room(shape, dtype, other), room(shape, dtype, other)
    loop = getattr(loops, rule)
    with np.errstate(all="raise"):
        loop(weight, gradient, state, np.float64(numbers[0]), *numbers[1:], *outs)
    same(outs[0], want[0])
    same(outs[1], want[1])
    old = [room(shape, dtype, layout) for _ in range(2)]
    old[0][...], old[1][...] = weight, state
    loop(old[0], gradient, old[1], *numbers, *old)
    same(old[0], want[0])
    same(old[1], want[1])


def test_each_image_is_computed_apart_from_its_batch(loops: ModuleType) -> None:
    """So a batch may be shared out by slices."""
    x, dy = (lay_out(array, "pixels") for array in np.random.default_rng(3).standard_normal((2, 4, 6, 5, 3)))
    whole = np.zeros((3, 4, 6, 5, 3))
    alone = np.zeros((3, 4, 6, 5, 3))
    for out, step in ((whole, 4), (alone, 1)):
        for n in range(0, 4, step):
            part = slice(n, n + step)
            loops.lrn(x[part], 3, 0.7, 0.75, 1.5, out[0, part])
            loops.lrn_gradient(dy[part], x[part], 3, 0.7, 0.75, 1.5, out[1, part])
            loops.bias_relu(x[part], np.ones(6), out[2, part])
    assert_same(alone, whole)


@given(WIDE, DTYPES, LAYOUTS, LAYOUTS, SEEDS, st.booleans())
def test_twins_agree_over_many_channels(
    shape: tuple[int, ...], dtype: str, layout: str, other: str, seed: int, special: bool
) -> None:
    x, y = arrays(2, shape, dtype, layout, seed, special)
    bias = elements(np.random.default_rng(seed), shape[1:2], dtype)

    def results(loops: ModuleType) -> list[Array]:
        outs = [room(shape, dtype, other) for _ in range(9)]
        sums = np.zeros((2, shape[1]))
        loops.bias_relu(x, bias, outs[0])
        loops.add_bias(x, bias, outs[8])
        loops.relu_bias_gradient(x, y, outs[1], sums[0])
        loops.bias_gradient(y, sums[1])
        loops.window_sum(x, 5, out=outs[2])
        for beta, place in ((0.75, 3), (0.6, 5)):
            loops.lrn(x, 5, 1e-2, beta, 1.0, outs[place])
            loops.lrn_gradient(y, x, 5, 1e-2, beta, 1.0, outs[place + 1])
        loops.relu_gradient(x, y, outs[7])
        return [np.ascontiguousarray(out) for out in outs] + list(sums)

    for got, want in zip(results(compiled()), results(twin("py")), strict=True):
        assert_same(got, want)
