"""Cases of convolution, inner product, bias, pooling and LRN. Dimensions differ, the batch from the channels too."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from oracles import each
from oracles import geometry as oracle
from purine_ref.ops import (
    LRN,
    AveragePool2d,
    AveragePool2dGradient,
    Bias,
    BiasGradient,
    BiasReLU,
    BiasReLUGradient,
    Conv2d,
    Conv2dDataGradient,
    Conv2dWeightGradient,
    GlobalAveragePool2d,
    GlobalAveragePool2dGradient,
    Linear,
    LinearDataGradient,
    LinearWeightGradient,
    LRNGradient,
    MaxPool2d,
    MaxPool2dGradient,
)
from suites.operation_case import GAP, Case, Input, apart, chosen, weight, whole
from torch_reference import autograd, convolution, padded, pullback

X, SAMPLE, PLANE = (3, 4, 6, 7), (4, 6, 7), (6, 7)
NONE = ((0, 0), (0, 0))


def convolution_cases(note: str, weights: tuple[int, ...], y: tuple[int, ...], *window: Any) -> list[Case]:
    """A convolution and its two gradients, with (stride, pads, dilation, groups)."""
    form = convolution(*window)
    return [
        Case(
            Conv2d(*window),
            (Input(X), weight(*weights)),
            lambda x, w: oracle.convolution(x, w, (len(x), *y), *window),
            autograd(form),
            note,
        ),
        Case(
            Conv2dDataGradient(X, *window),
            (Input((X[0], *y)), weight(*weights)),
            lambda dy, w: oracle.convolution_data_gradient(dy, w, (len(dy), *SAMPLE), *window),
            autograd(lambda dy, w: pullback(lambda x: form(x, w.detach()), torch.zeros(X, dtype=dy.dtype), dy)),
            note,
            empty=Conv2dDataGradient((0, *SAMPLE), *window),
        ),
        Case(
            Conv2dWeightGradient(weights[2:], *window),
            (Input((X[0], *y)), Input(X)),
            lambda dy, x: oracle.convolution_weight_gradient(dy, x, weights, *window),
            autograd(lambda dy, x: pullback(lambda w: form(x.detach(), w), torch.zeros(weights, dtype=dy.dtype), dy)),
            note,
        ),
    ]


CONVOLUTIONS = [
    *convolution_cases("plain", (5, 4, 3, 2), (5, 4, 6), (1, 1), NONE, (1, 1), 1),
    *convolution_cases("strided", (5, 4, 2, 3), (5, 4, 2), (2, 3), ((1, 2), (0, 1)), (1, 1), 1),
    *convolution_cases("dilated-groups", (6, 2, 3, 4), (6, 5, 4), (1, 2), ((2, 1), (1, 2)), (2, 1), 2),
    *convolution_cases("untouched-rows", (6, 4, 2, 3), (6, 2, 5), (4, 1), NONE, (1, 1), 1),
    Case(
        Conv2d(),
        (Input((2, 90, 3, 4)), weight(1, 90, 1, 1)),
        lambda x, w: oracle.convolution(x, w, (len(x), 1, 3, 4), (1, 1), NONE, (1, 1), 1),
        autograd(functional.conv2d),
        "one-output",
    ),
]

LINEAR = [
    Case(
        Linear(),
        (Input((3, 4, 2, 5)), weight(7, 40)),
        oracle.linear,
        autograd(lambda x, w: functional.linear(x.flatten(1), w)),
    ),
    Case(Linear(), (Input((5, 3)), weight(4, 3)), oracle.linear, autograd(functional.linear), "flat"),
    Case(Linear(), (Input((5, 90)), weight(1, 90)), oracle.linear, autograd(functional.linear), "one-output"),
    Case(Linear(), (Input((1, 90)), weight(4, 90)), oracle.linear, autograd(functional.linear), "one-sample"),
    Case(
        LinearDataGradient((3, 4, 2, 5)),
        (Input((3, 7)), weight(7, 40)),
        lambda dy, w: oracle.linear_data_gradient(dy, w, (4, 2, 5)),
        autograd(lambda dy, w: (dy @ w).reshape(3, 4, 2, 5)),
        empty=LinearDataGradient((0, 4, 2, 5)),
    ),
    Case(
        LinearWeightGradient(),
        (Input((3, 7)), Input((3, 4, 2, 5))),
        oracle.linear_weight_gradient,
        autograd(lambda dy, x: dy.T @ x.flatten(1)),
    ),
]

BIAS = [
    Case(
        Bias(),
        (Input(X), weight(4)),
        lambda x, b: oracle.bias(x, b, 1),
        autograd(lambda x, b: x + b.reshape(4, 1, 1)),
    ),
    Case(Bias(-1), (Input((5, 4, 3)), weight(3)), lambda x, b: oracle.bias(x, b, 2), autograd(torch.add), "last"),
    Case(BiasGradient(), (Input(X),), lambda dy: oracle.bias_gradient(dy, 1), autograd(lambda dy: dy.sum((0, 2, 3)))),
    Case(
        BiasGradient(-1),
        (Input((5, 4, 3)),),
        lambda dy: oracle.bias_gradient(dy, 2),
        autograd(lambda dy: dy.sum((0, 1))),
        "last",
    ),
]


def multiples(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Multiples of `GAP`, which leave what is `apart` as far from 0 as it was."""
    return rng.integers(-4, 5, shape) * GAP


