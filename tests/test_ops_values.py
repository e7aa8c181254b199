"""Values of activations, softmax, losses, dropout, sums and updates: the known cases, and their whole kinds."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purine_ref.devices.cpu import CpuKernels
from purine_ref.errors import OperatorError, ShapeError
from purine_ref.operation import RunKey
from purine_ref.ops import (
    SGD,
    AdaGrad,
    Bernoulli,
    Dropout,
    LogSoftmax,
    LogSoftmaxGradient,
    ReduceMean,
    ReduceSum,
    ReLU,
    Scale,
    Sigmoid,
    Softmax,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGradient,
    SoftmaxGradient,
    SquaredError,
    Sum,
    Tanh,
    TopKAccuracy,
    TorchSGD,
    WeightedSum,
)
from purine_ref.tensor import Tensor, as_shape
from support import apply, backward

Array = Any
NAN, INF = math.nan, math.inf
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])
SEEDS = st.integers(0, 2**32)
LENGTHS = st.integers(2, 6)


def same(got: Array, want: Any) -> None:
    """Equal element for element, NaN to NaN, in value and shape."""
    np.testing.assert_array_equal(got, np.asarray(want, got.dtype), strict=True)


def near(got: Array, want: Any, ulps: int = 4) -> None:
    """Within some units in the last place of the largest element."""
    want = np.asarray(want, np.float64)
    assert got.shape == want.shape
    size = np.abs(want).max(initial=np.finfo(got.dtype).tiny)
    assert np.abs(got - want).max(initial=0) <= ulps * np.finfo(got.dtype).eps * size


def softmax_row(row: Sequence[float]) -> list[float]:
    """Softmax of a list, in exactly rounded sums."""
    powers = [math.exp(x - max(row)) for x in row]
    return [p / math.fsum(powers) for p in powers]


# The softmax loss


@DTYPES
@pytest.mark.parametrize(
    ("logits", "label", "loss", "gradient"),
    [
        ([1e8, 1e8], 1, math.log(2), [0.5, -0.5]),
        ([-431, 279, 427], 0, 858, [-1, 0, 1]),
        ([-200] * 4, 0, math.log(4), [-0.75, 0.25, 0.25, 0.25]),
        ([0, 100], 0, 100, [-1, 1]),
        ([-INF, 0, 0], 1, math.log(2), [0, -0.5, 0.5]),
    ],
)
def test_op_07_the_loss_is_a_log_of_a_sum_of_exponentials(logits, label, loss, gradient, dtype: str) -> None:
    inputs = [np.array([logits], dtype), np.array([label])]
    near(apply(SoftmaxCrossEntropy(), *inputs)[0], loss)
    [dlogits, _] = backward(SoftmaxCrossEntropy(), inputs, [np.ones((), dtype)])
    near(dlogits, [gradient])


@pytest.mark.parametrize("operation", [Softmax(), LogSoftmax(), SoftmaxCrossEntropy(), SoftmaxCrossEntropyGradient()])
def test_op_07_nothing_but_minus_infinity_is_an_error(operation) -> None:
    logits, label = np.array([[1, 2, 3], [-INF] * 3], "float32"), np.array([0, 1])
    inputs = {"Softmax": [logits], "LogSoftmax": [logits], "SoftmaxCrossEntropy": [logits, label]}
    expected = "expected one element or more above -inf along axis 1, got none in 1 of 2 rows"
    with pytest.raises(OperatorError, match=rf"^{operation.name}: {re.escape(expected)}$"):
        apply(operation, *inputs.get(operation.name, [np.float32(1), logits, label]))


@DTYPES
@given(
    st.lists(LENGTHS, min_size=2, max_size=4, unique=True), SEEDS, st.floats(-30, 30), st.sampled_from(["mean", "sum"])
)
def test_op_07_the_loss_of_any_logits(dtype: str, shape: list[int], seed: int, power: float, reduction: str) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=shape) * 10.0**power).astype(dtype)
    label = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    rows = [[float(x) for x in row] for row in np.moveaxis(logits, 1, -1).reshape(-1, shape[1])]
    labels = [int(k) for k in label.reshape(-1)]
    losses = [
        math.log(math.fsum(math.exp(x - max(row)) for x in row)) + (max(row) - row[k])
        for row, k in zip(rows, labels, strict=True)
    ]
    divisor = len(rows) if reduction == "mean" else 1
    near(apply(SoftmaxCrossEntropy(reduction), logits, label)[0], math.fsum(losses) / divisor)
    [dlogits, _] = backward(SoftmaxCrossEntropy(reduction), [logits, label], [np.asarray(2, dtype)])
    slopes = [
        [2 / divisor * (p - (j == k)) for j, p in enumerate(softmax_row(r))] for r, k in zip(rows, labels, strict=True)
    ]
    near(np.moveaxis(dlogits, 1, -1).reshape(-1, shape[1]), slopes)


@DTYPES
@given(st.lists(LENGTHS, min_size=2, max_size=3, unique=True), SEEDS, st.data())
def test_op_07_softmax_and_its_logarithm_along_any_axis(dtype: str, shape: list[int], seed: int, data: Any) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x, dy = (np.random.default_rng(seed).normal(size=(2, *shape)) * 300).astype(dtype)
    lists = np.moveaxis(x, axis, -1).reshape(-1, shape[axis]).tolist()
    want = np.array([softmax_row(row) for row in lists]).T
    [y], [log] = apply(Softmax(axis), x), apply(LogSoftmax(axis), x)
    near(np.moveaxis(y, axis, 0).reshape(shape[axis], -1), want)
    logs = [[v - max(row) - math.log(math.fsum(math.exp(w - max(row)) for w in row)) for v in row] for row in lists]
    near(np.moveaxis(log, axis, 0).reshape(shape[axis], -1), np.array(logs).T)
    inner = (dy.astype("float64") * y).sum(axis, keepdims=True)
    near(apply(SoftmaxGradient(axis), dy, y)[0], y * (dy - inner), 8)
    total = dy.astype("float64").sum(axis, keepdims=True)
    near(apply(LogSoftmaxGradient(axis), dy, log)[0], dy - np.exp(log.astype("float64")) * total, 8)


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("operation", [Softmax(), LogSoftmax()])
def test_op_15_one_rows_nan_stays_in_that_row(operation, value: float) -> None:
    x = np.arange(12.0).reshape(3, 4)
    [want] = apply(operation, x)
    x[1, 2] = value
    [got] = apply(operation, x)
    same(got[[0, 2]], want[[0, 2]])
    assert np.isnan(got[1]).all()


def test_op_15_one_samples_nan_stays_in_that_samples_gradient() -> None:
    logits, label = np.arange(12.0).reshape(3, 4), np.array([2, 0, 1])
    [want, _] = backward(SoftmaxCrossEntropy("sum"), [logits, label], [np.ones(())])
    logits[1, 2] = NAN
    [got, _] = backward(SoftmaxCrossEntropy("sum"), [logits, label], [np.ones(())])
    same(got[[0, 2]], want[[0, 2]])
    assert np.isnan(got[1]).all()
    assert np.isnan(apply(SoftmaxCrossEntropy(), logits, label)[0])


@pytest.mark.parametrize(("label", "came"), [([0, 3, 2, 1], "3 at index [1]"), ([0, 2, -1, 1], "-1 at index [2]")])
@pytest.mark.parametrize("operation", [SoftmaxCrossEntropy(ignore=7), TopKAccuracy(), SoftmaxCrossEntropyGradient()])
def test_a_label_outside_the_classes_is_an_error(operation, label: list[int], came: str) -> None:
    inputs = [np.zeros((4, 3)), np.array(label)]
    if operation.name == "SoftmaxCrossEntropyGradient":
        inputs = [np.ones(()), *inputs]
    expected = f"{operation.name}: expected labels from 0 to 2, got {came}"
    with pytest.raises(OperatorError, match=rf"^{re.escape(expected)}$"):
        apply(operation, *inputs)


@DTYPES
@given(SEEDS, st.sampled_from(["mean", "sum"]), st.sampled_from([-1, 1, 255]))
def test_ignored_samples_count_for_nothing(dtype: str, seed: int, reduction: str, ignore: int) -> None:
    rng = np.random.default_rng(seed)
    logits, label = rng.normal(size=(5, 3, 2)).astype(dtype), rng.integers(0, 3, (5, 2))
    label[rng.random((5, 2)) < 0.4] = ignore
    valid = label != ignore
    logits[np.broadcast_to(~valid[:, None], logits.shape)] = NAN
    rows = np.moveaxis(logits, 1, -1)[valid]
    operation = SoftmaxCrossEntropy(reduction, ignore)
    [loss], [of_the_others] = apply(operation, logits, label), apply(SoftmaxCrossEntropy(reduction), rows, label[valid])
    assert abs(loss - of_the_others) <= 10 * np.finfo(dtype).eps * abs(of_the_others)  # zeros group the sum otherwise
    [got, _] = backward(operation, [logits, label], [np.ones((), dtype)])
    [want, _] = backward(SoftmaxCrossEntropy(reduction), [rows, label[valid]], [np.ones((), dtype)])
    same(np.moveaxis(got, 1, -1)[valid], want)
    assert not np.moveaxis(got, 1, -1)[~valid].any()


# The other loss, and the metric


@DTYPES
def test_squared_error_is_half_the_squares_over_the_batch(dtype: str) -> None:
    x, target = np.array([[1, 2, 3], [4, 5, 7]], dtype), np.array([[1, 4, 0], [4, 4, 4]], dtype)
    same(apply(SquaredError("sum"), x, target)[0], 11.5)
    same(apply(SquaredError(), x, target)[0], 5.75)
    dx, dtarget = backward(SquaredError(), [x, target], [np.asarray(4, dtype)])
    same(dx, [[0, -4, 6], [0, 2, 6]])
    same(dtarget, -dx)


def test_top_k_takes_the_lower_class_of_a_tie() -> None:
    logits = np.array([[3, 1, 3, 3], [0, 0, 0, 0], [1, NAN, 2, 3], [NAN, 1, 2, 3], [4, 3, 2, 1]], "float32")
    label = np.array([2, 3, 3, 0, 1])
    for k, hits in ((1, 0), (2, 3), (3, 3), (4, 4)):
        [accuracy] = apply(TopKAccuracy(k), logits, label)
        same(accuracy, np.float32(hits / 5))


@given(SEEDS, st.integers(1, 5))
def test_top_k_is_the_place_in_a_stable_sort(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    logits, label = rng.integers(0, 3, (7, 5)).astype("float64"), rng.integers(0, 5, 7)
    best = [sorted(range(5), key=lambda j, row=row: (-row[j], j))[:k] for row in logits]
    same(apply(TopKAccuracy(k), logits, label)[0], sum(c in b for c, b in zip(label, best, strict=True)) / 7)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 2), (4, 3, 0)])
def test_op_14_losses_of_an_empty_batch_are_zero(shape: tuple[int, ...], reduction: str) -> None:
    x, label = np.zeros(shape), np.zeros((shape[0], *shape[2:]), np.int64)
    for operation, other in ((SoftmaxCrossEntropy(reduction), label), (SquaredError(reduction), x)):
        same(apply(operation, x, other)[0], 0)
        same(backward(operation, [x, other], [np.ones(())])[0], x)


def test_op_14_losses_without_a_valid_sample_are_zero() -> None:
    logits, label = np.ones((4, 3)), np.full(4, -1)
    same(apply(SoftmaxCrossEntropy(ignore=-1), logits, label)[0], 0)
    same(backward(SoftmaxCrossEntropy(ignore=-1), [logits, label], [np.ones(())])[0], np.zeros((4, 3)))


def test_op_14_numbers_from_an_empty_batch_are_zero() -> None:
    empty, label = np.zeros((0, 3)), np.zeros(0, np.int64)
    same(apply(TopKAccuracy(2), empty, label)[0], 0)
    same(apply(ReduceSum((0,)), empty)[0], np.zeros(3))
    same(apply(ReduceMean((0,)), empty)[0], np.zeros(3))
    same(apply(ReduceMean(), empty)[0], 0)
    same(backward(ReduceMean(), [empty], [np.ones(())])[0], empty)


# Activations


@DTYPES
def test_op_15_relu_lets_nan_through(dtype: str) -> None:
    x = np.array([NAN, -0.0, 0, -1, 2, INF, -INF], dtype)
    [y] = apply(ReLU(), x)
    same(y, [NAN, 0, 0, 0, 2, INF, 0])
    assert not np.signbit(y).any()
    same(backward(ReLU(), [x], [np.full(7, 5, dtype)])[0], [5, 0, 0, 0, 5, 5, 0])


@DTYPES
@given(st.integers(0, 70), SEEDS, st.integers(1, 3))
def test_op_15_relu_selects_element_by_element(dtype: str, length: int, seed: int, stride: int) -> None:
    rng = np.random.default_rng(seed)
    x, dy = rng.choice(np.array([NAN, -0.0, 0.0, -1.5, 2.5, INF, -INF], dtype), (2, length * stride))[:, ::stride]
    [y] = apply(ReLU(), x)
    same(y, [v if v > 0 or v != v else 0 for v in x])
    assert not np.signbit(y[y == 0]).any()
    same(backward(ReLU(), [x], [dy])[0], [d if v > 0 or v != v else 0 for v, d in zip(x, dy, strict=True)])


@DTYPES
def test_sigmoid_and_tanh_do_not_overflow(dtype: str) -> None:
    x = np.array([-INF, -1e30, -90, -1, 0, 1, 90, 1e30, INF, NAN], dtype)
    ends = [0, 0, math.exp(-90), 1 / (1 + math.e), 0.5, 1 / (1 + math.exp(-1)), 1, 1, 1]
    [y] = apply(Sigmoid(), x)
    near(y[:9], ends)
    near(y[2:3], ends[2:3])
    assert np.isnan(y[9])
    near(apply(Tanh(), x[:9])[0], [-1, -1, -1, -math.tanh(1), 0, math.tanh(1), 1, 1, 1])


@DTYPES
@given(SEEDS)
def test_sigmoid_and_tanh_gradients_follow_their_formulas(dtype: str, seed: int) -> None:
    x, dy = np.random.default_rng(seed).normal(size=(2, 5, 4, 3)).astype(dtype)
    near(backward(Sigmoid(), [x], [dy])[0], dy / (2 + np.exp(x.astype("float64")) + np.exp(-x.astype("float64"))), 8)
    near(backward(Tanh(), [x], [dy])[0], dy / np.cosh(x.astype("float64")) ** 2, 8)


# Dropout


@pytest.mark.parametrize(
    ("scale", "train", "test"),
    [("test", ([2, 0], [1, 0]), ([1, 2], [0.5, 0.5])), ("train", ([4, 0], [2, 0]), ([2, 4], [1, 1]))],
)
@DTYPES
def test_op_08_dropout_scales_once(scale: str, train: Any, test: Any, dtype: str) -> None:
    x, mask, dy = np.array([2, 4], dtype), np.array([1, 0], dtype), np.ones(2, dtype)
    same(apply(Dropout(0.5, scale), x, mask)[0], train[0])
    same(backward(Dropout(0.5, scale), [x, mask], [dy])[0], train[1])
    same(apply(Dropout(0.5, scale, train=False), x)[0], test[0])
    same(backward(Dropout(0.5, scale, train=False), [x], [dy])[0], test[1])


@DTYPES
@given(st.floats(0, 0.99), st.sampled_from(["train", "test"]), SEEDS)
def test_op_08_the_expected_value_in_training_is_the_value_in_testing(
    dtype: str, ratio: float, scale: str, seed: int
) -> None:
    x = np.random.default_rng(seed).normal(size=(5, 3)).astype(dtype)
    [kept], [dropped] = (apply(Dropout(ratio, scale), x, mask) for mask in (np.ones_like(x), np.zeros_like(x)))
    [test] = apply(Dropout(ratio, scale, train=False), x)
    near(test, (1 - ratio) * kept.astype("float64") + ratio * dropped)
    same(backward(Dropout(ratio, scale), [x, np.ones_like(x)], [x])[0], kept)
    same(backward(Dropout(ratio, scale, train=False), [x], [x])[0], test)


def test_op_23_the_gradient_uses_the_mask_and_not_the_values() -> None:
    x, mask = np.array([0.0, 0, 1, 2]), np.array([0.0, 1, 0, 1])
    same(backward(Dropout(0.5, "test"), [x, mask], [np.ones(4)])[0], mask)
    same(backward(Dropout(0.5), [x, mask], [np.ones(4)])[0], 2 * mask)


def test_op_23_each_backward_uses_the_mask_of_its_own_forward() -> None:
    draw, dropout, dy = Bernoulli((6, 5), "float64", stream="drop/mask"), Dropout(0.5, "test"), np.ones((6, 5))
    [first], [second] = apply(draw, iteration=0), apply(draw, iteration=1)
    assert (first != second).any()
    for mask in (second, first):
        same(backward(dropout, [np.zeros((6, 5)), mask], [dy])[0], mask)


@pytest.mark.parametrize("ratio", [1, -0.1, 1.5])
def test_op_24_a_ratio_outside_zero_to_one_is_refused(ratio: float) -> None:
    expected = f"Dropout: expected a ratio of 0 or more and below 1, got {float(ratio)}"
    with pytest.raises(ShapeError, match=rf"^{re.escape(expected)}$"):
        Dropout(ratio)


@pytest.mark.parametrize("ratio", [NAN, INF, -INF, "half"])
def test_op_24_a_ratio_that_is_no_number_is_refused(ratio: Any) -> None:
    with pytest.raises(ShapeError, match=rf"^Dropout ratio: expected a finite number, got {ratio!r}$"):
        Dropout(ratio)


@pytest.mark.parametrize("ratio", [0, 0.5, 0.9, 1 - 2**-53])
@pytest.mark.parametrize("scale", ["train", "test"])
@DTYPES
def test_op_24_dropping_selects_and_does_not_multiply(ratio: float, scale: str, dtype: str) -> None:
    x, none = np.array([1, INF, -INF, NAN], dtype), np.zeros(4, dtype)
    same(apply(Dropout(ratio, scale), x, none)[0], none)
    same(backward(Dropout(ratio, scale), [x, none], [x])[0], none)


@DTYPES
@given(SEEDS, st.sampled_from(["train", "test"]), st.booleans())
def test_op_24_a_ratio_of_zero_changes_nothing(dtype: str, seed: int, scale: str, train: bool) -> None:
    x = np.random.default_rng(seed).normal(size=(5, 3)).astype(dtype)
    same(apply(Dropout(0, scale, train), x, *[np.ones_like(x)] * train)[0], x)


@DTYPES
def test_op_24_a_mask_holds_zeros_and_ones_of_its_dtype(dtype: str) -> None:
    [mask] = apply(Bernoulli((1000,), dtype, keep=1))
    assert (mask.sum(), mask.dtype) == (1000.0, dtype)
    assert apply(Bernoulli((1000,), dtype, keep=0))[0].sum() == 0
    assert set(apply(Bernoulli((1000,), dtype, keep=0.3))[0].tolist()) == {0.0, 1.0}


# Sums, and numbers that must not promote


@pytest.mark.parametrize("axes", [None, (0,), (1,), (2,), (0, 2), (1, 0), (-1, -2, 0)])
def test_a_float32_sum_of_many_is_right_over_any_axes(axes: tuple[int, ...] | None) -> None:
    """2**20 times 0.1 is 104857.60, and not the 104861.64 of a float32 running sum."""
    count = 2**20
    for shape in ((count, 1, 1), (1, count, 1), (1, 1, count), (2**8, 2**4, 2**8)):
        x = np.full(shape, 0.1, "float32")
        terms = math.prod(shape[a] for a in (range(3) if axes is None else axes))
        [total], [mean] = apply(ReduceSum(axes), x), apply(ReduceMean(axes), x)
        same(total, np.full(total.shape, np.float32(float(np.float32(0.1)) * terms)))
        same(mean, np.full(total.shape, np.float32(0.1)))


def test_a_float32_loss_of_many_is_right() -> None:
    x = np.full((2**18, 4), math.sqrt(0.2), "float32")
    want = float(x[0, 0]) ** 2 / 2 * 2**20
    near(apply(SquaredError("sum"), x, np.zeros_like(x))[0], want, 1)
    near(apply(SoftmaxCrossEntropy("sum"), x, np.zeros(2**18, np.int64))[0], math.log(4) * 2**18, 1)


@given(st.integers(1, 6), SEEDS)
def test_sum_adds_in_the_order_of_its_inputs(count: int, seed: int) -> None:
    xs = np.random.default_rng(seed).choice(np.array([1e8, 1, -1e8, 3], "float32"), (count, 4, 3))
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    same(apply(Sum(), *xs)[0], total)
    same(apply(WeightedSum([1] * count), *xs)[0], total)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_sum_may_write_over_its_first_input_even_where_it_is_wired_twice(count: int) -> None:
    x = np.arange(6.0).reshape(2, 3)
    Sum().compute(CpuKernels(RunKey()), [x] * count, [x])
    same(x, count * np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("factor", [0.1, np.float64(0.1), np.asarray(0.1)[()], np.float32(0.1)])
def test_gc_02_numbers_become_python_floats(factor: Any) -> None:
    operations = [Scale(factor), WeightedSum((factor, 1)), Dropout(factor), SGD(factor, factor, factor)]
    operations += [TorchSGD(factor, factor, factor), AdaGrad(factor, factor, factor), Bernoulli((2,), keep=factor)]
    for operation in operations:
        values = [v for v in vars(operation).values() if not isinstance(v, (str, bool, tuple)) and v is not None]
        assert values or operation.name == "WeightedSum"
        assert {type(v) for v in (*values, *getattr(operation, "weights", ()))} == {float}
    x = np.array([1, 3], "float32")
    same(apply(Scale(factor), x)[0], np.array([np.float32(0.1), np.float32(0.1) * np.float32(3)]))


@pytest.mark.parametrize("rule", [SGD, TorchSGD, AdaGrad])
def test_gc_02_state_stays_float32_through_a_hundred_steps(rule: Any) -> None:
    operation = rule(decay=np.float64(0.01), multiplier=np.float64(2))
    weight, history = np.ones(2, "float32"), np.zeros(2, "float32")
    for step in range(100):
        rate = np.asarray(np.float64(0.1) / (1 + step)).astype("float32")
        weight, history = apply(operation, weight, weight, history, rate)
        assert weight.dtype == history.dtype == np.float32
    assert np.isfinite(weight).all()
    with pytest.raises(ShapeError, match=rf"^{rule.__name__}: expected inputs of one dtype, got float32 and float64$"):
        apply(operation, weight, weight, history, np.float64(0.1))


# Updates


def steps(operation: Any, weight: float, slope: float, rates: Sequence[float]) -> list[float]:
    """The weights after each step from a history of 0, with a constant gradient."""
    weights = []
    w, h, g = np.array([weight], "float64"), np.zeros(1), np.array([slope], "float64")
    for rate in rates:
        w, h = apply(operation, w, g, h, np.float64(rate))
        weights.append(float(w[0]))
    return weights


def test_dp_05_decay_goes_through_the_rate_and_the_momentum() -> None:
    assert steps(SGD(0.9, 0.01), 1, 0, [0.1] * 2) == pytest.approx([0.999, 0.997101], abs=1e-15)
    assert steps(SGD(0.9, 0, multiplier=2), 0, 1, [0.1]) == [-0.2]


def test_dp_05_a_new_rate_acts_on_the_old_history_in_torchs_form_alone() -> None:
    """One step of rate 1, then one of rate 0: only what the history carries moves the weight."""
    assert steps(SGD(0.5), 0, 1, [1, 0]) == [-1, -1.5]
    assert steps(TorchSGD(0.5), 0, 1, [1, 0]) == [-1, -1]
    assert steps(SGD(0.5, 0.25), 2, 1, [0.5] * 3) == steps(TorchSGD(0.5, 0.25), 2, 1, [0.5] * 3)


@given(
    st.tuples(*[st.integers(0, 8)] * 3), st.integers(-8, 8), st.integers(-8, 8), st.lists(st.integers(0, 4), max_size=4)
)
def test_dp_05_sgd_is_its_formula_in_fractions(factors: Any, weight: int, slope: int, rates: list[int]) -> None:
    momentum, decay, multiplier = (Fraction(f, 8) for f in factors)
    w, h, want = Fraction(weight), Fraction(0), []
    for rate in rates:
        h = momentum * h + multiplier * rate * (slope + decay * w)
        w -= h
        want.append(float(w))
    assert steps(SGD(*map(float, (momentum, decay, multiplier))), weight, slope, rates) == want


def test_adagrad_divides_by_the_root_of_all_squares() -> None:
    assert steps(AdaGrad(), 1, 3, [0.1] * 2) == pytest.approx([0.9, 0.9 - 0.1 / math.sqrt(2)], abs=1e-9)
    assert steps(AdaGrad(0.5, decay=1, multiplier=2), 2, 1, [0.5]) == pytest.approx([2 - 3 / 3.5], abs=1e-15)
    assert steps(AdaGrad(), 1, 0, [0.1]) == [1]


# Counts of elements


def test_op_29_counts_do_not_wrap() -> None:
    assert Tensor((65536, 65536, 1, 1)).size == 4294967296
    assert Tensor((46341, 46341, 1, 1)).size == 2147488281
    assert Tensor((1 << 29, 1, 1, 1), "float32").nbytes == 2147483648
    with pytest.raises(ShapeError, match=r"^Tensor shape must hold integers of 0 or more, got \(3, -1\)$"):
        Tensor((3, -1))


@given(st.lists(st.integers(0, 2**40), max_size=6), st.sampled_from([("float32", 4), ("float64", 8), ("int64", 8)]))
def test_op_29_counts_and_costs_are_products_of_any_size(shape: list[int], kind: tuple[str, int]) -> None:
    dtype, itemsize = kind
    tensor = Tensor(as_shape(np.array(shape, np.int64)), dtype)
    assert (tensor.size, tensor.nbytes) == (math.prod(shape), itemsize * math.prod(shape))
    if tensor.is_float:
        cost = Sum().cost([tensor] * 3, [tensor])
        assert (cost.flops, cost.bytes) == (2 * tensor.size, 4 * tensor.nbytes)
