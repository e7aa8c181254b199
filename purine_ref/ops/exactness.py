"""Arithmetic on quanta (rule R10): the exponents e of which every partial sum is a multiple of 2**e.

Operations of this package call these from `exact` and `quantum`. A factor that is no power of two rounds, so the
certificate of exactness is refused there, with the factor named.
"""

from __future__ import annotations

from purine_ref.errors import OperatorError
from purine_ref.operation import Operation
from purine_ref.ops.attributes import exponent, is_power_of_two


def keeps_exact(*factors: float) -> bool:
    """Whether multiplying by each of `factors` rounds nothing: each is a power of two, or 0."""
    return all(factor == 0 or is_power_of_two(factor) for factor in factors)


def scaled_quantum(operation: Operation, quantum: int, factor: float, what: str = "factor") -> int:
    """The quantum of a multiple of 2**`quantum` times `factor`.

    Raises OperatorError, naming `what`, when `factor` is neither a power of two nor 0.
    """
    if not keeps_exact(factor):
        raise OperatorError(
            f"{operation.name} is exact only where its {what} is a power of two, got {factor!r}; "
            f"choose another or compare within a bound"
        )
    return quantum if factor == 0 else quantum + exponent(factor)


def divided_quantum(operation: Operation, quantum: int, divisor: int, what: str) -> int:
    """The quantum of a multiple of 2**`quantum` divided by `divisor`; a divisor of 0 stands for nothing to divide.

    Raises OperatorError, naming `what`, when `divisor` is neither a power of two nor 0.
    """
    return quantum - scaled_quantum(operation, 0, float(divisor), what)
