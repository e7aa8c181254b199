"""Moving pieces: copies along Purine's routes, slices and concatenations.

Copies are made once for each destination and never where the place is the same. On one rank a copy goes straight: from
an accelerator on its `outbound` stream, from the CPU to one on its `inbound` stream. To another rank it goes out to
this rank's CPU, across, and in, always through CPU memory, and only once for each remote rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from purine_ref.graph import Blob, Graph
from purine_ref.ops import Concat, Copy, Slice
from purine_ref.parallel.pieces import Piece, Pieces, contains, piece_name, relative
from purine_ref.parallel.tasks import Box
from purine_ref.tensor import CPU, Location


class Mover:
    """Finds or makes what a task needs at its place. Everything made is remembered, and used again."""

    def __init__(self, target: Graph, pieces: Pieces) -> None:
        self._target = target
        self._pieces = pieces
        self._copies: dict[tuple[Blob, Location], Blob] = {}
        self._made: dict[tuple[Blob, Box, Location], Blob] = {}

    def obtain(self, blob: Blob, box: Box, location: Location) -> Blob:
        """The box of a serial blob at a location, as a blob of the composed graph."""
        source = self._pieces.source(blob, box, location)
        if source is not None:
            return source
        key = (blob, box, location)
        if key not in self._made:
            self._made[key] = self.obtain_from(blob, self._pieces.of(blob), box, location)
        return self._made[key]

    def obtain_from(self, blob: Blob, pieces: Sequence[Piece], box: Box, location: Location) -> Blob:
        """The same, from given pieces: one that holds the box, the nearest first; else joined from several."""
        holders = [piece for piece in pieces if contains(piece.box, box)]
        if holders:
            nearest = min(holders, key=lambda piece: (_distance(piece.location, location), piece.box != box))
            return self.copy(self._sliced(blob, nearest, box), location)
        axis, cut_at = _where_to_cut(pieces, box)
        halves = [self._narrowed(box, axis, box[axis][0], cut_at), self._narrowed(box, axis, cut_at, box[axis][1])]
        parts = [self.obtain_from(blob, pieces, half, location) for half in halves]
        name = self._target.free_name(piece_name(blob, box, location))
        return self._target.apply(Concat(axis), parts, name, location=location)[0]

    def copy(self, source: Blob, location: Location) -> Blob:
        """`source` at another location, along its route."""
        if source.location == location:
            return source
        if source.location.rank != location.rank:
            source = self.copy(source, Location(source.location.rank, CPU))
            landing = Location(location.rank, CPU)
            return self.copy(self._step(source, landing, source.location, "outbound"), location)
        if source.location.is_cpu:
            return self._step(source, location, location, "inbound")
        return self._step(source, location, source.location, "outbound")

    def _step(self, source: Blob, to: Location, at: Location, stream: str) -> Blob:
        """One copy, run at `at` on `stream`."""
        key = (source, to)
        if key not in self._copies:
            name = self._target.free_name(f"{source.name}>{_place(to)}")
            copy = self._target.blob(name, source.shape, source.dtype, to)
            self._target.connect([source], Copy(to), [copy], name=name, location=at, stream=stream)
            self._copies[key] = copy
        return self._copies[key]

    def _sliced(self, blob: Blob, piece: Piece, box: Box) -> Blob:
        """The box out of a piece that holds it, where the piece is: one slice for each axis that is cut."""
        current, have = piece.blob, piece.box
        for axis in range(len(box)):
            if have[axis] != box[axis]:
                narrower = self._narrowed(have, axis, *box[axis])
                start, stop = relative(have, narrower)[axis]
                key = (current, narrower, piece.location)
                if key not in self._made:
                    name = self._target.free_name(piece_name(blob, narrower, piece.location))
                    slicing = Slice(axis, start, stop)
                    self._made[key] = self._target.apply(slicing, [current], name, location=piece.location)[0]
                current, have = self._made[key], narrower
        return current

    @staticmethod
    def _narrowed(box: Box, axis: int, start: int, stop: int) -> Box:
        return tuple((start, stop) if i == axis else side for i, side in enumerate(box))


def _place(location: Location) -> str:
    return f"r{location.rank}" + ("" if location.is_cpu else f"d{location.device}")


def _distance(source: Location, target: Location) -> int:
    """0 at the same place, 1 on the same rank, 2 elsewhere."""
    return 0 if source == target else 1 if source.rank == target.rank else 2


def _where_to_cut(pieces: Sequence[Piece], box: Box) -> tuple[int, int]:
    """The first axis and index inside `box` where some piece that meets it ends: a piece holds neither side's all."""
    meeting = [p.box for p in pieces if all(a < d and c < b for (a, b), (c, d) in zip(p.box, box, strict=True))]
    for axis, (start, stop) in enumerate(box):
        edges = sorted(edge for other in meeting for edge in other[axis] if start < edge < stop)
        if edges:
            return axis, edges[0]
    raise AssertionError(f"pieces {[p.box for p in pieces]} do not cover {box}")
