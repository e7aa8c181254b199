"""Traces: the lines, the descriptions of graphs, verdicts and their words, and the command."""

from __future__ import annotations

import io
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purine_ref import view
from purine_ref._fast.events import HAS_END, HAS_RECEIVED, HAS_SENT, HAS_START, Names, Place, Wiring
from purine_ref.cli import run
from purine_ref.conformance.tracing import TraceWriter, Verdict, judge_trace, read_structure, reading, structure_of
from purine_ref.conformance.tracing.structure import structure_from
from purine_ref.errors import Refused
from purine_ref.executors import Serial
from purine_ref.graph import Graph
from purine_ref.ops import Concat, Copy, Gaussian, Identity, Mul, ReLU, Scale
from purine_ref.parallel.ranks import local_graph
from purine_ref.tensor import Location
from traces import Event, at, judged, made_up, read, recorded, renumbered, twins, written


def diamond() -> Graph:
    """x to y and z, both to w; a sum of two; a pair."""
    graph = Graph("diamond")
    x = graph.blob("x", (2,))
    (y,), (z,) = graph.apply(ReLU(), [x], "y"), graph.apply(Scale(2.0), [x], "z")
    graph.apply(Mul(), [y, z], "w")
    total = graph.blob("total", (2,))
    for name, blob in (("first", y), ("second", z)):
        graph.connect([blob], Scale(3.0), [total], name=name)
    current, following = (graph.blob(name, (2,), persistent=True) for name in ("p", "p_next"))
    graph.connect([current], Scale(0.5), [following], name="update")
    graph.swap(current, following)
    return graph


def trace() -> list[Event]:
    """What the serial executor does in two runs of the diamond."""
    return recorded(Serial, diamond())


# Verdicts on whole traces -------------------------------------------------------------------------------------------


def test_a_pass_says_what_was_judged() -> None:
    events = trace()
    verdict = judged(events, diamond())
    assert verdict == Verdict(
        "pass", f"all of {len(events)} events are legal: 2 runs, 12 operators", len(events), 12, 2
    )
    assert verdict.passed


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the trace is empty"),
        (b'{"format": "purine-trace/1"}\n', "the trace ends between runs, without 'stop'; legal so far: 0 events"),
        (written([{"seq": 0, "event": "stop"}]), "nothing was run"),
        (b'{"format"', "the last line is cut off; legal before it: 0 events"),
    ],
)
def test_a_trace_of_nothing_is_no_pass(data: bytes, words: str) -> None:
    assert judged(data, diamond()) == Verdict("unknown", words, int(words == "nothing was run"), 0, 0)


def test_a_trace_that_is_cut_anywhere_is_no_pass() -> None:
    data = written(trace())
    for length in random.Random(0).sample(range(len(data)), 60):
        verdict = judged(data[:length], diamond())
        assert verdict.verdict == "unknown"
        assert verdict.legal == max(0, data[:length].count(b"\n") - 1)


def test_a_trace_without_its_stop_is_unknown() -> None:
    events = trace()
    assert "without 'stop'" in judged(events[:-1], diamond()).words
    assert "ends in run 1" in judged(events[: at(events, "finish", iteration=1)], diamond()).words


# Single rules, by hand ------------------------------------------------------------------------------------------------


INSERTED: dict[str, Event] = {
    "two at once": {"event": "begin", "iteration": 1},
    "stopped in a run": {"event": "stop"},
    "added early": {"event": "added", "iteration": 0, "op": "first", "blob": "total"},
    "added to one": {"event": "added", "iteration": 0, "op": "w", "blob": "w"},
    "no pair": {"event": "swapped", "iteration": 0, "blob": "x"},
    "nobody": {"event": "start", "iteration": 0, "op": "nobody"},
    "nothing": {"event": "ready", "iteration": 0, "blob": "totals"},
    "elsewhere": {"event": "start", "iteration": 0, "op": "w", "location": {"rank": 0, "device": 1}},
    "of another run": {"event": "ready", "iteration": 1, "blob": "x"},
    "idle": {"event": "failed", "iteration": 0, "op": "w"},
}
"""Events that are wrong where they are put."""


