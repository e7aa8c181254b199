"""Our own side: a training step of the fused graph, with memory reused, in one of the ways to use several workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from purine_ref.benchmarks.contenders import Spec
from purine_ref.benchmarks.intervals import hidden_time
from purine_ref.benchmarks.side import Side, data, network
from purine_ref.devices import CpuDevice, cpu_devices
from purine_ref.executors import Executor, Hosts, Observer, Serial, Threaded
from purine_ref.executors.ranks import Ranks
from purine_ref.fusing import fuse
from purine_ref.graph import Blob, Graph, Op
from purine_ref.lifetimes import planned_bytes
from purine_ref.ops import Concat, Copy, Slice, Sum
from purine_ref.ops.convolution import Conv2d, Conv2dDataGradient, Conv2dWeightGradient
from purine_ref.ops.product import ProductOperation
from purine_ref.ops.shape import Reshape
from purine_ref.parallel import Composed, Data, compose
from purine_ref.plan import Plan
from purine_ref.tensor import Location
from purine_ref.transports import World, current
from purine_ref.view.trace import TraceRecorder

EXECUTORS: dict[str, Callable[[int], tuple[Callable[..., Executor], int]]] = {
    "split": lambda workers: (Serial, workers),
    "branches": lambda workers: (partial(Threaded, threads=workers), 1),
    "both": lambda workers: (partial(Threaded, threads=workers), workers),
    "data": lambda workers: (Serial if workers == 1 else partial(Ranks, executor=Serial), 1),
    "hosts": lambda workers: (partial(Hosts, world=_joined(), threads=1), 1),
}
"""How workers are used, from their number to an executor and the threads of its device: `split`, one operator after
the other, each divided between them; `branches`, operators side by side, each on one worker; `both`; `data`, a replica
on each, which is a rank with its part of the batch; and `hosts`, the same, each a process that has joined a world."""

REDUCING = (Copy, Sum, Slice, Concat)
"""What gradients are sent and added with."""

RESULTS = ("loss", "accuracy")
"""What can be fetched after a step; all other memory is reused."""

Piece = tuple[Blob, tuple[slice, ...]]
"""A blob, and which part it is of a serial one."""

_CONVOLUTIONS = (Conv2d, Conv2dDataGradient, Conv2dWeightGradient)


def _joined() -> World:
    world = current()
    if world is None:
        raise RuntimeError("a step on hosts needs a world that this process has joined")
    return world


class Network(Side):
    """A training graph that is bound and fed. Raises what executors raise."""

    def __init__(self, spec: Spec, dtype: str, observer: Observer | None = None) -> None:
        graph, keep, pieces = divided(spec, dtype)
        make, threads = EXECUTORS[spec.how](spec.workers)
        devices = cpu_devices(spec.kernels, threads)
        self._device = devices(Location())
        more = {"ranks": urgency(graph)} if spec.how == "hosts" else {}
        self._executor = make(graph, devices=devices, reuse=True, keep=keep, seed=spec.seed, observer=observer, **more)
        self._loss = keep[0]
        for name, array in data(network(spec.model, spec.batch, dtype), spec.seed).items():
            self._executor.feed({blob.name: array[part] for blob, part in pieces[name]})
        if not isinstance(self._executor, (Ranks, Hosts)):  # whose ranks have plans of their own
            self.planned = float(sum(planned_bytes(self._executor.plan).values()))

    def step(self) -> None:
        """One run."""
        self._executor.run()

    def checked_step(self) -> float:
        """One run, whose masks are the graph's own anyway."""
        self._executor.run()
        return float(self._executor.fetch(self._loss))

    def facts(self) -> dict[str, float]:
        """`flops` and `layout`: see `flops` and `layout_bytes`."""
        plan = self._executor.plan
        return {"flops": flops(plan.graph), "layout": layout_bytes(plan, self._device)}

    def close(self) -> None:
        """Close the executor."""
        self._executor.close()


def side(spec: Spec, dtype: str) -> Side:
    """The network of a spec."""
    return Network(spec, dtype)


def urgency(graph: Graph) -> list[float]:
    """A rank for each operator, by which hosts choose among those that are ready: the lowest is next.

    First goes what sends and adds gradients, as it takes little and other hosts wait for it; then what makes the
    gradients of parameters; then all else. So a layer's gradient is on its way before the backward pass goes on to the
    layer below, and hides behind it.
    """
    return [_urgency(op) for op in graph.ops]


