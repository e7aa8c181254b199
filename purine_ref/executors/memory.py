"""Binding a plan to arrays: one for each root blob, views for the others, staging for later producers (rule R4).

`Memory` holds what outlives a run: persistent blobs by name, shared by every executor that is given it. A `Binding`
belongs to one executor. What outlives a run sits in a `Slot`, so that the swap of rule R6 exchanges two pointers and
every operator, of any executor, sees it from the next run on. What is fixed after binding: where each array is found.
What changes, between runs: the arrays in slots, and with them what operators are called with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from purine_ref._fast import Calls
from purine_ref.devices import Device
from purine_ref.errors import GraphError, ShapeError
from purine_ref.executors.ground import Ground
from purine_ref.executors.launches import Launches
from purine_ref.graph import Blob, Graph, Op, View
from purine_ref.operation import Array, Kernels, RunKey
from purine_ref.plan import Plan
from purine_ref.tensor import Location, Tensor
from purine_ref.transports import Transport

Fixed = tuple[Array]
"""The one array of a blob that keeps it. This very tuple is the inputs or outputs of operators with that edge alone."""


class Slot:
    """A place for one array, which may change."""

    __slots__ = ("array",)

    def __init__(self, array: Array) -> None:
        self.array = array


class Lasting(Slot):
    """The slot of a persistent blob: a swap may change its array between runs."""

    __slots__ = ()


class Part:
    """The slot of a view into a persistent blob: cut anew at every use, since a swap may have changed the array."""

    __slots__ = ("_view", "_whole")

    def __init__(self, whole: Slot | Part, view: View) -> None:
        self._whole = whole
        self._view = view

    @property
    def array(self) -> Array:
        """The view of the array that the whole has now."""
        return _cut(self._whole.array, self._view)


Place = Fixed | Slot | Part
"""Where a blob's array is found."""


class Memory:
    """Persistent arrays by blob name. Executors that share one share these blobs, and nothing else.

    Only one of them may run at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the dictionary while executors bind to it
        self._slots: dict[str, tuple[Tensor, Lasting]] = {}
        self._devices: dict[str, Device] = {}  # whose memory it is; none for what was put and no executor has bound

    def slot(self, blob: Blob, device: Device, seed: int, row_major: bool = False) -> Lasting:
        """The slot of a persistent blob; a new one holds its initial value, or zeros.

        Its array is in the device's memory order, or once an executor needs it so in C order (`row_major`).
        Raises ShapeError when the name is held already with another shape, dtype or place.
        """
        with self._lock:
            if blob.name not in self._slots:
                self._slots[blob.name] = (blob.tensor, Lasting(_initial(blob, device, seed, row_major)))
                self._devices[blob.name] = device
            tensor, slot = self._slots[blob.name]
            unbound = blob.name not in self._devices
            if tensor == blob.tensor and (unbound or (row_major and not _in_order(slot.array))):
                held, slot.array = self._read(blob.name), _allocate(blob, device, row_major)
                device.write(slot.array, held)
                self._devices[blob.name] = device
        if tensor != blob.tensor:
            raise ShapeError(
                f"blob {blob.name!r} of graph {blob.graph.name!r} is {blob.tensor} at {blob.location}, but the memory "
                f"holds {tensor} at {tensor.location} under that name: use one description, or another memory"
            )
        return slot

    def get(self, name: str) -> Array:
        """A copy of what `name` holds now. Raises KeyError when no executor has bound it."""
        with self._lock:
            return self._read(name)

    def _read(self, name: str) -> Array:
        array = self._slots[name][1].array
        return self._devices[name].read(array) if name in self._devices else array.copy()

    def put(self, name: str, tensor: Tensor, array: Array) -> None:
        """Hold `array` under `name` before any executor binds it. Raises ShapeError when the name is held already."""
        with self._lock:
            if name in self._slots:
                raise ShapeError(f"blob {name!r} is held already: restore values before executors bind to the memory")
            self._slots[name] = (tensor, Lasting(array.copy()))

    def held(self, blob: Blob) -> Lasting:
        """The slot of a blob that is held."""
        return self._slots[blob.name][1]


def _initial(blob: Blob, device: Device, seed: int, row_major: bool) -> Array:
    array = _allocate(blob, device, row_major)
    operation = blob.graph.initial.get(blob.name)
    if operation is not None:
        device.initialise(array, operation, seed)
    return array


def _allocate(blob: Blob, device: Device, row_major: bool) -> Array:
    """A new array for a blob; the keyword is left out where it says nothing, for devices that know it not."""
    if row_major:
        return device.allocate(blob.tensor, blob.name, row_major=True)
    return device.allocate(blob.tensor, blob.name)


def _in_order(array: Array) -> bool:
    return bool(array.flags.c_contiguous)


Compute = Callable[[Kernels, Sequence[Array], Sequence[Array]], None]
Call = tuple[Compute | None, int, Sequence[Array], Sequence[Array]]
"""How to run one operator: its compute, None where it moves nothing; the number of its place; its edges' arrays."""


