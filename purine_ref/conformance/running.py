"""How an example is run: its executor, places and devices, in the order that its schedule names."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable
from typing import Any

from purine_ref.conformance.examples import Example
from purine_ref.conformance.schedules import VERSION, order_of, pct_schedule, random_schedule, ranked_schedule
from purine_ref.conformance.session import Session
from purine_ref.devices import Device, device_for, kernel_set
from purine_ref.devices.virtual import VirtualMachine
from purine_ref.errors import GraphError, Refused
from purine_ref.executors import Executor, Observer, Serial, Threaded
from purine_ref.executors.ranks import Ranks
from purine_ref.graph import Graph, Op
from purine_ref.parallel import Composed, pipeline_ranks
from purine_ref.plan import Plan, prepare
from purine_ref.tensor import Location

EXECUTORS: dict[str, Callable[..., Executor]] = {"serial": Serial, "threaded": Threaded, "ranks": Ranks}
"""The executors by name."""

MOST_YIELDS = 30
"""How often an operator that is held up lets other threads go first, at most."""


class Delays(Observer):
    """Holds operators up, when they start and when they end, for a time that depends on `seed` and on their names."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def started(self, op: Op, at: float) -> None:
        """Hold the operator up before it computes."""
        self._hold("started", op)

    def finished(self, op: Op, at: float) -> None:
        """Hold the operator up before its consumers may start."""
        self._hold("finished", op)

    def _hold(self, moment: str, op: Op) -> None:
        for _ in range(zlib.crc32(f"{self._seed}/{moment}/{op.name}".encode()) % MOST_YIELDS):
            os.sched_yield()


def open_session(example: Example, serial: Graph, composed: Composed) -> Session:
    """The composed graph in the example's executor, fed and read by the serial graph's names.

    Raises GraphError for an executor that there is not, Refused for a schedule that does not fit; what executors raise.
    """
    running = example.running
    if running.executor not in EXECUTORS:
        raise GraphError(f"no executor {running.executor!r}; there are {', '.join(EXECUTORS)}")
    machine = None
    devices: Callable[[Location], Device] = device_for
    if any(device >= 0 for _, device in example.composition.places):
        machine = VirtualMachine(seed=example.feeding.seed, longest_delay=running.delay * 1e-6, kernels=kernel_set())
        devices = machine.device
    options: dict[str, Any] = {"seed": example.feeding.seed, "devices": devices}
    if running.executor != "serial":
        options["threads"] = running.threads
    if running.delays:
        options["observer"] = Delays(running.delays)
    if running.schedule:
        options["order"] = order_of_text(prepare(composed, devices), running.schedule)
    executor = EXECUTORS[running.executor](composed, **options)
    if machine is None:
        return Session(executor, serial)
    return Session(executor, serial, faults=lambda: machine.races, close=machine.close)


def order_of_text(plan: Plan, text: str) -> list[str]:
    """The order of starts that an example's schedule names: see `examples.Running`.

    Raises Refused for text that is none or does not fit the graph, GraphError for `gpipe` without a pipeline.
    """
    return order_of(plan, schedule_string(plan, text))


def schedule_string(plan: Plan, text: str) -> str:
    """An example's schedule as a schedule string. Raises as `order_of_text`."""
    drawn = re.fullmatch(r"random:([0-9]+)|pct:([0-9]+):([0-9]+)", text)
    if drawn and drawn[1]:
        return random_schedule(plan, int(drawn[1]))
    if drawn:
        return pct_schedule(plan, int(drawn[2]), int(drawn[3]))
    if text in ("gpipe", "1f1b") and isinstance(plan.graph, Composed):
        return ranked_schedule(plan, pipeline_ranks(plan.graph, text))
    if text.startswith(f"{VERSION}:"):
        return text
    raise Refused(f"a schedule is a schedule string, random:SEED, pct:SEED:CHANGES, gpipe or 1f1b; got {text!r}")
