"""The generator: every example that it draws holds, and compositions that are wrong do not survive it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, event, find, given, seed, settings
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import SearchStrategy

from faults import moves, parallel
from faults.fault import Fault
from purine_ref.conformance.checking import Verdict, check_example, first_difference
from purine_ref.conformance.examples import (
    Architecture,
    Composition,
    Division,
    Example,
    Feeding,
    Layer,
    Loss,
    Running,
    from_json,
    to_json,
)
from purine_ref.conformance.feeds import Feeds
from purine_ref.conformance.generator import EXACT_KINDS, ROUNDING_KINDS, examples
from purine_ref.conformance.networks import KINDS, composed_graph, network_graph, serial_graph
from purine_ref.conformance.running import EXECUTORS
from purine_ref.errors import GraphError, Refused
from purine_ref.executors import Serial
from purine_ref.ops import SGD, Bias, Tanh
from purine_ref.parallel.phases import phases
from purine_ref.plan import prepare

pytestmark = pytest.mark.timeout(max(180, settings().max_examples))

QUICK = settings(database=None, suppress_health_check=list(HealthCheck))
NETWORK = Architecture(5, (3,), (Layer("linear", (0,), 4),), (Loss("squared", 1),), "update")


def require_holds(example: Example) -> Verdict:
    """Check an example; it must not fail."""
    verdict = check_example(example)
    event(verdict.kind)
    event(f"parts: {'/'.join(part.kind for part in example.composition.parts)}")
    assert verdict.outcome != "fail", f"{verdict.reason}\n{json.dumps(to_json(example))}"
    return verdict


# Every example holds


@given(example=examples(exact=True))
def test_compositions_are_exact_where_sums_are(example: Example) -> None:
    """Rules R8, R9 and R10: any network, composed in any way, run in any way, agrees to the bit."""
    assert require_holds(example).kind in ("agrees", "inexact")


@given(example=examples(exact=False))
def test_compositions_are_within_bounds_elsewhere(example: Example) -> None:
    """Rules R8, R9 and R11."""
    assert require_holds(example).kind in ("agrees", "kink")


@pytest.mark.long
@pytest.mark.timeout(7200)
@settings(max_examples=20_000)
@given(example=examples())
def test_many_examples_hold(example: Example) -> None:
    require_holds(example)


# What is drawn


def drawn(count: int) -> list[Example]:
    """So many examples, always the same ones."""
    found: list[Example] = []

    @seed(0)
    @settings(QUICK, max_examples=count, phases=[Phase.generate])
    @given(example=examples())
    def draw(example: Example) -> None:
        found.append(example)

    draw()
    return found


def test_everything_is_drawn() -> None:
    """Every kind of layer, part, executor, place, reduction and schedule, nested three deep, and uneven."""
    seen: Counter[Any] = Counter()
    for example in drawn(400):
        network, composition, running = example.network, example.composition, example.running
        seen.update(("layer", layer.kind) for layer in network.layers)
        seen.update(("part", part.kind) for part in composition.parts)
        seen.update(("sizes", part.kind) for part in composition.parts if len(set(part.sizes)) > 1)
        seen.update(("mode", part.mode) for part in composition.parts)
        seen[("depth", len(composition.parts))] += 1
        seen[("losses", len(network.losses))] += 1
        seen[("phase", network.phase)] += 1
        seen[("shared", any(layer.shared >= 0 for layer in network.layers))] += 1
        seen[("dtype", network.dtype)] += 1
        seen[("reduction", composition.reduction)] += 1
        seen[("executor", running.executor)] += 1
        seen[("iterations", running.iterations)] += 1
        seen[("schedule", running.schedule.partition(":")[0])] += 1
        seen[("ranks", len({rank for rank, _ in composition.places}) > 1)] += 1
        seen[("devices", len({device for _, device in composition.places}) > 1)] += 1
    expected = {
        "layer": set(ROUNDING_KINDS),
        "part": {"data", "model", "pipeline", "hybrid", "placed"},
        "sizes": {"data", "pipeline"},
        "mode": {"", "replicated", "server", "output", "input"},
        "depth": {1, 2, 3},
        "losses": {0, 1, 2},
        "phase": {"forward", "backward", "update"},
        "shared": {True, False},
        "dtype": {"float32", "float64"},
        "reduction": {"central", "tree", "ring"},
        "executor": {"serial", "threaded", "ranks"},
        "iterations": {1, 2, 3},
        "schedule": {"", "random", "pct", "gpipe", "1f1b"},
        "ranks": {True, False},
        "devices": {True, False},
    }
    assert {(name, value) for name, values in expected.items() for value in values} - set(seen) == set()
    assert set(ROUNDING_KINDS) == set(KINDS)
    assert set(EXACT_KINDS) < set(KINDS)


def test_dimensions_differ_and_batches_are_uneven() -> None:
    some = drawn(100)
    assert all(len({e.network.batch, *e.network.image}) == 4 for e in some)
    data = [(e.network.batch, p.count) for e in some for p in e.composition.parts if p.kind == "data"]
    assert sum(batch % count != 0 for batch, count in data) > len(data) / 3


def test_what_is_drawn_can_be_built() -> None:
    """No example is refused, and nearly all exact ones have their certificate."""
    kinds = Counter(check_example(example).kind for example in drawn(150))
    assert kinds["refused"] == 0
    assert kinds["agrees"] >= 140


@given(example=examples())
def test_json_holds_all_of_an_example(example: Example) -> None:
    assert from_json(json.loads(json.dumps(to_json(example)))) == example


# Wrong compositions do not survive


NO_CHANGE = {
    "hybrid: fully connected layers not divided",
    "copy: at the other end",
    "copy: anew for each reader",
}
"""Faults that compute the right values, in the wrong place or more than once."""

NO_SUCH_BLOB = {"shards: labels not aligned with images", "accuracy: averaged without weights"}
"""Faults about blobs that no example has."""

FAULTS = [fault for fault in (*parallel.ALL, *moves.ALL) if fault.name not in NO_CHANGE | NO_SUCH_BLOB]

SOME = [
    "shards: swapped",
    "uneven split: averaged without weights",
    "weights: stale at one replica",
    "server: the update is not distributed",
    "momentum: applied once for each replica",
    "mask: drawn under the replica's own name",
    "sum: mean for sum",
    "tree: the sum not sent down",
    "copy: an alias",
    "gather: parts in the wrong order",
]
"""Those that are tried at every run."""


def killer(fault: Fault, examples_: SearchStrategy[Example], most: int) -> Example | None:
    """An example that fails with the fault; None where none of so many does."""
    with fault.plant():
        try:
            return find(
                examples_,
                lambda example: check_example(example).outcome == "fail",
                settings=settings(QUICK, max_examples=most, phases=[Phase.generate]),
                random=Random(1),
            )
        except NoSuchExample:
            return None


@pytest.mark.parametrize("name", SOME)
def test_the_generator_kills(name: str) -> None:
    """And without the fault the example that showed it holds."""
    found = killer(next(fault for fault in FAULTS if fault.name == name), examples(), 400)
    assert found is not None, f"{name} survives"
    assert check_example(found).outcome == "pass"


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_generator_kills_all(fault: Fault) -> None:
    found = killer(fault, examples(), 5000)
    assert found is not None, f"{fault.name} survives"
    assert check_example(found).outcome == "pass"


# Verdicts


def test_the_first_difference_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first tensor in topological order, its place and element, and the value on both sides."""
    example = Example(NETWORK, Composition((Division("data", 2),), ((0, -1), (1, -1))), Running(), Feeding(seed=3))
    compute = Bias.compute

    def wrong(self: Bias, kernels: Any, inputs: Any, outputs: Any) -> None:
        compute(self, kernels, inputs, outputs)
        if len(outputs[0]) == 2:  # the second replica's
            outputs[0][1, 2] += 64

    monkeypatch.setattr(Bias, "compute", wrong)
    verdict = check_example(example)
    assert (verdict.outcome, verdict.kind) == ("fail", "differs")
    assert verdict.difference is not None
    assert (verdict.difference.tensor, verdict.difference.index) == ("l0/sum", (4, 2))
    assert (verdict.difference.place, verdict.difference.got - verdict.difference.want) == ("rank1/cpu", 64)
    assert re.fullmatch(r"'l0/sum'\[4, 2\] at rank1/cpu, step 1: got -?\d+\.0, want -?\d+\.0", verdict.reason)


