# The ReLU, its gradient, and the updates of parameters: the fellow of `elements.py`.


def relu(x, out):
    """x, out of one shape: out = x where x > 0. Raises ValueError; see the plain twin."""
    if not _fit((x, out), 1):
        require_alike({"x": x}, {"out": out})
    _select_alike(x, x, out)


def relu_gradient(dy, y, out):
    """dy, y, out of one shape: out = dy where y > 0. Raises ValueError; see the plain twin."""
    if not _fit((dy, y, out), 1):
        require_alike({"dy": dy, "y": y}, {"out": out})
    _select_alike(dy, y, out)


def momentum_update(weight, gradient, history, rate, momentum, decay, new_weight, new_history):
    """All arrays of one shape. Raises ValueError; see the plain twin."""
    if not _fit((weight, gradient, history, new_weight, new_history), 2):
        arrays = {"weight": weight, "gradient": gradient, "history": history}
        require_alike(arrays, {"new_weight": new_weight, "new_history": new_history})
    _update(CAFFE, weight, gradient, history, rate, momentum, decay, new_weight, new_history)


def torch_update(weight, gradient, history, rate, momentum, decay, new_weight, new_history):
    """All arrays of one shape. Raises ValueError; see the plain twin."""
    if not _fit((weight, gradient, history, new_weight, new_history), 2):
        arrays = {"weight": weight, "gradient": gradient, "history": history}
        require_alike(arrays, {"new_weight": new_weight, "new_history": new_history})
    _update(TORCH, weight, gradient, history, rate, momentum, decay, new_weight, new_history)


def adagrad_update(weight, gradient, squares, rate, epsilon, decay, new_weight, new_squares):
    """All arrays of one shape. Raises ValueError; see the plain twin."""
    if not _fit((weight, gradient, squares, new_weight, new_squares), 2):
        arrays = {"weight": weight, "gradient": gradient, "squares": squares}
        require_alike(arrays, {"new_weight": new_weight, "new_squares": new_squares})
    _update(ADAGRAD, weight, gradient, squares, rate, epsilon, decay, new_weight, new_squares)


cdef enum:
    CAFFE, TORCH, ADAGRAD  # the rules of update


cdef Sheet _line(cnp.ndarray array) noexcept:
    # All elements of a dense array, as one line.
    cdef Sheet sheet
    sheet.data, sheet.length = cnp.PyArray_BYTES(array), cnp.PyArray_SIZE(array)
    sheet.images = sheet.rows = 1
    sheet.image = sheet.row = 0
    return sheet


cdef _read_line(array, bint flat, bint pixels, Sheet* sheet):
    # As `_read_sheet`: all elements at once, or line by line where arrays are not dense in one order.
    if flat:
        sheet[0] = _line(array)
        return array
    if pixels:
        return _read_sheet(array, True, sheet)
    array = np.ascontiguousarray(array)
    sheet[0] = _line(array)
    return array


cdef _write_line(out, bint flat, bint pixels, Sheet* sheet):
    if flat or (not pixels and out.flags.c_contiguous):
        sheet[0] = _line(out)
        return out
    if pixels:
        return _write_sheet(out, True, sheet)
    target = np.empty(out.shape, out.dtype)
    sheet[0] = _line(target)
    return target


cdef int _settle_line(out, bint pixels, target) except -1:
    # As `_settle`.
    if target is not out and pixels:
        _settle(out, True, target)
    elif target is not out:
        out[...] = target
    return 0


cdef int _select_alike(x, by, out) except -1:
    cdef Sheet source, sign, target
    cdef bint flat = _flat((x, by, out))
    cdef bint pixels = not flat and out.ndim == 4 and _by_pixels(out)
    read = _read_line(x, flat, pixels, &source), _read_line(by, flat, pixels, &sign)
    written = _write_line(out, flat, pixels, &target)
    if x.itemsize == 4:
        _select[float](
            <const float*>source.data, source, <const float*>sign.data, sign, <float*>target.data, target
        )
    else:
        _select[double](
            <const double*>source.data, source, <const double*>sign.data, sign, <double*>target.data, target
        )
    return _settle_line(out, pixels, written)


