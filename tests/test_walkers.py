"""One suite for both twins of the walkers, plain (`py`) and compiled (`cy`): threads that run C functions (rule R2).

A C function that records is a callback of ctypes, which takes the interpreter's lock for itself.
"""

from __future__ import annotations

import ctypes
import inspect
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks import WATCH
from test_team import check, inputs_of, wide
from test_tracker import Lists, compiled, drawn, first_of, lists, plain

C_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_int32)


@pytest.fixture(scope="module", params=["py", "cy"])
def twin(request: pytest.FixtureRequest) -> ModuleType:
    """Each twin in turn."""
    return plain() if request.param == "py" else compiled()


@contextmanager
def walking(twin: ModuleType, graph: Lists, workers: int, heavy: bytes | None = None) -> Iterator[Callable[..., int]]:
    """A function that walks the whole graph; its helpers' threads end after the block."""
    edges = twin.Edges(*graph)
    walkers = twin.Walkers(edges, workers, heavy)
    helpers = [threading.Thread(target=walkers.serve, args=(n,), daemon=True) for n in range(1, workers)]
    for helper in helpers:
        helper.start()

    def walk(function: Any = None) -> int:
        tracker = twin.Tracker(edges)
        address = ctypes.cast(function, ctypes.c_void_p).value if function else 0
        walked = walkers.walk(tracker, first_of(graph), address)
        assert tracker.active() == (walked < len(graph[0]))
        assert all(tracker.state(op) == "released" for op in range(walked if walked == len(graph[0]) else 0))
        return int(walked)

    try:
        yield walk
    finally:
        walkers.close()
        for helper in helpers:
            helper.join(WATCH)
            assert not helper.is_alive()


def layered(operators: int, width: int, seed: int) -> Lists:
    """Layers in which each operator reads 1 to 3 blobs of the layer before; built in time linear in its size."""
    rng = np.random.default_rng(seed)
    consumers: list[list[int]] = [[] for _ in range(operators)]
    waiting = [0] * operators
    for op in range(width, operators):
        start = op - op % width - width
        for blob in rng.integers(start, start + width, int(rng.integers(1, 4))):
            consumers[blob].append(op)
            waiting[op] += 1
    return [""] * operators, waiting, [1] * operators, [[op] for op in range(operators)], consumers, []


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@given(seed=st.integers(0, 2**32 - 1))
def test_r2_any_graph_is_walked_once_and_in_order(twin: ModuleType, workers: int, seed: int) -> None:
    graph, rng = drawn(seed, external=False), np.random.default_rng(seed)
    sums = [("sum", blob) for blob, count in enumerate(graph[2]) if count > 1]
    heavy = rng.integers(0, 2, len(graph[0]), dtype=np.uint8).tobytes()
    events: list[tuple[str, int]] = []

    @C_FUNCTION
    def record(op: int) -> None:
        events.append(("start", op))
        events.append(("end", op))

    with walking(twin, graph, workers, heavy if seed % 2 else None) as walk:
        for _ in range(2):
            events.clear()
            assert walk(record) == len(graph[0])
            seen = {op: number for number, (kind, op) in enumerate(events) if kind == "end"}
            for name, blob in sums:  # nobody adds up here: as if it had been done with the last producer
                makers = [seen[op] for op, blobs in enumerate(graph[3]) if blob in blobs]
                at = events.index(("end", next(op for op in seen if seen[op] == max(makers))))
                events.insert(at + 1, (name, blob))
                seen = {op: number for number, (kind, op) in enumerate(events) if kind == "end"}
            check(graph, inputs_of(graph), events)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_thousand_walks_of_tiny_operators(twin: ModuleType, workers: int) -> None:
    graph = layered(64, 8, 3)
    with walking(twin, graph, workers, bytes(op % 2 for op in range(64))) as walk:
        for _ in range(1000):
            assert walk() == 64


