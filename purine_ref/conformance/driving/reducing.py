"""What a failing case can be made smaller by, once no operator can be left out: each proposes smaller material.

A proposal has less of something and more of nothing, so that taking one after the other ends. It need not be possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, replace
from typing import Any

import numpy as np

from purine_ref.conformance.cases.reading import must_be_fed
from purine_ref.conformance.driving.material import Material
from purine_ref.conformance.driving.parts import Parts
from purine_ref.conformance.driving.solving import Solved
from purine_ref.operation import Operation
from purine_ref.ops import Copy
from purine_ref.tensor import Location

Reduction = Callable[[Solved, Material], Iterator[Material]]
"""Proposals for a case that fails."""

FEW = 3
"""So many elements that are not 0 are few."""


def simpler_order(solved: Solved, material: Material) -> Iterator[Material]:
    """No order; or that of the making from some place on, or with one operator less out of its place."""
    order = material.order
    if order is None:
        return
    yield material.with_order(None)
    plain = [op.name for op in material.parts.topological()]
    if list(order) == plain:
        return
    for length in (0, len(order) // 2, len(order) - 2):
        first = list(order[:length])
        changed = first + [name for name in plain if name not in first]
        if tuple(changed) != order:
            yield material.with_order(changed)


def one_place(solved: Solved, material: Material) -> Iterator[Material]:
    """Everything at one location, and on one stream."""
    parts, here = material.parts, Location()
    if any(op.stream != "main" for op in parts.ops):
        ops = tuple(replace(op, stream="main") for op in parts.ops)
        yield replace(material, parts=replace(parts, ops=ops))
    if any(blob.location != here for blob in parts.blobs):
        blobs = tuple(replace(blob, location=here) for blob in parts.blobs)
        ops = tuple(replace(op, location=here, operation=_here(op.operation)) for op in parts.ops)
        yield replace(material, parts=Parts(blobs, ops, parts.pairs))


def _here(operation: Operation) -> Operation:
    return Copy() if isinstance(operation, Copy) else operation


def fewer_inputs(solved: Solved, material: Material) -> Iterator[Material]:
    """Operators of any number of inputs without one of them; without operands that are wired twice."""
    for op in material.parts.ops:
        if op.operation.name not in ("Sum", "Mean", "Concat") or len(op.inputs) < 2:
            continue
        for i in range(len(op.inputs)):
            inputs = (*op.inputs[:i], *op.inputs[i + 1 :])
            ops = tuple(replace(other, inputs=inputs) if other is op else other for other in material.parts.ops)
            parts = replace(material.parts, ops=ops).keeping([each.name for each in ops])
            yield from _possible(replace(material, parts=parts), {}, {})


def smaller_shapes(solved: Solved, material: Material) -> Iterator[Material]:
    """Every axis of one length shorter, wherever it occurs; one axis of one source; two lengths by one."""
    sources = {b.name: b.shape for b in solved.case.graph.blobs if not b.producers}
    lengths = sorted({n for shape in sources.values() for n in shape if n > 1}, reverse=True)
    for old in lengths:
        for new in dict.fromkeys((1, 2, old // 2, old - 1)):
            if 0 < new < old:
                yield from _renumbered(material, sources, {old: new})
    for one in lengths:
        for other in lengths:
            if one != other:
                yield from _renumbered(material, sources, {one: one - 1, other: other - 1})
    for name, shape in sources.items():
        for axis, length in enumerate(shape):
            for new in (1, length - 1):
                if 0 < new < length:
                    changed = {name: (*shape[:axis], new, *shape[axis + 1 :])}
                    yield from _possible(material, changed, {})


def _renumbered(
    material: Material, sources: dict[str, tuple[int, ...]], numbers: dict[int, int]
) -> Iterator[Material]:
    """With lengths replaced in all sources, and in attributes that are shapes."""
    shapes = {name: tuple(numbers.get(n, n) for n in shape) for name, shape in sources.items()}
    operations = {}
    for op in material.parts.ops:
        shape = getattr(op.operation, "shape", None)
        if isinstance(shape, tuple):
            changed = tuple(numbers.get(n, n) for n in shape)
            if changed != shape:
                operations[op.name] = replace(op.operation, shape=changed)  # type: ignore[type-var]
    yield from _possible(material, shapes, operations)


def _possible(
    material: Material, shapes: dict[str, tuple[int, ...]], operations: dict[str, Operation]
) -> Iterator[Material]:
    """The material with these shapes, where the operations take them: with its first values, and with its last."""
    try:
        yield material.with_shapes(shapes, operations)
        if shapes:
            yield material.with_shapes(shapes, operations, last=True)
    except Exception:  # shape rules meet shapes that no graph has: what they raise then is not theirs to promise
        return


def simpler_attributes(solved: Solved, material: Material) -> Iterator[Material]:
    """An attribute at its default; its numbers all 0 or 1, or one of them one less."""
    for op in material.parts.ops:
        for field in fields(op.operation):  # type: ignore[arg-type]
            if field.name == "stream":  # without one, a draw gets its operator's name
                continue
            value = getattr(op.operation, field.name)
            for simpler in _simpler(value, field.default):
                try:
                    changed = {op.name: replace(op.operation, **{field.name: simpler})}  # type: ignore[type-var]
                except Exception:  # the value is refused
                    continue
                if changed[op.name] != op.operation:  # some values are settled to what they were
                    yield from _possible(material, {}, changed)


def _simpler(value: Any, default: Any) -> Iterator[Any]:
    """The default; then 1 or 0. From these there is no way back, so that an end is reached."""
    if value in (0, 1) or value is None:
        return
    if default is not MISSING and default != value and isinstance(value, (str, float)):
        yield default
    if isinstance(value, float):
        yield from (1.0, 0.0)
    elif isinstance(value, (int, tuple)):
        for most in (0, 1):
            flat = _mapped(value, lambda n, most=most: min(n, most) if isinstance(n, int) else n)  # type: ignore[misc]
            if flat != value:
                yield flat


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A number, or nested tuples of them, each changed."""
    return tuple(_mapped(part, change) for part in value) if isinstance(value, tuple) else change(value)


