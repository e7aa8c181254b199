"""`bench compute`, `bench scaling` and their pictures, at tiny sizes. No figure is judged, but that ratios fit rows."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from purine_ref.benchmarks import compute, machine, plots
from purine_ref.benchmarks.agreement import losses, require_agreement
from purine_ref.benchmarks.contenders import Child, Spec, children
from purine_ref.benchmarks.intervals import covered, hidden_time
from purine_ref.benchmarks.side import data, initial_values, network
from purine_ref.benchmarks.steps import EXECUTORS, Network, flops, layout_bytes, overlap
from purine_ref.benchmarks.timing import Series, number
from purine_ref.cli import run as run_command
from purine_ref.devices import CpuDevice
from purine_ref.devices.kernels import KERNEL_SETS
from purine_ref.errors import GraphError, ResultDiffers
from purine_ref.executors import Span
from purine_ref.operation import RunKey
from purine_ref.plan import prepare

LENET = Spec("purine", "lenet-digits", 4, 2)
TORCH = importlib.util.find_spec("torch") is not None
CORES = compute.cores_here()
PNG = b"\x89PNG\r\n\x1a\n"


def by_key(series: list[Series]) -> dict[tuple[str, int, str], Series]:
    """Rows by name, workers and metric."""
    found = {(one.name, one.workers, one.metric): one for one in series}
    assert len(found) == len(series)
    return found


# The sides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["split", "branches", "both"])
def test_every_way_to_use_workers_gives_the_same_bits(how: str) -> None:
    one = replace(LENET, workers=1)
    with Network(one, "float32") as alone, Network(replace(LENET, how=how), "float32") as side:
        assert [side.checked_step() for _ in range(3)] == [alone.checked_step() for _ in range(3)]


def test_replicas_compute_what_the_serial_graph_does() -> None:
    with Network(replace(LENET, how="data"), "float64") as side:
        for want, bound in losses("lenet-digits", 4, "float64", 2, 0):
            assert 0 < bound < 1e-10
            assert abs(side.checked_step() - want) <= bound


def test_flops_are_those_of_products() -> None:
    graph = network("lenet-digits", 3, "float32")
    first, second = 3 * 64 * 16 * 9, 3 * 16 * 32 * 16 * 9  # multiply-adds of the two convolutions
    linear = 3 * (128 * 64 + 64 * 10)
    assert flops(graph) == 2 * (2 * first + 3 * (second + linear))  # nobody asks for the gradient of the images


def test_layout_changes_are_none_in_one_order_and_the_reshapes_in_the_other() -> None:
    graph = network("lenet-digits", 3, "float32")
    plain, last = CpuDevice("plain"), CpuDevice("numpy")
    assert layout_bytes(prepare(graph, lambda _: plain), plain) == 0
    found = layout_bytes(prepare(graph, lambda _: last), last)
    assert found % (3 * 128 * 4) == 0  # the images before the first linear layer, and their gradients


@pytest.mark.parametrize("model", ["lenet-digits", "nin", "googlenet"])
def test_the_peer_has_the_parameters_of_the_graph(model: str) -> None:
    pytest.importorskip("torch")
    from purine_ref.benchmarks import torch_peer

    graph = network(model, 1, "float32")
    values = {blob.name: np.full(blob.shape, number, "f4") for number, blob in enumerate(graph.parameters)}
    found = torch_peer.load(torch_peer.MODELS[model](), graph, values)
    assert {name: float(parameter.detach().ravel()[0]) for name, parameter in found.items()} == {
        name: number for number, name in enumerate(values)
    }


def test_initial_values_are_those_that_an_executor_starts_with() -> None:
    graph = network("lenet-digits", 2, "float32")
    found = initial_values(graph, CpuDevice().kernels(RunKey(5)))
    with Network(replace(LENET, seed=5), "float32") as side:
        for name, array in found.items():
            assert np.array_equal(side._executor.fetch(name), array)


def test_data_have_labels_that_the_network_knows() -> None:
    fed = data(network("lenet-digits", 50, "float32"), 0)
    assert fed["x"].dtype == np.float32
    assert 0 <= fed["label"].min() <= fed["label"].max() < 10


class Liar:
    """A child whose loss is off by a little."""

    spec = LENET

    def __init__(self, step: int, by: float) -> None:
        self._step, self._by = step, by

    def ask(self, what: str, *, batch: int, dtype: str, count: int) -> Any:
        found = [want for want, _ in losses("lenet-digits", batch, dtype, count, 0)]
        return [want + self._by * (number == self._step) for number, want in enumerate(found)]


@pytest.mark.parametrize("step", [0, 1, 2])
def test_who_computes_something_else_is_not_timed(step: int) -> None:
    require_agreement([Liar(step, 1e-15)], "lenet-digits", 4, 0)  # type: ignore[list-item]
    with pytest.raises(ResultDiffers, match=f"the loss of step {step + 1} by purine split .* is not timed"):
        require_agreement([Liar(step, 1e-11)], "lenet-digits", 4, 0)  # type: ignore[list-item]


# Children --------------------------------------------------------------------------------------------------------


def test_what_fails_in_a_child_is_told_by_the_parent() -> None:
    with children([Spec("purine", "lenet-digits", 2, kernels="abacus")]) as [child]:
        with pytest.raises(RuntimeError, match=r"purine split \(lenet-digits, batch 2.*GraphError: .*'abacus'"):
            child.ask("time", count=1)
        with pytest.raises(RuntimeError, match="asked for riches: AssertionError"):
            child.ask("riches")


def test_a_child_that_dies_is_told_by_the_parent() -> None:
    with children([LENET]) as [child]:
        child._process.kill()
        with pytest.raises(RuntimeError, match="ended"):
            child.ask("time", count=1)


def test_an_interrupt_leaves_no_child() -> None:
    seen: list[Child] = []

    def interrupted() -> None:
        with children([LENET, LENET]) as made:
            seen.extend(made)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [child._process.poll() for child in seen] == [-9, -9]


def test_a_child_ends_with_its_parent() -> None:
    facts = '{"side": "matmul", "model": "", "batch": 1, "cores": []}'
    program = [sys.executable, "-P", "-m", "purine_ref.benchmarks.serving", facts]
    done = subprocess.run(program, input="", capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot hold threads to cores")
def test_a_child_is_held_to_its_cores() -> None:
    core = min(os.sched_getaffinity(0))
    with children([Spec("purine", "lenet-digits", 2, cores=(core,))]) as [child]:
        child.ask("time", count=1)
        assert os.sched_getaffinity(child._process.pid) == {core}


# Compute ---------------------------------------------------------------------------------------------------------


def test_compute_has_a_row_for_everyone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compute, "TURN", 0.0)
    target = tmp_path / "compute.json"
    sizes = ["--model", "lenet", "--batch", "4", "--kernels", "numpy,plain", "--workers", f"1,{CORES + 1}"]
    assert run_command(["bench", "compute", *sizes, "--runs", "1", "--seed", "3", "--json", str(target)]) == 0
    report = json.loads(target.read_text("utf-8"))
    assert (report["schema"], report["verdict"], report["seed"]) == ("purine-ref/bench/1", "pass", 3)
    assert report["machine"] == machine.describe()
    assert report["executed"] == len(report["rows"])
    assert all(0 <= row["min"] <= row["median"] <= row["max"] for row in report["rows"])
    rows = {(row["name"], row["workers"], row["metric"]): row for row in report["rows"]}
    found = {key: row["median"] for key, row in rows.items()}
    torch = ["torch channels-last", "torch default"] if TORCH else []
    for name in ["purine numpy", "purine plain", *torch]:
        assert rows[name, 1, "throughput"]["unit"] == "images/s"
        assert rows[name, 1, "core time"]["unit"] == "ms"
        assert found[name, 1, "peak memory"] > found[name, 1, "network memory"] > 0
        assert found[f"{name} / matmul", 1, "arithmetic"] > 0
    for name in torch:
        ratio = found["purine plain", 1, "throughput"] / found[name, 1, "throughput"]
        assert found[f"purine plain / {name}", 1, "throughput"] == ratio
    assert found["purine numpy", 1, "planned memory"] > 0
    assert found["purine plain", 1, "layout changes"] == 0
    assert rows["matmul", 1, "throughput"]["unit"] == "GFLOP/s"
    left_out = f"{CORES + 1} workers are left out: this process may use {CORES} cores"
    assert left_out in report["notes"]
    assert report["skipped"] == 1 + (not TORCH)
    printed = capsys.readouterr().out
    assert all(word in printed for word in [left_out, "purine plain", "matmul", "processor"])


def _speed(name: str, workers: int, throughput: float, core_time: float) -> list[Series]:
    row = Series(name, "c", 8, workers, "throughput", "images/s", (throughput,) * 3)
    return [row, replace(row, metric="core time", unit="ms", values=(core_time,) * 3)]


def test_the_best_of_the_peer_may_have_fewer_workers() -> None:
    rows = [*_speed("purine numpy", 1, 100, 10), *_speed("torch default", 1, 80, 12), *_speed("torch a", 1, 50, 20)]
    rows += [*_speed("purine numpy", 2, 160, 12), *_speed("purine numpy (both)", 2, 200, 9)]
    rows += _speed("torch default", 2, 40, 50)
    found = {key: row.values[0] for key, row in by_key(compute.ratios(rows)).items()}
    assert found == {
        ("purine numpy / torch default", 1, "throughput"): 100 / 80,
        ("purine numpy / torch a", 1, "throughput"): 100 / 50,
        ("purine numpy / torch best", 1, "throughput"): 100 / 80,
        ("purine numpy / torch best", 1, "core time"): 10 / 12,
        ("purine numpy / torch default", 2, "throughput"): 160 / 40,
        ("purine numpy / torch best", 2, "throughput"): 160 / 80,
        ("purine numpy / torch best", 2, "core time"): 12 / 12,
        ("purine numpy (both) / purine numpy", 2, "throughput"): 200 / 160,
        ("purine numpy (both) / torch default", 2, "throughput"): 200 / 40,
        ("purine numpy (both) / torch best", 2, "throughput"): 200 / 80,
        ("purine numpy (both) / torch best", 2, "core time"): 9 / 12,
    }


def test_speed_is_time_turned_round() -> None:
    wall = Series("purine numpy", "c", 8, 1, "wall", "ns", (2e6, 4e6))
    assert compute.speed(wall) == replace(wall, metric="throughput", unit="images/s", values=(500.0, 250.0))
    assert compute.speed(replace(wall, metric="processor")).values == (2.0, 4.0)
    assert compute.speed(replace(wall, name="matmul"), 8e6).values == (4.0, 2.0)


def test_shares_of_the_arithmetic_are_counted() -> None:
    rows = [Series("purine numpy", "c", 8, 1, "throughput", "images/s", (50.0, 100.0)),
            Series("matmul", "c", 1, 1, "throughput", "GFLOP/s", (100.0, 50.0))]  # fmt: skip
    [share] = compute.shares(rows, 1e9)
    assert share == Series("purine numpy / matmul", "c", 8, 1, "arithmetic", "x", (0.5, 2.0))


def test_branches_compete_on_googlenet_alone() -> None:
    def names(model: str) -> list[str]:
        return [name for name, spec in compute._specs(model, 1, ["numpy", "plain"], [1, 2], False, 0)]

    own = ["purine numpy", "purine numpy (branches)", "purine numpy (both)", "purine plain"]
    assert names("googlenet") == ["purine numpy", "purine plain", "matmul", *own, "matmul"]
    assert names("nin") == ["purine numpy", "purine plain", "matmul"] * 2
    assert {how for how in EXECUTORS} == {"split", "branches", "both", "data", "hosts"}


def test_what_is_missing_is_told_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    def missing() -> None:
        raise GraphError("there is no oneDNN here; pip install it")

    monkeypatch.setattr(KERNEL_SETS["onednn"], "require", missing)
    found = compute.run([], None, ["onednn", "plain"], [1], 1)
    assert found.series == []
    assert found.skipped == [
        "onednn kernels are left out: there is no oneDNN here; pip install it",
        "torch is left out: it is not installed; pip install torch",
    ]
    with pytest.raises(GraphError, match="no kernel set 'abacus'; there are numpy, plain"):
        compute.available(["abacus"])


# Scaling ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(CORES < 2, reason="this process may use one core only")
def test_scaling_says_what_a_second_worker_brings(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target, picture = tmp_path / "scaling.json", tmp_path / "scaling.png"
    sizes = ["--model", "lenet", "--batch", "4", "--workers", "2", "--runs", "1"]
    assert run_command(["bench", "scaling", *sizes, "--json", str(target), "--plot", str(picture)]) == 0
    rows = json.loads(target.read_text("utf-8"))["rows"]
    found = {(row["name"], row["workers"], row["metric"]): row["median"] for row in rows}
    one, two = (found["purine numpy", n, "throughput"] for n in (1, 2))
    assert found["2 workers / 1", 2, "throughput"] == two / one
    assert found["2 workers / 1", 2, "efficiency"] == two / one / 2
    assert found["purine numpy", 2, "copies"] > 0
    assert 0 <= found["purine numpy", 2, "hidden copies"] <= 1
    assert picture.read_bytes().startswith(PNG)


def test_copies_are_told_from_computing() -> None:
    [step] = overlap(Spec("purine", "lenet-digits", 4, 2, "data"), 1)
    assert 0 <= step["hidden"] <= step["copies"]
    assert step["copies"] > 0
    assert overlap(Spec("purine", "lenet-digits", 4, 1, "data"), 1) == [{"copies": 0, "hidden": 0.0}]


def test_a_copy_is_hidden_while_another_lane_computes() -> None:
    copies = [Span("copy", "a", 1.0, 4.0), Span("copy", "b", 5.0, 6.0)]
    others = [Span("x", "b", 0.0, 2.0), Span("y", "b", 1.5, 3.0), Span("z", "a", 3.0, 4.0), Span("z", "b", 5.0, 6.0)]
    assert hidden_time(copies, others) == 2.0
    assert covered([(0, 1), (0.5, 2), (3, 4)]) == 3.0
    assert covered([]) == 0.0


# Pictures and the machine ----------------------------------------------------------------------------------------

ROWS = [
    Series("purine numpy", "nin", 128, 1, "throughput", "images/s", (80.0, 81.0, 90.0)),
    Series("torch default", "nin", 128, 1, "throughput", "images/s", (1.0, 2.0, 3.0)),
    Series("matmul", "nin", 1, 1, "throughput", "GFLOP/s", (150.0, 160.0, 170.0)),
    Series("purine numpy", "nin", 128, 1, "network memory", "MB", (500.0,)),
    Series("2 workers / 1", "nin", 128, 2, "efficiency", "x", (0.8, 0.9, 0.95)),
    Series("purine numpy", "nin", 128, 2, "hidden copies", "x", (0.0, 0.0, 0.0)),
    Series("serial", "chain", 10, 1, "processor", "ns", (60.0, 61.0)),
    Series("10 operators", "chain", 20, 1, "build + prepare", "ns", (60.0, 61.0)),
]


@pytest.mark.parametrize("bench", plots.PANELS)
def test_a_picture_is_a_png(bench: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "plot.png"
    for rows in (ROWS, []):
        plots.draw(bench, rows, str(target), "processor 2 cores; python 3")
        assert target.read_bytes().startswith(PNG)
    assert list(tmp_path.iterdir()) == [target]


def test_a_picture_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(OSError, match="directory"):
        plots.draw("compute", ROWS, str(folder))
    assert list(tmp_path.iterdir()) == [folder]


def test_panels_hold_one_unit_each_and_name_their_case() -> None:
    titles = {bench: [(title, len(rows)) for title, rows in plots._panels(bench, ROWS)] for bench in plots.PANELS}
    assert titles["compute"] == [("nin, 128 images a step: training steps", 2),
                                 ("nin, 128 images a step: memory of a step", 1)]  # fmt: skip
    assert titles["scaling"][1] == ("nin, 128 images a step: how well workers are used", 2)
    assert titles["dispatch"] == [("chain, 10 operators: processor time of each", 1)]


def test_a_picture_without_matplotlib_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run_command(["bench", "compute", "--plot", str(tmp_path / "plot.png")]) == 2
    assert capsys.readouterr() == ("", "Error: a plot needs matplotlib: pip install 'purine_ref[plot]'\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compute", "--model", "nin,alexnet"), "expected all, or some of nin, googlenet, lenet; got 'alexnet'"),
        (("compute", "--kernels", "abacus"), "expected all, or some of numpy, plain"),
        (("compute", "--workers", "1,none"), "expected numbers of 1 or more, joined by commas; got '1,none'"),
        (("scaling", "--batch", "0"), "0 is not in the range"),
    ],
)
def test_wrong_usage_is_refused(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bench", *arguments]) == 64
    assert message in " ".join(capsys.readouterr().err.split())


INTERRUPTED = """
import os, signal
from purine_ref.benchmarks import contenders
from purine_ref.cli import main
ask = contenders.Child.ask
contenders.Child.ask = lambda child, what, **facts: (os.kill(os.getpid(), signal.SIGINT), ask(child, what, **facts))
main()
"""
"""The command, in which Ctrl-C is pressed as soon as it asks a child."""


@pytest.mark.parametrize("bench", ["compute", "scaling"])
def test_control_c_ends_the_command_with_a_word(bench: str) -> None:
    arguments = ["bench", bench, "--model", "lenet", "--batch", "2", "--workers", "1"]
    program = [sys.executable, "-P", "-c", INTERRUPTED, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr.split()) == (130, "", ["interrupted"])


def test_numbers_have_three_digits() -> None:
    found = [number(value) for value in (12547.8, 123.4, 99.96, 99.94, 12.0, 0.04321, 0.0)]
    assert found == ["12,548", "123", "100", "99.9", "12.0", "0.0432", "0"]


def test_the_machine_is_described() -> None:
    found = machine.describe()
    assert found.keys() >= {"processor", "memory", "python", "numpy", "blas", "loops", "system"}
    assert all(isinstance(value, str) and value for value in found.values())
