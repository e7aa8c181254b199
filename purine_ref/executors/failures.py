"""How failures of a run come out (rule R12): named, tidy, and as one error. Functions of errors; no state."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from purine_ref.errors import PeerLost
from purine_ref.graph import Op


def tidy(error: BaseException, op: Op) -> None:
    """Name the operator on the error, and clear the finished frames of its traceback, which hold the arrays."""
    error.add_note(op.describe())
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
    if error.__traceback__ is not None:  # this module's own frame comes first; it is still running, so leave it out
        error.__traceback__ = error.__traceback__.tb_next


def one_error(graph: str, failures: Sequence[BaseException]) -> BaseException:
    """The failures as one. The loss of a rank is news only where nothing failed here."""
    failures = [error for error in failures if not isinstance(error, PeerLost)] or failures[:1]
    if len(failures) == 1:
        return failures[0]
    return BaseExceptionGroup(f"{len(failures)} operators of graph {graph!r} failed", failures)
