"""The suite `operators`: every public operation by itself, at least `LEAST` cases each.

Each form of an operation is drawn with all bits of float32; some also of float64, with small integers (where all sums
are exact, and ties and zeros abound), with NaN and infinities, without samples, with several producers that add into
one blob which held something before (rule R4), and with its gradient rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from purine_ref.conformance.cases.attributes import OPERATIONS
from purine_ref.conformance.cases.case import Case, Makers
from purine_ref.conformance.cases.making import make_case
from purine_ref.conformance.cases.suites import geometry, movement, values
from purine_ref.conformance.cases.suites.drawing import draw, real, with_specials
from purine_ref.conformance.cases.suites.forms import Form, In, Source
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph
from purine_ref.layers import squared_error
from purine_ref.operation import Array, Operation
from purine_ref.tensor import Location

LEAST = 8
"""Cases of every operation, at least."""

FORMS: Mapping[str, Sequence[Form]] = {**geometry.FORMS, **values.FORMS, **movement.FORMS}

BEFORE = 7.0
"""What a blob holds before its producers write; nothing of it may be left."""

Maker = Callable[[str], Case]
"""From a case's name to the case."""


def operator_cases() -> Makers:
    """All cases, operation by operation, in the order of the names."""
    makers: dict[str, Callable[[], Case]] = {}
    for operation in OPERATIONS:
        sources = movement.SOURCES.get(operation, ())
        own = [_Drawing(source).make for source in sources] or _makers(operation)
        names = [f"operators/{operation}/{number:02}" for number in range(len(own))]
        makers |= {name: partial(make, name) for name, make in zip(names, own, strict=True)}
    return makers


def _makers(operation: str) -> list[Maker]:
    """The cases of an operation with inputs, in their order."""
    forms = FORMS[operation]
    free = [form for form in forms if not form.only]
    makers: list[Maker] = [_Single(form).make for form in forms]
    makers += [_Single(form, "float64").make for form in forms[:2] if "float64" in form.dtypes]
    makers += [_Single(form, exact=True).make for form in free[:2] if form.exact]
    makers += [_Single(form, special=True).make for form in free if form.special][:2]
    makers += [_Single(form, samples=0).make for form in free if form.empty][:2]
    makers += [_Several(form, exact).make for form in free[:1] for exact in (False, True)]
    if OPERATIONS[operation].gradient is not Operation.gradient:
        makers += [_WithGradient(form).make for form in _differentiable(free)]
    makers += [_Single(free[0], draws=f"again {i}").make for i in range(LEAST - len(makers))]
    return makers


def _differentiable(forms: Sequence[Form]) -> list[Form]:
    """The first form and the last one that give floats from floats."""
    return [form for form in dict.fromkeys((forms[0], forms[-1])) if not form.only]


def input_arrays(form: Form, inputs: Sequence[In], dtype: str, exact: bool, stream: str) -> list[Array]:
    """What the inputs are fed; `stream` names the draw."""
    return [
        draw(f"{stream}/{i}", each.shape, dtype, each.exact if exact and not form.only else each.draw)
        for i, each in enumerate(inputs)
    ]


@dataclass(frozen=True, slots=True)
class _Single:
    """One operator, fed in one of several ways."""

    form: Form
    dtype: str = "float32"
    exact: bool = False
    special: bool = False
    samples: int = -1
    draws: str = ""

    def make(self, name: str) -> Case:
        """The case of that name."""
        count = self.form.samples if self.samples < 0 else self.samples
        operation, inputs = self.form.build(count)
        arrays = input_arrays(self.form, inputs, self.dtype, self.exact, name)
        if self.special:
            arrays = [with_specials(a) if i in self.form.special else a for i, a in enumerate(arrays)]
        graph = Graph(operation.name)
        feed = add_inputs(graph, arrays, "x")
        graph.apply(operation, [graph[each] for each in feed], "y")
        return make_case(graph, name=name, about=self._about(), feeds=[feed])

    def _about(self) -> str:
        """What is peculiar to it."""
        ways = [
            (self.exact, "small integers, zeros and ties among them"),
            (self.special, "with NaN, infinities and -0.0"),
            (self.samples == 0, "an empty batch"),
            (self.dtype != "float32", self.dtype),
            (bool(self.draws), "other values"),
        ]
        return "; ".join([self.form.note, *(way for holds, way in ways if holds)])


