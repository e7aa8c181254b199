"""A case in memory: a graph, what it is fed, and what it must give. `docs/porting/cases.md` is its form in files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from purine_ref.graph import Graph
from purine_ref.operation import Array

FORMAT = "purine-case/1"
"""What the field `format` says."""

CASE_FILE = "case.json"
"""The file that describes the case, in its folder."""

Makers = Mapping[str, Callable[[], "Case"]]
"""Cases by name, each made when it is asked for."""

Results = Mapping[tuple[int, str], Array]
"""What a run gave: arrays by iteration and name of the blob."""


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """What `blob` must hold after `iteration`: `value`, of the blob's shape and dtype.

    `bound` is how far each element may be off: an array of float64 of that shape, one number for all elements, or None
    where the entry is exact. `reason` says where the bound is from; `file` is the entry's name in a folder, "" where
    it has none yet.
    """

    iteration: int
    blob: str
    value: Array
    bound: Array | float | None
    reason: str
    file: str = ""

    @property
    def exact(self) -> bool:
        """Whether nothing may be off."""
        return self.bound is None


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One case. `initial` maps persistent blobs to arrays before iteration 0, `feeds` has one mapping an iteration.

    `schedule` are the names of all operators in the order in which they must start, or None.
    """

    name: str
    about: str
    seed: int
    graph: Graph
    initial: Mapping[str, Array]
    feeds: tuple[Mapping[str, Array], ...]
    expected: tuple[Expected, ...]
    schedule: tuple[str, ...] | None = None

    @property
    def iterations(self) -> int:
        """How often the graph runs."""
        return len(self.feeds)

    @property
    def operations(self) -> tuple[str, ...]:
        """The names of its operations, each once, sorted."""
        return tuple(sorted({op.operation.name for op in self.graph.ops}))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of its blobs, sorted."""
        return tuple(sorted({blob.dtype for blob in self.graph.blobs}))
