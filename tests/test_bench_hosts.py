"""`bench scaling --hosts`, at a tiny size, and what it reads from merged traces. No figure is judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from purine_ref.benchmarks import hosts
from purine_ref.benchmarks.contenders import Spec
from purine_ref.benchmarks.hiding import predicted, steps_of
from purine_ref.benchmarks.namespaces import NoNamespaces, two_hosts
from purine_ref.benchmarks.steps import divided, urgency
from purine_ref.benchmarks.team import Team
from purine_ref.cli import run as run_command
from purine_ref.graph import Graph
from purine_ref.ops import Copy, Scale
from purine_ref.tensor import Location
from traces import written

LENET = Spec("purine", "lenet-digits", 4, 2, "hosts")
HOSTS = "purine numpy hosts"


def require_namespaces() -> None:
    """Skip, with the reason, where there can be none."""
    try:
        with two_hosts():
            pass
    except NoNamespaces as error:
        pytest.skip(str(error))


# The command ----------------------------------------------------------------------------------------------------------


def scaling(folder: Path, *more: str) -> tuple[dict[tuple[str, int, str], dict[str, Any]], list[str]]:
    """The rows of a run with two hosts, by name, workers and metric; and its notes."""
    target = folder / "scaling.json"
    size = ["--model", "lenet", "--batch", "4", "--runs", "1", "--hosts", "2"]
    assert run_command(["bench", "scaling", *size, *more, "--json", str(target)]) == 0
    report = json.loads(target.read_text("utf-8"))
    assert (report["verdict"], report["executed"]) == ("pass", len(report["rows"]))
    return {(row["name"], row["workers"], row["metric"]): row for row in report["rows"]}, report["notes"]


def test_hosts_are_measured_beside_one_worker_and_ranks_in_one_process(tmp_path: Path) -> None:
    rows, notes = scaling(tmp_path)
    timed = {(name, workers, metric)
             for name, workers in (("purine numpy", 1), ("purine numpy", 2), (HOSTS, 2))
             for metric in ("throughput", "core time")}  # fmt: skip
    gains = {(f"{name} x 2 / 1", 2, metric)
             for name in ("purine numpy", HOSTS) for metric in ("throughput", "efficiency")}  # fmt: skip
    traced = {(HOSTS, 2, metric)
              for metric in ("compute", "transfer", "exposed", "hidden transfers", "sent", "counted")}  # fmt: skip
    assert rows.keys() == timed | gains | traced
    assert rows[HOSTS, 2, "sent"]["median"] == rows[HOSTS, 2, "counted"]["median"] > 0
    assert 0 <= rows[HOSTS, 2, "hidden transfers"]["median"] <= 1
    assert rows[HOSTS, 2, "exposed"]["median"] <= rows[HOSTS, 2, "transfer"]["median"]
    assert any(note.startswith(f"lenet, {HOSTS}: ranks wait for ") for note in notes)


def test_what_goes_between_hosts_is_limited_by_rates(tmp_path: Path) -> None:
    require_namespaces()
    rows, notes = scaling(tmp_path, "--rate", "0.5,20", "--reduction", "tree")
    assert {name for name, _, metric in rows if metric == "hidden transfers"} == {HOSTS, f"{HOSTS} 0.5", f"{HOSTS} 20"}
    fast, slow = (rows[f"{HOSTS} {rate}", 2, "transfer"]["median"] for rate in ("0.5", "20"))
    assert slow == pytest.approx(40 * fast)
    assert all(0 <= rows[f"{HOSTS} {rate}", 2, "predicted"]["median"] <= 1 for rate in ("0.5", "20"))
    assert any("MB/s: ranks wait for" in note for note in notes)
    assert any("gradients are added by tree" in note for note in notes)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--hosts", "3", "--rate", "0.5"], "limited for two of them: say --hosts 2"),
        (["--rate", "0.5"], "limited for two of them: say --hosts 2"),
        (["--rate", "fast", "--hosts", "2"], "expected numbers from 0.01 to 100, joined by commas; got 'fast'"),
        (["--rate", "0.5,0", "--hosts", "2"], "expected numbers from 0.01 to 100, joined by commas; got '0.5,0'"),
        (["--hosts", "1"], "1 is not in the range"),
    ],
)
def test_wrong_usage_is_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bench", "scaling", *arguments]) == 64
    assert words in " ".join(capsys.readouterr().err.split())


# The ranks ------------------------------------------------------------------------------------------------------------


class Stand:
    """A rank that answers with what it was made with."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def tell(self, what: str) -> None:
        """Hear it."""

    def answer(self, what: str) -> object:
        """The answer."""
        return self._answer


def test_ranks_have_one_answer_or_none() -> None:
    agreed, odd = ([Stand(answer) for answer in answers] for answers in ([[1.5], [1.5]], [[1.5], [1.25]]))
    assert Team(LENET, agreed).ask("losses") == [1.5]  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"ranks of lenet-digits answer losses differently: \[\[1.5\], \[1.25\]\]"):
        Team(LENET, odd).ask("losses")  # type: ignore[arg-type]
    times = [Stand({"wall": 2.0, "processor": 1.0}), Stand({"wall": 3.0, "processor": 2.0})]
    assert Team(LENET, times).ask("time") == {"wall": 3.0, "processor": 3.0}  # type: ignore[arg-type]


