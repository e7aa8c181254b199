"""What convolution, inner product, bias, pooling and LRN share: layouts, empty batches, exactness, cost, refusals."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from purine_ref.devices.cpu import CpuKernels
from purine_ref.errors import OperatorError, ShapeError
from purine_ref.operation import Operation, RunKey
from purine_ref.ops.attributes import exponent, is_power_of_two, number
from purine_ref.ops.convolution import Conv2d, Conv2dDataGradient, Conv2dWeightGradient
from purine_ref.ops.fused import BiasReLU, BiasReLUGradient
from purine_ref.ops.global_pooling import GlobalAveragePool2d, GlobalAveragePool2dGradient
from purine_ref.ops.linear import Bias, BiasGradient, Linear, LinearDataGradient, LinearWeightGradient
from purine_ref.ops.normalization import LRN, LRNGradient
from purine_ref.ops.pooling import AveragePool2d, AveragePool2dGradient, MaxPool2d, MaxPool2dGradient
from purine_ref.tensor import Tensor
from support import apply, backward, describe, junk

Array = Any
NAN, INF = math.nan, math.inf
X, PLANE = (3, 4, 5, 6), (3, 4, 1, 1)
ALL = [
    (Conv2d(pads=1, groups=2), X, (2, 2, 3, 4)),
    (Conv2dDataGradient(X, pads=1, groups=2), (3, 2, 5, 5), (2, 2, 3, 4)),
    (Conv2dWeightGradient((3, 4), pads=1, groups=2), (3, 2, 5, 5), X),
    (Linear(), X, (7, 120)),
    (LinearDataGradient(X), (3, 7), (7, 120)),
    (LinearWeightGradient(), (3, 7), X),
    (Bias(), X, (4,)),
    (BiasGradient(), X),
    (BiasReLU(), X, (4,)),
    (BiasReLUGradient(), X, X),
    (MaxPool2d(2), X),
    (AveragePool2d(2), X),
    (AveragePool2dGradient(X, 2), (3, 4, 3, 3)),
    (GlobalAveragePool2d(), X),
    (GlobalAveragePool2dGradient(X), PLANE),
    (LRN(), X),
    (LRNGradient(), X, X),
]
OVER_SAMPLES = Conv2dWeightGradient | LinearWeightGradient | BiasGradient | BiasReLUGradient
SAMPLEWISE = [case for case in ALL if not isinstance(case[0], OVER_SAMPLES)]
ROUNDS = LRN | LRNGradient | GlobalAveragePool2d | GlobalAveragePool2dGradient
"""Powers are never exact, and planes of five by six are divided by 30."""
EXACT = [case for case in ALL if not isinstance(case[0], ROUNDS)]
every = pytest.mark.parametrize("case", ALL, ids=lambda case: case[0].name)


def filled(shape: tuple[int, ...], seed: int, dtype: str = "float64") -> Array:
    """Small multiples of a quarter, none of them 0, so that every partial sum is exact."""
    return (np.random.default_rng(seed).integers(-3, 3, shape) + 0.25).astype(dtype)


def same(got: Array, want: Any) -> None:
    """Equal element for element, NaN to NaN, in value and shape."""
    np.testing.assert_array_equal(got, np.asarray(want, got.dtype), strict=True)


def arguments(case: Any, dtype: str = "float64") -> tuple[Operation, list[Array]]:
    return case[0], [filled(shape, i, dtype) for i, shape in enumerate(case[1:])]


@every
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_strided_inputs_and_outputs_give_the_same_values(case: Any, dtype: str) -> None:
    operation, arrays = arguments(case, dtype)
    want = apply(operation, *arrays)
    outputs = [junk(describe(array)).T.copy().T for array in want]
    wide = [np.repeat(array, 2, axis=-1)[..., ::2] for array in arrays]
    operation.compute(CpuKernels(RunKey()), wide, outputs)
    for got, expected in zip(outputs, want, strict=True):
        assert got.dtype == (np.int64 if expected.dtype == np.int64 else dtype)
        # Products of strided matrices may add in another order; the inputs' sums are exact, so no bit may differ.
        same(got, expected)


@every
def test_op_14_an_empty_batch_gives_empty_outputs_and_zero_gradients(case: Any) -> None:
    operation, arrays = arguments(case)
    if hasattr(operation, "shape"):
        operation = type(operation)(**{**vars(operation), "shape": (0, *operation.shape[1:])})
    empty = [array if case[1 + i] in ((2, 2, 3, 4), (7, 120), (4,)) else array[:0] for i, array in enumerate(arrays)]
    for output, full in zip(apply(operation, *empty), apply(*arguments(case)[:1], *arrays), strict=True):
        assert output.shape in ((0, *full.shape[1:]), full.shape)
        assert not output.any()


def test_op_14_an_empty_convolution() -> None:
    x, weight = np.zeros((0, 3, 6, 6)), np.ones((4, 3, 3, 3))
    (y,) = apply(Conv2d(), x, weight)
    assert y.shape == (0, 4, 4, 4)
    dx, dweight = backward(Conv2d(), [x, weight], [y])
    same(dx, x)
    same(dweight, np.zeros((4, 3, 3, 3)))
    same(apply(BiasGradient(), y)[0], np.zeros(4))


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("case", SAMPLEWISE, ids=lambda case: case[0].name)
def test_op_15_one_samples_nan_stays_in_that_sample(case: Any, value: float) -> None:
    operation, arrays = arguments(case)
    want = apply(operation, *arrays)
    arrays[0][1] = value
    with np.errstate(invalid="ignore"):
        got = apply(operation, *arrays)
    for output, clean in zip(got, want, strict=True):
        same(output[[0, 2]], clean[[0, 2]])
    assert not np.isfinite(got[0][1]).all()


@pytest.mark.parametrize("operation", [LRN(3, np.float64(0.1), np.float64(0.5)), AveragePool2d(np.int64(2))])
def test_attributes_never_promote_float32(operation: Operation) -> None:
    x = filled(X, 0, "float32")
    (y,) = apply(operation, x)
    assert y.dtype == backward(operation, [x], [y])[0].dtype == np.float32
    assert all(type(value) in (int, float, tuple, str) for value in vars(operation).values())


def test_one_spelling_of_each_attribute() -> None:
    assert Conv2d(2, 1) == Conv2d((2, 2), ((1, 1), (1, 1))) == Conv2d([2, 2], [1, [1, 1]])
    assert Conv2d(pads=(1, 2)).pads == ((1, 1), (2, 2))
    assert Conv2d(pads=((0, 1), (2, 3))).pads == ((0, 1), (2, 3))
    assert MaxPool2d(3).stride == (3, 3)
    assert hash(MaxPool2d(np.int64(3))) == hash(MaxPool2d((3, 3), 3))
    assert LinearDataGradient([3, 4]) == LinearDataGradient((3, 4))
    assert LRN(alpha=1) == LRN(alpha=1.0)


def tensors(*shapes: tuple[int, ...], dtype: str = "float64") -> list[Tensor]:
    return [Tensor(shape, dtype) for shape in shapes]


@pytest.mark.parametrize("case", [*EXACT, (GlobalAveragePool2d(), (3, 4, 2, 8))], ids=lambda case: case[0].name)
def test_outputs_are_multiples_of_the_quantum(case: Any) -> None:
    operation, arrays = arguments(case)
    inputs = [describe(array) for array in arrays]
    (quantum, *_) = operation.quantum([-2] * len(inputs), inputs, operation.infer(inputs))
    for output in apply(operation, *arrays):
        if output.dtype != np.int64:
            same(np.rint(output * 2.0**-quantum), output * 2.0**-quantum)


@pytest.mark.parametrize("case", EXACT, ids=lambda case: case[0].name)
def test_magnitude_covers_every_partial_sum(case: Any) -> None:
    operation, arrays = arguments(case)
    outputs = apply(operation, *arrays)
    bounds = [np.full_like(output, -1) for output in outputs]
    operation.magnitude(CpuKernels(RunKey()), arrays, [abs(array) for array in arrays], bounds)
    assert (abs(outputs[0]) <= bounds[0]).all()


@pytest.mark.parametrize(
    ("operation", "shapes", "exponents", "quantum"),
    [
        (Conv2d(), [(3, 2, 5, 6), (4, 2, 1, 1)], [-3, 2], -1),
        (Linear(), [(3, 2), (4, 2)], [-3, -1], -4),
        (Bias(), [(3, 2), (2,)], [-3, 1], -3),
        (MaxPool2d(2), [X], [-3], -3),
        (MaxPool2dGradient(X), [(3, 4, 2, 2), (3, 4, 2, 2)], [-3, 0], -3),
        (AveragePool2d(2), [X], [-3], -5),
        (AveragePool2d((2, 4), pads=((1, 0), (0, 0))), [X], [0], -3),
        (AveragePool2d(2, 1, 1), [X], [0], -2),
        (AveragePool2dGradient(X, 2), [(3, 4, 3, 3)], [1], -1),
        (GlobalAveragePool2d(), [(3, 4, 2, 8)], [0], -4),
        (GlobalAveragePool2dGradient((3, 4, 2, 8)), [PLANE], [-1], -5),
    ],
)
def test_quantum(operation: Operation, shapes: Any, exponents: list[int], quantum: int) -> None:
    inputs = tensors(*shapes)
    if isinstance(operation, MaxPool2dGradient):
        inputs[1] = Tensor(shapes[1], "int64")
    outputs = operation.infer(inputs)
    assert operation.quantum(exponents, inputs, outputs) == (quantum,) * len(outputs)


@pytest.mark.parametrize(
    ("operation", "shape", "divisor"),
    [
        (AveragePool2d(4), (3, 4, 7, 8), "12.0"),
        (AveragePool2d((4, 1), 1, ((2, 0), (0, 0)), count="valid"), (3, 4, 7, 8), "3.0"),
        (AveragePool2dGradient((3, 4, 7, 8), 4), (3, 4, 2, 2), "12.0"),
        (GlobalAveragePool2d(), X, "30.0"),
        (GlobalAveragePool2dGradient(X), PLANE, "30.0"),
    ],
)
def test_a_divisor_that_rounds_is_refused_in_exact_mode(operation: Operation, shape: Any, divisor: str) -> None:
    inputs = tensors(shape)
    start = rf"^{operation.name} is exact only where its number of averaged elements is a power of two, got {divisor}; "
    with pytest.raises(OperatorError, match=start + r"choose another or compare within a bound$"):
        operation.quantum([0], inputs, operation.infer(inputs))


def test_which_operations_can_be_exact() -> None:
    assert [case[0].name for case in ALL if not case[0].exact] == ["LRN", "LRNGradient"]
    assert AveragePool2d((2, 4)).exact
    assert not AveragePool2d(3).exact
    assert not AveragePool2dGradient(X, (1, 3)).exact


CONVOLVED, MULTIPLIED = 2 * (3 * 2 * 5 * 5) * (2 * 3 * 4), 2 * 3 * 7 * 120
FLOPS = {
    "Conv2d": CONVOLVED,
    "Conv2dDataGradient": CONVOLVED,
    "Conv2dWeightGradient": CONVOLVED,
    "Linear": MULTIPLIED,
    "LinearDataGradient": MULTIPLIED,
    "LinearWeightGradient": MULTIPLIED,
    "Bias": 360,
    "BiasGradient": 360,
    "BiasReLU": 720,
    "BiasReLUGradient": 720,
    "MaxPool2d": 108 * 4,
    "AveragePool2d": 108 * 4,
    "AveragePool2dGradient": 108 * 5,
    "GlobalAveragePool2d": 360,
    "GlobalAveragePool2dGradient": 12,
    "LRN": 360 * 9,
    "LRNGradient": 360 * 18,
}


@every
def test_cost(case: Any) -> None:
    inputs = tensors(*case[1:], dtype="float32")
    outputs = case[0].infer(inputs)
    cost = case[0].cost(inputs, outputs)
    assert cost.flops == FLOPS[case[0].name]
    assert cost.bytes == sum(tensor.size * (8 if tensor.dtype == "int64" else 4) for tensor in [*inputs, *outputs])


def test_gradients_that_nobody_wants_are_not_computed() -> None:
    x, weight, bias = filled(X, 0), filled((2, 4, 3, 3), 1), filled((4,), 2)
    (y,) = apply(Conv2d(), x, weight)
    for wants in ([True, False], [False, True], [False, False]):
        assert [g is not None for g in backward(Conv2d(), [x, weight], [y], wants)] == wants
        assert [g is not None for g in backward(Bias(), [x, bias], [x], wants)] == wants
        flat = filled((7, 120), 3)
        assert [g is not None for g in backward(Linear(), [x, flat], [filled((3, 7), 4)], wants)] == wants
    for operation in (MaxPool2d(2), AveragePool2d(2), GlobalAveragePool2d(), LRN()):
        outputs = apply(operation, x)
        assert backward(operation, [x], [outputs[0], None][: len(outputs)], [False]) == [None]


D = "float64"


@pytest.mark.parametrize(
    ("operation", "inputs", "message"),
    [
        (Conv2d(), [(X, D)], "2 inputs (x, weight), got 1"),
        (Conv2d(), [(X, D), ((2, 4, 3, 3), "float32")], "inputs of one dtype, got float32 and float64"),
        (Conv2d(), [(X, "int64"), ((2, 4, 3, 3), "int64")], "inputs of float32 or float64, got int64"),
        (
            Conv2dDataGradient(X),
            [((3, 2, 3, 3), D), ((2, 4, 3, 3), D)],
            "dy of shape (3, 2, 3, 4), got (3, 2, 3, 3)",
        ),
        (Conv2dWeightGradient(3), [((3, 2, 4, 3), D), (X, D)], "dy of shape (3, 2, 3, 4), got (3, 2, 4, 3)"),
        (Conv2dWeightGradient(3), [((3, 2, 4), D), (X, D)], "dy with 4 axes, got (3, 2, 4)"),
        (Conv2dWeightGradient(3), [((3, 2, 3, 4), D), ((3, 4), D)], "x with 4 axes, got (3, 4)"),
        (
            Conv2dWeightGradient(3, groups=3),
            [((3, 3, 3, 4), D), (X, D)],
            "channels that 3 groups divide, got x (3, 4, 5, 6)",
        ),
        (Linear(), [(X, D), ((7, 119), D)], "weight of shape (out, 120) for x (3, 4, 5, 6), got (7, 119)"),
        (Linear(), [(X, D), ((7, 121), D)], "weight of shape (out, 120) for x (3, 4, 5, 6), got (7, 121)"),
        (Linear(), [((3,), D), ((7, 1), D)], "x of shape (N, ...) with two axes or more, got (3,)"),
        (Linear(), [(X, D), ((7, 12, 10), D)], "weight of shape (out, in), got (7, 12, 10)"),
        (LinearDataGradient(X), [((3, 6), D), ((7, 120), D)], "dy of shape (3, 7), got (3, 6)"),
        (LinearWeightGradient(), [((2, 7), D), (X, D)], "dy of shape (3, 7), got (2, 7)"),
        (LinearWeightGradient(), [((3, 7, 1), D), (X, D)], "dy of shape (N, out), got (3, 7, 1)"),
        (Bias(), [(X, D), ((3,), D)], "bias of shape (4,) for axis 1 of x (3, 4, 5, 6), got (3,)"),
        (Bias(2), [((3, 4), D), ((4,), D)], "an axis of the 2 of float64[3, 4], got 2"),
        (BiasGradient(-3), [((3, 4), D)], "an axis of the 2 of float64[3, 4], got -3"),
        (MaxPool2d(2), [((3, 4, 5), D)], "x of shape (N, C, H, W), got (3, 4, 5)"),
        (
            MaxPool2d(7, 1),
            [(X, D)],
            "a kernel that fits the padded input x (3, 4, 5, 6), got kernel (7, 7), pads ((0, 0), (0, 0))",
        ),
        (
            AveragePool2d(6, rounding="floor"),
            [(X, D)],
            "a kernel that fits the padded input x (3, 4, 5, 6), got kernel (6, 6), pads ((0, 0), (0, 0))",
        ),
        (MaxPool2dGradient(X), [((3, 4, 2, 2), D)] * 2, "index of int64, got float64"),
        (MaxPool2dGradient(X), [((3, 4, 2, 2), "int64")] * 2, "dy of float32 or float64, got int64"),
        (
            MaxPool2dGradient(X),
            [((4, 3, 2, 2), D), ((4, 3, 2, 2), "int64")],
            "dy of shape (3, 4) + (oh, ow), got (4, 3, 2, 2)",
        ),
        (
            MaxPool2dGradient(X),
            [((3, 4, 2, 2), D), ((3, 4, 2, 3), "int64")],
            "index of dy's shape (3, 4, 2, 2), got (3, 4, 2, 3)",
        ),
        (
            MaxPool2dGradient((3, 4)),
            [((3, 4, 2, 2), D), ((3, 4, 2, 2), "int64")],
            "a shape (N, C, H, W), got (3, 4)",
        ),
        (AveragePool2dGradient(X, 2), [((3, 4, 2, 3), D)], "dy of shape (3, 4, 3, 3), got (3, 4, 2, 3)"),
        (GlobalAveragePool2d(), [((3, 4, 0, 6), D)], "an image of one element or more, got (3, 4, 0, 6)"),
        (GlobalAveragePool2d(), [((3, 4), D)], "x of shape (N, C, H, W), got (3, 4)"),
        (GlobalAveragePool2dGradient(X), [((3, 4), D)], "dy of shape (3, 4, 1, 1), got (3, 4)"),
        (LRN(), [((3,), D)], "x of shape (N, C, ...), got (3,)"),
        (LRN(), [(X, "int64")], "x of float32 or float64, got int64"),
        (LRNGradient(), [(X, D), ((3, 4), D)], "inputs of one shape, got (3, 4) and (3, 4, 5, 6)"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(operation: Operation, inputs: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=f"^{re.escape(f'{operation.name}: expected {message}')}$"):
        operation.infer([Tensor(shape, dtype) for shape, dtype in inputs])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Conv2d(groups=0), "Conv2d groups: expected an integer of 1 or more, got 0"),
        (lambda: Conv2d((1, 2, 3)), "Conv2d stride: expected one or two integers of 1 or more, got (1, 2, 3)"),
        (lambda: Conv2d(True), "Conv2d stride: expected one or two integers of 1 or more, got True"),
        (lambda: Conv2d(1.0), "Conv2d stride: expected one or two integers of 1 or more, got 1.0"),
        (
            lambda: Conv2d(pads=((0, -1), (0, 0))),
            "Conv2d pads: expected p, (ph, pw) or ((hb, he), (wb, we)) of integers of 0 or more, got ((0, -1), (0, 0))",
        ),
        (
            lambda: Conv2d(pads=(1, 2, 3, 4)),
            "Conv2d pads: expected p, (ph, pw) or ((hb, he), (wb, we)) of integers of 0 or more, got (1, 2, 3, 4)",
        ),
        (lambda: Bias(1.5), "Bias axis: expected an integer, got 1.5"),
        (
            lambda: Conv2dWeightGradient(0),
            "Conv2dWeightGradient kernel: expected one or two integers of 1 or more, got 0",
        ),
        (lambda: MaxPool2d(2, 0), "MaxPool2d stride: expected one or two integers of 1 or more, got 0"),
        (lambda: MaxPool2d(2, rounding="up"), "MaxPool2d rounding: expected 'ceil' or 'floor', got 'up'"),
        (lambda: AveragePool2d(2, count="all"), "AveragePool2d count: expected 'padded' or 'valid', got 'all'"),
        (
            lambda: AveragePool2dGradient(X, 2, count="all"),
            "AveragePool2dGradient count: expected 'padded' or 'valid', got 'all'",
        ),
        (
            lambda: MaxPool2d((3, 2), pads=(0, 2)),
            "MaxPool2d: expected pads less than the kernel (3, 2), got pads ((0, 0), (2, 2))",
        ),
        (
            lambda: AveragePool2d(2, pads=((0, 0), (0, 2))),
            "AveragePool2d: expected pads less than the kernel (2, 2), got pads ((0, 0), (0, 2))",
        ),
        (lambda: number("1", "rate"), "rate: expected a finite number, got '1'"),
        (lambda: exponent(3), "expected a power of two, got 3"),
    ],
)
def test_attributes_that_mean_nothing_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=f"^{re.escape(message)}$"):
        make()


def test_powers_of_two() -> None:
    assert [exponent(x) for x in (1, 2, -4, 0.125, 2.0**-1074)] == [0, 1, 2, -3, -1074]
    assert not any(is_power_of_two(x) for x in (0, 3, 0.1, INF, NAN))