def positive_part(x: Any) -> Any:
    """x where it is above 0, else 0."""
    return each(lambda v: v if v > 0 else 0, x)


def selected(dy: Any, y: Any) -> Any:
    """dy where y is above 0, else 0."""
    return each(lambda d, v: d if v > 0 else 0, dy, y)


def selected_sums(dy: torch.Tensor, y: torch.Tensor, axes: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """PyTorch's gradient of a ReLU, and its sums."""
    dx = torch.ops.aten.threshold_backward(dy.detach(), y.detach(), 0)
    return dx, dx.sum(axes)


BIAS_RELU = [
    Case(
        BiasReLU(),
        (Input(X, apart), weight(4, draw=multiples)),
        lambda x, b: positive_part(oracle.bias(x, b, 1)),
        autograd(lambda x, b: torch.relu(x + b.reshape(4, 1, 1))),
        distance=GAP / 2,
    ),
    Case(
        BiasReLU(-1),
        (Input((5, 4, 3), apart), weight(3, draw=multiples)),
        lambda x, b: positive_part(oracle.bias(x, b, 2)),
        autograd(lambda x, b: torch.relu(x + b)),
        "last",
        distance=GAP / 2,
    ),
    Case(
        BiasReLUGradient(),
        (Input(X), Input(X, apart)),
        lambda dy, y: [selected(dy, y), oracle.bias_gradient(selected(dy, y), 1)],
        autograd(partial(selected_sums, axes=(0, 2, 3))),
    ),
    Case(
        BiasReLUGradient(-1),
        (Input((5, 4, 3)), Input((5, 4, 3), apart)),
        lambda dy, y: [selected(dy, y), oracle.bias_gradient(selected(dy, y), 2)],
        autograd(partial(selected_sums, axes=(0, 1))),
        "last",
    ),
]


def max_pool_case(note: str, kernel: Any, stride: Any, pads: Any, rounding: str) -> Case:
    """A maximum pool of elements that are well apart; PyTorch gets its padding beforehand if it is uneven."""
    even = tuple(begin for begin, _ in pads)

    def form(x: torch.Tensor) -> Any:
        return functional.max_pool2d(x, kernel, stride, even, ceil_mode=rounding == "ceil", return_indices=True)

    return Case(
        MaxPool2d(kernel, stride, pads, rounding),
        (Input(X, apart),),
        lambda x: oracle.max_pool_arrays(x, kernel, stride, pads, rounding),
        autograd(form) if pads == tuple((p, p) for p in even) else None,
        note,
        distance=GAP / 2,
    )


def scattered(dy: Any, index: Any) -> Any:
    """Each gradient where its window's winner is, in PyTorch."""
    return dy.new_zeros(3, 4, 42).scatter_add(2, index.flatten(2), dy.flatten(2)).reshape(X)


MAX_POOLS = [
    max_pool_case("apart", (2, 3), (2, 3), NONE, "floor"),
    max_pool_case("overlapping", (3, 2), (2, 1), ((1, 1), (1, 1)), "ceil"),
    max_pool_case("uneven", (3, 4), (2, 3), ((2, 0), (1, 3)), "ceil"),
    Case(
        MaxPool2dGradient(X),
        (Input((3, 4, 5, 8)), chosen((3, 4, 5, 8), whole(42))),
        lambda dy, index: oracle.max_pool_gradient(dy, index, PLANE),
        autograd(scattered),
        empty=MaxPool2dGradient((0, *SAMPLE)),
    ),
    Case(
        MaxPool2dGradient(X, PLANE),
        (Input((3, 4, 1, 1)), chosen((3, 4, 1, 1), whole(42))),
        lambda dy, index: oracle.max_pool_gradient(dy, index, PLANE),
        autograd(scattered),
        note="one window",
        empty=MaxPool2dGradient((0, *SAMPLE), PLANE),
    ),
]


def average_pool_cases(note: str, *window: Any, certified: bool = False, x: tuple[int, ...] = X) -> list[Case]:
    """An average pool and its gradient, with (kernel, stride, pads, rounding, count).

    Uneven padding is given to PyTorch beforehand, where padding counts.
    """
    kernel, stride, pads, rounding, count = window
    even = tuple(begin for begin, _ in pads)
    symmetric = pads == tuple((p, p) for p in even)

    def form(x: torch.Tensor) -> Any:
        given, pad = (x, even) if symmetric else (padded(x, pads), 0)
        ceil, inside = rounding == "ceil", count == "padded"
        return functional.avg_pool2d(given, kernel, stride, pad, ceil_mode=ceil, count_include_pad=inside)

    pools = symmetric or count == "padded"
    return [
        Case(
            AveragePool2d(*window),
            (Input(x),),
            lambda x: oracle.average_pool(x, *window),
            autograd(form) if pools else None,
            note,
            certified=certified,
        ),
        Case(
            AveragePool2dGradient(x, *window),
            (Input(oracle.pooled(x, *window[:4])),),
            lambda dy: oracle.average_pool_gradient(dy, x[1:], *window),
            autograd(lambda dy: pullback(form, torch.zeros(x, dtype=dy.dtype), dy)) if pools else None,
            note,
            empty=AveragePool2dGradient((0, *x[1:]), *window),
            certified=certified,
        ),
    ]


AVERAGE_POOLS = [
    *average_pool_cases("full", (2, 4), (1, 1), ((1, 1), (0, 1)), "floor", "padded", certified=True),
    *average_pool_cases("overhang", (3, 4), (4, 2), ((0, 0), (2, 2)), "ceil", "padded"),
    *average_pool_cases("cut", (4, 2), (3, 1), ((0, 0), (1, 1)), "ceil", "valid"),
    *average_pool_cases("uneven", (2, 4), (1, 2), ((0, 1), (2, 0)), "floor", "valid", certified=True, x=(2, 5, 6, 7)),
    Case(
        GlobalAveragePool2d(),
        (Input((3, 2, 4, 8)),),
        oracle.global_average,
        autograd(lambda x: functional.adaptive_avg_pool2d(x, 1)),
    ),
    Case(
        GlobalAveragePool2d(),
        (Input(X),),
        oracle.global_average,
        autograd(lambda x: functional.adaptive_avg_pool2d(x, 1)),
        "any",
        certified=False,
    ),
    Case(
        GlobalAveragePool2dGradient((3, 2, 4, 8)),
        (Input((3, 2, 1, 1)),),
        lambda dy: oracle.global_average_gradient(dy, (4, 8)),
        autograd(lambda dy: dy.expand(3, 2, 4, 8) / 32),
        empty=GlobalAveragePool2dGradient((0, 2, 4, 8)),
    ),
    Case(
        GlobalAveragePool2dGradient(X),
        (Input((3, 4, 1, 1)),),
        lambda dy: oracle.global_average_gradient(dy, PLANE),
        autograd(lambda dy: dy.expand(X) / 42),
        "any",
        empty=GlobalAveragePool2dGradient((0, *SAMPLE)),
        certified=False,
    ),
]


def lrn_cases(note: str, shape: tuple[int, ...], *factors: Any) -> list[Case]:
    """LRN with (n, alpha, beta, k), and its gradient."""

    def form(x: torch.Tensor) -> Any:
        return functional.local_response_norm(x, *factors)

    return [
        Case(LRN(*factors), (Input(shape),), lambda x: oracle.lrn(x, *factors), autograd(form), note),
        Case(
            LRNGradient(*factors),
            (Input(shape), Input(shape)),
            lambda dy, x: oracle.lrn_gradient(dy, x, *factors)[0],
            autograd(lambda dy, x: pullback(form, x, dy)),
            note,
        ),
    ]


LRNS = [
    *lrn_cases("three", (3, 6, 4, 2), 3, 0.5, 0.75, 2.0),
    *lrn_cases("wider-than-the-channels", (5, 4, 2, 3), 9, 1.5, 0.5, 1.0),
]

CASES = [*CONVOLUTIONS, *LINEAR, *BIAS, *BIAS_RELU, *MAX_POOLS, *AVERAGE_POOLS, *LRNS]
