"""The capturing executor on virtual devices: the contract of executors, where it applies; recordings and replays."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest

from hooks import SHAPE, WATCH, Call, Gate, Observer, Swallow, Trace, bits, running
from purine_ref import optim
from purine_ref.conformance.session import Session
from purine_ref.devices import CpuDevice
from purine_ref.devices.streams import Recording
from purine_ref.devices.virtual import VirtualDevice, VirtualMachine, virtual_locations
from purine_ref.errors import GraphError
from purine_ref.executors import Captured, Memory, Serial
from purine_ref.executors.launches import Launches
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph
from purine_ref.ops import Copy, Gaussian, Scale, Sum
from purine_ref.ops.transfer import Receive
from purine_ref.parallel import Data, Hybrid, Pipeline, Refiner, compose
from purine_ref.tensor import Location, Tensor
from suites.executors import ExecutorSuite, Make
from test_parallel import tiny

HOST, ONE, TWO = Location(), Location(0, 0), Location(0, 1)


class Seat(Location):
    """A device that is called as the suite calls the place of its graphs."""

    def __str__(self) -> str:
        return "cpu"


SEAT = Seat(0, 0)


class JunkDevice(VirtualDevice):
    """Its new memory holds NaN, or 7 for integers: what is read before it is written shows."""

    def allocate(self, tensor: Tensor, name: str = "", *, row_major: bool = False) -> Any:
        array = super().allocate(tensor, name, row_major=row_major)
        array.fill(np.nan if tensor.is_float else 7)
        return array


class JunkMachine(VirtualMachine):
    def device(self, location: Location) -> VirtualDevice:
        with self.lock:
            return self._devices.setdefault(location, JunkDevice(self, location, "numpy"))


def seated(graph: Graph) -> Graph:
    """The graph, with all that was on the CPU on a device."""
    for blob in graph.blobs:
        blob.tensor = blob.tensor.at(SEAT)
    for op in graph.ops:
        op.location = SEAT
    return graph


class Alone(Captured):
    """On a machine of its own, which is closed with it. `warm` has the very first run recorded."""

    def __init__(self, graph: Graph, *, warm: bool, devices: object = None, **keywords: Any) -> None:
        self.machine = VirtualMachine() if devices is None else JunkMachine()
        super().__init__(seated(graph), devices=self.machine.device, **keywords)
        self._warm = warm

    def close(self) -> None:
        super().close()
        self.machine.close()
        assert [str(race) for race in self.machine.races] == []


class TestCaptured(ExecutorSuite):
    @pytest.fixture(params=[False, True], ids=["live", "recorded"])
    def make(self, request: pytest.FixtureRequest) -> Make:
        def make(graph: Graph, **keywords: Any) -> Captured:
            return Alone(graph, warm=request.param, **keywords)

        return make

    def test_r12_ctrl_c_ends_a_run_and_the_next_is_clean(self, make: Make) -> None:
        gc.collect()  # an interrupt that meets the end of an earlier test's device would be lost there
        super().test_r12_ctrl_c_ends_a_run_and_the_next_is_clean(make)

    # What follows does not apply: on a device, an operator has started and finished when it was launched, its errors
    # come out of `sync`, and it computes on no thread of the executor. Below is what holds instead.
    test_sc_04_an_operator_that_raises = None  # type: ignore[assignment]
    test_an_observer_that_fails_cannot_break_a_run = None  # type: ignore[assignment]
    test_an_operator_cannot_drive_its_own_executor = None  # type: ignore[assignment]
    test_closing_in_the_middle_of_a_run = None  # type: ignore[assignment]
    # These make another executor, or device, for a graph that has been seated.
    test_r8_the_bits_of_the_serial_executor = None  # type: ignore[assignment]
    test_sc_04_what_fails_while_it_is_made_leaves_no_thread = None  # type: ignore[assignment]


@contextmanager
def counted(owner: Any, name: str) -> Iterator[list[Any]]:
    """The arguments of all calls of a method."""
    calls: list[Any] = []
    right = getattr(owner, name)

    def method(self: Any, *arguments: Any) -> Any:
        calls.append(arguments)
        return right(self, *arguments)

    with mock.patch.object(owner, name, method):
        yield calls


# Graphs of one machine ----------------------------------------------------------------------------------------------


def trained(graph: Graph) -> Graph:
    """The graph with gradients and an update, whose rate is fed."""
    optim.sgd(backward(graph["loss"]))
    return graph


def steps(session: Session, runs: int = 5) -> list[dict[str, bytes]]:
    """The bits after each of some runs, each with a batch and a rate of its own."""
    rng = np.random.default_rng(3)
    graph, held = session.serial, []
    with session:
        for run in range(runs):
            x = rng.standard_normal(graph["x"].shape).astype(graph["x"].dtype)
            session.feed({"x": x, "label": rng.integers(0, 4, graph["label"].shape), "rate": np.float32(2.0**-run)})
            session.run()
            held.append(bits(session.executor))
    return held


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize(
    ("refiner", "places"),
    [
        (Data(1), [ONE]),
        (Data(2), [ONE, TWO]),
        (Pipeline(2, 3), [ONE, TWO]),
        (Hybrid(2, 2), virtual_locations(4)),
    ],
    ids=["one", "data", "pipeline", "hybrid"],
)
def test_r8_replays_have_the_bits_of_the_serial_executor(refiner: Refiner, places: list[Location], reuse: bool) -> None:
    """Over runs with dropout, swaps and rates that change; nothing races, and what was recorded once is not again."""
    graph = trained(tiny("float32"))
    composed = compose(graph, [refiner], places)
    with closing(VirtualMachine(seed=4)) as machine:
        captured = Captured(composed, seed=5, devices=machine.device, reuse=reuse)
        keep = {"reuse": True} if reuse else {}
        plain = Serial(composed, seed=5, devices=lambda _: CpuDevice(), **keep)
        with counted(Launches, "operator") as launched:
            assert steps(Session(captured, graph)) == steps(Session(plain, graph))
        assert len(launched) == 3 * len(composed.ops)  # live, and one recording for each of two arrangements
        assert [str(race) for race in machine.races] == []


def called(graph: Graph, name: str, inputs: list[Blob], action: Callable[[], object], place: Location = ONE) -> Blob:
    """A new blob on a device, made by a `Call`."""
    blob = graph.blob(name, SHAPE, "float64", place)
    graph.connect(inputs, Call(action), [blob], name=name, location=place)
    return blob


def test_what_is_fed_to_the_host_is_copied_in_by_every_replay() -> None:
    graph = Graph("fed")
    (inside,) = graph.apply(Copy(ONE), [graph.blob("x", SHAPE)], "inside", location=ONE, stream="inbound")
    (y,) = graph.apply(Scale(2.0), [inside], "y", location=ONE)
    graph.apply(Copy(HOST), [y], "out", location=ONE, stream="outbound")
    with closing(VirtualMachine()) as machine, Captured(graph, devices=machine.device) as captured:
        for value in range(5):
            captured.feed(x=np.full(SHAPE, value, np.float32))
            captured.run()
            np.testing.assert_array_equal(captured.fetch("out"), np.full(SHAPE, 2.0 * value))
        assert machine.races == []


def test_r6_two_graphs_take_turns_on_one_memory() -> None:
    """Each has as many arrangements as the other's swaps and its own make, and finds the one that it meets."""
    fetch, network = Graph("fetch"), Graph("network")
    for graph, names in ((fetch, ("batch", "following")), (network, ("state", "next"))):
        for name in names:
            graph.blob(name, SHAPE, "float64", ONE)
    fetch.connect([fetch["batch"]], Call(), [fetch["following"]], location=ONE)
    fetch.swap(fetch["batch"], fetch["following"])
    data = network.blob("batch", SHAPE, "float64", ONE, persistent=True)
    network.connect([network["state"], data], Sum(), [network["next"]], location=ONE)
    network.swap(network["state"], network["next"])
    memory = Memory()
    with closing(VirtualMachine()) as machine:
        first = Captured(fetch, memory=memory, devices=machine.device)
        second = Captured(network, memory=memory, devices=machine.device)
        with first, second, counted(VirtualMachine, "record") as recorded:
            for _ in range(9):
                first.run()
                if first.iteration % 3:
                    second.run()
            np.testing.assert_array_equal(second.fetch("batch"), np.full(SHAPE, 9.0))
            np.testing.assert_array_equal(second.fetch("state"), np.full(SHAPE, 1.0 + 2 + 4 + 5 + 7 + 8))
        assert len(recorded) == 2 + 4
        assert machine.races == []


