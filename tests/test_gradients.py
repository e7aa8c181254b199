"""`backward`: what it adds for fan-out, shared weights, several losses, dead ends and shared memory, and its errors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings

from gradient_checker import Undecided, check_gradient
from hooks import Apply, Delays, InTurn, Swallow
from purine_ref.errors import GraphError
from purine_ref.executors import Executor, Serial, Simulated, Threaded
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph
from purine_ref.ops import (
    Concat,
    Constant,
    Copy,
    Linear,
    MaxPool2d,
    Mul,
    ReduceSum,
    Scale,
    SoftmaxCrossEntropy,
    Split,
    Sum,
    Tanh,
    TopKAccuracy,
)
from purine_ref.tensor import Location
from strategies import Recipe, differentiable, recipes


def run(graph: Graph, **values: Any) -> Executor:
    """An executor after one run; its caller may run it again."""
    executor = Serial(graph)
    executor.feed({name: np.asarray(value, graph[name].dtype) for name, value in values.items()})
    executor.run()
    return executor


def total(graph: Graph, blob: Blob, name: str = "loss") -> Blob:
    """The sum of a blob's elements."""
    return graph.apply(ReduceSum(), [blob], name)[0]


# Fan-out and shared weights -----------------------------------------------------------------------------------------


def fan_out() -> tuple[Graph, Blob]:
    """OP-10: x feeds 2x, 3x and x*x, whose sum is the loss."""
    graph = Graph("case")
    x = graph.blob("x", ())
    (double,) = graph.apply(Scale(2.0), [x], "double")
    (triple,) = graph.apply(Scale(3.0), [x], "triple")
    (square,) = graph.apply(Mul(), [x, x], "square")
    (loss,) = graph.apply(Sum(), [double, triple, square], "loss")
    return graph, backward(loss, [x])[x]


@pytest.mark.parametrize("order", [*itertools.permutations(["double", "triple", "square"])])
def test_op_10_consumers_that_end_in_any_order(order: Sequence[str]) -> None:
    graph, gradient = fan_out()
    with Threaded(graph, threads=4, observer=InTurn(order)) as executor:
        executor.feed(x=np.float32(1))
        executor.run()
        assert executor.fetch(gradient.name) == 2 + 3 + 2


@pytest.mark.parametrize("order", [*itertools.permutations(range(4))])
def test_op_10_contributions_that_end_in_any_order(order: Sequence[int]) -> None:
    """The gradient of x has four producers: two for x*x. A second run gives 7 again, not 14."""
    graph, gradient = fan_out()
    producers = [op.name for op, _ in gradient.producers]
    assert len(producers) == 4
    turns = InTurn([producers[k] for k in order])
    with Threaded(graph, threads=4, observer=turns) as executor:
        executor.feed(x=np.float32(1))
        for _ in range(2):
            executor.run()
            assert executor.fetch(gradient.name) == 7


def test_op_10_every_executor() -> None:
    graph, gradient = fan_out()
    for executor in (Serial(graph), Simulated(graph, threads=3), Threaded(graph, threads=8, observer=Delays(4))):
        with executor:
            executor.feed(x=np.float32(1))
            for _ in range(20):
                executor.run()
                assert executor.fetch(gradient.name) == 7


def test_op_18_a_weight_that_is_used_twice() -> None:
    """y = sum(x W W); Linear multiplies with the transpose of its weight, so w is W transposed."""
    graph = Graph("case")
    x, w = graph.blob("x", (1, 2), "float64"), graph.blob("w", (2, 2), "float64")
    (first,) = graph.apply(Linear(), [x, w], "first")
    (second,) = graph.apply(Linear(), [first, w], "second")
    backward(total(graph, second), [x, w])
    executor = run(graph, x=[[1.1, -0.7]], w=np.transpose([[0.4, -0.2], [0.7, 0.3]]))
    for _ in range(2):
        np.testing.assert_allclose(executor.fetch("w/grad").T, [[0.17, 1.05], [-0.57, -1.13]], atol=1e-15)
        np.testing.assert_allclose(executor.fetch("x/grad"), [[-0.12, 0.44]], atol=1e-15)
        executor.run()


@pytest.mark.parametrize("adds", [True, False])
def test_gc_01_a_gradient_is_written_or_added_to_as_the_edges_say(adds: bool) -> None:
    """With a producer of 7 before it, every gradient is added to; alone, it overwrites what the memory held."""
    graph = Graph("case")
    x, w = graph.blob("x", (1, 2)), graph.blob("w", (1, 2))
    (y,) = graph.apply(Linear(), [x, w], "y")
    gradients = backward(total(graph, y), [x, w])
    if adds:
        for gradient in gradients.values():
            graph.connect([], Constant(7.0, (1, 2)), [gradient])
    executor = run(graph, x=[[1, 2]], w=[[3, 4]])
    for _ in range(3):
        assert executor.fetch("w/grad").tolist() == ([[8, 9]] if adds else [[1, 2]])
        assert executor.fetch("x/grad").tolist() == ([[10, 11]] if adds else [[3, 4]])
        executor.run()


