"""Our own transport, as an executor uses it: messages are expected before they are sent, and taken when they came."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from purine_ref.benchmarks.links.link import PATIENCE, Ends
from purine_ref.operation import Array
from purine_ref.tensor import Tensor
from purine_ref.transports import World

WORD = 4
"""Bytes of a number: graphs have no bytes. Sizes must be so many times an integer."""


class Own:
    """See `Link`: a route for each size and place. `world` has two ranks, and is closed with the link."""

    def __init__(self, ends: Ends, world: World) -> None:
        self._world, self._peer = world, 1 - ends.end
        self._first: dict[int, int] = {}  # the tag of each size at place 0
        tensors: list[Tensor] = []  # by tag
        for size, count in ends.counts.items():
            self._first[size] = len(tensors)
            tensors += [Tensor((size // WORD,), "float32")] * count
        routes = [{(1 - rank, tag): tensor for tag, tensor in enumerate(tensors)} for rank in range(2)]
        self._transport = world.open("bench transport", repr(sorted(ends.counts.items())), routes)
        self._arrived = [threading.Event() for _ in tensors]
        self._sent: Counter[int] = Counter()  # by tag, how many so far: the iteration of the next
        self._expected: Counter[int] = Counter()
        self._into: dict[int, Array] = {}  # by tag: the array of the message that is expected, as it was given then

    def expect(self, arrays: Sequence[Array]) -> None:
        """Expect one message on each route, and say where it goes."""
        for tag, array in enumerate(arrays, self._first[arrays[0].size]):
            self._arrived[tag].clear()
            self._into[tag] = into = array.view("float32")
            self._transport.expect(self._peer, tag, self._expected[tag], self._arrived[tag].set, into)
            self._expected[tag] += 1

    def send(self, array: Array, place: int) -> None:
        """Send it along its route; it is not touched again until an answer has come."""
        tag = self._first[array.size] + place
        self._transport.send(self._peer, tag, self._sent[tag], array.view("float32"))
        self._sent[tag] += 1

    def receive(self, into: Array, place: int) -> None:
        """Take it when it has arrived. Raises TimeoutError for one that does not come."""
        tag = self._first[into.size] + place
        if not self._transport.wait(self._arrived[tag], PATIENCE):
            raise TimeoutError(f"no message of {into.size} bytes within {PATIENCE:.0f} s")
        self._transport.take(self._peer, tag, self._expected[tag] - 1, self._into[tag])

    def close(self) -> None:
        """Close the transport and leave the world."""
        self._transport.close()
        self._world.close()
