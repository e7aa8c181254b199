"""What can be wrong with a port, as one word of a short list and a sentence: never a stack trace.

The words are those of the page `docs/porting/drive.md`, section "Time and ends".
"""

from __future__ import annotations

from purine_ref.conformance.cases.comparing import Finding
from purine_ref.errors import PurineError

KINDS = {
    "hung": "no reply in time",
    "crashed": "the process ended before its reply",
    "garbage": "a reply that is none of the protocol's",
    "disorder": "a reply to another request, or more output than was asked for",
    "error": "the port says that it failed",
    "missing": "a result that is not there, or has another shape or dtype",
    "differs": "a value beyond its bound",
    "unsteady": "other bits in one run than in another of the same case",
    "trace": "an illegal trace",
}
"""Each kind of fault, and what it means in general."""

ENDING = frozenset({"hung", "crashed", "garbage", "disorder"})
"""The faults after which nothing more can be asked of a session."""


class PortFault(PurineError):
    """A port did what it must not. `kind` is a key of `KINDS`, `reason` a sentence.

    `ending` says whether its session is of no further use; `finding` is the value that differs, where one does.
    """

    def __init__(
        self, kind: str, reason: str, *, ending: bool | None = None, finding: Finding | None = None
    ) -> None:
        self.kind = kind
        self.reason = reason
        self.ending = kind in ENDING if ending is None else ending
        self.finding = finding
        super().__init__(f"{kind}: {reason}")


class Unsupported(PurineError):
    """A port says that it does not do something on purpose; that is no fault."""