def changed(kind: str) -> tuple[list[Event], int]:
    """The trace with one thing wrong, and the index of the first bad event."""
    events = trace()
    mul = at(events, "start", "w")
    if kind == "early":
        events.insert(at(events, "end", "z"), events.pop(mul))
        return renumbered(events), at(events, "start", "w")
    if kind == "stale":
        events.insert(at(events, "end", "z", 1), events.pop(at(events, "start", "w", 1)))
        return renumbered(events), at(events, "start", "w", 1)
    if kind == "twice":
        events.insert(mul + 1, dict(events[mul]))
        return renumbered(events), mul + 1
    if kind == "never":
        kept = [entry for entry in events if "w" not in (entry.get("op"), entry.get("blob")) or entry["iteration"]]
        return renumbered(kept), at(kept, "finish")
    if kind == "additions":
        one, other = at(events, "added", "first"), at(events, "added", "second")
        events[one], events[other] = events[other], events[one]
        return renumbered(events), one
    if kind == "unadded":
        del events[at(events, "added", "second")]
        return renumbered(events), at(events, "ready", "total")
    if kind == "unswapped":
        del events[at(events, "swapped", "p")]
        return renumbered(events), at(events, "begin", iteration=1)
    if kind == "swapped early":
        events.insert(mul, {"event": "swapped", "iteration": 0, "blob": "p"})
        return renumbered(events), mul
    if kind == "ready twice":
        index = at(events, "ready", "w")
        events.insert(index + 1, dict(events[index]))
        return renumbered(events), index + 1
    if kind == "ready late":
        events.insert(mul, events.pop(at(events, "ready", "z")))
        return renumbered(events), mul
    if kind == "unsummed":
        del events[at(events, "ready", "total")], events[at(events, "added", "second")]
        return renumbered(events), at(events, "finish")
    if kind in INSERTED:
        index = at(events, "swapped") if kind == "no pair" else at(events, "start", "z")
        events.insert(index, dict(INSERTED[kind]))
        return renumbered(events), index
    if kind == "swapped twice":
        index = at(events, "swapped")
        events.insert(index, dict(events[index]))
        return renumbered(events), index + 1
    if kind == "left out":
        kept = [{**entry, "iteration": 2 * entry.get("iteration", 0)} for entry in events[:-1]]
        return renumbered(kept), at(kept, "begin", iteration=2)
    if kind == "busy":
        events.insert(mul + 1, {"event": "failed", "iteration": 0})
        events.insert(mul + 2, {"event": "begin", "iteration": 0})
        return renumbered(events), mul + 2
    if kind == "unfinished":
        events.insert(mul + 1, {"event": "finish", "iteration": 0})
        return renumbered(events), mul + 1
    if kind == "lowered":
        events[mul]["seq"] = 0
        return events, mul
    assert kind == "after stop"
    return renumbered([*events, {"event": "begin", "iteration": 2}]), len(events)


