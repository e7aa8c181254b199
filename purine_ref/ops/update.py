"""Update rules: new parameters and new history from old ones, each in blobs of their own (rule R6).

The rate is a blob of shape (), so that a schedule needs no new graph; `multiplier` scales it for one parameter (twice
for a bias, say). Every other number is a Python float, which promotes no array. Updates have no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from purine_ref.operation import Array, Call, Cost, Kernels, Kinks, traffic
from purine_ref.ops.attributes import assign, number
from purine_ref.ops.elementwise import ElementwiseOperation
from purine_ref.ops.exactness import keeps_exact, scaled_quantum
from purine_ref.ops.sharing import PIECE, in_pieces
from purine_ref.rounding import KAPPA, multiple, roundings
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

    def _step_bound(self, call: Call) -> Array:
        """What gradient + decay weight can be off by."""
        weight, gradient = call.inputs[:2]
        decayed = roundings(call.xp, multiple(self.decay, call.unit), self.decay * weight, call.unit)
        return decayed + roundings(call.xp, int(self.decay != 0), gradient + self.decay * weight, call.unit)

    def _carried_bound(self, call: Call) -> Array:
        """What momentum history can be off by."""
        return roundings(call.xp, multiple(self.momentum, call.unit), self.momentum * call.inputs[2], call.unit)


@dataclass(frozen=True)
class SGD(_Momentum):
    """{ weight, gradient, history, rate } >> SGD >> { weight', history' }

    All of one shape, floating point, but rate (). With lr = multiplier rate:
    history' = momentum history + lr (gradient + decay weight); weight' = weight - history'. The rate is inside the
    history, so that a change of the rate acts on new gradients alone (Caffe, Purine; see TorchSGD).
    """

    loops = frozenset({"momentum_update"})

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """The history, then the weight."""
        _update(kernels, kernels.momentum_update, self, self.momentum, inputs, outputs)

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

    def bound(self, call: Call) -> tuple[Array, ...]:
        """The step's and the history's terms, the rate's product, and each sum."""
        xp, (weight, gradient, _, rate) = call.xp, call.inputs
        lr = xp.abs(rate * self.multiplier)
        step = lr * (gradient + self.decay * weight)
        moved = lr * self._step_bound(call) + roundings(xp, 1 + multiple(self.multiplier, call.unit), step, call.unit)
        history = moved + self._carried_bound(call) + roundings(xp, 1, call.outputs[1], call.unit)
        return history + roundings(xp, 1, call.outputs[0], call.unit), history

    def slopes(self, call: Call, index: int) -> tuple[Array, ...]:
        """Of weight' and history'; those of weight' are [index = 0] less those of history'."""
        weight, gradient, _, rate = call.inputs
        lr = rate * self.multiplier
        history = (lr * self.decay, lr, self.momentum, self.multiplier * (gradient + self.decay * weight))[index]
        return (index == 0) - history, history


