"""`bench compute`, `bench scaling` and their pictures, at tiny sizes. No figure is judged, but that ratios fit rows."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from purine_ref.benchmarks import compute, machine, plots, scaling
from purine_ref.benchmarks.agreement import losses, require_agreement
from purine_ref.benchmarks.contenders import Child, Spec, children
from purine_ref.benchmarks.intervals import covered, hidden_time
from purine_ref.benchmarks.side import data, initial_values, network
from purine_ref.benchmarks.steps import EXECUTORS, Network, flops, layout_bytes, overlap
from purine_ref.benchmarks.timing import Series
from purine_ref.devices import CpuDevice
from purine_ref.errors import ResultDiffers
from purine_ref.executors import Span
from purine_ref.operation import RunKey
from purine_ref.plan import prepare

LENET = Spec("purine", "lenet-digits", 4, 2)
TORCH = importlib.util.find_spec("torch") is not None
CORES = compute.cores_here()

Table = dict[tuple[str, int, str], Series]
"""Rows by name, workers and metric."""


def by_key(series: list[Series]) -> Table:
    found = {(one.name, one.workers, one.metric): one for one in series}
    assert len(found) == len(series)
    return found


# The sides -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["split", "branches", "both"])
def test_every_way_to_use_workers_gives_the_same_bits(how: str) -> None:
    one = Spec(**{**_fields(LENET), "workers": 1})
    with Network(one, "float32") as alone, Network(Spec(**{**_fields(LENET), "how": how}), "float32") as side:
        assert [side.checked_step() for _ in range(3)] == [alone.checked_step() for _ in range(3)]


def test_replicas_compute_what_the_serial_graph_does() -> None:
    with Network(Spec(**{**_fields(LENET), "how": "data"}), "float64") as side:
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
    with Network(Spec(**{**_fields(LENET), "seed": 5}), "float32") as side:
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


@pytest.mark.parametrize("step", [0, 1])
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
    program = [sys.executable, "-m", "purine_ref.benchmarks.serving", facts]
    done = subprocess.run(program, input="", capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot hold threads to cores")
def test_a_child_is_held_to_its_cores() -> None:
    core = min(os.sched_getaffinity(0))
    with children([Spec("purine", "lenet-digits", 2, cores=(core,))]) as [child]:
        child.ask("time", count=1)
        assert os.sched_getaffinity(child._process.pid) == {core}


# Compute ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured() -> compute.Found:
    return compute.run(["lenet"], 4, ["numpy", "plain"], [1, 2, CORES + 1], 1)


def test_compute_has_a_row_for_everyone(measured: compute.Found) -> None:
    found = by_key(measured.series)
    counts = [n for n in (1, 2) if n <= CORES]
    torch = ["torch channels-last", "torch default"] if TORCH else []
    for n in counts:
        for name in ["purine numpy", "purine plain", *torch]:
            assert found[name, n, "throughput"].unit == "images/s"
            assert found[name, n, "core time"].unit == "ms"
            assert found[name, n, "peak memory"].values[0] > found[name, n, "network memory"].values[0] > 0
            assert 0 < found[f"{name} / matmul", n, "arithmetic"].values[0] < 1
        assert found["purine numpy", n, "planned memory"].values > (0,)
        assert found["purine plain", n, "layout changes"].values == (0,)
        assert found["matmul", n, "throughput"].unit == "GFLOP/s"
    assert f"{CORES + 1} workers are left out: this process may use {CORES} cores" in measured.skipped
    assert set(measured.skipped) < set(measured.notes)


def test_ratios_fit_the_rows(measured: compute.Found) -> None:
    if not TORCH:
        pytest.skip("PyTorch is not installed")
    found = by_key(measured.series)
    for n in (n for n in (1, 2) if n <= CORES):
        own = found["purine numpy", n, "throughput"].values[0]
        for layout in ("channels-last", "default"):
            other = found[f"torch {layout}", n, "throughput"].values[0]
            assert found[f"purine numpy / torch {layout}", n, "throughput"].values == (own / other,)
        peers = {
            (layout, m): found[f"torch {layout}", m, "throughput"].values[0]
            for layout in ("channels-last", "default") for m in range(1, n + 1)
        }  # fmt: skip
        layout, m = max(peers, key=lambda key: peers[key])
        assert found["purine numpy / torch best", n, "throughput"].values == (own / peers[layout, m],)
        core = found["purine numpy", n, "core time"].values[0] / found[f"torch {layout}", m, "core time"].values[0]
        assert found["purine numpy / torch best", n, "core time"].values == (core,)


def test_shares_of_the_arithmetic_are_counted() -> None:
    rows = [Series("purine numpy", "c", 8, 1, "throughput", "images/s", (50.0, 100.0)),
            Series("matmul", "c", 1, 1, "throughput", "GFLOP/s", (100.0, 50.0))]  # fmt: skip
    [share] = compute.shares(rows, 1e9)
    assert (share.name, share.metric, share.unit, share.values) == ("purine numpy / matmul", "arithmetic", "x", (0.5, 2))


def test_branches_compete_on_googlenet_alone() -> None:
    def names(model: str) -> list[str]:
        return [name for name, spec in compute._specs(model, 1, ["numpy", "plain"], [1, 2], False, 0)]

    own = ["purine numpy", "purine numpy (branches)", "purine numpy (both)", "purine plain"]
    assert names("googlenet") == ["purine numpy", "purine plain", "matmul", *own, "matmul"]
    assert names("nin") == ["purine numpy", "purine plain", "matmul"] * 2
    assert {how for how in EXECUTORS} == {"split", "branches", "both", "data"}


def test_what_is_missing_is_told_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = compute.run([], None, ["onednn2"], [1], 1)
    assert found.series == []
    assert found.skipped == [
        "onednn2 kernels are left out: they are not installed; pip install 'purine_ref[onednn2]'",
        "torch is left out: it is not installed; pip install torch",
    ]


# Scaling ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(CORES < 2, reason="this process may use one core only")
def test_scaling_says_what_a_second_worker_brings() -> None:
    found = by_key(scaling.run(["lenet"], 4, "numpy", [2], 1).series)
    one, two = (found["purine numpy", n, "throughput"].values[0] for n in (1, 2))
    assert found["2 workers / 1", 2, "throughput"].values == (two / one,)
    assert found["2 workers / 1", 2, "efficiency"].values == (two / one / 2,)
    assert found["purine numpy", 2, "copies"].unit == "ms"
    assert 0 <= found["purine numpy", 2, "hidden copies"].values[0] <= 1


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
        assert target.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert list(tmp_path.iterdir()) == [target]


def test_panels_hold_one_unit_each_and_name_their_case() -> None:
    titles = {bench: [(title, len(rows)) for title, rows in plots._panels(bench, ROWS)] for bench in plots.PANELS}
    assert titles["compute"] == [("nin, 128 images a step: training steps", 2),
                                 ("nin, 128 images a step: memory of a step", 1)]  # fmt: skip
    assert titles["scaling"][1] == ("nin, 128 images a step: how well workers are used", 2)
    assert titles["dispatch"] == [("chain, 10 operators: processor time per operator", 1)]


def test_a_picture_without_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(plots.NoMatplotlib, match=r"pip install 'purine_ref\[plot\]'"):
        plots.require()


def test_numbers_have_three_digits() -> None:
    assert [plots.number(value) for value in (12547.8, 123.4, 12.345, 0.04321, 0.0)] == [
        "12,548", "123", "12.3", "0.0432", "0",
    ]  # fmt: skip


def test_the_machine_is_described() -> None:
    found = machine.describe()
    assert found.keys() >= {"processor", "memory", "python", "numpy", "blas", "loops", "system"}
    assert all(isinstance(value, str) and value for value in found.values())


def _fields(spec: Spec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__slots__}
