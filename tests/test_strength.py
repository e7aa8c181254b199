"""Planted faults: each can be planted, the checks find them, and the command says which finds which."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from purine_ref import cli
from purine_ref.conformance.cases.golden import golden_makers
from purine_ref.conformance.driving import scratch
from purine_ref.conformance.strength import DISPATCHERS, OPERATORS, Fault, Measure, Score, port_folder
from purine_ref.errors import Refused

FAULTS = {fault.name: fault for fault in OPERATORS + DISPATCHERS}

GOLDEN = ("operators/MaxPool2d/", "operators/ReLU/", "operators/Constant/", "graphs/split-views/", "training/sgd/00")
"""How the names of golden cases begin that the quick tests use."""

FOUND = {
    "relu-nan": {"golden": True, "random": False},
    "pool-padding-wins": {"golden": True},
    "pool-ties-last": {"golden": True},
    "constant-through-double": {"golden": True, "random": False},
    "conv-strides-swapped": {"random": True},
    "sgd-rate-outside": {"golden": True, "random": True},
    "reversed-order": {"repeat": True, "trace": False},
    "last-wins": {"random": True, "trace": True},
    "stale-feed": {"golden": True},
    "pairs-silent": {"golden": False, "random": False, "repeat": False, "trace": True},
    "early-views": {"trace": True},
}
"""Faults, and what of them must be found or cannot be, with few cases."""


def some_golden() -> Mapping[str, object]:
    """The golden cases of the quick tests."""
    return {name: make for name, make in golden_makers().items() if name.startswith(GOLDEN)}


@pytest.fixture(scope="module")
def measure() -> Iterator[Measure]:
    """The quick measure."""
    with scratch() as folder:
        yield Measure(port_folder(), Path(folder), some_golden().items(), examples=16)  # type: ignore[arg-type]


def test_there_are_enough_faults_and_no_two_are_one() -> None:
    assert len(OPERATORS) >= 40
    assert len(DISPATCHERS) >= 25
    assert len(FAULTS) == len(OPERATORS) + len(DISPATCHERS)
    assert len({(fault.file, fault.edits) for fault in FAULTS.values()}) == len(FAULTS)
    assert all(fault.operations for fault in OPERATORS)
    assert not any(fault.operations for fault in DISPATCHERS)


def test_every_fault_can_be_planted(tmp_path: Path) -> None:
    for fault in FAULTS.values():
        program = fault.plant(port_folder(), tmp_path / fault.name)
        wrong, right = (program.parent / fault.file).read_text("utf-8"), (port_folder() / fault.file).read_text("utf-8")
        assert wrong != right
        compile(wrong, fault.file, "exec")
        assert program.name == "port.py"


def test_a_text_that_is_not_there_just_once_is_refused(tmp_path: Path) -> None:
    for right, count in (("no such text", "0 times"), ("def ", "times")):
        with pytest.raises(Refused, match=f"fault 'x': expected .* once .* {count}"):
            Fault("x", "", "memory.py", ((right, ""),)).plant(port_folder(), tmp_path / count)


@pytest.mark.parametrize("name", FOUND)
def test_faults_are_found_by_what_can_find_them(name: str, measure: Measure) -> None:
    assert measure.problem == ""
    score = measure.score(FAULTS[name])
    assert score.killed
    assert score.operators is not None
    for column, found in FOUND[name].items():
        assert (score.found[column] is not None) == found, score.found


def test_a_port_that_is_wrong_from_the_start_is_a_problem(tmp_path: Path) -> None:
    program = FAULTS["last-wins"].plant(port_folder(), tmp_path / "port")
    assert "differs" in Measure(program.parent, tmp_path, (), examples=4).problem


def test_a_fault_that_nothing_finds_is_alive() -> None:
    fault = FAULTS["relu-nan"]
    assert not Score(fault, {"golden": None, "random": None}).killed
    assert Score(fault, {"golden": None, "random": 3}).killed


def test_the_command_prints_and_writes_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = cli.run(["golden", str(tmp_path / "golden"), "--suite", "training"])
    assert made == 0
    capsys.readouterr()
    call = ["check", "--strength", "--golden", str(tmp_path / "golden"), "--examples", "3"]
    assert cli.run([*call, "--only", "last-wins", "--json", str(tmp_path / "found.json")]) == 0
    out = capsys.readouterr().out
    assert "last-wins" in out
    assert "killed: 1 of 1" in out
    found = json.loads((tmp_path / "found.json").read_text("utf-8"))
    assert (found["schema"], found["verdict"], found["killed"], found["survivors"]) == (
        *("purine-ref/strength/1", "pass", 1, []),
    )
    assert cli.run([*call, "--only", "relu-nan"]) == 1
    assert "alive: relu-nan" in capsys.readouterr().out


def test_what_cannot_be_measured_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--strength", "--only", "no-such"], "none of the planted faults"),
        (["--strength", "--port", "x"], "leave --port out"),
        ([], "--port is missing"),
    ):
        assert cli.run(["check", *arguments]) == 64
        assert words in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_all_faults_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["check", "--strength"]) == 0, capsys.readouterr().out
