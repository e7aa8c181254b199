# Normalisation across channels, and the sums that it needs: the fellow of `normalization.py`.

from purine_ref._fast.normalization import lrn as _lrn_by_power, lrn_gradient as _lrn_gradient_by_power


def window_sum(x, n, out=None):
    """x (N, C, ...) -> y of the same shape. Raises ValueError; see the plain twin."""
    require_channels(x, n)
    if out is None:
        out = np.empty(x.shape, x.dtype)
    require_out(out, "out", x.shape, x.dtype)
    cdef Py_ssize_t reach = min(n // 2, max(x.shape[1] - 1, 0))
    cdef bint pixels = _by_pixels(out)
    source, y = _source(_sheet(x, pixels)), _target(_sheet(out, pixels), out)
    padded = np.zeros(x.shape[1] + 2 * reach if pixels else 0, x.dtype)
    if x.itemsize == 4 and pixels:
        _window_by_pixels[float](source, y, padded, reach)
    elif x.itemsize == 4:
        _window_by_planes[float](source, y, reach)
    elif pixels:
        _window_by_pixels[double](source, y, padded, reach)
    else:
        _window_by_planes[double](source, y, reach)
    _settle(out, pixels, y)
    return out


def lrn(x, n, alpha, beta, k, out):
    """x, out (N, C, ...): out = x scale**-beta. Raises ValueError; see the plain twin."""
    if beta != 0.75:  # another power is numpy's anyway
        _lrn_by_power(x, n, alpha, beta, k, out)
        return
    require_channels(x, n)
    require_out(out, "out", x.shape, x.dtype)
    cdef Py_ssize_t reach = min(n // 2, max(x.shape[1] - 1, 0))
    cdef double ratio = alpha / n, offset = k
    cdef bint pixels = _by_pixels(out)
    source, y = _source(_sheet(x, pixels)), _target(_sheet(out, pixels), out)
    padded = np.zeros(x.shape[1] + 2 * reach if pixels else 0, x.dtype)
    if x.itemsize == 4 and pixels:
        _lrn_by_pixels[float](source, y, padded, reach, <float>ratio, <float>offset)
    elif x.itemsize == 4:
        _lrn_by_planes[float](source, y, reach, <float>ratio, <float>offset)
    elif pixels:
        _lrn_by_pixels[double](source, y, padded, reach, ratio, offset)
    else:
        _lrn_by_planes[double](source, y, reach, ratio, offset)
    _settle(out, pixels, y)


def lrn_gradient(dy, x, n, alpha, beta, k, out):
    """dy, x, out (N, C, ...): the gradient of `lrn`. Raises ValueError; see the plain twin."""
    if beta != 0.75:
        _lrn_gradient_by_power(dy, x, n, alpha, beta, k, out)
        return
    require_channels(x, n)
    _require_alike({"x": x, "dy": dy}, {"out": out})
    cdef Py_ssize_t reach = min(n // 2, max(x.shape[1] - 1, 0))
    cdef double ratio = alpha / n, offset = k, factor = 2 * alpha / n * beta
    cdef bint pixels = _by_pixels(out)
    slope, source = _source(_sheet(dy, pixels)), _source(_sheet(x, pixels))
    dx = _target(_sheet(out, pixels), out)
    if pixels:
        kept = np.zeros((2, x.shape[1] + 2 * reach), x.dtype)
    else:
        kept = np.empty((2, x.shape[1] * BLOCK), x.dtype)
    if x.itemsize == 4 and pixels:
        _lrn_back_by_pixels[float](slope, source, dx, kept, reach, <float>ratio, <float>offset, <float>factor)
    elif x.itemsize == 4:
        _lrn_back_by_planes[float](slope, source, dx, kept, reach, <float>ratio, <float>offset, <float>factor)
    elif pixels:
        _lrn_back_by_pixels[double](slope, source, dx, kept, reach, ratio, offset, factor)
    else:
        _lrn_back_by_planes[double](slope, source, dx, kept, reach, ratio, offset, factor)
    _settle(out, pixels, dx)


# Sums over neighbouring channels. By pixels, a pixel's channels are copied between zeros, `reach` on either side, which
# leave every sum as it is: one that starts from 0 is never -0.0.


cdef inline void _add_window(const real* padded, Py_ssize_t reach, real* total, Py_ssize_t length) noexcept nogil:
    # The sums of 2 reach + 1 neighbours, from 0, by rising channel; `total` is an array of the caller's own.
    cdef Py_ssize_t c, k
    if reach == 2:  # as below, in one go: the usual window
        for c in range(length):
            total[c] = ((((<real>0 + padded[c]) + padded[c + 1]) + padded[c + 2]) + padded[c + 3]) + padded[c + 4]
        return
    for c in range(length):
        total[c] = 0
    for k in range(2 * reach + 1):
        for c in range(length):
            total[c] += padded[k + c]


cdef vectorised _window_by_pixels(
    const real[:, :, ::view.contiguous] x, real[:, :, ::view.contiguous] y, real[::1] padded, Py_ssize_t reach
) noexcept:
    cdef Py_ssize_t n, m, start, length, channels = x.shape[2]
    cdef real[BLOCK] total
    with nogil:
        for n in range(x.shape[0]):
            for m in range(x.shape[1]):
                memcpy(&padded[reach], &x[n, m, 0], channels * sizeof(real))
                for start in range(0, channels, BLOCK):
                    length = min(BLOCK, channels - start)
                    _add_window(&padded[start], reach, total, length)
                    memcpy(&y[n, m, start], total, length * sizeof(real))


cdef vectorised _window_by_planes(
    const real[:, :, ::view.contiguous] x, real[:, :, ::view.contiguous] y, Py_ssize_t reach
) noexcept:
    cdef Py_ssize_t n, c, k, m, start, length
    cdef const real* source
    cdef real[BLOCK] total
    with nogil:
        for n in range(x.shape[0]):
            for c in range(x.shape[1]):
                for start in range(0, x.shape[2], BLOCK):
                    length = min(BLOCK, x.shape[2] - start)
                    for m in range(length):
                        total[m] = 0
                    for k in range(max(c - reach, 0), min(c + reach + 1, x.shape[1])):
                        source = &x[n, k, start]
                        for m in range(length):
                            total[m] += source[m]
                    memcpy(&y[n, c, start], total, length * sizeof(real))


# Normalisation with scale**0.75 = r sqrt(r), r = sqrt(scale).


cdef inline real _root(real scale) noexcept nogil:
    return sqrtf(scale) if real is float else sqrt(scale)


cdef inline void _to_scale(real* total, Py_ssize_t length, real ratio, real offset) noexcept nogil:
    cdef Py_ssize_t c
    for c in range(length):
        total[c] = offset + ratio * total[c]


cdef inline void _to_power(const real* scale, real* power, Py_ssize_t length) noexcept nogil:
    cdef Py_ssize_t c
    cdef real root
    for c in range(length):
        root = _root(scale[c])
        power[c] = root * _root(root)


cdef vectorised _lrn_by_pixels(
    const real[:, :, ::view.contiguous] x,
    real[:, :, ::view.contiguous] y,
    real[::1] squares,
    Py_ssize_t reach,
    real ratio,
    real offset,
) noexcept:
    cdef Py_ssize_t n, m, c, start, length, channels = x.shape[2]
    cdef const real* source
    cdef real* target
    cdef real[BLOCK] scale, power
    with nogil:
        for n in range(x.shape[0]):
            for m in range(x.shape[1]):
                source, target = &x[n, m, 0], &squares[reach]
                for c in range(channels):
                    target[c] = source[c] * source[c]
                for start in range(0, channels, BLOCK):
                    length = min(BLOCK, channels - start)
                    _add_window(&squares[start], reach, scale, length)
                    _to_scale(scale, length, ratio, offset)
                    _to_power(scale, power, length)
                    source, target = &x[n, m, start], &y[n, m, start]
                    for c in range(length):
                        target[c] = source[c] / power[c]


cdef inline void _scale_of_planes(
    const real[:, :, ::view.contiguous] x,
    Py_ssize_t n,
    Py_ssize_t c,
    Py_ssize_t start,
    Py_ssize_t length,
    Py_ssize_t reach,
    real ratio,
    real offset,
    real* scale,
) noexcept nogil:
    cdef Py_ssize_t k, m
    cdef const real* source
    for m in range(length):
        scale[m] = 0
    for k in range(max(c - reach, 0), min(c + reach + 1, x.shape[1])):
        source = &x[n, k, start]
        for m in range(length):
            scale[m] += source[m] * source[m]
    _to_scale(scale, length, ratio, offset)


cdef vectorised _lrn_by_planes(
    const real[:, :, ::view.contiguous] x,
    real[:, :, ::view.contiguous] y,
    Py_ssize_t reach,
    real ratio,
    real offset,
) noexcept:
    cdef Py_ssize_t n, m, c, start, length
    cdef const real* source
    cdef real* target
    cdef real[BLOCK] scale, power
    with nogil:
        for n in range(x.shape[0]):
            for start in range(0, x.shape[2], BLOCK):
                length = min(BLOCK, x.shape[2] - start)
                for c in range(x.shape[1]):
                    _scale_of_planes(x, n, c, start, length, reach, ratio, offset, scale)
                    _to_power(scale, power, length)
                    source, target = &x[n, c, start], &y[n, c, start]
                    for m in range(length):
                        target[m] = source[m] / power[m]


cdef vectorised _lrn_back_by_pixels(
    const real[:, :, ::view.contiguous] dy,
    const real[:, :, ::view.contiguous] x,
    real[:, :, ::view.contiguous] dx,
    real[:, ::1] padded,
    Py_ssize_t reach,
    real ratio,
    real offset,
    real factor,
) noexcept:
    cdef Py_ssize_t n, m, c, start, length, channels = x.shape[2]
    cdef const real* slope
    cdef const real* source
    cdef real* target
    cdef real* terms
    cdef real[BLOCK] scale, power, own
    with nogil:
        for n in range(x.shape[0]):
            for m in range(x.shape[1]):
                source, target = &x[n, m, 0], &padded[0, reach]
                for c in range(channels):
                    target[c] = source[c] * source[c]
                for start in range(0, channels, BLOCK):
                    length = min(BLOCK, channels - start)
                    _add_window(&padded[0, start], reach, scale, length)
                    _to_scale(scale, length, ratio, offset)
                    _to_power(scale, power, length)
                    slope, source = &dy[n, m, start], &x[n, m, start]
                    target, terms = &dx[n, m, start], &padded[1, reach + start]
                    for c in range(length):
                        own[c] = slope[c] / power[c]
                    for c in range(length):
                        target[c] = own[c]
                    for c in range(length):
                        terms[c] = own[c] * source[c] / scale[c]
                for start in range(0, channels, BLOCK):
                    length = min(BLOCK, channels - start)
                    _add_window(&padded[1, start], reach, scale, length)
                    source, target = &x[n, m, start], &dx[n, m, start]
                    for c in range(length):
                        target[c] = target[c] - factor * source[c] * scale[c]


cdef vectorised _lrn_back_by_planes(
    const real[:, :, ::view.contiguous] dy,
    const real[:, :, ::view.contiguous] x,
    real[:, :, ::view.contiguous] dx,
    real[:, ::1] kept,
    Py_ssize_t reach,
    real ratio,
    real offset,
    real factor,
) noexcept:
    cdef Py_ssize_t n, m, c, k, start, length, channels = x.shape[1]
    cdef const real* slope
    cdef const real* source
    cdef real* target
    cdef real* own
    cdef real* terms
    cdef real[BLOCK] scale, power
    with nogil:
        for n in range(x.shape[0]):
            for start in range(0, x.shape[2], BLOCK):
                length = min(BLOCK, x.shape[2] - start)
                for c in range(channels):
                    _scale_of_planes(x, n, c, start, length, reach, ratio, offset, scale)
                    _to_power(scale, power, length)
                    slope, source = &dy[n, c, start], &x[n, c, start]
                    own, terms = &kept[0, c * BLOCK], &kept[1, c * BLOCK]
                    for m in range(length):
                        own[m] = slope[m] / power[m]
                        terms[m] = own[m] * source[m] / scale[m]
                for c in range(channels):
                    for m in range(length):
                        scale[m] = 0
                    for k in range(max(c - reach, 0), min(c + reach + 1, channels)):
                        terms = &kept[1, k * BLOCK]
                        for m in range(length):
                            scale[m] += terms[m]
                    source, target, own = &x[n, c, start], &dx[n, c, start], &kept[0, c * BLOCK]
                    for m in range(length):
                        target[m] = own[m] - factor * source[m] * scale[m]
