"""The package's own executors, on every kind of place, judged by their traces; and wrong ones, judged bad."""

from __future__ import annotations

import contextlib
import io
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from faults.dispatchers import ALL as FAULTS
from hooks import Call, call
from purine_ref.conformance import generator
from purine_ref.conformance.examples import Example
from purine_ref.conformance.networks import composed_graph
from purine_ref.conformance.running import EXECUTORS, order_of_text
from purine_ref.conformance.tracing import TraceWriter
from purine_ref.devices import device_for
from purine_ref.devices.virtual import VirtualMachine
from purine_ref.errors import GraphError, PurineError
from purine_ref.executors import Executor, Observer, Ranks, Serial, Simulated, Threaded, base
from purine_ref.graph import Graph
from purine_ref.ops import Copy, Identity, Mul, ReLU, Scale, Sum
from purine_ref.plan import prepare
from purine_ref.tensor import Location
from strategies import Recipe, recipes
from traces import Event, at, ended, judged, recorded

few = settings(max_examples=max(settings.default.max_examples // 2, 10))

pytestmark = pytest.mark.timeout(max(180, settings().max_examples))


# Lawful executors ---------------------------------------------------------------------------------------------------


@few
@given(recipe=recipes(), data=st.data())
def test_executors_of_random_graphs_are_lawful(recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph()
    threads = data.draw(st.integers(1, 6), "threads")
    order = Simulated(graph, seconds=np.random.default_rng(recipe.seed).random(len(graph.ops)).tolist()).timeline.order
    for kind, options in [
        (Serial, {}),
        (Serial, {"order": order}),
        (Threaded, {"threads": threads}),
        (Threaded, {"threads": threads, "order": order}),
        (Simulated, {"threads": threads}),
        (Ranks, {"threads": threads}),
    ]:
        verdict = judged(recorded(kind, graph, **options), graph)
        assert verdict.passed, verdict.words
        assert verdict.starts == 2 * len(graph.ops)


@few
@given(example=generator.examples())
def test_executors_of_composed_graphs_are_lawful(example: Example) -> None:
    """Over CPUs, virtual devices, ranks, and devices of ranks, in any order that is drawn."""
    graph = composed_graph(example)
    running = example.running
    with closing(VirtualMachine(seed=example.feeding.seed, longest_delay=0)) as machine:
        on_devices = any(device >= 0 for _, device in example.composition.places)
        options: dict[str, Any] = {"devices": machine.device if on_devices else device_for}
        if running.executor != "serial":
            options["threads"] = running.threads
        try:
            if running.schedule:
                options["order"] = order_of_text(prepare(graph, options["devices"]), running.schedule)
            events = recorded(EXECUTORS[running.executor], graph, running.iterations, **options)
        except PurineError as error:
            event(f"refused: {type(error).__name__}")
            return
    event(f"{running.executor}, devices: {on_devices}, ranks: {any(e['event'] == 'sent' for e in events)}")
    verdict = judged(events, graph)
    assert verdict.passed, verdict.words
    assert verdict.iterations == running.iterations


def test_streams_of_one_device_and_copies_between_devices_are_lawful() -> None:
    graph = Graph("streams")
    one, two = Location(0, 0), Location(0, 1)
    x = graph.blob("x", (2,), location=one)
    for i in range(6):
        (y,) = graph.apply(ReLU(), [x], f"y{i}", stream=f"s{i % 2}")
        graph.apply(Copy(two if i % 3 else Location()), [y], f"z{i}", stream="out")
    with closing(VirtualMachine(longest_delay=0)) as machine:
        verdict = judged(recorded(Threaded, graph, devices=machine.device), graph)
    assert verdict.passed, verdict.words


@pytest.mark.parametrize("kind", [Serial, Threaded, Simulated])
@pytest.mark.parametrize("times", [1, 2])
def test_a_failure_and_the_run_after_it_are_lawful(kind: Any, times: int) -> None:
    """With others at work when it happens; the trace is legal, and yet no pass."""
    left = [times]

    def fail_at_first() -> None:
        if left[0]:
            left[0] -= 1
            raise ValueError("planned")

    graph = Graph("failing")
    for i in range(4):
        call(graph, f"after{i}", [call(graph, f"early{i}")])
    call(graph, "never", [call(graph, "bad", action=fail_at_first)])
    for i in range(4):
        call(graph, f"then{i}", [call(graph, f"late{i}")])
    text = io.StringIO()
    observer = TraceWriter(text)
    executor = kind(graph, observer=observer)
    for _ in range(times):
        with pytest.raises(ValueError, match="planned"):
            executor.run()
    executor.run()
    verdict = judged(ended(observer, text, executor), graph)
    assert (verdict.verdict, verdict.iterations) == ("unknown", 1), verdict.words
    assert "failed" in verdict.words


def test_a_failure_of_a_rank_is_lawful() -> None:
    graph = Graph("ranks")
    calls = [True]

    def fail_at_first() -> None:
        if calls:
            calls.clear()
            raise ValueError("planned")

    for rank in range(3):
        x = graph.blob(f"x{rank}", (3, 2), "float64", Location(rank))
        (y,) = graph.apply(Scale(2.0), [x], f"y{rank}")
        (z,) = graph.apply(Copy(Location((rank + 1) % 3)), [y], f"z{rank}")
        w = graph.blob(f"w{rank}", (3, 2), "float64", Location((rank + 1) % 3))
        graph.connect([z], Call(fail_at_first), [w])
    text = io.StringIO()
    observer = TraceWriter(text)
    executor = Ranks(graph, observer=observer)
    with pytest.raises(ValueError, match="planned"):
        executor.run()
    executor.run()
    verdict = judged(ended(observer, text, executor), graph)
    assert (verdict.verdict, verdict.iterations) == ("unknown", 1), verdict.words


def test_a_run_that_is_closed_in_the_middle_has_failed() -> None:
    graph = Graph("closed")
    executor: Executor

    class Closing(Observer):
        def started(self, op: Any, at: float) -> None:
            executor._halt(0.0)

    text = io.StringIO()
    observer = TraceWriter(text)
    started = observer.started
    call(graph, "y", [call(graph, "x")])
    observer.started = lambda op, at: (started(op, at), Closing().started(op, at))[0]  # type: ignore[method-assign]
    executor = Serial(graph, observer=observer)
    with pytest.raises(RuntimeError, match="closed while it ran"):
        executor.run()
    verdict = judged(ended(observer, text, executor), graph)
    assert verdict.verdict == "unknown", verdict.words
    assert verdict.starts == 1


# Observers ----------------------------------------------------------------------------------------------------------


def test_what_an_observer_is_told_of_sums_pairs_and_runs() -> None:
    graph = Graph("watched")
    x = graph.blob("x", (2,))
    total = graph.blob("total", (2,))
    for name in ("first", "second"):
        graph.connect([x], Scale(2.0), [total], name=name)
    current, following = (graph.blob(name, (2,), persistent=True) for name in ("w", "w_next"))
    graph.connect([current], Scale(0.5), [following], name="update")
    graph.swap(current, following)
    events = recorded(Serial, graph, 1)
    seen = [(entry["event"], entry.get("op"), entry.get("blob")) for entry in events]
    assert seen == [
        ("begin", None, None),
        ("start", "first", None),
        ("end", "first", None),
        ("start", "second", None),
        ("added", "first", "total"),
        ("added", "second", "total"),
        ("end", "second", None),
        ("ready", None, "total"),
        ("start", "update", None),
        ("end", "update", None),
        ("ready", None, "w_next"),
        ("finish", None, None),
        ("swapped", None, "w"),
        ("stop", None, None),
    ]


# Wrong dispatchers, recorded for real ---------------------------------------------------------------------------------


def waiting() -> Graph:
    """Two inputs of one operator, of which the second is there last; a diamond, a pair and a sum of eight."""
    graph = Graph("waiting")
    x, w = graph.blob("x", (3, 2), "float64"), graph.blob("w", (3, 2), "float64", persistent=True)
    (first,) = graph.apply(Scale(2.0), [x], "first")
    slow = [x]
    for i in range(3):
        slow = list(graph.apply(Scale(1.0), slow, f"slow{i}"))
    graph.apply(Mul(), [first, slow[0]], "both")
    graph.apply(Mul(), [slow[0], slow[0]], "square")
    graph.apply(Sum(), [first, graph.apply(ReLU(), [first], "side")[0]], "joined")
    total = graph.blob("total", (3, 2), "float64")
    for i in range(8):
        graph.connect([slow[0] if i == 0 else x], Scale(1.0 + i), [total], name=f"part{i}")
    graph.apply(ReLU(), [total], "after")
    following = graph.blob("w_next", (3, 2), "float64")
    graph.connect([w], Scale(0.5), [following], name="update")
    graph.swap(w, following)
    return graph


WRONG = [
    (Serial, "early fire", "edges", ("slow2", "both")),
    (Threaded, "early fire", "edges", ("slow2", "both")),
    (Serial, "early fire: first delivery completes a blob", "ready", ("total", "part0")),
    (Serial, "double fire", "once", None),
    (Threaded, "double fire", "once", None),
    (Serial, "lost count", "unknown", None),
]


@pytest.mark.parametrize(("kind", "name", "rule", "edge"), WRONG)
def test_a_wrong_dispatcher_is_found(kind: type[Executor], name: str, rule: str, edge: Any) -> None:
    """The faults that are planted for the suites. After a lost count the executor sees that something is missing."""
    (fault,) = [fault for fault in FAULTS if fault.name == name]
    graph = waiting()
    text = io.StringIO()
    observer = TraceWriter(text)
    with fault.plant():
        executor = kind(graph, observer=observer)
        with contextlib.suppress(RuntimeError):
            executor.run()
        events = ended(observer, text, executor)
    verdict = judged(events, graph)
    assert rule in (verdict.rule, verdict.verdict), verdict.words
    assert verdict.edge == edge, verdict.words
    if rule == "unknown":
        late = [{**entry, "event": "finish"} if entry["event"] == "failed" else entry for entry in events]
        assert judged(late, graph).rule == "finish"


class StaleCounts(Serial):
    """Counts by itself, and goes on with what the last run left: then everything may start at once."""

    def _start(self, run: Any) -> None:
        counts, done = self.__dict__.setdefault("counts", list(self.plan.waiting)), set()
        while ready := [op for op, count in enumerate(counts) if count <= 0 and op not in done]:
            done.add(ready[0])
            self._execute(run, ready[0])
            self._combine(ready[0], ())
            for blob in self.plan.outputs[ready[0]]:
                for consumer in self.plan.consumers[blob]:
                    counts[consumer] -= 1

    def _end(self, run: Any) -> None:
        """The schedule was not asked."""


def test_a_stale_counter_is_found_as_a_stale_read() -> None:
    graph = Graph("chain")
    x, y, z = (graph.blob(name, (2,)) for name in "xyz")
    graph.connect([y], ReLU(), [z], name="second")
    graph.connect([x], ReLU(), [y], name="first")
    events = recorded(StaleCounts, graph, 2)
    verdict = judged(events, graph)
    assert (verdict.rule, verdict.edge, verdict.iterations) == ("edges", ("y", "second"), 1), verdict.words
    assert verdict.line == at(events, "start", "second", 1) + 2
    assert "stale value" in verdict.words


class ByArrival(Serial):
    """Adds each contribution when it is there, and says so: Purine's race, without the race."""

    def _combine(self, index: int, complete: Any) -> BaseException | None:
        op = self.graph.ops[index]
        for blob in op.outputs:
            if len(blob.producers) > 1:
                slot = [producer.index for producer, _ in blob.producers].index(index)
                if slot:
                    self._bound._places[blob.index][0][...] += self._bound._later[blob.index][slot - 1]
                base.notify(self._observer.added, op, blob, 0.0)  # type: ignore[union-attr]
        base.notify(self._observer.finished, op, 0.0)  # type: ignore[union-attr]
        return None


def test_additions_in_the_order_of_arrival_are_found() -> None:
    graph = waiting()
    events = recorded(ByArrival, graph, 1)
    verdict = judged(events, graph)
    assert (verdict.rule, verdict.edge) == ("additions", ("total", "part1")), verdict.words
    assert verdict.line == at(events, "added") + 2


class Careless(Serial):
    """Runs a graph that `prepare` refuses, as a port without a check of hazards would."""

    def __init__(self, graph: Graph, **keywords: Any) -> None:
        checks = "purine_ref.plan.HazardCheck"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checks, lambda *_: type("Nothing", (), {"problems": [], "lost": frozenset()})())
            super().__init__(graph, **keywords)


@pytest.mark.parametrize("order", [["write", "read"], ["read", "write"]])
def test_a_hazard_through_a_view_is_found_in_the_order_that_it_strikes(order: list[str]) -> None:
    graph = Graph("hazard")
    x, y = graph.blob("x", (4,)), graph.blob("y", (2,))
    graph.apply(Identity(), [x], "before")
    part = graph.view(x, "part", [(1, 3)])
    graph.connect([y], Scale(2.0), [part], name="write")
    graph.apply(ReLU(), [x], "read")
    with pytest.raises(GraphError, match="one memory of its own"):
        prepare(graph)
    verdict = judged(recorded(Careless, graph, 1, order=["before", *order]), graph)
    if order == ["read", "write"]:
        assert verdict.passed, verdict.words
    else:
        assert (verdict.rule, verdict.edge) == ("hazard", ("x", "read"))
        assert "operator 'write' has written over it" in verdict.words


def test_a_lost_copy_is_found() -> None:
    """A dispatcher that says it has finished without the receiving half."""
    graph = Graph("lost")
    graph.apply(Copy(Location(1)), [graph.apply(ReLU(), [graph.blob("x", (2,))], "y")[0]], "there")
    events: list[Event] = recorded(Ranks, graph, 1)
    theirs = [e for e in events if "there" in (e.get("op"), e.get("blob"))]
    lost = [e for e in events if e not in theirs or e["event"] in ("start", "sent")]
    verdict = judged(lost, graph)
    assert verdict.rule == "finish"
    assert "'there'" in verdict.words
    assert "message was lost" in verdict.words
