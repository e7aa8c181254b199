"""Adding up partial sums that lie at several places, in one fixed order, so that every replica holds the same bits.

`central` adds within each remote rank first, sends one partial sum per rank, and adds where the sum is read first;
others copy it when they need it. `tree` adds in pairs, then pairs of pairs, and sends the sum back down the tree.
`ring` cuts the tensor into as many chunks as there are places: each chunk goes around once to be added up and once to
be handed out. All are made of Sum, Slice, Copy and Concat.
"""

from __future__ import annotations

from collections.abc import Sequence

from purine_ref.errors import GraphError
from purine_ref.graph import Blob, Graph
from purine_ref.ops import Concat, Slice, Sum
from purine_ref.parallel.move import Mover
from purine_ref.parallel.pieces import Piece
from purine_ref.parallel.tasks import divide
from purine_ref.tensor import Location

REDUCTIONS = ("central", "tree", "ring")
"""The ways to add."""


class Reducer:
    """Adds partial sums. Raises GraphError for a `kind` that is none of `REDUCTIONS`."""

    def __init__(self, target: Graph, mover: Mover, kind: str) -> None:
        if kind not in REDUCTIONS:
            raise GraphError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {kind!r}")
        self._target = target
        self._mover = mover
        self._kind = kind

    def reduce(self, blob: Blob, parts: Sequence[Piece], home: Location) -> list[Piece]:
        """The sum of partial sums of one box of `blob`, one from each location; where it then is.

        `home` is where it is read first: the destination of a central sum.
        """
        if len(parts) == 1:
            return list(parts)
        if self._kind == "ring" and blob.shape and parts[0].blob.shape[0] >= len(parts):
            return self._ring(parts)
        return self._tree(parts) if self._kind != "central" else self._central(parts, home)

    def _central(self, parts: Sequence[Piece], home: Location) -> list[Piece]:
        by_rank: dict[int, list[Piece]] = {}
        for part in parts:
            by_rank.setdefault(part.location.rank, []).append(part)
        sums = []
        for rank, group in by_rank.items():
            place = home if rank == home.rank else group[0].location
            sums.append(self._sum([part.blob for part in group], place))
        return [Piece(parts[0].box, home, self._sum(sums, home))]

    def _tree(self, parts: Sequence[Piece]) -> list[Piece]:
        """In level k, place i adds what place i + 2^k has, for every i that is a multiple of 2^(k+1)."""
        blobs = [part.blob for part in parts]
        steps = []
        stride = 1
        while stride < len(blobs):
            for index in range(0, len(blobs) - stride, 2 * stride):
                blobs[index] = self._sum([blobs[index], blobs[index + stride]], parts[index].location)
                steps.append((index, index + stride))
            stride *= 2
        for index, child in reversed(steps):
            blobs[child] = self._mover.copy(blobs[index], parts[child].location)
        return [Piece(part.box, part.location, blob) for part, blob in zip(parts, blobs, strict=True)]

    def _ring(self, parts: Sequence[Piece]) -> list[Piece]:
        """Chunk j starts at place j + 1, and each next place adds its own; place j ends with the whole of chunk j."""
        count = len(parts)
        chunks: list[list[Blob]] = []
        for j, (start, stop) in enumerate(divide(parts[0].blob.shape[0], count)):
            total: Blob | None = None
            for step in range(1, count + 1):
                part = parts[(j + step) % count]
                own = self._apply(Slice(0, start, stop), [part.blob], part.location)
                total = own if total is None else self._sum([total, own], part.location)
            chunks.append(self._hand_around(total, parts, j))
        return [
            Piece(part.box, part.location, self._apply(Concat(0), [chunk[i] for chunk in chunks], part.location))
            for i, part in enumerate(parts)
        ]

    def _hand_around(self, total: Blob | None, parts: Sequence[Piece], start: int) -> list[Blob]:
        """The blob that holds a chunk at each place, handed on from place to place."""
        assert total is not None
        held = {start: total}
        for step in range(1, len(parts)):
            place = (start + step) % len(parts)
            held[place] = total = self._mover.copy(total, parts[place].location)
        return [held[place] for place in range(len(parts))]

    def _sum(self, blobs: Sequence[Blob], location: Location) -> Blob:
        """The sum at `location`, in the order given; a single one is only copied there."""
        here = [self._mover.copy(blob, location) for blob in blobs]
        return here[0] if len(here) == 1 else self._apply(Sum(), here, location)

    def _apply(self, operation: Sum | Slice | Concat, inputs: Sequence[Blob], location: Location) -> Blob:
        name = self._target.free_name(f"{inputs[0].name}/{operation.name.lower()}")
        return self._target.apply(operation, inputs, name, location=location)[0]
