"""Random training steps over all operations, from one seed: what the trials of the bounds run on.

Every network ends in a loss, with gradients and an update. Sizes are small and differ; values stay moderate, since
weights are scaled by their fan-in. Some blobs are used twice, have several producers, or are joined with themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from purine_ref import layers, optim
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Operation
from purine_ref.ops import (
    LRN,
    AveragePool2d,
    Bernoulli,
    Bias,
    BroadcastTo,
    Concat,
    Constant,
    Conv2d,
    Copy,
    Dropout,
    Gaussian,
    GlobalAveragePool2d,
    Identity,
    Linear,
    LogSoftmax,
    MaxPool2d,
    Mean,
    Mul,
    PadSlice,
    ReduceMean,
    ReduceSum,
    ReLU,
    Reshape,
    Scale,
    Sigmoid,
    Slice,
    Softmax,
    Split,
    Sum,
    Tanh,
    WeightedSum,
)

RATE = 0.03125


@dataclass
class RandomNetwork:
    """A graph, what to feed to it at each step, and the generator that drew it. `values` are blobs to go on from."""

    rng: np.random.Generator
    graph: Graph
    dtype: str
    values: list[Blob]

    def feed(self, step: int = 0) -> dict[str, np.ndarray]:
        """Values for the blobs that are fed at a step, with many equal elements sometimes, as images have."""
        rng = np.random.default_rng([step, self.graph.blobs[0].tensor.size])
        fed = {}
        for blob in self.graph.blobs:
            if blob.producers or blob.persistent:
                continue
            drawn: Any = rng.standard_normal(blob.shape)
            if blob.name == "rate":
                drawn = np.array(RATE)
            elif not blob.tensor.is_float:
                drawn = rng.integers(0, self.graph["logits"].shape[1], blob.shape)
            elif step % 2:
                drawn = np.maximum(np.round(drawn, 1), 0)
            fed[blob.name] = np.asarray(drawn).astype(blob.dtype)
        return fed

    # Drawing ----------------------------------------------------------------------------------------------------

    def integer(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def pick(self, axes: int | None = None) -> Blob | None:
        """One of the last values, with so many axes."""
        fit = [blob for blob in self.values[-6:] if axes is None or len(blob.shape) == axes]
        return fit[self.integer(0, len(fit) - 1)] if fit else None

    def alike(self, blob: Blob, count: int) -> list[Blob]:
        """`blob`, and others of its shape, itself perhaps."""
        fit = [other for other in self.values if other.shape == blob.shape]
        return [blob, *(fit[self.integer(0, len(fit) - 1)] for _ in range(count - 1))]

    def weight(self, shape: tuple[int, ...], fan: int) -> Blob:
        """A new parameter."""
        initial = Gaussian(shape, self.dtype, std=1.2 / math.sqrt(max(fan, 1)))
        return self.graph.parameter(self.graph.free_name("weight"), shape, self.dtype, initial)

    def add(self, operation: Operation, inputs: list[Blob]) -> list[Blob]:
        """A new operator; its float outputs are new values."""
        made = self.graph.apply(operation, inputs, self.graph.free_name(operation.name.lower()))
        self.values += [blob for blob in made if blob.tensor.is_float and blob.tensor.size]
        return list(made)


def random_network(seed: int, dtype: str = "float32", steps: int = 12) -> RandomNetwork:
    """A network of up to `steps` operators before its loss, with gradients and an update of every parameter."""
    rng = np.random.default_rng(seed)
    graph = Graph(f"random{seed}")
    sizes = rng.permutation(np.arange(2, 9))[:4].tolist()
    net = RandomNetwork(rng, graph, dtype, [graph.blob("x", sizes, dtype)])
    net.values += [net.graph.blob("side", sizes, dtype)]
    for _ in range(net.integer(2, steps)):
        KINDS[net.integer(0, len(KINDS) - 1)](net)
    backward(_losses(net))
    update = [optim.sgd, optim.torch_sgd, optim.adagrad][net.integer(0, 2)]
    keywords = {} if update is optim.adagrad else {"momentum": 0.9}
    update({p: graph[f"{p.name}/grad"] for p in graph.parameters}, decay=0.01, **keywords)
    return net


def _losses(net: RandomNetwork) -> dict[Blob, float]:
    """A loss of the last value that is large enough; two sometimes, with weights."""
    last = [blob for blob in net.values if blob.shape][-1]
    (logits,) = net.graph.apply(Linear(), [_matrix(net, last), net.weight(*_linear(last, net.integer(3, 7)))], "logits")
    label = net.graph.blob("label", logits.shape[:1], "int64")
    reduction = ["mean", "sum"][net.integer(0, 1)]
    losses = {layers.softmax_loss(logits, label, reduction=reduction): 1.0}
    layers.accuracy(logits, label, k=net.integer(1, 2))
    other = net.pick()
    if net.integer(0, 1) and other is not None and other.shape and other in _trained(net):
        target = net.graph.blob("target", other.shape, net.dtype)
        losses[layers.squared_error(other, target, reduction=reduction, name="loss2")] = 0.3
    return losses


def _trained(net: RandomNetwork) -> set[Blob]:
    """The blobs that depend on a parameter."""
    reached = set(net.graph.parameters)
    for op in net.graph.ops:
        if any(blob in reached for blob in op.inputs):
            reached.update(op.outputs)
    return reached


def _matrix(net: RandomNetwork, blob: Blob) -> Blob:
    return blob if len(blob.shape) > 1 else net.graph.apply(Reshape((*blob.shape, 1)), [blob], "matrix")[0]


def _linear(blob: Blob, features: int) -> tuple[tuple[int, int], int]:
    fan = math.prod(blob.shape[1:])
    return (features, fan), fan


def _conv(net: RandomNetwork) -> None:
    x = net.pick(4)
    if x is None:
        return
    channels = x.shape[1]
    groups = channels if net.integer(0, 5) == 0 else 1
    kernel = (net.integer(1, 3), net.integer(1, 3))
    shape = (groups * net.integer(1, 2) if groups > 1 else net.integer(2, 24), channels // groups, *kernel)
    dilation = net.integer(1, 2)
    stride, pads = (net.integer(1, 2), net.integer(1, 2)), ((net.integer(0, 2), 1), (1, net.integer(0, 2)))
    if any(n + sum(p) < dilation * (k - 1) + 1 for n, p, k in zip(x.shape[2:], pads, kernel, strict=True)):
        return
    (y,) = net.add(Conv2d(stride, pads, dilation, groups), [x, net.weight(shape, math.prod(shape[1:]))])
    if net.integer(0, 1):
        _bias(net, y)


def _inner(net: RandomNetwork) -> None:
    x = net.pick()
    if x is not None and len(x.shape) > 1:
        net.add(Linear(), [x, net.weight(*_linear(x, net.integer(2, 24)))])


def _bias(net: RandomNetwork, blob: Blob | None = None) -> None:
    x = blob or net.pick()
    if x is not None and len(x.shape) > 1:
        net.add(Bias(), [x, net.weight((x.shape[1],), 4)])


def _unary(net: RandomNetwork) -> None:
    operations = (ReLU(), ReLU(), Sigmoid(), Tanh(), Scale(0.5), Scale(-0.7), Copy(), Identity())
    x = net.pick()
    if x is not None:
        net.add(operations[net.integer(0, len(operations) - 1)], [x])


def _rows(net: RandomNetwork) -> None:
    x = net.pick()
    if x is not None and x.shape:
        net.add([Softmax, LogSoftmax][net.integer(0, 1)](net.integer(0, len(x.shape) - 1)), [x])


def _pool(net: RandomNetwork) -> None:
    x = net.pick(4)
    if x is None:
        return
    kernel, stride = (net.integer(1, 3), net.integer(1, 3)), (net.integer(1, 3), net.integer(1, 2))
    pads = ((0, kernel[0] - 1), (kernel[1] - 1, 0))
    if any(n + sum(p) < k for n, p, k in zip(x.shape[2:], pads, kernel, strict=True)):
        return
    rounding = ["ceil", "floor"][net.integer(0, 1)]
    if net.integer(0, 1):
        net.add(MaxPool2d(kernel, stride, pads, rounding), [x])
    else:
        net.add(AveragePool2d(kernel, stride, pads, rounding, ["padded", "valid"][net.integer(0, 1)]), [x])


def _planes(net: RandomNetwork) -> None:
    x = net.pick(4)
    if x is not None:
        net.add(GlobalAveragePool2d() if net.integer(0, 1) else LRN(2 * net.integer(0, 2) + 1, 0.5), [x])


def _dropout(net: RandomNetwork) -> None:
    x = net.pick()
    if x is not None:
        (mask,) = net.graph.apply(Bernoulli(x.shape, x.dtype, keep=0.7), [], net.graph.free_name("mask"))
        net.add(Dropout(0.3, ["train", "test"][net.integer(0, 1)]), [x, mask])


def _several(net: RandomNetwork) -> None:
    x = net.pick()
    if x is None:
        return
    alike = net.alike(x, net.integer(1, 4))
    operations = (Sum(), Mean(), WeightedSum(tuple(0.3 * i - 0.5 for i in range(len(alike)))))
    net.add(operations[net.integer(0, 2)], alike)


def _product(net: RandomNetwork) -> None:
    x = net.pick()
    if x is not None:
        net.add(Mul(), [net.add(Tanh(), [x])[0], net.alike(x, 2)[1]])


def _joined(net: RandomNetwork) -> None:
    x = net.pick()
    if x is not None and x.shape and x.tensor.size < 2000:
        net.add(Concat(net.integer(0, len(x.shape) - 1)), net.alike(x, net.integer(1, 3)))


def _parts(net: RandomNetwork) -> None:
    x = net.pick()
    if x is None or not x.shape:
        return
    axis = net.integer(0, len(x.shape) - 1)
    size = net.integer(0, x.shape[axis])
    if net.integer(0, 1) or not size:
        net.add(Split(axis, (size, x.shape[axis] - size)), [x])
    else:
        (y,) = net.add(Slice(axis, 0, size), [x])
        net.add(PadSlice(axis, 1, size + 2), [y])


def _reduced(net: RandomNetwork) -> None:
    x = net.pick()
    if x is None or len(x.shape) < 2:
        return
    axis = net.integer(0, len(x.shape) - 1)
    (y,) = net.add([ReduceSum, ReduceMean][net.integer(0, 1)]((axis,)), [x])
    if net.integer(0, 1):
        net.add(BroadcastTo(x.shape, (axis,), 0.7), [y])


def _gathered(net: RandomNetwork) -> None:
    """One blob of several producers."""
    x = net.pick()
    if x is None:
        return
    total = net.graph.blob(net.graph.free_name("total"), x.shape, x.dtype)
    for number, blob in enumerate(net.alike(x, net.integer(2, 3))):
        name = net.graph.free_name(f"{total.name}/{number}")
        net.graph.connect([blob], [Identity(), Scale(0.3), Tanh()][net.integer(0, 2)], [total], name=name)
    net.values.append(total)


def _constant(net: RandomNetwork) -> None:
    x = net.pick()
    if x is not None:
        net.add(Constant(0.1, x.shape, net.dtype), [])


KINDS: list[Callable[[RandomNetwork], None]] = [
    _conv,
    _conv,
    _inner,
    _bias,
    _unary,
    _unary,
    _rows,
    _pool,
    _pool,
    _planes,
    _dropout,
    _several,
    _product,
    _joined,
    _parts,
    _reduced,
    _gathered,
    _constant,
]
