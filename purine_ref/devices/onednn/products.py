"""Products of matrices in float32 by oneDNN, which has faster code for them than numpy's BLAS has.

A call keeps to its thread, so its bits depend on the matrices and on how they lie alone (rule R8).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from purine_ref.devices.onednn.library import library
from purine_ref.operation import Array

WORTH = 1 << 16
"""Multiply-adds of a product that are worth a call of oneDNN."""


def multiply(a: Array, b: Array, out: Array) -> None:
    """out = a b; by numpy where matrices lie neither by rows nor by columns, are not float32, or are small or vectors.

    The bits of a product with a vector would depend on how far rows are apart (rule R8).
    """
    left, right, target = _lie(a), _lie(b), _lie(out)
    (rows, depth), columns = a.shape, b.shape[1]
    if (
        left is None or right is None or target is None or target.transposed == b"T"
        or min(rows, depth, columns) < 2 or rows * depth * columns < WORTH
    ):  # fmt: skip
        np.matmul(a, b, out=out)
        return
    lib = library()
    with lib.alone():
        lib.sgemm(
            left.transposed, right.transposed, rows, columns, depth,
            1.0, left.address, left.line, right.address, right.line, 0.0, target.address, target.line,
        )  # fmt: skip


class _Lie(NamedTuple):
    """How a matrix lies: by columns (`T`) or by rows (`N`), where, and with how many elements from line to line."""

    transposed: bytes
    address: int
    line: int


def _lie(matrix: Array) -> _Lie | None:
    """How a matrix lies; None where it is not float32, or lies otherwise."""
    if matrix.dtype != np.float32:
        return None
    (rows, columns), (down, across) = matrix.shape, matrix.strides
    address = matrix.__array_interface__["data"][0]
    if across == 4 and down % 4 == 0 and down >= 4 * columns:
        return _Lie(b"N", address, down // 4)
    if down == 4 and across % 4 == 0 and across >= 4 * rows:
        return _Lie(b"T", address, across // 4)
    return None
