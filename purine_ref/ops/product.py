"""The base of the operations whose outputs are sums of products of their inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from purine_ref.operation import Axis, Operation
from purine_ref.tensor import Tensor


class ProductOperation(Operation):
    """An operation that multiplies its inputs with one another and adds the products: convolution, inner product.

    It is exact whenever every partial sum is (rule R10). `equation` names the two leading axes of every tensor, as
    einsum's does: n for the batch, k and c for output and input channels, o and i for output and input features. What
    follows the features of x is flattened into the features of the weight.
    """

    equation: ClassVar[str]

    @property
    def exact(self) -> bool:
        """Products and sums only."""
        return True

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """Products of multiples of 2**a and 2**b are multiples of 2**(a+b), and so are their sums."""
        return (sum(exponents),) * len(outputs)

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """The dimensions of `equation`, the batch first; the one that the output lacks is summed over."""
        terms = self.equation.replace("->", ",").split(",")
        shapes = dict(zip(terms, (t.shape for t in (*inputs, *outputs)), strict=True))
        scale = {("oi", "i"): math.prod(shapes["ni"][2:])} if "ni" in shapes else {}
        axes = []
        for name in dict.fromkeys("n" + "".join(terms)):
            ends = [(term.index(name), scale.get((term, name), 1)) if name in term else None for term in terms]
            sized = next(term for term in terms if name in term and "n" in term)
            extent = shapes[sized][sized.index(name)]
            axes.append(Axis(name, extent, tuple(ends[: len(inputs)]), tuple(ends[len(inputs) :])))
        return tuple(axes)
