# How operators are called, as flat C arrays. Included by `_tracker.pyx`, after its imports.

cdef extern from "Python.h":
    size_t PY_VECTORCALL_ARGUMENTS_OFFSET
    object PyObject_Vectorcall(PyObject* callable, PyObject** arguments, size_t count, PyObject* names)
    bint PyMethod_Check(object method)
    PyObject* PyMethod_GET_FUNCTION(object method)
    PyObject* PyMethod_GET_SELF(object method)
    PyObject** PySequence_Fast_ITEMS(object sequence)

cdef struct Call:
    # One operator's. A bound method is taken apart, so that its own memory is not touched when it is called.
    PyObject* function  # NULL where nothing is to be called
    PyObject* owner     # what a bound method is bound to, else NULL
    int32_t place
    bint made


@cython.final
cdef class Calls:
    """How to run each operator; see the plain twin. The pointers are borrowed from `_parts`, which keeps them alive."""

    cdef list _parts  # of each call the function, the inputs and the outputs: a tuple for each would take twice as much
    cdef Call* _flat
    cdef PyObject** _items  # those of `_parts`
    cdef Py_ssize_t _size
    cdef int32_t _places

    def __cinit__(self, *_):
        self._flat = NULL
        self._size = self._places = 0

    def __init__(self, calls, order=None):
        if self._flat != NULL:
            raise RuntimeError("calls are made once: make others")
        if order is None:
            calls = list(calls)
            order = range(len(calls))
        cdef Py_ssize_t size = len(order), op
        require_size("calls", size)
        self._parts = [None] * (3 * size)
        self._items = PySequence_Fast_ITEMS(self._parts)
        self._flat = <Call*> PyMem_Calloc(size + 1, sizeof(Call))
        if self._flat == NULL:
            raise MemoryError(f"no memory for the calls of {size} operators")
        for op, row in zip(order, calls, strict=True):
            if not PyTuple_Check(row) or PyTuple_GET_SIZE(row) < 4:
                raise TypeError(f"expected a call of 4 parts or more, got {row!r}")
            if not 0 <= op < size or self._flat[op].made:
                raise ValueError(f"order: expected each of {size} operators once, got {op}")
            self._parts[3 * op], self._parts[3 * op + 1], self._parts[3 * op + 2] = row[0], row[2], row[3]
            self._set(&self._flat[op], row[1], 3 * op)
        self._size = size

    def __dealloc__(self):
        PyMem_Free(self._flat)

    def __len__(self):
        return self._size

    def __getitem__(self, Py_ssize_t op):
        """The four parts of the call."""
        if not 0 <= op < self._size:
            raise IndexError(f"operator {op}: expected 0 to {self._size - 1}")
        return self._parts[3 * op], self._flat[op].place, self._parts[3 * op + 1], self._parts[3 * op + 2]

    cdef int _set(self, Call* call, object place, Py_ssize_t part) except -1:
        compute = <object> PyList_GET_ITEM(self._parts, part)
        if not 0 <= place < LIMIT:
            raise IndexError(f"place {place}: expected 0 to {LIMIT - 1}")
        call.place = place
        self._places = max(self._places, call.place + 1)
        call.function = call.owner = NULL
        call.made = True
        if PyMethod_Check(compute):
            call.function, call.owner = PyMethod_GET_FUNCTION(compute), PyMethod_GET_SELF(compute)
        elif compute is not None:
            call.function = <PyObject*> compute
        return 0

    cdef int _require(self, Py_ssize_t operators, Py_ssize_t places) except -1:
        """Raises ValueError unless there is one for each operator, IndexError for a place that is not there."""
        if self._size != operators:
            raise ValueError(f"calls: expected one for each of {operators}, got {self._size}")
        if self._places > places:
            raise IndexError(f"place {self._places - 1}: expected 0 to {places - 1}")
        return 0


cdef Calls _flattened(object calls):
    """The calls as they are, or made flat now."""
    return <Calls> calls if isinstance(calls, Calls) else Calls(calls)


cdef inline int _invoke(const Call* calls, PyObject** items, Py_ssize_t op, PyObject** kernels) except -1:
    """Run an operator that is a Python callable. Raises what it raises."""
    cdef PyObject* arguments[5]
    cdef const Call* call = &calls[op]
    if call.function == NULL:
        return 0
    arguments[2], arguments[3], arguments[4] = kernels[call.place], items[3 * op + 1], items[3 * op + 2]
    if call.owner == NULL:
        PyObject_Vectorcall(call.function, &arguments[2], 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL)
    else:
        arguments[1] = call.owner
        PyObject_Vectorcall(call.function, &arguments[1], 4 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL)
    return 0
