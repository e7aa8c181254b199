"""GPUs, by CuPy: what is there, and the kernels of one. Importing this asks for neither CuPy nor a GPU.

This is the vocabulary alone. Streams, events and copies between places are not written yet, so no executor takes a GPU;
nothing here has been run on one. Without any GPU, the kernels' own sources are checked on the CPU, and compiled.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from typing import Any

from purine_ref.devices.cuda.kernels import CudaKernels, CupyLaunch
from purine_ref.errors import GraphError
from purine_ref.operation import RunKey

__all__ = ["CudaDevice", "cuda_device", "outlook"]

CUPY = (13, 14)
"""The major versions of CuPy whose names are used."""

CAPABILITY = (7, 5)
"""The least compute capability that the kernels are compiled for."""

INSTALL = "install cupy-cuda12x or cupy-cuda13x, whichever fits the driver's CUDA, or place it on a CPU"


class CudaDevice:
    """The kernels of GPU `index`. Made by `cuda_device`."""

    name = "cuda"

    def __init__(self, index: int, cupy: Any) -> None:
        self.index = index
        self._cupy = cupy
        self._launch = CupyLaunch(cupy)

    def kernels(self, key: RunKey) -> CudaKernels:
        """The vocabulary for one run. It works on the GPU that is CuPy's current device."""
        return CudaKernels(key, self._cupy, self._launch)

    @staticmethod
    def missing(loops: frozenset[str]) -> tuple[str, ...]:
        """Those of `loops` that there is no kernel for, sorted (rule R13)."""
        return tuple(sorted(name for name in loops if not hasattr(CudaKernels, name)))


def cuda_device(index: int = 0) -> CudaDevice:
    """GPU `index`, from 0. Raises GraphError that says what is missing and what to do."""
    where = f"no GPU {index}"
    cupy = _cupy(where)
    _require_driver(where, cupy.cuda.runtime)
    _require_device(where, cupy.cuda.runtime, index)
    return CudaDevice(index, cupy)


def outlook() -> str:
    """In a line, whether GPUs can be asked for here, as far as that can be told without loading CuPy."""
    if importlib.util.find_spec("cupy") is None:
        return "no GPU: CuPy is not installed"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no GPU: CuPy is installed, but no NVIDIA driver was found"
    return "CuPy and an NVIDIA driver are there; the kernels have not been run on a GPU, and no executor takes one yet"


def _cupy(where: str) -> Any:
    """The module. Raises GraphError where it is not there, cannot be loaded, or has another version."""
    try:
        cupy = importlib.import_module("cupy")
    except ModuleNotFoundError as error:
        if error.name == "cupy":
            raise GraphError(f"{where}: CuPy is not installed; {INSTALL}") from error
        raise GraphError(f"{where}: CuPy needs {error.name}, which is not installed; {INSTALL}") from error
    except Exception as error:  # whatever a broken installation raises
        raise GraphError(f"{where}: CuPy is installed, but cannot be loaded ({error}); {INSTALL}") from error
    version = str(getattr(cupy, "__version__", "unknown"))
    if version.partition(".")[0] not in map(str, CUPY):
        wanted = " or ".join(map(str, CUPY))
        raise GraphError(f"{where}: expected CuPy {wanted}, got {version}; {INSTALL}")
    return cupy


def _require_driver(where: str, runtime: Any) -> None:
    """Raises GraphError unless there is a driver that serves the CUDA version that CuPy was built for."""
    driver, built = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    if driver == 0:
        raise GraphError(f"{where}: no NVIDIA driver was found; install one, or place it on a CPU")
    if driver // 1000 < built // 1000:
        raise GraphError(
            f"{where}: the NVIDIA driver serves CUDA {_version(driver)}, but this CuPy was built for CUDA "
            f"{_version(built)}; install cupy-cuda{driver // 1000}x, or a newer driver"
        )


def _require_device(where: str, runtime: Any, index: int) -> None:
    """Raises GraphError unless there is such a GPU, and it is new enough."""
    try:
        count = runtime.getDeviceCount()
    except RuntimeError as error:
        raise GraphError(f"{where}: CUDA does not start ({error}); see whether nvidia-smi works") from error
    if not 0 <= index < count:
        there = f"there are {count}, numbered from 0" if count else "none is visible"
        raise GraphError(f"{where}: {there}; see nvidia-smi and CUDA_VISIBLE_DEVICES, or place it on a CPU")
    facts = runtime.getDeviceProperties(index)
    capability = (facts["major"], facts["minor"])
    if capability < CAPABILITY:
        least, came = (".".join(map(str, pair)) for pair in (CAPABILITY, capability))
        raise GraphError(f"{where}: expected compute capability {least} or more, got {came}; use another GPU, or a CPU")


def _version(number: int) -> str:
    """CUDA's version of a number such as 12040."""
    return f"{number // 1000}.{number % 1000 // 10}"