def test_a_difference_beyond_its_bound_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one within it does not."""
    layers = (Layer("linear", (0,), 4), Layer("tanh", (1,)))
    network = Architecture(5, (3,), layers, (Loss("squared", 2),), "update", "float32")
    example = Example(network, Composition((Division("data", 2),), ((0, -1), (1, -1))), feeding=Feeding(exact=False))
    assert check_example(example).kind == "agrees"
    compute, relative = Tanh.compute, 1e-9

    def wrong(self: Tanh, kernels: Any, inputs: Any, outputs: Any) -> None:
        compute(self, kernels, inputs, outputs)
        if len(outputs[0]) == 2:  # the second replica's
            outputs[0][...] *= np.float32(1 + relative)

    monkeypatch.setattr(Tanh, "compute", wrong)
    assert check_example(example).kind == "agrees"
    relative = 1e-4
    verdict = check_example(example)
    assert verdict.kind == "differs"
    assert re.search(r"; they may differ by [\d.e-]+$", verdict.reason)


def test_two_runs_of_one_graph_that_differ_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is a blob that the serial graph does not have."""

    class Off(Serial):
        def fetch(self, name: str) -> Any:
            return super().fetch(name) + (name == "loss0@r1~")

    example = Example(NETWORK, Composition((Division("data", 2),), ((0, -1), (1, -1))))
    monkeypatch.setitem(EXECUTORS, "serial", Off)
    verdict = check_example(example)
    assert (verdict.outcome, verdict.kind) == ("fail", "schedule")
    assert re.fullmatch(r"two runs of the composed graph: 'loss0@r1~'\[\] at rank1/cpu, step 1: got .+", verdict.reason)


