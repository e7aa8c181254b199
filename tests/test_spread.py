"""Rule R11, through a graph: variances along paths that meet, kinks, what is unknown, and trials on random networks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from purine_ref.conformance.bounded import Estimates, decisions, held_by
from purine_ref.conformance.bounds import Estimate, Spread, spread
from purine_ref.errors import GraphError
from purine_ref.executors import Serial
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Call, Operation, RunKey
from purine_ref.ops import (
    AdaGrad,
    BroadcastTo,
    Concat,
    Copy,
    Identity,
    Linear,
    MaxPool2d,
    MaxPool2dGradient,
    Mul,
    ReduceSum,
    ReLU,
    ReLUGradient,
    Scale,
    Split,
    Sum,
    Tanh,
    TopKAccuracy,
)
from purine_ref.rounding import KAPPA, UNITS
from random_networks import RandomNetwork, random_network

KEY = RunKey()
UNIT = UNITS["float32"]
X = np.array([[1.25, -2.5, 0.75], [3.5, 0.1, -0.3]], np.float32)
DEVIATION = 2.0**-11
"""What inputs err by, where they do: much more than a rounding."""


def off(array: Any, deviation: float = DEVIATION) -> Estimate:
    """A source that errs."""
    return Estimate(np.asarray(array), np.full(np.shape(array), deviation**2))


def source(graph: Graph, name: str = "x", shape: tuple[int, ...] = X.shape) -> Blob:
    """A fed blob."""
    return graph.blob(name, shape, "float32")


def deviations(made: Spread, name: str) -> Any:
    """The standard deviations of a blob."""
    variance = made.estimates[name].variance
    return np.zeros(made.estimates[name].value.shape) if variance is None else np.sqrt(variance)


# Where paths meet ---------------------------------------------------------------------------------------------------


def test_r11_errors_of_different_operators_are_independent() -> None:
    graph = Graph()
    x = source(graph)
    halves = [graph.apply(Scale(0.3), [x], name)[0] for name in "ab"]
    graph.apply(Sum(), halves, "sum")
    made = spread(graph, {"x": X}, key=KEY)
    one, total = deviations(made, "a"), deviations(made, "sum")
    rounding = UNIT * np.abs(0.6 * X) / math.sqrt(3)
    np.testing.assert_allclose(total, np.sqrt(2 * one**2 + rounding**2), rtol=1e-6)


@pytest.mark.parametrize("operation", [Sum(), Mul(), Concat(0)])
def test_r11_the_same_errors_along_two_paths_add_up(operation: Operation) -> None:
    """x + x, x * x, and the two halves of concat(x, x) added: twice the deviation, not the square root of 2."""
    graph = Graph()
    x = source(graph)
    (y,) = graph.apply(operation, [x, graph.apply(Copy(), [x], "copy")[0]], "y")
    if isinstance(operation, Concat):
        (y,) = graph.apply(Sum(), graph.apply(Split(0, (2, 2)), [y], "parts"), "z")
    got = deviations(spread(graph, {"x": off(X)}, key=KEY), y.name)
    expected = 2 * DEVIATION * (np.abs(X) if isinstance(operation, Mul) else 1)
    np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_r11_several_producers_add_as_a_sum_does() -> None:
    """Rule R4: errors from one operator add up, others are independent, and each addition rounds."""
    graph = Graph()
    x, w = source(graph), source(graph, "w")
    (y,) = graph.apply(Tanh(), [x], "y")
    total = graph.blob("total", X.shape, "float32")
    for number, (blob, operation) in enumerate([(y, Identity()), (w, Identity()), (y, Identity())]):
        graph.connect([blob], operation, [total], name=f"add{number}")
    made = spread(graph, {"x": X, "w": 8 * X}, key=KEY)
    own, partial = deviations(made, "y"), [np.tanh(X) + 8 * X, 2 * np.tanh(X) + 8 * X]
    roundings = sum((UNIT * each) ** 2 / 3 for each in partial)
    np.testing.assert_allclose(deviations(made, "total"), np.sqrt((2 * own) ** 2 + roundings), rtol=1e-5)
    np.testing.assert_allclose(made.estimates["total"].value, partial[1], rtol=1e-6)


def test_r11_copies_of_an_error_add_up() -> None:
    """A sum over what was broadcast is off by as many times as there are copies."""
    graph = Graph()
    (wide,) = graph.apply(BroadcastTo((50, *X.shape), (0,)), [source(graph)], "wide")
    graph.apply(ReduceSum((0,)), [wide], "sum")
    np.testing.assert_allclose(deviations(spread(graph, {"x": off(X)}, key=KEY), "sum"), 50 * DEVIATION, rtol=1e-6)


def test_r11_equal_samples_are_rounded_alike() -> None:
    """The rounding errors of one sample, 50 times in a batch, add up in a sum over the batch."""
    graph = Graph()
    x = source(graph, shape=(50, 3))
    graph.apply(ReduceSum((0,)), graph.apply(Tanh(), [x], "y"), "sum")
    same = spread(graph, {"x": np.repeat(X[:1], 50, axis=0)}, key=KEY)
    single = UNIT * 8 * np.abs(np.tanh(X[0])) / math.sqrt(3)
    np.testing.assert_allclose(deviations(same, "sum"), 50 * single, rtol=0.01)


def test_r11_a_factor_of_0_is_only_as_0_as_its_error() -> None:
    """0 times 0 is off by what the errors' product is."""
    graph = Graph()
    graph.apply(Mul(), [source(graph), source(graph, "w")], "y")
    zeros = np.zeros(X.shape, np.float32)
    got = deviations(spread(graph, {"x": off(zeros), "w": off(zeros)}, key=KEY), "y")
    np.testing.assert_allclose(got, 2 * DEVIATION**2, rtol=1e-6)


