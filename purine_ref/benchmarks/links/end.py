"""The program of one end: `python -m purine_ref.benchmarks.links.end ENDS` is asked (end 0), or does what end 0 says.

Both tell each other integers: end 0 before each measurement what comes, of which size, how often; end 1 how it is.
They work on a thread beside the main one, as the workers of an executor do.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np

from purine_ref.benchmarks.asking import serve
from purine_ref.benchmarks.links.joining import WAYS
from purine_ref.benchmarks.links.link import CONTROL, Ends, Link
from purine_ref.benchmarks.timing import paused_collector
from purine_ref.operation import Array

STOP, ECHO, SINK, READY, GOOD, BAD = range(6)

ARRAYS = 4
"""Into so many arrays of its own a receiver receives, one after the other."""


class Asker:
    """End 0: makes the measurements. Raises RuntimeError where other bytes come than were sent."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._stopped = False

    def round_trip(self, size: int, count: int) -> float:
        """Seconds that an array takes there and back: the mean of `count`, after one that is not counted."""
        there, back = pattern(size), blank(size)
        start = 0.0
        self._tell(ECHO, size, count + 1)
        with paused_collector():
            for number in range(count + 1):
                if number == 1:
                    start = time.perf_counter()
                self._link.expect([back])
                self._link.send(there, 0)
                self._link.receive(back, 0)
            taken = time.perf_counter() - start
        if not np.array_equal(there, back):
            raise RuntimeError(f"an array of {size} bytes came back as another")
        return taken / count

    def stream(self, size: int, count: int) -> float:
        """Seconds for each of `count` arrays, sent one after the other, until all lie in the receiver's arrays."""
        array = pattern(size)
        self._tell(SINK, size, count)
        self._hear()  # it is ready: its arrays are made, and its messages expected
        with paused_collector():
            start = time.perf_counter()
            for place in range(count):
                self._link.send(array, place)
            self._hear()
            taken = time.perf_counter() - start
        if self._hear() != GOOD:
            raise RuntimeError(f"arrays of {size} bytes arrived as others")
        return taken / count

    def stop(self) -> None:
        """End both ends, once."""
        if not self._stopped:
            self._stopped = True
            self._tell(STOP, 0, 0)
            self._link.close()

    def _tell(self, what: int, size: int, count: int) -> None:
        tell(self._link, what, size, count)

    def _hear(self) -> int:
        return hear(self._link)[0]


def obey(link: Link) -> None:
    """End 1: do what end 0 says, until it says stop."""
    while True:
        what, size, count = hear(link)
        if what == STOP:
            link.close()
            return
        (_echo if what == ECHO else _sink)(link, size, count)


def _echo(link: Link, size: int, count: int) -> None:
    array = blank(size)
    link.expect([array])
    for left in reversed(range(count)):
        link.receive(array, 0)
        if left:
            link.expect([array])  # which comes only after the answer
        link.send(array, 0)


def _sink(link: Link, size: int, count: int) -> None:
    arrays = [blank(size) for _ in range(min(ARRAYS, count))]
    link.expect([arrays[place % ARRAYS] for place in range(count)])
    tell(link, READY)
    for place in range(count):
        link.receive(arrays[place % ARRAYS], place)
    tell(link, READY)
    same = all(np.array_equal(array, pattern(size)) for array in arrays)
    tell(link, GOOD if same else BAD)


def tell(link: Link, *words: int) -> None:
    """Send up to four integers."""
    link.send(np.array([*words, 0, 0, 0][:4]).view(np.uint8), 0)


def hear(link: Link) -> tuple[int, int, int]:
    """Wait for what the other end tells."""
    words: Array = np.zeros(CONTROL, np.uint8)
    link.expect([words])
    link.receive(words, 0)
    what, size, count, _ = words.view(np.int64).tolist()
    return what, size, count


def pattern(size: int) -> Array:
    """What is sent: bytes that a shift by a block would change."""
    return np.resize(np.arange(251, dtype=np.uint8), size)


def blank(size: int) -> Array:
    """Where it is received: memory that was written before, as an executor's is, with other bytes."""
    return np.full(size, 255, np.uint8)


def answer(facts: dict[str, Any]) -> None:
    """Be end 0: answer until the input ends. If nobody said stop, whoever asked is gone, and end 1 must not wait on."""
    with ExitStack() as stack:

        def answers(facts: dict[str, Any]) -> Mapping[str, Callable[..., object]]:
            """What can be asked."""
            asker = Asker(joined(facts))
            stack.callback(asker.stop)
            return {"round_trip": asker.round_trip, "stream": asker.stream, "stop": asker.stop}

        serve(answers, facts)


def obey_joined(facts: dict[str, Any]) -> None:
    """Be end 1."""
    obey(joined(facts))


def joined(facts: dict[str, Any]) -> Link:
    """The end of these facts, when it has met the other."""
    ends = Ends(**{**facts, "counts": {CONTROL: 1, **{int(size): count for size, count in facts["counts"].items()}}})
    return WAYS[ends.way].join(ends)


def main() -> None:
    """Be an end. Under MPI, which starts both with the same words, the rank says which."""
    facts = json.loads(sys.argv[1])
    if facts["end"] is None:
        from mpi4py import MPI  # a peer, which need not be there

        facts["end"] = MPI.COMM_WORLD.rank
    work = obey_joined if facts["end"] else answer
    with ThreadPoolExecutor(1) as worker:
        worker.submit(work, facts).result()


if __name__ == "__main__":
    main()