cdef int _update(int rule, weight, gradient, state, rate, carry, decay, new_weight, new_state) except -1:
    cdef double lr = rate, kept = carry, lost = decay
    cdef Sheet w, g, s, moved, grown
    cdef bint flat = _flat((weight, gradient, state, new_weight, new_state))
    cdef bint pixels = not flat and new_state.ndim == 4 and _by_pixels(new_state)
    read = _read_line(weight, flat, pixels, &w), _read_line(gradient, flat, pixels, &g), \
        _read_line(state, flat, pixels, &s)
    to_weight, to_state = _write_line(new_weight, flat, pixels, &moved), _write_line(new_state, flat, pixels, &grown)
    if weight.itemsize == 4:
        _updated[float](
            rule, <const float*>w.data, w, <const float*>g.data, g, <const float*>s.data, s,
            <float>lr, <float>kept, <float>lost, <float*>moved.data, moved, <float*>grown.data, grown,
        )
    else:
        _updated[double](
            rule, <const double*>w.data, w, <const double*>g.data, g, <const double*>s.data, s,
            lr, kept, lost, <double*>moved.data, moved, <double*>grown.data, grown,
        )
    _settle_line(new_weight, pixels, to_weight)
    return _settle_line(new_state, pixels, to_state)


cdef vectorised _select(
    const real* x, Sheet source, const real* by, Sheet sign, real* out, Sheet target
) noexcept:
    cdef Py_ssize_t a, b, c, start, length
    cdef const real* value
    cdef const real* chosen
    cdef real* to
    cdef real[BLOCK] kept
    with nogil:
        for a in range(target.images):
            for b in range(target.rows):
                value, chosen = x + a * source.image + b * source.row, by + a * sign.image + b * sign.row
                to = out + a * target.image + b * target.row
                for start in range(0, target.length, BLOCK):
                    length = min(BLOCK, target.length - start)
                    for c in range(length):
                        kept[c] = 0 if chosen[start + c] <= 0 else value[start + c]
                    for c in range(length):
                        to[start + c] = kept[c]


cdef inline inlined _step(
    int rule,
    const real* weight,
    const real* gradient,
    const real* state,
    real rate,
    real carry,
    real decay,
    real* moved,
    real* grown,
    Py_ssize_t length,
) noexcept nogil:
    # The new weight and state of a few elements; `carry` is the momentum, or AdaGrad's epsilon.
    cdef Py_ssize_t c
    cdef real slope
    if rule == CAFFE:
        for c in range(length):
            grown[c] = state[c] * carry + (gradient[c] + weight[c] * decay) * rate
            moved[c] = weight[c] - grown[c]
    elif rule == TORCH:
        for c in range(length):
            grown[c] = state[c] * carry + (gradient[c] + weight[c] * decay)
            moved[c] = weight[c] - grown[c] * rate
    else:
        for c in range(length):
            slope = gradient[c] + weight[c] * decay
            grown[c] = state[c] + slope * slope
            moved[c] = weight[c] - slope * rate / (_root(grown[c]) + carry)


cdef vectorised _updated(
    int rule,
    const real* weight,
    Sheet w,
    const real* gradient,
    Sheet g,
    const real* state,
    Sheet s,
    real rate,
    real carry,
    real decay,
    real* new_weight,
    Sheet m,
    real* new_state,
    Sheet n,
) noexcept:
    cdef Py_ssize_t a, b, start, length
    cdef real[BLOCK] moved, grown
    with nogil:
        for a in range(w.images):
            for b in range(w.rows):
                for start in range(0, w.length, BLOCK):
                    length = min(BLOCK, w.length - start)
                    _step(
                        rule,
                        weight + a * w.image + b * w.row + start,
                        gradient + a * g.image + b * g.row + start,
                        state + a * s.image + b * s.row + start,
                        rate, carry, decay, moved, grown, length,
                    )
                    memcpy(new_weight + a * m.image + b * m.row + start, moved, length * sizeof(real))
                    memcpy(new_state + a * n.image + b * n.row + start, grown, length * sizeof(real))
