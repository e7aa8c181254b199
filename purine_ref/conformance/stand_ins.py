"""The exact form of a network: the same graph with exact operations in place of those that round (rule R10).

Its loss is the squared error against a fed blob `target`, and its update has momentum 1/2, rate 1 and no decay. Softmax
losses become squared errors, LRN becomes the identity, average pools whose windows are no power of two become max
pools, sigmoid and tanh become ReLU, and dropout scales by 2. Splitting, copying, pooling and summing stay as they are,
so whatever a composition can get wrong about them it still can.
"""

from __future__ import annotations

from purine_ref import optim
from purine_ref.errors import GraphError
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph, Op
from purine_ref.operation import Operation
from purine_ref.ops import (
    LRN,
    AveragePool2d,
    Dropout,
    GlobalAveragePool2d,
    Identity,
    MaxPool2d,
    ReLU,
    Sigmoid,
    SoftmaxCrossEntropy,
    SquaredError,
    Tanh,
    TopKAccuracy,
)

TARGET = "target"
"""The blob that the exact form's outputs are compared with."""


def exact_form(forward: Graph) -> Graph:
    """The exact training graph of a network's forward graph.

    Raises GraphError for an operation that rounds and has no exact stand-in.
    """
    graph = Graph(f"{forward.name} (exact)")
    twin: dict[Blob, Blob] = {}
    for blob in forward.blobs:
        if _only_for_labels(blob):
            continue
        if blob.view is not None:
            raise GraphError(f"blob {blob.name!r} is a declared view: the exact form is made from graphs without any")
        twin[blob] = graph.blob(blob.name, blob.shape, blob.dtype, blob.location, persistent=blob.persistent)
    graph.initial = dict(forward.initial)
    graph.multipliers = dict.fromkeys(forward.multipliers, (1.0, 1.0))
    for op in forward.ops:
        if not isinstance(op.operation, TopKAccuracy):  # it counts answers, which says nothing about sums
            ends = [[twin[blob] for blob in side if blob in twin] for side in (op.inputs, op.outputs)]
            _replace(graph, op, *ends)
    optim.sgd(backward(graph["loss"]), momentum=0.5)
    return graph


def _only_for_labels(blob: Blob) -> bool:
    """Whether a blob is labels that only a loss or a count of answers reads, or such a count."""
    if blob.producers:
        return isinstance(blob.producers[0][0].operation, TopKAccuracy)
    readers = [op.operation for op, _ in blob.consumers]
    return not blob.tensor.is_float and all(isinstance(r, SoftmaxCrossEntropy | TopKAccuracy) for r in readers)


def _replace(graph: Graph, op: Op, inputs: list[Blob], outputs: list[Blob]) -> None:
    operation = op.operation
    if isinstance(operation, SoftmaxCrossEntropy | SquaredError):
        target = graph.blob(TARGET, inputs[0].shape, inputs[0].dtype, inputs[0].location)
        graph.connect([inputs[0], target], SquaredError("sum"), outputs, name=op.name, location=op.location)
        return
    operation = stand_in(op)
    if isinstance(operation, MaxPool2d) and len(outputs) == 1:
        index = graph.blob(f"{op.name}/index", outputs[0].shape, "int64", op.location)
        outputs = [*outputs, index]
    graph.connect(inputs, operation, outputs, name=op.name, location=op.location)


def stand_in(op: Op) -> Operation:
    """The operation itself if it is exact here, else its exact stand-in. Raises GraphError where there is none."""
    operation, (height, width) = op.operation, (*op.inputs[0].shape, 0, 0)[2:4] if op.inputs else (0, 0)
    if isinstance(operation, LRN):
        return Identity()
    if isinstance(operation, Sigmoid | Tanh):
        return ReLU()
    if isinstance(operation, Dropout) and operation.train:
        return Dropout(0.5, operation.scale)
    if isinstance(operation, AveragePool2d):
        return MaxPool2d(operation.kernel, operation.stride, operation.pads, operation.rounding)
    if isinstance(operation, GlobalAveragePool2d) and (height * width) & (height * width - 1):
        return MaxPool2d((height, width))
    if not operation.exact:
        raise GraphError(f"{op.describe()}: {operation.name} rounds, and has no exact stand-in")
    return operation
