"""The bi-graph: blobs and operators, joined only to each other. It describes; it holds no array and computes nothing.

State of a `Graph`: `blobs` and `ops` in the order of their making (an index is a position in these lists and never
changes), names (unique among blobs, and among ops), `pairs` to be swapped between runs (rule R6), and the initial
values of parameters. Only `blob`, `view`, `connect`, `swap` and `parameter` change it; `connect` alone joins nodes and
makes every check that needs only the new operator. What needs the whole graph is checked by `plan.prepare`.

A graph is built by one thread; when it is complete, any number may read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from purine_ref.adjacency import Edges, first_of, one_more, pairs
from purine_ref.errors import GraphError, ShapeError
from purine_ref.names import checked_name, nearest
from purine_ref.operation import Operation, RandomOperation
from purine_ref.tensor import Location, Tensor, as_shape
from purine_ref.wiring import check_outputs, common_place, infer

_HERE = Location()


@dataclass(frozen=True, slots=True)
class View:
    """That a blob's memory lies in another's: the box `start:stop` per axis of `parent`, then seen as `shape`."""

    parent: Blob
    box: tuple[tuple[int, int], ...]
    shape: tuple[int, ...]


def _shared(blobs: Sequence[Blob]) -> tuple[Blob, ...]:
    """The blobs as a tuple: that of the operator that writes them, and nothing else, if there is one."""
    op = blobs[0]._producers if len(blobs) == 1 else None
    return op.outputs if isinstance(op, Op) and len(op.outputs) == 1 else tuple(blobs)


class Blob:
    """A tensor in a graph. `producers` and `consumers` hold one (operator, slot) for each edge, in their order.

    `persistent` blobs keep their value between runs and are shared, by name, by all executors over one memory:
    parameters, update histories, prefetched batches.
    """

    __slots__ = ("_consumers", "_producers", "graph", "index", "name", "persistent", "tensor", "view")

    def __init__(self, graph: Graph, index: int, name: str, tensor: Tensor, persistent: bool = False) -> None:
        self.graph = graph
        self.index = index
        self.name = name
        self.tensor = tensor
        self._producers: Edges[Op] = None
        self._consumers: Edges[Op] = None
        self.view: View | None = None
        self.persistent = persistent

    @property
    def producers(self) -> list[tuple[Op, int]]:
        """The (operator, slot) of each edge into the blob, as they were connected. Only `Graph.connect` adds one."""
        return pairs(self._producers)

    @property
    def consumers(self) -> list[tuple[Op, int]]:
        """The (operator, slot) of each edge out of the blob, as they were connected."""
        return pairs(self._consumers)

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per axis."""
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        """float32, float64 or int64."""
        return self.tensor.dtype

    @property
    def location(self) -> Location:
        """The place of the blob."""
        return self.tensor.location

    def __repr__(self) -> str:
        return f"<Blob {self.name} {self.tensor}>"


class Op:
    """An operator in a graph: an `Operation` wired to blobs, at a location, on a stream of its device.

    `of` is the operator whose gradient it computes, if it does.
    """

    __slots__ = ("graph", "index", "inputs", "location", "name", "of", "operation", "outputs", "stream")

    def __init__(
        self,
        graph: Graph,
        index: int,
        name: str,
        operation: Operation,
        inputs: tuple[Blob, ...],
        outputs: tuple[Blob, ...],
        location: Location,
        stream: str,
        of: Op | None = None,
    ) -> None:
        self.graph = graph
        self.index = index
        self.name = name
        self.operation = operation
        self.inputs = inputs
        self.outputs = outputs
        self.location = location
        self.stream = stream
        self.of = of

    def __repr__(self) -> str:
        return f"<Op {self.name} {self.operation.name}>"

    def describe(self) -> str:
        """Name, operation, place, and the inputs' names with their shapes: what an error message needs."""
        inputs = ", ".join(f"{b.name} {b.tensor}" for b in self.inputs) or "none"
        return f"operator {self.name!r} ({self.operation.name}) at {self.location}, inputs: {inputs}"


