"""The checker of shared memory (rule R5): wrong plans, planted, random, and made by a wrong planner, are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purine_ref import lifetimes
from purine_ref.errors import GraphError
from purine_ref.executors import Serial, base
from purine_ref.graph import Blob, Graph
from purine_ref.lifetimes import share_memory
from purine_ref.ops import Copy, Identity, Mul, Scale, Slice, Split, Sum, Tanh
from purine_ref.packing import ALIGNMENT
from purine_ref.plan import Place, Plan, Sharing, prepare
from purine_ref.sharing import check_sharing
from purine_ref.tensor import Location
from sharing_support import Junk, X, chain, drawn_graph, drawn_order, ran, shared
from strategies import Recipe, recipes


def refused(plan: Plan, *keep: str) -> str:
    """What the checker says of a wrong plan."""
    with pytest.raises(GraphError) as caught:
        check_sharing(plan, keep)
    return str(caught.value)


def at(graph: Graph, size: int, **offsets: int) -> Plan:
    """The plan with these blobs in shared memory, all said to be lost."""
    plan = prepare(graph)
    sharing = Sharing({Place(graph[name].index): offset for name, offset in offsets.items()}, {Location(): size})
    return replace(plan, sharing=sharing, lost=frozenset(graph[name] for name in offsets))


def test_r5_the_checker_names_both_accesses() -> None:
    graph = chain("ab")
    chain("c", graph, "a")
    check_sharing(at(graph, 512, a=0, b=256))
    assert refused(at(graph, 512, a=0, b=192)) == (
        "graph 'chain': blob 'a' and blob 'b' share memory, but operator 'b' has to do with both"
    )
    assert refused(at(graph, 512, b=0, c=255)) == (
        "graph 'chain': blob 'b' and blob 'c' share memory, but no path leads from operator 'b' to operator 'c'"
    )
    assert refused(at(graph, 512, c=257)) == "graph 'chain': blob 'c' lies at bytes 257 to 513 of a memory of 512"
    assert refused(at(graph, 512, x=0)) == ("graph 'chain': blob 'x' must last until the next run, but shares memory")


def test_r5_the_checker_wants_to_be_told_what_is_lost() -> None:
    plan = at(chain("abc"), 512, a=0, c=64)
    check_sharing(plan)
    wrong = replace(plan, lost=frozenset([plan.graph["c"]]))
    assert refused(wrong) == "graph 'chain': blob 'a' is overwritten by blob 'c', but not lost"
    assert refused(plan, "c") == "graph 'chain': blob 'c' is to be kept, but is overwritten"


def test_r5_the_checker_allows_in_place_over_the_first_input_alone() -> None:
    graph = chain("a")
    graph.apply(Tanh(), [graph["a"]], "b")
    check_sharing(at(graph, 256, a=0, b=0))
    assert "share memory" in refused(at(graph, 512, a=0, b=64))
    for operation, inputs in ((Copy(), ["a"]), (Sum(), ["a", "a"]), (Sum(), ["x", "a"])):
        graph = chain("a")
        graph.apply(operation, [graph[name] for name in inputs], "b")
        assert "share memory" in refused(at(graph, 256, a=0, b=0))
    graph = chain("a")
    graph.apply(Sum(), [graph["a"], graph["x"]], "b")
    check_sharing(at(graph, 256, a=0, b=0))
    chain("c", graph, "a")  # one more reader, which nothing orders
    assert "share memory" in refused(at(graph, 256, a=0, b=0))


def test_r5_additions_are_accesses() -> None:
    """Of a sum's parts only the blob itself can be waited for."""
    graph = chain("a")
    both = graph.blob("both", X)
    for number in range(2):
        graph.connect([graph["a"]], Scale(2.0), [both], name=f"twice{number}")
    chain("bc", graph, "both")
    chain("d", graph, "a")
    staging = Place(both.index, (graph.op("twice1").index, 0))
    for name, fine in (("b", True), ("c", True), ("both", False), ("d", False), ("a", False)):
        plan = at(graph, 512, **{name: 0})
        assert plan.sharing is not None
        plan = replace(plan, sharing=replace(plan.sharing, offsets={**plan.sharing.offsets, staging: 0}))
        if fine:
            check_sharing(plan)
        else:
            assert "the contribution of operator 'twice1' to blob 'both'" in refused(plan)


def forgetting(what: str) -> Callable[[], Any]:
    """A planner that forgets something."""

    def wrong_tenants(right: Any, plan: Plan, root: Any, kept: Any) -> Any:
        tenants = right(plan, root, set() if what == "kept" else kept)
        for tenant in tenants:
            if what == "readers":
                tenant.accesses = reduce(or_, (1 << lifetimes.Past(plan).of_op[op.index] for op in tenant.writers))
            if what == "order":
                tenant.before = (1 << 60) - 1  # more than there are
        return tenants

    def plant() -> Any:
        right = lifetimes._tenants
        return mock.patch.object(lifetimes, "_tenants", partial(wrong_tenants, right))

    return plant


def wrong_past(right: Any, self: Any, plan: Plan) -> None:
    """Additions are made before anything else."""
    right(self, plan)
    self.of_sum = dict.fromkeys(self.of_sum, 0)


