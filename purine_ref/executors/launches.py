"""Operators on asynchronous devices: each is launched behind the events of its inputs, and leaves its own.

What is fixed: which work must signal, found once from the plan, so that an event is made for a blob that crosses from
one queue to another, and for no other. What changes: during a run, the events that must happen before each blob may be
read, which an operator appends to before its consumers may start; and between runs, where work goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from purine_ref.devices import Device, Event, Work
from purine_ref.devices.streams import Recording
from purine_ref.devices.work import HOST, queue_of
from purine_ref.operation import Array
from purine_ref.plan import Plan
from purine_ref.tensor import Location

SUMS = "main"
"""The stream, of a blob's device, that adds up what its producers contribute (rule R4)."""


class Launches:
    """The launches of one plan."""

    def __init__(self, plan: Plan, devices: Mapping[Location, Device]) -> None:
        self._recording: Recording | None = None
        self._plan = plan
        self._devices = devices
        self._signals = signals(plan)
        self._events: list[list[Event]] = [[] for _ in plan.graph.blobs]

    def begin(self) -> None:
        """A run begins: every blob that no operator writes may be read."""
        for events in self._events:
            events.clear()

    @contextmanager
    def into(self, recording: Recording) -> Iterator[None]:
        """Within this context work is put down in the recording."""
        self._recording = recording
        try:
            yield
        finally:
            self._recording = None

    def operator(
        self, index: int, compute: Callable[[], None] | None, reads: Sequence[Array], writes: Sequence[Array]
    ) -> None:
        """Launch an operator behind the events of its inputs. One that moves nothing, None, passes them on."""
        op = self._plan.graph.ops[index]
        events = [event for blob in self._plan.inputs[index] for event in self._events[blob]]
        if compute is not None:
            moves = hasattr(op.operation, "to")
            signals = op.index in self._signals.ops
            where = op.location, op.stream
            events = self._submit(Work(op.name, *where, compute, reads, writes, events, moves, op.describe, signals))
        for blob in self._plan.outputs[index]:
            self._events[blob] += events

    def addition(self, index: int, compute: Callable[[], None], total: Array, parts: Sequence[Array]) -> None:
        """Launch the additions of rule R4 at the blob's place, behind all contributions."""
        blob = self._plan.graph.blobs[index]
        launch = partial(Work, f"additions to {blob.name}", blob.location, SUMS, compute, [total, *parts], [total])
        self._events[index] = self._submit(launch(self._events[index], signals=index in self._signals.sums))

    def _submit(self, work: Work) -> list[Event]:
        """Submit work; returns the events that whoever reads what it writes must wait for."""
        submit = self._devices[work.location].submit if self._recording is None else self._recording.submit
        event = submit(work)
        return [] if event is None else [event]


class Signals:
    """The operators, and the blobs whose contributions are added, that another queue or the host waits for."""

    def __init__(self) -> None:
        self.ops: set[int] = set()
        self.sums: set[int] = set()


def signals(plan: Plan) -> Signals:
    """Find them: by who reads each blob, through operators that move nothing."""
    found = Signals()
    readers: list[set[str]] = [set() for _ in plan.graph.blobs]  # queues of what waits for the blob, once complete

    def first_readers(index: int) -> set[str]:
        """Queues of what waits for a contribution to the blob."""
        blob = plan.graph.blobs[index]
        return {queue_of(blob.location, SUMS)} if plan.producers[index] > 1 else readers[index]

    for number in reversed(plan.order):
        op = plan.graph.ops[number]
        queue = queue_of(op.location, op.stream)
        behind = set().union(*(first_readers(output) for output in plan.outputs[number]))
        if op not in plan.idle and _elsewhere(behind, queue):
            found.ops.add(number)
        for needed in plan.inputs[number]:
            readers[needed] |= behind if op in plan.idle else {queue}
    for blob in plan.graph.blobs:
        if plan.producers[blob.index] > 1 and _elsewhere(readers[blob.index], queue_of(blob.location, SUMS)):
            found.sums.add(blob.index)
    return found


def _elsewhere(readers: set[str], queue: str) -> bool:
    """Whether a reader must wait: one of another queue, or any on the host, which has no order of its own."""
    return bool(readers - {queue}) or HOST in readers
