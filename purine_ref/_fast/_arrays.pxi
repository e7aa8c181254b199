# How arrays are seen by loops that small tensors go through: by numpy's C API, which allocates nothing, since a call
# of a few microseconds would else be mostly views and buffers. What lies in no order that a loop takes is copied first.

cdef struct Sheet:
    # Lines of adjacent elements: element e of line r of image n is at data[n * image + r * row + e].
    char* data
    Py_ssize_t images
    Py_ssize_t rows
    Py_ssize_t length
    Py_ssize_t image  # elements from an image to the next
    Py_ssize_t row


cdef struct Image:
    # Pixels of adjacent channels: channel c of pixel (n, h, w) is at data[n * image + h * row + w * pixel + c].
    char* data
    Py_ssize_t images
    Py_ssize_t height
    Py_ssize_t width
    Py_ssize_t channels
    Py_ssize_t image
    Py_ssize_t row
    Py_ssize_t pixel


cdef inline bint _is_float(array) noexcept:
    # Whether it is a numpy array of float32 or float64 in this machine's byte order, its strides whole elements.
    cdef int axis, kind
    cdef cnp.ndarray known
    if not isinstance(array, cnp.ndarray):
        return False
    known = array
    kind = cnp.PyArray_TYPE(known)
    if (kind != cnp.NPY_FLOAT and kind != cnp.NPY_DOUBLE) or not cnp.PyArray_ISNOTSWAPPED(known):
        return False
    for axis in range(cnp.PyArray_NDIM(known)):
        if cnp.PyArray_STRIDES(known)[axis] % cnp.PyArray_ITEMSIZE(known):
            return False
    return True


cdef inline bint _same_shape(cnp.ndarray a, cnp.ndarray b) noexcept:
    cdef int axis
    if cnp.PyArray_NDIM(a) != cnp.PyArray_NDIM(b):
        return False
    for axis in range(cnp.PyArray_NDIM(a)):
        if cnp.PyArray_DIMS(a)[axis] != cnp.PyArray_DIMS(b)[axis]:
            return False
    return True


cdef inline bint _dense_pixels(cnp.ndarray array) noexcept:
    # Whether (N, C, H, W) lies channels-last with nothing between its pixels.
    cdef Py_ssize_t step = cnp.PyArray_ITEMSIZE(array)
    cdef cnp.npy_intp* shape = cnp.PyArray_DIMS(array)
    cdef cnp.npy_intp* strides = cnp.PyArray_STRIDES(array)
    if cnp.PyArray_NDIM(array) != 4 or (shape[1] != 1 and strides[1] != step):
        return False
    step *= shape[1]
    if shape[3] != 1 and strides[3] != step:
        return False
    step *= shape[3]
    if shape[2] != 1 and strides[2] != step:
        return False
    step *= shape[2]
    return shape[0] == 1 or strides[0] == step


cdef bint _fit(tuple arrays, int outputs) noexcept:
    # Whether all are float arrays of one shape and dtype, and the last `outputs` of them can be written to.
    cdef Py_ssize_t k, count = len(arrays)
    cdef cnp.ndarray first, array
    if not _is_float(arrays[0]):
        return False
    first = arrays[0]
    for k in range(count):
        if not _is_float(arrays[k]):
            return False
        array = arrays[k]
        if cnp.PyArray_TYPE(array) != cnp.PyArray_TYPE(first) or not _same_shape(array, first):
            return False
        if k >= count - outputs and not cnp.PyArray_ISWRITEABLE(array):
            return False
    return True


cdef bint _flat(tuple arrays) noexcept:
    # Whether arrays that fit are all dense in one order, so that they can be visited as one line. A numpy scalar, which
    # is all that arithmetic leaves of an array without axes, is none.
    cdef bint planes = True, pixels = True
    for array in arrays:
        if not isinstance(array, cnp.ndarray):
            return False
        planes = planes and cnp.PyArray_IS_C_CONTIGUOUS(<cnp.ndarray>array)
        pixels = pixels and _dense_pixels(<cnp.ndarray>array)
    return planes or pixels


cdef bint _lay_sheet(array, bint pixels, Sheet* sheet) noexcept:
    # An array (N, C, ...) of two or four axes by channels: lines of channels, or of an image's elements. False where it
    # does not lie so.
    cdef cnp.ndarray known
    cdef Py_ssize_t item
    cdef cnp.npy_intp* shape
    cdef cnp.npy_intp* strides
    if not isinstance(array, cnp.ndarray):
        return False
    known = array
    item, shape, strides = cnp.PyArray_ITEMSIZE(known), cnp.PyArray_DIMS(known), cnp.PyArray_STRIDES(known)
    if cnp.PyArray_NDIM(known) == 2:
        if strides[0] % item or strides[1] % item or (pixels and shape[1] != 1 and strides[1] != item):
            return False
        if pixels:
            sheet.rows, sheet.length, sheet.row = 1, shape[1], 0
        else:
            sheet.rows, sheet.length, sheet.row = shape[1], 1, strides[1] // item
    elif cnp.PyArray_NDIM(known) == 4:
        if strides[0] % item or strides[1] % item or strides[3] % item:
            return False
        if shape[2] != 1 and strides[2] != strides[3] * shape[3] and shape[3] != 1:
            return False
        if pixels:
            if shape[1] != 1 and strides[1] != item:
                return False
            sheet.rows, sheet.length, sheet.row = shape[2] * shape[3], shape[1], strides[3] // item
            if shape[3] == 1:
                if strides[2] % item:
                    return False
                sheet.row = strides[2] // item
        else:
            if (shape[3] != 1 and strides[3] != item) or (shape[3] == 1 and shape[2] != 1 and strides[2] != item):
                return False
            sheet.rows, sheet.length, sheet.row = shape[1], shape[2] * shape[3], strides[1] // item
    else:
        return False
    sheet.data, sheet.images, sheet.image = cnp.PyArray_BYTES(known), shape[0], strides[0] // item
    return True


