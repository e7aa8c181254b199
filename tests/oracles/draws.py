"""Philox 4x64-10 (Salmon et al. 2011) in Python integers, and the draws made from its words (rule R7)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from oracles import Array, Index, places, zeros

MASK = 2**64 - 1
Key = tuple[int, str, int]
"""Seed, stream, iteration."""


def name_hash(name: str) -> int:
    """FNV-1a of the name's bytes, 64 bits."""
    state = 14695981039346656037
    for byte in name.encode():
        state = ((state ^ byte) * 1099511628211) & MASK
    return state


def word(index: int, key: Key) -> int:
    """Word `index` of the sequence of `key`."""
    seed, stream, iteration = key
    a, b, c, d = index // 4, iteration, 0, 0
    left, right = seed & MASK, name_hash(stream)
    for _ in range(10):
        first, second = a * 0xD2E7470EE14C6C93, c * 0xCA5A826395121157
        a, b = (second >> 64) ^ b ^ left, second & MASK
        c, d = (first >> 64) ^ d ^ right, first & MASK
        left, right = (left + 0x9E3779B97F4A7C15) & MASK, (right + 0xBB67AE8584CAA73B) & MASK
    return (a, b, c, d)[index % 4]


def draw(element: Callable[[int], Any], shape: Index, undivided: Index, start: Index) -> Array:
    """`element` of each place's number in the undivided tensor, counted row by row."""
    numbers = {at: i for i, at in enumerate(places(undivided))}
    y = zeros(shape)
    for at in places(shape):
        y[at] = element(numbers[tuple(i + first for i, first in zip(at, start, strict=True))])
    return y


def uniform(key: Key, dtype: str, low: float, high: float) -> Callable[[int], float]:
    """low + (high - low) u, rounded to `dtype`, and never `high`."""
    kind, bits = np.dtype(dtype).type, {"float32": 24, "float64": 53}[dtype]

    def element(i: int) -> float:
        value = kind(low + (high - low) * ((word(i, key) >> (64 - bits)) / 2**bits))
        return float(value if value < high else np.nextafter(kind(high), kind(low)))

    return element


def bernoulli(key: Key, keep: float) -> Callable[[int], int]:
    """1 where u < keep, else 0."""
    return lambda i: int((word(i, key) >> 11) / 2**53 < keep)


def gaussian(key: Key, mean: float, std: float) -> Callable[[int], float]:
    """mean + std sqrt(-2 log(1 - a)) cos(2 pi b), with a and b of words 2i and 2i + 1."""

    def element(i: int) -> float:
        a, b = ((word(j, key) >> 11) / 2**53 for j in (2 * i, 2 * i + 1))
        return mean + std * math.sqrt(-2 * math.log(1 - a)) * math.cos(2 * math.pi * b)

    return element