# Losses and wanted blobs --------------------------------------------------------------------------------------------


def test_several_losses_with_weights() -> None:
    graph = Graph("case")
    x = graph.blob("x", (3,))
    (h,) = graph.apply(Scale(2.0), [x], "h")
    main, side = total(graph, h, "main"), total(graph, graph.apply(Mul(), [h, h], "square")[0], "side")
    gradients = backward({main: 1.0, side: 0.25}, [x, h])
    executor = run(graph, x=[1, -2, 3])
    assert executor.fetch(gradients[h].name).tolist() == [1 + 0.5 * 2, 1 - 0.5 * 4, 1 + 0.5 * 6]
    assert executor.fetch(gradients[x].name).tolist() == [4, -2, 8]


def test_a_loss_on_the_way_to_another() -> None:
    graph = Graph("case")
    x = graph.blob("x", ())
    (first,) = graph.apply(Scale(3.0), [x], "first")
    (second,) = graph.apply(Mul(), [first, first], "second")
    gradients = backward({second: 2.0, first: 5.0}, [x])
    executor = run(graph, x=1.0)
    assert executor.fetch(gradients[x].name) == 3 * (5 + 2 * 2 * 3)


def test_a_loss_that_is_no_scalar_counts_as_the_sum_of_its_elements() -> None:
    graph = Graph("case")
    x = graph.blob("x", (2, 3))
    gradients = backward(graph.apply(Mul(), [x, x], "y")[0], [x])
    assert run(graph, x=[[1, 2, 3], [4, 5, 6]]).fetch(gradients[x].name).tolist() == [[2, 4, 6], [8, 10, 12]]


def test_the_parameters_are_wanted_unless_others_are() -> None:
    graph = Graph("case")
    x = graph.blob("x", (5, 3))
    w = graph.parameter("w", (4, 3), "float32", Constant(0.5, (4, 3)))
    (y,) = graph.apply(Linear(), [x, w], "y")
    gradients = backward(total(graph, y))
    assert list(gradients) == [w]
    assert (gradients[w].name, gradients[w].tensor) == ("w/grad", w.tensor)
    assert "x/grad" not in graph


def test_a_wanted_blob_on_which_no_loss_depends_gets_zeros() -> None:
    graph = Graph("case")
    x, alone = graph.blob("x", (3,)), graph.blob("alone", (2, 5), "float64")
    gradients = backward(total(graph, x), [x, alone])
    executor = run(graph, x=[1, 2, 3])
    assert executor.fetch(gradients[alone].name).tolist() == [[0] * 5] * 2
    assert executor.fetch(gradients[alone].name).dtype == np.float64
    assert executor.fetch(gradients[x].name).tolist() == [1, 1, 1]


def test_a_loss_may_be_wanted_itself() -> None:
    graph = Graph("case")
    loss = total(graph, graph.blob("x", (3,)))
    gradients = backward({loss: 0.5}, [loss])
    assert run(graph).fetch(gradients[loss].name) == 0.5


def test_labels_get_no_gradient() -> None:
    graph = Graph("case")
    x, w, label = graph.blob("x", (5, 3)), graph.blob("w", (4, 3)), graph.blob("label", (5,), "int64")
    (scores,) = graph.apply(Linear(), [x, w], "scores")
    loss = graph.apply(SoftmaxCrossEntropy(), [scores, label], "loss")[0]
    graph.apply(TopKAccuracy(), [scores, label], "accuracy")
    backward(loss, [w])
    assert "label/grad" not in graph
    assert "accuracy/grad" not in graph


# What it costs ------------------------------------------------------------------------------------------------------


def test_what_needs_no_gradient_costs_nothing() -> None:
    """Only the one weight is wanted: nothing before it, beside it or after the loss gets an operator."""
    graph = Graph("case")
    x, w, v = graph.blob("x", (5, 3)), graph.blob("w", (4, 3)), graph.blob("v", (2, 4))
    (early,) = graph.apply(Tanh(), [x], "early")
    (h,) = graph.apply(Linear(), [early, w], "h")
    (y,) = graph.apply(Linear(), [h, v], "y")
    graph.apply(Scale(2.0), [h], "dead")
    graph.connect([y], Swallow(print), [], name="look")
    loss = total(graph, y)
    graph.apply(Scale(2.0), [loss], "after")
    before = len(graph.ops)
    backward(loss, [w])
    added = [op.name for op in graph.ops[before:]]
    assert added == ["loss/grad", "loss/BroadcastTo", "y/LinearDataGradient", "h/LinearWeightGradient"]
    assert [blob.name for blob in graph.blobs if blob.name.endswith("/grad")] == [
        "loss/grad",
        "y/grad",
        "h/grad",
        "w/grad",
    ]