cdef bint _dense_lines(Sheet* sheet, Py_ssize_t count) noexcept:
    # Whether so many lines at a time can be seen as one.
    return sheet.rows % count == 0 and sheet.row == sheet.length


cdef void _join_lines(Sheet* sheet, Py_ssize_t count) noexcept:
    sheet.rows, sheet.length, sheet.row = sheet.rows // count, sheet.length * count, sheet.row * count


cdef Sheet _see_sheet(cnp.ndarray array) noexcept:
    # An array in loop order on three axes, the elements of the last adjacent.
    cdef Sheet sheet
    cdef Py_ssize_t item = cnp.PyArray_ITEMSIZE(array)
    cdef cnp.npy_intp* shape = cnp.PyArray_DIMS(array)
    cdef cnp.npy_intp* strides = cnp.PyArray_STRIDES(array)
    sheet.data = cnp.PyArray_BYTES(array)
    sheet.images, sheet.rows, sheet.length = shape[0], shape[1], shape[2]
    sheet.image, sheet.row = strides[0] // item, strides[1] // item
    return sheet


cdef _read_sheet(array, bint pixels, Sheet* sheet):
    # An array (N, C, ...) to read, as lines; returns what owns the memory that they lie in.
    if not _lay_sheet(array, pixels, sheet):
        array = _whole(_source(_sheet(array, pixels)))
        sheet[0] = _see_sheet(array)
    return array


cdef _write_sheet(out, bint pixels, Sheet* sheet):
    # An array to write, as lines: `out`, or memory from which `_settle` brings the result.
    if not _lay_sheet(out, pixels, sheet):
        target = _target(_sheet(out, pixels), out)
        out = target if _whole(target) is target else np.empty(target.shape, target.dtype)
        sheet[0] = _see_sheet(out)
    return out


cdef _whole(array):
    # The array, or a copy where its elements lie across each other's places, as the fields of a record may.
    for stride in array.strides:
        if stride % array.itemsize:
            return array.copy()
    return array


cdef bint _lay_image(array, Image* image) noexcept:
    # (N, C, H, W) as pixels; False where channels are not adjacent, or it is no float array of four axes.
    cdef cnp.ndarray known
    cdef Py_ssize_t item
    cdef cnp.npy_intp* shape
    cdef cnp.npy_intp* strides
    if not _is_float(array) or cnp.PyArray_NDIM(<cnp.ndarray>array) != 4:
        return False
    known = array
    item, shape, strides = cnp.PyArray_ITEMSIZE(known), cnp.PyArray_DIMS(known), cnp.PyArray_STRIDES(known)
    if shape[1] != 1 and strides[1] != item and cnp.PyArray_SIZE(known):  # strides of what is empty are 0
        return False
    image.data = cnp.PyArray_BYTES(known)
    image.images, image.channels, image.height, image.width = shape[0], shape[1], shape[2], shape[3]
    image.image, image.row, image.pixel = strides[0] // item, strides[2] // item, strides[3] // item
    return True


cdef bint _lay_window(cnp.ndarray x, kernel, stride, pads, dilation, Axis* rows, Axis* columns) except -1:
    # The axes of a convolution's windows on x (N, C, H, W); False for arguments that `convolved_size` refuses.
    cdef Axis axis
    cdef Py_ssize_t end, extent
    for which in range(2):
        axis.length = cnp.PyArray_DIMS(x)[which + 2]
        axis.kernel, axis.stride, axis.dilation = kernel[which], stride[which], dilation[which]
        axis.pad, end = pads[which]
        extent = axis.dilation * (axis.kernel - 1) + 1
        if axis.kernel < 1 or axis.stride < 1 or axis.dilation < 1 or axis.pad < 0 or end < 0:
            return False
        if extent > axis.length + axis.pad + end:
            return False
        axis.size = (axis.length + axis.pad + end - extent) // axis.stride + 1
        if which == 0:
            rows[0] = axis
        else:
            columns[0] = axis
    return True


cdef bint _is_matrix(array, cnp.ndarray like, Py_ssize_t rows, Py_ssize_t length, bint written) noexcept:
    # Whether it is (rows, length) of the dtype of `like`, in C order, and can be written to where that is asked.
    cdef cnp.ndarray known
    if not isinstance(array, cnp.ndarray):
        return False
    known = array
    return (
        cnp.PyArray_NDIM(known) == 2
        and cnp.PyArray_DIMS(known)[0] == rows
        and cnp.PyArray_DIMS(known)[1] == length
        and cnp.PyArray_TYPE(known) == cnp.PyArray_TYPE(like)
        and cnp.PyArray_ISNOTSWAPPED(known)
        and cnp.PyArray_IS_C_CONTIGUOUS(known)
        and (not written or cnp.PyArray_ISWRITEABLE(known))
    )
