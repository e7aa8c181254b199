"""Forms of what works element by element or along an axis: activations, softmax, losses, sums, dropout, updates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from purine_ref.conformance.cases.suites.drawing import (
    Draw,
    apart,
    factor,
    given,
    labels,
    mask,
    positive,
    real,
    share,
    whole,
)
from purine_ref.conformance.cases.suites.forms import Form, In, chosen
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

Forms = dict[str, Sequence[Form]]
X = (4, 3)
"""What follows the batch of 5."""

ZEROS = given(0.0, -0.0, 1e-30, -1e-30, 3.0, -3.0)
LARGE = given(100.0, -100.0, 700.0, -700.0, 0.5, -745.0, 30.0, 1e-9)
CLOSE = given(1000.0, 1000.0, 999.0, -1000.0)


def _unary(operation: Any, *notes: tuple[str, Draw]) -> list[Form]:
    """An operation on one tensor: drawn, of many axes, of none, and of certain values."""
    forms = [
        Form("three axes", lambda n: (operation, [In((n, *X))]), samples=5, special=(0,)),
        Form("images", lambda n: (operation, [In((n, 2, 3, 4))])),
        Form("one axis", lambda n: (operation, [In((n,))]), samples=7),
    ]
    for note, draw in notes:
        forms.append(_only(note, operation, In((5, 2, 4), draw)))
    return forms


def _only(note: str, operation: Any, *inputs: In) -> Form:
    """A form about certain values."""
    return Form(note, lambda n: (operation, list(inputs)), empty=False, only=True)


def _of_two(
    operation: Any, draw: Draw, exact: Draw, note: str, values: Draw, special: tuple[int, ...] = (0,)
) -> list[Form]:
    """A gradient by dy and y, with y drawn in its range."""

    def built(*shape: int) -> tuple[Any, list[In]]:
        """The operation and its inputs."""
        return operation, [In(shape), In(shape, draw, exact)]

    return [
        Form("three axes", lambda n: built(n, *X), samples=5, special=special),
        Form("images", lambda n: built(n, 2, 3, 4)),
        Form("one axis", lambda n: built(n), samples=7),
        _only(note, operation, In((5, 2, 4)), In((5, 2, 4), values)),
    ]


ACTIVATIONS: Forms = {
    "ReLU": _unary(ReLU(), ("zeros of both signs, and small numbers", ZEROS)),
    "ReLUGradient": _of_two(ReLUGradient(), real, real, "zeros of both signs, where it is 0", ZEROS, (0, 1)),
    "Sigmoid": _unary(Sigmoid(), ("large arguments", LARGE), ("around zero", ZEROS)),
    "SigmoidGradient": _of_two(SigmoidGradient(), share, share, "ends", given(0.0, 1.0, 0.5, 1e-30)),
    "Tanh": _unary(Tanh(), ("large arguments", LARGE), ("around zero", ZEROS)),
    "TanhGradient": _of_two(TanhGradient(), real, share, "ends", given(0.0, 1.0, -1.0, -0.5, 1e-30)),
}


def _rows(operation: Any, gradient: bool) -> list[Form]:
    """An operation along axes of several lengths."""
    own = [(share, share)] if gradient else []

    def form(note: str, axis: int, *shape: int, special: tuple[int, ...] = ()) -> Form:
        """One form."""
        def built(n: int) -> tuple[Any, list[In]]:
            """The operation and its inputs."""
            return operation(axis), [In((n, *shape)), *(In((n, *shape), *draws) for draws in own)]

        return Form(note, built, samples=5, special=special)

    forms = [
        form("the middle axis", 1, 4, 3, special=() if gradient else (0,)),
        form("the last axis", -1, 4, 3),
        form("forty classes", -1, 40),
        form("one class", 1, 1),
    ]
    if not gradient:
        forms.append(_only("equal and far elements", operation(1), In((3, 4, 2), CLOSE)))
        forms.append(_only("-inf beside others", operation(-1), In((2, 5), given(-math.inf, 1.0, 2.0, 0.0))))
    return forms


SOFTMAXES: Forms = {
    "Softmax": _rows(Softmax, False),
    "SoftmaxGradient": _rows(SoftmaxGradient, True),
    "LogSoftmax": _rows(LogSoftmax, False),
    "LogSoftmaxGradient": _rows(LogSoftmaxGradient, True),
}


def _cross_entropies() -> Forms:
    forms: dict[str, list[Form]] = {"SoftmaxCrossEntropy": [], "SoftmaxCrossEntropyGradient": []}
    for note, shape, options, draw in (
        ("the mean of rows", (12,), {"reduction": "mean"}, whole(12)),
        ("the sum of pixels", (4, 3, 2), {"reduction": "sum"}, whole(4)),
        ("the mean of pixels that are not ignored", (4, 3, 2), {"reduction": "mean", "ignore": 2}, whole(4)),
        ("all ignored", (3,), {"reduction": "mean", "ignore": 1}, labels(1)),
        ("an ignored label that is no class", (3,), {"reduction": "sum", "ignore": -1}, labels(0, -1, 2)),
        ("one class", (1,), {"reduction": "sum"}, labels(0)),
    ):
        for kind, built in _loss_and_gradient(shape, options, draw).items():
            special = (0,) if kind == "SoftmaxCrossEntropy" else (1,)
            forms[kind].append(Form(note, built, samples=5, special=special))
    far = In((4, 3), given(500.0, -500.0, 0.0, 1e4, 0.0, -1e4, 3.0, 3.0, 3.0, 0.0, 1.0, 88.0))
    truth = chosen((4,), labels(0, 2, 1, 2))
    forms["SoftmaxCrossEntropy"].append(_only("logits far apart, and equal", SoftmaxCrossEntropy(), far, truth))
    return dict(forms)


def _loss_and_gradient(shape: tuple[int, ...], options: Any, draw: Draw) -> dict[str, Any]:
    def inputs(n: int) -> list[In]:
        """Logits and labels."""
        return [In((n, *shape)), chosen((n, *shape[1:]), draw)]

    return {
        "SoftmaxCrossEntropy": lambda n: (SoftmaxCrossEntropy(**options), inputs(n)),
        "SoftmaxCrossEntropyGradient": lambda n: (
            SoftmaxCrossEntropyGradient(**options),
            [In((), positive, factor), *inputs(n)],
        ),
    }


def _squared_errors() -> Forms:
    forms: dict[str, list[Form]] = {"SquaredError": [], "SquaredErrorGradient": []}
    for note, samples, shape, reduction, sign in (
        ("the mean of eight", 8, (3, 2), "mean", 1),
        ("the mean of five", 5, X, "mean", -1),
        ("the sum", 5, X, "sum", 1),
        ("the sum of scalars", 6, (), "sum", -1),
        ("the mean of images", 4, (2, 3, 5), "mean", 1),
    ):
        loss, gradient = _squared(shape, reduction, sign)
        special = (0,) if reduction == "sum" else ()
        forms["SquaredError"].append(Form(note, loss, samples=samples, special=special))
        forms["SquaredErrorGradient"].append(Form(note, gradient, samples=samples))
    return dict(forms)


def _squared(shape: tuple[int, ...], reduction: str, sign: int) -> tuple[Any, Any]:
    def pair(n: int) -> list[In]:
        """x and target."""
        return [In((n, *shape)), In((n, *shape))]

    return (
        lambda n: (SquaredError(reduction=reduction), pair(n)),
        lambda n: (SquaredErrorGradient(reduction=reduction, sign=sign), [In((), positive, factor), *pair(n)]),
    )


def _top(note: str, k: int, samples: int, classes: int, **options: Any) -> Form:
    return Form(
        note,
        lambda n: (TopKAccuracy(k=k), [In((n, classes), apart), chosen((n,), whole(classes))]),
        samples=samples,
        **options,
    )


METRICS: Forms = {
    "TopKAccuracy": [
        _top("the best of five", 1, 8, 5),
        _top("the best two of five", 2, 7, 5),
        _top("the best three of four", 3, 9, 4),
        _only("ties", TopKAccuracy(k=2), In((4, 3), given(1.0, 1.0, 1.0)), chosen((4,), labels(0, 1, 2, 2))),
    ]
}

DROPOUTS: Forms = {
    "Dropout": [
        *(
            Form(note, lambda n, o=operation: (o, [In((n, *X)), chosen((n, *X), mask)]), samples=5, special=(0,))  # type: ignore[misc]
            for note, operation in (
                ("half of them, scaled in training", Dropout(0.5, "train")),
                ("a fifth of them, scaled in training", Dropout(0.2, "train")),
                ("scaled in testing: the mask alone", Dropout(0.3, "test")),
                ("none dropped", Dropout(0.0, "train")),
            )
        ),
        Form("testing, scaled", lambda n: (Dropout(0.75, "test", train=False), [In((n, *X))]), special=(0,)),
        Form("testing, not scaled", lambda n: (Dropout(0.3, train=False), [In((n, *X))]), special=(0,)),
    ]
}


def _sums(note: str, operation: Any, count: int, *shape: int, special: bool = True) -> Form:
    """A sum of `count` tensors."""
    places = tuple(range(count)) if special else ()
    return Form(note, lambda n: (operation, [In((n, *shape))] * count), samples=5, special=places)


def _one(note: str, operation: Any, *shape: int, samples: int = 5) -> Form:
    return Form(note, lambda n: (operation, [In((n, *shape))]), samples=samples, special=(0,))


def _broadcast(note: str, shape: tuple[int, ...], over: tuple[int, ...], by: float, of: tuple[int, ...]) -> Form:
    return Form(note, lambda n: (BroadcastTo((n, *shape), over, by), [In((n, *of))]), special=(0,))


SUMS: Forms = {
    "Sum": [
        _sums("of three", Sum(), 3, 4, 3),
        _sums("of one", Sum(), 1, 2, 3, 4),
        _sums("of seven", Sum(), 7, 2),
        _only("order", Sum(), *(In((3,), given(v)) for v in (2.0**24, 1.0, 1.0, -(2.0**24)))),
    ],
    "Mean": [_sums("of two", Mean(), 2, 4, 3), _sums("of three", Mean(), 3, 2), _sums("of four", Mean(), 4, 2, 3, 4)],
    "Mul": [_sums("three axes", Mul(), 2, 4, 3), _sums("images", Mul(), 2, 2, 3, 4), _sums("rows", Mul(), 2, 2)],
    "WeightedSum": [
        _sums("by powers of two and zero", WeightedSum((0.5, -2.0, 0.0)), 3, 4, 3, special=False),
        _sums("by rounded weights", WeightedSum((0.3, -0.7)), 2, 4, 3),
        _sums("by shares of 7 samples", WeightedSum((3 / 7, 4 / 7)), 2, 2, 3, 4),
        _sums("of one", WeightedSum((1.5,)), 1, 6),
    ],
    "Scale": [
        _one("by a power of two", Scale(-0.25), 4, 3),
        _one("by a rounded number", Scale(0.3), 2, 3, 4),
        _one("by a large number", Scale(12345.678), 3),
    ],
    "ReduceSum": [
        _one("over all", ReduceSum(), 4, 3),
        _one("over the first and the last axis", ReduceSum((-1, 0)), 4, 3),
        _one("over the middle axis", ReduceSum((1,)), 40, 2),
        _only("many elements of 0.1", ReduceSum(), In((25, 40), given(0.1))),
    ],
    "ReduceMean": [
        _one("over all", ReduceMean(), 8, 2, samples=4),
        _one("over the middle axis", ReduceMean((1,)), 4, 3),
        _one("over fifteen elements", ReduceMean((0, 2)), 4, 3),
        _one("by a count of its own", ReduceMean((0,), count=7), 4, 3),
    ],
    "BroadcastTo": [
        _broadcast("along the middle axis, halved", (4, 3), (1,), -0.5, (3,)),
        _broadcast("along the last two axes", (2, 3, 4), (-1, -2), 1.0, (2,)),
        Form("from one number", lambda n: (BroadcastTo((n, 4), (0, 1), 0.3), [In(())])),
        Form("along the first and the last", lambda n: (BroadcastTo((n, 4, 3), (-1, 0), 0.3), [In((4,))])),
    ],
}


def _update(note: str, operation: Any, *shape: int, history: Draw = real, exact: bool = True) -> Form:
    inputs = [In(shape), In(shape), In(shape, history, factor), In((), positive, factor)]
    return Form(note, lambda n: (operation, inputs), empty=False, special=(1,), exact=exact)


def _updates(kind: Any) -> list[Form]:
    return [
        _update("powers of two", kind(0.5, 0.25, 2.0), *X),
        _update("the usual numbers", kind(0.9, 0.0005, 1.0), 3, 2, 2, 3),
        _update("no momentum", kind(0.0, 0.1, 1.0), 7),
        _update("a multiplier, no decay", kind(0.9, 0.0, 2.0), 2, 5),
        _update("no elements", kind(0.9, 0.1, 1.0), 0, 3),
        _update("multiplier 0: nothing learned", kind(0.5, 0.5, 0.0), 4),
    ]


UPDATES: Forms = {
    "SGD": _updates(SGD),
    "TorchSGD": _updates(TorchSGD),
    "AdaGrad": [
        _update("a decay and a multiplier", AdaGrad(1e-3, 0.1, 2.0), *X, history=positive),
        _update("the usual numbers", AdaGrad(1e-8, 0.0, 1.0), 3, 2, 2, 3, history=positive),
        _update("one axis", AdaGrad(1e-5, 0.01, 1.0), 7, history=positive),
        _update("no elements", AdaGrad(1e-5, 0.01, 1.0), 0, 3, history=positive),
        _only("the first step, from nothing", AdaGrad(1e-3), In((4,)), In((4,)), In((4,), given(0.0)),
              In((), positive)),
    ],
}  # fmt: skip

FORMS: Forms = {
    **ACTIVATIONS,
    **SOFTMAXES,
    **_cross_entropies(),
    **_squared_errors(),
    **METRICS,
    **DROPOUTS,
    **SUMS,
    **UPDATES,
}
