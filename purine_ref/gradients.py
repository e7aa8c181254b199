"""`backward`: adds to a graph the operators that compute gradients, by each operation's own rule.

Reverse mode: from the loss backwards along a topological order. A blob's gradient is one blob, named `<blob>/grad`;
every consumer of the blob adds one more producer to it, in that order, so fan-out needs no operator to sum (rule R4).
Only what lies between the losses and the wanted blobs gets a gradient; blobs that need none cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from purine_ref.errors import GraphError
from purine_ref.graph import Blob, Graph, Op
from purine_ref.operation import Operation
from purine_ref.ops.random import Constant
from purine_ref.traversal import needed, topological_order


def backward(losses: Blob | Mapping[Blob, float], wrt: Iterable[Blob] | None = None) -> dict[Blob, Blob]:
    """Add gradient operators for a loss, or for several with weights: `{main: 1.0, side: 0.3}`.

    Losses are float blobs; one that is not a scalar counts as the sum of its elements. `wrt` are the wanted blobs, by
    default the graph's parameters. Returns each wanted blob's gradient blob, of its shape and dtype, at its place; a
    wanted blob on which no loss depends gets zeros.

    Raises GraphError when there is nothing to differentiate, when a loss or a wanted blob is no float blob of the one
    graph, when a blob has a gradient already, when an operation on the way has no gradient rule, or when what needs a
    gradient is read through a view that no operator writes.
    """
    weights = dict(losses) if isinstance(losses, Mapping) else {losses: 1.0}
    graph = _graph_of(weights)
    wanted = list(graph.parameters if wrt is None else wrt)
    if not wanted:
        raise GraphError(f"graph {graph.name!r} has no parameters: name the blobs to differentiate for with wrt=[...]")
    for blob in wanted:
        if blob.graph is not graph:
            raise GraphError(f"backward: wrt blob {blob.name!r} is of graph {blob.graph.name!r}, not of {graph.name!r}")
        if not blob.tensor.is_float:
            raise GraphError(f"backward: wrt blob {blob.name!r} is {blob.dtype}, which has no gradient")
    with graph.scope(None):
        return _Backward(graph, weights, wanted).gradients()


def _graph_of(weights: Mapping[Blob, float]) -> Graph:
    for blob in weights:
        if not blob.tensor.is_float:
            raise GraphError(f"loss {blob.name!r} must be float32 or float64, got {blob.dtype}")
        if f"{blob.name}/grad" in blob.graph:
            raise GraphError(f"loss {blob.name!r} has a gradient already: call backward once, with all losses")
    graphs = {blob.graph for blob in weights}
    if len(graphs) != 1:
        raise GraphError(f"backward needs one or more losses of one graph, got losses of {len(graphs)} graphs")
    return graphs.pop()


class _Backward:
    """One call of `backward`. `on_the_way` are the blobs that need a gradient; `found`, those that have got one."""

    def __init__(self, graph: Graph, weights: Mapping[Blob, float], wanted: list[Blob]) -> None:
        self.graph = graph
        self.wanted = wanted
        self.found: dict[Blob, Blob] = {}
        order = topological_order(graph)
        blobs, behind = needed(weights)
        self.on_the_way = _depending(order, wanted)
        self.refuse_hidden_reads(b for b in graph.blobs if b in weights or (b.consumers and b in blobs))
        for loss, weight in weights.items():
            if loss in self.on_the_way:
                self.seed(loss, weight)
        for op in reversed(order):
            if op in behind and any(blob in self.found for blob in op.outputs):
                self.visit(op)

    def seed(self, loss: Blob, weight: float) -> None:
        """The gradient of a loss with respect to itself is its weight."""
        operation = Constant(float(weight), loss.shape, loss.dtype)
        self.graph.connect([], operation, [self.gradient_of(loss)], location=loss.location)

    def refuse_hidden_reads(self, blobs: Iterable[Blob]) -> None:
        """A view that no operator writes is read past every operator, so no rule would carry its gradient on."""
        for blob in blobs:
            parent = blob
            while parent.view is not None and not blob.producers:
                parent = parent.view.parent
                if parent in self.on_the_way:
                    raise GraphError(
                        f"backward: {parent.name!r} is read as {blob.name!r}, a view that no operator writes, and its "
                        "gradient would be lost: read it through Slice or Reshape"
                    )

    def visit(self, op: Op) -> None:
        """Let the operation wire its rule, if any of its inputs is on the way."""
        wants = tuple(
            blob in self.on_the_way and op.operation.differentiable(slot) for slot, blob in enumerate(op.inputs)
        )
        if any(wants):
            op.operation.gradient(_OpWiring(self, op, wants))

    def gradient_of(self, blob: Blob) -> Blob:
        """The blob that gathers the gradient of `blob`; made on the first call."""
        if blob not in self.found:
            self.found[blob] = _add_blob(self.graph, f"{blob.name}/grad", blob)
        return self.found[blob]

    def gradients(self) -> dict[Blob, Blob]:
        """The wanted gradients, with zeros for blobs that no loss depends on."""
        for blob in self.wanted:
            if blob not in self.found:
                self.zeros(self.gradient_of(blob))
        return {blob: self.found[blob] for blob in self.wanted}

    def zeros(self, target: Blob) -> None:
        """Make `target` all zeros."""
        self.graph.connect([], Constant(0.0, target.shape, target.dtype), [target], location=target.location)


class _OwnOutputs(Sequence[Blob]):
    """An operator's outputs, for its rule to read. Where a blob has other producers too, and so holds the sum of all
    (rule R4), what this operator alone delivers is computed once more, into a blob of its own.
    """

    def __init__(self, op: Op) -> None:
        self._op = op
        self._again: tuple[Blob, ...] = ()

    def __len__(self) -> int:
        return len(self._op.outputs)

    def __getitem__(self, slot: Any) -> Any:
        op = self._op
        if len(op.outputs[slot].producers) == 1:
            return op.outputs[slot]
        if not self._again:
            name = op.graph.free_name(f"{op.name}/again")
            self._again = op.graph.apply(op.operation, op.inputs, name, location=op.location, stream=op.stream)
        return self._again[slot]


class _OpWiring:
    """The `Wiring` of one operator: see `operation.Wiring`."""

    def __init__(self, backward: _Backward, op: Op, wants: tuple[bool, ...]) -> None:
        self._backward = backward
        self._op = op
        self.inputs: Sequence[Blob] = op.inputs
        self.outputs: Sequence[Blob] = _OwnOutputs(op)
        self.wants: Sequence[bool] = wants

    def has_gradient(self, output: int) -> bool:
        """Whether a gradient arrived at that output."""
        return self._op.outputs[output] in self._backward.found

    def gradient(self, output: int) -> Blob:
        """The gradient of that output; zeros where none arrived."""
        arrived = self.has_gradient(output)
        target = self._backward.gradient_of(self._op.outputs[output])
        if not arrived:
            self._backward.zeros(target)
        return target

    def add(self, operation: Operation, inputs: Sequence[Blob], into: Sequence[int | None]) -> tuple[Blob, ...]:
        """Add an operator; output k adds to the gradient of input `into[k]`, or is a new blob where that is None."""
        graph = self._backward.graph
        tensors = operation.infer([blob.tensor for blob in inputs])
        outputs = []
        for slot, (index, tensor) in enumerate(zip(into, tensors, strict=True)):
            if index is None:
                place = inputs[0].location if inputs else self._op.location
                name = graph.free_name(f"{self._op.name}/grad.{slot}")
                outputs.append(graph.blob(name, tensor.shape, tensor.dtype, place))
            else:
                outputs.append(self._backward.gradient_of(self._op.inputs[index]))
        location = inputs[0].location if inputs else self._op.location
        name = graph.free_name(f"{self._op.name}/{operation.name}")
        graph.connect(inputs, operation, outputs, name=name, location=location, stream=self._op.stream, of=self._op)
        return tuple(outputs)


def _depending(order: Iterable[Op], wanted: Iterable[Blob]) -> set[Blob]:
    """The float blobs that depend on a wanted blob through differentiable inputs, the wanted ones included."""
    depends = set(wanted)
    for op in order:
        if any(blob in depends and op.operation.differentiable(slot) for slot, blob in enumerate(op.inputs)):
            depends.update(blob for blob in op.outputs if blob.tensor.is_float)
    return depends


def _add_blob(graph: Graph, name: str, like: Blob) -> Blob:
    if name in graph:
        raise GraphError(f"blob {like.name!r} has a gradient {name!r} already: call backward once, with all losses")
    return graph.blob(name, like.shape, like.dtype, like.location)
