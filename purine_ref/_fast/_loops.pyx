# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twins of `loops.py`: the same names, signatures, errors, and bits, hence the same order of additions.

Each public function checks and allocates, then hands contiguous memory to an inner loop that runs without the
interpreter's lock. `loops.py` documents what each one computes. Built by `setup.py`, which forbids the compiler to
fuse or reorder floating-point operations; `__init__.py` decides whether this module is used.
"""

from libc.stdint cimport int64_t, uint64_t

import numpy as np

from purine_ref._fast.geometry import (
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

# What this module was built for. `__init__.py` has the number that it must be: raise both together, whenever the
# signature or the meaning of a loop changes.
ABI = 3

cdef extern from *:
    """
    #if defined(_MSC_VER)
    #include <intrin.h>
    #define purine_high_word(a, b) __umulh((a), (b))
    #else
    #define purine_high_word(a, b) ((uint64_t)(((unsigned __int128)(a) * (b)) >> 64))
    #endif
    """
    uint64_t purine_high_word(uint64_t a, uint64_t b) nogil

ctypedef fused real:
    float
    double

cdef struct Axis:
    # One spatial axis: the image's length, and how windows lie on it.
    Py_ssize_t length
    Py_ssize_t kernel
    Py_ssize_t stride
    Py_ssize_t pad
    Py_ssize_t dilation
    Py_ssize_t size

cdef struct Range:
    # The windows first <= i < stop, of which window 0 would touch the element `offset`.
    Py_ssize_t first
    Py_ssize_t stop
    Py_ssize_t offset


def im2col(x, kernel, stride, pads, dilation):
    """x (N, C, H, W) -> cols (N, C, kh, kw, oh, ow). Raises ValueError; see the plain twin."""
    require_array(x, "x", 4)
    size = convolved_size(x.shape[2:], kernel, stride, pads, dilation)
    cols = np.zeros(x.shape[:2] + tuple(kernel) + size, x.dtype)
    cdef Axis rows = _axis(0, x.shape, kernel, stride, pads, dilation, size)
    cdef Axis columns = _axis(1, x.shape, kernel, stride, pads, dilation, size)
    x = np.ascontiguousarray(x)
    if x.dtype == np.float32:
        _gather[float](x, cols, rows, columns)
    else:
        _gather[double](x, cols, rows, columns)
    return cols


def col2im(cols, shape, kernel, stride, pads, dilation):
    """cols (N, C, kh, kw, oh, ow) -> x of `shape` (N, C, H, W). Raises ValueError; see the plain twin."""
    require_array(cols, "cols", 6)
    size = convolved_size((shape[2], shape[3]), kernel, stride, pads, dilation)
    require_shape(cols, "cols", (*shape[:2], *kernel, *size))
    x = np.zeros(shape, cols.dtype)
    cdef Axis rows = _axis(0, shape, kernel, stride, pads, dilation, size)
    cdef Axis columns = _axis(1, shape, kernel, stride, pads, dilation, size)
    cols = np.ascontiguousarray(cols)
    if cols.dtype == np.float32:
        _scatter[float](cols, x, rows, columns)
    else:
        _scatter[double](cols, x, rows, columns)
    return x


def max_pool(x, kernel, stride, pads, size):
    """x (N, C, H, W) -> y, index (N, C, oh, ow). Raises ValueError; see the plain twin."""
    require_array(x, "x", 4)
    require_windows(x.shape[2:], kernel, stride, pads, size)
    y = np.empty((*x.shape[:2], *size), x.dtype)
    index = np.empty(y.shape, np.int64)
    cdef Axis rows = _axis(0, x.shape, kernel, stride, pads, (1, 1), size)
    cdef Axis columns = _axis(1, x.shape, kernel, stride, pads, (1, 1), size)
    x = np.ascontiguousarray(x)
    if x.dtype == np.float32:
        _maximum[float](x, y, index, rows, columns)
    else:
        _maximum[double](x, y, index, rows, columns)
    return y, index


def max_pool_scatter(dy, index, shape):
    """dy, index (N, C, oh, ow) -> dx of `shape` (N, C, H, W). Raises ValueError; see the plain twin."""
    require_array(dy, "dy", 4)
    require_index(index, dy.shape, shape)
    dx = np.zeros(shape, dy.dtype)
    planes, area, windows = shape[0] * shape[1], shape[2] * shape[3], dy.shape[2] * dy.shape[3]
    flat = np.ascontiguousarray(dy).reshape(planes, windows)
    places = np.ascontiguousarray(index).reshape(planes, windows)
    if dy.dtype == np.float32:
        _scatter_at[float](flat, places, dx.reshape(planes, area))
    else:
        _scatter_at[double](flat, places, dx.reshape(planes, area))
    return dx


def average_pool(x, kernel, stride, pads, size, count):
    """x (N, C, H, W) -> y (N, C, oh, ow). Raises ValueError; see the plain twin."""
    require_array(x, "x", 4)
    require_windows(x.shape[2:], kernel, stride, pads, size)
    divisor = divisors(x.shape[2:], kernel, stride, pads, size, count).astype(x.dtype)
    y = np.zeros((*x.shape[:2], *size), x.dtype)
    cdef Axis rows = _axis(0, x.shape, kernel, stride, pads, (1, 1), size)
    cdef Axis columns = _axis(1, x.shape, kernel, stride, pads, (1, 1), size)
    x = np.ascontiguousarray(x)
    if x.dtype == np.float32:
        _sum_windows[float](x, y, rows, columns)
    else:
        _sum_windows[double](x, y, rows, columns)
    with np.errstate(all="ignore"):
        y /= divisor
    return y


def average_pool_scatter(dy, shape, kernel, stride, pads, count):
    """dy (N, C, oh, ow) -> dx of `shape` (N, C, H, W). Raises ValueError; see the plain twin."""
    require_array(dy, "dy", 4)
    require_shape(dy, "dy", (*shape[:2], *dy.shape[2:]))
    lengths, size = (shape[2], shape[3]), dy.shape[2:]
    require_windows(lengths, kernel, stride, pads, size)
    divisor = divisors(lengths, kernel, stride, pads, size, count).astype(dy.dtype)
    dx = np.zeros(shape, dy.dtype)
    cdef Axis rows = _axis(0, shape, kernel, stride, pads, (1, 1), size)
    cdef Axis columns = _axis(1, shape, kernel, stride, pads, (1, 1), size)
    with np.errstate(all="ignore"):
        share = np.ascontiguousarray(dy) / divisor
    if dy.dtype == np.float32:
        _spread_windows[float](share, dx, rows, columns)
    else:
        _spread_windows[double](share, dx, rows, columns)
    return dx


def window_sum(x, n):
    """x (N, C, ...) -> y of the same shape. Raises ValueError; see the plain twin."""
    require_channels(x, n)
    y = np.zeros(x.shape, x.dtype)
    cdef Py_ssize_t reach = min(n // 2, max(x.shape[1] - 1, 0))
    flat_shape = (x.shape[0], x.shape[1], int(np.prod(x.shape[2:])))
    flat = np.ascontiguousarray(x).reshape(flat_shape)
    if x.dtype == np.float32:
        _sum_channels[float](flat, y.reshape(flat_shape), reach)
    else:
        _sum_channels[double](flat, y.reshape(flat_shape), reach)
    return y


def philox(seed, stream, iteration, start, count):
    """Elements start to start + count - 1 of a keyed sequence, uint64. Raises ValueError; see the plain twin."""
    iteration, block, skip, count = philox_range(iteration, start, count)
    low, high = philox_key(seed, stream)
    words = np.empty(count, np.uint64)
    _philox(words, block, skip, iteration, low, high)
    return words


cdef Axis _axis(int which, shape, kernel, stride, pads, dilation, size) except *:
    cdef Axis axis
    axis.length = shape[which + 2]
    axis.kernel = kernel[which]
    axis.stride = stride[which]
    axis.pad = pads[which][0]
    axis.dilation = dilation[which]
    axis.size = size[which]
    return axis


cdef Range _meet(Axis axis, Py_ssize_t position) noexcept nogil:
    # The windows whose kernel position lies on the image: 0 <= i stride + offset < length.
    cdef Range found
    found.offset = position * axis.dilation - axis.pad
    found.first = 0 if found.offset >= 0 else (-found.offset - 1) // axis.stride + 1
    found.stop = 0 if found.offset >= axis.length else (axis.length - found.offset - 1) // axis.stride + 1
    found.stop = max(found.first, min(found.stop, axis.size))
    return found


cdef void _gather(
    const real[:, :, :, ::1] x, real[:, :, :, :, :, ::1] cols, Axis rows, Axis columns
) noexcept nogil:
    cdef Py_ssize_t n, c, p, q, i, j, row
    cdef Range down, across
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            for p in range(rows.kernel):
                down = _meet(rows, p)
                for q in range(columns.kernel):
                    across = _meet(columns, q)
                    for i in range(down.first, down.stop):
                        row = i * rows.stride + down.offset
                        for j in range(across.first, across.stop):
                            cols[n, c, p, q, i, j] = x[n, c, row, j * columns.stride + across.offset]


cdef void _scatter(
    const real[:, :, :, :, :, ::1] cols, real[:, :, :, ::1] x, Axis rows, Axis columns
) noexcept nogil:
    cdef Py_ssize_t n, c, p, q, i, j, row
    cdef Range down, across
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            for p in range(rows.kernel):
                down = _meet(rows, p)
                for q in range(columns.kernel):
                    across = _meet(columns, q)
                    for i in range(down.first, down.stop):
                        row = i * rows.stride + down.offset
                        for j in range(across.first, across.stop):
                            x[n, c, row, j * columns.stride + across.offset] += cols[n, c, p, q, i, j]


cdef void _maximum(
    const real[:, :, :, ::1] x, real[:, :, :, ::1] y, int64_t[:, :, :, ::1] index, Axis rows, Axis columns
) noexcept nogil:
    cdef Py_ssize_t n, c, i, j, row, column, top, left
    cdef int64_t place
    cdef real best, candidate
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            for i in range(rows.size):
                top = max(i * rows.stride - rows.pad, 0)
                for j in range(columns.size):
                    left = max(j * columns.stride - columns.pad, 0)
                    best, place = x[n, c, top, left], top * columns.length + left
                    for row in range(top, min(i * rows.stride - rows.pad + rows.kernel, rows.length)):
                        for column in range(left, min(j * columns.stride - columns.pad + columns.kernel, columns.length)):
                            candidate = x[n, c, row, column]
                            # Only a NaN differs from itself; the first one stays.
                            if candidate > best or (candidate != candidate and best == best):
                                best, place = candidate, row * columns.length + column
                    y[n, c, i, j], index[n, c, i, j] = best, place


cdef void _scatter_at(const real[:, ::1] dy, const int64_t[:, ::1] index, real[:, ::1] dx) noexcept nogil:
    cdef Py_ssize_t plane, k
    for plane in range(dy.shape[0]):
        for k in range(dy.shape[1]):
            dx[plane, index[plane, k]] += dy[plane, k]


cdef void _sum_windows(const real[:, :, :, ::1] x, real[:, :, :, ::1] y, Axis rows, Axis columns) noexcept nogil:
    # Windows are innermost: the additions of one window, in its order, need not wait for each other's latency.
    cdef Py_ssize_t n, c, p, q, i, j, row
    cdef Range down, across
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            for p in range(rows.kernel):
                down = _meet(rows, p)
                for q in range(columns.kernel):
                    across = _meet(columns, q)
                    for i in range(down.first, down.stop):
                        row = i * rows.stride + down.offset
                        for j in range(across.first, across.stop):
                            y[n, c, i, j] += x[n, c, row, j * columns.stride + across.offset]


cdef void _spread_windows(
    const real[:, :, :, ::1] share, real[:, :, :, ::1] dx, Axis rows, Axis columns
) noexcept nogil:
    cdef Py_ssize_t n, c, p, q, i, j, row
    cdef Range down, across
    for n in range(dx.shape[0]):
        for c in range(dx.shape[1]):
            for p in range(rows.kernel):
                down = _meet(rows, p)
                for q in range(columns.kernel):
                    across = _meet(columns, q)
                    for i in range(down.first, down.stop):
                        row = i * rows.stride + down.offset
                        for j in range(across.first, across.stop):
                            dx[n, c, row, j * columns.stride + across.offset] += share[n, c, i, j]


cdef void _sum_channels(const real[:, :, ::1] x, real[:, :, ::1] y, Py_ssize_t reach) noexcept nogil:
    cdef Py_ssize_t n, c, k, m
    for n in range(x.shape[0]):
        for c in range(x.shape[1]):
            for k in range(max(c - reach, 0), min(c + reach + 1, x.shape[1])):
                for m in range(x.shape[2]):
                    y[n, c, m] += x[n, k, m]


cdef void _philox(
    uint64_t[::1] words, uint64_t block, int skip, uint64_t iteration, uint64_t low, uint64_t high
) noexcept nogil:
    cdef uint64_t[4] word
    cdef Py_ssize_t i = 0, k
    while i < words.shape[0]:
        _philox_block(word, block, iteration, low, high)
        for k in range(skip, min(4, skip + words.shape[0] - i)):
            words[i] = word[k]
            i += 1
        block, skip = block + 1, 0


cdef void _philox_block(
    uint64_t* word, uint64_t block, uint64_t iteration, uint64_t low, uint64_t high
) noexcept nogil:
    # Philox 4x64 with ten rounds (Salmon et al. 2011); all arithmetic is modulo 2**64.
    cdef uint64_t first = 0xD2E7470EE14C6C93ULL, second = 0xCA5A826395121157ULL
    cdef uint64_t w0 = block, w1 = iteration, w2 = 0, w3 = 0, left, right
    cdef int round_
    for round_ in range(10):
        left, right = purine_high_word(first, w0), purine_high_word(second, w2)
        w0, w1, w2, w3 = right ^ w1 ^ low, second * w2, left ^ w3 ^ high, first * w0
        low += 0x9E3779B97F4A7C15ULL
        high += 0xBB67AE8584CAA73BULL
    word[0], word[1], word[2], word[3] = w0, w1, w2, w3