RULES = {
    "early": ("edges", ("z", "w"), "operator 'w' starts before its input 'z' is ready: its producer 'z' has not ended"),
    "stale": ("edges", ("z", "w"), "it would read a stale value, that of an earlier run"),
    "twice": ("once", None, "operator 'w' starts twice in run 0"),
    "never": ("finish", ("z", "w"), "without operator 'w': all its inputs are ready, but it never started"),
    "additions": ("additions", ("total", "second"), "of 'second' to 'total' is out of order: 'first' is next (R4)"),
    "unadded": ("ready", ("total", "second"), "'total' is called ready too early: 1 of its 2 contributions"),
    "unswapped": ("swap", None, "the pair of 'p' was not exchanged after the last: it would read a stale value (R6)"),
    "swapped early": ("swap", None, "'p' is exchanged while no run has just finished"),
    "ready twice": ("ready", None, "blob 'w' becomes ready twice in run 0"),
    "ready late": ("ready", ("z", "w"), "blob 'z' is called ready after its consumer 'w' started"),
    "unsummed": ("finish", ("total", "second"), "before 'total' is ready: 1 of its 2 contributions have been added"),
    "two at once": ("sequence", None, "run 1 begins while another is going on (R3)"),
    "stopped in a run": ("stop", None, "'stop' in run 0, which neither finished nor failed"),
    "added early": ("additions", ("total", "first"), "of 'first' to 'total' is added before it has started"),
    "added to one": ("additions", ("w", "w"), "blob 'w' has no sum: it has fewer than two producers"),
    "no pair": ("swap", None, "'x' is not the first of a pair"),
    "nobody": ("name", None, "the graph has no operator 'nobody'"),
    "nothing": ("name", None, "the graph has no blob 'totals'; nearest: total"),
    "elsewhere": ("name", None, "operator 'w' is at (rank, device) (0, -1), stream 'main'; the line says"),
    "of another run": ("sequence", None, "'ready' is of run 1, but run 0 is going on"),
    "idle": ("failure", None, "operator 'w' fails, but it does not compute"),
    "swapped twice": ("swap", None, "the pair of 'p' is exchanged twice"),
    "left out": ("sequence", None, "run 2 begins, but the next is 1"),
    "busy": ("failure", None, "a run begins while operator 'w' of the failed one computes"),
    "unfinished": ("finish", ("z", "w"), "without operator 'w': it has started and not ended"),
    "lowered": ("sequence", None, "seq 0 does not rise"),
    "after stop": ("stop", None, "'begin' after 'stop'"),
}


@pytest.mark.parametrize("kind", list(RULES))
def test_the_first_bad_event_its_edge_and_the_legal_prefix(kind: str) -> None:
    rule, edge, words = RULES[kind]
    events, index = changed(kind)
    verdict = judged(events, diamond())
    assert (verdict.verdict, verdict.rule, verdict.edge, verdict.line, verdict.legal) == (
        "fail", rule, edge, index + 2, index
    )  # fmt: skip
    assert words in verdict.words
    assert verdict.words.startswith(f"line {index + 2}: ")
    assert verdict.words.endswith(f"legal before it: {index} event" + "s" * (index != 1))


def test_what_follows_the_first_bad_event_is_not_judged() -> None:
    events, _ = changed("twice")
    rubbish = written(events) + b"rubbish\n"
    assert judged(rubbish, diamond()).rule == "once"


def simple(names: str, views: dict[str, Any] | None = None) -> Graph:
    """Blobs of four elements by these names, some of them views."""
    graph = Graph("simple")
    for name in names:
        if views and name in views:
            parent, box = views[name]
            graph.view(graph[parent], name, [box])
        else:
            graph.blob(name, (4,))
    return graph


def events_of(*texts: str) -> list[Event]:
    """Events of run 0 as `start a` or `added a b`, between its begin and its finish."""
    found: list[Event] = [{"event": "begin"}]
    for text in texts:
        kind, *names = text.split()
        keys = ["blob"] if kind in ("ready", "swapped") else ["op", "blob"]
        found.append({"event": kind, **dict(zip(keys, names, strict=False))})
    found.append({"event": "finish"})
    return renumbered([*({**entry, "iteration": 0} for entry in found), {"event": "stop"}])


@pytest.mark.parametrize(
    ("texts", "rule", "words"),
    [
        (("start read", "end read", "start write", "end write"), None, "all of"),
        (("start write", "end write", "start read"), "hazard", "its memory no longer holds it: operator 'write' has"),
        (("start write", "start read"), "hazard", "operator 'write' has written over it"),
        (("start read", "start write"), "hazard", "writes 'part' while 'x', in the same memory, is being read"),
    ],
)
def test_a_write_through_a_view_and_a_reader(texts: tuple[str, ...], rule: str | None, words: str) -> None:
    graph = simple("xyp", {"p": ("x", (1, 3))})
    graph.blob("half", (2,))
    graph.connect([graph["x"]], ReLU(), [graph["y"]], name="read")
    graph.connect([graph["half"]], ReLU(), [graph["p"]], name="write")
    verdict = judged(events_of(*texts), graph)
    assert verdict.rule == rule
    assert words.replace("part", "p") in verdict.words


