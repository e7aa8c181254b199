# Pooling windows: the fellow of `pools.py`.


def max_pool(x, kernel, stride, pads, size, out=None):
    """x (N, C, H, W) -> y, index (N, C, oh, ow). Raises ValueError; see the plain twin."""
    cdef Axis rows, columns
    cdef Image image
    cdef Sheet winners, places
    if out is None or not _lays_pool(x, kernel, stride, pads, size, out, &rows, &columns):
        require_array(x, "x", 4)
        require_windows(x.shape[2:], kernel, stride, pads, size)
        shape = (*x.shape[:2], *size)
        out = (np.empty(shape, x.dtype), np.empty(shape, np.int64)) if out is None else out
        require_out(out[0], "out y", shape, x.dtype)
        require_out(out[1], "out index", shape, np.int64)
        rows = _axis(0, x.shape, kernel, stride, pads, (1, 1), size)
        columns = _axis(1, x.shape, kernel, stride, pads, (1, 1), size)
    y, index = out
    # By pixels, a place within a window is a narrow integer.
    cdef bint pixels = _by_pixels(y) and rows.kernel * columns.length < 2**31
    if pixels and _lay_image(x, &image) and _lay_sheet(y, True, &winners) and _lay_sheet(index, True, &places):
        if x.itemsize == 4:
            _maximum_by_pixels[float](
                <const float*>image.data, image, <float*>winners.data, winners, <int64_t*>places.data, places, rows,
                columns,
            )
        else:
            _maximum_by_pixels[double](
                <const double*>image.data, image, <double*>winners.data, winners, <int64_t*>places.data, places, rows,
                columns,
            )
        return y, index
    source = np.ascontiguousarray(x)
    best = y if y.flags.c_contiguous else np.empty(y.shape, x.dtype)
    place = index if index.flags.c_contiguous else np.empty(y.shape, np.int64)
    if x.itemsize == 4:
        _maximum_by_planes[float](source, best, place, rows, columns)
    else:
        _maximum_by_planes[double](source, best, place, rows, columns)
    if best is not y:
        y[...] = best
    if place is not index:
        index[...] = place
    return y, index


cdef bint _lays_pool(x, kernel, stride, pads, size, out, Axis* rows, Axis* columns) except -1:
    # Whether all is as `require_windows` and `require_out` want it; then the axes are set.
    cdef Axis axis
    cdef cnp.ndarray image, y, index
    cdef Py_ssize_t end, which
    if not _is_float(x) or not isinstance(out[0], cnp.ndarray) or not isinstance(out[1], cnp.ndarray):
        return False
    image, y, index = x, out[0], out[1]
    if cnp.PyArray_NDIM(image) != 4 or cnp.PyArray_NDIM(y) != 4 or not _same_shape(y, index):
        return False
    if cnp.PyArray_TYPE(y) != cnp.PyArray_TYPE(image) or not cnp.PyArray_ISNOTSWAPPED(y) \
            or cnp.PyArray_TYPE(index) != cnp.NPY_INT64 or not cnp.PyArray_ISNOTSWAPPED(index) \
            or not cnp.PyArray_ISWRITEABLE(y) or not cnp.PyArray_ISWRITEABLE(index):
        return False
    for which in range(2):
        axis.length, axis.dilation = cnp.PyArray_DIMS(image)[which + 2], 1
        axis.kernel, axis.stride, axis.size = kernel[which], stride[which], size[which]
        axis.pad, end = pads[which]
        if axis.kernel < 1 or axis.stride < 1 or axis.pad < 0 or end < 0 or axis.size < 1 or axis.pad >= axis.kernel:
            return False
        if (axis.size - 1) * axis.stride - axis.pad >= axis.length:
            return False
        if cnp.PyArray_DIMS(y)[which] != cnp.PyArray_DIMS(image)[which] or cnp.PyArray_DIMS(y)[which + 2] != axis.size:
            return False
        if which == 0:
            rows[0] = axis
        else:
            columns[0] = axis
    return True


def max_pool_scatter(dy, index, shape, out=None):
    """dy, index (N, C, oh, ow) -> dx of `shape` (N, C, H, W). Raises ValueError; see the plain twin."""
    if out is None or not _lays_places(dy, index, shape, out):
        require_array(dy, "dy", 4)
        require_index(index, dy.shape, shape)
        out = np.empty(shape, dy.dtype) if out is None else out
        require_out(out, "out", shape, dy.dtype)
    cdef bint pixels = _by_pixels(out), right
    cdef Sheet flat, places, dx
    read, at = _read_sheet(dy, pixels, &flat), _read_sheet(index, pixels, &places)
    written = _write_sheet(out, pixels, &dx)
    if dy.itemsize == 4:
        right = _scatter_places[float](
            <const float*>flat.data, flat, <const int64_t*>places.data, places, <float*>dx.data, dx, pixels
        )
    else:
        right = _scatter_places[double](
            <const double*>flat.data, flat, <const int64_t*>places.data, places, <double*>dx.data, dx, pixels
        )
    if not right:
        require_places(index, shape[2] * shape[3])
    _settle(out, pixels, written)
    return out


