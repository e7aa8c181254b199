"""The GPU's vocabulary with CuPy's place taken: by numpy, and for its compiler by the kernels built for the CPU.

So all operations, and whole networks, run on the CUDA kernels through the very code that launches them on a GPU. What a
GPU lacks here is told by modules that say so.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cuda_shim import GpuLaunch, HostLaunch, library, require_compiler, start
from operation_cases import ALL
from purine_ref import models
from purine_ref._fast import select
from purine_ref.devices import cpu_devices, default_kernels
from purine_ref.devices.cuda import CudaDevice, require_gpu
from purine_ref.devices.cuda import kernels as cuda_kernels
from purine_ref.devices.cuda.kernels import MOST_BLOCKS, THREADS, CudaKernels, CupyLaunch
from purine_ref.devices.cuda.loops import CudaLoops
from purine_ref.devices.cuda.sources import FAMILIES, OPTIONS, element_option, source
from purine_ref.devices.kernels import KERNEL_SETS, PlainKernels
from purine_ref.errors import GraphError
from purine_ref.executors import Serial
from purine_ref.operation import Kernels, RunKey, Window
from purine_ref.optim import RATE
from purine_ref.tensor import Location
from suites.operations import OperationContract


class RawModule:
    """CuPy's class of that name, for the CPU: takes a family's source and options, and gives functions by name."""

    def __init__(self, code: str, options: tuple[str, ...]) -> None:
        [self._family] = [family for family in FAMILIES if source(family) == code]
        *given, element = options
        assert tuple(given) == OPTIONS
        [self._dtype] = [one for one in map(np.dtype, ("float32", "float64")) if element_option(one) == element]

    def get_function(self, name: str) -> Callable[..., None]:
        """What launches one kernel: called with grid, block and arguments."""

        def launch(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
            assert 1 <= grid[0] <= MOST_BLOCKS
            assert block == (THREADS,)
            shape = min(grid[0], 2), 16  # threads of this machine come one after the other
            HostLaunch(shape)(self._family, name, self._dtype, grid[0], arguments)

        return launch


class HostHere:
    """What kernels ask the current stream for, where there is none: all is done at once."""

    @staticmethod
    def scratch(slot: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """Garbage, as there may be."""
        return np.full(shape, 0xC5, dtype)

    pinned = staticmethod(np.zeros)
    refuse = staticmethod(PlainKernels.refuse)
    copy = staticmethod(PlainKernels.copy)

    @staticmethod
    def uploaded(number: Any) -> Any:
        """The number itself."""
        return number


class HostKernels(CudaKernels):
    """The vocabulary, made as a kernel set of the CPU is."""

    name = "cuda"

    def __init__(self, key: RunKey, *_: object) -> None:
        super().__init__(key, np, CupyLaunch(SimpleNamespace(RawModule=RawModule)), HostHere)

    @classmethod
    def require(cls) -> None:
        """Nothing is missing."""

    @classmethod
    def describe(cls) -> str:
        """Nothing to say."""
        return ""


@pytest.fixture
def kernel_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a kernel set of the CPU, which is the default meanwhile."""
    require_compiler()
    monkeypatch.setitem(KERNEL_SETS, HostKernels.name, HostKernels)
    with default_kernels(HostKernels.name):
        yield HostKernels.name


PLAIN = select("0")

WITH_LOOPS = {case.operation.name: case for case in reversed(ALL) if case.operation.loops}
"""One case for each operation that calls a kernel."""


class TestOperations(OperationContract):
    """Forward and backward of each operation that calls a kernel."""

    cases = tuple(WITH_LOOPS.values())

    @pytest.fixture(autouse=True)
    def _cuda(self, kernel_set: str) -> None:
        """On the CUDA kernels."""


@pytest.mark.long
class TestAllOperations(TestOperations):
    """All cases of all operations of the package."""

    cases = ALL


def test_every_operation_finds_its_kernels() -> None:
    needed = frozenset().union(*(case.operation.loops for case in ALL))
    assert {"max_pool_gather", "philox", "adagrad_update"} <= needed
    assert CudaDevice.missing(needed | {"fft"}) == ("fft",)
    made = HostKernels(RunKey())
    assert [name for name in Kernels.__annotations__ if not hasattr(made, name)] == []


def results(devices: Any) -> dict[str, np.ndarray]:
    """All blobs after two training steps of a small network of convolutions, pools and dropout, in float64."""
    graph = models.training_graph("nin-digits", 6, "float64")
    rng = np.random.default_rng(1)
    feeds = {"x": rng.standard_normal(graph["x"].shape), "label": rng.integers(0, 10, 6), RATE: np.array(0.05)}
    with Serial(graph, seed=3, devices=devices) as executor:
        executor.feed(feeds)
        executor.run()
        executor.run()
        return {blob.name: executor.fetch(blob.name).copy() for blob in graph.blobs if blob not in executor.plan.lost}


def test_a_network_trains_as_on_the_cpu(kernel_set: str) -> None:
    got, want = results(cpu_devices(kernel_set)), results(cpu_devices("numpy"))
    assert list(got) == list(want)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3])