def test_two_writers_of_one_memory_at_once() -> None:
    graph = simple("xyab", {"a": ("x", (0, 3)), "b": ("x", (2, 4))})
    for name, part in (("one", "a"), ("other", "b")):
        source = graph.blob(f"from_{name}", graph[part].shape)
        graph.connect([source], ReLU(), [graph[part]], name=name)
    verdict = judged(events_of("start one", "start other"), graph)
    assert (verdict.rule, verdict.edge) == ("hazard", ("b", "other"))
    assert "while 'a', in the same memory, is being written" in verdict.words
    assert judged(events_of("start one", "end one", "start other", "end other"), graph).passed


def test_parts_that_a_concat_joins_where_they_lie_stay_what_they_are() -> None:
    graph = simple("wab", {"a": ("w", (0, 2)), "b": ("w", (2, 4))})
    x = graph.blob("x", (2,))
    graph.connect([x], ReLU(), [graph["a"]], name="one")
    graph.connect([x], ReLU(), [graph["b"]], name="other")
    graph.connect([graph["a"], graph["b"]], Concat(0), [graph["w"]], name="join")
    graph.apply(Identity(), [graph["a"]], "again")
    graph.apply(Identity(), [graph["w"]], "whole")
    order = ("one", "other", "join", "again", "whole")
    texts = [f"{event} {name}" for name in order for event in ("start", "end")]
    assert judged(events_of(*texts), graph).passed
    meanwhile = [*texts[:4], "start again", *texts[4:6], "end again", *texts[8:]]
    assert judged(events_of(*meanwhile), graph).passed


def test_a_persistent_source_that_was_overwritten_is_stale_in_the_next_run() -> None:
    graph = Graph("kept")
    w = graph.blob("w", (4,), persistent=True)
    graph.connect([w], ReLU(), [graph.blob("y", (4,))], name="read")
    graph.connect([graph["y"]], ReLU(), [graph.view(w, "over")], name="write")
    one = events_of("start read", "end read", "start write", "end write")[:-1]
    verdict = judged(renumbered([*one, *({**entry, "iteration": 1} for entry in one)]), graph)
    assert (verdict.rule, verdict.edge, verdict.line) == ("hazard", ("w", "read"), len(one) + 3)


def test_a_view_of_a_blob_that_is_exchanged_holds_the_new_value() -> None:
    graph = Graph("exchanged")
    w, following = (graph.blob(name, (4,), persistent=True) for name in ("w", "w_next"))
    part = graph.view(w, "part", [(0, 2)])
    graph.connect([w], Scale(0.5), [following], name="update")
    graph.apply(ReLU(), [part], "read")
    graph.swap(w, following)
    assert judged(recorded(Serial, graph, 3), graph).passed
    graph.connect([following], Scale(2.0), [graph.view(w, "over")], name="write")
    names = ("update", "read", "write")
    one = events_of(*(f"{event} {name}" for name in names for event in ("start", "end")))[:-1]
    one.append({"event": "swapped", "iteration": 0, "blob": "w"})
    verdict = judged(renumbered([*one, *({**entry, "iteration": 1} for entry in one), {"event": "stop"}]), graph)
    assert verdict.passed, verdict.words


def test_one_stream_of_one_device_runs_one_operator_at_a_time() -> None:
    graph = Graph("streams")
    x = graph.blob("x", (2,), location=Location(0, 0))
    for name, stream in (("a", "main"), ("b", "main"), ("c", "other")):
        graph.apply(ReLU(), [x], name, stream=stream)
    fine = ("start a", "start c", "end a", "start b", "end c", "end b")
    assert judged(events_of(*fine), graph).passed
    verdict = judged(events_of("start c", "start a", "start b"), graph)
    assert verdict.rule == "stream"
    assert "operator 'b' starts while 'a' is on its stream" in verdict.words


def test_halves_of_a_copy_between_ranks() -> None:
    graph = Graph("copies")
    graph.apply(Copy(Location(1)), [graph.blob("x", (2,))], "c")
    assert judged(events_of("start c", "received c", "sent c", "end c"), graph).passed
    assert judged(events_of("start c", "sent c", "received c", "end c"), graph).passed
    assert judged(events_of("received c"), graph).rule == "transfer"
    assert judged(events_of("start c", "received c", "end c"), graph).rule == "finish"
    assert "message was lost" in judged(events_of("start c", "sent c"), graph).words


