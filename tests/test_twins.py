"""One suite for both twins of the loops: the plain one (`py`) and the compiled one (`cy`).

`cy` is skipped only where PURINE_REF_FAST is 0 or nothing was built; never where it is 1.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from purine_ref._fast import select
from twin_cases import (
    DTYPES,
    LAYOUTS,
    SEEDS,
    UNEVEN,
    Array,
    Case,
    assert_same,
    convolutions,
    expected_average_pool,
    expected_average_pool_scatter,
    expected_col2im,
    expected_im2col,
    expected_max_pool,
    expected_philox,
    lay_out,
    philox_block,
    pools,
)

NAMES = "im2col col2im max_pool max_pool_scatter average_pool average_pool_scatter window_sum philox".split()
NO_PADS = ((0, 0), (0, 0))


def compiled() -> ModuleType:
    """The compiled twin, or a skip that says why there is none."""
    setting = os.environ.get("PURINE_REF_FAST", "auto")
    if setting == "0":
        pytest.skip("PURINE_REF_FAST=0 asks for the plain loops alone")
    if setting == "auto" and importlib.util.find_spec("purine_ref._fast._loops") is None:
        pytest.skip("the compiled loops are not built; run python setup.py build_ext --inplace")
    return select("1")


@pytest.fixture(scope="module", params=["py", "cy"])
def loops(request: pytest.FixtureRequest) -> ModuleType:
    """Each twin in turn."""
    return select("0") if request.param == "py" else compiled()


# The loops.


@given(convolutions(), st.booleans())
def test_im2col_gathers_every_patch_and_zeros_the_padding(loops: ModuleType, case: Case, special: bool) -> None:
    x = case.array(case.shape, special)
    before = x.copy()
    got = loops.im2col(x, case.kernel, case.stride, case.pads, case.dilation)
    assert_same(got, expected_im2col(case, x))
    np.testing.assert_array_equal(x, before)


@given(convolutions())
def test_col2im_adds_overlaps_in_kernel_order(loops: ModuleType, case: Case) -> None:
    cols = case.array((*case.shape[:2], *case.kernel, *case.size))
    got = loops.col2im(cols, case.shape, case.kernel, case.stride, case.pads, case.dilation)
    assert_same(got, expected_col2im(case, cols))


@given(pools(), st.booleans())
def test_max_pool_takes_the_first_maximum_inside_the_image(loops: ModuleType, case: Case, special: bool) -> None:
    x = case.array(case.shape, special)
    before = x.copy()
    y, index = loops.max_pool(x, case.kernel, case.stride, case.pads, case.size)
    want_y, want_index = expected_max_pool(case, x)
    assert_same(index, want_index)
    assert_same(y, want_y)
    np.testing.assert_array_equal(x, before)


def test_op_15_max_pool_nan_wins_and_infinity_points_into_the_image(loops: ModuleType) -> None:
    """OP-15: [nan,1,2,3] and [1,nan,2,3] give nan at 0 and 1; [-inf]*4 gives -inf at its first element."""
    windows = np.array([[np.nan, 1, 2, 3], [1, np.nan, 2, 3], [-np.inf] * 4, [np.nan, 5, np.nan, 6]])
    y, index = loops.max_pool(windows.reshape(2, 2, 2, 2), (2, 2), (2, 2), NO_PADS, (1, 1))
    np.testing.assert_array_equal(y.ravel(), [np.nan, np.nan, -np.inf, np.nan])
    np.testing.assert_array_equal(index.ravel(), [0, 1, 0, 0])
    padded, places = loops.max_pool(np.full((1, 2, 2, 3), -np.inf), (2, 2), (1, 1), ((1, 1), (1, 1)), (3, 4))
    np.testing.assert_array_equal(padded, np.full((1, 2, 3, 4), -np.inf))
    np.testing.assert_array_equal(places[0, 1], [[0, 0, 1, 2], [0, 0, 1, 2], [3, 3, 4, 5]])


@given(pools())
def test_max_pool_scatter_adds_overlaps_in_window_order(loops: ModuleType, case: Case) -> None:
    dy = case.array((*case.shape[:2], *case.size))
    places = np.random.default_rng(case.seed + 1).integers(0, case.shape[2] * case.shape[3], dy.shape)
    places[..., :1] = 5
    index = lay_out(places, case.layout)
    want = np.zeros((*case.shape[:2], case.shape[2] * case.shape[3]), dy.dtype)
    for n, c, i, j in np.ndindex(dy.shape):
        want[n, c, index[n, c, i, j]] += dy[n, c, i, j]
    assert_same(loops.max_pool_scatter(dy, index, case.shape), want.reshape(case.shape))


@given(pools(), st.sampled_from(["padded", "valid"]), st.booleans())
@example(UNEVEN, "padded", False)
def test_average_pool_adds_in_order_then_divides(loops: ModuleType, case: Case, count: str, special: bool) -> None:
    x = case.array(case.shape, special)
    with np.errstate(all="raise"):
        got = loops.average_pool(x, case.kernel, case.stride, case.pads, case.size, count)
    with np.errstate(invalid="ignore"):
        assert_same(got, expected_average_pool(case, x, count))


def test_op_02_average_pool_counts_declared_padding_but_no_overhang(loops: ModuleType) -> None:
    """OP-02: (a) [1,2,3,4,5], k=2, s=2 gives [1.5, 3.5, 5]; (b) ones, k=3, s=2, p=1 rounded up."""
    row = np.arange(1.0, 6.0, dtype=np.float32).reshape(1, 1, 1, 5)
    got = loops.average_pool(row, (1, 2), (1, 2), NO_PADS, (1, 3), "padded")
    np.testing.assert_array_equal(got.ravel(), np.array([1.5, 3.5, 5], np.float32))
    ones, pads = np.ones((1, 1, 6, 6)), ((1, 1), (1, 1))
    valid = loops.average_pool(ones, (3, 3), (2, 2), pads, (4, 4), "valid")
    np.testing.assert_array_equal(valid, np.ones((1, 1, 4, 4)))
    padded = loops.average_pool(ones, (3, 3), (2, 2), pads, (4, 4), "padded")[0, 0]
    want = [[4 / 9, 6 / 9, 6 / 9, 2 / 6], [6 / 9, 1, 1, 3 / 6], [6 / 9, 1, 1, 3 / 6], [2 / 6, 3 / 6, 3 / 6, 1 / 4]]
    np.testing.assert_array_equal(padded, want)


@given(pools(), st.sampled_from(["padded", "valid"]))
@example(UNEVEN, "padded")
def test_average_pool_scatter_divides_then_adds_in_kernel_order(loops: ModuleType, case: Case, count: str) -> None:
    dy = case.array((*case.shape[:2], *case.size))
    got = loops.average_pool_scatter(dy, case.shape, case.kernel, case.stride, case.pads, count)
    assert_same(got, expected_average_pool_scatter(case, dy, count))


@given(
    st.sampled_from([(0, 5, 3, 4), (2, 5, 3, 4), (3, 2, 4), (4, 7), (2, 0, 3, 4), (2, 3, 0, 4), (2, 1, 3)]),
    st.sampled_from([1, 3, 5, 9, 10**30 + 1]),
    DTYPES,
    LAYOUTS,
    SEEDS,
)
def test_window_sum_adds_rising_channels_that_exist(
    loops: ModuleType, shape: tuple[int, ...], n: int, dtype: str, layout: str, seed: int
) -> None:
    x = lay_out(np.random.default_rng(seed).standard_normal(shape).astype(dtype), layout)
    want = np.zeros(shape, dtype)
    for c in range(shape[1]):
        for k in range(shape[1]):
            if abs(k - c) <= n // 2:
                want[:, c] += x[:, k]
    assert_same(loops.window_sum(x, n), want)


def test_each_image_is_computed_apart_from_its_batch(loops: ModuleType) -> None:
    x = np.random.default_rng(3).standard_normal((4, 3, 5, 6)).astype(np.float32)
    window_of = {"kernel": (3, 2), "stride": (2, 1), "pads": ((1, 0), (1, 1))}
    whole = loops.average_pool(x, size=(3, 7), count="padded", **window_of)
    for n in range(4):
        alone = loops.average_pool(x[n : n + 1], size=(3, 7), count="padded", **window_of)
        assert_same(alone, whole[n : n + 1])


# The generator.


def test_philox_block_agrees_with_the_published_vectors() -> None:
    """The known answers of Random123: the expected values below rest on them."""
    ones = 2**64 - 1
    pi = [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89]
    assert [f"{word:016x}" for word in philox_block([0] * 4, [0] * 2)] == (
        "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b".split()
    )
    assert [f"{word:016x}" for word in philox_block([ones] * 4, [ones] * 2)] == (
        "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0".split()
    )
    assert [f"{word:016x}" for word in philox_block(pi, [0x452821E638D01377, 0xBE5466CF34E90C6C])] == (
        "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6".split()
    )


@given(
    st.integers(-(2**65), 2**65),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.integers(0, 2**64 - 1),
    st.one_of(st.integers(0, 40), st.integers(0, 2**66 - 1)),
    st.integers(0, 11),
)
@example(0, "", 0, 0, 8)
@example(-1, "conv1/dropout", 2**64 - 1, 2**66 - 5, 5)
@example(7, "\u00e9\U0001f600", 3, 4 * (2**32 - 1) + 1, 9)
def test_philox_draws_the_keyed_sequence(
    loops: ModuleType, seed: int, stream: str, iteration: int, start: int, count: int
) -> None:
    count = min(count, 2**66 - start)
    got = loops.philox(seed, stream, iteration, start, count)
    assert got.dtype == np.uint64
    assert got.tolist() == expected_philox(seed, stream, iteration, start, count)


def test_philox_takes_numpy_integers(loops: ModuleType) -> None:
    got = loops.philox(np.int64(5), "x", np.int64(2**62), np.int64(6), np.int64(3))
    assert got.tolist() == expected_philox(5, "x", 2**62, 6, 3)


def test_philox_hashes_names_by_fnv_1a(loops: ModuleType) -> None:
    """The published FNV-1a values of "" and "foobar", so that the names' hash rests on more than this file."""
    for name, value in (("", 0xCBF29CE484222325), ("foobar", 0x85944171F73967E8)):
        assert loops.philox(9, name, 4, 0, 4).tolist() == philox_block([0, 4, 0, 0], [9, value])


