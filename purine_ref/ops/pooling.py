"""Pooling: maximum and average over windows, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from purine_ref.operation import Array, Axis, Call, Cost, Kernels, Kinks, Operation, Wiring, traffic
from purine_ref.ops.attributes import Pads, Pair, assign, choice, is_power_of_two, pad_pairs, pair
from purine_ref.ops.axes import shape_of_part
from purine_ref.ops.exactness import divided_quantum
from purine_ref.ops.sharing import in_pieces
from purine_ref.ops.summing import LinearOperation, Steps
from purine_ref.ops.windows import PlaneOperation, pooled_size, window_lengths
from purine_ref.rounding import KAPPA
from purine_ref.tensor import Tensor, as_shape


@dataclass(frozen=True)
class MaxPool2d(PlaneOperation):
    """{ x } >> MaxPool2d >> { y, index }

    Shapes: x (N, C, H, W), y (N, C, oh, ow) and index as y, int64, with oh and ow from `pooled_size`.
    Formula: y = the window's largest element, index = its flat place in the H*W plane. Padding never wins; of equal
    elements the first in row-major order does, and NaN wins over everything. `stride` is `kernel` unless given.

    Raises ShapeError for padding as wide as the kernel and for an image that no window fits.
    """

    kernel: int | Pair
    stride: int | Pair | None = None
    pads: int | Pair | Pads = 0
    rounding: str = "ceil"

    loops = frozenset({"max_pool"})

    def __post_init__(self) -> None:
        _settle(self)

    @property
    def exact(self) -> bool:
        """It only chooses."""
        return True

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """y of x's dtype, index of int64. Raises ShapeError where the class says."""
        self.require_inputs(inputs, "x")
        self.require_same_dtype(inputs)
        shape = _output_shape(self, inputs[0].shape)
        return Tensor(shape, inputs[0].dtype), Tensor(shape, "int64")

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Each window's winner and where it is."""
        (x,), (y, index) = inputs, outputs
        window = (self.kernel, self.stride, self.pads, y.shape[2:])
        in_pieces(kernels, x, lambda part: kernels.max_pool(x[part], *window, out=(y[part], index[part])))

    def gradient(self, wiring: Wiring) -> None:
        """MaxPool2dGradient at the winners of this very forward."""
        if wiring.wants[0]:
            shape = wiring.inputs[0].tensor.shape
            window = (self.kernel, self.stride, self.pads, self.rounding)
            wiring.add(MaxPool2dGradient(shape, *window), [wiring.gradient(0), wiring.outputs[1]], [0])

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """A comparison (1 FLOP) per element of each window."""
        return Cost(outputs[0].size * math.prod(pair(self.kernel, "kernel")), traffic(inputs, outputs))

    def bound(self, call: Call) -> tuple[Array, ...]:
        """Nothing is rounded."""
        return tuple(call.xp.zeros(y.shape) for y in call.outputs)

    def noise(self, call: Call) -> tuple[Array | None, ...]:
        """None."""
        return None, None

    def spread(self, call: Call, index: int) -> tuple[Array, ...]:
        """A maximum is off by no more than the element of its window that is off most; an index has no variance."""
        size = call.outputs[0].shape[2:]
        worst, _ = call.kernels.max_pool(call.variances[0], self.kernel, self.stride, self.pads, size)
        return worst, call.xp.zeros(call.outputs[1].shape)

    def kinks(self, call: Call) -> Kinks:
        """The windows that another element may win: its upper end is not below the winner's lower end.

        Two elements without an error are as they are, in value and in order.
        """
        if call.variances[0] is None:
            return Kinks(0, (None, None))
        xp, x, winner = call.xp, call.inputs[0], call.outputs[1][:, :, None, None]
        margin = KAPPA * xp.sqrt(call.variances[0])
        flat = xp.reshape(xp.arange(math.prod(x.shape[2:])), (1, 1, *x.shape[2:]))
        place = self._unfolded(call, flat + 1.0) - 1
        own = place == winner
        value, error = xp.where(place < 0, -xp.inf, self._unfolded(call, x)), self._unfolded(call, margin)
        lower = xp.where(own, value - error, -xp.inf).max(axis=(2, 3), keepdims=True)
        certain = (error <= 0) & (xp.where(own, error, 0).max(axis=(2, 3), keepdims=True) == 0)
        near = ((value + error >= lower) & ~own & ~certain & (place >= 0)).any(axis=(2, 3))
        return Kinks(int(near.sum()), (None, near))

    def _unfolded(self, call: Call, x: Array) -> Array:
        """The elements of each window, (N, C, kh, kw, oh, ow), with 0 where a window leaves the image."""
        kernel, stride, pads = pair(self.kernel, "kernel"), pair(self.stride, "stride"), pad_pairs(self.pads)
        reach = [(n - 1) * s + k for n, s, k in zip(call.outputs[0].shape[2:], stride, kernel, strict=True)]
        ends = [r - begin - h for r, (begin, _), h in zip(reach, pads, x.shape[2:], strict=True)]
        rows, columns = (slice(None, h + min(end, 0)) for h, end in zip(x.shape[2:], ends, strict=True))
        sides = tuple((begin, max(end, 0)) for (begin, _), end in zip(pads, ends, strict=True))
        return call.kernels.im2col(x[:, :, rows, columns], kernel, stride, sides, (1, 1))


