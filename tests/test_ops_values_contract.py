"""What every operation of values and shapes keeps: strides, empty batches, adjoints, exactness, and clear refusals."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purine_ref import ops
from purine_ref.devices.cpu import CpuKernels
from purine_ref.errors import GraphError, OperatorError
from purine_ref.operation import Operation, RunKey
from purine_ref.ops import (
    SGD,
    AdaGrad,
    Bernoulli,
    BroadcastTo,
    Concat,
    Constant,
    Copy,
    Dropout,
    Gaussian,
    Identity,
    LogSoftmax,
    LogSoftmaxGradient,
    Mean,
    Mul,
    PadSlice,
    ReduceMean,
    ReduceSum,
    ReLU,
    ReLUGradient,
    Reshape,
    Scale,
    Sigmoid,
    SigmoidGradient,
    Slice,
    Softmax,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGradient,
    SoftmaxGradient,
    Split,
    SquaredError,
    SquaredErrorGradient,
    Sum,
    Tanh,
    TanhGradient,
    TopKAccuracy,
    TorchSGD,
    Uniform,
    WeightedSum,
)
from purine_ref.tensor import Location, Tensor
from support import ArrayWiring, apply, backward, describe, junk

Array = Any
X, LABEL = (5, 4, 3), "label"
ELEMENTWISE = [
    (ReLU(), X),
    (ReLUGradient(), X, X),
    (Sigmoid(), X),
    (SigmoidGradient(), X, X),
    (Tanh(), X),
    (TanhGradient(), X, X),
    (Dropout(0.75), X, X),
    (Dropout(0.5, "test", train=False), X),
    (Sum(), X, X, X),
    (Mean(), X, X),
    (Mul(), X, X),
    (WeightedSum((0.5, -2, 0)), X, X, X),
    (Scale(-0.5), X),
    (Identity(), X),
    (Copy(), X),
    (SGD(0.5, 0.25, 2), X, X, X, ()),
    (TorchSGD(0.5, 0.25, 2), X, X, X, ()),
    (AdaGrad(), X, X, X, ()),
]
SAMPLEWISE = [
    *ELEMENTWISE,
    (Softmax(), X),
    (SoftmaxGradient(), X, X),
    (LogSoftmax(-1), X),
    (LogSoftmaxGradient(-1), X, X),
    (Concat(1), X, (5, 2, 3)),
    (Split(-1, (2, 0, 1)), X),
    (Slice(1, 1, 3), X),
    (PadSlice(2, 1, 7), X),
    (Reshape((-1, 6, 2)), X),
    (ReduceSum((2, 1)), X),
    (ReduceMean((1,)), X),
]
ALL = [
    *SAMPLEWISE,
    (ReduceSum(), X),
    (ReduceMean((0, -1)), X),
    (BroadcastTo((5, 4, 3), (0, 2), -0.5), (4,)),
    (SoftmaxCrossEntropy(), X, LABEL),
    (SoftmaxCrossEntropyGradient("sum", 1), (), X, LABEL),
    (SquaredError("sum"), X, X),
    (SquaredErrorGradient("sum", -1), (), X, X),
    (TopKAccuracy(2), (5, 4), LABEL),
]
SOURCES = [Uniform(X), Gaussian(X), Bernoulli(X), Constant(-2.5, X)]
every = pytest.mark.parametrize("case", ALL, ids=lambda case: case[0].name)
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64"])


def same(got: Array, want: Any) -> None:
    """Equal element for element, in value and shape."""
    np.testing.assert_array_equal(got, np.asarray(want, got.dtype), strict=True)


def arguments(case: Any, dtype: str = "float64", seed: int = 0) -> list[Array]:
    """Small integers from 0 up, of which every sum and product is exact; labels of the classes of axis 1."""
    rng = np.random.default_rng(seed)
    shapes = case[1:]
    label_shape = (5, 3) if X in shapes else (5,)
    return [
        rng.integers(0, 4, label_shape if s == LABEL else s).astype("int64" if s == LABEL else dtype) for s in shapes
    ]


def test_every_operation_of_values_and_shapes_is_covered() -> None:
    geometry = {"Conv2d", "Linear", "Bias", "MaxPool2d", "AveragePool2d", "GlobalAveragePool2d", "LRN"}
    covered = {case[0].name for case in ALL} | {source.name for source in SOURCES}
    other = {name for name in ops.__all__ if not any(name.startswith(start) for start in geometry)}
    assert covered == other


@every
@DTYPES
def test_strided_inputs_and_outputs_give_the_same_values(case: Any, dtype: str) -> None:
    arrays = arguments(case, dtype)
    want = apply(case[0], *arrays)
    wide = [np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array for array in arrays]
    outputs = [junk(describe(array)).T.copy().T for array in want]
    case[0].compute(CpuKernels(RunKey()), wide, outputs)
    for got, expected in zip(outputs, want, strict=True):
        assert got.dtype == dtype
        np.testing.assert_allclose(got, expected, rtol=4 * np.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("case", [case for case in ALL if case[0].in_place], ids=lambda case: case[0].name)
def test_in_place_gives_the_same_values(case: Any) -> None:
    arrays = arguments(case)
    [want] = apply(case[0], *arrays)
    case[0].compute(CpuKernels(RunKey()), arrays, [arrays[0]])
    same(arrays[0], want)


@pytest.mark.parametrize("case", SAMPLEWISE, ids=lambda case: case[0].name)
@DTYPES
def test_op_14_an_empty_batch_gives_empty_outputs(case: Any, dtype: str) -> None:
    empty = [array[:0] if array.ndim else array for array in arguments(case, dtype)]
    for output, full in zip(apply(case[0], *empty), apply(case[0], *arguments(case, dtype)), strict=True):
        assert (output.shape, output.dtype) == ((0, *full.shape[1:]), full.dtype)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_sources_write_strided_outputs(source: Operation) -> None:
    [want] = apply(source)
    outputs = [junk(describe(want)).T.copy().T]
    source.compute(CpuKernels(RunKey()), [], outputs)
    same(outputs[0], want)


LINEAR = [
    case
    for case in (*ALL, (Mean(), X, X, X, X), (ReduceMean(), (4, 2, 8)), (Dropout(0.75), X, X))
    if isinstance(
        case[0],
        Sum
        | Mean
        | WeightedSum
        | Scale
        | Identity
        | Copy
        | Concat
        | Split
        | Slice
        | PadSlice
        | Reshape
        | ReduceSum
        | BroadcastTo
        | Dropout,
    )
]


@pytest.mark.parametrize("case", LINEAR, ids=lambda case: case[0].name)
@given(st.integers(0, 2**32))
def test_the_gradient_of_a_linear_operation_is_its_adjoint(case: Any, seed: int) -> None:
    """<dy, f(x)> = <f'(dy), x>, exactly, in integers."""
    xs = arguments(case, seed=seed)
    ys = apply(case[0], *xs)
    dys = [np.random.default_rng(seed + 1).integers(-4, 5, y.shape).astype(float) for y in ys]
    dxs = backward(case[0], xs, dys)
    forward = sum(float((dy * y).sum()) for dy, y in zip(dys, ys, strict=True))
    assert forward == sum(float((dx * x).sum()) for dx, x in zip(dxs, xs, strict=True) if dx is not None)


