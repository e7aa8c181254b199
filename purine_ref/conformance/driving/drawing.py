"""Random bi-graphs of just the operations that a port has: example n of a seed is the same wherever it is drawn.

A graph grows operator by operator. Each operation has a *draw* that proposes attributes and inputs, among the blobs
there are and new sources; what the operation refuses is left out. Shapes are small and their lengths mostly differ.
Operators also write into blobs that have a producer (rule R4), read one blob twice (R2), and are put on several streams
and ranks where the port has them. Then gradients and an update may be added, whose operators come from the rules of
the operations (R6, and fan-out without sums). A *fan* is several operators that round nothing and write one blob: there
the order of the additions decides every bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from purine_ref import optim
from purine_ref.conformance.driving.draws import DRAWS
from purine_ref.conformance.driving.messages import Hello
from purine_ref.conformance.driving.parts import parts_of
from purine_ref.conformance.driving.scene import Drawn, New, Scene
from purine_ref.errors import GraphError
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Operation
from purine_ref.ops import Concat, Copy, Identity, ReLU, Sum
from purine_ref.optim import RATE
from purine_ref.tensor import Location

MOST_OPERATORS = 9
"""Operators that a graph is drawn with, before gradients."""

PATIENCE = 3
"""Draws for each operator that is wanted: some do not fit."""

MOST_ELEMENTS = 300
"""No blob of a drawn graph is larger."""

LENGTHS = (2, 3, 4, 5, 6, 7)
"""What axes are as long as; now and then 1."""

PLAIN: dict[str, Callable[[], Operation]] = {
    "Concat": lambda: Concat(0),
    "Copy": Copy,
    "Identity": Identity,
    "ReLU": ReLU,
    "Sum": Sum,
}
"""Operations that map one blob to one of its shape, and round nothing."""

STREAMS = ("main", "main", "copy")
"""Streams to draw from, where a port has them."""


@dataclass(slots=True)
class DrawnGraph:
    """A graph, and what its source blobs are for: `roles` by name, see `filling`. `fanned` says that it has a fan."""

    graph: Graph
    roles: dict[str, str] = field(default_factory=dict)
    fanned: bool = False

    @property
    def racy(self) -> bool:
        """Whether several producers add to some blob, so that a wrong order or a lost addition may show."""
        return any(len(blob.producers) > 1 for blob in self.graph.blobs)


def draw_graph(rng: random.Random, hello: Hello, *, fans: float = 0.2) -> DrawnGraph | None:
    """A graph of the port's operations and dtypes; None where nothing could be drawn. A share `fans` has a fan."""
    drawing = _Drawing(rng, hello)
    wanted = rng.randint(1, MOST_OPERATORS)
    fanned = rng.random() < fans and drawing.fan()
    for _ in range(PATIENCE * wanted):
        if len(drawing.graph.ops) < wanted:
            drawing.grow()
    if not drawing.graph.ops:
        return None
    drawn = DrawnGraph(drawing.graph, drawing.roles, fanned)
    return (_with_gradients(rng, drawn, hello.operations) or drawn) if rng.random() < 0.5 else drawn


