"""What the tests of shared memory have in common: small graphs, random ones, and what runs of them leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from hooks import bits
from purine_ref.devices import CpuDevice
from purine_ref.executors import Executor
from purine_ref.gradients import backward
from purine_ref.graph import Graph
from purine_ref.lifetimes import share_memory
from purine_ref.ops import Mul, ReduceSum
from purine_ref.plan import Plan, prepare
from purine_ref.schedule import Schedule
from purine_ref.sharing import check_sharing
from purine_ref.tensor import Tensor
from strategies import Recipe, differentiable

X = (4, 16)
"""A shape of `STEP` bytes in float32."""

STEP = 256


class Junk(CpuDevice):
    """A CPU whose shared memory is NaN in every float at first: what is read before it is written shows."""

    def allocate(self, tensor: Tensor, name: str = "", *, row_major: bool = False) -> Any:
        array = super().allocate(tensor, name, row_major=row_major)
        if name.startswith("shared memory"):
            array.view(np.uint8).fill(0xFF)
        return array


def chain(operations: str, graph: Graph | None = None, start: str = "x") -> Graph:
    """A chain of `Scale`s (of two readers each, so that none works in place), named by letters."""
    graph = graph or Graph("chain")
    blob = graph[start] if start in graph else graph.blob(start, X)
    for name in operations:
        (blob,) = graph.apply(Mul(), [blob, blob], name)
    return graph


def shared(graph: Graph, *keep: str) -> Plan:
    """The plan with shared memory, checked."""
    plan = share_memory(prepare(graph), keep)
    check_sharing(plan, keep)
    return plan


def with_gradients(recipe: Recipe, loss: str) -> Graph:
    """The recipe's graph, and the gradients of the sum of one of its blobs."""
    graph = recipe.graph()
    if graph[loss].producers:
        (total_,) = graph.apply(ReduceSum(), [graph[loss]], "loss")
        backward(total_, differentiable(graph))
    return graph


def drawn_graph(recipe: Recipe, data: st.DataObject) -> Graph:
    """With the gradients of one of its blobs."""
    free = [name for name in recipe.blobs if name not in {part.parent for part in recipe.parts.values()}]
    return with_gradients(recipe, data.draw(st.sampled_from(free), "loss"))


@contextmanager
def ran(executor: Executor, recipe: Recipe) -> Iterator[dict[str, bytes]]:
    """The bits of what can be fetched after two runs."""
    with executor:
        for sign in (1, -1):
            executor.feed({name: sign * array for name, array in recipe.feed(executor.graph).items()})
            executor.run()
        yield bits(executor)


def drawn_order(graph: Graph, random: Random) -> list[str]:
    """A topological order of the operators' names, each chosen among those that are ready."""
    schedule = Schedule(prepare(graph))
    ready, order = list(schedule.ready()), []
    while ready:
        op = ready.pop(random.randrange(len(ready)))
        order.append(graph.ops[op].name)
        ready += schedule.done(op)
    return order
