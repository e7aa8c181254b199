"""Exact mode (rule R10): inputs on which floating-point addition is associative, and the certificate that it is.

Beside each actual value goes a limit that no partial sum of it exceeds in absolute value, found by running the
operators on absolute values, and a power of two (a *quantum*, kept as its exponent) of which all partial sums are
multiples. When limit / quantum stays below 2^53 (2^24 for float32), and both within the dtype's range, every partial
sum in any order is exact, so any two schemes must agree to the bit. Limits are computed in float64, one operator after
the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from purine_ref.devices import Device, device_for
from purine_ref.errors import GraphError, OperatorError, ShapeError
from purine_ref.graph import Blob, Graph, Op
from purine_ref.operation import Array, Kernels, RunKey
from purine_ref.optim import RATE
from purine_ref.plan import prepare
from purine_ref.tensor import Location

INTEGER_BITS = {"float32": 24, "float64": 53}
"""Integers below 2 to this power are exact in the dtype; a limit computed in float64 cannot be told from 2^53 above."""

LEAST = {"float32": -149, "float64": -1074}
"""The smallest number of the dtype is 2 to this power: what is a multiple of it does not vanish."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Whether a run is exact. `problems` says why not; `bits` is the most that a blob needs, by name."""

    problems: tuple[str, ...]
    bits: dict[str, float]

    @property
    def exact(self) -> bool:
        """Whether every partial sum of the run is exact in any order."""
        return not self.problems


@dataclass(slots=True)
class _Value:
    """A blob's actual array, the limit of its partial sums, and the exponent of its quantum."""

    actual: Array
    limit: Array
    exponent: int


def certify(
    graph: Graph,
    feeds: Mapping[str, Array],
    *,
    seed: int = 0,
    iteration: int = 0,
    devices: Callable[[Location], Device] = device_for,
) -> Certificate:
    """The certificate of run `iteration` of `graph` with every source blob's array in `feeds`, by name.

    Raises GraphError when a source blob is missing or not finite, ShapeError when it has another shape or dtype; what
    `prepare` raises.
    """
    plan = prepare(graph, devices)
    values = {blob: _source(blob, feeds) for blob in graph.blobs if not blob.producers}
    problems: list[str] = []
    for index in plan.order:
        op = graph.ops[index]
        if not op.operation.exact:
            problems.append(f"operator {op.name!r}: {op.operation!r} is not exact")
            break
        try:
            kernels = devices(op.location).kernels(RunKey(seed, iteration))
            with np.errstate(all="ignore"):  # what overflows is out of range, and found below
                results = _propagate(op, [values[blob] for blob in op.inputs], kernels)
        except OperatorError as error:
            problems.append(f"operator {op.name!r}: {error}")
            break
        for blob, result in zip(op.outputs, results, strict=True):
            values[blob] = _added(values.get(blob), result)
    floats = {blob: value for blob, value in values.items() if blob.tensor.is_float}
    for blob, value in floats.items():
        problems += _too_wide(blob, value)
    return Certificate(tuple(problems), {blob.name: _bits(value) for blob, value in floats.items()})


def _source(blob: Blob, feeds: Mapping[str, Array]) -> _Value:
    if blob.name not in feeds:
        raise GraphError(f"a certificate needs the values of every source blob; {blob.name!r} {blob.tensor} is missing")
    actual = np.asarray(feeds[blob.name])
    if (actual.shape, actual.dtype.name) != (blob.shape, blob.dtype):
        raise ShapeError(f"blob {blob.name!r} takes {blob.tensor}, got {actual.dtype.name}{list(actual.shape)}")
    if not np.isfinite(actual).all():
        raise GraphError(f"a certificate needs finite values; {blob.name!r} has others")
    if not blob.tensor.is_float:
        return _Value(actual, np.abs(actual), 0)
    return _Value(actual, np.abs(actual.astype("float64")), exponent_of(actual))


def exponent_of(array: Array) -> int:
    """The largest e for which every element is a multiple of 2**e; 0 when all are zero. Elements must be finite."""
    values = np.asarray(array, dtype=np.float64).ravel()
    fractions, exponents = np.frexp(values[values != 0])
    if fractions.size == 0:
        return 0
    mantissas = (np.abs(fractions) * 2.0**53).astype(np.int64)
    trailing = np.log2((mantissas & -mantissas).astype(np.float64)).astype(np.int64)
    return int((exponents - 53 + trailing).min())


def _propagate(op: Op, inputs: list[_Value], kernels: Kernels) -> list[_Value]:
    """Actual values, limits and exponents of an operator's outputs."""
    tensors = [blob.tensor for blob in op.inputs], [blob.tensor for blob in op.outputs]
    actual = [np.zeros(t.shape, t.dtype) for t in tensors[1]]
    limits = [np.zeros(t.shape, "float64" if t.is_float else t.dtype) for t in tensors[1]]
    arrays = [value.actual for value in inputs]
    op.operation.compute(kernels, arrays, actual)
    op.operation.magnitude(kernels, arrays, [value.limit for value in inputs], limits)
    if inputs:
        exponents = op.operation.quantum([value.exponent for value in inputs], *tensors)
    else:
        exponents = tuple(exponent_of(array) if array.dtype.kind == "f" else 0 for array in actual)
    return [_Value(*parts) for parts in zip(actual, [np.abs(limit) for limit in limits], exponents, strict=True)]


def _added(before: _Value | None, more: _Value) -> _Value:
    """What several producers add up to (rule R4)."""
    if before is None:
        return more
    return _Value(before.actual + more.actual, before.limit + more.limit, min(before.exponent, more.exponent))


def _too_wide(blob: Blob, value: _Value) -> list[str]:
    """What of a float blob's values its dtype cannot hold."""
    inside = bool(np.all(value.limit <= np.finfo(blob.dtype).max))
    if not inside or (value.limit.any() and value.exponent < LEAST[blob.dtype]):
        return [f"blob {blob.name!r} leaves the range of {blob.dtype}"]
    needed, held = _bits(value), INTEGER_BITS[blob.dtype]
    return [f"blob {blob.name!r} needs {needed:.1f} bits, {blob.dtype} is exact below {held}"] if needed >= held else []


def _bits(value: _Value) -> float:
    largest = float(np.max(value.limit, initial=0.0))
    return float(np.log2(largest) - value.exponent) if largest > 0 else 0.0


def exact_feeds(graph: Graph, *, seed: int = 0, largest: int = 3, links: int = 4) -> dict[str, Array]:
    """Values for every source blob that keep sums small: weights of -1, 0, 1 with about `links` per row; histories 0.

    Other floats are integers from -largest to largest, the learning rate is 1/8, and integer blobs are 0.
    """
    rng = np.random.default_rng(seed)
    parameters = set(graph.parameters)
    feeds: dict[str, Array] = {}
    for blob in graph.blobs:
        if blob.producers:
            continue
        if blob.name == RATE:
            values = np.array(0.125)
        elif blob in parameters:
            row = max(1, blob.tensor.size // max(1, blob.shape[0]))
            values = rng.integers(0, 2, blob.shape) * 2 - 1
            values = values * (rng.random(blob.shape) < links / row)
        elif blob.persistent or not blob.tensor.is_float:
            values = np.zeros(blob.shape)
        else:
            values = rng.integers(-largest, largest + 1, blob.shape)
        feeds[blob.name] = values.astype(blob.dtype)
    return feeds
