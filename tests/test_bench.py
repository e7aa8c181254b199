"""The benchmark scripts at tiny sizes: they print and write a row for every case. No figure is judged.

The scripts are run as a reader of `bench/RESULTS.md` runs them, each in a process of its own.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from purine_ref.benchmarks.dispatch import NO_OP
from purine_ref.cli import run as run_command

ROOT = Path(__file__).parent.parent
SCRIPTS = ("dispatch", "graph")
CASES = ("chain", "layers of 100", "random")
METRICS = ("build + prepare", "with the collector", "build", "prepare", "bind", "run", "free")
WITHOUT_DASK = importlib.util.find_spec("dask") is None


def command(script: str, *arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "bench" / f"{script}.py"), *arguments]


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(script, *arguments), capture_output=True, text=True, timeout=120, check=False)


def rows(folder: Path, script: str, *arguments: str) -> tuple[list[dict[str, Any]], str]:
    """The rows that the script writes, and what it prints, after checking what holds for every script."""
    target = folder / "rows.json"
    done = run(script, "--json", str(target), *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(target.read_text("utf-8"))
    assert report["schema"] == "purine-ref/bench/1"
    assert report["machine"].keys() == {"processor", "python", "numpy", "loops", "system"}
    for row in report["rows"]:
        assert 0 < row["min"] <= row["median"] <= row["max"]
    return report["rows"], done.stdout


def test_dispatch_has_a_row_for_every_contestant_and_case(tmp_path: Path) -> None:
    found, printed = rows(tmp_path, "dispatch", "--operators", "230", "--dask-operators", "30", "--runs", "2")
    alone = ("counters", NO_OP, "readiness", "graphlib", "serial", "threaded")
    ours = [*((name, 1) for name in alone), ("threaded", 2)]
    dask = [] if WITHOUT_DASK else [("dask.threaded", 1), ("dask.threaded", 2)]
    ratios = [("graphlib / readiness", 1), ("graphlib / serial", 1)]
    ratios += [(f"{name} / threaded", workers) for name, workers in dask]
    measured = [(*contestant, metric) for contestant in [*ours, *dask] for metric in ("processor", "wall")]
    expected = [(case, *one) for case in CASES for one in [*measured, *((*ratio, "processor") for ratio in ratios)]]
    assert [(row["case"], row["name"], row["workers"], row["metric"]) for row in found] == expected
    for row in found:
        assert row["unit"] == ("x" if " / " in row["name"] else "ns")
        assert row["items"] == (30 if row["name"].startswith("dask") else 230)
        assert row["runs"] == 2
    for word in [*CASES, *(name for name, _ in [*ours, *dask, *ratios])]:
        assert word in printed
    assert ("dask is not installed" in printed) == WITHOUT_DASK
    assert ("scaled down to 30 operators" in printed) == (not WITHOUT_DASK)


def test_dispatch_leaves_dask_out_where_it_is_not_wanted(tmp_path: Path) -> None:
    found, _ = rows(tmp_path, "dispatch", "--operators", "3", "--dask-operators", "0", "--runs", "1")
    assert [row["name"] for row in found if "dask" in row["name"]] == []
    assert len(found) == (2 * 7 + 2) * len(CASES)


def test_graph_has_a_row_for_every_size_metric_and_case(tmp_path: Path) -> None:
    found, printed = rows(tmp_path, "graph", "--operators", "120", "--runs", "2")
    sizes = [("12 operators", 24), ("36 operators", 72), ("120 operators", 240), ("120 / 12", 240)]
    expected = [(case, *size, metric) for case in CASES[:2] for size in sizes for metric in METRICS]
    assert [(row["case"], row["name"], row["items"], row["metric"]) for row in found] == expected
    for word in [*CASES[:2], *METRICS, *(name for name, _ in sizes)]:
        assert word in printed


def test_the_ratios_are_those_of_the_rounds(tmp_path: Path) -> None:
    found, _ = rows(tmp_path, "dispatch", "--operators", "50", "--dask-operators", "0", "--runs", "1")
    chain = {row["name"]: row["median"] for row in found if (row["case"], row["metric"]) == ("chain", "processor")}
    assert chain["graphlib / readiness"] == chain["graphlib"] / chain["readiness"]


def test_the_command_measures_the_same_and_writes_what_scripts_read(tmp_path: Path) -> None:
    target = tmp_path / "dispatch.json"
    sizes = ["--operators", "40", "--dask-operators", "0", "--runs", "2"]
    code = run_command(["bench", "dispatch", *sizes, "--seed", "3", "--json", str(target)])
    report = json.loads(target.read_text("utf-8"))
    assert (code, report["schema"], report["verdict"], report["seed"]) == (0, "purine-ref/bench/1", "pass", 3)
    assert (report["executed"], report["skipped"]) == (len(report["rows"]), 0)
    assert report["machine"]["python"]
    promised = {"name", "case", "workers", "metric", "unit", "median", "min", "max", "runs"}
    assert all(promised <= row.keys() for row in report["rows"])
    assert {row["case"] for row in report["rows"]} == set(CASES)
    assert {row["unit"] for row in report["rows"]} == {"ns", "x"}


@pytest.mark.parametrize("script", SCRIPTS)
def test_json_may_be_the_output(script: str) -> None:
    done = run(script, "--operators", "20", "--runs", "1", "--json", "-")
    assert done.returncode == 0
    assert json.loads(done.stdout)["rows"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_gives_examples(script: str) -> None:
    done = run(script, "--help")
    assert done.returncode == 0
    assert f"python bench/{script}.py --operators 2000" in done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_wrong_usage_is_refused(script: str) -> None:
    done = run(script, "--operators", "0")
    assert (done.returncode, done.stdout) == (64, "")
    assert "0 is not in the range" in done.stderr


INTERRUPTED = """
import os, signal
from script import start
import {script} as module
from purine_ref.benchmarks import dispatch
module.build = dispatch.build = lambda *_: os.kill(os.getpid(), signal.SIGINT)
start(module.main)
"""
"""A script in which Ctrl-C is pressed as soon as it builds a graph."""


@pytest.mark.parametrize("script", SCRIPTS)
def test_control_c_ends_a_script_with_a_word(script: str) -> None:
    source = f"import sys; sys.path.insert(0, {str(ROOT / 'bench')!r})" + INTERRUPTED.format(script=script)
    program = [sys.executable, "-P", "-c", source]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr.split()) == (130, "", ["interrupted"])
