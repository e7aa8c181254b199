"""Data parallelism: the batch is divided over replicas; each has the parameters, and gradients are added over all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from purine_ref.errors import GraphError
from purine_ref.graph import Op
from purine_ref.parallel.tasks import Network, Task, divide


@dataclass(frozen=True)
class Data:
    """Divide the batch over `replicas`, nearly evenly or by `sizes`, one at each place.

    `update` says where what has no batch axis runs, the update of parameters above all: `replicated`, at every
    replica, each from the same sum of gradients; or `server`, at the place of replica `server` alone, which sends the
    new parameters to all. `updates` may say otherwise for patterns of parameters' names, and name the place too, as
    `{"fc*": "server:1"}` does. Losses and gradients are weighted by samples, since parts of a mean are divided by the
    samples of all.
    """

    replicas: int
    sizes: tuple[int, ...] | None = None
    update: str = "replicated"
    server: int = 0
    updates: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise GraphError(f"data parallelism needs 1 replica or more, got {self.replicas}")
        for update in (self.update, *self.updates.values()):
            self._places(update)

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
            return [task.at(self.width, place) for place in self._places(self._update_of(op))]
        start, stop = task.range_of(axis)
        parts = divide_samples(stop - start, self.replicas, self.sizes, "replicas")
        return [task.cut(axis, start + a, start + b).at(self.width, i) for i, (a, b) in enumerate(parts)]

    def _update_of(self, op: Op) -> str:
        """How the parameter is updated that the operator reads or writes, by the first pattern that fits its name."""
        names = [blob.name for blob in (*op.inputs, *op.outputs)]
        matching = (how for pattern, how in self.updates.items() if any(fnmatchcase(name, pattern) for name in names))
        return next(matching, self.update)

    def _places(self, update: str) -> list[int]:
        """Where what has no batch axis runs. Raises GraphError for what is no update."""
        kind, colon, number = update.partition(":")
        if update == "replicated":
            return list(range(self.replicas))
        place = int(number) if colon and number.isdecimal() else self.server
        if kind != "server" or (colon and not number.isdecimal()) or not 0 <= place < self.replicas:
            accepted = f"'replicated', 'server' or 'server:K' with K below {self.replicas}"
            raise GraphError(f"update must be {accepted}, got {update!r}")
        return [place]


def divide_samples(samples: int, count: int, sizes: Sequence[int] | None, what: str) -> list[tuple[int, int]]:
    """Ranges of samples for `count` parts.

    Raises GraphError where a part would have no samples, and for `sizes` that are not `count`.
    """
    if samples < count:
        raise GraphError(f"a batch of {samples} cannot be divided over {count} {what}: use fewer, or a larger batch")
    if sizes is not None and (len(sizes) != count or min(sizes) < 1):
        raise GraphError(f"{count} {what} need as many sizes of 1 or more, got {tuple(sizes)}")
    return divide(samples, count if sizes is None else sizes)
