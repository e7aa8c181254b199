"""The arithmetic of rounding errors (rule R11): unit roundoffs, worst cases, and variances.

A *bound* is what an error cannot exceed, to first order in the unit roundoff u. A *variance* is that of the error with
each rounding error independent and spread evenly over plus or minus u times the rounded number, so u^2/3 of its square
(Higham and Mary, SIAM J. Sci. Comput. 41, 2019). Pure functions on arrays; operations call them in their rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate, islice
from typing import Any

Array = Any

UNITS = {"float32": 2.0**-24, "float64": 2.0**-53}
"""The unit roundoff of each dtype."""

WIDE = UNITS["float64"]
"""The unit roundoff of sums that are taken in float64 whatever the dtype of their terms."""

FUNCTION = 8
"""Roundings that one exp, log, tanh or power of an array library counts for: 4 ULP, each up to 2 u.

numpy accepts its vectorised functions up to 4 ULP (its tests of umath accuracy); measured ones are below 2."""

KAPPA = 16.0
"""How many standard deviations two results may differ by. The trials that justify it are in `docs/bounds.md`."""


def gamma(steps: Any, unit: float) -> Any:
    """gamma_k = k u / (1 - k u), what k roundings in a row can add up to, relatively (Higham 2002, lemma 3.1)."""
    return steps * unit / (1 - steps * unit)


def least(unit: float) -> float:
    """The smallest positive number of the dtype: the spacing of results that underflow."""
    return 2.0**-149 if unit == UNITS["float32"] else 2.0**-1074


def roundings(xp: Any, count: Any, y: Array, unit: float) -> Array:
    """What `count` roundings of numbers of about |y| can add up to, underflow included; nothing where y is 0."""
    return xp.where(y == 0, 0.0, count * (unit * xp.abs(y) + least(unit)))


def uniform(bound: Array) -> Array:
    """The variance of an error that lies anywhere within `bound`."""
    return bound * bound / 3


def ordered_sum(terms: Iterable[Array], unit: float) -> tuple[Array, Array]:
    """(bound, variance) of (t1 + t2) + t3 + ...: each addition rounds the partial sum that it makes."""
    bound = variance = 0.0
    for partial in islice(accumulate(terms), 1, None):
        bound = bound + unit * abs(partial)
        variance = variance + uniform(unit * partial)
    return bound, variance


def sum_variance(steps: Any, total: Array, squares: Array, unit: float) -> Array:
    """The variance of a sum's rounding errors, given its `total`, its terms' `squares` added up, and its depth.

    With the terms in random order the partial sum of j of n terms has the mean square j^2/n^2 S^2 + j (n - j) / n^2 Q,
    nearly, for the total S and the squares Q. Over all j that adds up to n (S^2/3 + Q/6). Sums of sums have terms whose
    own S^2 is not known; on average it is their Q, so Q/2 stands for Q/6. One step more is for products' roundings.
    """
    return (steps + (steps > 0)) * (total * total / 3 + squares / 2) * (unit * unit / 3)


def multiple(factor: float, unit: float) -> int:
    """How many roundings a multiple by the Python float `factor` has.

    None for a power of two or 0; else the product's, and one more where `factor` itself is rounded to the dtype.
    """
    fraction = math.frexp(factor)[0]
    if abs(fraction) in (0.0, 0.5):
        return 0
    return 1 if (fraction / unit).is_integer() else 2