def test_the_graph_of_one_rank_has_half_the_events() -> None:
    graph = Graph("local")
    graph.apply(Copy(Location(1)), [graph.apply(ReLU(), [graph.blob("x", (2,))], "y")[0]], "c")
    sender, receiver = (local_graph(graph, rank) for rank in range(2))
    assert structure_of(sender).wiring.needs == [HAS_START | HAS_END, HAS_START | HAS_SENT]
    assert structure_of(receiver).wiring.needs == [HAS_RECEIVED | HAS_END]
    assert judged(events_of("start y", "end y", "start c", "sent c"), sender).passed
    assert judged(events_of("received c", "end c"), receiver).passed
    assert judged(events_of("start c"), receiver).rule == "transfer"


WORKER = [
    ("start good a", "start bad b", "failed bad b", "start late c", None),
    ("start good a", "start bad b", "failed bad b", "start late b", "failure"),
    ("start good a", "start bad b", "failed bad b", "end good a", "start late a", "failure"),
    ("start good a", "start bad b", "failed bad b", "start late", "failure"),
    ("start good a", "end good a", "start bad b", "failed bad b", "start late a", None),
]


@pytest.mark.parametrize("texts", WORKER)
def test_what_a_worker_had_taken_before_a_failure_may_start(texts: Any) -> None:
    graph = Graph("failing")
    for name in ("good", "bad", "late"):
        graph.apply(Gaussian((2,)), [], name)
    *texts, rule = texts
    events: list[Event] = [{"event": "begin"}]
    for text in texts:
        kind, op, *worker = text.split()
        events.append({"event": kind, "op": op, **({"worker": worker[0]} if worker else {})})
    events = renumbered([{**entry, "iteration": 0} for entry in [*events, {"event": "failed"}]])
    verdict = judged([*events, {"seq": 99, "event": "stop"}], graph)
    assert verdict.rule == rule, verdict.words
    assert verdict.verdict == ("fail" if rule else "unknown")


# Lines --------------------------------------------------------------------------------------------------------------


LINES = [
    (b"", "line 2: Expecting value"),
    (b"[1]", "line 2: expected a JSON object, got list"),
    (b"nonsense", "line 2: Expecting value"),
    (b"\xff{}", "line 2: 'utf-8' codec"),
    (b"[" * 60000, "line 2: it nests too deeply"),
    (b'{"seq": 0, "event": "begin", "iteration": 0, "colour": 1}', "line 2: unknown key 'colour'; expected blob,"),
    (b'{"seq": 0, "seq": 0, "event": "stop"}', "line 2: a key is there twice"),
    (b'{"seq": 0}', "line 2: 'event': expected one of begin, start,"),
    (b'{"seq": 0, "event": "jump"}', "got 'jump'"),
    (b'{"seq": -1, "event": "stop"}', "line 2: 'seq': expected an integer from 0 to 9223372036854775807, got -1"),
    (b'{"seq": 9223372036854775808, "event": "stop"}', "got 9223372036854775808"),
    (b'{"seq": true, "event": "stop"}', "'seq': expected an integer from 0 to 9223372036854775807, got True"),
    (b'{"seq": 1.0, "event": "stop"}', "got 1.0"),
    (b'{"seq": 01, "event": "stop"}', "line 2: Expecting"),
    (b'{"event": "stop"}', "'seq': expected an integer"),
    (b'{"seq": 0, "event": "stop", "iteration": 0}', "a line of 'stop' cannot have the key 'iteration'"),
    (b'{"seq": 0, "event": "begin"}', "'iteration': expected an integer"),
    (b'{"seq": 0, "event": "start", "iteration": 0}', "a line of 'start' lacks the key 'op'"),
    (b'{"seq": 0, "event": "begin", "iteration": 0, "op": "y"}', "a line of 'begin' cannot have the key 'op'"),
    (b'{"seq": 0, "event": "added", "iteration": 0, "op": "y"}', "a line of 'added' lacks the key 'blob'"),
    (b'{"seq": 0, "event": "start", "iteration": 0, "op": 7}', "'op': expected a name, got 7"),
    (b'{"seq": 0, "event": "begin", "iteration": 0, "worker": 1}', "'worker': expected a name, got 1"),
    (b'{"seq": 0, "event": "begin", "iteration": 0, "time": "1"}', "'time': expected a number, got '1'"),
    (b'{"seq": 0, "event": "begin", "iteration": 0, "time": NaN}', "NaN is not JSON"),
    (b'{"seq": 0, "event": "begin", "iteration": 0, "stream": "main"}', "'stream' and 'location' are an operator's"),
    (b'{"seq": 0, "event": "start", "iteration": 0, "op": "y", "stream": null}', "'stream': expected a name, got None"),
    (b'{"seq": 0, "event": "start", "iteration": 0, "op": "y", "location": [0, -1]}', "'location': expected"),
    (b'{"seq": 0, "event": "start", "iteration": 0, "op": "y", "location": {"rank": 0}}', "'location': expected"),
    (b'{"seq": 0, "event": "stop", "worker": "' + b"w" * 65_500 + b'"}', "line 2: longer than 65536 bytes"),
]


