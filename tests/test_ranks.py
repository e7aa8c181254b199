"""All ranks in one process: the executors' suite on one rank, and over several the bits of the serial executor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from hooks import SHAPE, WATCH, Delays, Trace, bits
from purine_ref.devices import CpuDevice
from purine_ref.errors import GraphError
from purine_ref.executors import Executor, Observer, Ranks, Rates, Serial, Simulated, Threaded, simulate
from purine_ref.executors.memory import _array
from purine_ref.graph import Graph, Op
from purine_ref.ops import Bernoulli, Copy, Gaussian, Identity, Scale, Sum, Tanh
from purine_ref.parallel import Data, compose
from purine_ref.parallel.ranks import crosses, incoming, local_graph, world
from purine_ref.plan import prepare
from purine_ref.schedule import Schedule
from purine_ref.tensor import Location, Tensor
from purine_ref.transports import Hub
from ranked import every_kind, exchange, hasty, moved, on, serial_bits, training, triangle
from suites.executors import ConcurrentSuite, ExecutorSuite, Make


class TestSerialRanks(ExecutorSuite):
    @pytest.fixture
    def make(self) -> Make:
        return partial(Ranks, executor=Serial)


class TestThreadedRanks(ConcurrentSuite):
    @pytest.fixture
    def workers(self) -> int:
        return 3

    @pytest.fixture
    def make(self) -> Make:
        return partial(Ranks, threads=3)


# The same bits ------------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("ranks", [2, 4])
def test_messages_both_ways_at_once(make: Make, ranks: int) -> None:
    """With one worker, a rank that waited for a message before it sent its own would wait for ever."""
    graph = exchange(ranks)
    with make(graph) as executor:
        for _ in range(20):
            executor.run()
        assert bits(executor) == serial_bits(graph)
        assert executor.iteration == 20


@every_kind
def test_one_blob_to_many_ranks(make: Make) -> None:
    graph = Graph("fan")
    x = graph.blob("x", SHAPE, "float64")
    for rank in range(5):
        on(graph, rank, f"y{rank}", [x, x])
    array = np.arange(6.0).reshape(SHAPE)
    with make(graph) as executor:
        for number in range(5):
            executor.feed(x=array + number)
            executor.run()
            for rank in range(5):
                np.testing.assert_array_equal(executor.fetch(f"y{rank}"), 1 + 2 * (array + number))


@every_kind
def test_r4_r6_r7_several_iterations_under_delays(make: Make) -> None:
    graph = training()
    expected = serial_bits(graph, 12, seed=4)
    for seed in range(3):
        with make(graph, seed=4, observer=Delays(seed)) as executor:
            for _ in range(12):
                executor.run()
            assert bits(executor) == expected
    assert len(set(expected.values())) > 10


@every_kind
@pytest.mark.parametrize("order", [(1e8, 1.0, -1e8, 1.0), (1.0, 1.0, 1e8, -1e8), (1e8, -1e8, 1.0, 1.0)])
def test_dp_07_four_ranks_add_up_in_the_order_of_the_edges(make: Make, order: Sequence[float]) -> None:
    graph = Graph("all-reduce")
    total = graph.blob("total", (5,))
    shares = [graph.blob(f"share{rank}", (5,), location=Location(rank)) for rank in range(4)]
    for rank, share in enumerate(shares):
        graph.connect([share], Copy(Location(0)) if rank else Identity(), [total], name=f"add{rank}")
    for rank in range(1, 4):
        moved(graph, total, rank)
    expected = np.float32(0)
    for value in order:
        expected = np.float32(expected + np.float32(value))
    for seed in range(10):
        with make(graph, observer=Delays(seed)) as executor:
            executor.feed({f"share{rank}": np.full(5, value, "float32") for rank, value in enumerate(order)})
            for _ in range(10):
                executor.run()
                for name in ("total", "total>1", "total>2", "total>3"):
                    assert executor.fetch(name).tolist() == [expected] * 5


@every_kind
def test_a_rank_without_nodes(make: Make) -> None:
    graph = Graph("gap")
    on(graph, 3, "z", [on(graph, 1, "x")])
    assert world(graph) == 4
    with make(graph) as executor:
        for _ in range(5):
            executor.run()
        assert bits(executor) == serial_bits(graph)


@every_kind
@hasty()
def test_a_hundred_immediate_runs(make: Make) -> None:
    graph = training(2)
    with make(graph, seed=2) as executor:
        for _ in range(100):
            executor.run()
        assert bits(executor) == serial_bits(graph, 100, seed=2)


@pytest.mark.parametrize("early", [0, 1, 1000])
def test_messages_in_any_order(early: int) -> None:
    """Thirty values cross each way, in an order that is drawn anew for each executor."""
    graph = Graph("scrambled")
    for rank in (0, 1):
        for number in range(30):
            x = graph.blob(f"x{rank}.{number}", (4,), location=Location(rank))
            graph.apply(Scale(2.0), [moved(graph, x, 1 - rank)], f"y{rank}.{number}")
    feeds = {b.name: np.full(4, b.index, "float32") for b in graph.blobs if not b.producers}
    rng = np.random.default_rng(early)
    for threads in (1, 2, 3):
        with Ranks(graph, threads=threads, early=early, ranks=rng.random(len(graph.ops)).tolist()) as executor:
            executor.feed(feeds)
            for _ in range(10):
                executor.run()
                for name in feeds:
                    assert executor.fetch(f"y{name[1:]}").tolist() == (2 * feeds[name]).tolist()


def test_ranks_that_nobody_holds_back_run_ahead_of_each_other() -> None:
    """Each rank's executor runs 40 times on a thread of its own: no rank waits for another but for messages."""
    graph = training()
    parts = [local_graph(graph, rank) for rank in range(3)]
    hub = Hub([incoming(part) for part in parts], early=2)
    makes: list[Callable[..., Executor]] = [Serial, partial(Threaded, threads=1), partial(Threaded, threads=3)]
    executors = [
        kind(part, seed=4, transport=end, observer=Delays(end.rank))
        for kind, part, end in zip(makes, parts, hub.transports, strict=True)
    ]
    threads = [threading.Thread(target=lambda e=e: [e.run() for _ in range(40)]) for e in executors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCH)
        assert not thread.is_alive()
    got: dict[str, bytes] = {}
    for executor in executors:
        got |= bits(executor)
        executor.close()
    hub.close()
    assert got == serial_bits(graph, 40, seed=4)


