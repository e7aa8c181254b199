"""`bench gpu` at tiny sizes over a stand-in for CuPy, and the script `bench/gpu.sh`. No figure means anything here.

Contenders that have processes of their own are in this one, where the kernels' sources are built once.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from cuda_shim import require_compiler
from fake_cupy import fake_cupy
from purine_ref.benchmarks import gpu, gpu_kernels, gpu_steps, serving, torch_gpu
from purine_ref.benchmarks.contenders import Spec
from purine_ref.benchmarks.timing import Series
from purine_ref.cli import run as run_command
from purine_ref.devices.cuda.kernels import CudaKernels
from purine_ref.errors import ResultDiffers
from purine_ref.operation import Kernels

ROOT = Path(__file__).parent.parent
PNG = b"\x89PNG\r\n\x1a\n"
LENET = Spec("gpu", "lenet-digits", 4, how="streams")
SETTINGS = {"key", "scratch", "share", "number", "copy", "refuse", "whole"}
"""What the vocabulary has beside loops and products."""


class Here:
    """A contender in this process. What it is asked and answers goes through JSON, as between processes."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._server = serving.Server(spec)

    def ask(self, what: str, **facts: object) -> Any:
        assert what in serving._ANSWERS
        return json.loads(json.dumps(getattr(self._server, what)(**json.loads(json.dumps(facts)))))

    def end(self) -> None:
        if self._server._side is not None:
            self._server._side.close()


@contextmanager
def children(specs: Sequence[Spec]) -> Iterator[list[Here]]:
    made = [Here(Spec(**json.loads(json.dumps(asdict(spec))))) for spec in specs]
    try:
        yield made
    finally:
        for one in made:
            one.end()


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in, in CuPy's place."""
    require_compiler()
    module = fake_cupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(gpu, "children", children)
    return module


class Event:
    """PyTorch's class of that name, on the host's clock."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.time = 0.0

    def record(self) -> None:
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        assert self.time

    def elapsed_time(self, end: Event) -> float:
        return (end.time - self.time) * 1e3


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """PyTorch, whose GPU is the CPU."""
    module = pytest.importorskip("torch")
    threads = module.get_num_threads()
    monkeypatch.setattr(torch_gpu.TorchGpuStep, "device", "cpu")
    monkeypatch.setattr(module.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module.cuda, "Event", Event)
    monkeypatch.setattr(module.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(module.backends.cudnn, "benchmark", module.backends.cudnn.benchmark)  # to be put back
    monkeypatch.setattr(module.backends.cudnn, "allow_tf32", module.backends.cudnn.allow_tf32)
    yield module
    module.backends.cuda.matmul.allow_tf32 = False
    module.set_num_threads(threads)


def bench(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the object for scripts."""
    target = folder / "gpu.json"
    code = run_command(["bench", "gpu", "--json", str(target), *arguments])
    return code, json.loads(target.read_text("utf-8")) if target.exists() else {}


OURS = ["purine", "purine captured"]
TORCH = ["torch channels-last", "torch channels-last, TF32"]
LOOPS = [
    "change_layout", "relu", "relu_gradient", "add_bias", "bias_relu", "relu_bias_gradient", "bias_gradient",
    "window_sum", "lrn", "lrn_gradient", "max_pool", "max_pool_gather", "average_pool", "average_pool_scatter",
    "unfold", "fold", "im2col", "col2im", "momentum_update", "torch_update", "adagrad_update", "philox",
]  # fmt: skip