@pytest.mark.parametrize(("line", "words"), LINES, ids=range(len(LINES)))
def test_a_line_that_is_none_is_refused_with_its_number(line: bytes, words: str) -> None:
    data = f"{reading.HEADER}\n".encode() + line + b"\n" + written([])
    with pytest.raises(Refused, match=re.escape(words)):
        judged(data, diamond())


def test_a_line_without_an_end_is_not_read_whole() -> None:
    class Endless(io.RawIOBase):
        given = 0

        def read(self, size: int = -1) -> bytes:
            self.given += size
            return b"x" * size

    file = Endless()
    with pytest.raises(Refused, match="line 1: longer than 65536 bytes"):
        judge_trace(file, diamond())  # type: ignore[arg-type]
    assert file.given <= 2 * reading.PART


@pytest.mark.parametrize("header", [b"{}", b'{"format": "purine-trace/2"}', b"nonsense", b"[" * 10**5, b"\xff"])
def test_another_format_is_refused(header: bytes) -> None:
    with pytest.raises(Refused, match="line 1: "):
        judged(header + b"\n", diamond())


def test_a_spelling_is_one_of_many(tmp_path: Path) -> None:
    """Spaces, orders of keys, escapes, numbers with exponents; all in one trace, read as the usual spelling is."""
    events = trace()
    spelled = [reading.HEADER.replace(" ", "")]
    for index, entry in enumerate(events):
        entry = {**entry, "time": (0.5, -1e-3, 7, 0)[index % 4]}
        text = json.dumps(entry, separators=((",", ":"), (" ,  ", " : "), (", ", ": "))[index % 3])
        spelled.append(f" {text.replace('main', chr(92) + 'u006dain')} \t" if index % 2 else text)
    data = "\n".join(spelled).encode() + b"\n"
    assert judged(data, diamond()).legal == len(events)
    crlf = b"\r\n".join(data.split(b"\n"))
    assert judged(crlf, diamond()).passed


PIECES = [
    b"{", b"}", b'"', b":", b",", b" ", b"\\", b"-", b"0", b"7", b".", b"1e3", b"\x00", b"\xc3\xa9", b"\xff", b"null",
    b'"seq": 3', b'"op": "y"', b'"blob": "y"', b'"event": "start"', b'"worker": "w0"', b'"location": {"rank": 0, ',
    b'"device": -1}', b'"stream": "main"', b'"iteration": 0', b"\t",
]  # fmt: skip