def random_order(graph: Graph, rng: np.random.Generator) -> list[str]:
    """All operators' names, in a topological order."""
    schedule = Schedule(prepare(graph))
    ready, order = list(schedule.ready()), []
    while ready:
        op = ready.pop(int(rng.integers(len(ready))))
        order.append(graph.ops[op].name)
        ready += schedule.done(op)
    return order


@pytest.mark.parametrize("executor", [Serial, Threaded])
def test_an_order_of_the_whole_graph_is_replayed(executor: Callable[..., Executor]) -> None:
    graph = exchange(3, 2)
    for rank in range(3):
        for number in range(4):
            on(graph, rank, f"beside{rank}.{number}")
    rng = np.random.default_rng(5)
    for _ in range(5):
        order, trace = random_order(graph, rng), Trace()
        with Ranks(graph, executor=executor, order=order, observer=trace) as ranks:
            ranks.run()
            assert bits(ranks) == serial_bits(graph)
        if executor is Serial:
            for rank in range(3):
                computed = {op.name for op in graph.ops if op.location.rank == rank and not crosses(op)}
                own = [name for name in trace.names("started") if name in computed]
                assert own == [name for name in order if name in computed]


def test_priorities_of_the_whole_graph_are_each_ranks() -> None:
    graph = Graph("ranks")
    for rank in (0, 1):
        for number in range(6):
            on(graph, rank, f"x{rank}.{number}")
    trace = Trace()
    with Ranks(graph, threads=1, ranks=[float(-op.index) for op in graph.ops], observer=trace) as executor:
        executor.run()
    for rank in (0, 1):
        own = [name for name in trace.names("started") if name.startswith(f"x{rank}")]
        assert own == [f"x{rank}.{number}" for number in reversed(range(6))]


@every_kind
def test_iterations_may_be_set_as_for_any_executor(make: Make) -> None:
    """Back and forth: a message's iteration is never one that was used before over the same hub."""
    graph = Graph("draws")
    noise = graph.blob("noise", (4, 3), location=Location(1))
    graph.connect([], Bernoulli((4, 3)), [noise])
    moved(graph, noise, 0)
    found: dict[int, set[bytes]] = {}
    with make(graph, seed=3) as executor:
        for iteration in (0, 5, 5, 2, 0, 9, 2):
            executor.iteration = iteration
            executor.run()
            assert executor.iteration == iteration + 1
            found.setdefault(iteration, set()).add(executor.fetch("noise>0").tobytes())
    assert {iteration: len(drawn) for iteration, drawn in found.items()} == {0: 1, 5: 1, 2: 1, 9: 1}
    assert len(set.union(*found.values())) == 4


def test_ranks_share_no_memory() -> None:
    graph = training()
    with Ranks(graph, executor=Serial) as executor:
        executor.run()
        arrays = [list(map(_array, part._bound._places)) for part in executor._parts]
    assert [len(own) for own in arrays] == [len(local_graph(graph, rank).blobs) for rank in range(3)]
    for rank, own in enumerate(arrays):
        for other in arrays[rank + 1 :]:
            assert not any(np.shares_memory(a, b) for a in own for b in other)