def test_dead_ends_add_nothing_to_a_gradient() -> None:
    graph = Graph("case")
    x = graph.blob("x", (3,))
    used, unused = graph.apply(Split(0, (1, 2)), [x], "part")
    graph.apply(Mul(), [unused, unused], "dead")
    gradients = backward(total(graph, used), [x])
    assert run(graph, x=[1, 2, 3]).fetch(gradients[x].name).tolist() == [1, 0, 0]
    assert "dead/grad" not in graph


def test_the_second_output_may_be_one_without_a_gradient() -> None:
    graph = Graph("case")
    x = graph.blob("x", (2, 3, 4, 6))
    pooled, places = graph.apply(MaxPool2d(2), [x], "pool")
    backward(total(graph, pooled), [x])
    assert places.tensor.dtype == "int64"
    executor = run(graph, x=np.arange(144).reshape(2, 3, 4, 6))
    assert executor.fetch("x/grad").sum() == 2 * 3 * 2 * 3


def test_gradients_are_where_their_blobs_are_and_on_the_stream_of_the_operator() -> None:
    there = Location(0, 0)
    graph = Graph("case")
    x = graph.blob("x", (3, 2))
    (far,) = graph.apply(Copy(there), [x], "far", stream="move")
    (y,) = graph.apply(Tanh(), [far], "y", stream="compute")
    gradients = backward(total(graph, y), [x, far])
    assert gradients[x].location == Location()
    assert gradients[far].location == there
    assert graph.op("y/TanhGradient").location == there
    assert graph.op("y/TanhGradient").stream == "compute"
    assert graph.op("far/Copy").stream == "move"


def test_several_producers_forward_share_one_gradient_backward() -> None:
    """y = 2a + 3b by two edges into y; its gradient goes to both (rule R4 the other way round)."""
    graph = Graph("case")
    a, b, y = graph.blob("a", (3,)), graph.blob("b", (3,)), graph.blob("y", (3,))
    graph.connect([a], Scale(2.0), [y])
    graph.connect([b], Scale(3.0), [y])
    gradients = backward(total(graph, graph.apply(Mul(), [y, y], "square")[0]), [a, b])
    executor = run(graph, a=[1, 1, 0], b=[0, 1, -1])
    assert executor.fetch(gradients[a].name).tolist() == [2 * 2 * 2, 2 * 2 * 5, 2 * 2 * -3]
    assert executor.fetch(gradients[b].name).tolist() == [3 * 2 * 2, 3 * 2 * 5, 3 * 2 * -3]


def test_a_rule_reads_what_its_operator_alone_gave_to_a_sum() -> None:
    """y = tanh(a) + tanh(b), by two edges into y: the derivative of each is 1 - tanh^2 of its own, not 1 - y^2."""
    graph = Graph("case")
    a, b, y = graph.blob("a", (3,), "float64"), graph.blob("b", (3,), "float64"), graph.blob("y", (3,), "float64")
    graph.connect([a], Tanh(), [y], name="first")
    graph.connect([b], Tanh(), [y], name="second")
    before = len(graph.ops)
    gradients = backward(y, [a])
    assert [op.name for op in graph.ops[before:]] == ["y/grad", "first/again", "first/TanhGradient"]
    executor = run(graph, a=[0, 1, -2], b=[3, 0.5, 0])
    np.testing.assert_allclose(executor.fetch(gradients[a].name), 1 / np.cosh([0, 1, -2]) ** 2, rtol=1e-14)


def test_backward_leaves_an_open_scope_alone() -> None:
    graph = Graph("case")
    with graph.scope("layer"):
        x = graph.blob("x", (3,))
        gradients = backward(total(graph, x), [x])
        after = graph.blob("after", ())
    assert (gradients[x].name, after.name) == ("layer/x/grad", "layer/after")


# Errors -------------------------------------------------------------------------------------------------------------


