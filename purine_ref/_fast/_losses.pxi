# The softmax cross-entropy, its gradient, and how many samples are right: the fellow of `losses.py`.
#
# Exponentials and logarithms are numpy's, of all samples at once, so that both twins have the same bits.

cdef object _exponential = np.exp, _logarithm = np.log


cdef struct Samples:
    # Rows of logits in C order, and their labels.
    char* logits
    const int64_t* label
    Py_ssize_t count
    Py_ssize_t classes
    bint single  # float32


def cross_entropy(logits, label, losses):
    """logits (M, K), label (M,) -> losses (M,), float64. Raises ValueError; see the plain twin."""
    cdef Samples samples
    cdef Py_ssize_t m
    held = _see_samples(logits, label, &samples)
    if not _is_doubles(losses, samples.count):
        require_out(losses, "losses", label.shape, np.float64)
    cdef cnp.ndarray out = losses, powers = _room(samples.count, samples.classes)
    cdef cnp.ndarray totals = _room(samples.count, 1), own = _room(samples.count, 1)
    cdef double* power = <double*>cnp.PyArray_DATA(powers)
    cdef double* total = <double*>cnp.PyArray_DATA(totals)
    cdef double* chosen = <double*>cnp.PyArray_DATA(own)
    cdef Py_ssize_t step = cnp.PyArray_STRIDES(out)[0]
    if not _shift_rows(&samples, power):
        return False
    for m in range(samples.count):
        chosen[m] = power[m * samples.classes + samples.label[m]]
    _exponential(powers, powers)
    _add_rows(power, samples.count, samples.classes, total)
    _logarithm(totals, totals)
    for m in range(samples.count):
        (<double*>(cnp.PyArray_BYTES(out) + m * step))[0] = total[m] - chosen[m]
    return True


def cross_entropy_gradient(logits, label, factor, dlogits):
    """logits (M, K), label (M,) -> dlogits (M, K). Raises ValueError; see the plain twin."""
    cdef Samples samples
    cdef double scale = factor
    held = _see_samples(logits, label, &samples)
    if not _is_float(dlogits) or not _same_shape(dlogits, logits) or not cnp.PyArray_ISWRITEABLE(<cnp.ndarray>dlogits):
        require_out(dlogits, "dlogits", logits.shape, np.float64 if dlogits.dtype == np.float64 else np.float32)
    cdef cnp.ndarray powers = _room(samples.count, samples.classes), totals = _room(samples.count, 1)
    cdef cnp.ndarray target = dlogits
    cdef double* power = <double*>cnp.PyArray_DATA(powers)
    cdef double* total = <double*>cnp.PyArray_DATA(totals)
    if not _shift_rows(&samples, power):
        return False
    _exponential(powers, powers)
    _add_rows(power, samples.count, samples.classes, total)
    if not cnp.PyArray_IS_C_CONTIGUOUS(target):
        target = np.empty(dlogits.shape, dlogits.dtype)
    if cnp.PyArray_ITEMSIZE(target) == 4:
        _slopes[float](&samples, power, total, scale, <float*>cnp.PyArray_DATA(target))
    else:
        _slopes[double](&samples, power, total, scale, <double*>cnp.PyArray_DATA(target))
    if target is not dlogits:
        dlogits[...] = target
    return True


def count_hits(logits, label, k):
    """logits (M, K), label (M,) -> how many samples are right. Raises ValueError; see the plain twin."""
    cdef Samples samples
    held = _see_samples(logits, label, &samples)
    return _hits[float](&samples, NULL, k) if samples.single else _hits[double](&samples, NULL, k)


cdef tuple _see_samples(logits, label, Samples* samples):
    # Set where the logits and the labels are; returns what owns that memory. Raises ValueError.
    cdef cnp.ndarray rows, labels
    if not _are_samples(logits, label):
        require_samples(logits, label)
    rows, labels = logits, label
    if not cnp.PyArray_IS_C_CONTIGUOUS(rows):
        rows = np.ascontiguousarray(rows)
    if not cnp.PyArray_IS_C_CONTIGUOUS(labels) or not cnp.PyArray_ISALIGNED(labels):
        labels = labels.copy()
    samples.logits, samples.label = cnp.PyArray_BYTES(rows), <const int64_t*>cnp.PyArray_DATA(labels)
    samples.count, samples.classes = cnp.PyArray_DIMS(rows)[0], cnp.PyArray_DIMS(rows)[1]
    samples.single = cnp.PyArray_ITEMSIZE(rows) == 4
    return rows, labels