cdef bint _lays_places(dy, index, shape, out) except -1:
    # Whether all is as `require_index` and `require_out` want it.
    cdef cnp.ndarray known, places, target
    cdef Py_ssize_t axis
    if not _is_float(dy) or not _is_float(out) or not isinstance(index, cnp.ndarray) or len(shape) != 4:
        return False
    known, places, target = dy, index, out
    if cnp.PyArray_NDIM(known) != 4 or cnp.PyArray_NDIM(target) != 4 or not _same_shape(known, places):
        return False
    for axis in range(4):
        if cnp.PyArray_DIMS(target)[axis] != shape[axis]:
            return False
        if axis < 2 and cnp.PyArray_DIMS(known)[axis] != cnp.PyArray_DIMS(target)[axis]:
            return False
    return (
        cnp.PyArray_TYPE(places) == cnp.NPY_INT64
        and cnp.PyArray_ISNOTSWAPPED(places)
        and cnp.PyArray_TYPE(known) == cnp.PyArray_TYPE(target)
        and cnp.PyArray_ISWRITEABLE(target)
    )


def average_pool(x, kernel, stride, pads, size, count, out=None):
    """x (N, C, H, W) -> y (N, C, oh, ow). Raises ValueError; see the plain twin."""
    require_array(x, "x", 4)
    require_windows(x.shape[2:], kernel, stride, pads, size)
    divisor = divisors(x.shape[2:], kernel, stride, pads, size, count).astype(x.dtype)
    if out is None:
        out = np.empty((*x.shape[:2], *size), x.dtype)
    require_out(out, "out", (*x.shape[:2], *size), x.dtype)
    cdef Axis rows = _axis(0, x.shape, kernel, stride, pads, (1, 1), size)
    cdef Axis columns = _axis(1, x.shape, kernel, stride, pads, (1, 1), size)
    cdef bint pixels = _by_pixels(out)
    source, y = _source(_image(x, pixels)), _target(_image(out, pixels), out)
    if x.itemsize == 4 and pixels:
        _average_by_pixels[float](source, y, divisor, rows, columns)
    elif x.itemsize == 4:
        _average_by_planes[float](source, y, divisor, rows, columns)
    elif pixels:
        _average_by_pixels[double](source, y, divisor, rows, columns)
    else:
        _average_by_planes[double](source, y, divisor, rows, columns)
    _settle(out, pixels, y)
    return out


def average_pool_scatter(dy, shape, kernel, stride, pads, count, out=None):
    """dy (N, C, oh, ow) -> dx of `shape` (N, C, H, W). Raises ValueError; see the plain twin."""
    require_array(dy, "dy", 4)
    require_shape(dy, "dy", (*shape[:2], *dy.shape[2:]))
    lengths, size = (shape[2], shape[3]), dy.shape[2:]
    require_windows(lengths, kernel, stride, pads, size)
    divisor = divisors(lengths, kernel, stride, pads, size, count).astype(dy.dtype)
    if out is None:
        out = np.empty(shape, dy.dtype)
    require_out(out, "out", shape, dy.dtype)
    cdef Axis rows = _axis(0, shape, kernel, stride, pads, (1, 1), size)
    cdef Axis columns = _axis(1, shape, kernel, stride, pads, (1, 1), size)
    cdef bint pixels = _by_pixels(out)
    source, dx = _source(_image(dy, pixels)), _target(_image(out, pixels), out)
    if dy.itemsize == 4 and pixels:
        _spread_by_pixels[float](source, dx, divisor, rows, columns)
    elif dy.itemsize == 4:
        _spread_by_planes[float](source, dx, divisor, rows, columns)
    elif pixels:
        _spread_by_pixels[double](source, dx, divisor, rows, columns)
    else:
        _spread_by_planes[double](source, dx, divisor, rows, columns)
    _settle(out, pixels, dx)
    return out