class Binding:
    """A plan bound to arrays. `calls` say how each operator is run; `asynchronous`, that a device only launches it.

    Then `launches` is what launches.
    """

    def __init__(self, plan: Plan, memory: Memory, devices: Callable[[Location], Device], seed: int) -> None:
        self.plan = plan
        self._memory = memory
        locations = _locations(plan.graph)
        self._devices = {location: devices(location) for location in set(locations)}
        numbers = {location: number for number, location in enumerate(self._devices)}
        self._number = {id(location): numbers[location] for location in locations}
        self._ground = Ground(plan, self._devices)
        self._places = _bind_blobs(plan, memory, self._devices, self._ground, seed)
        self._pairs = [(memory.held(a), memory.held(b)) for a, b in plan.graph.pairs]
        self._staging: list[tuple[int, int, int, Array]] = []  # (blob, operator, output, array) of later producers
        self._lasting: list[tuple[list[Array], int, Slot | Part]] = []  # edges' arrays that may change, and whence
        self._compute: dict[int, Compute] = {}  # by operation: operators that share one share its bound method too
        # not as they were made, so that what a run touches one after the other lies together; and one at a time
        self.calls = Calls((self._call(plan.graph.ops[index]) for index in plan.order), plan.order)
        self._later: dict[int, list[Array]] = {}  # for each blob of several producers, the arrays of all but the first
        for blob, _, _, array in sorted(self._staging, key=itemgetter(0, 1, 2)):  # in the order of their edges
            self._later.setdefault(blob, []).append(array)
        self._staging.clear()
        self.asynchronous = any(device.asynchronous for device in self._devices.values())
        self.launches = Launches(plan, self._devices) if self.asynchronous else None

    def _call(self, op: Op) -> Call:
        compute = None if op in self.plan.idle else self._compute.setdefault(id(op.operation), op.operation.compute)
        inputs = [self._places[blob.index] for blob in op.inputs]
        outputs = [self._output(blob, op, slot) for slot, blob in enumerate(op.outputs)]
        return compute, self._number[id(op.location)], self._ends(inputs), self._ends(outputs)

    def _ends(self, places: list[Place]) -> Sequence[Array]:
        """The arrays of an operator's inputs or outputs: a tuple, or a list that `begin` writes anew."""
        if len(places) == 1 and type(places[0]) is tuple:
            return places[0]
        if all([type(place) is tuple for place in places]):
            return tuple([_array(place) for place in places])
        arrays = [_array(place) for place in places]
        for edge, place in enumerate(places):
            if not isinstance(place, tuple):
                self._lasting.append((arrays, edge, place))
        return arrays

    def _output(self, blob: Blob, op: Op, slot: int) -> Place:
        """The first edge writes the blob itself; each later one a buffer of its own, to be added in its turn."""
        if blob.producers[0] == (op, slot):
            return self._places[blob.index]
        staging = self._ground.array(blob, (op.index, slot))
        if staging is None:
            staging = self._devices[blob.location].allocate(blob.tensor, f"{blob.name} (contribution)")
        self._staging.append((blob.index, op.index, slot, staging))
        return (staging,)

    def begin(self, key: RunKey, transport: Transport | None = None) -> list[Kernels]:
        """Begin a run; returns its vocabularies, one for each place, with the way to other ranks."""
        if self.launches is not None:
            self.launches.begin()
        for arrays, edge, place in self._lasting:
            arrays[edge] = place.array
        kernels = [device.kernels(key) for device in self._devices.values()]
        for vocabulary in kernels:
            vocabulary.transport = transport
        return kernels

    def persistent(self) -> tuple[Array, ...]:
        """The arrays that persistent blobs have now: which they are, a swap may change."""
        return tuple([place.array for place in self._places if isinstance(place, Lasting)])

    def expect(self, op: int, kernels: Sequence[Kernels], arrived: Callable[[], None]) -> None:
        """Have `arrived` called when external operator `op` may start."""
        _, place, _, outputs = self.calls[op]
        outputs = () if self.asynchronous else outputs  # there, the device says when its memory is written
        self.plan.graph.ops[op].operation.expect(kernels[place], outputs, arrived)

    def call(self, op: int, kernels: Sequence[Kernels]) -> None:
        """Compute operator `op` from its input arrays into its output arrays."""
        compute, place, inputs, outputs = self.calls[op]
        if self.launches is not None:
            inputs, outputs = list(inputs), list(outputs)  # the lists of a call change with the next run
            launched = None if compute is None else partial(compute, kernels[place], inputs, outputs)
            self.launches.operator(op, launched, inputs, outputs)
        elif compute is not None:
            compute(kernels[place], inputs, outputs)

    def combine(self, blob: int) -> None:
        """Add the later contributions to a complete blob, in the order of its edges (rule R4)."""
        if blob not in self._later:
            return
        total, parts = _array(self._places[blob]), self._later[blob]
        if self.launches is not None:
            self.launches.addition(blob, partial(_add_up, total, parts), total, parts)
        else:
            _add_up(total, parts)

    def synchronise(self) -> list[BaseException]:
        """Wait for everything that was enqueued; returns what failed."""
        return [error for device in self._devices.values() for error in device.synchronise()]

    def swap(self) -> None:
        """Exchange the arrays of every pair (rule R6)."""
        for a, b in self._pairs:
            a.array, b.array = b.array, a.array

    def read(self, blob: Blob) -> Array:
        """A copy of a blob's array. Raises GraphError when its memory was given to another blob's value (rule R5)."""
        if blob in self.plan.lost:
            raise overwritten(blob, self.plan.sharing is None)
        return self._devices[blob.location].read(_array(self._places[blob.index]))

    def write(self, blob: Blob, array: Array) -> None:
        """Fill a blob that no operator writes. Raises ShapeError for another shape or dtype, GraphError else."""
        require_feed(blob, array)
        self._devices[blob.location].write(_array(self._places[blob.index]), array)