@given(data=st.data())
def test_both_twins_read_or_refuse_every_line_alike(data: st.DataObject) -> None:
    entry = data.draw(st.sampled_from(trace()))
    line = json.dumps(
        {**entry, "location": {"rank": 0, "device": -1}, "stream": "main"} if "op" in entry else entry
    ).encode()
    for _ in range(data.draw(st.integers(0, 3))):
        start = data.draw(st.integers(0, len(line)))
        piece = data.draw(st.sampled_from(PIECES))
        line = line[:start] + piece + line[start + data.draw(st.integers(0, 12)) :]
    outcomes = []
    for _, lines in twins():
        names, rows = structure_of(diamond()).names(), np.full((1, 6), 99, np.int64)
        try:
            assert lines.encode_lines([line], names, rows) == 1
            outcomes.append((rows.tolist(), names.workers))
        except ValueError as error:
            outcomes.append(error.args)  # type: ignore[arg-type]
    assert outcomes.count(outcomes[0]) == len(outcomes), line


def test_too_many_workers_are_refused() -> None:
    for _, lines in twins():
        names = Names({}, {}, [], {f"w{i}": i for i in range(65_536)})
        with pytest.raises(ValueError, match="more than 65536 names of workers"):
            lines.encode_lines(
                [b'{"seq": 0, "event": "stop", "worker": "one more"}'], names, np.empty((1, 6), np.int64)
            )


def test_rows_that_are_no_events_are_refused_by_both_twins() -> None:
    wiring = structure_of(diamond()).wiring
    for judge, _ in twins():
        for row in (
            [0, 12, 0, 0, 0, 0],
            [0, 1, 0, 99, -1, -1],
            [0, 1, 0, -1, -1, -1],
            [0, 6, 0, -1, -1, -1],
            [0, 0, 0, -4, -1, -1],
        ):
            with pytest.raises(ValueError, match=r"kinds|operators|blobs|workers|absent"):
                judge.Judge(wiring).feed(np.array([row], np.int64))
        with pytest.raises(ValueError, match="rows of 6 int64"):
            judge.Judge(wiring).feed(np.zeros((1, 5), np.int64))
        assert judge.Judge(wiring).feed(np.zeros((0, 6), np.int64)) == 0


def test_an_empty_graph_runs() -> None:
    assert judged(events_of(), Graph("empty")).passed
    assert isinstance(structure_of(Graph("empty")).wiring, Wiring)


# Structures -----------------------------------------------------------------------------------------------------------


def described() -> dict[str, Any]:
    return json.loads(json.dumps(view.to_json(diamond())))


def test_a_structure_from_a_file_is_that_of_the_graph(tmp_path: Path) -> None:
    graph = diamond()
    expected = structure_of(graph)
    case = {"format": "purine-case/1", "name": "x", "graph": {**described(), "more": 1}}
    (tmp_path / "case").mkdir()
    for name, content in (("graph.json", described()), ("case/case.json", case)):
        (tmp_path / name).write_text(json.dumps(content))
    for path in (tmp_path / "graph.json", tmp_path / "case", tmp_path / "case" / "case.json"):
        found = read_structure(path)
        assert (found.wiring, found.ops, found.places) == (expected.wiring, expected.ops, expected.places)
    assert found.places[0] == Place((0, -1), (0, -1), "main")


BROKEN: list[tuple[Any, str]] = [
    (lambda g: g.pop("blobs"), "graph: the field 'blobs' is missing"),
    (lambda g: g["blobs"].__setitem__(1, 7), r"blobs\[1\]: expected dict, got int"),
    (lambda g: g["blobs"][1].update(shape=[-1]), r"blobs\[1\]: "),
    (lambda g: g["blobs"][1].update(name="x"), r"blobs\[1\]: .*already has a blob 'x'"),
    (lambda g: g["blobs"][1].update(location={"rank": -1, "device": 0}), r"blobs\[1\].location: "),
    (
        lambda g: g["blobs"][1].update(view={"parent": "q", "box": [[0, 2]]}),
        r"blobs\[1\].view.parent: there is no blob 'q'",
    ),
    (lambda g: g["blobs"][1].update(view={"parent": "x", "box": [[0, 9]]}), r"blobs\[1\]: .*does not lie in"),
    (lambda g: g["blobs"][1].update(location={"rank": 0, "device": 2**70}), r"blobs\[1\].location: expected integers"),
    (lambda g: g["operators"][1].update(location={"rank": True, "device": 0}), r"operators\[1\].location: "),
    (lambda g: g["operators"][0].update(inputs=["q"]), r"operators\[0\].inputs\[0\]: there is no blob 'q'"),
    (lambda g: g["operators"][0].update(inputs=[7]), r"operators\[0\].inputs\[0\]: there is no blob 7"),
    (lambda g: g["operators"][1].update(name="y"), r"operators\[1\].name: another operator has the name 'y'"),
    (lambda g: g["operators"][1].pop("stream"), r"operators\[1\]: the field 'stream' is missing"),
    (lambda g: g["operators"][0].update(inputs=["w"]), "operators: .* are in a cycle or behind one"),
    (lambda g: g["pairs"].append(["p"]), r"pairs\[1\]: expected \[current, following\]"),
    (lambda g: g["pairs"].append(["p", "q"]), r"pairs\[1\]\[1\]: there is no blob 'q'; nearest|pairs\[1\]\[1\]: there"),
]


