"""What draws have in common: the blobs and the generator that they draw from, and what they propose."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from purine_ref.errors import ShapeError
from purine_ref.graph import Blob
from purine_ref.operation import Operation
from purine_ref.tensor import Tensor


@dataclass(frozen=True, slots=True)
class New:
    """A source blob to be made; `role` says what it is fed: see `filling`."""

    shape: tuple[int, ...]
    dtype: str
    role: str

    @property
    def tensor(self) -> Tensor:
        """Its description."""
        return Tensor(self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class Drawn:
    """An operation and its inputs."""

    operation: Operation
    inputs: tuple[Blob | New, ...]


class Scene:
    """What draws draw from: `values`, the blobs there are, of `dtype` or integers, and a generator."""

    def __init__(self, rng: random.Random, dtype: str, integers: bool) -> None:
        self.rng = rng
        self.dtype = dtype
        self.integers = integers
        self.values: list[Blob] = []

    def value(self, axes: int | None = None) -> Blob | None:
        """One of the float blobs, mostly a late one; with so many axes, where that is asked."""
        fit = [b for b in self.values if b.dtype == self.dtype and (axes is None or len(b.shape) == axes)]
        return self.rng.choice((*fit, *fit[-2:])) if fit else None

    def like(self, shape: tuple[int, ...], role: str = "input") -> Blob | New:
        """A blob of that shape, or a new source."""
        fit = [b for b in self.values if b.shape == shape and b.dtype == self.dtype]
        return self.rng.choice(fit) if fit and self.rng.random() < 0.7 else self.new(shape, role)

    def new(self, shape: tuple[int, ...], role: str = "weight") -> New:
        """A new source of the scene's dtype."""
        return New(shape, self.dtype, role)

    def chance(self, share: float) -> bool:
        """True so often."""
        return self.rng.random() < share

    def pair(self, *choices: int) -> tuple[int, int]:
        """Two numbers, often different ones."""
        return self.rng.choice(choices), self.rng.choice(choices)

    def pads(self, most: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Padding per axis and side."""
        return self.pair(*range(most + 1)), self.pair(*range(most + 1))


Draw = Callable[[Scene], Drawn | None]
"""Proposes an operation over a scene, or None where nothing fits."""


def output_of(drawn: Drawn) -> tuple[int, ...] | None:
    """The shape of the first output, or None where the operation refuses its inputs."""
    try:
        return drawn.operation.infer([i.tensor for i in drawn.inputs])[0].shape
    except ShapeError:
        return None
