"""Schedule strings: what a choice means, the text, recording and replaying on every executor, and random schedules."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks import Delays, bits, call
from purine_ref.conformance.schedules import (
    Recorder,
    chains,
    decode,
    encode,
    order_of,
    pct_schedule,
    random_schedule,
    ranked_schedule,
    replay_order,
    schedule_of,
)
from purine_ref.devices.virtual import VirtualMachine
from purine_ref.errors import Refused
from purine_ref.executors import Executor, Serial, Threaded
from purine_ref.executors.ranks import Ranks
from purine_ref.graph import Graph
from purine_ref.models import training_graph
from purine_ref.parallel import Data, Pipeline, compose, pipeline_ranks
from purine_ref.plan import Plan, prepare
from purine_ref.tensor import Location
from strategies import Recipe, recipes


def by_the_text(graph: Graph, choices: Sequence[int]) -> list[str]:
    """The order of starts, by the three steps of the module's text alone: no plan, no schedule."""
    unsatisfied = {op.name: sum(1 for blob in op.inputs if blob.producers) for op in graph.ops}
    missing = {blob.name: len(blob.producers) for blob in graph.blobs}
    ready = [op for op in graph.ops if unsatisfied[op.name] == 0]
    order = []
    for choice in choices:
        op = ready.pop(choice)
        order.append(op.name)
        for blob in op.outputs:
            missing[blob.name] -= 1
            if missing[blob.name] == 0:
                for consumer, _ in blob.consumers:
                    unsatisfied[consumer.name] -= 1
                    if unsatisfied[consumer.name] == 0:
                        ready.append(consumer)
    return order


# What a choice means


def fan() -> Graph:
    """a and b start; a makes c and d ready, b makes e ready; f needs c twice, d and e."""
    graph = Graph("fan")
    a, b = call(graph, "a"), call(graph, "b")
    c, d, e = call(graph, "c", [a]), call(graph, "d", [a]), call(graph, "e", [b])
    call(graph, "f", [c, d, c, e])
    return graph


@pytest.mark.parametrize(
    ("schedule", "order"),
    [("s1:6:", "abcdef"), ("s1:6:1", "baecdf"), ("s1:6:0,2,1", "adcbef"), ("s1:6:1x2", "beacdf")],
)
def test_a_choice_takes_from_the_ready_list(schedule: str, order: str) -> None:
    plan = prepare(fan())
    assert "".join(order_of(plan, schedule)) == order
    assert schedule_of(plan, list(order)) == schedule


def test_a_choice_beyond_the_ready_list_is_refused() -> None:
    message = r"choice 3: 1 is out of range, since graph 'fan' has 1 ready operators then"
    with pytest.raises(Refused, match=rf"^schedule 's1:6:1x3', {message}$"):
        order_of(prepare(fan()), "s1:6:1x3")


@given(recipe=recipes(), seed=st.integers(0, 2**32))
def test_orders_are_as_the_text_says(recipe: Recipe, seed: int) -> None:
    graph = recipe.graph()
    plan = prepare(graph)
    for schedule in (random_schedule(plan, seed), pct_schedule(plan, seed), encode([0] * len(graph.ops))):
        order = order_of(plan, schedule)
        assert order == by_the_text(graph, decode(schedule))
        assert schedule_of(plan, order) == schedule


def test_first_ready_first_started_is_the_empty_schedule() -> None:
    graph = training_graph("nin-digits", 4, "float32")
    recorder = Recorder()
    with Serial(graph, observer=recorder) as serial:
        serial.feed(x=np.zeros(graph["x"].shape, "float32"), label=np.zeros(4, "int64"))
        serial.run()
        assert recorder.schedule(serial.plan) == f"s1:{len(graph.ops)}:"


# The text


@given(choices=st.lists(st.integers(0, 12) | st.just(0), max_size=40))
def test_text_and_choices_are_one(choices: list[int]) -> None:
    text = encode(choices)
    assert decode(text) == tuple(choices)
    assert re.fullmatch(r"[0-9a-z:,]+", text)


