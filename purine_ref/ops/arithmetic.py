"""Sums, means, products and multiples, element by element. Numbers are Python floats, which promote no array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from purine_ref.operation import Array, Call, Cost, Kernels, Wiring, traffic
from purine_ref.ops.attributes import assign, number
from purine_ref.ops.elementwise import ElementwiseOperation
from purine_ref.ops.exactness import divided_quantum, keeps_exact, scaled_quantum
from purine_ref.ops.shape import Identity
from purine_ref.rounding import multiple, ordered_sum, roundings
from purine_ref.tensor import Tensor


class _Additive(ElementwiseOperation):
    """{ x1, x2, ... } >> Additive >> { y }, one input or more, all of one shape and dtype."""

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensor of the inputs. Raises ShapeError unless there is one or more and all agree."""
        self.require(len(inputs) > 0, "one input or more", "none")
        self.require_same(inputs)
        return (inputs[0],)


def _add_all(xp: Any, inputs: Sequence[Array], y: Array) -> None:
    """Write (x1 + x2) + x3 + ... into `y`, which may be the memory of x1: only the last addition writes."""
    if len(inputs) == 1:
        y[...] = inputs[0]
        return
    total = inputs[0]
    for x in inputs[1:-1]:
        total = total + x
    xp.add(total, inputs[-1], out=y)


@dataclass(frozen=True)
class Sum(_Additive):
    """{ x1, x2, ... } >> Sum >> { y }

    All of one shape, floating point. y = (x1 + x2) + x3 + ..., in the order of the inputs, as rule R4 adds.
    """

    in_place = True

    @property
    def exact(self) -> bool:
        """Exact: it only adds."""
        return True

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Add in the order of the inputs."""
        _add_all(kernels.xp, inputs, outputs[0])

    def gradient(self, wiring: Wiring) -> None:
        """{ dy } >> Identity >> { dx } for every input."""
        for index, wanted in enumerate(wiring.wants):
            if wanted:
                wiring.add(Identity(), [wiring.gradient(0)], [index])

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """One addition per element of each input but the first."""
        return Cost((len(inputs) - 1) * outputs[0].size, traffic(inputs, outputs))

    def bound(self, call: Call) -> tuple[Array, ...]:
        """Each partial sum is rounded."""
        bound, _ = ordered_sum(call.inputs, call.unit)
        return (bound + call.xp.zeros(call.outputs[0].shape),)

    def noise(self, call: Call) -> tuple[Array | None, ...]:
        """That of each partial sum, independently; None for a single input."""
        return (ordered_sum(call.inputs, call.unit)[1] if len(call.inputs) > 1 else None,)

    def slopes(self, call: Call, index: int) -> tuple[Array, ...]:
        """1."""
        return (1.0,)


@dataclass(frozen=True)
class Mean(_Additive):
    """{ x1, x2, ..., xn } >> Mean >> { y }

    All of one shape, floating point. y = ((x1 + x2) + x3 + ...) / n, added in the order of the inputs.
    """

    @property
    def exact(self) -> bool:
        """Exact; a number of inputs that is no power of two is refused by `quantum`."""
        return True

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Add in the order of the inputs, then divide."""
        _add_all(kernels.xp, inputs, outputs[0])
        outputs[0][...] /= float(len(inputs))

    def gradient(self, wiring: Wiring) -> None:
        """{ dy } >> Scale(1/n) >> { dx } for every input."""
        for index, wanted in enumerate(wiring.wants):
            if wanted:
                wiring.add(Scale(1 / len(wiring.inputs)), [wiring.gradient(0)], [index])

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """One addition per element of each input but the first, and a division."""
        return Cost(len(inputs) * outputs[0].size, traffic(inputs, outputs))

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """The least of the inputs, divided by their number."""
        return (divided_quantum(self, min(exponents), len(inputs), "number of inputs"),)

    def bound(self, call: Call) -> tuple[Array, ...]:
        """Each partial sum is rounded, and the quotient."""
        bound, _ = ordered_sum(call.inputs, call.unit)
        return (bound / len(call.inputs) + roundings(call.xp, 1, call.outputs[0], call.unit),)

    def slopes(self, call: Call, index: int) -> tuple[Array, ...]:
        """1/n."""
        return (1 / len(call.inputs),)


