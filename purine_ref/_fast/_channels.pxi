# Bias, bias with ReLU and its gradient, and sums over each channel: the fellow of `channels.py`.
#
# What is computed from memory that may also be written to lies in a small array of its own in between: the compiler
# sees that this one overlaps with nothing, and so makes vectors, in place too.


def bias_relu(x, bias, out):
    """x, out (N, C, ...), bias (C,): out = relu(x + bias). Raises ValueError; see the plain twin."""
    if not _fit((x, out), 1) or not _fits_channels(x, bias):
        require_bias(x, "x", bias, "bias")
        require_out(out, "out", x.shape, x.dtype)
    _shift_all(x, bias, out, True)


def add_bias(x, bias, out):
    """x, out (N, C, ...), bias (C,): out = x + bias. Raises ValueError; see the plain twin."""
    if not _fit((x, out), 1) or not _fits_channels(x, bias):
        require_bias(x, "x", bias, "bias")
        require_out(out, "out", x.shape, x.dtype)
    _shift_all(x, bias, out, False)


def relu_bias_gradient(dy, y, dx, dbias):
    """dy, y, dx (N, C, ...), dbias (C,): dx selected by y > 0, and its sums. Raises ValueError; see the plain twin."""
    if not _fit((dy, y, dx), 1) or not _fits_channels(dy, dbias) or not dbias.flags.writeable:
        require_bias(dy, "dy", dbias, "dbias", wide=True)
        require_alike({"dy": dy, "y": y}, {"dx": dx})
    cdef bint pixels = _by_pixels(dx)
    cdef Sheet source, sign, kept
    cdef Totals total
    read = _read_sheet(dy, pixels, &source), _read_sheet(y, pixels, &sign)
    written = _write_sheet(dx, pixels, &kept)
    room = _open_totals(dbias, &total)
    if dy.itemsize == 4 and pixels:
        _select_and_sum_by_pixels[float](
            <const float*>source.data, source, <const float*>sign.data, sign, <float*>kept.data, kept, total.sums
        )
    elif dy.itemsize == 4:
        _select_and_sum_by_planes[float](
            <const float*>source.data, source, <const float*>sign.data, sign, <float*>kept.data, kept, total.sums
        )
    elif pixels:
        _select_and_sum_by_pixels[double](
            <const double*>source.data, source, <const double*>sign.data, sign, <double*>kept.data, kept, total.sums
        )
    else:
        _select_and_sum_by_planes[double](
            <const double*>source.data, source, <const double*>sign.data, sign, <double*>kept.data, kept, total.sums
        )
    _settle(dx, pixels, written)
    _close_totals(dbias, room, &total)


def bias_gradient(dy, dbias):
    """dy (N, C, ...) -> dbias (C,). Raises ValueError; see the plain twin."""
    if not _is_float(dy) or dy.ndim < 2 or not _fits_channels(dy, dbias) or not dbias.flags.writeable:
        require_bias(dy, "dy", dbias, "dbias", wide=True)
    cdef bint pixels = _by_pixels(dy)
    cdef Sheet source
    cdef Totals total
    read, room = _read_sheet(dy, pixels, &source), _open_totals(dbias, &total)
    if dy.itemsize == 4 and pixels:
        _sum_by_pixels[float](<const float*>source.data, source, total.sums)
    elif dy.itemsize == 4:
        _sum_by_planes[float](<const float*>source.data, source, total.sums)
    elif pixels:
        _sum_by_pixels[double](<const double*>source.data, source, total.sums)
    else:
        _sum_by_planes[double](<const double*>source.data, source, total.sums)
    _close_totals(dbias, room, &total)


cdef bint _fits_channels(cnp.ndarray x, bias) noexcept:
    # Whether a float array has two axes or more, and `bias` an element of its dtype for each channel.
    cdef cnp.ndarray known
    if not _is_float(bias):
        return False
    known = bias
    return (
        cnp.PyArray_NDIM(x) >= 2
        and cnp.PyArray_NDIM(known) == 1
        and cnp.PyArray_DIMS(known)[0] == cnp.PyArray_DIMS(x)[1]
        and cnp.PyArray_TYPE(known) == cnp.PyArray_TYPE(x)
    )


