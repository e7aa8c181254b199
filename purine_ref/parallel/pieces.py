"""Pieces: which box of which serial blob is where, as which blob of the composed graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from purine_ref.graph import Blob, Graph
from purine_ref.operation import Axis, Operation
from purine_ref.parallel.tasks import Box
from purine_ref.tensor import Location


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a serial blob, at a location, as `blob` of the composed graph."""

    box: Box
    location: Location
    blob: Blob


def contains(outer: Box, inner: Box) -> bool:
    """Whether `inner` lies in `outer`."""
    return all(a <= c and d <= b for (a, b), (c, d) in zip(outer, inner, strict=True))


def whole(blob: Blob) -> Box:
    """The box that is all of a blob."""
    return tuple((0, extent) for extent in blob.shape)


def relative(outer: Box, inner: Box) -> Box:
    """`inner` in the coordinates of `outer`."""
    return tuple((c - a, d - a) for (a, _), (c, d) in zip(outer, inner, strict=True))


def place_name(location: Location) -> str:
    """A location as part of a name: `r1d0`, or `r1` for a CPU."""
    return f"r{location.rank}" + ("" if location.is_cpu else f"d{location.device}")


def piece_name(blob: Blob, box: Box, location: Location) -> str:
    """The serial name, then the box where it is not all, as numpy slices it, then the place beyond rank 0's CPU."""
    cut = ""
    if box != whole(blob):
        sides = zip(box, blob.shape, strict=True)
        cut = f"[{','.join(':' if side == (0, n) else f'{side[0]}:{side[1]}' for side, n in sides)}]"
    return f"{blob.name}{cut}" + ("" if location == Location() else f"@{place_name(location)}")


class Pieces:
    """All pieces of a composition in the making. Blobs without producers get a piece wherever one is asked for."""

    def __init__(self, target: Graph) -> None:
        self._target = target
        self._pieces: dict[Blob, list[Piece]] = {}
        self._sources: dict[Blob, Operation | None] = {}

    def add_source(self, blob: Blob, initial: Operation | None) -> None:
        """A blob that is fed, or that persists, with its initial value."""
        self._sources[blob] = initial
        self._pieces[blob] = []

    def known(self, blob: Blob) -> bool:
        """Whether the blob's pieces are settled."""
        return blob in self._pieces

    def settle(self, blob: Blob, pieces: Sequence[Piece]) -> None:
        """Say that these are the pieces of a blob that operators make."""
        self._pieces[blob] = list(pieces)

    def add(self, blob: Blob, piece: Piece) -> None:
        """One more piece, of values that were moved."""
        self._pieces[blob].append(piece)

    def of(self, blob: Blob) -> list[Piece]:
        """The pieces of a blob so far."""
        return self._pieces[blob]

    def by_name(self) -> dict[str, list[Piece]]:
        """All pieces, by the serial blob's name."""
        return {blob.name: pieces for blob, pieces in self._pieces.items()}

    def source(self, blob: Blob, box: Box, location: Location) -> Blob | None:
        """The piece of a source at just that box and location, made if need be; None when `blob` is no source."""
        if blob not in self._sources:
            return None
        for piece in self._pieces[blob]:
            if (piece.box, piece.location) == (box, location):
                return piece.blob
        made = self.new_blob(piece_name(blob, box, location), blob, box, location)
        made.persistent = blob.persistent
        self._begin(blob, box, made)
        self._pieces[blob].append(Piece(box, location, made))
        return made

    def _begin(self, blob: Blob, box: Box, made: Blob) -> None:
        """Initial value and multipliers of a parameter's piece."""
        operation = self._sources[blob]
        if operation is not None:
            for axis in operation.axes((), (blob.tensor,)):
                operation = _cut(operation, axis, box)
            self._target.initial[made.name] = operation
        if blob.name in blob.graph.multipliers:
            self._target.multipliers[made.name] = blob.graph.multipliers[blob.name]

    def new_blob(self, name: str, blob: Blob, box: Box, location: Location) -> Blob:
        """A blob of the composed graph for a box of a serial one; a name that is taken gets a number."""
        shape = tuple(stop - start for start, stop in box)
        return self._target.blob(self._target.free_name(name), shape, blob.dtype, location)


def _cut(operation: Operation, axis: Axis, box: Box) -> Operation:
    end = axis.outputs[0]
    if end is None or box[end[0]] == (0, axis.extent):
        return operation
    return operation.part(axis, *box[end[0]])
