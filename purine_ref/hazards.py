"""Aliasing (rule R5): which blobs share memory, and that every order of running leaves each reader its own value.

A *root* is a blob with memory of its own; every other blob's `Region` is a part of one. `regions` resolves the
declared views, `place_views` makes more of them where Concat, Split, Reshape and Identity can move nothing, and
`check` walks each shared root once, in topological order, keeping its *segments*: the last write to each region,
the reads since, and the blobs whose value the region holds. An access that conflicts with a segment must be ordered
after it by a path of the graph, and a reader must find its blob among the values held. By transitivity this covers
every pair of accesses, and what no path orders is refused, with both operators and the buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from purine_ref.graph import Blob, Graph, Op, View
from purine_ref.operation import Box


@dataclass(frozen=True, slots=True)
class Region:
    """A part of `root`: a box in the root's own axes, or None where a reshape left only a flat interval of elements.

    `interval` is the least flat interval of the root's elements that holds the region; `contiguous` says that the
    region is all of it, which a reshape needs.
    """

    root: Blob
    box: Box | None
    shape: tuple[int, ...]
    interval: tuple[int, int]
    contiguous: bool

    def overlaps(self, other: Region) -> bool:
        """Whether they may share an element. Exact for two boxes; else by intervals, erring towards yes."""
        if self.root is not other.root or 0 in self.shape or 0 in other.shape:
            return False
        if self.box is not None and other.box is not None:
            return all(a < d and c < b for (a, b), (c, d) in zip(self.box, other.box, strict=True))
        return self.interval[0] < other.interval[1] and other.interval[0] < self.interval[1]

    def covers(self, other: Region) -> bool:
        """Whether every element of `other` is surely in this region."""
        if self.box is not None and other.box is not None:
            return all(a <= c and d <= b for (a, b), (c, d) in zip(self.box, other.box, strict=True))
        return self.contiguous and self.interval[0] <= other.interval[0] and other.interval[1] <= self.interval[1]


def regions(graph: Graph, views: dict[Blob, View]) -> dict[Blob, Region]:
    """The region of every blob, given the views of those that have one. Raises ValueError where a reshape must copy."""
    found: dict[Blob, Region] = {}
    for blob in graph.blobs:
        chain = [blob]
        while chain[-1] not in found and chain[-1] in views:
            chain.append(views[chain[-1]].parent)
        for link in reversed(chain):
            if link not in found:
                view = views.get(link)
                found[link] = _whole(link) if view is None else _inside(found[view.parent], view, link)
    return found


def _whole(blob: Blob) -> Region:
    return Region(blob, tuple((0, n) for n in blob.shape), blob.shape, (0, blob.tensor.size), True)


def _inside(parent: Region, view: View, blob: Blob) -> Region:
    """The region of a view's box, reshaped."""
    inner = tuple(stop - start for start, stop in view.box)
    interval, contiguous = _flat(parent, view.box)
    if view.shape != inner and not contiguous:
        raise ValueError(f"view {blob.name!r} of {view.parent.name!r} cannot be seen as {view.shape}: it is strided")
    box = None
    if parent.box is not None and view.shape == inner:
        box = tuple((p + a, p + b) for (p, _), (a, b) in zip(parent.box, view.box, strict=True))
    return Region(parent.root, box, view.shape, interval, contiguous)


def _flat(parent: Region, box: Box) -> tuple[tuple[int, int], bool]:
    """The flat interval of a box in `parent`, and whether the box fills it."""
    if 0 in [stop - start for start, stop in box]:
        return (parent.interval[0], parent.interval[0]), True
    if not parent.contiguous:  # strides of the parent are not its shape's: keep to what is sure
        return parent.interval, False
    first = last = 0
    count = 1
    for (start, stop), n in zip(box, parent.shape, strict=True):
        first, last, count = first * n + start, last * n + stop - 1, count * (stop - start)
    offset = parent.interval[0]
    return (offset + first, offset + last + 1), last + 1 - first == count


def place_views(graph: Graph) -> dict[Blob, View]:
    """The declared views, and those that let a rearranging operator move nothing.

    A part gets memory in the whole only if it has one producer, is not used twice by the operator, and neither it nor
    the whole is persistent or has to do with a declared view. All parts of an operator are placed, or none: then it
    copies. So concat([x, x]), nested concats and one blob in two concats are right, whichever of them move nothing.
    """
    views = {blob: blob.view for blob in graph.blobs if blob.view is not None}
    fixed = set(views) | {view.parent for view in views.values()} | {b for b in graph.blobs if b.persistent}
    reshaped: set[Blob] = set()  # wholes that are seen in another shape, and so must stay contiguous
    for op in graph.ops:
        if not op.operation.rearranges or not fixed.isdisjoint((*op.inputs, *op.outputs)):
            continue
        whole, placed = _parts(op)
        reshapes = any(view.shape != _lengths(view.box) for view in placed.values())
        joins = op.operation.rearranges == "join"
        if len(placed) < len(op.inputs if joins else op.outputs):
            continue
        if joins and (len(whole.producers) != 1 or not reshaped.isdisjoint(placed)):
            continue
        if any(part in views or len(part.producers) != 1 for part in placed) or (reshapes and whole in views):
            continue
        views.update(placed)
        if reshapes:
            reshaped.add(whole)
    return views


