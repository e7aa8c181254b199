"""Dropout by a mask that is an input, so that forward and backward, and every replica, use the very same draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from purine_ref.operation import Array, Call, Kernels, Wiring
from purine_ref.ops.attributes import assign, choice, number
from purine_ref.ops.elementwise import ElementwiseOperation
from purine_ref.ops.exactness import keeps_exact, scaled_quantum
from purine_ref.ops.sharing import in_pieces
from purine_ref.rounding import multiple, roundings
from purine_ref.tensor import Tensor

SCALES = ("train", "test")
"""Which of the two scales, so that the expected values agree: training (inverted dropout), or testing (Purine)."""


@dataclass(frozen=True)
class Dropout(ElementwiseOperation):
    """{ x, mask } >> Dropout >> { y } in training, { x } >> Dropout >> { y } in testing (`train=False`)

    x, mask and y: any one shape and dtype; the mask holds 0 (dropped) and 1 (kept). With keep = 1 - ratio:
    `scale="train"`: y = x (1 / keep) where kept, 0 where dropped; in testing y = x.
    `scale="test"`: y = x where kept, 0 where dropped; in testing y = x keep.
    Either way the expected y in training is the y in testing (Srivastava et al., JMLR 15, 2014). What is dropped is 0
    even where x is infinite or NaN. `ratio` is in [0, 1): at 1 nothing could be scaled up.
    """

    ratio: float = 0.5
    scale: str = "train"
    train: bool = True

    selectors = frozenset({1})
    in_place = True

    def __post_init__(self) -> None:
        assign(self, ratio=number(self.ratio, f"{self.name} ratio"))
        self.require(0 <= self.ratio < 1, "a ratio of 0 or more and below 1", self.ratio)
        choice(self.scale, f"{self.name} scale", SCALES)

    @property
    def factor(self) -> float:
        """What is kept is multiplied by this."""
        if self.train:
            return 1 / (1 - self.ratio) if self.scale == "train" else 1.0
        return 1 - self.ratio if self.scale == "test" else 1.0

    @property
    def exact(self) -> bool:
        """Exact where the factor is a power of two."""
        return keeps_exact(self.factor)

    def differentiable(self, index: int) -> bool:
        """Only x."""
        return index == 0

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tensor of x. Raises ShapeError unless x and the mask agree, or when a test gets a mask."""
        self.require_inputs(inputs, "x mask" if self.train else "x")
        self.require_same(inputs)
        return (inputs[0],)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Scale, then select by the mask; multiplying by the mask would turn a dropped infinity into NaN.

        Bits are selected as integers, where there are some as wide: a condition for each element would be guessed wrong
        half of the time.
        """
        xp, x, (y,) = kernels.xp, inputs[0], outputs

        def drop(part: slice) -> None:
            """One piece."""
            xp.multiply(x[part], self.factor, out=y[part])
            if y.itemsize > 8:
                xp.copyto(y[part], 0, where=inputs[1][part] == 0)
                return
            bits = y[part].view(f"i{y.itemsize}")
            xp.multiply(bits, inputs[1][part] != 0, out=bits)

        if not self.train:
            xp.multiply(x, self.factor, out=y)
        elif x.ndim:
            in_pieces(kernels, x, drop)
        else:
            xp.multiply(xp.where(inputs[1] != 0, x, 0), self.factor, out=y)

    def gradient(self, wiring: Wiring) -> None:
        """{ dy, mask } >> Dropout >> { dx }, by the mask of this forward, not by a new one."""
        if wiring.wants[0]:
            wiring.add(self, [wiring.gradient(0), *wiring.inputs[1:]], [0])

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """That of x times the factor."""
        return (scaled_quantum(self, exponents[0], self.factor, "scale"),)

    def bound(self, call: Call) -> tuple[Array, ...]:
        """One product, and a factor that may have to be rounded to the dtype."""
        return (roundings(call.xp, multiple(self.factor, call.unit), call.outputs[0], call.unit),)

    def slopes(self, call: Call, index: int) -> tuple[Array, ...]:
        """The factor where kept; and what the mask keeps or drops."""
        if index == 1:
            return (call.inputs[0] * self.factor,)
        return (call.xp.where(call.inputs[1] != 0, self.factor, 0.0) if self.train else self.factor,)
