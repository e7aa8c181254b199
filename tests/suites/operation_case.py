"""What the operations' suite needs to know of an operation: a `Case`, with its inputs, their draws, and its oracle.

Draws are functions of a random generator and a shape. They give float64, which the suite casts to the dtype under test,
or int64 (labels, indices), which stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from purine_ref.operation import Operation, RunKey
from purine_ref.tensor import Tensor

Array = Any
Shape = tuple[int, ...]
Draw = Callable[[np.random.Generator, Shape], Array]
Oracle = Callable[..., Any]
"""From arrays of Python numbers to the output, or to a list of all outputs."""
Reference = Callable[[Sequence[Array], Sequence[Array | None]], tuple[list[Array], list[Array | None]]]
"""Another implementation: from inputs and the gradients that arrived, to outputs and the inputs' gradients."""

RUN = RunKey(seed=11, iteration=3)
"""The key of every run, so that an oracle can draw the same numbers."""

GAP = 2.0**-4
"""How far the elements that `apart` draws are from each other, at least; they are half as far from 0."""

FLOATS = ("float32", "float64")


def normal(rng: np.random.Generator, shape: Shape) -> Array:
    """Around 0."""
    return rng.standard_normal(shape)


def positive(rng: np.random.Generator, shape: Shape) -> Array:
    """Between 1/4 and 2."""
    return rng.uniform(0.25, 2, shape)


def between_zero_and_one(rng: np.random.Generator, shape: Shape) -> Array:
    """What a sigmoid or a softmax gives, and not too near to either end."""
    return rng.uniform(0.05, 0.95, shape)


def apart(rng: np.random.Generator, shape: Shape) -> Array:
    """Elements that are all `GAP` apart at least, and half as far from 0: away from ties and from a ReLU's kink."""
    size = math.prod(shape)
    return ((rng.permutation(size) - size // 2 + 0.5) * GAP).reshape(shape)


def integers(rng: np.random.Generator, shape: Shape) -> Array:
    """Small integers of both signs; a number on its own is never 0, which would hide everything."""
    drawn = rng.integers(-4, 5, shape) if shape else rng.choice([-3, -2, -1, 1, 2, 3])
    return np.asarray(drawn, np.float64)


def mask(rng: np.random.Generator, shape: Shape) -> Array:
    """Zeros and ones."""
    return rng.integers(0, 2, shape).astype(np.float64)


def whole(count: int) -> Draw:
    """Integers from 0 to count - 1: labels of so many classes, or places in so large a plane."""
    return lambda rng, shape: rng.integers(0, count, shape)


@dataclass(frozen=True)
class Input:
    """An input: its shape, its elements, and `exact`, its elements in exact mode: integers, or what `draw` gives.

    `batch` says whether its first axis is over samples, of which there may be none.
    """

    shape: Shape
    draw: Draw = normal
    exact: Draw = integers
    batch: bool = True


def weight(*shape: int, draw: Draw = normal) -> Input:
    """An input that has no samples."""
    return Input(shape, draw, batch=False)


def chosen(shape: Shape, draw: Draw) -> Input:
    """An input whose elements choose (a mask, labels, indices), in exact mode as well."""
    return Input(shape, draw, draw)


@dataclass(frozen=True)
class Case:
    """An operation with inputs for it and independent values.

    `note` tells cases of one operation apart. `reference` is another implementation, where there is one. `ulps` is what
    results may be wrong by, in units of the dtype's precision at the largest of them. `distance` is how far the drawn
    inputs are from a kink. `empty` is the operation for an empty batch, where an attribute depends on it. `certified`
    is false where exact mode refuses these shapes. `free` operations do no arithmetic. `moves_integers`: it takes int64
    too. `variadic` operations take any number of inputs.
    """

    operation: Operation
    inputs: tuple[Input, ...]
    oracle: Oracle
    reference: Reference | None = None
    note: str = ""
    ulps: float = 8
    distance: float = math.inf
    empty: Operation | None = None
    certified: bool = True
    free: bool = False
    moves_integers: bool = False
    variadic: bool = False
    dtypes: tuple[str, ...] = field(default=FLOATS)

    @property
    def name(self) -> str:
        """What test ids say: the operation and the note."""
        return f"{self.operation.name}-{self.note}" if self.note else self.operation.name

    @property
    def has_gradient(self) -> bool:
        """Whether the operation has a gradient rule."""
        return type(self.operation).gradient is not Operation.gradient

    @property
    def has_batch(self) -> bool:
        """Whether there can be an empty batch."""
        return self.empty is not None or any(each.batch and each.shape for each in self.inputs)

    def draw(self, dtype: str, *, exact: bool = False, samples: int | None = None, seed: int = 0) -> list[Array]:
        """Arrays for the inputs; those with a batch have as many `samples` as are asked for."""
        rng, arrays = np.random.default_rng(seed), []
        for each in self.inputs:
            shape = each.shape if samples is None or not (each.batch and each.shape) else (samples, *each.shape[1:])
            drawn = np.asarray((each.exact if exact else each.draw)(rng, shape))
            arrays.append(drawn if drawn.dtype.kind == "i" else drawn.astype(dtype))
        return arrays

    def tensors(self, dtype: str) -> list[Tensor]:
        """The inputs' descriptions."""
        return [Tensor(array.shape, array.dtype.name) for array in self.draw(dtype)]

    def expected(self, arrays: Sequence[Array]) -> list[Array]:
        """The oracle's outputs, as arrays of Python numbers."""
        outputs = self.oracle(*arrays)
        return [np.asarray(y, object) for y in (outputs if isinstance(outputs, list | tuple) else [outputs])]