@dataclass(frozen=True)
class MaxPool2dGradient(PlaneOperation, LinearOperation):
    """{ dy, index } >> MaxPool2dGradient >> { dx }

    Shapes: dy and index (N, C, oh, ow), index int64, dx = `shape` = (N, C, H, W).
    Formula: each dy is added to the element of dx that won its window; windows that overlap add up.
    Where `kernel` is given, with its `stride`, `pads` and `rounding`, the index is one that `MaxPool2d` of these
    attributes made of `shape`: then a device may look only at the windows over an element. Else it may be any.

    Raises ShapeError unless dy and index agree with each other, with `shape`, and with the windows.
    """

    shape: tuple[int, ...]
    kernel: int | Pair | None = None
    stride: int | Pair | None = None
    pads: int | Pair | Pads = 0
    rounding: str = "ceil"

    loops = frozenset({"max_pool_gather"})

    def __post_init__(self) -> None:
        assign(self, shape=as_shape(self.shape), pads=pad_pairs(self.pads, f"{self.name} pads"))
        if self.kernel is not None:
            _settle(self)

    @property
    def exact(self) -> bool:
        """Sums only."""
        return True

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """dx, of dy's dtype. Raises ShapeError where the class says."""
        self.require_inputs(inputs, "dy index")
        dy, index = inputs
        self.require_float(dy, "dy")
        self.require(index.dtype == "int64", "index of int64", index.dtype)
        self.require(len(self.shape) == 4, "a shape (N, C, H, W)", self.shape)
        planes = self.shape[:2]
        self.require(len(dy.shape) == 4 and dy.shape[:2] == planes, f"dy of shape {planes} + (oh, ow)", dy.shape)
        self.require(index.shape == dy.shape, f"index of dy's shape {dy.shape}", index.shape)
        if self.kernel is not None:
            expected = _output_shape(self, self.shape)
            self.require(dy.shape == expected, f"dy of shape {expected}", dy.shape)
        return (Tensor(self.shape, dy.dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Add dy at the winners."""
        (dy, index), (dx,) = inputs, outputs

        def scatter(part: slice) -> None:
            """One piece."""
            window = (self.kernel, self.stride, self.pads)
            kernels.max_pool_gather(dy[part], index[part], dx[part].shape, *window, out=dx[part])

        in_pieces(kernels, dx, scatter)

    def part(self, axis: Axis, start: int, stop: int) -> Operation:
        """To the part of `shape`."""
        return replace(self, shape=shape_of_part(self.shape, axis.outputs[0], start, stop))

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """An addition per element of dy."""
        return Cost(inputs[0].size, traffic(inputs, outputs))

    def steps(self, call: Call) -> Steps:
        """An addition for each window that an element has won beyond the first."""
        won = self.applied(call, [call.xp.ones(call.inputs[0].shape), call.inputs[1]])
        return Steps(inner=call.xp.maximum(won - 1, 0))

    def squared(self, call: Call, arrays: Sequence[Array]) -> Array:
        """The factors are 1."""
        return self.applied(call, arrays)


@dataclass(frozen=True)
class AveragePool2d(PlaneOperation, LinearOperation):
    """{ x } >> AveragePool2d >> { y }

    Shapes: x (N, C, H, W), y (N, C, oh, ow), with oh and ow from `pooled_size`.
    Formula: y = sum of the window's elements / their number, which `window_lengths` counts: declared padding is
    counted with `count` "padded" and not with "valid". `stride` is `kernel` unless given.

    Raises ShapeError for padding as wide as the kernel and for an image that no window fits.
    """

    kernel: int | Pair
    stride: int | Pair | None = None
    pads: int | Pair | Pads = 0
    rounding: str = "ceil"
    count: str = "padded"

    loops = frozenset({"average_pool"})

    def __post_init__(self) -> None:
        _settle(self, count=choice(self.count, f"{self.name} count", ("padded", "valid")))

    @property
    def exact(self) -> bool:
        """When a whole window holds a power of two of elements; `quantum` looks at the cut ones too."""
        return is_power_of_two(math.prod(pair(self.kernel, "kernel")))

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """y, of x's dtype. Raises ShapeError where the class says."""
        self.require_inputs(inputs, "x")
        self.require_same_dtype(inputs)
        return (Tensor(_output_shape(self, inputs[0].shape), inputs[0].dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Each window's average."""
        (x,), (y,) = inputs, outputs
        window = (self.kernel, self.stride, self.pads, y.shape[2:], self.count)
        in_pieces(kernels, x, lambda part: kernels.average_pool(x[part], *window, out=y[part]))

    def gradient(self, wiring: Wiring) -> None:
        """AveragePool2dGradient, with the same windows and divisors."""
        if wiring.wants[0]:
            window = (self.kernel, self.stride, self.pads, self.rounding, self.count)
            wiring.add(AveragePool2dGradient(wiring.inputs[0].tensor.shape, *window), [wiring.gradient(0)], [0])

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """For each window, an addition per element but the first, and a division."""
        return Cost(outputs[0].size * math.prod(pair(self.kernel, "kernel")), traffic(inputs, outputs))

    def steps(self, call: Call) -> Steps:
        """The additions within a window, and the division."""
        return Steps(inner=math.prod(pair(self.kernel, "kernel")) - 1, final=1)

    def squared(self, call: Call, arrays: Sequence[Array]) -> Array:
        """The factors are 1 over the number of averaged elements."""
        return self.applied(call, arrays) / _counts(self, call, call.inputs[0].shape)

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """Lower by the exponent of the largest divisor. Raises OperatorError when one is not a power of two."""
        return (_averaged_quantum(self, exponents[0], inputs[0].shape),)


@dataclass(frozen=True)
class AveragePool2dGradient(PlaneOperation, LinearOperation):
    """{ dy } >> AveragePool2dGradient >> { dx }

    Shapes: dy (N, C, oh, ow), dx = `shape` = (N, C, H, W).
    Formula: dy / number of elements is added to each element of its window, with the divisor of `AveragePool2d`.

    Raises ShapeError unless dy is what `AveragePool2d` of these attributes makes of `shape`.
    """

    shape: tuple[int, ...]
    kernel: int | Pair
    stride: int | Pair | None = None
    pads: int | Pair | Pads = 0
    rounding: str = "ceil"
    count: str = "padded"

    loops = frozenset({"average_pool_scatter"})

    def __post_init__(self) -> None:
        count = choice(self.count, f"{self.name} count", ("padded", "valid"))
        _settle(self, shape=as_shape(self.shape), count=count)

    @property
    def exact(self) -> bool:
        """When a whole window holds a power of two of elements; `quantum` looks at the cut ones too."""
        return is_power_of_two(math.prod(pair(self.kernel, "kernel")))

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """dx, of dy's dtype. Raises ShapeError where the class says."""
        self.require_inputs(inputs, "dy")
        self.require_same_dtype(inputs)
        expected = _output_shape(self, self.shape)
        self.require(inputs[0].shape == expected, f"dy of shape {expected}", inputs[0].shape)
        return (Tensor(self.shape, inputs[0].dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Spread dy over the windows."""
        (dy,), (dx,) = inputs, outputs
        window = (self.kernel, self.stride, self.pads, self.count)

        def scatter(part: slice) -> None:
            """One piece."""
            kernels.average_pool_scatter(dy[part], dx[part].shape, *window, out=dx[part])

        in_pieces(kernels, dx, scatter)

    def part(self, axis: Axis, start: int, stop: int) -> Operation:
        """To the part of `shape`."""
        return replace(self, shape=shape_of_part(self.shape, axis.outputs[0], start, stop))

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """For each element of dy, a division, and an addition per element of its window."""
        return Cost(inputs[0].size * (1 + math.prod(pair(self.kernel, "kernel"))), traffic(inputs, outputs))

    def steps(self, call: Call) -> Steps:
        """The division, and the additions of as many windows as can overlap."""
        windows = zip(pair(self.kernel, "kernel"), pair(self.stride, "stride"), strict=True)
        return Steps(inner=math.prod(-(-k // s) for k, s in windows))

    def squared(self, call: Call, arrays: Sequence[Array]) -> Array:
        """The factors are 1 over the number of averaged elements."""
        return self.applied(call, [arrays[0] / _counts(self, call, self.shape)])

    def copies(self, call: Call) -> int:
        """One for each element of the window."""
        return math.prod(pair(self.kernel, "kernel"))

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """Lower by the exponent of the largest divisor. Raises OperatorError when one is not a power of two."""
        return (_averaged_quantum(self, exponents[0], self.shape),)


_Windowed = MaxPool2d | MaxPool2dGradient | AveragePool2d | AveragePool2dGradient


def _settle(operation: _Windowed, **attributes: object) -> None:
    """Bring the attributes of a window to one spelling. Raises ShapeError for padding as wide as the kernel."""
    name = operation.name
    kernel, pads = pair(operation.kernel, f"{name} kernel"), pad_pairs(operation.pads, f"{name} pads")
    stride = kernel if operation.stride is None else pair(operation.stride, f"{name} stride")
    narrow = all(max(pads[axis]) < kernel[axis] for axis in (0, 1))
    operation.require(narrow, f"pads less than the kernel {kernel}", f"pads {pads}")
    rounding = choice(operation.rounding, f"{name} rounding", ("ceil", "floor"))
    assign(operation, kernel=kernel, stride=stride, pads=pads, rounding=rounding, **attributes)


def _axes(op: _Windowed, x: tuple[int, ...]) -> tuple[tuple[int, int, int, Pair, str], ...]:
    """The arguments of `pooled_size` for height and for width."""
    kernel, stride, pads = pair(op.kernel, "kernel"), pair(op.stride, "stride"), pad_pairs(op.pads)
    return tuple((x[2 + axis], kernel[axis], stride[axis], pads[axis], op.rounding) for axis in (0, 1))


def _output_shape(op: _Windowed, x: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of y; raises ShapeError when x has no image or no window fits it."""
    op.require(len(x) == 4, "x of shape (N, C, H, W)", x)
    size = tuple(pooled_size(*axis) for axis in _axes(op, x))
    op.require(min(size) >= 1, f"a kernel that fits the padded input x {x}", f"kernel {op.kernel}, pads {op.pads}")
    return (*x[:2], *size)


def _averaged_quantum(op: AveragePool2d | AveragePool2dGradient, quantum: int, x: tuple[int, ...]) -> int:
    """The quantum after the largest divisor; raises OperatorError when any divisor is not a power of two."""
    heights, widths = (set(window_lengths(*axis, op.count)) for axis in _axes(op, x))
    return min(divided_quantum(op, quantum, h * w, "number of averaged elements") for h in heights for w in widths)


def _counts(op: AveragePool2d | AveragePool2dGradient, call: Call, x: tuple[int, ...]) -> Array:
    """The number of elements that each window averages, (oh, ow)."""
    heights, widths = (call.xp.asarray(window_lengths(*axis, op.count)) for axis in _axes(op, x))
    return call.xp.multiply.outer(heights, widths)
