# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twin of `tracker.py`: the same names, signatures, errors and order of results, over flat int32 arrays.

The counters are C arrays, and what counts them down needs no interpreter. `tracker.py` documents what each method
does. Numbers that come from a caller are checked here, since C would not; numbers that come from `Edges` are checked
when it is made. Built by `setup.py`; `__init__.py` decides whether this module is used.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_GET_ITEM
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_SIZE
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

import numpy

from purine_ref._fast.edges import LIMIT, flatten, in_words, numbers, require_rows, require_size
from purine_ref._fast.pace import FIRST_LOOK, LAST_LOOK, LOOKS, SLOW, STRIDE, WORTH, breathe, require_lock, require_workers

# What this module was built for; see `_loops.pyx`.
ABI = 6

cdef enum:
    FINISHED = -1  # as in `edges.py`
    RELEASED = -2
    SIGNALS = 255  # look for signals once in so many operators and one, since not all of them run Python code

# An operator that is a C function: it gets its number, and runs without the interpreter's lock.
ctypedef void (*Function)(int32_t op) noexcept nogil

cdef struct Counters:
    # The edges, and one run's counters. `complete` and `queue` are room for results; see `Tracker`.
    const int32_t* output_starts
    const int32_t* outputs
    const int32_t* consumer_starts
    const int32_t* consumers
    const int32_t* producers
    int32_t* waiting
    int32_t* missing
    int32_t* complete
    int32_t* queue


include "_atomics.pxi"
include "_calls.pxi"


cdef class Edges:
    """The edges of a graph; see the plain twin."""

    cdef readonly object names
    cdef readonly frozenset external
    cdef const int32_t[::1] waiting
    cdef const int32_t[::1] producers
    cdef const int32_t[::1] output_starts
    cdef const int32_t[::1] outputs
    cdef const int32_t[::1] consumer_starts
    cdef const int32_t[::1] consumers
    cdef Py_ssize_t widest

    def __init__(self, names, waiting, producers, outputs, consumers, external=()):
        if self.names is not None:
            raise RuntimeError("edges are made once, since trackers point into them: make others")
        self.waiting = numbers("waiting", waiting)
        self.producers = numbers("producers", producers)
        require_rows("names", names, len(waiting))
        require_rows("outputs", outputs, len(waiting))
        require_rows("consumers", consumers, len(producers))
        starts, self.outputs = flatten("outputs", outputs, len(producers) - 1)
        self.output_starts = starts
        self.consumer_starts, self.consumers = flatten("consumers", consumers, len(waiting) - 1)
        self.external = frozenset(numbers("external", external, len(waiting) - 1).tolist())
        self.names = names
        self.widest = numpy.diff(starts).max(initial=0)