cdef vectorised _maximum_by_planes(
    const real[:, :, :, ::view.contiguous] x,
    real[:, :, :, ::view.contiguous] y,
    int64_t[:, :, :, ::view.contiguous] index,
    Axis rows,
    Axis columns,
) noexcept:
    cdef Py_ssize_t n, c, i, j, row, column, top, left
    cdef int64_t place
    cdef real best, candidate
    with nogil:
        for n in range(x.shape[0]):
            for c in range(x.shape[1]):
                for i in range(rows.size):
                    top = max(i * rows.stride - rows.pad, 0)
                    for j in range(columns.size):
                        left = max(j * columns.stride - columns.pad, 0)
                        best, place = x[n, c, top, left], top * columns.length + left
                        for row in range(top, min(i * rows.stride - rows.pad + rows.kernel, rows.length)):
                            for column in range(
                                left, min(j * columns.stride - columns.pad + columns.kernel, columns.length)
                            ):
                                candidate = x[n, c, row, column]
                                # Only a NaN differs from itself; the first one stays.
                                if candidate > best or (candidate != candidate and best == best):
                                    best, place = candidate, row * columns.length + column
                        y[n, c, i, j], index[n, c, i, j] = best, place


cdef inline inlined _challenge(
    const real* source, int32_t spot, real* best, int32_t* at, Py_ssize_t length
) noexcept nogil:
    # Put into `best` what is larger or a NaN, unless it holds a NaN, which alone differs from itself; and its spot.
    cdef Py_ssize_t c
    cdef real value, held
    cdef int32_t kept
    cdef int wins
    for c in range(length):
        value, held, kept = source[c], best[c], at[c]
        wins = (held == held) & (not value <= held)
        best[c] = value if wins else held
        at[c] = spot if wins else kept


cdef inline inlined _maximum_of_window(
    const real* x, Image image, Range down, Range across, real* winner, int64_t* place, Py_ssize_t length
) noexcept nogil:
    # Of a few channels, from those of the window's corner on. A spot is as narrow as a float, so that both make
    # vectors of one length.
    cdef Py_ssize_t p, q, c
    cdef int64_t corner = (down.first + down.offset) * image.width + across.first + across.offset
    cdef const real* source = x + (down.first + down.offset) * image.row + (across.first + across.offset) * image.pixel
    cdef real[LANES] best
    cdef int32_t[LANES] at  # from the window's corner
    for c in range(length):
        best[c], at[c] = source[c], 0
    for p in range(down.stop - down.first):
        for q in range(p == 0, across.stop - across.first):  # the corner is there already
            _challenge(
                source + p * image.row + q * image.pixel, <int32_t>(p * image.width + q), best, at, length
            )
    for c in range(length):
        winner[c] = best[c]
    for c in range(length):
        place[c] = corner + at[c]


cdef vectorised _maximum_by_pixels(
    const real* x, Image image, real* y, Sheet winners, int64_t* index, Sheet places, Axis rows, Axis columns
) noexcept:
    cdef Py_ssize_t n, i, j, start, window
    cdef Range down, across
    cdef const real* source
    cdef real* winner
    cdef int64_t* place
    with nogil:
        for n in range(image.images):
            for i in range(rows.size):
                down = _inside(rows, i)
                for j in range(columns.size):
                    across = _inside(columns, j)
                    window = i * columns.size + j
                    source, winner = x + n * image.image, y + n * winners.image + window * winners.row
                    place = index + n * places.image + window * places.row
                    for start in range(0, image.channels - LANES + 1, LANES):  # loops of a known length are faster
                        _maximum_of_window(source + start, image, down, across, winner + start, place + start, LANES)
                    start = image.channels // LANES * LANES
                    if start < image.channels:
                        _maximum_of_window(
                            source + start, image, down, across, winner + start, place + start, image.channels - start
                        )


cdef bint _scatter_places(
    const real* dy, Sheet flat, const int64_t* index, Sheet places, real* dx, Sheet target, bint pixels
) noexcept:
    # False, without having written there, when an index leads out of its plane.
    cdef Py_ssize_t n, line, e, area = target.rows if pixels else target.length
    cdef Py_ssize_t count = target.rows * target.length
    cdef bint dense = target.row == target.length
    cdef bint right
    cdef const real* given
    cdef const int64_t* at
    cdef real* to
    with nogil:
        for n in range(target.images):
            if dense:
                memset(dx + n * target.image, 0, count * sizeof(real))
            for line in range(0 if dense else target.rows):
                memset(dx + n * target.image + line * target.row, 0, target.length * sizeof(real))
            for line in range(flat.rows):
                given, at = dy + n * flat.image + line * flat.row, index + n * places.image + line * places.row
                to, right = dx + n * target.image, True
                for e in range(flat.length):
                    right &= <uint64_t>at[e] < <uint64_t>area  # what is below 0 is large without its sign
                if not right:
                    return False
                if pixels:
                    for e in range(flat.length):
                        to[at[e] * target.row + e] += given[e]
                else:
                    to += line * target.row
                    for e in range(flat.length):
                        to[at[e]] += given[e]
    return True


