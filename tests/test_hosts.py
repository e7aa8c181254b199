"""Ranks that are processes: the executors' suite on one rank alone, and over several the bits of the serial executor.

Here the ranks are threads of one process; `test_hosts_processes.py` has them in processes of their own.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from hooks import SHAPE, WATCH, Delays, Trace, bits
from hosted import locally, outcomes, together
from purine_ref.conformance.schedules import order_of, random_schedule
from purine_ref.errors import GraphError, PeerLost, Refused, ShapeError
from purine_ref.executors import Executor, Hosts, Memory, Observer, Ranks, Serial
from purine_ref.executors.routes import routes
from purine_ref.graph import Graph, Op
from purine_ref.ops import Bernoulli, Copy, Gaussian, Identity, Scale, Sum, Tanh
from purine_ref.parallel import Data, compose
from purine_ref.parallel.ranks import crosses, incoming, local_graph
from purine_ref.plan import prepare
from purine_ref.tensor import Location, Tensor
from purine_ref.transports import Route, Transport, World, local_worlds
from ranked import exchange, hasty, moved, on, serial_bits, training, triangle
from suites.executors import ConcurrentSuite, ExecutorSuite, Make

KINDS = {
    "serial": partial(Hosts, executor=Serial),
    "one worker": partial(Hosts, threads=1),
    "three workers": partial(Hosts, threads=3),
    "no room": partial(Hosts, threads=1, early=0),
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def alone(graph: Graph, **keywords: Any) -> Hosts:
    """The executor in a world of one rank."""
    return Hosts(graph, world=local_worlds(1)[0], **keywords)


class TestSerialHost(ExecutorSuite):
    @pytest.fixture
    def make(self) -> Make:
        return partial(alone, executor=Serial)


class TestThreadedHost(ConcurrentSuite):
    @pytest.fixture
    def workers(self) -> int:
        return 3

    @pytest.fixture
    def make(self) -> Make:
        return partial(alone, threads=3)


def run_bits(make: Make, graph: Graph, size: int, runs: int = 1, **keywords: Any) -> dict[str, bytes]:
    """The bits of all blobs after some runs over `size` ranks, which must be the same on every rank."""

    def work(world: World) -> dict[str, bytes]:
        with make(graph, world=world, **keywords) as executor:
            for _ in range(runs):
                executor.run()
            assert executor.iteration == runs
            return bits(executor)

    found = locally(size, work)
    assert found == [found[0]] * size
    return found[0]


# The same bits ------------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("ranks", [2, 4])
def test_messages_both_ways_at_once(make: Make, ranks: int) -> None:
    graph = exchange(ranks)
    assert run_bits(make, graph, ranks, 20) == serial_bits(graph)


@every_kind
def test_r4_r6_r7_several_iterations_under_delays(make: Make) -> None:
    graph = training()
    expected = serial_bits(graph, 12, seed=4)
    for seed in range(3):
        assert run_bits(make, graph, 3, 12, seed=4, observer=Delays(seed)) == expected


@every_kind
def test_ranks_without_nodes(make: Make) -> None:
    """One between two others, and one beyond all."""
    graph = Graph("gap")
    on(graph, 3, "z", [on(graph, 1, "x")])
    assert run_bits(make, graph, 5, 5) == serial_bits(graph)


@every_kind
@hasty()
def test_a_hundred_immediate_runs(make: Make) -> None:
    graph = training(2)
    assert run_bits(make, graph, 2, 100, seed=2) == serial_bits(graph, 100, seed=2)


@every_kind
@pytest.mark.parametrize("order", [(1e8, 1.0, -1e8, 1.0), (1.0, 1.0, 1e8, -1e8)])
def test_dp_07_four_ranks_add_up_in_the_order_of_the_edges(make: Make, order: Sequence[float]) -> None:
    """What is fed goes to every rank, and each keeps its own."""
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

    def work(world: World) -> None:
        with make(graph, world=world, observer=Delays(world.rank)) as executor:
            executor.feed({f"share{rank}": np.full(5, value, "float32") for rank, value in enumerate(order)})
            for _ in range(10):
                executor.run()
                for name in ("total", "total>1", "total>2", "total>3"):
                    assert executor.fetch(name).tolist() == [expected] * 5

    locally(4, work)


def test_a_random_order_of_the_whole_graph_is_replayed() -> None:
    graph = exchange(3, 2)
    for rank in range(3):
        for number in range(4):
            on(graph, rank, f"beside{rank}.{number}")
    order = order_of(prepare(graph), random_schedule(prepare(graph), 5))

    def work(world: World) -> None:
        trace = Trace()
        with Hosts(graph, world=world, executor=Serial, order=order, observer=trace) as executor:
            executor.run()
            assert bits(executor) == serial_bits(graph)
        own = {op.name for op in graph.ops if op.location.rank == world.rank and not crosses(op)}
        assert [name for name in trace.names("started") if name in own] == [name for name in order if name in own]

    locally(3, work)


@every_kind
def test_iterations_may_be_set_as_for_any_executor(make: Make) -> None:
    """Back and forth: a message's iteration is never one that was used before over the same transport."""
    graph = Graph("draws")
    noise = graph.blob("noise", (4, 3), location=Location(1))
    graph.connect([], Bernoulli((4, 3)), [noise])
    moved(graph, noise, 0)

    def work(world: World) -> dict[int, set[bytes]]:
        found: dict[int, set[bytes]] = {}
        with make(graph, world=world, seed=3) as executor:
            for iteration in (0, 5, 5, 2, 0, 9, 2):
                executor.iteration = iteration
                executor.run()
                assert executor.iteration == iteration + 1
                found.setdefault(iteration, set()).add(executor.fetch("noise>0").tobytes())
        return found

    found, other = locally(2, work)
    assert found == other
    assert {iteration: len(drawn) for iteration, drawn in found.items()} == {0: 1, 5: 1, 2: 1, 9: 1}
    assert len(set.union(*found.values())) == 4


