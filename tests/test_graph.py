"""The bi-graph: rule R1, names, construction and its errors, views, swaps, walks over whole graphs, and `prepare`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import numpy as np
import pytest

from hooks import SHAPE, Call, Swallow, call
from purine_ref.devices import CpuDevice, cpu_devices
from purine_ref.errors import CycleError, GraphError, ShapeError
from purine_ref.executors import Serial
from purine_ref.gradients import backward
from purine_ref.graph import Graph
from purine_ref.ops import (
    Bernoulli,
    Concat,
    Constant,
    Copy,
    Gaussian,
    Linear,
    MaxPool2d,
    Mul,
    ReduceSum,
    ReLU,
    Scale,
    Split,
    Sum,
    Tanh,
)
from purine_ref.plan import prepare
from purine_ref.tensor import Location, Tensor
from purine_ref.traversal import needed, prune, topological_order

DEVICE = Location(0, 0)


# Construction -------------------------------------------------------------------------------------------------------


def test_r1_edges_are_recorded_on_both_sides_with_their_slots() -> None:
    graph = Graph("net")
    a, b = graph.blob("a", (2, 3)), graph.blob("b", (2, 3))
    c, d = graph.blob("c", (2, 3)), graph.blob("d", (2, 3))
    first = graph.connect([a, b, a], Sum(), [c])
    second = graph.connect([a], Sum(), [c])
    third = graph.connect([c], ReLU(), [d])
    assert a.consumers == [(first, 0), (first, 2), (second, 0)]
    assert b.consumers == [(first, 1)]
    assert c.producers == [(first, 0), (second, 0)]
    assert c.consumers == [(third, 0)]
    assert (first.inputs, first.outputs) == ((a, b, a), (c,))
    assert [op.index for op in graph.ops] == [0, 1, 2]
    assert [blob.index for blob in graph.blobs] == [0, 1, 2, 3]


def test_the_sugar_is_connect() -> None:
    graph = Graph("net")
    x, w, y = graph.blob("x", (5, 3)), graph.blob("w", (4, 3)), graph.blob("y", (5, 4))
    op = [x, w] >> Linear() >> [y]
    assert op is graph.ops[0]
    assert (op.inputs, op.outputs, op.name) == ((x, w), (y,), "y")
    source = [] >> Constant(2.0, (5, 4)) >> [y]
    assert (source.inputs, source.name) == ((), "y.2")
    sink = [y] >> Swallow(print) >> []
    assert (sink.outputs, sink.name) == ((), "Swallow")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda x, y: x >> ReLU() >> [y],
            r"write \[blob, ...\] >> ReLU(...) >> \[blob, ...\]; got Blob on the left",
        ),
        (lambda x, y: [x] >> ReLU() >> y, r"write >> \[blob, ...\] after ReLU; got Blob"),
        (lambda x, y: [] >> Swallow(print) >> [], r"Swallow must be wired to the blobs of a graph, got \[\]"),
        (lambda x, y: ["x"] >> ReLU() >> [], r"ReLU must be wired to the blobs of a graph, got \['x'\]"),
    ],
)
def test_wrong_sugar(write: Callable[..., object], message: str) -> None:
    graph = Graph("net")
    with pytest.raises(GraphError, match=r"^" + message.replace("(...)", r"\(...\)") + "$"):
        write(graph.blob("x", (2, 3)), graph.blob("y", (2, 3)))
    assert not graph.ops


def test_apply_makes_the_outputs() -> None:
    graph = Graph("net")
    x = graph.blob("x", (2, 3, 7, 5), "float64")
    pooled, places = graph.apply(MaxPool2d(2), [x], "pool")
    assert (pooled.name, pooled.tensor) == ("pool", Tensor((2, 3, 4, 3), "float64"))
    assert (places.name, places.tensor) == ("pool.1", Tensor((2, 3, 4, 3), "int64"))
    assert graph.op("pool").outputs == (pooled, places)


def test_r1_a_blob_joins_only_operators_and_an_operator_only_blobs() -> None:
    graph, other = Graph("net"), Graph("other")
    x, y, strange = graph.blob("x", (2, 3)), graph.blob("y", (2, 3)), other.blob("z", (2, 3))
    op = graph.connect([x], ReLU(), [y])
    with pytest.raises(
        GraphError, match=r"^ReLU: an operator joins only blobs, a blob only operators; got Op <Op y ReLU>$"
    ):
        graph.connect([op], ReLU(), [y])  # type: ignore[list-item]
    with pytest.raises(
        GraphError, match=r"^connect needs an Operation between blobs, got Blob: <Blob y float32\[2, 3\]>$"
    ):
        graph.connect([x], y, [y])  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=r"^ReLU: blob 'z' is of graph 'other', not of 'net'$"):
        graph.connect([x], ReLU(), [strange])
    assert len(graph.ops) == 1


def test_what_an_operation_refuses_names_the_operator_and_its_inputs() -> None:
    graph = Graph("net")
    x, w = graph.blob("x", (5, 3)), graph.blob("w", (4, 3), "float64")
    with pytest.raises(
        ShapeError,
        match=r"^operator 'fc': Linear: .* \(inputs: x float32\[5, 3\], w float64\[4, 3\]\)$",
    ):
        graph.apply(Linear(), [x, w], "fc")
    with pytest.raises(
        ShapeError, match=r"^operator 'none': Sum: expected one input or more, got none \(inputs: none\)$"
    ):
        graph.apply(Sum(), [], "none")
    with pytest.raises(
        ShapeError, match=r"^operator 'w': output 'w' must be float32\[5, 3\], but the blob is float64\[4, 3\]$"
    ):
        graph.connect([x], ReLU(), [w])
    with pytest.raises(ShapeError, match=r"^operator 'x': ReLU has 1 outputs, got 2 blobs$"):
        graph.connect([x], ReLU(), [x, w])
    assert not graph.ops
    assert not x.consumers


# Names --------------------------------------------------------------------------------------------------------------


def test_scopes_nest_and_end() -> None:
    graph = Graph("net")
    with graph.scope("nin1"):
        x = graph.blob("x", (2, 3))
        with graph.scope("conv"):
            (y,) = graph.apply(ReLU(), [x], "y")
            with graph.scope(None):
                root = graph.blob("root", (2,))
        with pytest.raises(ZeroDivisionError), graph.scope("broken"):
            raise ZeroDivisionError("1 / 0")
        last = graph.blob("last", (2,))
    assert [blob.name for blob in (x, y, root, last)] == ["nin1/x", "nin1/conv/y", "root", "nin1/last"]
    assert graph["nin1/conv/y"] is y
    assert graph.op("nin1/conv/y").outputs == (y,)
    assert graph.blob("after", ()).name == "after"
    assert "nin1/x" in graph
    assert "x" not in graph


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "a\nb", 7, None])
def test_malformed_names(name: str) -> None:
    graph = Graph("net")
    message = re.escape(f"a name must be printable words joined by single slashes, like 'nin1/conv', got {name!r}")
    with pytest.raises(GraphError, match=rf"^{message}$"):
        graph.blob(name, (2, 3))
    x = graph.blob("x", (2, 3))
    if name is not None:
        with pytest.raises(GraphError, match=rf"^{message}$"):
            graph.connect([x], Swallow(print), [], name=name)
    assert not graph.ops


def test_names_are_unique_and_close_ones_are_suggested() -> None:
    graph = Graph("net")
    x = graph.blob("conv/weight", (2, 3))
    with pytest.raises(GraphError, match=r"^graph 'net' already has a blob 'conv/weight'; blob names must be unique$"):
        graph.blob("conv/weight", (4,))
    graph.connect([x], Swallow(print), [], name="sink")
    with pytest.raises(
        GraphError, match=r"^graph 'net' already has an operator 'sink'; operator names must be unique$"
    ):
        graph.connect([x], Swallow(print), [], name="sink")
    with pytest.raises(GraphError, match=r"^graph 'net' has no blob 'conv/wieght'; nearest: conv/weight$"):
        graph["conv/wieght"]
    with pytest.raises(GraphError, match=r"^graph 'net' has no operator 'skin'; nearest: sink$"):
        graph.op("skin")
    with pytest.raises(GraphError, match=r"^graph 'net' has no blob 'zzz'$"):
        graph["zzz"]


def test_free_names() -> None:
    graph = Graph("net")
    assert graph.free_name("x") == "x"
    call(graph, "x")
    assert graph.free_name("x") == "x.2"
    graph.connect([], Swallow(print), [], name="x.2")
    assert graph.free_name("x") == "x.3"
    with graph.scope("inner"):
        assert graph.free_name("x") == "x"


def test_operators_without_a_name_are_numbered() -> None:
    graph = Graph("net")
    x = graph.blob("x", SHAPE, "float64")
    names = [graph.connect([], Call(), [x]).name for _ in range(3)]
    assert names == ["x", "x.2", "x.3"]
    assert [graph.connect([x], Swallow(print), []).name for _ in range(2)] == ["Swallow", "Swallow.2"]


def test_a_draw_is_keyed_by_the_name_of_its_operator_unless_it_has_a_stream() -> None:
    graph = Graph("net")
    with graph.scope("noise"):
        graph.apply(Gaussian((2, 3)), [], "own")
        graph.apply(Bernoulli((2, 3), stream="given"), [], "other")
    assert graph.op("noise/own").operation == Gaussian((2, 3), stream="noise/own")
    assert graph.op("noise/other").operation == Bernoulli((2, 3), stream="given")


# Places -------------------------------------------------------------------------------------------------------------


def test_an_operator_is_where_its_blobs_are() -> None:
    graph = Graph("net")
    here, there = graph.blob("here", (2, 3)), graph.blob("there", (2, 3), location=DEVICE)
    assert graph.connect([there], ReLU(), [graph.blob("y", (2, 3), location=DEVICE)]).location == DEVICE
    assert graph.apply(ReLU(), [there], "z")[0].location == DEVICE
    assert graph.apply(Constant(1.0, (2, 3)), [], "one", location=DEVICE)[0].location == DEVICE
    message = r"^operator '{}' \({}\) at {} cannot use blob '{}' at {}: put a Copy between them$"
    with pytest.raises(GraphError, match=message.format("sum", "Sum", "cpu", "there", "device0")):
        graph.apply(Sum(), [here, there], "sum")
    with pytest.raises(GraphError, match=message.format("here", "ReLU", "device0", "here", "cpu")):
        graph.connect([there], ReLU(), [here])
    with pytest.raises(GraphError, match=message.format("x", "ReLU", "device0", "here", "cpu")):
        graph.apply(ReLU(), [here], "x", location=DEVICE)


def test_a_copy_joins_two_places() -> None:
    graph = Graph("net")
    here, there = graph.blob("here", (2, 3)), graph.blob("there", (2, 3), location=DEVICE)
    graph.connect([here], Copy(DEVICE), [there])
    assert graph.apply(Copy(Location(1)), [there], "far")[0].location == Location(1)
    assert graph.apply(Copy(), [there], "same")[0].location == DEVICE
    assert graph.connect([here], Copy(DEVICE), [there], location=DEVICE).location == DEVICE
    message = r"^operator 'back' \(Copy\) at {} cannot use blob '{}' at {}: put a Copy between them$"
    with pytest.raises(GraphError, match=message.format("device0", "here", "cpu")):
        graph.connect([there], Copy(), [here], name="back")
    with pytest.raises(GraphError, match=message.format("device0", "here", "cpu")):
        graph.connect([there], Copy(Location(1)), [here], name="back")
    with pytest.raises(GraphError, match=message.format("rank1/cpu", "there", "device0")):
        graph.connect([there], Copy(Location()), [here], name="back", location=Location(1))
    graph.connect([there], Copy(Location()), [here], name="back")


# Parameters, views, swaps -------------------------------------------------------------------------------------------


def test_parameters() -> None:
    graph = Graph("net")
    with graph.scope("fc"):
        w = graph.parameter("w", (4, 3), "float32", Gaussian((4, 3)), rate=2.0, decay=0.5)
    assert graph.parameters == [w]
    assert w.persistent
    assert graph.initial == {"fc/w": Gaussian((4, 3), stream="fc/w/initial")}
    assert graph.multipliers == {"fc/w": (2.0, 0.5)}
    with pytest.raises(ShapeError, match=r"^parameter 'v' is float32\[4\], but its initial value .* is float32\[5\]$"):
        graph.parameter("v", (4,), "float32", Constant(0.0, (5,)))


def test_views_are_described() -> None:
    graph = Graph("net")
    x = graph.blob("x", (4, 6), "float64", DEVICE)
    part = graph.view(x, "part", [(1, 3), (0, 6)], (3, 4))
    assert part.tensor == Tensor((3, 4), "float64", DEVICE)
    assert part.view is not None
    assert (part.view.parent, part.view.box, part.view.shape) == (x, ((1, 3), (0, 6)), (3, 4))
    assert graph.view(x, "all").shape == (4, 6)


@pytest.mark.parametrize("box", [[(0, 5), (0, 6)], [(-1, 2), (0, 6)], [(3, 2), (0, 6)], [(0, 4)], []])
def test_a_view_lies_in_its_parent(box: list[tuple[int, int]]) -> None:
    graph = Graph("net")
    message = re.escape(f"view 'part': box {tuple(box)} does not lie in 'x' of shape (4, 6)")
    with pytest.raises(ShapeError, match=rf"^{message}$"):
        graph.view(graph.blob("x", (4, 6)), "part", box)


def test_a_view_has_the_elements_of_its_box() -> None:
    graph = Graph("net")
    message = r"^view 'part': \(2, 6\) of 'x' cannot be seen as \(5, 2\): sizes differ$"
    with pytest.raises(ShapeError, match=message):
        graph.view(graph.blob("x", (4, 6)), "part", [(0, 2), (0, 6)], (5, 2))
    with pytest.raises(GraphError, match=r"^view: blob 'y' is of graph 'other', not of 'net'$"):
        graph.view(Graph("other").blob("y", (2,)), "z")


def test_r6_swaps() -> None:
    graph = Graph("net")
    a, b, c = (graph.blob(name, (2, 3)) for name in "abc")
    graph.swap(a, b)
    assert graph.pairs == [(a, b)]
    assert a.persistent
    assert b.persistent
    with pytest.raises(GraphError, match=r"^swap of 'b' and 'c': 'b' is a view or in a pair$"):
        graph.swap(b, c)
    with pytest.raises(GraphError, match=r"^swap of 'c' and 'v': 'v' is a view or in a pair$"):
        graph.swap(c, graph.view(c, "v"))
    description = re.escape("<Blob c float32[2, 3]> and <Blob d float64[2, 3]>")
    with pytest.raises(GraphError, match=rf"^swap needs two blobs of one description, got {description}$"):
        graph.swap(c, graph.blob("d", (2, 3), "float64"))
    with pytest.raises(GraphError, match=r"^swap needs two blobs of one description, got .*$"):
        graph.swap(c, c)
    assert graph.pairs == [(a, b)]


# Questions ----------------------------------------------------------------------------------------------------------


def test_r3_sources_and_sinks() -> None:
    graph = Graph("net")
    x, lonely = graph.blob("x", SHAPE, "float64"), graph.blob("lonely", (2,))
    y = call(graph, "y", [x])
    one = call(graph, "one")
    sink = graph.connect([y], Swallow(print), [], name="sink")
    alone = graph.connect([], Swallow(print), [], name="alone")
    assert graph.sources == [graph.op("one"), alone, x, lonely]
    assert graph.sinks == [sink, alone, lonely, one]
    assert (Graph("empty").sources, Graph("empty").sinks) == ([], [])


def test_memory_is_estimated_for_each_place() -> None:
    graph = Graph("net")
    x = graph.blob("x", (4, 6), "float64")
    graph.view(x, "part", [(0, 2), (0, 6)])
    graph.blob("labels", (5,), "int64")
    graph.blob("there", (3, 2), location=DEVICE)
    graph.blob("none", (0, 7), location=DEVICE)
    graph.blob("large", (2**40, 2**30), location=Location(1))
    assert graph.memory() == {Location(): 4 * 6 * 8 + 5 * 8, DEVICE: 3 * 2 * 4, Location(1): 2**72}


def test_what_is_printed() -> None:
    graph = Graph("net")
    x = graph.blob("x", (2, 3), location=DEVICE)
    op = graph.connect([x], ReLU(), [graph.blob("y", (2, 3), location=DEVICE)])
    assert repr(graph) == "<Graph net: 1 operators, 2 blobs>"
    assert repr(x) == "<Blob x float32[2, 3]>"
    assert repr(op) == "<Op y ReLU>"
    assert op.describe() == "operator 'y' (ReLU) at device0, inputs: x float32[2, 3]"


# Walks --------------------------------------------------------------------------------------------------------------


def test_the_topological_order_is_the_order_of_becoming_ready() -> None:
    graph = Graph("net")
    x = graph.blob("x", SHAPE, "float64")
    late = graph.blob("late", SHAPE, "float64")
    call(graph, "last", [late, x])
    graph.connect([x], Call(), [late], name="first")
    call(graph, "middle", [late])
    assert [op.name for op in topological_order(graph)] == ["first", "last", "middle"]


def test_the_topological_order_waits_for_every_producer() -> None:
    graph = Graph("net")
    total = graph.blob("total", SHAPE, "float64")
    call(graph, "reader", [total, total])
    graph.connect([], Call(), [total], name="early")
    graph.connect([call(graph, "before", [call(graph, "first")])], Call(), [total], name="late")
    assert [op.name for op in topological_order(graph)] == ["early", "first", "before", "late", "reader"]


def cycle_of(names: list[str]) -> Graph:
    """Each of the blobs makes the next, and the last the first."""
    graph = Graph("case")
    blobs = [graph.blob(name, SHAPE, "float64") for name in names]
    for number, blob in enumerate(blobs):
        graph.connect([blobs[number - 1]], Call(), [blob], name=f"to-{blob.name}")
    return graph


def refuse_cycle(graph: Graph, *expected: str) -> None:
    """`prepare` must find one of the ways in which the cycle can be written, soon."""
    begun = time.thread_time()
    with pytest.raises(CycleError) as caught:
        prepare(graph)
    assert time.thread_time() - begun < 1
    assert " -> ".join(caught.value.cycle) in expected
    assert str(caught.value) == (
        f"graph 'case' has a cycle: {' -> '.join(caught.value.cycle)}; a bi-graph must be acyclic"
    )


def test_sc_06_a_two_operators() -> None:
    refuse_cycle(cycle_of(["a", "b"]), "to-a -> a -> to-b -> b -> to-a", "to-b -> b -> to-a -> a -> to-b")


def test_sc_06_b_a_source_and_a_tail_outside_the_cycle() -> None:
    graph = Graph("case")
    a, b, c, tail = (graph.blob(name, SHAPE, "float64") for name in ("a", "b", "c", "tail"))
    graph.connect([c], Call(), [tail], name="to-tail")
    graph.connect([a, c], Call(), [b], name="to-b")
    graph.connect([b], Call(), [c], name="to-c")
    refuse_cycle(graph, "to-b -> b -> to-c -> c -> to-b", "to-c -> c -> to-b -> b -> to-c")


def test_sc_06_c_an_operator_that_writes_what_it_reads() -> None:
    graph = Graph("case")
    x = graph.blob("x", SHAPE, "float64")
    graph.connect([x], Call(), [x], name="self")
    refuse_cycle(graph, "self -> x -> self")


def test_sc_06_d_nothing_runs_where_another_part_has_a_cycle() -> None:
    ran: list[str] = []
    graph = cycle_of(["a", "b"])
    call(graph, "y", [], lambda: ran.append("y"))
    with pytest.raises(CycleError):
        Serial(graph).run()
    assert ran == []


def test_sc_06_a_thousand_operators_without_a_way_back_are_accepted() -> None:
    rng = np.random.default_rng(0)
    graph = Graph("net")
    blobs = [graph.blob("x", SHAPE, "float64")]
    for number in range(1000):
        blobs.append(call(graph, f"y{number}", [blobs[k] for k in rng.integers(0, len(blobs), 3)]))
    assert len(prepare(graph).order) == 1000


def trained() -> Graph:
    """A layer, its loss, gradients for everything, and an operator that only looks."""
    graph = Graph("net")
    x = graph.blob("x", (5, 3))
    w = graph.parameter("w", (4, 3), "float32", Gaussian((4, 3)))
    h = graph.apply(Linear(), [x, w], "h")[0]
    (y,) = graph.apply(Tanh(), [h], "y")
    graph.connect([y], Swallow(print), [], name="look")
    (loss,) = graph.apply(ReduceSum(), [y], "loss")
    backward(loss, [x, w])
    new = graph.blob("w/new", (4, 3))
    graph.connect([w, graph["w/grad"]], Sum(), [new])
    graph.swap(w, new)
    return graph


def test_prune_keeps_what_is_needed_under_the_same_names() -> None:
    graph = trained()
    test = prune(graph, [graph["y"]], "test")
    assert (test.name, [op.name for op in test.ops]) == ("test", ["h", "y"])
    assert [blob.name for blob in test.blobs] == ["x", "w", "h", "y"]
    assert test.parameters == [test["w"]]
    assert test["w"].persistent
    assert test.initial == graph.initial
    assert test.pairs == []
    update = prune(graph, [graph["w/new"]])
    assert update.pairs == [(update["w"], update["w/new"])]
    assert "x/grad" not in update
    assert "look" not in [op.name for op in update.ops]
    assert len(prune(graph, []).ops) == 0


def test_a_pruned_graph_gives_the_same_bits() -> None:
    graph = trained()
    values = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    found = []
    for each in (prune(graph, [graph["w/new"]]), prune(graph, [graph["w/new"], graph["x/grad"]])):
        with Serial(each, seed=2) as executor:
            executor.feed(x=values)
            executor.run()
            found.append(executor.fetch("w").tobytes())
    assert found[0] == found[1]


def test_prune_takes_the_blob_that_a_view_lies_in_and_all_producers_of_a_sum() -> None:
    graph = Graph("net")
    x = call(graph, "x")
    total = graph.blob("total", SHAPE, "float64")
    for name in ("first", "second"):
        graph.connect([call(graph, f"{name}/source")], Call(), [total], name=name)
    part = graph.view(total, "part", [(0, 1), (0, 2)])
    unused = call(graph, "unused", [x, total])
    pruned = prune(graph, [part])
    assert [op.name for op in pruned.ops] == ["first/source", "first", "second/source", "second"]
    assert pruned["part"].view is not None
    assert pruned["part"].view.parent is pruned["total"]
    assert needed([unused])[0] >= {x, total, unused}
    with pytest.raises(GraphError, match=r"^prune: blob 'y' is of graph 'other', not of 'net'$"):
        prune(graph, [Graph("other").blob("y", (2,))])


# prepare ------------------------------------------------------------------------------------------------------------


class Bare(CpuDevice):
    """A device without the loops that max pooling and draws need."""

    name = "bare"

    def missing(self, loops: frozenset[str]) -> tuple[str, ...]:
        return tuple(sorted(loops & {"max_pool", "philox"}))


def test_r13_prepare_reports_every_fault_at_once() -> None:
    graph = Graph("faults")
    x = graph.blob("x", (2, 3, 4, 6))
    graph.apply(MaxPool2d(2), [x], "pool")
    graph.apply(Bernoulli((2, 3)), [], "mask")
    (h,) = graph.apply(Scale(2.0), [x], "h")
    graph.connect([h], ReLU(), [graph.view(h, "r")])
    graph.apply(Mul(), [h, h], "square")
    graph.swap(graph.blob("old", (2,)), graph.blob("new", (2,)))
    graph.apply(ReLU(), [graph.blob("there", (2,), location=DEVICE)], "y")
    graph.view(graph.view(h, "part", [(0, 2), (0, 3), (0, 4), (0, 2)]), "flat", shape=(48,))

    def devices(place: Location) -> CpuDevice:
        if place == DEVICE:
            raise GraphError(f"no device at {place}")
        return Bare()

    with pytest.raises(GraphError) as caught:
        prepare(graph, devices)
    assert caught.value.problems == (
        "graph 'faults': no device at device0",
        "operator 'pool' (MaxPool2d) at cpu, inputs: x float32[2, 3, 4, 6]: device 'bare' has no kernel max_pool",
        "operator 'mask' (Bernoulli) at cpu, inputs: none: device 'bare' has no kernel philox",
        "swapped pair 'old', 'new': no operator writes 'new', so a run would put stale values into 'old'",
        "graph 'faults': view 'flat' of 'part' cannot be seen as (48,): it is strided",
    )
    assert str(caught.value) == "\n".join(caught.value.problems)


def test_r13_a_device_that_is_not_there() -> None:
    graph = Graph("net")
    graph.blob("x", (2,), location=Location(0, 3))
    message = (
        r"^graph 'net': no device at device3: only CPUs \(device below 0\) are available here; place it on a CPU$"
    )
    with pytest.raises(GraphError, match=message):
        prepare(graph, cpu_devices())


def test_r5_every_unordered_access_is_reported() -> None:
    graph = Graph("net")
    (h,) = graph.apply(Scale(2.0), [graph.blob("x", (2, 3))], "h")
    graph.connect([h], ReLU(), [graph.view(h, "r")])
    for name in ("first", "second"):
        graph.apply(Scale(3.0), [h], name)
    with pytest.raises(GraphError) as caught:
        prepare(graph)
    assert [re.findall(r"operator '(\w+)'", problem) for problem in caught.value.problems] == [
        ["first", "r"],
        ["second", "r"],
    ]


def test_a_plan_counts_edges() -> None:
    """Rule R2: one blob wired twice is two edges where it delivers and where it is waited for."""
    graph = Graph("net")
    x = graph.blob("x", SHAPE, "float64")
    total = graph.blob("total", SHAPE, "float64")
    graph.connect([x], Call(), [total], name="first")
    graph.connect([x], Call(), [total], name="second")
    call(graph, "y", [total, x, total])
    plan = prepare(graph)
    assert list(plan.producers) == [0, 2, 1]
    assert plan.consumers == [[0, 1, 2], [2, 2], []]
    assert list(plan.waiting) == [0, 0, 2]
    assert plan.first == (0, 1)
    assert plan.order == (0, 1, 2)
    assert (plan.inputs, plan.outputs) == ([(0,), (0,), (1, 0, 1)], [(1,), (1,), (2,)])


def test_split_and_concat_have_views_in_the_plan() -> None:
    graph = Graph("net")
    (x,) = graph.apply(Scale(2.0), [graph.blob("source", (2, 6))], "x")
    parts = graph.apply(Split(1, (2, 4)), [x], "part")
    graph.apply(Concat(1), [parts[1], parts[0]], "joined")
    plan = prepare(graph)
    assert plan.views[parts[0]].parent is x
    assert plan.idle == {graph.op("part")}
    assert plan.lost == frozenset()
