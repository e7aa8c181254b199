"""One suite for both twins of the team, plain (`py`) and compiled (`cy`): several workers run one graph (rules R2, R4).

The team is driven without an executor, by threads of the tests. Operators are functions that record what happens.
"""

from __future__ import annotations

import gc
import inspect
import itertools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks import WATCH
from purine_ref._fast import pace
from purine_ref._fast.team import Team as PlainTeam
from test_tracker import Lists, compiled, drawn, first_of, lists, plain

Act = Callable[[int], object]


@pytest.fixture(scope="module", params=["py", "cy"])
def twin(request: pytest.FixtureRequest) -> ModuleType:
    """Each twin in turn."""
    return plain() if request.param == "py" else compiled()


class Crew:
    """A team with its threads, or with fewer `threads` than workers.

    `errors` are what operators raised, with the operator and the run's token.
    """

    def __init__(
        self,
        twin: ModuleType,
        graph: Lists,
        workers: int,
        heavy: bytes | None = None,
        kind: Any = None,
        threads: int | None = None,
    ) -> None:
        self.twin, self.graph, self.workers = twin, graph, workers
        self.edges = twin.Edges(*graph)
        self.over = threading.Condition()
        self.told = 0  # how often the team said that a run has ended
        self.errors: list[tuple[object, int, BaseException]] = []
        heavy = bytes(len(graph[0])) if heavy is None else heavy
        self.team = (kind or twin.Team)(self.edges, workers, heavy, self.tell)
        count = workers if threads is None else threads
        self.threads = [threading.Thread(target=self.serve, args=(n,), daemon=True) for n in range(count)]
        for thread in self.threads:
            thread.start()

    def tell(self) -> None:
        with self.over:
            self.told += 1
            self.over.notify_all()

    def serve(self, number: int) -> None:
        while True:
            try:
                self.team.work(number)
                if self.team.task(number) is None:
                    return
            except BaseException as error:
                task = self.team.task(number)
                assert task is not None
                self.errors.append((*task, error))
            self.team.retire(number)

    def start(self, act: Act, combine: Act = print, token: object = "run", guest: bool = False) -> Any:
        """Start a run in which `act` is called with each operator; returns its tracker."""
        tracker = self.twin.Tracker(self.edges)
        calls = [(lambda *_, op=op: act(op), 0, [], []) for op in range(len(self.graph[0]))]
        assert self.team.start(token, tracker, first_of(self.graph), calls, [None], combine, guest)
        return tracker

    def wait(self, token: object = "run", seconds: float = WATCH) -> bool:
        with self.over:
            return self.over.wait_for(lambda: not self.team.busy(token), seconds)

    def run(self, act: Act, combine: Act = print, guest: bool = False) -> Any:
        """A run that has ended well; this thread takes part if it is a guest."""
        tracker = self.start(act, combine, guest=guest)
        if guest:
            self.team.work(self.workers)
        assert self.wait(), "the run hangs"
        self.team.forget("run")
        assert not self.errors
        assert not tracker.active()
        return tracker

    def close(self) -> None:
        self.team.close()
        for thread in self.threads:
            thread.join(WATCH)
            assert not thread.is_alive()


@contextmanager
def crew(
    twin: ModuleType,
    graph: Lists,
    workers: int = 2,
    heavy: bytes | None = None,
    kind: Any = None,
    threads: int | None = None,
) -> Iterator[Crew]:
    made = Crew(twin, graph, workers, heavy, kind, threads)
    try:
        yield made
    finally:
        made.close()


