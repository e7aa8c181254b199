# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twin of `lines.py`: the same names, signatures, errors and numbers.

It reads a line in the spelling that nearly all writers use: one object, plain ASCII strings, numbers of at most 18
digits. Whatever else a line holds, right or wrong, it leaves to the plain `decode_line`. Built by `setup.py`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t
from libc.string cimport memcmp

import numpy as np

from purine_ref._fast.events import MOST_IN_LINE, NUMBERS
from purine_ref._fast.lines import decode_line

cdef extern from "Python.h":
    object PyUnicode_FromStringAndSize(const char* text, Py_ssize_t size)

# What this module was built for; see `_loops.pyx`.
ABI = 6

cdef enum:  # as in `events.py`
    ABSENT = -1
    UNKNOWN = -2
    START = 1
    RECEIVED = 3
    END = 4
    ADDED = 5
    READY = 6
    FAILED = 7
    FAILED_THERE = 8
    SWAPPED = 10
    STOP = 11
    ZERO = 48  # the character 0

cdef enum:  # the keys that a line has, as bits
    K_SEQ = 1
    K_EVENT = 2
    K_ITERATION = 4
    K_OP = 8
    K_BLOB = 16
    K_WORKER = 32
    K_TIME = 64
    K_STREAM = 128
    K_LOCATION = 256

cdef struct Text:
    const char* at
    const char* end

cdef struct Line:
    # What a line says; of a string, where it is.
    int seen
    int64_t seq, iteration, rank, device
    Text event, op, blob, worker, stream


def encode_lines(list lines not None, names, rows):
    """Write a row for each line; returns how many. Raises ValueError for a bad line, with `args` (words, its index)."""
    cdef int64_t[:, ::1] events = rows
    cdef Py_ssize_t index
    if len(lines) > events.shape[0] or events.shape[1] != 6:
        raise IndexError(f"rows: expected {len(lines)} of 6, got {events.shape[0]} of {events.shape[1]}")
    if names.prepared is None:
        names.prepared = Table(names)
    cdef Table table = names.prepared
    for index in range(len(lines)):
        line = lines[index]
        if table.encode(line, &events[index, 0]):
            continue
        try:
            rows[index] = decode_line(line, names)
        except ValueError as error:
            raise ValueError(str(error), index) from None
    return len(lines)


cdef class Table:
    """The names of a graph, and the places of its operators as numbers."""

    cdef dict _kinds, _ops, _blobs, _workers
    cdef list _streams
    cdef const int64_t[:, ::1] _places

    def __init__(self, names):
        self._kinds, self._ops, self._blobs, self._workers = NUMBERS, names.ops, names.blobs, names.workers
        self._streams = [place.stream for place in names.places]
        places = [(*place.source, *place.target) for place in names.places]
        self._places = np.array(places, np.int64).reshape(len(places), 4)

    cdef bint encode(self, line, int64_t* row) except -1:
        """Read a line in the usual spelling; False, and nothing counts, for every other."""
        cdef Text text
        cdef Line found
        cdef int64_t kind, op, blob, worker = ABSENT
        if not PyBytes_CheckExact(line) or PyBytes_GET_SIZE(line) >= MOST_IN_LINE:
            return False
        text.at = PyBytes_AS_STRING(line)
        text.end = text.at + PyBytes_GET_SIZE(line)
        if not _parse(&text, &found):
            return False
        kind = _find(self._kinds, &found.event)
        if kind < 0 or (found.seen & ~(K_WORKER | K_TIME | K_STREAM | K_LOCATION)) != _wanted(kind, found.seen):
            return False
        op = _find(self._ops, &found.op) if found.seen & K_OP else ABSENT
        blob = _find(self._blobs, &found.blob) if found.seen & K_BLOB else ABSENT
        if found.seen & (K_STREAM | K_LOCATION) and not self._placed(&found, &kind, op):
            return False
        if found.seen & K_WORKER:
            worker = _find(self._workers, &found.worker)
            if worker < 0:
                return False  # the plain twin gives it a number
        row[0], row[1], row[2] = found.seq, kind, ABSENT if kind == STOP else found.iteration
        row[3], row[4], row[5] = op, blob, worker
        return True

    cdef bint _placed(self, Line* found, int64_t* kind, int64_t op) except -1:
        """Whether a place or a stream is the operator's. `failed` becomes another kind where a copy writes."""
        cdef bint located = found.seen & K_LOCATION
        if op < 0:
            return False
        cdef const int64_t* place = &self._places[op, 0]
        cdef bint there = found.rank == place[2] and found.device == place[3]
        cdef bint here = found.rank == place[0] and found.device == place[1]
        if located and kind[0] == FAILED and there and not here:
            kind[0] = FAILED_THERE
        if located and not (there if kind[0] in (RECEIVED, END, FAILED_THERE) else here):
            return False
        stream = self._streams[op]
        return not found.seen & K_STREAM or stream is None or stream == _text(&found.stream)


cdef int _wanted(int64_t kind, int seen) noexcept nogil:
    """The keys of an event, as bits; an operator's failure may name it."""
    cdef int wanted = K_SEQ | K_EVENT
    if kind != STOP:
        wanted |= K_ITERATION
    if START <= kind <= ADDED or (kind == FAILED and seen & K_OP):
        wanted |= K_OP
    if kind == ADDED or kind == READY or kind == SWAPPED:
        wanted |= K_BLOB
    return wanted