def test_replicas_that_differ_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a rounding error too, which is within the bound: every second update is off by one unit."""
    compute = SGD.compute
    calls = iter(range(10**6))

    def wrong(self: SGD, kernels: Any, inputs: Any, outputs: Any) -> None:
        compute(self, kernels, inputs, outputs)
        if next(calls) % 2:
            outputs[0][...] = np.nextafter(outputs[0], 9.0)

    network = Architecture(5, (3,), (Layer("linear", (0,), 4, bias=False),), (Loss("squared", 1),), "update")
    example = Example(network, Composition((Division("data", 2),), ((0, -1), (1, -1))), feeding=Feeding(exact=False))
    assert check_example(example).kind == "agrees"
    monkeypatch.setattr(SGD, "compute", wrong)
    verdict = check_example(example)
    assert (verdict.outcome, verdict.kind) == ("fail", "replicas")
    assert re.fullmatch(r"two pieces of one box: 'l0/weight'\[0, 0\] at rank1/cpu, step 1: got .+", verdict.reason)


def test_another_judge_may_be_given() -> None:
    example = Example(NETWORK, feeding=Feeding(exact=True))
    verdict = check_example(example, lambda session: lambda step: f"{step.number} {step.names[0]} {session.graph.name}")
    assert (verdict.outcome, verdict.kind, verdict.reason) == ("unknown", "kink", "1 x example")


def test_a_composition_that_does_not_fit_is_unknown() -> None:
    for parts, places, reason in (
        ((Division("data", 6),), 6, "a batch of 5 cannot be divided over 6 replicas: use fewer, or a larger batch"),
        ((Division("data", 2),), 3, "the composition needs 2 places, got 3"),
        ((Division("data", 2, sizes=(5, 0)),), 2, "2 replicas need as many sizes of 1 or more, got (5, 0)"),
        ((Division("data", 3, sizes=(3, 2)),), 3, "3 replicas need as many sizes of 1 or more, got (3, 2)"),
        ((Division("pipeline", 1, 2, (3, 1, 1)),), 1, "2 micro-batches need as many sizes of 1 or more, got (3, 1, 1)"),
        ((Division("placed", 0),), 0, "operators need 1 place or more, got 0"),
        ((Division("other", 2),), 2, "no refiner 'other'; there are data, model, pipeline, hybrid and placed"),
    ):
        verdict = check_example(Example(NETWORK, Composition(parts, ((0, -1),) * places)))
        assert (verdict.outcome, verdict.kind, verdict.reason) == ("unknown", "refused", reason)


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("s1:3:", "schedule 's1:3:' is for a graph of 3 operators, but graph 'example' has 10"),
        ("fifo", "a schedule is a schedule string, random:SEED, pct:SEED:CHANGES, gpipe or 1f1b; got 'fifo'"),
        ("random:x", "a schedule is a schedule string, random:SEED, pct:SEED:CHANGES, gpipe or 1f1b; got 'random:x'"),
    ],
)
def test_a_schedule_that_does_not_fit_is_unknown(schedule: str, reason: str) -> None:
    verdict = check_example(Example(NETWORK, running=Running(schedule=schedule)))
    assert (verdict.outcome, verdict.kind, verdict.reason) == ("unknown", "refused", reason)


def test_what_cannot_be_exact_is_unknown() -> None:
    network = replace(NETWORK, layers=(*NETWORK.layers, Layer("tanh", (1,))), losses=(Loss("squared", 2),))
    verdict = check_example(Example(network))
    assert (verdict.outcome, verdict.kind) == ("unknown", "inexact")
    assert verdict.reason == "graph 'example' cannot be run exactly: operator 'l1': Tanh() is not exact"


def test_an_error_of_an_operator_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*facts: object) -> None:
        raise ValueError("no")

    example = Example(NETWORK, Composition((Division("placed", 2, rules=(("l0*", "1"),)),), ((0, -1), (1, -1))))
    monkeypatch.setattr("purine_ref.executors.threaded.Threaded._start", refuse)
    verdict = check_example(replace(example, running=Running("threaded", 2)))
    assert (verdict.outcome, verdict.kind, verdict.reason) == ("fail", "error", "ValueError: no")


@pytest.mark.parametrize("exact", [True, False])
def test_feeds_have_as_few_values_as_asked_for(exact: bool) -> None:
    """The same ones every time; integers where sums are to be exact; and zeros where they are named."""
    graph = network_graph(NETWORK)
    for most, zeros in ((-1, ()), (2, ("target0",)), (0, ("l0/weight",))):
        feeds = Feeds(graph, Feeding(7, exact, most, zeros))
        with Serial(graph) as serial:
            fed, again = feeds(0, serial), feeds(0, serial)
        assert all(np.array_equal(again[name], array) for name, array in fed.items())
        assert all(not array.any() for name, array in fed.items() if name in zeros)
        assert set(zeros) <= set(fed)
        counts = [np.count_nonzero(array) for name, array in fed.items() if array.shape and name not in zeros]
        assert max(counts) > 5 if most < 0 else max(counts) <= most
        assert not exact or all(np.array_equal(array, np.round(array)) for array in fed.values())


def test_networks_that_cannot_be_built_raise() -> None:
    for network, message in (
        (
            replace(NETWORK, layers=(Layer("conv", (0,), 2),)),
            r"^layer 'l0': a convolution needs images, got float64\[5, 3\]$",
        ),
        (replace(NETWORK, layers=(Layer("odd", (0,)),)), r"^layer 0: 'odd' of values \(0,\) cannot be built$"),
        (replace(NETWORK, layers=(Layer("relu", (1,)),)), r"^layer 0: 'relu' of values \(1,\) cannot be built$"),
        (replace(NETWORK, losses=(Loss("squared", 2),)), r"^loss 0: there is no value 2$"),
        (replace(NETWORK, losses=(Loss("hinge", 1),)), r"^loss 0: no kind 'hinge'; there are squared and softmax$"),
    ):
        with pytest.raises(GraphError, match=message):
            check_example(Example(network))


def test_an_unknown_executor_is_an_error() -> None:
    verdict = check_example(Example(NETWORK, running=Running("gpu")))
    assert verdict.reason == "GraphError: no executor 'gpu'; there are serial, threaded, ranks"


def test_only_what_is_wanted_is_computed() -> None:
    """And the operators that are left keep their phase."""
    example = Example(NETWORK, wanted="l0/weight/grad")
    graph = serial_graph(example)
    assert len(graph.ops) == 6 < len(network_graph(NETWORK).ops)
    assert set(phases(graph).phase.values()) == {"forward", "backward"}
    assert check_example(example).outcome == "pass"
    assert len(composed_graph(example).ops) == 6


def test_differences_of_shapes_and_zeros() -> None:
    one = np.zeros((2, 3))
    assert first_difference("x", "cpu", 1, one, one.copy()) is None
    found = first_difference("x", "cpu", 1, -one, one)
    assert found is not None
    assert found.index == (0, 0)
    found = first_difference("x", "cpu", 1, one[:1], one)
    assert found is not None
    assert np.isnan(found.got)


# Files


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(schema="other"), "an example is an object with the schema 'purine-ref/example/1'"),
        (
            lambda data: data.pop("wanted"),
            "example: expected an object with composition, feeding, network, running, wanted",
        ),
        (lambda data: data["network"].update(batch="5"), "example.network.batch: expected int, got '5'"),
        (lambda data: data["network"].update(batch=True), "example.network.batch: expected int, got True"),
        (lambda data: data["network"].update(image=3), "example.network.image: expected a list, got 3"),
        (
            lambda data: data["composition"].update(places=[[0]]),
            "example.composition.places[0]: expected 2 elements, got 1",
        ),
        (
            lambda data: data["network"]["layers"][0].update(odd=1),
            "example.network.layers[0]: expected an object with ",
        ),
    ],
)
def test_other_objects_are_refused(change: Callable[[Any], object], message: str) -> None:
    data = json.loads(json.dumps(to_json(Example(NETWORK))))
    change(data)
    with pytest.raises(Refused, match=rf"^{re.escape(message)}"):
        from_json(data)
    with pytest.raises(Refused, match=r"^an example is an object with the schema 'purine-ref/example/1'$"):
        from_json([data])


def test_a_graph_of_an_example_is_always_the_same() -> None:
    example = Example(NETWORK, Composition((Division("data", 2),), ((0, -1), (0, -1))))
    one, other = (prepare(composed_graph(example)) for _ in range(2))
    assert [op.describe() for op in one.graph.ops] == [op.describe() for op in other.graph.ops]
