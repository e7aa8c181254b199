"""What was refused: counted by kind and peer, and logged, though not more often than anyone can read."""

from __future__ import annotations

import time
from collections import Counter

from purine_ref.transports.zeromq.shared import LOG

PAUSE = 1.0
"""Seconds between two lines in the log."""


class Refusals:
    """The refusals of one rank. `counts` has how many, by whether a peer or a stranger sent them."""

    def __init__(self, rank: int) -> None:
        self.counts: Counter[str] = Counter()
        self.last = ""
        self._rank = rank
        self._logged = -PAUSE
        self._silent = 0  # refusals since the last line

    def count(self, error: Exception, peer: int | None) -> None:
        """Note a refusal of a message from `peer`, or from a stranger."""
        whom = "a stranger" if peer is None else f"rank {peer}"
        self.counts["stranger" if peer is None else "peer"] += 1
        self.last = f"{whom}: {error}"
        now = time.monotonic()
        if now - self._logged < PAUSE:
            self._silent += 1
            return
        more = f" ({self._silent} more were refused meanwhile)" if self._silent else ""
        LOG.warning("rank %d refused %s%s", self._rank, self.last[:300], more)
        self._logged, self._silent = now, 0