def test_there_is_a_row_for_everything(
    tmp_path: Path, cupy: Any, torch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--model", "lenet", "--batch", "4", "--runs", "2", "--images", "1"]
    code, report = bench(tmp_path, *sizes, "--plot", str(tmp_path / "gpu.png"))
    printed = capsys.readouterr().out
    assert (code, report["verdict"], report["skipped"]) == (0, "pass", 0), report["notes"]
    assert (tmp_path / "gpu.png").read_bytes().startswith(PNG)
    rows = {(row["case"], row["name"], row["metric"]): row for row in report["rows"]}
    assert len(rows) == len(report["rows"])
    expected = [("loops", name, "bandwidth") for name in ["copy", *LOOPS]]
    expected += [("loops", f"{name} / copy", "of copy") for name in LOOPS]
    expected += [("lenet", name, "throughput") for name in [*OURS, *TORCH]]
    expected += [("lenet", "purine captured / purine", "throughput")]
    expected += [("lenet", f"{own} / {other}", "throughput") for own in OURS for other in TORCH]
    expected += [("lenet", "purine", "step"), ("lenet", "purine", "product share")]
    expected += [("lenet", "purine data:2", "copies"), ("lenet", "purine data:2", "hidden copies")]
    assert list(rows) == expected
    for key, row in rows.items():
        assert 0 <= row["min"] <= row["median"] <= row["max"], key
        assert row["runs"] == 2
    targets = {key: row["target"] for key, row in rows.items() if "target" in row}
    assert {key for key in targets if key[0] == "loops"} == {("loops", f"{name} / copy", "of copy") for name in LOOPS}
    assert sum(key[2] == "throughput" and key[1].endswith("channels-last") for key in targets) == 1
    assert targets["lenet", "purine data:2", "hidden copies"] == 0.95
    assert 0 < rows["lenet", "purine", "product share"]["median"] < 1
    assert "GPU 0: stand-in, compute capability 9.0" in printed
    assert len(re.findall(r"wanted 0\.\d+: (?:reached|missed)", printed)) == len(targets)


def test_loops_alone(tmp_path: Path, cupy: Any) -> None:
    code, report = bench(tmp_path, "--kernels-only", "--images", "1", "--runs", "1")
    assert code == 0
    assert {row["case"] for row in report["rows"]} == {"loops"}


def test_loops_can_be_left_out(tmp_path: Path, cupy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = bench(tmp_path, "--kernels-only", "--images", "0")
    assert (code, report["verdict"], report["rows"]) == (2, "unknown", [])
    assert "GPU 0: stand-in" in capsys.readouterr().out


def test_every_loop_of_the_vocabulary_is_measured(cupy: Any) -> None:
    """But the convolutions, which are made of others, and the scatter that no operation of a GPU calls."""
    made_of_others = {"convolution", "convolution_data", "convolution_weight"}
    terms = {"convolution_data_terms", "convolution_weight_terms"}
    loops = {name for name in Kernels.__annotations__ if hasattr(CudaKernels, name)}
    assert loops - made_of_others - terms - SETTINGS - {"max_pool_scatter"} <= set(LOOPS)


def test_a_loop_is_measured_between_events_of_a_full_stream(cupy: Any) -> None:
    found = dict(gpu_kernels.bandwidths(1, 2))
    assert list(found) == ["copy", *LOOPS]
    assert all(len(values) == 2 and min(values) > 0 for values in found.values())
    assert cupy.state.races == []


def test_products_and_copies_of_a_step_are_found(cupy: Any) -> None:
    [found] = gpu_steps.products(LENET, 1)
    assert 0 < found["products"] < found["step"]
    [found] = gpu_steps.copies(replace(LENET, workers=2), 1)
    assert 0 <= found["hidden"]
    assert 0 < found["copies"]


def test_what_fails_is_told_and_the_rest_goes_on(
    tmp_path: Path, cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise RuntimeError("the process of gpu\nended without an answer")

    monkeypatch.setattr(gpu_kernels, "bandwidths", lost)
    monkeypatch.setattr(torch_gpu, "lack", lambda: "torch is left out: it is not here")
    monkeypatch.setattr(gpu, "require_agreement", differs)
    code, report = bench(tmp_path, "--model", "lenet", "--batch", "4", "--runs", "1", "--images", "1")
    assert (code, report["verdict"], report["skipped"]) == (2, "unknown", 1)
    assert report["notes"][-3:] == [
        "torch is left out: it is not here",
        "loops failed: the process of gpu ended without an answer",
        "lenet, throughput failed: the loss is another",
    ]
    assert {row["metric"] for row in report["rows"]} == {"step", "product share", "copies", "hidden copies"}


def differs(*_: object) -> None:
    raise ResultDiffers("the loss is another", "loss")


def test_without_a_gpu_one_line_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)  # so that importing it fails
    assert bench(tmp_path) == (2, {})
    words = capsys.readouterr()
    assert words.out == ""
    assert re.fullmatch(r"error: no GPU 0: CuPy is not installed; install cupy-cuda12x .*\n", words.err)


def test_a_target_is_reached_by_the_median() -> None:
    row = Series("a / copy", "loops", 1, 1, "of copy", "x", (0.1, 0.7, 9.0), 0.7)
    assert gpu.judged([row]) == ["loops, a / copy, of copy: 0.700, wanted 0.7: reached"]
    assert gpu.judged([replace(row, values=(0.1, 0.69, 9.0))])[0].endswith("0.690, wanted 0.7: missed")
    assert gpu.judged([replace(row, target=None)]) == []
    assert row.row()["target"] == 0.7
    assert "target" not in replace(row, target=None).row()


def test_a_network_lets_go_of_its_streams_where_it_cannot_be_opened(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = gpu_steps.cuda_machine()
    closed: list[bool] = []
    monkeypatch.setattr(machine, "close", lambda: closed.append(True))
    monkeypatch.setattr(gpu_steps, "cuda_machine", lambda: machine)
    with pytest.raises(KeyError, match="abacus"):
        gpu_steps.side(replace(LENET, how="abacus"), "float32")
    assert closed == [True]


# The script ----------------------------------------------------------------------------------------------------------


def script(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """`bench/gpu.sh` with this interpreter, building nothing, and without a GPU."""
    environment = {**os.environ, "PYTHON": sys.executable, "PURINE_REF_FAST": "auto", **more}
    return subprocess.run(
        ["sh", str(ROOT / "bench" / "gpu.sh"), *arguments],
        env=environment, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [["--wheels"], ["--carried", "/nowhere"], ["a", "b"], ["--fast"]])
def test_the_script_says_how_it_is_used(arguments: list[str]) -> None:
    done = script(*arguments)
    assert done.returncode == 64
    assert done.stderr.startswith("usage: bench/gpu.sh [--carried DIR] [OUT]")


STEPS = ("info", "tests", "verify-serial", "verify-data", "verify-pipeline", "bench-nin", "bench-googlenet")


def test_the_script_goes_to_the_end_without_a_gpu(tmp_path: Path) -> None:
    """A stand-in for Python answers as the commands do: the real ones are `long`, since each starts a process."""
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        '    "- "*) echo "pyzmq" ;;\n'
        '    -) echo /a/lib:/b/lib ;;\n'
        "    *\\ info) exit 0 ;;\n"
        "    *-m\\ pytest*) exit 5 ;;\n"
        '    *serial@cuda*) echo "$LD_LIBRARY_PATH"; exit 1 ;;\n'
        "    *pipeline*) exec sleep 60 ;;\n"
        "    *) exit 2 ;;\n"
        "esac\n"
    )
    python.chmod(0o755)
    shell = tmp_path / "timeout"
    shell.write_text('#!/bin/sh\nshift 3\ncase "$*" in *pipeline*) exit 124 ;; esac\nexec "$@"\n')
    shell.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = script(str(tmp_path / "out"), PYTHON=str(python), PATH=path, LD_LIBRARY_PATH="/was")
    summary = (tmp_path / "out" / "summary.txt").read_text("utf-8").splitlines()
    said = dict(line.split(" (")[0].split(": ", 1) for line in summary)
    assert said == {
        "info": "passed",
        "tests": "could not run",
        "verify-serial": "FAILED: exit code 1",
        "verify-data": "could not run",
        "verify-pipeline": "FAILED: took more than 15 s",
        "bench-nin": "could not run",
        "bench-googlenet": "could not run",
    }
    assert done.returncode == 1
    assert "missing: pyzmq; bench/gpu.sh --wheels DIR gets them" in done.stdout
    assert "/was:/a/lib:/b/lib" in (tmp_path / "out" / "log.txt").read_text("utf-8")
    assert done.stdout.endswith("\n".join(summary) + "\n")


@pytest.mark.long
def test_the_script_with_the_real_commands_and_without_a_gpu(tmp_path: Path) -> None:
    if importlib.util.find_spec("cupy") is not None:
        pytest.skip("CuPy is installed, and there may be a GPU")
    done = script(str(tmp_path / "out"))
    said = [line.split(" (")[0] for line in (tmp_path / "out" / "summary.txt").read_text("utf-8").splitlines()]
    assert said == ["info: passed", *(f"{step}: could not run" for step in STEPS[1:])]
    assert done.returncode == 2
    log = (tmp_path / "out" / "log.txt").read_text("utf-8")
    assert log.count("error: no GPU 0: CuPy is not installed;") == 5
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"junit.xml", "log.txt", "summary.txt"}
