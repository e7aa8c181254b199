"""Data sets and the order of their batches.

Fixed once loaded: a `Dataset` of training and test images (N, channels, height, width) in [0, 1] with int64 labels.
`load_digits` needs no files; `load_mnist` and `load_cifar10` read the user's own, and believe nothing about them that
they have not checked. `BatchOrder` holds no state: a place in the data is the pair (epoch, index), and the batch there
is a pure function of it, so that a resumed run replays nothing.
"""

from __future__ import annotations

from purine_ref.data.batches import BatchOrder
from purine_ref.data.dataset import Dataset
from purine_ref.data.digits import load_digits
from purine_ref.data.readers import load_cifar10, load_mnist, read_idx

__all__ = ["BatchOrder", "Dataset", "load_cifar10", "load_digits", "load_mnist", "read_idx"]
