"""The one way to watch a run: an `Observer` that an executor calls as operators start and end, and runs do.

Observers are for tracing, progress, and for tests that delay operators. Without one a run pays nothing for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from purine_ref.graph import Blob, Op

_log = logging.getLogger("purine_ref")


class Observer:
    """Called with the operator and the executor's clock in seconds, on the thread that runs the operator.

    Override what you need. An exception in an observer is logged and cannot break the run. From `added` on, it must not
    call the executor, which may hold a lock.
    """

    def started(self, op: Op, at: float) -> None:
        """`op` is about to compute; its inputs are complete."""

    def finished(self, op: Op, at: float) -> None:
        """`op` has computed, and its contributions have been added up (rule R4); its consumers may start next."""

    def copied(self, op: Op, at: float) -> None:
        """`op`, which moves its input to another place, has done so; called just before `finished`."""

    def failed(self, op: Op, at: float, error: BaseException) -> None:
        """`op` raised `error`; its executor takes no further operator, but some may have been taken and not started."""

    def added(self, op: Op, blob: Blob, at: float) -> None:
        """The contribution of `op` to `blob`, which has several producers, is in the sum (rule R4)."""

    def ready(self, blob: Blob, at: float) -> None:
        """All producers of `blob` have delivered; its consumers may start next."""

    def began(self, iteration: int, at: float) -> None:
        """A run begins; none of its operators has started."""

    def ended(self, iteration: int, at: float, error: BaseException | None) -> None:
        """The run has ended, and counts; or with `error` it does not."""

    def swapped(self, current: Blob, following: Blob, at: float) -> None:
        """After a run that counts, the two have exchanged their arrays (rule R6)."""


class OperatorsOnly(Observer):
    """Passes on what concerns operators and blobs: for the parts of a run that is one run to its observer."""

    def __init__(self, observer: Observer) -> None:
        self.started, self.finished, self.copied = observer.started, observer.finished, observer.copied  # type: ignore[method-assign]
        self.failed, self.added, self.ready = observer.failed, observer.added, observer.ready  # type: ignore[method-assign]
        self.swapped = observer.swapped  # type: ignore[method-assign]


def notify(event: Callable[..., None], *facts: object) -> None:
    """Call an observer's method; log what it raises, but for an interrupt from the keyboard, which is not its own."""
    try:
        event(*facts)
    except KeyboardInterrupt:
        raise
    except BaseException:
        _log.exception("observer %r failed and was ignored", getattr(event, "__qualname__", event))
