"""The threaded executor: orders and ranks, interrupts and closing, and the monitor of its lanes without any thread."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from hooks import SHAPE, WATCH, Call, Delays, Gate, Swallow, Trace, call, nothing, raised_by, running
from purine_ref._fast.pace import WORTH
from purine_ref.devices import CpuDevice
from purine_ref.executors import Serial, Threaded, base, lanes
from purine_ref.executors.base import Run
from purine_ref.executors.pool import LONG, Pool, expected
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Cost
from purine_ref.ops import Copy, Linear
from purine_ref.plan import Plan, prepare
from purine_ref.schedule import Schedule, critical_path
from purine_ref.tensor import Location, Tensor


class Long(Call):
    """A `Call` that is expected to take long, so that it is left to a worker."""

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        return Cost(10**9, 0)


def call_long(graph: Graph, name: str, inputs: Sequence[Blob] = (), action: Callable[[], object] = nothing) -> Blob:
    """A new blob `name`, made by a `Long`."""
    blob = graph.blob(name, SHAPE, "float64")
    graph.connect(inputs, Long(action), [blob], name=name)
    return blob


def fan(count: int) -> Graph:
    """x0, x1, ... beside each other, then y of all of them."""
    graph = Graph("fan")
    call(graph, "y", [call(graph, f"x{number}") for number in range(count)])
    return graph


# Orders and ranks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 4, 8])
def test_an_order_is_run(threads: int) -> None:
    graph, trace = fan(12), Trace()
    order = [f"x{number}" for number in np.random.default_rng(threads).permutation(12)] + ["y"]
    with Threaded(graph, threads=threads, order=order, observer=trace) as executor:
        for _ in range(20):
            executor.run()
    begun = trace.names("started")
    if threads == 1:
        assert begun == order * 20
    assert all(sorted(begun[k : k + 13]) == sorted(order) for k in range(0, 260, 13))


def test_an_order_is_kept_with_many_threads() -> None:
    """Operators are given out in the order: each takes its number under the lock, so no thread can be ahead."""
    graph = fan(9)
    order = [f"x{number}" for number in (4, 2, 8, 0, 1, 7, 3, 6, 5)] + ["y"]
    executor = Threaded(graph, threads=1, order=order)
    executor.close()
    monitor = lanes.Lanes(executor.plan, executor._crew._ranks, strict=True)
    run = Run(Schedule(executor.plan), {})
    assert monitor.start(run)
    lane = monitor.by_key[None]
    with monitor.lock:
        taken = [monitor.take(lane) for _ in range(9)]
    assert [graph.ops[task[1]].name for task in taken if task] == order[:9]


def test_ranks_choose_who_starts_first() -> None:
    graph, trace = fan(7), Trace()
    ranks = [float(-op.index) for op in graph.ops]
    with Threaded(graph, threads=1, ranks=ranks, observer=trace) as executor:
        executor.run()
    assert trace.names("started") == [f"x{number}" for number in reversed(range(7))] + ["y"]


def test_ranks_by_critical_path() -> None:
    """A long chain starts before many short operators that were ready first."""
    graph, trace = Graph("ranks"), Trace()
    for number in range(5):
        call(graph, f"short{number}")
    last = call(graph, "long0")
    for number in range(1, 4):
        last = call(graph, f"long{number}", [last])
    ranks = critical_path(prepare(graph), [1.0] * len(graph.ops))
    with Threaded(graph, threads=1, ranks=ranks, observer=trace) as executor:
        executor.run()
    assert trace.names("started")[:4] == ["long0", "long1", "long2", "short0"]


def test_wrong_keywords() -> None:
    graph = fan(2)
    with pytest.raises(ValueError, match=r"^Threaded needs 1 thread or more, got 0$"):
        Threaded(graph, threads=0)
    with pytest.raises(ValueError, match=r"^Threaded takes an order or ranks, got both$"):
        Threaded(graph, order=["x0", "x1", "y"], ranks=[0.0, 1.0, 2.0])
    with pytest.raises(
        ValueError, match=r"^ranks must hold one number for each of the 3 operators of graph 'fan', got 2$"
    ):
        Threaded(graph, ranks=[0.0, 1.0])
    with pytest.raises(ValueError, match=r"^order position 0: operator 'y' is waiting for 2 input edges$"):
        Threaded(graph, order=["y", "x0", "x1"])


# Pool or lanes ------------------------------------------------------------------------------------------------------


def test_a_pool_runs_what_nothing_but_the_graph_has_a_say_in() -> None:
    graph, order = fan(2), ["x1", "x0", "y"]
    for keywords in ({"observer": Trace()}, {"ranks": [0.0, 1.0, 2.0]}, {"order": order}):
        with Threaded(graph, **keywords) as executor:
            assert isinstance(executor._crew, lanes.Lanes)
    with Threaded(two_devices(), devices=lambda place: CpuDevice()) as executor:
        assert isinstance(executor._crew, lanes.Lanes)
    with Threaded(graph) as executor:
        assert isinstance(executor._crew, Pool)


@pytest.mark.parametrize(
    ("size", "heavy", "guests"), [(100, False, True), (300, True, True), (400, True, False)]
)
def test_what_is_worth_a_wake(size: int, heavy: bool, guests: bool) -> None:
    """A product of square matrices, at 100 GFLOP/s: 20 microseconds, 540, and 1,280."""
    graph = Graph("product")
    graph.apply(Linear(), [graph.blob("x", (size, size)), graph.blob("w", (size, size))], "y")
    time = expected(graph.ops[0])
    assert (time >= WORTH, time < LONG) == (heavy, guests)
    assert Pool(prepare(graph), 2).takes_guests is guests


def test_an_error_of_a_pools_worker_names_the_operator_and_the_run_again_is_clean() -> None:
    graph, broken = fan(3), [True]

    def action() -> None:
        if broken[0]:
            raise ValueError("boom")

    call(graph, "z", [graph.blobs[-1]], action)
    for threads in (1, 2, 4):
        with Threaded(graph, threads=threads) as executor:
            for _ in range(50):
                broken[0] = True
                with pytest.raises(ValueError, match=raised_by("z", "boom", "y float64[3, 2]")):
                    executor.run()
                broken[0] = False
                executor.run()


# Lanes --------------------------------------------------------------------------------------------------------------


def two_devices() -> Graph:
    """From the CPU to two streams of a device, and from one of them back."""
    graph, device = Graph("devices"), Location(0, 0)
    a = call(graph, "a")
    (there,) = graph.apply(Copy(device), [a], "there")
    (one,) = graph.apply(Copy(), [there], "one", stream="first")
    (two,) = graph.apply(Copy(), [there], "two", stream="second")
    (back,) = graph.apply(Copy(Location()), [one], "back")
    graph.connect([back], Swallow(lambda x: None), [], name="z")
    graph.connect([two], Swallow(lambda x: None), [], name="sink", stream="second")
    return graph


def test_each_stream_of_a_device_has_one_ordered_worker() -> None:
    graph = two_devices()
    threads: dict[str, set[str]] = {}

    class Where(Trace):
        def finished(self, op: object, at: float) -> None:
            threads.setdefault(getattr(op, "name", ""), set()).add(threading.current_thread().name)

    with Threaded(graph, threads=3, devices=lambda place: CpuDevice(), observer=Where()) as executor:
        for _ in range(50):
            executor.run()
    assert threads["one"] == {"devices-(0, 'first')-0"}
    assert threads["back"] == {"devices-(0, 'main')-0"}
    assert threads["two"] == threads["sink"] == {"devices-(0, 'second')-0"}
    assert all(name.startswith("devices-None-") for name in threads["a"] | threads["z"])


@pytest.mark.parametrize("seed", range(5))
def test_an_order_over_several_lanes_is_replayed(seed: int) -> None:
    graph = two_devices()
    order = ["a", "there", "two", "one", "sink", "back", "z"]
    with Threaded(
        graph, threads=3, order=order, devices=lambda place: CpuDevice(), observer=Delays(seed)
    ) as executor:
        for _ in range(30):
            executor.run()
        assert executor.iteration == 30


def started_lanes() -> tuple[lanes.Lanes, Plan]:
    """Lanes for two operators x0, x1 and then y, that no worker serves."""
    plan = prepare(fan(2))
    return lanes.Lanes(plan, None, strict=False), plan


def test_closing_wakes_who_waits_for_a_run_of_which_nothing_was_taken() -> None:
    monitor, plan = started_lanes()
    run = Run(Schedule(plan), {})
    assert monitor.start(run)
    waiter = threading.Thread(target=monitor.wait, args=(run,), daemon=True)
    waiter.start()
    monitor.close()
    assert monitor.halt(0.0)
    waiter.join(WATCH)
    assert not waiter.is_alive()


def test_who_waits_for_a_failed_run_does_not_wait_for_the_next() -> None:
    monitor, plan = started_lanes()
    failed, following = Run(Schedule(plan), {}), Run(Schedule(plan), {})
    lane = monitor.by_key[None]
    assert monitor.start(failed)
    with monitor.lock:
        task = monitor.take(lane)
        assert task is not None
        monitor.retire(failed, task[1], None, ValueError("boom"), lane)
    assert monitor.start(following)
    waiter = threading.Thread(target=monitor.wait, args=(failed,), daemon=True)
    waiter.start()
    waiter.join(WATCH)
    assert not waiter.is_alive()


def test_no_run_starts_while_an_operator_of_the_last_computes() -> None:
    monitor, plan = started_lanes()
    run = Run(Schedule(plan), {})
    assert monitor.start(run)
    with monitor.lock:
        monitor.take(monitor.by_key[None])
    assert not monitor.halt(0.0)
    assert not monitor.start(Run(Schedule(plan), {}))


# Interrupts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("watched", [True, False])
def test_sc_12_ctrl_c_does_not_wait_for_an_operator_that_goes_on(
    watched: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The interrupt comes within a second; what was queued is not started; the executor says what still computes.

    So it is with lanes, where an observer watches, and with a pool.
    """
    graph, gate, held = Graph("stuck"), Gate(), [True]

    def stuck() -> None:
        if held[0]:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            gate()

    trace = Trace()
    call(graph, "after", [call_long(graph, "stuck", [], stuck)])
    observer = trace if watched else None
    with Threaded(graph, threads=2, observer=observer) as executor, caplog.at_level(logging.WARNING, "purine_ref"):
        begun = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            executor.run()
        assert time.perf_counter() - begun < 2.0
        with pytest.raises(
            RuntimeError, match=r"^executor of graph 'stuck': an interrupted run still computes 'stuck'$"
        ):
            executor.run()
        held[0] = False
        gate.go.set()
        assert executor._crew.halt(WATCH)
        executor.run()
        assert trace.names("started") == (["stuck", "stuck", "after"] if watched else [])
        np.testing.assert_array_equal(executor.fetch("after"), np.full(SHAPE, 2.0))
    assert caplog.messages == [f"graph 'stuck': still computing after {base.GRACE} s: 'stuck'"] * 2
    caplog.clear()


