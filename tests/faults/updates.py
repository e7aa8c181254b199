"""Wrong draws, updates, data orders and snapshots: what goes wrong between one run and the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from faults.fault import EXACT, LOOPS, REFERENCE, Fault, around, computing, misread, replaced
from purine_ref.data import BatchOrder
from purine_ref.devices.cpu import CpuKernels
from purine_ref.graph import Graph
from purine_ref.ops import SGD, AdaGrad, Bernoulli, TorchSGD
from purine_ref.training import trainer

Array = Any


# Draws


def seedless(right: Any, seed: int, stream: str, iteration: int, start: int, count: int) -> Array:
    return right(0, stream, iteration, start, count)


def streamless(right: Any, seed: int, stream: str, iteration: int, start: int, count: int) -> Array:
    return right(seed, "", iteration, start, count)


def repeated(right: Any, seed: int, stream: str, iteration: int, start: int, count: int) -> Array:
    return right(seed, stream, 0, start, count)


SEED_AND_ITERATION = "Serial: test_r7_draws_depend_on_seed_and_iteration_alone"
DRAWS_DIFFER = "test_ops_random: test_dp_09_seed_iteration_and_stream_each_change_the_draw"

DRAWS = [
    Fault(
        "draws: seed ignored",
        "Runs of every seed draw the same.",
        around(CpuKernels, "philox", seedless),
        (f"Bernoulli: {LOOPS}", f"Uniform: {LOOPS}", DRAWS_DIFFER, SEED_AND_ITERATION),
    ),
    Fault(
        "draws: iteration ignored",
        "Every run draws what the first one drew.",
        around(CpuKernels, "philox", repeated),
        (f"Bernoulli: {LOOPS}", f"Gaussian: {LOOPS}", DRAWS_DIFFER, SEED_AND_ITERATION),
    ),
    Fault(
        "draws: stream ignored",
        "All operators draw the same.",
        around(CpuKernels, "philox", streamless),
        (f"Bernoulli: {LOOPS}", DRAWS_DIFFER),
    ),
    Fault(
        "draws: place in the undivided tensor ignored",
        "A part draws as if it were a whole, so that all replicas have one mask.",
        misread(Bernoulli, lambda self: replace(self, window=None)),
        (f"Bernoulli: {LOOPS}", "test_ops_random: test_dp_09_replicas_have_slices_of_the_serial_mask"),
    ),
]


# Updates


def rate_outside(self: SGD, weight: Array, gradient: Array, history: Array, rate: Array, *outputs: Array) -> None:
    following = history * self.momentum + (gradient + weight * self.decay)
    outputs[1][...] = following
    outputs[0][...] = weight - following * (rate * self.multiplier)


def decay_last(self: SGD, weight: Array, gradient: Array, history: Array, rate: Array, *outputs: Array) -> None:
    """The weight decays beside the history, past the momentum."""
    step = rate * self.multiplier
    following = history * self.momentum + gradient * step
    outputs[1][...] = following
    outputs[0][...] = weight - following - weight * (step * self.decay)


def own_decay(right: Any, self: Graph, *arguments: Any, **keywords: Any) -> Any:
    """The multiplier that a parameter has for the decay is taken to be 1."""
    return right(self, *arguments, **{**keywords, "decay": 1.0})


def caffe(right: Any, self: TorchSGD, *call: Any) -> None:
    SGD(self.momentum, self.decay, self.multiplier).compute(*call)


def last_square(self: AdaGrad, weight: Array, gradient: Array, squares: Array, rate: Array, *outputs: Array) -> None:
    slope = gradient + weight * self.decay
    outputs[1][...] = slope * slope
    outputs[0][...] = weight - slope * (rate * self.multiplier) / (np.sqrt(outputs[1]) + self.epsilon)


UPDATES = [
    Fault(
        "momentum: rate outside the history",
        "The update has PyTorch's form, where a new rate acts on old gradients too.",
        computing(SGD, rate_outside),
        (f"SGD: {LOOPS}", f"SGD: {EXACT}", "test_optim: test_a_rate_that_changes_acts_on_new_gradients_alone"),
    ),
    Fault(
        "momentum: history not carried",
        "Every step starts without a history.",
        misread(SGD, lambda self: replace(self, momentum=0.0)),
        (f"SGD: {LOOPS}", "test_optim: test_r6_two_graphs_over_one_memory_take_turns"),
    ),
    Fault(
        "decay: forgotten",
        "Weights do not decay.",
        misread(SGD, lambda self: replace(self, decay=0.0)),
        (f"SGD: {LOOPS}", f"SGD: {REFERENCE}", "test_optim: test_dp_05_decay_goes_through_the_rate_and_the_momentum"),
    ),
    Fault(
        "decay: past the momentum",
        "The decay is taken off the weight beside the history.",
        computing(SGD, decay_last),
        (f"SGD: {LOOPS}", "test_optim: test_dp_05_decay_goes_through_the_rate_and_the_momentum"),
    ),
    Fault(
        "decay: applied to the bias",
        "A parameter that must not decay does.",
        around(Graph, "parameter", own_decay),
        (
            "test_optim: test_dp_05_a_bias_moves_twice_as_fast_and_does_not_decay",
            "test_layers: test_the_bias_moves_twice_as_fast_and_does_not_decay",
        ),
    ),
    Fault(
        "PyTorch's momentum: rate inside the history",
        "The update has Caffe's form.",
        around(TorchSGD, "compute", caffe),
        (f"TorchSGD: {LOOPS}", "test_optim: test_in_the_form_of_torch_it_acts_on_old_gradients_too"),
    ),
    Fault(
        "AdaGrad: squares not accumulated",
        "The step is divided by its own slope alone.",
        computing(AdaGrad, last_square),
        (
            f"AdaGrad: {LOOPS}",
            f"AdaGrad: {REFERENCE}",
            "test_ops_values: test_adagrad_divides_by_the_root_of_all_squares",
        ),
    ),
]


# Orders and snapshots


def parameters_alone(graph: Graph) -> dict[str, Any]:
    return {blob.name: blob for blob in graph.parameters}


def from_the_start(right: Any, self: trainer.Trainer, snapshot: Any) -> None:
    """The place in the data is lost."""
    right(self, snapshot)
    self.position = replace(self.position, batch=0)


BETWEEN_RUNS = [
    Fault(
        "batches: order repeats",
        "Every epoch has the order of the first.",
        around(BatchOrder, "batch_indices", lambda right, self, epoch, index: right(self, 0, index)),
        ("test_data: test_epochs_and_seeds_differ_and_the_batch_size_does_not_matter",),
    ),
    Fault(
        "snapshot: histories lost",
        "A snapshot holds the parameters alone.",
        replaced(trainer, "persistent", parameters_alone),
        (
            "test_training: test_a_snapshot_holds_parameters_and_histories_and_nothing_else",
            "test_training: test_dp_06_a_resumed_run_gives_the_bits_of_a_straight_one",
        ),
    ),
    Fault(
        "snapshot: place in the data lost",
        "A resumed run starts its epoch anew.",
        around(trainer.Trainer, "_restore", from_the_start),
        ("test_training: test_dp_06_a_resumed_run_gives_the_bits_of_a_straight_one",),
    ),
]

ALL = [*DRAWS, *UPDATES, *BETWEEN_RUNS]
