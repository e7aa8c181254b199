"""Rule R1, depth: chains of 100,000 operators on a stack of 512 KiB, and wide graphs: no walk recurses, none dies."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from hooks import WATCH
from purine_ref.errors import CycleError
from purine_ref.executors import Serial, Simulated, Threaded
from purine_ref.gradients import backward
from purine_ref.graph import Graph
from purine_ref.ops import Concat, Constant, Scale, Split, Sum
from purine_ref.plan import prepare
from purine_ref.traversal import prune

LENGTH = 100_000
STACK = 512 * 1024


@pytest.fixture(autouse=True)
def small_stacks() -> Iterator[None]:
    """Threads started in a test, the workers of executors too, have a stack of 512 KiB."""
    threading.stack_size(STACK)
    yield
    threading.stack_size(0)


def on_a_small_stack(body: Callable[[], object]) -> None:
    """Run `body` on a thread of its own, and raise what it raises."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            body()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(5 * WATCH)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def chain_of_sums(length: int) -> Graph:
    """y_k = y_(k-1) + 1, from 0."""
    graph = Graph("chain")
    (one,) = graph.apply(Constant(1.0, (), "float64"), [], "one")
    y = graph.blob("x", (), "float64")
    for number in range(length):
        (y,) = graph.apply(Sum(), [y, one], f"y{number}")
    return graph


def chain_in_place(length: int) -> Graph:
    """y_k = -y_(k-1), all in one memory: each blob is a view of the one before it."""
    graph = Graph("in place")
    (y,) = graph.apply(Scale(1.0), [graph.blob("x", (3,), "float64")], "start")
    for number in range(length):
        following = graph.view(y, f"y{number}")
        graph.connect([y], Scale(-1.0), [following])
        y = following
    return graph


def chain_of_splits(length: int) -> Graph:
    """Each node splits three elements in two parts, and joins these the other way round; half of it moves nothing."""
    graph = Graph("splits")
    (y,) = graph.apply(Scale(1.0), [graph.blob("x", (3,), "float64")], "start")
    for number in range(length // 2):
        first, second = graph.apply(Split(0, (1, 2)), [y], f"parts{number}")
        (y,) = graph.apply(Concat(0), [second, first], f"y{number}")
    return graph


def test_sc_10_a_chain_of_sums_is_built_run_printed_and_freed() -> None:
    def body() -> None:
        graph = chain_of_sums(LENGTH)
        assert repr(graph) == f"<Graph chain: {LENGTH + 1} operators, {LENGTH + 2} blobs>"
        for kind in (Serial, Threaded, Simulated):
            with kind(graph) as executor:
                executor.run()
                assert executor.fetch(f"y{LENGTH - 1}") == LENGTH
        assert len(prune(graph, [graph.blobs[-1]]).ops) == LENGTH + 1
        ref = weakref.ref(graph.blobs[LENGTH // 2].producers[0][0].operation)
        del graph, executor
        gc.collect()
        assert ref() is None

    on_a_small_stack(body)


@pytest.mark.parametrize("build", [chain_in_place, chain_of_splits])
def test_sc_10_chains_that_share_memory(build: Callable[[int], Graph]) -> None:
    def body() -> None:
        graph = build(LENGTH)
        with Threaded(graph, threads=2) as executor:
            assert build is not chain_of_splits or len(executor.plan.idle) >= LENGTH // 2
            executor.feed(x=np.array([1.0, 2.0, 3.0]))
            executor.run()
            (last,) = [blob.name for blob in graph.blobs if not blob.consumers]
            expected = [1.0, 2.0, 3.0]  # LENGTH is even; LENGTH / 2 rotations by one leave 50,000 mod 3 = 2
            assert executor.fetch(last).tolist() == (expected if build is chain_in_place else [3.0, 1.0, 2.0])

    on_a_small_stack(body)


def test_sc_10_backward_through_a_chain() -> None:
    def body() -> None:
        graph = Graph("backward")
        x = y = graph.blob("x", (), "float64")
        for number in range(LENGTH // 2):
            (y,) = graph.apply(Scale(-1.0), [y], f"y{number}")
        gradients = backward(y, [x])
        assert len(graph.ops) > LENGTH
        with Serial(graph) as executor:
            executor.run()
            assert executor.fetch(gradients[x].name) == 1.0

    on_a_small_stack(body)


def test_sc_10_a_cycle_through_a_chain_is_found() -> None:
    def body() -> None:
        graph = Graph("cycle")
        first = y = graph.blob("first", (), "float64")
        for number in range(LENGTH - 1):
            (y,) = graph.apply(Scale(-1.0), [y], f"y{number}")
        graph.connect([y], Scale(-1.0), [first])
        with pytest.raises(CycleError) as caught:
            prepare(graph)
        assert len(caught.value.cycle) == 2 * LENGTH + 1

    on_a_small_stack(body)


def test_sc_10_fans_of_a_hundred() -> None:
    """Ten layers of a hundred blobs, each reading all of the layer before; then one blob of a hundred producers."""

    def body() -> None:
        graph = Graph("wide")
        layer = [graph.apply(Constant(1.0, (2,), "float64"), [], f"in{number}")[0] for number in range(100)]
        for depth in range(10):
            sums = [graph.apply(Sum(), layer, f"sum{depth}.{number}")[0] for number in range(100)]
            layer = [graph.apply(Scale(0.01), [blob], f"mean{blob.name}")[0] for blob in sums]
        total = graph.blob("total", (2,), "float64")
        for number, blob in enumerate(layer):
            graph.connect([blob], Scale(1.0), [total], name=f"out{number}")
        gradients = backward(total, layer[:1])
        found = []
        for executor in (Serial(graph), Threaded(graph, threads=8)):
            with executor:
                executor.run()
                found.append(executor.fetch("total").tobytes())
                assert executor.fetch(gradients[layer[0]].name).tolist() == [1.0, 1.0]
                np.testing.assert_allclose(executor.fetch("total"), [100.0, 100.0], rtol=1e-12)
        assert found[0] == found[1]

    on_a_small_stack(body)
