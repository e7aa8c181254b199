"""The traces of several ranks, merged into one: lawful in spite of clocks that differ, and refused where they lie."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purine_ref.conformance import generator
from purine_ref.conformance.examples import Example
from purine_ref.conformance.networks import composed_graph
from purine_ref.conformance.tracing import TraceWriter, merge_traces
from purine_ref.errors import PurineError, Refused
from purine_ref.executors import Hosts, Ranks, Serial
from purine_ref.graph import Graph
from purine_ref.models import training_graph
from purine_ref.ops import Copy, Scale
from purine_ref.parallel import Data, compose
from purine_ref.parallel.ranks import world
from purine_ref.tensor import Location
from purine_ref.transports.local import local_worlds
from traces import Event, judged, read, written

few = settings(max_examples=max(settings.default.max_examples // 4, 10))


def two_ranks(swaps: bool = False) -> Graph:
    """x at rank 0 is doubled, goes to rank 1, is doubled there and comes back."""
    graph = Graph("to and fro")
    x = graph.blob("x", (2,), "float64", persistent=swaps)
    (there,) = graph.apply(Copy(Location(1)), [graph.apply(Scale(2.0), [x], "y")[0]], "there")
    (z,) = graph.apply(Scale(2.0), [there], "z")
    (back,) = graph.apply(Copy(Location()), [z], "back")
    if swaps:
        following = graph.blob("x_next", (2,), "float64", persistent=True)
        graph.connect([back], Scale(1.0), [following], name="update")
        graph.swap(x, following)
    return graph


def recorded(graph: Graph, runs: int = 2) -> list[Event]:
    """What the ranks of one process do, with times by their one clock."""
    text = io.StringIO()
    with TraceWriter(text, times=True) as observer, Ranks(graph, observer=observer) as executor:
        for _ in range(runs):
            executor.run()
    return read(text.getvalue())


def parted(graph: Graph, events: list[Event]) -> list[list[Event]]:
    """The same as each rank of several hosts would have seen it."""
    parts: list[list[Event]] = [[] for _ in range(world(graph))]
    for event in events:
        if "location" in event:
            at = [event["location"]["rank"]]
        elif "blob" in event:
            at = [graph[event["blob"]].location.rank]
        else:
            at = list(range(len(parts)))
        for rank in at:
            parts[rank].append(dict(event))
    return parts


def shifted(events: list[Event], seconds: float) -> list[Event]:
    """The events as by a clock that is behind by so many seconds."""
    return [{**event, "time": event["time"] - seconds} if "time" in event else event for event in events]


def merged(folder: Path, parts: list[list[Event]], offsets: list[float] | None = None) -> list[Event]:
    """What `merge_traces` makes of events that are written to files."""
    files = [folder / f"rank{rank}.jsonl" for rank in range(len(parts))]
    for file, events in zip(files, parts, strict=True):
        file.write_bytes(written(events))
    merge_traces(files, offsets or [0.0] * len(parts), folder / "whole.jsonl")
    return read((folder / "whole.jsonl").read_bytes())


def what(event: Event) -> tuple[Any, ...]:
    """An event without its number, its time and its worker."""
    return tuple(event.get(key) for key in ("event", "iteration", "op", "blob"))


# Lawful -------------------------------------------------------------------------------------------------------------


@few
@given(example=generator.examples(), data=st.data())
def test_ranks_with_clocks_of_their_own_make_one_lawful_trace(
    example: Example, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also where an offset is wrong by more than everything takes."""
    graph = composed_graph(example)
    try:
        events = recorded(graph)
    except PurineError:
        return
    parts = parted(graph, events)
    seconds = st.floats(-1e6, 1e6)
    clocks = data.draw(st.lists(seconds, min_size=len(parts), max_size=len(parts)), "clocks")
    errors = data.draw(st.lists(st.sampled_from([0.0, 1e-4, -1e-4, 3.0]), min_size=len(parts), max_size=len(parts)))
    shown = [shifted(part, clock) for part, clock in zip(parts, clocks, strict=True)]
    offsets = [clock + error for clock, error in zip(clocks, errors, strict=True)]
    found = merged(tmp_path_factory.mktemp("traces"), shown, offsets)
    verdict = judged(written(found), graph)
    assert verdict.passed, verdict.words
    assert (verdict.iterations, verdict.starts) == (2, 2 * len(graph.ops))
    assert sorted(map(repr, map(what, found))) == sorted(map(repr, map(what, events)))


def test_with_true_clocks_the_order_is_that_of_the_clocks(tmp_path: Path) -> None:
    graph = two_ranks()
    events = recorded(graph)
    parts = parted(graph, events)
    found = merged(tmp_path, [parts[0], shifted(parts[1], 1000.0)], [0.0, 1000.0])
    times = [event["time"] for event in found if "time" in event]
    assert times == sorted(times)
    assert [event["seq"] for event in found] == list(range(len(found)))
    assert {event["worker"].partition(".")[0] for event in found if "op" in event} == {"r0", "r1"}


