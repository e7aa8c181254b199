"""What a bad event broke, in words: from the fault that a judge found to a rule, an edge and a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from purine_ref._fast import Judge
from purine_ref._fast.events import (
    BLOB,
    END,
    FAULTS,
    HAS_END,
    HAS_FAILED,
    HAS_FAILED_THERE,
    HAS_RECEIVED,
    HAS_START,
    ITERATION,
    KIND,
    KINDS,
    OP,
    RECEIVED,
)
from purine_ref.conformance.tracing.structure import Structure
from purine_ref.names import nearest


class Fault(NamedTuple):
    """The rule that was broken, the sentence, and the edge (blob, operator), if it was one."""

    rule: str
    words: str
    edge: tuple[str, str] | None = None


def explain(judge: Judge, structure: Structure, event: dict[str, Any], row: list[int]) -> Fault:
    """What is wrong with the first bad event: its line as data, and as a row."""
    name = FAULTS[judge.fault]
    rule, words = _WORDS[name]
    if name == "not_started" and row[KIND] == RECEIVED:
        rule = "transfer"
    case = _Case(judge, structure, event, row)
    return Fault(rule, words(case), case.edge() if name in _EDGES else None)


class _Case:
    """A fault's names: `op` and `blob` are the event's; `a` and `b` are what the judge named beside them."""

    def __init__(self, judge: Judge, structure: Structure, event: dict[str, Any], row: list[int]) -> None:
        self.judge, self.structure, self.event, self.row = judge, structure, event, row
        self.a, self.b = judge.a, judge.b
        self.op = repr(event.get("op"))
        self.blob = repr(event.get("blob"))
        self.kind = KINDS[row[KIND]]
        self.verb = {"start": "starts", "end": "ends", "sent": "is sent", "received": "is received"}.get(self.kind, "")

    def whole(self) -> str:
        """The event, with its operator if it has one."""
        return f"{self.kind!r} of {self.op}" if "op" in self.event else repr(self.kind)

    def operator(self, number: int) -> str:
        """An operator's name."""
        return repr(self.structure.ops[number]) if number >= 0 else "another operator"

    def named(self, number: int) -> str:
        """A blob's name."""
        return repr(self.structure.blobs[number].name)

    def owing(self, blob: int, producer: int) -> str:
        """What a blob waits for."""
        if self.judge.begun(producer) & (HAS_FAILED | HAS_FAILED_THERE):
            return f"its producer {self.operator(producer)} has failed"
        if self.judge.begun(producer) & HAS_END:
            count, edges = self.judge.additions(blob), len(self.structure.wiring.producers[blob])
            return f"{count} of its {edges} contributions have been added"
        begun = "has not ended" if self.judge.begun(producer) & HAS_START else "has not started"
        return f"its producer {self.operator(producer)} {begun}"

    def edge(self) -> tuple[str, str] | None:
        """The edge that the event broke, as (blob, operator)."""
        name = FAULTS[self.judge.fault]
        blob, op = self.row[BLOB], self.row[OP]
        if name in ("edge", "read_lost", "write_over_read", "write_over_write"):
            blob = self.a
        elif name in ("ready_early", "ready_late"):
            op = self.a
        elif name == "finish_blob":
            blob, op = self.a, self.b
        elif name == "finish_op":
            inputs = self.structure.wiring.inputs[self.a]
            if not inputs:
                return None
            blob, op = next((blob for blob in inputs if self.judge.lacks(blob)), inputs[-1]), self.a
        return self.structure.blobs[blob].name, self.structure.ops[op]


_EDGES = frozenset(
    (
        "edge", "read_lost", "write_over_read", "write_over_write", "ready_early", "ready_late", "add_order",
        "add_early", "add_single", "finish_op", "finish_blob",
    )
)  # fmt: skip


def _edge(case: _Case) -> str:
    stale = ""
    if case.judge.finished:
        stale = "; it would read a stale value, that of an earlier run"
    return f"operator {case.op} starts before its input {case.named(case.a)} is ready: " + (
        case.owing(case.a, case.b) + stale
    )


def _read_lost(case: _Case) -> str:
    where = f"operator {case.operator(case.b)} has written over it" if case.b >= 0 else "nothing has written it"
    return f"operator {case.op} reads {case.named(case.a)}, but its memory no longer holds it: {where}"


def _add_order(case: _Case) -> str:
    if case.a < 0:
        return f"the contribution of {case.op} to {case.blob} is one too many: all were added"
    return f"the contribution of {case.op} to {case.blob} is out of order: {case.operator(case.a)} is next (R4)"


def _finish_op(case: _Case) -> str:
    number = case.a
    bits, waiting = case.judge.begun(number), case.structure.wiring.inputs[number]
    if bits & (HAS_FAILED | HAS_FAILED_THERE):
        state = "it failed"
    elif bits & HAS_START:
        state = "it has started and not ended"
        if case.structure.wiring.needs[number] & ~bits & ~HAS_END:
            state = "its message was lost: it was sent or received, and not both"
    else:
        missing = [blob for blob in waiting if case.judge.lacks(blob)]
        state = "all its inputs are ready, but it never started"
        if missing:
            state = f"it waits for {case.named(missing[0])}"
    return f"the run finishes without operator {case.operator(number)}: {state}; not every sink was reached"


