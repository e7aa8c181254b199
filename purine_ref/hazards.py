"""Aliasing (rule R5): which blobs share memory, and that every order of running leaves each reader its own value.

A *root* is a blob with memory of its own; every other blob's `Region` is a part of one. `regions` resolves the
declared views, `place_views` makes more of them where Concat, Split, Reshape and Identity can move nothing, and
`HazardCheck` walks each shared root once, in topological order, keeping its *segments*: the last write to each
region, the reads since, and the blobs whose value the region holds. A write that overlaps a segment must be ordered
after it by a path of the graph, and a reader must find its blob among the values held. By transitivity this covers
every pair of accesses, and what no path orders is refused, with both operators and the buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
        if self.interval[0] >= other.interval[1] or other.interval[0] >= self.interval[1]:
            return False
        if self.box is not None and other.box is not None:
            return all(a < d and c < b for (a, b), (c, d) in zip(self.box, other.box, strict=True))
        return True

    def covers(self, other: Region) -> bool:
        """Whether every element of `other` is surely in this region."""
        if self.box is not None and other.box is not None:
            return all(a <= c and d <= b for (a, b), (c, d) in zip(self.box, other.box, strict=True))
        return self.contiguous and self.interval[0] <= other.interval[0] and other.interval[1] <= self.interval[1]


def regions(graph: Graph, views: dict[Blob, View]) -> dict[Blob, Region]:
    """The region of every blob that shares memory: those that have one of `views`, and what they lie in.

    Raises ValueError where a reshape must copy.
    """
    found: dict[Blob, Region] = {}
    for blob in graph.blobs:
        if blob not in views:
            continue
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


def place_views(graph: Graph, reorders: Callable[[Blob], bool] = lambda blob: False) -> dict[Blob, View]:
    """The declared views, and those that let a rearranging operator move nothing.

    `reorders` says whether a blob's memory is in another order than C: then it is not seen in another shape.

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
        if (joins and len(whole.producers) != 1) or not reshaped.isdisjoint(placed):
            continue
        if reshapes and any(map(reorders, (whole, *placed))):
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
    """Whether every part of a rearranging operator already lies where the operator would move it.

    Not so where an output has several producers: then what this one delivers must be added to the others (rule R4).
    """
    if not op.operation.rearranges or any(len(blob.producers) != 1 for blob in op.outputs):
        return False
    whole, parts = _parts(op)
    if len(parts) < len(op.inputs if op.operation.rearranges == "join" else op.outputs):
        return False
    try:
        return whole in where and all(where.get(p) == _inside(where[whole], view, p) for p, view in parts.items())
    except ValueError:  # the whole is strided, and a part is seen in another shape
        return False


@dataclass(slots=True)
class _Segment:
    """What one region of a root holds since it was written: `values`, the blobs whose value it is, and its readers.

    A reader is an operator and the blob that it read: the region of that blob is the part that it needs.
    """

    region: Region
    values: set[Blob]
    readers: list[tuple[Op, Blob]] = field(default_factory=list)


