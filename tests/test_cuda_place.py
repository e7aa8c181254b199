"""The place `@cuda` in verify, train, show and info: over a stand-in for CuPy here, and on a GPU where there is one.

`pytest -m gpu tests/test_cuda_place.py` runs on the GPU what runs over the stand-in otherwise, and every case of every
operation, forward and backward, within the bounds that the oracle derives.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cuda_shim import require_compiler
from fake_cupy import fake_cupy
from hooks import bits
from operation_cases import ALL
from purine_ref import ops
from purine_ref.cli import run as run_command
from purine_ref.cli.info import gpu_line
from purine_ref.conformance import Driven, Workload, exact_workload, parse_scheme, training_workload, verify
from purine_ref.conformance.bounded import Bounded, SerialStep, held_by
from purine_ref.devices import cpu_devices
from purine_ref.devices.cuda import cuda_machine, require_gpu
from purine_ref.devices.cuda import kernels as cuda_kernels
from purine_ref.devices.cuda.kernels import CudaKernels
from purine_ref.errors import GraphError, OperatorError
from purine_ref.executors import Serial
from purine_ref.graph import Graph
from purine_ref.operation import Kernels, RunKey
from purine_ref.tensor import Location
from purine_ref.view import StreamRecorder
from suites.around import Around
from suites.operation_case import Case

GPU = pytest.param("gpu", marks=pytest.mark.gpu)
SCHEMES = ["serial@cuda", "captured@cuda", "data:2@cuda", "data:2@cuda:1", "pipeline:2x3@cuda", "captured/data:2@cuda"]
BATCH = 6
LACKING = r"error: no GPU 0: CuPy is not installed; install cupy-cuda12x or cupy-cuda13x, [^\n]*\n"


@pytest.fixture(params=["stand-in", GPU])
def cupy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """CuPy, or its stand-in with two GPUs, in which nothing may race."""
    if request.param == "gpu":
        try:
            yield require_gpu()
        except GraphError as error:
            pytest.skip(str(error))
        return
    require_compiler()
    module = fake_cupy(gpus=2)
    monkeypatch.setitem(sys.modules, "cupy", module)
    yield module
    assert module.state.races == []


@pytest.fixture
def no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """No CuPy, whatever is installed."""
    monkeypatch.setitem(sys.modules, "cupy", None)


# Schemes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_r9_a_network_trains_within_the_bounds(cupy: Any, scheme: str) -> None:
    workload = training_workload("nin-digits", "float32", BATCH, 3, 0)
    [result] = verify(workload, [parse_scheme(scheme)], 0)
    assert (result.verdict, result.mode, result.steps) == ("pass", "bound", 3), result.first


@pytest.mark.parametrize("scheme", ["serial@cuda", "pipeline:2x3@cuda"])
def test_r10_the_exact_form_has_the_bits_of_the_cpu(cupy: Any, scheme: str) -> None:
    workload = exact_workload("lenet-digits", "float64", BATCH, 2, 0)
    [result] = verify(workload, [parse_scheme(scheme)], 0)
    assert (result.verdict, result.mode, result.differing) == ("pass", "exact", 0), result.first


@pytest.mark.parametrize("divided", ["", "data:2", "hybrid:2x1"])
def test_r8_every_executor_has_the_same_bits(cupy: Any, divided: str) -> None:
    """Over iterations that swap and draw masks; and so has a step whose blobs share memory, in what is kept."""
    workload = training_workload("nin-digits", "float32", BATCH, 4, 0)
    found = []
    for how in ("serial", "threads:1", "threads:3", "captured"):
        scheme = parse_scheme(f"{how}/{divided}@cuda" if divided else f"{how}@cuda")
        assert scheme.drive is not None
        with scheme.drive(workload.graph, 3, Driven()) as session:
            for step in range(4):
                session.feed(workload.feeds(step))
                session.run()
            found.append(bits(session.executor))
        with scheme.drive(workload.graph, 3, Driven(keep=("loss",))) as session:
            for step in range(4):
                session.feed(workload.feeds(step))
                session.run()
            kept = {piece.blob.name: array.tobytes() for piece, array in session.pieces("loss")}
        assert all(found[-1][name].endswith(value) for name, value in kept.items())
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.parametrize("how", ["serial@cuda", "captured@cuda", "data:2@cuda"])
def test_r12_wrong_labels_are_told_when_the_run_ends_and_the_next_is_clean(cupy: Any, how: str) -> None:
    """By every operator that met them: a GPU has done the rest when the host hears of the first."""
    workload = training_workload("lenet-digits", "float32", BATCH, 1, 0)
    scheme = parse_scheme(how)
    assert scheme.drive is not None
    with scheme.drive(workload.graph, 0, Driven()) as session:
        for _ in range(2):
            session.feed(workload.feeds(0))
            session.run()
            session.feed({"label": np.full(BATCH, 10)})
            with pytest.raises(ExceptionGroup) as caught:
                session.run()
            assert {type(error) for error in caught.value.exceptions} == {OperatorError}
            told = [(str(error), error.__notes__[0]) for error in caught.value.exceptions]
            assert all(re.match(r"(\w+): expected labels from 0 to 9, got 10 at index \[0\]", said) for said, _ in told)
            assert any(re.match(r"operator 'loss\S*' \(SoftmaxCrossEntropy\) at device0", note) for _, note in told)
        session.feed(workload.feeds(0))
        session.run()
        assert all(np.isfinite(loss).all() for _, loss in session.pieces("loss"))


def test_an_undivided_graph_goes_to_the_first_gpu() -> None:
    workload = training_workload("mlp-digits", "float32", BATCH, 1, 0)
    for text in ("serial@cuda", "captured@cuda:2", "captured@virtual"):
        made = parse_scheme(text).compose(workload.graph)
        assert {op.location for op in made.ops} == {blob.location for blob in made.blobs} == {Location(0, 0)}
    assert parse_scheme("serial@virtual").compose(workload.graph) is workload.graph
    assert parse_scheme("serial@cuda").divides
    assert not parse_scheme("captured@virtual").divides


def test_divisions_are_spread_over_sets_of_streams() -> None:
    workload = training_workload("mlp-digits", "float32", 8, 1, 0)

    def places(text: str) -> list[int]:
        return sorted({op.location.device for op in parse_scheme(text).compose(workload.graph).ops})

    assert places("data:4@cuda") == [0, 1, 2, 3]
    assert places("data:4@cuda:2") == [0, 1]
    with pytest.raises(ValueError, match=r"the place must be like 'cuda\[:N\]': N must be an integer"):
        parse_scheme("serial@cuda:zero")


@pytest.mark.parametrize("scheme", ["captured", "captured/data:2@ranks"])
def test_captured_needs_streams(scheme: str) -> None:
    workload = training_workload("mlp-digits", "float32", BATCH, 1, 0)
    with pytest.raises(GraphError, match="can be captured on devices with streams alone: @virtual or @cuda"):
        verify(workload, [parse_scheme(scheme)], 0)


def test_captured_on_virtual_devices_has_the_bits_of_the_cpu() -> None:
    workload = training_workload("nin-digits", "float32", BATCH, 4, 0)
    [result] = verify(workload, [parse_scheme("captured@virtual")], 0)
    assert (result.verdict, result.mode, result.differing) == ("pass", "bits", 0), result.first


# Operations -----------------------------------------------------------------------------------------------------------

WITH_LOOPS = {case.operation.name: case for case in reversed(ALL) if case.operation.loops}.values()
"""One case for each operation that calls a kernel: enough for the stand-in."""

INEXACT_SOURCES = (ops.Gaussian,)
"""Drawn by functions that round in their own way on a GPU; initial values are drawn on the CPU."""


def compared(case: Case, dtype: str) -> Any:
    """Forward and backward of a case, used twice, on the GPU, against the serial executor."""
    if case.has_gradient:
        around = Around(case, dtype)
        around.executor.close()
        graph, feeds = around.graph, around.feeds
    else:
        graph, arrays = Graph("alone"), case.draw(dtype)
        feeds = {f"x{number}": array for number, array in enumerate(arrays)}
        blobs = [graph.blob(name, array.shape, array.dtype.name) for name, array in feeds.items()]
        graph.apply(case.operation, blobs, "alone")
    [result] = verify(Workload(case.name, dtype, graph, lambda step: feeds, 1), [parse_scheme("serial@cuda")], 0)
    return result


@pytest.mark.parametrize("case", WITH_LOOPS, ids=lambda case: case.name)
def test_operations_with_loops_are_within_their_bounds(cupy: Any, case: Case) -> None:
    if isinstance(case.operation, INEXACT_SOURCES):
        pytest.skip("drawn by functions that a GPU rounds in its own way")
    result = compared(case, case.dtypes[0])
    assert result.verdict == "pass", result.first


@pytest.mark.parametrize("cupy", [GPU, pytest.param("stand-in", marks=pytest.mark.long)], indirect=True)
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_all_operations_are_within_their_bounds(cupy: Any, case: Case) -> None:
    if isinstance(case.operation, INEXACT_SOURCES):
        pytest.skip("drawn by functions that a GPU rounds in its own way")
    for dtype in case.dtypes:
        result = compared(case, dtype)
        assert result.verdict == "pass", f"{dtype}: {result.first}"


def test_r13_nothing_of_the_package_is_missing(cupy: Any) -> None:
    machine = cuda_machine()
    device = machine.device(Location(0, 0))
    needed = frozenset().union(*(case.operation.loops for case in ALL))
    assert device.missing(needed) == ()
    machine.close()


def test_r13_what_has_no_kernel_is_refused_by_name_before_a_run(cupy: Any) -> None:
    class Fourier(ops.ReLU):
        loops = frozenset({"fft"})

    workload = training_workload("mlp-digits", "float32", BATCH, 1, 0)
    workload.graph.apply(Fourier(), [workload.graph["x"]], "transform")
    with pytest.raises(GraphError, match=r"operator 'transform\S*' \(Fourier\) .*device 'cuda' has no kernel fft"):
        parse_scheme("serial@cuda").open(workload.graph, 0)


# The bound ------------------------------------------------------------------------------------------------------------


class _Sums:
    """A device whose weight gradients add so many products in the dtype."""

    def __init__(self, terms: int) -> None:
        self._terms = terms

    def kernels(self, key: RunKey) -> Kernels:
        found: Any = cpu_devices("numpy")(Location()).kernels(key)
        found.convolution_weight_terms = lambda dy: (self._terms, 1)
        return found


def ratio(terms: int | None) -> float:
    """The worst error over its bound of a step whose device adds so many terms; of the CPU's for None."""
    workload = training_workload("nin-digits", "float32", BATCH, 1, 0)
    scheme = parse_scheme("data:2@virtual")
    with Serial(workload.graph, seed=0) as serial:
        opened = scheme.open(workload.graph, 0)
        with opened as session:  # type: ignore[union-attr]
            if terms is not None:
                session.devices = lambda place: _Sums(terms)  # type: ignore[union-attr, assignment, return-value]
            for each in (serial, session):
                each.feed(workload.feeds(0))
            held = held_by(serial)
            serial.run()
            session.run()
            report = Bounded(session).compare(SerialStep(serial, held))  # type: ignore[arg-type]
    return max(found for name, found in report.ratios.items() if re.search("conv.*weight/grad$", name))


