"""The benchmark scripts at tiny sizes: they print and write a row for every case. No figure is judged.

The scripts are run as a reader of `bench/RESULTS.md` runs them, each in a process of its own.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from purine_ref.benchmarks import handover, native, peers
from purine_ref.benchmarks.dispatch import NO_OP, PEERS, TEAM, available
from purine_ref.benchmarks.shapes import SHAPES
from purine_ref.cli import run as run_command

ROOT = Path(__file__).parent.parent
SCRIPTS = ("dispatch", "graph")
CASES = ("chain", "layers of 100", "random")
METRICS = ("build + prepare", "with the collector", "build", "prepare", "bind", "run", "free")
PYTHON_PEERS = "graphlib,futures,dask,autograd"
MODULES = {"dask": "dask", "autograd": "torch"}
HERE = [name for name in PYTHON_PEERS.split(",") if importlib.util.find_spec(MODULES.get(name, "graphlib"))]
BETWEEN = ("SimpleQueue", "Lock", "a free Lock", "an unheard Condition")


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
    assert report["machine"].keys() >= {"processor", "python", "numpy", "blas", "loops", "system"}
    for row in report["rows"]:
        assert 0 < row["min"] <= row["median"] <= row["max"]
    return report["rows"], done.stdout


def test_dispatch_has_a_row_for_every_contestant_and_case(tmp_path: Path) -> None:
    sizes = ["--operators", "230", "--small", "30", "--runs", "2", "--peers", PYTHON_PEERS]
    found, printed = rows(tmp_path, "dispatch", *sizes)
    ours = [("counters", 1), (NO_OP, 1), (TEAM, 1), (TEAM, 2), ("readiness", 1), ("serial", 1)]
    ours += [("threaded", 1), ("threaded", 2)]
    rows_of = {"graphlib": [("graphlib", 1)], "futures": [("futures", 1), ("futures", 2)]}
    rows_of |= {"dask": [("dask.threaded", 1), ("dask.threaded", 2)], "autograd": [("autograd", 1)]}
    theirs = [row for name in HERE for row in rows_of[name]]
    ratios = [("graphlib / readiness", 1), ("graphlib / serial", 1), ("threaded / serial", 1), ("threaded / serial", 2)]
    ratios += [(f"{name} / threaded", n) for name, n in theirs if name in ("futures", "dask.threaded")]
    ratios += [(f"{name} / serial", n) for name, n in theirs if name == "autograd"]
    measured = [(*contestant, metric) for contestant in [*ours, *theirs] for metric in ("processor", "wall")]
    expected = [(case, *one) for case in CASES for one in [*measured, *((*ratio, "processor") for ratio in ratios)]]
    within = [row for row in found if row["case"] in CASES]
    assert [(row["case"], row["name"], row["workers"], row["metric"]) for row in within] == expected
    for row in found:
        assert row["unit"] == ("x" if " / " in row["name"] else "ns")
        assert row["runs"] == 2
    assert {row["items"] for row in within if row["name"] in dict(ours)} == {230}
    assert {row["items"] for row in within if row["name"] in ("futures", "dask.threaded")} == {30}
    assert [row["name"] for row in found if row["case"] == handover.CASE and row["name"] in BETWEEN][::2] == [*BETWEEN]
    for word in [*CASES, *(name for name, _ in [*ours, *theirs, *ratios])]:
        assert word in printed
    for name in set(PYTHON_PEERS.split(",")).difference(HERE):
        assert f"{name} is left out: {MODULES[name]} is not installed; pip install {MODULES[name]}" in printed
    assert "on graphs scaled down to 30 operators" in printed


def test_dispatch_leaves_peers_out_where_they_are_not_wanted(tmp_path: Path) -> None:
    found, _ = rows(tmp_path, "dispatch", "--operators", "3", "--peers", "none", "--runs", "1")
    assert len([row for row in found if row["case"] in CASES]) == (2 * 8 + 2) * len(CASES)
    found, _ = rows(tmp_path, "dispatch", "--operators", "3", "--peers", PYTHON_PEERS, "--small", "0", "--runs", "1")
    names = {row["name"] for row in found}
    assert "graphlib" in names
    assert names.isdisjoint({"futures", "dask.threaded", "autograd"})


def test_a_peer_that_nobody_knows_is_refused() -> None:
    done = run("dispatch", "--peers", "graphlib,ray")
    assert (done.returncode, done.stdout) == (64, "")
    assert f"expected all, none, or some of {', '.join(PEERS)}; got 'ray'" in " ".join(done.stderr.split())


@pytest.mark.parametrize("case", CASES)
def test_a_pool_runs_what_becomes_ready(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(peers, "nothing", lambda: calls.append(None))
    peers.Futures(SHAPES[case](230), 2).run()
    assert len(calls) == 230


@pytest.mark.parametrize("play", [handover.by_queues, handover.by_locks])
def test_the_token_is_handed_to_and_fro(play: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "TURNS", 20)
    play()


STAND_IN = """
#include "bench.hpp"
int main(int count, char** values) {
    const auto [predecessors, workers, blobs] = bench::read(count, values);
    if (predecessors != bench::Predecessors{{}, {0}, {0, 1}} || workers != 2 || !blobs) return 1;
    bench::serve([] { bench::nothing(); });
}
"""
"""A peer that needs no library."""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> native.Program:
    """A program that is compiled into a folder of the test's own."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sources = tmp_path / "native"
    sources.mkdir()
    (sources / "bench.hpp").write_text((native.SOURCES / "bench.hpp").read_text())
    (sources / "stand_in.cpp").write_text(STAND_IN)
    monkeypatch.setattr(native, "SOURCES", sources)
    return native.Program("stand_in", (), "nothing")


