"""Local response normalisation across channels, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from purine_ref.operation import Array, Axis, Call, Cost, Kernels, Operation, Wiring, traffic
from purine_ref.ops.attributes import assign, integer, number
from purine_ref.ops.axes import common_axes, numbered
from purine_ref.ops.sharing import in_pieces
from purine_ref.rounding import FUNCTION, multiple, roundings
from purine_ref.tensor import Tensor


class _AcrossChannels(Operation):
    """An operation in which an element depends on others of the same place, in other channels."""

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """Every axis but that of the channels."""
        return common_axes(numbered(outputs[0], but=1), inputs, outputs)


@dataclass(frozen=True)
class LRN(_AcrossChannels):
    """{ x } >> LRN >> { y }

    Shapes: x (N, C, ...), y as x.
    Formula: y = x * scale**-beta with scale = k + alpha/n * sum of x**2 over the n channels around each, as far as
    they exist. Source: Krizhevsky, Sutskever and Hinton 2012, section 3.3, with Caffe's alpha/n for their alpha.

    Raises ShapeError for an even n, for k <= 0 and for alpha < 0 (the scale might not be positive).
    """

    n: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    loops = frozenset({"lrn"})

    def __post_init__(self) -> None:
        _settle(self)

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """y, of x's dtype. Raises ShapeError unless x is floating point and has channels."""
        self.require_inputs(inputs, "x")
        return _like_x(self, inputs)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Each element over a power of its scale."""
        (x,), (y,) = inputs, outputs
        attributes = (self.n, self.alpha, self.beta, self.k)
        in_pieces(kernels, x, lambda part: kernels.lrn(x[part], *attributes, y[part]))

    def gradient(self, wiring: Wiring) -> None:
        """LRNGradient."""
        if wiring.wants[0]:
            operation = LRNGradient(self.n, self.alpha, self.beta, self.k)
            wiring.add(operation, [wiring.gradient(0), wiring.inputs[0]], [0])

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """Per element: a square, n - 1 additions, times alpha/n, plus k, a power, and the product."""
        return Cost(inputs[0].size * (self.n + 4), traffic(inputs, outputs))

    def bound(self, call: Call) -> tuple[Array, ...]:
        """A scale, its power, and a product."""
        count = _power_roundings(self, call, _scale(self, call.kernels, call.inputs[0])) + 1
        return (roundings(call.xp, count, call.outputs[0], call.unit),)

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """The slopes are [i = j] s_i^-beta - 2 alpha/n beta x_i x_j s_i^(-beta-1) within a window."""
        x, variance = call.inputs[0], call.variances[0]
        scale = _scale(self, call.kernels, x)
        neighbour = 2 * self.alpha / self.n * self.beta * x * scale ** (-self.beta - 1)
        others = call.kernels.window_sum(x * x * variance, self.n) - x * x * variance
        own = scale**-self.beta - neighbour * x
        return (own * own * variance + neighbour * neighbour * call.xp.maximum(others, 0),)


@dataclass(frozen=True)
class LRNGradient(_AcrossChannels):
    """{ dy, x } >> LRNGradient >> { dx }

    Shapes: dy, x and dx (N, C, ...).
    Formula: dx = dy * scale**-beta - 2 * alpha/n * beta * x * sum of (dy * x * scale**(-beta-1)) over the same window,
    which for an odd n is its own mirror image. The scale is computed again from x.

    Raises ShapeError as `LRN` does, and unless dy and x agree.
    """

    n: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    loops = frozenset({"lrn_gradient"})

    def __post_init__(self) -> None:
        _settle(self)

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """dx, of x's dtype. Raises ShapeError where the class says."""
        self.require_inputs(inputs, "dy x")
        self.require_same(inputs)
        return _like_x(self, inputs)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """The element's own term less what it does to its neighbours' scales."""
        (dy, x), (dx,) = inputs, outputs
        attributes = (self.n, self.alpha, self.beta, self.k)
        in_pieces(kernels, x, lambda part: kernels.lrn_gradient(dy[part], x[part], *attributes, dx[part]))

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """Per element: the scale (n + 2), its power and product, two more and n - 1 additions, two and a difference."""
        return Cost(inputs[0].size * (2 * self.n + 8), traffic(inputs, outputs))

    def bound(self, call: Call) -> tuple[Array, ...]:
        """The own term's roundings; those of the neighbours' terms, their sum and its factors; and a difference."""
        xp, (dy, x), kernels = call.xp, call.inputs, call.kernels
        scale = _scale(self, kernels, x)
        count = _power_roundings(self, call, scale) + 1
        own = xp.abs(dy) * scale**-self.beta
        terms = (count + _scale_roundings(self) + 2 + self.n + 3) * own * xp.abs(x) / scale
        neighbours = 2 * self.alpha / self.n * self.beta * xp.abs(x) * kernels.window_sum(terms, self.n)
        return (call.unit * (count * own + neighbours) + roundings(xp, self.n, call.outputs[0], call.unit),)

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """For dy, the transposed slopes of LRN. For x, those of its four places in the formula, added up."""
        xp, (dy, x), window = call.xp, call.inputs, call.kernels.window_sum
        variance, scale = call.variances[index], _scale(self, call.kernels, x)
        factor, power = 2 * self.alpha / self.n * self.beta, scale ** (-self.beta - 1)
        if index == 0:
            others = window((x * power) ** 2 * variance, self.n) - (x * power) ** 2 * variance
            own = scale**-self.beta - factor * x * x * power
            return (own * own * variance + (factor * x) ** 2 * xp.maximum(others, 0),)
        slope, scales = dy * power, xp.sqrt(window(x * x * variance, self.n))
        through_scales = window(xp.abs(x * slope) / scale * scales, self.n)
        deviation = factor * (
            xp.abs(slope) * scales
            + xp.abs(window(slope * x, self.n)) * xp.sqrt(variance)
            + xp.abs(x) * xp.sqrt(window(slope * slope * variance, self.n))
            + 2 * self.alpha / self.n * (self.beta + 1) * xp.abs(x) * through_scales
        )
        return (deviation * deviation,)


