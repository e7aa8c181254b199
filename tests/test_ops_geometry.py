"""Convolution, inner product, bias and pooling: public bug cases, and each one's kind beyond the one input.

Families are drawn by hypothesis (shapes and a seed, never elements) and compared with `oracles.geometry`. Inputs are
small integers wherever the operation can be exact, so that float32 and float64 are both compared bit for bit.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from oracles import geometry as oracle
from purine_ref.devices.kernels import PlainKernels
from purine_ref.errors import ShapeError
from purine_ref.ops.convolution import Conv2d, convolved_size
from purine_ref.ops.global_pooling import GlobalAveragePool2d
from purine_ref.ops.linear import Bias, BiasGradient, Linear
from purine_ref.ops.pooling import AveragePool2d, MaxPool2d
from purine_ref.ops.windows import pooled_size
from purine_ref.tensor import Tensor
from support import apply, backward

Array = Any
NAN, INF = math.nan, math.inf
seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from(["float32", "float64"])
roundings = st.sampled_from(["ceil", "floor"])


def whole(shape: tuple[int, ...], seed: int, dtype: str = "float64", bound: int = 4) -> Array:
    """Integers from -bound to bound, of either layout: half of the seeds give a transposed, strided array."""
    rng = np.random.default_rng(seed)
    if seed % 2:
        return rng.integers(-bound, bound + 1, shape[::-1]).astype(dtype).T
    return rng.integers(-bound, bound + 1, shape).astype(dtype)


def image(*rows: Any, dtype: str = "float64") -> Array:
    """One sample of one channel."""
    return np.array([[rows]], dtype)


def same(got: Array, want: Any) -> None:
    """Equal element for element, NaN to NaN, in value and shape."""
    np.testing.assert_array_equal(got, np.asarray(want, got.dtype), strict=True)


# Convolution


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Any, Any, tuple[Any, ...]]:
    """Shapes of x and weight that fit each other, and (stride, pads, dilation, groups)."""
    groups = draw(st.integers(1, 3))
    kernel, stride, dilation = (draw(st.tuples(st.integers(1, top), st.integers(1, top))) for top in (3, 3, 2))
    pads = tuple(draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for _ in kernel)
    size = draw(st.tuples(st.integers(1, 6), st.integers(1, 7)))
    assume(all(size[a] + sum(pads[a]) > dilation[a] * (kernel[a] - 1) for a in (0, 1)))
    x = (draw(st.integers(0, 3)), groups * draw(st.integers(1, 2)), *size)
    return x, (groups * draw(st.integers(1, 2)), x[1] // groups, *kernel), (stride, pads, dilation, groups)


@given(convolutions(), seeds, dtypes)
def test_convolution_is_the_sum_of_its_products(case: Any, seed: int, dtype: str) -> None:
    shape, weight_shape, window = case
    x, weight = whole(shape, seed, dtype), whole(weight_shape, seed // 2, dtype)
    (y,) = apply(Conv2d(*window), x, weight)
    same(y, oracle.convolution(x, weight, y.shape, *window))
    dy = whole(y.shape, seed // 4, dtype)
    for got, want in zip(
        backward(Conv2d(*window), [x, weight], [dy]), oracle.convolution_gradients(dy, x, weight, *window), strict=True
    ):
        same(got, want)


def test_bits_of_an_image_do_not_depend_on_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the plain kernels: others take more images into one product."""
    monkeypatch.setattr("support.CpuKernels", PlainKernels)
    rng = np.random.default_rng(3)
    x, weight = (rng.standard_normal(shape).astype("float32") for shape in ((5, 6, 7, 8), (4, 3, 3, 2)))
    (y,) = apply(Conv2d(pads=1, groups=2), x, weight)
    gradients = backward(Conv2d(pads=1, groups=2), [x, weight], [y])
    monkeypatch.setattr("purine_ref.devices.kernels.plain._BLOCK_BYTES", 1)
    for n in range(5):
        same(apply(Conv2d(pads=1, groups=2), x[n : n + 1], weight)[0], y[n : n + 1])
    for got, want in zip(backward(Conv2d(pads=1, groups=2), [x, weight], [y]), gradients, strict=True):
        same(got, want)