def test_r11_a_declared_view_of_a_source_errs_as_it_does() -> None:
    graph = Graph()
    x = source(graph)
    part = graph.view(x, "part", ((0, 2), (1, 3)), (4,))
    graph.apply(Scale(2.0), [part], "y")
    made = spread(graph, {"x": off(X)}, key=KEY)
    np.testing.assert_array_equal(made.estimates["y"].value, 2.0 * X[:, 1:].reshape(4))
    np.testing.assert_allclose(deviations(made, "y"), 2 * DEVIATION)


def test_r11_values_may_be_let_go_and_variances_stay() -> None:
    """Half of the memory, where only variances are wanted."""
    net = random_network(3)
    graph, feed = net.graph, net.feed()
    with Serial(graph) as serial:
        serial.feed(feed)
        held = held_by(serial)
    kept, lean = (spread(graph, held, key=KEY, keep_values=keep) for keep in (True, False))
    for blob in (blob for blob in graph.blobs if blob.producers or blob.consumers):
        one, other = kept.estimates[blob.name], lean.estimates[blob.name]
        assert one.value.shape == other.value.shape
        assert other.value.strides == (0,) * len(blob.shape)
        assert (one.variance is None) == (other.variance is None)
        if one.variance is not None:
            np.testing.assert_array_equal(one.variance, other.variance)


def test_r11_a_missing_source_is_named() -> None:
    graph = Graph()
    graph.apply(ReLU(), [source(graph)], "y")
    message = r"^a spread needs what every source blob holds; 'x' float32\[2, 3\] is missing$"
    with pytest.raises(GraphError, match=message):
        spread(graph, {}, key=KEY)


@dataclass(frozen=True)
class Bare(Operation):
    """{ x } >> Bare >> { y }, without rules."""

    def infer(self, inputs: Any) -> Any:
        return (inputs[0],)

    def compute(self, kernels: Any, inputs: Any, outputs: Any) -> None:
        outputs[0][...] = inputs[0]


