"""What `axes` and `part` promise: parts computed on their boxes of the inputs make up the outputs of the whole.

All inputs are small integers, so that every sum of products is exact and equality to the bit can be asked for. Only a
mean over a number that is no power of two rounds, and a logarithm does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purine_ref import ops
from purine_ref.errors import ShapeError
from purine_ref.operation import Axis, End, Operation
from purine_ref.ops.axes import shape_of_part
from purine_ref.ops.convolution import Conv2d, Conv2dDataGradient, Conv2dWeightGradient
from purine_ref.ops.cross_entropy import SoftmaxCrossEntropy, SoftmaxCrossEntropyGradient
from purine_ref.ops.linear import Bias, BiasGradient, Linear, LinearDataGradient, LinearWeightGradient
from purine_ref.ops.loss import SquaredError, SquaredErrorGradient
from purine_ref.ops.metric import TopKAccuracy
from purine_ref.ops.reduction import BroadcastTo, ReduceMean, ReduceSum
from purine_ref.ops.shape import Reshape
from purine_ref.tensor import Tensor
from support import apply, backward, describe

few = settings(max_examples=max(settings.default.max_examples // 5, 10))
"""Each of many cases gets a share of the examples of the profile."""

Array = Any
Case = tuple[Any, ...]
"""An operation; the names of its axes, with a + where the parts' outputs are summed; its inputs."""

LARGEST = 3
"""The largest absolute value of an input."""


def cases(n: int, c: int, h: int, w: int, k: int, dtype: str) -> list[Case]:
    """Every operation on a batch of n images of c channels, h by w, and of k further features; always in one order."""
    tensor = partial(Tensor, dtype=dtype)
    x, labels = tensor((n, c, h, w)), Tensor((n, h, w), "int64")
    every, others = "axis0 axis1 axis2 axis3", "axis0 axis2 axis3"
    return [
        *_products(x, k),
        *_planes(x),
        (Bias(), every, x, tensor((c,))),
        (Bias(-1), every, x, tensor((w,))),
        (BiasGradient(), "axis0+ axis1 axis2+ axis3+", x),
        (BiasGradient(-1), "axis0+ axis1+ axis2+ axis3", x),
        (ops.BiasReLU(), every, x, tensor((c,))),
        (ops.BiasReLU(-1), every, x, tensor((w,))),
        (ops.BiasReLUGradient(), "axis0+ axis1 axis2+ axis3+", x, x),
        (ops.BiasReLUGradient(-1), "axis0+ axis1+ axis2+ axis3", x, x),
        (ops.LRN(3), others, x),
        (ops.LRNGradient(3), others, x, x),
        (ops.Softmax(), others, x),
        (ops.Softmax(-1), "axis0 axis1 axis2", x),
        (ops.SoftmaxGradient(-2), "axis0 axis1 axis3", x, x),
        (ops.LogSoftmax(), others, x),
        (ops.LogSoftmaxGradient(), others, x, x),
        *_losses(x, labels),
        *_movements(x),
        *_elementwise(x),
        *_sources((n, c, h, w), dtype),
        (ReduceSum((1, -1)), "axis0 axis1+ axis2 axis3+", x),
        (ReduceSum(), "axis0+ axis1+ axis2+ axis3+", x),
        (ReduceMean((0, 2)), "axis0+ axis1 axis2+ axis3", x),
        (ReduceMean((2,), count=8), "axis0 axis1 axis2+ axis3", x),
        (BroadcastTo(x.shape, (0, 2), -0.5), every, tensor((c, w))),
    ]


def _products(x: Tensor, k: int) -> list[Case]:
    (n, c, h, w), tensor = x.shape, partial(Tensor, dtype=x.dtype)
    window: dict[str, Any] = {"stride": (1, 2), "pads": ((1, 0), (2, 1))}
    weight, double, pair = tensor((k, c, 2, 3)), tensor((n, 2 * c, h, w)), tensor((2 * k, c, 2, 3))
    (y,), (z,) = Conv2d(**window).infer([x, weight]), Conv2d(**window, groups=2).infer([double, pair])
    flat, rows, narrow = tensor((k, c * h * w)), tensor((n, k)), tensor((n, c))
    return [
        (Conv2d(**window), "n c+ k", x, weight),
        (Conv2dDataGradient(x.shape, **window), "n k+ c", y, weight),
        (Conv2dWeightGradient((2, 3), **window), "n+ k c", y, x),
        (Conv2d(**window, groups=2), "n", double, pair),
        (Conv2dDataGradient(double.shape, **window, groups=2), "n", z, pair),
        (Conv2dWeightGradient((2, 3), **window, groups=2), "n+", z, double),
        (Linear(), "n i+ o", x, flat),
        (Linear(), "n i+ o", narrow, tensor((k, c))),
        (LinearDataGradient(x.shape), "n o+ i", rows, flat),
        (LinearWeightGradient(), "n+ o i", rows, x),
    ]


