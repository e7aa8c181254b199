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
    cdef Axis rows, columns
    cdef Image image
    if not _lays_patches(x, kernel, stride, pads, dilation, first, out, False, &rows, &columns):
        require_array(x, "x", 4)
        size = convolved_size(x.shape[2:], kernel, stride, pads, dilation)
        require_rows(out, "out", x, kernel, size, first, False)
        require_out(out, "out", out.shape, x.dtype)
        rows = _axis(0, x.shape, kernel, stride, pads, dilation, size)
        columns = _axis(1, x.shape, kernel, stride, pads, dilation, size)
    if not _lay_image(x, &image):
        _unfold_copy(x, out, first, rows, columns)
    elif x.itemsize == 4:
        _unfold[float](
            <const float*>image.data, image, <float*>cnp.PyArray_DATA(<cnp.ndarray?>out), out.shape[0], first, rows,
            columns,
        )
    else:
        _unfold[double](
            <const double*>image.data, image, <double*>cnp.PyArray_DATA(<cnp.ndarray?>out), out.shape[0], first, rows,
            columns,
        )


def fold(rows, dx, kernel, stride, pads, dilation):
    """rows (N*oh*ow, kh*kw*C) -> dx (N, C, H, W). Raises ValueError; see the plain twin."""
    cdef Axis down, across
    cdef Image image
    if not _lays_patches(dx, kernel, stride, pads, dilation, 0, rows, True, &down, &across):
        require_array(dx, "dx", 4)
        require_out(dx, "dx", dx.shape, dx.dtype)
        size = convolved_size(dx.shape[2:], kernel, stride, pads, dilation)
        require_rows(rows, "rows", dx, kernel, size, 0, True)
        down = _axis(0, dx.shape, kernel, stride, pads, dilation, size)
        across = _axis(1, dx.shape, kernel, stride, pads, dilation, size)
    target = dx
    if not _lay_image(dx, &image):
        shape = dx.shape
        target = np.empty((shape[0], shape[2], shape[3], shape[1]), dx.dtype).transpose(0, 3, 1, 2)
        _lay_image(target, &image)
    if dx.itemsize == 4:
        _fold[float](<const float*>cnp.PyArray_DATA(<cnp.ndarray?>rows), <float*>image.data, image, down, across)
    else:
        _fold[double](<const double*>cnp.PyArray_DATA(<cnp.ndarray?>rows), <double*>image.data, image, down, across)
    if target is not dx:
        dx[...] = target


cdef bint _lays_patches(
    image, kernel, stride, pads, dilation, first, rows, bint whole, Axis* down, Axis* across
) except -1:
    # Whether all is as `convolved_size`, `require_rows` and `require_out` want it; then the axes are set. `whole` says
    # that the rows are all that there are, and the image is written to.
    cdef cnp.ndarray known
    cdef Py_ssize_t patches, count, start = first
    if not _is_float(image) or not isinstance(rows, cnp.ndarray) or cnp.PyArray_NDIM(<cnp.ndarray>image) != 4:
        return False
    known = image
    if whole and not cnp.PyArray_ISWRITEABLE(known):
        return False
    if not _lay_window(known, kernel, stride, pads, dilation, down, across):
        return False
    patches = cnp.PyArray_DIMS(known)[0] * down.size * across.size
    count = patches if whole else cnp.PyArray_DIMS(<cnp.ndarray>rows)[0]
    if start < 0 or start + count > patches:
        return False
    return _is_matrix(rows, known, count, down.kernel * across.kernel * cnp.PyArray_DIMS(known)[1], not whole)


cdef int _unfold_copy(x, out, first, Axis rows, Axis columns) except -1:
    # For channels that are not adjacent.
    image = x.transpose(0, 2, 3, 1)
    if x.itemsize == 4:
        _unfold_apart[float](image, out, first, rows, columns)
    else:
        _unfold_apart[double](image, out, first, rows, columns)
    return 0


def flatten(x, out):
    """x (N, C, H, W) -> out (N, C*H*W) in C, H, W order. Raises ValueError; see the plain twin."""
    cdef Image image
    if not _lays_rows(x, out, &image):
        require_flat(x, out)
        out[...] = x.reshape(out.shape)
    elif x.itemsize == 4:
        _flatten[float](<const float*>image.data, image, <float*>cnp.PyArray_DATA(<cnp.ndarray>out))
    else:
        _flatten[double](<const double*>image.data, image, <double*>cnp.PyArray_DATA(<cnp.ndarray>out))


cdef bint _lays_rows(x, out, Image* image) noexcept:
    # Whether all is as `require_flat` wants it, and the images lie by pixels; then it is set where.
    if not _lay_image(x, image):
        return False
    return _is_matrix(out, x, image.images, image.channels * image.height * image.width, True)