def _urgency(op: Op) -> float:
    if isinstance(op.operation, REDUCING):
        return 0.0
    reduced = (isinstance(reader.operation, REDUCING) for blob in op.outputs for reader, _ in blob.consumers)
    return 1.0 if any(reduced) else 2.0


def divided(spec: Spec, dtype: str) -> tuple[Graph, list[str], Mapping[str, Sequence[Piece]]]:
    """The graph that is run, which blobs of it are kept, and which of them hold which parts of each blob of data."""
    serial = network(spec.model, spec.batch, dtype)
    graph = serial
    if spec.how in ("data", "hosts") and spec.workers > 1:
        places = [Location(rank) for rank in range(spec.workers)]
        graph = compose(serial, [Data(spec.workers)], places, reduction=spec.reduction)
    return fused(serial, graph)


def fused(serial: Graph, graph: Graph) -> tuple[Graph, list[str], Mapping[str, Sequence[Piece]]]:
    """The fused graph of `graph`, which is `serial` or composed from it; the rest as `divided` has it."""
    keep = [blob.name for name in RESULTS for blob, _ in _pieces(graph, name)]
    pieces = {blob.name: list(_pieces(graph, blob.name)) for blob in serial.blobs if not blob.producers}
    return fuse(graph, keep), keep, pieces


def _pieces(graph: Graph, name: str) -> Iterator[Piece]:
    """The blobs that hold parts of the serial blob `name`, and which parts."""
    if not isinstance(graph, Composed):
        yield graph[name], ()
        return
    for piece in graph.pieces[name]:
        yield piece.blob, tuple(slice(start, stop) for start, stop in piece.box)


def flops(graph: Graph) -> int:
    """Additions and multiplications of a step in products of matrices: convolutions, linear layers, their gradients."""
    products = (op for op in graph.ops if isinstance(op.operation, ProductOperation))
    return sum(
        op.operation.cost([blob.tensor for blob in op.inputs], [blob.tensor for blob in op.outputs]).flops
        for op in products
    )


def layout_bytes(plan: Plan, device: CpuDevice) -> int:
    """Bytes that a step writes only to have values in another memory order.

    These are reshapes that cannot be views, and copies that a convolution makes of what lies in C order on a device
    that keeps images channels-last. What a library below does to its operands inside one call is not seen.
    """
    total = 0
    for op in plan.graph.ops:
        if op not in plan.idle and isinstance(op.operation, Reshape):
            total += op.outputs[0].tensor.nbytes
        elif isinstance(op.operation, _CONVOLUTIONS):
            apart = [blob for blob in (*op.inputs, *op.outputs) if _root(blob, plan) in plan.row_major]
            total += sum(blob.tensor.nbytes for blob in apart if device.reorders(blob.tensor))
    return total


def _root(blob: Blob, plan: Plan) -> Blob:
    while blob in plan.views:
        blob = plan.views[blob].parent
    return blob


class CopyRecorder(TraceRecorder):
    """A trace in which copies are told apart: `copies` has the name and the thread of each."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: set[tuple[str, str]] = set()

    def copied(self, op: Op, at: float) -> None:
        """Note a copy."""
        self.copies.add((op.name, threading.current_thread().name))


def overlap(spec: Spec, count: int) -> list[Mapping[str, float]]:
    """For each of `count` traced steps: seconds of all `copies`, and how many of them were `hidden` behind compute.

    The time of a copy is hidden while another worker computes anything but a copy. A worker that waits for a message
    is in no operator: what waiting costs shows in the efficiency, not here.
    """
    found: list[Mapping[str, float]] = []
    for _ in range(count):
        recorder = CopyRecorder()
        with Network(spec, "float32", recorder) as traced:
            traced.step()
            before = len(recorder.spans)
            traced.step()
        spans = recorder.spans[before:]
        copies = [span for span in spans if (span.op, span.lane) in recorder.copies]
        others = [span for span in spans if (span.op, span.lane) not in recorder.copies]
        found.append({"copies": sum(s.end - s.start for s in copies), "hidden": hidden_time(copies, others)})
    return found
