"""Which blobs share memory (rule R5), and which must not."""

from __future__ import annotations

import logging
from unittest import mock

import pytest

from hooks import Swallow
from purine_ref import lifetimes
from purine_ref.devices.virtual import VirtualMachine
from purine_ref.graph import Graph
from purine_ref.lifetimes import share_memory
from purine_ref.ops import Concat, Constant, Copy, Mul, Scale, Slice, Sum, Tanh
from purine_ref.packing import ALIGNMENT
from purine_ref.plan import Plan, prepare
from purine_ref.sharing import check_sharing
from purine_ref.tensor import Location
from sharing_support import STEP, X, chain, shared


def places(plan: Plan) -> dict[str, int]:
    """Where the blobs that share memory lie, by name."""
    assert plan.sharing is not None
    found = {plan.graph.blobs[place.blob].name: at for place, at in plan.sharing.offsets.items() if not place.edge}
    return dict(sorted(found.items()))


def total(plan: Plan) -> int:
    """Bytes that are shared, in all places."""
    assert plan.sharing is not None
    return sum(plan.sharing.bytes.values())


# Who may share ------------------------------------------------------------------------------------------------------


def test_a_chain_needs_two_buffers() -> None:
    plan = shared(chain("abcdef"))
    assert total(plan) == 2 * STEP
    assert [places(plan)[name] for name in "abcdef"] in ([0, STEP] * 3, [STEP, 0] * 3)
    assert {blob.name for blob in plan.lost} == set("abcd")


def test_branches_that_no_path_orders_share_nothing() -> None:
    """They may run side by side, though the plan's own order would not."""
    graph = chain("ab")
    chain("cd", graph, "x")
    graph.apply(Sum(), [graph["b"], graph["d"]], "e")
    plan = shared(graph)
    held = places(plan)
    assert {held["a"], held["b"]}.isdisjoint({held["c"], held["d"]})
    assert total(plan) == 4 * STEP  # e takes a's or c's


def test_what_is_kept_is_overwritten_by_nobody_and_may_overwrite() -> None:
    plan = shared(chain("abcdef"), "c")
    held = places(plan)
    assert held["c"] not in [held[name] for name in "def"]
    assert held["c"] == held["a"]
    assert "c" not in {blob.name for blob in plan.lost}


def test_what_the_next_run_reads_has_memory_of_its_own() -> None:
    graph = chain("ab")
    state = graph.blob("state", X)
    graph.apply(Sum(), [graph["b"], state], "c")
    following = graph.blob("following", X)
    graph.connect([graph["c"]], Scale(0.5), [following])
    graph.swap(state, following)
    parameter = graph.parameter("p", X, "float32", Constant(1.0, X))
    graph.apply(Sum(), [graph["c"], parameter], "d")
    assert set(places(shared(graph))) == {"a", "b", "c", "d"}


def test_in_place_where_the_input_dies() -> None:
    """A chain of activations needs one buffer; one with a second reader, or of a source, has its own."""
    graph = chain("a")
    for before, name in ("ab", "bc", "xy"):
        graph.apply(Tanh(), [graph[before]], name)
    assert total(shared(graph)) == 2 * STEP
    chain("z", graph, "b")
    assert len({places(shared(graph))[name] for name in "abcyz"}) == 4  # only a and b are one


def test_in_place_after_all_other_readers() -> None:
    """The other reader of a comes before c by a path, or does not."""
    for others in ("ab", "a"):
        graph = chain("ab")
        graph.apply(Sum(), [graph[name] for name in others], "c")
        held = places(shared(graph))
        assert (held["c"] == held["a"]) is (others == "ab")


