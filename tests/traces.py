"""What the tests of traces share: traces recorded from executors or made up, and judged by both twins."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import random
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any
from unittest import mock

from purine_ref._fast import judge as chosen_judge
from purine_ref._fast import lines as chosen_lines
from purine_ref._fast import select
from purine_ref.conformance.tracing import Structure, TraceWriter, Verdict, judge_trace, judging, reading, structure_of
from purine_ref.executors import Executor
from purine_ref.graph import Graph, Op
from purine_ref.parallel.ranks import crosses

Event = dict[str, Any]


def twins() -> list[tuple[ModuleType, ModuleType]]:
    """The modules that judge and that read lines: plain, and compiled if this process may use them."""
    setting = os.environ.get("PURINE_REF_FAST", "auto")
    plain = select("0", plain=_plain("judge")), select("0", plain=_plain("lines"))
    if setting == "0" or (setting == "auto" and importlib.util.find_spec("purine_ref._fast._judge") is None):
        return [plain]
    return [plain, (chosen_judge, chosen_lines)]


def _plain(name: str) -> ModuleType:
    return importlib.import_module(f"purine_ref._fast.{name}")


def judged_by(twin: tuple[ModuleType, ModuleType], data: bytes, graph: Graph | Structure) -> Verdict:
    """The verdict of one twin."""
    with mock.patch.object(judging, "Judge", twin[0].Judge), mock.patch.object(reading, "line_reader", twin[1]):
        return judge_trace(io.BytesIO(data), graph)


def judged(data: bytes | Sequence[Event], graph: Graph | Structure) -> Verdict:
    """The verdict, the same of both twins."""
    data = data if isinstance(data, bytes) else written(data)
    structure = structure_of(graph) if isinstance(graph, Graph) else graph
    verdicts = [judged_by(twin, data, structure) for twin in twins()]
    assert verdicts.count(verdicts[0]) == len(verdicts), verdicts
    return verdicts[0]


def written(events: Iterable[Event]) -> bytes:
    """The file of these events."""
    return "".join(f"{line}\n" for line in (reading.HEADER, *map(json.dumps, events))).encode()


def read(text: str | bytes) -> list[Event]:
    """The events of a file."""
    return [json.loads(line) for line in text.splitlines()[1:]]


def recorded(kind: Any, graph: Graph, runs: int = 2, **options: Any) -> list[Event]:
    """What an executor does in some runs of a graph."""
    text = io.StringIO()
    with TraceWriter(text) as observer, kind(graph, observer=observer, **options) as executor:
        for _ in range(runs):
            executor.run()
    return read(text.getvalue())


def ended(observer: TraceWriter, text: io.StringIO, executor: Executor) -> list[Event]:
    """What was recorded when all is closed."""
    executor.close()
    observer.close()
    return read(text.getvalue())


def renumbered(events: Sequence[Event]) -> list[Event]:
    """The events with `seq` rising by one."""
    return [{**event, "seq": seq} for seq, event in enumerate(events)]


def at(events: Sequence[Event], event: str, name: str = "", iteration: int = 0) -> int:
    """The index of an event of an operator or a blob in a run."""
    return next(
        index
        for index, entry in enumerate(events)
        if entry["event"] == event
        and entry.get("iteration") == iteration
        and (not name or name in (entry.get("op"), entry.get("blob")))
    )


def made_up(graph: Graph, seed: int, runs: int = 2) -> list[Event]:
    """A trace of a dispatcher that keeps all rules but those of shared memory, with several operators at once."""
    return _Dispatcher(graph, seed).trace(runs)


class _Dispatcher:
    """Chooses at random among what may happen next."""

    def __init__(self, graph: Graph, seed: int) -> None:
        self.graph = graph
        self.random = random.Random(seed)
        self.events: list[Event] = []

    def add(self, event: str, **more: str) -> None:
        """One more event."""
        self.events.append({"seq": len(self.events), "event": event, "iteration": self.run, **more})

    def trace(self, runs: int) -> list[Event]:
        """The whole."""
        for self.run in range(3, 3 + runs):
            self.add("begin")
            self.one_run()
            self.add("finish")
            for current, _ in self.random.sample(self.graph.pairs, len(self.graph.pairs)):
                self.add("swapped", blob=current.name)
        self.events.append({"seq": len(self.events), "event": "stop"})
        return self.events

    def one_run(self) -> None:
        """Until nothing more may happen."""
        self.done: set[tuple[str, str]] = set()
        self.added: dict[str, int] = {}
        while steps := [step for op in self.graph.ops for step in self.steps(op)]:
            event, op = self.random.choice(steps)
            self.done.add((event, op.name))
            self.add(event, op=op.name)
            if event in ("start", "received", "end"):
                self.sums(op)

    def steps(self, op: Op) -> list[tuple[str, Op]]:
        """What may happen to an operator next."""
        order = ["start", "received", "end"] if crosses(op) else ["start", "end"]
        undone = [event for event in order if (event, op.name) not in self.done]
        found = [(event, op) for event in undone[:1] if event != "start" or self.may_start(op)]
        if crosses(op) and ("start", op.name) in self.done and ("sent", op.name) not in self.done:
            found.append(("sent", op))
        return found

    def may_start(self, op: Op) -> bool:
        """Whether all inputs are there and its stream is free."""
        queue = (op.location, op.stream)
        busy = [
            other
            for other in self.graph.ops
            if (other.location, other.stream) == queue
            and ("start", other.name) in self.done
            and ("end", other.name) not in self.done
        ]
        return all(self.complete(blob) for blob in op.inputs) and (op.location.is_cpu or not busy)

    def complete(self, blob: Any) -> bool:
        """Whether a blob is ready."""
        ends = all(("end", op.name) in self.done for op, _ in blob.producers)
        return ends and (len(blob.producers) < 2 or self.added.get(blob.name, 0) == len(blob.producers))

    def sums(self, op: Op) -> None:
        """Add, perhaps, what can be added; at the latest when all producers have ended."""
        for blob in op.outputs:
            if len(blob.producers) > 1:
                self.sum(blob, all(("end", other.name) in self.done for other, _ in blob.producers))
            if self.complete(blob) and self.random.random() < 0.5 and ("ready", blob.name) not in self.done:
                self.done.add(("ready", blob.name))
                self.add("ready", blob=blob.name)

    def sum(self, blob: Any, must: bool) -> None:
        """Add the next contributions in their order."""
        while self.added.get(blob.name, 0) < len(blob.producers) and (must or self.random.random() < 0.5):
            op, _ = blob.producers[self.added.get(blob.name, 0)]
            if ("received" if crosses(op) else "start", op.name) not in self.done:
                return
            self.added[blob.name] = self.added.get(blob.name, 0) + 1
            self.add("added", op=op.name, blob=blob.name)
