"""Descriptions of tensors: where they live and what they hold. Both classes are frozen; neither holds an array.

A `Location` is Purine's (rank, device): the rank is a process, a device below zero is that process's CPU.
A `Tensor` is a shape, a dtype and a location. Arrays live in a device's memory, bound by an executor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from purine_ref.errors import ShapeError

DTYPES = ("float32", "float64", "int64")
"""The dtypes of the reference: floats to compute with, and int64 for labels and indices."""

CPU = -1
"""The device number of a rank's CPU."""


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A place: `rank` is the process (0 and up), `device` the accelerator in it (below 0: its CPU)."""

    rank: int = 0
    device: int = CPU

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ShapeError(f"Location rank must be 0 or more, got {self.rank}")

    @property
    def is_cpu(self) -> bool:
        """Whether the place is a CPU."""
        return self.device < 0

    def __str__(self) -> str:
        device = "cpu" if self.is_cpu else f"device{self.device}"
        return device if self.rank == 0 else f"rank{self.rank}/{device}"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A shape (elements per axis, any of them may be 0), a dtype of `DTYPES` and a `Location`.

    Raises ShapeError for a negative or non-integer axis and for any other dtype.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    location: Location = Location()

    def __post_init__(self) -> None:
        for axis in self.shape:
            if type(axis) is not int or axis < 0:
                raise ShapeError(f"Tensor shape must hold integers of 0 or more, got {self.shape!r}")
        if self.dtype not in DTYPES:
            raise ShapeError(f"Tensor dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")

    @property
    def size(self) -> int:
        """The number of elements; Python integers, so it never wraps."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return 4 if self.dtype == "float32" else 8

    @property
    def nbytes(self) -> int:
        """Bytes of all elements; Python integers, so it never wraps."""
        return self.size * self.itemsize

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating point (and so can have a gradient)."""
        return self.dtype != "int64"

    def at(self, location: Location) -> Tensor:
        """The same tensor at another place."""
        return self if location == self.location else replace(self, location=location)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def as_shape(shape: object) -> tuple[int, ...]:
    """A shape as a tuple of Python integers, from a tuple, a list, or one integer; numpy integers are taken too.

    Raises ShapeError when an axis is not an integer.
    """
    if type(shape) is tuple and all([type(axis) is int for axis in shape]):
        return shape
    axes = (shape,) if isinstance(shape, (int, np.integer)) else shape
    try:
        return tuple([_axis(axis) for axis in axes])  # type: ignore[attr-defined]
    except TypeError:
        raise ShapeError(f"a shape must be a sequence of integers, got {shape!r}") from None


def _axis(axis: object) -> int:
    if type(axis) is int:
        return axis
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
        raise TypeError(axis)
    return int(axis)
