"""What both twins of the trace judge share: the numbers of events and faults, and the wiring of a graph.

An event is a row of six integers, in the columns below; a trace is many rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

SEQ, KIND, ITERATION, OP, BLOB, WORKER = range(6)
"""The columns of an event. What an event does not have is ABSENT."""

ABSENT, UNKNOWN, MISPLACED = -1, -2, -3
"""No such key; a name that the graph has not; an operator of which the line gives another place or stream."""

KINDS = (
    "begin", "start", "sent", "received", "end", "added", "ready", "failed", "failed", "finish", "swapped", "stop",
)  # fmt: skip
"""The events by their number. `failed` has two: an operator's at the place that it starts at, and at the other."""

BEGIN, START, SENT, RECEIVED, END, ADDED, READY, FAILED, FAILED_THERE, FINISH, SWAPPED, STOP = range(12)

NUMBERS = {name: KINDS.index(name) for name in KINDS}
OF_OP = frozenset((START, SENT, RECEIVED, END, ADDED))
OF_BLOB = frozenset((ADDED, READY, SWAPPED))

HAS_START, HAS_SENT, HAS_RECEIVED, HAS_END = 1, 2, 4, 8
"""The events that an operator has, as bits: `needs` of a plain one is HAS_START | HAS_END."""

HAS_FAILED, HAS_FAILED_THERE = 16, 32
"""Further bits: the operator, or the half of it that starts, has failed; the half that writes has."""

IDLE, BETWEEN, RUNNING, FAILED_RUN, STOPPED = range(5)
"""What a dispatcher is at: no run yet, one has finished, one runs, one has failed, no more will come."""

FAULTS = (
    "none", "sequence", "iteration", "op_name", "blob_name", "place", "after_stop", "no_run", "begin_running",
    "begin_number", "not_swapped", "begin_busy", "twice", "not_started", "no_half", "edge", "stream", "read_lost",
    "write_over_read", "write_over_write", "add_single", "add_order", "add_early", "ready_early", "ready_twice",
    "ready_late", "after_failure", "finish_op", "finish_blob", "stop_running", "swap_running", "swap_twice",
    "swap_no_pair", "failed_idle",
)  # fmt: skip
"""The faults by their number, as both twins have them; `conformance.tracing.words` says what each means."""

_HAS_OP, _HAS_BLOB = (np.array([kind in kinds for kind in range(len(KINDS))]) for kinds in (
    OF_OP | {FAILED_THERE}, OF_BLOB))  # fmt: skip

LARGEST = 2**63 - 1
"""The greatest number of a line or an iteration."""

MOST_IN_LINE = 65_536
"""Bytes of the longest line, its newline included."""

MOST_WORKERS = 65_536
"""As many names of workers are told apart."""


class Place(NamedTuple):
    """Where an operator is. `target` is where it writes; it differs from `source` for a copy between ranks only.

    Both are (rank, device). `stream` is None where a line may name any.
    """

    source: tuple[int, int]
    target: tuple[int, int]
    stream: str | None


@dataclass(slots=True)
class Names:
    """The numbers of a graph's names, and of the workers that a trace has named so far.

    `prepared` is for the compiled twin: `places` as it reads them.
    """

    ops: dict[str, int]
    blobs: dict[str, int]
    places: Sequence[Place]
    workers: dict[str, int] = field(default_factory=dict)
    prepared: Any = None


@dataclass(frozen=True, slots=True)
class Wiring:
    """A graph as a judge reads it: operators, blobs, queues and ranks are numbers from 0.

    For each operator: `needs` are its events, as bits; `inputs` and `outputs` a blob for each edge; `queues` the number
    of its stream, or -1 where any number of operators run at once; `source_ranks` and `target_ranks` where it starts
    and where it writes; `moves` is 0 where it only rearranges views of one memory. For each blob: `producers` and
    `consumers` are an operator for each edge, in their order; `overlaps` the other blobs that share memory with it;
    `held` is 1 where the blob has its value before a run; `lasts` is 1 where its memory keeps it from run to run.
    `pairs` are blobs that are exchanged between runs.
    """

    needs: list[int]
    inputs: list[list[int]]
    outputs: list[list[int]]
    queues: list[int]
    source_ranks: list[int]
    target_ranks: list[int]
    moves: list[int]
    producers: list[list[int]]
    consumers: list[list[int]]
    overlaps: list[list[int]]
    held: list[int]
    lasts: list[int]
    pairs: list[tuple[int, int]]

    @property
    def waiting(self) -> list[int]:
        """For each operator, the input edges that are not satisfied when a run begins."""
        return [sum(1 for blob in row if self.producers[blob]) for row in self.inputs]

    @property
    def missing(self) -> list[int]:
        """For each blob, what it waits for: an end for each producing edge, and an addition too where it is a sum."""
        return [len(row) if len(row) < 2 else 2 * len(row) for row in self.producers]


def require_rows(rows: Any, operators: int, blobs: int) -> None:
    """Raise ValueError unless `rows` are events of a graph with so many operators and blobs."""
    if getattr(rows, "dtype", None) != np.int64 or rows.ndim != 2 or rows.shape[1] != 6:
        raise ValueError("events: expected rows of 6 int64")
    kind, op, blob, worker = rows[:, KIND], rows[:, OP], rows[:, BLOB], rows[:, WORKER]
    for what, values, least, bound in (
        ("kinds", kind, 0, len(KINDS)),
        ("operators", op, MISPLACED, operators),
        ("blobs", blob, UNKNOWN, blobs),
        ("workers", worker, ABSENT, MOST_WORKERS),
    ):
        if values.size and not least <= values.min() <= values.max() < bound:
            raise ValueError(f"{what}: expected {least} to {bound - 1}, got {values.min()} to {values.max()}")
    if (_HAS_OP[kind] & (op == ABSENT)).any() or (_HAS_BLOB[kind] & (blob == ABSENT)).any():
        raise ValueError("events: an operator or a blob is absent where the event has one")
