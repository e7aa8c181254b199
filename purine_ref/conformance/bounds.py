"""How far rounding errors carry through a graph (rule R11): one more run, on variances beside float64 values.

Every operator's own rounding errors are independent of all others (Higham and Mary, 2019), and every operation says by
its rules what variance they have and how an input's variance passes through it. Errors that reach an operator through
several inputs are independent only when no operator's errors are in both: else they may be the same ones, and their
standard deviations are added, which no correlation exceeds. The same goes for a blob of several producers (rule R4).

Decisions are not errors. The run can be given the decisions that another run took (`decided`): then it follows that
branch, on which everything is smooth, and each decision only has to lie within the spread. A decision that is not known
(`undecided`) makes what depends on it `unknown`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from purine_ref.devices import Device, device_for
from purine_ref.errors import GraphError
from purine_ref.graph import Blob, Graph, Op, View
from purine_ref.operation import Array, Box, Call, Kernels, Kinks, RunKey
from purine_ref.ops.shape import Movement
from purine_ref.rounding import UNITS, ordered_sum
from purine_ref.tensor import Location
from purine_ref.traversal import topological_order

_STATE = 1
"""The bit of errors that a run starts with; operator i has bit i + 1."""

_SAME = 2.0**-40
"""By how much, relatively, float64 values computed from equal numbers differ, at most: they are rounded too."""

_LARGE = 1e200
"""The variance of an unknown element: whatever comes from it has some, too."""


@dataclass(slots=True)
class Estimate:
    """What a blob should hold: `value` in float64 (int64 for integers), and the `variance` of the error, None for none.

    `origins` has a bit for each operator whose rounding errors are in it. `unknown` are the elements that depend on a
    decision which is not known, `undecided` those that decide for others which way to go and may do either, and `near`
    the decisions that errors within the bound could have turned. None of the three stands for no element.
    """

    value: Array
    variance: Array | None = None
    origins: int = 0
    unknown: Array | None = None
    undecided: Array | None = None
    near: Array | None = None

    def part(self, box: Box) -> Estimate:
        """That of a box of the blob."""
        index = cut(box)
        arrays = (self.variance, self.unknown, self.undecided, self.near)
        variance, *masks = (None if array is None else array[index] for array in arrays)
        return Estimate(self.value[index], variance, self.origins, *masks)


def cut(box: Box) -> tuple[Any, ...]:
    """The index of a box; the ellipsis keeps an array without axes an array."""
    return (*(slice(start, stop) for start, stop in box), ...)


@dataclass(slots=True)
class Spread:
    """The estimates of all blobs, by name, and the kinks: operators with decisions within the spread, and how many."""

    estimates: dict[str, Estimate] = field(default_factory=dict)
    kinks: dict[str, int] = field(default_factory=dict)

    def carried(self, graph: Graph) -> dict[str, Estimate]:
        """What the next run starts from: the new values of the pairs that are swapped, under their names then."""
        return {current.name: self.estimates[following.name] for current, following in graph.pairs}


def spread(
    graph: Graph,
    feeds: Mapping[str, Array | Estimate],
    *,
    key: RunKey,
    decided: Mapping[str, Array] | None = None,
    undecided: Mapping[str, Array] | None = None,
    keep_values: bool = True,
    kernels: Kernels | None = None,
    devices: Callable[[Location], Device] | None = None,
) -> Spread:
    """Values and variances of every blob of one run, from those of every source blob.

    `feeds` are arrays, which have no error, or estimates, such as `Spread.carried` gives; their errors may all be
    related. `decided` holds arrays of blobs that other operators select by, taken from the run whose branch is to be
    followed; `undecided` masks of such blobs. Without `keep_values`, values are let go, and NaN, once they are used:
    they take half of the memory. `kernels` compute, by default a CPU's. `devices` are those whose rounding errors
    are meant, where these add in another order. Raises GraphError when a source blob is missing, NotImplementedError
    for an operation without rules.
    """
    walk = _Walk(graph, kernels or device_for(Location()).kernels(key), decided or {}, undecided or {}, keep_values)
    walk.devices = devices
    walk.start(feeds)
    with np.errstate(all="ignore"):  # overflow and NaN are values
        for op in topological_order(graph):
            walk.visit(op)
    return walk.result


class _Walk:
    """One call of `spread`. `delivered` are the contributions to blobs of several producers, by edge; `uses` counts the
    edges by which a blob's value will be read yet, where values are not kept; `places` the vocabulary of each place,
    where `devices` say what is there.
    """

    devices: Callable[[Location], Device] | None = None

    def __init__(
        self, graph: Graph, kernels: Kernels, decided: Mapping[str, Array], undecided: Mapping[str, Array], keep: bool
    ) -> None:
        self.graph = graph
        self.kernels = kernels
        self.decided = decided
        self.undecided = undecided
        self.result = Spread()
        self.delivered: dict[Blob, dict[tuple[Op, int], Estimate]] = {}
        self.uses = {} if keep else {blob: len(blob.consumers) for blob in graph.blobs}
        self.places: dict[Location, Kernels] = {}

    def start(self, feeds: Mapping[str, Array | Estimate]) -> None:
        """Fill the source blobs."""
        for blob in self.graph.blobs:
            if blob.producers:
                continue
            if blob.view is not None and blob.name not in feeds:
                self.result.estimates[blob.name] = _seen(self.result.estimates[blob.view.parent.name], blob.view)
                continue
            if blob.name not in feeds:
                raise GraphError(f"a spread needs what every source blob holds; {blob.name!r} {blob.tensor} is missing")
            given = feeds[blob.name]
            estimate = given if isinstance(given, Estimate) else Estimate(np.asarray(given))
            origins = 0 if estimate.variance is None else _STATE
            self.result.estimates[blob.name] = Estimate(_wide(estimate.value), estimate.variance, origins)

    def visit(self, op: Op) -> None:
        """Estimate what an operator delivers; a blob is complete when its last producer has delivered."""
        for slot, estimate in enumerate(self._estimates(op)):
            blob = op.outputs[slot]
            edges = self.delivered.setdefault(blob, {})
            edges[op, slot] = estimate
            if len(edges) == len(blob.producers):
                del self.delivered[blob]
                total = _added([edges[edge] for edge in blob.producers], UNITS.get(blob.dtype, 0.0))
                if blob.name in self.undecided:
                    total.undecided = _either([total.undecided, self.undecided[blob.name]])
                self.result.estimates[blob.name] = total
                self._used(blob, 0)
        for blob in op.inputs:
            self._used(blob, 1)

    def _used(self, blob: Blob, count: int) -> None:
        """Let go of a value that nobody reads any more."""
        if blob in self.uses:
            self.uses[blob] -= count
            if self.uses[blob] == 0:
                estimate = self.result.estimates[blob.name]
                nothing = np.array(np.nan) if estimate.value.dtype.kind == "f" else np.array(0)
                estimate.value = np.broadcast_to(nothing, blob.shape)

    def _estimates(self, op: Op) -> list[Estimate]:
        """What the operator delivers to each output."""
        inputs = [self.result.estimates[blob.name] for blob in op.inputs]
        call = self._call(op, inputs)
        if not op.inputs:
            return [Estimate(_wide(array)) for array in call.outputs]
        carried = _carried(op, call, inputs)
        noises = op.operation.noise(call)
        kinks = op.operation.kinks(call)
        if kinks.count:
            self.result.kinks[op.name] = kinks.count
        estimates = []
        for slot, value in enumerate(call.outputs):
            estimate = _combined(value, [(origins, part[slot]) for origins, part in carried])
            _add_noise(estimate, noises[slot], 2 << op.index)
            estimates.append(estimate)
        self._mark(op, call, inputs, estimates, kinks)
        return estimates

    def _call(self, op: Op, inputs: Sequence[Estimate]) -> Call:
        """Compute the operator in float64, by the decisions that were given; sources in their own dtype."""
        selects, xp = op.operation.selects, self.kernels.xp
        arrays = [
            xp.asarray(self.decided.get(blob.name, each.value) if selects(slot, each.value) else each.value)
            for slot, (blob, each) in enumerate(zip(op.inputs, inputs, strict=True))
        ]
        dtypes = [b.dtype if not op.inputs or not b.tensor.is_float else "float64" for b in op.outputs]
        outputs = [xp.zeros(blob.shape, dtype) for blob, dtype in zip(op.outputs, dtypes, strict=True)]
        op.operation.compute(self.kernels, arrays, outputs)
        unit = max((UNITS[blob.dtype] for blob in op.outputs if blob.tensor.is_float), default=0.0)
        variances = [None if each.variance is None else xp.asarray(each.variance) for each in inputs]
        return Call(self._at(op.location), arrays, outputs, unit, variances)

    def _at(self, place: Location) -> Kernels:
        """What computes here, with the order of sums that the place has."""
        if self.devices is None:
            return self.kernels
        if place not in self.places:
            there = self.devices(place).kernels(self.kernels.key)
            self.places[place] = own = copy(self.kernels)
            own.convolution_data_terms = there.convolution_data_terms
            own.convolution_weight_terms = there.convolution_weight_terms
        return self.places[place]

    def _mark(
        self, op: Op, call: Call, inputs: Sequence[Estimate], estimates: Sequence[Estimate], kinks: Kinks
    ) -> None:
        """Set `unknown`, `undecided` and `near` of what an operator delivers."""
        doubts: list[list[Array | None]] = [[] for _ in estimates]
        choices: list[list[Array | None]] = [[] for _ in estimates]
        for slot, each in enumerate(inputs):
            selects = op.operation.selects(slot, each.value)
            for masks, mask in ((doubts, each.undecided if selects else each.unknown), (choices, each.undecided)):
                if mask is not None and (masks is doubts or isinstance(op.operation, Movement)):
                    for found, reached in zip(masks, _reached(op, call, slot, mask), strict=True):
                        found.append(reached)
        known = all(b.name in self.decided for i, b in enumerate(op.inputs) if i in op.operation.selectors)
        for slot, (estimate, jump) in enumerate(zip(estimates, kinks.jumps, strict=True)):
            blob, given = op.outputs[slot], bool(op.operation.selectors) and known
            if jump is not None and not blob.tensor.is_float:
                estimate.near = jump
                choices[slot].append(None if blob.name in self.decided else jump)
            elif jump is not None and not given:
                doubts[slot].append(jump)
            estimate.unknown = _either(doubts[slot]) if blob.tensor.is_float else None
            estimate.undecided = _either(choices[slot])


def _carried(op: Op, call: Call, inputs: Sequence[Estimate]) -> list[tuple[int, tuple[Array, ...]]]:
    """For each input with an error: where it comes from, and the variance that it gives each output."""
    return [
        (each.origins, op.operation.spread(call, slot))
        for slot, each in enumerate(inputs)
        if each.variance is not None and not op.operation.selects(slot, each.value)
    ]


def _combined(value: Array, parts: Iterable[tuple[int, Array]]) -> Estimate:
    """The variance of several errors: added where they have no origin in common, else as squared sums of deviations."""
    total: Array | None = None
    origins = 0
    for origin, variance in parts:
        if total is None:
            total = variance
        elif origins & origin:
            total = total + variance + 2 * np.sqrt(total * variance)
        else:
            total = total + variance
        origins |= origin
    return Estimate(value, None if total is None else np.asarray(total), origins)


def _add_noise(estimate: Estimate, noise: Array | None, origin: int) -> None:
    """Add errors of an operator's own."""
    if noise is None or estimate.value.dtype.kind == "i":
        return
    noise = _repeats(estimate.value) * noise
    estimate.variance = np.asarray(noise if estimate.variance is None else estimate.variance + noise)
    estimate.origins |= origin


