"""`make_case`: a case from a graph and what it is fed. What it must give, and how nearly, is computed here.

Values are those of float64 in steady arithmetic (`steady`), so that a case has the same bytes wherever it is made. An
entry is exact where the certificate of rule R10 says that no order of sums can matter, or where nothing is rounded.
Else its bound is, for an operator whose inputs are exact, the worst case of that operator; and for all others
`KAPPA` standard deviations of the errors that arrive there (rule R11). Both count the reference's own rounding too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from purine_ref.conformance.bounds import Estimate, Spread, cut, spread
from purine_ref.conformance.cases.building import everywhere, plan_of
from purine_ref.conformance.cases.case import Case, Expected
from purine_ref.conformance.cases.steady import SteadyKernels
from purine_ref.conformance.exact import certify
from purine_ref.errors import GraphError
from purine_ref.graph import Blob, Graph, Op
from purine_ref.operation import Array, Call, Kernels, Operation, RunKey
from purine_ref.ops import Gaussian, Uniform
from purine_ref.ops.attributes import is_power_of_two
from purine_ref.rounding import FUNCTION, KAPPA, UNITS, WIDE, least
from purine_ref.traversal import topological_order

EXACT = "every partial sum is exact, in any order (rule R10)"
UNROUNDED = "nothing is rounded"
ORDERED = "contributions that are not rounded add in the order of the edges (rule R4), which fixes every bit"
DECIDED = "a decision that lies outside the spread of errors"

BITS = 12
"""Bits that a bound keeps; it is rounded up."""


def make_case(
    graph: Graph,
    *,
    name: str,
    about: str,
    feeds: Sequence[Mapping[str, Array]],
    initial: Mapping[str, Array] | None = None,
    seed: int = 0,
    wanted: Collection[str] | None = None,
    schedule: Sequence[str] | None = None,
) -> Case:
    """The case of running `graph` once for each of `feeds`.

    `wanted` names the blobs to expect after each iteration; by default all that operators write and that can be read.
    Blobs with an element that hangs on a decision within the spread of errors (a kink), or with one for which no
    finite bound is known, are left out; and what is computed from draws that are rounded (Gaussian). Persistent blobs
    that are not in `initial` hold zeros. Locations need not be there. Raises GraphError when nothing remains to expect,
    for a source that is not fed, and as `prepare`.
    """
    lost = plan_of(graph).lost
    hidden = lost | _after_draws(graph)
    names = [b.name for b in graph.blobs if b.producers and b not in hidden and (wanted is None or b.name in wanted)]
    held: dict[str, Array | Estimate] = {b.name: np.zeros(b.shape, b.dtype) for b in graph.blobs if b.persistent}
    held |= initial or {}
    expected: list[Expected] = []
    for iteration, feed in enumerate(feeds):
        run = _run(graph, {**held, **feed}, RunKey(seed, iteration))
        found = [run.expected(graph[each], iteration) for each in names]
        expected += [entry for entry in found if entry is not None]
        held |= feed | run.carried(graph)  # type: ignore[operator]
    if not expected:
        raise GraphError(f"case {name!r}: no blob can be expected: all hang on a kink, or none has a producer")
    order = None if schedule is None else tuple(schedule)
    return Case(name, about, seed, graph, dict(initial or {}), tuple(dict(f) for f in feeds), tuple(expected), order)


def _after_draws(graph: Graph) -> set[Blob]:
    """The blobs computed from draws which another library may round otherwise; how far that carries is not known.

    The draws themselves are not among them.
    """
    after: set[Blob] = set()
    for op in topological_order(graph):
        drawn = (p.operation for blob in op.inputs for p, _ in blob.producers)
        if any(blob in after for blob in op.inputs) or any(_is_rounded_draw(operation) for operation in drawn):
            after |= set(op.outputs)
    return after


def _is_rounded_draw(operation: Operation) -> bool:
    """Whether a draw's formula rounds in float64."""
    if isinstance(operation, Uniform):
        return not (operation.low == 0 and is_power_of_two(operation.high))
    return isinstance(operation, Gaussian)


def _run(graph: Graph, held: Mapping[str, Array | Estimate], key: RunKey) -> _Run:
    """Compute one iteration from what every source blob holds."""
    sources = {b.name: held[b.name] for b in graph.blobs if not b.producers and b.name in held}
    kernels: Kernels = cast(Kernels, SteadyKernels(key))
    return _Run(kernels, spread(graph, sources, key=key, kernels=kernels), _is_exact(graph, sources, key))


def _is_exact(graph: Graph, sources: Mapping[str, Array | Estimate], key: RunKey) -> bool:
    """Whether no order of sums can matter (rule R10)."""
    if any(isinstance(array, Estimate) for array in sources.values()):  # which has an error already
        return False
    arrays = {name: np.asarray(array) for name, array in sources.items()}
    for blob in graph.blobs:
        if blob.view is not None and not blob.producers and blob.name not in arrays:
            arrays[blob.name] = arrays[blob.view.parent.name][cut(blob.view.box)].reshape(blob.shape)
    if not all(np.isfinite(array).all() for array in arrays.values()):
        return False
    return certify(graph, arrays, seed=key.seed, iteration=key.iteration, devices=everywhere).exact


