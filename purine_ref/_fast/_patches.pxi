# The patches that a convolution's kernel sees, as columns and as rows: the fellow of `patches.py`.


def im2col(x, kernel, stride, pads, dilation, out=None):
    """x (N, C, H, W) -> cols (N, C, kh, kw, oh, ow). Raises ValueError; see the plain twin."""
    require_array(x, "x", 4)
    size = convolved_size(x.shape[2:], kernel, stride, pads, dilation)
    shape = x.shape[:2] + tuple(kernel) + size
    if out is None:
        out = np.empty(shape, x.dtype)
    require_out(out, "out", shape, x.dtype)
    cdef Axis rows = _axis(0, x.shape, kernel, stride, pads, dilation, size)
    cdef Axis columns = _axis(1, x.shape, kernel, stride, pads, dilation, size)
    cols = out if out.flags.c_contiguous else np.empty(shape, x.dtype)
    x = np.ascontiguousarray(x)
    if x.itemsize == 4:
        _gather[float](x, cols, rows, columns)
    else:
        _gather[double](x, cols, rows, columns)
    if cols is not out:
        out[...] = cols
    return out


def col2im(cols, shape, kernel, stride, pads, dilation, out=None):
    """cols (N, C, kh, kw, oh, ow) -> x of `shape` (N, C, H, W). Raises ValueError; see the plain twin."""
    require_array(cols, "cols", 6)
    size = convolved_size((shape[2], shape[3]), kernel, stride, pads, dilation)
    require_shape(cols, "cols", (*shape[:2], *kernel, *size))
    if out is None:
        out = np.empty(shape, cols.dtype)
    require_out(out, "out", shape, cols.dtype)
    cdef Axis rows = _axis(0, shape, kernel, stride, pads, dilation, size)
    cdef Axis columns = _axis(1, shape, kernel, stride, pads, dilation, size)
    x = out if out.flags.c_contiguous else np.empty(shape, cols.dtype)
    cols = np.ascontiguousarray(cols)
    if cols.itemsize == 4:
        _scatter[float](cols, x, rows, columns)
    else:
        _scatter[double](cols, x, rows, columns)
    if x is not out:
        out[...] = x
    return out


def unfold(x, kernel, stride, pads, dilation, first, out):
    """x (N, C, H, W) -> out (rows, kh*kw*C), rows from `first` on. Raises ValueError; see the plain twin."""
    require_array(x, "x", 4)
    size = convolved_size(x.shape[2:], kernel, stride, pads, dilation)
    require_rows(out, "out", x, kernel, size, first, False)
    require_out(out, "out", out.shape, x.dtype)
    cdef Axis rows = _axis(0, x.shape, kernel, stride, pads, dilation, size)
    cdef Axis columns = _axis(1, x.shape, kernel, stride, pads, dilation, size)
    image = x.transpose(0, 2, 3, 1)
    if x.itemsize == 4:
        if x.shape[1] == 1:
            _unfold_single[float](image, out, first, rows, columns)
        elif _adjacent(image):
            _unfold[float](image, out, first, rows, columns)
        else:
            _unfold_apart[float](image, out, first, rows, columns)
    else:
        if x.shape[1] == 1:
            _unfold_single[double](image, out, first, rows, columns)
        elif _adjacent(image):
            _unfold[double](image, out, first, rows, columns)
        else:
            _unfold_apart[double](image, out, first, rows, columns)


def fold(rows, dx, kernel, stride, pads, dilation):
    """rows (N*oh*ow, kh*kw*C) -> dx (N, C, H, W). Raises ValueError; see the plain twin."""
    require_array(dx, "dx", 4)
    require_out(dx, "dx", dx.shape, dx.dtype)
    size = convolved_size(dx.shape[2:], kernel, stride, pads, dilation)
    require_rows(rows, "rows", dx, kernel, size, 0, True)
    cdef Axis down = _axis(0, dx.shape, kernel, stride, pads, dilation, size)
    cdef Axis across = _axis(1, dx.shape, kernel, stride, pads, dilation, size)
    image = _target(_image(dx, True), dx)
    if dx.itemsize == 4:
        _fold[float](rows, image, down, across)
    else:
        _fold[double](rows, image, down, across)
    _settle(dx, True, image)