cdef bint _are_samples(logits, label) noexcept:
    # As `require_samples`, but for what it says.
    cdef cnp.ndarray rows, labels
    if not _is_float(logits) or not isinstance(label, cnp.ndarray):
        return False
    rows, labels = logits, label
    return (
        cnp.PyArray_NDIM(rows) == 2
        and cnp.PyArray_DIMS(rows)[1] > 0
        and cnp.PyArray_NDIM(labels) == 1
        and cnp.PyArray_DIMS(labels)[0] == cnp.PyArray_DIMS(rows)[0]
        and cnp.PyArray_TYPE(labels) == cnp.NPY_INT64
        and cnp.PyArray_ISNOTSWAPPED(labels)
    )


cdef bint _is_doubles(array, Py_ssize_t length) noexcept:
    # Whether it is so many float64, and can be written to.
    cdef cnp.ndarray known
    if not _is_float(array):
        return False
    known = array
    return (
        cnp.PyArray_NDIM(known) == 1
        and cnp.PyArray_DIMS(known)[0] == length
        and cnp.PyArray_ITEMSIZE(known) == 8
        and cnp.PyArray_ISWRITEABLE(known)
    )


cdef cnp.ndarray _room(Py_ssize_t rows, Py_ssize_t columns):
    # A matrix of float64, of any content.
    cdef cnp.npy_intp[2] shape
    shape[0], shape[1] = rows, columns
    return cnp.PyArray_EMPTY(2, shape, cnp.NPY_DOUBLE, 0)


cdef bint _shift_rows(Samples* samples, double* shifted) noexcept:
    # Each row less its largest element; False where a label is no class, or a row is nothing but -inf.
    return _shift_each[float](samples, NULL, shifted) if samples.single else _shift_each[double](samples, NULL, shifted)


cdef bint _shift_each(Samples* samples, const real* row, double* shifted) noexcept:
    # `row` only says of which dtype the logits are.
    cdef Py_ssize_t m, k, classes = samples.classes
    cdef double* to
    cdef real largest
    cdef double less
    with nogil:
        for m in range(samples.count):
            if not 0 <= samples.label[m] < classes:
                return False
            row, to = <const real*>samples.logits + m * classes, shifted + m * classes
            largest = row[0]
            for k in range(1, classes):
                # Only a NaN differs from itself; it stays.
                if row[k] > largest or row[k] != row[k]:
                    largest = row[k]
            if largest == -INFINITY:
                return False
            less = NAN if largest == INFINITY else largest
            for k in range(classes):
                to[k] = row[k] - less
    return True


cdef void _add_rows(const double* powers, Py_ssize_t samples, Py_ssize_t classes, double* total) noexcept:
    cdef Py_ssize_t m
    with nogil:
        for m in range(samples):
            total[m] = _add_plane[double](powers + m * classes, classes, 0)


cdef vectorised _slopes(Samples* samples, const double* powers, const double* total, double factor, real* to) noexcept:
    cdef Py_ssize_t m, k, classes = samples.classes
    cdef int64_t own
    with nogil:
        for m in range(samples.count):
            for k in range(classes):
                to[k] = <real>(powers[k] / total[m] * factor)
            own = samples.label[m]
            to[own] = <real>((powers[own] / total[m] - 1) * factor)
            to, powers = to + classes, powers + classes


cdef Py_ssize_t _hits(Samples* samples, const real* row, Py_ssize_t most) noexcept:
    # -1 where a label is no class. `row` only says of which dtype the logits are.
    cdef Py_ssize_t m, c, before, right = 0, classes = samples.classes
    cdef real own
    with nogil:
        for m in range(samples.count):
            if not 0 <= samples.label[m] < classes:
                return -1
            row, before = <const real*>samples.logits + m * classes, 0
            own = row[samples.label[m]]
            for c in range(classes):
                before += not (row[c] < own or (row[c] == own and c >= samples.label[m]))
            right += before < most
    return right
