"""The one way to watch a run: an `Observer` that an executor calls as operators start and end.

Observers are for tracing, progress, and for tests that delay operators. Without one a run pays nothing for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from purine_ref.graph import Op

_log = logging.getLogger("purine_ref")


class Observer:
    """Called with the operator and the executor's clock in seconds, on the thread that runs the operator.

    Override what you need. An exception in an observer is logged and cannot break the run.
    """

    def started(self, op: Op, at: float) -> None:
        """`op` is about to compute; its inputs are complete."""

    def finished(self, op: Op, at: float) -> None:
        """`op` has computed, and its contributions have been added up (rule R4); its consumers may start next."""

    def copied(self, op: Op, at: float) -> None:
        """`op`, which moves its input to another place, has done so; called just before `finished`."""

    def failed(self, op: Op, at: float, error: BaseException) -> None:
        """`op` raised `error`."""


def notify(event: Callable[..., None], *facts: object) -> None:
    """Call an observer's method; log what it raises, but for an interrupt from the keyboard, which is not its own."""
    try:
        event(*facts)
    except KeyboardInterrupt:
        raise
    except BaseException:
        _log.exception("observer %r failed and was ignored", getattr(event, "__qualname__", event))
