"""How ranks ended, in words, and which exit code stands for all.

The worst code first: of a rank that a signal killed or that crashed, 1 (a result differs), 2 (it could not run),
64 (wrong usage), 0. A rank that was ended because another had failed says nothing about itself, and does not count.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

PASS, FAIL, UNKNOWN, USAGE = 0, 1, 2, 64

SSH_FAILED = 255
"""What `ssh` ends with when it could not do its part; then nothing is known of the rank."""

_ORDER = (PASS, USAGE, UNKNOWN, FAIL)
"""From good to bad; every other code is worse."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of one rank. `code` is its exit code, 128 + n for signal n; `host` None for this machine.

    `asked` says that it was told to end before it did.
    """

    rank: int
    code: int
    asked: bool = False
    host: str | None = None

    def __str__(self) -> str:
        """In words, such as `rank 1 was killed by SIGKILL`."""
        name = f"rank {self.rank}" + ("" if self.host is None else f" on {self.host}")
        if self.host is not None and self.code == SSH_FAILED:
            return f"{name} cannot be reached: ssh ended with exit code {self.code}"
        if self.code in (128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGHUP):
            return f"{name} was ended by {signal.Signals(self.code - 128).name}"
        if self.code > 128 and self.code - 128 in set(signal.Signals):
            return f"{name} was killed by {signal.Signals(self.code - 128).name}"
        return f"{name} ended with exit code {self.code}"


def worst(ends: Sequence[Ended]) -> int:
    """The exit code that stands for all; `ends` in the order of time, so that of two crashes the first counts."""
    counting = [end for end in ends if not end.asked] or list(ends)
    return max((_meaning(end) for end in counting), key=badness, default=UNKNOWN)


def _meaning(end: Ended) -> int:
    return UNKNOWN if end.host is not None and end.code == SSH_FAILED else end.code


def badness(code: int) -> int:
    """How bad an exit code is, from 0."""
    return _ORDER.index(code) if code in _ORDER else len(_ORDER)
