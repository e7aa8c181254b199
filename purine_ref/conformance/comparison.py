"""How two arrays are compared bit for bit."""

from __future__ import annotations

import numpy as np

from purine_ref.operation import Array


def differing_elements(got: Array, want: Array) -> int:
    """How many elements differ in their bits: 0.0 and -0.0 do, two NaNs of the same bits do not.

    Both must have one shape and dtype; where they do not, all elements of the larger count, and at least one.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return max(int(got.size), int(want.size), 1)
    bits = f"u{got.dtype.itemsize}"
    return int(np.count_nonzero(np.ascontiguousarray(got).view(bits) != np.ascontiguousarray(want).view(bits)))