def test_a_view_lives_in_its_root() -> None:
    """The root is not free before the last reader of its last part."""
    graph = chain("a")
    parts = [graph.apply(Slice(0, 2 * i, 2 * i + 2), [graph["a"]], f"part{i}")[0] for i in range(2)]
    for part in parts:
        graph.apply(Mul(), [part, part], f"{part.name}/squared")
    plan = shared(graph)
    assert len(plan.views) == 2
    held = places(plan)
    assert not {"part0", "part1"} & set(held)
    assert all(STEP <= abs(held[name] - held["a"]) or held[name] >= STEP for name in held if name != "a")


def test_a_root_is_kept_with_any_of_its_views() -> None:
    for keep in ("a", "part0", "part1"):
        graph = chain("a")
        for i in range(2):
            graph.apply(Slice(0, 2 * i, 2 * i + 2), [graph["a"]], f"part{i}")
        chain("b", graph, "part0")
        chain("c", graph, "part1")
        graph.apply(Sum(), [graph["b"], graph["c"]], "d")
        graph.apply(Concat(0), [graph["d"], graph["d"]], "e")
        chain("fg", graph, "e")
        held = places(shared(graph, keep))
        assert not [name for name in held if held["a"] <= held[name] < held["a"] + STEP and name != "a"]
        free = places(shared(graph))
        assert free["a"] in (free["e"], free["f"])


def test_memory_that_can_be_fed_in_part_is_shared_with_nobody() -> None:
    """The root of declared views has no producer: what is fed to it stays where no view is written."""
    graph = chain("a")
    whole = graph.blob("whole", (8, 16))
    graph.connect([graph["a"]], Scale(2.0), [graph.view(whole, "part", [(0, 4), (0, 16)])])
    chain("bc", graph, "part")
    assert "whole" not in places(shared(graph))


def test_r4_contributions_share_after_they_are_added() -> None:
    graph = chain("abc")
    total_ = graph.blob("total", X)
    for name in "ac":
        graph.connect([graph[name]], Scale(2.0), [total_], name=f"{name}/twice")
    chain("de", graph, "total")
    plan = shared(graph)
    assert plan.sharing is not None
    (staging,) = [place for place in plan.sharing.offsets if place.edge is not None]
    assert plan.graph.ops[staging.edge[0] if staging.edge else 0].name == "c/twice"
    assert plan.sharing.offsets[staging] == places(plan)["c"]  # Scale works in place
    assert total(plan) == 4 * STEP


def test_what_a_sink_reads_is_never_overwritten() -> None:
    graph = chain("abcd")
    graph.connect([graph["b"]], Swallow(lambda x: None), [], name="send")
    held = places(shared(graph))
    assert [name for name in held if held[name] == held["b"]] == ["b"]


def test_places_share_nothing_with_other_places() -> None:
    graph = chain("ab")
    there = graph.blob("there", X, location=Location(0, 0))
    graph.connect([graph["b"]], Copy(there.location), [there])
    chain("cd", graph, "there")
    plan = share_memory(prepare(graph, VirtualMachine().device))
    check_sharing(plan)
    assert plan.sharing is not None
    assert plan.sharing.bytes == {Location(): 2 * STEP, Location(0, 0): 2 * STEP}


def test_empty_blobs_share_nothing() -> None:
    graph = Graph("empty")
    graph.apply(Tanh(), graph.apply(Tanh(), [graph.blob("x", (0, 3))], "a"), "b")
    assert places(shared(graph)) == {}


def test_offsets_are_aligned() -> None:
    graph = Graph("odd")
    for number in (1, 3, 50):
        chain(f"{number}"[:1], graph, f"x{number}")
    plan = shared(graph)
    assert all(at % ALIGNMENT == 0 for at in places(plan).values())


def test_a_huge_graph_shares_nothing_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    plan = prepare(chain("abc"))
    with mock.patch.object(lifetimes, "LIMIT", 2), caplog.at_level(logging.WARNING, "purine_ref"):
        assert share_memory(plan) is plan
    check_sharing(plan)
    assert caplog.messages == ["graph 'chain': no memory is shared: it has 3 operators, over 2"]
