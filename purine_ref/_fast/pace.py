"""When a worker is woken for more work, and when it stops sharing: what both twins of the teams agree on.

To wake a sleeping thread and to hand over the interpreter's lock takes 5 to 30 microseconds, so work that takes less is
done by the worker that finds it. What is expected to take longer is *heavy*, and announced. Since expectations may be
wrong, and an operator may block, a sleeping worker looks now and then whether the others still get on.
"""

from __future__ import annotations

import sys

WORTH = 30e-6
"""Seconds that an operator must take for a second worker to gain by taking it."""

FIRST_LOOK = 100e-6
"""Seconds after which a sleeping worker looks for the first time whether the others get on while there is work."""

LAST_LOOK = 2e-3
"""The longest it sleeps between two looks: each sleep is twice the one before, up to this."""

LOOKS = 100
"""Looks at which nothing has changed after which it sleeps for good, unless there is a run: a fifth of a second."""

SLOW = 200e-6
"""Seconds that operators must take, none of which was expected to be worth a wake, for a worker to look at once."""

STRIDE = 64
"""The most operators after which a worker looks back at how long they took: first 1, then twice as many each time."""


def breathe() -> None:
    """A function of Python, whose call is where the interpreter hands over its lock if another thread has asked.

    Operators that are C functions may hold the lock for ever between them.
    """


def require_lock() -> None:
    """Raises RuntimeError where the interpreter runs without its lock, which is the lock of the compiled team."""
    enabled = getattr(sys, "_is_gil_enabled", None)
    if enabled is not None and not enabled():
        raise RuntimeError(
            "the compiled loops need the interpreter's lock, and this interpreter runs without it: "
            "set PYTHON_GIL=1, or PURINE_REF_FAST=0 to use the plain loops"
        )


def require_workers(workers: int) -> None:
    """Raises ValueError for fewer than one worker."""
    if workers < 1:
        raise ValueError(f"a team needs 1 worker or more, got {workers}")