cdef class Tracker:
    """The readiness of one run; see the plain twin.

    An operator's count reaches 0 once, so `queue` needs room for the operators that a caller puts there and for all of
    them once more; `complete` for the outputs of one operator.
    """

    cdef Edges _edges
    cdef Counters _counters
    cdef int32_t* _memory
    cdef Py_ssize_t _operators, _blobs, _left, _head, _tail
    cdef set _outside
    cdef public bint halted
    cdef readonly Py_ssize_t current

    def __cinit__(self, *_):
        self._memory = NULL
        self._operators = self._blobs = self._left = self._head = self._tail = 0
        self.halted = False
        self.current = -1

    def __init__(self, Edges edges not None):
        if self._memory != NULL:
            raise RuntimeError("a tracker is made once: make another for the next run")
        self._edges = edges
        self._outside = set(edges.external)
        cdef Py_ssize_t operators = edges.waiting.shape[0], blobs = edges.producers.shape[0]
        self._memory = <int32_t*> PyMem_Malloc((3 * operators + blobs + edges.widest + 1) * sizeof(int32_t))
        if self._memory == NULL:
            raise MemoryError(f"no memory for the counters of {operators} operators and {blobs} blobs")
        cdef Counters* c = &self._counters
        c.waiting = self._memory
        c.missing = c.waiting + operators
        c.queue = c.missing + blobs
        c.complete = c.queue + 2 * operators
        c.output_starts, c.consumer_starts = &edges.output_starts[0], &edges.consumer_starts[0]
        c.outputs = &edges.outputs[0] if edges.outputs.shape[0] else NULL
        c.consumers = &edges.consumers[0] if edges.consumers.shape[0] else NULL
        c.producers = &edges.producers[0] if blobs else NULL
        if operators:
            memcpy(c.waiting, &edges.waiting[0], operators * sizeof(int32_t))
        if blobs:
            memcpy(c.missing, c.producers, blobs * sizeof(int32_t))
        self._operators, self._blobs, self._left = operators, blobs, operators

    def __dealloc__(self):
        PyMem_Free(self._memory)

    def active(self):
        """Whether an operator has yet to be released."""
        return self._left > 0

    def finish(self, Py_ssize_t op):
        """Count `op` as run; returns the blobs that are now complete. Raises RuntimeError for misuse."""
        self._require(op, 0, "finish")
        cdef int32_t i, count = _deliver(&self._counters, <int32_t> op, self._counters.complete)
        return [self._counters.complete[i] for i in range(count)]

    def release(self, Py_ssize_t op, complete):
        """Open the consumers' edges of the `complete` blobs; returns who may now start. Raises RuntimeError."""
        self._require(op, FINISHED, "be released")
        cdef Py_ssize_t blob, end = self._tail
        self._counters.waiting[op] = RELEASED
        self._left -= 1
        for blob in complete:
            if not 0 <= blob < self._blobs:
                raise IndexError(f"blob {blob}: expected 0 to {self._blobs - 1}")
            end += _open(&self._counters, <int32_t> blob, self._counters.queue + end)
        return self._listed(end)

    def done(self, Py_ssize_t op):
        """`finish` and `release` at once: returns the operators that may now start."""
        self._require(op, 0, "finish")
        return self._listed(self._tail + self._pass(<int32_t> op))

    def arrive(self, Py_ssize_t op):
        """Open the edge of an external operator; returns the operator, if it may now start. Raises RuntimeError."""
        self._require_number(op)
        if op not in self._outside:
            raise RuntimeError(f"{self._edges.names[op]!r} awaits nothing from outside: it is {self.state(op)}")
        self._outside.remove(op)
        self._counters.waiting[op] -= 1
        return [op] if self._counters.waiting[op] == 0 else []

    def awaits(self):
        """Whether an external operator's edge has yet to be opened."""
        return bool(self._outside)

    def state(self, Py_ssize_t op):
        """The operator's state in words."""
        self._require_number(op)
        return in_words(self._counters.waiting[op])

    def run(self, first, calls, kernels, combine):
        """Run operators, first ready, first run; see the plain twin."""
        cdef Calls flat = _flattened(calls)
        cdef tuple vocabularies = tuple(kernels)
        cdef Py_ssize_t op
        cdef int32_t i, count
        cdef Counters* c = &self._counters
        self._fill(first)
        flat._require(self._operators, len(vocabularies))
        while self._head < self._tail and not self.halted:
            op = self.current = c.queue[self._head]
            self._head += 1
            self._require(op, 0, "finish")
            if op & SIGNALS == 0:
                PyErr_CheckSignals()
            _invoke(flat._flat, flat._items, op, PySequence_Fast_ITEMS(vocabularies))
            count = _deliver(c, <int32_t> op, c.complete)
            for i in range(count):
                if c.producers[c.complete[i]] > 1:
                    combine(c.complete[i])
            self._left -= 1
            self._tail += _release(c, <int32_t> op, count, c.complete, c.queue + self._tail)

    def walk(self, first):
        """Count every operator as run, from the `first` on, without the lock; returns how many there were."""
        cdef Py_ssize_t walked
        self._fill(first)
        with nogil:
            walked = self._drain(_no_operator)
        if self._head < self._tail:
            self._require(self._counters.queue[self._head], 0, "finish")
        return walked

    @cython.final
    cdef Py_ssize_t _drain(self, Function function) noexcept nogil:
        """Run C functions until none is ready, or until one is queued that is not; returns how many were run."""
        cdef Counters* c = &self._counters
        cdef Py_ssize_t head = self._head, tail = self._tail, start = self._head
        cdef int32_t op
        while head < tail and c.waiting[c.queue[head]] == 0:
            op = c.queue[head]
            function(op)
            tail += _release(c, op, _deliver(c, op, c.complete), c.complete, c.queue + tail)
            head += 1
        self._head, self._tail = head, tail
        self._left -= head - start
        return head - start

    @cython.final
    cdef Py_ssize_t _pass(self, int32_t op) noexcept nogil:
        """Finish and release `op`; the operators that may now start are put behind the queue; returns how many."""
        self._left -= 1
        cdef Counters* c = &self._counters
        return _release(c, op, _deliver(c, op, c.complete), c.complete, c.queue + self._tail)

    @cython.final
    cdef list _listed(self, Py_ssize_t end):
        """What was put behind the queue up to `end`, as a list."""
        cdef Py_ssize_t i
        return [self._counters.queue[i] for i in range(self._tail, end)]

    @cython.final
    cdef int _fill(self, first) except -1:
        """Queue the `first` operators alone."""
        cdef Py_ssize_t op
        if len(first) > self._operators:
            raise ValueError(f"first: expected at most {self._operators} operators, got {len(first)}")
        self._head = self._tail = 0
        for op in tuple(first):
            self._require_number(op)
            self._counters.queue[self._tail] = <int32_t> op
            self._tail += 1
        return 0

    @cython.final
    cdef inline int _require(self, Py_ssize_t op, int32_t count, what) except -1:
        """Raises RuntimeError unless the operator's count is this one."""
        self._require_number(op)
        if self._counters.waiting[op] != count:
            raise RuntimeError(f"{self._edges.names[op]!r} cannot {what}: it is {self.state(op)}")
        return 0

    @cython.final
    cdef inline int _require_number(self, Py_ssize_t op) except -1:
        """Raises IndexError unless there is such an operator."""
        if not 0 <= op < self._operators:
            raise IndexError(f"operator {op}: expected 0 to {self._operators - 1}")
        return 0


