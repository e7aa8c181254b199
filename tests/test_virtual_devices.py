"""Virtual devices: queues and events, memory, races; and over them graphs, with the serial bits and without a race."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks import WATCH, bits
from purine_ref.conformance.session import Session
from purine_ref.devices import CpuDevice, Event, UpstreamFailed, Work
from purine_ref.devices.races import RaceDetector
from purine_ref.devices.virtual import VirtualMachine, virtual_locations
from purine_ref.errors import GraphError
from purine_ref.executors import Executor, Ranks, Serial, Threaded
from purine_ref.graph import Blob, Graph
from purine_ref.ops import Concat, Copy, Identity, ReLU, Reshape, Scale, Slice
from purine_ref.parallel import Data, Hybrid, Pipeline, Refiner, compose
from purine_ref.tensor import Location, Tensor
from strategies import Recipe, recipes
from test_parallel import tiny

HOST, ONE, TWO = Location(), Location(0, 0), Location(0, 1)
SHAPE = (4, 3)
MOMENT = 0.5
"""Seconds in which something is seen not to happen."""

few = settings(max_examples=max(settings.default.max_examples // 3, 10))


def nothing() -> None:
    """An action that does nothing."""


def submit(
    machine: VirtualMachine,
    name: str,
    place: Location = ONE,
    stream: str = "main",
    action: Callable[[], None] = nothing,
    **more: Any,
) -> Event:
    """Work that calls `action`."""
    event = machine.device(place).submit(
        Work(name, place, stream, action, more.pop("reads", []), more.pop("writes", []), **more)
    )
    assert event is not None
    return event


def array(machine: VirtualMachine, place: Location = ONE, name: str = "x") -> Any:
    """An array in a device's memory, for the blob of that name."""
    return machine.device(place).allocate(Tensor(SHAPE, "float64"), name)


# Queues and events --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "stream"), [(ONE, "outbound"), (TWO, "main"), (HOST, "main")])
def test_work_waits_for_the_events_of_other_queues(place: Location, stream: str) -> None:
    """What is early would be seen by the work that it should have waited for."""
    with closing(VirtualMachine(longest_delay=0)) as machine:
        second, early = threading.Event(), []
        event = submit(machine, "first", action=lambda: early.append(second.wait(MOMENT)))
        after = submit(machine, "second", place, stream, second.set, after=(event,))
        assert after.wait()
        assert early == [False]


def test_an_event_happens_when_its_work_is_done() -> None:
    with closing(VirtualMachine(longest_delay=0)) as machine:
        gate, done = threading.Event(), []
        event = submit(machine, "work", action=lambda: done.append(gate.wait(WATCH)))
        early = event.required().reached  # type: ignore[attr-defined]
        gate.set()
        assert event.wait()
        assert (early, done) == (False, [True])


def test_submitting_does_not_wait_and_a_queue_keeps_its_order() -> None:
    with closing(VirtualMachine(longest_delay=0)) as machine:
        gate, order = threading.Event(), []
        submit(machine, "held", action=lambda: order.append(str(gate.wait(WATCH))))
        for number in range(20):
            submit(machine, f"work{number}", action=partial(order.append, f"{number}"))
        early = list(order)
        gate.set()
        assert machine.device(ONE).synchronise() == []
        assert (early, order) == ([], ["True", *map(str, range(20))])


def test_r12_what_needs_failed_work_is_skipped_and_the_failure_is_told_once() -> None:
    with closing(VirtualMachine(longest_delay=0)) as machine:

        def fail() -> None:
            raise ValueError("boom")

        ran: list[str] = []
        event = submit(machine, "bad", action=fail)
        skipped = submit(machine, "skipped", TWO, action=lambda: ran.append("skipped"), after=(event,))
        with pytest.raises(UpstreamFailed, match=r"^host$"):
            submit(machine, "host", HOST, action=lambda: ran.append("host"), after=(skipped,))
        assert not event.wait()
        [error] = machine.device(ONE).synchronise()
        assert (str(error), error.__notes__) == ("boom", ["bad"])
        for place in (ONE, TWO):
            assert machine.device(place).synchronise() == []
            assert submit(machine, "next", place, action=lambda: ran.append("next")).wait()
        assert ran == ["next", "next"]


def test_delays_depend_on_the_seed_and_the_queue_alone() -> None:
    def delays(seed: int) -> list[float]:
        with closing(VirtualMachine(seed=seed)) as machine:
            submit(machine, "work").wait()
            return [machine.stream(ONE, "main")._delays.random() for _ in range(5)]

    assert delays(3) == delays(3)
    assert delays(3) != delays(4)


