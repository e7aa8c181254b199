"""Sources: operations without inputs, which draw (rule R7) or hold a constant.

A draw is a function of the run's seed and iteration, of the operation's `stream`, and of each element's index i in the
undivided tensor, in C order. With w_i the i-th word that Philox gives for that key: u53 = (w >> 11) 2^-53 and
u24 = (w >> 40) 2^-24 are uniform in [0, 1). A `window` (undivided shape, start per axis) makes the operation draw a
block of the undivided tensor, the same elements that the undivided operation draws there.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import add

import numpy as np

from purine_ref.operation import Array, Axis, Call, Cost, Kernels, Operation, RandomOperation, elementwise_axes, traffic
from purine_ref.ops.attributes import assign, integer, number
from purine_ref.ops.axes import shape_of_part
from purine_ref.ops.sharing import in_pieces
from purine_ref.tensor import Tensor, as_shape

Window = tuple[tuple[int, ...], tuple[int, ...]]
"""(undivided shape, start per axis)."""

WORDS_TO_UNIT = {"float32": (40, 2.0**-24), "float64": (11, 2.0**-53)}
"""How far a word is shifted, and what it is then multiplied by, for as many random bits as the dtype can hold."""

LARGEST = {"float32": (2 - 2.0**-23) * 2.0**127, "float64": math.inf, "int64": 2**63 - 1}
"""The largest value of each dtype; no Python float is too large for float64."""


class _Source(Operation):
    """An operation without inputs. What it gives is defined with its rounding to the dtype, so it has no error."""

    def bound(self, call: Call) -> tuple[Array, ...]:
        """None."""
        return (call.xp.zeros(call.outputs[0].shape),)

    def noise(self, call: Call) -> tuple[Array | None, ...]:
        """None."""
        return (None,)


@dataclass(frozen=True)
class _Draw(_Source, RandomOperation):
    """{ } >> Draw >> { y }, with the fields that all draws have; `stream` is the name of the operator that draws."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    stream: str = field(default="", kw_only=True)
    window: Window | None = field(default=None, kw_only=True)

    loops = frozenset({"philox"})

    def __post_init__(self) -> None:
        assign(self, shape=as_shape(self.shape))
        self.require_float(Tensor(self.shape, self.dtype), "dtype")
        if self.window is not None:
            self._check_window(*self.window)

    def _check_window(self, undivided: Sequence[int], start: Sequence[int]) -> None:
        assign(self, window=(as_shape(undivided), as_shape(start)))
        inside = len(self.shape) == len(undivided) == len(start) and all(
            0 <= first and first + length <= whole
            for first, length, whole in zip(start, self.shape, undivided, strict=True)
        )
        self.require(inside, f"a window of shape {self.shape} inside the undivided tensor", self.window)

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """`shape` and `dtype`. Raises ShapeError when there is an input."""
        self.require(not inputs, "no inputs", len(inputs))
        return (Tensor(self.shape, self.dtype),)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """Per element: about 30 integer operations for a word, counted as FLOPs."""
        return Cost(30 * outputs[0].size, traffic(inputs, outputs))

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """Every axis."""
        return elementwise_axes(inputs, outputs)

    def part(self, axis: Axis, start: int, stop: int) -> Operation:
        """The part of `shape`, in a window that shows where in the undivided tensor it lies."""
        undivided, first = self._placed()
        offset = shape_of_part((0,) * len(first), axis.outputs[0], 0, start)
        window = (undivided, tuple(map(add, first, offset)))
        return replace(self, shape=shape_of_part(self.shape, axis.outputs[0], start, stop), window=window)

    def _placed(self) -> Window:
        """The window; that of a draw without one is the whole."""
        return self.window or (self.shape, (0,) * len(self.shape))

    def _words(self, kernels: Kernels, per_element: int = 1) -> Array:
        """The words of every element of `shape`, and `per_element` of them on one more axis at the end.

        The words of all undivided rows that the window meets are one range of the sequence: it is drawn whole, and
        the window is cut out of it along the inner axes.
        """
        undivided, start = self._placed()
        block = (*self.shape[:1], *undivided[1:])
        first = math.prod(undivided[1:]) * sum(start[:1]) * per_element
        key = kernels.key
        words = kernels.philox(key.seed, self.stream, key.iteration, first, math.prod(block) * per_element)
        inner = [slice(begin, begin + length) for begin, length in zip(start[1:], self.shape[1:], strict=True)]
        return words.reshape(*block, per_element)[(slice(None), *inner)]

    def _unit(self, words: Array, dtype: str = "float64") -> Array:
        """Numbers in [0, 1), in float64, with as many random bits as `dtype` can hold."""
        shift, unit = WORDS_TO_UNIT[dtype]
        return (words >> shift) * unit


