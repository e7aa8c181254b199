"""From a graph over several ranks to the graph of each: what crosses ranks becomes a send here and a receive there.

Every rank builds the whole graph and keeps its own nodes, under the same names. A `Copy` from a blob on one rank to a
blob on another becomes a `Send` on the first and a `Receive` on the second, both under the copy's name, and paired by
its index in the whole graph: a tag that every rank finds by itself. Edges keep their order, so sums do (rule R4).
"""

from __future__ import annotations

from dataclasses import replace

from purine_ref.errors import GraphError
from purine_ref.graph import Blob, Graph, Op
from purine_ref.ops.transfer import Receive, Send
from purine_ref.tensor import Tensor


def world(graph: Graph) -> int:
    """The number of ranks: one more than the highest that a node is at, and at least 1."""
    places = {blob.location for blob in graph.blobs} | {op.location for op in graph.ops}
    return 1 + max((place.rank for place in places), default=0)


def crosses(op: Op) -> bool:
    """Whether the operator moves its input to another rank. Only a `Copy` can."""
    return bool(op.inputs) and bool(op.outputs) and op.inputs[0].location.rank != op.outputs[0].location.rank


def local_graph(graph: Graph, rank: int) -> Graph:
    """The part of `graph` that `rank` runs: a new graph, without nodes when the rank has none.

    Raises GraphError when a blob that crosses ranks is not at a CPU at both ends: messages go through CPU memory.
    """
    local = Graph(graph.name)
    own = {blob: _own_blob(local, blob) for blob in graph.blobs if blob.location.rank == rank}
    for blob, twin in own.items():
        if blob.view is not None:
            twin.view = replace(blob.view, parent=own[blob.view.parent])
    ops: dict[Op, Op] = {}
    for op in graph.ops:
        if crosses(op):
            _connect_end(local, op, own)
        elif op.location.rank == rank:
            ends = [[own[blob] for blob in side] for side in (op.inputs, op.outputs)]
            of = ops.get(op.of) if op.of is not None else None
            ops[op] = local.connect(
                ends[0], op.operation, ends[1], name=op.name, location=op.location, stream=op.stream, of=of
            )
    for current, following in graph.pairs:
        if current in own:
            local.swap(own[current], own[following])
    local.initial = {name: operation for name, operation in graph.initial.items() if name in local}
    local.multipliers = {name: pair for name, pair in graph.multipliers.items() if name in local}
    return local


def _own_blob(local: Graph, blob: Blob) -> Blob:
    return local.blob(blob.name, blob.shape, blob.dtype, blob.location, persistent=blob.persistent)


def _connect_end(local: Graph, copy: Op, own: dict[Blob, Blob]) -> None:
    """The end of a copy between ranks that is this rank's, if one is."""
    (source,), (target,) = copy.inputs, copy.outputs
    if not (source.location.is_cpu and target.location.is_cpu):
        raise GraphError(
            f"{copy.describe()} goes to {target.location}: only memory of CPUs is sent from rank to rank, so copy to "
            "the CPU first, and from the CPU after it"
        )
    if source in own:
        send = Send(target.location.rank, copy.index)
        local.connect([own[source]], send, [], name=copy.name, location=source.location, stream="outbound")
    if target in own:
        receive = Receive(source.location.rank, copy.index, target.shape, target.dtype)
        local.connect([], receive, [own[target]], name=copy.name, location=target.location, stream="inbound")


def incoming(local: Graph) -> dict[tuple[int, int], Tensor]:
    """What a rank's transport must know: the description of the message along each route (peer, tag) into it."""
    return {
        (op.operation.peer, op.operation.tag): op.outputs[0].tensor
        for op in local.ops
        if isinstance(op.operation, Receive)
    }
