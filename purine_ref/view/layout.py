"""Where boxes and wires of a layered drawing go, from left to right. Pure geometry; it knows no graph.

The steps are those of Sugiyama, Tagawa and Toda (1981). A wire over several rows gets a dummy box in each row that it
passes. igraph orders each row so that few wires cross. Then rows are swept down and up, each moved as near to its
neighbours as its order allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

GAP = 18.0
"""Least space between neighbours in a row."""

_SWEEPS = 40
"""Enough for GoogLeNet's training graph to settle; each sweep is linear."""

_CHAIN, _SIDE, _ACROSS = 8.0, 1.0, 0.05
"""How strongly two linked boxes pull each other into line: in a chain; where one has no other link; between columns."""


@dataclass(frozen=True, slots=True)
class Box:
    """Something to place: its width, its row from 0 at the top, its column. In a row, lesser columns lie to the left."""

    width: float
    row: int
    column: int


@dataclass(frozen=True, slots=True)
class Wire:
    """An edge between two boxes, by index. Wires of one `bundle` run as one through rows that both pass."""

    tail: int
    head: int
    bundle: Hashable


@dataclass(frozen=True, slots=True)
class Layout:
    """The x of every box's middle; and for every wire, from tail to head, the x at which it passes each row between."""

    x: list[float]
    passes: list[list[float]]


def lay_out(boxes: Sequence[Box], wires: Sequence[Wire]) -> Layout:
    """Place the boxes without overlap, the leftmost side at 0.

    Raises ModuleNotFoundError, saying what to install, where igraph is missing.
    """
    grid = _Grid(boxes, wires)
    x = _settle(grid, _order(grid))
    left = min((x[index] - box.width / 2 for index, box in enumerate(grid.boxes)), default=0.0)
    x = [place - left for place in x]
    return Layout(x[: len(boxes)], [[x[dummy] for dummy in path] for path in grid.paths])


class _Grid:
    """Boxes with dummies after them; `paths` are each wire's dummies, `links` the pieces of wires, upper end first."""

    def __init__(self, boxes: Sequence[Box], wires: Sequence[Wire]) -> None:
        self.boxes = list(boxes)
        self._dummies: dict[tuple[Hashable, int, int], int] = {}
        self.paths = [self._path(wire) for wire in wires]
        pieces = (piece for wire, path in zip(wires, self.paths, strict=True) for piece in self._pieces(wire, path))
        self.links = sorted(set(pieces))

    def _path(self, wire: Wire) -> list[int]:
        tail, head = self.boxes[wire.tail], self.boxes[wire.head]
        column = max(tail.column, head.column)
        step = 1 if tail.row < head.row else -1
        return [self._dummy((wire.bundle, row, column)) for row in range(tail.row + step, head.row, step)]

    def _dummy(self, key: tuple[Hashable, int, int]) -> int:
        if key not in self._dummies:
            self._dummies[key] = len(self.boxes)
            self.boxes.append(Box(0.0, key[1], key[2]))
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
    except ModuleNotFoundError:
        message = "drawing an SVG needs igraph, which is not installed; run: pip install 'purine_ref[plot]'"
        raise ModuleNotFoundError(message, name="igraph") from None
    return igraph


Pull = tuple[int, float]
"""A linked box, and how strongly it pulls."""


def _pulls(grid: _Grid) -> tuple[list[list[Pull]], list[list[Pull]]]:
    """For every box, its linked boxes in the row above, and in the row below."""
    chain = _chain_links(grid)
    above: list[list[Pull]] = [[] for _ in grid.boxes]
    below: list[list[Pull]] = [[] for _ in grid.boxes]
    for a, b in grid.links:
        same = grid.boxes[a].column == grid.boxes[b].column
        pull = _CHAIN if (a, b) in chain else _SIDE if same else _ACROSS
        below[a].append((b, pull))
        above[b].append((a, pull))
    return above, below


def _chain_links(grid: _Grid) -> set[tuple[int, int]]:
    """Links within a column that go on, seen from both ends, where the way is longest: the backbones of the drawing."""
    links = [(a, b) for a, b in grid.links if grid.boxes[a].column == grid.boxes[b].column]
    links.sort(key=lambda link: grid.boxes[link[0]].row)
    up, down = [0] * len(grid.boxes), [0] * len(grid.boxes)
    for a, b in links:
        up[b] = max(up[b], up[a] + 1)
    for a, b in reversed(links):
        down[a] = max(down[a], down[b] + 1)
    return {(a, b) for a, b in links if up[b] == up[a] + 1 and down[a] == down[b] + 1}


def _settle(grid: _Grid, order: list[list[int]]) -> list[float]:
    """The x of every box: sweeps in which each row follows the row before it, and then both its neighbours."""
    x = [0.0] * len(grid.boxes)
    above, below = _pulls(grid)
    both = [[*up, *down] for up, down in zip(above, below, strict=True)]
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        late = sweep >= _SWEEPS // 2
        near = both if late else above if down else below
        for row in order if down else reversed(order):
            _place_row(row, grid, [near[index] for index in row], x, late)
    return x


def _place_row(row: list[int], grid: _Grid, pulls: list[list[Pull]], x: list[float], late=False) -> None:
    """Place a row in its order, without overlap, with the least weighted squares of distances to what pulls it.

    Measured from where a packed row would have each box, that is isotonic regression: boxes that would overlap join
    into blocks, each at the mean of its members (pool adjacent violators).
    """
    blocks: list[tuple[float, float, int]] = []  # mean, weight, members
    packed = _packed(row, grid)
    for index, near, offset in zip(row, pulls, packed, strict=True):
        if late: near = [(o, p / (2 + abs(x[o]-x[index]))) for o, p in near]
        weight = sum(pull for _, pull in near)
        mean = sum(x[other] * pull for other, pull in near) / weight if near else x[index]
        mean, weight, members = mean - offset, weight or 0.001, 1
        while blocks and blocks[-1][0] > mean:
            other_mean, other_weight, others = blocks.pop()
            mean = (mean * weight + other_mean * other_weight) / (weight + other_weight)
            weight, members = weight + other_weight, members + others
        blocks.append((mean, weight, members))
    means = [mean for mean, _, members in blocks for _ in range(members)]
    for index, mean, offset in zip(row, means, packed, strict=True):
        x[index] = mean + offset


def _packed(row: list[int], grid: _Grid) -> list[float]:
    """How far the middle of each box of a row is from the first's when all are as close as they may be."""
    offsets = [0.0]
    for a, b in pairwise(row):
        offsets.append(offsets[-1] + (grid.boxes[a].width + grid.boxes[b].width) / 2 + GAP)
    return offsets[: len(row)]
