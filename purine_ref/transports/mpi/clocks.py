"""How the other ranks' clocks differ from this one's, as estimated from a few questions and answers."""

from __future__ import annotations

import time

from purine_ref.transports.mpi.frames import integer
from purine_ref.transports.mpi.link import Fields, Link

ROUNDS = 8
"""How many times each rank is asked. The answer that came back soonest says most."""


class Clocks:
    """The clocks of the other ranks. Used with the link's lock held. Times are `perf_counter_ns`, in nanoseconds."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._asked: dict[int, int] = {}  # when each rank was asked last
        self._rounds: dict[int, int] = {}
        self._best: dict[int, tuple[int, int]] = {}  # by rank, the shortest round trip, and twice the offset then
        self.known: dict[int, bool] = {link.rank: True}
        """The ranks that have been asked often enough."""

    def start(self) -> None:
        """Ask all others."""
        for peer in self._link.here():
            self._ask(peer)

    def received(self, peer: int, fields: Fields) -> None:
        """Answer a question, or learn from an answer, and ask again."""
        now = time.perf_counter_ns()
        if fields["kind"] == "ping":
            self._link.post([peer], {"kind": "pong", "at": now})
            return
        asked = self._asked.pop(peer, None)
        if asked is None:
            return
        answer = (now - asked, asked + now - 2 * integer(fields, "at"))
        self._best[peer] = min(self._best.get(peer, answer), answer)
        self._rounds[peer] = self._rounds.get(peer, 0) + 1
        if self._rounds[peer] < ROUNDS:
            self._ask(peer)
        else:
            self.known[peer] = True

    def offset(self, peer: int) -> float:
        """Seconds to add to the clock of a rank; 0 for this one."""
        return 0.0 if peer == self._link.rank else self._best[peer][1] / 2e9

    def _ask(self, peer: int) -> None:
        self._asked[peer] = time.perf_counter_ns()
        self._link.post([peer], {"kind": "ping"})
