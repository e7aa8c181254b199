"""Wrong compositions: shards, weights, updates, draws, sums over places, copies, gathers.

Checks that begin with `verify` are what the command of that name asks of a scheme, a model and a place: see `checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from faults.fault import Fault, Plant, around, replaced, together
from purine_ref.executors import memory
from purine_ref.graph import Blob
from purine_ref.operation import Operation, RandomOperation
from purine_ref.ops import SGD, Bias, Concat, Copy, Identity, Linear, Mean, Sum
from purine_ref.ops.loss import SampleMean
from purine_ref.ops.metric import TopKAccuracy
from purine_ref.parallel import Composed, Hybrid, Pipeline, composition, move, pieces, reduce
from purine_ref.parallel.composition import _Composition
from purine_ref.parallel.move import Mover
from purine_ref.parallel.pieces import Piece, Pieces
from purine_ref.parallel.reduce import Reducer
from purine_ref.tensor import Location

R8 = "test_parallel: test_r8_replicas_hold_the_same_bits_after_50_iterations"
DP_01 = "test_parallel: test_dp_01_gradients_are_weighted_by_samples"
DP_03 = "test_parallel: test_dp_03_micro_batches_combine_to_the_whole_batch"
DP_07 = "test_parallel: test_dp_07_every_rank_holds_the_sum_in_one_fixed_order"
DP_09 = "test_parallel: test_dp_09_replicas_have_the_slices_of_the_serial_mask"
WEIGHTED = "test_axes: test_dp_01_and_dp_03_uneven_parts_of_a_mean_weigh_by_their_samples"
ROUTES = "test_parallel: test_a_blob_is_copied_once_to_each_destination_along_the_routes"
FAN_OUT = "test_parallel: test_one_transfer_per_remote_rank_then_local_fan_out"
INITIAL = "test_parallel: test_r7_pieces_of_parameters_begin_as_the_parts_of_the_serial_ones"
ARRIVAL = "test_parallel: test_r8_what_ends_first_changes_no_sum"


def exact(scheme: str) -> str:
    """The check that a scheme agrees with the serial run in every bit of every tensor, where sums are exact."""
    return f"verify --exact: lenet-digits {scheme}"


def bounded(scheme: str) -> str:
    """The check that a scheme agrees within the derived bounds, with the model's own mean loss and accuracy."""
    return f"verify: lenet-digits {scheme}"


# Shards


def obtaining(wrongly: Callable[[Mover, Blob, Location], bool]) -> Plant:
    """Of some blobs a task gets the samples at the other end of the batch: as many, but others."""

    def obtain(right: Any, self: Mover, blob: Blob, box: Any, location: Location) -> Blob:
        if blob.shape and box[0] != (0, blob.shape[0]) and wrongly(self, blob, location):
            (start, stop), count = box[0], blob.shape[0]
            box = ((count - stop, count - start), *box[1:])
        return right(self, blob, box, location)

    return around(Mover, "obtain", obtain)


def is_fed(_: Mover, blob: Blob, location: Location) -> bool:
    return not blob.producers and not blob.persistent


def is_label(_: Mover, blob: Blob, location: Location) -> bool:
    return blob.name in ("label", "target")


def is_sent_activation(mover: Mover, blob: Blob, location: Location) -> bool:
    made = [op for op, _ in blob.producers]
    held = [piece.location for piece in mover._pieces.of(blob)] if made else [location]
    return bool(made) and made[0].of is None and location not in held


def all_but_the_last(right: Any, self: Pipeline, network: Any, op: Any, task: Any) -> Any:
    tasks = right(self, network, op, task)
    return tasks[:-1] if len(tasks) > 1 and op.operation.name.endswith("WeightGradient") else tasks


def own_samples(self: SampleMean, axis: Any, start: int, stop: int) -> SampleMean:
    return self


def unweighted(right: Any, self: Reducer, blob: Blob, parts: Any) -> Any:
    """The mean of what the places have."""
    if blob.name != "accuracy":
        return right(self, blob, parts)
    with mock.patch.object(reduce, "Sum", Mean):
        return right(self, blob, parts)