def simpler_values(solved: Solved, material: Material) -> Iterator[Material]:
    """Zeros for a source; few elements that are not 0; ones in place of them; integers in place of fractions."""
    for blob in solved.case.graph.blobs:
        if blob.producers or not (blob.persistent or must_be_fed(blob)):
            continue
        fed = material.held[:1] if blob.persistent else material.held  # a persistent one is set once
        arrays = [values[blob.name] for values in fed]
        for simpler in (np.zeros_like, _few, _halved, _rounded, _ones):
            changed = {i: simpler(array) for i, array in enumerate(arrays)}
            if any(not np.array_equal(changed[i], array, equal_nan=True) for i, array in enumerate(arrays)
                   if array.dtype.kind == "f" or simpler is np.zeros_like):  # fmt: skip
                yield material.with_values(blob.name, changed)


def _few(array: Any) -> Any:
    """Only the first elements that are not 0."""
    return _first(array, FEW)


def _halved(array: Any) -> Any:
    return _first(array, int(np.count_nonzero(array)) // 2)


def _first(array: Any, count: int) -> Any:
    places = np.flatnonzero(array)
    if array.dtype.kind != "f" or len(places) <= count:
        return array
    left = np.zeros_like(array)
    left.reshape(-1)[places[:count]] = array.reshape(-1)[places[:count]]
    return left


def _rounded(array: Any) -> Any:
    return np.rint(array) if array.dtype.kind == "f" else array


def _ones(array: Any) -> Any:
    return (array != 0).astype(array.dtype) if array.dtype.kind == "f" else array


REDUCTIONS: tuple[Reduction, ...] = (
    simpler_order,
    one_place,
    fewer_inputs,
    smaller_shapes,
    simpler_attributes,
    simpler_values,
)
"""All reductions, in the order in which they are tried."""
