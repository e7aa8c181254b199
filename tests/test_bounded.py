"""Rule R11, the comparison: right compositions pass, a small planted error is caught, kinks are unknown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from planted_error import plant
from purine_ref.conformance.bounded import Bounded, Report, SerialStep, held_by
from purine_ref.conformance.comparison import differing_elements
from purine_ref.conformance.session import Session
from purine_ref.data import load_digits
from purine_ref.executors import Executor, Serial, Threaded
from purine_ref.graph import Graph, Op
from purine_ref.models import training_graph
from purine_ref.ops import MaxPool2d, MaxPool2dGradient, ReduceSum, ReLU, ReLUGradient, Scale, Sum
from purine_ref.parallel import Data, Hybrid, Model, Pipeline, Refiner, compose
from purine_ref.rounding import KAPPA
from purine_ref.tensor import Location
from random_networks import random_network

ERRORS = {"float32": 1e-4, "float64": 1e-11}
"""The relative error that must be caught, by dtype."""

BATCH = 13


def ranks(count: int) -> list[Location]:
    """A place on each of so many ranks."""
    return [Location(rank) for rank in range(count)]


def digits(graph: Graph, step: int = 0) -> dict[str, Any]:
    """A batch of real digits, and the rate."""
    dtype, batch = graph["x"].dtype, graph["x"].shape[0]
    data, rows = load_digits(dtype), slice(step * batch, (step + 1) * batch)
    fed = {"x": data.train_images[rows], "label": data.train_labels[rows], "rate": np.array(0.05, dtype)}
    return {name: array for name, array in fed.items() if name in graph}


def serial_step(graph: Graph, feed: dict[str, Any]) -> SerialStep:
    """The first step of a graph in the serial executor."""
    with Serial(graph) as serial:
        serial.feed(feed)
        held = held_by(serial)
        serial.run()
        return SerialStep(serial, held)


def compared(executor: Executor, serial: Graph, step: SerialStep, feed: dict[str, Any]) -> Report:
    """The report on the first step of an executor."""
    with Session(executor, serial) as session:
        session.feed(feed)
        session.run()
        return Bounded(session).compare(step)


# What is right passes -----------------------------------------------------------------------------------------------

SCHEMES: list[tuple[list[Refiner], int, str]] = [
    ([Data(3)], 3, "ring"),
    ([Model(3)], 3, "central"),
    ([Pipeline(2, 4)], 2, "central"),
    ([Hybrid(2, 2)], 4, "tree"),
    ([Data(2), Pipeline(2, 2), Model(2)], 8, "tree"),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", ["lenet-digits", "nin-digits"])
@pytest.mark.parametrize(("refiners", "width", "reduction"), SCHEMES, ids=lambda value: str(value)[:30])
def test_r11_a_composition_stays_within_its_bounds(
    model: str, dtype: str, refiners: list[Refiner], width: int, reduction: str
) -> None:
    """Three steps, for R9: sums in another order differ, by less than the bound; and some of it is used."""
    graph = training_graph(model, BATCH, dtype)
    composed = compose(graph, refiners, ranks(width), reduction=reduction)
    with Serial(graph) as serial, Session(Threaded(composed, threads=2), graph) as session:
        bounded, worst = Bounded(session), 0.0
        for step in range(3):
            for side in (serial, session):
                side.feed(digits(graph, step))
            held = held_by(serial)
            serial.run()
            session.run()
            made = SerialStep(serial, held)
            report = bounded.compare(made)
            assert report.first is None, str(report.first)
            assert set(report.ratios) == set(made.want)
            assert report.unknown <= report.elements / 20
            worst = max(worst, report.worst)
            if report.unknown:
                bounded.restart(made)
        assert 0.01 < worst < 0.7


def test_r11_the_same_bits_need_no_bound() -> None:
    graph = training_graph("lenet-digits", BATCH, "float32")
    feed = digits(graph)
    step = serial_step(graph, feed)
    report = compared(Threaded(graph, threads=2), graph, step, feed)
    assert (report.worst, report.kinks, report.unknown) == (0.0, 0, 0)
    assert report.elements == sum(array.size for array in step.want.values())
    assert "estimates" not in vars(step)


# What is wrong by a little is caught --------------------------------------------------------------------------------


@dataclass
class Hunt:
    """Planted errors of one graph: what each made of the comparison, and what no comparison could see.

    `unreachable` errors change not one bit of one piece. `vain` ones are in results whose exact value is 0, so that all
    there is of them is rounding errors, within their own bound; a ten-thousandth of that is within it, too.
    """

    weakest: float = np.inf
    caught: int = 0
    missed: list[str] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)
    vain: list[str] = field(default_factory=list)

    def hunt(self, build: Callable[[], Graph], serial: Graph, feed: dict[str, Any], ops: slice = slice(None)) -> Hunt:
        """Plant an error into each operator of the graph that `build` makes, one after the other."""
        step = serial_step(serial, feed)
        clean = build()
        kept = pieces(Serial(clean), serial, feed)
        for index in range(len(clean.ops))[ops]:
            graph = build()
            if any(blob.tensor.is_float for blob in graph.ops[index].outputs):
                self.plant(graph, graph.ops[index], kept, step, feed, serial)
        return self

    def plant(
        self, graph: Graph, op: Op, clean: dict[str, Any], step: SerialStep, feed: dict[str, Any], serial: Graph
    ) -> None:
        """Plant one error, compare, and tell why where nothing is found."""
        plant(graph, op, ERRORS[op.outputs[0].dtype])
        report = compared(Serial(graph), serial, step, feed)
        if report.worst > 1:
            self.caught += 1
            self.weakest = min(self.weakest, report.worst)
        elif same(pieces(Serial(graph), serial, feed), clean):
            self.unreachable.append(op.name)
        elif is_noise(op, step):
            self.vain.append(op.name)
        else:
            self.missed.append(f"{op.name}: {report.worst:.3f}")


def is_noise(op: Op, step: SerialStep) -> bool:
    """Whether the serial operator's results are nothing but rounding errors."""
    names = [blob.name for blob in op.outputs if blob.tensor.is_float and blob.name in step.want]
    bounds = {name: KAPPA * np.sqrt(step.estimates[name].variance) for name in names}
    return bool(names) and all((np.abs(step.want[name]) <= bounds[name]).all() for name in names)