@pytest.mark.parametrize(("change", "words"), BROKEN, ids=range(len(BROKEN)))
def test_a_description_that_is_wrong_is_refused_with_the_place(change: Any, words: str, tmp_path: Path) -> None:
    content = described()
    change(content)
    with pytest.raises(Refused, match=words):
        structure_from(content)
    (tmp_path / "graph.json").write_text(json.dumps(content))
    with pytest.raises(Refused, match=r"graph\.json: "):
        read_structure(tmp_path / "graph.json")


@pytest.mark.parametrize("text", ["", "[]", '{"format": "purine-case/9"}', "[" * 10**5])
def test_a_file_that_describes_no_graph_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text(text)
    with pytest.raises(Refused, match=r"graph\.json: "):
        read_structure(tmp_path / "graph.json")


# The writer -----------------------------------------------------------------------------------------------------------


def test_a_trace_is_there_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as observer:
        with Serial(diamond(), observer=observer) as executor:
            executor.run()
        assert not path.exists()
    assert judge_trace(path, diamond()).passed
    assert [file.name for file in tmp_path.iterdir()] == ["trace.jsonl"]
    observer.close()
    with pytest.raises(RuntimeError, match="closed before 'begin'"):
        observer.began(1, 0.0)


def test_names_that_json_escapes_are_written_and_judged() -> None:
    graph = Graph("escaped")
    graph.apply(ReLU(), [graph.blob('a "quoted" \\ name', (2,))], "größe")
    events = recorded(Serial, graph)
    assert judged(events, graph).passed
    text = io.StringIO()
    with TraceWriter(text) as observer, Serial(graph, observer=observer) as executor:
        executor.run()
    assert judged(text.getvalue().encode(), graph).passed
    assert read(text.getvalue())[1]["op"] == "größe"


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_judges_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "graph.json").write_text(json.dumps(described()))
    events, index = changed("early")
    for name, data, code in [
        ("good", written(trace()), 0),
        ("bad", written(events), 1),
        ("cut", written(trace())[:-9], 2),
        ("refused", b"{}\n", 2),
    ]:
        (tmp_path / name).write_bytes(data)
        target = tmp_path / f"{name}.json"
        arguments = ["trace", str(tmp_path / name), "--graph", str(tmp_path / "graph.json"), "--json", str(target)]
        assert run(arguments) == code
        found = json.loads(target.read_text())
        assert found["schema"] == "purine-ref/trace/1"
        assert found["verdict"] == ("pass", "fail", "unknown")[code]
        printed = capsys.readouterr().out
        assert f"{found['verdict']}: {found['words']}" in printed
    found = json.loads((tmp_path / "bad.json").read_text())
    assert (found["line"], found["rule"], found["edge"]) == (index + 2, "edges", ["z", "w"])
    assert found["executed"] == index


@pytest.mark.parametrize("arguments", [["trace"], ["trace", "nowhere", "--graph", "nowhere"]])
def test_wrong_use_of_the_command(arguments: list[str]) -> None:
    assert run(arguments) == 64


def test_a_trace_that_was_made_up_is_read_in_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PART", 100)
    graph = diamond()
    events = made_up(graph, 1, runs=5)
    assert judged(events, graph).passed
    del events[-9]
    assert not judged(events, graph).passed