def test_errors() -> None:
    graph, other = Graph("net"), Graph("other")
    x, label, foreign = graph.blob("x", (3,)), graph.blob("label", (3,), "int64"), other.blob("z", (3,))
    loss, strange = total(graph, x), total(other, foreign)
    cases = [
        (loss, None, r"graph 'net' has no parameters: name the blobs to differentiate for with wrt=\[...\]"),
        (loss, [], r"graph 'net' has no parameters: name the blobs to differentiate for with wrt=\[...\]"),
        (label, [x], "loss 'label' must be float32 or float64, got int64"),
        ({}, [x], "backward needs one or more losses of one graph, got losses of 0 graphs"),
        ({loss: 1.0, strange: 1.0}, [x], "backward needs one or more losses of one graph, got losses of 2 graphs"),
        (loss, [foreign], "backward: wrt blob 'z' is of graph 'other', not of 'net'"),
        (loss, [label], "backward: wrt blob 'label' is int64, which has no gradient"),
    ]
    for losses, wrt, message in cases:
        with pytest.raises(GraphError, match=rf"^{message}$"):
            backward(losses, wrt)
    assert len(graph.ops) == 1


def test_backward_is_called_once() -> None:
    graph = Graph("net")
    x = graph.blob("x", (3,))
    loss, other = total(graph, x), total(graph, x, "other")
    backward(loss, [x])
    message = "has a gradient already: call backward once, with all losses"
    with pytest.raises(GraphError, match=rf"^loss 'loss' {message}$"):
        backward(loss, [x])
    with pytest.raises(GraphError, match=r"^blob 'x' has a gradient 'x/grad' already: call backward once, .*$"):
        backward(other, [x])


def test_an_operation_without_a_rule() -> None:
    graph = Graph("net")
    x = graph.blob("x", (3,))
    (y,) = graph.apply(Apply(lambda inputs, outputs: None), [x], "y")
    with pytest.raises(GraphError, match=r"^Apply has no gradient rule, but a gradient was asked for through it$"):
        backward(total(graph, y), [x])


def test_a_gradient_is_not_lost_in_a_view() -> None:
    graph = Graph("net")
    x = graph.blob("x", (4,))
    rows = graph.view(x, "rows", shape=(2, 2))
    row = graph.view(rows, "row", [(0, 1), (0, 2)])
    loss = total(graph, row)
    message = (
        "^backward: 'x' is read as 'row', a view that no operator writes, and its gradient would be lost: read it "
        "through Slice or Reshape$"
    )
    with pytest.raises(GraphError, match=message):
        backward(loss, [x])
    gradients = backward(loss, [row])
    assert run(graph).fetch(gradients[row].name).tolist() == [[1, 1]]


def test_a_gradient_through_declared_parts_of_a_concat() -> None:
    graph = Graph("net")
    x = graph.blob("x", (2, 3))
    whole = graph.blob("whole", (4, 3))
    parts = [graph.view(whole, name, [rows, (0, 3)]) for name, rows in (("top", (0, 2)), ("bottom", (2, 4)))]
    for part, factor in zip(parts, (2.0, 3.0), strict=True):
        graph.connect([x], Scale(factor), [part])
    graph.connect(parts, Concat(0), [whole])
    gradients = backward(total(graph, graph.apply(Mul(), [whole, whole], "square")[0]), [x])
    executor = run(graph, x=[[1, 2, 3], [4, 5, 6]])
    assert executor.fetch(gradients[x].name).tolist() == [[26, 52, 78], [104, 130, 156]]


# Any graph ----------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(max(180, settings().max_examples))
@given(recipe=recipes(most=7, smooth=True))
def test_gradients_of_random_graphs_are_slopes(recipe: Recipe) -> None:
    """Fan-out, shared weights, sums of producers, dead ends, views: every source's gradient, by finite differences."""
    graph = recipe.graph()
    ends = [blob for blob in graph.blobs if not blob.consumers and blob.producers and blob.tensor.is_float]
    if not ends:
        return
    losses = {total(graph, blob, f"loss{k}"): (-1.0) ** k / max(1, blob.tensor.size) for k, blob in enumerate(ends)}
    wanted = differentiable(graph)
    gradients = backward(losses, wanted)
    with Serial(graph) as executor:
        values = recipe.feed(graph)
        executor.feed(values)
        executor.run()
        claimed = [executor.fetch(gradients[blob].name) for blob in wanted]

        def value(point: Sequence[Any]) -> float:
            executor.iteration = 0  # the same draws again
            executor.feed({blob.name: array for blob, array in zip(wanted, point, strict=True)})
            executor.run()
            return sum(weight * float(executor.fetch(loss.name)) for loss, weight in losses.items())

        try:
            check_gradient(value, claimed, [values[blob.name] for blob in wanted], directions=1, seed=recipe.seed)
        except Undecided:
            event("undecided")
