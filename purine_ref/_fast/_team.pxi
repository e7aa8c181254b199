# The compiled twin of `team.py`: several workers run one graph of Python operators. Included by `_tracker.pyx`.
#
# The interpreter's lock (GIL) guards everything that `_lock` guards in the plain twin: a worker that counts holds it
# anyway, and nothing between two calls of Python functions here lets go of it. So there is no lock to take. Where the
# interpreter has no such lock, a team is refused. A sleeping worker looks without it, so what it looks at is atomic.

cdef enum:
    NOTHING = -1  # no operator
    ENDED = -2    # no operator, and the run has ended
    BREATH = 63   # a worker breathes once in so many operators and one; see `breathe`

cdef int64_t _worth = int(WORTH * 1e9), _first_look = int(FIRST_LOOK * 1e6), _last_look = int(LAST_LOOK * 1e6)
cdef int64_t _slow = int(SLOW * 1e9)
cdef int32_t _looks = LOOKS, _stride = STRIDE

cdef struct Post:
    # One worker, or the guest; see the plain twin. `rung` and `called` are atomic.
    PyThread_type_lock bell
    int32_t rung
    int32_t called
    int32_t current
    bint awake
    bint asleep
    bint watching
    int32_t* complete  # room for the outputs of one operator


cdef class Team:
    """Workers that run graphs of the edges, one run at a time; see the plain twin."""

    cdef Edges _edges
    cdef Tracker _tracker
    cdef Calls _calls
    cdef tuple _kernels
    cdef object _token, _combine, _ended
    cdef bytes _heavy_bytes
    cdef const unsigned char* _heavy  # NULL where no operator is
    cdef Post* _posts
    cdef int32_t* _memory
    cdef int32_t* _light
    cdef int32_t* _weighty
    cdef int32_t _light_head, _light_tail, _weighty_head, _weighty_tail  # the first two are atomic
    cdef int32_t _accepting                                              # atomic
    cdef int64_t _progress                                               # atomic
    cdef int32_t _workers, _made, _operators, _awake, _computing, _watchers, _beat
    cdef bint _closed

    def __cinit__(self, *_):
        self._posts = NULL
        self._memory = NULL
        self._made = self._workers = 0

    def __init__(self, Edges edges not None, int workers, bytes heavy not None, ended):
        require_lock()
        require_workers(workers)
        require_rows("heavy", heavy, edges.waiting.shape[0])
        if self._posts != NULL:
            raise RuntimeError("a team is made once: make another")
        require_size("places in a team's queues", 3 * edges.waiting.shape[0])
        self._edges, self._ended, self._heavy_bytes = edges, ended, heavy
        self._heavy = <const unsigned char*> heavy if workers > 1 and any(heavy) else NULL
        self._operators = <int32_t> edges.waiting.shape[0]
        self._posts = <Post*> PyMem_Malloc((<size_t> workers + 1) * sizeof(Post))
        # `_light` has an end to spare: what an operator makes ready is put there before it is sorted
        room = 3 * edges.waiting.shape[0] + (workers + 1) * (edges.widest + 1)
        self._memory = <int32_t*> PyMem_Malloc(room * sizeof(int32_t))
        if self._posts == NULL or self._memory == NULL:
            raise MemoryError(f"no memory for a team of {workers} workers and {self._operators} operators")
        self._light, self._weighty = self._memory, self._memory + 2 * self._operators
        cdef Py_ssize_t number
        for number in range(workers + 1):  # the last is the guest
            post = &self._posts[number]
            post.bell = PyThread_allocate_lock()
            if post.bell == NULL:
                raise MemoryError("no memory for a lock")
            PyThread_acquire_lock_timed(post.bell, -1, 0)
            post.rung = post.called = 0
            post.awake = post.asleep = post.watching = False
            post.current = NOTHING
            post.complete = self._weighty + self._operators + number * (edges.widest + 1)
            self._made += 1
        self._workers = workers
        self._awake = self._computing = self._watchers = self._beat = 0
        self._light_head = self._light_tail = self._weighty_head = self._weighty_tail = self._accepting = 0
        self._progress = 0
        self._closed = False
        self._forget()

    def __dealloc__(self):
        for number in range(self._made):
            PyThread_release_lock(self._posts[number].bell)
            PyThread_free_lock(self._posts[number].bell)
        PyMem_Free(self._posts)
        PyMem_Free(self._memory)

    # For the owner

    def start(self, token, Tracker tracker not None, first, calls, kernels, combine, bint guest=False):
        """Start a run; False while operators of an earlier one compute. Raises ValueError for calls of another graph."""
        cdef Calls flat = _flattened(calls)
        cdef tuple vocabularies = tuple(kernels)
        flat._require(self._operators, len(vocabularies))
        if tracker._operators != self._operators:
            raise ValueError(f"tracker: expected one of {self._operators} operators, got {tracker._operators}")
        if tracker._edges is not self._edges:  # they may have more outputs than there is room for
            raise ValueError("tracker: expected one of the team's edges, got one of others")
        if self._computing:
            return False
        tracker._fill(first)
        self._token, self._tracker, self._calls, self._kernels, self._combine = (
            token, tracker, flat, vocabularies, combine
        )
        store64(&self._progress, self._progress + 1)
        self._weighty_head = self._weighty_tail = 0
        store32(&self._light_head, 0)
        store32(&self._light_tail, 0)
        memcpy(self._light, tracker._counters.queue, tracker._tail * sizeof(int32_t))
        store32(&self._accepting, 1)
        self._sort(<int32_t> tracker._tail, 0)
        if self._awake == 0 and not guest:
            self._call(1)  # it calls the others
        return True

    def busy(self, token):
        """Whether an operator of this run computes, or will yet start."""
        return self._token is token and (self._computing > 0 or self._live())

    def computing(self):
        """How many workers are at an operator, of any run."""
        return self._computing

    def halt(self):
        """Start nothing more of the run."""
        store32(&self._accepting, 0)

    def forget(self, token):
        """Let go of all that belongs to a run that has ended, if it is still this one."""
        if self._token is token and not self._computing:
            self._forget()

    def close(self):
        """Send the workers home, those that compute when they have ended."""
        self._closed = True
        store32(&self._accepting, 0)
        self._call(self._workers)

    # For the workers

    def work(self, int number):
        """Take operators and run them until the team is closed; raises what an operator raises. See the plain twin."""
        cdef Post* post = self._post(number)
        cdef int64_t elapsed = 0
        cdef bint watching
        cdef int32_t op
        try:
            while not self._closed:
                op = self._take(post, elapsed)
                if op >= 0:
                    self._serve(post, op)
                    elapsed = 0
                elif post.asleep:
                    watching = post.watching
                    with nogil:
                        elapsed = self._sleep(post, watching)
                else:
                    return
                if post.current >= 0:
                    return
        except BaseException:
            store32(&self._accepting, 0)
            raise
        finally:
            self._go(post)

    def task(self, int number):
        """The run's token, and the operator that a worker is at; None where it is at none."""
        cdef int32_t op = self._post(number).current
        return None if op < 0 else (self._token, op)

    def retire(self, int number):
        """Count a worker's operator, which has failed, as one that computes no longer."""
        if self._leave(self._post(number)):
            self._ended()

    # Within a run

    cdef Post* _post(self, int number) except NULL:
        if not 0 <= number <= self._workers:
            raise IndexError(f"worker {number}: expected 0 to {self._workers}")
        return &self._posts[number]

    @cython.final
    cdef int _serve(self, Post* post, int32_t op) except -1:
        """Run `op` and what follows, until there is nothing more for this worker. No run can begin meanwhile."""
        cdef Counters* c = &self._tracker._counters
        cdef Call* calls = self._calls._flat
        cdef PyObject** items = self._calls._items
        cdef PyObject** kernels = PySequence_Fast_ITEMS(self._kernels)
        cdef int32_t i, count, found, stride = self._workers > 1, left = stride
        cdef int64_t begun, now, since = now_ns()
        while op >= 0:
            post.current = op
            begun = now_ns() if self._awake > 1 else 0
            if c.waiting[op] != 0:
                self._tracker._require(op, 0, "finish")
            self._beat += 1
            if self._beat & BREATH == 0:
                breathe()
            _invoke(calls, items, op, kernels)
            if self._closed:
                return 0
            count = _deliver(c, op, post.complete)
            for i in range(count):
                if c.producers[post.complete[i]] > 1:
                    self._combine(post.complete[i])
            left -= 1
            if left == 0:
                now = now_ns()
                if self._light_head < self._light_tail and now - since >= _slow * stride:
                    self._rouse()
                since, stride = now, min(2 * stride, _stride)
                left = stride
            self._tracker._left -= 1
            found = _release(c, op, count, post.complete, self._light + self._light_tail)
            op = self._next(post, found, begun)
        if op == ENDED:
            self._ended()
        return 0

    @cython.final
    cdef inline int32_t _next(self, Post* post, int32_t found, int64_t begun) noexcept:
        """Queue what an operator made ready, and take the next; NOTHING, or ENDED with the run, if there is none."""
        cdef int32_t op = NOTHING
        store64(&self._progress, self._progress + 1)
        if self._awake == 1 and self._heavy == NULL:
            store32(&self._light_tail, self._light_tail + found)
            if self._light_head < self._light_tail and self._accepting:
                op = self._light[self._light_head]
                store32(&self._light_head, self._light_head + 1)
        else:
            op = self._shared(found, now_ns() - begun if begun else _worth)
        if op == NOTHING or not self._accepting:
            return ENDED if self._leave(post) else NOTHING
        if self._weighty_head < self._weighty_tail or (
            self._watchers == 0 and self._workers > 1 and self._light_head < self._light_tail
        ):
            self._announce()
        return op

    @cython.final
    cdef int32_t _shared(self, int32_t found, int64_t elapsed) noexcept:
        """What `_next` does where others are awake, or operators are heavy."""
        cdef int32_t kept = self._light[self._light_tail] if found and self._awake > 1 else NOTHING
        self._sort(found, kept != NOTHING)
        return self._pick(elapsed) if kept == NOTHING else kept

    @cython.final
    cdef int32_t _take(self, Post* post, int64_t elapsed) noexcept:
        """The first operator for a worker that comes from its sleep; or NOTHING, and it is counted as asleep."""
        self._get_up(post)
        cdef int32_t op = self._pick(elapsed) if self._accepting and self._awake <= self._workers else NOTHING
        if op >= 0:
            self._computing += 1
            post.current = op
            self._announce()
        elif not self._closed:
            self._lie_down(post)
        return op

    @cython.final
    cdef int32_t _pick(self, int64_t elapsed) noexcept:
        """What to start from the queues: light work if nobody else is awake, or if it pays; else heavy work."""
        cdef int32_t op = NOTHING
        if self._light_head < self._light_tail and (self._awake == 1 or elapsed >= _worth):
            op = self._light[self._light_head]
            store32(&self._light_head, self._light_head + 1)
        elif self._weighty_head < self._weighty_tail:
            op = self._weighty[self._weighty_head]
            self._weighty_head += 1
        return op

    @cython.final
    cdef void _sort(self, int32_t found, bint skip) noexcept:
        """Put into the queues what lies behind the light ones, all or all but the first of it."""
        cdef int32_t* ready = self._light + self._light_tail
        cdef int32_t i, tail = self._light_tail
        for i in range(skip, found):
            if self._heavy != NULL and self._heavy[ready[i]]:
                self._weighty[self._weighty_tail] = ready[i]
                self._weighty_tail += 1
            else:
                self._light[tail] = ready[i]
                tail += 1
        store32(&self._light_tail, tail)

    @cython.final
    cdef bint _leave(self, Post* post) noexcept:
        """The worker is at no operator any more; returns whether the run has ended with that."""
        post.current = NOTHING
        self._computing -= 1
        return self._computing == 0 and not self._live()

    @cython.final
    cdef bint _live(self) noexcept:
        return self._accepting and self._tracker is not None and self._tracker._left > 0

    @cython.final
    cdef int _forget(self) except -1:
        self._token = self._tracker = self._calls = self._kernels = self._combine = None
        return 0

    # Sleep

    @cython.final
    cdef void _announce(self) noexcept:
        """Call sleeping workers to the heavy operators; where there is light work, have one of them watch."""
        cdef int32_t number, spare = self._weighty_tail - self._weighty_head
        if self._workers == 1:
            return
        if spare:
            spare = min(spare, self._workers - self._awake)
            for number in range(self._workers):
                spare -= load32(&self._posts[number].called) != 0
            self._call(spare)
        if self._light_head < self._light_tail and self._watchers == 0:
            self._rouse()

    @cython.final
    cdef void _rouse(self) noexcept:
        """Have a sleeping worker watch, with the first look soon."""
        cdef int32_t number
        for number in range(self._workers):
            post = &self._posts[number]
            if post.asleep and not load32(&post.called):
                self._watchers += not post.watching
                post.watching = True
                self._ring(post)
                return

    @cython.final
    cdef void _call(self, int32_t count) noexcept:
        """Have so many sleeping workers get up that were not called yet."""
        cdef int32_t number
        for number in range(self._workers):
            post = &self._posts[number]
            if count > 0 and post.asleep and not load32(&post.called):
                store32(&post.called, 1)
                self._ring(post)
                count -= 1

    @cython.final
    cdef void _ring(self, Post* post) noexcept:
        if exchange32(&post.rung, 1) == 0:
            PyThread_release_lock(post.bell)

    @cython.final
    cdef void _lie_down(self, Post* post) noexcept:
        """Count a worker as asleep, or the guest as gone. Somebody watches, since others may be at work."""
        self._go(post)
        post.asleep = post != &self._posts[self._workers]
        if self._workers == 1 or not self._live():
            return
        if post.asleep:
            post.watching = True
            self._watchers += 1
        else:
            self._announce()

    @cython.final
    cdef void _get_up(self, Post* post) noexcept:
        """Count a worker as awake."""
        if load32(&post.rung):  # after it had woken by itself; whoever rang held the GIL, so the bell is there
            PyThread_acquire_lock_timed(post.bell, -1, 0)
        self._go(post)
        self._awake += 1
        post.awake = True

    @cython.final
    cdef void _go(self, Post* post) noexcept:
        """Count a worker as gone: neither awake nor asleep."""
        self._awake -= post.awake
        self._watchers -= post.watching
        post.awake = post.asleep = post.watching = False
        store32(&post.called, 0)
        store32(&post.rung, 0)

    @cython.final
    cdef int64_t _sleep(self, Post* post, bint watching) noexcept nogil:
        """Sleep until called, and 0; or until no operator has ended between two looks though there is work, and WORTH.

        Only who watches looks, and gives up in the end. Ringing and hearing order what was written before a call.
        """
        cdef int64_t pause = _first_look if watching else -1, seen = load64(&self._progress), found
        cdef int32_t idle = 0
        cdef bint rung
        while True:
            rung = PyThread_acquire_lock_timed(post.bell, pause, 0)
            found = load64(&self._progress)
            if rung:
                exchange32(&post.rung, 0)
                if load32(&post.called):
                    return 0
                pause, idle = _first_look, 0
            elif (
                found == seen and load32(&self._accepting)
                and load32(&self._light_head) < load32(&self._light_tail)
            ):
                return _worth
            else:
                pause, idle = min(2 * pause, _last_look), idle + 1 if found == seen else 0
                if idle == _looks:
                    return 0
            seen = found