def _settle(op: LRN | LRNGradient) -> None:
    """Bring the attributes to one spelling; raises ShapeError for those under which the scale has no power."""
    n = integer(op.n, f"{op.name} n", 1)
    alpha, beta, k = (number(getattr(op, name), f"{op.name} {name}") for name in ("alpha", "beta", "k"))
    op.require(n % 2 == 1, "an odd n (a window that is centred)", n)
    op.require(k > 0, "k > 0", k)
    op.require(alpha >= 0, "alpha >= 0", alpha)
    assign(op, n=n, alpha=alpha, beta=beta, k=k)


def _like_x(op: LRN | LRNGradient, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    x = inputs[-1]
    op.require_float(x, "x")
    op.require(len(x.shape) >= 2, "x of shape (N, C, ...)", x.shape)
    return (Tensor(x.shape, x.dtype),)


def _scale_roundings(op: LRN | LRNGradient) -> int:
    """What the scale counts for: a square, n - 1 additions, alpha/n and a product, k and an addition; all positive."""
    return op.n + 4


def _power_roundings(op: LRN | LRNGradient, call: Call, scale: Array) -> Array:
    """What scale**-beta counts for: the scale's own beta times, a power's, and those of a beta that is rounded."""
    rounded = max(multiple(op.beta, call.unit) - 1, 0)
    return abs(op.beta) * (_scale_roundings(op) + rounded * call.xp.abs(call.xp.log(scale))) + FUNCTION


def _scale(op: LRN | LRNGradient, kernels: Kernels, x: Array) -> Array:
    """k + alpha/n * the sum of squares in each element's window of channels."""
    return op.k + op.alpha / op.n * kernels.window_sum(x * x, op.n)