SHARDS = [
    Fault(
        "shards: swapped",
        "Replicas compute each other's samples, so that gradients are right and outputs are not.",
        obtaining(is_fed),
        (exact("data:3@cpu"), exact("data:2@ranks"), bounded("data:2@virtual")),
    ),
    Fault(
        "shards: labels not aligned with images",
        "Replicas have the images that are theirs, and the labels of others.",
        obtaining(is_label),
        (exact("data:3@cpu"), bounded("data:2@ranks")),
    ),
    Fault(
        "micro-batches: another one's activation",
        "A stage runs a micro-batch with the activation of another.",
        obtaining(is_sent_activation),
        (exact("pipeline:2x4@virtual"), exact("pipeline:2x4@ranks")),
    ),
    Fault(
        "micro-batches: the last one's gradient missing",
        "The gradients of weights leave out the last micro-batch.",
        around(Pipeline, "refine", all_but_the_last),
        (exact("pipeline:2x4@cpu"), exact("data:2/pipeline:1x2@virtual"), DP_03),
    ),
    Fault(
        "uneven split: averaged without weights",
        "Each replica divides by its own samples, and the mean of the replicas is taken.",
        together(replaced(SampleMean, "part", own_samples), replaced(reduce, "Sum", Mean)),
        (DP_01, bounded("data:3@ranks")),
    ),
    Fault(
        "loss: divided by the replica's samples",
        "Each part of a mean is divided by its own samples, and the parts are added.",
        replaced(SampleMean, "part", own_samples),
        (DP_01, DP_03, bounded("data:3@cpu"), WEIGHTED),
    ),
    Fault(
        "accuracy: averaged without weights",
        "The accuracy is the mean of the replicas' accuracies.",
        together(replaced(TopKAccuracy, "part", own_samples), around(Reducer, "reduce", unweighted)),
        (bounded("data:3@ranks"),),
    ),
]


# Weights, histories and updates


def swapping(counts: Callable[[Composed, Blob, Blob], bool]) -> Plant:
    """Only some pieces get their update."""

    def swap(right: Any, self: Composed, current: Blob, following: Blob) -> None:
        if counts(self, current, following):
            right(self, current, following)

    return around(Composed, "swap", swap)


def last(graph: Composed, blob: Blob) -> bool:
    return blob.location == graph.places[-1]


def is_copy(blob: Blob) -> bool:
    return isinstance(blob.producers[0][0].operation, Copy)


def with_momentum_of_all(right: Any, self: Composed, inputs: Any, operation: Any, outputs: Any, **more: Any) -> Any:
    """The momentum is applied once for each replica."""
    if isinstance(operation, SGD):
        operation = replace(operation, momentum=operation.momentum ** len(self.places))
    return right(self, inputs, operation, outputs, **more)


def the_first_of_each(right: Any, self: Pieces, blob: Blob) -> list[Piece]:
    """Of the pieces of what is swapped only those of one box are known."""
    return right(self, blob)[:1] if blob.persistent else right(self, blob)


UPDATES = [
    Fault(
        "weights: stale at one replica",
        "One replica goes on with the weights that it began with.",
        swapping(lambda graph, current, _: not (last(graph, current) and current.name in graph.multipliers)),
        (exact("data:3@ranks"), bounded("data:2@virtual"), R8),
    ),
    Fault(
        "history: not kept at one replica",
        "One replica has no momentum.",
        swapping(lambda graph, current, _: not (last(graph, current) and "/history" in current.name)),
        (exact("data:3@ranks"), bounded("data:3@virtual"), R8),
    ),
    Fault(
        "update: at one replica alone",
        "The first replica updates its weights and histories, and no other does.",
        swapping(lambda graph, current, _: current.location == graph.places[0]),
        (exact("data:2@ranks"), exact("data:2,tree@virtual"), R8),
    ),
    Fault(
        "update: of one part of the weights alone",
        "Of a weight that is divided one part is updated.",
        around(Pieces, "of", the_first_of_each),
        (exact("model:2@virtual"), exact("hybrid:2x2@ranks")),
    ),
    Fault(
        "server: the update is not distributed",
        "Only the server has the new weights.",
        swapping(lambda graph, _, following: not is_copy(following)),
        (exact("data:3,server@ranks"), exact("data:2,server@virtual")),
    ),
    Fault(
        "momentum: applied once for each replica",
        "Every replica's update applies the momentum of all replicas.",
        around(Composed, "connect", with_momentum_of_all),
        (exact("data:2@cpu"), bounded("data:3@ranks")),
    ),
    Fault(
        "gradients: not summed over the replicas",
        "Every replica updates its weights by its own gradient.",
        replaced(Reducer, "reduce", lambda self, blob, parts: list(parts)),
        (exact("data:2@ranks"), exact("data:3@virtual"), R8, DP_01),
    ),
    Fault(
        "one place: the same part computed for each replica",
        "What replicas at one place all compute is computed there as often, and added up.",
        replaced(composition, "_once_each", lambda tasks, places: list(tasks)),
        (exact("data:2@cpu"),),
    ),
]


# Draws


def drawing(change: Callable[[RandomOperation, Any], RandomOperation]) -> Plant:
    """The parts of a draw are others."""

    def part_of(right: Any, operation: Operation, axes: Any, task: Any) -> Operation:
        part = right(operation, axes, task)
        return change(part, task) if isinstance(part, RandomOperation) else part

    return around(composition, "part_of", part_of)


def from_the_first(right: Any, operation: Any, axis: Any, box: Any) -> Operation:
    end = axis.outputs[0]
    return operation if end is None else operation.part(axis, 0, box[end[0]][1] - box[end[0]][0])


