"""A graph as marks and strokes with coordinates, in units of CSS pixels: all of an SVG but its syntax.

Marks are of one height, so that rows are straight; a row's gap to the next grows with how far its strokes reach.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from purine_ref.graph import Blob, Graph, Op
from purine_ref.tensor import Location, Tensor
from purine_ref.view.layout import Box, Wire, lay_out
from purine_ref.view.parts import Edge, Kind, Node, edges, kinds, nodes, places, printable, scopes, shortened
from purine_ref.view.rows import Rows, mirrored_rows, straight_rows

HEIGHT = 50.0
"""The height of every mark."""

_LONGEST = 30
"""Characters of a line; more are elided."""

_FAR = 2
"""A source whose readers are more rows apart than this is shown again near each, instead of long strokes."""

_BESIDE = 16.0
"""The width that edges between the same two nodes share."""

_NARROWEST = 70.0
"""The least width of an ellipse."""

_LEAST_GAP, _MOST_GAP, _SLOPE = 34.0, 90.0, 0.035


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a label: its text, whether it is the `scope`, the `name` or the `detail`, and its size in pixels."""

    text: str
    role: str
    size: float


@dataclass(frozen=True, slots=True)
class Mark:
    """A drawn node. A source shown near several of its readers has several marks, each but the first with `again`."""

    node: Node
    kind: Kind
    again: bool
    lines: tuple[Line, ...]
    x: float
    y: float
    width: float


@dataclass(frozen=True, slots=True)
class Stroke:
    """A drawn edge, from tail to head: points to curve between and to go straight through, alternately.

    `across` says that its ends are of different kinds.
    """

    edge: Edge
    across: bool
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """All marks and strokes, and the size that holds them. `usual` is the dtype that labels leave out.

    `bands` are the left and right sides of each place's part, where there are several places.
    """

    marks: tuple[Mark, ...]
    strokes: tuple[Stroke, ...]
    width: float
    height: float
    usual: str
    bands: dict[Location, tuple[float, float]]


def compose(graph: Graph, *, compress: bool) -> Picture:
    """Lay the graph out; see `svg` for what `compress` does. Raises CycleError, and what `lay_out` raises."""
    return _Composer(graph, compress).picture()


Stand = tuple[Node, int]
"""A node in a row: what becomes a mark."""


class _Composer:
    """One drawing in the making: `stands` lists what becomes a mark, `ends` the two stands of every edge."""

    def __init__(self, graph: Graph, compress: bool) -> None:
        self.compress = compress
        self.kinds = kinds(graph)
        self.scopes = scopes(graph) if compress else {}
        self.bands = {place: number for number, place in enumerate(places(graph))} if compress else {}
        self.usual = usual_dtype(graph) if compress else ""
        self.rows = mirrored_rows(graph, self.kinds) if compress else straight_rows(graph)
        self.repeated = {blob for blob in graph.blobs if compress and _is_spread(blob, self.rows)}
        self.edges = list(edges(graph))
        self.ends = [(self.stand(edge.tail, edge.head), self.stand(edge.head, edge.tail)) for edge in self.edges]
        found = dict.fromkeys(self.stand(node, node) for node in nodes(graph) if node not in self.repeated)
        found |= dict.fromkeys(stand for pair in self.ends for stand in pair)
        self.stands = list(found)

    def stand(self, node: Node, other: Node) -> Stand:
        """Where `node` stands for its edge with `other`."""
        if node not in self.repeated:
            return node, self.rows[node]
        return node, self.rows[other] + (-1 if self.kinds[other] is Kind.FORWARD else 1)

    def picture(self) -> Picture:
        """Labels, then places, then strokes."""
        labels = [self.label(node) for node, _ in self.stands]
        widths = [_width(node, label) for (node, _), label in zip(self.stands, labels, strict=True)]
        top = min((row for _, row in self.stands), default=0)
        boxes = [Box(w, row - top, *self.column(node)) for w, (node, row) in zip(widths, self.stands, strict=True)]
        index = {stand: i for i, stand in enumerate(self.stands)}
        wires = [Wire(index[a], index[b], _bundle(edge)) for edge, (a, b) in zip(self.edges, self.ends, strict=True)]
        layout = lay_out(boxes, wires)
        stops = [_stops(wire, boxes, layout.x, passed) for wire, passed in zip(wires, layout.passes, strict=True)]
        middles = _middles(max((box.row + 1 for box in boxes), default=0), stops)
        marks = self._marks(labels, boxes, layout.x, middles)
        shifts = _shifts(self.edges)
        strokes = [self._stroke(*parts, middles) for parts in zip(self.edges, stops, shifts, strict=True)]
        sides = [mark.x + mark.width / 2 for mark in marks]
        width = max([*sides, *(x for stroke in strokes for x, _ in stroke.points)], default=0.0)
        height = middles[-1] + HEIGHT / 2 if middles else 0.0
        bands = {place: layout.bands[i] for place, i in self.bands.items()} if len(self.bands) > 1 else {}
        return Picture(tuple(marks), tuple(strokes), width, height, self.usual, bands)

    def column(self, node: Node) -> tuple[int, int]:
        """Its column, by place and then by kind, and its band, by place."""
        if not self.compress:
            return 0, 0
        band = self.bands[node.location]
        return band * len(Kind) + list(Kind).index(self.kinds[node]), band

    def label(self, node: Node) -> tuple[Line, ...]:
        """Scope, name within it, and shape or operation; compressed, without the operation at the end of a name."""
        scope = self.scopes.get(node, "")
        name = node.name[len(scope) + 1 :] if scope else node.name
        name = shortened(node, name, in_band=len(self.bands) > 1) if self.compress else name
        if isinstance(node, Op):
            detail = node.operation.name
        else:
            detail = tensor_text(node.tensor, self.usual)
        lines = (
            Line(_elided(scope), "scope", 9.0),
            Line(_elided(name), "name", 11.0),
            Line(_elided(detail), "detail", 9.5),
        )
        return lines if scope else lines[1:]

    def _marks(
        self, labels: Sequence[tuple[Line, ...]], boxes: Sequence[Box], x: Sequence[float], middles: Sequence[float]
    ) -> list[Mark]:
        marks = []
        seen: set[Node] = set()
        for (node, _), label, box, middle in zip(self.stands, labels, boxes, x, strict=True):
            marks.append(Mark(node, self.kinds[node], node in seen, label, middle, middles[box.row], box.width))
            seen.add(node)
        return marks

    def _stroke(self, edge: Edge, stops: Sequence[tuple[int, float]], shift: float, middles: Sequence[float]) -> Stroke:
        across = self.kinds[edge.tail] is not self.kinds[edge.head]
        (first, start), (last, end) = stops[0], stops[-1]
        side = HEIGHT / 2 if last >= first else -HEIGHT / 2
        points = [(start, middles[first] + side)]
        for row, x in stops[1:-1]:
            points += [(x, middles[row] - side), (x, middles[row] + side)]
        points.append((end, middles[last] + (side if first == last else -side)))
        return Stroke(edge, across, tuple((x + shift, y) for x, y in points))


