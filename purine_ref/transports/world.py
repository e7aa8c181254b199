"""All ranks of a run, joined: where the transports of its graphs come from, one after the other or side by side.

A run is several processes that do the same: each builds every graph as a whole, opens it with the same calls in the
same order as all others, and runs its own nodes. `current` is the world that this process joined, if any, for code
that cannot be handed one, such as a command that may be started on its own or as one rank of several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from purine_ref.tensor import Tensor
from purine_ref.transports.inbox import EARLY, Route

if TYPE_CHECKING:
    from purine_ref.transports import Transport

Words = Mapping[tuple[int, int, int], str]
"""By (receiving rank, sending rank, tag): what waits for that message, such as `operator 'x>1' for blob 'x'`."""


class World(Protocol):
    """One rank's end of all that the ranks share. `open` is called by one thread; the rest by any."""

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def open(
        self,
        name: str,
        fingerprint: str,
        incoming: Sequence[Mapping[Route, Tensor]],
        *,
        early: int = EARLY,
        words: Words | None = None,
    ) -> Transport:
        """A transport for one graph, once every rank has opened its own; all ranks open the same graphs in one order.

        `incoming[rank]` has what may come in at each rank, `fingerprint` stands for the graph and all else that must
        be equal, `name` is the graph's for messages, and `words` tell in a PeerLost who waits for what. Raises Refused,
        on every rank, where one has another fingerprint, saying which rank; PeerLost where one is gone or, after the
        time limit, has not come.
        """

    def offset(self, peer: int) -> float:
        """Seconds to add to `peer`'s `time.perf_counter()` for this rank's, as estimated when the ranks met."""

    def close(self) -> None:
        """Leave, once what was sent has been delivered or its receiver is gone; ends within the time limit."""

    def abort(self, reason: str) -> None:
        """Tell all others that this rank is lost, and do not wait."""


_joined: list[World] = []


def current() -> World | None:
    """The world that this process joined, or None."""
    return _joined[-1] if _joined else None


@contextmanager
def joined(world: World) -> Iterator[World]:
    """Make `world` the current one inside the block. It stays the caller's to close."""
    _joined.append(world)
    try:
        yield world
    finally:
        _joined.remove(world)
