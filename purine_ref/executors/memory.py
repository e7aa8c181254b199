"""Binding a plan to arrays: one for each root blob, views for the others, staging for later producers (rule R4).

`Memory` holds what outlives a run: persistent blobs by name, shared by every executor that is given it. A `Binding`
belongs to one executor. An array sits in a `Slot`, so that the swap of rule R6 exchanges two pointers and every
operator, of any executor, sees it from the next run on. What is fixed after binding: the slots. What changes, between
runs: the arrays in those that last, and with them what operators are called with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from purine_ref.devices import Device, Event, Work
from purine_ref.errors import GraphError, ShapeError
from purine_ref.graph import Blob, Graph, View
from purine_ref.operation import Array, Kernels, RunKey
from purine_ref.plan import Plan
from purine_ref.tensor import Location, Tensor
from purine_ref.transports import Transport


class Slot:
    """A place for one array."""

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


class Memory:
    """Persistent arrays by blob name. Executors that share one share these blobs, and nothing else.

    Only one of them may run at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the dictionary while executors bind to it
        self._slots: dict[str, tuple[Tensor, Lasting]] = {}

    def slot(self, blob: Blob, device: Device, seed: int) -> Lasting:
        """The slot of a persistent blob; a new one holds its initial value, or zeros.

        Raises ShapeError when the name is held already with another shape, dtype or place.
        """
        with self._lock:
            if blob.name not in self._slots:
                self._slots[blob.name] = (blob.tensor, Lasting(_initial(blob, device, seed)))
            tensor, slot = self._slots[blob.name]
        if tensor != blob.tensor:
            raise ShapeError(
                f"blob {blob.name!r} of graph {blob.graph.name!r} is {blob.tensor} at {blob.location}, but the memory "
                f"holds {tensor} at {tensor.location} under that name: use one description, or another memory"
            )
        return slot

    def get(self, name: str) -> Array:
        """A copy of what `name` holds now. Raises KeyError when no executor has bound it."""
        with self._lock:
            return self._slots[name][1].array.copy()

    def put(self, name: str, tensor: Tensor, array: Array) -> None:
        """Hold `array` under `name` before any executor binds it. Raises ShapeError when the name is held already."""
        with self._lock:
            if name in self._slots:
                raise ShapeError(f"blob {name!r} is held already: restore values before executors bind to the memory")
            self._slots[name] = (tensor, Lasting(array.copy()))

    def swap(self, current: Blob, following: Blob) -> None:
        """Exchange the arrays of two blobs that are held (rule R6)."""
        a, b = self._slots[current.name][1], self._slots[following.name][1]
        a.array, b.array = b.array, a.array


def _initial(blob: Blob, device: Device, seed: int) -> Array:
    array = device.allocate(blob.tensor, blob.name)
    operation = blob.graph.initial.get(blob.name)
    if operation is not None:
        operation.compute(device.kernels(RunKey(seed)), (), (array,))
    return array


class Call(NamedTuple):
    """How to run one operator: `compute`, None where it moves nothing; the number of its place; its edges' arrays."""

    compute: Callable[[Kernels, Sequence[Array], Sequence[Array]], None] | None
    place: int
    inputs: list[Array]
    outputs: list[Array]