# What is refused.

X = np.zeros((2, 3, 4, 5))
POOL: dict[str, Any] = {"kernel": (2, 3), "stride": (1, 2), "pads": NO_PADS, "size": (3, 2)}
CONV: dict[str, Any] = {"kernel": (2, 3), "stride": (1, 2), "pads": NO_PADS, "dilation": (1, 1)}
COLS, INDEX = np.zeros((2, 3, 2, 3, 3, 2)), np.zeros(X.shape, np.int64)
PLACED: dict[str, Any] = {"dy": X, "index": INDEX, "shape": X.shape}
SPREAD: dict[str, Any] = {"dy": X, "shape": X.shape, "count": "valid"} | {
    "kernel": (1, 1),
    "stride": (1, 1),
    "pads": NO_PADS,
}
DRAW: dict[str, Any] = {"seed": 1, "stream": "s", "iteration": 0, "start": 0, "count": 4}
MISSED = r"expected at least one window, each with an element of the image of"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("im2col", CONV | {"x": X[0]}, r"x: expected 4 axes of float32 or float64, got shape \(3, 4, 5\) of float64; .*"),
    ("im2col", CONV | {"x": X.astype(int)}, r"x: expected 4 axes .*, got shape \(2, 3, 4, 5\) of int64; .* first"),
    ("im2col", CONV | {"x": X.astype(">f8")}, r"x: expected 4 axes .*, got shape \(2, 3, 4, 5\) of >f8; .* first"),
    ("im2col", CONV | {"x": X, "kernel": (5, 3)}, r"axis 2: expected a kernel extent of at most the padded 4, got 5"),
    ("im2col", CONV | {"x": X, "dilation": (1, 3)}, r"axis 3: expected a kernel extent of at most .* 5, got 7"),
    ("im2col", CONV | {"x": X, "kernel": (0, 3)}, r"kernel: expected at least 1 per axis, got \(0, 3\)"),
    ("im2col", CONV | {"x": X, "stride": (1, 0)}, r"stride: expected at least 1 per axis, got \(1, 0\)"),
    ("im2col", CONV | {"x": X, "dilation": (0, 1)}, r"dilation: expected at least 1 per axis, got \(0, 1\)"),
    ("im2col", CONV | {"x": X, "pads": ((0, 0), (0, -1))}, r"pads: expected 0 or more on every side, got .*-1\)\)"),
    ("col2im", CONV | {"cols": X, "shape": X.shape}, r"cols: expected 6 axes of .*, got shape \(2, 3, 4, 5\) of .*"),
    ("col2im", CONV | {"cols": COLS[..., 1:], "shape": X.shape}, r"cols: expected shape \(2, 3, 2, 3, 3, 2\), got .*"),
    (
        "max_pool",
        POOL | {"x": X, "pads": ((2, 0), (0, 0))},
        rf"axis 2: {MISSED} 4; got 3 .* ending before 0, .*",
    ),
    ("max_pool", POOL | {"x": X, "size": (3, 4)}, rf"axis 3: {MISSED} 5; got 4 windows, .*, the last starting at 6"),
    ("max_pool", POOL | {"x": X, "size": (0, 2)}, rf"axis 2: {MISSED} 4; got 0 windows, .*"),
    ("max_pool_scatter", PLACED | {"index": X}, r"index: expected int64 of shape \(2, 3, 4, 5\), got float64 .*"),
    ("max_pool_scatter", PLACED | {"index": INDEX[:, :2]}, r"index: expected int64 of .*, got int64 of .* 2, 4, 5\)"),
    ("max_pool_scatter", PLACED | {"index": INDEX - 1}, r"index: expected 0 to 19, got -1 to -1"),
    ("max_pool_scatter", PLACED | {"index": INDEX + 20}, r"index: expected 0 to 19, got 20 to 20"),
    ("max_pool_scatter", PLACED | {"shape": (2, 4, 4, 5)}, r"shape: expected 4 axes that start with \(2, 3\), got .*"),
    ("average_pool", POOL | {"x": X, "count": "all"}, r"count: expected 'padded' or 'valid', got 'all'"),
    ("average_pool", POOL | {"x": X, "count": "valid", "size": (5, 2)}, rf"axis 2: {MISSED} 4; got 5 windows, .*"),
    ("average_pool_scatter", SPREAD | {"count": "none"}, r"count: expected 'padded' or 'valid', got 'none'"),
    ("average_pool_scatter", SPREAD | {"shape": (2, 5, 4, 5)}, r"dy: expected shape \(2, 5, 4, 5\), got .*"),
    ("average_pool_scatter", SPREAD | {"shape": (2, 3, 3, 5)}, rf"axis 2: {MISSED} 3; got 4 windows, .*"),
    ("window_sum", {"x": X, "n": 6}, r"window n: expected an odd number of channels, at least 1, got 6"),
    ("window_sum", {"x": X, "n": -1}, r"window n: expected an odd number of channels, at least 1, got -1"),
    ("window_sum", {"x": X[0, 0, 0], "n": 3}, r"x: expected 2 axes of .*, got shape \(5,\) of float64; .*"),
    ("philox", DRAW | {"start": -1}, r"philox: expected elements from 0 to 2\*\*66 - 1, got 4 from -1"),
    ("philox", DRAW | {"start": 2**66 - 3}, r"philox: expected elements from 0 to 2\*\*66 - 1, got 4 from 7\d+"),
    ("philox", DRAW | {"count": -1}, r"philox: expected elements from 0 to 2\*\*66 - 1, got -1 from 0"),
    ("philox", DRAW | {"iteration": -1}, r"philox: expected an iteration from 0 to 2\*\*64 - 1, got -1"),
    ("philox", DRAW | {"iteration": 2**64}, r"philox: expected an iteration from 0 to 2\*\*64 - 1, got 1\d+"),
]


