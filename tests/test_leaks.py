"""That what the twins of `_fast` take is given back: no memory and no lock outlives its tracker, calls, or team."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Callable
from types import ModuleType

import pytest

from hooks import WATCH
from test_tracker import compiled, lists, plain

ROUNDS = 150
"""How often everything is made and dropped: a block of 32 bytes that stays each time would be seen, and less."""

SPARE = 3_000
"""Bytes that may differ without that anything stays: free lists and counters of the interpreter."""

GRAPH = lists([[], [0], [0], [1, 2]], [[0], [1], [2], [3]])
"""A fork and a join."""


@pytest.fixture(params=["py", "cy"])
def twin(request: pytest.FixtureRequest) -> ModuleType:
    """Each twin in turn."""
    return plain() if request.param == "py" else compiled()


def track(twin: ModuleType) -> None:
    """A run of calls by a tracker, and one that ends by an exception."""
    edges = twin.Edges(*GRAPH)
    calls = twin.Calls([(lambda *_: None, 0, [], [])] * 4)
    tracker = twin.Tracker(edges)
    tracker.run([0], calls, [None], print)
    assert not tracker.active()
    with pytest.raises(ZeroDivisionError):
        twin.Tracker(edges).run([0], [(lambda *_: 1 // 0, 0, [], [])] * 4, [None], print)
    with pytest.raises(ValueError, match="outputs"):
        twin.Edges(*[*GRAPH[:3], [[9]] * 4, *GRAPH[4:]])


def team_up(twin: ModuleType) -> None:
    """A team of one worker and a run of it, and walkers of one."""
    edges = twin.Edges(*GRAPH)
    over = threading.Event()
    team = twin.Team(edges, 1, bytes(4), over.set)
    assert team.start("run", twin.Tracker(edges), [0], [(lambda *_: None, 0, [], [])] * 4, [None], print)
    worker = threading.Thread(target=team.work, args=(0,))
    worker.start()
    assert over.wait(WATCH)
    team.forget("run")
    team.close()
    worker.join(WATCH)
    walkers = twin.Walkers(edges, 2)
    walkers.close()
    assert twin.Walkers(edges, 1).walk(twin.Tracker(edges), [0]) == 4


def grown(act: Callable[[ModuleType], None], twin: ModuleType) -> int:
    """Bytes more after many rounds than after one."""
    tracemalloc.start()
    try:
        act(twin)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(ROUNDS):
            act(twin)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("act", [track, team_up])
def test_nothing_stays_of_what_is_dropped(twin: ModuleType, act: Callable[[ModuleType], None]) -> None:
    """All that Python and the loops ask of its allocators, locks included, is counted.

    What leaks does so every time; what something else of the interpreter takes once does not count.
    """
    act(twin)
    assert any(grown(act, twin) < SPARE for _ in range(10))
