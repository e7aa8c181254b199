"""Where boxes and wires of a layered drawing go, from left to right. Pure geometry; it knows no graph.

The steps are those of Sugiyama, Tagawa and Toda (1981). A wire over several rows gets a dummy box in each row that it
passes. igraph orders each row so that few wires cross. Then `alignment` finds the x.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from purine_ref.view.alignment import Alignment

BETWEEN = 56.0
"""The space between two bands."""


@dataclass(frozen=True, slots=True)
class Box:
    """Something to place: its width; its row, from 0 at the top; its column: in a row, lesser ones lie to the left.

    All of a lesser `band` lie to the left of all of a greater one; columns of one band are greater than of a lesser.
    """

    width: float
    row: int
    column: int
    band: int = 0


@dataclass(frozen=True, slots=True)
class Wire:
    """An edge between two boxes, by index. Wires of one `bundle` run as one through rows that both pass."""

    tail: int
    head: int
    bundle: Hashable


@dataclass(frozen=True, slots=True)
class Layout:
    """The x of every box's middle; and for every wire, from tail to head, the x at which it passes each row between.

    `bands` are the left and right sides of each band.
    """

    x: list[float]
    passes: list[list[float]]
    bands: dict[int, tuple[float, float]]


def lay_out(boxes: Sequence[Box], wires: Sequence[Wire]) -> Layout:
    """Place the boxes without overlap, the leftmost side at 0.

    Raises ModuleNotFoundError, saying what to install, where igraph is missing.
    """
    grid = _Grid(boxes, wires)
    x = Alignment([box.width for box in grid.boxes], grid.columns(), _order(grid), grid.links_within_bands()).x
    shifts, bands, left = {}, {}, 0.0
    for band, (low, high) in _bands(grid.boxes, x).items():
        shifts[band], bands[band] = left - low, (left, left + high - low)
        left += high - low + BETWEEN
    x = [place + shifts[box.band] for box, place in zip(grid.boxes, x, strict=True)]
    return Layout(x[: len(boxes)], [[x[dummy] for dummy in path] for path in grid.paths], bands)


def _bands(boxes: Sequence[Box], x: Sequence[float]) -> dict[int, tuple[float, float]]:
    """The left and right sides of what each band has, the lesser bands first."""
    ends: dict[int, tuple[float, float]] = {}
    for box, middle in sorted(zip(boxes, x, strict=True), key=lambda pair: pair[0].band):
        low, high = ends.get(box.band, (middle, middle))
        ends[box.band] = (min(low, middle - box.width / 2), max(high, middle + box.width / 2))
    return ends


class _Grid:
    """Boxes with dummies after them; `paths` are each wire's dummies, `links` the pieces of wires, upper end first."""

    def __init__(self, boxes: Sequence[Box], wires: Sequence[Wire]) -> None:
        self.boxes = list(boxes)
        self._dummies: dict[tuple[Hashable, int, int, int], int] = {}
        self.paths = [self._path(wire) for wire in wires]
        pieces = (piece for wire, path in zip(wires, self.paths, strict=True) for piece in self._pieces(wire, path))
        self.links = sorted(set(pieces), key=lambda link: (self.boxes[link[0]].row, link))

    def columns(self) -> list[int]:
        """The column of every box."""
        return [box.column for box in self.boxes]

    def links_within_bands(self) -> list[tuple[int, int]]:
        """The links that say where a box goes in its band."""
        return [(a, b) for a, b in self.links if self.boxes[a].band == self.boxes[b].band]

    def _path(self, wire: Wire) -> list[int]:
        tail, head = self.boxes[wire.tail], self.boxes[wire.head]
        column, band = max((tail.column, tail.band), (head.column, head.band))
        step = 1 if tail.row < head.row else -1
        return [self._dummy((wire.bundle, row, column, band)) for row in range(tail.row + step, head.row, step)]

    def _dummy(self, key: tuple[Hashable, int, int, int]) -> int:
        if key not in self._dummies:
            self._dummies[key] = len(self.boxes)
            self.boxes.append(Box(0.0, *key[1:]))
        return self._dummies[key]

    def _pieces(self, wire: Wire, path: list[int]) -> Iterator[tuple[int, int]]:
        for a, b in pairwise([wire.tail, *path, wire.head]):
            if self.boxes[a].row != self.boxes[b].row:
                yield (a, b) if self.boxes[a].row < self.boxes[b].row else (b, a)


def _order(grid: _Grid) -> list[list[int]]:
    """The boxes of each row from left to right: by column, then as igraph has them."""
    graph = _igraph().Graph(len(grid.boxes), grid.links, directed=True)
    placed = graph.layout_sugiyama(layers=[box.row for box in grid.boxes], maxiter=200)
    coordinates = placed[0] if isinstance(placed, tuple) else placed  # since igraph 1.0 a tuple
    order: list[list[int]] = [[] for _ in range(max((box.row + 1 for box in grid.boxes), default=0))]
    for index in sorted(range(len(grid.boxes)), key=lambda i: (grid.boxes[i].column, coordinates[i][0], i)):
        order[grid.boxes[index].row].append(index)
    return order


def _igraph() -> Any:
    try:
        import igraph
    except ModuleNotFoundError as error:
        if error.name != "igraph":  # igraph is there, but lacks something itself
            raise
        message = "drawing an SVG needs igraph, which is not installed; run: pip install 'purine_ref[plot]'"
        raise ModuleNotFoundError(message, name="igraph") from None
    return igraph