@pytest.mark.parametrize(
    ("size", "kernel", "window"),
    [
        (2, 3, {"stride": 2}),
        (2, 4, {}),
        (3, 2, {"dilation": 3}),
        (4, 7, {"pads": 1}),
        (4, 6, {"pads": ((1, 0), (0, 1))}),
    ],
)
def test_op_04_a_kernel_larger_than_the_padded_input_is_refused(size: int, kernel: int, window: Any) -> None:
    x, weight = Tensor((5, 3, size, size)), Tensor((4, 3, kernel, kernel))
    operation = Conv2d(**window)
    message = (
        "Conv2d: expected a kernel that fits the padded input (size + pads >= dilation * (kernel - 1) + 1) "
        f"for x {x.shape}, got weight {weight.shape}, pads {operation.pads}, dilation {operation.dilation}"
    )
    with pytest.raises(ShapeError, match=f"^{re.escape(message)}$"):
        operation.infer([x, weight])


@pytest.mark.parametrize("name", ["stride", "dilation"])
def test_op_04_stride_and_dilation_of_zero_are_refused(name: str) -> None:
    with pytest.raises(ShapeError, match=rf"^Conv2d {name}: expected one or two integers of 1 or more, got 0$"):
        Conv2d(**{name: 0})


def test_op_04_a_kernel_of_zero_is_refused() -> None:
    message = r"^Conv2d: expected a kernel of 1 or more per axis, got weight \(4, 3, 0, 2\)$"
    with pytest.raises(ShapeError, match=message):
        Conv2d().infer([Tensor((5, 3, 6, 7)), Tensor((4, 3, 0, 2))])
    message = r"^MaxPool2d kernel: expected one or two integers of 1 or more, got \(2, 0\)$"
    with pytest.raises(ShapeError, match=message):
        MaxPool2d((2, 0))


@given(*[st.integers(*ends) for ends in ((0, 8), (1, 5), (1, 4), (0, 2), (0, 2), (1, 3))])
def test_op_04_the_size_counts_the_places_where_the_kernel_fits(size, kernel, stride, begin, end, dilation) -> None:
    places = [start for start in range(-begin, size + end) if start + dilation * (kernel - 1) < size + end][::stride]
    assert max(0, convolved_size(size, kernel, stride, (begin, end), dilation)) == len(places)


def test_op_20_the_kernel_is_not_flipped() -> None:
    x, weight = np.zeros((1, 1, 5, 5)), np.arange(1.0, 10).reshape(1, 1, 3, 3)
    x[0, 0, 2, 2] = 1
    (y,) = apply(Conv2d(pads=1), x, weight)
    same(y[0, 0, 1:4, 1:4], [[9, 8, 7], [6, 5, 4], [3, 2, 1]])
    assert y.sum() == 45


@pytest.mark.parametrize(
    ("pads", "want"),
    [(1, [[14, 30], [57, 99]]), (((0, 1), (0, 1)), [[54, 45], [72, 54]]), (((1, 0), (0, 1)), [[24, 22], [90, 69]])],
)
def test_op_22_padding_is_given_per_side(pads: Any, want: Any) -> None:
    x = np.arange(1.0, 17).reshape(1, 1, 4, 4)
    same(apply(Conv2d(stride=2, pads=pads), x, np.ones((1, 1, 3, 3)))[0][0, 0], want)


def test_op_31_groups_keep_their_own_channels_and_biases() -> None:
    x, weight, bias = np.zeros((1, 4, 1, 1)), np.ones((16, 2, 1, 1)), np.arange(16.0)
    x[0, 3] = 1
    (y,) = apply(Bias(), apply(Conv2d(groups=2), x, weight)[0], bias)
    same(y.reshape(16), [*range(8), *range(9, 17)])


