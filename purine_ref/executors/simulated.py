"""The simulated executor: virtual time from each operator's cost and a table of rates, in place of threads and waits.

`simulate` predicts a run without computing anything. `Simulated` computes, one operator at a time, in the order of
the predicted starts, with virtual seconds for its observer; the order can be replayed by the other executors.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from purine_ref.executors.base import Executor, Run
from purine_ref.graph import Graph, Op
from purine_ref.parallel.ranks import crosses
from purine_ref.plan import Plan
from purine_ref.schedule import ReadyQueue, Schedule, Turn, order_ranks, require_one_each


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a place works: FLOP/s, bytes/s, and seconds that any operator takes besides; and how fast the network.

    A copy between ranks takes its bytes by `network`, in bytes/s, plus `latency`, in seconds.
    """

    flops: float = 2e10
    bandwidth: float = 1e10
    overhead: float = 5e-6
    network: float = 1.25e9
    latency: float = 5e-5

    def seconds(self, op: Op) -> float:
        """The time of one operator: the slower of arithmetic and memory, plus the overhead; or that of a message."""
        if crosses(op):
            return op.inputs[0].tensor.nbytes / self.network + self.latency
        cost = op.operation.cost([b.tensor for b in op.inputs], [b.tensor for b in op.outputs])
        return max(cost.flops / self.flops, cost.bytes / self.bandwidth) + self.overhead


@dataclass(frozen=True, slots=True)
class Span:
    """That `op` runs from `start` to `end`, in virtual seconds.

    `lane` is a place, with a stream beyond the CPU, or a link between two ranks.
    """

    op: str
    lane: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A predicted run: spans in the order of their starts; events are (time, whether a start, operator) in order."""

    spans: tuple[Span, ...]
    events: tuple[tuple[float, bool, int], ...]

    @property
    def order(self) -> list[str]:
        """The operators' names in the order of their starts: an `order` for the other executors."""
        return [span.op for span in self.spans]

    @property
    def seconds(self) -> float:
        """When the last span ends."""
        return max((span.end for span in self.spans), default=0.0)


def simulate(
    plan: Plan,
    seconds: Sequence[float],
    *,
    threads: int = 2,
    ranks: Sequence[float] | None = None,
    order: Sequence[str] | None = None,
) -> Timeline:
    """Predict a run in which operator i takes `seconds[i]`.

    Each CPU has `threads` workers, each (device, stream) one, and each link from rank to rank carries one copy at a
    time. Ready operators start first come, first served, by `ranks`, or in the very `order` of a list of all names.
    Ties in time are broken by the order of starts. Raises ValueError for fewer than one thread, unless there is one
    time of 0 or more for each operator, for an order that is not topological, for both ranks and an order, and for one
    rank's graph, which waits for others: simulate the whole.
    """
    _check_request(plan, seconds, threads, ranks)
    if order is not None and ranks is not None:
        raise ValueError("simulate takes an order or ranks, got both")
    turn = None if order is None else Turn()
    ranks = ranks if order is None else order_ranks(plan, order)
    schedule = Schedule(plan)
    lanes = [_lane(op) for op in plan.graph.ops]
    free = {lane: _width(plan.graph.ops[i], threads) for i, lane in enumerate(lanes)}
    queues = {lane: ReadyQueue(ranks, turn) for lane in free}
    for op in schedule.ready():
        queues[lanes[op]].push(op)
    running: list[tuple[float, int, int]] = []  # (end, number of the start, operator): a heap
    spans: list[Span] = []
    events: list[tuple[float, bool, int]] = []
    now, touched = 0.0, list(free)
    while True:
        for lane in touched:  # it grows while it is walked: in an order, the next may be ready in any lane
            while free[lane] and (op_or_none := queues[lane].pop()) is not None:
                free[lane] -= 1
                heapq.heappush(running, (now + seconds[op_or_none], len(spans), op_or_none))
                events.append((now, True, op_or_none))
                spans.append(Span(plan.graph.ops[op_or_none].name, lane, now, now + seconds[op_or_none]))
                touched += free if turn is not None else ()
        if not running:
            return Timeline(tuple(spans), tuple(events))
        now, _, op = heapq.heappop(running)
        events.append((now, False, op))
        free[lanes[op]] += 1
        ready = schedule.done(op)
        for following in ready:
            queues[lanes[following]].push(following)
        touched = list(free if turn is not None else dict.fromkeys([lanes[op], *(lanes[f] for f in ready)]))


def _check_request(plan: Plan, seconds: Sequence[float], threads: int, ranks: Sequence[float] | None) -> None:
    if threads < 1:
        raise ValueError(f"simulate needs 1 thread or more, got {threads}")
    require_one_each(plan, "seconds", seconds)
    require_one_each(plan, "ranks", seconds if ranks is None else ranks)
    if not all(time >= 0 for time in seconds):
        raise ValueError(f"simulate needs seconds of 0 or more for graph {plan.graph.name!r}")
    if plan.external:
        op = plan.graph.ops[plan.external[0]].name
        raise ValueError(f"simulate needs the whole of graph {plan.graph.name!r}: {op!r} waits for another rank")


def _lane(op: Op) -> str:
    if crosses(op):
        return f"rank{op.inputs[0].location.rank}>rank{op.outputs[0].location.rank}"
    return str(op.location) if op.location.is_cpu else f"{op.location}/{op.stream}"


def _width(op: Op, threads: int) -> int:
    """How many operators of its lane run at once."""
    return threads if op.location.is_cpu and not crosses(op) else 1


class Simulated(Executor):
    """Computes in the order that `simulate` predicts; `timeline` is the prediction.

    `rates` gives the operators' times, unless `seconds` lists them; `threads`, `ranks` and `order` are those of
    `simulate`. The keywords are those of `Executor`.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        rates: Rates | None = None,
        seconds: Sequence[float] | None = None,
        threads: int = 2,
        ranks: Sequence[float] | None = None,
        order: Sequence[str] | None = None,
        **keywords: Any,
    ) -> None:
        super().__init__(graph, **keywords)
        times = [(rates or Rates()).seconds(op) for op in graph.ops] if seconds is None else seconds
        self.timeline = simulate(self.plan, times, threads=threads, ranks=ranks, order=order)
        self._now = 0.0
        self._clock = lambda: self._now

    def _start(self, run: Run) -> None:
        """Walk the predicted starts and ends; an operator computes at its start, and releases others at its end.

        After a failure, those that have started end, and no other starts.
        """
        started: set[int] = set()
        for at, is_start, op in self.timeline.events:
            if run.failures and (is_start or op not in started):
                continue
            self._now = at
            if is_start:
                started.add(op)
                error = self._execute(run, op)
            else:
                complete = run.schedule.finish(op)
                error = self._combine(op, complete)
                run.schedule.release(op, complete)
            if error is not None:
                started.discard(op)
                run.failures.append(error)
                self._report_failure(op, error)

    def _wait(self, run: Run) -> None:
        """Nothing to wait for: `_start` returns when all is done."""