# Memory -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "of"), [(ONE, TWO), (ONE, HOST), (HOST, ONE)])
def test_memory_of_another_place_is_refused_but_to_copies(at: Location, of: Location) -> None:
    with closing(VirtualMachine(longest_delay=0)) as machine:
        other = array(machine, of)[1:, 1:]
        for access in ({"reads": [other]}, {"writes": [other]}):
            with pytest.raises(
                GraphError, match=f"^operator 'work' at {at} touches memory of {of}: a copy is missing$"
            ):
                submit(machine, "work", at, **access)
            submit(machine, "copy", at, moves=True, **access)
        submit(machine, "own", of, reads=[other], writes=[other])


# Races --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [("writes", "writes", True), ("reads", "writes", True), ("writes", "reads", True), ("reads", "reads", False)],
)
def test_two_accesses_race_if_one_writes(first: str, second: str, found: bool) -> None:
    with closing(VirtualMachine(longest_delay=0)) as machine:
        x = array(machine)
        submit(machine, "one", **{first: [x]})
        submit(machine, "other", stream="outbound", **{second: [x]})
        text = "race on buffer 'x': operator 'one' {} it and operator 'other' {} it are not ordered by any event"
        assert [str(race) for race in machine.races] == [text.format(first, second)] * found


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (np.s_[:2], np.s_[2:], False),
        (np.s_[:3], np.s_[2:], True),
        (np.s_[:, ::2], np.s_[:, 1::2], False),
        (np.s_[:, ::2], np.s_[1, 2:], True),
    ],
)
def test_parts_of_a_buffer_race_if_they_share_an_element(one: Any, other: Any, found: bool) -> None:
    with closing(VirtualMachine(longest_delay=0)) as machine:
        x = array(machine)
        submit(machine, "one", writes=[x[one]])
        submit(machine, "other", stream="outbound", reads=[x[other]])
        assert len(machine.races) == found


def test_work_that_is_ordered_does_not_race() -> None:
    """By its queue; by an event; by the event of what waited for an event; and by what its queue waited for before."""
    with closing(VirtualMachine(longest_delay=0)) as machine:
        x = array(machine)
        first = submit(machine, "first", writes=[x])
        submit(machine, "same queue", writes=[x])
        second = submit(machine, "event", TWO, moves=True, reads=[x], after=(submit(machine, "marks"),))
        third = submit(machine, "between", stream="inbound", after=(second,))
        submit(machine, "event of an event", stream="outbound", writes=[x], after=(third,))
        submit(machine, "same queue as that", stream="outbound", writes=[x])
        assert machine.races == []
        submit(machine, "knows too little", stream="late", reads=[x], after=(first,))
        assert [race.first for race in machine.races] == ["operator 'same queue as that' writes it"]


def test_the_host_races_with_devices_that_it_does_not_wait_for() -> None:
    with closing(VirtualMachine(longest_delay=0)) as machine:
        x = array(machine)
        event = submit(machine, "work", writes=[x])
        submit(machine, "waits", HOST, moves=True, reads=[x], after=(event,))
        assert machine.races == []
        submit(machine, "does not", HOST, moves=True, reads=[x])
        assert [race.second for race in machine.races] == ["operator 'does not' reads it"]


def test_nothing_races_with_what_was_waited_for() -> None:
    with closing(VirtualMachine(longest_delay=0)) as machine:
        x, gate = array(machine), threading.Event()
        submit(machine, "before", writes=[x])
        submit(machine, "still runs", TWO, action=lambda: gate.wait(WATCH) and None)
        machine.device(ONE).synchronise()
        submit(machine, "too early to say", stream="inbound", reads=[x])
        gate.set()
        for place in (ONE, TWO):
            machine.device(place).synchronise()
        submit(machine, "after", stream="outbound", writes=[x])
        assert [race.second for race in machine.races] == ["operator 'too early to say' reads it"]  # not all was idle


@given(seed=st.integers(0, 2**32))
def test_whatever_races_is_found_and_nothing_else(seed: int) -> None:
    """Against a model: every pair of accesses, and all paths through queues and events."""
    rng = np.random.default_rng(seed)
    detector, x = RaceDetector(), np.zeros(6)
    parts = [(start, x[start : start + 2]) for start in range(5)]
    clocks: dict[str, dict[str, int]] = {queue: {} for queue in "abc"}
    seen: list[
        tuple[int, bool, set[int], dict[str, int]]
    ] = []  # start, writes, what is done before, clock of the event
    last: dict[str, int] = {}
    expected = set()
    for index in range(12):
        queue, (start, part), writes = str(rng.choice(list("abc"))), parts[rng.integers(5)], bool(rng.integers(2))
        waits = [int(i) for i in rng.integers(0, max(index, 1), rng.integers(0, 2))] if index else []
        known = {*waits, *([last[queue]] if queue in last else [])}
        known |= {i for other in known for i in seen[other][2]}
        clock = dict(clocks[queue])
        for other in waits:
            clock = {name: max(clock.get(name, 0), seen[other][3].get(name, 0)) for name in "abc"}
        number = clocks[queue].get(queue, 0) + 1
        detector.check(str(index), queue, number, clock, [] if writes else [part], [part] if writes else [])
        for i, (other, wrote, *_) in enumerate(seen):
            if abs(other - start) < 2 and (writes or wrote) and i not in known:
                expected.add(str(index))
        clock[queue] = number
        clocks[queue], last[queue] = clock, index
        seen.append((start, writes, known, clock))
    assert {race.second.split("'")[1] for race in detector.races} == expected


