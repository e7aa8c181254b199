"""What the operations of values and shapes refuse, and the words in which they do."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from purine_ref.errors import ShapeError
from purine_ref.operation import Operation
from purine_ref.ops import (
    SGD,
    AdaGrad,
    BroadcastTo,
    Concat,
    Dropout,
    Identity,
    LogSoftmax,
    Mean,
    Mul,
    PadSlice,
    ReduceMean,
    ReduceSum,
    ReLU,
    ReLUGradient,
    Reshape,
    Scale,
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
    TopKAccuracy,
    TorchSGD,
    WeightedSum,
)
from purine_ref.tensor import Tensor

F, D, L = (Tensor((5, 4), dtype) for dtype in ("float32", "float64", "int64"))
G, S, N = Tensor((5, 3)), Tensor(()), Tensor((5,), "int64")


@pytest.mark.parametrize(
    ("operation", "inputs", "message"),
    [
        (ReLU(), [F, F], "expected 1 inputs (x), got 2"),
        (Tanh(), [L], "expected inputs of float32 or float64, got int64"),
        (ReLUGradient(), [F, G], "expected inputs of one shape, got (5, 3) and (5, 4)"),
        (SigmoidGradient(), [F, D], "expected inputs of one dtype, got float32 and float64"),
        (Softmax(2), [F], "expected an axis of the 2 of float32[5, 4], got 2"),
        (LogSoftmax(-3), [F], "expected an axis of the 2 of float32[5, 4], got -3"),
        (Softmax(), [L], "expected x of float32 or float64, got int64"),
        (Softmax(), [Tensor((5, 0))], "expected one element or more along axis 1, got float32[5, 0]"),
        (SoftmaxGradient(), [F, G], "expected inputs of one shape, got (5, 3) and (5, 4)"),
        (SoftmaxCrossEntropy(), [F, Tensor((4,), "int64")], "expected label int64[5], got int64[4]"),
        (SoftmaxCrossEntropy(), [Tensor((5, 4, 3)), N], "expected label int64[5, 3], got int64[5]"),
        (SoftmaxCrossEntropy(), [F, Tensor((5,))], "expected label int64[5], got float32[5]"),
        (SoftmaxCrossEntropy(), [Tensor((5,)), N], "expected logits of shape (N, K) or (N, K, ...), got float32[5]"),
        (SoftmaxCrossEntropy(), [L, N], "expected logits of float32 or float64, got int64"),
        (
            SoftmaxCrossEntropy(),
            [Tensor((5, 0)), N],
            "expected one class or more along axis 1 of the logits, got float32[5, 0]",
        ),
        (SoftmaxCrossEntropyGradient(), [F, F, N], "expected dloss of shape (), got float32[5, 4]"),
        (SoftmaxCrossEntropyGradient(), [S, D, N], "expected inputs of one dtype, got float32 and float64"),
        (SquaredError(), [F, G], "expected inputs of one shape, got (5, 3) and (5, 4)"),
        (SquaredError(), [S, S], "expected x of shape (N, ...), got float32[]"),
        (SquaredErrorGradient(), [F, F, F], "expected dloss of shape (), got float32[5, 4]"),
        (SquaredErrorGradient(), [S, D, D], "expected inputs of one dtype, got float32 and float64"),
        (TopKAccuracy(5), [F, N], "expected 5 classes or more, got float32[5, 4]"),
        (TopKAccuracy(), [Tensor((5, 4, 3)), N], "expected logits of shape (N, K), got float32[5, 4, 3]"),
        (TopKAccuracy(), [F, Tensor((4,), "int64")], "expected label int64[5], got int64[4]"),
        (Dropout(), [F], "expected 2 inputs (x, mask), got 1"),
        (Dropout(train=False), [F, F], "expected 1 inputs (x), got 2"),
        (Dropout(), [F, L], "expected inputs of float32 or float64, got int64"),
        (Sum(), [], "expected one input or more, got none"),
        (Mean(), [F, G], "expected inputs of one shape, got (5, 3) and (5, 4)"),
        (Mul(), [F] * 3, "expected 2 inputs (x1, x2), got 3"),
        (WeightedSum((1, 2)), [F], "expected 2 inputs, one per weight, got 1"),
        (WeightedSum(()), [], "expected one input or more, got none"),
        (ReduceSum((2,)), [F], "expected an axis of the 2 of float32[5, 4], got 2"),
        (ReduceMean((1, -1)), [F], "expected axes that differ, got (1, -1)"),
        (ReduceSum(), [L], "expected x of float32 or float64, got int64"),
        (BroadcastTo((5, 4), (0,)), [F], "expected x of shape (4,), got (5, 4)"),
        (Concat(0), [], "expected one input or more, got none"),
        (Concat(0), [F, G], "expected inputs that agree with float32[5, 4] but for axis 0, got float32[5, 3]"),
        (Concat(1), [F, D], "expected inputs that agree with float32[5, 4] but for axis 1, got float64[5, 4]"),
        (Concat(1), [F, S], "expected inputs that agree with float32[5, 4] but for axis 1, got float32[]"),
        (Concat(0), [S], "expected an axis of the 0 of float32[], got 0"),
        (Split(1, (2, 1)), [F], "expected sizes that add up to 4, the length of axis 1, got 3"),
        (Slice(1, 2, 5), [F], "expected a stop of 4 or less along axis 1, got 5"),
        (PadSlice(1, 2, 5), [F], "expected x of 3 or less along axis 1, got float32[5, 4]"),
        (Reshape((3, 7)), [F], "expected x of 21 elements, got float32[5, 4]"),
        (Reshape((3, -1)), [F], "expected x of a multiple of 3 elements, got float32[5, 4]"),
        (Reshape((0, -1)), [Tensor((0, 4))], "expected x of a multiple of 0 elements, got float32[0, 4]"),
        (Identity(), [], "expected 1 inputs (x), got 0"),
        (SGD(), [F, F, G, S], "expected inputs of one shape, got (5, 3) and (5, 4)"),
        (TorchSGD(), [F, F, F, F], "expected rate of shape (), got float32[5, 4]"),
        (AdaGrad(), [F, F, F], "expected 4 inputs (weight, gradient, history, rate), got 3"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(operation: Operation, inputs: list[Tensor], message: str) -> None:
    with pytest.raises(ShapeError, match=rf"^{re.escape(f'{operation.name}: {message}')}$"):
        operation.infer(inputs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: SoftmaxCrossEntropy("average"),
            "SoftmaxCrossEntropy reduction: expected 'mean' or 'sum', got 'average'",
        ),
        (lambda: SquaredError("none"), "SquaredError reduction: expected 'mean' or 'sum', got 'none'"),
        (lambda: SquaredErrorGradient(sign=0), "SquaredErrorGradient: expected a sign of 1 or -1, got 0"),
        (lambda: TopKAccuracy(0), "TopKAccuracy k: expected an integer of 1 or more, got 0"),
        (lambda: Dropout(0.5, "both"), "Dropout scale: expected 'train' or 'test', got 'both'"),
        (lambda: WeightedSum((1, math.nan)), "WeightedSum weights: expected a finite number, got nan"),
        (lambda: Scale(math.inf), "Scale factor: expected a finite number, got inf"),
        (lambda: ReduceSum((0.5,)), "a shape must be a sequence of integers, got (0.5,)"),
        (lambda: BroadcastTo((5, 4), (2,)), "BroadcastTo: expected an axis of the 2 of float32[5, 4], got 2"),
        (lambda: Split(0, ()), "Split: expected one size or more, got ()"),
        (lambda: Split(0, (3, -1)), "Split sizes: expected an integer of 0 or more, got -1"),
        (lambda: Slice(0, 3, 2), "Slice: expected a start not beyond the stop, got 3..2"),
        (lambda: Slice(0, -1, 2), "Slice start: expected an integer of 0 or more, got -1"),
        (lambda: PadSlice(0, 0, -2), "PadSlice length: expected an integer of 0 or more, got -2"),
        (
            lambda: Reshape((-1, -1)),
            "Reshape: expected a shape of integers of 0 or more, and -1 once at most, got (-1, -1)",
        ),
        (
            lambda: Reshape((-2, 3)),
            "Reshape: expected a shape of integers of 0 or more, and -1 once at most, got (-2, 3)",
        ),
        (lambda: SGD(-0.5), "SGD: expected a momentum of 0 or more, got -0.5"),
        (lambda: TorchSGD(decay=math.nan), "TorchSGD decay: expected a finite number, got nan"),
        (
            lambda: AdaGrad(0),
            "AdaGrad: expected an epsilon above 0, since a first gradient of 0 is divided by it, got 0.0",
        ),
    ],
)
def test_attributes_that_mean_nothing_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=rf"^{re.escape(message)}$"):
        make()