cdef vectorised _flatten(const real* x, Image image, real* out) noexcept:
    cdef Py_ssize_t n, c, h, w, area = image.height * image.width
    cdef const real* source
    with nogil:
        for n in range(image.images):
            for h in range(image.height):
                for w in range(image.width):
                    source = x + n * image.image + h * image.row + w * image.pixel
                    for c in range(image.channels):
                        out[c * area] = source[c]
                    out += 1
            out += (image.channels - 1) * area


def pixel_rows(array):
    """(N, C, H, W) that lies by pixels as (N*H*W, C), the same memory; else None. See the plain twin."""
    require_array(array, "array", 4)
    cdef cnp.ndarray known = array
    cdef Py_ssize_t item = cnp.PyArray_ITEMSIZE(known)
    cdef cnp.npy_intp* shape = cnp.PyArray_DIMS(known)
    cdef cnp.npy_intp* strides = cnp.PyArray_STRIDES(known)
    cdef cnp.npy_intp[2] dims, steps
    dims[0], dims[1], steps[1] = shape[0] * shape[2] * shape[3], shape[1], item
    if shape[3] > 1:
        steps[0] = strides[3]
    elif shape[2] > 1:
        steps[0] = strides[2]
    else:
        steps[0] = strides[0] if shape[0] > 1 else shape[1] * item
    if (shape[1] != 1 and strides[1] != item) or steps[0] < shape[1] * item:
        return None
    if shape[2] != 1 and strides[2] != shape[3] * steps[0]:
        return None
    if shape[0] != 1 and strides[0] != shape[2] * shape[3] * steps[0]:
        return None
    rows = cnp.PyArray_New(
        cnp.ndarray, 2, dims, cnp.PyArray_TYPE(known), steps, cnp.PyArray_DATA(known), 0,
        cnp.NPY_ARRAY_WRITEABLE if cnp.PyArray_ISWRITEABLE(known) else 0, None,
    )
    cnp.set_array_base(rows, known)
    return rows


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


cdef inline inlined _copy(real* target, const real* source, Py_ssize_t count) noexcept nogil:
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


cdef inline inlined _clear(real* target, Py_ssize_t count) noexcept nogil:
    if count > 0:
        memset(target, 0, count * sizeof(real))


cdef struct Frame:
    # A small image with its padding around it, dense and by pixels: no window of it lies at an edge.
    Py_ssize_t top
    Py_ssize_t left
    Py_ssize_t row  # elements of a row
    Py_ssize_t size  # elements of all


cdef inline Frame _frame(Image image, Axis rows, Axis columns) noexcept nogil:
    # What the windows reach of the image.
    cdef Frame frame
    cdef Py_ssize_t height = (rows.size - 1) * rows.stride + (rows.kernel - 1) * rows.dilation + 1
    cdef Py_ssize_t width = (columns.size - 1) * columns.stride + (columns.kernel - 1) * columns.dilation + 1
    frame.top, frame.left = rows.pad, columns.pad
    frame.row = width * image.channels
    frame.size = height * frame.row
    return frame