@pytest.mark.parametrize(
    ("x", "weight", "groups", "message"),
    [
        ((3, 4, 5, 6), (5, 2, 1, 1), 2, "output channels that 2 groups divide, got weight (5, 2, 1, 1)"),
        ((3, 5, 5, 6), (4, 2, 1, 1), 2, "x with 4 channels for weight (4, 2, 1, 1), got x (3, 5, 5, 6)"),
        ((3, 4, 5), (4, 2, 1, 1), 2, "x of shape (N, C, H, W), got (3, 4, 5)"),
        ((3, 4, 5, 6), (4, 2, 1), 2, "weight of shape (K, C/groups, kh, kw), got (4, 2, 1)"),
    ],
)
def test_op_31_channels_that_do_not_match_are_refused(x: Any, weight: Any, groups: int, message: str) -> None:
    with pytest.raises(ShapeError, match=f"^{re.escape('Conv2d: expected ' + message)}$"):
        Conv2d(groups=groups).infer([Tensor(x), Tensor(weight)])


# Inner product and bias


def test_op_27_x_is_flattened_channels_first() -> None:
    rows = np.eye(8)[[1, 4]]
    x = np.arange(8.0).reshape(1, 2, 2, 2)
    same(apply(Linear(), x, rows)[0], [[1, 4]])
    (dx, _) = backward(Linear(), [x, rows], [np.array([[5.0, 6.0]])])
    same(dx, np.array([0, 5, 0, 0, 6, 0, 0, 0]).reshape(1, 2, 2, 2))


def test_op_27_weight_is_out_by_in() -> None:
    same(apply(Linear(), np.eye(4)[:1], np.arange(16.0).reshape(4, 4))[0], [[0, 4, 8, 12]])


@given(st.tuples(*[st.integers(0, top) for top in (4, 3, 3, 2)]), st.integers(0, 5), st.integers(2, 4), seeds, dtypes)
def test_op_27_linear_is_a_sum_over_flat_elements(shape: Any, out: int, rank: int, seed: int, dtype: str) -> None:
    x = whole(shape[:rank], seed, dtype)
    flat = [list(sample.flat) for sample in x.astype("float64")]
    width = math.prod(x.shape[1:])
    weight, dy = whole((out, width), seed // 2, dtype), whole((len(x), out), seed // 4, dtype)
    samples, units, places = range(len(x)), range(out), range(width)
    want = [[sum(flat[n][i] * weight[o, i] for i in places) for o in units] for n in samples]
    same(apply(Linear(), x, weight)[0], np.reshape(want, (len(x), out)))
    dx, dweight = backward(Linear(), [x, weight], [dy])
    want = [[sum(dy[n, o] * weight[o, i] for o in units) for i in places] for n in samples]
    same(dx, np.reshape(want, x.shape))
    want = [[sum(dy[n, o] * flat[n][i] for n in samples) for i in places] for o in units]
    same(dweight, np.reshape(want, weight.shape))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.data(), seeds, dtypes)
