"""What both twins of the loops share: checks of their arguments, window sizes and divisors, and the generator's keys.

Nothing here visits elements. Only the twins call it, so that both refuse the same arguments in the same words. All
refusals are ValueError: operations check first, in terms that a user knows, and these are the last line of defence.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

Array = Any
"""A numpy array of float32 or float64, any strides."""

Pair = tuple[int, int]
"""Two whole numbers: one for the height, one for the width."""

Pads = tuple[Pair, Pair]
"""Padding as ((height begin, height end), (width begin, width end))."""

Slices = tuple[slice, slice]
"""A range of each of two axes."""

quiet = np.errstate(all="ignore")
"""NaN, infinity and underflow travel as values, without a warning: the compiled loops cannot give one."""

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
"""What the loops take, in this machine's byte order."""

WORD = 1 << 64
"""The number of values of an unsigned 64-bit word."""


def require_array(array: Array, name: str, ndim: int) -> None:
    """Raises ValueError unless `array` has `ndim` axes and is float32 or float64 in this machine's byte order."""
    if array.ndim != ndim or array.dtype not in FLOATS:
        raise ValueError(
            f"{name}: expected {ndim} axes of float32 or float64, got shape {array.shape} of {array.dtype}; "
            "convert it first"
        )


def require_shape(array: Array, name: str, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless `array` has exactly this shape."""
    if array.shape != tuple(shape):
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {array.shape}")


def require_out(out: Array, name: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Raises ValueError unless `out` is an array of this shape and dtype that can be written to."""
    writable = getattr(out.flags, "writeable", True)  # arrays of CuPy always are
    if out.shape != tuple(shape) or out.dtype != dtype or not writable:
        state = "" if writable else ", read-only"
        raise ValueError(
            f"{name}: expected a writable array of shape {tuple(shape)} of {np.dtype(dtype)}, "
            f"got shape {out.shape} of {out.dtype}{state}"
        )


def require_alike(arrays: dict[str, Array], outputs: dict[str, Array]) -> None:
    """Raises ValueError unless all are of the shape and dtype of the first, a float array, and the outputs writable."""
    (first, like), *others = arrays.items()
    require_array(like, first, like.ndim)
    for name, array in others:
        if array.shape != like.shape or array.dtype != like.dtype:
            raise ValueError(
                f"{name}: expected shape {like.shape} of {like.dtype}, as {first}, got {array.shape} of {array.dtype}"
            )
    for name, array in outputs.items():
        require_out(array, name, like.shape, like.dtype)


def require_bias(x: Array, name: str, bias: Array, bias_name: str, wide: bool = False) -> None:
    """Raises ValueError unless `x` is a float array (N, C, ...) and `bias` has C elements of its dtype.

    A `wide` bias is written to, and may be float64 too.
    """
    require_array(x, name, max(x.ndim, 2))
    if wide and bias.dtype == np.float64:
        require_out(bias, bias_name, x.shape[1:2], np.float64)
    elif wide:
        require_out(bias, bias_name, x.shape[1:2], x.dtype)
    elif bias.shape != x.shape[1:2] or bias.dtype != x.dtype:
        raise ValueError(
            f"{bias_name}: expected shape {x.shape[1:2]} of {x.dtype}, got shape {bias.shape} of {bias.dtype}"
        )


def require_samples(logits: Array, label: Array) -> None:
    """Raises ValueError unless `logits` is a float array (M, K) with a class or more, and `label` (M,) int64."""
    require_array(logits, "logits", 2)
    if logits.shape[1] < 1:
        raise ValueError(f"logits: expected one class or more, got shape {logits.shape}")
    if label.dtype != np.int64 or label.shape != logits.shape[:1]:
        raise ValueError(
            f"label: expected int64 of shape {logits.shape[:1]}, got {label.dtype} of shape {label.shape}"
        )


def require_channels(x: Array, n: int) -> None:
    """Raises ValueError unless `x` is a float array with a channel axis 1 and the window `n` is odd and positive."""
    require_array(x, "x", max(x.ndim, 2))
    if n < 1 or n % 2 == 0:
        raise ValueError(f"window n: expected an odd number of channels, at least 1, got {n}")


def require_index(index: Array, windows: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Raises ValueError unless `index` is int64 and has one element per window, and `shape` is (N, C, H, W)."""
    if len(shape) != 4 or windows[:2] != tuple(shape[:2]):
        raise ValueError(f"shape: expected 4 axes that start with {windows[:2]}, got {tuple(shape)}")
    if index.dtype != np.int64 or index.shape != windows:
        raise ValueError(f"index: expected int64 of shape {windows}, got {index.dtype} of shape {index.shape}")


def require_places(index: Array, area: int) -> None:
    """Raises ValueError unless every element of `index` is the place of an element of a plane of `area` elements."""
    if index.size and not 0 <= index.min() <= index.max() < area:
        raise ValueError(f"index: expected 0 to {area - 1}, got {index.min()} to {index.max()}")


def convolved_size(lengths: Pair, kernel: Pair, stride: Pair, pads: Pads, dilation: Pair) -> Pair:
    """Output height and width of a convolution: floor((length + pads - dilation (kernel - 1) - 1) / stride) + 1.

    Raises ValueError for a kernel, stride or dilation below 1, negative padding, or a kernel beyond the padded input.
    """
    _require_steps(kernel, stride, pads, dilation)
    sizes = []
    for axis in (0, 1):
        padded, extent = lengths[axis] + sum(pads[axis]), dilation[axis] * (kernel[axis] - 1) + 1
        if extent > padded:
            raise ValueError(f"axis {axis + 2}: expected a kernel extent of at most the padded {padded}, got {extent}")
        sizes.append((padded - extent) // stride[axis] + 1)
    return sizes[0], sizes[1]


def require_rows(rows: Array, name: str, image: Array, kernel: Pair, size: Pair, first: int, whole: bool) -> None:
    """Raises ValueError unless `rows` are rows of the matrix of `image`'s patches, C-contiguous, from `first` on.

    The image is (N, C, H, W) and has N * oh * ow patches, of kh * kw * C elements; all are there if `whole`.
    """
    require_array(rows, name, 2)
    patches, width = image.shape[0] * size[0] * size[1], kernel[0] * kernel[1] * image.shape[1]
    count = patches if whole else rows.shape[0]
    if rows.shape != (count, width) or rows.dtype != image.dtype or not rows.flags.c_contiguous:
        raise ValueError(
            f"{name}: expected ({count}, {width}) of {image.dtype} in C order, got {rows.shape} of {rows.dtype}"
            f"{'' if rows.flags.c_contiguous else ', which is not'}"
        )
    if first < 0 or first + count > patches:
        raise ValueError(f"first: expected {count} rows among the {patches} patches, got those from {first}")


def require_flat(x: Array, out: Array) -> None:
    """Raises ValueError unless `x` is (N, C, H, W) and `out` (N, C*H*W), C-contiguous, and can be written to."""
    require_array(x, "x", 4)
    require_out(out, "out", (x.shape[0], x.shape[1] * x.shape[2] * x.shape[3]), x.dtype)
    if not out.flags.c_contiguous:
        raise ValueError(f"out: expected an array in C order, got strides {out.strides}")


def require_windows(lengths: Pair, kernel: Pair, stride: Pair, pads: Pads, size: Pair) -> None:
    """Raises ValueError unless every one of `size` pooling windows per axis holds an element of the image."""
    _require_steps(kernel, stride, pads, (1, 1))
    for axis in (0, 1):
        first_end = kernel[axis] - pads[axis][0]
        last_start = (size[axis] - 1) * stride[axis] - pads[axis][0]
        if size[axis] < 1 or first_end < 1 or last_start >= lengths[axis]:
            raise ValueError(
                f"axis {axis + 2}: expected at least one window, each with an element of the image of {lengths[axis]}; "
                f"got {size[axis]} windows, the first ending before {first_end}, the last starting at {last_start}"
            )


def positions(
    lengths: Pair, kernel: Pair, stride: Pair, pads: Pads, dilation: Pair, size: Pair
) -> Iterator[tuple[Pair, Slices, Slices]]:
    """For each kernel position (p, q) in row-major order: the windows where it meets the image, and the image there."""
    for p in range(kernel[0]):
        rows = _meet(lengths[0], stride[0], p * dilation[0] - pads[0][0], size[0])
        for q in range(kernel[1]):
            columns = _meet(lengths[1], stride[1], q * dilation[1] - pads[1][0], size[1])
            yield (p, q), (rows[0], columns[0]), (rows[1], columns[1])


def _meet(length: int, stride: int, offset: int, size: int) -> Slices:
    """The windows i below `size` with 0 <= i stride + offset < length, and those elements, both as slices."""
    first = max(0, -(offset // stride))
    stop = max(first, min(size, -((offset - length) // stride)))
    begin = first * stride + offset
    return slice(first, stop), slice(begin, begin + (stop - first) * stride, stride)


def divisors(lengths: Pair, kernel: Pair, stride: Pair, pads: Pads, size: Pair, count: str) -> Array:
    """What an average pool divides each window's sum by, (oh, ow), float64.

    The part of a window inside the image and its declared padding for "padded", inside the image alone for "valid".
    The overhang past the end padding, which rounding up makes, never counts. Raises ValueError for another `count`.
    """
    if count not in ("padded", "valid"):
        raise ValueError(f"count: expected 'padded' or 'valid', got {count!r}")
    extents = []
    for axis in (0, 1):
        start = np.arange(size[axis]) * stride[axis] - pads[axis][0]
        low, high = (-pads[axis][0], lengths[axis] + pads[axis][1]) if count == "padded" else (0, lengths[axis])
        extents.append(np.minimum(start + kernel[axis], high) - np.maximum(start, low))
    return np.multiply.outer(extents[0], extents[1]).astype(np.float64)


def stream_hash(stream: str) -> int:
    """The 64-bit FNV-1a hash of the name's UTF-8 bytes (Fowler, Noll, Vo)."""
    value = 0xCBF29CE484222325
    for byte in stream.encode("utf-8"):
        value = (value ^ byte) * 0x100000001B3 % WORD
    return value


def philox_key(seed: int, stream: str) -> tuple[int, int]:
    """The generator's two key words: the seed modulo 2**64, and the stream's hash."""
    return operator.index(seed) % WORD, stream_hash(stream)


def philox_range(iteration: int, start: int, count: int) -> tuple[int, int, int, int]:
    """(iteration, first block, elements of that block to skip, count) of a draw, as plain integers.

    Raises ValueError unless `iteration` fits a 64-bit word and the elements lie within 0 and 2**66, which is all that
    2**64 blocks of four can hold.
    """
    iteration, start, count = operator.index(iteration), operator.index(start), operator.index(count)
    if not 0 <= iteration < WORD:
        raise ValueError(f"philox: expected an iteration from 0 to 2**64 - 1, got {iteration}")
    if start < 0 or count < 0 or start + count > 4 * WORD:
        raise ValueError(f"philox: expected elements from 0 to 2**66 - 1, got {count} from {start}")
    return iteration, start // 4, start % 4, count


def _require_steps(kernel: Pair, stride: Pair, pads: Pads, dilation: Pair) -> None:
    steps = {"kernel": kernel, "stride": stride, "dilation": dilation}
    for name, pair in steps.items():
        if min(pair) < 1:
            raise ValueError(f"{name}: expected at least 1 per axis, got {pair}")
    if min(min(pad) for pad in pads) < 0:
        raise ValueError(f"pads: expected 0 or more on every side, got {pads}")
