"""The race detector of virtual devices: vector clocks over queues.

Every piece of work on a (device, stream) has a number in its queue. Its clock says, for each queue, up to which number
the work there is known to be done before it: by the order of its own queue, and by the clocks of the marks that its
queue has waited for. An access conflicts with a recorded one if they share memory and either writes; it is a race if
the recorded one's number is above what the clock knows of its queue. This is found when work is launched, whatever the
timing. What the host does itself, the executor orders: it is recorded as known to all work launched later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from purine_ref.operation import Array

Clock = Mapping[str, int]

EXACT_WORK = 1000
"""Steps that numpy may take to decide whether two strided arrays share an element; beyond, they count as sharing."""


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses to one buffer that nothing orders, at least one of them a write."""

    buffer: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"race on buffer {self.buffer}: {self.first} and {self.second} are not ordered by any event"


@dataclass(frozen=True, slots=True)
class _Access:
    array: Array
    work: str
    queue: str
    number: int
    writes: bool


class Knowledge:
    """What is known at the end of a queue: for each queue, up to which number its work is done before what comes next.

    Not thread-safe, as `RaceDetector`.
    """

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.clock: dict[str, int] = {}

    @property
    def next(self) -> int:
        """The number of the queue's next work."""
        return self.clock.get(self.queue, 0) + 1

    def join(self, clock: Clock) -> None:
        """From now on, all that `clock` knows is known here."""
        for name, known in clock.items():
            self.clock[name] = max(known, self.clock.get(name, 0))

    def count(self) -> None:
        """The next work has been launched."""
        self.clock[self.queue] = self.next


class RaceDetector:
    """Records accesses and finds races. Not thread-safe: the virtual machine calls it under its lock."""

    def __init__(self) -> None:
        self.races: list[Race] = []
        self._names: dict[int, str] = {}
        self._accesses: dict[int, list[_Access]] = {}

    def name(self, array: Array, name: str) -> None:
        """Call the buffer `array` by this name."""
        self._names[id(array)] = name

    def check(
        self, work: str, queue: str, number: int, clock: Clock, reads: Sequence[Array], writes: Sequence[Array]
    ) -> None:
        """Record the accesses of one piece of work, number `number` in its queue, and find its races."""
        for array, is_write in [*((array, False) for array in reads), *((array, True) for array in writes)]:
            root = root_of(array)
            earlier = self._accesses.setdefault(id(root), [])
            access = _Access(array, work, queue, number, is_write)
            for other in earlier:
                if (is_write or other.writes) and not _known(other, work, clock) and _share(array, other.array):
                    verbs = ("writes" if side else "reads" for side in (other.writes, is_write))
                    first, second = (f"operator {w!r} {v} it" for w, v in zip((other.work, work), verbs, strict=True))
                    self.races.append(Race(self._names.get(id(root), f"at {id(root):#x}"), first, second))
            if is_write:  # later accesses that know of this write know of what it covers
                earlier[:] = [other for other in earlier if other.array is not array or not _known(other, work, clock)]
            earlier.append(access)

    def forget(self) -> None:
        """All work is done: nothing recorded so far can race with what comes."""
        self._accesses.clear()


def _known(other: _Access, work: str, clock: Clock) -> bool:
    """Whether the recorded access is done before: it is the host's, the same work's, or within the clock."""
    return other.queue == "host" or other.work == work or clock.get(other.queue, 0) >= other.number


def root_of(array: Array) -> Array:
    """The array whose memory this one is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _share(one: Array, other: Array) -> bool:
    if not np.may_share_memory(one, other):
        return False
    try:
        return bool(np.shares_memory(one, other, max_work=EXACT_WORK))  # type: ignore[arg-type]  # any int will do
    except np.exceptions.TooHardError:
        return True