@dataclass(frozen=True, slots=True)
class _Run:
    """One iteration: its vocabulary, the estimates of its blobs, and whether every sum was exact."""

    kernels: Kernels
    result: Spread
    exact: bool

    def carried(self, graph: Graph) -> dict[str, Array | Estimate]:
        """What the next iteration finds in the blobs that were exchanged; without errors where there were none."""
        found: dict[str, Array | Estimate] = {}
        for name, estimate in self.result.carried(graph).items():
            found[name] = self.stored(graph[name], estimate) if self.exact or estimate.variance is None else estimate
        return found

    def stored(self, blob: Blob, estimate: Estimate) -> Array:
        """The value, rounded to the blob's dtype."""
        with np.errstate(all="ignore"):
            return np.asarray(estimate.value).astype(blob.dtype)

    def expected(self, blob: Blob, iteration: int) -> Expected | None:
        """The entry of one blob; None where an element cannot be judged."""
        estimate = self.result.estimates[blob.name]
        value = self.stored(blob, estimate)
        if self.exact:
            return Expected(iteration, blob.name, value, None, EXACT)
        doubtful = estimate.unknown if blob.tensor.is_float else estimate.undecided
        if doubtful is not None and doubtful.any():
            return None
        ordered = self.in_order(blob)
        if ordered is not None:
            return Expected(iteration, blob.name, ordered, None, ORDERED)
        limit, reason = self.limit(blob, estimate)
        with np.errstate(all="ignore"):
            off = np.abs(np.asarray(value, np.float64) - np.asarray(estimate.value, np.float64))
            bound = np.where(np.isfinite(value), rounded_up(limit + off), 0.0) if limit.any() else np.zeros(blob.shape)
        if not np.isfinite(bound).all():
            return None
        return Expected(iteration, blob.name, value, _simplest(bound), self.reason(blob, bound, reason))

    def reason(self, blob: Blob, bound: Array, reason: str) -> str:
        """Why an entry has its bound, in words."""
        if bound.any():
            return reason
        inputs = [self.result.estimates[each.name] for op, _ in blob.producers for each in op.inputs]
        decides = not blob.tensor.is_float and any(each.variance is not None for each in inputs)
        return DECIDED if decides else UNROUNDED

    def limit(self, blob: Blob, estimate: Estimate) -> tuple[Array, str]:
        """How far two computations of the blob may be apart, and why."""
        if not blob.tensor.is_float:
            return np.zeros(blob.shape), UNROUNDED
        op, slot = blob.producers[0]
        inputs = [self.result.estimates[each.name] for each in op.inputs]
        if len(blob.producers) > 1 or any(each.variance is not None for each in inputs):
            variance = np.zeros(blob.shape) if estimate.variance is None else np.asarray(estimate.variance)
            return KAPPA * np.sqrt(2 * variance), f"{KAPPA:g} standard deviations of rounding errors (rule R11)"
        if isinstance(op.operation, Gaussian | Uniform):
            draws = _draw_limit(op.operation, np.asarray(estimate.value), UNITS[blob.dtype])
            return draws, f"roundings of {op.operation.name}'s formula"
        _, limit = self.computed(op, slot)
        return limit, f"the worst case of one {op.operation.name} (rule R11)"

    def computed(self, op: Op, slot: int) -> tuple[Array, Array]:
        """What an operator with exact inputs delivers to one output; how far two computations may be apart."""
        xp, blob = self.kernels.xp, op.outputs[slot]
        arrays = [xp.asarray(self.result.estimates[each.name].value) for each in op.inputs]
        outputs = [xp.zeros(each.shape, "float64" if each.tensor.is_float else each.dtype) for each in op.outputs]
        with np.errstate(all="ignore"):
            op.operation.compute(self.kernels, arrays, outputs)
            units = (UNITS[blob.dtype], WIDE)
            limits = [op.operation.bound(Call(self.kernels, arrays, outputs, unit))[slot] for unit in units]
        return outputs[slot], np.broadcast_to(np.asarray(limits[0]) + np.asarray(limits[1]), blob.shape)

    def in_order(self, blob: Blob) -> Array | None:
        """What several producers add up to bit by bit, where none of them rounds; else None."""
        if len(blob.producers) < 2 or not blob.tensor.is_float:
            return None
        total: Array | None = None
        for op, slot in blob.producers:
            if not op.inputs or any(self.result.estimates[each.name].variance is not None for each in op.inputs):
                return None
            value, limit = self.computed(op, slot)
            if limit.any():
                return None
            part = np.asarray(value).astype(blob.dtype)
            with np.errstate(all="ignore"):
                total = part if total is None else total + part
        return total


def _draw_limit(draw: Gaussian | Uniform, value: Array, unit: float) -> Array:
    """How far a draw may be off where its formula is computed by another library.

    Uniform has a product and a sum in float64, which may be fused. Gaussian has a logarithm, a root and a cosine, whose
    argument is rounded twice; its radius is at most 8.6. Then the dtype may round the other way.
    """
    if not _is_rounded_draw(draw):
        return np.zeros(value.shape)
    if isinstance(draw, Uniform):
        inside = 2 * WIDE * (abs(draw.low) + abs(draw.high - draw.low))
    else:
        inside = WIDE * (abs(draw.mean) + draw.std * 8.6 * (2 * FUNCTION + 2 * 6.3 + 4))
    return np.asarray(inside + 2 * (unit * np.abs(value) + least(unit)))


def rounded_up(bound: Array) -> Array:
    """The next float64 of `BITS` bits, or more exactly the bound itself where it has no more."""
    fraction, exponent = np.frexp(bound)
    return np.ldexp(np.ceil(np.ldexp(fraction, BITS)), exponent - BITS)


def _simplest(bound: Array) -> Array | float | None:
    """None for no bound at all, a number where all elements have the same."""
    if not bound.any():
        return None
    first = float(bound.ravel()[0])
    return first if (bound == first).all() else bound