@pytest.mark.parametrize(("name", "arguments", "message"), REFUSED)
def test_arguments_that_make_no_sense_are_refused(
    loops: ModuleType, name: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        getattr(loops, name)(**arguments)


# Twin against twin.


@pytest.mark.parametrize("name", NAMES)
def test_twins_have_one_signature(name: str) -> None:
    py, cy = (inspect.signature(getattr(module, name)) for module in (select("0"), compiled()))
    assert list(cy.parameters) == list(py.parameters)


@given(pools(), convolutions(), st.booleans())
def test_twins_agree_bit_for_bit(pool: Case, conv: Case, special: bool) -> None:
    py, cy = select("0"), compiled()
    x, dy = pool.array(pool.shape, special), pool.array((*pool.shape[:2], *pool.size))
    image, cols = conv.array(conv.shape, special), conv.array((*conv.shape[:2], *conv.kernel, *conv.size))
    where, taps = (pool.kernel, pool.stride, pool.pads), (conv.kernel, conv.stride, conv.pads, conv.dilation)

    def results(loops: ModuleType) -> list[Array]:
        y, index = loops.max_pool(x, *where, pool.size)
        return [
            y,
            index,
            loops.max_pool_scatter(dy, index, pool.shape),
            loops.average_pool(x, *where, pool.size, "padded"),
            loops.average_pool_scatter(dy, pool.shape, *where, "valid"),
            loops.im2col(image, *taps),
            loops.col2im(cols, conv.shape, *taps),
            loops.window_sum(dy, 3),
            loops.philox(pool.seed, pool.layout, conv.seed, pool.seed, 13),
        ]

    for got, want in zip(results(cy), results(py), strict=True):
        assert_same(got, want)