def test_several_graphs_take_turns_on_one_memory_at_each_rank() -> None:
    """A network and its evaluation, over three ranks: each memory holds what is at its rank, and nothing else."""
    graph = training()
    reading = Graph("reading")
    own = reading.blob("own2", (5, 3), "float64", Location(2), persistent=True)
    (twice,) = reading.apply(Scale(2.0), [own], "twice")
    moved(reading, twice, 0)
    with Serial(graph, seed=4) as serial:
        for _ in range(6):
            serial.run()
        expected = 2 * serial.fetch("own2")

    def work(world: World) -> None:
        memory = Memory()
        with (
            Hosts(graph, world=world, seed=4, memory=memory) as network,
            Hosts(reading, world=world, seed=4, memory=memory) as other,
        ):
            for _ in range(3):
                network.run()
                other.run()
                network.run()
            other.run()
            np.testing.assert_array_equal(other.fetch("twice>0"), expected)
        held = {blob.name for blob in local_graph(graph, world.rank).blobs if blob.persistent}
        for blob in graph.blobs:
            if blob.name in held:
                memory.get(blob.name)
            else:
                with pytest.raises(KeyError):
                    memory.get(blob.name)

    locally(3, work)


@every_kind
@pytest.mark.parametrize("size", [2, 3])
def test_a_composed_graph(make: Make, size: int) -> None:
    """Three replicas over two or three ranks, of a batch that does not divide, with an update of the weights."""
    graph = Graph("linear")
    x = graph.blob("x", (7, 3), "float64")
    w = graph.parameter("w", (7, 3), "float64", Gaussian((7, 3), "float64"))
    (y,) = graph.apply(Tanh(), graph.apply(Sum(), [x, w], "h"), "y")
    new = graph.blob("new", (7, 3), "float64")
    graph.connect([y], Scale(0.5), [new])
    graph.swap(w, new)
    composed = compose(graph, [Data(3)], [Location(number * size // 3) for number in range(3)])
    values = np.random.default_rng(0).standard_normal((7, 3))
    boxes = {piece.blob.name: tuple(slice(*side) for side in piece.box) for piece in composed.pieces["x"]}
    feeds = {name: values[box] for name, box in boxes.items()}

    def results(executor: Executor) -> dict[str, bytes]:
        with executor:
            executor.feed(feeds)
            for _ in range(3):
                executor.run()
            return bits(executor)

    expected = results(Serial(composed, seed=1))
    assert results(Ranks(composed, seed=1)) == expected
    assert locally(size, lambda world: results(make(composed, world=world, seed=1))) == [expected] * size


# What is refused, and what is seen ----------------------------------------------------------------------------------


def test_too_few_ranks_are_refused() -> None:
    message = "^graph 'exchange' is over 3 ranks, and 2 have joined: start as many$"
    for error in outcomes(local_worlds(2), lambda world: Hosts(exchange(3), world=world)):
        assert isinstance(error, GraphError)
        with pytest.raises(GraphError, match=message):
            raise error


@pytest.mark.parametrize(
    "keywords",
    [lambda rank: {"seed": rank // 2}, lambda rank: {"early": 10 + rank // 2}],
    ids=["seed", "room"],
)
def test_ranks_that_differ_are_refused(keywords: Callable[[int], dict[str, Any]]) -> None:
    """All of them, and none leaves a thread behind."""
    graph, before = exchange(3), set(threading.enumerate())

    def work(world: World) -> None:
        with pytest.raises(Refused, match=r"^graph 'exchange' of rank 2 is not that of rank 0: fingerprints .+$"):
            Hosts(graph, world=world, **keywords(world.rank))

    locally(3, work)
    assert set(threading.enumerate()) <= before


def test_another_graph_on_one_rank_is_refused_on_all() -> None:
    def work(world: World) -> None:
        graph = training() if world.rank != 1 else training(2)
        with pytest.raises(Refused, match=r"^graph 'training' of rank 1 is not that of rank 0: fingerprints .+$"):
            Hosts(graph, world=world)

    locally(3, work)


def test_what_cannot_be_fed_or_fetched_is_refused_wherever_it_is() -> None:
    graph = triangle(lambda name: None)
    graph.blob("x", SHAPE, "float64", Location(2))

    def work(world: World) -> None:
        with Hosts(graph, world=world) as executor:
            executor.run()
            with pytest.raises(GraphError, match=r"^graph 'triangle' has no blob 'a>0'; nearest: c>0, a>1$"):
                executor.fetch("a>0")
            with pytest.raises(GraphError, match=r"^blob 'a>1' is written by operator 'a>1'; feed a source blob$"):
                executor.feed({"a>1": np.zeros(SHAPE)})
            with pytest.raises(ShapeError, match=r"^blob 'x' takes float64\[3, 2\], got float64\[2, 3\]$"):
                executor.feed(x=np.zeros(SHAPE[::-1]))
            executor.feed(x=np.full(SHAPE, 4.0))
            np.testing.assert_array_equal(executor.fetch("x"), np.full(SHAPE, 4.0))

    locally(3, work)


def chain() -> Graph:
    """Four steps in a row at rank 1, whose values may share memory, behind what comes from rank 0."""
    graph = Graph("chain")
    x = graph.blob("x", (4, 5), "float64")
    last = moved(graph, x, 1)
    for number in range(4):
        (last,) = graph.apply(Tanh(), [last], f"t{number}")
    graph.connect([last], Tanh(), [graph.view(last, "over")], name="over")
    return graph


def test_r5_a_value_that_is_gone_is_refused_on_every_rank_and_all_go_on() -> None:
    graph = chain()

    def work(world: World) -> None:
        with Hosts(graph, world=world, reuse=True, keep=["over"]) as executor:
            executor.feed(x=np.ones((4, 5)))
            executor.run()
            for _ in range(2):
                with pytest.raises(GraphError, match=r"^blob 't0' was overwritten: to fetch it, name it in keep= .+$"):
                    executor.fetch("t0")
                with pytest.raises(GraphError, match=r"^blob 't3' was overwritten in place: fetch what overwrote .+$"):
                    executor.fetch("t3")
                expected = np.tanh(np.tanh(np.tanh(np.tanh(np.tanh(np.ones((4, 5)))))))
                np.testing.assert_allclose(executor.fetch("over"), expected)
        with Hosts(graph, world=world, reuse=True, keep=["over", "t0"]) as executor:
            executor.feed(x=np.ones((4, 5)))
            executor.run()
            np.testing.assert_allclose(executor.fetch("t0"), np.tanh(np.ones((4, 5))))

    locally(2, work)


@every_kind
def test_an_observer_sees_what_is_at_its_rank(make: Make) -> None:
    graph = triangle(lambda name: None)

    class Sees(Observer):
        def __init__(self) -> None:
            self.seen: list[tuple[str, ...]] = []

        def finished(self, op: Op, at: float) -> None:
            self.seen.append((op.name, op.operation.name))

        def began(self, iteration: int, at: float) -> None:
            self.seen.append(("began", str(iteration)))

        def ended(self, iteration: int, at: float, error: BaseException | None) -> None:
            self.seen.append(("ended", str(iteration), str(error)))

    def work(world: World) -> list[tuple[str, ...]]:
        sees = Sees()
        with make(graph, world=world, observer=sees) as executor:
            executor.run()
        assert sees.seen[0] == ("began", "0")
        assert sees.seen[-1] == ("ended", "0", "None")
        return sorted(sees.seen[1:-1])

    assert locally(3, work) == [
        [("a", "Call"), ("a>1", "Send"), ("c>0", "Receive"), ("d", "Call"), ("d>1", "Send")],
        [("a>1", "Receive"), ("b", "Call"), ("b>2", "Send"), ("d>1", "Receive"), ("e", "Call")],
        [("b>2", "Receive"), ("c", "Call"), ("c>0", "Send")],
    ]


# Messages -----------------------------------------------------------------------------------------------------------


def test_each_part_gets_the_messages_of_its_own_graph_and_words_for_them() -> None:
    graph = exchange(3)
    found = routes(graph, 4)
    for rank in range(4):
        own = incoming(local_graph(graph, rank))
        crossing = {route: tensor for route, tensor in found.incoming[rank].items() if route[1] < len(graph.ops)}
        assert {route: str(tensor) for route, tensor in crossing.items()} == {r: str(t) for r, t in own.items()}
        control = {route: str(tensor) for route, tensor in found.incoming[rank].items() if route not in crossing}
        tags = [(found.end, "int64[0]"), (found.heading, "int64[2]"), (found.heading + 1, "float64[3, 2]")]
        assert control == {(peer, tag): text for peer in range(4) if peer != rank for tag, text in tags}
    assert found.words.keys() == {(rank, *route) for rank in range(4) for route in found.incoming[rank]}
    copy = graph.op("start0>1")
    assert found.words[1, 0, copy.index] == "operator 'start0>1' for blob 'start0'"
    assert found.words[3, 2, found.end] == "its end of the run"


class Counting:
    """A world whose transports count what they send, by (iteration, tag), and are kept in a list."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.counts: Counter[tuple[int, int]] = Counter()
        self.opened: list[Transport] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def open(self, name: str, fingerprint: str, incoming: Sequence[Mapping[Route, Tensor]], **more: Any) -> Transport:
        transport = self._world.open(name, fingerprint, incoming, **more)
        send = transport.send

        def counted(peer: int, tag: int, iteration: int, array: Any) -> None:
            self.counts[iteration, tag] += 1
            send(peer, tag, iteration, array)

        transport.send = counted  # type: ignore[method-assign]
        self.opened.append(transport)
        return transport


def test_a_run_costs_one_small_message_to_each_other_rank() -> None:
    """Beside the graph's own, which are one for each crossing copy."""
    graph = exchange(4)

    def work(world: World) -> None:
        counting = Counting(world)
        with Hosts(graph, world=counting) as executor:
            for _ in range(3):
                executor.run()
        own = {op.index for op in graph.ops if crosses(op) and op.inputs[0].location.rank == world.rank}
        expected = {(iteration, tag): 1 for iteration in range(3) for tag in own}
        expected |= {(iteration, len(graph.ops)): 3 for iteration in range(3)}
        assert counting.counts == expected

    locally(4, work)


def test_transports_are_closed_with_the_executor_and_when_another_takes_over() -> None:
    def work(world: World) -> None:
        counting = Counting(world)
        with Hosts(exchange(2), world=counting) as executor:
            for iteration in (0, 1, 0, 1):
                executor.iteration = iteration
                executor.run()
            assert len(counting.opened) == 2
            counting.opened[1].watch(lambda error: None)
        for transport in counting.opened:
            with pytest.raises(RuntimeError, match=r"^transport of rank \d is closed: make a new one$"):
                transport.watch(lambda error: None)

    locally(2, work)


def test_a_fetch_costs_its_owner_two_messages_to_each_other_rank_and_the_others_none() -> None:
    graph = exchange(3)

    def work(world: World) -> int:
        counting = Counting(world)
        with Hosts(graph, world=counting) as executor:
            for name in ("start1", "start1", "start2"):
                executor.fetch(name)
        return counting.counts.total()

    assert locally(3, work) == [0, 8, 4]


@pytest.mark.parametrize("different", ["order", "name", "kind"])
def test_ranks_that_do_not_fetch_the_same_are_told(different: str) -> None:
    """No rank gets an array for another; and nobody hangs."""
    graph = Graph("fetches")
    for rank, name in ((0, "a"), (0, "b"), (1, "c")):
        graph.blob(name, SHAPE, "float64", Location(rank))
    graph.blob("small", (2,), "float64")
    names = {"order": ("b", "a"), "name": ("b",), "kind": ("small",)}[different]

    def work(world: World) -> Any:
        with Hosts(graph, world=world) as executor:
            for name in names if world.rank == 1 else ("a", "b"):
                executor.fetch(name)
            executor.run()  # as the end of it all

    worlds = local_worlds(2, patience=5.0)
    error = outcomes(worlds, work)[1]
    assert isinstance(error, Refused), error
    assert str(error).startswith("rank 0 fetches blob 0 of graph 'fetches', this rank blob ")
    assert str(error).endswith("every rank must fetch the same blobs in the same order")


@pytest.mark.parametrize("rounds", [0, 1])
def test_ranks_that_run_other_iterations_are_told(rounds: int) -> None:
    """With messages of the graph, or with none but those that end a run."""
    graph, both = exchange(2, rounds), threading.Barrier(2)

    def work(world: World) -> None:
        with Hosts(graph, world=world, threads=1) as executor:
            executor.run()
            executor.iteration = 5 + world.rank
            try:
                executor.run()
            finally:
                both.wait(WATCH / 2)  # neither hears it only because the other leaves

    found = outcomes(local_worlds(2, patience=5.0), work)
    assert all(isinstance(error, Refused | PeerLost) for error in found), found
    assert any(isinstance(error, Refused) and "expected iteration" in str(error) for error in found), found


def test_together_raises_what_one_raises() -> None:
    """Of the tests' own helper: a rank that fails is heard of, behind the loss that the others see."""

    def work(world: World) -> None:
        with Hosts(exchange(2), world=world) as executor:
            if world.rank == 1:
                world.abort("it gave up")
                raise KeyError("its own")
            executor.run()

    with pytest.raises(KeyError, match="its own"):
        together(local_worlds(2), work)