def test_r7_every_replay_draws_by_its_own_iteration() -> None:
    graph = Graph("draws")
    graph.apply(Gaussian((5, 3)), [], "noise", location=ONE)
    with closing(VirtualMachine()) as machine, Captured(graph, seed=2, devices=machine.device) as captured:
        with Serial(graph, seed=2, devices=lambda _: CpuDevice()) as serial:
            for iteration in (0, 1, 2, 7, 8):
                captured.iteration = serial.iteration = iteration
                captured.run()
                serial.run()
                assert bits(captured) == bits(serial)


# Failures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_r12_a_failure_in_a_replay_comes_out_as_in_a_run_and_the_next_is_clean(kind: type[BaseException]) -> None:
    graph, broken, ran = Graph("fails"), [False], []

    def b() -> None:
        if broken[0]:
            raise kind("boom")

    a = called(graph, "a", [], lambda: ran.append("a"))
    c = called(graph, "c", [called(graph, "b", [a], b)], lambda: ran.append("c"))
    graph.apply(Copy(TWO), [c], "away", location=ONE, stream="outbound")
    graph.connect([graph["away"]], Swallow(lambda x: ran.append("sink")), [], name="sink", location=TWO)
    old, new = graph.blob("old", SHAPE, "float64", ONE), graph.blob("new", SHAPE, "float64", ONE)
    graph.connect([old], Call(), [new], location=ONE)
    graph.swap(old, new)
    with closing(VirtualMachine()) as machine, Captured(graph, devices=machine.device) as captured:
        for _ in range(3):
            captured.run()
        for _ in range(2):
            broken[0] = True
            ran.clear()
            with pytest.raises(kind, match=r"^'?boom'?\noperator 'b' \(Call\) at device0, inputs: a ") as caught:
                captured.run()
            assert type(caught.value) is kind
            assert ran == ["a"]
            broken[0] = False
        captured.run()
        assert captured.iteration == 4
        np.testing.assert_array_equal(captured.fetch("old"), np.full(SHAPE, 4.0))
        assert ran == ["a", "a", "c", "sink"]
        assert machine.races == []


