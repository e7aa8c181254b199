"""Complete exploration: schedules counted exactly, one run for each trace, and no disagreement is missed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from hooks import call
from purine_ref import layers, optim, plan
from purine_ref.conformance.explore import (
    bits_of,
    conflicts,
    count_schedules,
    explore,
    predecessors,
    runner,
    sample,
    traces,
)
from purine_ref.conformance.schedules import order_of
from purine_ref.errors import GraphError
from purine_ref.executors import Serial, Threaded
from purine_ref.executors.memory import Binding
from purine_ref.gradients import backward
from purine_ref.graph import Graph
from purine_ref.hazards import HazardCheck
from purine_ref.ops import Identity, ReduceSum, Scale
from purine_ref.parallel import Data, compose
from purine_ref.plan import Plan, prepare
from strategies import Recipe, recipes, tangles

FEW = 300
"""Schedules that a test is willing to run one by one."""


def all_orders(plan: Plan) -> Iterator[tuple[int, ...]]:
    """Every topological order, by trying every operator at every place."""
    before = predecessors(plan)
    pending: list[tuple[int, ...]] = [()]
    while pending:
        order = pending.pop()
        if len(order) == len(before):
            yield order
        done = sum(1 << op for op in order)
        pending += [(*order, op) for op in range(len(before)) if op not in order and before[op] & ~done == 0]


# Counting schedules


@pytest.mark.parametrize(("chains", "count"), [((1,) * 5, 120), ((3, 4), 35), ((9,), 1), ((2, 2, 2), 90), ((), 1)])
def test_schedules_are_counted(chains: tuple[int, ...], count: int) -> None:
    """Chains side by side: the multinomial of their lengths."""
    graph = Graph("chains")
    for number, length in enumerate(chains):
        link = []
        for step in range(length):
            link = [call(graph, f"op{number}.{step}", link)]
    assert count == math.factorial(sum(chains)) // math.prod(math.factorial(length) for length in chains)
    assert count_schedules(prepare(graph)) == count


def test_too_many_sets_of_operators_are_not_counted() -> None:
    graph = Graph("wide")
    for number in range(14):
        call(graph, f"op{number}")
    assert count_schedules(prepare(graph)) == math.factorial(14)
    assert count_schedules(prepare(graph), most=1000) is None


@given(recipe=recipes(most=5))
def test_the_count_is_that_of_all_orders(recipe: Recipe) -> None:
    plan = prepare(recipe.graph())
    count = count_schedules(plan)
    assume(count is not None and count <= FEW)
    assert count == sum(1 for _ in all_orders(plan))


# Traces


def unchecked(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan of a graph that may alias without any order, and that `prepare` takes all the same: a planted fault."""

    class Blind(HazardCheck):
        def __init__(self, *facts: object) -> None:
            super().__init__(*facts)  # type: ignore[arg-type]
            self.problems = []

    monkeypatch.setattr(plan, "HazardCheck", Blind)
    try:
        return prepare(recipe.graph())
    except GraphError:  # a view that cannot be
        reject()


def orientation(order: tuple[int, ...], pairs: list[tuple[int, int]]) -> tuple[bool, ...]:
    return tuple(order.index(one) < order.index(other) for one, other in pairs)


@given(recipe=tangles(most=5))
def test_every_trace_comes_up_once(recipe: Recipe) -> None:
    """The traces are the classes of all orders by which of each conflicting pair comes first."""
    with pytest.MonkeyPatch.context() as patch:
        tangled = unchecked(recipe, patch)
    assume((count_schedules(tangled) or FEW + 1) <= FEW)
    pairs = conflicts(tangled)
    found = [tuple(bool(mask[other] >> one & 1) for one, other in pairs) for mask in traces(tangled)]
    assert len(set(found)) == len(found)
    assert set(found) == {orientation(order, pairs) for order in all_orders(tangled)}


@given(recipe=tangles(most=5))
def test_no_disagreement_is_missed(recipe: Recipe) -> None:
    """With aliasing that nobody checks: an exploration finds schedules that differ where running all of them does."""
    with pytest.MonkeyPatch.context() as patch:
        tangled = unchecked(recipe, patch)
        graph = tangled.graph
        assume((count_schedules(tangled) or FEW + 1) <= FEW)
        run = runner(
            graph, {k: v for k, v in recipe.feed(graph, integers=True).items() if graph[k] not in tangled.views}
        )
        results = {tuple(run([graph.ops[op].name for op in order]).items()) for order in all_orders(tangled)}
        result = explore(tangled, run)
    assert result.verdict == ("pass" if len(results) == 1 else "fail")
    assert result.runs <= (result.schedules or 0)