cdef vectorised _gather(
    const real[:, :, :, ::1] x, real[:, :, :, :, :, ::1] cols, Axis rows, Axis columns
) noexcept:
    cdef Py_ssize_t n, c, p, q, i, j, row
    cdef Py_ssize_t plane = rows.kernel * columns.kernel * rows.size * columns.size
    cdef Range down, across
    with nogil:
        for n in range(cols.shape[0]):
            for c in range(cols.shape[1]):
                memset(&cols[n, c, 0, 0, 0, 0], 0, plane * sizeof(real))
                for p in range(rows.kernel):
                    down = _meet(rows, p)
                    for q in range(columns.kernel):
                        across = _meet(columns, q)
                        for i in range(down.first, down.stop):
                            row = i * rows.stride + down.offset
                            for j in range(across.first, across.stop):
                                cols[n, c, p, q, i, j] = x[n, c, row, j * columns.stride + across.offset]


cdef vectorised _scatter(
    const real[:, :, :, :, :, ::1] cols, real[:, :, :, ::1] x, Axis rows, Axis columns
) noexcept:
    cdef Py_ssize_t n, c, p, q, i, j, row
    cdef Range down, across
    with nogil:
        for n in range(x.shape[0]):
            for c in range(x.shape[1]):
                memset(&x[n, c, 0, 0], 0, rows.length * columns.length * sizeof(real))
                for p in range(rows.kernel):
                    down = _meet(rows, p)
                    for q in range(columns.kernel):
                        across = _meet(columns, q)
                        for i in range(down.first, down.stop):
                            row = i * rows.stride + down.offset
                            for j in range(across.first, across.stop):
                                x[n, c, row, j * columns.stride + across.offset] += cols[n, c, p, q, i, j]


cdef inline void _copy(real* target, const real* source, Py_ssize_t count) noexcept nogil:
    # To call memcpy for a few numbers takes longer than to copy them; a constant count of them takes no call.
    cdef Py_ssize_t k = 0
    if count > 64:
        memcpy(target, source, count * sizeof(real))
        return
    while k + 8 <= count:
        memcpy(target + k, source + k, 8 * sizeof(real))
        k += 8
    if k + 4 <= count:
        memcpy(target + k, source + k, 4 * sizeof(real))
        k += 4
    if k + 2 <= count:
        memcpy(target + k, source + k, 2 * sizeof(real))
        k += 2
    if k < count:
        target[k] = source[k]


cdef inline void _clear(real* target, Py_ssize_t count) noexcept nogil:
    if count > 0:
        memset(target, 0, count * sizeof(real))


cdef vectorised _unfold(
    const real[:, :, :, ::view.contiguous] x, real[:, ::1] out, Py_ssize_t first, Axis rows, Axis columns
) noexcept:
    cdef Py_ssize_t r, n, i, j, p, q, channels = x.shape[3], width = columns.kernel * x.shape[3]
    cdef Range down, across
    cdef real* line
    # Where positions beside each other see pixels beside each other, a whole line of the kernel is one copy.
    cdef bint dense = columns.dilation == 1 and x.strides[2] == channels * <Py_ssize_t>sizeof(real)
    with nogil:
        n, i = first // (rows.size * columns.size), first // columns.size % rows.size
        j = first % columns.size
        for r in range(out.shape[0]):
            down, across = _inside(rows, i), _inside(columns, j)
            if across.first >= across.stop:
                down.stop = down.first
            line = &out[r, 0]
            _clear(line, down.first * width)
            _clear(line + down.stop * width, (rows.kernel - down.stop) * width)
            for p in range(down.first, down.stop):
                line = &out[r, p * width]
                _clear(line, across.first * channels)
                _clear(line + across.stop * channels, (columns.kernel - across.stop) * channels)
                if dense:
                    _copy(
                        line + across.first * channels,
                        &x[n, p * rows.dilation + down.offset, across.first + across.offset, 0],
                        (across.stop - across.first) * channels,
                    )
                else:
                    for q in range(across.first, across.stop):
                        _copy(
                            line + q * channels,
                            &x[n, p * rows.dilation + down.offset, q * columns.dilation + across.offset, 0],
                            channels,
                        )
            j += 1
            if j == columns.size:
                i, j = i + 1, 0
                if i == rows.size:
                    n, i = n + 1, 0