@pytest.mark.parametrize(
    ("choices", "text"),
    [((), "s1:0:"), ((0, 0), "s1:2:"), ((0, 3, 3, 3, 0, 1, 0), "s1:7:0,3x3,0,1"), ((12,), "s1:1:12")],
)
def test_the_text_is_as_short_as_it_can_be(choices: tuple[int, ...], text: str) -> None:
    assert encode(choices) == text
    assert decode(text) == choices


@pytest.mark.parametrize(
    "text", ["", "s2:3:0", "s1:3", "s1::0", "s1:3:0,", "s1:3:,0", "s1:3:-1", "s1:3:1x", "s1:3:1x0", "s1:3: 1", "s1:٣:"]
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=rf"^a schedule is like 's1:9:2,0x3,1', got {re.escape(repr(text))}$"):
        decode(text)


def test_more_choices_than_operators_are_refused() -> None:
    with pytest.raises(Refused, match=r"^schedule 's1:3:1,0x3' has more choices than its 3 operators$"):
        decode("s1:3:1,0x3")


def test_a_schedule_of_another_graph_is_refused() -> None:
    message = r"^schedule 's1:7:' is for a graph of 7 operators, but graph 'fan' has 6$"
    with pytest.raises(Refused, match=message):
        replay_order(fan(), "s1:7:")


def test_negative_choices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^choices are 0 or more, got -2$"):
        encode([0, -2])


def test_an_order_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^order position 0: operator 'c' is waiting for 1 input edges$"):
        schedule_of(prepare(fan()), list("cabdef"))


# Recording and replaying