class _Drawing(Scene):
    """Draws one graph. `graph` and `roles` grow; `values` are the blobs that operators may read."""

    def __init__(self, rng: random.Random, hello: Hello) -> None:
        floats = sorted(hello.dtypes & {"float32", "float64"})
        super().__init__(rng, rng.choice(floats) if floats else "int64", "int64" in hello.dtypes)
        self.graph = Graph("drawn")
        self.roles: dict[str, str] = {}
        self.hello = hello
        chosen = sorted(set(DRAWS) & hello.operations)
        self.operations = chosen if rng.random() < 0.5 else rng.sample(chosen, min(len(chosen), 4))
        batch, *rest = rng.sample(LENGTHS, 4)
        shape = rng.choice(((batch, *rest), (batch, *rest), (batch, rest[0])))
        if floats:
            x = self.source(New(shape, self.dtype, "input"), Location())
            if hello.views and rng.random() < 0.3:
                self.look_into(x)

    def look_into(self, x: Blob) -> None:
        """Add a view of a part of a source, which operators read as any blob (rule R5)."""
        box = []
        for length in x.shape:
            start = self.rng.randrange(length)
            box.append((start, self.rng.randint(start + 1, length)))
        self.values.append(self.graph.view(x, f"v{len(self.graph.blobs)}", box))

    def grow(self) -> None:
        """Add one operator, or a copy to another rank, or nothing where a draw does not fit."""
        if not self.operations:
            return
        crossing = self.hello.locations and "Copy" in self.hello.operations and self.rng.random() < 0.1
        name = "Copy" if crossing else self.rng.choice(self.operations)
        drawn = DRAWS[name](self)
        if drawn is None:
            return
        place = next((i.location for i in drawn.inputs if isinstance(i, Blob)), Location())
        if isinstance(drawn.operation, Copy) and self.hello.locations and self.rng.random() < 0.7:
            drawn = Drawn(Copy(Location(self.rng.randrange(3))), drawn.inputs)
        self.add(drawn, place)

    def fan(self) -> bool:
        """Add three to five operators that round nothing and write one blob; whether the port has such an operation."""
        plain = sorted(set(PLAIN) & self.hello.operations)
        x = self.value()
        if not plain or x is None:
            return False
        y = self.graph.blob(f"v{len(self.graph.blobs)}", x.shape, x.dtype)
        for _ in range(self.rng.randint(3, 5)):
            source = self.source(self.new(x.shape, "input"), x.location) if self.rng.random() < 0.8 else x
            self.graph.connect([source], PLAIN[self.rng.choice(plain)](), [y], name=f"fan{len(self.graph.ops)}",
                               stream=self.rng.choice(STREAMS) if self.hello.streams else "main")  # fmt: skip
        self.values.append(y)
        return True

    def add(self, drawn: Drawn, place: Location) -> None:
        """Connect what was drawn, unless the operation refuses it, a place differs, or an output is large."""
        if any(isinstance(i, Blob) and i.location != place for i in drawn.inputs):
            return
        try:
            tensors = drawn.operation.infer([i.tensor for i in drawn.inputs])
        except GraphError:
            return
        if any(tensor.size > MOST_ELEMENTS for tensor in tensors):
            return
        inputs = [i if isinstance(i, Blob) else self.source(i, place) for i in drawn.inputs]
        target = getattr(drawn.operation, "to", None) or place
        outputs: list[Blob] = []
        for tensor in tensors:
            blob = self.shared(inputs, tensor.at(target), outputs)
            if blob is None:
                blob = self.graph.blob(f"v{len(self.graph.blobs)}", tensor.shape, tensor.dtype, target)
            outputs.append(blob)
        stream = self.rng.choice(STREAMS) if self.hello.streams else "main"
        name = f"{drawn.operation.name.lower()}{len(self.graph.ops)}"
        self.graph.connect(inputs, drawn.operation, outputs, name=name, location=place, stream=stream)
        self.values += [blob for blob in outputs if blob not in self.values]

    def source(self, new: New, place: Location) -> Blob:
        """A new source blob."""
        blob = self.graph.blob(f"s{len(self.graph.blobs)}", new.shape, new.dtype, place)
        self.roles[blob.name] = new.role
        if new.role == "input":
            self.values.append(blob)
        return blob

    def shared(self, inputs: Sequence[Blob], tensor: object, taken: Sequence[Blob]) -> Blob | None:
        """Now and then a blob that has a producer already, and on which the inputs do not depend (rule R4)."""
        if self.rng.random() >= 0.4:
            return None
        above = _above(inputs)
        fit = [b for b in self.graph.blobs if b.producers and b.tensor == tensor and b.tensor.is_float]
        fit = [b for b in fit if b not in above and b not in taken]
        return self.rng.choice(fit) if fit else None


def _above(blobs: Sequence[Blob]) -> set[Blob]:
    """These blobs and all that they depend on."""
    found, pending = set(blobs), list(blobs)
    while pending:
        for op, _ in pending.pop().producers:
            for blob in op.inputs:
                if blob not in found:
                    found.add(blob)
                    pending.append(blob)
    return found


def _with_gradients(rng: random.Random, drawn: DrawnGraph, operations: Collection[str]) -> DrawnGraph | None:
    """The graph with gradients of a sink for some sources, and perhaps their update; None where the port cannot."""
    graph = parts_of(drawn.graph).build("drawn")
    sinks = [b for b in graph.blobs if b.producers and not b.consumers and b.tensor.is_float]
    if not sinks:
        return None
    loss = rng.choice(sinks)
    behind = _above([loss])
    wanted = [graph[name] for name, role in drawn.roles.items() if role in ("weight", "input")]
    wanted = [blob for blob in wanted if blob in behind]
    if not wanted:
        return None
    try:
        gradients = backward(loss, rng.sample(wanted, rng.randint(1, len(wanted))))
        roles = dict(drawn.roles)
        if rng.random() < 0.7 and len({blob.location for blob in gradients}) == 1 and RATE not in graph:
            parts = parts_of(graph)
            optim.sgd(gradients, momentum=0.5, decay=rng.choice((0.0, 0.0, 0.5)))
            roles.update({f"{blob.name}/history": "history" for blob in gradients} | {RATE: "rate"})
            if not {op.operation.name for op in graph.ops} <= set(operations):
                graph, roles = parts.build("drawn"), dict(drawn.roles)
    except GraphError:
        return None
    if not {op.operation.name for op in graph.ops} <= set(operations):
        return None
    return replace(drawn, graph=graph, roles=roles)