class HazardCheck:
    """The walk over all shared roots. Afterwards `problems` has a sentence for each unordered or stale access, and
    `lost` the blobs whose memory was overwritten through another blob, and which cannot be fetched after a run.

    Each root's segments are in the order of their writing; newer ones hide what they overlap of older ones.
    """

    def __init__(self, graph: Graph, order: Sequence[Op], where: dict[Blob, Region], idle: set[Op]) -> None:
        """`order` is topological, `where` is what `regions` gave, `idle` are the operators that move nothing."""
        self.problems: list[str] = []
        self.lost: set[Blob] = set()
        self._where = where
        self._idle = idle
        self._begun: set[Blob] = set()  # that a producer has written
        self._segments: dict[Blob, list[_Segment]] = {region.root: [] for region in where.values()}
        if not self._segments:
            return
        self._position = {op: position for position, op in enumerate(order)}
        self._hold_sources(graph)
        for op in order:
            if op in idle:
                self._rename(op)
            else:
                self._read(op)
                self._write(op)
        self.problems = list(dict.fromkeys(self.problems))

    def _hold_sources(self, graph: Graph) -> None:
        """Blobs without producers have their values from the start, also where one is a part of another."""
        sources: dict[Blob, set[Blob]] = {root: set() for root in self._segments}
        for blob in graph.blobs:
            if not blob.producers and blob in self._where:
                sources[self._where[blob].root].add(blob)
        for root, blobs in sources.items():
            self._segments[root] = [_Segment(self._where[blob], set(blobs)) for blob in blobs]

    def _overlapping(self, region: Region) -> list[_Segment]:
        return [segment for segment in self._segments[region.root] if segment.region.overlaps(region)]

    def _holding(self, op: Op, blob: Blob, region: Region) -> list[_Segment]:
        """The segments in which `op` finds the value of `blob` in `region`; complains of others that are in its way."""
        found: list[_Segment] = []
        for segment in reversed(self._overlapping(region)):
            if blob not in segment.values:
                self._complain(op, "reads", blob, self._writers(segment), "writes")
                continue
            found.append(segment)
            if segment.region.covers(region):
                break
        return found

    def _writers(self, segment: _Segment) -> list[Op]:
        """All producers of what a segment holds, those included that have yet to deliver their contribution."""
        return [op for blob in segment.values for op, _ in blob.producers if op not in self._idle]

    def _rename(self, op: Op) -> None:
        """An operator that moves nothing: where its input's value is, its output's value is too."""
        whole, parts = _parts(op)
        for part in parts:
            before, after = (part, whole) if op.operation.rearranges == "join" else (whole, part)
            for segment in self._holding(op, before, self._where[part]):
                segment.values.add(after)

    def _read(self, op: Op) -> None:
        for blob in op.inputs:
            for segment in self._holding(op, blob, self._where[blob]) if blob in self._where else ():
                segment.readers.append((op, blob))

    def _write(self, op: Op) -> None:
        for blob in op.outputs:
            if blob not in self._where or blob in self._begun:
                continue  # memory of its own, or one more producer: the first has been checked for all of them
            self._begun.add(blob)
            region = self._where[blob]
            segments = self._segments[region.root]
            overlapping = self._overlapping(region)
            for segment in overlapping:
                over = {value for value in segment.values if self._where[value].overlaps(region)}
                self._keep_sources(blob, over)
                self._order(blob, segment)
                self.lost |= over
            hidden = {id(segment) for segment in overlapping if region.covers(segment.region)}
            kept = [segment for segment in segments if id(segment) not in hidden]
            self._segments[region.root] = [*kept, _Segment(region, {blob})]

    def _keep_sources(self, blob: Blob, over: set[Blob]) -> None:
        """What a run starts from must be there for the next one (rule R6)."""
        for source in sorted(over, key=lambda value: value.index):
            if not source.producers and (source.consumers or source.persistent):
                root, writer = self._where[blob].root.name, blob.producers[0][0].name
                self.problems.append(
                    f"buffer of blob {root!r}: operator {writer!r} writes it as {blob.name!r}, but it holds "
                    f"{source.name!r}, which no operator writes anew for the next run: give one memory of its own"
                )

    def _order(self, blob: Blob, segment: _Segment) -> None:
        """Every access to the segment must have a path to every operator that writes `blob` over it."""
        writers = self._writers(segment)
        for op, slot in blob.producers:
            readers = [
                reader
                for reader, read in segment.readers
                if self._where[read].overlaps(self._where[blob]) and not (reader is op and self._in_place(op, slot))
            ]
            for others, theirs in ((writers, "writes"), (readers, "reads")):
                self._complain(op, "writes", blob, [other for other in others if not self._path(other, op)], theirs)

    def _in_place(self, op: Op, slot: int) -> bool:
        """Whether `op` may write output `slot` over its inputs: each of them is the same memory, or none of it."""
        output = self._where[op.outputs[slot]]
        shared = [self._where[blob] for blob in op.inputs if blob in self._where]
        over = [region for region in shared if region.overlaps(output)]
        return op.operation.in_place and slot == 0 and all(region == output for region in over)

    def _complain(self, op: Op, what: str, blob: Blob, others: Iterable[Op], theirs: str) -> None:
        root = self._where[blob].root.name
        for other in others:
            self.problems.append(
                f"buffer of blob {root!r}: operator {op.name!r} {what} it as {blob.name!r}, operator {other.name!r} "
                f"{theirs} it too, and the graph does not order them rightly: give one of them memory of its own"
            )

    def _path(self, start: Op, end: Op) -> bool:
        """Whether a path of one step or more leads from `start` to `end`; only operators between them are looked at."""
        last = self._position[end]
        seen = {start}
        stack = [start]
        while stack:
            op = stack.pop()
            for blob in op.outputs:
                for consumer, _ in blob.consumers:
                    if consumer is end:
                        return True
                    if consumer not in seen and self._position[consumer] < last:
                        seen.add(consumer)
                        stack.append(consumer)
        return False