def test_r11_the_bound_has_the_roundings_of_both_sides() -> None:
    """The device that computes says how many terms its sums have: the more, the larger is the bound."""
    assert ratio(10_000) < ratio(100) < ratio(1)
    assert ratio(None) > 0


def test_r11_a_gpu_adds_in_chunks_of_its_own(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_kernels, "SUM_ROWS", 7)
    assert CudaKernels.convolution_weight_terms((4, 3, 5, 5)) == (7, 15)
    workload = training_workload("lenet-digits", "float32", BATCH, 2, 0)
    [result] = verify(workload, [parse_scheme("serial@cuda")], 0)
    assert result.verdict == "pass", result.first
    assert result.differing


# Commands -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["verify", "--model", "nin-digits", "--scheme", "data:2@cuda"],
        ["train", "--scheme", "data:2@cuda", "--iterations", "1"],
        ["bench", "gpu"],
        ["show", "--model", "mlp-digits", "--scheme", "data:2@cuda", "--format", "streams"],
    ],
    ids=lambda command: command[0],
)
def test_without_a_gpu_one_line_says_what_is_missing(
    no_cupy: None, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(command) == 2
    said = capsys.readouterr()
    assert (said.out, bool(re.fullmatch(LACKING, said.err))) == ("", True), said


def test_without_a_gpu_the_graph_can_be_drawn(no_cupy: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["show", "--model", "mlp-digits", "--scheme", "data:2@cuda"]) == 0
    assert "device1" in capsys.readouterr().out


def test_info_lists_the_gpus(cupy: Any, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["info", "--json", str(tmp_path / "info.json")]) == 0
    facts = json.loads((tmp_path / "info.json").read_text("utf-8"))
    assert facts["gpu"] == f"{len(facts['gpus'])} with CuPy {cupy.__version__}"
    first = facts["gpus"][0]
    assert first.keys() == {"index", "name", "capability", "memory"}
    assert f"0: {first['name']}, compute capability {first['capability']}," in capsys.readouterr().out
    assert gpu_line({**first, "memory": 1 << 30}).endswith("1.0 GiB")


def test_info_says_what_is_missing(no_cupy: None, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["info", "--json", str(tmp_path / "info.json")]) == 0
    facts = json.loads((tmp_path / "info.json").read_text("utf-8"))
    assert facts["gpus"] == []
    assert facts["gpu"].startswith("no GPU 0: CuPy is not installed; install cupy-cuda12x")
    assert "CuPy is not installed" in capsys.readouterr().out


def test_training_divided_over_gpus_gives_the_results_of_the_cpu(
    cupy: Any, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for number, scheme in enumerate(["data:2@virtual", "data:2@cuda"]):
        target = tmp_path / f"{number}.json"
        words = ["train", "--model", "lenet-digits", "--scheme", scheme, "--iterations", "3", "--batch", "200"]
        assert run_command([*words, "--json", str(target)]) == 0, capsys.readouterr()
        found.append(json.loads(target.read_text("utf-8")))
    assert found[0]["loss"] == pytest.approx(found[1]["loss"], rel=1e-3)


# Streams --------------------------------------------------------------------------------------------------------------


def test_streams_are_recorded_and_drawn(cupy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["show", "--model", "mlp-digits", "--batch", "6", "--scheme", "data:2@cuda", "--format", "streams"]
    assert run_command(words) == 0
    picture = capsys.readouterr().out
    for word in ("device0/main", "device1/main", "outbound", ">host<", "computes", "copies"):
        assert word in picture


def test_a_recorder_has_each_piece_of_work_once() -> None:
    workload = training_workload("mlp-digits", "float32", BATCH, 1, 0)
    scheme, recorder = parse_scheme("data:2@virtual"), StreamRecorder()
    assert scheme.drive is not None
    with scheme.drive(workload.graph, 0, Driven(streams=recorder)) as session:
        session.feed(workload.feeds(0))
        for _ in range(2):
            recorder.clear()
            session.run()
        plan = session.executor.plan
        expected = sorted(op.name for op in plan.graph.ops if op not in plan.idle)
        crossing = {op.name for op in plan.graph.ops if isinstance(op.operation, ops.Copy) and op not in plan.idle}
    spans = [span for span in recorder.spans if not span.op.startswith("additions to")]
    assert sorted(span.op for span in spans) == expected
    assert recorder.copies == crossing
    assert all(span.start <= span.end for span in spans)
    assert sorted(span.op for span in recorder.enqueued) == sorted(span.op for span in recorder.spans)
    begun = {span.op: span.start for span in recorder.enqueued}
    assert all(begun[span.op] <= span.start for span in recorder.spans)


@pytest.mark.parametrize("scheme", [[], ["--scheme", "data:2"], ["--scheme", "data:2@ranks"]])
def test_a_place_without_streams_has_none_to_draw(scheme: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["show", "--model", "mlp-digits", "--format", "streams", *scheme]) == 64
    assert "needs a --scheme at a place with streams, such as data:2@virtual" in capsys.readouterr().err
