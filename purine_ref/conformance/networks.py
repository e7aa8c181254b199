"""From an example's plain data to graphs: the serial network, and the refiners and places that compose it.

Sizes adapt to what a layer gets; what cannot be built raises GraphError, as building any graph does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from purine_ref import layers, optim
from purine_ref.conformance.examples import Architecture, Division, Example, Layer, Loss
from purine_ref.errors import GraphError
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Operation
from purine_ref.ops import (
    LRN,
    AveragePool2d,
    Bias,
    Concat,
    Constant,
    Conv2d,
    Gaussian,
    GlobalAveragePool2d,
    Linear,
    MaxPool2d,
    Mul,
    ReLU,
    Sigmoid,
    Slice,
    Sum,
    Tanh,
)
from purine_ref.parallel import Composed, Data, Hybrid, Model, Network, Pipeline, Placed, Refiner, compose
from purine_ref.parallel.composition import refined
from purine_ref.tensor import Location
from purine_ref.traversal import prune

INPUT = "x"
"""The network's input."""


def serial_graph(example: Example) -> Graph:
    """The serial graph of an example, or the part of it that its wanted blob needs.

    Raises GraphError when the network cannot be built, or has no such blob.
    """
    graph = network_graph(example.network)
    return prune(graph, [graph[example.wanted]]) if example.wanted else graph


def network_graph(network: Architecture) -> Graph:
    """The network's graph up to its phase. Raises GraphError when it cannot be built."""
    graph = Graph("example")
    values = add_layers(graph, network)
    losses = {_add_loss(graph, loss, number, values): loss.weight for number, loss in enumerate(network.losses)}
    if network.phase == "forward" or not losses:
        return graph
    parameters = graph.parameters
    gradients = backward(losses, parameters or [values[0]])
    if network.phase == "update" and parameters:
        optim.sgd(gradients, momentum=0.5)
    return graph


def add_layers(graph: Graph, network: Architecture) -> list[Blob]:
    """Add the input and the layers; returns all values, the input first. Raises GraphError when one cannot be built."""
    values = [graph.blob(INPUT, (network.batch, *network.image), network.dtype)]
    for position, layer in enumerate(network.layers):
        if layer.kind not in KINDS or not layer.inputs or not all(0 <= i < len(values) for i in layer.inputs):
            raise GraphError(f"layer {position}: {layer.kind!r} of values {layer.inputs} cannot be built")
        values.append(KINDS[layer.kind](graph, layer, f"l{position}", [values[i] for i in layer.inputs]))
    return values


def _product(graph: Graph, layer: Layer, name: str, operation: Conv2d | Linear, x: Blob) -> Blob:
    """A convolution or inner product, and a bias, with parameters of its own or with those of an earlier layer."""
    own = f"l{layer.shared}" if layer.shared >= 0 else name
    weight = f"{own}/weight"
    if weight not in graph:
        taken = x.shape[1] // layer.groups if isinstance(operation, Conv2d) else math.prod(x.shape[1:])
        window = (layer.kernel, layer.kernel) if isinstance(operation, Conv2d) else ()
        shape = (layer.size, taken, *window)
        graph.parameter(weight, shape, x.dtype, Gaussian(shape, x.dtype, std=max(1, math.prod(shape[1:])) ** -0.5))
    (y,) = graph.apply(operation, [x, graph[weight]], f"{name}/product")
    if not layer.bias:
        return y
    if f"{own}/bias" not in graph:
        graph.parameter(f"{own}/bias", y.shape[1:2], x.dtype, Constant(0.25, y.shape[1:2], x.dtype))
    return graph.apply(Bias(), [y, graph[f"{own}/bias"]], f"{name}/sum")[0]


def _conv(graph: Graph, layer: Layer, name: str, inputs: list[Blob]) -> Blob:
    if len(inputs[0].shape) != 4:
        raise GraphError(f"layer {name!r}: a convolution needs images, got {inputs[0].tensor}")
    return _product(graph, layer, name, Conv2d(layer.stride, layer.pad, groups=layer.groups), inputs[0])


def _linear(graph: Graph, layer: Layer, name: str, inputs: list[Blob]) -> Blob:
    return _product(graph, layer, name, Linear(), inputs[0])


def _max_pool(graph: Graph, layer: Layer, name: str, inputs: list[Blob]) -> Blob:
    return graph.apply(MaxPool2d(layer.kernel, layer.stride, layer.pad), inputs, name)[0]


