"""Aliasing, rule R5: what shares memory gives the bits that it would give without, or is refused with both names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from hooks import Apply, Delays, bits
from purine_ref.errors import GraphError
from purine_ref.executors import Executor, Serial, Simulated, Threaded
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph
from purine_ref.ops import (
    LRN,
    Concat,
    Constant,
    Copy,
    Identity,
    MaxPool2d,
    Mul,
    ReduceSum,
    ReLU,
    Reshape,
    Scale,
    Slice,
    Split,
    Sum,
    Tanh,
    WeightedSum,
)
from purine_ref.plan import Plan, prepare
from purine_ref.schedule import Schedule
from strategies import Recipe, tangles


def clash(root: str, op: str, verb: str, blob: str, other: str, theirs: str) -> str:
    """One line of the error: `op` reads or writes `blob`, and `other` reads or writes the same memory."""
    return re.escape(
        f"buffer of blob {root!r}: operator {op!r} {verb} it as {blob!r}, operator {other!r} {theirs} it too, and the "
        "graph does not order them rightly: give one of them memory of its own"
    )


def refuse(graph: Graph, *lines: str) -> None:
    """`prepare` must refuse the graph with these faults and no other."""
    with pytest.raises(GraphError, match=r"^" + "\n".join(lines) + "$"):
        prepare(graph)


def run(graph: Graph, **values: Any) -> dict[str, np.ndarray]:
    """Everything that can be fetched after two runs, the second from what the first left."""
    with Serial(graph) as executor:
        executor.feed({name: np.asarray(value, graph[name].dtype) for name, value in values.items()})
        executor.run()
        executor.run()
        return {b.name: executor.fetch(b.name) for b in graph.blobs if b not in executor.plan.lost}


def made(graph: Graph, name: str, shape: tuple[int, ...] = (4,)) -> Blob:
    """A blob that an operator writes: a multiple of a source."""
    return graph.apply(Scale(2.0), [graph.blob(f"{name}/source", shape)], name)[0]


# Concat and Split, which may move nothing ---------------------------------------------------------------------------


def test_op_09_one_blob_twice_in_one_concat() -> None:
    graph = Graph("case")
    x = graph.blob("x", (1, 2))
    (y,) = graph.apply(Concat(1), [x, x], "y")
    (loss,) = graph.apply(ReduceSum(), graph.apply(Mul(), [y, graph.blob("dy", (1, 4))], "p"), "loss")
    backward(loss, [x])
    got = run(graph, x=[[1, 2]], dy=[[10, 20, 30, 40]])
    assert got["y"].tolist() == [[1, 2, 1, 2]]
    assert got["x/grad"].tolist() == [[40, 60]]


def test_op_09_a_concat_in_a_concat_moves_nothing() -> None:
    graph = Graph("case")
    a, b, c = (made(graph, name, (1, length)) for name, length in (("a", 3), ("b", 2), ("c", 4)))
    (inner,) = graph.apply(Concat(1), [a, b], "inner")
    graph.apply(Concat(1), [inner, c], "outer")
    graph.apply(Scale(1.0), [inner], "reader")
    assert {op.name for op in prepare(graph).idle} == {"inner", "outer"}
    values = {"a/source": [[1, 2, 3]], "b/source": [[4, 5]], "c/source": [[6, 7, 8, 9]]}
    got = run(graph, **values)
    assert got["outer"].tolist() == [[2, 4, 6, 8, 10, 12, 14, 16, 18]]
    assert got["inner"].tolist() == got["reader"].tolist() == [[2, 4, 6, 8, 10]]


def test_op_09_one_blob_in_two_concats() -> None:
    graph = Graph("case")
    x, a, b = (made(graph, name, (1, length)) for name, length in (("x", 2), ("a", 3), ("b", 4)))
    graph.apply(Concat(1), [x, a], "first")
    graph.apply(Concat(1), [b, x], "second")
    assert len(prepare(graph).idle) == 1
    got = run(graph, **{"x/source": [[1, 2]], "a/source": [[3, 4, 5]], "b/source": [[6, 7, 8, 9]]})
    assert got["first"].tolist() == [[2, 4, 6, 8, 10]]
    assert got["second"].tolist() == [[12, 14, 16, 18, 2, 4]]


def test_a_source_in_a_concat_is_copied() -> None:
    graph = Graph("case")
    graph.apply(Concat(0), [graph.blob("x", (2, 3)), made(graph, "a", (1, 3))], "y")
    assert not prepare(graph).idle
    got = run(graph, **{"x": [[1, 2, 3], [4, 5, 6]], "a/source": [[7, 8, 9]]})
    assert got["y"].tolist() == [[1, 2, 3], [4, 5, 6], [14, 16, 18]]


def test_a_split_moves_nothing_with_empty_parts_too() -> None:
    graph = Graph("case")
    x = made(graph, "x", (2, 5))
    graph.apply(Split(1, (2, 0, 3)), [x], "y")
    assert {op.name for op in prepare(graph).idle} == {"y"}
    got = run(graph, **{"x/source": np.arange(10).reshape(2, 5)})
    assert got["y"].tolist() == [[0, 2], [10, 12]]
    assert got["y.1"].shape == (2, 0)
    assert got["y.2"].tolist() == [[4, 6, 8], [14, 16, 18]]


@pytest.mark.parametrize("operation", [Identity(), Reshape(())])
def test_a_blob_without_axes_is_moved_by_moving_nothing(operation: Any) -> None:
    """An index of no axes would give a number, and not the array that the other blob has."""
    graph = Graph("case")
    graph.apply(Scale(3.0), graph.apply(operation, [made(graph, "x", ())], "y"), "z")
    assert {op.name for op in prepare(graph).idle} == {"y"}
    assert run(graph, **{"x/source": 5.0})["z"] == 30


@pytest.mark.parametrize("reshape_first", [True, False])
def test_a_part_that_is_reshaped_is_copied_in_whatever_order_it_was_wired(reshape_first: bool) -> None:
    """A strided part cannot be seen in another shape; no graph without declared views is ever refused for that."""
    graph = Graph("case")
    x = made(graph, "x", (4, 6))
    left, right, flat = graph.blob("left", (4, 2)), graph.blob("right", (4, 4)), graph.blob("flat", (8,))
    wires = [([left], Reshape((8,)), [flat]), ([x], Split(1, (2, 4)), [left, right])]
    for inputs, operation, outputs in wires if reshape_first else wires[::-1]:
        graph.connect(inputs, operation, outputs)
    got = run(graph, **{"x/source": np.arange(24).reshape(4, 6)})
    assert got["flat"].tolist() == [0, 2, 12, 14, 24, 26, 36, 38]
    assert len(prepare(graph).idle) == 1


def test_one_of_several_producers_is_added_and_not_just_left_where_it_lies() -> None:
    graph = Graph("case")
    x = made(graph, "x")
    total = graph.blob("total", (4,))
    graph.connect([x], Identity(), [total], name="first")
    graph.connect([x], Identity(), [total], name="second")
    assert not prepare(graph).idle
    assert run(graph, **{"x/source": [1, 2, 3, 4]})["total"].tolist() == [4, 8, 12, 16]


def test_two_identities_into_a_declared_view_are_not_one() -> None:
    graph = Graph("case")
    x = made(graph, "x")
    total = graph.view(x, "total")
    graph.connect([x], Identity(), [total], name="first")
    graph.connect([x], Identity(), [total], name="second")
    with pytest.raises(GraphError, match=clash("x", "second", "reads", "x", "first", "writes")):
        prepare(graph)


# In place -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [LRN(3), MaxPool2d(2), Scale(-2.0)])
def test_op_13_a_relu_in_place_gives_the_gradient_of_the_plain_graph(operation: Any) -> None:
    """These do not read their own outputs for their gradients, so that a ReLU may overwrite them."""
    found = []
    for in_place in (True, False):
        graph = Graph("case")
        x = graph.blob("x", (2, 3, 4, 6))
        y = graph.apply(operation, [x], "y")[0]
        r = graph.view(y, "r") if in_place else graph.blob("r", y.shape)
        graph.connect([y], ReLU(), [r])
        (loss,) = graph.apply(ReduceSum(), graph.apply(Mul(), [r, r], "p"), "loss")
        backward(loss, [x])
        found.append(run(graph, x=np.random.default_rng(0).standard_normal((2, 3, 4, 6)))["x/grad"].tobytes())
    assert found[0] == found[1]


def test_op_13_what_the_backward_pass_reads_is_not_overwritten() -> None:
    """The gradient of Tanh reads its output: forward alone may overwrite it, with the gradient it is refused."""
    graph = Graph("case")
    x = graph.blob("x", (3, 2))
    (y,) = graph.apply(Tanh(), [x], "y")
    r = graph.view(y, "r")
    graph.connect([y], ReLU(), [r])
    prepare(graph)
    (loss,) = graph.apply(ReduceSum(), [r], "loss")
    backward(loss, [x])
    refuse(graph, clash("y", "y/TanhGradient", "reads", "y", "r", "writes"))


def test_op_13_b_an_activation_in_place_differentiates_from_its_output() -> None:
    graph = Graph("case")
    x = graph.blob("x", (3,))
    (h,) = graph.apply(Scale(-1.0), [x], "h")
    y = graph.view(h, "y")
    graph.connect([h], Tanh(), [y])
    (loss,) = graph.apply(ReduceSum(), [y], "loss")
    backward(loss, [x])
    got = run(graph, x=[-2, 0, 0.5])
    np.testing.assert_allclose(got["x/grad"], -1 / np.cosh([2, 0, 0.5]) ** 2, rtol=1e-5)


def test_op_13_c_a_multiple_in_place() -> None:
    """y = 1024 x + 128, the product in place: dx = 1024 dy, whatever the memory holds by then."""
    graph = Graph("case")
    x = graph.blob("x", (2,))
    (h,) = graph.apply(Copy(), [x], "h")
    product = graph.view(h, "product")
    graph.connect([h], Scale(1024.0), [product])
    y = graph.view(product, "y")
    offset = graph.apply(Constant(128.0, (2,)), [], "offset")
    graph.connect([product, *offset], Sum(), [y])
    (loss,) = graph.apply(WeightedSum((3.0,)), graph.apply(ReduceSum(), [y], "sum"), "loss")
    backward(loss, [x])
    got = run(graph, x=[1, -2])
    assert got["y"].tolist() == [1152, -1920]
    assert got["x/grad"].tolist() == [3072, 3072]


def part_in_place(ordered: bool, parent_is_source: bool) -> Graph:
    """x = [1, -2, 3, -4] split in two, the first part rectified in place, while another operator reads x."""
    graph = Graph("case")
    x = graph.blob("x", (4,))
    if not parent_is_source:
        (x,) = graph.apply(Scale(1.0), [x], "copied")
    part, _ = graph.apply(Split(0, (2, 2)), [x], "part")
    (read,) = graph.apply(Scale(10.0), [x], "read")
    rectified = graph.view(part, "rectified")
    if ordered:  # the reader comes first: the place of the ReLU waits for it
        (zero,) = graph.apply(Scale(0.0), graph.apply(Slice(0, 0, 2), [read], "some"), "zero")
        graph.connect([part, zero], Sum(), [rectified])
    else:
        graph.connect([part], ReLU(), [rectified])
    return graph


def test_op_13_d_a_part_of_a_source_in_place_never_changes_what_others_read() -> None:
    for source in (True, False):
        for ordered in (True, False):
            got = run(part_in_place(ordered, source), x=[1, -2, 3, -4])
            assert got["read"].tolist() == [10, -20, 30, -40]
            assert got["rectified"].tolist() == ([1, -2] if ordered else [1, 0])


def declared_part_in_place(ordered: bool) -> Graph:
    """As OP-13 (d), with the part a declared view, so that the ReLU really overwrites what the reader reads."""
    graph = Graph("case")
    (x,) = graph.apply(Scale(1.0), [graph.blob("x", (4,))], "copied")
    part = graph.view(x, "part", [(0, 2)])
    graph.connect([x], Slice(0, 0, 2), [part])
    (read,) = graph.apply(Scale(10.0), [x], "read")
    rectified = graph.view(part, "rectified")
    after = graph.apply(Slice(0, 0, 2), [read], "after") if ordered else ()
    graph.connect([part, *after], Sum(), [rectified])
    graph.apply(Scale(1.0), [rectified], "seen")  # the part as it is now, whatever lies around it
    return graph


def test_op_13_d_a_declared_part_in_place() -> None:
    refuse(declared_part_in_place(ordered=False), clash("copied", "rectified", "writes", "rectified", "read", "reads"))
    plan = prepare(declared_part_in_place(ordered=True))
    assert {blob.name for blob in plan.lost} == {"copied", "part"}
    got = run(declared_part_in_place(ordered=True), x=[1, -2, 3, -4])
    assert got["read"].tolist() == [10, -20, 30, -40]
    assert got["rectified"].tolist() == got["seen"].tolist() == [11, -22]


def test_a_chain_in_place_of_any_length() -> None:
    graph = Graph("chain")
    blob = made(graph, "x")
    for number in range(50):
        following = graph.view(blob, f"y{number}")
        graph.connect([blob], Scale(-1.0), [following])
        blob = following
    got = run(graph, **{"x/source": [1, -2, 3, -4]})
    assert set(got) == {"x/source", "y49"}
    assert got["y49"].tolist() == [2, -4, 6, -8]


def test_an_operation_that_is_not_made_for_it_cannot_work_in_place() -> None:
    graph = Graph("case")
    x = made(graph, "x")
    graph.connect([x], WeightedSum((1.0,)), [graph.view(x, "y")])
    refuse(graph, clash("x", "y", "writes", "y", "y", "reads"))


def test_in_place_reads_no_other_part_of_what_it_writes() -> None:
    """Sum([a, b]) over a, where b lies half in a: what it wrote already, it would read again."""
    graph = Graph("case")
    x = made(graph, "x", (5,))
    a, b = graph.view(x, "a", [(0, 3)]), graph.view(x, "b", [(1, 4)])
    graph.connect([x], Slice(0, 0, 3), [a])
    graph.connect([x], Slice(0, 1, 4), [b])
    graph.connect([a, b], Sum(), [graph.view(a, "y")])
    line = clash("x", "y", "writes", "y", "y", "reads")
    refuse(graph, line)


def test_in_place_of_one_blob_wired_twice() -> None:
    graph = Graph("case")
    x = made(graph, "x")
    graph.connect([x, x], Sum(), [graph.view(x, "y")])
    assert run(graph, **{"x/source": [1, 2, 3, 4]})["y"].tolist() == [4, 8, 12, 16]


def test_only_the_first_output_may_be_in_place() -> None:
    class Two(Apply):
        in_place = True

        def infer(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
            return (inputs[0], inputs[0])

    graph = Graph("case")
    x = made(graph, "x")
    graph.connect([x], Two(lambda inputs, outputs: None), [graph.blob("y", (4,)), graph.view(x, "z")])
    refuse(graph, clash("x", "y", "writes", "z", "y", "reads"))


# Unordered and stale accesses ---------------------------------------------------------------------------------------


def test_unordered_writes() -> None:
    graph = Graph("case")
    x = made(graph, "x")
    graph.apply(Constant(5.0, (4,)), [], "five")
    y = graph.view(x, "y")
    graph.connect([graph["five"]], Scale(1.0), [y])
    refuse(graph, clash("x", "y", "writes", "y", "x", "writes"))


def test_a_write_beside_a_read() -> None:
    graph = Graph("case")
    x = made(graph, "x")
    graph.connect([x], ReLU(), [graph.view(x, "y")])
    graph.apply(Scale(3.0), [x], "z")
    refuse(graph, clash("x", "z", "reads", "x", "y", "writes"))


def test_a_read_after_it_was_overwritten() -> None:
    graph = Graph("case")
    x = made(graph, "x")
    y = graph.view(x, "y")
    graph.connect([x], ReLU(), [y])
    (late,) = graph.apply(Scale(1.0), [y], "late")
    graph.apply(Sum(), [late, x], "z")
    refuse(graph, clash("x", "z", "reads", "x", "y", "writes"))


def test_reads_that_are_ordered_before_the_write() -> None:
    graph = Graph("case")
    x = made(graph, "x")
    (read,) = graph.apply(Scale(3.0), [x], "read")
    graph.connect([read], Scale(5.0), [graph.view(x, "y")])
    got = run(graph, **{"x/source": [1, 2, 3, 4]})
    assert got["y"].tolist() == [30, 60, 90, 120]
    assert "x" not in got


@pytest.mark.parametrize(
    ("box", "free"), [(((2, 4), (0, 3)), True), (((1, 3), (0, 3)), False), (((0, 2), (2, 3)), False)]
)
def test_parts_that_overlap_and_parts_that_do_not(box: tuple[tuple[int, int], ...], free: bool) -> None:
    """Two operators write boxes of one buffer, unordered."""
    graph = Graph("case")
    whole = graph.blob("whole", (4, 3))
    first, second = graph.view(whole, "first", ((0, 2), (0, 3))), graph.view(whole, "second", box)
    graph.connect([], Constant(1.0, first.shape), [first])
    graph.connect([], Constant(2.0, second.shape), [second])
    if free:
        assert run(graph)["first"].tolist() == [[1, 1, 1]] * 2
    else:
        refuse(graph, clash("whole", "second", "writes", "second", "first", "writes"))


def test_columns_beside_each_other_share_an_interval_but_no_element() -> None:
    graph = Graph("case")
    whole = graph.blob("whole", (4, 3))
    for name, box in (("left", ((0, 4), (0, 1))), ("right", ((0, 4), (1, 3)))):
        graph.connect([], Constant(1.0, (4, box[1][1] - box[1][0])), [graph.view(whole, name, box)])
    prepare(graph)


def test_empty_parts_clash_with_nothing() -> None:
    graph = Graph("case")
    whole = graph.blob("whole", (4, 3))
    graph.connect([], Constant(1.0, (0, 3)), [graph.view(whole, "nothing", ((2, 2), (0, 3)))])
    graph.connect([], Constant(2.0, (4, 3)), [graph.view(whole, "all")])
    assert run(graph)["all"].tolist() == [[2, 2, 2]] * 4


def test_two_outputs_of_one_operator_in_one_place() -> None:
    graph = Graph("case")
    x, whole = made(graph, "x", (6,)), graph.blob("whole", (5,))
    graph.connect([x], Split(0, (3, 3)), [graph.view(whole, "a", [(0, 3)]), graph.view(whole, "b", [(2, 5)])])
    refuse(graph, clash("whole", "a", "writes", "b", "a", "writes"))


def test_a_view_of_a_view_in_another_shape() -> None:
    """Rows of a matrix, flat, then a part of these: the intervals of the elements tell who overlaps."""
    graph = Graph("case")
    whole = graph.blob("whole", (4, 6))
    rows = graph.view(whole, "rows", ((1, 3), (0, 6)), (12,))
    inner = graph.view(rows, "inner", [(6, 12)])
    graph.connect([], Constant(1.0, (6,)), [inner])
    graph.connect([], Constant(2.0, (1, 6)), [graph.view(whole, "below", ((3, 4), (0, 6)))])
    got = run(graph)
    assert got["inner"].tolist() == [1] * 6
    graph.connect([], Constant(3.0, (1, 6)), [graph.view(whole, "same", ((2, 3), (0, 6)))])
    refuse(graph, clash("whole", "same", "writes", "same", "inner", "writes"))


def test_a_strided_part_cannot_be_seen_in_another_shape() -> None:
    graph = Graph("case")
    whole = graph.blob("whole", (4, 6))
    graph.view(graph.view(whole, "left", ((0, 4), (0, 2))), "flat", shape=(8,))
    refuse(graph, r"graph 'case': view 'flat' of 'left' cannot be seen as \(8,\): it is strided")


def test_a_part_of_a_source_is_read_where_it_lies() -> None:
    graph = Graph("case")
    x = graph.blob("x", (4, 3))
    part = graph.view(graph.view(x, "rows", ((1, 3), (0, 3))), "flat", shape=(6,))
    graph.apply(Scale(2.0), [part], "y")
    graph.apply(Scale(3.0), [x], "z")
    assert run(graph, x=np.arange(12).reshape(4, 3))["y"].tolist() == [6, 8, 10, 12, 14, 16]


def test_r6_a_run_does_not_overwrite_what_it_starts_from() -> None:
    """Without a second feed, the next run would start from the result of this one."""
    graph = Graph("case")
    x = graph.blob("x", (4,))
    graph.connect([x], Scale(2.0), [graph.view(x, "y")])
    refuse(
        graph,
        "buffer of blob 'x': operator 'y' writes it as 'y', but it holds 'x', which no operator writes anew for the "
        "next run: give one memory of its own",
    )


def test_r6_a_run_does_not_overwrite_a_persistent_blob() -> None:
    graph = Graph("case")
    w = graph.blob("w", (4,), persistent=True)
    graph.connect([], Constant(2.0, (2,)), [graph.view(w, "y", [(0, 2)])])
    refuse(
        graph,
        "buffer of blob 'w': operator 'y' writes it as 'y', but it holds 'w', which no operator writes anew for the "
        "next run: give one memory of its own",
    )


# Several producers --------------------------------------------------------------------------------------------------


def late_producer(extra: int) -> Graph:
    """b, in the memory of c, has two producers: `early` comes after all that c is for; `late` after nothing of it."""
    graph = Graph("case")
    source = graph.blob("source", (4,))
    (c,) = graph.apply(Scale(2.0), [source], "c")
    (d,) = graph.apply(Scale(3.0), [c], "d")
    late = source
    for number in range(extra):
        (late,) = graph.apply(Scale(1.0), [late], f"e{number}")
    b = graph.view(c, "b")
    graph.connect([late], Scale(1.0), [b], name="late")
    graph.connect([d], Scale(1.0), [b], name="early")
    return graph


@pytest.mark.parametrize("extra", [0, 1, 5])
def test_every_producer_of_a_blob_must_come_after_what_it_overwrites(extra: int) -> None:
    """Also one that comes late in the order in which the check walks: the first edge writes, whenever it comes."""
    with pytest.raises(GraphError) as caught:
        prepare(late_producer(extra))
    named = {name for problem in caught.value.problems for name in re.findall(r"operator '(\w+)'", problem)}
    assert {"late", "c"} <= named


def test_what_is_not_complete_is_not_overwritten() -> None:
    """x has two producers; y overwrites it after the first of them, by a path that does not go through x."""

    class Two(Apply):
        in_place = True

        def infer(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
            return (inputs[0], inputs[0])

    graph = Graph("case")
    source = graph.blob("source", (4,))
    x, other = graph.blob("x", (4,)), graph.blob("other", (4,))
    graph.connect([source], Two(lambda inputs, outputs: None), [x, other], name="first")
    late = source
    for number in range(4):
        (late,) = graph.apply(Scale(1.0), [late], f"late{number}")
    graph.connect([late], Scale(1.0), [x], name="second")
    graph.connect([other], Scale(1.0), [graph.view(x, "y")])
    refuse(graph, clash("x", "y", "writes", "y", "second", "writes"))


def test_several_producers_over_what_they_wait_for() -> None:
    graph = Graph("case")
    x = made(graph, "x")
    b = graph.view(x, "b")
    (c,) = graph.apply(Scale(3.0), [x], "c")
    (d,) = graph.apply(Scale(5.0), [x], "d")
    (both,) = graph.apply(Sum(), [c, d], "both")
    graph.connect([both], Scale(1.0), [b], name="first")
    graph.connect([both], Scale(-2.0), [b], name="second")
    assert run(graph, **{"x/source": [1, 2, 3, 4]})["b"].tolist() == [-16, -32, -48, -64]


# A chain of shared memory and a wide one ----------------------------------------------------------------------------


def test_a_buffer_of_many_parts_is_checked_part_by_part() -> None:
    graph = Graph("case")
    parts = [graph.apply(Constant(float(number), (1, 3)), [], f"p{number}")[0] for number in range(100)]
    (whole,) = graph.apply(Concat(0), parts, "whole")
    graph.apply(Split(0, (40, 60)), [whole], "half")
    plan = prepare(graph)
    assert {op.name for op in plan.idle} == {"whole", "half"}
    got = run(graph)
    assert got["half.1"][:, 2].tolist() == list(range(40, 100))


# Anything -----------------------------------------------------------------------------------------------------------

PATIENCE = max(180, settings().max_examples)
"""Seconds: more where hypothesis is asked for many examples."""


def any_order(plan: Plan, rng: np.random.Generator) -> list[str]:
    """A topological order, chosen at random."""
    schedule = Schedule(plan)
    ready, order = list(schedule.ready()), []
    while ready:
        op = ready.pop(int(rng.integers(len(ready))))
        order.append(plan.graph.ops[op].name)
        ready += schedule.done(op)
    return order


def two_runs(executor: Executor, recipe: Recipe) -> dict[str, bytes]:
    """The bits after two runs of which only the first was fed."""
    with executor:
        executor.feed(recipe.feed(executor.graph, integers=True))
        executor.run()
        executor.run()
        return bits(executor)


@pytest.mark.timeout(PATIENCE)
@given(recipe=tangles(), threads=st.integers(2, 8))
def test_any_declared_views_are_refused_or_give_the_bits_of_the_graph_without(recipe: Recipe, threads: int) -> None:
    graph = recipe.graph()
    try:
        plan = prepare(graph)
    except GraphError:
        assert recipe.parts, "a graph without declared views was refused"
        event("refused")
        return
    event(f"accepted with {min(len(recipe.parts), 2)} declared views or more")
    expected = two_runs(Serial(recipe.graph(views=False)), recipe)
    rng = np.random.default_rng(recipe.seed)
    executors: list[Callable[[], Executor]] = [
        lambda: Serial(graph),
        *(lambda: Serial(graph, order=any_order(plan, rng)) for _ in range(3)),
        lambda: Simulated(graph, threads=threads, seconds=rng.random(len(graph.ops)).tolist()),
        lambda: Threaded(graph, threads=threads, observer=Delays(recipe.seed)),
    ]
    for make in executors:
        got = two_runs(make(), recipe)
        assert got == {name: expected[name] for name in got}
        assert expected.keys() - got.keys() == {blob.name for blob in plan.lost}