def test_the_gradient_of_a_product_is_the_other_factor() -> None:
    a, b, dy = np.arange(6.0).reshape(2, 3), np.arange(1.0, 7).reshape(2, 3), np.full((2, 3), 2.0)
    da, db = backward(Mul(), [a, b], [dy])
    same(da, 2 * b)
    same(db, 2 * a)


@pytest.mark.parametrize(
    "case", [(Sum(), X, X, X), (Mean(), X, X), (Mul(), X, X), (WeightedSum((1, 2)), X, X), (SquaredError(), X, X)]
)
@pytest.mark.parametrize("wanted", [0, 1])
def test_gradients_that_nobody_wants_are_not_computed(case: Any, wanted: int) -> None:
    xs = arguments(case)
    outputs = apply(case[0], *xs)
    wiring = ArrayWiring(xs, outputs, [np.ones_like(y) for y in outputs], [i == wanted for i in range(len(xs))])
    case[0].gradient(wiring)
    assert [g is not None for g in wiring.gradients] == list(wiring.wants)
    assert len(wiring.added) == 1


def test_the_gradient_of_a_split_takes_zeros_where_none_arrived() -> None:
    [dx] = backward(Split(0, (1, 2)), [np.ones((3, 2))], [None, np.full((2, 2), 5.0)])
    same(dx, [[0, 0], [5, 5], [5, 5]])


def test_the_gradient_of_a_copy_goes_back_to_the_place_of_its_input() -> None:
    here, there = Location(1, 2), Location(3, -1)
    wiring = ArrayWiring([np.ones(3)], [np.ones(3)], [np.ones(3)], [True])
    wiring.inputs[0].tensor = wiring.inputs[0].tensor.at(here)
    Copy(there).gradient(wiring)
    assert wiring.added == [Copy(here)]
    assert Copy(there).infer([Tensor((3,), "int64", here)]) == (Tensor((3,), "int64", there),)
    assert Copy().infer([Tensor((3,), "int64", here)]) == (Tensor((3,), "int64", here),)


