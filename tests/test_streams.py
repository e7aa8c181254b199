"""The logic of streams: what it tells a backend, that it makes no event too many, and that each one is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purine_ref import optim
from purine_ref.devices import Event, UpstreamFailed, Work
from purine_ref.devices.races import Race
from purine_ref.devices.streams import Machine, Stream
from purine_ref.devices.streams import _Queue as Queue
from purine_ref.devices.virtual import VirtualHost, VirtualMachine, VirtualStream, virtual_locations
from purine_ref.devices.work import HOST, queue_of
from purine_ref.executors import Serial
from purine_ref.gradients import backward
from purine_ref.graph import Graph
from purine_ref.ops import Copy, Reshape, Scale
from purine_ref.parallel import Data, Hybrid, Pipeline, Refiner, compose
from purine_ref.parallel import Model as ModelScheme
from purine_ref.plan import Plan
from purine_ref.tensor import Location
from strategies import Recipe, recipes
from test_parallel import tiny
from test_virtual_devices import placed

CPU, ONE, TWO = Location(), Location(0, 0), Location(0, 1)
SHAPE = (4, 3)

def nothing() -> None:
    """An action that does nothing."""


# What a backend is told ---------------------------------------------------------------------------------------------


@dataclass
class NotedMark:
    """A mark that writes down who waits for it."""

    name: str
    told: list[str]
    good: bool = True

    def synchronise(self) -> bool:
        self.told.append(f"host waits for {self.name}")
        return self.good


@dataclass
class NotedStream:
    """A stream that writes down what it is told, into a list that all share."""

    name: str
    told: list[str]
    marks: int = 0

    def wait(self, mark: NotedMark) -> None:
        self.told.append(f"{self.name} waits for {mark.name}")

    def launch(self, work: Work) -> None:
        self.told.append(f"{self.name} launches {work.name}")

    def mark(self) -> NotedMark:
        self.marks += 1
        self.told.append(f"{self.name} marks {self.marks}")
        return NotedMark(f"{self.name}.{self.marks}", self.told)

    def synchronise(self) -> list[BaseException]:
        return []

    def close(self) -> None:
        self.told.append(f"{self.name} closes")


@dataclass
class NotedTape:
    """A tape that writes down what it is told."""

    told: list[str]

    def open(self, location: Location, name: str) -> NotedStream:
        return NotedStream(f"recorded {name}", self.told)

    def end(self) -> None:
        self.told.append("ends")

    def discard(self) -> None:
        self.told.append("discards")

    def replay(self) -> None:
        self.told.append("replays")

    def close(self) -> None:
        self.told.append("lets go")


@dataclass
class NotedMachine(Machine):
    """A machine of such streams."""

    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def _open(self, location: Location, name: str) -> Stream:
        return NotedStream(f"{location.device}/{name}", self.told)

    def _tape(self) -> NotedTape:
        return NotedTape(self.told)


def work(
    name: str, stream: str = "main", after: Sequence[Event | None] = (), place: Location = ONE, **more: Any
) -> Work:
    """Work that does nothing, unless `compute` is given."""
    needed = [event for event in after if event is not None]
    return Work(name, place, stream, more.pop("compute", nothing), [], [], needed, **more)


def test_a_stream_waits_then_launches_then_marks() -> None:
    machine = NotedMachine()
    x = machine.submit(work("x", "inbound"))
    machine.submit(work("y", after=[x]))
    machine.close()
    assert machine.told == [
        "0/inbound launches x",
        "0/inbound marks 1",
        "0/main waits for 0/inbound.1",
        "0/main launches y",
        "0/main marks 1",
        "0/inbound closes",
        "0/main closes",
    ]


def test_a_chain_on_one_stream_has_neither_marks_nor_waits() -> None:
    machine = NotedMachine()
    last = None
    for number in range(4):
        last = machine.submit(work(f"w{number}", after=[last], signals=number == 2))
    launches = [f"0/main launches w{number}" for number in range(4)]
    assert machine.told == [*launches[:3], "0/main marks 1", launches[3]]


def test_streams_of_one_name_on_two_devices_are_two() -> None:
    machine = NotedMachine()
    x = machine.submit(work("x"))
    machine.submit(work("y", after=[x], place=TWO, signals=False))
    assert machine.told[2:] == ["1/main waits for 0/main.1", "1/main launches y"]


def test_a_wait_that_a_later_one_has_made_is_left_out() -> None:
    machine = NotedMachine()
    first, second, third = (machine.submit(work(f"x{number}", "inbound")) for number in range(3))
    machine.told.clear()
    for after in ([second], [first, second], [third], [third, first]):
        machine.submit(work("y", after=after, signals=False))
    machine.submit(work("z", "outbound", after=[first], signals=False))
    assert [told for told in machine.told if "waits" in told] == [
        "0/main waits for 0/inbound.2",
        "0/main waits for 0/inbound.3",
        "0/outbound waits for 0/inbound.1",
    ]


def test_the_host_waits_for_all_and_computes_at_once() -> None:
    machine = NotedMachine()
    events = [machine.submit(work("x", name)) for name in ("main", "inbound")]
    machine.told.clear()
    done = machine.submit(work("sum", after=events, place=CPU, compute=lambda: machine.told.append("computes")))
    assert machine.told == ["host waits for 0/main.1", "host waits for 0/inbound.1", "computes"]
    assert done is None


def test_r12_the_host_skips_what_needs_failed_work_but_waits_for_all_of_it() -> None:
    machine = NotedMachine()
    bad, good = (machine.submit(work("x", name)) for name in ("main", "inbound"))
    assert bad is not None
    bad.mark.good = False  # type: ignore[union-attr]
    machine.told.clear()
    with pytest.raises(UpstreamFailed, match=r"^sum$"):
        machine.submit(work("sum", after=[bad, good], place=CPU, compute=lambda: machine.told.append("computes")))
    assert machine.told == ["host waits for 0/main.1", "host waits for 0/inbound.1"]


@pytest.mark.parametrize(("place", "stream"), [(CPU, "main"), (ONE, "outbound"), (TWO, "main")])
def test_who_waits_for_work_without_a_mark_is_told_so(place: Location, stream: str) -> None:
    machine = NotedMachine()
    silent = machine.submit(work("x", signals=False))
    assert machine.submit(work("beside", after=[silent])) is not None
    message = "^internal error: 'x' on device0/main was launched without a mark, since nothing elsewhere"
    with pytest.raises(RuntimeError, match=message):
        machine.submit(work("y", stream, after=[silent], place=place))


def test_a_recording_is_forked_from_its_first_stream_and_joined_to_it() -> None:
    machine = NotedMachine()
    live = machine.submit(work("live"))
    assert live is not None
    machine.told.clear()
    with machine.record() as recording:
        x = recording.submit(work("x", "inbound"))
        recording.submit(work("y", after=[x], signals=False))
        recording.submit(work("z", "outbound", signals=False))
    recording.replay()
    recording.close()
    assert machine.told == [
        "recorded inbound marks 1",
        "recorded inbound launches x",
        "recorded inbound marks 2",
        "recorded main waits for recorded inbound.1",
        "recorded main waits for recorded inbound.2",
        "recorded main launches y",
        "recorded outbound waits for recorded inbound.1",
        "recorded outbound launches z",
        "recorded main marks 1",
        "recorded inbound waits for recorded main.1",
        "recorded outbound marks 1",
        "recorded inbound waits for recorded outbound.1",
        "ends",
        "replays",
        "lets go",
    ]


def test_a_recording_that_fails_is_discarded_and_takes_nothing_of_the_host() -> None:
    machine = NotedMachine()
    message = "^internal error: 'sum' computes on the CPU, and so cannot be recorded$"

    def record() -> None:
        with machine.record() as recording:
            x = recording.submit(work("x"))
            recording.submit(work("sum", after=[x], place=CPU, compute=lambda: machine.told.append("computes")))

    with pytest.raises(RuntimeError, match=message):
        record()
    assert machine.told[-1] == "discards"
    assert "computes" not in machine.told


def test_an_empty_recording_is_one() -> None:
    machine = NotedMachine()
    with machine.record() as recording:
        pass
    recording.replay()
    assert machine.told == ["ends", "replays"]


# The rules of a recording, which are a GPU's ------------------------------------------------------------------------


def test_a_recording_takes_no_mark_from_outside_and_its_marks_cannot_be_waited_for() -> None:
    with closing(VirtualMachine()) as machine:
        live = machine.submit(work("live"))

        def record() -> None:
            with machine.record() as recording:
                recording.submit(work("x"))
                recording.submit(work("y", "side", after=[live]))

        with pytest.raises(RuntimeError, match=r"^stream device0/side of a recording cannot wait for a mark from out"):
            record()
        with machine.record() as recording:
            event = recording.submit(work("x"))
            assert event is not None
            with pytest.raises(RuntimeError, match=r"^the host cannot wait for a mark of a recording"):
                event.wait()
        with pytest.raises(RuntimeError, match=r"^the recording has ended, and takes no more commands$"):
            recording.submit(work("late"))


def test_a_replay_comes_behind_what_was_launched_and_before_what_is() -> None:
    """On its first stream; whatever else it uses is behind the fork and before the join."""
    with closing(VirtualMachine(longest_delay=0)) as machine:
        x = machine.device(ONE).allocate(values_of(), "x")
        with machine.record() as recording:
            recording.submit(write("recorded here", x, signals=False))
            recording.submit(write("recorded beside", x, "side", signals=False))
        before = machine.submit(write("before", x, signals=False))
        assert before is not None
        recording.replay()
        machine.submit(write("after", x))
        assert {str(race).split("'")[3] + " & " + str(race).split("'")[5] for race in machine.races} == {
            "recorded here & recorded beside"
        }


def values_of() -> Any:
    """A description of an array."""
    return Graph("x").blob("x", SHAPE).tensor


def write(name: str, array: Any, stream: str = "main", **more: Any) -> Work:
    """Work that writes an array."""
    return Work(name, ONE, stream, nothing, [], [array], **more)


def test_a_stream_that_is_closed_says_so_and_keeps_nobody_waiting() -> None:
    machine = VirtualMachine()
    stream = machine.stream(ONE, "main")
    machine.close()
    assert stream.synchronise() == []
    for call in (stream.mark, lambda: stream.launch(work("x"))):
        with pytest.raises(RuntimeError, match=r"^stream device0/main is closed, and takes nothing more$"):
            call()


# How many events a graph needs ---------------------------------------------------------------------------------------


@dataclass
class Told:
    """What a machine was told: marks of devices, waits for these by whom, and the work in the order of its launch."""

    marks: int = 0
    waits: int = 0
    order: list[str] = field(default_factory=list)


@contextmanager
def listening() -> Iterator[Told]:
    """Counts what virtual streams and the host are told."""
    told = Told()
    mark, judge = VirtualStream.mark, VirtualMachine.judge

    def marks(self: VirtualStream) -> Any:
        told.marks += 1
        made = mark(self)
        made.of_a_device = True  # type: ignore[attr-defined]
        return made

    def waiting(kind: type[Any]) -> Callable[[Any, Any], None]:
        right = kind.wait

        def wait(self: Any, mark: Any) -> None:
            told.waits += hasattr(mark, "of_a_device")
            right(self, mark)

        return wait

    def launched(self: VirtualMachine, knowledge: Any, work: Work) -> None:
        told.order.append(work.name)
        judge(self, knowledge, work)

    with (
        mock.patch.object(VirtualStream, "mark", marks),
        mock.patch.object(VirtualStream, "wait", waiting(VirtualStream)),
        mock.patch.object(VirtualHost, "wait", waiting(VirtualHost)),
        mock.patch.object(VirtualMachine, "judge", launched),
    ):
        yield told


@dataclass
class Model:
    """The work of a graph by name: its queue, and the names of the work that it reads from."""

    queues: dict[str, str]
    needs: dict[str, set[str]]


def model(plan: Plan) -> Model:
    """Made from the graph alone: who makes what each operator reads, through operators that move nothing."""
    found = Model({}, {})
    idle = plan.idle

    def contributions(blob: Any) -> set[str]:
        names: set[str] = set()
        for op, _ in blob.producers:
            names |= set().union(*(makers(source) for source in op.inputs)) if op in idle else {op.name}
        return names

    def makers(blob: Any) -> set[str]:
        return {f"additions to {blob.name}"} if len(blob.producers) > 1 else contributions(blob)

    for op in plan.graph.ops:
        if op not in idle:
            found.queues[op.name] = queue_of(op.location, op.stream)
            found.needs[op.name] = set().union(*(makers(blob) for blob in op.inputs))
    for blob in plan.graph.blobs:
        if len(blob.producers) > 1:
            found.queues[f"additions to {blob.name}"] = queue_of(blob.location, "main")
            found.needs[f"additions to {blob.name}"] = contributions(blob)
    return found


def expected(found: Model, order: Sequence[str]) -> tuple[int, int]:
    """Marks and waits of devices' work: a mark where someone of another queue reads, and for each reader a wait for the
    last on each other queue, unless its own queue has waited for as much. The host has no queue, so it always waits."""
    queues, needs = found.queues, found.needs
    crossing = {(maker, name) for name, makers in needs.items() for maker in makers if queues[maker] != HOST
                and queues[maker] != queues[name]}  # fmt: skip
    place = {name: number for number, name in enumerate(order)}
    reached: dict[tuple[str, str], int] = {}
    waits = 0
    for name in order:
        last: dict[str, int] = {}
        for maker in sorted(makers := needs[name], key=place.__getitem__):
            if (maker, name) in crossing:
                last[queues[maker]] = place[maker]
        assert all(place[maker] < place[name] for maker in makers)
        for queue, number in last.items():
            if queues[name] == HOST or reached.get((queues[name], queue), -1) < number:
                waits += 1
                reached[queues[name], queue] = number
    return len({maker for maker, _ in crossing}), waits


def trained() -> Graph:
    """A network with gradients and an update."""
    graph = tiny("float32")
    optim.sgd(backward(graph["loss"]))
    return graph


SCHEMES: list[tuple[str, Refiner, list[Location]]] = [
    ("one", Data(1), [ONE]),
    ("data", Data(3), virtual_locations(3)),
    ("data and the host", Data(2), [CPU, ONE]),
    ("model", ModelScheme(2), virtual_locations(2)),
    ("pipeline", Pipeline(2, 3), virtual_locations(2)),
    ("hybrid", Hybrid(2, 2), virtual_locations(4)),
]


@pytest.mark.parametrize(("refiner", "places"), [s[1:] for s in SCHEMES], ids=[s[0] for s in SCHEMES])
def test_a_composed_graph_makes_an_event_for_each_blob_that_crosses_and_none_elsewhere(
    refiner: Refiner, places: list[Location]
) -> None:
    composed = compose(trained(), [refiner], places)
    with closing(VirtualMachine(longest_delay=0)) as machine, Serial(composed, devices=machine.device) as executor:
        with listening() as told:
            executor.run()
        found = model(executor.plan)
        assert sorted(told.order) == sorted(found.queues)
        assert (told.marks, told.waits) == expected(found, told.order)
        assert (told.marks == 0) == (len(set(found.queues.values()) - {HOST}) == 1 and CPU not in places)
        assert machine.races == []


def test_operators_that_move_nothing_make_no_event_and_pass_on_that_one_is_needed() -> None:
    graph = Graph("idle")
    (y,) = graph.apply(Scale(2.0), [graph.blob("x", SHAPE, location=ONE)], "y", location=ONE)
    (z,) = graph.apply(Scale(2.0), [y], "z", location=ONE)
    (flat,) = graph.apply(Reshape((12,)), [z], "flat", location=ONE)
    graph.apply(Copy(TWO), [flat], "there", location=ONE, stream="outbound")
    with closing(VirtualMachine(longest_delay=0)) as machine, Serial(graph, devices=machine.device) as executor:
        assert [op.name for op in executor.plan.idle] == ["flat"]
        with listening() as told:
            executor.run()
    assert (told.marks, told.waits) == (1, 1)


# That each wait is needed --------------------------------------------------------------------------------------------


@dataclass
class Dropped:
    """One wait of a run that was left out: of whom for whom, and what was known to the former when it was launched."""

    number: int
    seen: int = 0
    event: Event | None = None
    reader: Work | None = None
    maker: Work | None = None
    implied: bool = False


@contextmanager
def dropping(number: int) -> Iterator[Dropped]:
    """The logic leaves out the wait of that number for a device's work, of all that it would make."""
    dropped, launched = Dropped(number), {}
    lacks, judge = Queue.lacks, VirtualMachine.judge

    def lacking(self: Queue, work: Work) -> list[Event]:
        kept = []
        for event in lacks(self, work):
            if event.queue != HOST:
                if dropped.seen == number:
                    dropped.event, dropped.reader, dropped.maker = event, work, launched[event.work]
                    dropped.seen += 1
                    continue
                dropped.seen += 1
            kept.append(event)
        return kept

    def noted(self: VirtualMachine, knowledge: Any, work: Work) -> None:
        launched[work.name] = work
        if work is dropped.reader and dropped.event is not None:
            dropped.implied = knowledge.clock.get(dropped.event.queue, 0) >= dropped.event.number
        judge(self, knowledge, work)

    with mock.patch.object(Queue, "lacks", lacking), mock.patch.object(VirtualMachine, "judge", noted):
        yield dropped


