"""Which part of a training step an operator belongs to, and which forward operator it follows.

Forward operators compute outputs and losses; backward ones are what `backward` added; update ones read gradients and
belong to neither. Every operator *follows* a forward operator: itself, the one whose gradient it computes, or, for an
update, the first that reads its parameter. Stages and places given to forward operators so reach all.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from purine_ref.graph import Graph, Op
from purine_ref.traversal import topological_order

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


class Phases:
    """The phase and the leader of every operator of a graph."""

    def __init__(self, graph: Graph) -> None:
        order = topological_order(graph)
        self.phase = {op: BACKWARD if op.of is not None else FORWARD for op in order}
        for op in order:  # what depends on a gradient but is none's gradient operator is an update
            makers = {producer for blob in op.inputs for producer, _ in blob.producers}
            if op.of is None and any(self.phase[maker] != FORWARD for maker in makers):
                self.phase[op] = UPDATE
        for op in reversed(order):  # a source that only gradients or updates read belongs to them (seeds, zeros)
            readers = {consumer for blob in op.outputs for consumer, _ in blob.consumers}
            if not op.inputs and readers and all(self.phase[reader] != FORWARD for reader in readers):
                self.phase[op] = BACKWARD
        self.forward = [op for op in order if self.phase[op] == FORWARD]
        self.leader = {op: op for op in self.forward}
        for op in (*order, *reversed(order)):
            if op not in self.leader:
                found = self._find_leader(op)
                if found is not None:
                    self.leader[op] = found

    def _find_leader(self, op: Op) -> Op | None:
        if op.of is not None:
            return self.leader[op.of]
        near = [consumer for blob in op.inputs if blob.persistent for consumer, _ in blob.consumers]
        near += [consumer for blob in op.outputs for consumer, _ in blob.consumers]
        near += [producer for blob in op.inputs for producer, _ in blob.producers]
        return next((self.leader[other] for other in near if other in self.leader), None)


_found: WeakKeyDictionary[Graph, Phases] = WeakKeyDictionary()


def phases(graph: Graph) -> Phases:
    """The phases of a graph that is complete; found once."""
    if graph not in _found:
        _found[graph] = Phases(graph)
    return _found[graph]