@pytest.mark.parametrize("case", [(SGD(), X, X, X, ()), (ReLUGradient(), X, X), (SoftmaxGradient(), X, X)])
def test_an_operation_without_a_gradient_rule_says_so(case: Any) -> None:
    name = case[0].name
    with pytest.raises(GraphError, match=rf"^{name} has no gradient rule, but a gradient was asked for through it$"):
        case[0].gradient(None)


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ((Concat(-2), X, (5, 0, 3), (5, 2, 3)), [slice(0, 4), slice(4, 4), slice(4, 6)]),
        ((Split(1, (1, 0, 3)), X), [slice(0, 1), slice(1, 1), slice(1, 4)]),
        ((Slice(1, 1, 3), X), [slice(1, 3)]),
        ((Reshape((3, 20)), X), [slice(0, 4)]),
        ((Identity(), X), [slice(0, 4)]),
    ],
)
def test_boxes_are_where_the_parts_lie(case: Any, parts: list[slice]) -> None:
    operation, xs = case[0], arguments(case)
    ys = apply(operation, *xs)
    boxes = operation.boxes([describe(x) for x in xs], [describe(y) for y in ys])
    whole, pieces = (ys[0], xs) if operation.rearranges == "join" else (xs[0], ys)
    assert [slice(*box[1]) for box in boxes] == parts
    for box, piece in zip(boxes, pieces, strict=True):
        same(piece, whole[tuple(slice(*ends) for ends in box)].reshape(piece.shape))


def test_labels_may_be_moved() -> None:
    label = np.arange(6).reshape(3, 2)
    for operation in (
        Concat(0),
        Identity(),
        Copy(),
        Slice(0, 0, 3),
        Reshape((3, 2)),
        Split(0, (3,)),
        PadSlice(0, 0, 3),
    ):
        [moved] = apply(operation, label)
        np.testing.assert_array_equal(moved, label, strict=True)


@pytest.mark.parametrize(
    ("shape", "start", "want"),
    [
        ((-1, 4), (3, 0, 4), (0, 4)),
        ((2, -1), (3, 4), (2, 6)),
        ((), (1, 1), ()),
        ((0, 5), (3, 0), (0, 5)),
        (6, (2, 3), (6,)),
    ],
)
def test_reshape_finds_the_axis_that_is_left(shape: Any, start: Any, want: Any) -> None:
    x = np.arange(math.prod(start)).reshape(start)
    same(apply(Reshape(shape), x)[0], x.reshape(want))


def test_one_spelling_of_each_attribute() -> None:
    assert ReduceSum([0, np.int64(2)]) == ReduceSum((0, 2))
    assert WeightedSum([1, 2]) == WeightedSum((1.0, 2.0))
    assert BroadcastTo([4, 3], [-1]) == BroadcastTo((4, 3), (1,), 1)
    assert Uniform([3, 2], low=0) == Uniform((3, 2), "float32", 0.0, 1.0)
    assert hash(Bernoulli([2], window=([4], [1]))) == hash(Bernoulli((2,), window=((4,), (1,))))


# Exactness (rule R10)

EXACT = [
    case
    for case in (
        *ALL,
        (SquaredError(), (8, 3), (8, 3)),
        (SquaredErrorGradient(), (), (8, 3), (8, 3)),
        (ReduceMean(), (4, 2)),
    )
    if case[0].exact and not (isinstance(case[0], ReduceMean) and case[1] == X)
]


@pytest.mark.parametrize("case", EXACT, ids=lambda case: case[0].name)
@given(st.integers(0, 2**32), st.data())
def test_r10_results_are_multiples_of_the_quantum_within_the_magnitude(case: Any, seed: int, data: Any) -> None:
    operation, rng = case[0], np.random.default_rng(seed)
    xs = arguments(case)
    exponents = [data.draw(st.integers(-5, 5)) for _ in xs]
    signed = [x.shape == X or x.dtype.kind == "f" for x in xs]
    for index, e in enumerate(exponents):
        if index in operation.selectors:
            xs[index] = rng.integers(0, 2, xs[index].shape).astype(float)
        elif signed[index]:
            xs[index] = rng.integers(-9, 10, xs[index].shape) * 2.0**e
    ys = apply(operation, *xs)
    described, outputs = [describe(x) for x in xs], [describe(y) for y in ys]
    limits = [junk(tensor) for tensor in outputs]
    bounds = [np.abs(x) if x.dtype.kind == "f" else x for x in xs]
    operation.magnitude(CpuKernels(RunKey()), xs, bounds, limits)
    for y, limit, quantum in zip(ys, limits, operation.quantum(exponents, described, outputs), strict=True):
        assert (np.abs(y) <= limit).all()
        scaled = y * 2.0**-quantum
        same(scaled, np.round(scaled))


