"""Broken traces: the judge names the first bad event and its rule, as a slow judge does that shares no line with it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from oracles.traces import NaiveJudge, first_bad
from purine_ref.conformance.tracing import structure_of
from purine_ref.conformance.tracing.overlaps import overlaps
from purine_ref.errors import GraphError, Refused
from purine_ref.executors import Ranks, Serial, Threaded
from purine_ref.graph import Graph
from purine_ref.ops import Copy, Mul, ReLU, Scale, Sum
from purine_ref.plan import prepare
from purine_ref.tensor import Location
from strategies import Recipe, recipes, tangles
from traces import Event, judged, made_up, recorded, renumbered

PLACES = (Location(), Location(), Location(0, 0), Location(0, 0), Location(0, 1), Location(1), Location(2))


def scattered(seed: int) -> Graph:
    """A random graph over ranks, devices and streams, with sums, pairs, and copies between all places."""
    rng = random.Random(seed)
    graph = Graph("scattered")
    blobs = [graph.blob(f"x{i}", (2,), location=place) for i, place in enumerate(dict.fromkeys(PLACES))]
    for i in range(rng.randint(2, 12)):
        source = rng.choice(blobs)
        alike = [blob for blob in blobs if blob.location == source.location]
        there = rng.choice(PLACES)
        kind = rng.choice(["copy", "unary", "sum", "gather"])
        if kind == "copy" and (there.rank == source.location.rank or (there.is_cpu and source.location.is_cpu)):
            blobs += graph.apply(Copy(there), [source], f"c{i}")
        elif kind == "sum":
            blobs += graph.apply(Sum(), [source, rng.choice(alike)], f"s{i}", stream=rng.choice(["main", "other"]))
        elif kind == "gather":
            total = graph.blob(f"g{i}", (2,), location=source.location)
            for part in rng.choices(alike, k=rng.randint(2, 3)):
                graph.connect([part], rng.choice([ReLU(), Scale(2.0)]), [total], stream=rng.choice(["main", "other"]))
            blobs.append(total)
        else:
            blobs += graph.apply(ReLU(), [source], f"u{i}", stream=rng.choice(["main", "other"]))
    for i in range(rng.randint(0, 2)):
        current, following = (graph.blob(f"p{i}{which}", (2,), persistent=True) for which in "ab")
        graph.connect([current], Scale(0.5), [following])
        graph.swap(current, following)
    return graph


def mutated(events: list[Event], graph: Graph, seed: int) -> tuple[str, list[Event]]:
    """The events with something changed, and what."""
    rng = random.Random(seed)
    found = [dict(entry) for entry in events]
    index, other = sorted(rng.sample(range(len(found)), 2))
    kind = rng.choice(
        ["drop", "drop", "repeat", "swap", "swap", "earlier", "earlier", "later", "op", "blob", "iteration", "event",
         "fail", "give up", "stop", "seq", "stream", "place", "nothing"]
    )  # fmt: skip
    ops, blobs = [op.name for op in graph.ops], [blob.name for blob in graph.blobs]
    if kind == "drop":
        del found[index]
    elif kind == "repeat":
        found.insert(other, dict(found[index]))
    elif kind == "swap":
        found[index], found[other] = found[other], found[index]
    elif kind == "earlier":
        found.insert(index, found.pop(other))
    elif kind == "later":
        found.insert(other, found.pop(index))
    elif kind in ("op", "blob") and kind in found[index]:
        found[index][kind] = rng.choice([*(ops if kind == "op" else blobs), "nobody"])
    elif kind == "iteration" and "iteration" in found[index]:
        found[index]["iteration"] = abs(found[index]["iteration"] + rng.choice([-1, 1]))
    elif kind == "event" and "op" in found[index] and "blob" not in found[index]:
        found[index]["event"] = rng.choice(["start", "end", "sent", "received", "failed"])
    elif kind == "fail" and "op" in found[index] and "blob" not in found[index]:
        found[index]["event"] = "failed"
        for entry in found:
            if rng.random() < 0.7 and "iteration" in entry:
                entry["worker"] = rng.choice(["a", "b", "c"])
        if rng.random() < 0.5:
            found.insert(other, {"event": "failed", "iteration": found[index]["iteration"]})
    elif kind == "give up":
        found.insert(index, {"event": "failed", "iteration": found[index].get("iteration", 0)})
        again = [entry for entry in events if entry.get("iteration") == found[index]["iteration"]]
        found[index + 1 :] = [*found[index + 1 : rng.randint(index + 1, other + 1)], *again]
    elif kind == "stop":
        found.insert(index, {"event": "stop"})
    elif kind == "stream" and "op" in found[index]:
        found[index]["stream"] = rng.choice(["main", "other"])
    elif kind == "place" and "op" in found[index]:
        place = rng.choice(PLACES)
        found[index]["location"] = {"rank": place.rank, "device": place.device}
    found = renumbered(found)
    if kind == "seq":
        found[other]["seq"] = rng.randint(0, found[index]["seq"])
    return kind, found


def agree(events: list[Event], graph: Graph) -> str:
    """Assert that both judges say the same; returns the rule, or nothing."""
    expected = first_bad(graph, events)
    verdict = judged(events, graph)
    got = None if verdict.line is None else (verdict.line - 2, verdict.rule)
    assert got == expected, verdict.words
    assert verdict.legal == (len(events) if expected is None else expected[0])
    assert (verdict.verdict == "fail") == (expected is not None)
    return expected[1] if expected else ""


@given(seed=st.integers(0, 2**32 - 1))
def test_a_lawful_trace_passes(seed: int) -> None:
    graph = scattered(seed)
    events = made_up(graph, seed)
    verdict = judged(events, graph)
    assert (verdict.verdict, verdict.legal, verdict.iterations) == ("pass", len(events), 2), verdict.words
    assert verdict.starts == 2 * len(graph.ops)


@settings(max_examples=4 * settings.default.max_examples)
@given(seed=st.integers(0, 2**32 - 1), times=st.integers(1, 2))
def test_the_first_bad_event_of_a_mutated_trace_is_named(seed: int, times: int) -> None:
    graph = scattered(seed)
    events = made_up(graph, seed)
    for time in range(times):
        kind, events = mutated(events, graph, seed + time)
        event(kind)
    event(f"rule: {agree(events, graph)}")


@given(recipe=tangles(), seed=st.integers(0, 2**32 - 1), mutate=st.booleans())
def test_shared_memory_is_watched_through_any_views(recipe: Recipe, seed: int, mutate: bool) -> None:
    """Views that the graph orders, or does not: then some orders are bad and others not."""
    graph = recipe.graph()
    naive = NaiveJudge(graph)
    names = [blob.name for blob in graph.blobs]
    try:
        exact = [{names[other] for other in row} for row in overlaps(graph)]
    except ValueError:  # a strided part seen in another shape: no judge and no executor takes it
        for refusal, taker in ((Refused, structure_of), (GraphError, prepare)):
            with pytest.raises(refusal, match="it is strided"):
                taker(graph)
        event("rule: refused")
        return
    assume(exact == [naive.overlap[name] for name in names])
    events = made_up(graph, seed)
    if mutate:
        events = mutated(events, graph, seed)[1]
    rule = agree(events, graph)
    event(f"rule: {rule}")
    try:
        prepare(graph)
    except GraphError:
        return
    assert mutate or not rule, "the graph orders every access"


@given(recipe=recipes(), seed=st.integers(0, 2**32 - 1))
def test_no_order_of_a_graph_that_prepare_accepts_is_bad(recipe: Recipe, seed: int) -> None:
    graph = recipe.graph()
    verdict = judged(made_up(graph, seed), graph)
    assert verdict.passed, verdict.words


@pytest.mark.parametrize("kind", [Serial, Threaded, Ranks])
@settings(max_examples=max(10, settings.default.max_examples // 5))
@given(seed=st.integers(0, 2**32 - 1))
def test_mutations_of_what_executors_did_are_named(kind: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = Graph("recorded")
    blobs = [graph.blob(f"x{i}", (2,), "float64") for i in range(2)]
    for i in range(int(rng.integers(2, 8))):
        one, other = (blobs[int(rng.integers(len(blobs)))] for _ in range(2))
        if rng.random() < 0.3:
            total = graph.blob(f"g{i}", (2,), "float64")
            for part in (one, other):
                graph.connect([part], Scale(2.0), [total])
            blobs.append(total)
        else:
            blobs += graph.apply(Mul(), [one, other], f"m{i}")
    events = recorded(kind, graph)
    assert judged(events, graph).passed
    agree(mutated(events, graph, seed)[1], graph)