cdef inline int32_t _deliver(Counters* c, int32_t op, int32_t* complete) noexcept nogil:
    """Finish `op`: count down its blobs; those that are complete are put into `complete`; returns how many."""
    cdef int32_t edge, blob, count = 0
    c.waiting[op] = FINISHED
    for edge in range(c.output_starts[op], c.output_starts[op + 1]):
        blob = c.outputs[edge]
        c.missing[blob] -= 1
        if c.missing[blob] == 0:
            complete[count] = blob
            count += 1
    return count


cdef inline int32_t _release(
    Counters* c, int32_t op, int32_t count, const int32_t* complete, int32_t* ready
) noexcept nogil:
    """Release `op`, of which `count` blobs are complete; puts who may now start into `ready`; returns how many."""
    cdef int32_t i, found = 0
    c.waiting[op] = RELEASED
    for i in range(count):
        found += _open(c, complete[i], ready + found)
    return found


cdef inline int32_t _open(Counters* c, int32_t blob, int32_t* ready) noexcept nogil:
    """Satisfy the edges out of a blob; puts who may now start into `ready`; returns how many."""
    cdef int32_t edge, op, found = 0
    for edge in range(c.consumer_starts[blob], c.consumer_starts[blob + 1]):
        op = c.consumers[edge]
        c.waiting[op] -= 1
        if c.waiting[op] == 0:
            ready[found] = op
            found += 1
    return found


cdef void _nothing(int32_t op) noexcept nogil:
    """An operator that does nothing."""


cdef Function _no_operator = _nothing  # a variable, so that the C compiler must call it


include "_team.pxi"
include "_walkers.pxi"
