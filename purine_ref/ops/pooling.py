"""Pooling: maximum and average over windows, average over the image, and their gradients.

One function, `pooled_size`, gives the number of windows per axis to shape rule, forward and backward alike. Every
window it counts holds at least one element of the image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from purine_ref.operation import Array, Axis, Cost, Kernels, Operation, Wiring, traffic
from purine_ref.ops.attributes import Pads, Pair, assign, choice, is_power_of_two, pad_pairs, pair
from purine_ref.ops.axes import common_axes, shape_of_part
from purine_ref.ops.exactness import divided_quantum
from purine_ref.tensor import Tensor, as_shape


def pooled_size(size: int, kernel: int, stride: int, pad: Pair, rounding: str) -> int:
    """Windows along an axis: (size + pads - kernel) / stride, rounded up ("ceil") or down ("floor"), plus 1.

    A last window that would start outside image and begin padding is left out: it would hold no element. Less than 1
    when no window fits. Source: Caffe, and its bug report 6881.
    """
    room = size + sum(pad) - kernel
    count = (-(-room // stride) if rounding == "ceil" else room // stride) + 1
    starts_inside = (count - 1) * stride < size + pad[0]
    return count if starts_inside else count - 1


def window_lengths(size: int, kernel: int, stride: int, pad: Pair, rounding: str, count: str) -> tuple[int, ...]:
    """Elements along an axis that each window's average counts.

    With `count` "padded" those of the image and its declared padding, with "valid" those of the image alone. What a
    last window has beyond the declared padding is never counted.
    """
    low, high = (-pad[0], size + pad[1]) if count == "padded" else (0, size)
    starts = (i * stride - pad[0] for i in range(pooled_size(size, kernel, stride, pad, rounding)))
    return tuple(min(start + kernel, high) - max(start, low) for start in starts)


class _PlaneOperation(Operation):
    """An operation on each image and channel alone."""

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """n: the images; c: the channels."""
        return common_axes({"n": 0, "c": 1}, inputs, outputs)


@dataclass(frozen=True)
class MaxPool2d(_PlaneOperation):
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
        y[...], index[...] = kernels.max_pool(x, self.kernel, self.stride, self.pads, y.shape[2:])

    def gradient(self, wiring: Wiring) -> None:
        """MaxPool2dGradient at the winners of this very forward."""
        if wiring.wants[0]:
            shape = wiring.inputs[0].tensor.shape
            wiring.add(MaxPool2dGradient(shape), [wiring.gradient(0), wiring.outputs[1]], [0])

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """A comparison (1 FLOP) per element of each window."""
        return Cost(outputs[0].size * math.prod(pair(self.kernel, "kernel")), traffic(inputs, outputs))


@dataclass(frozen=True)
class MaxPool2dGradient(_PlaneOperation):
    """{ dy, index } >> MaxPool2dGradient >> { dx }

    Shapes: dy and index (N, C, oh, ow), index int64, dx = `shape` = (N, C, H, W).
    Formula: each dy is added to the element of dx that won its window; windows that overlap add up.

    Raises ShapeError unless dy and index agree with each other and with `shape`.
    """

    shape: tuple[int, ...]

    loops = frozenset({"max_pool_scatter"})

    def __post_init__(self) -> None:
        assign(self, shape=as_shape(self.shape))

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
        return (Tensor(self.shape, dy.dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Add dy at the winners."""
        (dy, index), (dx,) = inputs, outputs
        dx[...] = kernels.max_pool_scatter(dy, index, dx.shape)

    def part(self, axis: Axis, start: int, stop: int) -> Operation:
        """To the part of `shape`."""
        return replace(self, shape=shape_of_part(self.shape, axis.outputs[0], start, stop))

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """An addition per element of dy."""
        return Cost(inputs[0].size, traffic(inputs, outputs))


@dataclass(frozen=True)
class AveragePool2d(_PlaneOperation):
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
        y[...] = kernels.average_pool(x, self.kernel, self.stride, self.pads, y.shape[2:], self.count)

    def gradient(self, wiring: Wiring) -> None:
        """AveragePool2dGradient, with the same windows and divisors."""
        if wiring.wants[0]:
            window = (self.kernel, self.stride, self.pads, self.rounding, self.count)
            wiring.add(AveragePool2dGradient(wiring.inputs[0].tensor.shape, *window), [wiring.gradient(0)], [0])

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """For each window, an addition per element but the first, and a division."""
        return Cost(outputs[0].size * math.prod(pair(self.kernel, "kernel")), traffic(inputs, outputs))

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """Lower by the exponent of the largest divisor. Raises OperatorError when one is not a power of two."""
        return (_averaged_quantum(self, exponents[0], inputs[0].shape),)