@every_kind
def test_a_composed_graph(make: Make) -> None:
    """Three replicas over three ranks, of a batch that does not divide, with an update of the weights."""
    graph = Graph("linear")
    x = graph.blob("x", (7, 3), "float64")
    w = graph.parameter("w", (7, 3), "float64", Gaussian((7, 3), "float64"))
    (y,) = graph.apply(Tanh(), graph.apply(Sum(), [x, w], "h"), "y")
    new = graph.blob("new", (7, 3), "float64")
    graph.connect([y], Scale(0.5), [new])
    graph.swap(w, new)
    composed = compose(graph, [Data(3)], [Location(rank) for rank in range(3)])
    assert world(composed) == 3
    values = np.random.default_rng(0).standard_normal((7, 3))
    boxes = {piece.blob.name: tuple(slice(*side) for side in piece.box) for piece in composed.pieces["x"]}
    feeds = {name: values[box] for name, box in boxes.items()}
    with Serial(composed, seed=1) as serial, make(composed, seed=1) as executor:
        for one in (serial, executor):
            one.feed(feeds)
            for _ in range(3):
                one.run()
        assert bits(executor) == bits(serial)


# What is refused, and what is seen ----------------------------------------------------------------------------------


@every_kind
def test_names_are_those_of_the_whole_graph(make: Make) -> None:
    graph = triangle(lambda name: None)
    with make(graph) as executor:
        executor.run()
        with pytest.raises(GraphError, match=r"^graph 'triangle' has no blob 'a>0'; nearest: c>0, a>1$"):
            executor.fetch("a>0")
        with pytest.raises(GraphError, match=r"^blob 'a>1' is written by operator 'a>1'; feed a source blob$"):
            executor.feed({"a>1": np.zeros(SHAPE)})


def test_what_cannot_be_run_is_refused_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    graph = exchange()
    with pytest.raises(TypeError, match=r"threads"):
        Ranks(graph, executor=Serial, threads=2)
    message = "simulate needs the whole of graph 'exchange': '.+' waits for another rank"
    with pytest.raises(ValueError, match=f"^{message}$"):
        Ranks(graph, executor=Simulated)
    with pytest.raises(ValueError, match=r"^order position 0: operator 'round2.1' is waiting for 2 input edges$"):
        Ranks(graph, order=[op.name for op in reversed(graph.ops)])
    with pytest.raises(ValueError, match=r"^ranks must hold one number for each of the .+ operators of .+, got 1$"):
        Ranks(graph, ranks=[1.0])
    graph = Graph("devices")
    graph.apply(Copy(Location(1)), [graph.blob("x", (2, 3), location=Location(0, 0))], "y")
    with pytest.raises(GraphError, match=r"^operator 'y' .+ only memory of CPUs is sent from rank to rank, .+$"):
        Ranks(graph, devices=lambda place: CpuDevice())
    assert set(threading.enumerate()) <= before


def test_a_rank_without_memory_leaves_no_thread_of_another() -> None:
    class FullDevice(CpuDevice):
        def allocate(self, tensor: Tensor, name: str = "") -> Any:
            raise MemoryError(f"no room for {name}")

    before = set(threading.enumerate())
    with pytest.raises(MemoryError, match=r"^no room for start2$"):
        Ranks(exchange(3), devices=lambda place: FullDevice() if place.rank == 2 else CpuDevice())
    assert set(threading.enumerate()) <= before


@every_kind
def test_an_observer_sees_both_ends_of_a_message(make: Make) -> None:
    graph, seen = triangle(lambda name: None), []

    class Moves(Observer):
        def copied(self, op: Op, at: float) -> None:
            seen.append((op.name, op.operation.name, op.location.rank))

    with make(graph, observer=Moves()) as executor:
        executor.run()
    assert sorted(seen) == [("a>1", "Receive", 1), ("b>2", "Receive", 2), ("c>0", "Receive", 0), ("d>1", "Receive", 1)]


# The whole graph in virtual time ------------------------------------------------------------------------------------


def test_a_simulated_copy_between_ranks_takes_the_link_and_no_worker() -> None:
    """Two copies one way follow each other, one the other way goes beside them, and so does computing."""
    graph = Graph("links")
    x = graph.blob("x", (1000,))
    y = graph.blob("y", (1000,), location=Location(1))
    for number in range(2):
        graph.apply(Copy(Location(1)), [x], f"there{number}")
    graph.apply(Copy(Location(0)), [y], "back")
    for number in range(2):
        graph.apply(Tanh(), [x], f"beside{number}")
    rates = Rates(network=1e6, latency=0.001)
    assert rates.seconds(graph.op("back")) == 4000 / 1e6 + 0.001
    assert rates.seconds(graph.op("beside0")) == Rates().seconds(graph.op("beside0"))
    timeline = simulate(prepare(graph), [1.0] * 5, threads=2)
    assert [(span.op, span.lane, span.start) for span in timeline.spans] == [
        ("there0", "rank0>rank1", 0.0),
        ("back", "rank1>rank0", 0.0),
        ("beside0", "cpu", 0.0),
        ("beside1", "cpu", 0.0),
        ("there1", "rank0>rank1", 1.0),
    ]


def test_the_simulated_executor_runs_the_whole_graph() -> None:
    graph = training()
    with Simulated(graph, seed=4) as executor:
        for _ in range(3):
            executor.run()
        assert bits(executor) == serial_bits(graph, 3, seed=4)
