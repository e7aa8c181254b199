"""Shared work: every item once, the least error, no thread too many, and nobody left waiting."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from purine_ref.devices.helpers import Helpers
from purine_ref.devices.scratch import Scratch

PATIENCE = 30.0
"""Seconds after which a wait has failed."""


@pytest.fixture(params=[1, 2, 4])
def helpers(request: pytest.FixtureRequest) -> Iterator[Helpers]:
    made = Helpers(request.param)
    yield made
    made.close()


def test_every_item_is_done_once(helpers: Helpers) -> None:
    for count in (0, 1, 2, 3, 50):
        done: list[int] = []
        helpers.share(count, done.append)
        assert sorted(done) == list(range(count))


def test_items_start_in_order_and_the_least_error_is_raised(helpers: Helpers) -> None:
    started: list[int] = []

    def work(item: int) -> None:
        started.append(item)
        if item in (5, 6, 7):
            raise ValueError(f"item {item}")

    for _ in range(20):
        started.clear()
        with pytest.raises(ValueError, match=r"^item 5$"):
            helpers.share(40, work)
        assert len(started) < 40
    helpers.share(3, started.append)
    assert started[-3:] != [5, 6, 7]


@pytest.mark.parametrize("later", [0, 1])
def test_of_two_errors_that_of_the_least_item_is_raised_whichever_came_first(later: int) -> None:
    helpers, meeting = Helpers(2), threading.Barrier(2)
    failed: list[int] = []
    note, ended = helpers._fail, threading.Event()

    def fail(job: Any, item: int, error: BaseException) -> None:
        note(job, item, error)
        failed.append(item)
        ended.set()

    def work(item: int) -> None:
        meeting.wait(PATIENCE)  # both have started
        assert item != later or ended.wait(PATIENCE)
        raise ValueError(f"item {item}")

    helpers._fail = fail  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"^item 0$"):
        helpers.share(2, work)
    assert failed == [1 - later, later]
    helpers.close()


def test_the_caller_waits_for_its_helpers() -> None:
    helpers, meeting, done = Helpers(2), threading.Barrier(2), []

    def work(item: int) -> None:
        caller = meeting.wait(PATIENCE) == 0  # one of the two goes on at once, the other computes for a while
        if not caller:
            sum(range(1_000_000))
        done.append(item)

    for _ in range(5):
        done.clear()
        helpers.share(2, work)
        assert sorted(done) == [0, 1]
    helpers.close()


def test_helpers_compute_beside_the_caller() -> None:
    helpers, meeting = Helpers(3), threading.Barrier(3)
    helpers.share(3, lambda item: meeting.wait(PATIENCE))
    helpers.share(3, lambda item: meeting.wait(PATIENCE))
    helpers.close()


def test_there_are_never_more_threads_than_asked_for() -> None:
    """One caller has a helper for each thread but its own. Two have one between them at three threads; at two none."""
    for threads in (2, 3):
        before, alone = set(threading.enumerate()), Helpers(threads)
        meeting = threading.Barrier(threads)
        alone.share(threads * 20, lambda item, meeting=meeting: meeting.wait(PATIENCE))
        assert len(set(threading.enumerate()) - before) == threads - 1
        alone.close()
        helpers, lock = Helpers(threads), threading.Lock()
        active, most = [0], [0]

        def work(item: int, lock: threading.Lock = lock, active: list[int] = active, most: list[int] = most) -> None:
            with lock:
                active[0] += 1
                most[0] = max(most[0], active[0])
            sum(range(2000))
            with lock:
                active[0] -= 1

        callers = [threading.Thread(target=helpers.share, args=(200, work)) for _ in range(2)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(PATIENCE)
            assert not caller.is_alive()
        # A helper may yet be in its item when a second caller comes: then it is one more until the item ends.
        assert most[0] <= threads + 1
        assert active == [0]
        helpers.close()


def test_work_may_share_work_of_its_own(helpers: Helpers) -> None:
    done: list[tuple[int, int]] = []
    helpers.share(4, lambda item: helpers.share(3, lambda inner: done.append((item, inner))))
    assert sorted(done) == [(item, inner) for item in range(4) for inner in range(3)]


def test_helpers_end_when_they_are_closed() -> None:
    before = set(threading.enumerate())
    helpers, meeting = Helpers(3), threading.Barrier(3)
    helpers.share(3, lambda item: meeting.wait(PATIENCE))
    own = set(threading.enumerate()) - before
    assert len(own) == 2
    helpers.close()
    for thread in own:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    done: list[int] = []
    helpers.share(5, done.append)
    assert sorted(done) == list(range(5))


def test_an_error_keeps_no_work_alive() -> None:
    """Rule R12: helpers forget a job when it has ended."""
    helpers = Helpers(2)

    def work(item: int) -> None:
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match=r"^item 0$"):
        helpers.share(8, work)
    assert helpers._jobs == []
    helpers.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_forked_child_makes_its_own_helpers() -> None:
    helpers, meeting = Helpers(2), threading.Barrier(2)
    helpers.share(2, lambda item: meeting.wait(PATIENCE))
    child = os.fork()
    if child == 0:
        try:
            own = threading.Barrier(2)
            helpers.share(2, lambda item: own.wait(PATIENCE))
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    helpers.close()


# Scratch memory


def test_scratch_is_used_again_and_grows() -> None:
    scratch = Scratch()
    first = scratch("a", (2, 3), "float32")
    assert (first.shape, first.dtype, first.flags.c_contiguous) == ((2, 3), "float32", True)
    assert first.ctypes.data % 64 == 0
    assert scratch("a", (2, 3), "float32") is first
    assert scratch("a", (3,), "float64").ctypes.data == first.ctypes.data
    assert scratch("b", (2, 3), "float32").ctypes.data != first.ctypes.data
    larger = scratch("a", (50, 3), "float64")
    assert larger.size == 150
    assert scratch("a", (2, 3), "float32").ctypes.data == larger.ctypes.data
    assert scratch("a", (0, 3), "float64").shape == (0, 3)


def test_each_thread_has_scratch_of_its_own() -> None:
    scratch, others = Scratch(), []
    thread = threading.Thread(target=lambda: others.append(scratch("a", (4,), "float32")))
    own = scratch("a", (4,), "float32")
    thread.start()
    thread.join(PATIENCE)
    assert others[0].ctypes.data != own.ctypes.data
