"""What a device is given to do: one piece of work on a stream, and the events that order it after others.

On an accelerator a blob is ready when its operator is *enqueued*. Work on one (device, stream) runs in the order of its
submission; work on different ones is ordered only by events.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from purine_ref.operation import Array
from purine_ref.tensor import Location


class Event(Protocol):
    """That a piece of work has been done."""

    queue: str

    def wait(self) -> bool:
        """Block until it has; False when the work failed, or was skipped because what it needs had failed."""


@dataclass(frozen=True, slots=True)
class Work:
    """One call: `compute` reads and writes the arrays named, on `stream` of the device, not before `after` happened.

    `moves` says that it copies between places, and so may touch another device's memory. `describe` gives the note for
    an error.
    """

    name: str
    location: Location
    stream: str
    compute: Callable[[], None]
    reads: Sequence[Array]
    writes: Sequence[Array]
    after: Sequence[Event] = field(default=())
    moves: bool = False
    describe: Callable[[], str] | None = None

    @property
    def queue(self) -> str:
        """The queue's name: device and stream, or `host` for the CPU, which has no order of its own."""
        return "host" if self.location.is_cpu else f"{self.location}/{self.stream}"


def noted(work: Work, error: BaseException) -> BaseException:
    """The error of a piece of work with a note that names it, and without frames that keep arrays alive (rule R12)."""
    error.add_note(work.describe() if work.describe is not None else work.name)
    traceback.clear_frames(error.__traceback__)
    return error


class UpstreamFailed(Exception):
    """Work was skipped, since work that it needs had failed; the failure itself is reported by its own device."""