def test_closing_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    graph, gate = Graph("stuck"), Gate()
    call(graph, "x", [], gate)
    executor = Threaded(graph, threads=3)
    with caplog.at_level(logging.WARNING, "purine_ref"), running(executor, gate) as future:
        begun = time.perf_counter()
        executor.close()
        assert time.perf_counter() - begun < 2.0
    with pytest.raises(RuntimeError, match=raised_by("x", "executor of graph 'stuck' was closed while it ran")):
        future.result(WATCH)
    for worker in executor._workers:
        worker.join(WATCH)
        assert not worker.is_alive()
    caplog.clear()


# Who calls `run` takes part ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [call, call_long])
def test_who_computes(made: Callable[..., Blob]) -> None:
    """Who calls `run`, where operators are short; a worker after `run_async`, and where one of them is long."""
    seen: list[threading.Thread] = []
    graph = Graph("threads")
    made(graph, "x", [], lambda: seen.append(threading.current_thread()))
    with Serial(graph) as serial, Threaded(graph, threads=1) as executor:
        serial.run()
        executor.run()
        executor.run_async()
        executor.sync()
    here = threading.main_thread()
    assert [thread is here for thread in seen] == [True, made is call, False]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_no_more_compute_at_once_than_there_are_workers(threads: int) -> None:
    """Whoever starts the run is one of them."""
    lock, level, most = threading.Lock(), [0], [0]
    entered = [threading.Barrier(threads)]

    def action() -> None:
        with lock:
            level[0] += 1
            most[0] = max(most[0], level[0])
        entered[0].wait(WATCH)  # each time all are here, or the run would hang
        with lock:
            level[0] -= 1

    graph = Graph("crowd")
    for number in range(4 * threads):
        call(graph, f"x{number}", [], action)
    with Threaded(graph, threads=threads) as executor:
        for _ in range(20):
            executor.run()
            executor.run_async()
            executor.sync()
    assert most == [threads]


