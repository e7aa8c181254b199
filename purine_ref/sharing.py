"""The check of shared memory (rule R5), which shares no code with the planner (`lifetimes`) and believes none of it.

Every two places that have a byte in common are compared, each access of the one with each of the other: all accesses of
the one must come before all writes of the other, by paths of the plan's own edges, or the other way round. The one
exception is an operator that writes over its first input in place. What the next run reads, and what is to be fetched,
must be overwritten by nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_

import numpy as np

from purine_ref.errors import GraphError
from purine_ref.graph import Blob, Op
from purine_ref.plan import Place, Plan

Node = tuple[str, int]
"""An operator, ("op", index), or the additions to a blob of several producers, ("sum", index)."""


@dataclass(slots=True)
class _Use:
    """Who reads and writes the bytes `start` to `stop` of a place, and the blobs whose values lie there."""

    place: Place
    start: int
    stop: int
    blobs: list[Blob] = field(default_factory=list)
    reads: set[Node] = field(default_factory=set)
    writes: set[Node] = field(default_factory=set)
    written: int = 0
    """A bit for each of `writes`."""
    after: int = 0
    """A bit for all that comes after every access."""
    silent: bool = False
    """Whether a blob of `blobs` is not said to be lost."""


def check_sharing(plan: Plan, keep: Iterable[str] = ()) -> None:
    """Check a plan of `share_memory`; nothing to do for one without `sharing`.

    Raises GraphError with a sentence for each pair of places that share bytes without an order, each place outside its
    array, and each blob that is overwritten though the next run reads it, or though it is one of `keep`.
    """
    if plan.sharing is None:
        return
    uses, after = _uses(plan), _after(plan)
    for use in uses:
        use.written = sum(1 << _bit(plan, node) for node in use.writes)
        use.after = reduce(and_, [after[node] for node in use.reads | use.writes], -1)
        use.silent = not plan.lost.issuperset(use.blobs)
    problems = _misplaced(plan, uses)
    for first, second in _overlapping(plan, uses):
        if second.written & ~first.after or first.silent:
            problems += _conflicts(plan, after, first, second)
    problems += _stale(plan, keep, uses)
    if problems:
        raise GraphError([f"graph {plan.graph.name!r}: {problem}" for problem in problems])


def _uses(plan: Plan) -> list[_Use]:
    """All places that share, with their accesses, as the binding and the executors make them; first written, first."""
    offsets = plan.sharing.offsets if plan.sharing is not None else {}
    found = {place: _Use(place, at, at + plan.graph.blobs[place.blob].tensor.nbytes) for place, at in offsets.items()}
    for blob in plan.graph.blobs:
        root = blob
        while root in plan.views:
            root = plan.views[root].parent
        places = [Place(root.index), *(Place(blob.index, (op.index, slot)) for op, slot in blob.producers[1:])]
        active = [op not in plan.idle for op, _ in blob.producers]
        for place, (op, _), moves in zip(places, blob.producers, active, strict=False):
            if moves and place in found:
                found[place].writes.add(("op", op.index))
        if len(blob.producers) > 1:
            for place in places:
                if place in found:
                    found[place].reads.add(("sum", blob.index))
                    found[place].writes |= {("sum", blob.index)} if place.edge is None else set()
        if places[0] in found:
            found[places[0]].blobs.append(blob)
            found[places[0]].reads |= {("op", op.index) for op, _ in blob.consumers if op not in plan.idle}
    position = {("op", index): place for place, index in enumerate(plan.order)}

    def begun(use: _Use) -> int:
        """When it is first written."""
        return min((position[node] for node in use.writes if node in position), default=-1)

    return sorted(found.values(), key=begun)


def _after(plan: Plan) -> dict[Node, int]:
    """For each node a bit for every operator, and above them for every blob's additions, that come after it."""
    after: dict[Node, int] = {}
    for index in reversed(plan.order):
        later = 0
        for blob in plan.outputs[index]:
            if plan.producers[blob] == 1:
                later |= _of_consumers(plan, after, blob)
                continue
            if ("sum", blob) not in after:
                after["sum", blob] = _of_consumers(plan, after, blob)
            later |= after["sum", blob] | 1 << _bit(plan, ("sum", blob))
        after["op", index] = later
    return after


def _bit(plan: Plan, node: Node) -> int:
    return node[1] if node[0] == "op" else len(plan.graph.ops) + node[1]


