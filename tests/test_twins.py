"""One suite for both twins of the loops over windows, and of the generator.

Those over channels and elements are in `test_twins_channels.py`, what is refused in `test_twins_refusals.py`.
"""

from __future__ import annotations

import inspect
from types import ModuleType

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
    Pair,
    assert_same,
    columns_of,
    convolutions,
    elements,
    expected_average_pool,
    expected_average_pool_scatter,
    expected_col2im,
    expected_im2col,
    expected_max_pool,
    expected_philox,
    expected_unfold,
    lay_out,
    philox_block,
    pools,
    room,
)
from twins import compiled, twin

NAMES = list(select("0").__all__)
NO_PADS = ((0, 0), (0, 0))


@pytest.fixture(scope="module", params=["py", "cy"])
def loops(request: pytest.FixtureRequest) -> ModuleType:
    """Each twin in turn."""
    return twin(request.param)


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


@given(convolutions(), st.booleans(), st.floats(0, 1), st.floats(0, 1))
def test_unfold_gives_any_rows_of_patches(
    loops: ModuleType, case: Case, special: bool, begin: float, part: float
) -> None:
    x = case.array(case.shape, special)
    before, want = x.copy(), expected_unfold(case, x)
    first = int(begin * len(want))
    count = int(part * (len(want) - first))
    guarded = np.full((count + 5, want.shape[1]), 7, x.dtype)
    out = guarded[:count]
    loops.unfold(x, *case.taps, first, out)
    assert_same(out, want[first : first + count])
    assert (guarded[count:] == 7).all(), "it wrote behind its rows"
    np.testing.assert_array_equal(x, before)


def test_unfold_writes_no_more_than_its_rows_where_windows_lie_in_the_padding(loops: ModuleType) -> None:
    x = np.ones((1, 4, 5, 2), "float32").transpose(0, 3, 1, 2)
    guarded = np.full((4, 4), 7, x.dtype)
    loops.unfold(x, (1, 2), (1, 1), ((3, 0), (1, 0)), (1, 1), 0, guarded[:1])
    assert not guarded[:1].any()
    assert (guarded[1:] == 7).all()


@given(st.tuples(*[st.integers(0, 3)] * 4), LAYOUTS)
def test_rows_of_pixels_are_the_same_memory(loops: ModuleType, shape: tuple[int, ...], layout: str) -> None:
    x = room(shape, "float32", layout)
    rows, pixels = loops.pixel_rows(x), x.transpose(0, 2, 3, 1)
    if x.size and (layout == "pixels" or pixels.flags.c_contiguous):
        assert rows is not None
    if rows is not None:
        assert (rows.shape, rows.dtype) == ((shape[0] * shape[2] * shape[3], shape[1]), x.dtype)
        rows[...] = np.arange(rows.size).reshape(rows.shape)
        np.testing.assert_array_equal(pixels.reshape(rows.shape), rows)
    frozen = x.view()
    frozen.flags.writeable = False
    assert rows is None or not loops.pixel_rows(frozen).flags.writeable


@given(convolutions(), st.booleans())
def test_fold_adds_overlaps_in_kernel_order(loops: ModuleType, case: Case, special: bool) -> None:
    shape = case.shape[0] * case.size[0] * case.size[1], case.kernel[0] * case.kernel[1] * case.shape[1]
    rows = elements(np.random.default_rng(case.seed), shape, case.dtype, special)
    dx = room(case.shape, case.dtype, case.layout)
    with np.errstate(all="raise"):
        loops.fold(rows, dx, *case.taps)
    cols = columns_of(case, rows)
    with np.errstate(invalid="ignore"):
        assert_same(np.ascontiguousarray(dx), expected_col2im(case, cols))
    assert_same(np.ascontiguousarray(dx), loops.col2im(cols, case.shape, *case.taps))