@pytest.mark.parametrize("warm", [0, 1, 2])
def test_r12_closing_in_the_middle(warm: int) -> None:
    """Of a live run, of one that is recorded, and of one that was: what runs on a device ends, and the run does not."""
    graph, gate, held = Graph("middle"), Gate(), [False]
    called(graph, "y", [called(graph, "x", [], lambda: held[0] and gate())], lambda: None)
    with closing(VirtualMachine()) as machine:
        captured = Captured(graph, devices=machine.device)
        for _ in range(warm):
            captured.run()
        held[0] = True
        with running(captured, gate) as future:
            captured.close()
        with pytest.raises(RuntimeError, match=r"^executor of graph 'middle' was closed while it ran$"):
            future.result(WATCH)
        assert captured.iteration == warm


def test_an_observer_that_fails_breaks_no_replay(caplog: pytest.LogCaptureFixture) -> None:
    class Bad(Observer):
        def started(self, *facts: object) -> None:
            raise SystemExit("observer")

    graph = Graph("watched")
    called(graph, "y", [called(graph, "x", [], lambda: None)], lambda: None)
    with closing(VirtualMachine()) as machine, Captured(graph, devices=machine.device, observer=Bad()) as captured:
        for _ in range(3):
            captured.run()
    assert len(caplog.records) == 3 * 2
    caplog.clear()


def test_a_replay_is_told_to_the_observer_as_a_run_is() -> None:
    graph, trace = trained(tiny()), Trace()
    composed = compose(graph, [Data(2)], [ONE, TWO])
    with closing(VirtualMachine()) as machine:
        with Captured(composed, devices=machine.device, observer=trace) as captured:
            runs = []
            for _ in range(4):
                captured.run()
                runs.append(trace.events[:])
                trace.events.clear()
    assert runs[0] == runs[1] == runs[2] == runs[3]
    assert len(runs[0]) == 2 * len(composed.ops)


# What cannot be recorded --------------------------------------------------------------------------------------------


