"""Local response normalisation across channels, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from purine_ref.operation import Array, Axis, Cost, Kernels, Operation, Wiring, traffic
from purine_ref.ops.attributes import assign, integer, number
from purine_ref.ops.axes import common_axes, numbered
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

    loops = frozenset({"window_sum"})

    def __post_init__(self) -> None:
        _settle(self)

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """y, of x's dtype. Raises ShapeError unless x is floating point and has channels."""
        self.require_inputs(inputs, "x")
        return _like_x(self, inputs)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Each element over a power of its scale."""
        (x,), (y,) = inputs, outputs
        kernels.xp.multiply(x, _scale(self, kernels, x) ** -self.beta, out=y)

    def gradient(self, wiring: Wiring) -> None:
        """LRNGradient."""
        if wiring.wants[0]:
            operation = LRNGradient(self.n, self.alpha, self.beta, self.k)
            wiring.add(operation, [wiring.gradient(0), wiring.inputs[0]], [0])

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """Per element: a square, n - 1 additions, times alpha/n, plus k, a power, and the product."""
        return Cost(inputs[0].size * (self.n + 4), traffic(inputs, outputs))


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

    loops = frozenset({"window_sum"})

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
        scale = _scale(self, kernels, x)
        own = dy * scale**-self.beta
        neighbours = kernels.window_sum(own * x / scale, self.n)
        kernels.xp.subtract(own, (2 * self.alpha / self.n * self.beta) * x * neighbours, out=dx)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """Per element: the scale (n + 2), its power and product, two more and n - 1 additions, two and a difference."""
        return Cost(inputs[0].size * (2 * self.n + 8), traffic(inputs, outputs))


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


def _scale(op: LRN | LRNGradient, kernels: Kernels, x: Array) -> Array:
    """k + alpha/n * the sum of squares in each element's window of channels."""
    return op.k + op.alpha / op.n * kernels.window_sum(x * x, op.n)