@dataclass(frozen=True)
class TorchSGD(_Momentum):
    """{ weight, gradient, history, rate } >> TorchSGD >> { weight', history' }

    All of one shape, floating point, but rate (). With lr = multiplier rate:
    history' = momentum history + gradient + decay weight; weight' = weight - lr history'. The rate is outside the
    history, so that a change of the rate acts on old gradients too (torch.optim.SGD without dampening).
    """

    loops = frozenset({"torch_update"})

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """The history, then the weight."""
        _update(kernels, kernels.torch_update, self, self.momentum, inputs, outputs)

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

    def bound(self, call: Call) -> tuple[Array, ...]:
        """The step's and the history's terms, their sum, the rate's product, and the difference."""
        xp, lr = call.xp, call.xp.abs(call.inputs[3] * self.multiplier)
        history = self._step_bound(call) + self._carried_bound(call) + roundings(xp, 1, call.outputs[1], call.unit)
        product = roundings(xp, 1 + multiple(self.multiplier, call.unit), lr * call.outputs[1], call.unit)
        return lr * history + product + roundings(xp, 1, call.outputs[0], call.unit), history

    def slopes(self, call: Call, index: int) -> tuple[Array, ...]:
        """Of weight' and history'; those of weight' are [index = 0] less the rate times those of history'."""
        lr = call.inputs[3] * self.multiplier
        if index == 3:
            return self.multiplier * call.outputs[1], 0.0
        history = (self.decay, 1.0, self.momentum)[index]
        return (index == 0) - lr * history, history


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

    loops = frozenset({"adagrad_update"})

    def __post_init__(self) -> None:
        self._check_factors(epsilon=self.epsilon, decay=self.decay, multiplier=self.multiplier)
        self.require(self.epsilon > 0, "an epsilon above 0, since a first gradient of 0 is divided by it", self.epsilon)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """The accumulated squares, then the weight."""
        _update(kernels, kernels.adagrad_update, self, self.epsilon, inputs, outputs)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """Per element: four products, four sums, a root and a division."""
        return Cost(9 * outputs[0].size, traffic(inputs, outputs))

    def bound(self, call: Call) -> tuple[Array, ...]:
        """The slope's terms go into its square, twice, and into the step; and the rest of the formula."""
        xp, unit, weight = call.xp, call.unit, call.inputs[0]
        slope, root, lr = self._parts(call)
        decayed = roundings(xp, multiple(self.decay, unit), self.decay * weight, unit)
        error = decayed + roundings(xp, int(self.decay != 0), slope, unit)
        squares = 2 * xp.abs(slope) * error + roundings(xp, 1, slope * slope, unit)
        squares = squares + roundings(xp, 1, call.outputs[1], unit)
        below = xp.where(root > 0, squares / (2 * xp.where(root > 0, root, 1)), 0) + 3 * unit * (root + self.epsilon)
        step = lr * slope / (root + self.epsilon)
        moved = xp.abs(lr) * error / (root + self.epsilon) + xp.abs(step) * below / (root + self.epsilon)
        count = 2 + multiple(self.multiplier, unit) + 1
        return moved + roundings(xp, count, step, unit) + roundings(xp, 1, call.outputs[0], unit), squares

    def slopes(self, call: Call, index: int) -> tuple[Array, ...]:
        """Of weight' and accumulated'. Through the slope g, accumulated' moves by 2 g, and the quotient by both."""
        xp = call.xp
        slope, root, lr = self._parts(call)
        divisor = root + self.epsilon
        safe = xp.where(root > 0, root, 1.0)
        if index == 3:
            return self.multiplier * slope / divisor, 0.0
        if index == 2:
            return xp.where(root > 0, lr * slope / (2 * safe * divisor * divisor), 0.0), 1.0
        quotient = lr * (1 / divisor - xp.where(root > 0, slope * slope / (safe * divisor * divisor), 0.0))
        inner = self.decay if index == 0 else 1.0
        return (index == 0) - quotient * inner, 2 * slope * inner

    def kinks(self, call: Call) -> Kinks:
        """Where the slope's error may exceed the root that it is divided by: then the step may be anything."""
        xp, (_, root, _) = call.xp, self._parts(call)
        error = 0.0
        for inner, variance in ((self.decay, call.variances[0]), (1.0, call.variances[1])):
            error = error + (0.0 if variance is None else KAPPA * inner * xp.sqrt(variance))
        near = (error > 0) & (2 * error >= root + self.epsilon)
        return Kinks(int(near.sum()), (near, None))

    def _parts(self, call: Call) -> tuple[Array, Array, Array]:
        """The slope g, the root of the accumulated squares, and lr."""
        weight, gradient, _, rate = call.inputs
        return gradient + self.decay * weight, call.xp.sqrt(call.outputs[1]), rate * self.multiplier


def _update(
    kernels: Kernels, loop: Any, op: SGD | TorchSGD | AdaGrad, factor: float, inputs: Sequence[Array],
    outputs: Sequence[Array],
) -> None:
    """Call one of the loops, which all take the same arrays and numbers."""
    (weight, gradient, state, rate), (new_weight, new_state) = inputs, outputs
    # The rate times its multiplier is rounded to the dtype.
    scaled = rate if op.multiplier == 1 else kernels.xp.multiply(rate, op.multiplier, dtype=rate.dtype)
    numbers = (kernels.number(scaled), factor, op.decay)

    def update(part: slice) -> None:
        """One piece."""
        loop(weight[part], gradient[part], state[part], *numbers, new_weight[part], new_state[part])

    if weight.size < 2 * PIECE:
        loop(weight, gradient, state, *numbers, new_weight, new_state)
    else:
        in_pieces(kernels, weight, update)
