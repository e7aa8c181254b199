"""The plain twins: the loops that numpy lacks, vectorised over batch and channels, looping over kernel positions only.

Images are (N, C, H, W), in float32 or float64 and of any strides; what goes in comes out. Pairs are (height, width) and
`pads` is ((height begin, height end), (width begin, width end)). No argument is written to. Bits are fixed: every sum
starts from 0, is in the dtype of the input, and adds in the order that its function states, so an image's result does
not depend on the batch that it is in. The compiled twin `_loops.pyx` has the same names, signatures, errors and bits
(of a NaN only that it is one is promised). Devices hold these functions; nobody else calls them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from purine_ref._fast.geometry import (
    WORD,
    Array,
    Pads,
    Pair,
    convolved_size,
    divisors,
    philox_key,
    philox_range,
    require_array,
    require_channels,
    require_index,
    require_shape,
    require_windows,
)

Slices = tuple[slice, slice]

_quiet = np.errstate(all="ignore")
"""NaN, infinity and underflow travel as values, without a warning: the compiled loops cannot give one."""


def im2col(x: Array, kernel: Pair, stride: Pair, pads: Pads, dilation: Pair) -> Array:
    """The patches under a convolution's kernel: x (N, C, H, W) -> cols (N, C, kh, kw, oh, ow), C-contiguous.

    cols[n, c, p, q, i, j] = x[n, c, i sh + p dh - ph, j sw + q dw - pw], and 0 in the padding. Raises ValueError.
    """
    require_array(x, "x", 4)
    size = convolved_size(x.shape[2:], kernel, stride, pads, dilation)
    cols = np.zeros(x.shape[:2] + tuple(kernel) + size, x.dtype)
    for (p, q), inside, image in _positions(x.shape[2:], kernel, stride, pads, dilation, size):
        cols[:, :, p, q][(..., *inside)] = x[(..., *image)]
    return cols


@_quiet
def col2im(cols: Array, shape: tuple[int, ...], kernel: Pair, stride: Pair, pads: Pads, dilation: Pair) -> Array:
    """The transpose of `im2col`: cols (N, C, kh, kw, oh, ow) -> x of `shape` (N, C, H, W).

    Elements of overlapping patches add in row-major order of the kernel's positions. Raises ValueError.
    """
    require_array(cols, "cols", 6)
    size = convolved_size((shape[2], shape[3]), kernel, stride, pads, dilation)
    require_shape(cols, "cols", (*shape[:2], *kernel, *size))
    x = np.zeros(shape, cols.dtype)
    for (p, q), inside, image in _positions((shape[2], shape[3]), kernel, stride, pads, dilation, size):
        x[(..., *image)] += cols[:, :, p, q][(..., *inside)]
    return x


def max_pool(x: Array, kernel: Pair, stride: Pair, pads: Pads, size: Pair) -> tuple[Array, Array]:
    """The maximum of each window: x (N, C, H, W) -> y (N, C, oh, ow), index int64 (N, C, oh, ow), flat in the plane.

    Padding never wins; ties go to the first element in row-major order; the first NaN wins over everything, and a
    window of -inf yields its first element in the image. Raises ValueError when a window holds no such element.
    """
    require_array(x, "x", 4)
    require_windows(x.shape[2:], kernel, stride, pads, size)
    y = np.full((*x.shape[:2], *size), -np.inf, x.dtype)
    index = np.full(y.shape, -1, np.int64)
    plane = np.arange(x.shape[2] * x.shape[3]).reshape(x.shape[2:])
    for _, inside, image in _positions(x.shape[2:], kernel, stride, pads, (1, 1), size):
        best, place, candidate = y[(..., *inside)], index[(..., *inside)], x[(..., *image)]
        wins = (place < 0) | (candidate > best) | (np.isnan(candidate) & ~np.isnan(best))
        np.copyto(best, candidate, where=wins)
        np.copyto(place, plane[image], where=wins)
    return y, index


@_quiet
def max_pool_scatter(dy: Array, index: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of `max_pool`: dy, index (N, C, oh, ow) -> dx of `shape` (N, C, H, W).

    Where windows overlap, their gradients add in row-major order of the windows. Raises ValueError.
    """
    require_array(dy, "dy", 4)
    require_index(index, dy.shape, shape)
    planes, area = shape[0] * shape[1], shape[2] * shape[3]
    dx = np.zeros(planes * area, dy.dtype)
    places = index + np.arange(planes).reshape(*shape[:2], 1, 1) * area
    np.add.at(dx, places.reshape(-1), dy.reshape(-1))
    return dx.reshape(shape)