def test_a_program_is_compiled_once_and_asked_again_and_again(stand_in: native.Program) -> None:
    path = native.executable(stand_in)
    made = path.stat().st_mtime_ns
    assert native.executable(stand_in) == path
    assert path.stat().st_mtime_ns == made
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with native.graph_file([(), (0,), (0, 1)]) as file, native.running(path, file, 2, 1) as program:
        for _ in range(2):
            answer = program.ask()
            assert answer.keys() == {"processor", "wall"}
            assert all(0 <= value < 60 for value in answer.values())
    with native.graph_file([()]) as file, native.running(path, file, 2, 1) as program:
        with pytest.raises(RuntimeError, match="ended without an answer"):
            program.ask()


def test_a_program_that_does_not_compile_says_what_to_install(stand_in: native.Program) -> None:
    (native.SOURCES / "stand_in.cpp").write_text("#include <no_such_library.hpp>")
    with pytest.raises(native.Missing, match=r"stand_in: not compiled \(.*no_such_library.*\); install nothing"):
        native.executable(stand_in)
    with pytest.raises(native.Missing, match=r"there is no no-such-compiler; install Debian's g\+\+"):
        native.executable(stand_in, "no-such-compiler")


def test_a_folder_that_others_can_write_is_refused(stand_in: native.Program) -> None:
    native.executable(stand_in).parent.chmod(0o777)
    with pytest.raises(OSError, match="must be a folder that only this user can write"):
        native.executable(stand_in)


def test_what_is_missing_is_told_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(program: native.Program) -> Path:
        raise native.Missing(f"{program.name}: install {program.remedy}")

    monkeypatch.setattr(native, "executable", missing)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    present, programs, skipped = available(PEERS)
    assert (present, programs) == (["graphlib", "futures"], {})
    assert skipped == [
        "dask is left out: dask is not installed; pip install dask",
        "autograd is left out: torch is not installed; pip install torch",
        f"taskflow is left out: taskflow: install {native.TASKFLOW.remedy}",
        f"onetbb is left out: onetbb: install {native.ONETBB.remedy}",
    ]


def test_graph_has_a_row_for_every_size_metric_and_case(tmp_path: Path) -> None:
    found, printed = rows(tmp_path, "graph", "--operators", "120", "--peak", "200", "--runs", "2")
    sizes = [("12 operators", 24), ("36 operators", 72), ("120 operators", 240), ("120 / 12", 240)]
    expected = [(case, *size, metric) for case in CASES[:2] for size in sizes for metric in METRICS]
    expected += [(case, "200 operators", 400, "peak memory") for case in CASES]
    assert [(row["case"], row["name"], row["items"], row["metric"]) for row in found] == expected
    assert all(10 < row["median"] < 1000 and row["unit"] == "MB" for row in found if row["metric"] == "peak memory")
    for word in [*CASES[:2], *METRICS, *(name for name, _ in sizes)]:
        assert word in printed


def test_the_ratios_are_those_of_the_rounds(tmp_path: Path) -> None:
    found, _ = rows(tmp_path, "dispatch", "--operators", "50", "--peers", "graphlib", "--runs", "1")
    chain = {row["name"]: row["median"] for row in found if (row["case"], row["metric"]) == ("chain", "processor")}
    assert chain["graphlib / readiness"] == chain["graphlib"] / chain["readiness"]


def test_the_command_measures_the_same_and_writes_what_scripts_read(tmp_path: Path) -> None:
    target = tmp_path / "dispatch.json"
    sizes = ["--operators", "40", "--dask-operators", "0", "--peers", "graphlib,dask", "--runs", "2"]
    code = run_command(["bench", "dispatch", *sizes, "--seed", "3", "--json", str(target)])
    report = json.loads(target.read_text("utf-8"))
    assert (code, report["schema"], report["verdict"], report["seed"]) == (0, "purine-ref/bench/1", "pass", 3)
    assert (report["executed"], report["skipped"]) == (len(report["rows"]), 0)
    assert report["machine"]["python"]
    promised = {"name", "case", "workers", "metric", "unit", "median", "min", "max", "runs"}
    assert all(promised <= row.keys() for row in report["rows"])
    assert {row["case"] for row in report["rows"]} == {*CASES, handover.CASE}
    assert {row["unit"] for row in report["rows"]} == {"ns", "x"}


def test_the_command_measures_the_life_of_a_graph(tmp_path: Path) -> None:
    target = tmp_path / "graph.json"
    code = run_command(["bench", "graph", "--operators", "20", "--peak", "0", "--runs", "1", "--json", str(target)])
    report = json.loads(target.read_text("utf-8"))
    assert (code, report["schema"], report["verdict"]) == (0, "purine-ref/bench/1", "pass")
    assert {row["metric"] for row in report["rows"]} == set(METRICS)


LITTLE = {"dispatch": ("--peers", "none"), "graph": ("--peak", "0")}
"""What makes each script quick."""


@pytest.mark.parametrize("script", SCRIPTS)
def test_json_may_be_the_output(script: str) -> None:
    done = run(script, "--operators", "20", "--runs", "1", *LITTLE[script], "--json", "-")
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
from purine_ref.benchmarks import dispatch, graph
graph.build = dispatch.build = lambda *_: os.kill(os.getpid(), signal.SIGINT)
start(module.main)
"""
"""A script in which Ctrl-C is pressed as soon as it builds a graph."""


@pytest.mark.parametrize("script", SCRIPTS)
def test_control_c_ends_a_script_with_a_word(script: str) -> None:
    source = f"import sys; sys.path.insert(0, {str(ROOT / 'bench')!r})" + INTERRUPTED.format(script=script)
    program = [sys.executable, "-P", "-c", source]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr.split()) == (130, "", ["interrupted"])