def test_operators_that_cannot_be_recorded_are_refused_by_name() -> None:
    graph = Graph("mixed")
    total = graph.blob("total", SHAPE)
    x = graph.blob("x", SHAPE)
    graph.connect([x], Scale(2.0), [total], name="on the host")
    graph.connect([graph.blob("y", SHAPE, location=ONE)], Copy(HOST), [total], name="out", location=ONE)
    graph.apply(Receive(1, 0, SHAPE), [], "message", location=ONE)
    graph.apply(Scale(2.0), [graph.blob("z", SHAPE, location=ONE)], "fine", location=ONE)
    with closing(VirtualMachine()) as machine, pytest.raises(GraphError) as refused:
        Captured(graph, devices=machine.device)
    assert refused.value.problems == (
        "graph 'mixed' cannot be recorded: operator 'on the host' (Scale) at cpu, inputs: x float32[3, 2] computes on "
        "a CPU",
        "graph 'mixed' cannot be recorded: operator 'message' (Receive) at device0, inputs: none waits for something "
        "outside the graph",
        "graph 'mixed' cannot be recorded: the contributions to blob 'total' are added on a CPU",
    )


def test_a_graph_needs_one_machine_and_no_transport() -> None:
    graph = Graph("places")
    graph.blob("x", SHAPE)
    graph.blob("y", SHAPE, location=ONE)
    with pytest.raises(GraphError, match=r"^graph 'places' cannot be recorded: .*, got cpu of none, device0 of none$"):
        Captured(graph, devices=lambda place: CpuDevice())
    machines = {HOST: VirtualMachine(), ONE: VirtualMachine()}
    with pytest.raises(GraphError, match=r"^graph 'places' .*, got cpu of machine 1, device0 of machine 2$"):
        Captured(graph, devices=lambda place: machines[place].device(place))
    with pytest.raises(GraphError, match=r"^graph 'places' cannot be recorded with a transport: use Serial, Threaded"):
        Captured(graph, devices=machines[ONE].device, transport=object())


def test_what_is_refused_while_it_is_recorded_names_the_operator_and_leaves_nothing_behind() -> None:
    """On this machine, memory of another place; on a GPU, whatever its capture does not take."""
    graph, refused = Graph("late"), [False]
    called(graph, "y", [called(graph, "x", [], lambda: None)], lambda: None)

    def admit(right: Callable[..., None], self: VirtualMachine, work: Any) -> None:
        right(self, work)
        if refused[0] and work.name == "y":
            raise GraphError("not this one")

    require = VirtualMachine.require_own_memory
    with mock.patch.object(VirtualMachine, "require_own_memory", lambda self, work: admit(require, self, work)):
        with closing(VirtualMachine()) as machine, Captured(graph, devices=machine.device) as captured:
            captured.run()
            refused[0] = True
            with pytest.raises(GraphError, match=re.escape("not this one\noperator 'y' (Call) at device0, inputs: x")):
                captured.run()
            refused[0] = False
            for _ in range(3):
                captured.run()
            assert captured.iteration == 4
            np.testing.assert_array_equal(captured.fetch("y"), np.full(SHAPE, 2.0))


# Planted faults -----------------------------------------------------------------------------------------------------


def two_streams() -> Graph:
    """A copy comes in on one stream, and is read on another."""
    graph = Graph("two")
    (inside,) = graph.apply(Copy(ONE), [graph.blob("x", SHAPE)], "inside", location=ONE, stream="inbound")
    (y,) = graph.apply(Scale(2.0), [inside], "y", location=ONE)
    graph.apply(Copy(HOST), [y], "out", location=ONE, stream="outbound")
    return graph


def without_fork(right: Callable[..., Any], self: Recording, location: Location, name: str) -> Any:
    """Other streams do not wait for the first."""
    return self._tape.open(location, name) if self._first is not None else right(self, location, name)


def without_join(right: Callable[..., None], self: Recording) -> None:
    """The first stream waits for no other."""
    self._tape.end()


@pytest.mark.parametrize(
    ("method", "wrong", "message"),
    [
        ("_open", without_fork, "stream device0/.* takes no part in the recording: it has not waited for a mark of"),
        ("join", without_join, "stream device0/.* of the recording was not joined to the first one"),
    ],
)
def test_a_recording_without_fork_or_join_is_refused(method: str, wrong: Any, message: str) -> None:
    right = getattr(Recording, method)
    graph = Graph("apart")
    for stream in ("main", "inbound"):  # nothing else joins them
        graph.apply(Scale(2.0), [graph.blob(f"x {stream}", SHAPE, location=ONE)], stream, location=ONE, stream=stream)
    with closing(VirtualMachine()) as machine, Captured(graph, devices=machine.device) as captured:
        captured.run()
        with mock.patch.object(Recording, method, lambda *arguments: wrong(right, *arguments)):
            with pytest.raises(RuntimeError, match=f"^{message}"):
                captured.run()
