"""All ranks of a run, joined: where the transports of its graphs come from, one after the other or side by side.

A run is several processes that do the same: each builds every graph as a whole, opens it with the same calls in the
same order as all others, and runs its own nodes. `current` is the world that was joined, if any, for code that cannot
be handed one, such as a command that may be started on its own or as one rank of several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from purine_ref.tensor import Tensor
from purine_ref.transports.inbox import EARLY, Route
from purine_ref.transports.transport import Transport

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

    @property
    def transport(self) -> str:
        """What joins the ranks, such as `zeromq`."""

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


@dataclass(frozen=True, slots=True)
class Opening:
    """What a rank opens: the graph's name, and the fingerprint of all that must be equal."""

    name: str
    fingerprint: str


def difference(openings: Mapping[int, Opening]) -> str | None:
    """Which rank, the lowest, opens something else than the lowest of all does, and what; None where all are equal."""
    first, *others = sorted(openings)
    for rank in others:
        one, other = openings[first], openings[rank]
        if one.name != other.name:
            return (
                f"rank {rank} opens graph {other.name!r} where rank {first} opens {one.name!r}: every rank must run "
                "the same command"
            )
        if one != other:
            return (
                f"graph {one.name!r} of rank {rank} is not that of rank {first}: fingerprints "
                f"{other.fingerprint[:12]} and {one.fingerprint[:12]}; every rank must build the same graph, with the "
                "same seed and options, by the same version"
            )
    return None


_joined: ContextVar[World | None] = ContextVar("the world that was joined", default=None)
"""Each thread has its own, so that the ranks of a test may be threads of one process."""


def current() -> World | None:
    """The world that this thread joined, or None."""
    return _joined.get()


@contextmanager
def joined(world: World) -> Iterator[World]:
    """Make `world` the current one of this thread inside the block. It stays the caller's to close."""
    token = _joined.set(world)
    try:
        yield world
    finally:
        _joined.reset(token)
