"""What a device is given to do: one piece of work on a stream, and the events that order it after others.

On an accelerator a blob is ready when its operator is *launched*. Work on one (device, stream) runs in the order of its
launch; work on different ones is ordered only by events.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from purine_ref.operation import Array
from purine_ref.tensor import Location

HOST = "host"
"""The queue of all CPUs: work there is done when it has been submitted, and has no order of its own."""


class Mark(Protocol):
    """A point in a stream, behind all that was launched into it before."""

    def synchronise(self) -> bool:
        """Block the host until the stream has come so far; False when what was launched before had failed."""


@dataclass(frozen=True, slots=True)
class Event:
    """That a piece of work, number `number` in its queue, is done; `mark` is None where the work does not signal."""

    work: str
    queue: str
    number: int
    mark: Mark | None

    def required(self) -> Mark:
        """The mark. Raises RuntimeError where there is none, though another queue or the host must wait for it."""
        if self.mark is None:
            raise RuntimeError(
                f"internal error: {self.work!r} on {self.queue} was launched without a mark, since nothing elsewhere "
                "was said to read what it writes; and now something must wait for it"
            )
        return self.mark

    def wait(self) -> bool:
        """Block the host until the work is done; False when it failed, or was skipped for what it needs had failed.

        Raises RuntimeError where it does not signal.
        """
        return self.required().synchronise()


@dataclass(frozen=True, slots=True)
class Work:
    """One call: `compute` reads and writes the arrays named, on `stream` of the device, not before `after` happened.

    `moves` says that it copies between places, and so may touch another device's memory. `describe` gives the note for
    an error. `signals` says whether work on another queue, or the host, waits for it.
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
    signals: bool = True

    @property
    def queue(self) -> str:
        """The queue's name: device and stream, or `HOST` for the CPU."""
        return queue_of(self.location, self.stream)


def queue_of(location: Location, stream: str) -> str:
    """The name of the queue of work at this place, on this stream."""
    return HOST if location.is_cpu else f"{location}/{stream}"


def noted(work: Work, error: BaseException) -> BaseException:
    """The error of a piece of work with a note that names it, and without frames that keep arrays alive (rule R12)."""
    error.add_note(work.describe() if work.describe is not None else work.name)
    without_frames(error)
    return error


def without_frames(error: BaseException) -> None:
    """Clear the finished frames of an error that was just caught, and of its causes: they hold arrays (rule R12)."""
    seen: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        link = pending.pop()
        if link is None or any(link is other for other in seen):
            continue
        seen.append(link)
        traceback.clear_frames(link.__traceback__)
        pending += [link.__cause__, link.__context__]
        if isinstance(link, BaseExceptionGroup):
            pending += link.exceptions
    if error.__traceback__ is not None:  # the frame that caught it comes first; it is still running, so leave it out
        error.__traceback__ = error.__traceback__.tb_next


class UpstreamFailed(Exception):
    """Work was skipped, since work that it needs had failed; the failure itself is reported by its own device."""
