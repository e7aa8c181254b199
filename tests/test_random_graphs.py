"""Rule R8 over random bi-graphs: every executor, any number of threads, the replay of any order: the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from hooks import Delays, Trace, bits
from purine_ref.executors import Executor, Serial, Simulated, Threaded
from purine_ref.gradients import backward
from purine_ref.graph import Graph
from purine_ref.ops import ReduceSum
from purine_ref.plan import prepare
from purine_ref.schedule import Schedule
from strategies import Recipe, differentiable, recipes

RUNS = 2

pytestmark = pytest.mark.timeout(max(180, settings().max_examples))


def with_gradients(recipe: Recipe, loss: str) -> Graph:
    """The recipe's graph, and the gradients of the sum of one of its blobs."""
    graph = recipe.graph()
    if graph[loss].producers:
        (total,) = graph.apply(ReduceSum(), [graph[loss]], "loss")
        backward(total, differentiable(graph))
    return graph


@contextmanager
def ran(executor: Executor, recipe: Recipe) -> Iterator[dict[str, bytes]]:
    """The bits after two runs: the second, of other values, shows what the first left behind."""
    with executor:
        for sign in (1, -1):
            executor.feed({name: sign * array for name, array in recipe.feed(executor.graph).items()})
            executor.run()
        yield bits(executor)


@given(recipe=recipes(), data=st.data())
def test_every_executor_gives_the_same_bits(recipe: Recipe, data: st.DataObject) -> None:
    """With random delays; the simulated executor with random times; and the order that it makes, replayed by all."""
    free = [name for name in recipe.blobs if name not in {part.parent for part in recipe.parts.values()}]
    graph = with_gradients(recipe, data.draw(st.sampled_from(free), "loss"))
    plan = prepare(graph)
    event(f"moves nothing: {bool(plan.idle)}")
    event(f"declared views: {bool(recipe.parts)}")
    threads = data.draw(st.integers(1, 8), "threads")
    seconds = np.random.default_rng(recipe.seed).random(len(graph.ops)).tolist()
    simulated = Simulated(graph, seed=1, seconds=seconds, threads=data.draw(st.integers(1, 4), "simulated threads"))
    order = simulated.timeline.order
    with ran(Serial(graph, seed=1), recipe) as expected:
        executors = [
            Threaded(graph, seed=1, threads=threads, observer=Delays(recipe.seed)),
            simulated,
            Serial(graph, seed=1, order=order),
            Threaded(graph, seed=1, threads=threads, order=order, observer=Delays(recipe.seed + 1)),
        ]
        for executor in executors:
            with ran(executor, recipe) as got:
                assert got == expected, f"{type(executor).__name__} differs from Serial"


@given(recipe=recipes())
def test_every_number_of_threads_gives_the_same_bits(recipe: Recipe) -> None:
    graph = recipe.graph()
    with ran(Serial(graph), recipe) as expected:
        for threads in range(1, 9):
            with ran(Threaded(graph, threads=threads, observer=Delays(recipe.seed + threads)), recipe) as got:
                assert got == expected, f"{threads} threads differ from Serial"


@given(recipe=recipes(), threads=st.integers(1, 8))
def test_every_operator_runs_once_and_after_its_producers(recipe: Recipe, threads: int) -> None:
    graph, trace = recipe.graph(), Trace()
    with ran(Threaded(graph, threads=threads, observer=trace), recipe):
        pass
    half = len(trace.events) // RUNS
    for events in (trace.events[:half], trace.events[half:]):
        place = {seen: number for number, seen in enumerate(events)}
        assert len(place) == len(events) == 2 * len(graph.ops)
        for op in graph.ops:
            for producer in (producer for blob in op.inputs for producer, _ in blob.producers):
                assert place["finished", producer.name] < place["started", op.name]


@given(recipe=recipes())
def test_what_moves_nothing_changes_nothing(recipe: Recipe) -> None:
    """The same graph with memory of its own for every declared view gives the same bits in every other blob."""
    alone = recipe.graph(views=False)
    if any(not alone[name].producers for name in recipe.parts):
        return  # a part of a source has a value only where it is a view
    with ran(Serial(recipe.graph()), recipe) as got, ran(Serial(alone), recipe) as expected:
        assert {name: expected[name] for name in got} == got


@given(recipe=recipes(), threads=st.integers(1, 3), random=st.randoms(use_true_random=False))
def test_r8_a_simulated_run_replays_any_order(recipe: Recipe, threads: int, random: Random) -> None:
    """An order drawn among the ready operators is that of the simulated starts, and gives the same bits."""
    graph = recipe.graph()
    order = drawn_order(graph, random)
    simulated = Simulated(graph, order=order, seconds=[random.random() for _ in order], threads=threads)
    assert simulated.timeline.order == order
    starts = [span.start for span in simulated.timeline.spans]
    assert starts == sorted(starts)
    with ran(Serial(graph), recipe) as expected, ran(simulated, recipe) as got:
        assert got == expected


def drawn_order(graph: Graph, random: Random) -> list[str]:
    """A topological order of the operators' names, each chosen among those that are ready."""
    schedule = Schedule(prepare(graph))
    ready, order = list(schedule.ready()), []
    while ready:
        op = ready.pop(random.randrange(len(ready)))
        order.append(graph.ops[op].name)
        ready += schedule.done(op)
    return order


def test_a_simulated_run_takes_an_order_or_ranks() -> None:
    with pytest.raises(ValueError, match=r"^simulate takes an order or ranks, got both$"):
        Simulated(Graph(), order=[], ranks=[])