PLANTED: dict[str, Callable[[], Any]] = {
    "readers are forgotten": forgetting("readers"),
    "all orders hold": forgetting("order"),
    "nothing is kept": forgetting("kept"),
    "nothing clashes": lambda: mock.patch.object(
        lifetimes, "pack", lambda sizes, clash: ([0] * len(sizes), max(sizes))
    ),
    "nothing is lost": lambda: mock.patch.object(lifetimes, "_overwritten", return_value=set()),
    "views are forgotten": lambda: mock.patch.object(
        lifetimes, "_roots", lambda plan: {blob: blob for blob in plan.graph.blobs}
    ),
    "additions are forgotten": lambda: mock.patch.object(
        lifetimes.Past, "__init__", partial_method(lifetimes.Past.__init__, wrong_past)
    ),
    "all works in place": lambda: mock.patch.object(lifetimes, "_heirs", wrong_heirs),
}


def wrong_heirs(plan: Plan, root: Any, at_: dict[Place, Any]) -> dict[Place, Any]:
    """Every operator writes over its first input, whoever else reads it."""
    found: dict[Place, Any] = {}
    for op in plan.graph.ops:
        old, new = (at_.get(Place(blob.index)) for blob in (op.inputs[0], op.outputs[0]))
        if old and new and old.blob.tensor == new.blob.tensor and op not in plan.idle:
            found.setdefault(old.place, new)
    return found


def partial_method(right: Any, wrong: Any) -> Any:
    return lambda self, *arguments: wrong(right, self, *arguments)


def everything() -> Graph:
    """A graph with views, in-place operators, several producers, branches: each planted fault makes a wrong plan."""
    graph = chain("abcd")
    graph.apply(Tanh(), [graph["d"]], "t")
    parts = [graph.apply(Slice(0, i, i + 1), [graph["t"]], f"part{i}")[0] for i in range(4)]
    for part in parts:
        graph.apply(Mul(), [part, part], f"{part.name}/squared")
    gathered = graph.blob("gathered", (1, 16))
    for part in parts:
        graph.connect([graph[f"{part.name}/squared"]], Scale(2.0), [gathered], name=f"{part.name}/twice")
    for number in range(2):
        rest = graph.blob(f"rest{number}", (3, 16))
        graph.connect([graph["t"]], Split(0, (1, 3)), [gathered, rest], name=f"split{number}")
        graph.apply(Mul(), [rest, rest], f"rest{number}/squared")
    chain("efgh", graph, "gathered")
    chain("ij", graph, "b")
    graph.apply(Identity(), [graph["j"]], "k")
    chain("lmn", graph, "k")
    return graph


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_of_the_planner_are_refused(fault: str) -> None:
    graph = everything()
    keep = ("e", "a")
    shared(graph, *keep)
    with PLANTED[fault]():
        plan = share_memory(prepare(graph), keep)
    refused(plan, *keep)


@given(recipe=recipes(most=10), data=st.data())
def test_whatever_the_checker_accepts_gives_the_right_bits(recipe: Recipe, data: st.DataObject) -> None:
    """Random places instead of planned ones, and random orders of the operators."""
    graph, random = drawn_graph(recipe, data), Random(recipe.seed)
    plan = rearranged(share_memory(prepare(graph)), random)
    with ran(Serial(graph, seed=1), recipe) as expected:
        pass
    ends = {graph[name] for name in expected if not covered(plan, graph[name])}
    plan = replace(plan, lost=frozenset(graph.blobs) - ends)
    device = Junk()
    with mock.patch.object(base, "share_memory", return_value=plan), mock.patch.object(base, "check_sharing"):
        for _ in range(2):
            order = drawn_order(graph, random)
            with ran(Serial(graph, seed=1, order=order, reuse=True, devices=lambda place: device), recipe) as got:
                assert {name: expected[name] for name in got} == got


def rearranged(plan: Plan, random: Random) -> Plan:
    """The plan with places moved to those of others, again and again, wherever the checker accepts it."""
    assert plan.sharing is not None
    places = sorted(plan.sharing.offsets, key=str)
    size = sum(plan.graph.blobs[place.blob].tensor.nbytes + ALIGNMENT for place in places)
    for _ in range(30 if places else 0):
        assert plan.sharing is not None
        moved, target = random.choice(places), random.choice(places)
        offsets = {**plan.sharing.offsets, moved: plan.sharing.offsets[target]}
        wrong = replace(plan, sharing=Sharing(offsets, {Location(): size}), lost=frozenset(plan.graph.blobs))
        try:
            check_sharing(wrong)
        except GraphError:
            continue
        plan = wrong
    return plan


def covered(plan: Plan, blob: Blob) -> bool:
    """Whether others have bytes of the blob's memory, and so may have overwritten it."""
    while blob in plan.views:
        blob = plan.views[blob].parent
    own = None if plan.sharing is None else plan.sharing.offsets.get(Place(blob.index))
    if own is None or plan.sharing is None:
        return False
    others = [(plan.graph.blobs[p.blob], at_) for p, at_ in plan.sharing.offsets.items() if p != Place(blob.index)]
    return any(at_ < own + blob.tensor.nbytes and own < at_ + other.tensor.nbytes for other, at_ in others)
