"""What the package asks of a machine: no accelerator's library to be imported, plain data for other processes.

And that these processes import the package that is tested, wherever they start.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import purine_ref
from purine_ref import ops
from purine_ref.devices import cuda
from purine_ref.errors import GraphError
from purine_ref.executors import Executor, Serial, Simulated, Threaded
from purine_ref.graph import Graph
from purine_ref.models import MODELS, training_graph
from purine_ref.plan import prepare
from purine_ref.tensor import Location

WATCH = 120.0
"""Seconds after which a process counts as hanging."""

CUPY = {
    "no cupy": "raise ModuleNotFoundError(\"No module named 'cupy'\", name='cupy')",
    "no driver": "raise ImportError('libcuda.so.1: cannot open shared object file: No such file or directory')",
    "no device": "class cuda:\n class runtime:\n  getDeviceCount = staticmethod(lambda: 0)",
}
"""Stand-ins for the module `cupy` on machines that lack something, each as its source."""

OPTIONAL = ("cupy", "distributed", "mpi4py", "torch")
"""Packages that no part of the package may import unless it is asked to."""

ALL_WORKS = """
import importlib, pkgutil, sys
import purine_ref
for module in pkgutil.walk_packages(purine_ref.__path__, "purine_ref."):
    importlib.import_module(module.name)
from purine_ref import cli
short = ["--model", "mlp-digits", "--dtype", "float32", "--steps", "1", "--batch", "9", "--scheme", "threads:2"]
assert cli.run(["verify", *short]) == 0
found = sorted(set(sys.modules) & set(sys.argv[1:]))
assert cli.run(["info"]) == 0  # which asks cupy for GPUs
print("imported:", *found)
"""


def python(code: str, *arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that finds the package where this one does, and modules in `path` before all others."""
    found = [str(path)] if path else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*found, str(Path(purine_ref.__file__).parents[1])])}
    command = [sys.executable, "-P", "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WATCH, check=False)


@pytest.mark.parametrize("machine", list(CUPY))
def test_pk_01_everything_on_the_cpu_works_whatever_cupy_does(machine: str, tmp_path: Path) -> None:
    """No module imports cupy, or another library that may be absent, before somebody asks for what it is for."""
    for name in OPTIONAL:
        (tmp_path / f"{name}.py").write_text(CUPY[machine].replace("cupy", name), "utf-8")
    done = python(ALL_WORKS, *OPTIONAL, path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported:"


@pytest.mark.parametrize("kind", [Serial, Threaded, Simulated])
def test_pk_01_a_device_that_is_not_there_is_one_clear_error(
    kind: type[Executor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the executor is made, before any array: the graph, the device, what is missing, and what to do."""
    monkeypatch.setitem(sys.modules, "cupy", None)  # as where it is not installed
    monkeypatch.setattr(cuda, "_shared", None)
    graph = Graph("net")
    x = graph.blob("x", (3, 2), location=Location(0, 0))
    graph.apply(ops.ReLU(), [x], "y")
    message = r"^graph 'net': no device at device0: no GPU 0: CuPy is not installed; install .+, or place it on a CPU$"
    with pytest.raises(GraphError, match=message):
        kind(graph)


def _bits(graph: Graph, x: np.ndarray) -> dict[str, bytes]:
    """What one run makes of the digits `x`, label 0, and of parameters drawn from a fixed key."""
    rng = np.random.default_rng(5)
    with Serial(graph, seed=3) as executor:
        executor.feed(
            **{blob.name: rng.standard_normal(blob.shape).astype(blob.dtype) for blob in graph.parameters},
            x=x,
            label=np.zeros(len(x), "int64"),
        )
        executor.run()
        return {blob.name: executor.fetch(blob.name).tobytes() for blob in graph.parameters}


def test_pk_03_a_process_that_was_spawned_runs_a_graph_that_was_sent_to_it() -> None:
    """Graphs are plain data: neither locks nor functions nor sockets are in them."""
    graph = training_graph("mlp-digits", 5, "float32")
    (x,) = (blob for blob in graph.sources if blob.name == "x")
    images = np.random.default_rng(4).standard_normal(x.shape).astype("float32")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        sent = pool.apply_async(_bits, (graph, images)).get(WATCH)
    assert sent == _bits(graph, images)


@pytest.mark.parametrize("model", [name for name in MODELS if name != "googlenet"])
def test_pk_03_a_graph_is_plain_data(model: str) -> None:
    graph = training_graph(model, 2, "float32")
    sent: Graph = pickle.loads(pickle.dumps(graph))
    assert [repr(op) for op in sent.ops] == [repr(op) for op in graph.ops]
    assert [repr(blob) for blob in sent.blobs] == [repr(blob) for blob in graph.blobs]
    assert prepare(sent).graph is sent


UNGUARDED = """
import multiprocessing
multiprocessing.set_start_method({method!r})
import numpy as np
import purine_ref as pr
g = pr.Graph("small")
[g.blob("x", (3, 2))] >> pr.ops.ReLU() >> [g.blob("y", (3, 2))]
with pr.Threaded(g, threads=2) as run:
    run.feed(x=np.ones((3, 2), "float32"))
    run.run()
    print(run.fetch("y").sum(), len(multiprocessing.active_children()))
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_pk_03_a_script_without_a_main_guard_starts_no_processes(method: str, tmp_path: Path) -> None:
    """Executors in one process are threads, so that there is nothing to guard, whatever the start method is."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.format(method=method), "utf-8")
    done = python("import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')", str(script))
    assert (done.returncode, done.stdout) == (0, "6.0 0\n"), done.stderr


def test_no_process_of_the_tests_imports_from_the_folder_it_starts_in() -> None:
    """Without `-P`, code given to an interpreter sees the checkout before the package that was installed from it.

    The checkout has no compiled loops, so the processes would run other loops than the test, or none.
    """
    files = list(Path(__file__).parent.rglob("*.py"))
    starts = [re.findall(r"\[sys\.executable, ([^]]*)", file.read_text("utf-8")) for file in files]
    told = [options for found in starts for options in found if re.search(r'"-[cm]"', options)]
    assert len(told) > 5
    assert [options for options in told if not options.startswith('"-P", ')] == []


def _endings(names: Sequence[str]) -> set[str]:
    """The last parts of hierarchical names."""
    return {name.rpartition("/")[2] for name in names}


@pytest.mark.parametrize("model", [name for name in MODELS if name != "googlenet"])
def test_dp_10_no_state_of_a_network_comes_from_a_batchs_statistics(model: str) -> None:
    """Nothing normalises over a batch, so replicas have no running averages that could differ.

    What outlives a run is parameters and their histories. A batch normalisation would add to it, and needs the rule
    of the case: statistics over all replicas.
    """
    graph = training_graph(model, 2, "float32")
    assert _endings([blob.name for blob in graph.parameters]) == {"weight", "bias"}
    assert _endings([current.name for current, _ in graph.pairs]) == {"weight", "bias", "history"}
    assert not any("BatchNorm" in name for name in ops.__all__)
