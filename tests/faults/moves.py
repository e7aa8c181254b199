"""Wrong sums over places, copies, gathers and slices: what a composition moves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from faults.fault import Fault, Plant, around, replaced, together
from faults.parallel import DP_01, DP_07, R8, exact
from purine_ref.graph import Blob
from purine_ref.operation import Operation
from purine_ref.ops import Concat, Copy, Identity, Mean, Sum
from purine_ref.parallel import Composed, move, reduce
from purine_ref.parallel.move import Mover
from purine_ref.parallel.pieces import Piece
from purine_ref.parallel.reduce import Reducer
from purine_ref.tensor import Location

ROUTES = "test_parallel: test_a_blob_is_copied_once_to_each_destination_along_the_routes"
FAN_OUT = "test_parallel: test_one_transfer_per_remote_rank_then_local_fan_out"
ARRIVAL = "test_parallel: test_r8_what_ends_first_changes_no_sum"


# Sums over places


class Arrivals:
    """The order in which copies end; sums take their terms in it."""

    def __init__(self) -> None:
        self._count = itertools.count()
        self._came: dict[int, int] = {}  # by the identity of an array

    def copied(self, right: Any, operation: Copy, kernels: Any, inputs: Any, outputs: Any) -> None:
        right(operation, kernels, inputs, outputs)
        self._came[id(outputs[0])] = next(self._count)

    def added(self, right: Any, operation: Sum, kernels: Any, inputs: Any, outputs: Any) -> None:
        right(operation, kernels, sorted(inputs, key=lambda x: self._came.get(id(x), -1)), outputs)


arrivals = Arrivals()


def remote_twice(right: Any, self: Reducer, blobs: Sequence[Blob], location: Location) -> Blob:
    remote = [blob for blob in blobs if blob.location.rank != location.rank]
    return right(self, [*blobs, *remote] if len(blobs) > 1 else blobs, location)


def without_the_odd_one(right: Any, self: Reducer, parts: Sequence[Piece]) -> list[Piece]:
    """A place that has nobody to pair up with is given the sum, and gives nothing to it."""
    if len(parts) % 2 == 0:
        return right(self, parts)
    sums = right(self, parts[:-1])
    return [*sums, Piece(parts[-1].box, parts[-1].location, self._mover.copy(sums[0].blob, parts[-1].location))]


def kept_below(right: Any, self: Reducer, parts: Sequence[Piece]) -> list[Piece]:
    return [right(self, parts)[0], *parts[1:]]


def one_row_early(right: Any, extent: int, count: int) -> list[tuple[int, int]]:
    return [(max(0, start - 1), stop - (start > 0)) for start, stop in right(extent, count)]


def before_the_last_addition(right: Any, self: Reducer, total: Blob, parts: Any, start: int) -> list[Blob]:
    return right(self, total.producers[0][0].inputs[0], parts, start)


def concatenating(change: Callable[[Sequence[Blob], Location], Sequence[Blob]]) -> Plant:
    """The ring puts the chunks together otherwise."""

    def apply(right: Any, self: Reducer, operation: Operation, inputs: Sequence[Blob], location: Location) -> Blob:
        return right(self, operation, change(inputs, location) if isinstance(operation, Concat) else inputs, location)

    return around(Reducer, "_apply", apply)


RING, RING_THERE = exact("data:3,ring@virtual"), exact("data:3,ring@ranks")

SUMS = [
    Fault(
        "sum: mean for sum",
        "Partial sums are averaged over the places.",
        replaced(reduce, "Sum", Mean),
        (exact("data:3@ranks"), exact("data:3,tree@virtual"), DP_01, DP_07),
    ),
    Fault(
        "sum: in the order of arrival",
        "What comes first from the other places is added first.",
        together(around(Copy, "compute", arrivals.copied), around(Sum, "compute", arrivals.added)),
        (ARRIVAL,),
    ),
    Fault(
        "sum: a remote rank's part counted twice",
        "The sum that a rank sends is added two times.",
        around(Reducer, "_sum", remote_twice),
        (exact("data:2@ranks"), exact("data:3,tree@ranks"), DP_01),
    ),
    Fault(
        "central: one place's part dropped",
        "The last place's part is left out of the sum.",
        around(Reducer, "_central", lambda right, self, parts, home: right(self, parts[:-1], home)),
        (exact("data:3@ranks"), exact("data:2@virtual"), DP_01),
    ),
    Fault(
        "central: one place's part doubled",
        "The part of the place that adds counts twice.",
        around(Reducer, "_central", lambda right, self, parts, home: right(self, [parts[0], *parts], home)),
        (exact("data:3@ranks"), exact("data:2@virtual"), DP_01),
    ),
    Fault(
        "tree: the odd one dropped",
        "A place without a partner in the first level adds nothing.",
        around(Reducer, "_tree", without_the_odd_one),
        (exact("data:3,tree@ranks"), exact("data:3,tree@virtual")),
    ),
    Fault(
        "tree: the sum not sent down",
        "Only the first place has the sum of all.",
        around(Reducer, "_tree", kept_below),
        (exact("data:3,tree@ranks"), R8, DP_07),
    ),
    Fault(
        "ring: chunks off by one",
        "Each chunk but the first begins and ends one row early.",
        around(reduce, "divide", one_row_early),
        (RING, RING_THERE),
    ),
    Fault(
        "ring: a chunk handed out before the last addition",
        "The place that hands a chunk out has not added its own part.",
        around(Reducer, "_hand_around", before_the_last_addition),
        (RING, RING_THERE),
    ),
    Fault(
        "ring: the wrong chunk handed out",
        "All places but the first take each chunk for the one before it.",
        concatenating(lambda inputs, place: inputs if place == Location() else (*inputs[1:], inputs[0])),
        (RING_THERE, R8),
    ),
    Fault(
        "ring: chunks gathered in the wrong order",
        "Every place puts the last chunk first.",
        concatenating(lambda inputs, place: inputs[::-1]),
        (RING, RING_THERE),
    ),
]


# Copies, gathers and slices


def never_copied(right: Any, self: Mover, source: Blob, location: Location) -> Blob:
    return source


def straight(self: Mover, source: Blob, location: Location) -> Blob:
    """In one step, whatever lies between."""
    return source if source.location == location else self._step(source, location, source.location, "outbound")


def at_the_other_end(right: Any, self: Mover, source: Blob, to: Location, at: Location, stream: str) -> Blob:
    ends = {"outbound": (to, "inbound"), "inbound": (source.location, "outbound")}
    return right(self, source, to, *ends[stream])


def anew(right: Any, self: Mover, *step: Any) -> Blob:
    self._copies.clear()
    return right(self, *step)


def gathering(change: Callable[[Concat, Sequence[Blob]], tuple[Concat, Sequence[Blob]]]) -> Plant:
    """Parts that lie at several places are joined otherwise."""

    def apply(right: Any, self: Composed, operation: Operation, inputs: Sequence[Blob], name: str, **more: Any) -> Any:
        if isinstance(operation, Concat) and not name.endswith("/concat"):
            operation, inputs = change(operation, inputs)
        return right(self, operation, inputs, name, **more)

    return around(Composed, "apply", apply)


def one_too_early(right: Any, outer: Any, inner: Any) -> Any:
    return tuple((start - (start > 0), stop - (start > 0)) for start, stop in right(outer, inner))


MOVES = [
    Fault(
        "copy: left out",
        "What is elsewhere is used as if it were here.",
        around(Mover, "copy", never_copied),
        (exact("data:2@virtual"), exact("model:2@ranks"), FAN_OUT),
    ),
    Fault(
        "copy: an alias",
        "A copy is a view of what it copies.",
        together(replaced(Copy, "rearranges", "split"), replaced(Copy, "boxes", Identity.boxes)),
        (exact("data:2@virtual"), exact("pipeline:2x4@virtual")),
    ),
    Fault(
        "copy: at the other end",
        "A copy from a device runs at the place that it goes to, one to a device at the place that it comes from.",
        around(Mover, "_step", at_the_other_end),
        (ROUTES,),
    ),
    Fault(
        "copy: past the CPU",
        "A device's memory goes to another rank without the CPUs on the way.",
        replaced(Mover, "copy", straight),
        (ROUTES, FAN_OUT),
    ),
    Fault(
        "copy: anew for each reader",
        "What is at a place already is copied there again.",
        around(Mover, "_step", anew),
        (FAN_OUT,),
    ),
    Fault(
        "gather: parts in the wrong order",
        "The parts of an activation are joined the last one first.",
        gathering(lambda concat, inputs: (concat, inputs[::-1])),
        (exact("model:2@virtual"), exact("hybrid:2x2@ranks")),
    ),
    Fault(
        "gather: along the wrong axis",
        "The parts of an activation are joined along the axis before the one that was divided, or the last.",
        gathering(lambda concat, inputs: (Concat(concat.axis - 1), inputs)),
        (exact("model:2@virtual"), exact("hybrid:2x2@ranks")),
    ),
    Fault(
        "slice: off by one",
        "What is cut out of a larger part begins one index early.",
        around(move, "relative", one_too_early),
        (exact("hybrid:2x2@virtual"), exact("hybrid:2x2@ranks")),
    ),
]

ALL = [*SUMS, *MOVES]
