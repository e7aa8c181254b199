"""`purine-ref check`: what it runs, prints, writes and returns, for ports that are right, wrong, mute or unable."""

from __future__ import annotations

import json
import shlex
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from purine_ref import cli
from purine_ref.conformance.cases import make_case, read_case, write_case
from purine_ref.graph import Graph
from purine_ref.ops import Identity, ReLU

HERE = Path(__file__).parent
RIGHT = f"{sys.executable} -P -m purine_ref.conformance.driving.reference"
WRONG = f"{sys.executable} {HERE / 'wrong_port.py'}"
FEW = ("--examples", "3")


def bad(how: str) -> str:
    """A port that misbehaves."""
    return f"{sys.executable} {HERE / 'bad_port.py'} {how}"


def called(capsys: pytest.CaptureFixture[str], port: str, *arguments: str) -> tuple[int, str, str]:
    """The exit code, the output and the errors of a call in this process."""
    code = cli.run(["check", "--port", port, *arguments])
    return code, *capsys.readouterr()


def report(capsys: pytest.CaptureFixture[str], port: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the object for scripts."""
    code, out, err = called(capsys, port, "--json", "-", *arguments)
    assert err == ""
    return code, json.loads(out)


def test_a_right_port_passes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    only = ("--only", "operators/ReLU/*", "--only", "random", "--only", "schedules", "--only", "repeat")
    code, found = report(capsys, RIGHT, *FEW, *only, "--junit", str(tmp_path / "junit.xml"))
    assert (code, found["schema"], found["verdict"], found["failures"]) == (0, "purine-ref/check/1", "pass", [])
    assert [row["check"] for row in found["checks"]] == ["golden", "random", "schedules", "repeat"]
    assert found["checks"][0]["executed"] >= 8
    assert found["executed"] == sum(row["executed"] for row in found["checks"])
    assert found["port"]["name"] == "purine_ref"
    assert "Gaussian" in found["never_run"]
    suites = ET.parse(tmp_path / "junit.xml").getroot()
    assert sum(int(suite.get("tests", "")) for suite in suites) == found["executed"] + found["skipped"]


def test_a_wrong_port_fails_and_its_failure_can_be_run_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    keep = tmp_path / "kept"
    code, out, _ = called(capsys, WRONG, "--only", "operators/ReLU/*", "--keep", str(keep), "--seed", "5")
    assert code == 1
    assert out.splitlines()[-1] == "verdict: fail"
    folder = keep / "golden-1"
    case = read_case(folder)
    assert [op.operation for op in case.graph.ops] == [ReLU()]
    commands = [line.partition(":")[2].strip() for line in out.splitlines() if line.startswith("the ")]
    assert commands == [shlex.join(["purine-ref", "check", "--port", WRONG, "--case", str(folder)]),
                        f"purine-ref run {folder}"]  # fmt: skip
    assert "1 operator, 1 iteration" in out
    assert "got 1.0, want 0.0; must be equal" in out
    assert [cli.run(shlex.split(command)[1:]) for command in commands] == [1, 0]
    capsys.readouterr()
    code, found = report(capsys, RIGHT, "--case", str(folder))
    assert (code, found["executed"]) == (0, 1)


def test_a_failure_has_its_facts_for_scripts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, found = report(capsys, WRONG, "--only", "operators/ReLU/0*", "--keep", str(tmp_path))
    assert (code, found["verdict"]) == (1, "fail")
    first = found["failures"][0]
    assert (first["check"], first["kind"]) == ("golden", "differs")
    smallest = first["smallest"]
    assert (smallest["operators"], smallest["operations"], smallest["bound"]) == (1, ["ReLU"], 0.0)
    assert (abs(smallest["got"]), smallest["want"], smallest["iteration"]) == (1.0, 0.0, 0)
    assert Path(smallest["folder"]).parent == tmp_path


def test_the_one_shot_form_is_checked_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    graph = Graph("one")
    graph.connect([graph.blob("x", (2,), "float64")], Identity(), [graph.blob("y", (2,), "float64")])
    for number in range(2):
        case = make_case(graph, name=f"{number}", about="", feeds=[{"x": np.ones(2)}])
        write_case(case, tmp_path / f"{number}")
    cases = [f"--case={tmp_path / '0'}", f"--case={tmp_path / '1'}"]
    code, found = report(capsys, bad("3"), "--one-shot", *cases)
    assert (code, found["verdict"], found["unsupported"]) == (2, "unknown", 2)
    assert found["not_run"] == [{"outcome": "unsupported", "reason": "the run: unsupported", "cases": 2}]
    code, found = report(capsys, bad("1"), "--one-shot", *cases)
    assert (code, [each["kind"] for each in found["failures"]]) == (1, ["crashed"] * 2)


@pytest.mark.parametrize(
    ("how", "words"),
    [("gone", "crashed: hello: the port ended with exit code 3"), ("protocol", "garbage"), ("operations", "garbage")],
)
def test_a_port_that_does_not_say_what_it_can_do_is_unknown(
    how: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = called(capsys, bad(how))
    assert (code, err) == (2, "")
    assert words in out
    assert out.splitlines()[-1] == "verdict: unknown"


def test_a_port_that_hangs_is_given_up_in_time(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, found = report(capsys, bad("mute"), "--reply-time", "0.2", "--keep", str(tmp_path))
    assert (code, found["executed"]) == (2, 0)
    assert "no reply in 0.2 s" in found["problem"]


def test_a_port_that_can_do_nothing_does_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = report(capsys, bad("good"), "--only", "operators/ReLU/*")
    assert (code, found["verdict"], found["executed"]) == (2, "unknown", 0)
    assert found["unsupported"] >= 8
    assert found["not_run"][0] == {"outcome": "unsupported", "reason": "operations ReLU", "cases": 13}
    assert sum(row["cases"] for row in found["not_run"]) == found["unsupported"]


def test_the_floor_of_cases_that_must_run(capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--only", "random", *FEW)
    assert [report(capsys, RIGHT, *few, "--min-executed", floor)[0] for floor in ("3", "4")] == [0, 2]


def test_a_port_that_does_not_end_well_fails(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = report(capsys, bad("stop-code"), "--only", "operators/ReLU/00")
    assert (code, found["executed"]) == (1, 0)
    assert [(each["check"], each["kind"]) for each in found["failures"]] == [("stop", "crashed")]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--port", RIGHT, "--examples", "-1"],
        ["--port", RIGHT, "--time", "0"],
        ["--port", RIGHT, "--case", "/no/such/folder"],
        ["--port", RIGHT, "--junit", "/no/such/folder/junit.xml"],
    ],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["check", *arguments]) == 64
    assert "Usage: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "/no/such/port"], "cannot be started"),
        (["--port", "'"], "no command"),
        (["--port", "tcp://nowhere", "--one-shot"], "needs a command"),
        (["--port", RIGHT, "--case", str(HERE)], "case.json"),
    ],
)
def test_what_cannot_be_run(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["check", *arguments]) == 2
    out, err = capsys.readouterr()
    assert words in out + err