def _average_pool(graph: Graph, layer: Layer, name: str, inputs: list[Blob]) -> Blob:
    return graph.apply(AveragePool2d(layer.kernel, layer.stride, layer.pad, "floor"), inputs, name)[0]


def _dropout(graph: Graph, layer: Layer, name: str, inputs: list[Blob]) -> Blob:
    return layers.dropout(inputs[0], ratio=layer.size / 100, name=name)


def _slice(graph: Graph, layer: Layer, name: str, inputs: list[Blob]) -> Blob:
    return graph.apply(Slice(1, layer.pad, layer.pad + layer.size), inputs, name)[0]


def _flatten(graph: Graph, layer: Layer, name: str, inputs: list[Blob]) -> Blob:
    return layers.flatten(inputs[0], name=name)


def _applied(operation: Operation) -> Callable[[Graph, Layer, str, list[Blob]], Blob]:
    return lambda graph, layer, name, inputs: graph.apply(operation, inputs, name)[0]


KINDS: dict[str, Callable[[Graph, Layer, str, list[Blob]], Blob]] = {
    "conv": _conv,
    "linear": _linear,
    "max_pool": _max_pool,
    "average_pool": _average_pool,
    "global_pool": _applied(GlobalAveragePool2d()),
    "relu": _applied(ReLU()),
    "sigmoid": _applied(Sigmoid()),
    "tanh": _applied(Tanh()),
    "lrn": _applied(LRN(3, alpha=0.5)),
    "dropout": _dropout,
    "concat": _applied(Concat(1)),
    "sum": _applied(Sum()),
    "product": _applied(Mul()),
    "slice": _slice,
    "flatten": _flatten,
}
"""What each kind of layer adds. Beside its inputs: conv takes size, kernel, stride, pad, groups, bias, shared; linear
size, bias, shared; pools kernel, stride, pad; dropout the percentage dropped as size; slice size channels from pad on.
"""


def _add_loss(graph: Graph, loss: Loss, number: int, values: list[Blob]) -> Blob:
    """A loss of a value, against a fed blob `target0` or `label0`, ..."""
    if not 0 <= loss.input < len(values):
        raise GraphError(f"loss {number}: there is no value {loss.input}")
    x = values[loss.input]
    if loss.kind == "squared":
        target = graph.blob(f"target{number}", x.shape, x.dtype)
        return layers.squared_error(x, target, reduction=loss.reduction, name=f"loss{number}")
    if loss.kind == "softmax":
        label = graph.blob(f"label{number}", (x.shape[0], *x.shape[2:]), "int64")
        return layers.softmax_loss(x, label, reduction=loss.reduction, name=f"loss{number}")
    raise GraphError(f"loss {number}: no kind {loss.kind!r}; there are squared and softmax")


# Composition ----------------------------------------------------------------------------------------------------------


def composed_graph(example: Example) -> Composed:
    """The composed graph of an example. Raises GraphError when the network cannot be built, or does not fit."""
    return compose(serial_graph(example), refiners(example), places(example), reduction=example.composition.reduction)


def refiners(example: Example) -> list[Refiner]:
    """The refiners of an example's parts. Raises GraphError for a part that can be no refiner."""
    return [refiner(part) for part in example.composition.parts]


def refiner(part: Division) -> Refiner:
    """The refiner of one part. Raises GraphError when it can be none."""
    sizes = part.sizes or None
    if part.kind == "data":
        return Data(part.count, sizes, part.mode or "replicated", updates=dict(part.rules))
    if part.kind == "model":
        return Model(part.count, part.mode or "output", dict(part.rules))
    if part.kind == "pipeline":
        begins = tuple(pattern for pattern, _ in part.rules) or None
        return Pipeline(part.count, part.more, begins, sizes)
    if part.kind == "hybrid":
        return Hybrid(part.count, part.more)
    if part.kind == "placed":
        return Placed(part.count, {pattern: int(place) for pattern, place in part.rules})
    raise GraphError(f"no refiner {part.kind!r}; there are data, model, pipeline, hybrid and placed")


def places(example: Example) -> list[Location]:
    """The places of an example."""
    return [Location(rank, device) for rank, device in example.composition.places]


def require_fit(network: Network, parts: Sequence[Refiner]) -> None:
    """Raise GraphError unless the refiners, the outermost first, fit the network."""
    for op in network.graph.ops:
        refined(network, op, parts)
