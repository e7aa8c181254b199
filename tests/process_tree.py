"""What Linux tells of processes: their children, and whether they run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def children(process: int | str) -> list[int]:
    """The processes that any thread of a process, or of this one (`self`), has started and not waited for."""
    found = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has ended meanwhile has handed them on
            found += [int(word) for word in task.read_text("ascii").split()]
    return found


def is_alive(process: int) -> bool:
    """Whether a process runs: one that has ended, and was not yet asked for its exit code, does not."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    return False