def pieces(executor: Executor, serial: Graph, feed: dict[str, Any]) -> dict[str, Any]:
    """The arrays of all pieces after one step."""
    with Session(executor, serial) as session:
        session.feed(feed)
        session.run()
        stale = {following for _, following in serial.pairs}
        names = [blob.name for blob in serial.blobs if blob not in stale]
        return {piece.blob.name: array for name in names for piece, array in session.pieces(name)}


def same(got: dict[str, Any], want: dict[str, Any]) -> bool:
    """Whether no bit differs."""
    return not any(differing_elements(got[name], want[name]) for name in want)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("model", "margin"), [("mlp-digits", 8), ("lenet-digits", 8), ("nin-digits", 5)])
def test_r11_a_small_error_in_any_operator_is_caught(model: str, margin: float, dtype: str) -> None:
    """1e-4 in float32 and 1e-11 in float64, in every operator of the training graph: far beyond its bound."""

    def build() -> Graph:
        return training_graph(model, BATCH, dtype)

    hunt = Hunt().hunt(build, build(), digits(build()))
    assert (hunt.missed, hunt.unreachable, hunt.vain) == ([], [], [])
    assert hunt.caught == len(build().ops)
    assert hunt.weakest > margin


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("model", "refiners", "width", "reduction", "stride"),
    [
        ("nin-digits", [Data(3)], 3, "central", 31),
        ("nin-digits", [Pipeline(2, 4)], 2, "central", 29),
        ("lenet-digits", [Data(2), Model(2)], 4, "ring", 29),
        ("lenet-digits", [Hybrid(2, 2)], 4, "tree", 17),
    ],
)
def test_r11_a_small_error_in_a_composed_operator_is_caught(
    model: str, refiners: list[Refiner], width: int, reduction: str, stride: int, dtype: str
) -> None:
    """In every few of its operators. One that only selects, such as the copy of a mask, is out of reach."""
    serial = training_graph(model, BATCH, dtype)

    def build() -> Graph:
        return compose(training_graph(model, BATCH, dtype), refiners, ranks(width), reduction=reduction)

    hunt = Hunt().hunt(build, serial, digits(serial), slice(None, None, stride))
    assert hunt.missed == []
    assert len(hunt.unreachable) <= 2
    assert hunt.caught > 8
    assert hunt.weakest > 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_r11_a_small_error_in_a_random_network_is_caught(dtype: str) -> None:
    """In every operator of some; what is out of reach is all 0, such as gradients that nothing depends on.

    Network 147 has the gradient of a softmax's sum, which is 1 whatever its input: 0, but for rounding errors.
    """
    hunt = Hunt()
    for seed in (*range(12), 147):
        graph = random_network(seed, dtype).graph
        before = len(hunt.unreachable)
        feed = random_network(seed, dtype).feed()
        hunt.hunt(lambda seed=seed: random_network(seed, dtype).graph, graph, feed)  # type: ignore[misc]
        step = serial_step(graph, feed)
        for name in hunt.unreachable[before:]:
            held = [step.want[blob.name] for blob in graph.op(name).outputs if blob.name in step.want]
            assert not any(array.any() for array in held if array.dtype.kind == "f"), f"{name} can be reached"
    assert hunt.missed == []
    assert hunt.vain == ["softmax/SoftmaxGradient", "bias/Identity", "bias/BiasGradient", "conv2d/Conv2dWeightGradient"]
    assert hunt.caught > 150