def _parts(op: Op) -> tuple[Blob, dict[Blob, View]]:
    """The whole of a rearranging operator, and each of its parts as the view of the whole that would move nothing."""
    joins = op.operation.rearranges == "join"
    whole, parts = (op.outputs[0], op.inputs) if joins else (op.inputs[0], op.outputs)
    boxes = op.operation.boxes([b.tensor for b in op.inputs], [b.tensor for b in op.outputs])
    return whole, {part: View(whole, box, part.shape) for part, box in zip(parts, boxes, strict=True)}


def _lengths(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def moves_nothing(op: Op, where: dict[Blob, Region]) -> bool:
    """Whether every part of a rearranging operator already lies where the operator would move it."""
    if not op.operation.rearranges:
        return False
    whole, parts = _parts(op)
    if len(parts) < len(op.inputs if op.operation.rearranges == "join" else op.outputs):
        return False
    try:
        return all(where[part] == _inside(where[whole], view, part) for part, view in parts.items())
    except ValueError:  # the whole is strided, and a part is seen in another shape
        return False


@dataclass(slots=True)
class _Segment:
    """What one region of a root holds: `values`, the blobs whose value it is; who wrote it; who has read it since."""

    region: Region
    values: set[Blob]
    writers: list[Op] = field(default_factory=list)
    readers: list[Op] = field(default_factory=list)


class HazardCheck:
    """The walk over all shared roots. Afterwards `problems` has a sentence for each unordered or stale access, and
    `lost` the blobs whose memory was overwritten through another blob, and which cannot be fetched after a run.
    """

    def __init__(self, graph: Graph, order: Sequence[Op], where: dict[Blob, Region], idle: set[Op]) -> None:
        """`order` is topological, `where` gives each blob's region, `idle` are the operators that move nothing."""
        self.problems: list[str] = []
        self.lost: set[Blob] = set()
        self._where = where
        self._position = {op: position for position, op in enumerate(order)}
        self._segments: dict[Blob, list[_Segment]] = {
            region.root: [] for blob, region in where.items() if region.root is not blob
        }
        if not self._segments:
            return
        for blob in graph.blobs:
            if not blob.producers and where[blob].root in self._segments:
                self._segments[where[blob].root].append(_Segment(where[blob], {blob}))
        for op in order:
            if op in idle:
                self._rename(op)
            else:
                self._read(op)
                self._write(op)

    def _overlapping(self, blob: Blob) -> list[_Segment]:
        region = self._where[blob]
        return [segment for segment in self._segments.get(region.root, ()) if segment.region.overlaps(region)]

    def _rename(self, op: Op) -> None:
        """An operator that moves nothing: where its input's value is, its output's value is too."""
        whole, parts = _parts(op)
        for part in parts:
            before, after = (part, whole) if op.operation.rearranges == "join" else (whole, part)
            for segment in self._overlapping(part):
                if before in segment.values:
                    segment.values.add(after)

    def _read(self, op: Op) -> None:
        for blob in op.inputs:
            for segment in self._overlapping(blob):
                if blob not in segment.values:
                    self._complain(op, "reads", blob, segment.writers, "writes")
                segment.readers.append(op)

    def _write(self, op: Op) -> None:
        for slot, blob in enumerate(op.outputs):
            region = self._where[blob]
            segments = self._segments.get(region.root)
            if segments is None:
                continue
            together = next((s for s in segments if blob in s.values), None)
            for segment in self._overlapping(blob):
                if segment is not together:
                    self._order(op, slot, blob, segment)
                    self.lost |= segment.values
            if together is not None:  # one more producer of the same blob: additions have their order (rule R4)
                together.writers.append(op)
            else:
                kept = [s for s in segments if not region.covers(s.region)]
                self._segments[region.root] = [*kept, _Segment(region, {blob}, [op])]

    def _order(self, op: Op, slot: int, blob: Blob, segment: _Segment) -> None:
        """Every earlier access to the segment must have a path to this write."""
        self._require_paths(segment.writers, op, blob, "writes")
        in_place = op.operation.in_place and slot == 0 and self._where[op.inputs[0]] == self._where[blob]
        others = [reader for reader in segment.readers if reader is not op or not in_place]
        self._require_paths(others, op, blob, "reads")

    def _require_paths(self, earlier: Iterable[Op], op: Op, blob: Blob, what: str) -> None:
        unordered = [e for e in earlier if e is op or not self._path(e, op)]
        if unordered:
            self._complain(op, "writes", blob, unordered, what)

    def _complain(self, op: Op, what: str, blob: Blob, others: Sequence[Op], theirs: str) -> None:
        root = self._where[blob].root.name
        for other in others:
            self.problems.append(
                f"buffer of blob {root!r}: operator {op.name!r} {what} it as {blob.name!r}, operator {other.name!r} "
                f"{theirs} it too, and the graph does not order them rightly: give one of them memory of its own"
            )
        if not others:
            self.problems.append(
                f"buffer of blob {root!r}: operator {op.name!r} {what} it as {blob.name!r}, which nobody has written"
            )

    def _path(self, start: Op, end: Op) -> bool:
        """Whether a path leads from `start` to `end`, looking only at operators between them in the order."""
        last = self._position[end]
        seen = {start}
        stack = [start]
        while stack:
            op = stack.pop()
            if op is end:
                return True
            for blob in op.outputs:
                for consumer, _ in blob.consumers:
                    if consumer not in seen and self._position[consumer] <= last:
                        seen.add(consumer)
                        stack.append(consumer)
        return False
