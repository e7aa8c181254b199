"""Two-dimensional convolution (cross-correlation, NCHW) and its two gradients.

All three are matrix products over the patches that the kernel sees; how these are laid out and cut is the business of
the device's kernel set (`purine_ref.devices.kernels`, of which `plain` is the one to read). Each class states every
attribute it needs, so that an operation can be written to a file and read back on its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from purine_ref.operation import Array, Axis, Call, Cost, Kernels, Operation, Window, Wiring, traffic
from purine_ref.ops.attributes import Pads, Pair, assign, integer, pad_pairs, pair
from purine_ref.ops.axes import shape_of_part
from purine_ref.ops.product import ProductOperation
from purine_ref.ops.summing import Steps
from purine_ref.tensor import Tensor, as_shape


def convolved_size(size: int, kernel: int, stride: int, pad: Pair, dilation: int) -> int:
    """floor((size + pads - dilation * (kernel - 1) - 1) / stride) + 1; less than 1 when the kernel does not fit."""
    return (size + sum(pad) - dilation * (kernel - 1) - 1) // stride + 1


class _Convolution(ProductOperation):
    """What the three have in common."""

    stride: int | Pair
    pads: int | Pair | Pads
    dilation: int | Pair
    groups: int

    def axes(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Axis, ...]:
        """n: the images; with one group also k and c: the output and the input channels."""
        axes = super().axes(inputs, outputs)
        return axes if self.groups == 1 else axes[:1]

    @property
    def _window(self) -> Window:
        """The attributes as kernels take them; `_settle` has made pairs of them."""
        return _as_window(self.stride, self.pads, self.dilation, self.groups)


_as_window = lru_cache(maxsize=256)(Window)  # the same few again and again, at every call of a kernel


@dataclass(frozen=True)
class Conv2d(_Convolution):
    """{ x, weight } >> Conv2d >> { y }

    Shapes: x (N, C, H, W), weight (K, C/groups, kh, kw), y (N, K, oh, ow), with oh and ow from `convolved_size`.
    Formula: y[n,k,i,j] = sum over c,a,b of x[n, c, i*stride + a*dilation - pad, ...] * weight[k,c,a,b]: the kernel is
    not flipped, and x is zero outside the image. Output channels k of group g see the input channels of group g.
    No bias: `Bias` is its own operation. Source: Chellapilla, Puri and Simard 2006 (convolution by matrix product).

    Raises ShapeError for a kernel larger than the padded input, and for channels that groups do not divide.
    """

    stride: int | Pair = 1
    pads: int | Pair | Pads = 0
    dilation: int | Pair = 1
    groups: int = 1

    loops = frozenset({"convolution"})
    equation = "nc,kc->nk"

    def __post_init__(self) -> None:
        _settle(self)

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """y, of x's dtype. Raises ShapeError where the class says."""
        self.require_inputs(inputs, "x weight")
        self.require_same_dtype(inputs)
        x, weight = inputs
        return (Tensor(_output_shape(self, x.shape, weight.shape), x.dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Products of patches and weights."""
        kernels.convolution(*inputs, *outputs, self._window)

    def gradient(self, wiring: Wiring) -> None:
        """Conv2dDataGradient for x, Conv2dWeightGradient for weight."""
        x, weight = (blob.tensor for blob in wiring.inputs)
        window = (self.stride, self.pads, self.dilation, self.groups)
        if wiring.wants[0]:
            wiring.add(Conv2dDataGradient(x.shape, *window), [wiring.gradient(0), wiring.inputs[1]], [0])
        if wiring.wants[1]:
            wiring.add(Conv2dWeightGradient(weight.shape[2:], *window), [wiring.gradient(0), wiring.inputs[0]], [1])

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """A multiply-add (2 FLOPs) per weight and output pixel."""
        return _cost(outputs[0], inputs[1], inputs, outputs)

    def steps(self, call: Call) -> Steps:
        """One product and its additions."""
        return Steps(inner=math.prod(call.inputs[1].shape[1:]))


@dataclass(frozen=True)
class Conv2dDataGradient(_Convolution):
    """{ dy, weight } >> Conv2dDataGradient >> { dx }

    Shapes: dy (N, K, oh, ow), weight (K, C/groups, kh, kw), dx = `shape` = (N, C, H, W).
    Formula: every product dy[n,k,i,j] * weight[k,c,a,b] is added to the element of x that it was taken at; elements
    that no window touched get zero.

    Raises ShapeError unless dy is what `Conv2d` of these attributes makes of `shape` and weight.
    """

    shape: tuple[int, ...]
    stride: int | Pair = 1
    pads: int | Pair | Pads = 0
    dilation: int | Pair = 1
    groups: int = 1

    loops = frozenset({"convolution_data"})
    equation = "nk,kc->nc"

    def __post_init__(self) -> None:
        _settle(self, shape=as_shape(self.shape))

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """dx, of dy's dtype. Raises ShapeError where the class says."""
        self.require_inputs(inputs, "dy weight")
        self.require_same_dtype(inputs)
        dy, weight = inputs
        _require_dy(self, dy, _output_shape(self, self.shape, weight.shape))
        return (Tensor(self.shape, dy.dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Products of dy and weights, added up where patches overlap."""
        kernels.convolution_data(*inputs, *outputs, self._window)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """As many FLOPs as `Conv2d`; what `col2im` adds up is not counted again."""
        return _cost(inputs[0], inputs[1], inputs, outputs)

    def steps(self, call: Call) -> Steps:
        """The products over the output channels and the patches that overlap, as the kernel set adds them."""
        return Steps(inner=call.kernels.convolution_data_terms(call.inputs[1].shape, self.groups))

    def part(self, axis: Axis, start: int, stop: int) -> Operation:
        """To the part of `shape`."""
        return replace(self, shape=shape_of_part(self.shape, axis.outputs[0], start, stop))


@dataclass(frozen=True)
class Conv2dWeightGradient(_Convolution):
    """{ dy, x } >> Conv2dWeightGradient >> { dweight }

    Shapes: dy (N, K, oh, ow), x (N, C, H, W), dweight (K, C/groups, kh, kw) with `kernel` = (kh, kw).
    Formula: dweight[k,c,a,b] = sum over n,i,j of dy[n,k,i,j] * x[n, c, i*stride + a*dilation - pad, ...].
    A few pixels' products are added in the dtype, in a matrix product, and such sums in float64, in a fixed order: how
    many pixels that is, the kernel set says (`convolution_weight_terms`).

    Raises ShapeError unless dy is what `Conv2d` of these attributes makes of x.
    """

    kernel: int | Pair
    stride: int | Pair = 1
    pads: int | Pair | Pads = 0
    dilation: int | Pair = 1
    groups: int = 1

    loops = frozenset({"convolution_weight"})
    equation = "nk,nc->kc"

    def __post_init__(self) -> None:
        _settle(self, kernel=pair(self.kernel, f"{self.name} kernel"))

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """dweight, of dy's dtype. Raises ShapeError where the class says."""
        self.require_inputs(inputs, "dy x")
        self.require_same_dtype(inputs)
        dy, x = inputs
        for name, tensor in (("dy", dy), ("x", x)):
            self.require(len(tensor.shape) == 4, f"{name} with 4 axes", tensor.shape)
        self.require(x.shape[1] % self.groups == 0, f"channels that {self.groups} groups divide", f"x {x.shape}")
        weight = (dy.shape[1], x.shape[1] // self.groups, *pair(self.kernel, "kernel"))
        _require_dy(self, dy, _output_shape(self, x.shape, weight))
        return (Tensor(weight, dy.dtype),)

    def compute(self, kernels: Kernels, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Products of dy and patches, added up over all pixels."""
        kernels.convolution_weight(*inputs, *outputs, self._window)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """As many FLOPs as `Conv2d`; the sum over the images is not counted again."""
        return _cost(inputs[0], outputs[0], inputs, outputs)

    def steps(self, call: Call) -> Steps:
        """The matrix products over pixels, then the sum of these, which is rounded at the end."""
        inner, wide = call.kernels.convolution_weight_terms(call.inputs[0].shape)
        return Steps(inner=inner, wide=wide, final=1)


def _settle(operation: _Convolution, **attributes: object) -> None:
    """Bring the attributes that all three share to one spelling."""
    assign(
        operation,
        stride=pair(operation.stride, f"{operation.name} stride"),
        pads=pad_pairs(operation.pads, f"{operation.name} pads"),
        dilation=pair(operation.dilation, f"{operation.name} dilation"),
        groups=integer(operation.groups, f"{operation.name} groups", 1),
        **attributes,
    )


def _output_shape(op: _Convolution, x: tuple[int, ...], weight: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of y; raises ShapeError for whatever does not fit."""
    op.require(len(x) == 4, "x of shape (N, C, H, W)", x)
    op.require(len(weight) == 4, "weight of shape (K, C/groups, kh, kw)", weight)
    groups, pads = op.groups, pad_pairs(op.pads)
    op.require(min(weight[2:]) >= 1, "a kernel of 1 or more per axis", f"weight {weight}")
    op.require(weight[0] % groups == 0, f"output channels that {groups} groups divide", f"weight {weight}")
    op.require(x[1] == weight[1] * groups, f"x with {weight[1] * groups} channels for weight {weight}", f"x {x}")
    size = tuple(map(convolved_size, x[2:], weight[2:], pair(op.stride, "stride"), pads, pair(op.dilation, "dilation")))
    op.require(
        min(size) >= 1,
        f"a kernel that fits the padded input (size + pads >= dilation * (kernel - 1) + 1) for x {x}",
        f"weight {weight}, pads {pads}, dilation {op.dilation}",
    )
    return (x[0], weight[0], *size)


def _require_dy(op: _Convolution, dy: Tensor, shape: tuple[int, ...]) -> None:
    op.require(dy.shape == shape, f"dy of shape {shape}", dy.shape)


def _cost(y: Tensor, weight: Tensor, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
    return Cost(2 * y.size * math.prod(weight.shape[1:]), traffic(inputs, outputs))