class Graph:
    """A bi-graph under construction, named `name`."""

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.blobs: list[Blob] = []
        self.ops: list[Op] = []
        self.pairs: list[tuple[Blob, Blob]] = []
        self.initial: dict[str, Operation] = {}
        self.multipliers: dict[str, tuple[float, float]] = {}
        self._blob_names: dict[str, Blob] = {}
        self._op_names: dict[str, Op] = {}  # of those that `_named` does not find by their blob
        self._paired: set[Blob] = set()
        self._scope = ""
        self._tensors: dict[tuple[object, ...], Tensor] = {}  # descriptions are few, and blobs alike share them

    # Names ------------------------------------------------------------------------------------------------------

    @contextmanager
    def scope(self, name: str | None) -> Iterator[None]:
        """Within it, `name/` precedes the names of new blobs and operators; scopes nest, and None is the root."""
        outer = self._scope
        self._scope = "" if name is None else f"{outer}{checked_name(name)}/"
        try:
            yield
        finally:
            self._scope = outer

    def __getitem__(self, name: str) -> Blob:
        """The blob of that full name. Raises GraphError, with close names, when there is none."""
        blob = self._blob_names.get(name)
        if blob is None:
            raise GraphError(f"graph {self.name!r} has no blob {name!r}{nearest(name, self._blob_names)}")
        return blob

    def __contains__(self, name: object) -> bool:
        return name in self._blob_names

    def op(self, name: str) -> Op:
        """The operator of that full name. Raises GraphError, with close names, when there is none."""
        op = self._named(name)
        if op is None:
            raise GraphError(f"graph {self.name!r} has no operator {name!r}{nearest(name, [o.name for o in self.ops])}")
        return op

    def _named(self, name: str) -> Op | None:
        """The operator of that full name: that which delivers first to the blob of its name, or one of another."""
        blob = self._blob_names.get(name)
        first = None if blob is None else first_of(blob._producers)
        return first if first is not None and first.name == name else self._op_names.get(name)

    def free_name(self, name: str) -> str:
        """`name` if no blob or operator has it, else the first of `name.2`, `name.3`, ... that none has."""
        number, candidate = 1, name
        while self._scope + candidate in self._blob_names or self._named(self._scope + candidate):
            number += 1
            candidate = f"{name}.{number}"
        return candidate

    # Construction -----------------------------------------------------------------------------------------------

    def blob(
        self,
        name: str,
        shape: object,
        dtype: str = "float32",
        location: Location | None = None,
        *,
        persistent: bool = False,
    ) -> Blob:
        """A new blob. Raises GraphError for a name that is taken or malformed, ShapeError for a bad shape or dtype."""
        place = location or _HERE
        key = as_shape(shape), dtype, place.rank, place.device
        tensor = self._tensors.get(key) if type(dtype) is str else None
        if tensor is None:
            tensor = self._tensors[key] = Tensor(key[0], dtype, place)
        return self._new_blob(self._scope + checked_name(name), tensor, persistent)

    def _new_blob(self, full_name: str, tensor: Tensor, persistent: bool = False) -> Blob:
        if full_name in self._blob_names:
            raise GraphError(f"graph {self.name!r} already has a blob {full_name!r}; blob names must be unique")
        blob = Blob(self, len(self.blobs), full_name, tensor, persistent)
        self.blobs.append(blob)
        self._blob_names[full_name] = blob
        return blob

    def parameter(
        self,
        name: str,
        shape: object,
        dtype: str,
        initial: Operation,
        *,
        rate: float = 1.0,
        decay: float = 1.0,
        location: Location | None = None,
    ) -> Blob:
        """A persistent blob with an initial value: `initial` is a source operation of that shape (Gaussian, Constant).

        `rate` and `decay` multiply the learning rate and the weight decay of its update.
        """
        blob = self.blob(name, shape, dtype, location, persistent=True)
        if isinstance(initial, RandomOperation) and not initial.stream:
            initial = replace(initial, stream=f"{blob.name}/initial")  # type: ignore[type-var]
        (made,) = initial.infer(())
        if (made.shape, made.dtype) != (blob.shape, blob.dtype):
            raise ShapeError(f"parameter {blob.name!r} is {blob.tensor}, but its initial value {initial!r} is {made}")
        self.initial[blob.name] = initial
        self.multipliers[blob.name] = (rate, decay)
        return blob

    @property
    def parameters(self) -> list[Blob]:
        """The blobs made by `parameter`, in order."""
        return [self._blob_names[name] for name in self.multipliers]

    def view(
        self, parent: Blob, name: str, box: Sequence[tuple[int, int]] | None = None, shape: object | None = None
    ) -> Blob:
        """A blob whose memory is the box `(start, stop)` per axis of `parent`, seen as `shape` (rule R5).

        Without `box` it is the whole parent. Raises ShapeError when the box leaves the parent or the sizes differ.
        """
        self._require_own((parent,), "view")
        whole = tuple((0, n) for n in parent.shape)
        bounds = whole if box is None else tuple((int(a), int(b)) for a, b in box)
        inside = (0 <= a <= b <= n for (a, b), (_, n) in zip(bounds, whole, strict=False))
        if len(bounds) != len(whole) or not all(inside):
            raise ShapeError(f"view {name!r}: box {bounds} does not lie in {parent.name!r} of shape {parent.shape}")
        inner = tuple(b - a for a, b in bounds)
        tensor = Tensor(inner if shape is None else as_shape(shape), parent.dtype, parent.location)
        if tensor.size != Tensor(inner).size:
            seen = f"{inner} of {parent.name!r} cannot be seen as {tensor.shape}"
            raise ShapeError(f"view {name!r}: {seen}: sizes differ")
        blob = self._new_blob(self._scope + checked_name(name), tensor)
        blob.view = View(parent, bounds, tensor.shape)
        return blob

    def connect(
        self,
        inputs: Sequence[Blob],
        operation: Operation,
        outputs: Sequence[Blob],
        *,
        name: str | None = None,
        location: Location | None = None,
        stream: str = "main",
        of: Op | None = None,
    ) -> Op:
        """Wire an operator: every blob of `inputs` gets a consumer, of `outputs` a producer, one edge a mention.

        The operator's name is that of its first output unless `name` is given. Raises GraphError for what is not a
        blob of this graph (rule R1), ShapeError when `operation` refuses the inputs or infers other outputs.
        """
        if not isinstance(operation, Operation):
            raise GraphError(f"connect needs an Operation between blobs, got {type(operation).__name__}: {operation!r}")
        self._require_own((*inputs, *outputs), operation.name)
        full_name = self._op_name(name, outputs, operation)
        place = common_place(full_name, operation, inputs, outputs, location)
        if isinstance(operation, RandomOperation) and not operation.stream:
            operation = replace(operation, stream=full_name)  # type: ignore[type-var]
        check_outputs(full_name, operation, inputs, outputs)
        ends = _shared(inputs), tuple(outputs)
        return self._join(Op(self, self._next_index(outputs), full_name, operation, *ends, place, stream, of))

    def apply(
        self,
        operation: Operation,
        inputs: Sequence[Blob],
        name: str,
        *,
        location: Location | None = None,
        stream: str = "main",
    ) -> tuple[Blob, ...]:
        """`connect` to new blobs of the shapes that `operation` infers: `name`, then `name.1`, `name.2`, ..."""
        self._require_own(inputs, operation.name)
        place = common_place(name, operation, inputs, (), location)
        target = getattr(operation, "to", None) or place
        tensors = infer(self._scope + name, operation, inputs)
        names = [name if i == 0 else f"{name}.{i}" for i in range(len(tensors))]
        outputs = tuple(
            self._new_blob(self._scope + checked_name(n), t.at(target)) for n, t in zip(names, tensors, strict=True)
        )
        self.connect(inputs, operation, outputs, name=name, location=place, stream=stream)
        return outputs

    def swap(self, current: Blob, following: Blob) -> None:
        """After every run, what `following` holds becomes the value of `current`, by exchange (rule R6)."""
        self._require_own((current, following), "swap")
        if current is following or current.tensor != following.tensor:
            raise GraphError(f"swap needs two blobs of one description, got {current!r} and {following!r}")
        for blob in (current, following):
            if blob.view or blob in self._paired:
                pair = f"{current.name!r} and {following.name!r}"
                raise GraphError(f"swap of {pair}: {blob.name!r} is a view or in a pair")
            blob.persistent = True
        self._paired |= {current, following}
        self.pairs.append((current, following))

    # Checks and joining -----------------------------------------------------------------------------------------

    def _require_own(self, blobs: Iterable[Any], where: str) -> None:
        for blob in blobs:
            if not isinstance(blob, Blob):
                raise GraphError(
                    f"{where}: an operator joins only blobs, a blob only operators; got {type(blob).__name__} {blob!r}"
                )
            if blob.graph is not self:
                raise GraphError(f"{where}: blob {blob.name!r} is of graph {blob.graph.name!r}, not of {self.name!r}")

    def _op_name(self, name: str | None, outputs: Sequence[Blob], operation: Operation) -> str:
        if name is None:
            base = outputs[0].name if outputs else self._scope + operation.name
            name, number = base, 1
            while self._named(name) is not None:
                number += 1
                name = f"{base}.{number}"
            return name
        full_name = self._scope + checked_name(name)
        if self._named(full_name) is not None:
            taken = f"already has an operator {full_name!r}"
            raise GraphError(f"graph {self.name!r} {taken}; operator names must be unique")
        return full_name

    def _next_index(self, outputs: Sequence[Blob]) -> int:
        """The index of the next operator: the very object that its blob has, where the numbers are the same."""
        index = len(self.ops)
        return outputs[0].index if outputs and outputs[0].index == index else index

    def _join(self, op: Op) -> Op:
        self.ops.append(op)
        slot = 0
        for blob in op.inputs:
            blob._consumers = one_more(blob._consumers, op, slot)
            slot += 1
        slot = 0
        for blob in op.outputs:
            blob._producers = one_more(blob._producers, op, slot)
            slot += 1
        if self._named(op.name) is None:
            self._op_names[op.name] = op
        return op

    # Questions --------------------------------------------------------------------------------------------------

    @property
    def sources(self) -> list[Op | Blob]:
        """Operators without inputs and blobs without producers: what a run starts from."""
        return [op for op in self.ops if not op.inputs] + [b for b in self.blobs if not b.producers]

    @property
    def sinks(self) -> list[Op | Blob]:
        """Operators without outputs and blobs without consumers: what a run ends with."""
        return [op for op in self.ops if not op.outputs] + [b for b in self.blobs if not b.consumers]

    def memory(self) -> dict[Location, int]:
        """Bytes of the blobs that have memory of their own (views have none), per location, before any reuse."""
        total: dict[Location, int] = {}
        for blob in self.blobs:
            if blob.view is None:
                total[blob.location] = total.get(blob.location, 0) + blob.tensor.nbytes
        return total

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self.ops)} operators, {len(self.blobs)} blobs>"