@_quiet
def average_pool(x: Array, kernel: Pair, stride: Pair, pads: Pads, size: Pair, count: str) -> Array:
    """The average of each window: x (N, C, H, W) -> y (N, C, oh, ow), padding being 0.

    The window's elements add in row-major order, then the sum is divided by the number of elements in the image and
    its declared padding (`count` "padded") or in the image alone ("valid"). Raises ValueError.
    """
    require_array(x, "x", 4)
    require_windows(x.shape[2:], kernel, stride, pads, size)
    y = np.zeros((*x.shape[:2], *size), x.dtype)
    for _, inside, image in _positions(x.shape[2:], kernel, stride, pads, (1, 1), size):
        y[(..., *inside)] += x[(..., *image)]
    y /= divisors(x.shape[2:], kernel, stride, pads, size, count).astype(x.dtype)
    return y


@_quiet
def average_pool_scatter(
    dy: Array, shape: tuple[int, ...], kernel: Pair, stride: Pair, pads: Pads, count: str
) -> Array:
    """The gradient of `average_pool`: dy (N, C, oh, ow) -> dx of `shape` (N, C, H, W).

    Each dy is divided first, by what the forward pass divided by; where windows overlap, the quotients add in
    row-major order of the kernel's positions. Raises ValueError.
    """
    require_array(dy, "dy", 4)
    require_shape(dy, "dy", (*shape[:2], *dy.shape[2:]))
    lengths, size = (shape[2], shape[3]), (dy.shape[2], dy.shape[3])
    require_windows(lengths, kernel, stride, pads, size)
    dx = np.zeros(shape, dy.dtype)
    share = dy / divisors(lengths, kernel, stride, pads, size, count).astype(dy.dtype)
    for _, inside, image in _positions(lengths, kernel, stride, pads, (1, 1), size):
        dx[(..., *image)] += share[(..., *inside)]
    return dx


@_quiet
def window_sum(x: Array, n: int) -> Array:
    """Sums over n neighbouring channels: x (N, C, ...) -> y of the same shape, n odd and of any size against C.

    y[:, c] adds x[:, c - (n-1)/2] to x[:, c + (n-1)/2], those that exist, by rising channel. Raises ValueError.
    """
    require_channels(x, n)
    y = np.zeros(x.shape, x.dtype)
    channels = x.shape[1]
    reach = min(n // 2, max(channels - 1, 0))
    for offset in range(-reach, reach + 1):
        first, stop = max(0, -offset), min(channels, channels - offset)
        y[:, first:stop] += x[:, first + offset : stop + offset]
    return y


def philox(seed: int, stream: str, iteration: int, start: int, count: int) -> Array:
    """Elements start to start + count - 1 of a keyed random sequence, uint64 (rule R7). Raises ValueError.

    Element i is word i % 4 of Philox 4x64-10 (Salmon et al. 2011, Random123) with the counter words
    (i // 4, iteration, 0, 0) and the key words (seed mod 2**64, FNV-1a 64-bit hash of the stream's UTF-8 bytes).
    Each of the ten rounds, modulo 2**64, with high(a, b) = a b // 2**64, maps counter and key as follows:

        c0, c1, c2, c3 <- high(m1, c2) ^ c1 ^ k0, m1 c2, high(m0, c0) ^ c3 ^ k1, m0 c0
        k0, k1         <- k0 + 0x9E3779B97F4A7C15, k1 + 0xBB67AE8584CAA73B

    where m0 = 0xD2E7470EE14C6C93 and m1 = 0xCA5A826395121157; the last counter is the block's four words.
    """
    iteration, block, skip, count = philox_range(iteration, start, count)
    low, high = philox_key(seed, stream)
    # numpy counts up before it makes its first block, so it is given the counter before ours.
    counter = (block + iteration * WORD - 1) % WORD**4
    words = np.random.Philox(counter=counter, key=low + high * WORD).random_raw(skip + count)
    return np.asarray(words, np.uint64)[skip:]


def _positions(
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
