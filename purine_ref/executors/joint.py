"""The bindings of several executors as one: a blob is found at its rank, and a run counts on all of them."""

from __future__ import annotations

from collections.abc import Sequence

from purine_ref.executors.base import Executor
from purine_ref.executors.memory import Binding
from purine_ref.graph import Blob
from purine_ref.operation import Array, Kernels, RunKey
from purine_ref.transports import Transport


class JointBinding(Binding):
    """The bindings of all ranks as one; operators are computed by the ranks' own."""

    def __init__(self, parts: Sequence[Executor]) -> None:
        self._parts = parts

    def begin(self, key: RunKey, transport: Transport | None = None) -> list[Kernels]:
        """Every rank begins by itself."""
        return []

    def synchronise(self) -> list[BaseException]:
        """Every rank has waited for its devices."""
        return []

    def swap(self) -> None:
        """Make the run count on every rank."""
        for part in self._parts:
            part.commit()

    def read(self, blob: Blob) -> Array:
        """A copy of a blob's array, from its rank."""
        return self._parts[blob.location.rank].fetch(blob.name)

    def write(self, blob: Blob, array: Array) -> None:
        """Fill a blob that no operator writes, at its rank."""
        self._parts[blob.location.rank].feed({blob.name: array})
