"""Failures, interrupts and closing where ranks are processes (rule R12): one ends all, and the next run is clean."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks import BUSY, SHAPE, WATCH, Call, Delays, Gate, Swallow, Trace, bits, nothing
from hosted import locally, outcomes
from purine_ref.errors import PeerLost, Refused
from purine_ref.executors import Executor, Hosts, Serial
from purine_ref.executors.base import GRACE
from purine_ref.graph import Graph
from purine_ref.tensor import Location
from purine_ref.transports import World, local_worlds
from ranked import moved, on, serial_bits, triangle
from strategies import Recipe, recipes
from suites.executors import Make
from suites.transports import MOMENT
from test_hosts import every_kind
from test_ranks_placements import feeds, placed, ran


def lost(error: object, rank: int, reason: str) -> None:
    """Assert that the error is the loss of that rank, for that reason."""
    assert isinstance(error, PeerLost), error
    assert (error.rank, error.reason.splitlines()[0]) == (rank, reason)


def attempt(action: Callable[[], Any]) -> BaseException | None:
    """What the action raises."""
    try:
        action()
    except BaseException as error:
        return error
    return None


@every_kind
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_r12_a_failure_on_one_rank_ends_them_all_and_the_next_run_is_clean(
    make: Make, kind: type[BaseException]
) -> None:
    graph = triangle(lambda name: fail_at(name))

    def fail_at(name: str) -> None:
        if name == "b" and failing[0]:
            raise kind("boom")

    failing = [True]
    turns = threading.Barrier(3)

    def work(world: World) -> None:
        with make(graph, world=world) as executor:
            for number in range(5):
                begun = time.perf_counter()
                error = attempt(executor.run)
                assert time.perf_counter() - begun < 5.0
                if world.rank == 1:
                    assert type(error) is kind
                    assert error.__notes__ == ["operator 'b' (Call) at rank1/cpu, inputs: a>1 float64[3, 2]"]
                else:
                    lost(error, 1, f"operator 'b' failed: {kind.__name__}: boom")
                turns.wait(WATCH)
                failing[0] = False
                executor.run()
                assert executor.iteration == number + 1
                assert executor.fetch("e").tolist() == np.full(SHAPE, 5.0).tolist()
                turns.wait(WATCH)
                failing[0] = True
                turns.wait(WATCH)

    locally(3, work)


@every_kind
def test_r12_each_of_two_that_fail_at_once_raises_its_own(make: Make) -> None:
    barrier = threading.Barrier(2)

    def failing(error: Exception) -> None:
        barrier.wait(WATCH)
        raise error

    graph = Graph("both")
    for rank, error in enumerate((ValueError("one"), KeyError("two"))):
        on(graph, rank, f"x{rank}", [], partial(failing, error))
    on(graph, 2, "x2")
    found = outcomes(local_worlds(3), lambda world: make(graph, world=world).run())
    assert [type(error) for error in found] == [ValueError, KeyError, PeerLost]


@every_kind
def test_r12_a_run_counts_on_all_ranks_or_on_none(make: Make) -> None:
    """Rank 0 has done all its work, its update too, when rank 1 fails: nothing is swapped on either."""
    graph, failing = Graph("whole"), [True]
    gate = Gate()

    def fail_last() -> None:
        if failing[0]:
            gate()
            raise ValueError("boom")

    for rank in (0, 1):
        old, new = (graph.blob(f"{name}{rank}", SHAPE, "float64", Location(rank)) for name in ("old", "new"))
        graph.connect([old], Call(fail_last if rank else nothing), [new], name=f"update{rank}")
        graph.swap(old, new)

    class Sees(Trace):
        def finished(self, *facts: Any) -> None:
            assert gate.entered.wait(WATCH)
            gate.go.set()

    turns = threading.Barrier(2)

    def work(world: World) -> None:
        observer = Sees() if world.rank == 0 else None
        with make(graph, world=world, observer=observer) as executor:
            error = attempt(executor.run)
            assert isinstance(error, ValueError if world.rank else PeerLost), error
            assert executor.iteration == 0
            turns.wait(WATCH)
            failing[0] = False
            for number in range(1, 4):
                executor.run()
                assert executor.iteration == number
                for name in ("old0", "old1"):
                    np.testing.assert_array_equal(executor.fetch(name), np.full(SHAPE, float(number)))

    locally(2, work)


@every_kind
def test_r12_a_rank_that_needs_no_message_starts_nothing_more_either(make: Make) -> None:
    graph, entered, heard = Graph("busy"), threading.Event(), threading.Event()

    def fail() -> None:
        assert entered.wait(WATCH)
        raise ValueError("boom")

    def long() -> None:
        entered.set()
        assert heard.wait(WATCH)

    on(graph, 0, "bad", [], fail)
    last = on(graph, 1, "long", [], long)
    for number in range(300):
        last = on(graph, 1, f"after{number}", [last])
    trace = Trace()

    def work(world: World) -> None:
        with make(graph, world=world, observer=trace if world.rank else None) as executor:
            error = attempt(executor.run)
            if world.rank == 0:
                heard.set()
                assert isinstance(error, ValueError)
            else:
                lost(error, 0, "operator 'bad' failed: ValueError: boom")

    locally(2, work)
    assert len(trace.names("started")) < 50  # a few may start before the word comes


@every_kind
def test_a_rank_that_left_is_lost_for_good(make: Make) -> None:
    """Every run and every fetch says so, at once."""
    graph, turns = triangle(nothing_named), threading.Barrier(3)

    def work(world: World) -> None:
        executor = make(graph, world=world)
        executor.run()
        turns.wait(WATCH)  # an abort overtakes what was said before
        if world.rank == 2:
            world.abort("no power")
            return
        with executor:
            begun = time.perf_counter()
            for _ in range(3):
                lost(attempt(executor.run), 2, "no power")
            lost(attempt(lambda: executor.fetch("c")), 2, "no power")
            assert time.perf_counter() - begun < 2.0
            assert executor.iteration == 1

    locally(3, work)


def nothing_named(name: str) -> None:
    """An action of `triangle` that does nothing."""


def test_a_rank_that_does_not_run_again_is_lost_within_the_time_limit() -> None:
    """It gave up after a failure of another, without a word."""
    graph, failing = triangle(lambda name: fail_once(name)), [True]
    gone = threading.Event()

    def fail_once(name: str) -> None:
        if name == "b" and failing[0]:
            failing[0] = False
            raise ValueError("boom")

    def work(world: World) -> None:
        with Hosts(graph, world=world, threads=1) as executor:
            assert attempt(executor.run) is not None
            if world.rank == 2:
                assert gone.wait(WATCH)
                return
            error = attempt(executor.run)
            gone.set()
            lost(error, 2, "it did not open the graph within 1 s")

    worlds = local_worlds(3, patience=1.0)
    assert outcomes(worlds, work) == [None] * 3


def test_ranks_of_which_one_has_counted_a_run_more_are_refused() -> None:
    """What a loss in the very moment in which a run ends can leave behind."""
    graph, failing = triangle(lambda name: fail_once(name)), [True]

    def fail_once(name: str) -> None:
        if name == "b" and failing[0]:
            failing[0] = False
            raise ValueError("boom")

    def work(world: World) -> None:
        with Hosts(graph, world=world) as executor:
            assert attempt(executor.run) is not None
            executor.iteration += world.rank == 2
            with pytest.raises(Refused, match=r"^graph 'triangle' of rank 2 is not that of rank 0: .+$"):
                executor.run()

    locally(3, work)


def test_a_rank_that_cannot_say_that_it_has_ended_is_lost() -> None:
    """Its own part has ended well, so nothing else tells the others."""
    graph, heard = Graph("mute"), threading.Event()
    for rank in range(2):
        on(graph, rank, f"x{rank}")

    def mute(*message: object) -> None:
        raise OSError("no room")

    def work(world: World) -> None:
        with Hosts(graph, world=world) as executor:
            if world.rank == 0:
                executor._session.send = mute  # type: ignore[method-assign]
                error = attempt(executor.run)
                assert isinstance(error, OSError)
                assert heard.wait(WATCH)
            else:
                error = attempt(executor.run)
                heard.set()
                lost(error, 0, "its run failed: OSError: no room")

    assert outcomes(local_worlds(2), work) == [None, None]


# Interrupts and closing ---------------------------------------------------------------------------------------------


def with_a_peer(graph: Graph, make: Make, peer: Callable[[Executor], Any], own: Callable[[Executor], Any]) -> object:
    """Rank 0 does `own` on this thread, where signals come, beside rank 1; returns what rank 1 raises."""
    zero, one = local_worlds(2)
    found: list[object] = []

    def beside() -> None:
        with make(graph, world=one) as executor:
            found.append(attempt(lambda: peer(executor)))

    thread = threading.Thread(target=beside, daemon=True)
    thread.start()
    with make(graph, world=zero) as executor:
        own(executor)
    thread.join(WATCH)
    assert not thread.is_alive()
    return found[0]


def interrupted(executor: Any, action: Callable[[], Any]) -> None:
    """Assert that the action, which waits for a peer, ends within a second of an interrupt from the keyboard."""
    begun: list[float] = []

    def interrupt() -> None:
        deadline = time.perf_counter() + WATCH
        while executor._run is None and not executor._fetching and time.perf_counter() < deadline:
            os.sched_yield()
        threading.Event().wait(MOMENT)  # so that it is asleep
        begun.append(time.perf_counter())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        action()
    assert time.perf_counter() - begun[0] < 1.0
    thread.join()


@every_kind
def test_sc_12_ctrl_c_ends_a_rank_that_waits_for_another(make: Make) -> None:
    graph, gate = Graph("waits"), Gate()
    on(graph, 0, "after", [on(graph, 1, "held", [], gate)])

    def own(executor: Executor) -> None:
        interrupted(executor, executor.run)
        gate.go.set()

    error = with_a_peer(graph, make, lambda executor: executor.run(), own)
    lost(error, 0, "its run was interrupted")


@every_kind
def test_sc_12_ctrl_c_ends_a_rank_whose_own_part_has_ended(make: Make) -> None:
    """It waits for no message of the graph, only for the others to have ended too."""
    graph, gate = Graph("ends"), Gate()
    on(graph, 0, "short")
    on(graph, 1, "held", [], gate)

    def own(executor: Executor) -> None:
        interrupted(executor, executor.run)
        assert executor.iteration == 0
        gate.go.set()

    error = with_a_peer(graph, make, lambda executor: executor.run(), own)
    lost(error, 0, "its run was interrupted")


@every_kind
def test_sc_12_ctrl_c_ends_a_fetch(make: Make) -> None:
    graph, going = Graph("fetch"), threading.Event()
    on(graph, 0, "z", [on(graph, 1, "y")])

    def own(executor: Executor) -> None:
        executor.run()
        interrupted(executor, lambda: executor.fetch("y"))
        going.set()

    def peer(executor: Executor) -> None:
        executor.run()
        assert going.wait(WATCH)
        executor.fetch("z")

    error = with_a_peer(graph, make, peer, own)
    lost(error, 0, "its fetch of 'y' failed: KeyboardInterrupt: ")


@every_kind
def test_after_an_interrupt_the_ranks_may_run_again(make: Make) -> None:
    graph, gate, again = Graph("again"), Gate(), threading.Event()
    held = [True]
    on(graph, 0, "after", [on(graph, 1, "held", [], lambda: gate() if held[0] else None)])

    def own(executor: Executor) -> None:
        interrupted(executor, executor.run)
        held[0] = False
        gate.go.set()
        again.set()
        executor.run()
        assert bits(executor) == serial_bits(graph)

    def peer(executor: Executor) -> None:
        lost(attempt(executor.run), 0, "its run was interrupted")
        assert again.wait(WATCH)
        executor.run()
        bits(executor)

    assert with_a_peer(graph, make, peer, own) is None


def test_after_a_fetch_that_was_interrupted_the_ranks_may_run_again() -> None:
    graph, again = Graph("fetch"), threading.Event()
    on(graph, 0, "z", [on(graph, 1, "y")])

    def own(executor: Executor) -> None:
        executor.run()
        interrupted(executor, lambda: executor.fetch("y"))
        again.set()
        executor.run()
        assert bits(executor) == serial_bits(graph)

    def peer(executor: Executor) -> None:
        executor.run()
        assert again.wait(WATCH)
        lost(attempt(lambda: executor.fetch("z")), 0, "its fetch of 'y' failed: KeyboardInterrupt: ")
        executor.run()
        bits(executor)

    assert with_a_peer(graph, Hosts, peer, own) is None


def test_a_run_that_is_failed_from_outside_ends_everywhere() -> None:
    graph, gate = Graph("stuck"), Gate()
    on(graph, 0, "after", [on(graph, 1, "held", [], gate)])

    def own(executor: Executor) -> None:
        found: list[BaseException | None] = []
        thread = threading.Thread(target=lambda: found.append(attempt(executor.run)))
        thread.start()
        assert gate.entered.wait(WATCH)
        executor.fail(ValueError("enough"))
        thread.join(WATCH)
        gate.go.set()
        assert repr(found) == "[ValueError('enough')]"

    error = with_a_peer(graph, Hosts, lambda executor: executor.run(), own)
    lost(error, 0, "the run was ended")


@every_kind
def test_closing_in_the_middle_of_a_run_ends_it_everywhere(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    before, gate = set(threading.enumerate()), Gate()
    graph = Graph("stuck")
    on(graph, 1, "after", [on(graph, 0, "stuck", [], gate)])

    def own(executor: Executor) -> None:
        found: list[BaseException | None] = []
        thread = threading.Thread(target=lambda: found.append(attempt(executor.run)))
        thread.start()
        assert gate.entered.wait(WATCH)
        begun = time.perf_counter()
        executor.close()
        assert time.perf_counter() - begun < GRACE + BUSY
        gate.go.set()
        thread.join(WATCH)
        assert str(found[0]) == "executor of graph 'stuck' was closed while it ran"

    error = with_a_peer(graph, make, lambda executor: executor.run(), own)
    lost(error, 0, "it was closed while it ran")
    for thread in threading.enumerate():
        if thread.name.startswith("stuck"):
            thread.join(WATCH)
    assert set(threading.enumerate()) <= before
    caplog.clear()


def test_closing_ends_a_fetch_that_waits() -> None:
    graph, fetching = Graph("fetch"), threading.Event()
    on(graph, 0, "z", [on(graph, 1, "y")])

    def own(executor: Executor) -> None:
        found: list[BaseException | None] = []
        executor.run()
        thread = threading.Thread(target=lambda: found.append(attempt(lambda: executor.fetch("y"))))
        thread.start()
        deadline = time.perf_counter() + WATCH
        while not executor._fetching and time.perf_counter() < deadline:  # type: ignore[attr-defined]
            os.sched_yield()
        executor.close()
        fetching.set()
        thread.join(WATCH)
        assert isinstance(found[0], PeerLost | RuntimeError)

    def peer(executor: Executor) -> None:
        executor.run()
        assert fetching.wait(WATCH)
        executor.fetch("y")

    lost(with_a_peer(graph, Hosts, peer, own), 0, "it was closed while it fetched")


def test_who_closes_delivers_what_it_has_sent() -> None:
    """A rank that is done early has said and sent all that the others need."""
    graph = triangle(nothing_named)

    def work(world: World) -> None:
        with Hosts(graph, world=world) as executor:
            executor.run()
            assert executor.fetch("d").tolist() == np.full(SHAPE, 4.0).tolist()
        world.close()

    for _ in range(20):
        locally(3, work)


def test_closing_lets_go_of_threads() -> None:
    before = set(threading.enumerate())

    def work(world: World) -> None:
        with Hosts(triangle(nothing_named), world=world) as executor:
            executor.run()

    locally(3, work)
    assert set(threading.enumerate()) <= before


# Random placements --------------------------------------------------------------------------------------------------


@given(recipe=recipes(), data=st.data())
def test_r8_r12_random_placements_and_failures(recipe: Recipe, data: st.DataObject) -> None:
    """One operator fails: its error comes out on its rank, and the next runs have the serial executor's bits."""
    names = [*recipe.blobs, *recipe.nodes]
    drawn = data.draw(st.lists(st.integers(0, 2), min_size=len(names), max_size=len(names)), "places")
    graph = placed(recipe, dict(zip(names, drawn, strict=True)))
    rank = data.draw(st.integers(0, 2), "rank that fails")
    failing, turns = [True], threading.Barrier(3)

    def bad(*arrays: Any) -> None:
        if failing[0]:
            raise ValueError("boom")

    watched = moved(graph, graph[data.draw(st.sampled_from(list(recipe.blobs)), "blob")], rank)
    graph.connect([watched], Swallow(bad), [], name="bad")
    kind = data.draw(st.sampled_from([partial(Hosts, executor=Serial), partial(Hosts, threads=1), Hosts]), "kind")
    early = data.draw(st.sampled_from([0, 1, 1024]), "early")

    def work(world: World) -> dict[str, bytes]:
        with kind(graph, world=world, seed=1, early=early, observer=Delays(recipe.seed)) as executor:
            executor.feed(feeds(graph, recipe.seed))
            for _ in range(2):
                error = attempt(executor.run)
                assert isinstance(error, ValueError if world.rank == rank else PeerLost), error
                turns.wait(WATCH)
            failing[0] = False
            turns.wait(WATCH)
            for _ in range(3):
                executor.run()
            return bits(executor)

    assert locally(3, work) == [ran(Serial(graph, seed=1), recipe.seed)] * 3
