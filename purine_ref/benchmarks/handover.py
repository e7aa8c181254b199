"""What it costs to go on in another thread: a token goes to and fro between two, and each sleeps until it has it.

Between Python threads that is a wake, and the interpreter's lock, which must change hands: rows of `queue.SimpleQueue`
and of two `threading.Lock`. The C++ row is the wake alone. Two more rows say what is paid where nobody waits: taking
and giving back a free lock, and telling a condition of which nobody wants to hear.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial

from purine_ref.benchmarks.native import Running
from purine_ref.benchmarks.timing import Contestant, seconds

CASE = "between threads"
TURNS = 1_000
"""Hand-overs of one measurement; as many as in `native/handover.cpp`."""

PATIENCE = 60.0
"""Seconds after which a token that does not come is an error."""


def play(take: Callable[[], object], give: Callable[[], object]) -> None:
    """One thread's half of the turns."""
    for _ in range(TURNS // 2):
        take()
        give()


def to_and_fro(ours: tuple[Callable[[], object], ...], theirs: tuple[Callable[[], object], ...]) -> None:
    """Both threads take and give until the turns are over."""
    other = threading.Thread(target=play, args=theirs, daemon=True)
    other.start()
    play(*ours)
    other.join(PATIENCE)
    if other.is_alive():
        raise RuntimeError("the other thread waits for a token that does not come")


def by_queues() -> None:
    """Two `queue.SimpleQueue`, one for each direction."""
    there: queue.SimpleQueue[None] = queue.SimpleQueue()
    back: queue.SimpleQueue[None] = queue.SimpleQueue()
    back.put(None)
    wait = partial(back.get, timeout=PATIENCE), partial(there.get, timeout=PATIENCE)
    to_and_fro((wait[0], partial(there.put, None)), (wait[1], partial(back.put, None)))


def by_locks() -> None:
    """Two locks that are held: to give the token is to let go of the other's."""
    there, back = threading.Lock(), threading.Lock()
    there.acquire()  # the first turn is ours
    wait = partial(back.acquire, timeout=PATIENCE), partial(there.acquire, timeout=PATIENCE)
    to_and_fro((wait[0], there.release), (wait[1], back.release))


def free_lock() -> None:
    """A lock that nobody holds."""
    lock = threading.Lock()
    for _ in range(TURNS):
        with lock:
            pass


def unheard() -> None:
    """A condition, its lock held, on which nobody waits."""
    condition = threading.Condition(threading.Lock())
    with condition:
        for _ in range(TURNS):
            condition.notify()


def contestants(native: Running | None) -> list[Contestant]:
    """The rows, in the order of the table."""
    both = [("SimpleQueue", by_queues), ("Lock", by_locks)]
    alone = [("a free Lock", free_lock), ("an unheard Condition", unheard)]
    found = [Contestant(name, CASE, TURNS, partial(seconds, work), 2) for name, work in both]
    if native is not None:
        found.append(Contestant("C++ atomic wait", CASE, TURNS, native.ask, 2))
    return [*found, *(Contestant(name, CASE, TURNS, partial(seconds, work)) for name, work in alone)]
