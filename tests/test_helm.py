"""Who turns the loop of the sockets: the helm alone, with a loop whose turns are calls from a queue."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hooks import WATCH
from meshes import Worlds, opened
from purine_ref.errors import PeerLost
from purine_ref.transports.zeromq import Session
from purine_ref.transports.zeromq import helm as helms
from purine_ref.transports.zeromq.helm import Helm
from purine_ref.transports.zeromq.loop import Loop
from suites.transports import all_to_all, beside, receive, vector

MOMENT = 0.05


class Turns:
    """A loop: each turn makes one call that was put, or none in time. `threads` are those that turned it."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.threads: list[int] = []
        self.thread = 0
        self.ended = False
        self.helm = Helm(self._turn, lambda: not self.ended and self.helm.failure is None, self._steered)
        self.own = threading.Thread(target=self._run, daemon=True)
        self.own.start()

    def _steered(self, thread: int) -> None:
        self.thread = thread

    def _turn(self, most: float) -> None:
        assert self.thread == threading.get_ident()
        try:
            call = self.calls.get(timeout=min(most, MOMENT)) if most else self.calls.get_nowait()
        except queue.Empty:
            return
        self.threads.append(threading.get_ident())
        call()

    def _run(self) -> None:
        self.helm.take()
        while not self.ended and self.helm.failure is None:
            self._turn(WATCH)
            self.helm.lend()

    def end(self) -> None:
        """Have the own thread end."""
        self.ended = True
        self.helm.wait(threading.Event(), 0.0)
        self.own.join(WATCH)
        assert not self.own.is_alive()


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    """A loop whose own thread, once it has lent the helm, comes back only when it must."""
    monkeypatch.setattr(helms, "REST", 2 * WATCH)
    made = Turns()
    with ThreadPoolExecutor(1) as other:
        yield made
        other.submit(made.end).result(WATCH)


def until(true: Callable[[], bool]) -> None:
    """Look again and again whether something has become true."""
    end = time.monotonic() + WATCH
    while not true():
        assert time.monotonic() < end


def lent(turns: Turns, worker: ThreadPoolExecutor) -> int:
    """Have the loop lend the helm to a worker that waits; returns the worker's identifier."""
    event = threading.Event()
    waiting = worker.submit(turns.helm.wait, event, WATCH)
    until(lambda: bool(turns.helm._waiting))
    turns.calls.put(event.set)
    assert waiting.result(WATCH)
    return worker.submit(threading.get_ident).result(WATCH)


def test_who_waits_turns_the_loop_from_the_second_time(turns: Turns) -> None:
    with ThreadPoolExecutor(1) as worker:
        thread = lent(turns, worker)
        assert turns.threads == [turns.own.ident]
        for _ in range(3):
            event = threading.Event()
            turns.calls.put(event.set)
            assert worker.submit(turns.helm.wait, event, WATCH).result(WATCH)
        assert turns.threads == [turns.own.ident, *[thread] * 3]
        assert turns.thread == 0


def test_the_main_thread_never_turns_it(turns: Turns) -> None:
    with ThreadPoolExecutor(1) as worker:
        lent(turns, worker)
    turns.calls.put(lambda: None)
    assert not turns.helm.wait(threading.Event(), 0.0)
    assert turns.threads == [turns.own.ident]


def test_the_own_thread_comes_back_where_another_still_waits(turns: Turns) -> None:
    """A second thread waits while the first turns the loop; when that one has got its own, somebody must go on."""
    with ThreadPoolExecutor(2) as worker:
        lent(turns, worker)
        one, other = threading.Event(), threading.Event()
        waiting = [worker.submit(turns.helm.wait, event, WATCH) for event in (one, other)]
        until(lambda: len(turns.helm._waiting) == 2)
        turns.calls.put(one.set)
        turns.calls.put(other.set)
        assert [each.result(WATCH) for each in waiting] == [True, True]


def test_the_own_thread_comes_back_when_nobody_waits_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()
    with ThreadPoolExecutor(1) as worker:
        lent(turns, worker)
        done = threading.Event()
        turns.calls.put(done.set)
        assert done.wait(WATCH)
        worker.submit(turns.end).result(WATCH)


def test_a_turn_that_fails_fails_for_the_own_thread(turns: Turns) -> None:
    def fail() -> None:
        raise OSError("no memory")

    with ThreadPoolExecutor(1) as worker:
        lent(turns, worker)
        turns.calls.put(fail)
        assert not worker.submit(turns.helm.wait, threading.Event(), 0.2).result(WATCH)
    turns.own.join(WATCH)
    assert str(turns.helm.failure) == "no memory"


# With sockets --------------------------------------------------------------------------------------------------------


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worlds]:
    """Worlds in which a thread that waits keeps the helm."""
    monkeypatch.setattr(helms, "REST", 0.3)
    made = Worlds()
    yield made
    made.close()


def exchange(one: Session, iterations: int) -> None:
    """Send, and receive what comes back."""
    for iteration in range(iterations):
        one.send(1, 0, iteration, vector(iteration))
        np.testing.assert_array_equal(receive(one, 1, 0, iteration), vector(iteration))


def answer(two: Session, iterations: int) -> int | None:
    """Send back what comes; returns the thread's identifier."""
    for iteration in range(iterations):
        two.send(0, 0, iteration, receive(two, 0, 0, iteration))
    return threading.get_ident()


def test_a_thread_that_waits_receives_on_its_own(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    turn, found = Loop._turn, list[tuple[int, int]]()

    def noted(loop: Loop, most: float) -> None:
        assert loop._shared.thread == threading.get_ident()
        found.append((loop._shared.rank, threading.get_ident()))
        turn(loop, most)

    monkeypatch.setattr(Loop, "_turn", noted)
    meshes = worlds.join(2)
    one, two = opened(meshes, all_to_all(2))
    with beside(answer, two, 20) as answering:
        exchange(one, 20)
        answerer = answering.result(WATCH)
    assert {thread for rank, thread in found if rank == 1} == {answerer, meshes[1]._loop._thread.ident}
    assert threading.get_ident() not in {thread for _, thread in found}  # the main thread


def test_a_failure_while_another_thread_turns_it_is_the_ranks(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    turn, fail = Loop._turn, threading.Event()

    def failing(loop: Loop, most: float) -> None:
        if fail.is_set() and loop._shared.rank == 1 and threading.current_thread() is not loop._thread:
            raise MemoryError("none left")
        turn(loop, most)

    monkeypatch.setattr(Loop, "_turn", failing)
    meshes = worlds.join(2)
    one, two = opened(meshes, all_to_all(2))
    fail.set()
    with beside(answer, two, 1000) as answering:
        with pytest.raises(PeerLost, match=r"^rank 1 is lost: its transport failed: MemoryError\('none left'\)"):
            exchange(one, 1000)
        with pytest.raises(PeerLost, match=r"^rank 1 is lost: its transport failed"):
            answering.result(WATCH)
