"""Rows of integers in little memory: one flat int32 array, and where each row starts in it (compressed sparse row).

A list of a million short lists takes a hundred bytes a row, and these 4 for each row and integer. Reading one row makes
a tuple of it; to read all, iterate.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np

Array = Any
"""A numpy array of integers."""

LIMIT = 2**31 - 1
"""The greatest int32: as many operators, blobs and edges of one kind may there be."""


def require_size(what: str, size: int) -> None:
    """Raises ValueError unless so many things can be counted in an int32."""
    if size > LIMIT:
        raise ValueError(f"{what}: expected at most {LIMIT}, which int32 can count, got {size}; use a smaller graph")


class Rows(Sequence[tuple[int, ...]]):
    """Row i is `flat[starts[i]:starts[i + 1]]`. Nothing changes either array afterwards."""

    __slots__ = ("flat", "starts")

    def __init__(self, counts: Array, flat: Array, what: str = "rows") -> None:
        """`counts` are the rows' lengths, `flat` all integers.

        Raises ValueError for lengths that are not theirs, and for more than int32 can count.
        """
        require_size(what, max(len(counts), len(flat)))
        lengths = np.asarray(counts, np.int64)
        if lengths.min(initial=0) < 0 or lengths.sum() != len(flat):  # a loop in C would read what is not there
            raise ValueError(f"{what}: expected {len(flat)} integers in rows of 0 or more, got {lengths.sum()}")
        self.starts = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=self.starts[1:])
        wide = np.asarray(flat)
        if wide.size and not 0 <= wide.min() <= wide.max() <= LIMIT:  # numpy would wrap them round
            raise ValueError(f"{what}: expected 0 to {LIMIT}, got {wide.min()} to {wide.max()}")
        self.flat = wide.astype(np.int32, copy=False)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[int, ...]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = range(len(self))[index]  # refuses what is out of range, and counts negative numbers from the end
        return tuple(self.flat[self.starts[row] : self.starts[row + 1]].tolist())

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return map(tuple, self.lists())

    def arrays(self) -> tuple[array[int], array[int]]:
        """`starts` and `flat`, for a loop in Python that needs each row once: it slices them faster than numpy's."""
        return array("i", self.starts.tobytes()), array("i", self.flat.tobytes())

    def lists(self) -> list[list[int]]:
        """All rows as lists, for loops in Python that need them again and again."""
        flat = self.flat.tolist()
        return [flat[start:stop] for start, stop in pairwise(self.starts.tolist())]

    def __eq__(self, other: object) -> bool:
        """Whether `other` has the same rows, be they lists, tuples, or Rows."""
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(other) == len(self) and all(map(lambda row, theirs: row == tuple(theirs), self, other))

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __repr__(self) -> str:
        return repr(list(self))