def test_r11_an_operation_without_rules_is_refused() -> None:
    graph = Graph()
    graph.apply(Bare(), [source(graph)], "y")
    with pytest.raises(NotImplementedError, match=r"^Bare must define spread\(call, index\): errors cannot be"):
        spread(graph, {"x": off(X)}, key=KEY)
    with pytest.raises(NotImplementedError, match=r"^Bare must define bound\(call\) before its results"):
        spread(graph, {"x": X}, key=KEY)


# Kinks --------------------------------------------------------------------------------------------------------------

NEAR = KAPPA * DEVIATION * 0.9
FAR = KAPPA * DEVIATION * 1.1


def relu_graph() -> Graph:
    """x through a ReLU, dy back through it, and what depends on that."""
    graph = Graph()
    x, dy = source(graph), source(graph, "dy")
    (y,) = graph.apply(ReLU(), [x], "y")
    (dx,) = graph.apply(ReLUGradient(), [dy, y], "dx")
    graph.apply(ReduceSum((1,)), [dx], "sum")
    return graph


@pytest.mark.parametrize(("value", "kinks"), [(NEAR, 1), (-NEAR, 1), (FAR, 0), (-FAR, 0), (0.0, 1)])
def test_r11_a_relu_near_its_bend_is_a_kink(value: float, kinks: int) -> None:
    """Its gradient there, and what that goes into, is unknown; the sign that a run had settles it."""
    x = X.copy()
    x[1, 2] = value
    made = spread(relu_graph(), {"x": off(x), "dy": X}, key=KEY)
    assert made.kinks == ({"dx": 1} if kinks else {})
    unknown = [made.estimates[name].unknown for name in ("y", "dx", "sum")]
    assert unknown[0] is None
    if kinks:
        assert [np.argwhere(mask).tolist() for mask in unknown[1:]] == [[[1, 2]], [[1]]]
    else:
        assert unknown[1:] == [None, None]
    settled = spread(relu_graph(), {"x": off(x), "dy": X}, key=KEY, decided={"y": np.maximum(x, 0)})
    assert settled.kinks == made.kinks
    assert settled.estimates["dx"].unknown is None


def test_r11_what_is_surely_below_0_has_no_error_after_a_relu_and_what_is_near_has() -> None:
    x = np.array([[1.0, -1.0, NEAR], [-NEAR, FAR, -FAR]], np.float32)
    expected = np.array([[DEVIATION, 0, DEVIATION], [DEVIATION, DEVIATION, 0]])
    np.testing.assert_allclose(deviations(spread(relu_graph(), {"x": off(x), "dy": X}, key=KEY), "y"), expected)


def test_r11_a_0_without_an_error_is_no_kink() -> None:
    made = spread(relu_graph(), {"x": np.zeros(X.shape, np.float32), "dy": X}, key=KEY)
    assert (made.kinks, made.estimates["dx"].unknown) == ({}, None)


def test_r11_the_branch_that_was_taken_is_followed() -> None:
    """By the signs that a run had, the value of the gradient is that run's, with its error."""
    x, y = X.copy(), np.maximum(X, 0)
    x[0, 1], y[0, 1] = -NEAR, np.float32(NEAR / 100)
    made = spread(relu_graph(), {"x": off(x), "dy": off(X)}, key=KEY, decided={"y": y})
    assert made.estimates["dx"].value[0, 1] == X[0, 1]
    assert deviations(made, "dx")[0, 1] == pytest.approx(DEVIATION)


PLANE = np.array([[5, 1, 2, 0], [3, 4, 0, 8], [0, -3, 7, 6]], np.float32).reshape(1, 1, 3, 4)


def pool_graph(**window: Any) -> Graph:
    """A max pool, its gradient, and a product with what it gives."""
    graph = Graph()
    x = source(graph, shape=PLANE.shape)
    y, index = graph.apply(MaxPool2d(**window), [x], "y")
    dy = source(graph, "dy", y.shape)
    graph.apply(MaxPool2dGradient(PLANE.shape), [dy, index], "dx")
    return graph


