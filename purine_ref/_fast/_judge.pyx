# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twin of `judge.py`: the same names, signatures, errors and numbers, over flat int32 arrays.

`judge.py` documents what each method does. Numbers that come from a caller are checked by `events.require_rows`, those
of the wiring when it is flattened. Built by `setup.py`.
"""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memset

import numpy as np

from purine_ref._fast.edges import flatten, numbers
from purine_ref._fast.events import MOST_WORKERS, require_rows

# What this module was built for; see `_loops.pyx`.
ABI = 6

cdef enum:  # as in `events.py` and `judge.py`
    ABSENT = -1
    BEGIN = 0
    START = 1
    SENT = 2
    RECEIVED = 3
    END = 4
    ADDED = 5
    READY = 6
    FAILED = 7
    FAILED_THERE = 8
    FINISH = 9
    SWAPPED = 10
    STOP = 11
    HAS_START = 1
    HAS_SENT = 2
    HAS_RECEIVED = 4
    HAS_END = 8
    HAS_FAILED = 16
    HAS_FAILED_THERE = 32
    BROKEN = 48
    IDLE = 0
    BETWEEN = 1
    RUNNING = 2
    FAILED_RUN = 3
    STOPPED = 4
    F_SEQUENCE = 1
    F_ITERATION = 2
    F_OP_NAME = 3
    F_BLOB_NAME = 4
    F_PLACE = 5
    F_AFTER_STOP = 6
    F_NO_RUN = 7
    F_BEGIN_RUNNING = 8
    F_BEGIN_NUMBER = 9
    F_NOT_SWAPPED = 10
    F_BEGIN_BUSY = 11
    F_TWICE = 12
    F_NOT_STARTED = 13
    F_NO_HALF = 14
    F_EDGE = 15
    F_STREAM = 16
    F_READ_LOST = 17
    F_WRITE_OVER_READ = 18
    F_WRITE_OVER_WRITE = 19
    F_ADD_SINGLE = 20
    F_ADD_ORDER = 21
    F_ADD_EARLY = 22
    F_READY_EARLY = 23
    F_READY_TWICE = 24
    F_READY_LATE = 25
    F_AFTER_FAILURE = 26
    F_FINISH_OP = 27
    F_FINISH_BLOB = 28
    F_STOP_RUNNING = 29
    F_SWAP_RUNNING = 30
    F_SWAP_TWICE = 31
    F_SWAP_NO_PAIR = 32
    F_FAILED_IDLE = 33

cdef struct Rows:
    # Lists of integers, one after the other: row i is flat[starts[i]:starts[i + 1]].
    const int32_t* starts
    const int32_t* flat


cdef class Judge:
    """The state that a trace has reached; see the plain twin."""

    cdef list _arrays  # keeps alive what the pointers lead to
    cdef Rows _inputs, _outputs, _producers, _consumers, _overlaps
    cdef int32_t *_needs
    cdef int32_t *_queues
    cdef int32_t *_sources
    cdef int32_t *_targets
    cdef int32_t *_moves
    cdef int32_t *_lasts
    cdef int32_t *_held0
    cdef int32_t *_pair
    cdef int32_t *_firsts
    cdef int32_t *_aliased
    cdef int32_t *_bits
    cdef int32_t *_waiting
    cdef int32_t *_missing
    cdef int32_t *_added
    cdef int32_t *_announced
    cdef int32_t *_busy
    cdef int32_t *_lost
    cdef int32_t *_spent
    cdef int32_t *_readers
    cdef int32_t *_writers
    cdef int32_t *_over
    cdef int32_t *_held
    cdef int32_t *_swapped
    cdef int32_t *_waiting0
    cdef int32_t *_missing0
    cdef Py_ssize_t _ops, _blobs, _pairs, _queue_count, _rank_count, _ops_left, _blobs_left, _blobs_made
    cdef bint _failures
    cdef readonly int phase
    cdef readonly int fault
    cdef readonly int64_t iteration, last, a, b
    cdef readonly Py_ssize_t starts, finished, failed, computing

    def __init__(self, wiring):
        cdef Py_ssize_t op, blob
        self._arrays = []
        self._ops, self._blobs, self._pairs = len(wiring.needs), len(wiring.producers), len(wiring.pairs)
        self._needs = self._kept(numbers("needs", wiring.needs, 15))
        self._queues = self._kept(np.array(wiring.queues, np.int32))
        self._sources = self._kept(numbers("source_ranks", wiring.source_ranks))
        self._targets = self._kept(numbers("target_ranks", wiring.target_ranks))
        self._moves = self._kept(numbers("moves", wiring.moves, 1))
        self._lasts, self._held0 = self._kept(numbers("lasts", wiring.lasts, 1)), self._kept(numbers("held", wiring.held, 1))
        self._inputs = self._rows("inputs", wiring.inputs, self._blobs)
        self._outputs = self._rows("outputs", wiring.outputs, self._blobs)
        self._producers = self._rows("producers", wiring.producers, self._ops)
        self._consumers = self._rows("consumers", wiring.consumers, self._ops)
        self._overlaps = self._rows("overlaps", wiring.overlaps, self._blobs)
        self._waiting0 = self._kept(numbers("waiting", wiring.waiting))
        self._missing0 = self._kept(numbers("missing", wiring.missing))
        self._firsts = self._kept(numbers("pairs", [first for first, _ in wiring.pairs], self._blobs - 1))
        self._queue_count = 1 + max(wiring.queues, default=-1)
        self._rank_count = 1 + max((*wiring.source_ranks, *wiring.target_ranks), default=-1)
        self._pair, self._swapped = self._made(self._blobs), self._made(self._pairs)
        self._aliased, self._bits, self._waiting = self._made(self._ops), self._made(self._ops), self._made(self._ops)
        self._missing, self._added = self._made(self._blobs), self._made(self._blobs)
        self._announced, self._held = self._made(self._blobs), self._made(self._blobs)
        self._readers, self._writers, self._over = (
            self._made(self._blobs), self._made(self._blobs), self._made(self._blobs))
        self._busy, self._lost = self._made(self._queue_count), self._made(self._rank_count)
        self._spent = self._made(MOST_WORKERS)
        self._prepare()
        self.phase = IDLE
        self.iteration = self.last = -1
        self.fault = 0
        self.a = self.b = 0
        self.starts = self.finished = self.failed = 0
        self._failures = False
        self._reset()

    cdef int32_t* _kept(self, array) except? NULL:
        """The elements of an int32 array, which lives as long as the judge."""
        cdef int32_t[::1] view = array if len(array) else np.zeros(1, np.int32)
        self._arrays.append(view)
        return &view[0]

    cdef int32_t* _made(self, Py_ssize_t size) except? NULL:
        return self._kept(np.zeros(size, np.int32))

    cdef Rows _rows(self, what, rows, Py_ssize_t bound) except *:
        cdef Rows made
        starts, flat = flatten(what, rows, bound - 1)
        made.starts, made.flat = self._kept(starts), self._kept(flat)
        return made

    cdef void _prepare(self) noexcept:
        """What no run changes, from the wiring."""
        cdef Py_ssize_t op, blob, edge
        for blob in range(self._blobs):
            self._pair[blob] = -1
            self._held[blob] = self._held0[blob]
            self._blobs_made += self._missing0[blob] > 0
        for edge in range(self._pairs):
            self._pair[self._firsts[edge]] = <int32_t> edge
            self._swapped[edge] = 1
        for op in range(self._ops):
            for edge in range(self._inputs.starts[op], self._inputs.starts[op + 1]):
                self._aliased[op] |= self._shared(self._inputs.flat[edge])
            for edge in range(self._outputs.starts[op], self._outputs.starts[op + 1]):
                self._aliased[op] |= self._shared(self._outputs.flat[edge])

    cdef inline bint _shared(self, Py_ssize_t blob) noexcept nogil:
        return self._overlaps.starts[blob + 1] > self._overlaps.starts[blob]

    cdef void _reset(self) noexcept:
        """The state at the beginning of a run."""
        cdef Py_ssize_t op, blob, number
        for op in range(self._ops):
            self._bits[op] = 0
            self._waiting[op] = self._waiting0[op]
        for blob in range(self._blobs):
            self._missing[blob] = self._missing0[blob]
            self._added[blob] = self._announced[blob] = self._readers[blob] = self._writers[blob] = 0
            self._over[blob] = -1
            if not self._lasts[blob]:
                self._held[blob] = self._held0[blob]
        for number in range(self._queue_count):
            self._busy[number] = -1
        for number in range(self._rank_count):
            self._lost[number] = 0
        if self._failures:
            memset(self._spent, 0, <size_t> MOST_WORKERS * sizeof(int32_t))
        self._failures = False
        self._ops_left, self._blobs_left = self._ops, self._blobs_made
        self.computing = 0

    # What words need

    def begun(self, Py_ssize_t op):
        """The events of an operator in this run, as bits."""
        if not 0 <= op < self._ops:
            raise IndexError(f"operator {op}: expected 0 to {self._ops - 1}")
        return self._bits[op]

    def lacks(self, Py_ssize_t blob):
        """How many ends and additions a blob waits for."""
        if not 0 <= blob < self._blobs:
            raise IndexError(f"blob {blob}: expected 0 to {self._blobs - 1}")
        return self._missing[blob]

    def additions(self, Py_ssize_t blob):
        """How many contributions have been added to a blob."""
        if not 0 <= blob < self._blobs:
            raise IndexError(f"blob {blob}: expected 0 to {self._blobs - 1}")
        return self._added[blob]

    # Judging

    def feed(self, rows):
        """Judge rows, in order; returns how many are legal, and 0 after a fault. Raises ValueError for no events."""
        require_rows(rows, self._ops, self._blobs)
        cdef const int64_t[:, :] events = rows
        cdef Py_ssize_t index, count = events.shape[0]
        cdef int kind
        cdef int64_t seq, iteration
        cdef int32_t op, blob, worker
        with nogil:
            for index in range(count):
                if self.fault:
                    break
                seq, kind, iteration = events[index, 0], <int> events[index, 1], events[index, 2]
                op, blob, worker = <int32_t> events[index, 3], <int32_t> events[index, 4], <int32_t> events[index, 5]
                self.fault = self._expected(seq, kind, iteration, op, blob)
                if not self.fault:
                    self.fault = self._judge(kind, iteration, op, blob, worker)
                if self.fault:
                    break
                self.last = seq
            else:
                index = count
        return index if count else 0

    cdef int _judge(self, int kind, int64_t iteration, int32_t op, int32_t blob, int32_t worker) noexcept nogil:
        if kind == START:
            return self._start(op, worker)
        if kind == END:
            return self._end(op, worker)
        if kind == READY:
            return self._ready(blob)
        if kind == ADDED:
            return self._add(op, blob)
        if kind == SENT:
            return self._sent(op, worker)
        if kind == RECEIVED:
            return self._receive(op, worker)
        if kind == BEGIN:
            return self._begin(iteration)
        if kind == FINISH:
            return self._finish()
        if kind == SWAPPED:
            return self._swap(blob)
        if kind == FAILED:
            return self._fail(op, worker)
        if kind == FAILED_THERE:
            return self._fail_there(op, worker)
        if self.phase == RUNNING:
            return F_STOP_RUNNING
        self.phase = STOPPED
        return 0

    cdef int _expected(self, int64_t seq, int kind, int64_t iteration, int32_t op, int32_t blob) noexcept nogil:
        """What is wrong with an event whatever its operator has done."""
        if self.phase == STOPPED:
            return F_AFTER_STOP
        if seq <= self.last:
            return self._bad(F_SEQUENCE, self.last, -1)
        if op < ABSENT:
            return F_OP_NAME if op == -2 else F_PLACE
        if blob < ABSENT:
            return F_BLOB_NAME
        if kind == BEGIN or kind == STOP:
            return 0
        if self.phase == FAILED_RUN and (op == ABSENT or kind == START or kind == RECEIVED or blob != ABSENT):
            return F_AFTER_FAILURE
        if self.phase == IDLE or self.phase == (RUNNING if kind == SWAPPED else BETWEEN):
            return F_SWAP_RUNNING if kind == SWAPPED else F_NO_RUN
        if iteration != self.iteration:
            return self._bad(F_ITERATION, self.iteration, -1)
        return 0

    cdef inline int _bad(self, int fault, int64_t a, int64_t b) noexcept nogil:
        self.a, self.b = a, b
        return fault

    cdef int _begin(self, int64_t iteration) noexcept nogil:
        cdef int64_t expected = self.iteration + (1 if self.phase == BETWEEN else 0)
        cdef Py_ssize_t number
        if self.phase == RUNNING:
            return F_BEGIN_RUNNING
        if self.phase != IDLE and iteration != expected:
            return self._bad(F_BEGIN_NUMBER, expected, -1)
        if self.phase == FAILED_RUN and self.computing:
            return self._bad(F_BEGIN_BUSY, self._computed(), -1)
        if self.phase == BETWEEN:
            for number in range(self._pairs):
                if not self._swapped[number]:
                    return self._bad(F_NOT_SWAPPED, self._firsts[number], -1)
        self.phase, self.iteration = RUNNING, iteration
        with gil:
            self._reset()
        return 0

    cdef int _start(self, int32_t op, int32_t worker) noexcept nogil:
        cdef int32_t needs = self._needs[op], queue = self._queues[op], rank = self._sources[op], edge, blob
        cdef int fault
        if not needs & HAS_START:
            return F_NO_HALF
        if self._bits[op] & HAS_START:
            return F_TWICE
        if self._lost[rank] and (worker < 0 or self._spent[worker]):
            return F_AFTER_FAILURE
        if self._waiting[op]:
            for edge in range(self._inputs.starts[op], self._inputs.starts[op + 1]):
                blob = self._inputs.flat[edge]
                if self._missing[blob]:
                    return self._bad(F_EDGE, blob, self._owing(blob))
        if queue >= 0 and self._busy[queue] >= 0:
            return self._bad(F_STREAM, self._busy[queue], -1)
        if self._aliased[op]:
            fault = self._reads(op)
            if not fault and not needs & HAS_RECEIVED:
                fault = self._writes(op)
            if fault:
                return fault
            self._open_reads(op, 1)
            if not needs & HAS_RECEIVED:
                self._open_writes(op)
        if queue >= 0:
            self._busy[queue] = op
        self._opened(op, HAS_START, rank, worker)
        self.starts += 1
        return 0

    cdef int _receive(self, int32_t op, int32_t worker) noexcept nogil:
        cdef int32_t needs = self._needs[op], bits = self._bits[op], rank = self._targets[op]
        cdef int fault
        if not needs & HAS_RECEIVED:
            return F_NO_HALF
        if bits & HAS_RECEIVED:
            return F_TWICE
        if needs & HAS_START and not bits & HAS_START:
            return F_NOT_STARTED
        if bits & HAS_FAILED or (self._lost[rank] and (worker < 0 or self._spent[worker])):
            return F_AFTER_FAILURE
        if self._aliased[op]:
            fault = self._writes(op)
            if fault:
                return fault
            self._open_writes(op)
        self._opened(op, HAS_RECEIVED, rank, worker)
        if not needs & HAS_START:
            self.starts += 1
        return 0

    cdef int _sent(self, int32_t op, int32_t worker) noexcept nogil:
        cdef int fault = self._closable(op, HAS_SENT, HAS_START)
        if fault:
            return fault
        if self._aliased[op]:
            self._open_reads(op, -1)
        self._closed(op, HAS_SENT, self._sources[op], worker)
        self._count(op)
        return 0

    cdef int _end(self, int32_t op, int32_t worker) noexcept nogil:
        cdef int32_t edge
        cdef int fault = self._closable(op, HAS_END, self._opening(op))
        if fault:
            return fault
        self._close(op)
        self._closed(op, HAS_END, self._targets[op], worker)
        for edge in range(self._outputs.starts[op], self._outputs.starts[op + 1]):
            self._deliver(self._outputs.flat[edge])
        self._count(op)
        return 0

    cdef inline int32_t _opening(self, int32_t op) noexcept nogil:
        return HAS_RECEIVED if self._needs[op] & HAS_RECEIVED else HAS_START

    cdef inline int _closable(self, int32_t op, int32_t event, int32_t opening) noexcept nogil:
        if not self._needs[op] & event:
            return F_NO_HALF
        if self._bits[op] & event:
            return F_TWICE
        return 0 if self._bits[op] & opening else F_NOT_STARTED

    cdef void _close(self, int32_t op) noexcept nogil:
        """Let go of the stream and the memory of an operator that writes no more."""
        cdef int32_t edge
        if self._queues[op] >= 0:
            self._busy[self._queues[op]] = -1
        if self._aliased[op]:
            if not self._needs[op] & HAS_SENT:
                self._open_reads(op, -1)
            if self._moves[op]:
                for edge in range(self._outputs.starts[op], self._outputs.starts[op + 1]):
                    self._writers[self._outputs.flat[edge]] -= 1

    cdef inline void _opened(self, int32_t op, int32_t event, int32_t rank, int32_t worker) noexcept nogil:
        self._bits[op] |= event
        self.computing += 1
        if self._lost[rank] and worker >= 0:
            self._spent[worker] = 1

    cdef inline void _closed(self, int32_t op, int32_t event, int32_t rank, int32_t worker) noexcept nogil:
        self._bits[op] |= event
        self.computing -= 1
        if self._lost[rank] and worker >= 0:
            self._spent[worker] = 1

    cdef inline void _count(self, int32_t op) noexcept nogil:
        if self._bits[op] & (self._needs[op] | BROKEN) == self._needs[op]:
            self._ops_left -= 1

    cdef inline void _deliver(self, int32_t blob) noexcept nogil:
        """Count an end or an addition; the last opens the edges of the blob's consumers."""
        cdef int32_t edge
        self._missing[blob] -= 1
        if self._missing[blob] == 0:
            self._blobs_left -= 1
            if self._shared(blob):
                self._held[blob] = 1
            for edge in range(self._consumers.starts[blob], self._consumers.starts[blob + 1]):
                self._waiting[self._consumers.flat[edge]] -= 1

    cdef int _add(self, int32_t op, int32_t blob) noexcept nogil:
        cdef int32_t first = self._producers.starts[blob], edges = self._producers.starts[blob + 1] - first
        cdef int32_t count = self._added[blob]
        if edges < 2:
            return F_ADD_SINGLE
        if count == edges:
            return self._bad(F_ADD_ORDER, -1, -1)
        if self._producers.flat[first + count] != op:
            return self._bad(F_ADD_ORDER, self._producers.flat[first + count], -1)
        if not self._bits[op] & self._opening(op):
            return F_ADD_EARLY
        self._added[blob] += 1
        self._deliver(blob)
        return 0

    cdef int _ready(self, int32_t blob) noexcept nogil:
        cdef int32_t edge, consumer
        if self._missing[blob]:
            return self._bad(F_READY_EARLY, self._owing(blob), -1)
        if self._announced[blob]:
            return F_READY_TWICE
        for edge in range(self._consumers.starts[blob], self._consumers.starts[blob + 1]):
            consumer = self._consumers.flat[edge]
            if self._bits[consumer] & HAS_START:
                return self._bad(F_READY_LATE, consumer, -1)
        self._announced[blob] = 1
        return 0

    cdef int _fail(self, int32_t op, int32_t worker) noexcept nogil:
        cdef int32_t closing, opening, rank
        if op == ABSENT:
            self.phase = FAILED_RUN
            self.failed += 1
            return 0
        closing = HAS_SENT if self._needs[op] & HAS_SENT else HAS_END
        opening = HAS_START if self._needs[op] & HAS_START else HAS_RECEIVED
        if not self._bits[op] & opening or self._bits[op] & closing:
            return F_FAILED_IDLE
        if closing == HAS_END:
            self._close(op)
        elif self._aliased[op]:
            self._open_reads(op, -1)
        rank = self._sources[op]
        self._lost[rank] = 1
        self._failures = True
        self._closed(op, closing | HAS_FAILED, rank, worker)
        return 0

    cdef int _fail_there(self, int32_t op, int32_t worker) noexcept nogil:
        cdef int32_t rank = self._targets[op]
        if not self._bits[op] & HAS_RECEIVED or self._bits[op] & HAS_END:
            return F_FAILED_IDLE
        self._close(op)
        self._lost[rank] = 1
        self._failures = True
        self._closed(op, HAS_END | HAS_FAILED_THERE, rank, worker)
        return 0

    cdef int _finish(self) noexcept nogil:
        cdef int32_t blob
        cdef Py_ssize_t number
        if self.computing:
            return self._bad(F_FINISH_OP, self._computed(), -1)
        if self._ops_left:
            return self._bad(F_FINISH_OP, self._undone(), -1)
        if self._blobs_left:
            for blob in range(<int32_t> self._blobs):
                if self._missing[blob]:
                    return self._bad(F_FINISH_BLOB, blob, self._owing(blob))
        self.phase = BETWEEN
        self.finished += 1
        for number in range(self._pairs):
            self._swapped[number] = 0
        return 0

    cdef int _swap(self, int32_t blob) noexcept nogil:
        cdef int32_t number = self._pair[blob], place, other
        if number < 0:
            return F_SWAP_NO_PAIR
        if self._swapped[number]:
            return F_SWAP_TWICE
        self._swapped[number] = 1
        self._held[blob] |= self._held0[blob]
        for place in range(self._overlaps.starts[blob], self._overlaps.starts[blob + 1]):
            other = self._overlaps.flat[place]
            self._held[other] |= self._held0[other]
        return 0

    # Shared memory (rule R5)

    cdef int _reads(self, int32_t op) noexcept nogil:
        cdef int32_t edge, blob
        for edge in range(self._inputs.starts[op], self._inputs.starts[op + 1]):
            blob = self._inputs.flat[edge]
            if self._shared(blob) and not self._held[blob]:
                return self._bad(F_READ_LOST, blob, self._over[blob])
        return 0

    cdef int _writes(self, int32_t op) noexcept nogil:
        """Whether others read or write what the operator is about to write."""
        cdef int32_t edge, blob, place, other
        if not self._moves[op]:
            return 0
        for edge in range(self._outputs.starts[op], self._outputs.starts[op + 1]):
            blob = self._outputs.flat[edge]
            if not self._shared(blob):
                continue
            if self._readers[blob]:
                return self._bad(F_WRITE_OVER_READ, blob, blob)
            for place in range(self._overlaps.starts[blob], self._overlaps.starts[blob + 1]):
                other = self._overlaps.flat[place]
                if self._readers[other]:
                    return self._bad(F_WRITE_OVER_READ, blob, other)
                if self._writers[other]:
                    return self._bad(F_WRITE_OVER_WRITE, blob, other)
        return 0

    cdef void _open_reads(self, int32_t op, int32_t change) noexcept nogil:
        cdef int32_t edge
        for edge in range(self._inputs.starts[op], self._inputs.starts[op + 1]):
            self._readers[self._inputs.flat[edge]] += change

    cdef void _open_writes(self, int32_t op) noexcept nogil:
        cdef int32_t edge, blob, place, other
        if not self._moves[op]:
            return
        for edge in range(self._outputs.starts[op], self._outputs.starts[op + 1]):
            blob = self._outputs.flat[edge]
            self._writers[blob] += 1
            if not self._shared(blob):
                continue
            self._held[blob], self._over[blob] = 0, op
            for place in range(self._overlaps.starts[blob], self._overlaps.starts[blob + 1]):
                other = self._overlaps.flat[place]
                self._held[other], self._over[other] = 0, op

    # Who is to blame

    cdef int64_t _owing(self, int32_t blob) noexcept nogil:
        """The first producer that has not delivered to a blob that is not ready."""
        cdef int32_t edge, producer, first = self._producers.starts[blob], last = self._producers.starts[blob + 1]
        for edge in range(first, last):
            producer = self._producers.flat[edge]
            if self._bits[producer] & (HAS_END | BROKEN) != HAS_END:
                return producer
        edge = first + self._added[blob]
        return self._producers.flat[edge if edge < last else first]

    cdef int64_t _undone(self) noexcept nogil:
        """The first operator that could run and has not, or else the first that has not."""
        cdef int64_t op, found = -1
        for op in range(self._ops):
            if self._bits[op] & (self._needs[op] | BROKEN) != self._needs[op]:
                if not self._waiting[op]:
                    return op
                if found < 0:
                    found = op
        return found

    cdef int64_t _computed(self) noexcept nogil:
        """The first operator that computes."""
        cdef int64_t op
        cdef int32_t needs, bits
        for op in range(self._ops):
            needs, bits = self._needs[op], self._bits[op]
            if bits & HAS_START and not bits & (HAS_SENT if needs & HAS_SENT else HAS_END):
                return op
            if bits & HAS_RECEIVED and not bits & HAS_END:
                return op
        return -1