def convolution_case(shape: tuple[int, int, int, int], kernel: Pair, pads: tuple[Pair, Pair], dtype: str) -> Case:
    """A convolution of stride 1, of whole channels-last images."""
    size = tuple(shape[axis + 2] + sum(pads[axis]) - kernel[axis] + 1 for axis in (0, 1))
    return Case(shape, kernel, (1, 1), pads, (1, 1), (size[0], size[1]), dtype, "pixels", 3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("channels", [16, 48])
@pytest.mark.parametrize("pads", [NO_PADS, ((1, 1), (0, 1)), ((4, 3), (3, 5))])
def test_fold_of_many_channels_adds_in_kernel_order(
    loops: ModuleType, channels: int, dtype: str, pads: tuple[Pair, Pair]
) -> None:
    case = convolution_case((2, channels, 3, 4), (3, 2), pads, dtype)
    shape = 2 * case.size[0] * case.size[1], 6 * channels
    rows, dx = elements(np.random.default_rng(8), shape, dtype), room(case.shape, dtype, "channels")
    loops.fold(rows, dx, *case.taps)
    assert_same(np.ascontiguousarray(dx), expected_col2im(case, columns_of(case, rows)))


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_images_that_are_too_large_to_be_framed_unfold_and_fold_alike(loops: ModuleType, channels: int) -> None:
    case = convolution_case((1, channels, 4, 4200 // channels // 6), (3, 3), ((1, 1), (1, 1)), "float32")
    x = case.array(case.shape)
    want = expected_unfold(case, x)
    rows = np.full_like(want, 7)
    loops.unfold(x, *case.taps, 0, rows)
    assert_same(rows, want)
    dx = room(case.shape, "float32", "pixels")
    loops.fold(rows, dx, *case.taps)
    assert_same(np.ascontiguousarray(dx), expected_col2im(case, columns_of(case, rows)))


@pytest.mark.parametrize("channels", [15, 16, 17, 33])
@pytest.mark.parametrize("special", [False, True])
def test_maxima_of_many_channels(loops: ModuleType, channels: int, special: bool) -> None:
    case = Case((2, channels, 4, 5), (2, 3), (2, 2), NO_PADS, (1, 1), (2, 2), "float32", "pixels", 4)
    x = case.array(case.shape, special)
    out = room((2, channels, 2, 2), "float32", "pixels"), room((2, channels, 2, 2), "int64", "pixels")
    loops.max_pool(x, *case.windows, case.size, out=out)
    for got, want in zip(out, expected_max_pool(case, x), strict=True):
        assert_same(np.ascontiguousarray(got), want)


@given(pools(), convolutions(), LAYOUTS, st.booleans())
def test_results_are_the_same_wherever_they_are_written(
    loops: ModuleType, pool: Case, conv: Case, layout: str, special: bool
) -> None:
    x, dy = pool.array(pool.shape, special), pool.array((*pool.shape[:2], *pool.size), special)
    image, cols = conv.array(conv.shape, special), conv.array((*conv.shape[:2], *conv.kernel, *conv.size))
    y, index = loops.max_pool(x, *pool.windows, pool.size)
    outs = room(y.shape, y.dtype, layout), room(index.shape, index.dtype, layout)
    got = loops.max_pool(x, *pool.windows, pool.size, out=outs)
    assert got[0] is outs[0]
    assert got[1] is outs[1]
    assert_same(np.ascontiguousarray(outs[0]), y)
    assert_same(np.ascontiguousarray(outs[1]), index)
    calls = [
        (loops.max_pool_scatter, (dy, outs[1], pool.shape)),
        (loops.average_pool, (x, *pool.windows, pool.size, "padded")),
        (loops.average_pool_scatter, (dy, pool.shape, *pool.windows, "valid")),
        (loops.im2col, (image, *conv.taps)),
        (loops.col2im, (cols, conv.shape, *conv.taps)),
        (loops.window_sum, (x, 3)),
    ]
    for loop, arguments in calls:
        want = loop(*arguments)
        out = room(want.shape, want.dtype, layout)
        assert loop(*arguments, out=out) is out
        assert_same(np.ascontiguousarray(out), want)


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