# Graphs over several places -----------------------------------------------------------------------------------------


def at(graph: Graph, blob: Blob, place: Location) -> Blob:
    """The blob at a place: itself, or one copy of it along the way there, whoever asks."""
    if blob.location == place:
        return blob
    name = f"{blob.name}>{place.device}"
    inbound = blob.location.is_cpu
    where, stream = (place, "inbound") if inbound else (blob.location, "outbound")
    return graph[name] if name in graph else graph.apply(Copy(place), [blob], name, location=where, stream=stream)[0]


def ran(executor: Executor, feeds: Mapping[str, Any], runs: int = 3) -> dict[str, bytes]:
    """The bits after some runs."""
    with executor:
        executor.feed(dict(feeds))
        for _ in range(runs):
            executor.run()
        return bits(executor)


def check(graph: Graph, feeds: Mapping[str, Any], seeds: Sequence[int] = (0, 1), runs: int = 3) -> None:
    """On virtual devices every executor has the serial bits, and nothing races."""
    expected = ran(Serial(graph, devices=lambda _: CpuDevice()), feeds, runs)
    for seed in seeds:
        for make in (Serial, partial(Threaded, threads=1), partial(Threaded, threads=3)):
            with closing(VirtualMachine(seed=seed)) as machine:
                assert ran(make(graph, devices=machine.device), feeds, runs) == expected
                assert [str(race) for race in machine.races] == []


def values(graph: Graph, seed: int = 0) -> dict[str, Any]:
    """Something to feed to every source."""
    rng = np.random.default_rng(seed)
    return {b.name: rng.standard_normal(b.shape).astype(b.dtype) for b in graph.blobs if not b.producers}


@pytest.mark.parametrize("target", [HOST, ONE, TWO])
@pytest.mark.parametrize("source", [HOST, ONE, TWO])
def test_a_copy_waits_for_what_it_reads_and_is_waited_for(source: Location, target: Location) -> None:
    graph = Graph("way")
    (y,) = graph.apply(Scale(2.0), [graph.blob("x", SHAPE, location=source)], "y", location=source)
    graph.apply(Scale(3.0), [at(graph, y, target)], "z", location=target)
    graph.apply(Scale(0.5), [y], "beside", location=source)
    check(graph, values(graph))


def test_r4_additions_wait_for_all_contributions_and_are_waited_for() -> None:
    """Three producers, each of another queue; the sum is read on two more. 1e8 shows the order."""
    graph = Graph("sum")
    total = graph.blob("total", SHAPE, location=ONE)
    shares = [graph.blob(f"share{p.device}", SHAPE, location=p) for p in (TWO, ONE, HOST)]
    (made,) = graph.apply(Scale(1.0), [shares[0]], "made", location=TWO)
    graph.connect([made], Copy(ONE), [total], name="from a device", location=TWO, stream="outbound")
    graph.connect([shares[1]], Identity(), [total], name="from here", location=ONE)
    graph.connect([shares[2]], Copy(ONE), [total], name="from the host", location=ONE, stream="inbound")
    graph.apply(Scale(2.0), [total], "here", location=ONE)
    graph.apply(Scale(2.0), [at(graph, total, TWO)], "there", location=TWO)
    feeds = {b.name: np.full(SHAPE, v, "float32") for b, v in zip(shares, (1e8, 1.0, -1e8), strict=True)}
    check(graph, feeds)
    expected = float(np.float32(1e8) + np.float32(1.0) + np.float32(-1e8))
    with closing(VirtualMachine()) as machine, Serial(graph, devices=machine.device) as executor:
        executor.feed(feeds)
        executor.run()
        assert (executor.fetch("there") == 2 * expected).all()


