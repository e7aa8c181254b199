"""Update rules: new parameters and new history from old ones, each in blobs of their own (rule R6).

The rate is a blob of shape (), so that a schedule needs no new graph; `multiplier` scales it for one parameter (twice
for a bias, say). Every other number is a Python float, which promotes no array. Updates have no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from purine_ref.operation import Array, Cost, Kernels, traffic
from purine_ref.ops.attributes import assign, number
from purine_ref.ops.elementwise import ElementwiseOperation
from purine_ref.ops.exactness import keeps_exact, scaled_quantum
from purine_ref.tensor import Tensor


class _Update(ElementwiseOperation):
    """{ weight, gradient, history, rate } >> Update >> { weight', history' }, all of one shape but the rate, ()."""

    def _check_factors(self, **factors: object) -> None:
        for name, value in factors.items():
            factor = number(value, f"{self.name} {name}")
            self.require(factor >= 0, f"a {name} of 0 or more", factor)
            assign(self, **{name: factor})

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensors of weight and history. Raises ShapeError unless all agree but the rate, which is of shape ()."""
        self.require_inputs(inputs, "weight gradient history rate")
        self.require_same_dtype(inputs)
        self.require_same(inputs[:3])
        self.require(inputs[3].shape == (), "rate of shape ()", inputs[3])
        return (inputs[0], inputs[2])


@dataclass(frozen=True)
class _Momentum(_Update):
    momentum: float = 0.9
    decay: float = 0.0
    multiplier: float = 1.0

    def __post_init__(self) -> None:
        self._check_factors(momentum=self.momentum, decay=self.decay, multiplier=self.multiplier)

    @property
    def exact(self) -> bool:
        """Exact where momentum, decay and multiplier are powers of two or 0."""
        return keeps_exact(self.momentum, self.decay, self.multiplier)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """Per element: three products and three sums."""
        return Cost(6 * outputs[0].size, traffic(inputs, outputs))

    def _step_quantum(self, exponents: Sequence[int]) -> int:
        """The quantum of gradient + decay weight."""
        weight, gradient = exponents[:2]
        return gradient if self.decay == 0 else min(gradient, scaled_quantum(self, weight, self.decay, "decay"))

    def _carried_quantum(self, exponents: Sequence[int], addend: int) -> int:
        """The quantum of momentum history + what is a multiple of 2**addend."""
        if self.momentum == 0:
            return addend
        return min(addend, scaled_quantum(self, exponents[2], self.momentum, "momentum"))

    def _rate_quantum(self, exponents: Sequence[int]) -> int:
        return scaled_quantum(self, exponents[3], self.multiplier, "multiplier")


@dataclass(frozen=True)
class SGD(_Momentum):
    """{ weight, gradient, history, rate } >> SGD >> { weight', history' }

    All of one shape, floating point, but rate (). With lr = multiplier rate:
    history' = momentum history + lr (gradient + decay weight); weight' = weight - history'. The rate is inside the
    history, so that a change of the rate acts on new gradients alone (Caffe, Purine; see TorchSGD).
    """

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """The history, then the weight."""
        weight, gradient, _, _ = inputs
        history = self._history(inputs, gradient + weight * self.decay)
        outputs[1][...] = history
        outputs[0][...] = weight - history

    def _history(self, inputs: Sequence[Array], step: Array) -> Array:
        _, _, history, rate = inputs
        return history * self.momentum + step * (rate * self.multiplier)

    def magnitude(
        self, kernels: Kernels, inputs: Sequence[Array], bounds: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        """As `compute`, with the history added to the weight."""
        weight, gradient, _, _ = bounds
        history = self._history(bounds, gradient + weight * self.decay)
        outputs[1][...] = history
        outputs[0][...] = weight + history

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """The least of the terms of each sum, with the exponents of products added."""
        history = self._carried_quantum(exponents, self._rate_quantum(exponents) + self._step_quantum(exponents))
        return (min(exponents[0], history), history)


@dataclass(frozen=True)
class TorchSGD(_Momentum):
    """{ weight, gradient, history, rate } >> TorchSGD >> { weight', history' }

    All of one shape, floating point, but rate (). With lr = multiplier rate:
    history' = momentum history + gradient + decay weight; weight' = weight - lr history'. The rate is outside the
    history, so that a change of the rate acts on old gradients too (torch.optim.SGD without dampening).
    """

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """The history, then the weight."""
        weight, _, _, rate = inputs
        history = self._history(inputs)
        outputs[1][...] = history
        outputs[0][...] = weight - history * (rate * self.multiplier)

    def _history(self, inputs: Sequence[Array]) -> Array:
        weight, gradient, history, _ = inputs
        return history * self.momentum + (gradient + weight * self.decay)

    def magnitude(
        self, kernels: Kernels, inputs: Sequence[Array], bounds: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        """As `compute`, with the multiple of the history added to the weight."""
        weight, _, _, rate = bounds
        history = self._history(bounds)
        outputs[1][...] = history
        outputs[0][...] = weight + history * (rate * self.multiplier)

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """The least of the terms of each sum, with the exponents of products added."""
        history = self._carried_quantum(exponents, self._step_quantum(exponents))
        return (min(exponents[0], self._rate_quantum(exponents) + history), history)


@dataclass(frozen=True)
class AdaGrad(_Update):
    """{ weight, gradient, accumulated, rate } >> AdaGrad >> { weight', accumulated' }

    All of one shape, floating point, but rate (). With lr = multiplier rate and g = gradient + decay weight:
    accumulated' = accumulated + g^2; weight' = weight - lr g / (sqrt(accumulated') + epsilon)
    (Duchi, Hazan and Singer, JMLR 12, 2011).
    """

    epsilon: float = 1e-8
    decay: float = 0.0
    multiplier: float = 1.0

    def __post_init__(self) -> None:
        self._check_factors(epsilon=self.epsilon, decay=self.decay, multiplier=self.multiplier)
        self.require(self.epsilon > 0, "an epsilon above 0, since a first gradient of 0 is divided by it", self.epsilon)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """The accumulated squares, then the weight."""
        weight, gradient, accumulated, rate = inputs
        slope = gradient + weight * self.decay
        squares = accumulated + slope * slope
        outputs[1][...] = squares
        outputs[0][...] = weight - slope * (rate * self.multiplier) / (kernels.xp.sqrt(squares) + self.epsilon)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """Per element: four products, four sums, a root and a division."""
        return Cost(9 * outputs[0].size, traffic(inputs, outputs))