@dataclass(frozen=True, slots=True)
class _Several:
    """Three operators of one kind that add into one blob, which held something before."""

    form: Form
    exact: bool

    def make(self, name: str) -> Case:
        """The case of that name."""
        operation, inputs = self.form.build(self.form.samples)
        graph = Graph(operation.name)
        feed: dict[str, Array] = {}
        total: Blob | None = None
        for producer in range(3):
            arrays = input_arrays(self.form, inputs, "float32", self.exact, f"{name}/{producer}")
            own = add_inputs(graph, arrays, f"x{producer}-")
            feed |= own
            total = _add_producer(graph, operation, [graph[each] for each in own], f"y{producer}", total)
        assert total is not None
        before = {total.name: np.full(total.shape, BEFORE, total.dtype)}
        about = f"{self.form.note}; three producers add into y, which held {BEFORE:g}, in the order of their edges"
        about += "; small integers" if self.exact else ""
        return make_case(graph, name=name, about=about, feeds=[feed], initial=before)


def _add_producer(graph: Graph, operation: Operation, inputs: list[Blob], name: str, total: Blob | None) -> Blob:
    """One more producer of y; what it gives beside is its own."""
    place = getattr(operation, "to", None) or inputs[0].location
    tensors = [tensor.at(place) for tensor in operation.infer([blob.tensor for blob in inputs])]
    if total is None:
        total = graph.blob("y", tensors[0].shape, tensors[0].dtype, place, persistent=True)
    others = [graph.blob(f"{name}.{i}", t.shape, t.dtype, place) for i, t in enumerate(tensors[1:], 1)]
    graph.connect(inputs, operation, [total, *others], name=name)
    return total


@dataclass(frozen=True, slots=True)
class _WithGradient:
    """An operator, a loss of its first output, and the operators of its gradient rule."""

    form: Form

    def make(self, name: str) -> Case:
        """The case of that name."""
        operation, inputs = self.form.build(self.form.samples)
        arrays = input_arrays(self.form, inputs, "float32", False, name)
        graph = Graph(operation.name)
        feed = add_inputs(graph, arrays, "x")
        sources = [graph[each] for each in feed]
        y = graph.apply(operation, sources, "y")[0]
        loss = y
        if y.shape:
            target = graph.blob("target", y.shape, y.dtype, y.location)
            feed["target"] = draw(f"{name}/target", y.shape, y.dtype, real)
            loss = squared_error(y, target, reduction="sum", name="loss")
        wanted = [blob for i, blob in enumerate(sources) if blob.tensor.is_float and operation.differentiable(i)]
        backward(loss, wanted)
        return make_case(graph, name=name, about=f"{self.form.note}; with its gradients", feeds=[feed])


def add_inputs(graph: Graph, arrays: Sequence[Array], prefix: str) -> dict[str, Array]:
    """Source blobs for arrays; returns what feeds them, by name."""
    feed = {f"{prefix}{i}": array for i, array in enumerate(arrays)}
    for name, array in feed.items():
        graph.blob(name, array.shape, array.dtype.name, Location())
    return feed


@dataclass(frozen=True, slots=True)
class _Drawing:
    """One operator without inputs, run for several iterations."""

    source: Source

    def make(self, name: str) -> Case:
        """The case of that name."""
        operation = self.source.operation
        graph = Graph(operation.name)
        graph.apply(operation, [], "y")
        feeds: list[dict[str, Array]] = [{}] * self.source.iterations
        return make_case(graph, name=name, about=self.source.note, feeds=feeds, seed=self.source.seed)
