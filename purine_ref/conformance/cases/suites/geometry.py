"""Forms of what knows height and width, channels and weights: convolution, inner product, bias, pools, LRN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from purine_ref.conformance.cases.suites.drawing import apart, given, links, whole
from purine_ref.conformance.cases.suites.forms import Form, In, chosen
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
from purine_ref.tensor import Tensor

Forms = dict[str, Sequence[Form]]
SAMPLE = (4, 6, 7)
"""Channels, height and width of an image; the batch has 3."""


def _inferred(operation: Any, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an operation's first output."""
    shape: tuple[int, ...] = operation.infer([Tensor(shape) for shape in shapes])[0].shape
    return shape


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "a plain kernel": ((5, 4, 3, 2), {}),
    "strides and pads, all different": ((5, 4, 2, 3), {"stride": (2, 3), "pads": ((1, 2), (0, 1))}),
    "groups, and dilation on one axis": ((6, 2, 3, 2), {"groups": 2, "dilation": (2, 1), "pads": ((0, 1), (2, 0))}),
    "rows that no window touches": ((6, 4, 2, 3), {"stride": (4, 2)}),
    "one channel for each of two outputs (depthwise), dilated": ((8, 1, 2, 2), {"groups": 4, "dilation": (1, 3)}),
    "a kernel as large as the padded image": ((3, 4, 7, 7), {"pads": ((1, 0), (0, 0))}),
    "a kernel of one element, strided": ((7, 4, 1, 1), {"stride": (1, 2)}),
}
"""Weights, and attributes."""


def _convolutions() -> Forms:
    forms: dict[str, list[Form]] = {"Conv2d": [], "Conv2dDataGradient": [], "Conv2dWeightGradient": []}
    for note, (weight, window) in CONVOLUTIONS.items():
        for kind, built in _three(weight, window).items():
            special = (0,) if note == "a plain kernel" else ()  # where padding meets infinity, 0 * inf is arguable
            forms[kind].append(Form(note, built, special=special))
    return dict(forms)


def _three(weight: tuple[int, ...], window: dict[str, Any]) -> dict[str, Any]:
    """How a convolution and its two gradients are built."""
    kernel = (weight[2], weight[3])

    def size(n: int) -> tuple[int, ...]:
        """The shape of y."""
        return _inferred(Conv2d(**window), (n, *SAMPLE), weight)

    weights = In(weight, exact=links)
    return {
        "Conv2d": lambda n: (Conv2d(**window), [In((n, *SAMPLE)), weights]),
        "Conv2dDataGradient": lambda n: (Conv2dDataGradient((n, *SAMPLE), **window), [In(size(n)), weights]),
        "Conv2dWeightGradient": lambda n: (Conv2dWeightGradient(kernel, **window), [In(size(n)), In((n, *SAMPLE))]),
    }


LINEARS: Forms = {
    "Linear": [
        Form("images, flattened", lambda n: (Linear(), [In((n, 4, 2, 5)), In((7, 40), exact=links)]), special=(0,)),
        Form("rows", lambda n: (Linear(), [In((n, 3)), In((4, 3))]), samples=5, special=(0,)),
        Form("one output of many inputs", lambda n: (Linear(), [In((n, 150)), In((1, 150), exact=links)])),
        Form("one input", lambda n: (Linear(), [In((n, 1)), In((6, 1))]), samples=2),
    ],
    "LinearDataGradient": [
        Form("to images", lambda n: (LinearDataGradient((n, 4, 2, 5)), [In((n, 7)), In((7, 40), exact=links)])),
        Form("to rows", lambda n: (LinearDataGradient((n, 3)), [In((n, 4)), In((4, 3))]), samples=5, special=(0,)),
        Form("from many outputs", lambda n: (LinearDataGradient((n, 2)), [In((n, 150)), In((150, 2), exact=links)])),
    ],
    "LinearWeightGradient": [
        Form("of images", lambda n: (LinearWeightGradient(), [In((n, 7)), In((n, 4, 2, 5))])),
        Form("of rows", lambda n: (LinearWeightGradient(), [In((n, 4)), In((n, 3))]), samples=5, special=(0,)),
        Form("of many samples", lambda n: (LinearWeightGradient(), [In((n, 2)), In((n, 3))]), samples=120),
    ],
}