@dataclass(frozen=True)
class Mul(ElementwiseOperation):
    """{ x1, x2 } >> Mul >> { y }

    All of one shape, floating point. y = x1 x2, element by element. Both may be the same blob: two edges (rule R2).
    """

    @property
    def exact(self) -> bool:
        """Exact wherever the product fits."""
        return True

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensor of the inputs. Raises ShapeError unless there are two and they agree."""
        self.require_inputs(inputs, "x1 x2")
        self.require_same(inputs)
        return (inputs[0],)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """x1 x2."""
        kernels.xp.multiply(inputs[0], inputs[1], out=outputs[0])

    def gradient(self, wiring: Wiring) -> None:
        """{ dy, x2 } >> Mul >> { dx1 } and { dy, x1 } >> Mul >> { dx2 }"""
        for index, other in ((0, 1), (1, 0)):
            if wiring.wants[index]:
                wiring.add(Mul(), [wiring.gradient(0), wiring.inputs[other]], [index])

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """The sum of both."""
        return (sum(exponents),)

    def bound(self, call: Call) -> tuple[Array, ...]:
        """One product."""
        return (roundings(call.xp, 1, call.outputs[0], call.unit),)

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """The other factor's square times the variance; with its own variance, since the factor may be 0 but for it."""
        other, error = call.inputs[1 - index], call.variances[1 - index]
        return (call.variances[index] * (other * other + (0 if error is None else error)),)


@dataclass(frozen=True)
class WeightedSum(_Additive):
    """{ x1, x2, ... } >> WeightedSum >> { y }

    All of one shape, floating point; one of `weights` for each. y = (w1 x1 + w2 x2) + w3 x3 + ..., in this order.
    """

    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        assign(self, weights=tuple(number(w, f"{self.name} weights") for w in self.weights))

    @property
    def exact(self) -> bool:
        """Exact where the weights are powers of two."""
        return keeps_exact(*self.weights)

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensor of the inputs. Raises ShapeError unless there is one for each weight and all agree."""
        self.require(len(inputs) == len(self.weights), f"{len(self.weights)} inputs, one per weight", len(inputs))
        return super().infer(inputs)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Add the multiples in the order of the inputs."""
        outputs[0][...] = inputs[0] * self.weights[0]
        for weight, x in zip(self.weights[1:], inputs[1:], strict=True):
            outputs[0][...] += x * weight

    def gradient(self, wiring: Wiring) -> None:
        """{ dy } >> Scale(w) >> { dx } for every input."""
        for index, (weight, wanted) in enumerate(zip(self.weights, wiring.wants, strict=True)):
            if wanted:
                wiring.add(Scale(weight), [wiring.gradient(0)], [index])

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """One product per element of each input, and one addition for each but the first."""
        return Cost((2 * len(inputs) - 1) * outputs[0].size, traffic(inputs, outputs))

    def magnitude(
        self, kernels: Kernels, inputs: Sequence[Array], bounds: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        """As `compute`, with the weights' absolute values."""
        positive = replace(self, weights=tuple(abs(w) for w in self.weights))
        positive.compute(kernels, bounds, outputs)

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """The least of the multiples'."""
        pairs = zip(exponents, self.weights, strict=True)
        return (min(scaled_quantum(self, e, weight, "weight") for e, weight in pairs),)

    def bound(self, call: Call) -> tuple[Array, ...]:
        """Each product is rounded, for a weight that is rounded itself perhaps, and each partial sum."""
        products = [x * weight for x, weight in zip(call.inputs, self.weights, strict=True)]
        bound, _ = ordered_sum(products, call.unit)
        for weight, product in zip(self.weights, products, strict=True):
            bound = bound + roundings(call.xp, multiple(weight, call.unit), product, call.unit)
        return (bound,)

    def slopes(self, call: Call, index: int) -> tuple[Array, ...]:
        """The input's weight."""
        return (self.weights[index],)


@dataclass(frozen=True)
class Scale(ElementwiseOperation):
    """{ x } >> Scale >> { y }

    x and y: any shape, floating point. y = factor x.
    """

    factor: float

    in_place = True

    def __post_init__(self) -> None:
        assign(self, factor=number(self.factor, f"{self.name} factor"))

    @property
    def exact(self) -> bool:
        """Exact where the factor is a power of two."""
        return keeps_exact(self.factor)

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensor of x. Raises ShapeError unless x is the one input and floating point."""
        self.require_inputs(inputs, "x")
        self.require_same_dtype(inputs)
        return (inputs[0],)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """factor x."""
        kernels.xp.multiply(inputs[0], self.factor, out=outputs[0])

    def gradient(self, wiring: Wiring) -> None:
        """{ dy } >> Scale >> { dx }, by the same factor."""
        if wiring.wants[0]:
            wiring.add(self, [wiring.gradient(0)], [0])

    def magnitude(
        self, kernels: Kernels, inputs: Sequence[Array], bounds: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        """As `compute`, with the factor's absolute value."""
        Scale(abs(self.factor)).compute(kernels, bounds, outputs)

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """That of x times the factor."""
        return (scaled_quantum(self, exponents[0], self.factor),)

    def bound(self, call: Call) -> tuple[Array, ...]:
        """One product, and a factor that may have to be rounded to the dtype."""
        return (roundings(call.xp, multiple(self.factor, call.unit), call.outputs[0], call.unit),)

    def slopes(self, call: Call, index: int) -> tuple[Array, ...]:
        """The factor."""
        return (self.factor,)
