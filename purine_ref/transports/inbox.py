"""The receiving side of a transport: which messages may come, have come, and are expected. No threads, no waiting.

Every route is a small state machine over rising iterations. Its message is sent, expected and taken once each, sent
and expected in either order. What would break that is refused, so that a fault shows where it is, and nobody waits
for what cannot come. An `Inbox` is not thread-safe: a transport calls it under a lock of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from purine_ref.errors import Refused
from purine_ref.operation import Array
from purine_ref.tensor import Tensor

Route = tuple[int, int]
"""(peer, tag): from whom a message comes, and which of its messages it is."""

EARLY = 1024
"""How many messages from one peer may wait before they are expected, unless a transport is told otherwise."""


@dataclass(slots=True)
class _Channel:
    """The state of one route. `asked` and `sent` are the last iterations; `due` says that `asked` was not taken yet."""

    tensor: Tensor
    sent: int = -1
    asked: int = -1
    due: bool = False
    arrived: Callable[[], None] | None = None  # whom to call when the message that is due comes
    messages: dict[int, Array] = field(default_factory=dict)  # by iteration, in the order of their coming

    @property
    def awaited(self) -> bool:
        """Whether the next message is the one that is due; any other would be early."""
        return self.asked > self.sent


class Inbox:
    """The messages for one rank. `incoming` has the description of what comes along each route."""

    def __init__(self, rank: int, incoming: Mapping[Route, Tensor], early: int = EARLY) -> None:
        self._rank = rank
        self._early = early
        self._channels = {route: _Channel(tensor) for route, tensor in incoming.items()}
        self._waiting: Counter[int] = Counter()  # messages that came before they were expected, by peer

    def check(self, peer: int, tag: int, iteration: int, array: Array) -> None:
        """Raise Refused unless `put` may take the message."""
        self.admit(peer, tag, iteration, array)
        conflict = self.conflict(peer, tag, iteration)
        if conflict is not None:
            raise conflict

    def admit(self, peer: int, tag: int, iteration: int, array: Array) -> None:
        """Raise Refused for a message that no state of this rank could make right: the sender is at fault."""
        channel = self._channel(peer, tag, iteration)
        self._check_array(channel, peer, tag, iteration, array)
        self._require(iteration > channel.sent, peer, tag, iteration, f"one above {channel.sent}, the last sent")

    def conflict(self, peer: int, tag: int, iteration: int) -> Refused | None:
        """Why a message along a route is not the one that is due, if one is due and it is not."""
        channel = self._channel(peer, tag, iteration)
        if not channel.awaited or iteration == channel.asked:
            return None
        return self._refusal(peer, tag, iteration, f"iteration {channel.asked}, which is due")

    def has_room(self, peer: int, tag: int) -> bool:
        """Whether the next message along a route is awaited, or there is room for one more that is early."""
        return self._channels[peer, tag].awaited or self._waiting[peer] < self._early

    def put(self, peer: int, tag: int, iteration: int, array: Array) -> Callable[[], None] | None:
        """Keep a message that `check` let pass; returns whom to call, if it was expected."""
        channel = self._channels[peer, tag]
        if not channel.awaited:
            self._waiting[peer] += 1
        channel.sent = iteration
        channel.messages[iteration] = array
        arrived, channel.arrived = channel.arrived, None
        return arrived

    def expect(self, peer: int, tag: int, iteration: int, arrived: Callable[[], None]) -> bool:
        """Note whom to call when the message comes; returns whether it is here already, when nobody will be called."""
        channel = self._channel(peer, tag, iteration)
        self._require(not channel.due, peer, tag, iteration, f"iteration {channel.asked} to be taken first")
        self._require(iteration > channel.asked, peer, tag, iteration, f"one above {channel.asked}, the last expected")
        first = next(iter(channel.messages), iteration)
        self._require(first == iteration, peer, tag, iteration, f"iteration {first}, which has come")
        channel.asked, channel.due = iteration, True
        if channel.messages:
            self._waiting[peer] -= 1
            return True
        channel.arrived = arrived
        return False

    def take(self, peer: int, tag: int, iteration: int, into: Array) -> Array | None:
        """The message that is due, for `into`; None when it has not come."""
        channel = self._channel(peer, tag, iteration)
        self._check_array(channel, peer, tag, iteration, into)
        due = f"iteration {channel.asked}, which is due" if channel.due else "nothing to be taken, for none is due"
        self._require(channel.due and channel.asked == iteration, peer, tag, iteration, due)
        if iteration not in channel.messages:
            return None
        channel.due = False
        return channel.messages.pop(iteration)

    def missing(self, peer: int | None = None) -> list[Callable[[], None]]:
        """Whom to call, once, since what they expect of `peer`, or of anyone, will never come."""
        found = []
        for (source, _), channel in self._channels.items():
            if channel.arrived is not None and peer in (None, source):
                found.append(channel.arrived)
                channel.arrived = None
        return found

    def give_up(self, peer: int, tag: int) -> Callable[[], None] | None:
        """Whom to call, if anyone, since what came along a route cannot be what is due."""
        channel = self._channels[peer, tag]
        arrived, channel.arrived = channel.arrived, None
        return arrived

    def awaited(self) -> Iterator[tuple[int, int, int]]:
        """The (peer, tag, iteration) of each message that is expected and has not come."""
        for (peer, tag), channel in self._channels.items():
            if channel.arrived is not None:
                yield peer, tag, channel.asked

    def clear(self) -> None:
        """Drop all messages."""
        for channel in self._channels.values():
            channel.messages.clear()

    def _channel(self, peer: int, tag: int, iteration: int) -> _Channel:
        channel = self._channels.get((peer, tag))
        if channel is None:
            tags = sorted(tag for source, tag in self._channels if source == peer)
            expected = f"a tag of {', '.join(map(str, tags))}" if tags else "none from that rank"
            raise self._refusal(peer, tag, iteration, expected)
        return channel

    def _check_array(self, channel: _Channel, peer: int, tag: int, iteration: int, array: Array) -> None:
        want = channel.tensor
        if array.shape == want.shape and array.dtype == want.dtype:  # a dtype is equal to its name, in native order
            return
        raise self._refusal(peer, tag, iteration, f"{want}, got {array.dtype}{list(array.shape)}")

    def _require(self, condition: bool, peer: int, tag: int, iteration: int, expected: str) -> None:
        if not condition:
            raise self._refusal(peer, tag, iteration, expected)

    def _refusal(self, peer: int, tag: int, iteration: int, expected: str) -> Refused:
        message = f"message of tag {tag}, iteration {iteration}, from rank {peer} to rank {self._rank}"
        return Refused(f"{message}: expected {expected}")
