"""The capturing executor: an iteration on accelerators is recorded once, and launched as a whole ever after.

The first run launches one operator after the other, as `Serial` does, so that all is there that devices make on first
use. A later run meets the persistent arrays in one of few arrangements, since a swap (rule R6) exchanges two of them.
For each arrangement the iteration is recorded when it is first met, and replayed then and every later time. What
differs from run to run otherwise is the iteration, which keys random numbers: the vocabularies that were recorded with
are kept, and told it before each replay.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from purine_ref.devices import Device
from purine_ref.devices.streams import Machine, Recording
from purine_ref.errors import GraphError
from purine_ref.executors.base import Run
from purine_ref.executors.memory import Binding
from purine_ref.executors.observer import notify
from purine_ref.executors.serial import Serial
from purine_ref.graph import Graph
from purine_ref.operation import Array, Kernels, RunKey
from purine_ref.plan import Plan
from purine_ref.schedule import Schedule
from purine_ref.tensor import Location


@dataclass(frozen=True, slots=True)
class _Take:
    """A recorded iteration: for which persistent arrays, with which vocabularies, its operators in which order."""

    arrays: Sequence[Array]
    kernels: Sequence[Kernels]
    recording: Recording
    order: Sequence[int]


class Captured(Serial):
    """Runs a graph on the accelerators of one machine. The keywords are those of `Executor`, without `transport`.

    Raises GraphError that names every operator that cannot be recorded: those that compute on a CPU, and those that
    wait for something outside the graph. Raises it too where `devices` has no machine for the graph's places, or
    several.
    """

    def __init__(self, graph: Graph, **keywords: Any) -> None:
        if keywords.get("transport") is not None:
            raise GraphError(f"graph {graph.name!r} cannot be recorded with a transport: use Serial, Threaded or Hosts")
        super().__init__(graph, **keywords)
        self._warm = False
        self._takes: dict[tuple[int, ...], _Take] = {}  # by the identities of the persistent arrays, which each keeps

    def _bind(self, devices: Callable[[Location], Device]) -> Binding:
        problems = [f"graph {self.graph.name!r} cannot be recorded: {why}" for why in _obstacles(self.plan)]
        if problems:
            raise GraphError(problems)
        self._machine = _machine(self.plan, devices)
        return super()._bind(devices)

    def commit(self) -> None:
        """Make the run that succeeded count. From then on, runs are replays."""
        super().commit()
        self._warm = True

    def _start(self, run: Run) -> None:
        if not self._warm or not self.graph.ops:
            super()._start(run)
            return
        arrays = self._bound.persistent()
        key = tuple(id(array) for array in arrays)
        take = self._takes.get(key) or self._record(run, arrays)
        if take is None:
            return
        self._takes[key] = take
        if run.schedule.halted:  # closed meanwhile, maybe before this recording was there
            self._let_go()
        else:
            self._replay(run, take)

    def _record(self, run: Run, arrays: Sequence[Array]) -> _Take | None:
        """Put the iteration down; None when an operator fails at that, which fails the run."""
        schedule, order, thread = Schedule(self.plan), [], threading.get_ident()
        waiting = deque(schedule.ready())
        launches = self._bound.launches
        assert launches is not None, "there is a machine, so devices are asynchronous"
        try:
            with self._machine.record() as recording, launches.into(recording):
                while waiting:
                    order.append(waiting.popleft())
                    self._computing[thread] = self.graph.ops[order[-1]]
                    self._bound.call(order[-1], run.kernels)
                    complete = schedule.finish(order[-1])
                    for blob in complete:
                        self._bound.combine(blob)
                    waiting += schedule.release(order[-1], complete)
        except BaseException as error:
            if not order or not schedule.active():  # no operator's
                raise
            run.failures.append(self._failed(self.graph.ops[order[-1]], error))
            self._report_failure(order[-1], error)
            return None
        finally:
            self._computing.pop(thread, None)
        return _Take(arrays, run.kernels, recording, order)

    def _replay(self, run: Run, take: _Take) -> None:
        """Launch it, and tell the observer."""
        for vocabulary in take.kernels:
            vocabulary.key = RunKey(self.seed, self.iteration)
        take.recording.replay()
        if self._observer is None:
            run.schedule.walk(run.schedule.ready())
            return
        for op in take.order:
            notify(self._observer.started, self.graph.ops[op], self._clock())
            complete = run.schedule.finish(op)
            for blob in complete:
                self._report_sum(blob)
            self._finished(self._observer, self.graph.ops[op])
            for blob in complete:
                notify(self._observer.ready, self.graph.blobs[blob], self._clock())
            run.schedule.release(op, complete)

    def _stop(self) -> None:
        super()._stop()
        self._let_go()

    def _let_go(self) -> None:
        takes, self._takes = self._takes, {}
        for take in takes.values():
            take.recording.close()


def _obstacles(plan: Plan) -> Iterator[str]:
    """Why the plan cannot be recorded, each with the name of an operator or a blob."""
    for op in plan.graph.ops:
        if op.operation.external:
            yield f"{op.describe()} waits for something outside the graph"
        elif op.location.is_cpu and op not in plan.idle:
            yield f"{op.describe()} computes on a CPU"
    for blob in plan.graph.blobs:
        if blob.location.is_cpu and plan.producers[blob.index] > 1:
            yield f"the contributions to blob {blob.name!r} are added on a CPU"


def _machine(plan: Plan, devices: Callable[[Location], Device]) -> Machine:
    """The one machine of all places. Raises GraphError where there is none, or several."""
    places = {op.location for op in plan.graph.ops} | {blob.location for blob in plan.graph.blobs}
    found = {place: devices(place).machine for place in sorted(places or {Location()})}
    machines = {id(machine): machine for machine in found.values()}
    if len(machines) == 1:
        [machine] = machines.values()
        if machine is not None:
            return machine
    numbers = {key: "none" if one is None else f"machine {n}" for n, (key, one) in enumerate(machines.items(), 1)}
    told = ", ".join(f"{place} of {numbers[id(machine)]}" for place, machine in found.items())
    raise GraphError(
        f"graph {plan.graph.name!r} cannot be recorded: its devices must be of one machine with streams, got {told}"
    )
