"""The plain twins over the samples of a classifier: the softmax cross-entropy, its gradient, and how many are right.

`logits` (M, K) are float32 or float64, of any strides, with a class or more; `label` (M,) is int64. Inside, everything
is float64. Each row is shifted by its largest element, so that nothing overflows; a row with a NaN or with +inf becomes
NaN, and no other row does. Exponentials and logarithms are numpy's. The sum of a row's exponentials is taken in the
order of a channel's sum (`channels.py`), over the classes in their order.

A label that is no class, and a row of nothing but -inf, have no result: then a loop says so, and what it wrote is of no
account. Only a CPU has these loops; elsewhere, operations are spelled out over arrays.
"""

from __future__ import annotations

import numpy as np

from purine_ref._fast.channels import channel_sums
from purine_ref._fast.geometry import Array, quiet, require_out, require_samples


@quiet
def cross_entropy(logits: Array, label: Array, losses: Array) -> bool:
    """losses = log sum_k exp(logits_k - m) - (logits_label - m), with m the sample's largest: (M,), float64.

    Returns whether every sample has a loss. Raises ValueError.
    """
    require_samples(logits, label)
    require_out(losses, "losses", label.shape, np.float64)
    shifted = _shifted(logits, label)
    if shifted is None:
        return False
    losses[...] = np.log(channel_sums(np.exp(shifted)[None])) - shifted[np.arange(len(label)), label]
    return True


@quiet
def cross_entropy_gradient(logits: Array, label: Array, factor: float, dlogits: Array) -> bool:
    """dlogits = (softmax(logits) - [k = label]) factor, rounded to the dtype of dlogits, (M, K) of float32 or float64.

    Returns whether every sample has a gradient. Raises ValueError.
    """
    require_samples(logits, label)
    require_out(dlogits, "dlogits", logits.shape, np.float64 if dlogits.dtype == np.float64 else np.float32)
    shifted = _shifted(logits, label)
    if shifted is None:
        return False
    powers = np.exp(shifted)
    slope = powers / channel_sums(powers[None])[:, None]
    slope[np.arange(len(label)), label] -= 1
    dlogits[...] = slope * float(factor)
    return True


def count_hits(logits: Array, label: Array, k: int) -> int:
    """How many samples have their label among the k largest logits; -1 where a label is no class. Raises ValueError.

    Of equal logits the lower class comes first. A NaN comes before every number, and a label whose own logit is NaN is
    never right.
    """
    require_samples(logits, label)
    if not _are_classes(label, logits.shape[1]):
        return -1
    own = logits[np.arange(len(label)), label][:, None]
    tied_later = (logits == own) & (np.arange(logits.shape[1]) >= label[:, None])
    before = ~((logits < own) | tied_later)
    return int((before.sum(axis=1) < k).sum())


def _shifted(logits: Array, label: Array) -> Array | None:
    """Each row less its largest element, in float64 and C order; None where there is no result."""
    largest = logits.max(axis=1, keepdims=True).astype(np.float64)
    if not _are_classes(label, logits.shape[1]) or (largest == -np.inf).any():
        return None
    largest[largest == np.inf] = np.nan
    return np.subtract(logits, largest, dtype=np.float64, order="C")


def _are_classes(label: Array, classes: int) -> bool:
    return bool(((label >= 0) & (label < classes)).all())
