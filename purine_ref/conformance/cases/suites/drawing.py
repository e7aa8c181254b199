"""What cases are fed: numbers made of Philox words by arithmetic that is the same everywhere (rule R7).

A draw takes as many words as there are elements and a dtype, and gives an array of float64 that the dtype holds, or of
int64. Nothing here depends on a library's stream of random numbers, which may change with its version.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from purine_ref._fast import loops
from purine_ref.operation import Array

Shape = tuple[int, ...]
Draw = Callable[[Array, str], Array]
"""From words, as a flat array, and a dtype to as many values."""

SEED = 20260


def draw(stream: str, shape: Shape, dtype: str, how: Draw) -> Array:
    """An array of that shape; int64 where the draw gives integers, else of `dtype`. `stream` names the draw."""
    words = np.asarray(loops.philox(SEED, stream, 0, 0, math.prod(shape)))
    values = np.asarray(how(words, dtype)).reshape(shape)
    return values if values.dtype.kind == "i" else values.astype(dtype)


def real(words: Array, dtype: str) -> Array:
    """From -2 to 2, with every bit of the dtype drawn."""
    shift, bits = (40, 24) if dtype == "float32" else (11, 53)
    return np.ldexp((words >> shift).astype(np.int64) - (1 << (bits - 1)), 2 - bits)


def positive(words: Array, dtype: str) -> Array:
    """From 1/4 to 2."""
    return 0.25 + 1.75 * np.abs(real(words, dtype)) / 2


def share(words: Array, dtype: str) -> Array:
    """Between 0.05 and 0.95, as what a softmax or a sigmoid gives."""
    return 0.05 + 0.9 * np.abs(real(words, dtype)) / 2


def apart(words: Array, dtype: str) -> Array:
    """All 1/16 apart at least, and half as far from 0."""
    ranks = np.argsort(np.argsort(words, kind="stable"), kind="stable")
    return (ranks - words.size // 2 + 0.5) / 16


def integers(words: Array, dtype: str) -> Array:
    """Integers from -4 to 4, as floats: zeros and ties among them."""
    return (words % 9).astype(np.float64) - 4


def factor(words: Array, dtype: str) -> Array:
    """1, 2 or 4."""
    return np.ldexp(1.0, (words % 3).astype(np.int64))


def mask(words: Array, dtype: str) -> Array:
    """Zeros and ones."""
    return (words >> 63).astype(np.float64)


def links(words: Array, dtype: str) -> Array:
    """-1, 0 and 1: weights that keep sums small (rule R10)."""
    return (words % 3).astype(np.float64) - 1


def whole(count: int) -> Draw:
    """Integers from 0 to count - 1."""
    return lambda words, dtype: (words % count).astype(np.int64)


def given(*values: float) -> Draw:
    """Those values, in C order, again and again."""
    return lambda words, dtype: np.resize(np.array(values, np.float64), words.size)


def labels(*values: int) -> Draw:
    """Those integers, in C order, again and again."""
    return lambda words, dtype: np.resize(np.array(values, np.int64), words.size)


def with_specials(array: Array) -> Array:
    """The array with a NaN, both infinities and a -0.0 in it, as far as there is room."""
    changed = array.copy()
    flat = changed.reshape(-1)
    for place, value in ((0, math.nan), (array.size // 3, math.inf), (2 * array.size // 3, -math.inf), (1, -0.0)):
        if array.size > 4 or place == 0:
            flat[place : place + 1] = value
    return changed