def test_an_interrupt_of_who_calls_run_does_not_wait_for_a_worker(caplog: pytest.LogCaptureFixture) -> None:
    """It comes in an operator that the main thread computes, while a worker's goes on; then the next run is clean."""
    graph, gate, here, held = Graph("shared"), Gate(), threading.main_thread(), [True]
    struck: list[float] = []

    def action() -> None:
        if held[0] and threading.current_thread() is not here:
            gate()
        elif held[0]:
            assert gate.entered.wait(WATCH)
            struck.append(time.perf_counter())
            signal.pthread_kill(here.ident or 0, signal.SIGINT)
            threading.Event().wait(WATCH)

    pair = [call(graph, name, [], action) for name in ("a", "b")]
    call(graph, "after", pair)
    with Threaded(graph, threads=2) as executor, caplog.at_level(logging.WARNING, "purine_ref"):
        with pytest.raises(KeyboardInterrupt) as caught:
            executor.run()
        assert time.perf_counter() - struck[0] < 2.0
        (mine,) = [name for name in "ab" if f"operator {name!r}" in caught.value.__notes__[0]]
        other = "b" if mine == "a" else "a"
        with pytest.raises(
            RuntimeError, match=rf"^executor of graph 'shared': an interrupted run still computes '{other}'$"
        ):
            executor.run()
        held[0] = False
        gate.go.set()
        assert executor._crew.halt(WATCH)
        executor.run()
        np.testing.assert_array_equal(executor.fetch("after"), np.full(SHAPE, 3.0))
    assert caplog.messages == [f"graph 'shared': still computing after {base.GRACE} s: '{other}'"] * 2
    caplog.clear()


def test_who_calls_run_is_refused_within_its_own_operator() -> None:
    graph, told = Graph("own"), []

    def action() -> None:
        for attempt in (executor.run, executor.sync, executor.close):
            with pytest.raises(RuntimeError) as refused:
                attempt()
            told.append(str(refused.value))

    call(graph, "x", [], action)
    with Threaded(graph, threads=2) as executor:
        executor.run()
    assert told == [
        "executor of graph 'own' cannot be started again while it runs: call sync first",
        "executor of graph 'own' cannot be waited for from its own operator 'x'",
        "executor of graph 'own' cannot be closed from its own operator 'x'",
    ]