def test_r11_what_is_beyond_its_bound_is_named() -> None:
    """The first in the order of their making, with both values and the bound."""
    graph = training_graph("lenet-digits", BATCH, "float64")
    feed = digits(graph)
    wrong = training_graph("lenet-digits", BATCH, "float64")
    plant(wrong, wrong.op("conv2/conv"), 1e-9)
    first = compared(Serial(wrong), graph, serial_step(graph, feed), feed).first
    assert first is not None
    assert (first.tensor, first.place) == ("conv2/conv", "cpu")
    assert abs(first.got / first.want - 1) == pytest.approx(1e-9, rel=1e-3)
    where = f"'conv2/conv'{list(first.index)} at cpu"
    assert str(first).startswith(f"{where}: got {first.got!r}, want {first.want!r}; they may differ by ")


# Decisions ----------------------------------------------------------------------------------------------------------

TINY = 2.0**-24
"""1 + TINY is 1 in float32."""


def turned(*order: int) -> Graph:
    """A sum of three, in an order that decides its sign, through a ReLU with its gradient; and beside it a max pool."""
    graph = Graph("turned")
    terms = [graph.blob(f"x{i}", (1, 1, 2, 2), "float32") for i in range(3)]
    (x,) = graph.apply(Sum(), [terms[i] for i in order], "x")
    (y,) = graph.apply(ReLU(), [x], "y")
    dy = graph.blob("dy", x.shape, "float32")
    (dx,) = graph.apply(ReLUGradient(), [dy, y], "dx")
    graph.apply(ReduceSum(), [dx], "total")
    most, index = graph.apply(MaxPool2d(2), [x], "most")
    graph.apply(MaxPool2dGradient(x.shape), [graph.apply(Scale(3.0), [most], "scaled")[0], index], "back")
    graph.apply(Scale(3.0), [x], "untouched")
    return graph


def terms(values: list[float]) -> dict[str, Any]:
    """Terms 1 + TINY - 1 where `values` has 0, and 0 + 0 + the value elsewhere."""
    plane = np.array(values).reshape(1, 1, 2, 2)
    parts = (np.where(plane == 0, 1, 0), np.where(plane == 0, TINY, 0), np.where(plane == 0, -1, plane))
    return {f"x{i}": part.astype(np.float32) for i, part in enumerate(parts)} | {
        "dy": np.array([[[[5, 6], [7, 8]]]], np.float32)
    }