@pytest.mark.parametrize(
    ("window", "changes", "near"),
    [
        ({"kernel": 2}, {}, [[0, 0], [0, 0]]),
        ({"kernel": 2}, {(0, 1): 5 - NEAR}, [[1, 0], [0, 0]]),
        ({"kernel": 2}, {(0, 1): 5 - 3 * FAR}, [[0, 0], [0, 0]]),
        ({"kernel": 2}, {(2, 1): -NEAR}, [[0, 0], [1, 0]]),
        ({"kernel": 2, "rounding": "floor"}, {(2, 3): 7}, [[0, 0]]),
        ({"kernel": (2, 3), "stride": (2, 2), "pads": ((1, 0), (0, 1))}, {(2, 3): 8}, [[0, 0], [0, 1]]),
    ],
)
def test_r11_a_winner_that_may_lose_is_a_kink(window: dict[str, Any], changes: Any, near: Any) -> None:
    """Padding, and what a rounded number of windows leaves out, can neither win nor be near."""
    x = PLANE.copy()
    for at, value in changes.items():
        x[(0, 0, *at)] = value
    graph = pool_graph(**window)
    dy = np.ones(graph["dy"].shape, np.float32)
    made = spread(graph, {"x": off(x), "dy": dy}, key=KEY)
    found = made.estimates["y.1"].near
    assert (np.zeros(np.shape(near)) if found is None else found[0, 0]).tolist() == np.asarray(near, bool).tolist()
    assert sum(made.kinks.values()) == np.sum(near)
    assert (made.estimates["dx"].unknown is not None) == bool(np.any(near))
    settled = spread(graph, {"x": off(x), "dy": dy}, key=KEY, decided={"y.1": made.estimates["y.1"].value})
    assert settled.estimates["dx"].unknown is None
    doubt = np.asarray(near, bool)[None, None]
    again = spread(graph, {"x": off(x), "dy": dy}, key=KEY, decided={"y.1": np.zeros(doubt.shape, int)},
                   undecided={"y.1": doubt})  # fmt: skip
    assert (again.estimates["dx"].unknown is not None) == bool(np.any(near))


def test_r11_two_elements_without_an_error_are_in_order() -> None:
    """Whether nothing errs, or others do."""
    dy = np.ones((1, 1, 2, 2))
    x = Estimate(np.zeros(PLANE.shape), np.zeros(PLANE.shape))
    assert x.variance is not None
    assert spread(pool_graph(kernel=2), {"x": x, "dy": dy}, key=KEY).kinks == {}
    assert spread(pool_graph(kernel=2), {"x": x.value, "dy": dy}, key=KEY).kinks == {}
    x.variance[0, 0, 2, 0] = DEVIATION**2
    assert spread(pool_graph(kernel=2), {"x": x, "dy": dy}, key=KEY).kinks == {"y": 1}


def test_r11_a_maximum_errs_as_the_worst_of_its_window() -> None:
    x = Estimate(PLANE, np.zeros(PLANE.shape))
    assert x.variance is not None
    x.variance[0, 0, 1, 2] = DEVIATION**2
    got = deviations(spread(pool_graph(kernel=2), {"x": x, "dy": np.ones((1, 1, 2, 2))}, key=KEY), "y")
    assert got[0, 0].tolist() == [[0, DEVIATION], [0, 0]]


@pytest.mark.parametrize(
    ("k", "logits", "kinks"),
    [
        (1, [0.5, 3.0, 3.0 - NEAR], 1),
        (1, [0.5, 3.0, 3.0 - 3 * FAR], 0),
        (1, [3.0 + NEAR, 3.0, 0.5], 1),
        (2, [3.0 + NEAR, 3.0, 0.5], 0),
        (2, [4.0, 3.0, 3.0 - NEAR], 1),
        (1, [4.0, 3.0, 3.0 - NEAR], 0),
    ],
)
def test_r11_a_place_among_the_largest_may_be_a_kink(k: int, logits: list[float], kinks: int) -> None:
    """Only a decision that the accuracy hangs on: of two near logits both may be among them, or neither."""
    graph = Graph()
    x, label = source(graph, shape=(2, 3)), graph.blob("label", (2,), "int64")
    graph.apply(TopKAccuracy(k), [x, label], "y")
    fed = np.array([logits, [9.0, 1.0, 5.0]], np.float32)
    made = spread(graph, {"x": off(fed), "label": np.array([1, 2])}, key=KEY)
    assert sum(made.kinks.values()) == kinks
    assert (made.estimates["y"].unknown is not None) == bool(kinks)