def test_an_alias_hazard_let_through_is_found() -> None:
    """Two operators write one buffer, which a third reads: the schedules that are named replay the disagreement."""
    graph = Graph("hazard")
    x = graph.blob("x", (3,), "float64")
    y = graph.blob("y", (3,), "float64")
    graph.connect([x], Scale(2.0), [y])
    graph.connect([x], Scale(5.0), [graph.view(y, "z")])
    graph.connect([graph["z"]], Scale(1.0), [graph.blob("out", (3,), "float64")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan.HazardCheck, "_complain", lambda *facts: None)
        unsafe = prepare(graph)
        run = runner(graph, {"x": np.array([1.0, 2.0, 3.0])})
        result = explore(unsafe, run)
        assert result.disagreement is not None
        assert (result.verdict, result.schedules, result.runs, result.complete) == ("fail", 3, 2, False)
        one, other = (run(order_of(unsafe, text)) for text in (result.disagreement.one, result.disagreement.other))
        assert one[result.disagreement.blob] != other[result.disagreement.blob]
    assert str(result) == (
        "3 operators, 3 schedules, 2 conflicting pairs; 2 run, a sample: blob 'z' differs between schedules "
        f"{result.disagreement.one} and {result.disagreement.other}"
    )


# Graphs that are right


def trained() -> Graph:
    """Two linear layers with one weight, and all gradients: 13 operators, of which several add to one blob."""
    graph = Graph("tied")
    x = graph.blob("x", (3, 4), "float64")
    weight = graph.parameter("weight", (4, 4), "float64", layers.Gaussian((4, 4), "float64"))
    (hidden,) = graph.apply(layers.Linear(), [x, weight], "hidden")
    (act,) = graph.apply(layers.Tanh(), [hidden], "act")
    (out,) = graph.apply(layers.Linear(), [act, weight], "out")
    loss = layers.squared_error(out, x)
    optim.sgd(backward(loss, [weight]))
    return graph


def feeds(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    fed = [blob for blob in graph.blobs if not blob.producers and not blob.persistent]
    return {blob.name: rng.standard_normal(blob.shape).astype(blob.dtype) for blob in fed}


@pytest.mark.parametrize("make", [Serial, Threaded])
def test_a_training_step_is_explored_completely(make: type) -> None:
    """Gradients that several operators add to are the only conflicts: few runs stand for all schedules."""
    graph = trained()
    result = explore(prepare(graph), runner(graph, feeds(graph), iterations=2, make=make))
    assert (result.verdict, result.complete) == ("pass", True)
    assert result.operators <= 14
    assert (result.runs, result.conflicts) == (2, 1)
    assert result.schedules is not None
    assert result.schedules > 2
    print(result)


def test_a_composed_step_is_explored_completely() -> None:
    graph = Graph("small")
    x = graph.blob("x", (3, 4), "float64")
    layers.squared_error(layers.linear(x, 2, name="fc"), graph.blob("target", (3, 2), "float64"), reduction="sum")
    two = compose(graph, [Data(2)])
    result = explore(prepare(two), runner(two, feeds(two)))
    assert (result.verdict, result.runs, result.conflicts) == ("pass", 2, 1)  # both replicas add to one loss
    print(result)


def gathered(count: int) -> Graph:
    """One float32 blob that several operators add to, with a sum that depends on the order."""
    graph = Graph("gathered")
    total = graph.blob("total", (2,), "float32")
    for number in range(count):
        graph.connect([graph.blob(f"x{number}", (2,), "float32")], Identity(), [total], name=f"add{number}")
    graph.apply(ReduceSum(), [total], "result")
    return graph


VALUES = {f"x{i}": np.array([v, 1], "float32") for i, v in enumerate((1e8, 1, -1e8, 3))}


def test_additions_in_the_order_of_the_edges_agree() -> None:
    graph = gathered(4)
    result = explore(prepare(graph), runner(graph, VALUES))
    assert (result.verdict, result.schedules, result.runs, result.conflicts) == ("pass", 24, 24, 6)
    assert str(result) == (
        "5 operators, 24 schedules, 6 conflicting pairs; 24 run, which stand for all: all agree bit for bit"
    )


def test_additions_by_arrival_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The race that Purine has: whoever ends first is added first."""
    arrived: list[int] = []
    call_op, combine = Binding.call, Binding.combine

    def recorded(self: Binding, op: int, kernels: object) -> None:
        arrived.append(op)
        call_op(self, op, kernels)  # type: ignore[arg-type]

    def by_arrival(self: Binding, blob: int) -> None:
        combine(self, blob)
        total = np.zeros(2, "float32")
        for op in arrived:
            total = total + VALUES[f"x{op}"]
        self._places[blob][0][...] = total
        arrived.clear()

    monkeypatch.setattr(Binding, "call", recorded)
    monkeypatch.setattr(Binding, "combine", by_arrival)
    graph = gathered(4)

    def run(order: list[str]) -> dict[str, bytes]:
        arrived.clear()
        return dict(runner(graph, VALUES)(order))

    result = explore(prepare(graph), run)
    assert result.verdict == "fail"
    assert result.disagreement is not None
    assert result.disagreement.blob == "total"
    assert sample(prepare(graph), run, runs=20, seed=1).verdict == "fail"


# Larger graphs


def test_more_traces_than_asked_for_are_not_complete() -> None:
    graph = gathered(4)
    result = explore(prepare(graph), runner(graph, VALUES), most=7)
    assert (result.verdict, result.runs, result.complete) == ("unknown", 7, False)


def test_a_sample_is_never_a_pass_unless_there_is_one_schedule() -> None:
    graph = gathered(4)
    result = sample(prepare(graph), runner(graph, VALUES), runs=5)
    assert (result.verdict, result.runs) == ("unknown", 5)
    chain = Graph("chain")
    call(chain, "b", [call(chain, "a")])
    assert sample(prepare(chain), runner(chain, {}), runs=2).verdict == "pass"


@given(seed=st.integers(0, 2**16))
def test_any_bits_that_can_be_fetched_are_compared(seed: int) -> None:
    graph = gathered(3)
    with Serial(graph, seed=seed) as executor:
        executor.feed({name: VALUES[name] for name in ("x0", "x1", "x2")})
        executor.run()
        assert list(bits_of(executor)) == [blob.name for blob in graph.blobs]
