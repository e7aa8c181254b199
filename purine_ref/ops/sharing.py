"""Cutting the work of one call into pieces that threads may share, where tensors are large enough to be worth it.

How many pieces there are depends on shapes alone, so where a piece gives a partial sum, the sum of these is in one
order, whoever computes them (rule R8).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from purine_ref.operation import Array, Kernels

PIECE = 1 << 17
"""Elements of a piece at least: some 30 microseconds and more of work, which waking a thread costs."""

MOST = 16
"""Pieces at most."""

_WHOLE = slice(None)

_NUMBER: Any = ...  # all of an array without axes, which no slice fits; what is done with it is the same


def in_pieces(kernels: Kernels, like: Array, work: Callable[[slice], object]) -> None:
    """Call `work` with slices that make up the first axis of `like`, shared among threads.

    For work of which no bit depends on how it is cut. Small work is done in one piece, here.
    """
    pieces = 1 if kernels.whole else _count(like)
    if pieces < 2:
        work(_WHOLE if like.ndim else _NUMBER)
        return
    cuts = _cuts(len(like), pieces)
    kernels.share(pieces, lambda piece: work(cuts[piece]))


def summed_in_pieces(
    kernels: Kernels, like: Array, total: Array, work: Callable[[slice, Array], object]
) -> None:
    """Call `work` as `in_pieces` does, with an array for the piece's sum; write the sum of these sums into `total`.

    Small work is done in one piece and summed up in `total` itself. Else the pieces' sums are float64, of the shape of
    `total`, and added in the order of the pieces.
    """
    pieces = _count(like)
    if pieces < 2:
        work(_WHOLE if like.ndim else _NUMBER, total)
        return
    cuts, sums = _cuts(len(like), pieces), kernels.xp.empty((pieces, *total.shape), kernels.xp.float64)
    kernels.share(pieces, lambda piece: work(cuts[piece], sums[piece]))
    for other in sums[1:]:
        sums[0] += other
    total[...] = sums[0]


def _count(like: Array) -> int:
    if like.size < 2 * PIECE:
        return 1
    return min(len(like), like.size // PIECE, MOST) if like.ndim else 1


def _cuts(length: int, pieces: int) -> list[slice]:
    return [slice(length * piece // pieces, length * (piece + 1) // pieces) for piece in range(pieces)]