def test_bias_is_added_along_its_axis_alone(shape: list[int], data: st.DataObject, seed: int, dtype: str) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x, bias = whole(tuple(shape), seed, dtype), whole((shape[axis],), seed // 2, dtype)
    dx, dbias = backward(Bias(axis), [x, bias], [x])
    want = np.zeros(bias.shape)
    (y,) = apply(Bias(axis), x, bias)
    for at in np.ndindex(*shape):
        assert y[at] == x[at] + bias[at[axis]]
        want[at[axis]] += x[at]
    same(dx, x)
    same(dbias, want)


def test_bias_gradient_of_many_float32_accumulates_in_float64() -> None:
    dy = np.full((1 << 8, 3, 1 << 12), 0.1, "float32")
    same(apply(BiasGradient(), dy)[0], [np.float32((1 << 20) * float(np.float32(0.1)))] * 3)


# Pooling


@st.composite
def pools(draw: st.DrawFn) -> tuple[Any, tuple[Any, ...]]:
    """A shape of x and (kernel, stride, pads, rounding) of which at least one window fits."""
    kernel, stride = (draw(st.tuples(st.integers(1, 3), st.integers(1, top))) for top in (3, 4))
    pads = tuple(draw(st.tuples(st.integers(0, k - 1), st.integers(0, k - 1))) for k in kernel)
    rounding = draw(roundings)
    size = draw(st.tuples(st.integers(1, 7), st.integers(1, 6)))
    assume(all(oracle.windows(size[a], kernel[a], stride[a], pads[a], rounding) for a in (0, 1)))
    return (draw(st.integers(0, 3)), draw(st.integers(1, 2)), *size), (kernel, stride, pads, rounding)


def test_op_01_a_window_outside_the_image_is_clipped() -> None:
    x = np.arange(36.0).reshape(1, 1, 6, 6)
    same(apply(MaxPool2d(1, 2), x)[0][0, 0], [[0, 2, 4], [12, 14, 16], [24, 26, 28]])
    x = np.arange(1.0, 26).reshape(1, 1, 5, 5)
    y, index = apply(MaxPool2d(3, 3, 1), x)
    same(y[0, 0], [[7, 10], [22, 25]])
    same(index[0, 0], [[6, 9], [21, 24]])
    (dx,) = backward(MaxPool2d(3, 3, 1), [x], [y, None])
    same(dx, np.where(np.isin(x, y), x, 0))


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 6), st.data(), roundings)
def test_op_01_every_window_holds_an_element(size: int, kernel: int, stride: int, data: Any, rounding: str) -> None:
    pad = data.draw(st.tuples(*[st.integers(0, kernel - 1)] * 2))
    found = oracle.windows(size, kernel, stride, pad, rounding)
    assert max(0, pooled_size(size, kernel, stride, pad, rounding)) == len(found)
    assert all(set(window) & set(range(size)) for window in found)
    if rounding == "ceil" and stride <= kernel and found:
        assert {place for window in found for place in window} >= set(range(size))


