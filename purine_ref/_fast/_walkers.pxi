# The compiled twin of `walkers.py`: several threads run operators that are C functions. Included by `_tracker.pyx`.
#
# Nobody holds the interpreter's lock here. Each walker has a deque after Chase and Lev (SPAA 2005), with the orderings
# of Le, Pop, Cohen and Zappa Nardelli (PPoPP 2013), its fences being sequentially consistent operations instead, which
# ThreadSanitizer understands. No operator is queued twice in a run, so a deque needs no wrapping round: places only
# grow. Counters are counted down by whoever delivers, and only where somebody else may count too.

cdef enum:
    WATCH = 1  # what a walker is told when it is woken: look now and then whether the others get on
    WORK = 2   # take work

cdef int64_t _worth_without = int(WORTH * 1e9) // 4  # no interpreter's lock has to change hands

cdef struct Walker:
    int64_t top        # where others steal
    char apart[120]    # so that they do not disturb the owner's cache line, nor the one fetched with it
    int64_t bottom     # where the owner pushes and takes
    int64_t done       # operators of this run
    int32_t* places
    PyThread_type_lock bell
    int32_t asleep     # 1 from when it may be woken until somebody, perhaps itself, has taken that upon it
    int32_t message
    char far[80]


cdef class Walkers:
    """Threads that run graphs of C functions; see the plain twin."""

    cdef Edges _edges
    cdef bytes _heavy_bytes
    cdef const unsigned char* _heavy
    cdef void* _memory
    cdef int32_t* _places
    cdef Walker* _walkers
    cdef Counters _counters
    cdef Function _function
    cdef int32_t _workers
    cdef int32_t _busy, _watched, _unheard, _live, _closed  # atomic: see `_help` and `_announce`
    cdef bint _walking

    def __cinit__(self, *_):
        self._memory = NULL
        self._places = NULL
        self._workers = 0

    def __init__(self, Edges edges not None, int workers, bytes heavy=None):
        require_workers(workers)
        if heavy is not None:
            require_rows("heavy", heavy, edges.waiting.shape[0])
        if self._memory != NULL:
            raise RuntimeError("walkers are made once: make others")
        self._edges, self._heavy_bytes = edges, heavy
        self._heavy = <const unsigned char*> heavy if heavy is not None and any(heavy) else NULL
        cdef Py_ssize_t size = edges.waiting.shape[0] + 1, number
        self._memory = PyMem_Malloc((<size_t> workers + 1) * sizeof(Walker))
        self._places = <int32_t*> PyMem_Malloc(workers * size * sizeof(int32_t))
        if self._memory == NULL or self._places == NULL:
            raise MemoryError(f"no memory for {workers} walkers of {size - 1} operators")
        self._walkers = <Walker*> ((<size_t> self._memory + 127) & ~<size_t> 127)
        self._busy = self._watched = self._unheard = self._live = self._closed = 0
        self._walking = False
        for number in range(workers):
            walker = &self._walkers[number]
            walker.top = walker.bottom = walker.done = 0
            walker.places = self._places + number * size
            walker.asleep = walker.message = 0
            walker.bell = PyThread_allocate_lock()
            if walker.bell == NULL:
                raise MemoryError("no memory for a lock")
            PyThread_acquire_lock_timed(walker.bell, -1, 0)
            self._workers += 1

    def __dealloc__(self):
        for number in range(self._workers):
            PyThread_release_lock(self._walkers[number].bell)
            PyThread_free_lock(self._walkers[number].bell)
        PyMem_Free(self._memory)
        PyMem_Free(self._places)

    def walk(self, Tracker tracker not None, first, size_t function=0):
        """Run every operator from the `first` on, as walker 0; returns how many there were. See the plain twin."""
        cdef int32_t place
        cdef int64_t done
        self._admit(tracker, first)
        self._function = <Function> function if function else _no_operator
        self._walking = True
        try:
            if self._workers == 1:
                with nogil:
                    done = tracker._drain(self._function)
            else:
                self._counters = tracker._counters
                with nogil:
                    done = self._lead(tracker._counters.queue, <int32_t> tracker._tail)
                tracker._left -= done
        finally:
            self._walking = False
        tracker._head = tracker._tail = 0
        return done

    def serve(self, int number):
        """Help in every walk, until the walkers are closed. Raises IndexError for a number that is no helper's."""
        if not 1 <= number < self._workers:
            raise IndexError(f"helper {number}: expected 1 to {self._workers - 1}")
        with nogil:
            self._help(&self._walkers[number])

    def close(self):
        """Send the helpers home, those in a walk when it has ended. Raises RuntimeError in a walk."""
        self._refuse("be closed")
        exchange32(&self._closed, 1)
        for number in range(1, self._workers):
            self._wake(&self._walkers[number], WORK)

    cdef int _refuse(self, what) except -1:
        if self._walking:
            raise RuntimeError(f"walkers cannot {what} while they walk")
        return 0

    cdef int _admit(self, Tracker tracker, first) except -1:
        """Queue the first operators. Raises ValueError for another graph, RuntimeError for what cannot be run."""
        cdef Py_ssize_t operators = self._edges.waiting.shape[0], place
        self._refuse("walk")
        if load32(&self._closed):
            raise RuntimeError("walkers cannot walk when they are closed")
        if tracker._operators != operators:
            raise ValueError(f"tracker: expected one of {operators} operators, got {tracker._operators}")
        if tracker._edges is not self._edges:
            raise ValueError("tracker: expected one of the walkers' edges, got one of others")
        tracker._fill(first)
        for place in range(tracker._tail):
            tracker._require(tracker._counters.queue[place], 0, "finish")
        if len(set(first)) < tracker._tail:
            raise RuntimeError("walkers cannot start an operator twice")
        return 0

    # A walk

    @cython.final
    cdef int64_t _lead(self, const int32_t* first, int32_t count) noexcept nogil:
        """The whole walk, as walker 0, from the first operators on; returns how many operators were run."""
        cdef Walker* me = &self._walkers[0]
        cdef int32_t i
        self._begin()
        for i in range(count):
            self._push(me, first[count - 1 - i])
        self._work(me)
        while load32_ordered(&self._busy) > 0:
            self._await(me)
        exchange32(&self._live, 0)
        while load32_ordered(&self._busy) > 0:  # helpers that came too late, and find nothing
            self._await(me)
        return self._done()

    @cython.final
    cdef void _begin(self) noexcept nogil:
        """Empty deques. No helper looks into them: none is at work, and none begins while there is no walk."""
        cdef int32_t i
        for i in range(self._workers):
            store64(&self._walkers[i].top, 0)
            store64(&self._walkers[i].bottom, 0)
            store64(&self._walkers[i].done, 0)
        store32(&self._watched, 0)
        store32(&self._unheard, 0)
        exchange32(&self._live, 1)

    @cython.final
    cdef void _work(self, Walker* me) noexcept nogil:
        """Run what there is; steal more as long as operators are worth it."""
        cdef int64_t begun = now_ns(), before = me.done
        cdef int32_t op = self._pop(me)
        if op < 0:
            op = self._steal(me)
        while op >= 0:
            self._function(op)
            op = self._settle(me, op)
            store64(&me.done, me.done + 1)
            if op < 0:
                op = self._pop(me)
            if op < 0 and now_ns() - begun >= _worth_without * (me.done - before):
                begun, before = now_ns(), me.done
                op = self._steal(me)

    @cython.final
    cdef inline int32_t _settle(self, Walker* me, int32_t op) noexcept nogil:
        """Count `op` as run. Returns the first operator that may start now, or -1; the others are pushed."""
        cdef Counters* c = &self._counters
        cdef int32_t edge, consumer, blob, follower, kept = -1, spare = 0, heavy = 0
        c.waiting[op] = RELEASED
        for edge in range(c.output_starts[op], c.output_starts[op + 1]):
            blob = c.outputs[edge]
            if not last(&c.missing[blob]):
                continue
            for consumer in range(c.consumer_starts[blob], c.consumer_starts[blob + 1]):
                follower = c.consumers[consumer]
                if not last(&c.waiting[follower]):
                    continue
                if kept < 0:
                    kept = follower
                    continue
                self._push(me, follower)
                spare += 1
                if self._heavy != NULL and self._heavy[follower]:
                    heavy += 1
        if heavy or (spare and not load32(&self._watched)):
            self._announce(heavy)
        return kept

    # The deques

    @cython.final
    cdef inline void _push(self, Walker* me, int32_t op) noexcept nogil:
        cdef int64_t bottom = load64(&me.bottom)
        store32(&me.places[bottom], op)
        store64_release(&me.bottom, bottom + 1)

    @cython.final
    cdef inline int32_t _pop(self, Walker* me) noexcept nogil:
        """The operator that was pushed last, or -1."""
        cdef int64_t bottom = load64(&me.bottom) - 1, top
        cdef int32_t op = -1
        if bottom < load64(&me.top):  # empty, and only its owner could change that
            return -1
        exchange64(&me.bottom, bottom)
        top = load64_ordered(&me.top)
        if top <= bottom:
            op = load32(&me.places[bottom])
            if top < bottom:
                return op
            if not claim(&me.top, top):
                op = -1
        store64_release(&me.bottom, bottom + 1)
        return op

    @cython.final
    cdef int32_t _steal(self, Walker* me) noexcept nogil:
        """The oldest operator of another walker, or -1 where all deques are empty."""
        cdef int32_t i
        cdef int64_t top
        cdef bint lost = True
        while lost:
            lost = False
            for i in range(self._workers):
                other = &self._walkers[i]
                if other == me:
                    continue
                top = load64_ordered(&other.top)
                if top < load64_ordered(&other.bottom):
                    op = load32(&other.places[top])
                    if claim(&other.top, top):
                        return op
                    lost = True  # somebody else took it: look again
        return -1

    @cython.final
    cdef bint _queued(self) noexcept nogil:
        """Whether anything is in a deque."""
        cdef int32_t i
        for i in range(self._workers):
            if load64(&self._walkers[i].top) < load64(&self._walkers[i].bottom):
                return True
        return False

    @cython.final
    cdef int64_t _done(self) noexcept nogil:
        """How many operators of the walk were run."""
        cdef int32_t i
        cdef int64_t done = 0
        for i in range(self._workers):
            done += load64(&self._walkers[i].done)
        return done

    # Sleep. A walker that may be woken has `asleep` set; whoever takes that back, by an exchange, must ring or be up.

    @cython.final
    cdef void _announce(self, int32_t heavy) noexcept nogil:
        """Wake a helper for each heavy operator, or have one watch, if none does in this walk."""
        cdef int32_t i
        if heavy:
            exchange32(&self._unheard, 1)  # before looking who sleeps: who lies down looks here afterwards
        elif exchange32(&self._watched, 1):
            return
        for i in range(self._workers):
            if self._wake(&self._walkers[i], WORK if heavy else WATCH):
                heavy -= 1
                if heavy <= 0:
                    return

    @cython.final
    cdef bint _wake(self, Walker* walker, int32_t message) noexcept nogil:
        if exchange32(&walker.asleep, 0) == 0:
            return False
        store32(&walker.message, message)  # ordered by the bell; atomic since ThreadSanitizer does not know all bells
        PyThread_release_lock(walker.bell)
        return True

    @cython.final
    cdef int32_t _sleep(self, Walker* me, int64_t pause) noexcept nogil:
        """Sleep so many microseconds, or for ever where that is -1; returns the message, 0 where there was none."""
        if not PyThread_acquire_lock_timed(me.bell, pause, 0):
            if exchange32(&me.asleep, 0):
                return 0
            PyThread_acquire_lock_timed(me.bell, -1, 0)  # somebody is about to ring
        return load32(&me.message)

    @cython.final
    cdef void _await(self, Walker* me) noexcept nogil:
        """As the leader with nothing to do: sleep until no helper is at work, and help where one does not get on."""
        cdef int64_t pause = _first_look, seen = self._done()
        cdef int32_t message
        while True:
            exchange32(&me.asleep, 1)
            if load32_ordered(&self._busy) == 0 and exchange32(&me.asleep, 0):
                return
            message = self._sleep(me, pause)
            if message or (self._queued() and self._done() == seen):
                self._work(me)
                return
            pause, seen = min(2 * pause, _last_look), self._done()

    @cython.final
    cdef void _help(self, Walker* me) noexcept nogil:
        """What a helper does until the walkers are closed."""
        cdef int64_t pause = -1, seen = 0
        cdef int32_t message
        while True:
            exchange32(&me.asleep, 1)
            if (load32_ordered(&self._closed) or load32_ordered(&self._unheard)) and exchange32(&me.asleep, 0):
                exchange32(&self._unheard, 0)
                message = WORK
            else:
                message = self._sleep(me, pause)
            if load32_ordered(&self._closed):
                return
            if message == 0 and not load32(&self._live):
                pause = -1
                continue
            if message == WATCH or (message == 0 and not (self._queued() and self._done() == seen)):
                pause = _first_look if message else min(2 * pause, _last_look)
                seen = self._done()
                continue
            if message == 0:  # it watches no longer, so another must
                exchange32(&self._watched, 0)
                self._announce(0)
            self._join(me)
            pause, seen = _first_look, self._done()

    @cython.final
    cdef void _join(self, Walker* me) noexcept nogil:
        """Work in the walk, if there is one; the last of the helpers to stop tells the leader."""
        add32(&self._busy, 1)
        if load32_ordered(&self._live):
            self._work(me)
        if add32(&self._busy, -1) == 0:
            self._wake(&self._walkers[0], WORK)