def judged(feed: dict[str, Any], change: Callable[[Graph], None] = lambda graph: None) -> Report:
    """The sum in one order, and a `change` to its graph, against that in another."""
    other, serial = turned(0, 2, 1), turned(0, 1, 2)
    change(other)
    return compared(Serial(other), serial, serial_step(serial, feed), feed)


def test_r11_a_sign_that_was_decided_otherwise_within_the_spread_is_unknown() -> None:
    """(1 + tiny) - 1 is 0, (1 - 1) + tiny is not: the ReLU's gradient is unknown there, and all that depends on it."""
    report = judged(terms([0, 2, -1, 4]))
    assert report.first is None
    assert report.kinks == 1
    assert report.unknown == 2, "an element of dx and the total"
    assert report.ratios["untouched"] > 0


def test_r11_a_winner_that_was_decided_otherwise_within_the_spread_is_unknown() -> None:
    """The index, and both places that the gradient may go to."""
    report = judged(terms([0, TINY / 2, -1, -2]))
    assert report.first is None
    assert report.unknown == 2 + 1 + 2


def test_r11_a_winner_that_differs_beyond_the_spread_fails() -> None:
    """An index is not off by a little: it is a kink, or it is wrong."""
    report = judged(terms([0, 2, -1, 4]), lambda graph: plant(graph, graph.op("x"), -2.0))
    assert report.first is not None
    assert report.ratios["most.1"] == np.inf


def test_r11_after_unknown_elements_both_start_anew_from_equal_states() -> None:
    graph = state_graph((0, 1, 2))
    feed = terms([0, 2, -1, 4])
    with Serial(graph) as serial, Session(Serial(state_graph((0, 2, 1))), graph) as session:
        bounded, reports = Bounded(session), []
        for _ in range(2):
            for side in (serial, session):
                side.feed({name: array for name, array in feed.items() if name != "dy"})
            held = held_by(serial)
            serial.run()
            session.run()
            step = SerialStep(serial, held)
            reports.append(bounded.compare(step))
            assert reports[-1].unknown
            assert session.executor.fetch("w") != serial.fetch("w")
            bounded.restart(step)
            assert session.executor.fetch("w") == serial.fetch("w")
    assert [report.first for report in reports] == [None, None]


def state_graph(order: tuple[int, ...]) -> Graph:
    """A state that adds up what a gradient through a turned sign gives."""
    graph = Graph("state")
    inputs = [graph.blob(f"x{i}", (1, 1, 2, 2), "float32") for i in range(3)]
    (x,) = graph.apply(Sum(), [inputs[i] for i in order], "x")
    (y,) = graph.apply(ReLU(), [x], "y")
    (ones,) = graph.apply(Scale(0.5), [inputs[0]], "ones")
    (dx,) = graph.apply(ReLUGradient(), [ones, y], "dx")
    w = graph.blob("w", (), "float32", persistent=True)
    (following,) = graph.apply(Sum(), [w, graph.apply(ReduceSum(), [dx], "sum")[0]], "next")
    graph.swap(w, following)
    return graph


def test_r11_states_that_were_apart_may_lead_to_results_that_are() -> None:
    """The second step starts from weights that differ in their last bits; its bound knows by how much they did."""
    graph = training_graph("mlp-digits", BATCH, "float32")
    composed = compose(graph, [Data(2)], ranks(2))
    with Serial(graph) as serial, Session(Serial(composed), graph) as session:
        bounded = Bounded(session)
        for step in range(2):
            for side in (serial, session):
                side.feed(digits(graph, step))
            held = held_by(serial)
            serial.run()
            session.run()
            reference = SerialStep(serial, held)
            report = bounded.compare(reference)
            assert report.worst < 1
        estimates = bounded._estimates(reference, {})
        assert any(estimates[piece.blob.name].variance is not None for piece in session.pieces_of("fc1/weight"))