@dataclass(frozen=True)
class AveragePool2dGradient(_PlaneOperation):
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
        dx[...] = kernels.average_pool_scatter(dy, dx.shape, self.kernel, self.stride, self.pads, self.count)

    def part(self, axis: Axis, start: int, stop: int) -> Operation:
        """To the part of `shape`."""
        return replace(self, shape=shape_of_part(self.shape, axis.outputs[0], start, stop))

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """For each element of dy, a division, and an addition per element of its window."""
        return Cost(inputs[0].size * (1 + math.prod(pair(self.kernel, "kernel"))), traffic(inputs, outputs))

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """Lower by the exponent of the largest divisor. Raises OperatorError when one is not a power of two."""
        return (_averaged_quantum(self, exponents[0], self.shape),)


@dataclass(frozen=True)
class GlobalAveragePool2d(_PlaneOperation):
    """{ x } >> GlobalAveragePool2d >> { y }

    Shapes: x (N, C, H, W), y (N, C, 1, 1).
    Formula: y = sum of the plane's elements, accumulated in float64, / (H * W).

    Raises ShapeError unless x has four axes and a plane at least one element.
    """

    @property
    def exact(self) -> bool:
        """When H * W is a power of two, which `quantum` checks."""
        return True

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """y, of x's dtype. Raises ShapeError where the class says."""
        self.require_inputs(inputs, "x")
        self.require_same_dtype(inputs)
        x = inputs[0].shape
        _plane(self, x)
        return (Tensor((*x[:2], 1, 1), inputs[0].dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Each plane's average."""
        (x,), (y,) = inputs, outputs
        rows = kernels.xp.ascontiguousarray(x)  # strides would choose the order of the sum
        y[...] = rows.sum(axis=(2, 3), dtype=kernels.xp.float64, keepdims=True) / _plane(self, x.shape)

    def gradient(self, wiring: Wiring) -> None:
        """GlobalAveragePool2dGradient."""
        if wiring.wants[0]:
            wiring.add(GlobalAveragePool2dGradient(wiring.inputs[0].tensor.shape), [wiring.gradient(0)], [0])

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """For each plane, an addition per element but the first, and a division."""
        return Cost(inputs[0].size, traffic(inputs, outputs))

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """Lower by the exponent of H * W. Raises OperatorError when that is not a power of two."""
        return (divided_quantum(self, exponents[0], _plane(self, inputs[0].shape), "number of averaged elements"),)


@dataclass(frozen=True)
class GlobalAveragePool2dGradient(_PlaneOperation):
    """{ dy } >> GlobalAveragePool2dGradient >> { dx }

    Shapes: dy (N, C, 1, 1), dx = `shape` = (N, C, H, W).
    Formula: dx = dy / (H * W) at every element of the plane.

    Raises ShapeError unless dy is what `GlobalAveragePool2d` makes of `shape`.
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        assign(self, shape=as_shape(self.shape))

    @property
    def exact(self) -> bool:
        """When H * W is a power of two, which `quantum` checks."""
        return True

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """dx, of dy's dtype. Raises ShapeError where the class says."""
        self.require_inputs(inputs, "dy")
        self.require_same_dtype(inputs)
        _plane(self, self.shape)
        expected = (*self.shape[:2], 1, 1)
        self.require(inputs[0].shape == expected, f"dy of shape {expected}", inputs[0].shape)
        return (Tensor(self.shape, inputs[0].dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Spread dy over the plane."""
        (dy,), (dx,) = inputs, outputs
        dx[...] = dy / _plane(self, dx.shape)

    def part(self, axis: Axis, start: int, stop: int) -> Operation:
        """To the part of `shape`."""
        return replace(self, shape=shape_of_part(self.shape, axis.outputs[0], start, stop))

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """A division per element of dy."""
        return Cost(inputs[0].size, traffic(inputs, outputs))

    def quantum(self, exponents: Sequence[int], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
        """Lower by the exponent of H * W. Raises OperatorError when that is not a power of two."""
        return (divided_quantum(self, exponents[0], _plane(self, self.shape), "number of averaged elements"),)


_Windowed = MaxPool2d | AveragePool2d | AveragePool2dGradient


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


def _plane(op: Operation, x: tuple[int, ...]) -> int:
    """H * W; raises ShapeError when x has no image, or one without elements."""
    op.require(len(x) == 4, "x of shape (N, C, H, W)", x)
    op.require(min(x[2:]) >= 1, "an image of one element or more", x)
    return math.prod(x[2:])


def _averaged_quantum(op: AveragePool2d | AveragePool2dGradient, quantum: int, x: tuple[int, ...]) -> int:
    """The quantum after the largest divisor; raises OperatorError when any divisor is not a power of two."""
    heights, widths = (set(window_lengths(*axis, op.count)) for axis in _axes(op, x))
    return min(divided_quantum(op, quantum, h * w, "number of averaged elements") for h in heights for w in widths)