@pytest.mark.parametrize("workers", [2, 4])
def test_large_walks_in_which_all_steal(twin: ModuleType, workers: int) -> None:
    graph = layered(20_000, 100, 5)
    with walking(twin, graph, workers, bytes([1]) * 20_000) as walk:
        for _ in range(5):
            assert walk() == 20_000


@pytest.mark.parametrize("heavy", [None, bytes([1]) * 6])
def test_operators_that_wait_for_each_other_all_run_at_once(twin: ModuleType, heavy: bytes | None) -> None:
    barrier = threading.Barrier(4)
    failed: list[object] = []

    @C_FUNCTION
    def meet(op: int) -> None:
        try:
            if 1 <= op <= 4:
                barrier.wait(WATCH)
        except threading.BrokenBarrierError as error:  # ctypes would print it, and go on
            failed.append(error)

    with walking(twin, wide(4), 4, heavy) as walk:
        for _ in range(10):
            assert walk(meet) == 6
    assert not failed


def test_an_empty_graph_and_one_that_is_begun_in_the_middle(twin: ModuleType) -> None:
    with walking(twin, lists([], []), 2) as walk:
        assert walk() == 0
    edges = twin.Edges(*lists([[], [], [1]], [[0], [1], [2]]))
    walkers, tracker = twin.Walkers(edges, 1), twin.Tracker(edges)
    assert walkers.walk(tracker, [1]) == 2
    assert (tracker.active(), tracker.state(0)) == (True, "ready")


@pytest.mark.parametrize("workers", [1, 2])
def test_what_cannot_be_walked(twin: ModuleType, workers: int) -> None:
    edges = twin.Edges(*wide(2))
    walkers, tracker = twin.Walkers(edges, workers), twin.Tracker(edges)
    other, alike = twin.Tracker(twin.Edges(*wide(3))), twin.Tracker(twin.Edges(*wide(2)))
    for refused, first, kind, message in [
        (other, [0], ValueError, "tracker: expected one of 4 operators, got 5"),
        (alike, [0], ValueError, "tracker: expected one of the walkers' edges, got one of others"),
        (tracker, [1], RuntimeError, "'op1' cannot finish: it is waiting for 1 input edges"),
        (tracker, [0, 0], RuntimeError, "walkers cannot start an operator twice"),
    ]:
        with pytest.raises(kind, match=f"^{re.escape(message)}$"):
            walkers.walk(refused, first)
    with pytest.raises(IndexError, match=rf"^helper 0: expected 1 to {workers - 1}$"):
        walkers.serve(0)
    assert walkers.walk(tracker, [0]) == 4
    walkers.close()
    with pytest.raises(RuntimeError, match=r"^walkers cannot walk when they are closed$"):
        walkers.walk(twin.Tracker(edges), [0])
    with pytest.raises(ValueError, match=r"^a team needs 1 worker or more, got 0$"):
        twin.Walkers(edges, 0)
    with pytest.raises(ValueError, match=r"^heavy: expected one for each of 4, got 2$"):
        twin.Walkers(edges, 1, bytes(2))


def test_a_walk_within_a_walk_is_refused(twin: ModuleType) -> None:
    edges = twin.Edges(*wide(2))
    walkers, told = twin.Walkers(edges, 2), []

    @C_FUNCTION
    def again(op: int) -> None:
        for attempt in (lambda: walkers.walk(twin.Tracker(edges), [0]), walkers.close):
            try:
                attempt()
            except RuntimeError as error:
                told.append(str(error))

    walkers.walk(twin.Tracker(edges), [0], ctypes.cast(again, ctypes.c_void_p).value)
    assert told == ["walkers cannot walk while they walk", "walkers cannot be closed while they walk"] * 4


def test_twins_have_the_same_names_and_signatures() -> None:
    py, cy = plain().Walkers, compiled().Walkers
    for name in [name for name in vars(py) if not name.startswith("_")]:
        pair = [list(inspect.signature(getattr(kind, name)).parameters) for kind in (py, cy)]
        assert pair[0] == pair[1], name
