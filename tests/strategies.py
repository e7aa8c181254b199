"""Random bi-graphs as hypothesis draws them: a `Recipe` says which blobs and operators, and builds the graph.

Drawn are structure and a seed, never elements. Operators are connected in a drawn order, not one in which they could
run. `recipes` makes graphs that `prepare` must accept: fan-out, several producers of one blob, one blob wired twice,
shared weights, draws, dead ends, operators without outputs, empty parts, and declared views that the graph orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from hooks import Swallow
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Operation
from purine_ref.ops import (
    Bernoulli,
    Concat,
    Constant,
    Copy,
    Gaussian,
    Identity,
    Linear,
    Mul,
    ReLU,
    Reshape,
    Scale,
    Sigmoid,
    Slice,
    Split,
    Sum,
    Tanh,
)
from purine_ref.tensor import Tensor

Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Part:
    """A declared view: of which blob, which box, seen in which shape."""

    parent: str
    box: Box
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """An operator: what it does, and the names of its blobs."""

    operation: Operation
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass
class Recipe:
    """Blobs by name, those that are declared views, operators by name, and the order in which these are connected."""

    seed: int = 0
    blobs: dict[str, Tensor] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def graph(self, views: bool = True) -> Graph:
        """The graph; without `views`, declared views are blobs with memory of their own."""
        graph = Graph("random")
        for name, tensor in self.blobs.items():
            part = self.parts.get(name) if views else None
            if part is None:
                graph.blob(name, tensor.shape, tensor.dtype)
            else:
                graph.view(graph[part.parent], name, part.box, part.shape)
        for index in np.random.default_rng(self.seed).permutation(len(self.nodes)):
            name = list(self.nodes)[index]
            node = self.nodes[name]
            ends = [[graph[blob] for blob in side] for side in (node.inputs, node.outputs)]
            graph.connect(ends[0], node.operation, ends[1], name=name)
        return graph

    def feed(self, graph: Graph, integers: bool = False) -> dict[str, np.ndarray]:
        """Values for the blobs that no operator writes and that are no views, from the seed."""
        rng = np.random.default_rng(self.seed)
        values = {}
        for blob in graph.blobs:
            if not blob.producers and blob.name not in self.parts:
                drawn = rng.integers(-3, 4, blob.shape) if integers else rng.standard_normal(blob.shape)
                values[blob.name] = drawn.astype(blob.dtype)
        return values

    def written(self) -> set[str]:
        """The names of the blobs that an operator writes."""
        return {name for node in self.nodes.values() for name in node.outputs}

    def add_blob(self, tensor: Tensor, part: Part | None = None) -> str:
        """A new blob, a declared view where `part` is given; returns its name."""
        name = f"b{len(self.blobs)}"
        self.blobs[name] = tensor
        if part is not None:
            self.parts[name] = part
        return name

    def add_node(self, operation: Operation, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """A new operator between blobs that are there."""
        self.nodes[f"n{len(self.nodes)}"] = Node(operation, tuple(inputs), tuple(outputs))
        self.used.update(inputs)

    def apply(self, operation: Operation, inputs: Sequence[str]) -> list[str]:
        """A new operator and its new blobs."""
        tensors = operation.infer([self.blobs[name] for name in inputs])
        outputs = [self.add_blob(tensor) for tensor in tensors]
        self.add_node(operation, inputs, outputs)
        return outputs

    def alike(self, name: str) -> list[str]:
        """The blobs of that blob's shape and dtype, itself included."""
        return [other for other, tensor in self.blobs.items() if tensor == self.blobs[name]]


SMOOTH = (Tanh(), Sigmoid(), Scale(0.5), Scale(-3.0), Identity(), Copy())
UNARY = (ReLU(), *SMOOTH)
KINDS = (
    "unary",
    "sum",
    "mul",
    "concat",
    "split",
    "slice",
    "reshape",
    "linear",
    "gather",
    "draw",
    "swallow",
    "in place",
    "joined",
    "window",
)