cdef vectorised _average_by_planes(
    const real[:, :, :, ::view.contiguous] x,
    real[:, :, :, ::view.contiguous] y,
    const real[:, ::1] divisor,
    Axis rows,
    Axis columns,
) noexcept:
    # Windows are innermost: the additions of one window, in its order, need not wait for each other's latency.
    cdef Py_ssize_t n, c, p, q, i, j, row
    cdef Range down, across
    with nogil:
        for n in range(x.shape[0]):
            for c in range(x.shape[1]):
                for i in range(rows.size):
                    memset(&y[n, c, i, 0], 0, columns.size * sizeof(real))
                for p in range(rows.kernel):
                    down = _meet(rows, p)
                    for q in range(columns.kernel):
                        across = _meet(columns, q)
                        for i in range(down.first, down.stop):
                            row = i * rows.stride + down.offset
                            for j in range(across.first, across.stop):
                                y[n, c, i, j] += x[n, c, row, j * columns.stride + across.offset]
                for i in range(rows.size):
                    for j in range(columns.size):
                        y[n, c, i, j] /= divisor[i, j]


cdef vectorised _average_by_pixels(
    const real[:, :, :, ::view.contiguous] x,
    real[:, :, :, ::view.contiguous] y,
    const real[:, ::1] divisor,
    Axis rows,
    Axis columns,
) noexcept:
    cdef Py_ssize_t n, i, j, p, q, c, start, length, channels = x.shape[3]
    cdef Range down, across
    cdef const real* source
    cdef real* target
    cdef real[BLOCK] total
    with nogil:
        for n in range(x.shape[0]):
            for i in range(rows.size):
                down = _inside(rows, i)
                for j in range(columns.size):
                    across = _inside(columns, j)
                    for start in range(0, channels, BLOCK):
                        length = min(BLOCK, channels - start)
                        for c in range(length):
                            total[c] = 0
                        for p in range(down.first, down.stop):
                            for q in range(across.first, across.stop):
                                source = &x[n, p + down.offset, q + across.offset, start]
                                for c in range(length):
                                    total[c] += source[c]
                        target = &y[n, i, j, start]
                        for c in range(length):
                            target[c] = total[c] / divisor[i, j]


cdef vectorised _spread_by_planes(
    const real[:, :, :, ::view.contiguous] dy,
    real[:, :, :, ::view.contiguous] dx,
    const real[:, ::1] divisor,
    Axis rows,
    Axis columns,
) noexcept:
    # Windows from the last to the first bring the kernel's positions at one element in their row-major order.
    cdef Py_ssize_t n, c, p, q, i, j, row
    cdef Range down, across
    cdef real share
    with nogil:
        for n in range(dx.shape[0]):
            for c in range(dx.shape[1]):
                for row in range(rows.length):
                    memset(&dx[n, c, row, 0], 0, columns.length * sizeof(real))
                for i in range(rows.size - 1, -1, -1):
                    down = _inside(rows, i)
                    for j in range(columns.size - 1, -1, -1):
                        across = _inside(columns, j)
                        share = dy[n, c, i, j] / divisor[i, j]
                        for p in range(down.first, down.stop):
                            for q in range(across.first, across.stop):
                                dx[n, c, p + down.offset, q + across.offset] += share


cdef vectorised _spread_by_pixels(
    const real[:, :, :, ::view.contiguous] dy,
    real[:, :, :, ::view.contiguous] dx,
    const real[:, ::1] divisor,
    Axis rows,
    Axis columns,
) noexcept:
    # As by planes.
    cdef Py_ssize_t n, i, j, p, q, h, w, c, start, length, channels = dx.shape[3]
    cdef Range down, across
    cdef const real* source
    cdef real* target
    cdef real[BLOCK] share
    with nogil:
        for n in range(dx.shape[0]):
            for h in range(rows.length):
                for w in range(columns.length):
                    memset(&dx[n, h, w, 0], 0, channels * sizeof(real))
            for i in range(rows.size - 1, -1, -1):
                down = _inside(rows, i)
                for j in range(columns.size - 1, -1, -1):
                    across = _inside(columns, j)
                    for start in range(0, channels, BLOCK):
                        length = min(BLOCK, channels - start)
                        source = &dy[n, i, j, start]
                        for c in range(length):
                            share[c] = source[c] / divisor[i, j]
                        for p in range(down.first, down.stop):
                            for q in range(across.first, across.stop):
                                target = &dx[n, p + down.offset, q + across.offset, start]
                                for c in range(length):
                                    target[c] += share[c]
