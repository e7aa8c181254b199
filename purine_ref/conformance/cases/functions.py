"""Functions of one float64, or two, correctly rounded: by decimal arithmetic, which is the same on every machine.

34 digits are computed, and rounded to the 17 that tell all float64 apart. A result is so near to the middle of two of
them that this rounds to the wrong one about once in 10^17; even then it is the same everywhere.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache

DIGITS = 34
GUARD = 14
"""More digits where some are lost by a subtraction."""

SMALL = Decimal(10) ** -10
"""Below it, two or three terms of a series have all digits."""

FAR = 800
"""Beyond it, either way, an exponential is infinite or 0."""

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211707")

_CONTEXT = decimal.Context(prec=DIGITS, traps=[], Emin=-999_999, Emax=999_999)
_WIDER = decimal.Context(prec=DIGITS + GUARD, traps=[], Emin=-999_999, Emax=999_999)

_remembered = lru_cache(maxsize=1 << 16)
"""An operation and the rules of its errors ask for the same values."""


@_remembered
def exp(x: float) -> float:
    """e**x."""
    if math.isnan(x):
        return x
    if abs(x) > FAR:
        return math.inf if x > 0 else 0.0
    return float(_CONTEXT.exp(Decimal(x)))


@_remembered
def expm1(x: float) -> float:
    """e**x - 1, which keeps its digits near 0."""
    if math.isnan(x) or x == 0 or abs(x) > FAR:
        return x if x == 0 else exp(x) - 1
    value = Decimal(x)
    with decimal.localcontext(_WIDER):
        if abs(value) < SMALL:
            return float(value + value**2 / 2 + value**3 / 6)
        return float(value.exp() - 1)


@_remembered
def log(x: float) -> float:
    """The natural logarithm; -inf of 0, NaN below."""
    if math.isnan(x) or x <= 0 or x == math.inf:
        return -math.inf if x == 0 else math.inf if x == math.inf else math.nan
    return float(_CONTEXT.ln(Decimal(x)))


@_remembered
def tanh(x: float) -> float:
    """The hyperbolic tangent."""
    if math.isnan(x) or x == 0:
        return x
    if abs(x) > FAR / 2:
        return math.copysign(1.0, x)
    value = Decimal(x)
    with decimal.localcontext(_WIDER):
        if abs(value) < SMALL:
            return float(value - value**3 / 3)
        grown = (2 * value).exp()
        return float((grown - 1) / (grown + 1))


@_remembered
def cos(x: float) -> float:
    """The cosine, of arguments up to 10^6, by its series. Raises ValueError for others."""
    if not abs(x) <= 1e6:
        raise ValueError(f"cos: expected an argument of up to 10^6, got {x!r}")
    with decimal.localcontext(_WIDER):
        angle = Decimal(x)
        angle -= (angle / (2 * PI)).to_integral_value() * 2 * PI
        term = total = Decimal(1)
        step = 0
        while abs(term) > Decimal(10) ** -(DIGITS + GUARD):
            step += 2
            term = -term * angle * angle / (step * (step - 1))
            total += term
        return float(total)


@_remembered
def power(x: float, y: float) -> float:
    """x**y, with infinities and NaN as IEEE 754 has pow."""
    if not (math.isfinite(x) and math.isfinite(y)) or x == 0 or y == 0:
        return _special_power(x, y)
    if x < 0 and not float(y).is_integer():
        return math.nan
    with decimal.localcontext(_WIDER):
        logarithm = Decimal(y) * abs(Decimal(x)).ln()
        if abs(logarithm) > FAR:
            size = math.inf if logarithm > 0 else 0.0
        else:
            size = float(logarithm.exp())
    return -size if x < 0 and y % 2 == 1 else size


def _special_power(x: float, y: float) -> float:
    """What C's pow says of infinities, NaN and zeros."""
    try:
        return math.pow(x, y)
    except ValueError:  # 0 to a negative power
        return -math.inf if math.copysign(1.0, x) < 0 and y % 2 == 1 else math.inf


FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "tanh": tanh,
    "cos": cos,
    "power": power,
}
"""The functions by numpy's names."""
