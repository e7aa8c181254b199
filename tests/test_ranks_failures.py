"""Failures, interrupts and closing over several ranks (rule R12): one ends all, and the next run is clean."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from hooks import BUSY, SHAPE, WATCH, Call, Gate, Trace, bits, nothing, running
from purine_ref.devices.virtual import VirtualMachine
from purine_ref.errors import PeerLost
from purine_ref.executors import Executor, Observer, Ranks, Serial, Threaded
from purine_ref.executors import pool as workers
from purine_ref.executors.base import GRACE
from purine_ref.graph import Graph, Op
from purine_ref.parallel.ranks import incoming, local_graph
from purine_ref.tensor import Location
from purine_ref.transports import Hub
from ranked import KINDS, every_kind, exchange, hasty, moved, on, serial_bits, triangle
from suites.executors import Make


@every_kind
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_r12_a_failure_on_one_rank_ends_them_all(make: Make, kind: type[BaseException]) -> None:
    broken, trace = [True], Trace()

    def action(name: str) -> None:
        if broken[0] and name == "b":
            raise kind("boom")

    with make(triangle(action), observer=trace) as executor:
        for _ in range(10):
            broken[0] = True
            trace.events.clear()
            begun = time.perf_counter()
            with pytest.raises(kind) as caught:
                executor.run()
            assert time.perf_counter() - begun < 5.0
            assert type(caught.value) is kind
            assert caught.value.__notes__ == [
                "operator 'b' (Call) at rank1/cpu, inputs: a>1 float64[3, 2]",
                "ranks that ended with it: 0, 2",
            ]
            assert not {"c", "d", "e"} & set(trace.names("started"))
            broken[0] = False
            executor.run()
            assert executor.fetch("e").tolist() == np.full(SHAPE, 5.0).tolist()
        assert executor.iteration == 10


@hasty()
@pytest.mark.parametrize("kind", ["serial", "three workers"])
def test_r12_three_hundred_runs_that_fail_somewhere_each_followed_by_a_clean_one(kind: str) -> None:
    target = [""]

    def fail_at(name: str) -> None:
        if name == target[0]:
            raise ValueError(f"boom in {name}")

    graph = Graph("fails")
    held = [on(graph, rank, f"start{rank}", [], partial(fail_at, f"start{rank}")) for rank in range(3)]
    for number in range(3):
        names = [f"round{number}.{rank}" for rank in range(3)]
        held = [on(graph, rank, name, held, partial(fail_at, name)) for rank, name in enumerate(names)]
    expected = serial_bits(graph)
    rng = np.random.default_rng(6)
    failing = [op.name for op in graph.ops if isinstance(op.operation, Call)]
    with KINDS[kind](graph) as executor:
        for number in range(300):
            target[0] = failing[int(rng.integers(len(failing)))]
            with pytest.raises(ValueError, match=f"^boom in {target[0]}\noperator '{target[0]}' (.|\n)+$"):
                executor.run()
            target[0] = ""
            executor.run()
            assert executor.iteration == number + 1
            if number % 30 == 0:
                assert bits(executor) == expected


@every_kind
def test_r12_two_ranks_that_fail_at_once_become_a_group(make: Make) -> None:
    barrier, broken = threading.Barrier(2), [True]

    def failing(error: Exception) -> None:
        barrier.wait(WATCH)
        if broken[0]:
            raise error

    graph = Graph("both")
    for rank, error in enumerate((ValueError("one"), KeyError("two"))):
        on(graph, rank, f"x{rank}", [], partial(failing, error))
    with make(graph) as executor:
        with pytest.raises(ExceptionGroup, match=r"^2 ranks of graph 'both' failed$") as caught:
            executor.run()
        notes = {type(error): error.__notes__ for error in caught.value.exceptions}
        assert notes == {
            ValueError: ["operator 'x0' (Call) at cpu, inputs: none"],
            KeyError: ["operator 'x1' (Call) at rank1/cpu, inputs: none"],
        }
        broken[0] = False
        executor.run()


@every_kind
def test_r12_a_run_counts_on_all_ranks_or_on_none(make: Make) -> None:
    """Rank 0 has done all its work, its update too, when rank 1 fails: nothing is swapped on either."""
    graph, broken = Graph("whole"), [False]

    def fail_last() -> None:
        while executor._crew._called or executor._crew._busy > 1:  # type: ignore[attr-defined]
            os.sched_yield()
        if broken[0]:
            raise ValueError("boom")

    for rank in (0, 1):
        old, new = (graph.blob(f"{name}{rank}", SHAPE, "float64", Location(rank)) for name in ("old", "new"))
        graph.connect([old], Call(fail_last if rank else nothing), [new], name=f"update{rank}")
        graph.swap(old, new)
    with make(graph) as executor:
        for number in range(1, 4):
            broken[0] = True
            with pytest.raises(ValueError, match=r"^boom\noperator 'update1' (.|\n)*$"):
                executor.run()
            broken[0] = False
            executor.run()
            assert executor.iteration == number
            for name in ("old0", "old1"):
                np.testing.assert_array_equal(executor.fetch(name), np.full(SHAPE, float(number)))


@every_kind
def test_r12_a_rank_that_needs_no_message_starts_nothing_more_either(make: Make) -> None:
    graph, failed, entered = Graph("busy"), threading.Event(), threading.Event()

    class Sees(Trace):
        def failed(self, op: Op, at: float, error: BaseException) -> None:
            super().failed(op, at, error)
            failed.set()

    def fail() -> None:
        assert entered.wait(WATCH)
        raise ValueError("boom")

    def long() -> None:
        entered.set()
        assert failed.wait(WATCH)

    on(graph, 0, "bad", [], fail)
    last = on(graph, 1, "long", [], long)
    for number in range(300):
        last = on(graph, 1, f"after{number}", [last])
    trace = Sees()
    with make(graph, observer=trace) as executor, pytest.raises(ValueError, match=r"^boom\noperator 'bad' (.|\n)*$"):
        executor.run()
    assert len(trace.names("started")) < 50  # a few may start before the word comes


def test_r12_a_send_that_waits_for_room_ends_with_its_run() -> None:
    """The peer never expects anything: the failure beside the send is what comes out, and soon."""
    graph = Graph("waits")
    x = on(graph, 0, "x")
    moved(graph, x, 1)

    def fail() -> None:
        raise ValueError("boom")

    on(graph, 0, "bad", [x], fail)
    hub = Hub([incoming(local_graph(graph, rank)) for rank in (0, 1)], early=0)
    with Threaded(local_graph(graph, 0), threads=2, transport=hub.transports[0]) as executor:
        with pytest.raises(ValueError, match=r"^boom\noperator 'bad' \(Call\) at cpu, inputs: x float64\[3, 2\]$"):
            executor.run()
    assert hub.lost == (0, "operator 'bad' failed: ValueError: boom")


@pytest.mark.parametrize("kind", [Serial, partial(Threaded, threads=1), partial(Threaded, threads=3)])
def test_r12_a_lost_peer_ends_a_run_and_the_next_has_another_transport(kind: Callable[..., Executor]) -> None:
    graph, gate = Graph("lost"), Gate()
    on(graph, 0, "z", [on(graph, 1, "y")])
    on(graph, 0, "held", [], gate)
    parts = [local_graph(graph, rank) for rank in (0, 1)]
    routes = [incoming(part) for part in parts]
    hub = Hub(routes)
    with kind(parts[0], transport=hub.transports[0]) as executor:
        with running(executor, gate) as future:
            hub.transports[1].abort("no power")
        with pytest.raises(PeerLost, match=r"^rank 1 is lost: no power(\n.*)?$"):
            future.result(WATCH)
        with pytest.raises(PeerLost, match=r"^rank 1 is lost: no power(\n.*)?$"):
            executor.run()  # a loss is for good
        executor.transport = (hub := Hub(routes)).transports[0]
        with Serial(parts[1], transport=hub.transports[1]) as other:
            other.run()
            executor.run()
            np.testing.assert_array_equal(executor.fetch("z"), np.full(SHAPE, 2.0))


@pytest.mark.parametrize("kind", [Serial, partial(Threaded, threads=1)])
@pytest.mark.parametrize("end", ["interrupt", "close"])
def test_r12_a_run_that_ends_early_tells_the_peers(kind: Callable[..., Executor], end: str) -> None:
    graph = Graph("early")
    on(graph, 0, "z", [on(graph, 1, "y")])
    hub = Hub([incoming(local_graph(graph, rank)) for rank in (0, 1)])

    class Ends(Observer):
        def started(self, op: Op, at: float) -> None:
            if end == "interrupt":
                raise KeyboardInterrupt

    part = local_graph(graph, 1)
    if end == "close":
        gate = Gate()
        part.connect([], Call(gate), [part.blob("held", SHAPE, "float64", Location(1))], name="held")
        executor = kind(part, transport=hub.transports[1])
        with running(executor, gate) as future:
            executor.close()
        with pytest.raises(RuntimeError, match=r"^executor of graph 'early' was closed while it ran(\n.*)?$"):
            future.result(WATCH)
        assert hub.lost == (1, "it was closed while it ran")
    else:
        with kind(part, transport=hub.transports[1], observer=Ends()) as executor, pytest.raises(KeyboardInterrupt):
            executor.run()
        assert hub.lost == (1, "operator 'y' failed: KeyboardInterrupt: ")


@pytest.mark.parametrize("kind", [Serial, partial(Threaded, threads=1)])
def test_closing_a_run_that_only_waits_for_a_message(kind: Callable[..., Executor]) -> None:
    graph, waits = Graph("idle"), threading.Event()
    on(graph, 0, "z", [on(graph, 1, "y"), on(graph, 0, "x")])
    hub = Hub([incoming(local_graph(graph, rank)) for rank in (0, 1)])

    class Sees(Observer):
        def finished(self, op: Op, at: float) -> None:
            waits.set()

    executor = kind(local_graph(graph, 0), transport=hub.transports[0], observer=Sees())
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(executor.run)
        assert waits.wait(WATCH)
        executor.close()
        with pytest.raises(RuntimeError, match=r"^executor of graph 'idle' was closed while it ran(\n.*)?$"):
            future.result(WATCH)
    assert hub.lost == (0, "it was closed while it ran")


def test_r12_an_interrupt_from_the_keyboard_is_told_to_the_peers(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "LONG", 0.0)  # so that the caller computes nothing, and waits
    gate, held = Gate(), [True]

    def stuck() -> None:
        if held[0]:
            held[0] = False
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            gate()

    graph = stuck_beside_a_waiting_rank(stuck)
    hub = Hub([incoming(local_graph(graph, rank)) for rank in (0, 1)])
    with Threaded(local_graph(graph, 0), transport=hub.transports[0]) as executor:
        with caplog.at_level(logging.WARNING, "purine_ref"), pytest.raises(KeyboardInterrupt):
            executor.run()
        assert hub.lost == (0, "its run was interrupted")
        gate.go.set()
    caplog.clear()


def test_r12_a_failure_that_an_asynchronous_device_reports_last_is_told_to_the_peers() -> None:
    def fail() -> None:
        raise ValueError("boom")

    graph, device = Graph("device"), Location(0, 0)
    x = graph.blob("x", SHAPE, "float64", device)
    graph.connect([x], Call(fail), [graph.blob("y", SHAPE, "float64", device)], name="y")
    hub = Hub([{}, {}])
    machine = VirtualMachine()
    with Serial(graph, transport=hub.transports[0], devices=machine.device) as executor:
        with pytest.raises(ValueError, match=r"^boom\noperator 'y' \(Call\) at device0, inputs: x float64\[3, 2\]$"):
            executor.run()
    machine.close()
    assert hub.lost == (0, "its run failed: ValueError: boom")


@every_kind
def test_r12_no_message_outlives_a_failed_run(make: Make) -> None:
    """In the run that fails, and in that alone, rank 1 sends junk; it must not be taken for the next run's message."""
    graph, junk = Graph("stale"), [False]

    y = on(graph, 1, "y")
    sent = threading.Event()

    class Sees(Observer):
        def finished(self, op: Op, at: float) -> None:
            if op.name == "x>0" and op.operation.name == "Send":
                sent.set()

    def fail_after_the_message() -> None:
        if junk[0]:
            assert sent.wait(WATCH)
            raise ValueError("boom")

    x = graph.blob("x", SHAPE, "float64", Location(1))
    on(graph, 0, "z", [x, y])
    on(graph, 0, "bad", [], fail_after_the_message)
    with make(graph, observer=Sees()) as executor:
        for number in range(10):
            executor.feed(x=np.full(SHAPE, -1e9))
            junk[0] = True
            sent.clear()
            with pytest.raises(ValueError, match=r"^boom\noperator 'bad' (.|\n)*$"):
                executor.run()
            junk[0] = False
            executor.feed(x=np.full(SHAPE, float(number)))
            executor.run()
            np.testing.assert_array_equal(executor.fetch("z"), np.full(SHAPE, 2.0 + number))