cdef object _text(Text* word):
    return PyUnicode_FromStringAndSize(word.at, word.end - word.at)


cdef int64_t _find(dict numbers, Text* word) except -3:
    """The number of a name; UNKNOWN where it has none."""
    cdef PyObject* found = PyDict_GetItem(numbers, _text(word))
    return UNKNOWN if found == NULL else <int64_t> <object> found


cdef bint _parse(Text* text, Line* line) noexcept nogil:
    """Read the keys and values of a flat object, of which one may be a location."""
    cdef Text word
    cdef int key
    line.seen, line.iteration = 0, ABSENT
    if not _take(text, b"{"):
        return False
    while True:
        if not _string(text, &word) or not _take(text, b":"):
            return False
        key = _key(&word)
        if not key or line.seen & key or not _value(text, line, key):
            return False
        line.seen |= key
        if _take(text, b","):
            continue
        return _take(text, b"}") and _blank(text) and text.at == text.end


cdef bint _value(Text* text, Line* line, int key) noexcept nogil:
    if key == K_SEQ:
        return _natural(text, &line.seq)
    if key == K_EVENT:
        return _string(text, &line.event)
    if key == K_ITERATION:
        return _natural(text, &line.iteration)
    if key == K_OP:
        return _string(text, &line.op)
    if key == K_BLOB:
        return _string(text, &line.blob)
    if key == K_WORKER:
        return _string(text, &line.worker)
    if key == K_STREAM:
        return _string(text, &line.stream)
    if key == K_LOCATION:
        return _location(text, line)
    return _decimal(text)


cdef int _key(Text* word) noexcept nogil:
    """The bit of a key, 0 for another."""
    cdef Py_ssize_t size = word.end - word.at
    if size == 2:
        return K_OP if memcmp(word.at, b"op", 2) == 0 else 0
    if size == 3:
        return K_SEQ if memcmp(word.at, b"seq", 3) == 0 else 0
    if size == 4:
        return K_BLOB if memcmp(word.at, b"blob", 4) == 0 else K_TIME if memcmp(word.at, b"time", 4) == 0 else 0
    if size == 5:
        return K_EVENT if memcmp(word.at, b"event", 5) == 0 else 0
    if size == 6:
        return K_WORKER if memcmp(word.at, b"worker", 6) == 0 else K_STREAM if memcmp(word.at, b"stream", 6) == 0 else 0
    if size == 8:
        return K_LOCATION if memcmp(word.at, b"location", 8) == 0 else 0
    return K_ITERATION if size == 9 and memcmp(word.at, b"iteration", 9) == 0 else 0


cdef inline bint _blank(Text* text) noexcept nogil:
    """Go past spaces."""
    while text.at < text.end and text.at[0] == b" ":
        text.at += 1
    return True


cdef inline bint _take(Text* text, char wanted) noexcept nogil:
    """Go past spaces and a character, if it is there."""
    _blank(text)
    if text.at < text.end and text.at[0] == wanted:
        text.at += 1
        return True
    return False


cdef inline bint _string(Text* text, Text* word) noexcept nogil:
    """Go past a string of plain ASCII without escapes."""
    if not _take(text, b'"'):
        return False
    word.at = text.at
    while text.at < text.end and 32 <= <signed char> text.at[0] < 127 and text.at[0] != b'"':
        if text.at[0] == b"\\":
            return False
        text.at += 1
    word.end = text.at
    return _take_here(text, b'"')


cdef inline bint _take_here(Text* text, char wanted) noexcept nogil:
    if text.at < text.end and text.at[0] == wanted:
        text.at += 1
        return True
    return False


cdef inline bint _natural(Text* text, int64_t* number) noexcept nogil:
    """Go past an integer of 0 or more, of at most 18 digits."""
    cdef const char* start
    cdef int64_t value = 0
    _blank(text)
    start = text.at
    while text.at < text.end and b"0" <= text.at[0] <= b"9" and text.at - start < 19:
        value = 10 * value + (text.at[0] - ZERO)
        text.at += 1
    number[0] = value
    return 0 < text.at - start < 19 and (start[0] != b"0" or text.at - start == 1)


cdef bint _decimal(Text* text) noexcept nogil:
    """Go past a number without an exponent."""
    cdef int64_t unused
    _take(text, b"-")
    if text.at == text.end or text.at[0] == b" " or not _natural(text, &unused):
        return False
    if not _take_here(text, b"."):
        return True
    if text.at == text.end or not b"0" <= text.at[0] <= b"9":
        return False
    while text.at < text.end and b"0" <= text.at[0] <= b"9":
        text.at += 1
    return True


cdef bint _location(Text* text, Line* line) noexcept nogil:
    """Go past a location: rank and device, in this order."""
    cdef Text word
    cdef bint negative
    if not (_take(text, b"{") and _string(text, &word) and _take(text, b":")):
        return False
    if word.end - word.at != 4 or memcmp(word.at, b"rank", 4) != 0 or not _natural(text, &line.rank):
        return False
    if not (_take(text, b",") and _string(text, &word) and _take(text, b":")):
        return False
    if word.end - word.at != 6 or memcmp(word.at, b"device", 6) != 0:
        return False
    negative = _take(text, b"-")
    if text.at == text.end or (negative and not b"1" <= text.at[0] <= b"9") or not _natural(text, &line.device):
        return False
    if negative:
        line.device = -line.device
    return _take(text, b"}")