def digits(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    fed = [blob for blob in graph.blobs if not blob.producers and not blob.persistent]
    return {blob.name: rng.integers(0, 3, blob.shape).astype(blob.dtype) for blob in fed}


def test_what_threads_did_is_replayed_by_all() -> None:
    """Recorded under delays, replayed by the serial executor and by any number of threads, which record it again."""
    graph = training_graph("lenet-digits", 5, "float64")
    recorder = Recorder()

    def run(make: Callable[..., Executor], **keywords: Any) -> tuple[str, dict[str, bytes]]:
        with make(graph, **keywords) as executor:
            executor.feed(digits(graph))
            executor.run()
            recorded = recorder.schedule(executor.plan)
            return recorded, bits(executor)

    class Watched(Delays):
        def started(self, op: Any, at: float) -> None:
            super().started(op, at)
            recorder.started(op, at)

    schedule, want = run(Threaded, threads=3, observer=Watched(4))
    order = replay_order(graph, schedule)
    for make, keywords in ((Serial, {}), (Threaded, {"threads": 1}), (Threaded, {"threads": 4})):
        got = run(make, order=order, observer=recorder, **keywords)
        assert got == (schedule, want)


@pytest.mark.parametrize("devices", [-1, 0], ids=["CPUs", "devices"])
def test_schedules_hold_over_ranks_and_devices(devices: int) -> None:
    """Ranks run side by side, each in the order of the whole: what they record agrees with it on each rank."""
    places = [Location(0, devices), Location(1, devices)]
    graph = compose(training_graph("mlp-digits", 7, "float64"), [Data(2)], places)
    machine = VirtualMachine(seed=2)
    plan = prepare(graph, machine.device)
    recorder = Recorder()
    losses = set()
    for seed, make in ((0, Serial), (1, Serial), (0, Threaded), (0, Ranks), (1, Ranks)):
        order = order_of(plan, random_schedule(plan, seed))
        with make(graph, order=order, devices=machine.device, observer=recorder) as executor:
            executor.feed(digits(graph))
            executor.run()
            recorded = order_of(plan, recorder.schedule(plan))
            losses.add(executor.fetch(graph.pieces["loss"][0].blob.name).tobytes())
        for rank in (0, 1):
            own = [op.name for op in graph.ops if make is not Ranks or op.location.rank == rank]
            assert [name for name in recorded if name in own] == [name for name in order if name in own]
    machine.close()
    assert len(losses) == 1


def test_a_recorder_forgets_the_run_before() -> None:
    recorder = Recorder()
    with Serial(fan(), observer=recorder) as executor:
        for _ in range(2):
            executor.run()
            assert recorder.schedule(executor.plan) == "s1:6:"
        with pytest.raises(ValueError, match=r"^an order must name each of the 6 operators once; see '[a-f]'$"):
            recorder.schedule(executor.plan)


# Random schedules


def test_random_schedules_follow_their_seed() -> None:
    plan = prepare(training_graph("mlp-digits", 3, "float32"))
    for draw in (random_schedule, pct_schedule):
        texts = [draw(plan, seed) for seed in range(20)]
        assert texts == [draw(plan, seed) for seed in range(20)]
        assert len(set(texts)) > 15


def test_random_priorities_delay_for_long() -> None:
    """`late` last of all, after a chain of nine: one of 512 random schedules, one of two by random priorities."""
    graph = Graph("race")
    late = call(graph, "late")
    link = call(graph, "link0")
    for number in range(1, 9):
        link = call(graph, f"link{number}", [link])
    plan = prepare(graph)
    even = [order_of(plan, random_schedule(plan, seed))[-1] for seed in range(300)]
    ranked = [order_of(plan, pct_schedule(plan, seed, changes=0))[-1] for seed in range(300)]
    assert even.count(late.name) <= 6
    assert ranked.count(late.name) >= 100


def test_change_points_put_off_a_chain_on_its_way() -> None:
    """`other` somewhere within the chain, not before or after it, takes a change of priorities."""
    graph = Graph("late")
    other = call(graph, "other")
    link = call(graph, "link0")
    for number in range(1, 6):
        link = call(graph, f"link{number}", [link])
    plan = prepare(graph)
    assert chains(plan) == [0, 1, 1, 1, 1, 1, 1]
    places = [
        {order_of(plan, pct_schedule(plan, s, changes)).index(other.name) for s in range(60)} for changes in (0, 1)
    ]
    assert places == [{0, 6}, {0, 1, 2, 3, 4, 5, 6}]


def three_chains() -> Plan:
    """Chains a, b and c of four operators each."""
    graph = Graph("turns")
    for chain in ("a", "b", "c"):
        link = call(graph, f"{chain}0")
        for number in range(1, 4):
            link = call(graph, f"{chain}{number}", [link])
    return prepare(graph)


def test_with_a_change_at_every_step_chains_take_turns() -> None:
    """Whichever went on last is behind the others."""
    for seed in range(10):
        order = order_of(three_chains(), pct_schedule(three_chains(), seed, changes=12))
        assert [len({name[0] for name in order[step : step + 3]}) for step in range(0, 12, 3)] == [3, 3, 3, 3]


def test_what_is_put_off_goes_on_when_nothing_else_can() -> None:
    plan = three_chains()
    turns = [
        [chain for chain, _ in groupby(order_of(plan, pct_schedule(plan, s, 1)), lambda n: n[0])] for s in range(30)
    ]
    assert any(len(turn) == 4 for turn in turns)
    assert all(len(turn) == 3 or turn.count(turn[-1]) == 2 for turn in turns)


def test_chains_go_on_with_one_consumer_each() -> None:
    assert chains(prepare(fan())) == [0, 1, 0, 2, 1, 0]


def test_a_pipelines_ranks_are_a_schedule() -> None:
    serial = training_graph("mlp-digits", 8, "float32")
    graph = compose(serial, [Pipeline(2, 4)], [Location(0, 0), Location(0, 1)])
    plan = prepare(graph, VirtualMachine().device)
    orders = {kind: order_of(plan, ranked_schedule(plan, pipeline_ranks(graph, kind))) for kind in ("gpipe", "1f1b")}

    def place(kind: str, layer: str, micro: int) -> int:
        return next(i for i, name in enumerate(orders[kind]) if name.startswith(f"{layer}[n={2 * micro}:"))

    forward, backward = "classes/linear", "classes/linear/LinearWeightGradient"
    assert place("gpipe", forward, 3) < place("gpipe", backward, 0)
    assert place("1f1b", backward, 0) < place("1f1b", forward, 1) < place("1f1b", backward, 1)
    with pytest.raises(
        ValueError, match=r"^ranks must hold one number for each of the \d+ operators of graph 'mlp', got 2$"
    ):
        ranked_schedule(plan, [1.0, 2.0])
