# Bias with ReLU and its gradient, and sums over each channel: the fellow of `channels.py`.
#
# What is computed from memory that may also be written to lies in a small array of its own in between: the compiler
# sees that this one overlaps with nothing, and so makes vectors, in place too.


def bias_relu(x, bias, out):
    """x, out (N, C, ...), bias (C,): out = relu(x + bias). Raises ValueError; see the plain twin."""
    require_bias(x, "x", bias, "bias")
    require_out(out, "out", x.shape, x.dtype)
    cdef bint pixels = _by_pixels(out)
    source, y = _source(_sheet(x, pixels)), _target(_sheet(out, pixels), out)
    bias = np.ascontiguousarray(bias)
    if pixels and y.shape[2] <= BLOCK and y.shape[1] % 4 == 0 and source.flags.c_contiguous and y.flags.c_contiguous:
        # A few channels are a short loop: four pixels are seen as one.
        shape = y.shape[0], y.shape[1] // 4, 4 * y.shape[2]
        source, y, bias = source.reshape(shape), y.reshape(shape), np.concatenate((bias, bias, bias, bias))
    if x.itemsize == 4 and pixels:
        _bias_relu_by_pixels[float](source, bias, y)
    elif x.itemsize == 4:
        _bias_relu_by_planes[float](source, bias, y)
    elif pixels:
        _bias_relu_by_pixels[double](source, bias, y)
    else:
        _bias_relu_by_planes[double](source, bias, y)
    _settle(out, pixels, y)


def relu_bias_gradient(dy, y, dx, dbias):
    """dy, y, dx (N, C, ...), dbias (C,): dx selected by y > 0, and its sums. Raises ValueError; see the plain twin."""
    require_bias(dy, "dy", dbias, "dbias", wide=True)
    _require_alike({"dy": dy, "y": y}, {"dx": dx})
    cdef bint pixels = _by_pixels(dx)
    source, sign, kept = _source(_sheet(dy, pixels)), _source(_sheet(y, pixels)), _target(_sheet(dx, pixels), dx)
    total = np.zeros(dbias.shape, np.float64)
    if dy.itemsize == 4 and pixels:
        _select_and_sum_by_pixels[float](source, sign, kept, total)
    elif dy.itemsize == 4:
        _select_and_sum_by_planes[float](source, sign, kept, total)
    elif pixels:
        _select_and_sum_by_pixels[double](source, sign, kept, total)
    else:
        _select_and_sum_by_planes[double](source, sign, kept, total)
    _settle(dx, pixels, kept)
    dbias[...] = total


def bias_gradient(dy, dbias):
    """dy (N, C, ...) -> dbias (C,). Raises ValueError; see the plain twin."""
    require_bias(dy, "dy", dbias, "dbias", wide=True)
    cdef bint pixels = _by_pixels(dy)
    source, total = _source(_sheet(dy, pixels)), np.zeros(dbias.shape, np.float64)
    if dy.itemsize == 4 and pixels:
        _sum_by_pixels[float](source, total)
    elif dy.itemsize == 4:
        _sum_by_planes[float](source, total)
    elif pixels:
        _sum_by_pixels[double](source, total)
    else:
        _sum_by_planes[double](source, total)
    dbias[...] = total


cdef vectorised _bias_relu_by_pixels(
    const real[:, :, ::view.contiguous] x, const real[::1] bias, real[:, :, ::view.contiguous] out
) noexcept:
    cdef Py_ssize_t n, m, c, start, length
    cdef const real* source
    cdef const real* shift
    cdef real* target
    cdef real[BLOCK] value
    with nogil:
        for n in range(x.shape[0]):
            for m in range(x.shape[1]):
                for start in range(0, x.shape[2], BLOCK):
                    length = min(BLOCK, x.shape[2] - start)
                    source, shift, target = &x[n, m, start], &bias[start], &out[n, m, start]
                    for c in range(length):
                        value[c] = source[c] + shift[c]
                    for c in range(length):
                        target[c] = 0 if value[c] <= 0 else value[c]


cdef vectorised _bias_relu_by_planes(
    const real[:, :, ::view.contiguous] x, const real[::1] bias, real[:, :, ::view.contiguous] out
) noexcept:
    cdef Py_ssize_t n, m, c, start, length
    cdef const real* source
    cdef real* target
    cdef real[BLOCK] value
    with nogil:
        for n in range(x.shape[0]):
            for c in range(x.shape[1]):
                for start in range(0, x.shape[2], BLOCK):
                    length = min(BLOCK, x.shape[2] - start)
                    source, target = &x[n, c, start], &out[n, c, start]
                    for m in range(length):
                        value[m] = source[m] + bias[c]
                    for m in range(length):
                        target[m] = 0 if value[m] <= 0 else value[m]


cdef inline void _add_four(
    const real* a, const real* b, const real* c, const real* d, double* total, Py_ssize_t length
) noexcept nogil:
    cdef Py_ssize_t k
    for k in range(length):
        total[k] += (<double>a[k] + b[k]) + (<double>c[k] + d[k])


