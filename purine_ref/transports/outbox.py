"""What one rank knows of its peers' inboxes, so that it refuses, or holds back, what a peer could not take.

Where an `Inbox` is in another process, its rank sends a note of every message that it expects. The sender keeps count
of them here: a message that no note has asked for yet is early, and needs room. Notes may be late, never wrong, so at
most as many early messages lie at a peer as are counted here. Not thread-safe: a transport calls it under its lock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from purine_ref.errors import Refused
from purine_ref.operation import Array
from purine_ref.tensor import Tensor
from purine_ref.transports.inbox import Route


@dataclass(slots=True)
class _Lane:
    """One route out. `sent` and `asked` are the last iterations; `early` are those sent before they were asked for."""

    tensor: Tensor
    sent: int = -1
    asked: int = -1
    early: deque[int] = field(default_factory=deque)


class Outbox:
    """What `rank` may send. `incoming[peer]` has what may come in at each rank; `early` is the room at each."""

    def __init__(self, rank: int, incoming: Sequence[Mapping[Route, Tensor]], early: int) -> None:
        self._rank = rank
        self._early = early
        self._lanes = {
            (peer, tag): _Lane(tensor)
            for peer, routes in enumerate(incoming)
            for (source, tag), tensor in routes.items()
            if source == rank
        }
        self._waiting: Counter[int] = Counter()  # messages sent before they were asked for, by peer

    def check(self, peer: int, tag: int, iteration: int, array: Array) -> None:
        """Raise Refused unless `put` may note the message, as far as can be known here."""
        lane = self._lanes.get((peer, tag))
        if lane is None:
            tags = sorted(tag for target, tag in self._lanes if target == peer)
            expected = f"a tag of {', '.join(map(str, tags))}" if tags else "none from that rank"
            raise self._refusal(peer, tag, iteration, expected)
        want = lane.tensor
        if array.shape != want.shape or array.dtype != want.dtype:  # a dtype is equal to its name, in native order
            raise self._refusal(peer, tag, iteration, f"{want}, got {array.dtype}{list(array.shape)}")
        if iteration <= lane.sent:
            raise self._refusal(peer, tag, iteration, f"one above {lane.sent}, the last sent")
        if lane.asked > lane.sent and iteration != lane.asked:
            raise self._refusal(peer, tag, iteration, f"iteration {lane.asked}, which is due")

    def has_room(self, peer: int, tag: int) -> bool:
        """Whether the next message along a route has been asked for, or there is room for one more that is early."""
        lane = self._lanes[peer, tag]
        return lane.asked > lane.sent or self._waiting[peer] < self._early

    def put(self, peer: int, tag: int, iteration: int) -> None:
        """Note that a message is sent that `check` let pass."""
        lane = self._lanes[peer, tag]
        if lane.asked <= lane.sent:
            lane.early.append(iteration)
            self._waiting[peer] += 1
        lane.sent = iteration

    def ask(self, peer: int, tag: int, iteration: int) -> None:
        """Note that the peer expects a message. Raises Refused for a route that is not, and iterations that fall."""
        lane = self._lanes.get((peer, tag))
        if lane is None or iteration <= lane.asked:
            raise self._refusal(peer, tag, iteration, "the peer to ask along its routes, for iterations that rise")
        lane.asked = iteration
        while lane.early and lane.early[0] <= iteration:
            lane.early.popleft()
            self._waiting[peer] -= 1

    def _refusal(self, peer: int, tag: int, iteration: int, expected: str) -> Refused:
        message = f"message of tag {tag}, iteration {iteration}, from rank {self._rank} to rank {peer}"
        return Refused(f"{message}: expected {expected}")
