"""A run as a trace that Chrome (`chrome://tracing`) and Perfetto (ui.perfetto.dev) open.

`chrome_trace` writes spans: those of a simulated `Timeline`, or those that a `TraceRecorder` saw of a real run.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable
from typing import Any

from purine_ref.executors import Observer, Span, Timeline
from purine_ref.graph import Op

_MICROSECONDS = 1e6


class TraceRecorder(Observer):
    """Records a span for every operator that ran or failed, over all runs that it observes; a thread is a lane.

    Threads write only through single calls on a dict and a list, which are atomic. Read `spans` between runs.
    """

    def __init__(self) -> None:
        self._open: dict[Op, float] = {}
        self._spans: list[Span] = []

    @property
    def spans(self) -> tuple[Span, ...]:
        """What was recorded, in the order of the starts."""
        return tuple(sorted(self._spans, key=lambda span: span.start))

    def started(self, op: Op, at: float) -> None:
        """Open a span."""
        self._open[op] = at

    def finished(self, op: Op, at: float) -> None:
        """Close the span."""
        self._spans.append(Span(op.name, threading.current_thread().name, self._open.pop(op), at))

    def failed(self, op: Op, at: float, error: BaseException) -> None:
        """Close the span of an operator that failed, if it had started."""
        if op in self._open:
            self.finished(op, at)


def chrome_trace(spans: Timeline | Iterable[Span]) -> dict[str, Any]:
    """Spans in Chrome's trace event format, as plain data for `json.dump`: one complete event (`"ph": "X"`) each.

    Times are in microseconds from the first start. A lane in which spans overlap, such as a pool of threads, becomes
    several tracks, as the format has no overlap in one.
    """
    found = sorted(spans.spans if isinstance(spans, Timeline) else spans, key=lambda span: span.start)
    begin = found[0].start if found else 0.0
    numbers: dict[tuple[str, int], int] = {}
    events: list[dict[str, Any]] = []
    for span, track in _tracks(found):
        thread = numbers.setdefault(track, len(numbers))
        times = {"ts": (span.start - begin) * _MICROSECONDS, "dur": (span.end - span.start) * _MICROSECONDS}
        events.append({"name": span.op, "cat": "operator", "ph": "X", "pid": 0, "tid": thread, **times})
    names = [_track_name(thread, lane, number) for (lane, number), thread in numbers.items()]
    return {"displayTimeUnit": "ms", "traceEvents": [*names, *events]}


def _tracks(spans: Iterable[Span]) -> Iterable[tuple[Span, tuple[str, int]]]:
    """Each span, in the order of starts, with (lane, number): the least number of a track that is free."""
    busy: dict[str, list[tuple[float, int]]] = {}
    free: dict[str, list[int]] = {}
    for span in spans:
        running, idle = busy.setdefault(span.lane, []), free.setdefault(span.lane, [])
        while running and running[0][0] <= span.start:
            heapq.heappush(idle, heapq.heappop(running)[1])
        number = heapq.heappop(idle) if idle else len(running)
        heapq.heappush(running, (span.end, number))
        yield span, (span.lane, number)


def _track_name(thread: int, lane: str, number: int) -> dict[str, Any]:
    name = lane if number == 0 else f"{lane} #{number + 1}"
    return {"name": "thread_name", "ph": "M", "pid": 0, "tid": thread, "args": {"name": name}}