def _planes(x: Tensor) -> list[Case]:
    window: dict[str, Any] = {"kernel": (2, 3), "stride": 2, "pads": 1}
    y, index = ops.MaxPool2d(**window).infer([x])
    one = Tensor((*x.shape[:2], 1, 1), x.dtype)
    return [
        (ops.MaxPool2d(**window), "n c", x),
        (ops.MaxPool2dGradient(x.shape), "n c", y, index),
        (ops.AveragePool2d(**window, count="valid"), "n c", x),
        (ops.AveragePool2dGradient(x.shape, **window), "n c", y),
        (ops.GlobalAveragePool2d(), "n c", x),
        (ops.GlobalAveragePool2dGradient(x.shape), "n c", one),
    ]


def _losses(x: Tensor, labels: Tensor) -> list[Case]:
    rows, row_labels, one = Tensor(x.shape[:2], x.dtype), Tensor(x.shape[:1], "int64"), Tensor((), x.dtype)
    summed, every = "axis0+ axis1+ axis2+ axis3+", "axis0 axis1 axis2 axis3"
    return [
        (SoftmaxCrossEntropy(), "n+", rows, row_labels),
        (SoftmaxCrossEntropy(), "n+ axis2+ axis3+", x, labels),
        (SoftmaxCrossEntropy("sum", ignore=1), "n+ axis2+ axis3+", x, labels),
        (SoftmaxCrossEntropy(ignore=1, samples=6), "n+ axis2+ axis3+", x, labels),
        (SoftmaxCrossEntropyGradient(), "n axis2 axis3", one, x, labels),
        (SoftmaxCrossEntropyGradient("sum", ignore=1), "n axis2 axis3", one, x, labels),
        (SquaredError(), summed, x, x),
        (SquaredError("sum"), summed, x, x),
        (SquaredErrorGradient(), every, one, x, x),
        (SquaredErrorGradient("sum", -1), every, one, x, x),
        (TopKAccuracy(2), "n+", rows, row_labels),
    ]


