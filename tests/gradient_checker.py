"""The one gradient checker: claimed gradients against central differences of the value, along random directions.

Everything is float64, of values of about 1: in float32 the differences would be rounding noise. Along a direction, the
slope is extrapolated from three steps, and the distance between the last two extrapolations, with what rounding can do
to the value, bounds its error. So the tolerance comes from the value alone, never from the gradient; where it is too
wide to tell a wrong gradient from a right one, the checker says `Undecided` rather than pass.

At a kink (a ReLU's 0, a tie of maxima) there is no slope. The caller states the distance of the point from the nearest
one, and no step goes further than a tenth of it. A claim made at a kink itself may only be checked to lie between the
slopes of both sides, by `check_at_kink`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

Array = Any
Value = Callable[[Sequence[Array]], float]
"""The function under test: from arrays to one number."""

LONGEST_STEP = 2.0**-6
"""How far an element moves at most; the extrapolation's error is the sixth power of it, times a sixth derivative."""

ROUNDING = 1000 * 2.0**-53
"""By how much a value of 1 may be wrong: what adding a thousand terms of 1 can round."""

RESOLUTION = 2.0**-24
"""The error of a slope of 1 from which on nothing is decided."""


class WrongGradient(AssertionError):
    """A claimed gradient is not the slope of the value."""


class Undecided(AssertionError):
    """The value is too rough at the point, or a kink too near, to tell a wrong gradient from a right one."""


def check_gradient(
    value: Value,
    gradients: Sequence[Array],
    point: Sequence[Array],
    *,
    distance: float = math.inf,
    directions: int = 2,
    seed: int = 0,
) -> None:
    """Compare `gradients[i]`, the claimed gradient of `value` for `point[i]`, along `directions` each.

    No kink may be nearer to `point` than `distance`, the largest change of any element. Raises WrongGradient;
    Undecided when the slope cannot be found well enough; TypeError for anything that is not float64.
    """
    rng, step = np.random.default_rng(seed), min(LONGEST_STEP, distance / 10)
    for index, (at, gradient) in enumerate(zip(point, gradients, strict=True)):
        _require_float64(f"point {index}", at)
        _require_float64(f"gradient {index}", gradient)
        if gradient.shape != at.shape:
            raise WrongGradient(f"gradient {index}: expected shape {at.shape}, got {gradient.shape}")
        for _ in range(directions):
            direction = random_direction(rng, at.shape)
            slope, error = central_slope(_along(value, point, index, direction), step)
            terms = gradient * direction
            claimed, size = float(terms.sum()), float(np.abs(terms).sum())
            if not error <= RESOLUTION * max(1.0, size):
                raise Undecided(f"gradient {index}: the slope {slope} may be wrong by {error}; is a kink near?")
            if not abs(claimed - slope) <= error + ROUNDING * size:
                raise WrongGradient(f"gradient {index}: expected a slope of {slope} within {error}, got {claimed}")


def check_at_kink(value: Value, gradient: Array, point: Array, *, step: float) -> None:
    """Check that `gradient` lies between the slopes of `value` on both sides of a kink, `step` away along each element.

    Raises WrongGradient, and TypeError for anything that is not float64.
    """
    _require_float64("point", point)
    _require_float64("gradient", gradient)
    for at in np.ndindex(point.shape):
        direction = np.zeros(point.shape)
        direction[at] = 1.0
        along = _along(value, [point], 0, direction)
        sides = [central_slope(lambda t, side=side, along=along: along(side + t), step / 10) for side in (-step, step)]
        low, high = min(slope - error for slope, error in sides), max(slope + error for slope, error in sides)
        if not low <= gradient[at] <= high:
            raise WrongGradient(f"gradient at {at}: expected between {low} and {high}, got {gradient[at]}")


def random_direction(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A direction in which every element moves: by 1/2 to 1, up or down."""
    return rng.uniform(0.5, 1, shape) * rng.choice([-1.0, 1.0], shape)


def central_slope(along: Callable[[float], float], step: float) -> tuple[float, float]:
    """The slope of `along` at 0, and a bound of its error, from central differences of three steps (Romberg)."""
    steps = [step, step / 2, step / 4]
    ends = [(along(h), along(-h)) for h in steps]
    differences = [(after - before) / (2 * h) for (after, before), h in zip(ends, steps, strict=True)]
    once = [(4 * fine - coarse) / 3 for coarse, fine in pairwise(differences)]
    slope = (16 * once[1] - once[0]) / 15
    largest = max(1.0, *(abs(value) for pair in ends for value in pair))
    return slope, abs(once[1] - once[0]) + ROUNDING * largest / steps[-1]


def _along(value: Value, point: Sequence[Array], index: int, direction: Array) -> Callable[[float], float]:
    return lambda t: value([at + t * direction if i == index else at for i, at in enumerate(point)])


def _require_float64(name: str, array: Array) -> None:
    if array.dtype != np.float64:
        raise TypeError(f"{name}: expected float64, since differences of anything less are noise, got {array.dtype}")
