"""Whether there is a GPU that can be used: CuPy, the driver, the devices. Each lack is told with what to do."""

from __future__ import annotations

import importlib
from typing import Any

from purine_ref.errors import GraphError

CUPY = (13, 14)
"""The major versions of CuPy whose names are used."""

CAPABILITY = (7, 5)
"""The least compute capability that the kernels are compiled for."""

INSTALL = "install cupy-cuda12x or cupy-cuda13x, whichever fits the driver's CUDA, or place it on a CPU"


def gpu_facts(cupy: Any = None) -> list[dict[str, Any]]:
    """What the GPUs of this machine are: `index`, `name`, compute `capability` such as "9.0", and `memory` in bytes.

    Raises GraphError that says what is missing and what to do where there is none.
    """
    cupy = require_gpu(cupy)
    runtime = cupy.cuda.runtime
    facts = [(index, runtime.getDeviceProperties(index)) for index in range(runtime.getDeviceCount())]
    return [
        {
            "index": index,
            "name": _text(fact["name"]),
            "capability": f"{fact['major']}.{fact['minor']}",
            "memory": int(fact["totalGlobalMem"]),
        }
        for index, fact in facts
    ]


def require_gpu(cupy: Any = None, index: int = 0) -> Any:
    """CuPy, where it finds GPU `index`. Raises GraphError that says what is missing and what to do."""
    where = f"no GPU {index}"
    module = _cupy(where) if cupy is None else cupy
    _require_driver(where, module.cuda.runtime)
    _require_device(where, module.cuda.runtime, index)
    return module


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


def _text(name: Any) -> str:
    """A name that CUDA gives as bytes."""
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
