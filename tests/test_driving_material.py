"""Random cases and what they are cut into: any part of a case is a case, with the values that it had in the whole."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purine_ref.conformance.cases import OPERATIONS
from purine_ref.conformance.cases.building import graph_to_data
from purine_ref.conformance.driving import Hello
from purine_ref.conformance.driving.drawing import draw_graph
from purine_ref.conformance.driving.filling import fill
from purine_ref.conformance.driving.material import cut, whole
from purine_ref.conformance.driving.messages import DTYPES
from purine_ref.conformance.driving.parts import parts_of
from purine_ref.conformance.driving.reducing import REDUCTIONS
from purine_ref.conformance.driving.solving import Solved, Unjudged, only, solve
from purine_ref.errors import GraphError
from purine_ref.graph import Graph
from purine_ref.ops import Identity
from purine_ref.traversal import topological_order

HELLO = Hello("all", "1", frozenset(OPERATIONS), frozenset(DTYPES), 1, True, True, True, True)


def drawn_case(seed: int, hello: Hello = HELLO, exact: float = 0.5) -> Solved | None:
    """The random case of a seed, if there is one."""
    rng = random.Random(seed)
    drawn = draw_graph(rng, hello)
    return None if drawn is None else fill(drawn, rng, "drawn", exact=exact)


SEEDS = st.integers(0, 2**32)


@given(SEEDS)
def test_parts_build_the_same_graph(seed: int) -> None:
    solved = drawn_case(seed)
    if solved is None:
        return
    parts = parts_of(solved.case.graph)
    built = parts.build(solved.case.graph.name)
    assert graph_to_data(built) == graph_to_data(solved.case.graph)
    if all(blob.view is None for blob in parts.blobs):
        assert parts.with_shapes({}, {}) == parts


@given(SEEDS, st.data())
def test_any_operators_of_a_case_give_what_they_gave_in_the_whole(seed: int, data: st.DataObject) -> None:
    """Exact where it can be: then fed values are the very ones, and so are the results of what is left."""
    solved = drawn_case(seed, exact=1.0)
    if solved is None:
        return
    graph = solved.case.graph
    names = [op.name for op in graph.ops]
    kept = set(data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True)))
    try:
        part = cut(solved, kept, range(len(solved.before))).solved()
    except (KeyError, Unjudged, GraphError):  # a value that was overwritten; a kink in what is fed; a view of one
        return
    assert {op.name for op in part.case.graph.ops} == kept
    exact = all(entry.exact for entry in solved.case.expected)
    for name in _unchanged(graph, part.case.graph) if exact else ():
        for before, after in zip(solved.after, part.after, strict=True):
            if name in before and name in after:
                np.testing.assert_array_equal(after[name], before[name])


def _unchanged(graph: Graph, part: Graph) -> list[str]:
    """The blobs that get in a part of a graph all that they got in the whole: none of what they are made of lacks a
    contribution, or goes from iteration to iteration.
    """
    changed = {name for name in _paired(graph) if name in part}
    changed |= {b.name for b in part.blobs if 0 < len(b.producers) < len(graph[b.name].producers)}
    for op in topological_order(part):
        if any(blob.name in changed for blob in op.inputs):
            changed |= {blob.name for blob in op.outputs}
    return [blob.name for blob in part.blobs if blob.producers and blob.name not in changed]


def _paired(graph: Graph) -> set[str]:
    return {blob.name for pair in graph.pairs for blob in pair}


@given(SEEDS)
def test_the_whole_material_of_a_case_is_the_case(seed: int) -> None:
    solved = drawn_case(seed)
    if solved is None:
        return
    again = whole(solved).solved()
    assert len(again.case.expected) == len(solved.case.expected)
    for one, other in zip(again.case.expected, solved.case.expected, strict=True):
        np.testing.assert_array_equal(one.value, other.value)


@settings(max_examples=15)
@given(SEEDS)
def test_reductions_end(seed: int) -> None:
    """Taking the first proposal of each reduction over and over comes to an end: none leads back."""
    solved = drawn_case(seed)
    if solved is None:
        return
    for reduction in REDUCTIONS:
        for _ in range(150):
            for proposal in reduction(solved, whole(solved)):
                try:
                    with np.errstate(all="ignore"):
                        smaller = proposal.solved()
                except Exception:  # a proposal need not be possible
                    continue
                solved = smaller
                break
            else:
                break
        else:
            pytest.fail(f"{reduction.__name__} goes on for ever")


def test_what_is_drawn_has_everything_that_dispatchers_get_wrong() -> None:
    operations: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for seed in range(400):
        drawn = draw_graph(random.Random(seed), HELLO)
        if drawn is None:
            continue
        graph = drawn.graph
        operations.update({op.operation.name for op in graph.ops})
        seen["graphs"] += 1
        seen["several producers"] += drawn.racy
        seen["read twice"] += any(len(set(op.inputs)) < len(op.inputs) for op in graph.ops)
        seen["fan-out"] += any(len(blob.consumers) > 2 for blob in graph.blobs)
        seen["streams"] += len({op.stream for op in graph.ops}) > 1
        seen["ranks"] += len({blob.location for blob in graph.blobs}) > 1
        seen["pairs"] += bool(graph.pairs)
        seen["views"] += any(blob.view is not None for blob in graph.blobs)
        seen["fan"] += drawn.fanned
    assert set(OPERATIONS) - set(operations) == {"Gaussian"}
    assert {name: count for name, count in seen.items() if count < 0.05 * seen["graphs"]} == {}


def test_only_what_a_port_has_is_drawn() -> None:
    hello = Hello("few", "1", frozenset({"ReLU", "Sum", "Copy"}), frozenset({"float32"}))
    for seed in range(60):
        drawn = draw_graph(random.Random(seed), hello)
        if drawn is None:
            continue
        assert {op.operation.name for op in drawn.graph.ops} <= hello.operations
        assert {blob.dtype for blob in drawn.graph.blobs} == {"float32"}
        assert len({op.location for op in drawn.graph.ops}) == 1
        assert {op.stream for op in drawn.graph.ops} == {"main"}
    nothing = Hello("none", "1", frozenset(), frozenset())
    assert draw_graph(random.Random(0), nothing) is None


def test_entries_can_be_left_out_but_not_all() -> None:
    graph = Graph("one")
    graph.connect([graph.blob("x", (2,))], Identity(), [graph.blob("y", (2,))])
    solved = drawn_case(3)
    assert solved is not None
    first = solved.case.expected[0].blob
    assert {entry.blob for entry in only(solved.case, {first}).expected} == {first}
    assert only(solved.case, set()).expected == solved.case.expected
    assert solve(solved.case).case.expected[0].blob == first
