"""How failures of a run come out (rule R12): named, tidy, and as one error. Functions of errors; no state."""

from __future__ import annotations

from collections.abc import Sequence

from purine_ref.devices.work import without_frames
from purine_ref.errors import PeerLost
from purine_ref.graph import Op


def tidy(error: BaseException, op: Op) -> None:
    """Name the operator on the error, and clear the finished frames of its traceback, which hold the arrays."""
    error.add_note(op.describe())
    without_frames(error)


def one_error(graph: str, failures: Sequence[BaseException]) -> BaseException:
    """The failures as one. The loss of a rank is news only where nothing failed here."""
    failures = [error for error in failures if not isinstance(error, PeerLost)] or failures[:1]
    if len(failures) == 1:
        return failures[0]
    return BaseExceptionGroup(f"{len(failures)} operators of graph {graph!r} failed", failures)