def test_r11_a_first_step_of_adagrad_may_go_either_way() -> None:
    """It is the sign of the gradient, times the rate."""
    graph = Graph()
    blobs = [source(graph, name, (3,)) for name in ("w", "g", "h")] + [source(graph, "rate", ())]
    graph.apply(AdaGrad(), blobs, "next")
    zeros = np.zeros(3, np.float32)
    gradient = np.array([1.0, NEAR / 4, -1.0], np.float32)
    fed = {"w": zeros, "g": off(gradient), "h": zeros, "rate": np.array(0.1, np.float32)}
    made = spread(graph, fed, key=KEY)
    assert made.kinks == {"next": 1}
    unknown = made.estimates["next"].unknown
    assert unknown is not None
    assert unknown.tolist() == [False, True, False]


def test_r11_what_is_unknown_in_one_of_several_producers_is_unknown_in_their_sum() -> None:
    graph = relu_graph()
    total = graph.blob("total", X.shape, "float32")
    for name in ("dx", "x"):
        graph.connect([graph[name]], Identity(), [total], name=f"{name}/added")
    x = X.copy()
    x[1, 2] = NEAR
    unknown = spread(graph, {"x": off(x), "dy": X}, key=KEY).estimates["total"].unknown
    assert unknown is not None
    assert np.argwhere(unknown).tolist() == [[1, 2]]


def test_r11_an_undecided_sign_goes_where_it_is_copied_to() -> None:
    """The copy decides, and so does a slice of it; arithmetic on it does not hang on the decision."""
    graph = Graph()
    x, dy = source(graph), source(graph, "dy", (4, 3))
    (y,) = graph.apply(ReLU(), [x], "y")
    (both,) = graph.apply(Concat(0), [graph.apply(Copy(), [y], "copy")[0], y], "both")
    graph.apply(ReLUGradient(), [dy, both], "dx")
    graph.apply(Scale(3.0), [y], "z")
    doubt = np.zeros(X.shape, bool)
    doubt[1, 1] = True
    ones = np.ones((4, 3), np.float32)
    made = spread(graph, {"x": X, "dy": ones}, key=KEY, undecided={"y": doubt})
    unknown = made.estimates["dx"].unknown
    assert unknown is not None
    assert np.argwhere(unknown).tolist() == [[1, 1], [3, 1]]
    assert (made.estimates["z"].unknown, made.estimates["z"].undecided) == (None, None)


# Trials -------------------------------------------------------------------------------------------------------------


