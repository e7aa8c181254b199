"""Readiness without threads: the schedule, its queues, orders and ranks, and the prediction that is made of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks import SHAPE, Call, Delays, Swallow, Trace, bits, call
from purine_ref.devices import CpuDevice
from purine_ref.executors import Rates, Serial, Simulated, Span, Threaded, simulate
from purine_ref.graph import Graph
from purine_ref.ops import Copy, Linear, Mul
from purine_ref.plan import Plan, prepare
from purine_ref.schedule import ReadyQueue, Schedule, Turn, critical_path, order_ranks
from purine_ref.tensor import Location
from strategies import Recipe, recipes


def diamond() -> Graph:
    """a -> b, a -> c, and d of both."""
    graph = Graph("diamond")
    a = call(graph, "a")
    b, c = call(graph, "b", [a]), call(graph, "c", [a])
    call(graph, "d", [b, c, b])
    return graph


# Schedule -----------------------------------------------------------------------------------------------------------


def test_a_run_of_a_diamond() -> None:
    schedule = Schedule(prepare(diamond()))
    assert schedule.active()
    assert schedule.ready() == (0,)
    assert [schedule.state(op) for op in range(4)] == [
        "ready",
        "waiting for 1 input edges",
        "waiting for 1 input edges",
        "waiting for 3 input edges",
    ]
    assert schedule.done(0) == [1, 2]
    assert schedule.done(2) == []
    assert schedule.state(3) == "waiting for 2 input edges"
    complete = schedule.finish(1)
    assert complete == [1]
    assert schedule.state(1) == "finished"
    assert schedule.release(1, complete) == [3]
    assert schedule.state(1) == "released"
    assert schedule.active()
    assert schedule.done(3) == []
    assert not schedule.active()


def test_a_blob_is_complete_with_its_last_producer_whichever_that_is() -> None:
    graph = Graph("producers")
    total = graph.blob("total", SHAPE, "float64")
    for name in ("first", "second", "third"):
        graph.connect([], Call(), [total], name=name)
    call(graph, "reader", [total])
    plan = prepare(graph)
    for order in itertools.permutations(range(3)):
        schedule = Schedule(plan)
        assert [schedule.done(op) for op in order] == [[], [], [3]]


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda s: s.finish(1), "<Op b Call> cannot finish: it is waiting for 1 input edges"),
        (lambda s: (s.finish(0), s.finish(0)), "<Op a Call> cannot finish: it is finished"),
        (lambda s: (s.done(0), s.finish(0)), "<Op a Call> cannot finish: it is released"),
        (lambda s: s.release(0, []), "<Op a Call> cannot be released: it is ready"),
        (lambda s: (s.done(0), s.release(0, [])), "<Op a Call> cannot be released: it is released"),
        (lambda s: s.release(3, []), "<Op d Call> cannot be released: it is waiting for 3 input edges"),
    ],
)
def test_misuse_is_told_with_the_state_in_words(misuse: Callable[[Schedule], object], message: str) -> None:
    schedule = Schedule(prepare(diamond()))
    with pytest.raises(RuntimeError, match=rf"^{re.escape(message)}$"):
        misuse(schedule)


def test_two_runs_of_one_plan_share_nothing() -> None:
    plan = prepare(diamond())
    one, two = Schedule(plan), Schedule(plan)
    one.done(0)
    assert two.state(0) == "ready"
    assert two.done(0) == [1, 2]


def test_an_empty_graph_is_never_active() -> None:
    schedule = Schedule(prepare(Graph("empty")))
    assert not schedule.active()
    assert schedule.ready() == ()


def test_r3_isolated_blobs_and_operators_without_outputs() -> None:
    graph = Graph("ends")
    graph.blob("isolated", (2,))
    graph.connect([], Swallow(print), [], name="alone")
    schedule = Schedule(prepare(graph))
    assert schedule.ready() == (0,)
    assert schedule.finish(0) == []
    assert schedule.release(0, []) == []
    assert not schedule.active()


@given(recipe=recipes(), seed=st.integers(0, 2**32 - 1))
def test_r2_any_legal_order_releases_every_operator_once(recipe: Recipe, seed: int) -> None:
    """Against sets: an operator is ready exactly when all the producers of all its inputs are done."""
    graph = recipe.graph()
    plan, rng = prepare(graph), np.random.default_rng(seed)
    before = [{op.index for blob in node.inputs for op, _ in blob.producers} for node in graph.ops]
    schedule, done = Schedule(plan), set()
    ready = list(schedule.ready())
    assert ready == [index for index, needs in enumerate(before) if not needs]
    while ready:
        op = ready.pop(int(rng.integers(len(ready))))
        waiting = {index for index, needs in enumerate(before) if not needs <= done}
        done.add(op)
        following = schedule.done(op)
        assert sorted(following) == sorted(index for index in waiting if before[index] <= done)
        ready += following
    assert done == set(range(len(graph.ops)))
    assert not schedule.active()


# Queues -------------------------------------------------------------------------------------------------------------


def test_a_queue_without_ranks_is_first_come_first_served() -> None:
    queue = ReadyQueue()
    for op in (5, 2, 9):
        queue.push(op)
    assert len(queue) == 3
    assert [queue.pop() for _ in range(4)] == [5, 2, 9, None]


def test_ranks_come_first_and_ties_go_to_the_operator_that_was_made_first() -> None:
    queue = ReadyQueue([1.0, 0.5, 1.0, -2.0])
    for op in (2, 1, 0):
        queue.push(op)
    assert queue.pop() == 1
    queue.push(3)
    assert [queue.pop() for _ in range(4)] == [3, 0, 2, None]


def test_a_turn_gives_out_only_the_next_of_a_full_order() -> None:
    turn = Turn()
    ranks = [2, 0, 3, 1]
    one, two = ReadyQueue(ranks, turn), ReadyQueue(ranks, turn)
    one.push(3)
    two.push(0)
    assert (one.pop(), two.pop()) == (None, None)
    one.push(1)
    assert (two.pop(), one.pop(), two.pop(), one.pop(), two.pop()) == (None, 1, None, 3, 0)
    assert len(one) == len(two) == 0


# Orders and ranks ---------------------------------------------------------------------------------------------------


def test_an_order_becomes_ranks() -> None:
    assert order_ranks(prepare(diamond()), ["a", "c", "b", "d"]) == [0, 2, 1, 3]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (["a", "b", "c"], "an order must name each of the 4 operators once; see 'd'"),
        (["a", "b", "c", "d", "e"], "an order must name each of the 4 operators once; see 'e'"),
        (["a", "b", "b", "c", "d"], "an order must name each of the 4 operators once; see 'a name twice'"),
        (["b", "a", "c", "d"], "order position 0: operator 'b' is waiting for 1 input edges"),
        (["a", "b", "d", "c"], "order position 2: operator 'd' is waiting for 1 input edges"),
    ],
)
def test_what_is_no_order(order: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}$"):
        order_ranks(prepare(diamond()), order)


def longest_paths(plan: Plan, seconds: Sequence[Fraction]) -> list[Fraction]:
    """By trying every path from every operator."""

    def longest(op: int) -> Fraction:
        following = {consumer for blob in plan.outputs[op] for consumer in plan.consumers[blob]}
        return seconds[op] + max((longest(consumer) for consumer in following), default=Fraction(0))

    return [longest(op) for op in range(len(seconds))]


@given(recipe=recipes(most=8), seed=st.integers(0, 2**32 - 1))
def test_the_critical_path_is_the_longest_of_all_paths(recipe: Recipe, seed: int) -> None:
    plan = prepare(recipe.graph())
    eighths = np.random.default_rng(seed).integers(0, 40, len(plan.order)).tolist()
    expected = longest_paths(plan, [Fraction(n, 8) for n in eighths])
    assert critical_path(plan, [n / 8 for n in eighths]) == [-float(time) for time in expected]


def test_the_critical_path_needs_every_time() -> None:
    message = "^seconds must hold one number for each of the 4 operators of graph 'diamond', got 3$"
    with pytest.raises(ValueError, match=message):
        critical_path(prepare(diamond()), [1.0, 2.0, 3.0])


# Prediction ---------------------------------------------------------------------------------------------------------


def test_a_predicted_diamond() -> None:
    """b takes longer than c; with two threads they overlap, with one they do not."""
    plan = prepare(diamond())
    two = simulate(plan, [1.0, 5.0, 2.0, 3.0], threads=2)
    assert two.seconds == 9.0
    assert two.spans == (
        Span("a", "cpu", 0.0, 1.0),
        Span("b", "cpu", 1.0, 6.0),
        Span("c", "cpu", 1.0, 3.0),
        Span("d", "cpu", 6.0, 9.0),
    )
    assert two.events == (
        (0.0, True, 0),
        (1.0, False, 0),
        (1.0, True, 1),
        (1.0, True, 2),
        (3.0, False, 2),
        (6.0, False, 1),
        (6.0, True, 3),
        (9.0, False, 3),
    )
    one = simulate(plan, [1.0, 5.0, 2.0, 3.0], threads=1)
    assert one.seconds == 11.0
    assert one.order == ["a", "b", "c", "d"]


def branches() -> Graph:
    """Two chains of three beside each other."""
    graph = Graph("branches")
    for name in "xy":
        last = call(graph, f"{name}0")
        for number in (1, 2):
            last = call(graph, f"{name}{number}", [last])
    return graph


def test_two_branches() -> None:
    """The slower chain decides with two threads; one thread takes the sum of all; more than two change nothing."""
    plan = prepare(branches())
    times = [1.0, 2.0, 4.0, 1.5, 1.5, 1.5]
    assert [simulate(plan, times, threads=count).seconds for count in (1, 2, 5)] == [11.5, 7.0, 7.0]


def test_ranks_change_the_prediction() -> None:
    """One long operator among three short ones, on two threads: started last it is waited for, started first not."""
    graph = Graph("packing")
    for name in ("s0", "s1", "s2", "long"):
        call(graph, name)
    plan, times = prepare(graph), [1.0, 1.0, 1.0, 3.0]
    assert simulate(plan, times, threads=2).seconds == 4.0
    ranked = simulate(plan, times, threads=2, ranks=critical_path(plan, times))
    assert ranked.seconds == 3.0
    assert ranked.order[0] == "long"


def test_a_device_has_a_lane_for_each_stream_and_runs_one_operator_at_a_time_in_each() -> None:
    graph, device = Graph("lanes"), Location(0, 1)
    x = graph.blob("x", (2,), location=device)
    for name, stream in (("a", "main"), ("b", "main"), ("c", "other")):
        graph.apply(Copy(), [x], name, stream=stream)
    graph.apply(Copy(Location()), [x], "back", stream="main")
    call(graph, "cpu")
    plan = prepare(graph, lambda place: CpuDevice())
    timeline = simulate(plan, [1.0, 2.0, 4.0, 1.0, 0.5], threads=1)
    assert {span.op: (span.lane, span.start, span.end) for span in timeline.spans} == {
        "a": ("device1/main", 0.0, 1.0),
        "b": ("device1/main", 1.0, 3.0),
        "back": ("device1/main", 3.0, 4.0),
        "c": ("device1/other", 0.0, 4.0),
        "cpu": ("cpu", 0.0, 0.5),
    }


def test_an_empty_prediction() -> None:
    timeline = simulate(prepare(Graph("empty")), [])
    assert (timeline.spans, timeline.events, timeline.order, timeline.seconds) == ((), (), [], 0.0)


@pytest.mark.parametrize(
    ("seconds", "threads", "ranks", "message"),
    [
        ([1.0] * 4, 0, None, "simulate needs 1 thread or more, got 0"),
        ([1.0] * 3, 1, None, "seconds must hold one number for each of the 4 operators of graph 'diamond', got 3"),
        ([1.0] * 4, 1, [1.0] * 5, "ranks must hold one number for each of the 4 operators of graph 'diamond', got 5"),
        ([1.0, -1.0, 1.0, 1.0], 1, None, "simulate needs seconds of 0 or more for graph 'diamond'"),
        ([1.0, float("nan"), 1.0, 1.0], 1, None, "simulate needs seconds of 0 or more for graph 'diamond'"),
    ],
)
def test_what_cannot_be_predicted(seconds: list[float], threads: int, ranks: list[float] | None, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}$"):
        simulate(prepare(diamond()), seconds, threads=threads, ranks=ranks)


@given(recipe=recipes(), threads=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_a_prediction_keeps_the_rules(recipe: Recipe, threads: int, seed: int) -> None:
    """Every operator once, after its producers, no more at once than threads, nor shorter than the longest path."""
    graph = recipe.graph()
    plan = prepare(graph)
    times = (np.random.default_rng(seed).integers(0, 9, len(graph.ops)) / 8).tolist()
    timeline = simulate(plan, times, threads=threads)
    spans = {span.op: span for span in timeline.spans}
    assert len(spans) == len(timeline.spans) == len(graph.ops)
    for op in graph.ops:
        assert spans[op.name].end == spans[op.name].start + times[op.index]
        for blob in op.inputs:
            assert all(spans[producer.name].end <= spans[op.name].start for producer, _ in blob.producers)
    for span in timeline.spans:
        at_once = [other for other in timeline.spans if other.start <= span.start < other.end]
        assert len(at_once) <= threads
    longest = -min(critical_path(plan, times), default=0.0)
    assert longest <= timeline.seconds <= sum(times)
    assert threads > 1 or timeline.seconds == sum(times)


# Rates and replay ---------------------------------------------------------------------------------------------------


def test_rates_give_the_slower_of_arithmetic_and_memory_and_an_overhead() -> None:
    graph = Graph("rates")
    x, w = graph.blob("x", (8, 16)), graph.blob("w", (4, 16))
    graph.apply(Linear(), [x, w], "y")
    graph.apply(Mul(), [x, x], "z")
    linear, product = graph.ops
    assert Rates(flops=64.0, bandwidth=1e30, overhead=0.5).seconds(linear) == 2 * 8 * 16 * 4 / 64 + 0.5
    assert Rates(flops=1e30, bandwidth=8.0, overhead=0.0).seconds(product) == 3 * 8 * 16 * 4 / 8


def test_the_simulated_executor_tells_its_observer_virtual_time() -> None:
    times: list[tuple[str, str, float]] = []

    class Clocked(Trace):
        def started(self, op: object, at: float) -> None:
            times.append(("started", getattr(op, "name", ""), at))

        def finished(self, op: object, at: float) -> None:
            times.append(("finished", getattr(op, "name", ""), at))

    with Simulated(diamond(), seconds=[1.0, 5.0, 2.0, 3.0], threads=2, observer=Clocked()) as executor:
        executor.run()
        assert executor.timeline.seconds == 9.0
    assert times == [
        ("started", "a", 0.0),
        ("finished", "a", 1.0),
        ("started", "b", 1.0),
        ("started", "c", 1.0),
        ("finished", "c", 3.0),
        ("finished", "b", 6.0),
        ("started", "d", 6.0),
        ("finished", "d", 9.0),
    ]


def test_a_simulated_order_is_replayed() -> None:
    """By the serial executor in exactly that order, by the threaded one with the operators given out in that order."""
    rng = np.random.default_rng(3)
    graph = Graph("replay")
    layer = [call(graph, f"in{number}") for number in range(3)]
    for depth in range(4):
        layer = [call(graph, f"h{depth}.{k}", [layer[j] for j in rng.integers(0, 3, 2)]) for k in range(3)]
    with Simulated(graph, seconds=rng.random(len(graph.ops)).tolist(), threads=3) as simulated:
        simulated.run()
        expected, order = bits(simulated), simulated.timeline.order
    assert order != [op.name for op in graph.ops]
    trace = Trace()
    with Serial(graph, order=order, observer=trace) as serial:
        serial.run()
        assert bits(serial) == expected
    assert trace.names("started") == order
    for threads in (1, 2, 8):
        with Threaded(graph, order=order, threads=threads, observer=Delays(threads)) as threaded:
            for _ in range(20):
                threaded.run()
            assert bits(threaded) == expected