cdef vectorised _unfold_single(
    const real[:, :, :, :] x, real[:, ::1] out, Py_ssize_t first, Axis rows, Axis columns
) noexcept:
    # As `_unfold`, for one channel, whose patches have lines of a few numbers: a column of the matrix at a time.
    cdef Py_ssize_t r = 0, n, i, j, k, p, q, row, count, width = rows.kernel * columns.kernel
    cdef Range down, across
    cdef real* line
    with nogil:
        n, i = first // (rows.size * columns.size), first // columns.size % rows.size
        j = first % columns.size
        while r < out.shape[0]:
            count = min(columns.size - j, out.shape[0] - r)
            _clear(&out[r, 0], count * width)
            down = _inside(rows, i)
            for p in range(down.first, down.stop):
                row = p * rows.dilation + down.offset
                for q in range(columns.kernel):
                    across = _meet(columns, q)
                    line = &out[r, p * columns.kernel + q] - j * width
                    for k in range(max(across.first, j), min(across.stop, j + count)):
                        line[k * width] = x[n, row, k * columns.stride + across.offset, 0]
            r, i, j = r + count, i + 1, 0
            if i == rows.size:
                n, i = n + 1, 0


cdef vectorised _unfold_apart(
    const real[:, :, :, :] x, real[:, ::1] out, Py_ssize_t first, Axis rows, Axis columns
) noexcept:
    # As `_unfold`, for channels that are not adjacent.
    cdef Py_ssize_t r, n, i, j, p, q, c, row, column, channels = x.shape[3]
    cdef Range down, across
    cdef real* line
    with nogil:
        for r in range(out.shape[0]):
            n, i = (first + r) // (rows.size * columns.size), (first + r) // columns.size % rows.size
            j = (first + r) % columns.size
            down, across = _inside(rows, i), _inside(columns, j)
            _clear(&out[r, 0], out.shape[1])
            for p in range(down.first, down.stop):
                row = p * rows.dilation + down.offset
                for q in range(across.first, across.stop):
                    column = q * columns.dilation + across.offset
                    line = &out[r, (p * columns.kernel + q) * channels]
                    for c in range(channels):
                        line[c] = x[n, row, column, c]


cdef vectorised _fold(
    const real[:, ::1] patches, real[:, :, :, ::view.contiguous] dx, Axis rows, Axis columns
) noexcept:
    # Windows from the last to the first bring the kernel's positions at one pixel in their row-major order.
    cdef Py_ssize_t n, i, j, p, q, k, h, w, r, length, channels = dx.shape[3]
    cdef Range down, across
    cdef const real* source
    cdef real* target
    cdef bint dense = columns.dilation == 1 and dx.strides[2] == channels * <Py_ssize_t>sizeof(real)
    with nogil:
        for n in range(dx.shape[0]):
            for h in range(rows.length):
                for w in range(columns.length):
                    memset(&dx[n, h, w, 0], 0, channels * sizeof(real))
            for i in range(rows.size - 1, -1, -1):
                down = _inside(rows, i)
                for j in range(columns.size - 1, -1, -1):
                    across = _inside(columns, j)
                    r = (n * rows.size + i) * columns.size + j
                    for p in range(down.first, down.stop):
                        q = across.first
                        while q < across.stop:
                            length = (across.stop - across.first if dense else 1) * channels
                            source = &patches[r, (p * columns.kernel + q) * channels]
                            target = &dx[n, p * rows.dilation + down.offset, q * columns.dilation + across.offset, 0]
                            for k in range(length):
                                target[k] += source[k]
                            q = across.stop if dense else q + 1
