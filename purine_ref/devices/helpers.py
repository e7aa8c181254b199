"""Threads that help one operator: the items of a piece of work, shared between the thread that asks and idle ones.

What an item computes never depends on who computes it, nor the number of items on the number of threads: that keeps
rule R8. At most `threads` threads compute at a time, callers included, so that executors with workers of their own do
not oversubscribe the cores: a helper leaves between two items when callers are enough. Helpers sleep when idle, and
end when the `Helpers` are closed.

Changing state, guarded by `_lock`: the jobs that have items left, the helpers that sleep, and `_computing`, the callers
in `share` and the helpers that are awake. Each job's own counts are guarded by the same lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial

import numpy as np

quiet = partial(np.errstate, all="ignore")
"""A context for one thread, in which overflow and NaN are values like any other (section 3), and warn nobody."""

Work = Callable[[int], object]


class _Job:
    """One call of `share`: item `next` is the first that nobody has taken; `error` is that of the least item."""

    __slots__ = ("count", "done", "error", "failed", "helpers", "next", "waited", "work")

    def __init__(self, count: int, work: Work) -> None:
        self.count = count
        self.work = work
        self.next = 0
        self.helpers = 0
        self.error: BaseException | None = None
        self.failed = count  # the item of `error`
        self.waited = False
        self.done = threading.Lock()  # held while the caller waits for its helpers


class Helpers:
    """Up to `threads` - 1 helping threads, made when they are first needed. A forked child makes its own."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._jobs: list[_Job] = []
        self._asleep: list[threading.Lock] = []  # each is held; its helper waits for its release
        self._made = 0
        self._computing = 0
        self._closed = False

    def share(self, count: int, work: Work) -> None:
        """Call work(i) for every i in range(count), here and on idle helpers; returns when all calls have ended.

        Items start in their order. After an error no more are started, and the error of the least item is raised.
        """
        if count < 2 or self.threads < 2:
            for item in range(count):
                work(item)
            return
        if self._pid != os.getpid():
            self._reset()
        job = _Job(count, work)
        with self._lock:
            self._computing += 1
            self._jobs.append(job)
            self._wake()
        try:
            self._serve(job, helping=False)
        except BaseException as interrupt:  # from the keyboard, between two items
            self._fail(job, -1, interrupt)
        self._wait(job)
        failure, job.error = job.error, None
        if failure is not None:
            try:
                raise failure
            finally:
                failure = None  # else this frame and its error would keep each other alive

    def close(self) -> None:
        """Send the helpers home: those that compute, after their item."""
        if self._pid != os.getpid():  # they are in another process, and the lock may be held there
            return
        with self._lock:
            self._closed = True
            for sleeper in self._asleep:
                sleeper.release()
            self._asleep.clear()

    def _wake(self) -> None:
        """Wake or make helpers while there are items that nobody has taken, and room. Called under the lock."""
        items = sum(job.count - job.next for job in self._jobs) - 1  # the caller takes one itself
        while items > 0 and self._computing < self.threads and not self._closed:
            if self._asleep:
                self._asleep.pop().release()
            elif self._made < self.threads - 1:
                self._made += 1
                threading.Thread(target=self._help, name=f"helper-{self._made}", daemon=True).start()
            else:
                return
            self._computing += 1  # on behalf of the helper that is about to come
            items -= 1

    def _serve(self, job: _Job, helping: bool) -> None:
        """Do items of a job until nobody may start another, or a helper has become one too many."""
        while True:
            with self._lock:
                if job.next >= job.count:
                    if job in self._jobs:
                        self._jobs.remove(job)
                    return
                if helping and self._computing > self.threads:
                    return
                item = job.next
                job.next += 1
            try:
                job.work(item)
            except BaseException as error:
                self._fail(job, item, error)

    def _fail(self, job: _Job, item: int, error: BaseException) -> None:
        """Start no more items of the job, and keep the error of the least one."""
        with self._lock:
            job.next = job.count
            if job in self._jobs:
                self._jobs.remove(job)
            if item < job.failed:
                job.failed, job.error = item, error

    def _wait(self, job: _Job) -> None:
        """The caller's end of a job: sleep until its helpers have ended, since they write. An interrupt waits too."""
        with self._lock:
            self._computing -= 1
            if job.helpers:
                job.waited = True
                job.done.acquire()
            if self._jobs:
                self._wake()
        while job.helpers:
            try:
                job.done.acquire()  # released by the last helper
            except BaseException as error:
                self._fail(job, -1, error)

    def _help(self) -> None:
        """One helper: take part in the first job that has items, else sleep, until all is closed."""
        sleeper = threading.Lock()
        sleeper.acquire()
        with quiet():
            while True:
                job = self._join()
                if job is not None:
                    self._serve(job, helping=True)
                    self._leave(job)
                    del job
                    continue
                with self._lock:
                    if self._jobs and self._computing <= self.threads and not self._closed:
                        continue
                    self._computing -= 1
                    if self._closed:
                        return
                    self._asleep.append(sleeper)
                sleeper.acquire()

    def _join(self) -> _Job | None:
        with self._lock:
            if self._jobs and self._computing <= self.threads and not self._closed:
                self._jobs[0].helpers += 1
                return self._jobs[0]
            return None

    def _leave(self, job: _Job) -> None:
        with self._lock:
            job.helpers -= 1
            if job.waited and job.helpers == 0:
                job.done.release()