cdef inline void _add_last(
    const real* a, Py_ssize_t step, Py_ssize_t count, double* total, Py_ssize_t length
) noexcept nogil:
    # The one, two or three elements that are left of an image, `step` apart.
    cdef Py_ssize_t k
    if count == 1:
        for k in range(length):
            total[k] += a[k]
    elif count == 2:
        for k in range(length):
            total[k] += <double>a[k] + a[k + step]
    elif count == 3:
        for k in range(length):
            total[k] += (<double>a[k] + a[k + step]) + a[k + 2 * step]


cdef inline void _add_pixels(
    const real[:, :, ::view.contiguous] dy, Py_ssize_t n, Py_ssize_t m, Py_ssize_t count, double[::1] total
) noexcept nogil:
    # Up to four pixels from `m` on.
    cdef Py_ssize_t step = dy.strides[1] // <Py_ssize_t>sizeof(real)
    cdef const real* source
    if dy.shape[2]:
        source = &dy[n, m, 0]
        if count == 4:
            _add_four(source, source + step, source + 2 * step, source + 3 * step, &total[0], dy.shape[2])
        else:
            _add_last(source, step, count, &total[0], dy.shape[2])


cdef inline double _add_plane(const real* a, Py_ssize_t length, double total) noexcept nogil:
    cdef Py_ssize_t k
    for k in range(0, length - 3, 4):
        total += (<double>a[k] + a[k + 1]) + (<double>a[k + 2] + a[k + 3])
    k = length // 4 * 4
    _add_last(a + k, 1, length - k, &total, 1)
    return total


cdef vectorised _select_and_sum_by_pixels(
    const real[:, :, ::view.contiguous] dy,
    const real[:, :, ::view.contiguous] y,
    real[:, :, ::view.contiguous] dx,
    double[::1] total,
) noexcept:
    cdef Py_ssize_t n, m, c, k, start, length, width, count, channels = dy.shape[2]
    # Pixels that lie beside each other are one line, which is a longer loop.
    cdef Py_ssize_t dense = channels * <Py_ssize_t>sizeof(real)
    cdef bint whole = dy.strides[1] == dense and y.strides[1] == dense and dx.strides[1] == dense
    cdef const real* source
    cdef const real* sign
    cdef real* target
    cdef real[BLOCK] kept
    cdef real value
    with nogil:
        for n in range(dy.shape[0]):
            for m in range(0, dy.shape[1], 4):
                count = min(4, dy.shape[1] - m)
                width = count * channels if whole else channels
                for k in range(1 if whole else count):
                    for start in range(0, width, BLOCK):
                        length = min(BLOCK, width - start)
                        source, sign, target = &dy[n, m + k, start], &y[n, m + k, start], &dx[n, m + k, start]
                        for c in range(length):
                            value = source[c]
                            kept[c] = 0 if sign[c] <= 0 else value
                        for c in range(length):
                            target[c] = kept[c]
                _add_pixels(dx, n, m, count, total)


cdef vectorised _select_and_sum_by_planes(
    const real[:, :, ::view.contiguous] dy,
    const real[:, :, ::view.contiguous] y,
    real[:, :, ::view.contiguous] dx,
    double[::1] total,
) noexcept:
    cdef Py_ssize_t n, m, c, start, length
    cdef const real* source
    cdef const real* sign
    cdef real* target
    cdef real[BLOCK] kept
    cdef real value
    with nogil:
        for n in range(dy.shape[0]):
            for c in range(dy.shape[1]):
                for start in range(0, dy.shape[2], BLOCK):
                    length = min(BLOCK, dy.shape[2] - start)
                    source, sign, target = &dy[n, c, start], &y[n, c, start], &dx[n, c, start]
                    for m in range(length):
                        value = source[m]
                        kept[m] = 0 if sign[m] <= 0 else value
                    for m in range(length):
                        target[m] = kept[m]
                    total[c] = _add_plane(kept, length, total[c])


cdef vectorised _sum_by_pixels(const real[:, :, ::view.contiguous] dy, double[::1] total) noexcept:
    cdef Py_ssize_t n, m, k, c, count
    with nogil:
        for n in range(dy.shape[0]):
            for m in range(0, dy.shape[1], 4):
                count = min(4, dy.shape[1] - m)
                # Four pixels are read side by side, a pattern that the processor does not foresee.
                for k in range(m + 4, min(m + 8, dy.shape[1])):
                    for c in range(0, dy.shape[2], 16):
                        purine_prefetch(&dy[n, k, c])
                _add_pixels(dy, n, m, count, total)


cdef vectorised _sum_by_planes(const real[:, :, ::view.contiguous] dy, double[::1] total) noexcept:
    cdef Py_ssize_t n, c
    with nogil:
        for n in range(dy.shape[0]):
            for c in range(dy.shape[1]):
                if dy.shape[2]:
                    total[c] = _add_plane(&dy[n, c, 0], dy.shape[2], total[c])