def test_a_copy_is_received_after_it_was_sent_whatever_the_clocks_say(tmp_path: Path) -> None:
    graph = two_ranks()
    parts = parted(graph, recorded(graph, 1))
    found = [what(event)[::2] for event in merged(tmp_path, parts, [0.0, -1e6])]
    assert found.index(("start", "there")) < found.index(("received", "there"))
    assert found.index(("start", "back")) < found.index(("received", "back"))


def test_traces_without_times_are_lawful_too(tmp_path: Path) -> None:
    graph = two_ranks(swaps=True)
    parts = [[{k: v for k, v in event.items() if k != "time"} for event in part]
             for part in parted(graph, recorded(graph))]  # fmt: skip
    assert judged(written(merged(tmp_path, parts)), graph).passed


def test_a_run_that_failed_on_one_rank_has_failed(tmp_path: Path) -> None:
    """What the others were told of it, and what still computed there, may come before and after."""
    graph = two_ranks()
    parts = parted(graph, recorded(graph, 1))
    ends = [[what(event)[0] for event in part].index("finish") for part in parts]
    computes = [what(event)[:3] for event in parts[0]].index(("end", 0, "y"))
    failed = {"seq": 1000, "event": "failed", "iteration": 0, "worker": "w0", "time": 0.0}
    stop = {"seq": 1001, "event": "stop"}
    sender = [*parts[0][:computes], failed, {**parts[0][computes], "seq": 1001}, {**stop, "seq": 1002}]
    found = merged(tmp_path, [sender, [parts[1][0], failed, stop]])
    assert [event["event"] for event in found] == ["begin", "start", "failed", "end", "stop"]
    verdict = judged(written(found), graph)
    assert verdict.verdict == "unknown", verdict.words
    assert "failed" in verdict.words
    found = merged(tmp_path, [[*parts[0][: ends[0]], failed, stop], [*parts[1][: ends[1] + 1], stop]])
    assert [event["event"] for event in found].count("failed") == 1
    assert judged(written(found), graph).verdict == "unknown"


def test_where_a_rank_was_cut_off_the_whole_has_no_end(tmp_path: Path) -> None:
    graph = two_ranks()
    parts = parted(graph, recorded(graph))
    found = merged(tmp_path, [parts[0], parts[1][:-1]])
    verdict = judged(written(found), graph)
    assert (verdict.verdict, verdict.iterations) == ("unknown", 2), verdict.words
    assert found[-1]["event"] == "finish"
    file = tmp_path / "cut.jsonl"
    file.write_bytes(written(parts[1])[:-3])
    merge_traces([tmp_path / "rank0.jsonl", file], [0.0, 0.0], tmp_path / "whole.jsonl")
    assert "'stop'" in judged((tmp_path / "whole.jsonl").read_bytes(), graph).words


def test_pairs_are_exchanged_between_the_runs_of_all(tmp_path: Path) -> None:
    """Although a rank has begun the next run before another has exchanged its pairs."""
    graph = two_ranks(swaps=True)
    parts = parted(graph, recorded(graph))
    found = merged(tmp_path, parts, [1e6, 0.0])
    assert judged(written(found), graph).passed
    events = [event["event"] for event in found]
    assert events.index("swapped") == events.index("finish") + 1
    assert events.count("begin") == 2


# Of hosts -----------------------------------------------------------------------------------------------------------


def test_hosts_of_one_process_make_one_lawful_trace(tmp_path: Path) -> None:
    """Each rank an executor on a thread of its own, with a trace of its own."""
    serial = training_graph("lenet-digits", 4, "float32")
    graph = compose(serial, [Data(3)], [Location(rank) for rank in range(3)])
    worlds = local_worlds(3)

    def run_rank(rank: int) -> None:
        """One rank."""
        with TraceWriter(tmp_path / f"{rank}", times=True) as observer:
            with Hosts(graph, world=worlds[rank], observer=observer) as executor:
                for _ in range(3):
                    executor.run()

    ranks = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(3)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(120)
    merge_traces([tmp_path / f"{rank}" for rank in range(3)], [0.0] * 3, tmp_path / "whole")
    verdict = judged((tmp_path / "whole").read_bytes(), graph)
    assert verdict.passed, verdict.words
    assert (verdict.iterations, verdict.starts) == (3, 3 * len(graph.ops))


RANK = """
import sys, json
from purine_ref.conformance.tracing import TraceWriter
from purine_ref.executors import Hosts
from purine_ref.transports.zeromq import Joining, join
sys.path.insert(0, sys.argv[1])
from test_tracing_merging import two_ranks

world = join(Joining(int(sys.argv[2]), 2, sys.argv[3]))
with TraceWriter(sys.argv[4], times=True) as observer:
    with Hosts(two_ranks(swaps=True), world=world, observer=observer) as executor:
        for _ in range(3):
            executor.run()
print(json.dumps(world.offset(1)))
world.close()
"""