def begun_anew(right: Any, self: Pieces, blob: Blob, box: Any, made: Blob) -> None:
    right(self, blob, box, made)
    initial = self._target.initial.get(made.name)
    if isinstance(initial, RandomOperation):
        self._target.initial[made.name] = replace(initial, stream=made.name)  # type: ignore[type-var]


MASKS = "verify --exact: nin-digits data:2@cpu"

DRAWS = [
    Fault(
        "mask: redrawn for each replica",
        "Every replica draws the mask of the first samples.",
        drawing(lambda part, task: replace(part, window=None)),  # type: ignore[type-var]
        (DP_09, MASKS),
    ),
    Fault(
        "mask: drawn under the replica's own name",
        "Replicas draw from streams of their own.",
        drawing(lambda part, task: replace(part, stream=f"{part.stream}{task.cuts}")),  # type: ignore[type-var]
        (DP_09, MASKS),
    ),
    Fault(
        "initial weights: every part begins like the first",
        "The parts of a divided weight are all drawn as its first.",
        around(pieces, "_cut", from_the_first),
        (bounded("model:2@cpu"), INITIAL),
    ),
    Fault(
        "initial weights: drawn for each replica",
        "Replicas begin with weights of their own.",
        around(Pieces, "_begin", begun_anew),
        (bounded("data:2@ranks"), INITIAL, R8),
    ),
]


# Sums over places


def arrivals_noted(right: Any, self: memory.Binding, op: int, kernels: Any) -> None:
    """A sum of copies takes its terms in the order in which they came."""
    came = self.__dict__.setdefault("came", {})
    call = self._calls[op]
    inputs = self.plan.inputs[op]
    if isinstance(call.operation, Sum) and all(blob in came for blob in inputs):
        order = sorted(range(len(inputs)), key=lambda slot: came[inputs[slot]])
        call = replace(call, inputs=[call.inputs[slot] for slot in order])
        with mock.patch.object(self, "_calls", [*self._calls[:op], call, *self._calls[op + 1 :]]):
            right(self, op, kernels)
    else:
        right(self, op, kernels)
    for blob in self.plan.outputs[op]:
        came[blob] = len(came)


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
        around(memory.Binding, "call", arrivals_noted),
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
        around(Reducer, "_central", lambda right, self, parts: right(self, parts[:-1])),
        (exact("data:3@ranks"), exact("data:2@virtual"), DP_01),
    ),
    Fault(
        "central: one place's part doubled",
        "The part of the place that adds counts twice.",
        around(Reducer, "_central", lambda right, self, parts: right(self, [parts[0], *parts])),
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


# Divided layers


@dataclass(frozen=True)
class Repeated(Bias):
    """A bias that is added several times."""

    times: int = 1

    def compute(self, kernels: Any, inputs: Any, outputs: Any) -> None:
        super().compute(kernels, [inputs[0], self.times * inputs[1]], outputs)


def with_a_bias_each(right: Any, self: Composed, inputs: Any, operation: Operation, outputs: Any, **more: Any) -> Any:
    producers = inputs[0].producers if inputs else []
    if isinstance(operation, Bias) and producers and isinstance(producers[0][0].operation, Sum):
        operation = Repeated(operation.axis, times=len(producers[0][0].inputs))
    return right(self, inputs, operation, outputs, **more)


def complete(right: Any, self: _Composition, op: Any, slot: int, task: Any) -> Any:
    output = right(self, op, slot, task)
    return replace(output, partial=False) if isinstance(op.operation, Linear) else output


def data_everywhere(right: Any, self: Hybrid, graph: Any, op: Any) -> bool:
    return False


INPUTS = "verify --exact: autoencoder-digits model:2,input@virtual"
INPUTS_THERE = "verify --exact: autoencoder-digits model:2,input@ranks"

LAYERS = [
    Fault(
        "input channels: partial sums not added",
        "Each part of a layer that is divided by its input goes on with its own partial sum.",
        around(_Composition, "_output", complete),
        (INPUTS, INPUTS_THERE),
    ),
    Fault(
        "input channels: the bias added by each part",
        "A layer that is divided by its input adds its bias once for each part.",
        around(Composed, "connect", with_a_bias_each),
        (INPUTS, INPUTS_THERE),
    ),
    Fault(
        "several edges: taken for alike",
        "Producers of one blob whose parts lie differently write to each other's parts.",
        replaced(_Composition, "_is_uniform", lambda self, blob: True),
        ("test_parallel: test_several_edges_that_lie_differently_are_added_at_the_first_ones_places",),
    ),
    Fault(
        "hybrid: fully connected layers not divided",
        "All layers are data-parallel, which computes the right thing in the wrong place.",
        around(Hybrid, "_connected", data_everywhere),
        ("test_parallel: test_krizhevskys_hybrid_divides_connected_weights_within_a_group",),
    ),
]

ALL = [*SHARDS, *UPDATES, *DRAWS, *SUMS, *MOVES, *LAYERS]
