"""Graphs over several ranks, and the ways to run them in one process, for the tests of ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from hooks import SHAPE, Call, bits, nothing
from purine_ref.executors import Ranks, Serial
from purine_ref.graph import Blob, Graph
from purine_ref.ops import Copy, Gaussian, Identity, Sum, Tanh
from purine_ref.tensor import Location

KINDS = {
    "serial": partial(Ranks, executor=Serial),
    "one worker": partial(Ranks, threads=1),
    "three workers": partial(Ranks, threads=3),
    "no room": partial(Ranks, threads=1, early=0),
}

@contextmanager
def hasty() -> Iterator[None]:
    """Threads give up the interpreter every microsecond."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def on(
    graph: Graph, rank: int, name: str, inputs: Sequence[Blob] = (), action: Callable[[], object] = nothing
) -> Blob:
    """A new blob at a rank, made by a `Call`; inputs of other ranks are copied there first."""
    here = [moved(graph, blob, rank) for blob in inputs]
    blob = graph.blob(name, SHAPE, "float64", Location(rank))
    graph.connect(here, Call(action), [blob], name=name)
    return blob


def moved(graph: Graph, blob: Blob, rank: int) -> Blob:
    """The blob at that rank: itself, or one copy of it, whoever asks."""
    if blob.location.rank == rank:
        return blob
    name = f"{blob.name}>{rank}"
    return graph[name] if name in graph else graph.apply(Copy(Location(rank)), [blob], name)[0]


def exchange(ranks: int = 2, rounds: int = 3) -> Graph:
    """In every round each rank adds up what all ranks have, so that messages go both ways between any two."""
    graph = Graph("exchange")
    held = [on(graph, rank, f"start{rank}") for rank in range(ranks)]
    for number in range(rounds):
        held = [on(graph, rank, f"round{number}.{rank}", held) for rank in range(ranks)]
    return graph


def training(ranks: int = 3) -> Graph:
    """Each rank draws, adds its share to a state at rank 0 (R4), which is swapped, and gets the state back (R6)."""
    graph = Graph("training")
    state, new = (graph.blob(name, (5, 3), "float64") for name in ("state", "new"))
    for rank in range(ranks):
        there = moved(graph, state, rank)
        noise = graph.blob(f"noise{rank}", (5, 3), "float64", Location(rank))
        graph.connect([], Gaussian((5, 3), "float64", std=10.0**rank), [noise])
        own = graph.parameter(
            f"own{rank}", (5, 3), "float64", Gaussian((5, 3), "float64"), location=Location(rank)
        )
        following = graph.blob(f"following{rank}", (5, 3), "float64", Location(rank))
        graph.connect([own, noise], Sum(), [following])
        graph.swap(own, following)
        (share,) = graph.apply(Tanh(), graph.apply(Sum(), [there, noise, own], f"share{rank}"), f"bounded{rank}")
        graph.connect([share], Copy(Location(0)) if rank else Identity(), [new], name=f"add{rank}")
    graph.swap(state, new)
    return graph


def serial_bits(graph: Graph, runs: int = 1, **keywords: Any) -> dict[str, bytes]:
    """The bits of all blobs after some runs of the serial executor over the whole graph."""
    with Serial(graph, **keywords) as serial:
        for _ in range(runs):
            serial.run()
        return bits(serial)


def triangle(action: Callable[[str], object]) -> Graph:
    """Rank 0 feeds 1, which feeds 2, which feeds 0; each operator calls `action` with its name."""
    graph = Graph("triangle")
    last = on(graph, 0, "a", [], partial(action, "a"))
    for rank, name in ((1, "b"), (2, "c"), (0, "d"), (1, "e")):
        last = on(graph, rank, name, [last], partial(action, name))
    return graph
