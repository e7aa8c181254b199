"""The plain twins over the patches that a convolution's kernel sees: as columns, and as rows; there and back.

`loops.py` states what holds for all loops. The columns (`im2col`) suit images in C order, a matrix for each image. The
rows (`unfold`) suit channels-last memory: one row for each output pixel of the batch, in which the channels of a kernel
position lie together, as they do in such an image.
"""

from __future__ import annotations

import numpy as np

from purine_ref._fast.geometry import (
    Array,
    Pads,
    Pair,
    convolved_size,
    positions,
    quiet,
    require_array,
    require_flat,
    require_out,
    require_rows,
    require_shape,
)


def im2col(x: Array, kernel: Pair, stride: Pair, pads: Pads, dilation: Pair, out: Array | None = None) -> Array:
    """The patches under a convolution's kernel: x (N, C, H, W) -> cols (N, C, kh, kw, oh, ow).

    cols[n, c, p, q, i, j] = x[n, c, i sh + p dh - ph, j sw + q dw - pw], and 0 in the padding. Raises ValueError.
    """
    require_array(x, "x", 4)
    size = convolved_size(x.shape[2:], kernel, stride, pads, dilation)
    shape = x.shape[:2] + tuple(kernel) + size
    cols = np.empty(shape, x.dtype) if out is None else out
    require_out(cols, "out", shape, x.dtype)
    cols[...] = 0
    for (p, q), inside, image in positions(x.shape[2:], kernel, stride, pads, dilation, size):
        cols[:, :, p, q][(..., *inside)] = x[(..., *image)]
    return cols


@quiet
def col2im(
    cols: Array,
    shape: tuple[int, ...],
    kernel: Pair,
    stride: Pair,
    pads: Pads,
    dilation: Pair,
    out: Array | None = None,
) -> Array:
    """The transpose of `im2col`: cols (N, C, kh, kw, oh, ow) -> x of `shape` (N, C, H, W).

    Elements of overlapping patches add in row-major order of the kernel's positions. Raises ValueError.
    """
    require_array(cols, "cols", 6)
    size = convolved_size((shape[2], shape[3]), kernel, stride, pads, dilation)
    require_shape(cols, "cols", (*shape[:2], *kernel, *size))
    x = np.empty(shape, cols.dtype) if out is None else out
    require_out(x, "out", shape, cols.dtype)
    x[...] = 0
    for (p, q), inside, image in positions((shape[2], shape[3]), kernel, stride, pads, dilation, size):
        x[(..., *image)] += cols[:, :, p, q][(..., *inside)]
    return x


def unfold(x: Array, kernel: Pair, stride: Pair, pads: Pads, dilation: Pair, first: int, out: Array) -> None:
    """Rows of the matrix of patches: x (N, C, H, W) -> out (rows, kh*kw*C), C-contiguous; those from `first` on.

    Row r is the patch of output pixel (n, i, j), r = (n oh + i) ow + j. Its element (p kw + q) C + c is
    x[n, c, i sh + p dh - ph, j sw + q dw - pw], and 0 in the padding. So any range of rows is computed apart from the
    others. Raises ValueError.
    """
    require_array(x, "x", 4)
    oh, ow = convolved_size(x.shape[2:], kernel, stride, pads, dilation)
    require_rows(out, "out", x, kernel, (oh, ow), first, whole=False)
    require_out(out, "out", out.shape, x.dtype)
    count, channels = out.shape[0], x.shape[1]
    patches = out.reshape(count, *kernel, channels)
    row = np.arange(first, first + count)
    n, i, j = row // (oh * ow), row // ow % oh, row % ow
    for p, q in np.ndindex(*kernel):
        h, w = i * stride[0] + p * dilation[0] - pads[0][0], j * stride[1] + q * dilation[1] - pads[1][0]
        inside = (h >= 0) & (h < x.shape[2]) & (w >= 0) & (w < x.shape[3])
        patches[:, p, q] = 0
        patches[inside, p, q] = x[n[inside], :, h[inside], w[inside]]


@quiet
def fold(rows: Array, dx: Array, kernel: Pair, stride: Pair, pads: Pads, dilation: Pair) -> None:
    """The transpose of `unfold` for whole images: rows (N*oh*ow, kh*kw*C), C-contiguous -> dx (N, C, H, W).

    Elements of overlapping patches add in row-major order of the kernel's positions, so to the bits of `col2im`.
    Raises ValueError.
    """
    require_array(dx, "dx", 4)
    require_out(dx, "dx", dx.shape, dx.dtype)
    size = convolved_size(dx.shape[2:], kernel, stride, pads, dilation)
    require_rows(rows, "rows", dx, kernel, size, 0, whole=True)
    patches = rows.reshape(dx.shape[0], *size, *kernel, dx.shape[1])
    dx[...] = 0
    for (p, q), inside, image in positions(dx.shape[2:], kernel, stride, pads, dilation, size):
        dx[(..., *image)] += patches[:, *inside, p, q].transpose(0, 3, 1, 2)


def pixel_rows(array: Array) -> Array | None:
    """(N, C, H, W) that lies by pixels as the matrix (N*H*W, C), the same memory; None for what lies otherwise.

    An array lies so when its channels are neighbours and its pixels evenly spaced in row-major order: a whole
    channels-last array, or some channels of one. An axis of length 1 may have any stride. Raises ValueError.
    """
    require_array(array, "array", 4)
    n, c, h, w = array.shape
    images, channels, rows, columns = array.strides
    pixel = columns if w > 1 else rows if h > 1 else images if n > 1 else c * array.itemsize
    if (c != 1 and channels != array.itemsize) or pixel < c * array.itemsize:
        return None
    if (h != 1 and rows != w * pixel) or (n != 1 and images != h * w * pixel):
        return None
    return array.transpose(0, 2, 3, 1).reshape(n * h * w, c)


def flatten(x: Array, out: Array) -> None:
    """Images as rows in (C, H, W) order: x (N, C, H, W) -> out (N, C*H*W), C-contiguous. Raises ValueError."""
    require_flat(x, out)
    out[...] = x.reshape(out.shape)
