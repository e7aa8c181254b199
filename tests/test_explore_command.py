"""`purine-ref verify --explore`: what it counts, runs and says, of schedules that agree and of some that do not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from purine_ref import cli
from purine_ref.cli.exploring import EXPLORED
from purine_ref.conformance import Driven, parse_scheme, small
from purine_ref.conformance.schedules import decode
from purine_ref.conformance.session import Session
from purine_ref.conformance.small import SMALL, explore_scheme, small_workload
from purine_ref.errors import Refused, ResultDiffers
from purine_ref.graph import Graph


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit code, the output and the errors of a call in this process."""
    code = cli.run(["verify", "--explore", *arguments])
    return code, *capsys.readouterr()


def test_small_networks_are_explored_completely_under_every_scheme(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = called(capsys, "--json", "-")
    report = json.loads(out)
    assert (code, err, report["schema"], report["verdict"]) == (0, "", "purine-ref/verify/1", "pass")
    rows = report["explorations"]
    assert [(row["model"], row["scheme"]) for row in rows] == [(name, text) for name in SMALL for text in EXPLORED]
    assert report["executed"] == len(rows)
    for row in rows:
        assert (row["complete"], row["verdict"], row["disagreement"]) == (True, "pass", None)
        assert row["schedules"] >= row["runs"] >= 1
        assert (row["runs"] > 1) == (row["conflicts"] > 0)
    assert max(row["runs"] for row in rows) > 40


def test_it_says_how_many_there_are_how_many_were_run_and_that_all_agree(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = called(capsys, "--scheme", "serial")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["linear", "serial", "10", "220", "0", "1", "all", "pass"] in lines
    assert ["tied", "serial", "11", "116", "1", "2", "all", "pass"] in lines
    assert out.splitlines()[-2:] == ["all: every schedule is equivalent to one that was run.", "verdict: pass"]


def test_of_a_model_with_too_many_schedules_a_sample_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--model", "mlp-digits", "--batch", "7", "--steps", "1", "--scheme", "pipeline:2x3"]
    code, out, _ = called(capsys, *asked)
    assert code == 2
    (row,) = [line.split() for line in out.splitlines() if line.split()[:1] == ["mlp-digits"]]
    assert row[-4:] == ["20", "a", "sample", "unknown"]
    assert out.splitlines()[-2] == "a sample: drawn by random priorities; that they agree is no proof."


def late(graph: Graph, seed: int, how: Driven) -> Session:
    """A session whose results depend on the schedule."""
    drive = parse_scheme("data:2").drive
    assert drive is not None
    session = drive(graph, seed, how)
    feed = session.feed
    odd = 0 if how.schedule is None else sum(decode(how.schedule)) % 2
    session.feed = lambda arrays: feed({**arrays, "x": arrays["x"] + np.float32(odd)})  # type: ignore[method-assign]
    return session


def test_schedules_that_disagree_fail_and_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = small._runner

    def driven_late(workload: Any, scheme: Any, seed: int) -> Any:
        """The runner of the scheme, driven wrongly."""
        return found(workload, replace(scheme, drive=late), seed)

    monkeypatch.setattr(small, "_runner", driven_late)
    code, out, _ = called(capsys, "--scheme", "data:2", "--json", "-")
    report = json.loads(out)
    assert (code, report["verdict"]) == (1, "fail")
    row = report["explorations"][0]
    assert row["disagreement"]["one"] != row["disagreement"]["other"]
    assert row["disagreement"]["blob"] == "x[0:3,:]"
    code, out, _ = called(capsys, "--scheme", "data:2")
    assert code == 1
    told = f"blob {row['disagreement']['blob']!r} differs between schedules {row['disagreement']['one']} and "
    assert f"data:2 linear float32: {row['operators']} operators, " in out
    assert told in out


def test_a_fault_beside_the_values_is_raised() -> None:
    def drive(graph: Graph, seed: int, how: Driven) -> Session:
        """A session that tells of a race."""
        opened = late(graph, seed, Driven())
        return Session(opened.executor, graph, faults=lambda: ["a race"])

    scheme = replace(parse_scheme("data:2"), drive=drive)
    with pytest.raises(ResultDiffers, match=r"^scheme 'data:2', schedule s1:17:.*: a race$"):
        explore_scheme(small_workload("linear", "float64", 1, 0), scheme, 0)


def test_a_scheme_that_stands_alone_is_refused() -> None:
    scheme = replace(parse_scheme("serial"), drive=None)
    with pytest.raises(Refused, match=r"^scheme 'serial' stands alone, and takes no schedule$"):
        explore_scheme(small_workload("linear", "float64", 1, 0), scheme, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--exact"], "--explore goes with none of --record, --replay and --exact"),
        (["--record", "record.json"], "--explore goes with none of"),
        (["--model", "mlp-digits", "--batch", "2000"], "there are 1501 training images, got 2000"),
    ],
)
def test_what_does_not_go_together_is_wrong_usage(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = called(capsys, *arguments)
    assert (code, out) == (64, "")
    assert message in err


def test_the_seed_reaches_the_values() -> None:
    one, again, other = (small_workload("tied", "float32", 2, seed).feeds(1)["x"] for seed in (3, 3, 4))
    assert (one == again).all()
    assert not (one == other).any()
