"""One trace from the traces of all ranks, each written by a process of its own, by a clock of its own.

What one rank wrote keeps its order. Between ranks, an event goes before another if its time, in seconds on one clock,
is earlier; but whatever the clocks say, a copy is received after its sending has started, and a run begins on no rank
before the last has ended on all. Both hold for what has happened, so traces that cannot be put into such an order are
refused: one of them is of another run. Whether the order is a lawful one is for `judge_trace` to say.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from purine_ref._fast.events import MOST_IN_LINE, NUMBERS
from purine_ref.conformance.tracing.reading import HEADER
from purine_ref.errors import Refused

Event = dict[str, Any]

RUN_FAILED, NOTHING = "failed run", ""
"""What a trace may be at besides the events of the format: a `failed` without `op`, and its end."""

LONGEST = 1e12
"""Seconds on a clock are less than this, here: so none is lost by an offset's addition."""

_BETWEEN = ("begin", "finish", RUN_FAILED, "swapped", "stop", NOTHING)
"""What no operator does."""


def merge_traces(
    traces: Sequence[str | os.PathLike[str]], offsets: Sequence[float], target: str | os.PathLike[str]
) -> None:
    """Write the trace of the whole graph to the file `target`, beside and renamed.

    `traces` are the files of rank 0, 1 and so on; `offsets[rank]` are seconds to add to that rank's times for those of
    the trace. Names of workers get the rank before them. Raises Refused for what is no trace and for traces that do not
    fit together, naming the file and the line; ValueError unless there is an offset for each; OSError.
    """
    if len(traces) != len(offsets):
        raise ValueError(f"expected one offset for each of {len(traces)} traces, got {len(offsets)}")
    path = Path(target)
    beside = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with ExitStack() as stack, open(beside, "w", encoding="utf-8", newline="\n") as file:
            files = [(str(trace), stack.enter_context(open(trace, "rb"))) for trace in traces]
            ends = [_Trace(rank, *files[rank], offsets[rank]) for rank in range(len(files))]
            file.write(HEADER + "\n")
            for seq, event in enumerate(_merged(ends)):
                file.write(json.dumps({"seq": seq, **event}) + "\n")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


class _Trace:
    """The events of one rank, of which `head` is the next, and `kind` its name: NOTHING at the end of the file, or
    where the last line is cut off."""

    def __init__(self, rank: int, name: str, file: IO[bytes], offset: float) -> None:
        self.name = name
        self.head: Event = {}
        self.kind = NOTHING
        self.at = -math.inf  # the time of `head`, or, where it has none, of the last that had one
        self._rank, self._file, self._offset = rank, file, offset
        self._line = 0
        if self._read() not in (json.loads(HEADER), None):
            raise self.refused(f"expected {HEADER}")
        self.step()

    def step(self) -> Event:
        """Go to the next event; returns the one before it."""
        last, event = self.head, self._read()
        if event is None:
            self.head, self.kind = {}, NOTHING
            return last
        event.pop("seq", None)
        kind = event.get("event")
        if kind not in NUMBERS:
            raise self.refused(f"'event': expected one of {', '.join(NUMBERS)}, got {kind!r}")
        if "worker" in event:
            event["worker"] = f"r{self._rank}.{event['worker']}"
        if "time" in event:
            self.at = event["time"] = self._time(event["time"])
        self.head, self.kind = event, RUN_FAILED if kind == "failed" and "op" not in event else str(kind)
        return last

    def refused(self, words: str) -> Refused:
        """The error that names the line."""
        return Refused(f"{self.name}, line {self._line}: {words}")

    def _read(self) -> Event | None:
        line = self._file.readline(MOST_IN_LINE)
        self._line += 1
        if len(line) == MOST_IN_LINE and not line.endswith(b"\n"):
            raise self.refused(f"longer than {MOST_IN_LINE} bytes")
        if not line.endswith(b"\n"):
            return None
        try:
            event = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self.refused(f"not JSON: {error}") from None
        if not isinstance(event, dict):
            raise self.refused(f"expected a JSON object, got {type(event).__name__}")
        return event

    def _time(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < LONGEST:
            raise self.refused(f"'time': expected a number of less than {LONGEST:.0e}, got {str(value)[:50]}")
        return float(value) + self._offset


def _merged(traces: Sequence[_Trace]) -> Iterator[Event]:
    """The events of all in one order. It ends early, without `stop`, where one of them does."""
    while beginning := _at(traces, "begin"):
        yield _begun(beginning)
        yield from _operators(traces)
        yield from _ended(_at(traces, "finish", RUN_FAILED))
        yield from _operators(traces)  # those that still computed when the run had failed
        while swapping := _at(traces, "swapped"):
            yield _first(swapping).step()
    for trace in traces:
        if trace.kind not in ("stop", NOTHING):
            raise trace.refused(f"{trace.kind!r} outside of a run")
    if len(_at(traces, "stop")) == len(traces):
        yield {"event": "stop"}


def _at(traces: Sequence[_Trace], *kinds: str) -> list[_Trace]:
    return [trace for trace in traces if trace.kind in kinds]


def _first(traces: Sequence[_Trace]) -> _Trace:
    """The one with the earliest event; of several, the lowest rank's."""
    return min(traces, key=lambda trace: trace.at)


def _begun(traces: Sequence[_Trace]) -> Event:
    """The beginning of a run, the first of them all. Raises Refused unless all begin the same."""
    first = _first(traces)
    for trace in traces:
        run, other = first.head.get("iteration"), trace.head.get("iteration")
        if run != other:
            raise trace.refused(f"run {other} begins, and in {first.name} run {run}")
    event = first.head
    for trace in traces:
        trace.step()
    return event


def _operators(traces: Sequence[_Trace]) -> Iterator[Event]:
    """What operators do, the earliest first that waits for no sender, until none of the traces is at an operator."""
    sending: set[Any] = set()
    while live := [trace for trace in traces if trace.kind not in _BETWEEN]:
        free = [trace for trace in live if trace.kind != "received" or trace.head.get("op") in sending]
        if not free:
            early = _first(live)
            raise early.refused(f"operator {early.head.get('op')!r} is received, and in no trace it is sent before")
        event = _first(free).step()
        if event["event"] == "start":
            sending.add(event.get("op"))
        yield event


def _ended(traces: Sequence[_Trace]) -> Iterator[Event]:
    """The end of a run: the last of them all, but that it failed, where it did on any rank."""
    events = [trace.step() for trace in sorted(traces, key=lambda trace: trace.at)]
    failures = [event for event in events if event["event"] == "failed"]
    yield from (failures[:1] or events[-1:])
