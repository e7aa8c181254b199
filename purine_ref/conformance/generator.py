"""Hypothesis strategies for examples: random networks, compositions that fit them, and ways to run them.

`examples()` is what most users want: `@given(example=examples())`, then `check_example(example)`. The parts are there
for others to combine. What is drawn can be built: a layer, a loss or a part that does not fit is left out. Dimensions
differ from each other, the batch seldom divides into equal parts, and nothing but an axis that is pooled away is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import strategies as st

from purine_ref.conformance.examples import (
    PHASES,
    Architecture,
    Composition,
    Division,
    Example,
    Feeding,
    Layer,
    Loss,
    Running,
)
from purine_ref.conformance.networks import add_layers, network_graph, refiner, require_fit
from purine_ref.errors import GraphError
from purine_ref.graph import Blob, Graph
from purine_ref.parallel import Network

PARAMETERS = ("conv", "conv", "linear", "linear", "linear")
EXACT_KINDS = (*PARAMETERS, "max_pool", "average_pool", "relu", "dropout", "concat", "sum", "slice", "flatten")
"""Kinds of layers that are exact, or nearly always; those with parameters come up more often."""

ROUNDING_KINDS = (*EXACT_KINDS, "sigmoid", "tanh", "lrn", "global_pool", "product")
"""All kinds of layers."""

MOST_LAYERS = 7
MOST_PLACES = 8
MOST_ELEMENTS = 400
"""A value larger than this gets no further layers, so that examples run fast."""

POOLS: dict[str, tuple[tuple[int, int], ...]] = {
    "one CPU": ((0, -1),),
    "devices": ((0, 0), (0, 1), (0, 2), (0, -1)),
    "ranks": ((0, -1), (1, -1), (2, -1), (3, -1)),
    "devices of ranks": ((0, -1), (0, 0), (0, 1), (1, -1), (1, 0), (2, 1)),
}
"""What places are drawn from."""


@st.composite
def architectures(draw: st.DrawFn, exact: bool = True) -> Architecture:
    """A network over small images, with branches, shared parameters, and none or several losses."""
    return _Drawing(draw, exact).architecture()


class _Drawing:
    """Draws a network layer by layer, building it on the way to know the shapes; what cannot be built is left out."""

    def __init__(self, draw: st.DrawFn, exact: bool) -> None:
        self.draw = draw
        self.exact = exact
        self.dtype = draw(st.sampled_from(("float64", "float64", "float32")))
        self.batch = draw(st.sampled_from((5, 7, 3, 6, 4, 2)))
        self.image = tuple(draw(st.permutations([n for n in (3, 4, 2, 5, 6, 7) if n != self.batch]))[:3])
        self.layers: list[Layer] = []
        self.values = self.built([])

    def architecture(self) -> Architecture:
        """The whole network."""
        kinds = EXACT_KINDS if self.exact else ROUNDING_KINDS
        for _ in range(self.draw(st.integers(2, MOST_LAYERS))):
            self.add(self.layer(self.draw(st.sampled_from(kinds))))
        losses = self.losses()
        phase = self.draw(st.sampled_from(("update", "update", "update", *PHASES))) if losses else "forward"
        return Architecture(self.batch, self.image, tuple(self.layers), losses, phase, self.dtype)

    def built(self, layers: Sequence[Layer]) -> list[Blob]:
        """The values of a network of these layers."""
        return add_layers(Graph("drawn"), Architecture(self.batch, self.image, tuple(layers), dtype=self.dtype))

    def add(self, layer: Layer) -> None:
        """Add a layer, unless it cannot be built, or its output is empty or large."""
        try:
            values = self.built([*self.layers, layer])
        except GraphError:
            return
        if 0 < values[-1].tensor.size <= MOST_ELEMENTS:
            self.layers.append(layer)
            self.values = values

    def layer(self, kind: str) -> Layer:
        """A layer of a kind, over the last value or, now and then, an earlier one."""
        last = len(self.values) - 1
        value = self.draw(st.sampled_from((last, last, last, *range(last))))
        if kind in ("conv", "linear"):
            return self.product(kind, value)
        if kind in ("concat", "sum", "product"):
            alike = [i for i, other in enumerate(self.values) if _fit(kind, other, self.values[value])]
            more = 1 if kind == "product" else self.draw(st.integers(0 if kind == "sum" else 1, 2))
            return Layer(kind, (value, *(self.draw(st.sampled_from(alike)) for _ in range(more))))
        if kind in ("max_pool", "average_pool"):
            kernel = 2 if kind == "average_pool" and self.exact else self.draw(st.integers(2, 3))
            pad = self.draw(st.integers(0, 1)) if kind == "max_pool" or not self.exact else 0
            return Layer(kind, (value,), kernel=kernel, stride=self.draw(st.integers(1, kernel)), pad=pad)
        if kind == "dropout":
            return Layer(kind, (value,), size=50 if self.exact else self.draw(st.sampled_from((20, 50))))
        if kind == "slice":
            channels = self.values[value].shape[1]
            start = self.draw(st.integers(0, max(0, channels - 2)))
            return Layer(kind, (value,), size=self.draw(st.integers(1, channels - start)), pad=start)
        return Layer(kind, (value,))

    def product(self, kind: str, value: int) -> Layer:
        """A convolution or an inner product, sometimes with the parameters of an earlier one."""
        earlier = [i for i, layer in enumerate(self.layers) if layer.kind == kind and layer.shared < 0]
        if earlier and self.draw(st.integers(0, 2)) == 0:
            return self.again(self.draw(st.sampled_from(earlier)))
        size, bias = self.draw(st.integers(2, 7)), self.draw(st.booleans())
        if kind == "linear":
            return Layer(kind, (value,), size, bias=bias)
        kernel = self.draw(st.integers(1, 3))
        stride, pad = self.draw(st.integers(1, 2)), self.draw(st.integers(0, kernel - 1))
        channels = self.values[value].shape[1]
        groups = self.draw(st.sampled_from([g for g in (1, 1, 2, 3) if channels % g == 0]))
        return Layer(kind, (value,), max(size - size % groups, groups), kernel, stride, pad, groups, bias)

    def again(self, position: int) -> Layer:
        """A layer as that at `position` and with its parameters, over the same value or another of that shape."""
        own = self.layers[position]
        shape = self.values[own.inputs[0]].shape
        value = self.draw(st.sampled_from([i for i, other in enumerate(self.values) if other.shape == shape]))
        return replace(own, inputs=(value,), shared=position)

    def losses(self) -> tuple[Loss, ...]:
        """Losses of the last value and perhaps of others."""
        last = len(self.values) - 1
        chosen = self.draw(st.sampled_from(((last,), (last,), (last,), (last, self.draw(st.integers(0, last))), ())))
        return tuple(self.loss(value, number) for number, value in enumerate(chosen))

    def loss(self, value: int, number: int) -> Loss:
        """A squared error, or where sums need not be exact perhaps a softmax loss."""
        shape = self.values[value].shape
        whole = self.values[value].tensor.size
        kind = self.draw(st.sampled_from(("squared", "softmax"))) if not self.exact and len(shape) == 2 else "squared"
        reductions = ("sum", "mean") if not self.exact or whole & (whole - 1) == 0 else ("sum",)
        return Loss(kind, value, self.draw(st.sampled_from(reductions)), (1.0, 0.5)[number])


def _fit(kind: str, one: Blob, other: Blob) -> bool:
    """Whether two values can be joined or added."""
    if kind == "concat":
        return (one.shape[0], *one.shape[2:]) == (other.shape[0], *other.shape[2:])
    return one.shape == other.shape


@st.composite
def compositions(draw: st.DrawFn, graph: Graph, layers: int) -> Composition:
    """A composition of one to three parts that fits `graph`, whose layers are named `l0` and so on, over any places."""
    network = Network(graph)
    parts: list[Division] = []
    width = 1
    for _ in range(draw(st.sampled_from((1, 1, 2, 2, 3)))):
        if 2 * width > MOST_PLACES:
            break
        part = draw(st.sampled_from(PARTS))(draw, network.batch_size, layers, MOST_PLACES // width)
        try:
            require_fit(network, [refiner(other) for other in (*parts, part)])
        except GraphError:
            continue
        parts.append(part)
        width *= refiner(part).width
    pool = POOLS[draw(st.sampled_from(list(POOLS)))]
    ordered = draw(st.permutations(pool))
    distinct = draw(st.sampled_from((len(pool), len(pool), min(2, len(pool)))))
    places = tuple(ordered[place % distinct] for place in range(width))
    return Composition(tuple(parts), places, draw(st.sampled_from(("central", "tree", "ring"))))


def _data(draw: st.DrawFn, batch: int, layers: int, room: int) -> Division:
    count = draw(st.integers(2, min(3, room)))
    modes = st.sampled_from(("replicated", "server", f"server:{count - 1}"))
    rules = [(f"l{i}/*", draw(modes)) for i in _some(draw, layers)] if draw(st.booleans()) else []
    return Division("data", count, sizes=_sizes(draw, batch, count), mode=draw(modes), rules=tuple(rules))


def _model(draw: st.DrawFn, batch: int, layers: int, room: int) -> Division:
    rules = [(f"l{i}/*", draw(st.sampled_from(("output", "input", "whole")))) for i in _some(draw, layers)]
    mode = draw(st.sampled_from(("output", "input")))
    return Division("model", draw(st.integers(2, min(3, room))), mode=mode, rules=tuple(rules))


def _pipeline(draw: st.DrawFn, batch: int, layers: int, room: int) -> Division:
    micro = draw(st.integers(1, 3))
    return Division("pipeline", draw(st.integers(2, min(3, room))), micro, _sizes(draw, batch, micro))


def _hybrid(draw: st.DrawFn, batch: int, layers: int, room: int) -> Division:
    groups = draw(st.integers(1, 2))
    return Division("hybrid", groups, 2 if 2 * groups <= room else 1)


def _placed(draw: st.DrawFn, batch: int, layers: int, room: int) -> Division:
    count = draw(st.integers(2, min(3, room)))
    rules = [(f"l{i}*", str(draw(st.integers(0, count - 1)))) for i in _some(draw, layers)]
    return Division("placed", count, rules=tuple(rules))


PARTS = (_data, _model, _pipeline, _hybrid, _placed)
"""One function for each kind of part: it draws one for a batch, a number of layers, and room for so many places."""


def _some(draw: st.DrawFn, layers: int) -> list[int]:
    """Some layers."""
    return sorted(draw(st.sets(st.integers(0, layers - 1), max_size=3))) if layers else []


def _sizes(draw: st.DrawFn, samples: int, count: int) -> tuple[int, ...]:
    """Uneven parts of the samples, none of them empty; or nothing, which means nearly even ones."""
    if not 1 < count <= samples or draw(st.booleans()):
        return ()
    cuts = draw(st.sets(st.integers(1, samples - 1), min_size=count - 1, max_size=count - 1))
    return tuple(stop - start for start, stop in pairwise((0, *sorted(cuts), samples)))


@st.composite
def runnings(draw: st.DrawFn, composition: Composition) -> Running:
    """A way to run a composition: on any executor that can, in any order, several times."""
    executor = draw(st.sampled_from(("serial", "threaded", "threaded", "ranks")))
    schedules = ["", "", f"random:{draw(SEEDS)}", f"pct:{draw(SEEDS)}:{draw(st.integers(0, 3))}"]
    if any(part.kind == "pipeline" for part in composition.parts):
        schedules += ["gpipe", "1f1b"]
    return Running(
        executor,
        draw(st.integers(1, 4)) if executor != "serial" else 1,
        draw(st.sampled_from(schedules)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from((0, 50, 200))) if any(device >= 0 for _, device in composition.places) else 0,
        draw(st.sampled_from((0, draw(SEEDS)))) if executor != "serial" else 0,
    )


SEEDS = st.integers(0, 2**16 - 1)
"""Seeds, short enough to read."""


@st.composite
def examples(draw: st.DrawFn, exact: bool | None = None) -> Example:
    """A network, a composition that fits it, a way to run it, and feeds: exact ones, others, or either for None."""
    chosen = draw(st.booleans()) if exact is None else exact
    network = draw(architectures(chosen))
    graph = network_graph(network)
    composition = draw(compositions(graph, len(network.layers)))
    return Example(network, composition, draw(runnings(composition)), Feeding(draw(SEEDS), chosen))