class Binding:
    """A plan bound to arrays. `calls` say how each operator is run; `asynchronous`, that a device only enqueues."""

    def __init__(self, plan: Plan, memory: Memory, devices: Callable[[Location], Device], seed: int) -> None:
        self.plan = plan
        self._memory = memory
        self._devices = {place: devices(place) for place in _places(plan.graph)}
        self._number = {place: number for number, place in enumerate(self._devices)}
        self._slots = _bind_blobs(plan, memory, self._devices, seed)
        self._later: dict[int, list[Slot]] = {}  # for each blob with several producers, the slots of all but the first
        self._lasting: list[tuple[Call, list[Slot | Part], list[Slot | Part]]] = []  # calls whose arrays may change
        self.calls = [self._call(index) for index in range(len(plan.graph.ops))]
        self.asynchronous = any(device.asynchronous for device in self._devices.values())
        self._events: list[list[Event]] = [[] for _ in plan.graph.blobs]  # what must happen before each may be read

    def _call(self, index: int) -> Call:
        op = self.plan.graph.ops[index]
        inputs = [self._slots[blob.index] for blob in op.inputs]
        outputs = [self._output(blob, index, slot) for slot, blob in enumerate(op.outputs)]
        compute = None if op in self.plan.idle else op.operation.compute
        call = Call(compute, self._number[op.location], _arrays(inputs), _arrays(outputs))
        if any(isinstance(slot, (Lasting, Part)) for slot in (*inputs, *outputs)):
            self._lasting.append((call, inputs, outputs))
        return call

    def _output(self, blob: Blob, op: int, slot: int) -> Slot | Part:
        """The first edge writes the blob itself; each later one a buffer of its own, to be added in its turn."""
        first, first_slot = blob.producers[0]
        if (first.index, first_slot) == (op, slot):
            return self._slots[blob.index]
        staging = Slot(self._devices[blob.location].allocate(blob.tensor, f"{blob.name} (contribution)"))
        self._later.setdefault(blob.index, []).append(staging)
        return staging

    def begin(self, key: RunKey, transport: Transport | None = None) -> list[Kernels]:
        """Begin a run; returns its vocabularies, one for each place, with the way to other ranks."""
        for events in self._events if self.asynchronous else ():
            events.clear()
        for call, inputs, outputs in self._lasting:
            call.inputs[:], call.outputs[:] = _arrays(inputs), _arrays(outputs)
        kernels = [device.kernels(key) for device in self._devices.values()]
        for vocabulary in kernels:
            vocabulary.transport = transport
        return kernels

    def expect(self, op: int, kernels: Sequence[Kernels], arrived: Callable[[], None]) -> None:
        """Have `arrived` called when external operator `op` may start."""
        self.plan.graph.ops[op].operation.expect(kernels[self.calls[op].place], arrived)

    def call(self, op: int, kernels: Sequence[Kernels]) -> None:
        """Compute operator `op` from its input arrays into its output arrays."""
        call = self.calls[op]
        if self.asynchronous:
            self._submit(op, call, kernels)
        elif call.compute is not None:
            call.compute(kernels[call.place], call.inputs, call.outputs)

    def combine(self, blob: int) -> None:
        """Add the later contributions to a complete blob, in the order of its edges (rule R4)."""
        if blob not in self._later:
            return
        if self.asynchronous:
            self._submit_sum(blob)
        else:
            _add_up(self._slots[blob].array, _arrays(self._later[blob]))

    # Asynchronous devices: an operator is enqueued, and an event goes with every blob it makes ---------------------

    def _submit(self, index: int, call: Call, kernels: Sequence[Kernels]) -> None:
        """Enqueue an operator behind the events of its inputs. One that moves nothing passes them on."""
        op = self.plan.graph.ops[index]
        events = [event for blob in self.plan.inputs[index] for event in self._events[blob]]
        if call.compute is not None:
            inputs, outputs = call.inputs.copy(), call.outputs.copy()  # the lists change with the next run
            compute = partial(call.compute, kernels[call.place], inputs, outputs)
            moves = hasattr(op.operation, "to")
            ends = inputs, outputs, events
            events = self._after(Work(op.name, op.location, op.stream, compute, *ends, moves, op.describe))
        for blob in self.plan.outputs[index]:
            self._events[blob] += events

    def _submit_sum(self, index: int) -> None:
        """Enqueue the additions of rule R4 at the blob's place."""
        blob = self.plan.graph.blobs[index]
        total, parts = self._slots[index].array, _arrays(self._later[index])
        name = f"additions to {blob.name}"
        compute = partial(_add_up, total, parts)
        work = Work(name, blob.location, "main", compute, [total, *parts], [total], self._events[index])
        self._events[index] = self._after(work)

    def _after(self, work: Work) -> list[Event]:
        """Submit work behind the events of other queues; its own keeps its order anyway. Returns its own event."""
        others = tuple(event for event in work.after if event.queue != work.queue or work.queue == "host")
        event = self._devices[work.location].submit(replace(work, after=others))
        return [] if event is None else [event]

    def synchronise(self) -> list[BaseException]:
        """Wait for everything that was enqueued; returns what failed."""
        return [error for device in self._devices.values() for error in device.synchronise()]

    def swap(self) -> None:
        """Exchange the arrays of every pair (rule R6)."""
        for current, following in self.plan.graph.pairs:
            self._memory.swap(current, following)

    def read(self, blob: Blob) -> Array:
        """A copy of a blob's array. Raises GraphError when its memory was given to another blob's value (rule R5)."""
        if blob in self.plan.lost:
            raise GraphError(f"blob {blob.name!r} was overwritten in place: fetch what overwrote it, or give it memory")
        return self._slots[blob.index].array.copy()

    def write(self, blob: Blob, array: Array) -> None:
        """Fill a blob that no operator writes. Raises ShapeError for another shape or dtype, GraphError else."""
        if blob.producers:
            writer = blob.producers[0][0].name
            raise GraphError(f"blob {blob.name!r} is written by operator {writer!r}; feed a source blob")
        shape, dtype = tuple(getattr(array, "shape", ())), str(getattr(array, "dtype", type(array).__name__))
        if (shape, dtype) != (blob.shape, blob.dtype):
            raise ShapeError(f"blob {blob.name!r} takes {blob.dtype}{list(blob.shape)}, got {dtype}{list(shape)}")
        self._slots[blob.index].array[...] = array


def _arrays(slots: Sequence[Slot | Part]) -> list[Array]:
    return [slot.array for slot in slots]


def _add_up(total: Array, parts: Sequence[Array]) -> None:
    """Add to `total` in the order given."""
    for part in parts:
        total += part


def _places(graph: Graph) -> set[Location]:
    return {blob.location for blob in graph.blobs} | {op.location for op in graph.ops}


def _bind_blobs(plan: Plan, memory: Memory, devices: dict[Location, Device], seed: int) -> list[Slot | Part]:
    """A slot for every blob: persistent ones from `memory`, views into their parents, the rest new."""
    slots: dict[Blob, Slot | Part] = {}
    for blob in plan.graph.blobs:
        chain = [blob]
        while chain[-1] in plan.views and chain[-1] not in slots:
            chain.append(plan.views[chain[-1]].parent)
        for link in reversed(chain):
            if link not in slots:
                slots[link] = _bind_blob(link, plan.views.get(link), slots, memory, devices[link.location], seed)
    return [slots[blob] for blob in plan.graph.blobs]


def _bind_blob(
    blob: Blob, view: View | None, slots: dict[Blob, Slot | Part], memory: Memory, device: Device, seed: int
) -> Slot | Part:
    if view is not None:
        whole = slots[view.parent]
        lasting = isinstance(whole, (Lasting, Part))
        return Part(whole, view) if lasting else Slot(_cut(whole.array, view))
    if blob.persistent:
        return memory.slot(blob, device, seed)
    return Slot(device.allocate(blob.tensor, blob.name))


def _cut(array: Array, view: View) -> Array:
    """The view's part of its parent's array. The ellipsis keeps an array without axes an array."""
    return array[(*(slice(start, stop) for start, stop in view.box), ...)].reshape(view.shape)
