# The ReLU, its gradient, and the updates of parameters: the fellow of `elements.py`.


def relu(x, out):
    """x, out of one shape: out = x where x > 0. Raises ValueError; see the plain twin."""
    _require_alike({"x": x}, {"out": out})
    way = _way((x, out))
    source, y = _read(x, way), _written(out, way)
    if x.itemsize == 4:
        _select[float](source, source, y)
    else:
        _select[double](source, source, y)
    _settle(out, way == PIXELS, y)


def relu_gradient(dy, y, out):
    """dy, y, out of one shape: out = dy where y > 0. Raises ValueError; see the plain twin."""
    _require_alike({"dy": dy, "y": y}, {"out": out})
    way = _way((dy, y, out))
    source, sign, dx = _read(dy, way), _read(y, way), _written(out, way)
    if dy.itemsize == 4:
        _select[float](source, sign, dx)
    else:
        _select[double](source, sign, dx)
    _settle(out, way == PIXELS, dx)


def momentum_update(weight, gradient, history, rate, momentum, decay, new_weight, new_history):
    """All arrays of one shape. Raises ValueError; see the plain twin."""
    arrays = {"weight": weight, "gradient": gradient, "history": history}
    _require_alike(arrays, {"new_weight": new_weight, "new_history": new_history})
    _update(CAFFE, weight, gradient, history, rate, momentum, decay, new_weight, new_history)


def torch_update(weight, gradient, history, rate, momentum, decay, new_weight, new_history):
    """All arrays of one shape. Raises ValueError; see the plain twin."""
    arrays = {"weight": weight, "gradient": gradient, "history": history}
    _require_alike(arrays, {"new_weight": new_weight, "new_history": new_history})
    _update(TORCH, weight, gradient, history, rate, momentum, decay, new_weight, new_history)


def adagrad_update(weight, gradient, squares, rate, epsilon, decay, new_weight, new_squares):
    """All arrays of one shape. Raises ValueError; see the plain twin."""
    arrays = {"weight": weight, "gradient": gradient, "squares": squares}
    _require_alike(arrays, {"new_weight": new_weight, "new_squares": new_squares})
    _update(ADAGRAD, weight, gradient, squares, rate, epsilon, decay, new_weight, new_squares)


cdef enum:
    CAFFE, TORCH, ADAGRAD  # the rules of update

cdef enum:
    FLAT, FLAT_PIXELS, PIXELS, PLANES  # how arrays of one shape are visited


cdef int _way(arrays) except -1:
    # All at once where all are dense in one order, else line by line; the last array decides by what.
    if all([array.flags.c_contiguous for array in arrays]):
        return FLAT
    out = arrays[len(arrays) - 1]
    if out.ndim != 4:
        return PLANES
    if all([array.transpose(0, 2, 3, 1).flags.c_contiguous for array in arrays]):
        return FLAT_PIXELS
    return PIXELS if _by_pixels(out) else PLANES


cdef _lines(array, int way):
    # In loop order, on three axes.
    if way == FLAT_PIXELS:
        array = array.transpose(0, 2, 3, 1)
    if way == PIXELS:
        return _sheet(array, True)
    return array.reshape(1, 1, array.size)


cdef _read(array, int way):
    return _source(_lines(array, way))


cdef _written(array, int way):
    return _target(_lines(array, way), array)


cdef int _update(int rule, weight, gradient, state, rate, carry, decay, new_weight, new_state) except -1:
    cdef int way = _way((weight, gradient, state, new_weight, new_state))
    cdef double lr = rate, kept = carry, lost = decay
    old, slope, past = _read(weight, way), _read(gradient, way), _read(state, way)
    w, s = _written(new_weight, way), _written(new_state, way)
    if weight.itemsize == 4:
        _updated[float](rule, old, slope, past, <float>lr, <float>kept, <float>lost, w, s)
    else:
        _updated[double](rule, old, slope, past, lr, kept, lost, w, s)
    _settle(new_weight, way == PIXELS, w)
    _settle(new_state, way == PIXELS, s)
    return 0


cdef vectorised _select(
    const real[:, :, ::view.contiguous] x,
    const real[:, :, ::view.contiguous] sign,
    real[:, :, ::view.contiguous] out,
) noexcept:
    cdef Py_ssize_t a, b, c, start, length
    cdef const real* source
    cdef const real* by
    cdef real* target
    cdef real[BLOCK] kept
    cdef real value
    with nogil:
        for a in range(x.shape[0]):
            for b in range(x.shape[1]):
                for start in range(0, x.shape[2], BLOCK):
                    length = min(BLOCK, x.shape[2] - start)
                    source, by, target = &x[a, b, start], &sign[a, b, start], &out[a, b, start]
                    for c in range(length):
                        value = source[c]
                        kept[c] = 0 if by[c] <= 0 else value
                    for c in range(length):
                        target[c] = kept[c]


cdef inline void _step(
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
    const real[:, :, ::view.contiguous] weight,
    const real[:, :, ::view.contiguous] gradient,
    const real[:, :, ::view.contiguous] state,
    real rate,
    real carry,
    real decay,
    real[:, :, ::view.contiguous] new_weight,
    real[:, :, ::view.contiguous] new_state,
) noexcept:
    cdef Py_ssize_t a, b, start, length
    cdef real[BLOCK] moved, grown
    with nogil:
        for a in range(weight.shape[0]):
            for b in range(weight.shape[1]):
                for start in range(0, weight.shape[2], BLOCK):
                    length = min(BLOCK, weight.shape[2] - start)
                    _step(
                        rule, &weight[a, b, start], &gradient[a, b, start], &state[a, b, start],
                        rate, carry, decay, moved, grown, length,
                    )
                    memcpy(&new_weight[a, b, start], moved, length * sizeof(real))
                    memcpy(&new_state[a, b, start], grown, length * sizeof(real))