class Drawing:
    """Draws a recipe, one step at a time. A blob that was overwritten in place is not `free` for further readers."""

    def __init__(self, draw: st.DrawFn, dtype: str, unary: Sequence[Operation]) -> None:
        self.draw = draw
        self.dtype = dtype
        self.unaries = st.sampled_from(unary)
        self.recipe = Recipe(seed=draw(st.integers(0, 2**32 - 1)))
        self.free = [self.recipe.add_blob(Tensor(shape, dtype)) for shape in ((4, 3), (4, 3), (2, 4, 3), (5,))]
        self.sources = set(self.free)
        self.overwritable: set[str] = set()

    def pick(self) -> str:
        """Any free blob."""
        return self.draw(st.sampled_from(self.free))

    def pick_alike(self, name: str, count: int) -> list[str]:
        """`count` free blobs of one shape, the same one several times perhaps; `name` is the first."""
        alike = [other for other in self.recipe.alike(name) if other in self.free]
        return [name, *(self.draw(st.sampled_from(alike)) for _ in range(count - 1))]

    def axis(self, name: str) -> int:
        """An axis of a blob."""
        return self.draw(st.integers(0, len(self.recipe.blobs[name].shape) - 1))

    def unary(self) -> None:
        operation = self.draw(self.unaries)
        self.keep(self.recipe.apply(operation, [self.pick()]), isinstance(operation, Scale | Copy))

    def sum(self) -> None:
        self.keep(self.recipe.apply(Sum(), self.pick_alike(self.pick(), self.draw(st.integers(1, 3)))), True)

    def mul(self) -> None:
        self.keep(self.recipe.apply(Mul(), self.pick_alike(self.pick(), 2)))

    def concat(self) -> None:
        first = self.pick()
        joined = self.pick_alike(first, self.draw(st.integers(1, 3)))
        self.keep(self.recipe.apply(Concat(self.axis(first)), joined))

    def split(self) -> None:
        whole = self.pick()
        axis = self.axis(whole)
        length = self.recipe.blobs[whole].shape[axis]
        size = self.draw(st.integers(0, length))
        self.keep(self.recipe.apply(Split(axis, (size, length - size)), [whole]))

    def slice(self) -> None:
        whole = self.pick()
        axis = self.axis(whole)
        stop = self.draw(st.integers(0, self.recipe.blobs[whole].shape[axis]))
        self.keep(self.recipe.apply(Slice(axis, self.draw(st.integers(0, stop)), stop), [whole]))

    def reshape(self) -> None:
        name = self.pick()
        shape = self.recipe.blobs[name].shape
        seen = self.draw(st.sampled_from([shape[::-1], (self.recipe.blobs[name].size,), (*shape, 1)]))
        self.keep(self.recipe.apply(Reshape(seen), [name]))

    def linear(self) -> None:
        """With a weight of its own, or one that another operator has already."""
        name = self.pick()
        shape = self.recipe.blobs[name].shape
        if len(shape) < 2:
            return
        wanted = Tensor((3, int(np.prod(shape[1:]))), self.dtype)
        known = [other for other in self.sources if self.recipe.blobs[other] == wanted]
        weight = self.draw(st.sampled_from(sorted(known) or [""])) or self.recipe.add_blob(wanted)
        self.sources.add(weight)
        self.keep(self.recipe.apply(Linear(), [name, weight]), True)

    def gather(self) -> None:
        """One blob of several producers."""
        names = self.pick_alike(self.pick(), self.draw(st.integers(2, 4)))
        total = self.recipe.add_blob(self.recipe.blobs[names[0]])
        for name in names:
            self.recipe.add_node(self.draw(self.unaries), [name], [total])
        self.keep([total])

    def draw_numbers(self) -> None:
        """A source: the stream of a draw is the operator's name."""
        kind = self.draw(st.sampled_from([Gaussian, Bernoulli, None]))
        shape = self.draw(st.sampled_from([(4, 3), (5,)]))
        operation = Constant(-2.0, shape, self.dtype) if kind is None else kind(shape, self.dtype)
        self.keep(self.recipe.apply(operation, []))

    def swallow(self) -> None:
        self.recipe.add_node(Swallow(lambda *arrays: None), [self.pick()], [])

    def in_place(self) -> None:
        """Over a blob that nobody else reads, whose producer does not need it for its gradient."""
        fit = [name for name in self.free if name in self.overwritable and name not in self.recipe.used]
        if not fit:
            return
        name = self.draw(st.sampled_from(fit))
        tensor = self.recipe.blobs[name]
        part = Part(name, tuple((0, n) for n in tensor.shape), tensor.shape)
        target = self.recipe.add_blob(tensor, part)
        self.recipe.add_node(self.draw(self.unaries.filter(lambda operation: operation.in_place)), [name], [target])
        self.free.remove(name)
        self.keep([target])

    def joined(self) -> None:
        """Two operators write declared parts of a whole, which a Concat then gives out."""
        names = self.pick_alike(self.pick(), 2)
        tensor = self.recipe.blobs[names[0]]
        whole = self.recipe.add_blob(Tensor((2 * tensor.shape[0], *tensor.shape[1:]), self.dtype))
        parts = []
        for number, name in enumerate(names):
            rows = (number * tensor.shape[0], (number + 1) * tensor.shape[0])
            box = (rows, *((0, n) for n in tensor.shape[1:]))
            parts.append(self.recipe.add_blob(tensor, Part(whole, box, tensor.shape)))
            self.recipe.add_node(self.draw(self.unaries), [name], [parts[-1]])
        self.recipe.add_node(Concat(0), parts, [whole])
        self.keep([whole])

    def window(self) -> None:
        """A part of a source, read where it lies."""
        name = self.draw(st.sampled_from(sorted(self.sources)))
        shape = self.recipe.blobs[name].shape
        stop = self.draw(st.integers(1, shape[0]))
        inner = (stop, *shape[1:])
        part = self.recipe.add_blob(Tensor(inner, self.dtype), Part(name, tuple((0, n) for n in inner), inner))
        self.keep([part])

    def keep(self, names: Sequence[str], overwritable: bool = False) -> None:
        """New blobs may be read by later steps."""
        self.free.extend(names)
        if overwritable:
            self.overwritable.update(names)

    def step(self) -> None:
        """One more step, of a kind that is drawn."""
        kind = self.draw(st.sampled_from(KINDS))
        (self.draw_numbers if kind == "draw" else getattr(self, kind.replace(" ", "_")))()


