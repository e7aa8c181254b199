"""Operators that wait for something outside the graph: how plans, schedules and executors count, start and end them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from hooks import SHAPE, WATCH, Call, Gate, Trace, call, fail_with, raised_by, running
from purine_ref.devices.virtual import VirtualMachine
from purine_ref.errors import OperatorError, PeerLost, ShapeError
from purine_ref.executors import Executor, Serial, Simulated, Threaded, lanes
from purine_ref.executors.base import Run
from purine_ref.graph import Blob, Graph
from purine_ref.ops.transfer import Receive, Send
from purine_ref.plan import prepare
from purine_ref.schedule import Schedule, order_ranks
from purine_ref.tensor import Location, Tensor
from purine_ref.transports import Hub


class Door:
    """What the tests open for an operator. `opened` from the start, it opens as soon as somebody waits."""

    def __init__(self, opened: bool = False) -> None:
        self.opened = opened
        self.waits = threading.Event()
        self.arrived: Callable[[], None] | None = None

    def expect(self, arrived: Callable[[], None]) -> None:
        self.arrived = arrived
        self.waits.set()
        if self.opened:
            arrived()

    def open(self) -> None:
        assert self.waits.wait(WATCH), "nobody waits at the door"
        assert self.arrived is not None
        self.arrived()


@dataclass(frozen=True)
class Outside(Call):
    """A `Call` that may start when its door is open."""

    door: Door | None = None

    external = True

    def expect(self, kernels: Any, outputs: Any, arrived: Callable[[], None]) -> None:
        assert self.door is not None
        self.door.expect(arrived)


@dataclass(frozen=True)
class Early(Call):
    """A `Call` without inputs that writes its output when it is expected, and nothing when it computes."""

    external = True

    def expect(self, kernels: Any, outputs: Any, arrived: Callable[[], None]) -> None:
        for output in outputs:
            output[...] = kernels.key.iteration
        arrived()

    def compute(self, kernels: Any, inputs: Any, outputs: Any) -> None:
        self.action()


def outside(graph: Graph, name: str, door: Door, inputs: Sequence[Blob] = ()) -> Blob:
    """A new blob, made by an `Outside`."""
    blob = graph.blob(name, SHAPE, "float64")
    graph.connect(inputs, Outside(door=door), [blob], name=name)
    return blob


EXECUTORS = pytest.mark.parametrize("make", [Serial, partial(Threaded, threads=1), partial(Threaded, threads=3)])
Make = Callable[..., Executor]


# Plan and schedule --------------------------------------------------------------------------------------------------


def test_an_outside_edge_is_one_more_to_wait_for() -> None:
    graph = Graph("counts")
    a = call(graph, "a")
    late = outside(graph, "late", Door(), [a, a])
    outside(graph, "source", Door())
    call(graph, "z", [late])
    plan = prepare(graph)
    assert list(plan.waiting) == [0, 3, 1, 1]
    assert plan.first == (0,)
    assert plan.external == (1, 2)


@pytest.mark.parametrize("first", ["input", "message"])
def test_an_external_operator_waits_for_its_inputs_and_for_its_message(first: str) -> None:
    graph = Graph("both")
    outside(graph, "late", Door(), [call(graph, "a")])
    schedule = Schedule(prepare(graph))
    assert schedule.awaits()
    if first == "input":
        assert schedule.done(0) == []
        assert schedule.arrive(1) == [1]
    else:
        assert schedule.arrive(1) == []
        assert not schedule.awaits()
        assert schedule.done(0) == [1]
    assert schedule.done(1) == []
    assert not schedule.active()


def test_an_edge_is_opened_once_and_only_where_it_is() -> None:
    graph = Graph("misuse")
    call(graph, "z", [outside(graph, "late", Door())])
    schedule = Schedule(prepare(graph))
    message = "awaits nothing from outside: it is"
    with pytest.raises(RuntimeError, match=f"^<Op z Call> {message} waiting for 1 input edges$"):
        schedule.arrive(1)
    schedule.arrive(0)
    with pytest.raises(RuntimeError, match=f"^<Op late Outside> {message} ready$"):
        schedule.arrive(0)


def test_an_order_may_hold_external_operators_anywhere() -> None:
    graph = Graph("order")
    a = call(graph, "a")
    call(graph, "z", [outside(graph, "late", Door()), a])
    plan = prepare(graph)
    assert order_ranks(plan, ["late", "a", "z"]) == [1, 0, 2]
    with pytest.raises(ValueError, match=r"^order position 1: operator 'z' is waiting for 1 input edges$"):
        order_ranks(plan, ["late", "z", "a"])


def test_a_message_for_a_run_that_is_over_queues_nothing() -> None:
    graph = Graph("over")
    outside(graph, "late", Door())
    plan = prepare(graph)
    monitor = lanes.Lanes(plan, None, strict=False)
    over, run = Run(Schedule(plan), []), Run(Schedule(plan), [])
    assert monitor.start(over)
    assert monitor.halt(0.0)
    monitor.arrive(over, 0)
    assert monitor.start(run)
    monitor.arrive(over, 0)
    assert len(monitor.by_key[None].queue) == 0
    monitor.arrive(run, 0)
    assert len(monitor.by_key[None].queue) == 1


def test_one_ranks_graph_is_not_simulated() -> None:
    graph = Graph("part")
    outside(graph, "late", Door())
    message = r"^simulate needs the whole of graph 'part': 'late' waits for another rank$"
    with pytest.raises(ValueError, match=message):
        Simulated(graph)


# Executors ----------------------------------------------------------------------------------------------------------


@EXECUTORS
@pytest.mark.parametrize("opened", [True, False])
def test_it_starts_when_its_message_is_there(make: Make, opened: bool) -> None:
    graph, door, trace = Graph("waits"), Door(opened), Trace()
    call(graph, "z", [outside(graph, "late", door), call(graph, "a")])
    with make(graph, observer=trace) as executor:
        for _ in range(20):
            opener = threading.Thread(target=door.open)
            if not opened:
                opener.start()
            executor.run()
            if not opened:
                opener.join()
                door.waits.clear()
        assert executor.iteration == 20
        np.testing.assert_array_equal(executor.fetch("z"), np.full(SHAPE, 3.0))
    assert sorted(trace.names("finished")) == sorted(["a", "late", "z"] * 20)


@EXECUTORS
def test_whoever_waits_for_a_message_keeps_nobody_waiting(make: Make) -> None:
    """The door is opened by the last of a chain of operators beside it, also where there is one worker."""
    graph, door = Graph("beside"), Door()
    outside(graph, "late", door)
    last = call(graph, "b0")
    for number in range(1, 5):
        last = call(graph, f"b{number}", [last], door.open if number == 4 else lambda: None)
    with make(graph) as executor:
        for _ in range(20):
            executor.run()
            door.waits.clear()
        assert executor.iteration == 20


@pytest.mark.parametrize("make", [Serial, partial(Threaded, threads=3)])
def test_an_order_waits_for_the_message_whose_turn_it_is(make: Make) -> None:
    graph, trace = Graph("turns"), Trace()
    doors = {name: Door() for name in ("p", "q")}
    for name, door in doors.items():
        outside(graph, name, door)
    call(graph, "a", [], lambda: None)

    def open_both() -> None:
        for name in ("q", "p"):
            doors[name].open()

    opener = threading.Thread(target=open_both)
    opener.start()
    with make(graph, order=["p", "a", "q"], observer=trace) as executor:
        executor.run()
    opener.join()
    assert sorted(trace.names("started")) == ["a", "p", "q"]
    if make is Serial:
        assert trace.names("started") == ["p", "a", "q"]


@EXECUTORS
def test_r12_a_failure_ends_a_run_that_waits_for_a_message(make: Make) -> None:
    graph, door, broken = Graph("fails"), Door(), [True]
    outside(graph, "late", door)
    call(graph, "bad", [], lambda: broken[0] and fail_with(ValueError("boom"))())
    with make(graph) as executor:
        with pytest.raises(ValueError, match=raised_by("bad", "boom")):
            executor.run()
        broken[0] = False
        stale, door.opened = door.arrived, True
        executor.run()
        assert stale is not None
        stale()  # a message for the run that failed does no harm
        executor.run()
        assert executor.iteration == 2


@EXECUTORS
def test_closing_ends_a_run_that_waits_for_a_message(make: Make) -> None:
    graph, door, gate = Graph("closes"), Door(), Gate()
    call(graph, "z", [outside(graph, "late", door)])
    call(graph, "held", [], gate)
    trace = Trace()
    executor = make(graph, observer=trace)
    with running(executor, gate) as future:
        executor.close()
    with pytest.raises(RuntimeError, match=r"^executor of graph 'closes' was closed while it ran(\n.*)?$"):
        future.result(WATCH)
    assert not {"late", "z"} & set(trace.names("started"))


@EXECUTORS
def test_an_executor_can_be_failed_from_outside(make: Make) -> None:
    graph, door, gate = Graph("told"), Door(), Gate()
    outside(graph, "late", door)
    call(graph, "held", [], gate)
    with make(graph) as executor:
        executor.fail(PeerLost(3, "no run, no harm"))
        with running(executor, gate) as future:
            executor.fail(PeerLost(3, "no power"))
        with pytest.raises(PeerLost, match=r"^rank 3 is lost: no power$"):
            future.result(WATCH)
        door.opened = True
        executor.run()
        assert executor.iteration == 1


@EXECUTORS
def test_a_run_counts_when_it_is_committed(make: Make) -> None:
    graph = Graph("two steps")
    old, new = graph.blob("old", SHAPE, "float64"), graph.blob("new", SHAPE, "float64")
    graph.connect([old], Call(), [new], name="update")
    graph.swap(old, new)
    with make(graph) as executor:
        for _ in range(2):  # a run that was not committed leaves no trace
            executor.run_async()
            executor.sync(commit=False)
            assert executor.iteration == 0
            np.testing.assert_array_equal(executor.fetch("old"), np.zeros(SHAPE))
        executor.commit()
        assert executor.iteration == 1
        np.testing.assert_array_equal(executor.fetch("old"), np.ones(SHAPE))


# Send and receive ---------------------------------------------------------------------------------------------------


def test_an_end_of_a_transfer_computes_nothing() -> None:
    x = Tensor((2, 3), "float64")
    send, receive = Send(1, 4), Receive(0, 4, [2, 3], "float64")
    assert send.infer([x]) == ()
    assert receive.infer([]) == (x,)
    assert send.exact
    assert receive.exact
    assert (send.cost([x], []).flops, send.cost([x], []).bytes) == (0, 48)
    assert (receive.cost([], [x]).flops, receive.cost([], [x]).bytes) == (0, 48)
    assert (send.external, receive.external) == (False, True)


def test_an_end_of_a_transfer_refuses_other_edges_and_attributes() -> None:
    x = Tensor((2, 3), "float64")
    with pytest.raises(ShapeError, match=r"^Send: expected 1 inputs \(x\), got 2$"):
        Send(1, 4).infer([x, x])
    with pytest.raises(ShapeError, match=r"^Receive: expected no inputs, got 1$"):
        Receive(0, 4, (2, 3)).infer([x])
    with pytest.raises(ShapeError, match=r"^Send peer: expected an integer of 0 or more, got -1$"):
        Send(-1, 4)
    with pytest.raises(ShapeError, match=r"^Receive tag: expected an integer of 0 or more, got 'four'$"):
        Receive(0, "four", (2, 3))  # type: ignore[arg-type]


def test_without_a_transport_both_ends_say_so() -> None:
    message = "there is no transport to rank 7: give the executor one, or run the whole graph with Ranks"
    graph = Graph("alone")
    graph.connect([graph.blob("x", (2, 3))], Send(7, 0), [], name="out")
    with Serial(graph) as executor:
        note = r"operator 'out' \(Send\) at cpu, inputs: x float32\[2, 3\]"
        with pytest.raises(OperatorError, match=f"^Send: {message}\n{note}$"):
            executor.run()
    graph = Graph("alone")
    graph.connect([], Receive(7, 0, (2, 3)), [graph.blob("y", (2, 3))], name="in")
    note = r"operator 'in' \(Receive\) at cpu, inputs: none"
    for make in (Serial, Threaded):
        with make(graph) as executor:
            for _ in range(2):  # the second time as the first: the executor is idle again
                with pytest.raises(OperatorError, match=f"^Receive: {message}\n{note}$"):
                    executor.run()


def test_an_array_goes_from_one_graph_to_another() -> None:
    sender, receiver = Graph("sender"), Graph("receiver")
    sender.connect([sender.blob("x", (2, 3))], Send(1, 4), [])
    receiver.connect([], Receive(0, 4, (2, 3)), [receiver.blob("y", (2, 3))])
    hub = Hub([{}, {(0, 4): Tensor((2, 3))}])
    x = np.arange(6, dtype="float32").reshape(2, 3)
    with Serial(sender, transport=hub.transports[0]) as one, Serial(receiver, transport=hub.transports[1]) as other:
        for iteration in range(3):
            one.feed(x=x + iteration)
            one.run()
            other.run()
            np.testing.assert_array_equal(other.fetch("y"), x + iteration)


@EXECUTORS
def test_an_external_operator_is_given_its_output_when_it_is_expected(make: Make) -> None:
    graph = Graph("early")
    y = graph.blob("y", SHAPE, "float64")
    graph.connect([], Early(), [y], name="y")
    call(graph, "z", [y])
    with make(graph) as executor:
        for iteration in range(3):
            executor.run()
            assert executor.fetch("z").tolist() == np.full(SHAPE, 1.0 + iteration).tolist()


def test_where_a_device_orders_what_is_written_nothing_is_written_early() -> None:
    """The race detector sees what an operator writes only when it computes."""
    graph, given = Graph("late"), []

    @dataclass(frozen=True)
    class Asking(Early):
        def expect(self, kernels: Any, outputs: Any, arrived: Callable[[], None]) -> None:
            given.extend(outputs)
            arrived()

    graph.connect([], Asking(), [graph.blob("y", SHAPE, "float64", Location(0, 0))], name="y")
    with closing(VirtualMachine(longest_delay=0)) as machine, Threaded(graph, devices=machine.device) as executor:
        executor.run()
    assert given == []