def _of_consumers(plan: Plan, after: dict[Node, int], blob: int) -> int:
    later = 0
    for consumer in plan.consumers[blob]:
        later |= after["op", consumer] | 1 << consumer
    return later


def _overlapping(plan: Plan, uses: Sequence[_Use]) -> Iterator[tuple[_Use, _Use]]:
    """Every two uses, in their order, that have a byte in common. There may be many more that have none."""
    starts, stops = np.array([use.start for use in uses]), np.array([use.stop for use in uses])
    places = [plan.graph.blobs[use.place.blob].location for use in uses]
    number = {place: index for index, place in enumerate(dict.fromkeys(places))}
    where = np.array([number[place] for place in places])
    for index, first in enumerate(uses):
        rest = slice(index + 1, None)
        common = (starts[rest] < first.stop) & (first.start < stops[rest]) & (where[rest] == where[index])
        for second in np.flatnonzero(common).tolist():
            yield first, uses[index + 1 + second]


def _conflicts(plan: Plan, after: dict[Node, int], first: _Use, second: _Use) -> list[str]:
    """What is wrong with two places that have bytes in common: neither comes before the other, or nobody says so.

    Only the first of the two, in the plan's order, can come before the other.
    """
    wrong = _unordered(plan, after, first, second)
    if not wrong:
        names = [blob.name for blob in first.blobs if blob not in plan.lost]
        return [f"blob {name!r} is overwritten by {_name(plan, second.place)}, but not lost" for name in names]
    access, write = (_node_name(plan, node) for node in wrong[0])
    both = f"{_name(plan, first.place)} and {_name(plan, second.place)} share memory"
    if access == write:
        return [f"{both}, but {access} has to do with both"]
    return [f"{both}, but no path leads from {access} to {write}"]


def _unordered(plan: Plan, after: dict[Node, int], first: _Use, second: _Use) -> list[tuple[Node, Node]]:
    """The accesses of `first` and the writes of `second` that must come after them and need not."""
    found = []
    for access in sorted(first.reads | first.writes):
        for write in sorted(second.writes):
            if not after[access] >> _bit(plan, write) & 1 and not (
                access == write and _in_place(plan, access, first, second)
            ):
                found.append((access, write))
    return found


def _in_place(plan: Plan, node: Node, old: _Use, new: _Use) -> bool:
    """Whether an operator may read the one and write the other: element by element, over its first input only."""
    if node[0] != "op" or node in old.writes or node in new.reads or old.start != new.start:
        return False
    op: Op = plan.graph.ops[node[1]]
    x, y = op.inputs[0], op.outputs[0]
    whole = x not in plan.views and (y not in plan.views or new.place.edge is not None) and x.tensor == y.tensor
    once = sum(blob in old.blobs for blob in op.inputs) == 1 and x in old.blobs
    written = new.place == Place(y.index, None if y.producers[0] == (op, 0) else (op.index, 0))
    return op.operation.in_place and whole and once and written


def _misplaced(plan: Plan, uses: Iterable[_Use]) -> list[str]:
    """Places that leave their array."""
    assert plan.sharing is not None
    ends = [(use, plan.sharing.bytes.get(plan.graph.blobs[use.place.blob].location, 0)) for use in uses]
    return [
        f"{_name(plan, use.place)} lies at bytes {use.start} to {use.stop} of a memory of {end}"
        for use, end in ends
        if not 0 <= use.start <= use.stop <= end
    ]


def _stale(plan: Plan, keep: Iterable[str], uses: Iterable[_Use]) -> list[str]:
    """Blobs whose values must outlast the run, and may not."""
    problems = [f"blob {name!r} is to be kept, but is overwritten" for name in keep if plan.graph[name] in plan.lost]
    for use in uses:
        for blob in use.blobs:
            if blob.persistent or not blob.producers:
                problems.append(f"blob {blob.name!r} must last until the next run, but shares memory")
    return problems


def _name(plan: Plan, place: Place) -> str:
    blob = plan.graph.blobs[place.blob].name
    if place.edge is None:
        return f"blob {blob!r}"
    return f"the contribution of operator {plan.graph.ops[place.edge[0]].name!r} to blob {blob!r}"


def _node_name(plan: Plan, node: Node) -> str:
    if node[0] == "op":
        return f"operator {plan.graph.ops[node[1]].name!r}"
    return f"the additions to blob {plan.graph.blobs[node[1]].name!r}"