def test_r10_the_magnitude_holds_for_any_signs() -> None:
    """Bounds of 1 everywhere: what subtracts must add them up."""
    ones = [np.ones((2, 3))] * 3
    rate, kernels = np.ones(()), CpuKernels(RunKey())
    for operation, bounds, want in (
        (SquaredError("sum"), ones[:2], [12]),
        (SquaredErrorGradient("sum", -1), [rate, *ones[:2]], [2]),
        (WeightedSum((0.5, -2, 0)), ones, [2.5]),
        (Scale(-4), ones[:1], [4]),
        (BroadcastTo((2, 3), (), -4), ones[:1], [4]),
        (Constant(-4, (2, 3)), [], [4]),
        (SGD(0.5, 0.25, 2), [*ones, rate], [1 + 0.5 + 2 * 1.25, 0.5 + 2 * 1.25]),
        (TorchSGD(0.5, 0.25, 2), [*ones, rate], [1 + 2 * 1.75, 1.75]),
    ):
        outputs = [junk(tensor) for tensor in operation.infer([describe(b) for b in bounds])]
        operation.magnitude(kernels, bounds, bounds, outputs)
        for output, value in zip(outputs, want, strict=True):
            same(output, np.full(output.shape, value))


@pytest.mark.parametrize(
    ("value", "dtype", "e"), [(-2.5, "float32", -1), (0, "float64", 0), (96, "int64", 5), (0.1, "float32", -27)]
)
def test_r10_the_quantum_of_a_constant_is_its_last_bit(value: float, dtype: str, e: int) -> None:
    operation = Constant(value, (3,), dtype)
    assert operation.quantum([], [], operation.infer([])) == (e,)


@pytest.mark.parametrize(
    "operation",
    [
        Scale(0.3),
        WeightedSum((1, 0.3)),
        Dropout(0.3),
        BroadcastTo((2,), (), 0.3),
        SGD(0.9),
        TorchSGD(0.5, 0.1),
        AdaGrad(),
        SGD(0.5, 0, 3),
        Softmax(),
        LogSoftmax(),
        Sigmoid(),
        Tanh(),
        SoftmaxCrossEntropy(),
        Uniform((2,)),
        Gaussian((2,)),
        Dropout(0.3, "test", train=False),
    ],
    ids=lambda operation: operation.name,
)
def test_r10_what_rounds_is_not_exact(operation: Operation) -> None:
    assert not operation.exact


def test_r10_what_does_not_round_is_exact() -> None:
    for operation in (Bernoulli((2,)), Constant(0.1, ()), SGD(0.5), Dropout(0.3, "test"), Scale(0), Scale(-0.25)):
        assert operation.exact
    assert len(EXACT) > 20


@pytest.mark.parametrize(
    ("operation", "shapes", "message"),
    [
        (SquaredError(), [(3, 2)] * 2, "batch in a mean is a power of two, got 3.0"),
        (SquaredErrorGradient(), [(), (3, 2), (3, 2)], "batch in a mean is a power of two, got 3.0"),
        (Mean(), [(2,)] * 3, "number of inputs is a power of two, got 3.0"),
        (ReduceMean((0,)), [(6, 2)], "number of elements in a mean is a power of two, got 6.0"),
        (Scale(0.3), [(2,)], "factor is a power of two, got 0.3"),
        (Dropout(0.2), [(2,)] * 2, "scale is a power of two, got 1.25"),
        (SGD(0.9), [(2,)] * 3 + [()], "momentum is a power of two, got 0.9"),
        (TorchSGD(0.5, 0.1), [(2,)] * 3 + [()], "decay is a power of two, got 0.1"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_r10_a_factor_that_rounds_is_named(operation: Operation, shapes: Any, message: str) -> None:
    inputs = [Tensor(shape) for shape in shapes]
    expected = f"{operation.name} is exact only where its {message}; choose another or compare within a bound"
    with pytest.raises(OperatorError, match=rf"^{re.escape(expected)}$"):
        operation.quantum([0] * len(inputs), inputs, operation.infer(inputs))