BIASES: Forms = {
    "Bias": [
        Form("channels of images", lambda n: (Bias(), [In((n, *SAMPLE)), In((4,))]), special=(0, 1)),
        Form("the last axis", lambda n: (Bias(-1), [In((n, 4, 3)), In((3,))]), samples=5),
        Form("axes of one length", lambda n: (Bias(1), [In((n, 4, 4)), In((4,))]), samples=4),
    ],
    "BiasReLU": [
        Form("channels of images", lambda n: (BiasReLU(), [In((n, *SAMPLE)), In((4,))]), special=(0, 1)),
        Form("the last axis", lambda n: (BiasReLU(-1), [In((n, 4, 3)), In((3,))]), samples=5),
        Form("axes of one length", lambda n: (BiasReLU(1), [In((n, 4, 4)), In((4,))]), samples=4),
    ],
    "BiasReLUGradient": [
        Form("channels of images", lambda n: (BiasReLUGradient(), [In((n, *SAMPLE)), In((n, *SAMPLE))])),
        Form("the last axis", lambda n: (BiasReLUGradient(-1), [In((n, 4, 3)), In((n, 4, 3))]), samples=5),
        Form("axes of one length", lambda n: (BiasReLUGradient(1), [In((n, 4, 4)), In((n, 4, 4))]), samples=4),
    ],
    "BiasGradient": [
        Form("channels of images", lambda n: (BiasGradient(), [In((n, *SAMPLE))]), special=(0,)),
        Form("the last axis", lambda n: (BiasGradient(-1), [In((n, 4, 3))]), samples=5),
        Form("many elements of 0.1", lambda n: (BiasGradient(), [In((n, 2, 50, 40), given(0.1))]), samples=2),
    ],
}

POOLS: dict[str, tuple[Any, ...]] = {
    "windows side by side, cut at the end": ((2, 3), (2, 3), 0, "floor"),
    "overlapping windows, padded": ((3, 2), (2, 1), ((1, 1), (1, 1)), "ceil"),
    "uneven pads, and overhang": ((3, 4), (2, 3), ((2, 0), (1, 3)), "ceil"),
    "strides larger than the kernel": ((1, 2), (2, 4), 0, "ceil"),
    "one window for the whole image": ((6, 7), (1, 1), 0, "floor"),
}
"""Kernel, stride, pads and rounding."""


def _max_pools() -> Forms:
    forms = [
        Form(note, lambda n, w=window: (MaxPool2d(*w), [In((n, *SAMPLE), apart)]), special=(0,))  # type: ignore[misc]
        for note, window in POOLS.items()
    ]
    ties = MaxPool2d((2, 3), (1, 2), ((1, 0), (0, 2)), "ceil")
    forms.append(Form("nothing but ties", lambda n: (ties, [In((n, 2, 4, 5), given(-1.0))]), only=True))
    lowest = given(float("-inf"), float("nan"), float("-inf"), float("-inf"), -3.0)
    forms.append(Form("-inf alone, and NaN", lambda n: (ties, [In((n, 2, 4, 5), lowest)]), only=True))
    gradients = [
        Form(
            "places drawn, many of them twice",
            lambda n: (MaxPool2dGradient((n, *SAMPLE)), [In((n, 4, 5, 8)), chosen((n, 4, 5, 8), whole(42))]),
        ),
        Form(
            "all to one place",
            lambda n: (MaxPool2dGradient((n, 2, 3, 3)), [In((n, 2, 2, 4)), chosen((n, 2, 2, 4), whole(1))]),
            special=(0,),
        ),
        Form(
            "windows of one element",
            lambda n: (MaxPool2dGradient((n, 3, 5, 4)), [In((n, 3, 2, 3)), chosen((n, 3, 2, 3), whole(20))]),
        ),
        Form(
            "windows that are said, one for the whole image",
            lambda n: (MaxPool2dGradient((n, 3, 5, 4), (5, 4)), [In((n, 3, 1, 1)), chosen((n, 3, 1, 1), whole(20))]),
        ),
    ]
    return {"MaxPool2d": forms, "MaxPool2dGradient": gradients}