cdef struct Totals:
    # Sums of channels in float64: here where they are few, else in an array.
    double* sums
    double[2 * BLOCK] few


cdef _open_totals(cnp.ndarray dbias, Totals* total):
    # Sums of 0; returns what owns their memory, None where `total` does.
    cdef Py_ssize_t channels = cnp.PyArray_DIMS(dbias)[0]
    cdef cnp.ndarray room
    if channels <= 2 * BLOCK:
        total.sums = total.few
        memset(total.few, 0, channels * sizeof(double))
        return None
    room = np.zeros(channels, np.float64)
    total.sums = <double*>cnp.PyArray_DATA(room)
    return room


cdef int _close_totals(cnp.ndarray dbias, room, Totals* total) except -1:
    # Round the sums to the dtype of `dbias`.
    cdef Py_ssize_t c, channels = cnp.PyArray_DIMS(dbias)[0]
    cdef Py_ssize_t step = cnp.PyArray_STRIDES(dbias)[0]
    cdef char* to = cnp.PyArray_BYTES(dbias)
    if cnp.PyArray_ITEMSIZE(dbias) == 4:
        for c in range(channels):
            (<float*>(to + c * step))[0] = <float>total.sums[c]
    else:
        for c in range(channels):
            (<double*>(to + c * step))[0] = total.sums[c]
    return 0


cdef int _shift_all(x, bias, out, bint select) except -1:
    # Add the bias, and select what is above 0 if asked.
    cdef bint pixels = _by_pixels(out)
    cdef Sheet source, target
    cdef Py_ssize_t k, channels = x.shape[1], size
    cdef double[4 * BLOCK] four
    cdef const char* shift
    read, written = _read_sheet(x, pixels, &source), _write_sheet(out, pixels, &target)
    if not cnp.PyArray_IS_C_CONTIGUOUS(<cnp.ndarray?>bias):
        bias = np.ascontiguousarray(bias)
    shift, size = cnp.PyArray_BYTES(<cnp.ndarray>bias), channels * x.itemsize
    if pixels and channels <= BLOCK and _dense_lines(&source, 4) and _dense_lines(&target, 4):
        _join_lines(&source, 4)
        _join_lines(&target, 4)
        # A few channels are a short loop: four pixels are seen as one.
        for k in range(4):
            memcpy(<char*>four + k * size, shift, size)
        shift = <const char*>four
    if x.itemsize == 4:
        _shift[float](
            <const float*>source.data, source, <const float*>shift, pixels,
            <float*>target.data, target, select,
        )
    else:
        _shift[double](
            <const double*>source.data, source, <const double*>shift, pixels,
            <double*>target.data, target, select,
        )
    return _settle(out, pixels, written)


cdef inline inlined _shift_line(
    const real* x, const real* bias, bint pixels, real* out, bint select, Py_ssize_t length
) noexcept nogil:
    # A block of elements: one bias for each by pixels, one for all by planes.
    cdef Py_ssize_t c
    cdef real[BLOCK] value
    if pixels:
        for c in range(length):
            value[c] = x[c] + bias[c]
    else:
        for c in range(length):
            value[c] = x[c] + bias[0]
    if select:
        for c in range(length):
            out[c] = 0 if value[c] <= 0 else value[c]
    else:
        for c in range(length):
            out[c] = value[c]


cdef vectorised _shift(
    const real* x, Sheet source, const real* bias, bint pixels, real* out, Sheet target, bint select
) noexcept:
    cdef Py_ssize_t n, m, start
    with nogil:
        for n in range(target.images):
            for m in range(target.rows):
                for start in range(0, target.length, BLOCK):
                    _shift_line(
                        x + n * source.image + m * source.row + start,
                        bias + (start if pixels else m),
                        pixels,
                        out + n * target.image + m * target.row + start,
                        select,
                        min(BLOCK, target.length - start),
                    )


cdef inline inlined _add_four(
    const real* a, const real* b, const real* c, const real* d, double* total, Py_ssize_t length
) noexcept nogil:
    cdef Py_ssize_t k
    for k in range(length):
        total[k] += (<double>a[k] + b[k]) + (<double>c[k] + d[k])


