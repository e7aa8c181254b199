"""Wrong compositions: shards, weights, histories, updates, draws, and layers that are divided.

Checks that begin with `verify` are what the command of that name asks of a scheme, a model and a place: see `checks`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from faults.fault import Fault, Plant, around, replaced, together
from purine_ref.graph import Blob
from purine_ref.operation import Operation, RandomOperation
from purine_ref.ops import SGD, Bias, Copy, Linear, Mean, Sum
from purine_ref.ops.loss import SampleMean
from purine_ref.ops.metric import TopKAccuracy
from purine_ref.parallel import Composed, Hybrid, Pipeline, composition, pieces, reduce
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
INITIAL = "test_parallel: test_r7_pieces_of_parameters_begin_as_the_parts_of_the_serial_ones"


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


def unweighted(right: Any, self: Reducer, blob: Blob, parts: Any, home: Location) -> Any:
    """The mean of what the places have."""
    if blob.name != "accuracy":
        return right(self, blob, parts, home)
    with mock.patch.object(reduce, "Sum", Mean):
        return right(self, blob, parts, home)


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
        replaced(Reducer, "reduce", lambda self, blob, parts, home: list(parts)),
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

ALL = [*SHARDS, *UPDATES, *DRAWS, *LAYERS]
