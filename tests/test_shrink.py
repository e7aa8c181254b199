"""Joint shrinking: planted faults come back as a few operators, in one file that replays them."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from faults import devices, moves, parallel
from faults.fault import Fault
from purine_ref.conformance.checking import Verdict, check_example
from purine_ref.conformance.examples import (
    PHASES,
    Architecture,
    Composition,
    Division,
    Example,
    Feeding,
    Layer,
    Loss,
    Running,
    to_json,
)
from purine_ref.conformance.generator import examples
from purine_ref.conformance.networks import composed_graph
from purine_ref.conformance.reductions import REDUCTIONS
from purine_ref.conformance.running import schedule_string
from purine_ref.conformance.schedules import decode, order_of
from purine_ref.conformance.shrink import load, replay, save, shrink, signature
from purine_ref.errors import Refused
from purine_ref.ops import Copy
from purine_ref.plan import prepare

FEW = 6
"""Operators of the composed graph that a fault may take to show."""

QUICK = settings(database=None, suppress_health_check=list(HealthCheck), max_examples=400, phases=[Phase.generate])
FAULTS = {fault.name: fault for fault in (*parallel.ALL, *moves.ALL, *devices.ALL)}


def stale_copies() -> Any:
    """A copy delivers in the first iteration only: what is used later is stale."""

    def compute(self: Copy, kernels: Any, inputs: Any, outputs: Any) -> None:
        if kernels.key.iteration == 0:
            outputs[0][...] = inputs[0]

    return mock.patch.object(Copy, "compute", compute)


LOST = Fault("copy: lost after the first run", "A copy delivers in the first iteration only.", stale_copies, ())


def failing(fault: Fault, number: int, least: int = 20) -> Example:
    """An example of a graph that is not small, and that the fault makes fail."""

    def fails(example: Example) -> bool:
        verdict = check_example(example)
        return verdict.outcome == "fail" and verdict.operators >= least

    return find(examples(), fails, settings=QUICK, random=Random(number))


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    "fault",
    [
        FAULTS["sum: mean for sum"],
        FAULTS["uneven split: averaged without weights"],
        LOST,
        FAULTS["event not waited for: what a copy takes"],
        FAULTS["event not waited for: by the host"],
    ],
    ids=lambda fault: fault.name,
)
def test_planted_faults_shrink_to_a_few_operators(fault: Fault, number: int, tmp_path: Path) -> None:
    """And the file that is written fails in the same way as long as the fault is there."""
    with fault.plant():
        example = failing(fault, number)
        before = check_example(example)
        shrunk = shrink(example)
        assert shrunk.verdict.outcome == "fail"
        assert signature(shrunk.verdict) == signature(before)
        assert shrunk.operators <= FEW < before.operators
        file = tmp_path / "failure.json"
        save(file, shrunk)
        assert replay(file) == shrunk.verdict
    assert replay(file).outcome == "pass"


def test_everything_gets_smaller_together() -> None:
    """The network, the composition, the schedule, the inputs: what the fault does not need is gone."""
    layers = (Layer("conv", (0,), 3, 2, 1, 1), Layer("relu", (1,)), Layer("linear", (2,), 6), Layer("linear", (3,), 4))
    example = Example(
        Architecture(7, (2, 5, 4), layers, (Loss("squared", 4), Loss("squared", 3, weight=0.5)), "update"),
        Composition(
            (Division("data", 3, sizes=(4, 2, 1)), Division("pipeline", 2, 1)),
            ((1, 0), (0, 1), (2, -1), (0, -1), (1, 1), (0, 0)),
            "tree",
        ),
        Running("ranks", 3, "pct:7:2", 3, 100, 5),
        Feeding(seed=77),
    )
    with FAULTS["sum: mean for sum"].plant():
        shrunk = shrink(example).example
    assert len(shrunk.network.layers) <= 1
    assert (shrunk.network.batch, len(shrunk.network.losses), shrunk.network.phase) == (2, 1, "forward")
    assert shrunk.running == Running()
    assert shrunk.composition.parts == (Division("data", 2),)
    assert shrunk.composition.reduction == "central"
    assert len(set(shrunk.composition.places)) == 2
    assert (shrunk.feeding.seed, shrunk.feeding.most) == (0, 1)


def test_a_schedule_that_a_failure_needs_is_pinned_and_shrinks() -> None:
    """A fault that shows only where the second operator starts before the first: one choice is left."""

    def check(example: Example) -> Verdict:
        plan = prepare(composed_graph(example))
        names = [op.name for op in plan.graph.ops]
        order = order_of(plan, schedule_string(plan, example.running.schedule or f"s1:{len(names)}:"))
        fails = len(names) > 1 and order.index(names[1]) < order.index(names[0])
        return Verdict("fail", "differs") if fails else Verdict("pass", "agrees")

    example = Example(
        Architecture(4, (3,), (Layer("linear", (0,), 5), Layer("linear", (1,), 2))),
        Composition((Division("data", 2),), ((0, -1), (1, -1))),
    )
    texts = [f"random:{seed}" for seed in range(20)]
    example = next(
        e for e in (replace(example, running=Running(schedule=t)) for t in texts) if check(e).outcome == "fail"
    )
    assert sum(decode(schedule_string(prepare(composed_graph(example)), example.running.schedule))) > 1
    shrunk = shrink(example, check).example
    assert len(composed_graph(shrunk).ops) == 2
    assert shrunk.running.schedule == "s1:2:1"


def test_a_failure_that_comes_and_goes_is_tried_again() -> None:
    """One that shows when an example is run for the third time."""
    times: Counter[Example] = Counter()

    def check(example: Example) -> Verdict:
        times[example] += 1
        return Verdict("fail", "differs") if times[example] % 3 == 0 else Verdict("pass", "agrees")

    example = Example(Architecture(6, (4, 3), (Layer("linear", (0,), 4),) * 3))
    with pytest.raises(ValueError, match=r"^there is nothing to shrink"):
        shrink(example, check, attempts=2)
    times.clear()
    shrunk = shrink(example, check, attempts=3)
    assert shrunk.example.network.layers == ()
    assert shrunk.tried == sum(times.values())


def test_a_failure_stays_of_its_sort() -> None:
    """What fails in another way, or cannot be built, does not take the place of the example."""

    def check(example: Example) -> Verdict:
        composed_graph(example)
        if example.network.batch < 3:
            return Verdict("fail", "error", "ValueError: another")
        if example.network.batch < 5:
            return Verdict("fail", "error", "TypeError: the same sort, said otherwise")
        return Verdict("fail", "error", "TypeError: at first")

    shrunk = shrink(Example(Architecture(7, (4, 3, 2), (Layer("conv", (0,), 2),))), check)
    assert shrunk.example.network.batch == 3
    assert shrunk.verdict.reason == "TypeError: the same sort, said otherwise"


def test_what_does_not_fail_cannot_be_shrunk() -> None:
    with pytest.raises(ValueError, match=r"^there is nothing to shrink: the example does not fail$"):
        shrink(Example(Architecture(4, (3,), (Layer("relu", (0,)),))))


def test_time_is_bounded() -> None:
    tried = []

    def check(example: Example) -> Verdict:
        tried.append(example)
        return Verdict("fail", "differs")

    with pytest.raises(ValueError, match=r"^there is nothing to shrink"):
        shrink(Example(Architecture(4, (3,), ())), check, seconds=-1.0)
    assert tried == []


# Reductions


def size(example: Example) -> tuple[int, ...]:
    """A measure that no reduction raises, the first place in which two examples differ counting."""
    network, composition, running = example.network, example.composition, example.running
    layer_sizes = [
        [
            layer.size,
            layer.kernel,
            layer.stride,
            layer.pad,
            layer.groups,
            layer.bias,
            len(layer.inputs),
            layer.shared >= 0,
        ]
        for layer in network.layers
    ]
    part_sizes = [
        [p.count, p.more, len(p.sizes), len(p.rules), p.mode not in ("", "output", "replicated")]
        for p in composition.parts
    ]
    return (
        PHASES.index(network.phase) + len(network.layers) + len(network.losses) + len(composition.parts),
        network.batch + sum(network.image) + sum(map(sum, layer_sizes)) + sum(map(sum, part_sizes)),
        sum(
            (loss.reduction, loss.weight, loss.kind).count(x) == 0
            for loss in network.losses
            for x in ("sum", 1.0, "squared")
        ),
        ("serial", "threaded", "ranks").index(running.executor) + running.threads + running.iterations,
        (running.delay > 0) + (running.delays > 0),
    )


@given(example=examples(), data=st.data())
def test_reductions_make_nothing_larger(example: Example, data: st.DataObject) -> None:
    verdict = Verdict("fail", "differs")
    reduction = data.draw(st.sampled_from(REDUCTIONS))
    for candidate in reduction(example, verdict):
        assert candidate != example
        assert size(candidate) <= size(example)
        json.dumps(to_json(candidate))


def test_layers_are_renumbered_when_one_goes() -> None:
    """Names, patterns, shared parameters and values that come after it move up."""
    layers = (
        Layer("linear", (0,), 3),
        Layer("relu", (1,)),
        Layer("linear", (2,), 3, shared=0),
        Layer("sum", (3, 1)),
        Layer("linear", (4,), 3, shared=0),
    )
    example = Example(
        Architecture(4, (3,), layers, (Loss("squared", 5), Loss("squared", 2))),
        Composition(
            (Division("placed", 2, rules=(("l0*", "1"), ("l1*", "0"), ("l4/sum", "1"), ("loss*", "1"))),),
            ((0, -1),) * 2,
        ),
        feeding=Feeding(zeros=("l0/weight", "x", "l12/bias")),
        wanted="l4/sum",
    )
    proposed = list(
        REDUCTIONS[[r.__name__ for r in REDUCTIONS].index("fewer_layers")](example, Verdict("fail", "differs"))
    )
    without_relu = proposed[3]
    assert without_relu.network.layers == (
        Layer("linear", (0,), 3),
        Layer("linear", (1,), 3, shared=0),
        Layer("sum", (2, 1)),
        Layer("linear", (3,), 3, shared=0),
    )
    assert [loss.input for loss in without_relu.network.losses] == [4, 1]
    assert without_relu.composition.parts[0].rules == (("l0*", "1"), ("l3/sum", "1"), ("loss*", "1"))
    assert (without_relu.feeding.zeros, without_relu.wanted) == (("l0/weight", "x", "l11/bias"), "l3/sum")
    without_the_first = proposed[4]
    assert [layer.shared for layer in without_the_first.network.layers] == [-1, -1, -1, -1]
    assert without_the_first.feeding.zeros == ("x", "l11/bias")
    assert proposed[0].wanted == ""


# Files


def test_a_file_says_what_is_wrong_and_how_to_replay_it(tmp_path: Path) -> None:
    example = Example(
        Architecture(4, (3,), (Layer("linear", (0,), 2),), (Loss("squared", 1),)),
        Composition((Division("data", 2),), ((0, -1), (1, -1))),
    )
    with FAULTS["sum: mean for sum"].plant():
        shrunk = shrink(example)
    file = tmp_path / "failure.json"
    written = save(file, shrunk)
    assert json.loads(file.read_text("utf-8")) == json.loads(json.dumps(written))
    assert written["schema"] == "purine-ref/failure/1"
    assert written["command"] == f"purine-ref verify --replay {file}"
    assert written["verdict"]["difference"]["tensor"] == "loss0"
    assert len(written["operators"]) == shrunk.operators <= FEW
    assert re.match(r"^operator 'loss0\[axis0=0:1\]' \(SquaredError\) at cpu, inputs: ", written["operators"][0])
    assert load(file) == shrunk.example


def test_a_file_of_an_example_alone_is_replayed_too(tmp_path: Path) -> None:
    example = Example(Architecture(4, (3,), (Layer("relu", (0,)),)))
    file = tmp_path / "example.json"
    file.write_text(json.dumps(to_json(example)), "utf-8")
    assert load(file) == example
    assert replay(file).outcome == "pass"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[]", "an example is an object with the schema 'purine-ref/example/1'"),
        ('{"schema": "purine-ref/failure/1"}', "an example is an object with the schema 'purine-ref/example/1'"),
    ],
)
def test_other_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(text, "utf-8")
    with pytest.raises(Refused, match=rf"^{re.escape(f'{file}: {message}')}$"):
        replay(file)
