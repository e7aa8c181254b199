"""Two-dimensional convolution (cross-correlation, NCHW) and its two gradients.

All three are matrix products over `cols`, the patches that the kernel sees, one column per output pixel. Products are
taken image by image, so the bits of an image do not depend on the batch that it is in. Each class states every
attribute it needs, so that an operation can be written to a file and read back on its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from purine_ref.operation import Array, Axis, Call, Cost, Kernels, Operation, Wiring, traffic
from purine_ref.ops.attributes import Pads, Pair, assign, integer, pad_pairs, pair
from purine_ref.ops.axes import shape_of_part
from purine_ref.ops.product import ProductOperation
from purine_ref.ops.summing import Steps
from purine_ref.tensor import Tensor, as_shape

_BLOCK_BYTES = 1 << 20
"""Patches unfolded at a time, so that they are still in a cache when they are multiplied.

Of 256 KiB to 8 MiB this was fastest, or within a twentieth of it, for the layers of NIN and GoogLeNet."""


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

    loops = frozenset({"im2col"})
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
        """Each image: the matrix of weights times the matrix of patches."""
        (x, weight), (y,) = inputs, outputs
        rows = _grouped(kernels, weight, self.groups)
        for images, cols in _patches(self, kernels, x, weight.shape[2:]):
            y[images] = kernels.xp.matmul(rows, cols).reshape(y[images].shape)

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

    loops = frozenset({"col2im"})
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
        """Each image: the transposed matrix of weights times dy gives the patches' gradients, which are added up."""
        (dy, weight), (dx,) = inputs, outputs
        columns = _grouped(kernels, weight, self.groups).swapaxes(1, 2)
        patch = (self.shape[1], *weight.shape[2:], *dy.shape[2:])
        for images in _blocks(dy.shape[0], math.prod(patch) * dy.itemsize):
            cols = kernels.xp.matmul(columns, _grouped_pixels(kernels, dy[images], self.groups))
            shape = dx[images].shape
            cols = cols.reshape(shape[0], *patch)
            dx[images] = kernels.col2im(cols, shape, patch[1:3], self.stride, self.pads, self.dilation)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """As many FLOPs as `Conv2d`; what `col2im` adds up is not counted again."""
        return _cost(inputs[0], inputs[1], inputs, outputs)

    def steps(self, call: Call) -> Steps:
        """The matrix product over the output channels, then the additions of the patches that overlap."""
        weight = call.inputs[1]
        return Steps(inner=weight.shape[0] // self.groups + math.prod(weight.shape[2:]) - 1)

    def part(self, axis: Axis, start: int, stop: int) -> Operation:
        """To the part of `shape`."""
        return replace(self, shape=shape_of_part(self.shape, axis.outputs[0], start, stop))


@dataclass(frozen=True)
class Conv2dWeightGradient(_Convolution):
    """{ dy, x } >> Conv2dWeightGradient >> { dweight }

    Shapes: dy (N, K, oh, ow), x (N, C, H, W), dweight (K, C/groups, kh, kw) with `kernel` = (kh, kw).
    Formula: dweight[k,c,a,b] = sum over n,i,j of dy[n,k,i,j] * x[n, c, i*stride + a*dilation - pad, ...].
    Within an image the sum is a matrix product; over the images it runs in their order and in float64.

    Raises ShapeError unless dy is what `Conv2d` of these attributes makes of x.
    """

    kernel: int | Pair
    stride: int | Pair = 1
    pads: int | Pair | Pads = 0
    dilation: int | Pair = 1
    groups: int = 1

    loops = frozenset({"im2col"})
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
        """Each image: dy times the transposed matrix of patches."""
        (dy, x), (dweight,) = inputs, outputs
        xp = kernels.xp
        total = xp.zeros(_grouped_shape(dweight.shape, self.groups), dtype=xp.float64)
        for images, cols in _patches(self, kernels, x, self.kernel):
            for partial in xp.matmul(_grouped_pixels(kernels, dy[images], self.groups), cols.swapaxes(2, 3)):
                total += partial
        dweight[...] = total.reshape(dweight.shape)

    def cost(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
        """As many FLOPs as `Conv2d`; the sum over the images is not counted again."""
        return _cost(inputs[0], outputs[0], inputs, outputs)

    def steps(self, call: Call) -> Steps:
        """The matrix product over an image's pixels, then the sum over the images, which is rounded at the end."""
        dy = call.inputs[0]
        return Steps(inner=math.prod(dy.shape[2:]), wide=dy.shape[0], final=1)


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


def _grouped_shape(weight: tuple[int, ...], groups: int) -> tuple[int, ...]:
    """(groups, K/groups, C/groups*kh*kw): the matrices of weights, one per group."""
    return (groups, weight[0] // groups, math.prod(weight[1:]))


def _grouped(kernels: Kernels, weight: Array, groups: int) -> Array:
    # Matrices are in C order: strides would choose the order of the products' sums, and so their bits.
    return kernels.xp.ascontiguousarray(weight).reshape(_grouped_shape(weight.shape, groups))


def _grouped_pixels(kernels: Kernels, y: Array, groups: int) -> Array:
    """(N, K, oh, ow) as (N, groups, K/groups, oh*ow), in C order."""
    shape = (y.shape[0], groups, y.shape[1] // groups, math.prod(y.shape[2:]))
    return kernels.xp.ascontiguousarray(y).reshape(shape)


def _blocks(images: int, image_bytes: int) -> Iterator[slice]:
    """Slices of the batch, each of about `_BLOCK_BYTES` of patches and of one image at least."""
    step = max(1, _BLOCK_BYTES // max(1, image_bytes))
    return (slice(start, min(start + step, images)) for start in range(0, images, step))


def _patches(
    op: Conv2d | Conv2dWeightGradient, kernels: Kernels, x: Array, kernel: tuple[int, ...] | int
) -> Iterator[tuple[slice, Array]]:
    """Images and their matrices of patches, (images, groups, C/groups*kh*kw, oh*ow)."""
    kernel = pair(kernel, "kernel")
    for images in _blocks(x.shape[0], math.prod(x.shape[1:]) * math.prod(kernel) * x.itemsize):
        cols = kernels.im2col(x[images], kernel, op.stride, op.pads, op.dilation)
        depth = x.shape[1] // op.groups * math.prod(kernel)
        yield images, cols.reshape(cols.shape[0], op.groups, depth, math.prod(cols.shape[4:]))


def _cost(y: Tensor, weight: Tensor, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Cost:
    return Cost(2 * y.size * math.prod(weight.shape[1:]), traffic(inputs, outputs))
