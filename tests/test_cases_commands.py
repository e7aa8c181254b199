"""`purine-ref golden`, `run` and `diff`: what they print, write and exit with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from purine_ref import cli
from purine_ref.conformance.cases import SUITES, golden_makers, read_case, run_case, write_case, write_results

NAMES = ("graphs/fan-in/00", "operators/Linear/01", "parallel/perceptron-data-3-tree/01")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three cases; the last one is over devices."""
    folder = tmp_path_factory.mktemp("cases")
    for name in NAMES:
        write_case(golden_makers()[name](), folder / name)
    return folder


def called(*arguments: object) -> int:
    return cli.run([str(argument) for argument in arguments])


def test_run_passes_and_writes_what_scripts_read(cases: Path, tmp_path: Path, capsys: Any) -> None:
    assert called("run", *(cases / name for name in NAMES), "--json", tmp_path / "run.json") == 0
    assert "pass: 3 cases" in capsys.readouterr().out
    said = json.loads((tmp_path / "run.json").read_text())
    assert (said["schema"], said["verdict"], said["skipped"]) == ("purine-ref/run/1", "pass", 0)
    assert [case["case"] for case in said["cases"]] == list(NAMES)
    assert said["executed"] == sum(case["compared"] for case in said["cases"]) > 20


@pytest.mark.parametrize("executor", ["threads", "ranks"])
def test_run_on_other_executors(cases: Path, executor: str, capsys: Any) -> None:
    assert called("run", cases / NAMES[0], cases / NAMES[2], "--executor", executor, "--threads", 3) == 0
    skipped = 1 if executor == "ranks" else 0
    assert f"{skipped} skipped" in capsys.readouterr().out


def test_a_run_that_ran_nothing_is_no_pass(cases: Path) -> None:
    assert called("run", cases / NAMES[2], "--executor", "ranks") == 2


def test_run_names_the_first_wrong_tensor(cases: Path, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "case"
    shutil.copytree(cases / NAMES[1], folder)
    [entry] = read_case(folder).expected
    wrong = np.load(folder / entry.file)
    wrong[2, 1] += 0.5
    np.save(folder / entry.file, wrong)
    assert called("run", folder, "--json", tmp_path / "run.json") == 1
    assert "first: iteration 0, blob 'y', element [2, 1]: got" in capsys.readouterr().out
    [finding] = json.loads((tmp_path / "run.json").read_text())["cases"][0]["findings"]
    assert (finding["blob"], finding["index"], finding["want"]) == ("y", [2, 1], float(wrong[2, 1]))
    assert 0 < finding["bound"] < 1e-5


def test_results_are_written_and_compared(cases: Path, tmp_path: Path, capsys: Any) -> None:
    case = cases / NAMES[1]
    assert called("run", case, "--out", tmp_path / "out") == 0
    assert called("diff", case, tmp_path / "out", "--json", "-") == 0
    read = read_case(case)
    results = run_case(read)
    results[0, "y"][0, 0] *= 2
    write_results(read, results, tmp_path / "wrong")
    capsys.readouterr()
    assert called("diff", case, tmp_path / "wrong") == 1
    assert f"{NAMES[1]}: first: iteration 0, blob 'y', element [0, 0]: got" in capsys.readouterr().out


def test_the_trace_of_a_run_is_written_and_legal(cases: Path, tmp_path: Path) -> None:
    case, trace = cases / NAMES[1], tmp_path / "trace.jsonl"
    for executor in ("serial", "threads", "ranks"):
        assert called("run", case, "--trace", trace, "--executor", executor) == 0
        assert called("trace", trace, "--graph", case) == 0
        trace.unlink()


def test_cases_are_compared_with_cases(cases: Path, tmp_path: Path, capsys: Any) -> None:
    assert called("diff", cases / NAMES[1], cases / NAMES[1]) == 0
    write_case(golden_makers()["operators/Linear/02"](), tmp_path / "other")
    assert called("diff", cases / NAMES[1], tmp_path / "other") == 1
    assert "expected float32[5, 4], got float32[3, 1]" in capsys.readouterr().out


def test_results_that_are_not_there_are_a_difference(cases: Path, tmp_path: Path, capsys: Any) -> None:
    assert called("diff", cases / NAMES[1], tmp_path) == 1
    assert "got none" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["run", "diff"])
def test_what_is_no_case_is_refused(command: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "case.json").write_text("{}")
    assert called(command, tmp_path, *([tmp_path] if command == "diff" else [])) == 2
    assert f"error: {tmp_path}: format: expected 'purine-case/1'" in capsys.readouterr().err


def test_usage(cases: Path, tmp_path: Path) -> None:
    assert called("run") == 64
    assert called("run", tmp_path / "nothing") == 64
    assert called("run", cases / NAMES[0], cases / NAMES[1], "--out", tmp_path / "out") == 64
    assert called("run", cases / NAMES[0], cases / NAMES[1], "--trace", tmp_path / "trace.jsonl") == 64
    assert called("golden", tmp_path, "--suite", "none") == 64


def test_golden_writes_a_folder_that_run_passes(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    few = dict(list(SUITES["graphs"]().items())[:5])
    monkeypatch.setitem(SUITES, "graphs", lambda: few)  # type: ignore[misc]
    assert called("golden", tmp_path / "cases", "--suite", "graphs", "--json", tmp_path / "golden.json") == 0
    said = json.loads((tmp_path / "golden.json").read_text())
    assert (said["schema"], said["verdict"], said["executed"]) == ("purine-ref/golden/1", "pass", 5)
    assert said["counts"] == {"graphs": 5}
    assert called("run", tmp_path / "cases") == 0
    assert "pass: 5 cases" in capsys.readouterr().out
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    assert called("golden", tmp_path / "mine", "--suite", "graphs") == 2
    assert (tmp_path / "mine" / "file").exists()
