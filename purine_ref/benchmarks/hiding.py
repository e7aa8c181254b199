"""How much of what goes from rank to rank is hidden behind computing, read from a merged trace with times.

A transfer is on its way from the moment that its sending starts until the receiver takes it. While it is, and the
receiver computes, it costs nothing: it is hidden. While the receiver computes nothing, it is exposed, whatever else the
receiver may wait for. Sending, receiving and what they copy is not computing. What could have been hidden at best, a
simulated run of the same operators says.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from purine_ref.benchmarks.intervals import covered
from purine_ref.executors.simulated import simulate
from purine_ref.graph import Graph
from purine_ref.parallel.ranks import crosses
from purine_ref.plan import prepare

Interval = tuple[float, float]


@dataclass(slots=True)
class Step:
    """One run, in seconds of one clock: when ranks computed, and when something was on its way to them, by rank.

    `transfers` are the same by operator: the rank that receives, from when, until when. `took` has the seconds of every
    other operator.
    """

    computing: dict[int, list[Interval]] = field(default_factory=lambda: defaultdict(list))
    underway: dict[int, list[Interval]] = field(default_factory=lambda: defaultdict(list))
    transfers: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)

    def add_transfer(self, op: str, to: int, start: float, until: float) -> None:
        """Note a transfer to rank `to`."""
        self.underway[to].append((start, until))
        self.transfers[op] = (to, start, until)

    def add_operator(self, op: str, rank: int, start: float, end: float) -> None:
        """Note another operator."""
        self.computing[rank].append((start, end))
        self.took[op] = end - start

    def compute(self) -> float:
        """How long ranks computed: the mean over those that did."""
        times = [covered(intervals) for intervals in self.computing.values()]
        return sum(times) / len(times)

    def transfer(self) -> float:
        """How long something was on its way, over all ranks."""
        return sum(covered(intervals) for intervals in self.underway.values())

    def exposed(self) -> float:
        """For how much of it the receiver computed nothing."""
        return sum(_beside(way, self.computing[rank]) for rank, way in self.underway.items())

    def blame(self) -> dict[str, float]:
        """Seconds that a rank computed nothing until a transfer came, by that transfer."""
        found: dict[str, float] = {}
        for rank, way in self.underway.items():
            idle = _gaps([*self.computing[rank], (min(start for start, _ in way), min(start for start, _ in way))])
            for start, end in idle:
                last = [(until, name) for name, (to, since, until) in self.transfers.items()
                        if to == rank and since < end and start < until <= end]  # fmt: skip
                if last:
                    until, name = max(last)
                    found[name] = found.get(name, 0.0) + until - max(start, self.transfers[name][1])
        return found


def steps_of(trace: str | Path) -> list[Step]:
    """The runs of a trace of the whole graph, every line of which has a time."""
    runs: list[Step] = []
    events: dict[str, dict[str, Any]] = {}
    for line in Path(trace).read_bytes().splitlines()[1:]:
        event = json.loads(line)
        if event["event"] == "begin":
            events = defaultdict(dict)
        elif event["event"] == "finish":
            runs.append(_step(events))
        elif "op" in event:
            events[event["op"]][event["event"]] = (event["time"], event.get("location", {}).get("rank"))
    return runs


def _step(events: dict[str, dict[str, Any]]) -> Step:
    step = Step()
    for op, seen in events.items():
        start, rank = seen["start"]
        if "received" in seen:
            until, to = seen["received"]
            step.add_transfer(op, to, start, until)
        else:
            step.add_operator(op, rank, start, seen["end"][0])
    return step


def predicted(graph: Graph, took: Mapping[str, float], urgency: Sequence[float], rate: float) -> Step:
    """A run in virtual time: every operator takes what it took, one at a time at each rank, the most urgent first.

    Between two ranks go `rate` bytes a second each way, one transfer after the other, and nothing else takes any time.
    """
    seconds = [op.inputs[0].tensor.nbytes / rate if crosses(op) else took[op.name] for op in graph.ops]
    step = Step()
    for span in simulate(prepare(graph), seconds, threads=1, ranks=urgency).spans:
        op = graph.op(span.op)
        if crosses(op):
            step.add_transfer(span.op, op.outputs[0].location.rank, span.start, span.end)
        else:
            step.add_operator(span.op, op.location.rank, span.start, span.end)
    return step


def _beside(intervals: Sequence[Interval], others: Sequence[Interval]) -> float:
    """How much of the union of the first lies beside the union of the second."""
    return covered([*intervals, *others]) - covered(others)


def _gaps(intervals: Sequence[Interval]) -> list[Interval]:
    """What lies between the intervals."""
    found, reached = [], min(start for start, _ in intervals)
    for start, end in sorted(intervals):
        if start > reached:
            found.append((reached, start))
        reached = max(reached, end)
    return found
