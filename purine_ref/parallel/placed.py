"""Model parallelism by choice of place: operators go where their names say, and copies follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from purine_ref.errors import GraphError
from purine_ref.graph import Op
from purine_ref.parallel.phases import phases
from purine_ref.parallel.tasks import Network, Task


@dataclass(frozen=True)
class Placed:
    """Put each operator whose name matches a pattern at that pattern's place, from 0 to `width` - 1.

    The first pattern that matches counts. An operator that none matches goes where the forward operator goes that it
    follows, and that, if none matches it either, to place 0. So `{"fc*": 1}` takes gradients and updates along.
    """

    width: int
    patterns: Mapping[str, int]

    def __post_init__(self) -> None:
        if self.width < 1:
            raise GraphError(f"operators need 1 place or more, got {self.width}")
        for pattern, place in self.patterns.items():
            if not 0 <= place < self.width:
                raise GraphError(f"pattern {pattern!r} has place {place}, but there are places 0 to {self.width - 1}")

    def refine(self, network: Network, op: Op, task: Task) -> list[Task]:
        """The same task at its place. Raises GraphError for a pattern that matches no operator."""
        for pattern in self.patterns:
            if not any(fnmatchcase(other.name, pattern) for other in network.graph.ops):
                raise GraphError(f"pattern {pattern!r} matches no operator of graph {network.graph.name!r}")
        leader = phases(network.graph).leader.get(op)
        place = self._place(op)
        if place is None and leader is not None:
            place = self._place(leader)
        return [task.at(self.width, place or 0)]

    def _place(self, op: Op) -> int | None:
        return next((place for pattern, place in self.patterns.items() if fnmatchcase(op.name, pattern)), None)