class Record:
    """What happened in a run, in order: ("start", op), ("end", op), ("sum", blob)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def act(self, op: int) -> None:
        self.events.append(("start", op))
        self.events.append(("end", op))

    def combine(self, blob: int) -> None:
        self.events.append(("sum", blob))


def check(graph: Lists, inputs: Sequence[Sequence[int]], events: Sequence[tuple[str, int]]) -> None:
    """Every operator once, after all that it waits for; every sum once, after its producers, before its readers."""
    _, _, producers, outputs, _, _ = graph
    place = {event: number for number, event in enumerate(events)}
    assert len(place) == len(events), "something happened twice"
    assert {op for kind, op in place if kind == "start"} == set(range(len(outputs)))
    summed = {blob for kind, blob in place if kind == "sum"}
    assert summed == {blob for blob, count in enumerate(producers) if count > 1}
    makers: dict[int, list[int]] = {}
    for op, blobs in enumerate(outputs):
        for blob in blobs:
            makers.setdefault(blob, []).append(op)
    for op, blobs in enumerate(inputs):
        for blob in blobs:
            for maker in makers.get(blob, ()):
                assert place["end", maker] < place["start", op]
            if blob in summed:
                assert place["sum", blob] < place["start", op]
    for blob in summed:
        assert all(place["end", maker] < place["sum", blob] for maker in makers[blob])


def inputs_of(graph: Lists) -> list[list[int]]:
    """The input blobs of each operator, back from the lists of consumers."""
    found: list[list[int]] = [[] for _ in graph[0]]
    for blob, consumers in enumerate(graph[4]):
        for op in consumers:
            found[op].append(blob)
    return found


def wide(count: int) -> Lists:
    """0, then 1 to `count` beside each other, then one that reads them all."""
    rows = [[0]] * count
    return lists([[], *rows, list(range(1, count + 1))], [[op] for op in range(count + 2)])


# Whole runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@given(seed=st.integers(0, 2**32 - 1))
def test_r2_any_graph_runs_each_operator_once_after_its_inputs(twin: ModuleType, workers: int, seed: int) -> None:
    graph, rng = drawn(seed, external=False), np.random.default_rng(seed)
    heavy = rng.integers(0, 2, len(graph[0]), dtype=np.uint8).tobytes()
    with crew(twin, graph, workers, heavy) as team:
        for _ in range(2):
            record = Record()
            tracker = team.run(record.act, record.combine)
            check(graph, inputs_of(graph), record.events)
            assert all(tracker.state(op) == "released" for op in range(len(graph[0])))


@given(seed=st.integers(0, 2**32 - 1))
def test_one_worker_runs_in_the_order_of_the_trackers_own_loop(twin: ModuleType, seed: int) -> None:
    graph, expected, got = drawn(seed, external=False), Record(), Record()
    calls = [(lambda *_, op=op: expected.act(op), 0, [], []) for op in range(len(graph[0]))]
    twin.Tracker(twin.Edges(*graph)).run(first_of(graph), calls, [None], expected.combine)
    with crew(twin, graph, 1, bytes([1]) * len(graph[0])) as team:
        team.run(got.act, got.combine)
    assert got.events == expected.events


@pytest.mark.parametrize("heavy", [0, 1])
@pytest.mark.parametrize("workers", [2, 4])
def test_operators_that_wait_for_each_other_all_run_at_once(twin: ModuleType, workers: int, heavy: int) -> None:
    """Whatever they were expected to take: a sleeping worker finds that nobody gets on."""
    barrier = threading.Barrier(workers)

    def act(op: int) -> None:
        if 1 <= op <= workers:
            barrier.wait(WATCH)

    with crew(twin, wide(workers), workers, bytes([heavy]) * (workers + 2)) as team:
        for _ in range(20):
            team.run(act)


def test_small_operators_stay_with_the_worker_that_finds_them(twin: ModuleType) -> None:
    """Nobody is woken to work, though it may watch: whoever begins runs nearly all."""
    ran: list[int] = []
    with crew(twin, wide(50), 2) as team:
        for _ in range(20):
            team.run(lambda op: ran.append(threading.get_ident()))
    assert len(ran) == 20 * 52
    changes = sum(one != other for one, other in itertools.pairwise(ran))
    assert changes < len(ran) / 4


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_thousand_runs_of_tiny_operators_under_hasty_switches(twin: ModuleType, workers: int) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    graph = drawn(77, external=False)
    heavy = bytes(op % 2 for op in range(len(graph[0])))
    try:
        with crew(twin, graph, workers, heavy) as team:
            for _ in range(1000):
                record = Record()
                team.run(record.act, record.combine)
                check(graph, inputs_of(graph), record.events)
    finally:
        sys.setswitchinterval(interval)


def test_operators_that_are_c_functions_let_other_threads_run(twin: ModuleType) -> None:
    """They never run Python code, in which the interpreter would hand over its lock."""
    count = 100_000
    once, rows = [1] * (count - 1), [[op] for op in range(count)]
    graph: Lists = ([""] * count, [0, *once], [1, *once], rows, [*rows[1:], []], [])
    seen = threading.Event()
    calls = [(max, 0, 1, 2)] * count
    with crew(twin, graph, 1) as team:
        tracker = twin.Tracker(team.edges)
        watcher = threading.Thread(target=seen.set)
        assert team.team.start("run", tracker, [0], calls, [0], print)
        watcher.start()
        assert seen.wait(WATCH)
        assert team.wait()


# The guest ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3])
@given(seed=st.integers(0, 2**32 - 1))
def test_r2_any_graph_runs_with_a_guest(twin: ModuleType, workers: int, seed: int) -> None:
    """Runs that this thread takes part in, and others, take turns."""
    graph, rng = drawn(seed, external=False), np.random.default_rng(seed)
    heavy = rng.integers(0, 2, len(graph[0]), dtype=np.uint8).tobytes()
    with crew(twin, graph, workers, heavy) as team:
        for guest in (True, True, False, True):
            record = Record()
            tracker = team.run(record.act, record.combine, guest)
            check(graph, inputs_of(graph), record.events)
            assert not tracker.active()


@pytest.mark.parametrize("workers", [1, 2])
@given(seed=st.integers(0, 2**32 - 1))
def test_a_guest_alone_runs_all_in_the_order_of_the_trackers_own_loop(
    twin: ModuleType, workers: int, seed: int
) -> None:
    """The team has no threads: whatever waits for one would wait for ever."""
    graph, expected, got = drawn(seed, external=False), Record(), Record()
    calls = [(lambda *_, op=op: expected.act(op), 0, [], []) for op in range(len(graph[0]))]
    twin.Tracker(twin.Edges(*graph)).run(first_of(graph), calls, [None], expected.combine)
    with crew(twin, graph, workers, threads=0) as team:
        team.run(got.act, got.combine, guest=True)
    assert got.events == expected.events


@pytest.mark.parametrize("heavy", [0, 1])
@pytest.mark.parametrize("workers", [2, 4])
def test_a_guest_is_one_of_those_who_compute_at_once(twin: ModuleType, workers: int, heavy: int) -> None:
    """As many operators wait for each other as there are workers, and never more have begun."""
    barrier, lock, level, most = threading.Barrier(workers), threading.Lock(), [0], [0]

    def act(op: int) -> None:
        if 1 <= op <= 2 * workers:
            with lock:
                level[0] += 1
                most[0] = max(most[0], level[0])
            barrier.wait(WATCH)
            with lock:
                level[0] -= 1

    with crew(twin, wide(2 * workers), workers, bytes([heavy]) * (2 * workers + 2)) as team:
        for guest in [True, False] * 10:
            team.run(act, guest=guest)
    assert most == [workers]


def test_a_guest_leaves_when_there_is_nothing_for_it(twin: ModuleType) -> None:
    """The worker that was called for the other heavy operator goes on alone."""
    graph = lists([[], [0], [0], [2]], [[0], [1], [2], [3]])
    go, here, by = threading.Event(), threading.get_ident(), {}

    def act(op: int) -> None:
        by[op] = threading.get_ident()
        if op in (1, 2) and by[op] != here:
            assert go.wait(WATCH)

    with crew(twin, graph, 2, bytes([0, 1, 1, 0])) as team:
        for _ in range(20):
            go.clear()
            tracker = team.start(act, guest=True)
            team.team.work(2)
            mine = {op for op, thread in by.items() if thread == here}
            left = (team.team.computing() > 0, tracker.active())
            go.set()
            assert left in ((True, True), (False, False))
            assert team.wait()
            assert not tracker.active()
            assert {1, 2} - mine or mine == {0, 1, 2, 3}
            team.team.forget("run")
        assert not team.errors


@pytest.mark.parametrize("workers", [1, 2])
def test_r12_a_guest_that_fails_is_retired_and_the_next_run_is_clean(twin: ModuleType, workers: int) -> None:
    def fail(op: int) -> None:
        if op == 1:
            raise ValueError("boom")

    with crew(twin, wide(2), workers, threads=0) as team:
        for _ in range(20):
            tracker = team.start(fail, guest=True)
            with pytest.raises(ValueError, match=r"^boom$"):
                team.team.work(workers)
            assert team.team.task(workers) == ("run", 1)
            assert not team.team.start("other", tracker, [], [(None, 0, 0, 0)] * 4, [None], print)
            team.team.retire(workers)
            assert team.wait()
            assert tracker.active()
            team.run(lambda op: None, guest=True)


class Strike:
    """Raises KeyboardInterrupt on this thread within the plain twin, at place `number` of those where Python may."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        """Python looks for signals when a function begins, and when one of C has returned."""
        if event in ("call", "c_return") and frame.f_code.co_filename == inspect.getfile(PlainTeam):
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


@pytest.mark.parametrize("heavy", [0, 1])
@pytest.mark.parametrize("workers", [1, 2])
def test_r12_a_guest_of_the_plain_twin_may_be_interrupted_anywhere(workers: int, heavy: int) -> None:
    """After each interrupt the next run is clean, and in the end the workers go home."""
    graph = lists([[], [0], [0], [0], [1, 2, 3]], [[0], [1], [1, 2], [3], [4]])
    with crew(plain(), graph, workers, bytes([heavy]) * 5) as team:
        for number in itertools.count(1):
            strike = Strike(number)
            team.start(lambda op: None, lambda blob: None, guest=True)
            try:
                sys.setprofile(strike)
                team.team.work(workers)
            except KeyboardInterrupt:
                team.team.halt()  # as whoever interrupts a run does
                if team.team.task(workers) is not None:
                    team.team.retire(workers)
            finally:
                sys.setprofile(None)
            if strike.left > 0:
                break
            assert team.wait()
            team.run(lambda op: None, lambda blob: None, guest=bool(number % 2))
    assert number > 40


def test_nobody_watches_for_ever_when_there_is_no_run() -> None:
    with crew(plain(), wide(20), 3) as team:
        team.run(lambda op: None, guest=True)
        deadline = time.monotonic() + WATCH
        while team.team._watchers and time.monotonic() < deadline:
            time.sleep(0.01)
        assert team.team._watchers == 0
        assert not any(post.watching for post in team.team._posts)


# Ends ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("where", ["act", "combine"])
def test_r12_after_an_error_nothing_starts_and_the_next_run_is_clean(
    twin: ModuleType, workers: int, where: str
) -> None:
    graph = lists([[], [0], [0], [1], [2]], [[0], [1, 1], [2], [3], [4]])
    broken = [True]

    def fail(number: int) -> None:
        if broken[0] and number == 1:
            raise ValueError("boom")

    with crew(twin, graph, workers) as team:
        for _ in range(50):
            broken[0] = True
            started: list[int] = []

            def act(op: int, started: list[int] = started) -> None:
                started.append(op)
                if where == "act":
                    fail(op)

            team.start(act, fail if where == "combine" else print)
            assert team.wait()
            assert [(token, op, str(error)) for token, op, error in team.errors] == [("run", 1, "boom")]
            assert 3 not in started
            team.errors.clear()
            broken[0] = False
            team.run(lambda op: None, fail)


def test_r12_workers_that_all_fail_go_on(twin: ModuleType) -> None:
    barrier = threading.Barrier(3)

    def act(op: int) -> None:
        if 1 <= op <= 3:
            barrier.wait(WATCH)
            raise KeyError(op)

    with crew(twin, wide(3), 3) as team:
        for _ in range(20):
            team.start(act)
            assert team.wait()
            assert sorted(op for _, op, _ in team.errors) == [1, 2, 3]
            team.errors.clear()
        team.run(lambda op: None)


def test_a_halted_run_starts_nothing_more_and_none_starts_while_it_computes(twin: ModuleType) -> None:
    entered, go = threading.Event(), threading.Event()
    started: list[int] = []

    def act(op: int) -> None:
        started.append(op)
        entered.set()
        assert go.wait(WATCH)

    with crew(twin, wide(2), 2) as team:
        tracker = team.start(act)
        assert entered.wait(WATCH)
        assert team.team.busy("run")
        assert team.team.computing() == 1
        team.team.halt()
        assert not team.team.start("other", tracker, [], [(None, 0, 0, 0)] * 4, [None], print)
        go.set()
        assert team.wait()
        assert started == [0]
        assert tracker.active()
        team.run(lambda op: None)


def test_closing_leaves_the_operator_that_computes_as_the_workers_task(twin: ModuleType) -> None:
    entered, go, found = threading.Event(), threading.Event(), []
    edges = twin.Edges(*wide(2))
    team = twin.Team(edges, 1, bytes(4), lambda: None)

    def act(*_: object) -> None:
        entered.set()
        assert go.wait(WATCH)

    def serve() -> None:
        team.work(0)
        found.append(team.task(0))
        team.retire(0)
        found.append(team.task(0))

    tracker = twin.Tracker(edges)
    assert team.start("run", tracker, [0], [(act, 0, [], [])] * 4, [None], print)
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert entered.wait(WATCH)
    team.close()
    go.set()
    thread.join(WATCH)
    assert found == [("run", 0), None]
    assert tracker.state(0) == "ready"


def test_an_empty_graph_is_over_at_once(twin: ModuleType) -> None:
    with crew(twin, lists([], []), 2) as team:
        team.run(print)


def test_a_team_keeps_nothing_of_a_run_that_it_forgot(twin: ModuleType) -> None:
    class Kept:
        pass

    kept = Kept()
    ref = weakref.ref(kept)
    with crew(twin, wide(3), 2) as team:
        team.run(lambda op, kept=kept: None, lambda blob, kept=kept: None)
        del kept
        gc.collect()
        assert ref() is None


# Refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: 0}, "a team needs 1 worker or more, got 0"),
        ({2: bytes(3)}, "heavy: expected one for each of 4, got 3"),
    ],
)
def test_a_team_that_is_none(twin: ModuleType, change: dict[int, Any], message: str) -> None:
    arguments = [twin.Edges(*wide(2)), 2, bytes(4), print]
    with pytest.raises(ValueError, match=f"^{message}$"):
        twin.Team(*[change.get(place, value) for place, value in enumerate(arguments)])


def test_a_run_of_something_else_is_refused(twin: ModuleType) -> None:
    edges = twin.Edges(*wide(2))
    team, tracker = twin.Team(edges, 2, bytes(4), print), twin.Tracker(edges)
    call = (None, 0, [], [])
    with pytest.raises(ValueError, match=r"^calls: expected one for each of 4, got 3$"):
        team.start("run", tracker, [0], [call] * 3, [None], print)
    other = twin.Tracker(twin.Edges(*wide(3)))
    with pytest.raises(ValueError, match=r"^tracker: expected one of 4 operators, got 5$"):
        team.start("run", other, [0], [call] * 4, [None], print)
    alike = twin.Tracker(twin.Edges(*lists([[], [], [], []], [[0, 1, 2], [], [], []])))
    with pytest.raises(ValueError, match=r"^tracker: expected one of the team's edges, got one of others$"):
        team.start("run", alike, [0], [call] * 4, [None], print)
    with pytest.raises(IndexError, match=r"^worker 3: expected 0 to 2$"):
        team.work(3)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_operator_that_is_not_ready_is_an_error(twin: ModuleType, workers: int) -> None:
    with crew(twin, wide(2), workers) as team:
        tracker = twin.Tracker(team.edges)
        assert team.team.start("run", tracker, [1], [(None, 0, [], [])] * 4, [None], print)
        assert team.wait()
        assert str(team.errors[0][2]) == "'op1' cannot finish: it is waiting for 1 input edges"


def test_an_interpreter_without_its_lock_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cy = compiled()
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(RuntimeError, match=r"^the compiled loops need the interpreter's lock, .*PURINE_REF_FAST=0"):
        cy.Team(cy.Edges(*wide(2)), 2, bytes(4), print)
    plain().Team(plain().Edges(*wide(2)), 2, bytes(4), print)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    pace.require_lock()


def test_twins_have_the_same_names_and_signatures() -> None:
    py, cy = plain().Team, compiled().Team
    for name in [name for name in vars(py) if not name.startswith("_")]:
        pair = [list(inspect.signature(getattr(team, name)).parameters) for team in (py, cy)]
        assert pair[0] == pair[1], name


# Planted faults -----------------------------------------------------------------------------------------------------


class Deaf(PlainTeam):
    """A lost wake: the bell does not ring for a worker that watches or sleeps."""

    def _ring(self, post: Any, called: bool) -> None:
        post.called, post.rung = called, True


class Twice(PlainTeam):
    """A double start: an operator that was taken from the queue is still in it."""

    def _take(self, post: Any, elapsed: float) -> int:
        op = super()._take(post, elapsed)
        if op == 0:
            self._light.append(op)
        return op


class Quiet(PlainTeam):
    """Nobody says that the run has ended."""

    def _leave(self, post: Any) -> bool:
        super()._leave(post)
        return False


class Early(PlainTeam):
    """An operator is released before what it shares with others is added up."""

    def _add_up(self, op: int) -> list[int]:
        with self._lock:
            complete = self._tracker.finish(op)
        self._later = [blob for blob in complete if self._edges.producers[blob] > 1]
        return complete

    def _leave(self, post: Any) -> bool:
        for blob in getattr(self, "_later", []):
            self._combine(blob)
        self._later = []
        return super()._leave(post)


def checked_run(kind: Any) -> None:
    """One worker, a graph with a sum."""
    graph = lists([[], [0], [0], [1, 2]], [[0], [1], [1, 2], [3]])
    record = Record()
    with crew(plain(), graph, 1, kind=kind) as team:
        team.start(record.act, record.combine)
        with team.over:
            assert team.over.wait_for(lambda: team.told, 0.5)
        assert not team.team.busy("run")
        assert not team.errors
    check(graph, inputs_of(graph), record.events)


@pytest.mark.parametrize(("kind", "drive"), [(Quiet, checked_run), (Early, checked_run), (Twice, checked_run)])
def test_a_planted_fault_is_found(kind: Any, drive: Callable[[Any], None]) -> None:
    drive(PlainTeam)
    with pytest.raises(AssertionError):
        drive(kind)


def test_a_lost_wake_is_found() -> None:
    """The run is never begun; the threads are those of a test that failed, and end with it."""
    made = Crew(plain(), wide(2), 2, kind=Deaf)
    made.start(lambda op: None)
    assert not made.wait(seconds=0.3)