def overwritten(blob: Blob, in_place: bool) -> GraphError:
    """What is raised when a blob is fetched whose value is gone: `in_place`, or since blobs share memory."""
    if in_place:
        return GraphError(f"blob {blob.name!r} was overwritten in place: fetch what overwrote it, or give it memory")
    return GraphError(f"blob {blob.name!r} was overwritten: to fetch it, name it in keep= of the executor")


def require_feed(blob: Blob, array: Array) -> None:
    """Raise GraphError for a blob that an operator writes, ShapeError for an array of another shape or dtype."""
    if blob.producers:
        writer = blob.producers[0][0].name
        raise GraphError(f"blob {blob.name!r} is written by operator {writer!r}; feed a source blob")
    shape, dtype = tuple(getattr(array, "shape", ())), str(getattr(array, "dtype", type(array).__name__))
    if (shape, dtype) != (blob.shape, blob.dtype):
        raise ShapeError(f"blob {blob.name!r} takes {blob.dtype}{list(blob.shape)}, got {dtype}{list(shape)}")


def _array(place: Place) -> Array:
    return place[0] if isinstance(place, tuple) else place.array


def _add_up(total: Array, parts: Sequence[Array]) -> None:
    """Add to `total` in the order given."""
    for part in parts:
        total += part


def _locations(graph: Graph) -> list[Location]:
    """The objects that say where operators and blobs are; few, and found by identity, since hashing takes longer."""
    mentioned = [*[op.location for op in graph.ops], *[blob.tensor.location for blob in graph.blobs]]
    return list({id(location): location for location in mentioned}.values())


def _bind_blobs(
    plan: Plan, memory: Memory, devices: dict[Location, Device], ground: Ground, seed: int
) -> list[Place]:
    """A place for every blob: persistent ones from `memory`, views into their parents, the rest new or shared."""
    device = {id(location): devices[location] for location in _locations(plan.graph)}
    places: list[Any] = [None] * len(plan.graph.blobs)
    for blob in _as_written(plan):
        if blob in plan.views or places[blob.index] is not None:
            continue
        row_major = blob in plan.row_major
        if blob.persistent:
            places[blob.index] = memory.slot(blob, devices[blob.location], seed, row_major)
            continue
        shared = ground.array(blob)
        own = device[id(blob.tensor.location)]
        places[blob.index] = (_allocate(blob, own, row_major) if shared is None else shared,)
    for blob in plan.views:
        chain = [blob]
        while places[chain[-1].index] is None:
            chain.append(plan.views[chain[-1]].parent)
        whole = places[chain.pop().index]
        for part in reversed(chain):
            places[part.index] = whole = _part(whole, plan.views[part])
    return places


def _as_written(plan: Plan) -> Iterator[Blob]:
    """All blobs, sources first, then as a run writes them: what lies together in memory is touched together."""
    yield from (blob for blob in plan.graph.blobs if not blob.producers)
    for op in plan.order:
        yield from plan.graph.ops[op].outputs


def _part(whole: Place, view: View) -> Place:
    return (_cut(whole[0], view),) if isinstance(whole, tuple) else Part(whole, view)


def _cut(array: Array, view: View) -> Array:
    """The view's part of its parent's array. The ellipsis keeps an array without axes an array."""
    return array[(*(slice(start, stop) for start, stop in view.box), ...)].reshape(view.shape)
