"""The order in which batches are drawn: a pure function of seed, epoch and index, so nothing is replayed on resuming.

A place in the data is the pair (epoch, index): batch `index` of pass `epoch` over the samples, both from 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from purine_ref._fast import loops

STREAM = "data/order"
"""The name under which the order is drawn (rule R7)."""


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """The shuffled batches of `samples` samples, `batch` at a time; the last batch of an epoch may be smaller.

    With `drop_last`, the samples that do not fill a batch are left out of that epoch instead.
    Raises ValueError when `samples` or `batch` is below 1, when `seed` is not a 64-bit word, or when nothing is left.
    """

    samples: int
    batch: int
    seed: int = 0
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.samples < 1 or self.batch < 1:
            raise ValueError(f"BatchOrder: expected samples and batch above 0, got {self.samples} and {self.batch}")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"BatchOrder: expected a seed from 0 to 2**64 - 1, got {self.seed}")
        if self.batches == 0:
            raise ValueError(f"BatchOrder: a batch of {self.batch} would drop all {self.samples} samples")

    @property
    def batches(self) -> int:
        """Batches in each epoch."""
        whole, rest = divmod(self.samples, self.batch)
        return whole if self.drop_last or not rest else whole + 1

    def batch_indices(self, epoch: int, index: int) -> NDArray[np.int64]:
        """The samples of batch `index` of `epoch`, as int64 (at most `batch`,). Raises ValueError outside the order."""
        self._require_place(epoch, index)
        start = index * self.batch
        return _permutation(self.samples, self.seed, epoch)[start : start + self.batch].copy()

    def after(self, epoch: int, index: int) -> tuple[int, int]:
        """The place that follows (epoch, index). Raises ValueError outside the order."""
        self._require_place(epoch, index)
        return (epoch, index + 1) if index + 1 < self.batches else (epoch + 1, 0)

    def place(self, iteration: int) -> tuple[int, int]:
        """The place of batch number `iteration`, counted from 0 over all epochs. Raises ValueError below 0."""
        if iteration < 0:
            raise ValueError(f"BatchOrder: expected an iteration of 0 or more, got {iteration}")
        return divmod(iteration, self.batches)

    def iterate(self, epoch: int = 0, index: int = 0) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
        """Without end, (epoch, index, samples) from that place on. Raises ValueError outside the order."""
        while True:
            yield epoch, index, self.batch_indices(epoch, index)
            epoch, index = self.after(epoch, index)

    def _require_place(self, epoch: int, index: int) -> None:
        if epoch < 0 or not 0 <= index < self.batches:
            raise ValueError(
                f"BatchOrder: expected an epoch of 0 or more and an index from 0 to {self.batches - 1}, "
                f"got {epoch} and {index}"
            )


@lru_cache(maxsize=4)
def _permutation(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The samples sorted by one random word each; equal words, which are rare, keep their order.

    The words are elements 0 to samples - 1 of the keyed sequence (seed, STREAM, epoch) of rule R7. An epoch's order is
    kept for the batches that follow, and for a second reader one epoch behind.
    """
    words = loops.philox(seed, STREAM, epoch, 0, samples)
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)
