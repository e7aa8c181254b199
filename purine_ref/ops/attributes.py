"""Attributes of operations: brought to one spelling and checked, so that equal operations compare equal.

Pairs are (height, width). Paddings are ((height begin, height end), (width begin, width end)). Everything here is a
pure function that operations call from `__post_init__`; only `assign` writes, and only to the operation in the making.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection
from typing import Any

import numpy as np

from purine_ref.errors import ShapeError

Pair = tuple[int, int]
"""(height, width)."""

Pads = tuple[Pair, Pair]
"""((height begin, height end), (width begin, width end))."""


def assign(operation: object, **attributes: object) -> None:
    """Set attributes of a frozen operation; for its own `__post_init__` alone."""
    for name, value in attributes.items():
        object.__setattr__(operation, name, value)


def integer(value: Any, name: str, minimum: int | None = None) -> int:
    """`value` as a Python integer. Raises ShapeError when it is no integer or less than `minimum`."""
    if _is_integer(value) and (minimum is None or value >= minimum):
        return int(value)
    least = "" if minimum is None else f" of {minimum} or more"
    raise ShapeError(f"{name}: expected an integer{least}, got {value!r}")


def pair(value: Any, name: str, minimum: int = 1) -> Pair:
    """(height, width) from one integer for both, or from two.

    Raises ShapeError, naming `name`, for anything else or for an integer less than `minimum`.
    """
    both = (value, value) if _is_integer(value) else value
    if _is_pair(both) and all(_is_integer(v) and v >= minimum for v in both):
        return int(both[0]), int(both[1])
    raise ShapeError(f"{name}: expected one or two integers of {minimum} or more, got {value!r}")


def pad_pairs(value: Any, name: str = "pads") -> Pads:
    """((hb, he), (wb, we)) from p for all sides, from (ph, pw), or from the four as they are.

    Raises ShapeError, naming `name`, for anything else or for a negative padding.
    """
    axes = (value, value) if _is_integer(value) else value
    if _is_pair(axes):
        try:
            return pair(axes[0], name, 0), pair(axes[1], name, 0)
        except ShapeError:
            pass
    raise ShapeError(f"{name}: expected p, (ph, pw) or ((hb, he), (wb, we)) of integers of 0 or more, got {value!r}")


def choice(value: str, name: str, choices: Collection[str]) -> str:
    """`value` itself. Raises ShapeError, naming `name`, when it is not one of `choices`."""
    if value in choices:
        return value
    raise ShapeError(f"{name}: expected {' or '.join(map(repr, choices))}, got {value!r}")


def number(value: Any, name: str) -> float:
    """`value` as a Python float, which never promotes a float32 array. Raises ShapeError when it is not finite."""
    if isinstance(value, numbers.Real) and math.isfinite(value):
        return float(value)
    raise ShapeError(f"{name}: expected a finite number, got {value!r}")


def is_power_of_two(x: float) -> bool:
    """Whether |x| is 2**e for an integer e, so that multiplying by x rounds nothing; the sign is of no account."""
    return abs(math.frexp(x)[0]) == 0.5


def exponent(x: float) -> int:
    """The e of |x| = 2**e. Raises ShapeError unless `is_power_of_two(x)`."""
    if is_power_of_two(x):
        return math.frexp(x)[1] - 1
    raise ShapeError(f"expected a power of two, got {x!r}")


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_pair(value: object) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2