def _movements(x: Tensor) -> list[Case]:
    n, c, h, w = x.shape
    every, others = "axis0 axis1 axis2 axis3", "axis0 axis2 axis3"
    return [
        (ops.Concat(1), others, x, Tensor((n, c + 1, h, w), x.dtype)),
        (ops.Split(-3, (1, 0, c - 1)), others, x),
        (ops.Slice(0, n // 2, n), "axis1 axis2 axis3", x),
        (ops.PadSlice(-1, 2, w + 3), "axis0 axis1 axis2", x),
        (Reshape((n, c * h, w)), "axis0", x),
        (Reshape((n, c, w, h)), "axis0 axis1", x),
        (Reshape((-1, c, h * w)), "axis0 axis1", x),
        (Reshape((c, n, h * w)), "", x),
        (ops.Identity(), every, x),
        (ops.Copy(), every, x),
    ]


def _elementwise(x: Tensor) -> list[Case]:
    one, every = Tensor((), x.dtype), "axis0 axis1 axis2 axis3"
    numbers: list[tuple[Operation, int]] = [
        *((operation, 1) for operation in (ops.ReLU(), ops.Sigmoid(), ops.Tanh(), ops.Scale(-1.5))),
        *((operation, 2) for operation in (ops.ReLUGradient(), ops.SigmoidGradient(), ops.TanhGradient())),
        *((operation, 2) for operation in (ops.Mul(), ops.Dropout(0.25))),
        *((operation, 3) for operation in (ops.Sum(), ops.Mean(), ops.WeightedSum((1.5, -2, 0)))),
    ]
    return [
        *((operation, every, *[x] * count) for operation, count in numbers),
        (ops.Dropout(0.25, "test", train=False), every, x),
        *((rule(decay=0.5), every, x, x, x, one) for rule in (ops.SGD, ops.TorchSGD, ops.AdaGrad)),
        (ops.Sum(), "", one, one),
    ]


def _sources(shape: tuple[int, ...], dtype: str) -> list[Case]:
    every = "axis0 axis1 axis2 axis3"
    window = (tuple(length + 3 for length in shape), (1, 2, 3, 0))
    return [
        (ops.Constant(-2.5, shape, dtype), every),
        (ops.Constant(7, shape[1:2], "int64"), "axis0"),
        *((draw(shape, dtype, stream="drawn"), every) for draw in (ops.Uniform, ops.Gaussian, ops.Bernoulli)),
        (ops.Uniform(shape, dtype, stream="drawn", window=window), every),
        (ops.Gaussian((), dtype, stream="drawn"), ""),
    ]


EXAMPLES = cases(2, 3, 4, 5, 7, "float64")
every_case = pytest.mark.parametrize("index", range(len(EXAMPLES)), ids=[case[0].name for case in EXAMPLES])
every_cuttable = pytest.mark.parametrize(
    "index",
    [index for index, case in enumerate(EXAMPLES) if case[1]],
    ids=[case[0].name for case in EXAMPLES if case[1]],
)


@st.composite
def drawn_cases(draw: Callable[..., Any], index: int) -> tuple[Operation, list[Array]]:
    """Case `index` with lengths that differ from one another, a batch that may be empty, and either dtype."""
    n, c, h, w, k = draw(st.permutations([2, 3, 4, 5, 7]))
    case = cases(draw(st.sampled_from([n, n, 0])), c, h, w, k, draw(st.sampled_from(["float32", "float64"])))[index]
    return case[0], arguments(case, draw(st.integers(0, 99)))


def arguments(case: Case, seed: int = 0) -> list[Array]:
    """Integers of at most `LARGEST`; 0 and 1 for labels and indices; what AdaGrad has accumulated is not negative."""
    rng = np.random.default_rng(seed)
    arrays = [
        rng.integers(-LARGEST, LARGEST + 1, t.shape).astype(t.dtype) if t.is_float else rng.integers(0, 2, t.shape)
        for t in case[2:]
    ]
    return [abs(array) for array in arrays] if isinstance(case[0], ops.AdaGrad) else arrays


def axes_of(operation: Operation, arrays: Sequence[Array]) -> tuple[Axis, ...]:
    inputs = [describe(array) for array in arrays]
    return operation.axes(inputs, operation.infer(inputs))


def box(array: Array, end: End, start: int, stop: int) -> Array:
    """The elements of indices start..stop-1 in memory of their own; all of them where the dimension is nowhere."""
    if end is None:
        return array
    axis, scale = end
    return array[(slice(None),) * axis + (slice(start * scale, stop * scale),)].copy()


def boxes(arrays: Sequence[Array], ends: Sequence[End], start: int, stop: int) -> list[Array]:
    return [box(array, end, start, stop) for array, end in zip(arrays, ends, strict=True)]


def bounds(points: Sequence[int], extent: int) -> list[tuple[int, int]]:
    """The parts into which `points`, as far as there are so many indices, cut 0..extent; some may be empty."""
    inner = sorted(min(point, extent) for point in points)
    return list(zip([0, *inner], [*inner, extent], strict=True))


def assembled(operation: Operation, arrays: Sequence[Array], cuts: Sequence[tuple[str, list[int]]]) -> list[Array]:
    """The outputs put together from parts: cut along the first of `cuts`, each part along the rest of them."""
    if not cuts:
        return apply(operation, *arrays)
    (name, points), *rest = cuts
    [axis] = [axis for axis in axes_of(operation, arrays) if axis.name == name]
    parts = [
        assembled(operation.part(axis, *part), boxes(arrays, axis.inputs, *part), rest)
        for part in bounds(points, axis.extent)
    ]
    return [join(pieces, end) for pieces, end in zip(zip(*parts, strict=True), axis.outputs, strict=True)]


def join(pieces: Sequence[Array], end: End) -> Array:
    return sum(pieces[1:], pieces[0]) if end is None else np.concatenate(pieces, axis=end[0])


def agree(operation: Operation, got: Array, want: Array, pieces: int) -> None:
    """Equal to the bit; but for one number from `pieces` that were divided or are logarithms, which round.

    Such a piece is rounded to its dtype once when it is made and once when it is added, and its up to 343 terms are
    added in float64. The pieces' absolute values add up to the whole loss, or to no more than the largest input.
    """
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if pieces > 1 and isinstance(operation, SoftmaxCrossEntropy | SquaredError | TopKAccuracy | ReduceMean):
        rounding = pieces * np.finfo(want.dtype).eps + 343 * np.finfo("float64").eps
        assert (abs(got - want) <= rounding * np.maximum(abs(want), LARGEST)).all()
    else:
        np.testing.assert_array_equal(got, want)


def test_every_operation_is_covered() -> None:
    assert {case[0].name for case in EXAMPLES} == set(ops.__all__)


@every_case
@few
@given(data=st.data())
def test_axes_are_those_of_the_table_and_lie_where_they_say(index: int, data: st.DataObject) -> None:
    operation, arrays = data.draw(drawn_cases(index))
    outputs = apply(operation, *arrays)
    axes = axes_of(operation, arrays)
    assert " ".join(axis.name + "+" * (None in axis.outputs) for axis in axes) == EXAMPLES[index][1]
    for axis in axes:
        for array, end in zip([*arrays, *outputs], [*axis.inputs, *axis.outputs], strict=True):
            assert end is None or array.shape[end[0]] == end[1] * axis.extent


@every_cuttable
@few
@given(data=st.data(), points=st.lists(st.integers(0, 7), max_size=3))
def test_parts_make_up_the_whole(index: int, data: st.DataObject, points: list[int]) -> None:
    operation, arrays = data.draw(drawn_cases(index))
    axis = data.draw(st.sampled_from(axes_of(operation, arrays)))
    for got, want in zip(assembled(operation, arrays, [(axis.name, points)]), apply(operation, *arrays), strict=True):
        agree(operation, got, want, len(points) + 1)


@every_cuttable
@few
@given(data=st.data())
def test_parts_of_parts_make_up_the_whole_along_one_axis_or_two(index: int, data: st.DataObject) -> None:
    operation, arrays = data.draw(drawn_cases(index))
    names = st.sampled_from([axis.name for axis in axes_of(operation, arrays)])
    cuts = data.draw(st.lists(st.tuples(names, st.lists(st.integers(0, 7), max_size=3)), min_size=2, max_size=2))
    for got, want in zip(assembled(operation, arrays, cuts), apply(operation, *arrays), strict=True):
        agree(operation, got, want, 16)


@every_cuttable
@few
@given(data=st.data(), points=st.lists(st.integers(0, 7), min_size=4, max_size=4))
def test_a_part_of_a_part_is_a_part(index: int, data: st.DataObject, points: list[int]) -> None:
    operation, arrays = data.draw(drawn_cases(index))
    axis = data.draw(st.sampled_from(axes_of(operation, arrays)))
    outer, inner, end, stop = sorted(min(point, axis.extent) for point in points)
    part = operation.part(axis, outer, stop)
    [own] = [a for a in axes_of(part, boxes(arrays, axis.inputs, outer, stop)) if a.name == axis.name]
    assert own.extent == stop - outer
    assert part.part(own, inner - outer, end - outer) == operation.part(axis, inner, end)


@every_cuttable
@few
@given(data=st.data(), points=st.tuples(*[st.integers(0, 7)] * 4))
def test_cuts_along_two_axes_commute(index: int, data: st.DataObject, points: tuple[int, ...]) -> None:
    """Also with the axes of the whole, which is how a graph cuts an operation along several of them."""
    operation, arrays = data.draw(drawn_cases(index))
    axes = st.sampled_from(axes_of(operation, arrays))
    one, other = data.draw(st.tuples(axes, axes))
    if one == other:
        return
    [first, second] = [
        sorted(min(p, axis.extent) for p in pair) for axis, pair in ((one, points[:2]), (other, points[2:]))
    ]
    part, swapped = operation.part(one, *first), operation.part(other, *second)
    assert part.part(other, *second) == swapped.part(one, *first)
    [own] = [a for a in axes_of(part, boxes(arrays, one.inputs, *first)) if a.name == other.name]
    assert part.part(own, *second) == part.part(other, *second)


MEANS = [
    (SoftmaxCrossEntropy(), Tensor((5, 3, 2), "float64"), Tensor((5, 2), "int64")),
    (SquaredError(), Tensor((5, 3), "float64"), Tensor((5, 3), "float64")),
    (ReduceMean(), Tensor((5, 3), "float64")),
]


@pytest.mark.parametrize("case", MEANS, ids=lambda case: case[0].name)
def test_the_gradient_of_a_part_of_a_mean_is_the_part_of_the_gradient(case: Case) -> None:
    operation, arrays = case[0], arguments((case[0], "", *case[1:]))
    whole = backward(operation, arrays, [np.ones(())])
    for axis in axes_of(operation, arrays):
        part = backward(operation.part(axis, 1, 2), boxes(arrays, axis.inputs, 1, 2), [np.ones(())])
        for got, want, end in zip(part, whole, axis.inputs, strict=True):
            if want is not None:
                np.testing.assert_array_equal(got, box(want, end, 1, 2))


def test_dp_01_and_dp_03_uneven_parts_of_a_mean_weigh_by_their_samples() -> None:
    """Samples 1, 2, 3 and 10 of the loss (w x)^2 / 2 with w = 1: 28.5, not 52.33, the mean of the parts' means."""
    x, target = np.array([[1.0], [2.0], [3.0], [10.0]]), np.zeros((4, 1))
    slope = SquaredErrorGradient()
    axis = axes_of(slope, [np.ones(()), x, target])[0]
    dweights = []
    for start, stop in ((0, 3), (3, 4)):
        [dy] = apply(slope.part(axis, start, stop), np.ones(()), x[start:stop], target[start:stop])
        dweights += apply(LinearWeightGradient(), dy, x[start:stop])
    assert dweights == [3.5, 25]
    assert sum(dweights) == 28.5


def test_the_quantum_of_a_part_of_a_mean_is_that_of_the_whole() -> None:
    x = Tensor((8, 3))
    for operation, inputs in ((SquaredError(), [x, x]), (ReduceMean((0,)), [x])):
        axis = operation.axes(inputs, operation.infer(inputs))[0]
        few = [Tensor((3, 3))] * len(inputs)
        part = operation.part(axis, 0, 3)
        exponents = [0] * len(inputs)
        assert part.quantum(exponents, few, part.infer(few)) == operation.quantum(exponents, inputs, part.infer(inputs))


@pytest.mark.parametrize("operation", [SoftmaxCrossEntropy(ignore=1), SoftmaxCrossEntropyGradient(ignore=1)])
def test_a_mean_that_ignores_a_label_has_no_axes(operation: Operation) -> None:
    """How many samples it divides by is known only when the labels are."""
    inputs = [Tensor(())] * (operation.name == "SoftmaxCrossEntropyGradient")
    inputs += [Tensor((5, 3, 2)), Tensor((5, 2), "int64")]
    assert operation.axes(inputs, operation.infer(inputs)) == ()


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (
            lambda: SoftmaxCrossEntropy(samples=-1),
            "SoftmaxCrossEntropy samples: expected an integer of 0 or more, got -1",
        ),
        (lambda: TopKAccuracy(samples=0.5), "TopKAccuracy samples: expected an integer of 0 or more, got 0.5"),
        (lambda: ReduceMean(count=0), "ReduceMean count: expected an integer of 1 or more, got 0"),
    ],
)
def test_a_number_that_nothing_can_be_divided_by_is_refused(make: Callable[[], Operation], complaint: str) -> None:
    with pytest.raises(ShapeError, match=f"^{re.escape(complaint)}$"):
        make()


def test_the_shape_of_a_part_counts_elements_not_indices() -> None:
    assert shape_of_part((3, 8, 5), (1, 4), 1, 2) == (3, 4, 5)
    assert shape_of_part((3, 8, 5), None, 1, 2) == (3, 8, 5)


def test_an_operation_has_no_axes_unless_it_says_so() -> None:
    operation = Operation()
    assert operation.axes([Tensor((2, 3))], [Tensor((2, 3))]) == ()
    assert operation.part(Axis("n", 2, ((0, 1),), ((0, 1),)), 0, 1) is operation
