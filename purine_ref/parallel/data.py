"""Data parallelism: the batch is divided over replicas; each has the parameters, and gradients are added over all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from purine_ref.errors import GraphError
from purine_ref.graph import Op
from purine_ref.parallel.tasks import Network, Task, divide


@dataclass(frozen=True)
class Data:
    """Divide the batch over `replicas`, nearly evenly or by `sizes`, one at each place.

    `update` says where what has no batch axis runs, the update of parameters above all: `replicated`, at every
    replica, each from the same sum of gradients; or `server`, at the first place alone, which sends the new parameters
    to all. Losses and gradients are weighted by samples, since parts of a mean are divided by the samples of all.
    """

    replicas: int
    sizes: tuple[int, ...] | None = None
    update: str = "replicated"

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise GraphError(f"data parallelism needs 1 replica or more, got {self.replicas}")
        if self.update not in ("replicated", "server"):
            raise GraphError(f"update must be 'replicated' or 'server', got {self.update!r}")

    @property
    def width(self) -> int:
        """One place for each replica."""
        return self.replicas

    def refine(self, network: Network, op: Op, task: Task) -> list[Task]:
        """A task for each replica's part of the batch; for what has no batch axis, the same task everywhere, or once.

        Raises GraphError when there are more replicas than samples.
        """
        axis = network.axis_in(op, network.batch)
        if axis is None:
            network.require_no_batch(op)
            places = range(self.replicas) if self.update == "replicated" else range(1)
            return [task.at(self.width, place) for place in places]
        start, stop = task.range_of(axis)
        parts = divide_samples(stop - start, self.replicas, self.sizes, "replicas")
        return [task.cut(axis, start + a, start + b).at(self.width, i) for i, (a, b) in enumerate(parts)]


def divide_samples(samples: int, count: int, sizes: Sequence[int] | None, what: str) -> list[tuple[int, int]]:
    """Ranges of samples for `count` parts.

    Raises GraphError where a part would have no samples, and for `sizes` that are not `count`.
    """
    if samples < count:
        raise GraphError(f"a batch of {samples} cannot be divided over {count} {what}: use fewer, or a larger batch")
    if sizes is not None and (len(sizes) != count or min(sizes) < 1):
        raise GraphError(f"{count} {what} need as many sizes of 1 or more, got {tuple(sizes)}")
    return divide(samples, count if sizes is None else sizes)