@given(pools(), seeds, dtypes)
def test_op_01_max_pool_takes_each_windows_first_maximum(case: Any, seed: int, dtype: str) -> None:
    shape, window = case
    x = whole(shape, seed, dtype, bound=2)
    y, index = apply(MaxPool2d(*window), x)
    dy, dx = whole(y.shape, seed // 2, dtype), np.zeros(shape)
    best = oracle.max_pool(x, *window)
    assert len(best) == y.size
    for at, (value, place) in best.items():
        assert (y[at], index[at]) == (value, place[2] * shape[3] + place[3])
        dx[place] += dy[at]
    same(backward(MaxPool2d(*window), [x], [dy, None])[0], dx)


def test_op_02_the_divisor_leaves_the_overhang_out() -> None:
    (y,) = apply(AveragePool2d((1, 2), (1, 2)), image([1, 2, 3, 4, 5]))
    same(y[0, 0], [[1.5, 3.5, 5]])
    (y,) = apply(AveragePool2d(2, 3), np.arange(49.0).reshape(1, 1, 7, 7))
    same(y[0, 0], [[4, 7, 9.5], [25, 28, 30.5], [42.5, 45.5, 48]])


def test_op_02_declared_padding_counts_when_asked_for() -> None:
    ones, sizes = np.ones((1, 1, 6, 6)), np.array([3.0, 3, 3, 2])
    filled = np.array([2.0, 3, 3, 1])
    same(apply(AveragePool2d(3, 2, 1), ones)[0][0, 0], np.outer(filled, filled) / np.outer(sizes, sizes))
    same(apply(AveragePool2d(3, 2, 1, count="valid"), ones)[0], np.ones((1, 1, 4, 4)))


@given(pools(), st.sampled_from(["padded", "valid"]), seeds, dtypes)
def test_op_02_average_pool_divides_alike_both_ways(case: Any, count: str, seed: int, dtype: str) -> None:
    shape, window = case
    operation = AveragePool2d(*window, count=count)
    x = whole(shape, seed, dtype)
    (y,) = apply(operation, x)
    # 36 is a multiple of every divisor from one to three by one to three, so that no quotient is rounded.
    dy = 36 * whole(y.shape, seed // 2, dtype)
    dx, total, divisors = np.zeros(shape), np.zeros(y.shape), np.ones(y.shape)
    for at, place, divisor in oracle.average_terms(x.shape, *window, count):
        total[at] += x[place]
        divisors[at] = divisor
        dx[place] += dy[at] / divisor
    same(y, total.astype(dtype) / divisors.astype(dtype))
    same(backward(operation, [x], [dy])[0], dx)


@given(st.tuples(*[st.integers(low, 5) for low in (0, 0, 1, 1)]), seeds, dtypes)
def test_global_average_pool_is_the_mean_of_each_plane(shape: Any, seed: int, dtype: str) -> None:
    x, dy = whole(shape, seed, dtype), whole((*shape[:2], 1, 1), seed // 2, dtype)
    area = shape[2] * shape[3]
    total = np.zeros(dy.shape)
    for n, c, h, w in np.ndindex(*shape):
        total[n, c, 0, 0] += x[n, c, h, w]
    same(apply(GlobalAveragePool2d(), x)[0], (total / area).astype(dtype))
    (dx,) = backward(GlobalAveragePool2d(), [x], [dy])
    same(dx, np.broadcast_to(dy / np.asarray(area, dtype), shape))


def test_global_average_of_many_float32_accumulates_in_float64() -> None:
    x = np.full((2, 3, 1 << 9, 1 << 11), 0.1, "float32")
    same(apply(GlobalAveragePool2d(), x)[0], np.full((2, 3, 1, 1), 0.1))


@pytest.mark.parametrize(
    ("rows", "value", "index"),
    [(([NAN, 1], [2, 3]), NAN, 0), (([1, NAN], [2, 3]), NAN, 1), (([-INF] * 2, [-INF] * 2), -INF, 0)],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_op_15_nan_wins_a_max_pool(rows: Any, value: float, index: int, dtype: str) -> None:
    x = image(*rows, dtype=dtype)
    y, at = apply(MaxPool2d(2), x)
    same(y, [[[[value]]]])
    same(at, [[[[index]]]])
    same(backward(MaxPool2d(2), [x], [np.ones_like(y), None])[0].flat[:], np.eye(4)[index])


@given(pools(), seeds)
def test_op_15_max_pool_with_nan_and_infinities(case: Any, seed: int) -> None:
    shape, window = case
    x = np.random.default_rng(seed).choice([NAN, -INF, INF, 1.0], p=[0.1, 0.6, 0.1, 0.2], size=shape)
    y, index = apply(MaxPool2d(*window), x)
    for at, (value, place) in oracle.max_pool(x, *window).items():
        same(y[at], value)
        assert index[at] == place[2] * shape[3] + place[3]


def test_gc_06_near_ties_give_whole_gradients() -> None:
    x, operation = image([1, 1, 1, 8]), MaxPool2d((1, 2), (1, 2), (0, 1))
    same(apply(operation, x)[0][0, 0], [[1, 1, 8]])
    for window, winner in enumerate((0, 1, 3)):
        same(backward(operation, [x], [image(np.eye(3)[window]), None])[0], image(np.eye(4)[winner]))


@given(st.sampled_from([2, 4]), seeds)
def test_gc_06_tied_windows_send_their_gradient_to_one_element(kernel: int, seed: int) -> None:
    x = whole((2, 3, 8, 4), seed, bound=1)
    y, _ = apply(MaxPool2d(kernel), x)
    (dx,) = backward(MaxPool2d(kernel), [x], [np.ones_like(y), None])
    assert sorted(set(dx.flat)) == [0, 1]
    same(dx.reshape(2, 3, 8 // kernel, kernel, 4 // kernel, kernel).sum(axis=(3, 5)), np.ones_like(y))