def _average_pools() -> Forms:
    forms: dict[str, list[Form]] = {"AveragePool2d": [], "AveragePool2dGradient": []}
    for number, (note, window) in enumerate(POOLS.items()):
        count = ("padded", "valid")[number % 2]
        forms["AveragePool2d"].append(_average(f"{note}; counts {count}", *window, count))
        forms["AveragePool2dGradient"].append(_average_gradient(f"{note}; counts {count}", *window, count))
    overhang = ((3, 4), (4, 2), ((0, 0), (2, 2)), "ceil", "padded")
    forms["AveragePool2d"].append(_average("overhang, which never counts", *overhang))
    forms["AveragePool2dGradient"].append(_average_gradient("overhang, which never counts", *overhang))
    even = ((2, 2), (2, 1), 0, "floor", "valid")
    forms["AveragePool2d"].append(_average("windows of four elements", *even))
    forms["AveragePool2dGradient"].append(_average_gradient("windows of four elements", *even))
    return dict(forms)


def _average(note: str, *window: Any) -> Form:
    return Form(note, lambda n: (AveragePool2d(*window), [In((n, *SAMPLE))]), special=(0,))


def _average_gradient(note: str, *window: Any) -> Form:
    def size(n: int) -> tuple[int, ...]:
        """The shape of y."""
        return _inferred(AveragePool2d(*window), (n, *SAMPLE))

    return Form(note, lambda n: (AveragePool2dGradient((n, *SAMPLE), *window), [In(size(n))]), special=(0,))


GLOBALS: Forms = {
    "GlobalAveragePool2d": [
        Form("a plane of 42", lambda n: (GlobalAveragePool2d(), [In((n, *SAMPLE))]), special=(0,)),
        Form("a plane of 32", lambda n: (GlobalAveragePool2d(), [In((n, 2, 4, 8))])),
        Form("a plane of 1", lambda n: (GlobalAveragePool2d(), [In((n, 5, 1, 1))])),
    ],
    "GlobalAveragePool2dGradient": [
        Form("a plane of 42", lambda n: (GlobalAveragePool2dGradient((n, *SAMPLE)), [In((n, 4, 1, 1))]), special=(0,)),
        Form("a plane of 32", lambda n: (GlobalAveragePool2dGradient((n, 2, 4, 8)), [In((n, 2, 1, 1))])),
        Form("a plane of 1", lambda n: (GlobalAveragePool2dGradient((n, 5, 1, 1)), [In((n, 5, 1, 1))])),
    ],
}

LRNS: dict[str, tuple[int, tuple[Any, ...]]] = {
    "three of six channels": (6, (3, 0.5, 0.75, 2.0)),
    "a window wider than the channels": (4, (9, 1.5, 0.5, 1.0)),
    "one channel at a time": (3, (1, 0.3, 1.0, 0.5)),
    "AlexNet's numbers": (7, (5, 1e-4, 0.75, 1.0)),
}
"""Channels, and (n, alpha, beta, k)."""


def _lrns() -> Forms:
    forms: dict[str, list[Form]] = {"LRN": [], "LRNGradient": []}
    for note, (channels, factors) in LRNS.items():
        forms["LRN"].append(_lrn(note, channels, *factors))
        forms["LRNGradient"].append(_lrn_gradient(note, channels, *factors))
    return dict(forms)


def _lrn(note: str, channels: int, *factors: Any) -> Form:
    return Form(note, lambda n: (LRN(*factors), [In((n, channels, 4, 2))]), special=(0,))


def _lrn_gradient(note: str, channels: int, *factors: Any) -> Form:
    return Form(note, lambda n: (LRNGradient(*factors), [In((n, channels, 4, 2)), In((n, channels, 4, 2))]))


FORMS: Forms = {
    **_convolutions(),
    **LINEARS,
    **BIASES,
    **_max_pools(),
    **_average_pools(),
    **GLOBALS,
    **_lrns(),
}
