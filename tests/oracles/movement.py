"""Concat, split, slices and reshapes, element by element."""

from __future__ import annotations

from collections.abc import Sequence

from oracles import Array, Index, numbers, places, zeros


def moved(at: Index, axis: int, by: int) -> Index:
    """A place, further along `axis`."""
    return (*at[:axis], at[axis] + by, *at[axis + 1 :])


def placed(parts: Sequence[Array], shape: Index, axis: int, start: int = 0) -> Array:
    """`parts`, one after the other along `axis` from `start` on, in zeros of `shape`."""
    y = zeros(shape)
    for part in map(numbers, parts):
        for at in places(part.shape):
            y[moved(at, axis, start)] = part[at]
        start += part.shape[axis]
    return y


def concat(axis: int, *xs: Array) -> Array:
    """The parts, one after the other."""
    length = sum(numbers(x).shape[axis] for x in xs)
    shape = numbers(xs[0]).shape
    return placed(xs, (*shape[:axis], length, *shape[axis + 1 :]), axis)


def part(x: Array, axis: int, start: int, stop: int) -> Array:
    """start..stop-1 along `axis`."""
    x = numbers(x)
    y = zeros((*x.shape[:axis], stop - start, *x.shape[axis + 1 :]))
    for at in places(y.shape):
        y[at] = x[moved(at, axis, start)]
    return y


def split(x: Array, axis: int, sizes: Sequence[int]) -> list[Array]:
    """The parts of these sizes."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [part(x, axis, start, start + size) for start, size in zip(starts, sizes, strict=True)]


def reshape(x: Array, shape: Index) -> Array:
    """The elements in row-major order, in `shape`."""
    x, y = numbers(x), zeros(shape)
    for there, here in zip(places(shape), places(x.shape), strict=True):
        y[there] = x[here]
    return y
