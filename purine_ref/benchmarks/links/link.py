"""What every link is: two ends that send each other arrays of bytes, of sizes that both know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from purine_ref.operation import Array

CONTROL = 32
"""Bytes of the messages that tell the other end what comes: four integers. No size that is measured is as small."""

PATIENCE = 60.0
"""Seconds after which what does not come is an error."""


@dataclass(frozen=True, slots=True)
class Ends:
    """What an end is told. `counts` has, for each size in bytes, how many messages may be on their way at once.

    `way` is a key of `joining.WAYS`, `end` is 0 or 1, and `address` where end 0 listens; `keys` is a folder of keys of
    our own transport, or empty.
    """

    way: str
    end: int
    address: str
    counts: Mapping[int, int]
    keys: str = ""


class Link(Protocol):
    """One end. Messages arrive in the order of their sending. Raises whatever the way of sending raises.

    Those that are on their way at once have `place` 0, 1 and so on, in the order of their sending.
    """

    def expect(self, arrays: Sequence[Array]) -> None:
        """The next messages will be received into these arrays of one size: said before, when none of it is due."""

    def send(self, array: Array, place: int) -> None:
        """Send bytes, of a size that is known. They must stay as they are until an answer to them has come."""

    def receive(self, into: Array, place: int) -> None:
        """Wait for the next message, and write it into an array of its size."""

    def close(self) -> None:
        """Let go of everything, once the other end has everything or is gone."""
