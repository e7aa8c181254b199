"""Cases of activations, softmax, losses, sums, dropout and updates."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch
from torch.nn import functional

from oracles import each
from oracles import values as oracle
from purine_ref.ops import (
    SGD,
    AdaGrad,
    BroadcastTo,
    Dropout,
    LogSoftmax,
    LogSoftmaxGradient,
    Mean,
    Mul,
    ReduceMean,
    ReduceSum,
    ReLU,
    ReLUGradient,
    Scale,
    Sigmoid,
    SigmoidGradient,
    Softmax,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGradient,
    SoftmaxGradient,
    SquaredError,
    SquaredErrorGradient,
    Sum,
    Tanh,
    TanhGradient,
    TopKAccuracy,
    TorchSGD,
    WeightedSum,
)
from suites.operation_case import (
    GAP,
    Case,
    Input,
    apart,
    between_zero_and_one,
    chosen,
    mask,
    positive,
    weight,
    whole,
)
from torch_reference import adagrad, autograd, pullback, sgd

X = (5, 4, 3)
aten = torch.ops.aten

ACTIVATIONS = [
    Case(
        ReLU(),
        (Input(X, apart),),
        lambda x: each(lambda v: v if v > 0 else 0, x),
        autograd(torch.relu),
        distance=GAP / 2,
    ),
    Case(
        ReLUGradient(),
        (Input(X), Input(X, apart)),
        lambda dy, y: each(lambda d, v: d if v > 0 else 0, dy, y),
        autograd(lambda dy, y: aten.threshold_backward(dy.detach(), y.detach(), 0)),
    ),
    Case(Sigmoid(), (Input(X),), oracle.sigmoid, autograd(torch.sigmoid)),
    Case(
        SigmoidGradient(),
        (Input(X), Input(X, between_zero_and_one)),
        lambda dy, y: each(lambda d, v: d * v * (1 - v), dy, y),
        autograd(lambda dy, y: aten.sigmoid_backward(dy.detach(), y.detach())),
    ),
    Case(Tanh(), (Input(X),), lambda x: each(math.tanh, x), autograd(torch.tanh)),
    Case(
        TanhGradient(),
        (Input(X), Input(X, between_zero_and_one)),
        lambda dy, y: each(lambda d, v: d * (1 - v * v), dy, y),
        autograd(lambda dy, y: aten.tanh_backward(dy.detach(), y.detach())),
    ),
]


def softmax_cases(note: str, axis: int, shape: tuple[int, ...] = X) -> list[Case]:
    """Softmax and its logarithm along an axis, and their gradients."""
    front = axis % len(shape)

    def backward(function: Any) -> Any:
        return autograd(lambda dy, y: function(dy.detach(), y.detach(), axis, dy.dtype))

    one, two = (Input(shape),), (Input(shape), Input(shape, between_zero_and_one))
    return [
        Case(Softmax(axis), one, lambda x: oracle.softmax(x, front), autograd(lambda x: x.softmax(axis)), note),
        Case(
            SoftmaxGradient(axis),
            two,
            lambda dy, y: oracle.softmax_gradient(dy, y, front),
            backward(aten._softmax_backward_data),
            note,
        ),
        Case(
            LogSoftmax(axis), one, lambda x: oracle.log_softmax(x, front), autograd(lambda x: x.log_softmax(axis)), note
        ),
        Case(
            LogSoftmaxGradient(axis),
            two,
            lambda dy, y: oracle.log_softmax_gradient(dy, y, front),
            backward(aten._log_softmax_backward_data),
            note,
        ),
    ]


SOFTMAXES = [
    *softmax_cases("middle", 1),
    *softmax_cases("last", -1),
    *softmax_cases("long", -1, (3, 2, 40)),
]


def cross_entropy_cases(note: str, logits: tuple[int, ...], reduction: str, ignore: int | None) -> list[Case]:
    """The softmax loss and its gradient."""
    label = chosen((logits[0], *logits[2:]), whole(logits[1]))

    def form(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(x, labels, reduction=reduction, ignore_index=-100 if ignore is None else ignore)

    return [
        Case(
            SoftmaxCrossEntropy(reduction, ignore),
            (Input(logits), label),
            lambda x, labels: oracle.cross_entropy(x, labels, reduction, ignore),
            autograd(form),
            note,
        ),
        Case(
            SoftmaxCrossEntropyGradient(reduction, ignore),
            (weight(), Input(logits), label),
            lambda d, x, labels: oracle.cross_entropy_gradient(d, x, labels, reduction, ignore),
            autograd(lambda d, x, labels: pullback(lambda at: form(at, labels), x, d)),
            note,
        ),
    ]


def squared_error_cases(note: str, shape: tuple[int, ...], reduction: str, sign: int, certified: bool) -> list[Case]:
    """The squared error and one of its gradients."""
    divisor = shape[0] if reduction == "mean" else 1

    def form(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(x, target, reduction="sum") / 2 / divisor

    return [
        Case(
            SquaredError(reduction),
            (Input(shape), Input(shape)),
            lambda x, target: oracle.squared_error(x, target, reduction),
            autograd(form),
            note,
            certified=certified,
        ),
        Case(
            SquaredErrorGradient(reduction, sign),
            (weight(), Input(shape), Input(shape)),
            lambda d, x, target: oracle.squared_error_gradient(d, x, target, reduction, sign),
            autograd(lambda d, x, target: pullback(lambda at: form(at, target), x, sign * d)),
            note,
            certified=certified,
        ),
    ]


LOSSES = [
    *cross_entropy_cases("mean", (5, 12), "mean", None),
    *cross_entropy_cases("ignore-pixels", (5, 4, 3, 2), "mean", 2),
    *cross_entropy_cases("sum-pixels", (5, 4, 3, 2), "sum", 0),
    *squared_error_cases("mean", (8, 3, 2), "mean", 1, True),
    *squared_error_cases("mean-of-five", X, "mean", 1, False),
    *squared_error_cases("sum", X, "sum", -1, True),
    Case(
        TopKAccuracy(2),
        (Input((7, 5), apart), chosen((7,), whole(5))),
        lambda x, label: oracle.top_k_accuracy(x, label, 2),
        autograd(lambda x, label: (x.topk(2).indices == label[:, None]).any(1).to(x.dtype).mean()),
    ),
]


def dropout_case(note: str, ratio: float, scale: str, factor: Fraction) -> Case:
    """Dropout in training, by a mask that is given."""
    return Case(
        Dropout(ratio, scale),
        (Input(X), chosen(X, mask)),
        lambda x, kept: oracle.dropout(x, kept, factor),
        autograd(lambda x, kept: aten.native_dropout_backward(x, kept.detach().bool(), float(factor))),
        note,
    )


DROPOUTS = [
    dropout_case("half", 0.5, "train", Fraction(2)),
    dropout_case("fifth", 0.2, "train", Fraction(1 / (1 - 0.2))),
    dropout_case("mask-alone", 0.3, "test", Fraction(1)),
    Case(
        Dropout(0.75, "test", train=False),
        (Input(X),),
        lambda x: each(lambda v: v * Fraction(1, 4), x),
        autograd(lambda x: x * 0.25),
        "scaled-in-testing",
    ),
    Case(
        Dropout(0.3, train=False),
        (Input(X),),
        lambda x: each(lambda v: v, x),
        autograd(lambda x: functional.dropout(x, 0.3, training=False)),
        "idle-in-testing",
    ),
]

SUMS = [
    Case(Sum(), (Input(X),) * 3, oracle.plain_sum, autograd(lambda *xs: torch.stack(xs).sum(0)), variadic=True),
    Case(Sum(), (Input(X),), oracle.plain_sum, autograd(torch.clone), "of-one", free=True, variadic=True),
    Case(Mean(), (Input(X),) * 2, oracle.mean, autograd(lambda *xs: torch.stack(xs).mean(0)), variadic=True),
    Case(
        Mean(),
        (Input(X),) * 3,
        oracle.mean,
        autograd(lambda *xs: torch.stack(xs).mean(0)),
        "of-three",
        certified=False,
        variadic=True,
    ),
    Case(Mul(), (Input(X),) * 2, lambda a, b: each(lambda v, w: v * w, a, b), autograd(torch.mul)),
    Case(
        WeightedSum((0.5, -2, 0)),
        (Input(X),) * 3,
        lambda *xs: oracle.weighted_sum((0.5, -2, 0), *xs),
        autograd(lambda a, b, c: 0.5 * a - 2 * b + 0 * c),
    ),
    Case(
        WeightedSum((0.3, -0.7)),
        (Input(X),) * 2,
        lambda *xs: oracle.weighted_sum((0.3, -0.7), *xs),
        autograd(lambda a, b: 0.3 * a - 0.7 * b),
        "rounding",
    ),
    Case(Scale(-0.25), (Input(X),), lambda x: x * Fraction(-1, 4), autograd(lambda x: x * -0.25)),
    Case(Scale(0.3), (Input(X),), lambda x: x * Fraction(0.3), autograd(lambda x: x * 0.3), "rounding"),
    Case(ReduceSum(), (Input(X),), lambda x: oracle.reduce_sum(x, (0, 1, 2)), autograd(torch.sum)),
    Case(
        ReduceSum((-1, 0)),
        (Input(X),),
        lambda x: oracle.reduce_sum(x, (0, 2)),
        autograd(lambda x: x.sum((0, 2))),
        "some",
    ),
    Case(ReduceMean(), (Input((4, 8, 2)),), lambda x: oracle.reduce_mean(x, (0, 1, 2)), autograd(torch.mean)),
    Case(ReduceMean((1,)), (Input(X),), lambda x: oracle.reduce_mean(x, (1,)), autograd(lambda x: x.mean(1)), "some"),
    Case(
        ReduceMean((0, 2)),
        (Input(X),),
        lambda x: oracle.reduce_mean(x, (0, 2)),
        autograd(lambda x: x.mean((0, 2))),
        "of-fifteen",
        certified=False,
    ),
    Case(
        BroadcastTo(X, (1,), -0.5),
        (Input((5, 3)),),
        lambda x: oracle.broadcast(x, (len(x), 4, 3), (1,), -0.5),
        autograd(lambda x: -0.5 * x[:, None].expand(X)),
        empty=BroadcastTo((0, 4, 3), (1,), -0.5),
    ),
    Case(
        BroadcastTo(X, (-1, 0), 0.3),
        (weight(4),),
        lambda x: oracle.broadcast(x, X, (0, 2), 0.3),
        autograd(lambda x: 0.3 * x[:, None].expand(X)),
        "rounding",
    ),
]


def state(draw: Any = None) -> tuple[Input, ...]:
    """weight, gradient, history and rate."""
    return (Input(X), Input(X), Input(X, draw) if draw else Input(X), weight(draw=positive))


UPDATES = [
    Case(
        SGD(0.5, 0.25, 2),
        state(),
        lambda *given: oracle.sgd(0.5, 0.25, 2, *given),
        sgd(0.5, 0.25, 2, rate_inside=True),
    ),
    Case(
        SGD(0.9, 0.01),
        state(),
        lambda *given: oracle.sgd(0.9, 0.01, 1, *given),
        sgd(0.9, 0.01, 1, rate_inside=True),
        "rounding",
    ),
    Case(
        TorchSGD(0.5, 0.25, 2),
        state(),
        lambda *given: oracle.torch_sgd(0.5, 0.25, 2, *given),
        sgd(0.5, 0.25, 2, rate_inside=False),
    ),
    Case(
        TorchSGD(0.9, 0.01),
        state(),
        lambda *given: oracle.torch_sgd(0.9, 0.01, 1, *given),
        sgd(0.9, 0.01, 1, rate_inside=False),
        "rounding",
    ),
    Case(
        AdaGrad(1e-3, 0.1, 2),
        state(positive),
        lambda *given: oracle.adagrad(1e-3, 0.1, 2, *given),
        adagrad(1e-3, 0.1, 2),
    ),
]

CASES = [*ACTIVATIONS, *SOFTMAXES, *LOSSES, *DROPOUTS, *SUMS, *UPDATES]
