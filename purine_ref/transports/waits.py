"""Who waits for what from whom, in words: the wait-for graph that a PeerLost carries."""

from __future__ import annotations

from dataclasses import dataclass

from purine_ref.errors import PeerLost
from purine_ref.transports.world import Words

LINES = 24
"""Most lines of a wait-for graph, and most waits that a rank tells of at once."""

REASON, LINE = 1000, 300
"""Most characters of why a rank is lost, and of a line of the wait-for graph."""

Wait = tuple[str, int, int, int, int]
"""What a rank waits for: (`open`, `receive` or `send`; number of the graph; peer; tag; iteration)."""


def describe(rank: int, wait: Wait, graph: str, words: Words | None) -> str:
    """A line that says what a rank waits for, of the graph of that name."""
    what, _, peer, tag, iteration = wait
    if what == "open":
        return f"rank {rank} waits for rank {peer} to open graph {graph!r}"
    key = (rank, peer, tag) if what == "receive" else (peer, rank, tag)
    subject = (words or {}).get(key, f"tag {tag}")
    end = "message" if what == "receive" else "room"
    return f"rank {rank} waits for rank {peer}: {subject}, {end} of iteration {iteration}"


@dataclass(frozen=True, slots=True)
class Loss:
    """The first loss: which rank, why, and who waited for what. `teller` is who said so of this rank itself."""

    rank: int
    reason: str
    waits: tuple[str, ...] = ()
    teller: int | None = None

    def error(self) -> PeerLost:
        """A new error that says so: notes on one show on no other.

        A rank that others lost has itself failed at nothing: to it, the one that will not go on with it is lost.
        """
        if self.teller is not None:
            return PeerLost(self.teller, f"to it, this rank, {self.rank}, is lost: {self.reason}", self.waits)
        return PeerLost(self.rank, self.reason, self.waits)