def test_hosts_of_several_processes_make_one_lawful_trace(tmp_path: Path, socket_folder: Path) -> None:
    """By the offset that they have estimated, over ZeroMQ."""
    address = f"ipc://{socket_folder / 'rank0'}"
    program = [sys.executable, "-P", "-c", RANK, str(Path(__file__).parent)]
    with ExitStack() as stack:
        ranks = []
        for rank in range(2):
            words = [*program, str(rank), address, str(tmp_path / f"{rank}.jsonl")]
            ranks.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
            stack.callback(ranks[-1].wait)
            stack.callback(ranks[-1].kill)
        offset = json.loads(ranks[0].communicate(timeout=120)[0])
        ranks[1].communicate(timeout=120)
    assert [rank.returncode for rank in ranks] == [0, 0]
    merge_traces([tmp_path / "0.jsonl", tmp_path / "1.jsonl"], [0.0, offset], tmp_path / "whole.jsonl")
    verdict = judged((tmp_path / "whole.jsonl").read_bytes(), two_ranks(swaps=True))
    assert verdict.passed, verdict.words
    assert abs(offset) < 1  # they read the same clock


# Not lawful, or none --------------------------------------------------------------------------------------------------


def test_merging_hides_no_fault(tmp_path: Path) -> None:
    """A rank that reads what it has not got yet does so in the merged trace too."""
    graph = two_ranks()
    parts = parted(graph, recorded(graph, 1))
    names = [what(event)[::2] for event in parts[1]]
    one, two = names.index(("end", "there")), names.index(("start", "z"))
    parts[1][one], parts[1][two] = parts[1][two], parts[1][one]
    verdict = judged(written(merged(tmp_path, parts)), graph)
    assert (verdict.verdict, verdict.rule, verdict.edge) == ("fail", "edges", ("there", "z"))


def test_a_copy_that_nobody_sends_is_refused(tmp_path: Path) -> None:
    graph = two_ranks()
    parts = parted(graph, recorded(graph, 1))
    silent = [event for event in parts[0] if event.get("op") != "there"]
    with pytest.raises(Refused, match=r"rank1\.jsonl, line 3: operator 'there' is received, and in no trace"):
        merged(tmp_path, [silent, parts[1]])
    assert not (tmp_path / "whole.jsonl").exists()
    assert {file.name for file in tmp_path.iterdir()} == {"rank0.jsonl", "rank1.jsonl"}


def test_traces_of_other_runs_are_refused(tmp_path: Path) -> None:
    graph = two_ranks()
    parts = parted(graph, recorded(graph, 1))
    later = [{**event, "iteration": 5} if "iteration" in event else event for event in parts[1]]
    with pytest.raises(Refused, match=r"rank1\.jsonl, line 2: run 5 begins, and in .*rank0\.jsonl run 0"):
        merged(tmp_path, [parts[0], later])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "line 2: not JSON"),
        (b"[]", "line 2: expected a JSON object, got list"),
        (b'{"event": "dance"}', "line 2: 'event': expected one of .*, got 'dance'"),
        (b'{"event": "end", "iteration": 0}', "line 2: 'end' outside of a run"),
        (b'{"event": "begin", "iteration": 0, "time": NaN}', "line 2: 'time': expected a number"),
        (b'{"event": "begin", "iteration": 0, "time": 1' + b"0" * 400 + b"}", "line 2: 'time': expected a number"),
        (b'{"event": "begin", "iteration": 0, "time": true}', "line 2: 'time': expected a number"),
        (b"[" * 60_000, "line 2: not JSON"),
        (b" " * 70_000, "line 2: longer than 65536 bytes"),
    ],
)
def test_what_is_no_trace_is_refused(line: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_bytes(written([]) + line + b"\n")
    with pytest.raises(Refused, match=words):
        merge_traces([file], [0.0], tmp_path / "whole.jsonl")
    file.write_bytes(b'{"format": "other/1"}\n')
    with pytest.raises(Refused, match=r"line 1: expected .*purine-trace/1"):
        merge_traces([file], [0.0], tmp_path / "whole.jsonl")


def test_there_is_an_offset_for_each_trace(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one offset for each of 2 traces, got 1"):
        merge_traces(["a", "b"], [0.0], tmp_path / "whole.jsonl")


def test_one_trace_alone_stays_as_it_was(tmp_path: Path) -> None:
    graph = Graph("alone")
    graph.apply(Scale(2.0), [graph.blob("x", (2,), "float64")], "y")
    text = io.StringIO()
    with TraceWriter(text, times=True) as observer, Serial(graph, observer=observer) as executor:
        executor.feed({"x": np.zeros(2)})
        executor.run()
    events = read(text.getvalue())
    assert [{k: v for k, v in event.items() if k != "worker"} for event in merged(tmp_path, [events])] == [
        {k: v for k, v in event.items() if k != "worker"} for event in events
    ]
    assert json.loads(written(events).splitlines()[1])["time"] > 0
