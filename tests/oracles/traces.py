"""A slow judge of traces, written from `docs/porting/traces.md` with sets of names, and no counters.

`first_bad(graph, events)` gives the index of the first bad event and its rule, or None. Memory is compared element by
element. It shares no line with the package.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from purine_ref.graph import Blob, Graph, Op

REARRANGING = ("Concat", "Split", "Slice", "Reshape", "Identity")

Event = dict[str, Any]


def first_bad(graph: Graph, events: list[Event]) -> tuple[int, str] | None:
    """Where and how a trace is bad."""
    judge = NaiveJudge(graph)
    for index, event in enumerate(events):
        rule = judge.broken(event)
        if rule:
            return index, rule
        judge.happen(event)
    return None


def cells(blob: Blob) -> set[tuple[str, int]]:
    """Every element of memory that a blob lies in."""
    chain = [blob]
    while chain[-1].view is not None:
        chain.append(chain[-1].view.parent)
    array = np.arange(chain[-1].tensor.size).reshape(chain[-1].shape)
    for link in reversed(chain[:-1]):
        assert link.view is not None
        array = array[(*(slice(a, b) for a, b in link.view.box), ...)].reshape(link.shape)
    return {(chain[-1].name, int(element)) for element in array.ravel()}


class NaiveJudge:
    """What has happened, as sets of names."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.cells = {blob.name: cells(blob) for blob in graph.blobs}
        shares: dict[tuple[str, int], set[str]] = defaultdict(set)
        for name, own in self.cells.items():
            for cell in own:
                shares[cell].add(name)
        self.overlap = {name: {n for cell in own for n in shares[cell]} - {name} for name, own in self.cells.items()}
        self.held = {blob.name for blob in graph.blobs if not blob.producers}
        self.seq = -1
        self.phase = "idle"
        self.iteration = -1
        self.exchanged: set[str] = {current.name for current, _ in graph.pairs}
        self.clear()

    def clear(self) -> None:
        """A new run."""
        self.seen: dict[str, set[str]] = defaultdict(set)  # event -> operators
        self.added: dict[str, list[str]] = defaultdict(list)
        self.announced: set[str] = set()
        self.over: set[tuple[str, str]] = set()  # halves of operators that failed
        self.lost: set[int] = set()
        self.spent: set[str] = set()

    # What an operator is

    def crosses(self, op: Op) -> bool:
        return bool(op.inputs and op.outputs) and op.inputs[0].location.rank != op.outputs[0].location.rank

    def opening(self, op: Op) -> str:
        """The event before which it writes nothing."""
        return "received" if self.crosses(op) else "start"

    def rank(self, op: Op, event: str) -> int:
        if not self.crosses(op):
            return op.location.rank
        return (op.outputs if event in ("received", "end") else op.inputs)[0].location.rank

    def moves(self, op: Op) -> bool:
        roots = {next(iter(self.root(blob))) for blob in (*op.inputs, *op.outputs)}
        return op.operation.name not in REARRANGING or len(roots) > 1

    def root(self, blob: Blob) -> set[str]:
        while blob.view is not None:
            blob = blob.view.parent
        return {blob.name}

    # State

    def reading(self) -> list[Op]:
        closing = {True: "sent", False: "end"}
        return [
            op
            for op in self.graph.ops
            if op.name in self.seen["start"]
            and op.name not in self.seen[closing[self.crosses(op)]]
            and (op.name, "start") not in self.over
        ]

    def writing(self) -> list[Op]:
        return [
            op
            for op in self.graph.ops
            if op.name in self.seen[self.opening(op)]
            and op.name not in self.seen["end"]
            and (op.name, self.opening(op)) not in self.over
        ]

    def complete(self, blob: Blob) -> bool:
        names = [op.name for op, _ in blob.producers]
        summed = len(names) < 2 or self.added[blob.name] == names
        return summed and all(name in self.seen["end"] for name in names)

    def closed(self, op: Op, half: str) -> bool:
        return (op.name, half) in self.over

    # Judging

    def broken(self, event: Event) -> str:
        kind, name = event["event"], event.get("op")
        if self.phase == "stopped":
            return "stop"
        if event["seq"] <= self.seq:
            return "sequence"
        if name is not None and name not in {op.name for op in self.graph.ops}:
            return "name"
        op = self.graph.op(name) if name is not None else None
        if op is not None and self.misplaced(event, op):
            return "name"
        if "blob" in event and event["blob"] not in self.graph:
            return "name"
        if kind == "stop":
            return "stop" if self.phase == "running" else ""
        if kind == "begin":
            return self.broken_begin(event)
        late = kind in ("end", "sent", "failed") and op is not None
        if self.phase == "failed" and not late:
            return "failure"
        if self.phase == "idle" or self.phase == ("running" if kind == "swapped" else "between"):
            return "swap" if kind == "swapped" else "sequence"
        if event["iteration"] != self.iteration:
            return "sequence"
        if kind == "failed" and op is None:
            return ""
        blob = self.graph[event["blob"]] if "blob" in event else None
        return str(getattr(self, f"broken_{kind}")(event, op, blob))

    def misplaced(self, event: Event, op: Op) -> bool:
        here = op.location
        if self.crosses(op):
            here = (op.outputs if event["event"] in ("received", "end") else op.inputs)[0].location
        allowed = [here] if event["event"] != "failed" or not self.crosses(op) else [here, op.outputs[0].location]
        wanted = [{"rank": place.rank, "device": place.device} for place in allowed]
        if "location" in event and event["location"] not in wanted:
            return True
        return "stream" in event and not self.crosses(op) and event["stream"] != op.stream

    def broken_begin(self, event: Event) -> str:
        if self.phase == "running":
            return "sequence"
        expected = self.iteration + (self.phase == "between")
        if self.phase != "idle" and event["iteration"] != expected:
            return "sequence"
        if self.phase == "failed" and (self.reading() or self.writing()):
            return "failure"
        if self.phase == "between" and any(current.name not in self.exchanged for current, _ in self.graph.pairs):
            return "swap"
        return ""

    def starved(self, event: Event, op: Op) -> bool:
        rank = self.rank(op, event["event"])
        return rank in self.lost and ("worker" not in event or event["worker"] in self.spent)

    def broken_start(self, event: Event, op: Op, blob: None) -> str:
        if op.name in self.seen["start"]:
            return "once"
        if self.starved(event, op):
            return "failure"
        if not all(self.complete(blob) for blob in op.inputs):
            return "edges"
        if not (op.location.is_cpu or self.crosses(op)):
            queue = (op.location, op.stream)
            if any((other.location, other.stream) == queue for other in self.reading() if not self.crosses(other)):
                return "stream"
        if any(blob.name not in self.held for blob in op.inputs if self.overlap[blob.name]):
            return "hazard"
        return "" if self.crosses(op) else self.over_others(op)

    def over_others(self, op: Op) -> str:
        if not self.moves(op):
            return ""
        for blob in op.outputs:
            touched = {blob.name, *self.overlap[blob.name]}
            if len(touched) == 1:
                continue
            if any(read.name in touched for other in self.reading() for read in other.inputs):
                return "hazard"
            written = {out.name for other in self.writing() if self.moves(other) for out in other.outputs}
            if written & (touched - {blob.name}):
                return "hazard"
        return ""

    def broken_received(self, event: Event, op: Op, blob: None) -> str:
        if not self.crosses(op):
            return "transfer"
        if op.name in self.seen["received"]:
            return "once"
        if op.name not in self.seen["start"]:
            return "transfer"
        if self.closed(op, "start") or self.starved(event, op):
            return "failure"
        return self.over_others(op)

    def broken_sent(self, event: Event, op: Op, blob: None) -> str:
        if not self.crosses(op):
            return "transfer"
        if op.name in self.seen["sent"] or self.closed(op, "start"):
            return "once"
        return "" if op.name in self.seen["start"] else "once"

    def broken_end(self, event: Event, op: Op, blob: None) -> str:
        if op.name in self.seen["end"] or self.closed(op, self.opening(op)):
            return "once"
        return "" if op.name in self.seen[self.opening(op)] else "once"

    def broken_added(self, event: Event, op: Op, blob: Blob) -> str:
        order = [producer.name for producer, _ in blob.producers]
        done = self.added[blob.name]
        if len(order) < 2 or done == order or order[len(done)] != op.name:
            return "additions"
        return "" if op.name in self.seen[self.opening(op)] else "additions"

    def broken_ready(self, event: Event, op: None, blob: Blob) -> str:
        late = any(consumer.name in self.seen["start"] for consumer, _ in blob.consumers)
        return "ready" if late or blob.name in self.announced or not self.complete(blob) else ""

    def broken_failed(self, event: Event, op: Op, blob: None) -> str:
        half = self.failing(event, op)
        computing = self.reading() if half == "start" else self.writing()
        return "" if op in computing else "failure"

    def failing(self, event: Event, op: Op) -> str:
        """Which half fails: the one at the line's place."""
        if not self.crosses(op):
            return "start"
        place, there = event.get("location"), op.outputs[0].location
        return "received" if place == {"rank": there.rank, "device": there.device} else "start"

    def broken_finish(self, event: Event, op: None, blob: None) -> str:
        done = all(
            other.name in self.seen["end"] and (not self.crosses(other) or other.name in self.seen["sent"])
            for other in self.graph.ops
        )
        return "" if done and all(self.complete(blob) for blob in self.graph.blobs) else "finish"

    def broken_swapped(self, event: Event, op: None, blob: Blob) -> str:
        pairs = {current.name for current, _ in self.graph.pairs}
        return "swap" if blob.name not in pairs or blob.name in self.exchanged else ""

    # What an event changes

    def happen(self, event: Event) -> None:
        kind = event["event"]
        self.seq = event["seq"]
        if kind == "begin":
            self.clear()
            self.phase, self.iteration = "running", event["iteration"]
            self.held = {name for name in self.held if self.lasting(name)} | {
                blob.name for blob in self.graph.blobs if not blob.producers and not self.lasting(blob.name)
            }
        elif kind == "stop":
            self.phase = "stopped"
        elif kind == "finish":
            self.phase, self.exchanged = "between", set()
        elif kind == "swapped":
            self.exchanged.add(event["blob"])
            into = {event["blob"], *self.overlap[event["blob"]]}
            self.held |= {blob.name for blob in self.graph.blobs if blob.name in into and not blob.producers}
        elif kind == "failed" and "op" not in event:
            self.phase = "failed"
        elif kind == "ready":
            self.announced.add(event["blob"])
        else:
            self.happen_to(event, self.graph.op(event["op"]))

    def lasting(self, name: str) -> bool:
        (root,) = self.root(self.graph[name])
        return self.graph[root].persistent

    def happen_to(self, event: Event, op: Op) -> None:
        kind = event["event"]
        if kind == "failed":
            half = self.failing(event, op)
            self.over.add((op.name, half))
            self.lost.add(self.rank(op, "received" if half == "received" else "start"))
        elif kind == "added":
            self.added[event["blob"]].append(op.name)
        else:
            self.seen[kind].add(op.name)
        if kind == self.opening(op) and self.moves(op):
            for blob in op.outputs:
                if self.overlap[blob.name]:
                    self.held -= {blob.name, *self.overlap[blob.name]}
        if kind in ("end", "added"):
            self.held |= {blob.name for blob in op.outputs if self.complete(blob)}
        place = "received" if kind == "failed" and self.failing(event, op) == "received" else kind
        if kind != "added" and self.rank(op, place) in self.lost and "worker" in event:
            self.spent.add(event["worker"])