def _twice(case: _Case) -> str:
    return f"operator {case.op} {case.verb} twice in run {case.row[ITERATION]}"


def _not_started(case: _Case) -> str:
    receives = case.structure.wiring.needs[case.row[OP]] & HAS_RECEIVED
    before = "it was received" if case.row[KIND] == END and receives else "its start"
    return f"operator {case.op} {case.verb} before {before}"


def _name(kind: str, case: _Case) -> str:
    known = case.structure.ops if kind == "op" else [blob.name for blob in case.structure.blobs]
    what = "operator" if kind == "op" else "blob"
    return f"the graph has no {what} {case.event[kind]!r}{nearest(case.event[kind], known)}"


def _place(case: _Case) -> str:
    number = case.structure.ops.index(case.event["op"])
    source, target, stream = case.structure.places[number]
    got = {key: case.event[key] for key in ("location", "stream") if key in case.event}
    want = f"(rank, device) {source}" + (f" or {target}" if target != source else "")
    return f"operator {case.op} is at {want}, stream {stream!r}; the line says {got}"


_WORDS: dict[str, tuple[str, Callable[[_Case], str]]] = {
    "sequence": ("sequence", lambda c: f"seq {c.event['seq']} does not rise: the event before has {c.a}"),
    "iteration": ("sequence", lambda c: f"{c.kind!r} is of run {c.row[ITERATION]}, but run {c.a} is going on"),
    "op_name": ("name", lambda c: _name("op", c)),
    "blob_name": ("name", lambda c: _name("blob", c)),
    "place": ("name", _place),
    "after_stop": ("stop", lambda c: f"{c.kind!r} after 'stop'"),
    "no_run": ("sequence", lambda c: f"{c.kind!r} outside of a run: there was no 'begin' since the last finished"),
    "begin_running": ("sequence", lambda c: f"run {c.row[ITERATION]} begins while another is going on (R3)"),
    "begin_number": ("sequence", lambda c: f"run {c.row[ITERATION]} begins, but the next is {c.a}"),
    "begin_busy": ("failure", lambda c: f"a run begins while operator {c.operator(c.a)} of the failed one computes"),
    "not_swapped": ("swap", lambda c: f"a run begins, but the pair of {c.named(c.a)} was not exchanged after the last: "
                    "it would read a stale value (R6)"),
    "twice": ("once", _twice),
    "not_started": ("once", _not_started),
    "no_half": ("transfer", lambda c: f"operator {c.op} has no {c.kind!r}"),
    "edge": ("edges", _edge),
    "stream": ("stream", lambda c: f"operator {c.op} starts while {c.operator(c.a)} is on its stream"),
    "read_lost": ("hazard", _read_lost),
    "write_over_read": ("hazard", lambda c: f"operator {c.op} writes {c.named(c.a)} while {c.named(c.b)}, in the same "
                        "memory, is being read"),
    "write_over_write": ("hazard", lambda c: f"operator {c.op} writes {c.named(c.a)} while {c.named(c.b)}, in the same "
                         "memory, is being written"),
    "add_single": ("additions", lambda c: f"blob {c.blob} has no sum: it has fewer than two producers"),
    "add_order": ("additions", _add_order),
    "add_early": ("additions", lambda c: f"the contribution of {c.op} to {c.blob} is added before it has started"),
    "ready_early": ("ready", lambda c: f"blob {c.blob} is called ready too early: {c.owing(c.row[BLOB], c.a)}"),
    "ready_twice": ("ready", lambda c: f"blob {c.blob} becomes ready twice in run {c.row[ITERATION]}"),
    "ready_late": ("ready", lambda c: f"blob {c.blob} is called ready after its consumer {c.operator(c.a)} started"),
    "after_failure": ("failure", lambda c: f"{c.whole()} after a failure (R12)"),
    "finish_op": ("finish", _finish_op),
    "finish_blob": ("finish", lambda c: f"the run finishes before {c.named(c.a)} is ready: {c.owing(c.a, c.b)}"),
    "stop_running": ("stop", lambda c: f"'stop' in run {c.judge.iteration}, which neither finished nor failed"),
    "swap_running": ("swap", lambda c: f"{c.blob} is exchanged while no run has just finished"),
    "swap_twice": ("swap", lambda c: f"the pair of {c.blob} is exchanged twice"),
    "swap_no_pair": ("swap", lambda c: f"{c.blob} is not the first of a pair"),
    "failed_idle": ("failure", lambda c: f"operator {c.op} fails, but it does not compute"),
}  # fmt: skip
"""For each fault, its rule and its sentence."""
