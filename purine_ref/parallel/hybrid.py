"""Krizhevsky's hybrid (arXiv 1404.5997): convolutions data-parallel, fully connected layers model-parallel.

Convolutions have most of the arithmetic and few parameters, so the batch is divided over all places. Fully connected
layers have most parameters and little arithmetic: within a group of places the batch is one, and the weights are
divided.
"""

from __future__ import annotations

from dataclasses import dataclass

from purine_ref.graph import Graph, Op
from purine_ref.ops import Linear
from purine_ref.parallel.data import Data
from purine_ref.parallel.model import Model
from purine_ref.parallel.phases import phases
from purine_ref.parallel.tasks import Network, Task


@dataclass(frozen=True)
class Hybrid:
    """`groups` of `parts` places. Before the first Linear: `groups * parts` replicas. From it on: a replica a group,
    its weights divided by output channels over the group's places.
    """

    groups: int
    parts: int

    @property
    def width(self) -> int:
        """A place for each part of each group."""
        return self.groups * self.parts

    def refine(self, network: Network, op: Op, task: Task) -> list[Task]:
        """Data over data parallel, so that a group has the same samples in both parts, or data over model parallel.

        Raises GraphError as `Data` and `Model` do.
        """
        if not self._connected(network.graph, op):
            inner: Data | Model = Data(self.parts)
        else:
            inner = Model(self.parts)
        groups = Data(self.groups).refine(network, op, task)
        return [part for group in groups for part in inner.refine(network, op, group)]

    def _connected(self, graph: Graph, op: Op) -> bool:
        """Whether the operator follows a Linear, or one that comes after a Linear."""
        found = phases(graph)
        leader = found.leader.get(op)
        first = next((i for i, f in enumerate(found.forward) if isinstance(f.operation, Linear)), len(found.forward))
        return leader is not None and found.forward.index(leader) >= first