def run_without(graph: Graph, number: int, reuse: bool = False) -> tuple[Dropped, list[tuple[str, str]]]:
    """The wait that was left out, and the pairs that race. All values are zeros, so that too early ones harm nobody."""
    with dropping(number) as dropped, closing(VirtualMachine(longest_delay=0)) as machine:
        with Serial(graph, devices=machine.device, reuse=reuse) as executor:
            executor.run()
        return dropped, [named(race) for race in machine.races]


def named(race: Race) -> tuple[str, str]:
    """The names of the two."""
    first, second = (text.split("'")[1] for text in (race.first, race.second))
    return first, second


def overlap(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether any two of the arrays share an element."""
    return any(np.shares_memory(x, y) for x in one for y in other)


def check_wait(graph: Graph, number: int, reuse: bool = False) -> bool:
    """Without one wait, there is a race if nothing else orders the two; returns whether there had to be one."""
    dropped, races = run_without(graph, number, reuse)
    assert dropped.reader is not None
    assert dropped.maker is not None
    if dropped.implied:
        assert races == []
        return False
    if not overlap(dropped.maker.writes, [*dropped.reader.reads, *dropped.reader.writes]):
        return False  # of a whole whose parts have several makers, the reader sees one part
    assert (dropped.maker.name, dropped.reader.name) in races
    return True


@given(recipe=recipes(), data=st.data())
def test_any_wait_that_is_dropped_from_a_random_graph_is_a_race(recipe: Recipe, data: st.DataObject) -> None:
    names = [*recipe.blobs, *recipe.nodes]
    drawn = data.draw(st.lists(st.sampled_from([CPU, ONE, TWO]), min_size=len(names), max_size=len(names)), "places")
    graph = placed(recipe, dict(zip(names, drawn, strict=True)))
    reuse = data.draw(st.booleans(), "reuse")
    whole, races = run_without(graph, -1, reuse)
    assert races == []
    for number in range(whole.seen):
        check_wait(graph, number, reuse)


@pytest.mark.parametrize(("refiner", "places"), [s[1:] for s in SCHEMES[1:]], ids=[s[0] for s in SCHEMES[1:]])
def test_any_wait_that_is_dropped_from_a_composed_graph_is_a_race(refiner: Refiner, places: list[Location]) -> None:
    """None is implied by the others, so none is one too many."""
    graph = compose(trained(), [refiner], places)
    whole, races = run_without(graph, -1)
    assert races == []
    assert whole.seen >= 10
    assert all([check_wait(graph, number) for number in range(whole.seen)])