@dataclass
class Trial:
    """Steps of a float32 network beside their float64 estimates: error over bound of every tensor, and kinks."""

    net: RandomNetwork
    carry: bool = False
    ratios: dict[str, float] = field(default_factory=dict)
    kinks: int = 0

    def run(self, steps: int) -> Trial:
        """Run; with `carry`, from the estimates of the step before, else from the state that the run really had."""
        graph = self.net.graph
        state: dict[str, Estimate] = {}
        with Serial(graph, seed=1) as serial:
            for step in range(steps):
                serial.feed(self.net.feed(step))
                held = held_by(serial)
                serial.run()
                key, decided = RunKey(1, step), decisions(serial)
                made = spread(graph, {**held, **(state if self.carry else {})}, key=key, decided=decided)
                state = made.carried(graph)
                self.kinks += sum(made.kinks.values())
                for name, ratio in self._compare(serial, Estimates(graph, made)):
                    self.ratios[name] = max(ratio, self.ratios.get(name, 0.0))
        return self

    def _compare(self, serial: Serial, estimates: Estimates) -> Iterator[tuple[str, float]]:
        stale = {following for _, following in serial.graph.pairs}
        for blob in serial.graph.blobs:
            if blob in stale or blob in serial.plan.lost:
                continue
            got, end = serial.fetch(blob.name), estimates[blob.name]
            if not blob.tensor.is_float:
                near = np.zeros(got.shape, bool) if end.near is None else end.near
                assert not ((got != end.value) & ~near).any(), f"{blob.name} was decided otherwise, beyond its spread"
                continue
            bound = KAPPA * (np.zeros(got.shape) if end.variance is None else np.sqrt(end.variance))
            with np.errstate(divide="ignore", invalid="ignore"):
                error = np.abs(got.astype(np.float64) - end.value) / bound
            known = np.isfinite(bound) & ~(np.zeros(got.shape, bool) if end.unknown is None else end.unknown)
            yield blob.name, float(np.where(known & (got != end.value), error, 0.0).max(initial=0.0))


@given(seed=st.integers(0, 2**32 - 1))
def test_r11_no_float32_network_leaves_its_bound(seed: int) -> None:
    trial = Trial(random_network(seed)).run(2)
    worst = max(trial.ratios.values())
    event(f"worst error/bound below {math.ceil(worst * 10) / 10}")
    event(f"kinks: {trial.kinks > 0}")
    assert worst <= 1, {name: ratio for name, ratio in trial.ratios.items() if ratio > 1}


def test_r11_the_state_is_carried_over_iterations() -> None:
    """Four steps in float32 from the first weights, beside four in float64: within bounds that grow as they must."""
    net = random_network(5)
    assert net.graph.pairs
    trial = Trial(net, carry=True).run(4)
    assert 0.05 < max(trial.ratios.values()) <= 1
    graph = Graph()
    x = source(graph)
    x.persistent = True
    graph.apply(Scale(0.9), [x], "next")
    graph.swap(x, graph["next"])
    state: dict[str, Any] = {"x": X}
    found = []
    for _ in range(3):
        made = spread(graph, state, key=KEY)
        state = made.carried(graph)
        found.append(float(deviations(made, "next")[0, 0]))
    once = 2 * UNIT * 0.9 * X[0, 0] / math.sqrt(3)
    expected = [once * math.sqrt(count) * 0.9 ** (count - 1) for count in (1, 2, 3)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


TRIALS = 20_000


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_r11_trials_of_kappa(capsys: pytest.CaptureFixture[str]) -> None:
    """The trials that `docs/bounds.md` reports: two steps each of 20,000 networks, their worst tensors' error/bound."""
    worst = [max(Trial(random_network(seed)).run(2).ratios.values()) for seed in range(TRIALS)]
    quantiles = dict(zip((0.5, 0.9, 0.99, 0.999, 1.0), np.quantile(worst, (0.5, 0.9, 0.99, 0.999, 1.0)), strict=True))
    with capsys.disabled():
        print(f"\n{TRIALS} networks: worst error/bound by quantile {quantiles}")
    assert quantiles[1.0] <= 1


def test_r11_a_product_of_errors_passes_through_a_linear_layer() -> None:
    """Where x is 0 but for its error, the weights' errors count only times that."""
    graph = Graph()
    graph.apply(Linear(), [source(graph), source(graph, "w", (4, 3))], "y")
    made = spread(graph, {"x": off(np.zeros_like(X)), "w": off(np.zeros((4, 3), np.float32))}, key=KEY)
    np.testing.assert_allclose(deviations(made, "y"), 2 * math.sqrt(3) * DEVIATION**2, rtol=1e-6)


def test_r11_kinks_of_operations_without_decisions_are_none() -> None:
    found = Tanh().kinks(Call(None, [X], [X], UNIT, [X]))  # type: ignore[arg-type]
    assert (found.count, found.jumps) == (0, (None,))