# Interrupts and closing ---------------------------------------------------------------------------------------------


def stuck_beside_a_waiting_rank(action: Callable[[], object]) -> Graph:
    """Rank 0 computes `action`, for whose result rank 1 waits."""
    graph = Graph("stuck")
    on(graph, 1, "after", [on(graph, 0, "stuck", [], action)])
    return graph


@every_kind
def test_sc_12_ctrl_c_does_not_wait_for_an_operator_that_goes_on(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    gate, held, trace = Gate(), [True], Trace()

    def stuck() -> None:
        if held[0]:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            gate()

    graph = stuck_beside_a_waiting_rank(stuck)
    with make(graph, observer=trace) as executor, caplog.at_level(logging.WARNING, "purine_ref"):
        begun = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            executor.run()
        assert time.perf_counter() - begun < GRACE + BUSY
        message = "executor of graph 'stuck': an interrupted run still computes 'stuck'"
        with pytest.raises(RuntimeError, match=f"^{message}$"):
            executor.run()
        held[0] = False
        gate.go.set()
        assert executor._crew.halt(WATCH)  # type: ignore[attr-defined]
        executor.run()
        np.testing.assert_array_equal(executor.fetch("after"), np.full(SHAPE, 2.0))
    assert trace.names("started").count("after") == 1
    assert caplog.messages == [f"graph 'stuck': still computing after {GRACE} s: 'stuck'"] * 2
    caplog.clear()


@every_kind
def test_closing_ends_a_rank_that_waits(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    before, gate, trace = set(threading.enumerate()), Gate(), Trace()
    executor = make(stuck_beside_a_waiting_rank(gate), observer=trace)
    drivers = executor._drivers  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING, "purine_ref"), running(executor, gate) as future:
        begun = time.perf_counter()
        executor.close()
        assert time.perf_counter() - begun < GRACE + BUSY
    with pytest.raises(RuntimeError, match=r"^executor of graph 'stuck' was closed while it ran(\n.*)*$"):
        future.result(WATCH)
    for driver in drivers:
        driver.join(WATCH)
        assert not driver.is_alive()
    assert "after" not in trace.names("started")
    for thread in set(threading.enumerate()) - before:  # the one that was stuck goes on to its end
        thread.join(WATCH)
        assert not thread.is_alive()
    caplog.clear()


def test_closing_when_rank_0_has_ended() -> None:
    """The operator that holds the run is on rank 1; that rank 0 was closed is not what went wrong there."""
    gate = Gate()
    graph = Graph("late")
    on(graph, 0, "early")

    def hold() -> None:
        while executor._crew._busy > 1:
            os.sched_yield()
        gate()

    on(graph, 1, "held", [], hold)
    executor = Ranks(graph, threads=1)
    with running(executor, gate) as future:
        executor.close()
    with pytest.raises(RuntimeError, match=r"^executor of graph 'late' was closed while it ran(\n.*)*$"):
        future.result(WATCH)


@every_kind
def test_closing_lets_go_of_every_ranks_threads(make: Make) -> None:
    before = set(threading.enumerate())
    with make(exchange(4)) as executor:
        executor.run()
        drivers = executor._drivers  # type: ignore[attr-defined]
        assert [driver.is_alive() for driver in drivers] == [True] * 4
    assert [driver.is_alive() for driver in drivers] == [False] * 4
    assert set(threading.enumerate()) <= before
