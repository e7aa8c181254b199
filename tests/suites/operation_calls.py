"""How the operations' suite calls one operation: buffers, strides, exact inputs; and how it compares results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from purine_ref._fast import select
from purine_ref.devices import device_for
from purine_ref.operation import Operation
from purine_ref.tensor import Location, Tensor
from suites.operation_case import RUN, Case
from support import describe

Array = Any

CPU_ONLY = select("0").CPU_ONLY

EXPONENTS = (-2, -1, -3, -1)
"""In exact mode, input i is a multiple of 2 to the power EXPONENTS[i]."""


def vocabulary() -> Any:
    """The kernels of the CPU that executors find by default (see `purine_ref.devices.default_kernels`)."""
    return device_for(Location()).kernels(RUN)


def filled(tensor: Tensor, junk: float) -> Array:
    """A buffer full of `junk`; where that is NaN, integers get their least."""
    worst = np.iinfo(np.int64).min if junk != junk and not tensor.is_float else junk
    return np.full(tensor.shape, worst, tensor.dtype)


def compute(
    operation: Operation,
    inputs: Sequence[Array],
    junk: float = 7,
    layout: Callable[[Array], Array] | None = None,
    kernels: Any = None,
) -> list[Array]:
    """The outputs, in buffers that held `junk` and were laid out by `layout`; the inputs may not be written to."""
    given = [read_only(array) for array in inputs]
    buffers = [filled(tensor, junk) for tensor in operation.infer([describe(array) for array in inputs])]
    outputs = buffers if layout is None else [layout(buffer) for buffer in buffers]
    operation.compute(kernels or vocabulary(), given, outputs)
    return outputs


def read_only(array: Array) -> Array:
    """The same memory, which numpy refuses to write to through this array."""
    view = array.view()
    view.flags.writeable = False
    return view


def transposed(array: Array) -> Array:
    """The same elements, column by column."""
    return np.array(array, order="F")


def turned(array: Array) -> Array:
    """The same elements, from the last to the first in memory."""
    view = np.empty_like(array)[(*[slice(None, None, -1)] * array.ndim, ...)]
    view[...] = array
    return view


def spread(array: Array) -> Array:
    """The same elements, every second one of a wider array along every axis."""
    wide = np.full([2 * length + 1 for length in array.shape], 7, array.dtype)
    view = wide[(*[slice(1, None, 2)] * array.ndim, ...)]
    view[...] = array
    return view


LAYOUTS = (transposed, turned, spread)


def same_bits(got: Sequence[Array], want: Sequence[Array]) -> None:
    """Equal in dtype, shape and every bit."""
    for index, (one, other) in enumerate(zip(got, want, strict=True)):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), f"output {index}"
        if one.tobytes() != other.tobytes():
            differ = [at for at in np.ndindex(one.shape) if one[at].tobytes() != other[at].tobytes()]
            first = f"first at {differ[0]}: {one[differ[0]]!r} is not {other[differ[0]]!r}"
            pytest.fail(f"output {index}: {len(differ)} of {one.size} elements differ, {first}")


def near(got: Sequence[Array], want: Sequence[Array], ulps: float) -> None:
    """Equal within `ulps` of the largest; integers are equal."""
    for index, (one, other) in enumerate(zip(got, want, strict=True)):
        assert one.shape == other.shape, f"output {index}"
        if one.dtype.kind == "i":
            np.testing.assert_array_equal(one, other.astype(np.int64))
            continue
        wanted = np.asarray(other).astype(np.float64)
        error, largest = np.abs(one.astype(np.float64) - wanted).max(initial=0), np.abs(wanted).max(initial=0)
        wrong = error / (np.finfo(one.dtype).eps * largest) if largest else float(error)
        assert wrong <= ulps, f"output {index} is wrong by {wrong:.3g} ulp:\n{one}\nexpected\n{wanted}"


def arrived_at(outputs: Sequence[Array]) -> list[Array | None]:
    """A random gradient for every output that can have one."""
    rng = np.random.default_rng(5)
    return [rng.standard_normal(y.shape).astype(y.dtype) if y.dtype.kind == "f" else None for y in outputs]


class OwnLoops:
    """Kernels with no other loop than those that an operation names; `asked` are those that it used.

    What no operation names, since a device may lack it, is not there.
    """

    def __init__(self, loops: frozenset[str]) -> None:
        self._loops = loops
        self._kernels = vocabulary()
        self.asked: set[str] = set()
        for name in ("xp", "key", "share", "whole", "number", "refuse", "copy"):  # all devices have these
            setattr(self, name, getattr(self._kernels, name))

    def __getattr__(self, name: str) -> Any:
        if name in CPU_ONLY:
            raise AttributeError(name)
        assert name in self._loops, f"kernels.{name} is used and not in `loops`"
        self.asked.add(name)
        return getattr(self._kernels, name)


def as_float64(array: Array) -> Array:
    """Floats as float64; integers as they are."""
    return array if array.dtype.kind == "i" else array.astype(np.float64)


def with_numpy_scalars(operation: Operation) -> Operation:
    """The same operation, with numpy's float64 and int64 for the numbers among its attributes."""
    values = {each.name: getattr(operation, each.name) for each in fields(operation)}  # type: ignore[arg-type]
    return replace(operation, **{name: as_numpy(value) for name, value in values.items()})  # type: ignore[type-var]


def as_numpy(value: Any) -> Any:
    """A number as numpy's, a tuple with its numbers so, anything else as it is."""
    if isinstance(value, tuple):
        return tuple(map(as_numpy, value))
    return {float: np.float64, int: np.int64}.get(type(value), lambda same: same)(value)


def exact_arrays(case: Case, dtype: str) -> tuple[list[int], list[Array]]:
    """The exponent of each input's quantum, and inputs that are such multiples; what only chooses is not scaled."""
    arrays, exponents = case.draw(dtype, exact=True), []
    for index, array in enumerate(arrays):
        chooses = array.dtype.kind == "i" or index in case.operation.selectors
        exponents.append(0 if chooses else EXPONENTS[index % len(EXPONENTS)])
        if not chooses:
            arrays[index] = np.asarray(array * 2.0 ** exponents[index], dtype)
    return exponents, arrays


def limits_of(operation: Operation, arrays: Sequence[Array]) -> list[Array]:
    """The limits of the outputs' partial sums, computed in float64 as a certificate does."""
    made = operation.infer([describe(array) for array in arrays])
    limits = [filled(tensor if not tensor.is_float else replace(tensor, dtype="float64"), 7) for tensor in made]
    operation.magnitude(vocabulary(), arrays, [np.abs(array) for array in arrays], limits)
    return limits
