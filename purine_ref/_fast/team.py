"""The plain twin of the team: several workers run one graph of Python operators, and none of them waits for a queue.

A `Team` outlives its runs; its workers are threads that its owner makes, each of which calls `work`. As long as one
worker is awake it goes on as `Tracker.run` does: first ready, first run. A second one is woken only for what is worth
a wake (see `pace.py`): for a *heavy* operator beyond the one that a worker takes itself, or because no operator has
ended for a while. When several are awake, each keeps the first successor that it made ready, and one whose last
operator was too short to be worth it goes to sleep again, unless all others sleep.

Changing state, guarded by `_lock`: the counters of the run's tracker, the two queues, and who is awake. What a worker
computes, and the additions of rule R4, are outside it. In the compiled twin, `_team.pxi`, the interpreter's lock is
this lock, so it takes none. Names, signatures, errors and what is called in which order, where one worker is awake,
are the same.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from purine_ref._fast.calls import Call, Calls
from purine_ref._fast.edges import RELEASED, require_rows
from purine_ref._fast.pace import FIRST_LOOK, LAST_LOOK, WORTH, require_workers

Edges = Any
Tracker = Any
"""Those of the plain `tracker.py`, which imports this module."""


class Post:
    """One worker: the operator it is at, or -1; whether it sleeps, was called to work, and watches in its sleep."""

    def __init__(self) -> None:
        self.bell = threading.Lock()  # held; to ring is to let go of it
        self.bell.acquire()
        self.rung = False  # and the worker has not heard it yet
        self.current = NOTHING
        self.asleep = self.called = self.watching = False


class Team:
    """`workers` threads that run graphs of `edges`, one run at a time.

    `heavy` has a byte for each operator, not 0 where it is worth a wake. `ended` is called by the worker with which a
    run ends, be it with success, failed or halted. Raises ValueError for no workers, or for another number of bytes.
    """

    def __init__(self, edges: Edges, workers: int, heavy: bytes, ended: Callable[[], object]) -> None:
        require_workers(workers)
        require_rows("heavy", heavy, len(edges.waiting))
        self._edges = edges
        self._several = workers > 1
        self._heavy = heavy if self._several and any(heavy) else None
        self._ended = ended
        self._lock = threading.Lock()
        self._posts = [Post() for _ in range(workers)]
        self._light: deque[int] = deque()
        self._weighty: deque[int] = deque()
        self._awake = self._computing = self._watchers = 0
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
    ) -> bool:
        """Start a run of a new `tracker`; the other arguments are those of `Tracker.run`, and `token` names the run.

        False, and nothing is done, while operators of an earlier run compute. Raises ValueError for calls that are not
        one for each operator, and for the tracker of other edges.
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
            for post in self._posts:
                post.watching = False
            self._watchers = 0
            self._accepting = True
            self._sort(first)
            if self._awake == 0:
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
            self._call(len(self._posts))

    # For the workers --------------------------------------------------------------------------------------------

    def work(self, number: int) -> None:
        """Worker `number` takes operators and runs them, sleeping where there are none, until the team is closed.

        Raises what an operator raises. Then nothing more of the run is started, and the operator counts as one that
        computes until `retire`. So it does where the team was closed while it computed.
        """
        post = self._posts[number]
        with self._lock:
            self._awake += 1
            op = self._take(post, 0.0)
        try:
            while not self._closed:
                if op >= 0:
                    self._serve(post, op)
                    elapsed = 0.0
                else:
                    elapsed = self._sleep(post)
                if post.current < 0:
                    with self._lock:
                        op = self._take(post, elapsed)
        except BaseException:
            self.halt()
            raise
        finally:
            with self._lock:
                self._awake -= not post.asleep
                post.asleep = False

    def task(self, number: int) -> tuple[object, int] | None:
        """The run's token, and the operator that a worker is at; None where it is at none."""
        op = self._posts[number].current
        return None if op < 0 else (self._token, op)

    def retire(self, number: int) -> None:
        """Count a worker's operator, which has failed, as one that computes no longer."""
        with self._lock:
            over = self._leave(self._posts[number])
        if over:
            self._ended()

    # Within a run -----------------------------------------------------------------------------------------------

    def _serve(self, post: Post, op: int) -> None:
        """Run `op` and what follows, until there is nothing more for this worker. No run can begin meanwhile."""
        lock, calls, kernels, tracker, light = self._lock, self._calls, self._kernels, self._tracker, self._light
        waiting, behind, several = tracker._waiting, self._edges.behind, self._several
        take, add = light.popleft, light.append
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
        op = self._pick(elapsed) if self._accepting else NOTHING
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
        coming = sum(post.called for post in self._posts)
        if len(self._weighty) > coming:
            self._call(len(self._weighty) - coming)
        if self._light and self._several and not self._watchers:
            for post in self._posts:
                if post.asleep and not post.called:
                    post.watching, self._watchers = True, 1
                    self._ring(post)
                    return

    def _call(self, count: int) -> None:
        """Have so many sleeping workers get up that were not called yet."""
        for post in self._posts:
            if count > 0 and post.asleep and not post.called:
                post.called = True
                self._ring(post)
                count -= 1

    def _ring(self, post: Post) -> None:
        if not post.rung:
            post.rung = True
            post.bell.release()

    def _lie_down(self, post: Post) -> None:
        """Count a worker as asleep. It watches, since others may be at work."""
        self._awake -= 1
        post.asleep = True
        if self._several and self._live():
            post.watching = True
            self._watchers += 1

    def _get_up(self, post: Post) -> None:
        """Count a worker as awake."""
        if post.asleep:
            self._awake += 1
            self._watchers -= post.watching
        if post.rung:  # after it had woken by itself
            post.bell.acquire()
        post.asleep = post.called = post.watching = post.rung = False

    def _sleep(self, post: Post) -> float:
        """Sleep until called, and 0; or until no operator has ended between two looks though there is work, and WORTH.

        Looks are taken while there is a run.
        """
        pause, seen = FIRST_LOOK if post.watching else -1, self._left()
        while True:
            if post.bell.acquire(timeout=pause):
                post.rung = False
                if post.called:
                    return 0.0
                pause, seen = FIRST_LOOK, self._left()
            elif not self._accepting:
                pause = -1
            elif self._light and self._left() == seen:
                return WORTH
            else:
                pause, seen = min(2 * pause, LAST_LOOK), self._left()


NOTHING = -1
"""No operator."""

ENDED = -2
"""No operator, and the run has ended."""
