"""Judging a trace: may a dispatcher of these rules do these things in this order? `judge_trace` gives the verdict.

The state and the rules are `purine_ref._fast.judge`'s, which knows numbers only; here are files, names and words. It
takes time in proportion to the trace and the graph's edges, and memory in proportion to the graph.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from purine_ref._fast import Judge
from purine_ref._fast.events import RUNNING, STOPPED
from purine_ref.conformance.tracing.reading import Part, TraceReader
from purine_ref.conformance.tracing.structure import Structure, structure_of
from purine_ref.conformance.tracing.words import Fault, explain
from purine_ref.graph import Graph


@dataclass(frozen=True, slots=True)
class Verdict:
    """`verdict` is pass, fail or unknown, and `words` say why.

    `legal` counts the events of the longest legal prefix, `starts` the operators in it, `iterations` the runs that
    finished. Where an event is bad: `line` is its number in the file, `rule` the rule of `docs/porting/traces.md`, and
    `edge`, as (blob, operator), what it broke, if it was an edge.
    """

    verdict: str
    words: str
    legal: int
    starts: int
    iterations: int
    line: int | None = None
    rule: str | None = None
    edge: tuple[str, str] | None = None

    @property
    def passed(self) -> bool:
        """Whether every event is legal and all runs finished."""
        return self.verdict == "pass"


def judge_trace(trace: str | Path | IO[bytes], graph: Graph | Structure) -> Verdict:
    """Judge a trace, a file's name or an open binary file, against a graph.

    Raises Refused, with the number of the line, where it is no trace, and OSError where it cannot be read.
    """
    structure = structure_of(graph) if isinstance(graph, Graph) else graph
    if isinstance(trace, (str, Path)):
        with open(trace, "rb") as file:
            return _judge(file, structure)
    return _judge(trace, structure)


def _judge(file: IO[bytes], structure: Structure) -> Verdict:
    judge = Judge(structure.wiring)
    reader = TraceReader(file, structure.names())
    legal = 0
    for part in reader.parts():
        count = judge.feed(part.rows)
        legal += count
        if count < len(part.lines):
            return _failed(part, count, judge, structure, legal)
    return _ended(judge, reader, legal)


def _failed(part: Part, index: int, judge: Judge, structure: Structure, legal: int) -> Verdict:
    """The verdict on a bad event."""
    event = json.loads(part.lines[index])
    fault: Fault = explain(judge, structure, event, part.rows[index].tolist())
    line = part.first + index
    words = f"line {line}: {fault.words}; legal before it: {_counted(legal)}"
    return Verdict("fail", words, legal, judge.starts, judge.finished, line, fault.rule, fault.edge)


def _ended(judge: Judge, reader: TraceReader, legal: int) -> Verdict:
    """The verdict on a trace without a bad event."""
    facts = legal, judge.starts, judge.finished
    if reader.empty:
        return Verdict("unknown", "the trace is empty", *facts)
    if reader.cut:
        return Verdict("unknown", f"the last line is cut off; legal before it: {_counted(legal)}", *facts)
    if judge.phase != STOPPED:
        where = f"in run {judge.iteration}" if judge.phase == RUNNING else "between runs"
        return Verdict("unknown", f"the trace ends {where}, without 'stop'; legal so far: {_counted(legal)}", *facts)
    if judge.failed:
        return Verdict("unknown", f"a run failed, in a lawful way: legal are all of {_counted(legal)}", *facts)
    if not judge.finished:
        return Verdict("unknown", "nothing was run", *facts)
    counts = f"{_counted(judge.finished, 'run')}, {_counted(judge.starts, 'operator')}"
    return Verdict("pass", f"all of {_counted(legal)} are legal: {counts}", *facts)


def _counted(number: int, what: str = "event") -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
