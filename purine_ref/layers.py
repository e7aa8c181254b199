"""Layers: composite graphs. Each function adds a few operators and parameters to the graph of its input, and returns
the output blob.

Everything a layer makes is named `<name>/...`: its parameters `<name>/weight` and `<name>/bias`, its outputs after
what made them (`<name>/conv`, `<name>/bias_added`, `<name>/relu`). Inputs are blobs of shape (N, ...); a layer has the
dtype and the place of its input. Each raises what `graph.connect` raises: ShapeError for shapes that do not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from purine_ref.errors import GraphError, ShapeError
from purine_ref.graph import Blob
from purine_ref.operation import Operation
from purine_ref.ops import (
    LRN,
    AveragePool2d,
    Bernoulli,
    Bias,
    Concat,
    Constant,
    Conv2d,
    Dropout,
    Gaussian,
    GlobalAveragePool2d,
    Linear,
    MaxPool2d,
    ReLU,
    Reshape,
    Sigmoid,
    Softmax,
    SoftmaxCrossEntropy,
    SquaredError,
    Tanh,
    TopKAccuracy,
)

ACTIVATIONS: dict[str, Callable[[], Operation]] = {"relu": ReLU, "sigmoid": Sigmoid, "tanh": Tanh}
"""The element-wise functions by name."""


def conv(
    x: Blob,
    channels: int,
    *,
    kernel: int | tuple[int, int],
    stride: int | tuple[int, int] = 1,
    pad: int | tuple[int, int] = 0,
    groups: int = 1,
    activation: str | None = None,
    std: float | None = None,
    bias: float = 0.0,
    rate: float = 1.0,
    name: str,
) -> Blob:
    """{ x (N,C,H,W) } >> Conv2d >> Bias >> activation >> { y (N,channels,oh,ow) }.

    Weights (channels, C/groups, kh, kw) start Gaussian with deviation `std`, by default sqrt(2 / fan-in); the bias
    starts at `bias`. `rate` multiplies the learning rate; the bias moves twice as fast and does not decay (Purine).
    """
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    operation = Conv2d(stride=stride, pads=pad, groups=groups)
    if len(x.shape) != 4 or x.shape[1] % groups:
        expected = f"an input (N, C, H, W) with C a multiple of the {groups} groups"
        raise ShapeError(f"layer {name!r}: expected {expected}, got {x.name!r} {x.tensor}")
    shape = (channels, x.shape[1] // groups, height, width)
    return _affine(x, operation, "conv", shape, activation, std, bias, rate, name)


def linear(
    x: Blob,
    features: int,
    *,
    activation: str | None = None,
    std: float | None = None,
    bias: float = 0.0,
    rate: float = 1.0,
    name: str,
) -> Blob:
    """{ x (N, ...) } >> Linear >> Bias >> activation >> { y (N,features) }; x is flattened. Keywords as in `conv`."""
    shape = (features, math.prod(x.shape[1:]))
    return _affine(x, Linear(), "linear", shape, activation, std, bias, rate, name)


def _affine(
    x: Blob,
    operation: Operation,
    kind: str,
    shape: tuple[int, ...],
    activation_name: str | None,
    std: float | None,
    bias: float,
    rate: float,
    name: str,
) -> Blob:
    if not x.tensor.is_float:
        raise ShapeError(f"layer {name!r}: expected an input of float32 or float64, got {x.name!r} {x.tensor}")
    graph = x.graph
    fan_in = math.prod(shape[1:])
    with graph.scope(name):
        initial = Gaussian(shape, x.dtype, std=math.sqrt(2 / max(fan_in, 1)) if std is None else std)
        weight = graph.parameter("weight", shape, x.dtype, initial, rate=rate, location=x.location)
        start = Constant(bias, shape[:1], x.dtype)
        shift = graph.parameter("bias", shape[:1], x.dtype, start, rate=2 * rate, decay=0.0, location=x.location)
        (product,) = graph.apply(operation, [x, weight], kind)
        (y,) = graph.apply(Bias(), [product, shift], "bias_added")
    return y if activation_name is None else activation(y, activation_name, name=name)


def activation(x: Blob, kind: str, *, in_place: bool = False, name: str) -> Blob:
    """{ x } >> ReLU, Sigmoid or Tanh >> { y }; in place, y takes over the memory of x (rule R5).

    Raises GraphError for another kind.
    """
    if kind not in ACTIVATIONS:
        raise GraphError(f"activation of {name!r} must be one of {', '.join(ACTIVATIONS)}, got {kind!r}")
    graph = x.graph
    with graph.scope(name):
        if not in_place:
            return graph.apply(ACTIVATIONS[kind](), [x], kind)[0]
        y = graph.view(x, kind)
        graph.connect([x], ACTIVATIONS[kind](), [y], name=kind)
        return y


def max_pool(
    x: Blob, *, kernel: int, stride: int | None = None, pad: int = 0, rounding: str = "ceil", name: str
) -> Blob:
    """{ x (N,C,H,W) } >> MaxPool2d >> { y, index }."""
    return x.graph.apply(MaxPool2d(kernel, stride, pad, rounding), [x], name)[0]


def average_pool(
    x: Blob,
    *,
    kernel: int,
    stride: int | None = None,
    pad: int = 0,
    rounding: str = "ceil",
    count: str = "padded",
    name: str,
) -> Blob:
    """{ x (N,C,H,W) } >> AveragePool2d >> { y }."""
    return x.graph.apply(AveragePool2d(kernel, stride, pad, rounding, count), [x], name)[0]


def global_average_pool(x: Blob, *, name: str) -> Blob:
    """{ x (N,C,H,W) } >> GlobalAveragePool2d >> { y (N,C,1,1) }."""
    return x.graph.apply(GlobalAveragePool2d(), [x], name)[0]


def lrn(x: Blob, *, n: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0, name: str) -> Blob:
    """{ x (N,C,H,W) } >> LRN >> { y }, across channels."""
    return x.graph.apply(LRN(n, alpha, beta, k), [x], name)[0]


def dropout(x: Blob, *, ratio: float = 0.5, scale: str = "train", train: bool = True, name: str) -> Blob:
    """{ x, mask } >> Dropout >> { y } in training, with a mask by Bernoulli; { x } >> Dropout >> { y } in testing."""
    graph = x.graph
    operation = Dropout(ratio, scale, train)
    with graph.scope(name):
        if not train:
            return graph.apply(operation, [x], "dropout")[0]
        (mask,) = graph.apply(Bernoulli(x.shape, x.dtype, keep=1 - ratio), [], "mask", location=x.location)
        return graph.apply(operation, [x, mask], "dropout")[0]


def concat(parts: Sequence[Blob], *, axis: int = 1, name: str) -> Blob:
    """{ x1, ..., xn } >> Concat >> { y }. Raises GraphError when there are no parts."""
    if not parts:
        raise GraphError(f"concat {name!r} needs at least one blob")
    return parts[0].graph.apply(Concat(axis), list(parts), name)[0]


def flatten(x: Blob, *, name: str) -> Blob:
    """{ x (N, ...) } >> Reshape >> { y (N, features) }."""
    return x.graph.apply(Reshape((x.shape[0], math.prod(x.shape[1:]))), [x], name)[0]


def softmax(x: Blob, *, axis: int = 1, name: str) -> Blob:
    """{ x } >> Softmax >> { y }."""
    return x.graph.apply(Softmax(axis), [x], name)[0]


def softmax_loss(
    x: Blob, label: Blob, *, reduction: str = "mean", ignore: int | None = None, name: str = "loss"
) -> Blob:
    """{ logits (N,K), label (N,) } >> SoftmaxCrossEntropy >> { loss () }."""
    return x.graph.apply(SoftmaxCrossEntropy(reduction, ignore), [x, label], name)[0]


def squared_error(x: Blob, target: Blob, *, reduction: str = "mean", name: str = "loss") -> Blob:
    """{ x, target } >> SquaredError >> { loss () }."""
    return x.graph.apply(SquaredError(reduction), [x, target], name)[0]


def accuracy(x: Blob, label: Blob, *, k: int = 1, name: str = "accuracy") -> Blob:
    """{ logits (N,K), label (N,) } >> TopKAccuracy >> { share of right answers () }."""
    return x.graph.apply(TopKAccuracy(k), [x, label], name)[0]
