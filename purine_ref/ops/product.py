"""The base of the operations whose outputs are sums of products of their inputs."""

from __future__ import annotations

from collections.abc import Sequence

from purine_ref.operation import Operation
from purine_ref.tensor import Tensor


class ProductOperation(Operation):
    """An operation that multiplies its inputs with one another and adds the products: convolution, inner product.

    It is exact whenever every partial sum is (rule R10).
    """

    @property
    def exact(self) -> bool:
        """Products and sums only."""
        return True

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """Products of multiples of 2**a and 2**b are multiples of 2**(a+b), and so are their sums."""
        return (sum(exponents),) * len(outputs)