@dataclass(frozen=True)
class Uniform(_Draw):
    """{ } >> Uniform >> { y }

    y: `shape`, `dtype`. y_i = low + (high - low) u_i, computed in float64 and cast, with u24 for float32 and u53 for
    float64; what would round to `high` becomes the number below it, so y is in [low, high).
    """

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        assign(self, low=number(self.low, f"{self.name} low"), high=number(self.high, f"{self.name} high"))
        self.require(self.low < self.high, "low below high", f"{self.low} and {self.high}")

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Draw one word per element."""
        xp, y = kernels.xp, outputs[0]
        unit = self._unit(self._words(kernels), self.dtype)[..., 0]
        y[...] = self.low + (self.high - self.low) * unit
        most = np.nextafter(np.asarray(self.high, self.dtype), np.asarray(self.low, self.dtype))
        xp.minimum(y, float(most), out=y)


@dataclass(frozen=True)
class Gaussian(_Draw):
    """{ } >> Gaussian >> { y }

    y: `shape`, `dtype`. y_i = mean + std sqrt(-2 log(1 - a)) cos(2 pi b), computed in float64 and cast, with a and b
    the u53 of the words 2i and 2i + 1 (Box and Muller, Annals of Mathematical Statistics 29, 1958).
    """

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        assign(self, mean=number(self.mean, f"{self.name} mean"), std=number(self.std, f"{self.name} std"))
        self.require(self.std >= 0, "a std of 0 or more", self.std)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Draw two words per element."""
        xp = kernels.xp
        pairs = self._unit(self._words(kernels, per_element=2))
        radius = xp.sqrt(-2 * xp.log(1 - pairs[..., 0]))
        outputs[0][...] = self.mean + self.std * radius * xp.cos(2 * math.pi * pairs[..., 1])


@dataclass(frozen=True)
class Bernoulli(_Draw):
    """{ } >> Bernoulli >> { y }

    y: `shape`, `dtype`. y_i = 1 where u53 < keep, else 0: the same in float32 and float64. `keep` is in [0, 1].
    """

    keep: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        assign(self, keep=number(self.keep, f"{self.name} keep"))
        self.require(0 <= self.keep <= 1, "a keep from 0 to 1", self.keep)

    @property
    def exact(self) -> bool:
        """Exact: 0 and 1."""
        return True

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Draw one word per element: with u53 = floor(w / 2**11) 2**-53, u53 < keep says w < ceil(keep 2**53) 2**11."""
        (y,), limit = outputs, math.ceil(self.keep * 2.0**53) << 11
        if limit >= 1 << 64:
            y[...] = 1
        elif not y.ndim or self.window is not None:
            y[...] = self._words(kernels)[..., 0] < kernels.xp.uint64(limit)
        else:
            in_pieces(kernels, y, lambda rows: self._draw_rows(kernels, rows, y, limit))

    def _draw_rows(self, kernels: Kernels, rows: slice, y: Array, limit: int) -> None:
        """Some rows of a draw that is whole: their words are one range of the sequence."""
        start, stop, _ = rows.indices(len(y))
        row = math.prod(y.shape[1:])
        key = kernels.key
        words = kernels.philox(key.seed, self.stream, key.iteration, start * row, (stop - start) * row)
        kept = kernels.xp.empty_like(y[rows], dtype=bool)  # in y's order of memory, so that few bytes change places
        kept[...] = (words < kernels.xp.uint64(limit)).reshape(kept.shape)
        y[rows] = kept


@dataclass(frozen=True)
class Constant(_Source):
    """{ } >> Constant >> { y }

    y: `shape`, `dtype` (int64 too, for an integer `value`). Every element is `value`.
    """

    value: float
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        assign(self, shape=as_shape(self.shape))
        check = number if Tensor(self.shape, self.dtype).is_float else integer
        assign(self, value=check(self.value, f"{self.name} value"))
        self.require(abs(self.value) <= LARGEST[self.dtype], f"a value that {self.dtype} can hold", self.value)

    @property
    def exact(self) -> bool:
        """Exact: nothing is computed."""
        return True

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """`shape` and `dtype`. Raises ShapeError when there is an input."""
        self.require(not inputs, "no inputs", len(inputs))
        return (Tensor(self.shape, self.dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Fill."""
        outputs[0][...] = self.value

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """No FLOP; what is written."""
        return Cost(0, traffic(inputs, outputs))

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """Every axis."""
        return elementwise_axes(inputs, outputs)

    def part(self, axis: Axis, start: int, stop: int) -> Operation:
        """The part of `shape`."""
        return replace(self, shape=shape_of_part(self.shape, axis.outputs[0], start, stop))

    def magnitude(
        self, kernels: Kernels, inputs: Sequence[Array], bounds: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        """The absolute value."""
        outputs[0][...] = abs(self.value)

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """The place of the last bit of the value that is 1."""
        return (_last_bit(self.value, self.dtype),)


def _last_bit(value: float, dtype: str) -> int:
    """The largest e of which `value`, rounded to `dtype`, is a multiple of 2**e; 0 for 0."""
    if dtype == "float32":
        value = struct.unpack("f", struct.pack("f", value))[0]
    numerator, denominator = value.as_integer_ratio()
    return (numerator & -numerator).bit_length() - denominator.bit_length() if numerator else 0
