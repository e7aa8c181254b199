"""The suite `graphs`: what only several operators show. Fan-in, fan-out, views, shared weights, order, losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from purine_ref.conformance.cases.building import plan_of
from purine_ref.conformance.cases.case import Case, Makers
from purine_ref.conformance.cases.making import make_case
from purine_ref.conformance.cases.suites.feeding import network_feed, network_start, thinned
from purine_ref.conformance.examples import Architecture, Layer, Loss
from purine_ref.conformance.networks import network_graph
from purine_ref.conformance.schedules import order_of, ranked_schedule
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Array
from purine_ref.ops import Bernoulli, Concat, Constant, Dropout, Identity, Linear, Mul, ReLU, Scale, Split, Sum

Built = tuple[Graph, Mapping[str, Array]]
"""A graph, and the arrays of the sources that are not drawn like all others."""


def fan_out() -> Built:
    """One blob that six operators read, one of them twice."""
    graph = Graph("fan-out")
    x = graph.blob("x", (5, 3))
    parts = [graph.apply(Scale(2.0**i), [x], f"part{i}")[0] for i in range(5)]
    (square,) = graph.apply(Mul(), [x, x], "square")
    graph.apply(Sum(), [*parts, square, square], "y")
    return graph, {}


def fan_in() -> Built:
    """Nine operators that add into one blob: float32 shows the order in which they do (rule R4)."""
    graph = Graph("fan-in")
    y = graph.blob("y", (4,))
    values = {}
    for i, power in enumerate((24, 0, 0, -24, 1, 23, -23, 2, -24)):
        x = graph.blob(f"x{i}", (4,))
        graph.connect([x], Identity(), [y], name=f"add{i}")
        sign = -1.0 if power < 0 else 1.0
        values[x.name] = (sign * np.ldexp([1.0, 1.5, 1.25, 1.0], abs(power))).astype("float32")
    return graph, values


def late_first() -> Built:
    """The producer whose edge is first is the last one that is ready, so additions must wait for it (rule R4)."""
    graph = Graph("late-first")
    x, near = graph.blob("x", (3,)), graph.blob("near", (3,))
    last = x
    for i in range(6):
        last = graph.apply(Identity(), [last], f"step{i}")[0]
    y = graph.blob("y", (3,))
    graph.connect([last], Identity(), [y], name="first")
    for i in range(3):
        graph.connect([near], Scale(-1.0 if i == 1 else 1.0), [y], name=f"then{i}")
    big, small = np.array([2.0**24, 1.0, -(2.0**25)]), np.array([1.0, 2.0**24, 3.0])
    return graph, {"x": big.astype("float32"), "near": small.astype("float32")}


def same_blob_twice() -> Built:
    """h*h, concat(h, h) and h + h + late, which comes long after h: every mention is an edge (rule R2)."""
    graph = Graph("twice")
    (h,) = graph.apply(Scale(-2.0), [graph.blob("x", (4, 3))], "h")
    (square,) = graph.apply(Mul(), [h, h], "square")
    (both,) = graph.apply(Concat(1), [h, h], "both")
    late = h
    for i in range(4):
        late = graph.apply(Scale(0.5), [late], f"late{i}")[0]
    (triple,) = graph.apply(Sum(), [h, h, late], "triple")
    graph.apply(Concat(1), [square, both, triple], "y")
    return graph, {}


def diamond() -> Built:
    """Two ways of different length from one blob to another."""
    graph = Graph("diamond")
    last = x = graph.blob("x", (3, 5))
    for i in range(9):
        last = graph.apply(Scale(-0.5 if i % 2 else 2.0), [last], f"long{i}")[0]
    (short,) = graph.apply(ReLU(), [x], "short")
    graph.apply(Sum(), [last, short], "y")
    return graph, {}


def ends_of_all_kinds() -> Built:
    """A source operator, blobs that nobody reads or writes, and an operator that stands alone."""
    graph = Graph("ends")
    x = graph.blob("x", (2, 3))
    graph.blob("alone", (4,))
    (constant,) = graph.apply(Constant(1.5, (2, 3)), [], "constant")
    (y,) = graph.apply(Sum(), [x, constant], "y")
    graph.apply(Split(1, (1, 2)), [y], "unread")
    graph.apply(Constant(-2.0, (5,)), [], "apart")
    return graph, {}


def split_views() -> Built:
    """Parts that are views of the whole, of uneven sizes, then joined in another order."""
    graph = Graph("split-views")
    x = graph.blob("x", (4, 6))
    (whole,) = graph.apply(Scale(-4.0), [x], "whole")
    bounds = ((0, 1), (1, 4), (4, 6))
    parts = [graph.view(whole, f"part{i}", [(0, 4), ends]) for i, ends in enumerate(bounds)]
    graph.connect([whole], Split(1, (1, 3, 2)), parts, name="split")
    graph.apply(Concat(1), [parts[2], parts[0], parts[1], parts[0]], "y")
    return graph, {}


def concat_views() -> Built:
    """Three operators that write into views of one blob; a concat makes it whole."""
    graph = Graph("concat-views")
    x = graph.blob("x", (3, 2))
    whole = graph.blob("whole", (3, 6))
    parts = [graph.view(whole, f"part{i}", [(0, 3), (2 * i, 2 * i + 2)]) for i in range(3)]
    for i, part in enumerate(parts):
        graph.connect([x], Scale(-(2.0**i)), [part], name=f"write{i}")
    graph.connect(parts, Concat(1), [whole], name="concat")
    graph.apply(Scale(-1.0), [whole], "y")
    return graph, {}


def strided_views() -> Built:
    """Operators that read windows of fed blobs, whose rows do not touch, a window of one, and one in another shape."""
    graph = Graph("strided-views")
    x, w = graph.blob("x", (5, 7)), graph.blob("w", (4, 9))
    inner = graph.view(x, "inner", [(1, 4), (2, 6)])
    weight = graph.view(w, "weight", [(0, 4), (3, 7)])
    (y,) = graph.apply(Linear(), [inner, weight], "y")
    seen = graph.view(x, "seen", [(0, 5), (0, 7)], (35,))
    graph.apply(Scale(2.0), [seen], "doubled")
    graph.apply(Scale(-1.0), [graph.view(inner, "corner", [(1, 3), (1, 4)])], "turned")
    graph.apply(ReLU(), [y], "z")
    return graph, {}


def running_sum() -> Built:
    """A sum over iterations, which begins with the zeros of a persistent blob that nobody has filled (rule R6)."""
    graph = Graph("running-sum")
    before, after = (graph.blob(name, (2, 3), persistent=True) for name in ("before", "after"))
    graph.connect([before, graph.blob("x", (2, 3))], Sum(), [after], name="add")
    graph.swap(before, after)
    return graph, {}


def masks_by_iteration() -> Built:
    """Dropout by a mask that is drawn anew in each iteration (rule R7)."""
    graph = Graph("masks")
    x = graph.blob("x", (6, 5))
    (mask,) = graph.apply(Bernoulli((6, 5), keep=0.75), [], "mask")
    graph.apply(Dropout(0.25), [x, mask], "y")
    return graph, {}


def many_small() -> Built:
    """A hundred operators, of which ten at a time can run at once."""
    graph = Graph("many")
    row: list[Blob] = [graph.blob(f"x{i}", (3,)) for i in range(10)]
    for depth in range(10):
        row = [graph.apply(Sum(), [row[i], row[(i + depth + 1) % 10]], f"s{depth}.{i}")[0] for i in range(10)]
    return graph, {}


def one_after_the_other() -> Built:
    """A chain of 300 operators."""
    graph = Graph("chain")
    last = graph.blob("x", (2,))
    for i in range(300):
        last = graph.apply(Scale(-1.0), [last], f"s{i}")[0]
    return graph, {}


HAND: Mapping[str, tuple[Callable[[], Built], int]] = {
    "fan-out": (fan_out, 1),
    "fan-in": (fan_in, 1),
    "late-first": (late_first, 1),
    "twice": (same_blob_twice, 1),
    "diamond": (diamond, 2),
    "ends": (ends_of_all_kinds, 2),
    "split-views": (split_views, 1),
    "concat-views": (concat_views, 1),
    "strided-views": (strided_views, 1),
    "running-sum": (running_sum, 3),
    "masks": (masks_by_iteration, 3),
    "many": (many_small, 1),
    "chain": (one_after_the_other, 1),
}
"""Graphs made by hand, and how often they run."""

_SHARED = (
    Layer("linear", (0,), size=6),
    Layer("tanh", (1,)),
    Layer("linear", (2,), size=6, shared=0),
    Layer("sum", (1, 3)),
)
_BRANCHES = (
    Layer("conv", (0,), size=4, kernel=3, pad=1),
    Layer("relu", (1,)),
    Layer("conv", (2,), size=3, kernel=2, stride=2),
    Layer("max_pool", (2,), kernel=2, stride=2),
    Layer("concat", (3, 4)),
    Layer("flatten", (5,)),
    Layer("linear", (6,), size=5),
)
_INCEPTION = (
    Layer("conv", (0,), size=2, kernel=1),
    Layer("conv", (0,), size=4, kernel=3, pad=1, groups=2),
    Layer("average_pool", (0,), kernel=3, stride=1, pad=1),
    Layer("concat", (1, 2, 3)),
    Layer("lrn", (4,)),
    Layer("relu", (5,)),
    Layer("global_pool", (6,)),
    Layer("flatten", (7,)),
)
_GATED = (
    Layer("linear", (0,), size=7),
    Layer("sigmoid", (1,)),
    Layer("linear", (0,), size=7, bias=False),
    Layer("product", (2, 3)),
    Layer("slice", (4,), size=3, pad=2),
    Layer("dropout", (5,), size=50),
    Layer("linear", (6,), size=4),
)

NETWORKS: Mapping[str, Architecture] = {
    "shared-weights": Architecture(5, (6,), _SHARED, (Loss("squared", 4),), "backward", "float32"),
    "branches": Architecture(3, (2, 6, 8), _BRANCHES, (Loss("softmax", 7, "mean"),), "backward", "float32"),
    "inception": Architecture(2, (4, 5, 6), _INCEPTION, (Loss("squared", 8, "mean"),), "backward", "float32"),
    "gated": Architecture(6, (5,), _GATED, (Loss("softmax", 7, "sum"),), "update", "float32"),
    "two-losses": Architecture(
        4, (6,), _SHARED, (Loss("squared", 4), Loss("squared", 2, "mean", 0.25)), "backward", "float64"
    ),
    "autoencoder": Architecture(
        7, (9,), (Layer("linear", (0,), size=3), Layer("tanh", (1,)), Layer("linear", (2,), size=9)),
        (Loss("squared", 3, "mean"),), "update", "float32",
    ),
    "forward-only": Architecture(3, (2, 6, 8), _BRANCHES, (), "forward", "float64"),
}  # fmt: skip
"""Networks, some with gradients and updates."""

_SHARED_EXACT = (_SHARED[0], Layer("relu", (1,)), *_SHARED[2:])
EXACT: Mapping[str, Architecture] = {
    "shared-weights": Architecture(5, (6,), _SHARED_EXACT, (Loss("squared", 4),), "update", "float32"),
    "branches": Architecture(3, (2, 6, 8), _BRANCHES, (Loss("squared", 7),), "update", "float64"),
    "inception": Architecture(
        2, (4, 5, 6), (*_INCEPTION[:2], Layer("max_pool", (0,), kernel=3, stride=1, pad=1), _INCEPTION[3],
                       Layer("relu", (4,))), (Loss("squared", 5),), "backward", "float32",
    ),
    "gated": Architecture(
        6, (5,), (_GATED[0], Layer("relu", (1,)), *_GATED[2:]), (Loss("squared", 7),), "backward", "float32"
    ),
    "two-losses": Architecture(
        4, (6,), _SHARED_EXACT, (Loss("squared", 4), Loss("squared", 2, "mean", 0.25)), "backward", "float64"
    ),
}  # fmt: skip
"""Networks of which all sums are exact for small integers (rule R10), ties and kinks included."""


def graph_cases() -> Makers:
    """All cases of the suite."""
    makers: dict[str, Callable[[], Case]] = {}
    for note, (build, iterations) in HAND.items():
        for number, exact in enumerate((False, True)):
            name = f"graphs/{note}/{number:02}"
            makers[name] = partial(_hand, name, build, iterations, exact)
    for note in NETWORKS:
        kinds = (_free, _ordered, *([_exact] if note in EXACT else []))
        makers |= {f"graphs/{note}/{number:02}": partial(make, note, number) for number, make in enumerate(kinds)}
    return makers


def _hand(name: str, build: Callable[[], Built], iterations: int, exact: bool) -> Case:
    """A graph made by hand, fed with all bits drawn, or with small integers."""
    feeds = []
    for iteration in range(iterations):
        graph, special = build()
        feed = network_feed(graph, f"{name}/{iteration}", exact=exact)
        feeds.append(feed if exact else {**feed, **special})
    about = (build.__doc__ or "").strip().rstrip(".")
    return make_case(graph, name=name, about=about + ("; small integers" if exact else ""), feeds=feeds, seed=5)


def _free(note: str, number: int) -> Case:
    """A network in three iterations."""
    name, graph = f"graphs/{note}", network_graph(NETWORKS[note])
    feeds = [network_feed(graph, f"{name}/{i}") for i in range(3)]
    about = f"a network, {NETWORKS[note].phase}, three iterations"
    start = network_start(graph, name)
    return thinned(make_case(graph, name=f"{name}/{number:02}", about=about, feeds=feeds, initial=start, seed=7))


def _ordered(note: str, number: int) -> Case:
    """A network with a schedule that no first-come dispatcher would choose."""
    name, graph = f"graphs/{note}", network_graph(NETWORKS[note])
    about = f"a network, {NETWORKS[note].phase}; of the ready operators the one that was made last must start"
    feeds, start, order = [network_feed(graph, f"{name}/0")], network_start(graph, name), backwards_order(graph)
    name = f"{name}/{number:02}"
    return make_case(graph, name=name, about=about, feeds=feeds, initial=start, seed=7, schedule=order)


def _exact(note: str, number: int) -> Case:
    """A network whose sums are exact, in one iteration."""
    name, graph = f"graphs/{note}", network_graph(EXACT[note])
    about = f"a network, {EXACT[note].phase}, small integers"
    start, feed = network_start(graph, name, exact=True), network_feed(graph, f"{name}/exact", exact=True)
    return make_case(graph, name=f"{name}/{number:02}", about=about, feeds=[feed], initial=start, seed=7)


def backwards_order(graph: Graph) -> list[str]:
    """A topological order that always starts the operator that was made last."""
    plan = plan_of(graph)
    return order_of(plan, ranked_schedule(plan, [-op.index for op in graph.ops]))