def test_what_moves_nothing_passes_its_events_on() -> None:
    graph = Graph("idle")
    (y,) = graph.apply(Scale(2.0), [graph.blob("x", SHAPE, location=ONE)], "y", location=ONE)
    (flat,) = graph.apply(Reshape((12,)), [y], "flat", location=ONE)
    (part,) = graph.apply(Slice(0, 3, 7), [flat], "part", location=ONE)
    graph.apply(Scale(3.0), [at(graph, part, TWO)], "z", location=TWO)
    with Serial(graph, devices=lambda _: CpuDevice()) as serial:
        assert {op.name for op in serial.plan.idle} == {"flat", "part"}
    check(graph, values(graph))


def test_parts_that_were_copied_into_one_whole() -> None:
    """The parts of a concatenation are written in place by copies on two streams."""
    graph = Graph("gather")
    sources = [graph.blob(f"x{p.device}", SHAPE, location=p) for p in (HOST, ONE, TWO)]
    parts = [at(graph, graph.apply(Scale(2.0), [x], f"y{x.index}", location=x.location)[0], ONE) for x in sources]
    (whole,) = graph.apply(Concat(1), parts, "whole", location=ONE)
    graph.apply(Scale(3.0), [at(graph, whole, HOST)], "z", location=HOST)
    check(graph, values(graph))


def test_r5_memory_that_a_copy_still_reads_is_not_overwritten() -> None:
    """Neither by what works in place beside it, which is refused; nor by a machine that would race."""
    graph = Graph("beside")
    (y,) = graph.apply(Scale(2.0), [graph.blob("x", SHAPE, location=ONE)], "y", location=ONE)
    over = graph.view(y, "over")
    at(graph, y, TWO)
    graph.connect([y], ReLU(), [over], name="in place", location=ONE)
    with pytest.raises(
        GraphError, match=r"^buffer of blob 'y': operator 'in place' writes it as 'over', operator 'y>1' (.|\n)+$"
    ):
        Serial(graph, devices=VirtualMachine().device)


def placed(recipe: Recipe, places: Mapping[str, Location]) -> Graph:
    """The recipe's graph with blobs and operators at places, and copies where an edge crosses; no declared views."""
    graph = Graph("placed")
    for name, tensor in recipe.blobs.items():
        graph.blob(name, tensor.shape, tensor.dtype, places[name])
    for name, node in recipe.nodes.items():
        here = places[name]
        outputs = [graph[output] for output in node.outputs]
        made = [
            blob if blob.location == here else graph.blob(f"{name}.{slot}", blob.shape, blob.dtype, here)
            for slot, blob in enumerate(outputs)
        ]
        graph.connect(
            [at(graph, graph[blob], here) for blob in node.inputs], node.operation, made, name=name, location=here
        )
        for blob, mine in zip(outputs, made, strict=True):
            if blob is not mine:
                inbound = here.is_cpu
                where, stream = (blob.location, "inbound") if inbound else (here, "outbound")
                graph.connect([mine], Copy(blob.location), [blob], name=f"{mine.name}>", location=where, stream=stream)
    return graph


@few
@given(recipe=recipes(), data=st.data())
def test_r8_random_placements_on_devices_give_the_serial_bits_without_a_race(
    recipe: Recipe, data: st.DataObject
) -> None:
    names = [*recipe.blobs, *recipe.nodes]
    drawn = data.draw(st.lists(st.sampled_from([HOST, ONE, TWO]), min_size=len(names), max_size=len(names)), "places")
    graph = placed(recipe, dict(zip(names, drawn, strict=True)))
    check(graph, values(graph, recipe.seed), seeds=(recipe.seed,), runs=2)


@pytest.mark.parametrize(
    ("refiner", "places"),
    [
        (Data(3), [HOST, ONE, TWO]),
        (Data(3, update="server"), [HOST, ONE, TWO]),
        (Pipeline(3, 4), [ONE, HOST, TWO]),
        (Hybrid(2, 2), [HOST, ONE, Location(1, 0), Location(1)]),
    ],
)
def test_a_composed_graph_over_cpus_and_devices(refiner: Refiner, places: list[Location]) -> None:
    graph = tiny()
    composed = compose(graph, [refiner], places)
    feeds = {"x": np.random.default_rng(1).standard_normal(graph["x"].shape), "label": np.arange(8) % 4}
    make: Callable[..., Executor] = Ranks if places[-1].rank else Threaded
    with (
        closing(VirtualMachine()) as machine,
        Session(Serial(composed, devices=lambda _: CpuDevice()), graph) as serial,
        Session(make(composed, threads=2, devices=machine.device), graph) as session,
    ):
        for one in (serial, session):
            one.feed(feeds)
            one.run()
        assert bits(session.executor) == bits(serial.executor)
        assert machine.races == []


def test_devices_are_numbered() -> None:
    assert virtual_locations(3) == [ONE, TWO, Location(0, 2)]
