"""Rational numbers that know how many significant bits the steps to them needed.

Oracles run on them as on floats. Floating-point arithmetic is exact as long as every result on the way has no more
significant bits than the dtype holds, so `peak` is what a certificate of exactness (rule R10) must bound.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from functools import total_ordering
from typing import Any

from oracles import Array, each

Step = Callable[[Any, Any], Any]


@total_ordering
class Traced:
    """`value`, and `peak`: the largest odd numerator among the results on the way to it; 0 for what was given."""

    __slots__ = ("peak", "value")

    def __init__(self, value: Any, peak: int = 0) -> None:
        self.value = Fraction(value)
        self.peak = peak

    def __eq__(self, other: object) -> bool:
        return self.value == value_of(other)

    def __lt__(self, other: Any) -> bool:
        return self.value < value_of(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Traced({self.value}, peak={self.peak})"

    def step(self, first: Any, second: Any, operation: Step) -> Traced:
        """The result of one operation on two numbers, of which this is one."""
        result = operation(value_of(first), value_of(second))
        needed, held = significand(result), [significand(value_of(number)) for number in (first, second)]
        # What is only scaled by a power of two fits wherever the operand does.
        return Traced(result, max(peak_of(first), peak_of(second), 0 if needed in held else needed))

    def __add__(self, other: Any) -> Traced:
        return self.step(self, other, operator.add)

    def __radd__(self, other: Any) -> Traced:
        return self.step(other, self, operator.add)

    def __sub__(self, other: Any) -> Traced:
        return self.step(self, other, operator.sub)

    def __rsub__(self, other: Any) -> Traced:
        return self.step(other, self, operator.sub)

    def __mul__(self, other: Any) -> Traced:
        return self.step(self, other, operator.mul)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Traced:
        return self.step(self, other, operator.truediv)


def value_of(number: Any) -> Fraction:
    """A number as a fraction."""
    return number.value if isinstance(number, Traced) else Fraction(number)


def peak_of(number: Any) -> int:
    """The peak of a number; 0 of one that was given."""
    return number.peak if isinstance(number, Traced) else 0


def significand(number: Fraction) -> int:
    """The numerator without its factors of two: what a floating-point number must hold of `number`."""
    top = abs(number.numerator)
    return top // (top & -top) if top else 0


def tracing(number: Any) -> Traced:
    """A number that traces, from any number."""
    return number if isinstance(number, Traced) else Traced(number)


def traced(array: Any) -> Array:
    """A float array as numbers that trace; integers (labels, indices) stay as they are."""
    return array if array.dtype.kind == "i" else each(Traced, array)