cdef inline inlined _add_last(
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


cdef inline inlined _add_pixels(
    const real* source, Py_ssize_t step, Py_ssize_t count, double* total, Py_ssize_t length
) noexcept nogil:
    # Up to four pixels, `step` apart.
    if count == 4:
        _add_four(source, source + step, source + 2 * step, source + 3 * step, total, length)
    else:
        _add_last(source, step, count, total, length)


cdef inline double _add_plane(const real* a, Py_ssize_t length, double total) noexcept nogil:
    cdef Py_ssize_t k
    for k in range(0, length - 3, 4):
        total += (<double>a[k] + a[k + 1]) + (<double>a[k + 2] + a[k + 3])
    k = length // 4 * 4
    _add_last(a + k, 1, length - k, &total, 1)
    return total


cdef inline inlined _keep(const real* dy, const real* y, real* dx, Py_ssize_t length) noexcept nogil:
    # dx = dy where y > 0, in blocks.
    cdef Py_ssize_t c, start, count
    cdef real[BLOCK] kept
    for start in range(0, length, BLOCK):
        count = min(BLOCK, length - start)
        for c in range(count):
            kept[c] = 0 if y[start + c] <= 0 else dy[start + c]
        for c in range(count):
            dx[start + c] = kept[c]


cdef inline inlined _fetch_line(const real* line, Py_ssize_t length) noexcept nogil:
    # Bring a line to the cache: a processor foresees how memory goes on, but not that it leaves out other channels.
    cdef Py_ssize_t c
    for c in range(0, length, 16):
        purine_prefetch(line + c)


cdef vectorised _select_and_sum_by_pixels(
    const real* dy, Sheet source, const real* y, Sheet sign, real* dx, Sheet kept, double* total
) noexcept:
    cdef Py_ssize_t n, m, k, count, channels = kept.length
    # Pixels that lie beside each other are one line, which is a longer loop.
    cdef bint whole = source.row == channels and sign.row == channels and kept.row == channels
    cdef const real* given
    cdef const real* by
    cdef real* to
    with nogil:
        for n in range(kept.images):
            for m in range(0, kept.rows, 4):
                count = min(4, kept.rows - m)
                given, by = dy + n * source.image + m * source.row, y + n * sign.image + m * sign.row
                to = dx + n * kept.image + m * kept.row
                if whole:
                    _keep(given, by, to, count * channels)
                else:
                    for k in range(count):
                        _fetch_line(given + (k + AHEAD) * source.row, channels)
                        _fetch_line(by + (k + AHEAD) * sign.row, channels)
                        _keep(given + k * source.row, by + k * sign.row, to + k * kept.row, channels)
                _add_pixels(to, kept.row, count, total, channels)


cdef vectorised _select_and_sum_by_planes(
    const real* dy, Sheet source, const real* y, Sheet sign, real* dx, Sheet kept, double* total
) noexcept:
    cdef Py_ssize_t n, c, start
    cdef real* to
    with nogil:
        for n in range(kept.images):
            for c in range(kept.rows):
                to = dx + n * kept.image + c * kept.row
                _keep(
                    dy + n * source.image + c * source.row, y + n * sign.image + c * sign.row, to, kept.length
                )
                for start in range(0, kept.length, BLOCK):  # a block holds a multiple of four
                    total[c] = _add_plane(to + start, min(BLOCK, kept.length - start), total[c])


cdef vectorised _sum_by_pixels(const real* dy, Sheet source, double* total) noexcept:
    cdef Py_ssize_t n, m, k, c
    cdef const real* line
    with nogil:
        for n in range(source.images):
            for m in range(0, source.rows, 4):
                line = dy + n * source.image + m * source.row
                # Four pixels are read side by side, a pattern that the processor does not foresee.
                for k in range(4, min(8, source.rows - m)):
                    for c in range(0, source.length, 16):
                        purine_prefetch(line + k * source.row + c)
                _add_pixels(line, source.row, min(4, source.rows - m), total, source.length)


cdef vectorised _sum_by_planes(const real* dy, Sheet source, double* total) noexcept:
    cdef Py_ssize_t n, c
    with nogil:
        for n in range(source.images):
            for c in range(source.rows):
                total[c] = _add_plane(dy + n * source.image + c * source.row, source.length, total[c])
