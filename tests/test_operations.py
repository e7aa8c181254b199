"""Every operation that the package exports, through the operations' suite; and what the suite did not do, by name."""

from __future__ import annotations

import numpy as np
import pytest

from operation_cases import ALL
from purine_ref import ops
from purine_ref.errors import GraphError
from purine_ref.executors import Serial
from purine_ref.graph import Graph
from purine_ref.ops import BiasGradient, Constant, LinearDataGradient, LinearWeightGradient
from suites.operations import OperationContract, applications

WITHOUT_PYTORCH = {
    "AveragePool2d-uneven": "it has no uneven padding that does not count",
    "AveragePool2dGradient-uneven": "it has no uneven padding that does not count",
    "MaxPool2d-uneven": "it has no uneven padding that never wins",
    **dict.fromkeys(
        [f"{draw}-{case}" for draw in ("Uniform", "Gaussian", "Bernoulli") for case in ("float32", "float64")]
        + [f"{draw}-window-{d}" for draw in ("Uniform", "Gaussian", "Bernoulli") for d in ("float32", "float64")],
        "it draws other numbers",
    ),
}
"""Cases that PyTorch has no operation for, and why."""

WITHOUT_GRADIENT = {
    *("ReLUGradient", "SigmoidGradient", "TanhGradient", "SoftmaxGradient", "LogSoftmaxGradient", "LRNGradient"),
    *("Conv2dDataGradient", "Conv2dWeightGradient", "LinearDataGradient", "LinearWeightGradient", "BiasGradient"),
    *("BiasReLUGradient", "MaxPool2dGradient", "AveragePool2dGradient", "GlobalAveragePool2dGradient"),
    *("SoftmaxCrossEntropyGradient", "SquaredErrorGradient"),
    *("Constant", "Uniform", "Gaussian", "Bernoulli"),
    *("SGD", "TorchSGD", "AdaGrad", "TopKAccuracy"),
}
"""Gradients, which are not differentiated again; sources, which have no input; updates; and a metric."""

NEVER_EXACT = {
    *("Sigmoid", "SigmoidGradient", "Tanh", "TanhGradient", "LRN", "LRNGradient", "AdaGrad"),
    *("Softmax", "SoftmaxGradient", "LogSoftmax", "LogSoftmaxGradient"),
    *("SoftmaxCrossEntropy", "SoftmaxCrossEntropyGradient", "TopKAccuracy", "Uniform", "Gaussian"),
}
"""Operations that exact mode refuses whatever their attributes."""

ONE_ON_PURPOSE = {
    *("Conv2d-one-output", "Linear-one-output", "Linear-one-sample"),
    *("GlobalAveragePool2dGradient", "GlobalAveragePool2dGradient-any", "MaxPool2dGradient-one window"),
}
"""Cases with a dimension of 1: products of a matrix and a vector, and whole planes that are averaged or pooled."""

COMPARED_CASES, COMPARISONS = 118, 246
"""How many cases PyTorch is compared on, and how many times: a case that is left out by mistake shows."""


class TestOperations(OperationContract):
    cases = ALL


def rows(check: str) -> set[str]:
    """The operations that a check runs for."""
    return {case.operation.name for case, _ in applications(getattr(OperationContract, check), ALL)}


def test_every_operation_has_a_case() -> None:
    assert {case.operation.name for case in ALL} == set(ops.__all__)
    assert len({case.name for case in ALL}) == len(ALL)


def test_every_case_is_compared_with_pytorch_unless_it_says_why_not() -> None:
    assert {case.name for case in ALL if case.reference is None} == set(WITHOUT_PYTORCH)
    check = OperationContract.test_values_and_gradients_are_those_of_the_reference
    compared = [case.name for case, _ in applications(check, ALL)]
    assert (len(set(compared)), len(compared)) == (COMPARED_CASES, COMPARISONS)


def test_every_operation_is_checked_for_what_it_can_do() -> None:
    every = set(ops.__all__)
    assert rows("test_gradients_are_the_slopes_of_the_values") == every - WITHOUT_GRADIENT
    assert rows("test_gc_01_a_gradient_adds_to_what_is_there") == every - WITHOUT_GRADIENT
    assert rows("test_r10_integers_give_exact_results_within_the_certificate") == every - NEVER_EXACT
    assert rows("test_an_empty_batch_is_legal") == every
    assert rows("test_in_place_changes_no_bit") == {name for name in every if getattr(ops, name).in_place}
    assert rows("test_boxes_are_where_the_parts_lie") == {name for name in every if getattr(ops, name).rearranges}


def test_every_case_has_dimensions_that_tell_axes_apart() -> None:
    """All different, the batch from the channels too, and none 1 but on purpose."""
    for case in ALL:
        shapes = [each.shape for each in case.inputs] or [case.operation.infer([])[0].shape]
        for shape in shapes:
            long = [length for length in shape if length > 1]
            assert len(set(long)) == len(long), case.name
            assert 1 not in shape or case.name in ONE_ON_PURPOSE, case.name


@pytest.mark.parametrize("name", sorted(WITHOUT_GRADIENT))
def test_what_has_no_gradient_rule_says_so(name: str) -> None:
    [case, *_] = [case for case in ALL if case.operation.name == name]
    with pytest.raises(GraphError, match=rf"^{name} has no gradient rule, but a gradient was asked for through it$"):
        case.operation.gradient(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("held", [0.0, 7.0])
def test_gc_01_the_gradients_of_an_inner_product_add_to_what_is_there(held: float) -> None:
    graph = Graph("inner")
    feeds = {"x": np.array([[1.0, 2]]), "w": np.array([[3.0, 4]]), "dy": np.ones((1, 1))}
    x, w, dy = (graph.blob(name, array.shape, "float64") for name, array in feeds.items())
    dx, dw, db = (graph.blob(name, shape, "float64") for name, shape in (("dx", (1, 2)), ("dw", (1, 2)), ("db", (1,))))
    for gradient in (dx, dw, db) if held else ():
        graph.connect([], Constant(held, gradient.shape, "float64"), [gradient])
    graph.connect([dy, w], LinearDataGradient((1, 2)), [dx], name="data")
    graph.connect([dy, x], LinearWeightGradient(), [dw], name="weight")
    graph.connect([dy], BiasGradient(), [db], name="bias")
    with Serial(graph) as executor:
        executor.feed(feeds)
        for _ in range(2):  # what the first run left there must not count
            executor.run()
            np.testing.assert_array_equal(executor.fetch("dw"), [[held + 1, held + 2]])
            np.testing.assert_array_equal(executor.fetch("dx"), [[held + 3, held + 4]])
            np.testing.assert_array_equal(executor.fetch("db"), [held + 1])