def test_a_trace_that_is_not_lawful_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "judge_trace", lambda *_: Unlawful())
    with pytest.raises(hosts.ResultDiffers, match="on 2 hosts: planted"):
        hosts.run(["lenet"], 4, "numpy", hosts.Between(2), 1)


class Unlawful:
    """A verdict."""

    passed = False
    words = "planted"


# Hiding ---------------------------------------------------------------------------------------------------------------


def trace_of(*events: tuple[str, str, int, float]) -> bytes:
    """A trace of one run: events, operators, ranks and times."""
    lines: list[dict[str, Any]] = [{"event": "begin", "time": 0.0}]
    lines += [{"event": event, "op": op, "location": {"rank": rank, "device": -1}, "time": at}
              for event, op, rank, at in events]  # fmt: skip
    lines.append({"event": "finish", "time": 100.0})
    return written([{"seq": seq, "iteration": 0, **line} for seq, line in enumerate(lines)])


def test_what_is_hidden_is_what_the_receiver_computes_meanwhile(tmp_path: Path) -> None:
    """A transfer from 2 to 10; the receiver computes from 0 to 4, from 3 to 5 and from 8 to 9, the sender always."""
    (tmp_path / "trace").write_bytes(trace_of(
        ("start", "a", 1, 0.0), ("start", "sender", 0, 0.0), ("start", "copy", 0, 2.0), ("sent", "copy", 0, 2.5),
        ("start", "b", 1, 3.0), ("end", "a", 1, 4.0), ("end", "b", 1, 5.0), ("start", "c", 1, 8.0),
        ("end", "c", 1, 9.0), ("received", "copy", 1, 10.0), ("end", "copy", 1, 10.5), ("end", "sender", 0, 20.0),
    ))  # fmt: skip
    [step] = steps_of(tmp_path / "trace")
    assert step.transfer() == 8.0
    assert step.exposed() == 3.0 + 1.0
    assert step.compute() == (20.0 + 6.0) / 2
    assert step.blame() == {}  # the receiver never went on because it came


def test_what_ranks_wait_for_is_what_came_last_before_they_went_on(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(trace_of(
        ("start", "early", 0, 0.0), ("start", "a", 1, 0.0), ("end", "a", 1, 1.0), ("received", "early", 1, 2.0),
        ("start", "late", 0, 3.0), ("received", "late", 1, 7.0), ("end", "late", 1, 7.5), ("end", "early", 1, 2.5),
        ("start", "b", 1, 7.5), ("end", "b", 1, 8.0), ("start", "other", 0, 4.0), ("end", "other", 0, 5.0),
    ))  # fmt: skip
    [step] = steps_of(tmp_path / "trace")
    assert step.transfer() == 6.0
    assert step.exposed() == 1.0 + 4.0
    assert step.blame() == {"late": 4.0}


def test_a_simulated_run_says_what_could_be_hidden() -> None:
    """Rank 0 makes two blobs in a second each; one takes two seconds to rank 1, the other four, after it."""
    graph = Graph("simulated")
    for name, size in (("small", 1), ("large", 2)):
        (y,) = graph.apply(Scale(2.0), [graph.blob(f"x {name}", (size,), "float64")], name)
        (there,) = graph.apply(Copy(Location(1)), [y], f"{name} there")
        graph.apply(Scale(2.0), [there], f"use {name}", location=Location(1))
    took = {"small": 1.0, "large": 1.0, "use small": 3.0, "use large": 0.5}
    step = predicted(graph, took, [0.0] * len(graph.ops), rate=4.0)
    assert step.computing == {0: [(0.0, 1.0), (1.0, 2.0)], 1: [(3.0, 6.0), (7.0, 7.5)]}
    assert step.underway == {1: [(1.0, 3.0), (3.0, 7.0)]}
    assert (step.transfer(), step.exposed()) == (6.0, 3.0)
    assert step.blame() == {"small there": 2.0, "large there": 1.0}


def test_gradients_come_before_the_layer_below_and_what_sends_them_before_all() -> None:
    graph, _, _ = divided(LENET, "float32")
    kinds: dict[float, set[str]] = {}
    for op, rank in zip(graph.ops, urgency(graph), strict=True):
        kinds.setdefault(rank, set()).add(op.operation.name)
    assert kinds[0.0] == {"Copy", "Sum"}
    gradients = {"BiasGradient", "BiasReLUGradient", "LinearWeightGradient", "Conv2dWeightGradient"}
    assert kinds[1.0] == gradients | {"SoftmaxCrossEntropy", "TopKAccuracy"}
    assert kinds[2.0] >= {"Conv2d", "Conv2dDataGradient", "LinearDataGradient"}
