"""The plain twin of the team: several workers run one graph of Python operators, and none of them waits for a queue.

A `Team` outlives its runs; its workers are threads that its owner makes, each of which calls `work`. The thread that
starts a run may take part as a *guest*, as long as there is something for it: then a run of small operators wakes
nobody. No more than the workers' number compute at a time, the guest counted.

As long as one worker is awake it goes on as `Tracker.run` does: first ready, first run. A second one is woken only for
what is worth a wake (see `pace.py`): for a *heavy* operator beyond the one that a worker takes itself, or because no
operator has ended for a while. For that, one *watches*: it sleeps for short times, also between two runs that follow
each other soon. When several are awake, each keeps the first successor that it made ready, and one whose last operator
was too short to be worth it goes to sleep again, unless all others sleep.

Changing state, guarded by `_lock`: the counters of the run's tracker, the two queues, and who is awake. What a worker
computes, and the additions of rule R4, are outside it. In the compiled twin, `_team.pxi`, the interpreter's lock is
this lock, so it takes none. Names, signatures, errors and what is called in which order, where one worker is awake,
are the same. A guest may be interrupted from the keyboard wherever it calls a function: what belongs together is
written without a call in between, and the run has ended with that.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from purine_ref._fast.calls import Call, Calls
from purine_ref._fast.edges import RELEASED, require_rows
from purine_ref._fast.pace import FIRST_LOOK, LAST_LOOK, LOOKS, SLOW, STRIDE, WORTH, require_workers

Edges = Any
Tracker = Any
"""Those of the plain `tracker.py`, which imports this module."""


class Post:
    """One worker: the operator it is at, or -1; is it awake, or asleep, was it called to work, does it watch."""

    def __init__(self) -> None:
        self.bell = threading.Lock()  # held; to ring is to let go of it
        self.bell.acquire()
        self.rung = False  # and the worker has not heard it yet
        self.current = NOTHING
        self.awake = self.asleep = self.called = self.watching = False  # a guest that is not there is neither


class Team:
    """`workers` threads that run graphs of `edges`, one run at a time.

    `heavy` has a byte for each operator, not 0 where it is worth a wake. `ended` is called by the worker with which a
    run ends, be it with success, failed or halted. Raises ValueError for no workers, or for another number of bytes.
    """

    def __init__(self, edges: Edges, workers: int, heavy: bytes, ended: Callable[[], object]) -> None:
        require_workers(workers)
        require_rows("heavy", heavy, len(edges.waiting))
        self._edges = edges
        self._workers = workers
        self._several = workers > 1
        self._heavy = heavy if self._several and any(heavy) else None
        self._ended = ended
        self._lock = threading.Lock()
        self._posts = [Post() for _ in range(workers + 1)]  # the last is the guest's
        self._light: deque[int] = deque()
        self._weighty: deque[int] = deque()
        self._awake = self._computing = self._watchers = self._starts = 0
        self._accepting = self._closed = False
        self._token: object = None
        self._tracker: Any = None  # the run's Tracker, or None between runs; and so the others
        self._calls: Any = None
        self._kernels: Any = None
        self._combine: Any = None

    # For the owner ----------------------------------------------------------------------------------------------

    def start(
        self,
        token: object,
        tracker: Tracker,
        first: Sequence[int],
        calls: Sequence[Call],
        kernels: Sequence[Any],
        combine: Callable[[int], object],
        guest: bool = False,
    ) -> bool:
        """Start a run of a new `tracker`; the other arguments are those of `Tracker.run`, and `token` names the run.

        With `guest` no worker is woken: whoever starts it must call `work` as the guest. False, and nothing is done,
        while operators of an earlier run compute. Raises ValueError for calls that are not one for each operator, and
        for the tracker of other edges.
        """
        operators = len(self._edges.waiting)
        calls = calls if isinstance(calls, Calls) else Calls(calls)
        require_rows("calls", calls, operators)
        if len(tracker._waiting) != operators:
            raise ValueError(f"tracker: expected one of {operators} operators, got {len(tracker._waiting)}")
        if tracker._edges is not self._edges:
            raise ValueError("tracker: expected one of the team's edges, got one of others")
        with self._lock:
            if self._computing:
                return False
            self._token, self._tracker = token, tracker
            self._calls, self._kernels, self._combine = calls, kernels, combine
            self._light.clear()
            self._weighty.clear()
            self._starts += 1
            self._accepting = True
            self._sort(first)
            if self._awake == 0 and not guest:
                self._call(1)  # it calls the others
            return True

    def busy(self, token: object) -> bool:
        """Whether an operator of this run computes, or will yet start."""
        # without the lock, for which workers would have to stop: once a run is not live, nobody begins to compute
        return self._token is token and (self._live() or self._computing > 0)

    def computing(self) -> int:
        """How many workers are at an operator, of any run."""
        return self._computing

    def halt(self) -> None:
        """Start nothing more of the run."""
        with self._lock:
            self._accepting = False

    def forget(self, token: object) -> None:
        """Let go of all that belongs to a run that has ended, if it is still this one."""
        with self._lock:
            if self._token is token and not self._computing:
                self._forget()

    def close(self) -> None:
        """Send the workers home, those that compute when they have ended."""
        with self._lock:
            self._closed, self._accepting = True, False
            self._call(self._workers)

    # For the workers --------------------------------------------------------------------------------------------

    def work(self, number: int) -> None:
        """Worker `number` takes operators and runs them, sleeping where there are none, until the team is closed.

        The guest, whose number is that of the workers, leaves instead of sleeping. Raises what an operator raises. Then
        nothing more of the run is started, and the operator counts as one that computes until `retire`. So it does
        where the team was closed while it computed. Raises IndexError for another number.
        """
        post = self._post(number)
        op, elapsed = NOTHING, 0.0
        try:
            while not self._closed:
                with self._lock:
                    op = self._take(post, elapsed)
                if op >= 0:
                    self._serve(post, op)
                    elapsed = 0.0
                elif post.asleep:
                    elapsed = self._sleep(post)
                else:
                    return
                if post.current >= 0:
                    return  # closed while it computed
        except BaseException:
            self.halt()
            raise
        finally:
            with self._lock:
                self._go(post)

    def task(self, number: int) -> tuple[object, int] | None:
        """The run's token, and the operator that a worker is at; None where it is at none."""
        op = self._post(number).current
        return None if op < 0 else (self._token, op)

    def retire(self, number: int) -> None:
        """Count a worker's operator, which has failed, as one that computes no longer."""
        with self._lock:
            over = self._leave(self._post(number))
        if over:
            self._ended()

    # Within a run -----------------------------------------------------------------------------------------------

    def _post(self, number: int) -> Post:
        if not 0 <= number <= self._workers:
            raise IndexError(f"worker {number}: expected 0 to {self._workers}")
        return self._posts[number]

    def _serve(self, post: Post, op: int) -> None:
        """Run `op` and what follows, until there is nothing more for this worker. No run can begin meanwhile."""
        lock, calls, kernels, tracker, light = self._lock, self._calls, self._kernels, self._tracker, self._light
        waiting, behind, several = tracker._waiting, self._edges.behind, self._several
        take, add = light.popleft, light.append
        left = stride = int(several)  # operators until this worker looks back
        since = time.perf_counter()
        while op >= 0:
            post.current = op
            begun = time.perf_counter() if self._awake > 1 else 0.0
            if waiting[op] != 0:
                raise RuntimeError(f"{self._edges.names[op]!r} cannot finish: it is {tracker.state(op)}")
            compute, place, inputs, outputs = calls[op]
            if compute is not None:
                compute(kernels[place], inputs, outputs)
            if self._closed:
                return
            left -= 1
            if left == 0:
                since, left, stride = self._look_back(since, stride)
            consumers = behind[op]
            if consumers is None or self._awake > 1 or self._heavy is not None:
                op = self._pass_on(post, op, begun)
                continue
            with lock:  # what `_pass_on` would do where nobody else is awake, in half the time
                waiting[op] = RELEASED
                tracker._left -= 1
                for consumer in consumers:
                    waiting[consumer] -= 1
                    if waiting[consumer] == 0:
                        add(consumer)
                op = take() if light and self._accepting else self._stop(post)
                if light and several and not self._watchers and op >= 0:
                    self._announce()
        if op == ENDED:
            self._ended()

    def _look_back(self, since: float, count: int) -> tuple[float, int, int]:
        """Have another worker look soon if there is light work, and the last `count` operators were slow, since then.

        Returns when to look back again: the time now, and twice how many operators later.
        """
        now, following = time.perf_counter(), min(2 * count, STRIDE)
        if self._light and now - since >= SLOW * count:
            with self._lock:
                self._rouse()
        return now, following, following

    def _pass_on(self, post: Post, op: int, begun: float) -> int:
        """Count `op` as run, queue what it made ready, and take the next; NOTHING or ENDED if there is none."""
        complete = self._add_up(op)
        with self._lock:
            ready = self._tracker.release(op, complete)
            elapsed = time.perf_counter() - begun if begun else WORTH
            kept = ready.pop(0) if ready and self._awake > 1 else NOTHING
            self._sort(ready)
            kept = self._pick(elapsed) if kept == NOTHING else kept
            if kept == NOTHING or not self._accepting:
                return self._stop(post)
            self._announce()
            return kept

    def _add_up(self, op: int) -> list[int]:
        """Finish an operator that shares a blob with others, and add up what is complete (rule R4)."""
        with self._lock:
            complete: list[int] = self._tracker.finish(op)
        for blob in complete:
            if self._edges.producers[blob] > 1:
                self._combine(blob)
        return complete

    def _stop(self, post: Post) -> int:
        """The worker has nothing more to do: NOTHING, or ENDED where the run has ended with that."""
        return ENDED if self._leave(post) else NOTHING

    def _take(self, post: Post, elapsed: float) -> int:
        """The first operator for a worker that comes from its sleep; or NOTHING, and it is counted as asleep."""
        self._get_up(post)
        op = self._pick(elapsed) if self._accepting and self._awake <= self._workers else NOTHING
        if op >= 0:
            self._computing += 1
            post.current = op
            self._announce()
        elif not self._closed:
            self._lie_down(post)
        return op

    def _pick(self, elapsed: float) -> int:
        """What to start from the queues: light work if nobody else is awake, or if it pays; else heavy work."""
        if self._light and (self._awake == 1 or elapsed >= WORTH):
            return self._light.popleft()
        return self._weighty.popleft() if self._weighty else NOTHING

    def _sort(self, ready: Sequence[int]) -> None:
        """Put ready operators into the queues."""
        for op in ready:
            (self._weighty if self._heavy and self._heavy[op] else self._light).append(op)

    def _leave(self, post: Post) -> bool:
        """The worker is at no operator any more; returns whether the run has ended with that."""
        post.current = -1
        self._computing -= 1
        return self._computing == 0 and not self._live()

    def _live(self) -> bool:
        return self._accepting and self._left() > 0

    def _left(self) -> int:
        """How many operators have yet to end: it changes as long as the others get on."""
        tracker = self._tracker
        return 0 if tracker is None else int(tracker._left)

    def _forget(self) -> None:
        self._token = self._tracker = self._calls = self._kernels = self._combine = None

    # Sleep ------------------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        """Call sleeping workers to the heavy operators; where there is light work, have one of them watch."""
        if self._weighty:
            coming = sum(post.called for post in self._posts)
            self._call(min(len(self._weighty), self._workers - self._awake) - coming)
        if self._light and self._several and not self._watchers:
            self._rouse()

    def _rouse(self) -> None:
        """Have a sleeping worker watch, with the first look soon."""
        for post in self._posts:
            if post.asleep and not post.called:
                self._ring(post, called=False)
                return

    def _call(self, count: int) -> None:
        """Have so many sleeping workers get up that were not called yet."""
        for post in self._posts:
            if count > 0 and post.asleep and not post.called:
                self._ring(post, called=True)
                count -= 1

    def _ring(self, post: Post, called: bool) -> None:
        """Wake a worker: to work if it is called, else to watch."""
        if called:
            post.called = True
        else:
            self._watchers += not post.watching
            post.watching = True
        if not post.rung:
            post.rung = True
            post.bell.release()

    def _lie_down(self, post: Post) -> None:
        """Count a worker as asleep, or the guest as gone. Somebody watches, since others may be at work."""
        self._go(post)
        post.asleep = post is not self._posts[self._workers]
        if not self._several or not self._live():
            return
        if post.asleep:
            post.watching = True
            self._watchers += 1
        else:
            self._announce()

    def _get_up(self, post: Post) -> None:
        """Count a worker as awake."""
        if post.rung:  # after it had woken by itself
            post.bell.acquire()
        self._go(post)
        self._awake += 1
        post.awake = True

    def _go(self, post: Post) -> None:
        """Count a worker as gone: neither awake nor asleep."""
        self._awake -= post.awake
        self._watchers -= post.watching
        post.awake = post.asleep = post.called = post.watching = post.rung = False

    def _sleep(self, post: Post) -> float:
        """Sleep until called, and 0; or until no operator has ended between two looks though there is work, and WORTH.

        Only who watches looks. After `LOOKS` in vain it is 0 too: who has nothing to watch then sleeps for good.
        """
        pause, idle, seen = FIRST_LOOK if post.watching else -1, 0, (self._starts, self._left())
        while True:
            rung = post.bell.acquire(timeout=pause)
            found = (self._starts, self._left())
            if rung:
                post.rung = False
                if post.called:
                    return 0.0
                pause, idle = FIRST_LOOK, 0
            elif found == seen and self._light and self._accepting:
                return WORTH
            else:
                pause, idle = min(2 * pause, LAST_LOOK), idle + 1 if found == seen else 0
                if idle == LOOKS:
                    return 0.0
            seen = found


NOTHING = -1
"""No operator."""

ENDED = -2
"""No operator, and the run has ended."""