cdef inline inlined _unfold_framed(
    const real* x, Image image, real* out, Py_ssize_t count, Py_ssize_t first, Axis rows, Axis columns, Frame frame,
    real* framed
) noexcept nogil:
    cdef Py_ssize_t r = 0, n, i, j, p, h, channels = image.channels, width = columns.kernel * image.channels
    cdef Py_ssize_t wide = max(0, min(columns.length, frame.row // channels - frame.left)), high
    cdef Py_ssize_t step = columns.stride * channels, down = rows.dilation * frame.row
    cdef const real* source
    cdef const real* line
    high = min(rows.length, frame.size // frame.row - frame.top)
    memset(framed, 0, frame.size * sizeof(real))
    n, i = first // (rows.size * columns.size), first // columns.size % rows.size
    j = first % columns.size
    while r < count:
        for h in range(high):
            source = x + n * image.image + h * image.row
            _copy_pixels(
                framed + (frame.top + h) * frame.row + frame.left * channels, source, wide, channels, image.pixel
            )
        while i < rows.size and r < count:
            line = framed + i * rows.stride * frame.row
            for j in range(j, min(columns.size, j + count - r)):
                source = line + j * step
                if width == 3:  # a copy of a constant count takes no call
                    for p in range(rows.kernel):
                        memcpy(out, source, 2 * sizeof(real))
                        out[2] = source[2]
                        out, source = out + 3, source + down
                else:
                    for p in range(rows.kernel):
                        _copy(out, source, width)
                        out, source = out + width, source + down
                r += 1
            i, j = i + 1, 0
        n, i = n + 1, 0


cdef inline inlined _copy_pixels(
    real* target, const real* source, Py_ssize_t count, Py_ssize_t channels, Py_ssize_t step
) noexcept nogil:
    cdef Py_ssize_t k
    if step == channels:
        _copy(target, source, count * channels)
        return
    for k in range(count):
        _copy(target + k * channels, source + k * step, channels)


cdef vectorised _unfold(
    const real* x, Image image, real* out, Py_ssize_t count, Py_ssize_t first, Axis rows, Axis columns
) noexcept:
    cdef Py_ssize_t r = 0, n, i, j, k, channels = image.channels, stop
    cdef Range down
    cdef Py_ssize_t width = columns.kernel * channels, depth = rows.kernel * width
    # Windows whose whole width lies on the image are alike; where their pixels lie beside each other too, a line of the
    # kernel is one copy.
    cdef bint dense = columns.dilation == 1 and image.pixel == channels
    cdef Range within = _within(columns)
    cdef real[FRAME] framed
    cdef Frame frame = _frame(image, rows, columns)
    with nogil:
        if 0 < frame.row <= frame.size <= FRAME and columns.dilation == 1:
            _unfold_framed(x, image, out, count, first, rows, columns, frame, framed)
            return
        n, i = first // (rows.size * columns.size), first // columns.size % rows.size
        j = first % columns.size
        while r < count:
            down = _inside(rows, i)
            stop = min(columns.size, j + count - r)
            while j < stop:
                k = min(stop, within.stop)
                if dense and within.first <= j and j < k:
                    _unfold_within(x + n * image.image, image, out + r * depth, k - j, j, down, rows, columns)
                    r, j = r + k - j, k
                else:
                    _unfold_at_edge(x + n * image.image, image, out + r * depth, j, down, rows, columns)
                    r, j = r + 1, j + 1
            i, j = i + 1, 0
            if i == rows.size:
                n, i = n + 1, 0


cdef inline Range _within(Axis axis) noexcept nogil:
    # The windows all of whose kernel positions lie on the image.
    cdef Range first = _meet(axis, 0), last = _meet(axis, axis.kernel - 1)
    first.first = max(first.first, last.first)
    first.stop = max(first.first, min(first.stop, last.stop))
    return first


cdef inline inlined _unfold_within(
    const real* x, Image image, real* out, Py_ssize_t count, Py_ssize_t j, Range down, Axis rows, Axis columns
) noexcept nogil:
    # `count` windows from column j on, each line of whose kernel is adjacent pixels of the image.
    cdef Py_ssize_t r, p, k, width = columns.kernel * image.channels, depth = rows.kernel * width
    cdef Py_ssize_t step = columns.stride * image.channels
    cdef const real* source
    cdef real* line
    for p in range(rows.kernel):
        line = out + p * width
        if not down.first <= p < down.stop:
            for r in range(count):
                _clear(line + r * depth, width)
            continue
        source = x + (p * rows.dilation + down.offset) * image.row
        source += (j * columns.stride - columns.pad) * image.channels
        if width == 3:  # a copy of a few numbers takes longer than its bounds but where these are constants
            for r in range(count):
                for k in range(3):
                    line[r * depth + k] = source[r * step + k]
        else:
            for r in range(count):
                _copy(line + r * depth, source + r * step, width)


cdef inline inlined _unfold_at_edge(
    const real* x, Image image, real* out, Py_ssize_t j, Range down, Axis rows, Axis columns
) noexcept nogil:
    # One window, of column j, of which any part may lie in the padding.
    cdef Py_ssize_t p, q, channels = image.channels, width = columns.kernel * image.channels
    cdef Range across = _inside(columns, j)
    cdef const real* source
    cdef real* line
    if across.first >= across.stop:
        down.stop = down.first
    _clear(out, down.first * width)
    _clear(out + down.stop * width, (rows.kernel - down.stop) * width)
    for p in range(down.first, down.stop):
        line = out + p * width
        source = x + (p * rows.dilation + down.offset) * image.row + across.offset * image.pixel
        _clear(line, across.first * channels)
        _clear(line + across.stop * channels, (columns.kernel - across.stop) * channels)
        if columns.dilation == 1 and image.pixel == channels:
            _copy(
                line + across.first * channels,
                source + across.first * channels,
                (across.stop - across.first) * channels,
            )
        else:
            for q in range(across.first, across.stop):
                _copy(line + q * channels, source + q * columns.dilation * image.pixel, channels)


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


cdef inline inlined _fold_by_pixel(
    const real* patches, real* dx, Image image, Axis rows, Axis columns
) noexcept nogil:
    # Each pixel's terms, of a few channels at a time, in registers. Only windows that follow each other.
    cdef Py_ssize_t n, h, w, p, q, c, start, channels = image.channels, width = columns.kernel * image.channels
    cdef Py_ssize_t depth = rows.kernel * width, top, stop, left, right
    cdef const real* source
    cdef real* target
    cdef real[LANES] total
    for n in range(image.images):
        for h in range(rows.length):
            top, stop = max(0, h + rows.pad - rows.size + 1), min(rows.kernel, h + rows.pad + 1)
            for w in range(columns.length):
                left, right = max(0, w + columns.pad - columns.size + 1), min(columns.kernel, w + columns.pad + 1)
                target = dx + n * image.image + h * image.row + w * image.pixel
                for start in range(0, channels, LANES):
                    for c in range(LANES):
                        total[c] = 0
                    for p in range(top, stop):
                        # Kernel position (p, q) of the window whose corner is at (h - p, w - q).
                        source = patches + (n * rows.size + h + rows.pad - p) * columns.size * depth + start
                        source += (w + columns.pad - left) * depth + p * width + left * channels
                        for q in range(right - left):
                            for c in range(LANES):
                                total[c] += source[c]
                            source += channels - depth
                    for c in range(LANES):
                        target[start + c] = total[c]


cdef inline inlined _fold_framed(
    const real* patches, real* dx, Image image, Axis rows, Axis columns, Frame frame, real* framed
) noexcept nogil:
    cdef Py_ssize_t n, i, j, p, k, h, channels = image.channels, width = columns.kernel * image.channels
    cdef Py_ssize_t wide = max(0, min(columns.length, frame.row // channels - frame.left)), high
    cdef const real* source = patches + image.images * rows.size * columns.size * rows.kernel * width
    cdef real* target
    high = min(rows.length, frame.size // frame.row - frame.top)
    for n in range(image.images - 1, -1, -1):
        memset(framed, 0, frame.size * sizeof(real))
        for i in range(rows.size - 1, -1, -1):
            for j in range(columns.size - 1, -1, -1):
                for p in range(rows.kernel - 1, -1, -1):
                    source -= width
                    target = framed + (i * rows.stride + p * rows.dilation) * frame.row + j * columns.stride * channels
                    for k in range(width):
                        target[k] += source[k]
        target = dx + n * image.image
        for h in range(rows.length):
            if h >= high or wide < columns.length:
                for k in range(columns.length):
                    _clear(target + h * image.row + k * image.pixel, channels)
            if h < high:
                _copy_lines(
                    target + h * image.row, framed + (frame.top + h) * frame.row + frame.left * channels, wide,
                    channels, image.pixel
                )


cdef inline inlined _copy_lines(
    real* target, const real* source, Py_ssize_t count, Py_ssize_t channels, Py_ssize_t step
) noexcept nogil:
    # As `_copy_pixels`, the other way.
    cdef Py_ssize_t k
    if step == channels:
        _copy(target, source, count * channels)
        return
    for k in range(count):
        _copy(target + k * step, source + k * channels, channels)


cdef vectorised _fold(
    const real* patches, real* dx, Image image, Axis rows, Axis columns
) noexcept:
    # Windows from the last to the first bring the kernel's positions at one pixel in their row-major order.
    cdef Py_ssize_t n, i, j, p, q, k, h, w, r, length, channels = image.channels, width = columns.kernel * channels
    cdef Range down, across
    cdef const real* source
    cdef real* target
    cdef bint dense = columns.dilation == 1 and image.pixel == channels
    cdef real[FRAME] framed
    cdef Frame frame = _frame(image, rows, columns)
    with nogil:
        if rows.stride * columns.stride * rows.dilation * columns.dilation == 1 and channels % LANES == 0:
            _fold_by_pixel(patches, dx, image, rows, columns)
            return
        if 0 < frame.row <= frame.size <= FRAME and columns.dilation == 1:
            _fold_framed(patches, dx, image, rows, columns, frame, framed)
            return
        for n in range(image.images):
            for h in range(rows.length):
                for w in range(1 if dense else columns.length):
                    target = dx + n * image.image + h * image.row + w * image.pixel
                    memset(target, 0, (columns.length if dense else 1) * channels * sizeof(real))
            for i in range(rows.size - 1, -1, -1):
                down = _inside(rows, i)
                for j in range(columns.size - 1, -1, -1):
                    across = _inside(columns, j)
                    r = (n * rows.size + i) * columns.size + j
                    for p in range(down.first, down.stop):
                        q = across.first
                        while q < across.stop:
                            length = (across.stop - across.first if dense else 1) * channels
                            source = patches + (r * rows.kernel + p) * width + q * channels
                            target = dx + n * image.image + (p * rows.dilation + down.offset) * image.row
                            target += (q * columns.dilation + across.offset) * image.pixel
                            for k in range(length):
                                target[k] += source[k]
                            q = across.stop if dense else q + 1
