"""The arrays that blobs share one after the other: one flat array for each location, cut as the plan says."""

from __future__ import annotations

from collections.abc import Mapping

from purine_ref.devices import Device
from purine_ref.graph import Blob
from purine_ref.operation import Array
from purine_ref.plan import Place, Plan
from purine_ref.tensor import Location, Tensor

_WORD = "float64"
"""The dtype of the flat arrays, whose elements are the widest that there are, so that all dtypes lie aligned in it."""


class Ground:
    """The shared arrays of one binding. Without `plan.sharing` there are none."""

    def __init__(self, plan: Plan, devices: Mapping[Location, Device]) -> None:
        self._plan = plan
        self._devices = devices
        self._bytes: dict[Location, Array] = {}
        for location, size in plan.sharing.bytes.items() if plan.sharing is not None else ():
            words = Tensor((-(-size // 8),), _WORD, location)
            flat = devices[location].allocate(words, f"shared memory of {plan.graph.name}")
            self._bytes[location] = flat.view("uint8")

    def array(self, blob: Blob, edge: tuple[int, int] | None = None) -> Array | None:
        """The place of a root blob, or of what `edge` adds to a blob; None where it has memory of its own."""
        sharing = self._plan.sharing
        start = None if sharing is None else sharing.offsets.get(Place(blob.index, edge))
        if start is None:
            return None
        flat = self._bytes[blob.location][start : start + blob.tensor.nbytes].view(blob.dtype)
        row_major = edge is None and blob in self._plan.row_major
        return self._devices[blob.location].arrange(flat, blob.tensor, row_major=row_major)
