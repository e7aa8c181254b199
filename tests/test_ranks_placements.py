"""Random graphs over random ranks: rule R8, the bits of the serial executor, and rule R12, failures anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks import Delays, Swallow, bits
from purine_ref.executors import Executor, Ranks, Serial, Simulated
from purine_ref.graph import Graph
from purine_ref.ops import Copy
from purine_ref.plan import prepare
from purine_ref.schedule import critical_path
from purine_ref.tensor import Location
from ranked import moved
from strategies import Recipe, recipes


def placed(recipe: Recipe, place: Mapping[str, int]) -> Graph:
    """The recipe's graph with its blobs and operators at ranks, and copies where an edge crosses; no views."""
    graph = Graph("placed")
    for name, tensor in recipe.blobs.items():
        graph.blob(name, tensor.shape, tensor.dtype, Location(place[name]))
    for index in np.random.default_rng(recipe.seed).permutation(len(recipe.nodes)):
        name = list(recipe.nodes)[index]
        node, rank = recipe.nodes[name], place[name]
        inputs = [moved(graph, graph[blob], rank) for blob in node.inputs]
        outputs = []
        for slot, output in enumerate(node.outputs):
            blob = graph[output]
            if blob.location.rank != rank:  # computed here, and one more producer of the blob there
                here = graph.blob(f"{name}.{slot}", blob.shape, blob.dtype, Location(rank))
                graph.connect([here], Copy(blob.location), [blob], name=f"{name}.{slot}>")
                blob = here
            outputs.append(blob)
        graph.connect(inputs, node.operation, outputs, name=name, location=Location(rank))
    return graph


def feeds(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Values for all sources, by name, the same wherever they are."""
    values = {}
    for blob in graph.blobs:
        if not blob.producers:
            rng = np.random.default_rng([seed, *blob.name.encode()])
            values[blob.name] = rng.standard_normal(blob.shape).astype(blob.dtype)
    return values


def ran(executor: Executor, seed: int, runs: int = 3) -> dict[str, bytes]:
    """The bits after some runs."""
    with executor:
        executor.feed(feeds(executor.graph, seed))
        for _ in range(runs):
            executor.run()
        return bits(executor)


@given(recipe=recipes(), data=st.data())
def test_r8_random_placements_give_the_bits_of_the_serial_executor(recipe: Recipe, data: st.DataObject) -> None:
    """Over the placed graph in every blob, and in those it has in common with the graph that is all at one place."""
    ranks = data.draw(st.integers(1, 4), "ranks")
    names = [*recipe.blobs, *recipe.nodes]
    drawn = data.draw(st.lists(st.integers(0, ranks - 1), min_size=len(names), max_size=len(names)), "places")
    graph = placed(recipe, dict(zip(names, drawn, strict=True)))
    serial = ran(Serial(graph, seed=1), recipe.seed)
    alone = ran(Serial(placed(recipe, dict.fromkeys(names, 0)), seed=1), recipe.seed)
    assert {name: serial[name] for name in alone if name in recipe.blobs} == {
        name: value for name, value in alone.items() if name in recipe.blobs
    }
    seconds = np.random.default_rng(recipe.seed).random(len(graph.ops)).tolist()
    order = Simulated(graph, seconds=seconds).timeline.order
    priorities = critical_path(prepare(graph), seconds)
    executors = [
        Ranks(graph, seed=1, executor=Serial),
        Ranks(graph, seed=1, threads=1, early=data.draw(st.integers(0, 3), "early"), ranks=priorities),
        Ranks(graph, seed=1, threads=data.draw(st.integers(2, 4), "threads"), observer=Delays(recipe.seed)),
        Ranks(graph, seed=1, executor=Serial, order=order),
        Ranks(graph, seed=1, threads=2, order=order, observer=Delays(recipe.seed)),
    ]
    for number, executor in enumerate(executors):
        assert ran(executor, recipe.seed) == serial, f"executor {number} differs from Serial"


@given(recipe=recipes(), data=st.data())
def test_r12_random_failures_on_random_placements(recipe: Recipe, data: st.DataObject) -> None:
    """One operator is made to fail: its error comes out, nothing hangs, and the next run has the right bits."""
    names = [*recipe.blobs, *recipe.nodes]
    drawn = data.draw(st.lists(st.integers(0, 2), min_size=len(names), max_size=len(names)), "places")
    graph = placed(recipe, dict(zip(names, drawn, strict=True)))
    rank = data.draw(st.integers(0, 2), "rank that fails")
    broken = [True]

    def bad(*arrays: Any) -> None:
        if broken[0]:
            raise ValueError("boom")

    watched = moved(graph, graph[data.draw(st.sampled_from(list(recipe.blobs)), "blob")], rank)
    graph.connect([watched], Swallow(bad), [], name="bad")
    with Ranks(graph, seed=1, threads=data.draw(st.integers(1, 3), "threads"), observer=Delays(recipe.seed)) as ranks:
        ranks.feed(feeds(graph, recipe.seed))
        for _ in range(2):
            with pytest.raises(ValueError, match=r"^boom\noperator 'bad' (.|\n)+$"):
                ranks.run()
        broken[0] = False
        for _ in range(3):
            ranks.run()
        got = bits(ranks)
    assert got == ran(Serial(graph, seed=1), recipe.seed)