def test_convolutions_in_many_chunks_are_the_same_to_rounding(
    kernel_set: str, kernel: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    x, dy = rng.standard_normal((3, 4, 6, 7)), rng.standard_normal((3, 6, 6, 7))
    weight = rng.standard_normal((6, 4 // groups, kernel, kernel))
    window = Window(pads=((kernel // 2, kernel // 2),) * 2, groups=groups)

    def convolved(name: str) -> list[np.ndarray]:
        kernels = cpu_devices(name)(Location()).kernels(RunKey())
        outs = [np.full(array.shape, 7.0) for array in (dy, x, weight)]
        kernels.convolution(x, weight, outs[0], window)
        kernels.convolution_data(dy, weight, outs[1], window)
        kernels.convolution_weight(dy, x, outs[2], window)
        return outs

    whole, want = convolved(kernel_set), convolved("plain")
    monkeypatch.setattr(cuda_kernels, "CHUNK", 50)
    monkeypatch.setattr(cuda_kernels, "SUM_ROWS", 11)
    for got in (whole, convolved(kernel_set)):
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


# What is missing.


def stand_in(**facts: Any) -> ModuleType:
    """A module `cupy` that says so of its version, driver and GPUs."""
    told = {"version": "13.6.0", "driver": 13000, "built": 12090, "count": 1, "capability": (9, 0)} | facts
    cupy: Any = ModuleType("cupy")
    cupy.__version__ = told["version"]

    def count() -> int:
        if isinstance(told["count"], Exception):
            raise told["count"]
        return int(told["count"])

    runtime = SimpleNamespace(
        driverGetVersion=lambda: told["driver"],
        runtimeGetVersion=lambda: told["built"],
        getDeviceCount=count,
        getDeviceProperties=lambda index: dict(zip(("major", "minor"), told["capability"], strict=True)),
    )
    cupy.cuda = SimpleNamespace(runtime=runtime)
    return cupy  # type: ignore[no-any-return]


LACKS: dict[str, tuple[dict[str, Any], int, str]] = {
    "an old CuPy": ({"version": "12.3.0"}, 0, r"expected CuPy 13 or 14, got 12\.3\.0; install cupy-cuda12x or .*"),
    "no driver": ({"driver": 0}, 0, r"no NVIDIA driver was found; install one, or place it on a CPU"),
    "an old driver": (
        {"driver": 12040, "built": 13020},
        0,
        r"the NVIDIA driver serves CUDA 12\.4, but this CuPy was built for CUDA 13\.2; install cupy-cuda12x, or .*",
    ),
    "no start": ({"count": RuntimeError("out of luck")}, 0, r"CUDA does not start \(out of luck\); see whether .*"),
    "no device": ({"count": 0}, 0, r"none is visible; see nvidia-smi and CUDA_VISIBLE_DEVICES, or place it on a CPU"),
    "too few": ({"count": 2}, 2, r"there are 2, numbered from 0; see nvidia-smi .*"),
    "a negative index": ({"count": 2}, -1, r"there are 2, numbered from 0; see nvidia-smi .*"),
    "an old GPU": ({"capability": (7, 0)}, 0, r"expected compute capability 7\.5 or more, got 7\.0; use another .*"),
}


@pytest.mark.parametrize("lack", list(LACKS))
def test_what_a_gpu_lacks_is_said_with_what_to_do(lack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, index, message = LACKS[lack]
    monkeypatch.setitem(sys.modules, "cupy", stand_in(**facts))
    with pytest.raises(GraphError, match=rf"^no GPU {index}: {message}$"):
        require_gpu(index=index)


def test_a_gpu_that_lacks_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    module = stand_in(count=2, capability=(7, 5), driver=12040)
    monkeypatch.setitem(sys.modules, "cupy", module)
    assert require_gpu(index=1) is module


@pytest.mark.parametrize(
    ("source_", "message"),
    [
        ("import a_library_that_is_not_there", r"CuPy needs a_library_that_is_not_there, which is not installed; .*"),
        (
            "raise ImportError('libnvrtc.so.12: none')",
            r"CuPy is .* cannot be loaded \(libnvrtc.so.12: none\); .*",
        ),
    ],
)
def test_a_cupy_that_cannot_be_loaded_is_told_from_none(
    source_: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cupy.py").write_text(source_, "utf-8")
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(GraphError, match=f"^no GPU 0: {message}$"):
        require_gpu()
    assert "cupy" not in sys.modules


def test_without_cupy_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str, *_: object) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", none)
    with pytest.raises(GraphError, match=r"^no GPU 0: CuPy is not installed; install cupy-cuda12x or cupy-cuda13x, .*"):
        require_gpu()


# What runs the kernels' tests on a GPU.


class Compiled:
    """CuPy's `RawModule` for kernels that are given addresses, as numbers."""

    def __init__(self, code: str, options: tuple[str, ...]) -> None:
        [family] = [family for family in FAMILIES if source(family) == code]
        [dtype] = [name for name in ("float32", "float64") if element_option(np.dtype(name)) == options[-1]]
        self._built = library(family, dtype)

    def get_function(self, name: str) -> Callable[..., None]:
        """What launches one kernel: called with grid, block and arguments."""
        return lambda grid, block, values: start(self._built, name, (grid[0], block[0]), False, values)


def test_the_launch_of_the_kernels_tests_copies_there_and_back() -> None:
    require_compiler()

    def asarray(array: np.ndarray) -> SimpleNamespace:
        held = array.copy()
        return SimpleNamespace(held=held, data=SimpleNamespace(ptr=held.ctypes.data))

    cupy = SimpleNamespace(asarray=asarray, asnumpy=lambda there: there.held, RawModule=Compiled)
    loops, rng = CudaLoops(np, GpuLaunch(cupy)), np.random.default_rng(4)
    for dtype in ("float32", "float64"):
        x = rng.standard_normal((2, 3, 5, 6)).astype(dtype).transpose(0, 2, 1, 3)
        y, index = loops.max_pool(x, (2, 2), (1, 2), ((0, 0), (1, 0)), (2, 3))
        for got, want in zip((y, index), PLAIN.max_pool(x, (2, 2), (1, 2), ((0, 0), (1, 0)), (2, 3)), strict=True):
            np.testing.assert_array_equal(got, want)
        loops.relu(x, x)
        assert x.min() == 0
