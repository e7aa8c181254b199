"""The graphs that the benchmarks run: as lists of predecessors, and as bi-graphs of operators that compute nothing.

Operator i has one output blob, and reads the output of each of its predecessors, all of which have smaller numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from purine_ref.graph import Graph
from purine_ref.operation import Array, Kernels, Operation
from purine_ref.tensor import Tensor

Predecessors = list[tuple[int, ...]]

WIDTH = 100
"""Operators in a layer, and consumers of a blob that fans out."""

_OUTPUTS = (Tensor((1,)),)


@dataclass(frozen=True)
class Nothing(Operation):
    """{ any number of blobs } >> Nothing >> { y }

    y is one element that is never written: what is left is what the graph and the dispatcher cost.
    """

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """One element."""
        return _OUTPUTS

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Do nothing."""


def chain(operators: int) -> Predecessors:
    """Each operator reads the one before it."""
    return [(i - 1,) if i else () for i in range(operators)]


def layers(operators: int) -> Predecessors:
    """One operator feeds a layer of `WIDTH`, which one operator joins, which feeds the next layer."""
    found: Predecessors = []
    for i in range(operators):
        joint = i - i % (WIDTH + 1)
        found.append((joint,) if i != joint else tuple(range(max(0, joint - WIDTH), joint)))
    return found


def random_layers(operators: int) -> Predecessors:
    """Layers of `WIDTH`; every operator reads 2 or 3 different ones of the layer before it, 2.5 on average."""
    rng = np.random.default_rng(0)
    counts = rng.integers(2, 4, operators)
    found: Predecessors = []
    for i in range(operators):
        start = i - i % WIDTH - WIDTH
        chosen = () if start < 0 else rng.choice(WIDTH, int(counts[i]), replace=False).tolist()
        found.append(tuple(start + place for place in chosen))
    return found


SHAPES: dict[str, Callable[[int], Predecessors]] = {"chain": chain, "layers of 100": layers, "random": random_layers}
"""The shapes by the names that the tables give them."""


def build(predecessors: Predecessors, name: str) -> Graph:
    """The bi-graph: for each operator a blob and an operator."""
    graph = Graph(name)
    operation = Nothing()
    for i, before in enumerate(predecessors):
        made = graph.blob(f"b{i}", (1,))
        graph.connect([graph.blobs[j] for j in before], operation, [made])
    return graph
