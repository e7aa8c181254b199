"""The base of the operations whose outputs are sums of products of their inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from purine_ref.operation import Array, Axis, Call
from purine_ref.ops.summing import SummingOperation
from purine_ref.tensor import Tensor


class ProductOperation(SummingOperation):
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

    def squared(self, call: Call, arrays: Sequence[Array]) -> Array:
        """Squares of products are products of squares."""
        return self.applied(call, arrays)

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """The variance times the other input's squares; with its own variance, since it may be 0 but for that."""
        other, error = call.inputs[1 - index], call.variances[1 - index]
        arrays = [other * other + (0 if error is None else error)] * 2
        arrays[index] = call.variances[index]
        return (self.squared(call, arrays),)

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