def _repeats(value: Array) -> int:
    """How often each element occurs along axis 0, where all slices are equal: as in a batch of one sample repeated.

    What is computed from equal numbers is rounded alike: the errors are the same, not independent, and a sum over all
    of them has as many times the variance. So each is given that much, as `summing.LinearOperation` does for copies.
    """
    if not value.shape or len(value) < 2:
        return 1
    same = all((np.abs(other - value[:1]) <= _SAME * np.abs(value[:1])).all() for other in (value[1:2], value))
    return len(value) if same else 1


def _added(edges: Sequence[Estimate], unit: float) -> Estimate:
    """What several producers add up to (rule R4): each addition rounds."""
    if len(edges) == 1:
        return edges[0]
    value = sum(each.value for each in edges)
    total = _combined(value, [(each.origins, each.variance) for each in edges if each.variance is not None])
    _add_noise(total, ordered_sum([each.value for each in edges], unit)[1], reduce(or_, [e.origins for e in edges]))
    total.unknown = _either([each.unknown for each in edges])
    total.undecided = _either([each.undecided for each in edges])
    return total


def _reached(op: Op, call: Call, slot: int, mask: Array) -> list[Array]:
    """The elements of each output that depend on elements of input `slot`."""
    variances: list[Array | None] = [None] * len(call.inputs)
    variances[slot] = mask * _LARGE
    found = op.operation.spread(Call(call.kernels, call.inputs, call.outputs, call.unit, variances), slot)
    return [np.asarray(each) > 0 for each in found]


def _either(masks: Iterable[Array | None]) -> Array | None:
    """The union of masks."""
    found = [mask for mask in masks if mask is not None and mask.any()]
    return reduce(or_, found) if found else None


def _seen(parent: Estimate, view: View) -> Estimate:
    """A view of a source."""
    part = parent.part(view.box)
    variance = None if part.variance is None else part.variance.reshape(view.shape)
    return Estimate(part.value.reshape(view.shape), variance, part.origins)


def _wide(array: Array) -> Array:
    """Floats as float64; integers as they are."""
    return array if array.dtype.kind == "i" else array.astype(np.float64)
