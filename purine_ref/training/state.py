"""What outlives an iteration, parameters and histories, as whole arrays by the serial graph's names.

A scheme keeps them in pieces, and each graph that is run has pieces of its own: those of a smaller batch, or of the
testing form, may lie elsewhere. Pieces of one name share an array, where sessions have one memory, so mostly nothing
has to be done; `refresh` sees when a graph has pieces that the last update did not reach, and fills them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import EllipsisType

import numpy as np

from purine_ref.conformance import Session, differing_elements
from purine_ref.errors import ResultDiffers
from purine_ref.executors import Memory
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Array, Box

Key = tuple[Memory, str]
"""Where a piece is held: the memory, and its name there."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many pieces hold values that another piece holds too, and how many of them differ in any bit (rule R8)."""

    compared: int = 0
    differing: int = 0

    def __add__(self, other: Replicas) -> Replicas:
        return Replicas(self.compared + other.compared, self.differing + other.differing)


class State:
    """The values of persistent blobs, wherever they are: in a session's pieces, or in whole arrays to begin with."""

    def __init__(self) -> None:
        self.memory = Memory()
        self._holders: dict[str, Session | Array] = {}  # who has the last values of all of a blob
        self._current: dict[str, set[Key]] = {}  # the pieces that hold them

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Take these whole arrays for the last values."""
        for name, array in arrays.items():
            self._holders[name] = array
            self._current[name] = set()

    def add(self, session: Session) -> None:
        """Take a new session's initial values for the last ones, where there are none."""
        for name in persistent(session.serial):
            if name not in self._holders:
                self._hold(session, name)

    def refresh(self, session: Session) -> None:
        """Fill the pieces of a session that is to run with the last values, where they do not hold them."""
        for name in persistent(session.serial):
            keys = _keys(session, name)
            if not keys <= self._current[name]:
                session.feed({name: self.whole(name)})
                self._current[name] |= keys

    def updated(self, session: Session) -> None:
        """Take what a session's run left for the last values of the blobs that it swaps (rule R6)."""
        for current, _ in session.serial.pairs:
            self._hold(session, current.name)

    def whole(self, name: str) -> Array:
        """A copy of the last values of a blob. Raises ResultDiffers where pieces that must agree do not (rule R8)."""
        holder = self._holders[name]
        if not isinstance(holder, Session):
            return holder.copy()
        array, replicas = assembled(holder, name)
        if replicas.differing:
            raise ResultDiffers(
                f"tensor {name!r}: expected the same bits in all of its replicas (rule R8), got others in "
                f"{replicas.differing} of {replicas.compared}: do not go on from this run, and verify its scheme",
                name,
            )
        return array

    def replicas(self) -> Replicas:
        """Compare, over all blobs, the pieces that must agree."""
        holders = [(name, holder) for name, holder in self._holders.items() if isinstance(holder, Session)]
        return sum((assembled(session, name)[1] for name, session in holders), Replicas())

    def _hold(self, session: Session, name: str) -> None:
        self._holders[name] = session
        self._current[name] = _keys(session, name)


def persistent(graph: Graph) -> dict[str, Blob]:
    """What outlives a run of a graph, by name: parameters, and what the next run reads of each swapped pair."""
    kept = [*graph.parameters, *(current for current, _ in graph.pairs)]
    return {blob.name: blob for blob in kept}


def assembled(session: Session, name: str) -> tuple[Array, Replicas]:
    """A serial blob's array from its pieces, and how those compare that hold the same part; the first one counts.

    On hosts this is a collective: every rank calls it, and gets the same.
    """
    blob = session.serial[name]
    array = np.zeros(blob.shape, blob.dtype)
    filled = np.zeros(blob.shape, np.bool_)
    compared = differing = 0
    for piece, values in session.pieces(name):
        part, before = array[_index(piece.box)], filled[_index(piece.box)]
        if before.any():
            compared += 1
            differing += differing_elements(part[before], values[before]) > 0
        np.copyto(part, values, where=~before)
        before[...] = True
    if not filled.all():
        raise ResultDiffers(f"tensor {name!r}: expected pieces for all of {blob.tensor}, got some for a part", name)
    return array, Replicas(compared, differing)


def _index(box: Box) -> tuple[slice | EllipsisType, ...]:
    """The box as an index that gives a view, of a blob without axes too."""
    return (*(slice(start, stop) for start, stop in box), ...)


def _keys(session: Session, name: str) -> set[Key]:
    return {(session.executor.memory, piece.blob.name) for piece in session.pieces_of(name)}