@st.composite
def recipes(draw: st.DrawFn, most: int = 14, smooth: bool = False) -> Recipe:
    """A recipe for a graph that `prepare` accepts, of up to `most` steps; `smooth` means float64 and no kinks."""
    dtype = "float64" if smooth else draw(st.sampled_from(["float32", "float64"]))
    drawing = Drawing(draw, dtype, SMOOTH if smooth else UNARY)
    for _ in range(draw(st.integers(1, most))):
        drawing.step()
    return drawing.recipe


def differentiable(graph: Graph) -> list[Blob]:
    """The blobs without producers that neither are views nor are read through one: what has a gradient."""
    looked_through = {blob.view.parent for blob in graph.blobs if blob.view is not None}
    return [b for b in graph.blobs if not b.producers and b.view is None and b not in looked_through]


EXACT = (ReLU(), Scale(2.0), Scale(-1.0), Identity(), Copy())
"""Operations that give the same bits whatever the layout of the memory."""


@st.composite
def tangles(draw: st.DrawFn, most: int = 6) -> Recipe:
    """A recipe in which any output may be declared a view of any blob before it, ordered by the graph or not.

    All its operations are exact on small integers, so that bits do not depend on the layout.
    """
    recipe = Recipe(seed=draw(st.integers(0, 2**32 - 1)))
    for shape in ((4, 3), (4, 3), (6,)):
        recipe.add_blob(Tensor(shape, "float64"))
    for _ in range(draw(st.integers(1, most))):
        _tangle(draw, recipe)
    return recipe


def _tangle(draw: st.DrawFn, recipe: Recipe) -> None:
    """One more operator, or several producers of one blob."""
    name = draw(st.sampled_from(list(recipe.blobs)))
    alike = st.sampled_from(recipe.alike(name))
    kind = draw(st.sampled_from(["unary", "unary", "sum", "mul", "split", "concat", "reshape", "gather"]))
    shape = recipe.blobs[name].shape
    if kind == "gather":
        total = _output(draw, recipe, recipe.blobs[name])
        for _ in range(2):
            recipe.add_node(draw(st.sampled_from(EXACT)), [draw(alike)], [total])
        return
    operation: Operation = draw(st.sampled_from(EXACT))
    inputs = [name]
    if kind in ("sum", "mul", "concat"):
        inputs = [name, draw(alike)]
        operation = {"sum": Sum(), "mul": Mul(), "concat": Concat(0)}[kind]
    elif kind == "split":
        size = draw(st.integers(0, shape[-1]))
        operation = Split(len(shape) - 1, (size, shape[-1] - size))
    elif kind == "reshape":
        operation = Reshape((recipe.blobs[name].size,) if len(shape) > 1 else (shape[0], 1))
    outputs = [_output(draw, recipe, t) for t in operation.infer([recipe.blobs[n] for n in inputs])]
    recipe.add_node(operation, inputs, outputs)


def _output(draw: st.DrawFn, recipe: Recipe, tensor: Tensor) -> str:
    """A new blob with memory of its own, or in the memory of another that has room for it."""
    part = None
    if draw(st.booleans()):
        part = draw(st.sampled_from([None, *_places(recipe, tensor)]))
    if part is not None and draw(st.booleans()):  # somewhere else in the parent, if there is room
        part = _moved(draw, part, recipe.blobs[part.parent].shape)
    return recipe.add_blob(tensor, part)


def _places(recipe: Recipe, tensor: Tensor) -> list[Part]:
    """The first elements of a larger blob, or all of one with as many."""
    places = []
    for name, other in recipe.blobs.items():
        whole = tuple((0, n) for n in other.shape)
        if other.size == tensor.size:
            places.append(Part(name, whole, tensor.shape))
        elif len(other.shape) == len(tensor.shape) and all(map(int.__le__, tensor.shape, other.shape)):
            places.append(Part(name, tuple((0, n) for n in tensor.shape), tensor.shape))
    return places


def _moved(draw: st.DrawFn, part: Part, shape: tuple[int, ...]) -> Part:
    starts = [draw(st.integers(0, n - (stop - start))) for (start, stop), n in zip(part.box, shape, strict=True)]
    box = tuple((at, at + stop - start) for at, (start, stop) in zip(starts, part.box, strict=True))
    return Part(part.parent, box, part.shape)
