"""Wrong checks of a graph, wrong sharing of memory, and wrong wiring of gradients."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from faults.fault import SLOPES, Fault, around, replaced
from purine_ref import gradients, hazards, plan
from purine_ref.errors import CycleError
from purine_ref.graph import Blob, Graph, Op

# Gradients


def last_consumer_alone(right: Any, self: Any, operation: Any, inputs: Sequence[Blob], into: Sequence[Any]) -> Any:
    """The gradient that is there already stays in a blob that nobody reads."""
    found, graph = self._backward.found, self._backward.graph
    for blob in {self.inputs[index] for index in into if index is not None}:
        if blob in found:
            found[blob] = graph.blob(graph.free_name(f"{blob.name}/grad"), blob.shape, blob.dtype, blob.location)
    return right(self, operation, inputs, into)


def everything(right: Any, order: Sequence[Op], wanted: Any) -> set[Blob]:
    return right(order, [blob for op in order for blob in op.inputs if blob.tensor.is_float])


GRADIENTS = [
    Fault(
        "backward: gradient overwritten at a fan-out",
        "Of all consumers of a blob only the last one's gradient counts.",
        around(gradients._OpWiring, "add", last_consumer_alone),
        (
            f"Tanh: {SLOPES}",
            "test_gradients: test_op_10_every_executor",
            "test_gradients: test_op_18_a_weight_that_is_used_twice",
            "test_gradients: test_gradients_of_random_graphs_are_slopes",
        ),
    ),
    Fault(
        "backward: loss weights ignored",
        "All losses count alike.",
        around(gradients._Backward, "seed", lambda right, self, loss, weight: right(self, loss, 1.0)),
        (f"Tanh: {SLOPES}", "test_gradients: test_several_losses_with_weights"),
    ),
    Fault(
        "backward: unwanted gradients computed",
        "What lies beside the way to a wanted blob gets a gradient too.",
        around(gradients, "_depending", everything),
        ("test_gradients: test_what_needs_no_gradient_costs_nothing",),
    ),
    Fault(
        "backward: rule reads the sum of several producers",
        "A rule that needs its operator's own result is given what all producers of the blob have added up.",
        replaced(gradients._OwnOutputs, "__getitem__", lambda self, slot: self._op.outputs[slot]),
        (
            "test_gradients: test_a_rule_reads_what_its_operator_alone_gave_to_a_sum",
            "test_gradients: test_gradients_of_random_graphs_are_slopes",
        ),
    ),
]


# Shared memory and the checks of a whole graph


def unheeded(right: Any, *arguments: Any) -> Any:
    check = right(*arguments)
    check.problems = []
    return check


class Counted(dict[Blob, Any]):
    """A dictionary that claims to have an entry for every edge, also where a blob has two."""

    def __len__(self) -> int:
        return sys.maxsize


def without_counting(right: Any, op: Op) -> tuple[Blob, dict[Blob, Any]]:
    whole, parts = right(op)
    return whole, Counted(parts)


def any_order(right: Any, graph: Graph, flat: Any) -> list[int]:
    try:
        return right(graph, flat)
    except CycleError:
        return list(range(len(graph.ops)))


CHECKS = [
    Fault(
        "aliasing: check skipped",
        "A graph whose operators overwrite what others read is accepted.",
        around(plan, "HazardCheck", unheeded),
        (
            "test_hazards: test_unordered_writes",
            "test_hazards: test_a_write_beside_a_read",
            "test_hazards: test_any_declared_views_are_refused_or_give_the_bits_of_the_graph_without",
            "test_graph: test_r5_every_unordered_access_is_reported",
        ),
    ),
    Fault(
        "aliasing: any operation may work in place",
        "An operation that reads what it has written is let write over its input.",
        replaced(hazards.HazardCheck, "_in_place", lambda self, op, slot: True),
        (
            "test_hazards: test_an_operation_that_is_not_made_for_it_cannot_work_in_place",
            "test_hazards: test_in_place_reads_no_other_part_of_what_it_writes",
        ),
    ),
    Fault(
        "aliasing: regions that overlap are taken for apart",
        "Views that share a part of a buffer, and not all of it, count as apart.",
        replaced(hazards.Region, "overlaps", lambda self, other: self == other),
        (
            "test_hazards: test_parts_that_overlap_and_parts_that_do_not",
            "test_hazards: test_any_declared_views_are_refused_or_give_the_bits_of_the_graph_without",
        ),
    ),
    Fault(
        "concat: view placed where a blob is used twice",
        "A blob that is joined with itself is given one place, and the other is never written.",
        around(hazards, "_parts", without_counting),
        ("Serial: test_sc_01_one_blob_wired_twice",),
    ),
    Fault(
        "prepare: cycle accepted",
        "Operators that wait for each other are put into the order all the same.",
        around(plan, "order_of", any_order),
        ("test_graph: test_sc_06_a_two_operators", "test_graph: test_sc_06_c_an_operator_that_writes_what_it_reads"),
    ),
    Fault(
        "prepare: missing kernel accepted",
        "A device that lacks a loop is found out in the middle of a run.",
        replaced(plan, "_missing_kernels", lambda graph, devices: []),
        ("test_graph: test_r13_prepare_reports_every_fault_at_once", "test_graph: test_r13_a_device_that_is_not_there"),
    ),
]

ALL = [*GRADIENTS, *CHECKS]
