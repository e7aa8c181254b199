"""Pipeline parallelism: the network is cut into stages, the batch into micro-batches that stream through them.

The graph is the same for every schedule: GPipe and 1F1B only rank which ready operator starts first.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from purine_ref.errors import GraphError
from purine_ref.graph import Graph, Op
from purine_ref.parallel.composition import Composed
from purine_ref.parallel.data import divide_samples
from purine_ref.parallel.phases import BACKWARD, FORWARD, UPDATE, phases
from purine_ref.parallel.tasks import Network, Task


@dataclass(frozen=True)
class Pipeline:
    """Cut the network into `stages` places and the batch into `micro` parts, nearly even or of `sizes`.

    Stages are balanced by `cost`; or each after the first begins at the forward operator that `begins` names (patterns
    allowed). Parts of a mean are divided by the samples of the whole batch, so gradients are the whole batch's.
    """

    stages: int
    micro: int
    begins: tuple[str, ...] | None = None
    sizes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.stages < 1 or self.micro < 1:
            raise GraphError(f"a pipeline needs 1 stage and 1 micro-batch or more, got {self.stages}x{self.micro}")
        if self.begins is not None and len(self.begins) != self.stages - 1:
            raise GraphError(f"{self.stages} stages have {self.stages - 1} beginnings to name, got {self.begins}")

    @property
    def width(self) -> int:
        """One place for each stage."""
        return self.stages

    def refine(self, network: Network, op: Op, task: Task) -> list[Task]:
        """A task for each micro-batch, at the operator's stage; one where there is no batch axis.

        Raises GraphError for more stages than forward operators, or more micro-batches than samples.
        """
        stage = self.stage_of(network.graph, op)
        axis = network.axis_in(op, network.batch)
        if axis is None:
            network.require_no_batch(op)
            return [task.at(self.width, stage)]
        start, stop = task.range_of(axis)
        parts = divide_samples(stop - start, self.micro, self.sizes, "micro-batches")
        return [task.cut(axis, start + a, start + b).at(self.width, stage) for a, b in parts]

    def stage_of(self, graph: Graph, op: Op) -> int:
        """The stage of an operator: that of the forward operator that it follows; the last if it follows none."""
        found = phases(graph)
        starts = self._starts(graph)
        leader = found.leader.get(op)
        if leader is None:
            return self.stages - 1
        position = found.forward.index(leader)
        return sum(1 for start in starts if start <= position)

    def _starts(self, graph: Graph) -> list[int]:
        """Where each stage after the first begins, as positions among the forward operators."""
        forward = phases(graph).forward
        if len(forward) < self.stages:
            there = f"graph {graph.name!r} has {len(forward)} forward operators"
            raise GraphError(f"{there}, too few for {self.stages} stages")
        if self.begins is None:
            return balanced([_work(op) for op in forward], self.stages)
        starts = [_position(graph, forward, pattern) for pattern in self.begins]
        if starts != sorted(set(starts)) or 0 in starts:
            raise GraphError(f"stages must begin one after the other, got {self.begins}")
        return starts


def _position(graph: Graph, forward: list[Op], pattern: str) -> int:
    for position, op in enumerate(forward):
        if fnmatchcase(op.name, pattern):
            return position
    raise GraphError(f"graph {graph.name!r} has no forward operator {pattern!r} for a stage to begin at")


def _work(op: Op) -> int:
    """FLOPs of a forward operator with its gradients, which cost about twice as much again; at least 1."""
    return 3 * op.operation.cost([b.tensor for b in op.inputs], [b.tensor for b in op.outputs]).flops + 1


def balanced(work: list[int], parts: int) -> list[int]:
    """Where to cut a list into `parts` runs of at least one, so that the largest sum is the least (by bisection)."""
    low, high = max(work), sum(work)
    while low < high:
        middle = (low + high) // 2
        if len(_greedy(work, middle)) < parts:
            high = middle
        else:
            low = middle + 1
    starts = _greedy(work, low)
    spare = [position for position in range(1, len(work)) if position not in starts]
    return sorted(starts + spare[: parts - 1 - len(starts)])


def _greedy(work: list[int], most: int) -> list[int]:
    """Cuts that fill each run up to `most`."""
    starts, total = [], 0
    for position, amount in enumerate(work):
        if total + amount > most:
            starts.append(position)
            total = 0
        total += amount
    return starts


def pipeline_ranks(composed: Composed, kind: str) -> list[float]:
    """Ranks for an executor, least first: `gpipe` runs all forward parts first, `1f1b` alternates after a warm-up.

    Raises GraphError for another kind, or a graph that is not composed with a Pipeline.
    """
    pipeline = next((r for r in composed.refiners if isinstance(r, Pipeline)), None)
    if pipeline is None or kind not in ("gpipe", "1f1b"):
        raise GraphError(f"ranks need a pipeline and 'gpipe' or '1f1b'; graph {composed.name!r} got {kind!r}")
    last = 2.0 * pipeline.micro
    ranks = [0.0] * len(composed.ops)  # copies, and what a gradient starts from, come first: others wait for them
    for op, (serial, micro) in micro_batches(composed, pipeline).items():
        phase = phases(composed.serial).phase[serial]
        if phase not in (FORWARD, BACKWARD) or micro is None:
            ranks[op.index] = last if phase == UPDATE else 0.0
            continue
        stage = pipeline.stage_of(composed.serial, serial)
        ranks[op.index] = _rank(kind, phase == BACKWARD, micro, stage, pipeline)
    return ranks


def _rank(kind: str, backward: bool, micro: int, stage: int, pipeline: Pipeline) -> float:
    """The position of a micro-batch's forward or backward part in its stage's sequence."""
    if kind == "gpipe":
        return micro + (pipeline.micro if backward else 0)
    ahead = min(pipeline.stages - stage, pipeline.micro)  # forward parts that a stage runs before its first backward
    if backward:
        return min(micro + ahead, pipeline.micro) + micro
    return micro + max(0, micro - ahead + 1)


def micro_batches(composed: Composed, pipeline: Pipeline) -> dict[Op, tuple[Op, int | None]]:
    """For each operator made from a serial one: that one, and the number of its micro-batch, if it has one."""
    network = composed.network
    found: dict[Op, tuple[Op, int | None]] = {}
    for op, (serial, task) in composed.origin.items():
        axis = network.axis_in(serial, network.batch)
        micro = None
        if axis is not None:
            starts = sorted({other.range_of(axis)[0] for other in composed.tasks[serial]})
            micro = starts.index(task.range_of(axis)[0]) % pipeline.micro
        found[op] = (serial, micro)
    return found
