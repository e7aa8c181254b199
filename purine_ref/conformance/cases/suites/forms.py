"""What an operation is tried with: a `Form` is an operation with the shapes of its inputs, and how these are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from purine_ref.conformance.cases.suites.drawing import Draw, Shape, integers, real
from purine_ref.operation import Operation


@dataclass(frozen=True, slots=True)
class In:
    """An input: its shape, how it is drawn, and how where sums are to be exact: as integers, or as `exact` says."""

    shape: Shape
    draw: Draw = real
    exact: Draw = integers


def chosen(shape: Shape, draw: Draw) -> In:
    """An input that selects (labels, a mask, places), drawn one way whatever the case."""
    return In(shape, draw, draw)


Built = tuple[Operation, Sequence[In]]


@dataclass(frozen=True, slots=True)
class Form:
    """One form of an operation. `build` makes it for a number of samples, of which there are `samples`.

    `note` says in words what is peculiar to it. `empty` says whether there may be no samples. `special` are the inputs
    that may hold NaN and infinities: those where the conventions leave no doubt about what comes out. `dtypes` are the
    dtypes of its floats. `only` says that it is about certain values, so that no other draw makes sense; `exact` that
    sums of small integers may be exact.
    """

    note: str
    build: Callable[[int], Built]
    samples: int = 3
    empty: bool = True
    special: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ("float32", "float64")
    only: bool = False
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Source:
    """An operation without inputs, with the iterations and the seed that it is to draw for."""

    note: str
    operation: Operation
    iterations: int = 1
    seed: int = 0