def usual_dtype(graph: Graph) -> str:
    """The dtype of most blobs; float32 where there are none."""
    return max(Counter(blob.dtype for blob in graph.blobs).items(), key=lambda item: item[1], default=("float32", 0))[0]


def tensor_text(tensor: Tensor, usual: str) -> str:
    """`16×3×5` or `scalar`, before its dtype unless that is the usual one."""
    shape = "×".join(map(str, tensor.shape)) or "scalar"
    return shape if tensor.dtype == usual else f"{shape} {tensor.dtype}"


def text_width(text: str, size: float) -> float:
    """An upper estimate for sans-serif fonts: Verdana and DejaVu Sans, which are wide ones, just fit."""
    return size * sum(_EMS.get(character) or _ems(character) for character in text)


_EMS = {
    **dict.fromkeys("iljI.,:;'|", 0.38),
    **dict.fromkeys("tfr/ []()-!", 0.46),
    **dict.fromkeys("mwMW@%", 0.99),
    **dict.fromkeys("_acekrsvxyz", 0.62),
    "×": 0.82,
}


def _ems(character: str) -> float:
    wide = unicodedata.east_asian_width(character) in "WF" or unicodedata.category(character) == "So"
    if wide:
        return 1.1
    if character.isascii() and not character.isalnum():
        return 0.85
    return 0.78 if character.isupper() or not character.isascii() else 0.65


def _elided(text: str) -> str:
    text = printable(text)
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[: half - 1]}…{text[-half:]}"


def _width(node: Node, lines: Sequence[Line]) -> float:
    """Wide enough for the label; in an ellipse, whose sides bend, at the height of each line."""
    if isinstance(node, Op):
        return max(text_width(line.text, line.size) for line in lines) + 18
    widths = []
    for line, (top, bottom) in zip(lines, line_spans(lines), strict=True):
        off = min(max(abs(top), abs(bottom)) / (HEIGHT / 2), 0.9)
        widths.append((text_width(line.text, line.size) + 8) / math.sqrt(1 - off * off))
    return max(_NARROWEST, *widths)


def line_spans(lines: Sequence[Line]) -> list[tuple[float, float]]:
    """Top and bottom of each line's letters, from the middle of the mark."""
    at = -sum(line.size + 2 for line in lines) / 2
    spans = []
    for line in lines:
        spans.append((at + 1, at + 1 + line.size))
        at += line.size + 2
    return spans


def _is_spread(blob: Blob, rows: Rows) -> bool:
    reached = [rows[op] for op, _ in blob.consumers]
    return not blob.producers and bool(reached) and max(reached) - min(reached) > _FAR


def _bundle(edge: Edge) -> tuple[str, bool]:
    """Edges of one blob to one side carry the same value, so they may run together."""
    if isinstance(edge.tail, Blob):
        return edge.tail.name, True
    return edge.head.name, False


def _shifts(found: Sequence[Edge]) -> list[float]:
    """For every edge, how far aside it goes: 0, but for the edges of a blob that is wired twice into one operator."""
    total = Counter(found)
    seen: Counter[Edge] = Counter()
    shifts = []
    for edge in found:
        shifts.append(_BESIDE * ((seen[edge] + 0.5) / total[edge] - 0.5))
        seen[edge] += 1
    return shifts


def _stops(wire: Wire, boxes: Sequence[Box], x: Sequence[float], passed: Sequence[float]) -> list[tuple[int, float]]:
    """The (row, x) of a wire's two ends and of each row between."""
    first, last = boxes[wire.tail].row, boxes[wire.head].row
    step = 1 if last >= first else -1
    between = [(first + step * number, place) for number, place in enumerate(passed, 1)]
    return [(first, x[wire.tail]), *between, (last, x[wire.head])]


def _middles(rows: int, wires: Sequence[Sequence[tuple[int, float]]]) -> list[float]:
    """The y of every row's middle."""
    farthest = [0.0] * rows
    for stops in wires:
        for (a, start), (b, end) in pairwise(stops):
            farthest[min(a, b)] = max(farthest[min(a, b)], abs(start - end))
    middles, y = [], HEIGHT / 2
    for reach in farthest:
        middles.append(y)
        y += HEIGHT + min(max(_SLOPE * reach, _LEAST_GAP), _MOST_GAP)
    return middles
