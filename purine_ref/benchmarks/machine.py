"""The machine that figures were measured on, and the memory that a process takes of it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
from pathlib import Path

import numpy as np
import threadpoolctl

from purine_ref import _fast

PEERS = ("torch", "dask", "onednn-cpu-gomp", "pyzmq", "mpi4py", "cupy-cuda12x", "cupy-cuda13x")
"""Distributions whose versions are told where they are installed."""


def describe() -> dict[str, str]:
    """Cores and processor, memory, versions, BLAS, loops, all as text."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": f"{cores} cores, {processor()}",
        "memory": memory(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "numpy": np.__version__,
        "blas": blas(),
        "loops": "compiled" if _fast.FAST else "plain",
        "system": f"{platform.system()} {platform.machine()}",
        **{name: version for name in PEERS if (version := _version(name)) is not None},
    }


def line() -> str:
    """The machine in one line."""
    return "; ".join(f"{key} {value}" for key, value in describe().items())


def processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


def memory() -> str:
    """Bytes of memory in the machine, in millions, where the system tells it."""
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e6:,.0f} MB"
    except (ValueError, OSError):
        return "unknown"


def blas() -> str:
    """The BLAS that numpy uses: its name, version and the kernels that it chose for this processor."""
    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    own = [pool for pool in pools if "numpy" in pool["filepath"]] or pools
    return ", ".join(
        " ".join([pool["internal_api"], str(pool["version"]), pool.get("architecture", "")]).strip() for pool in own
    ) or "unknown"  # fmt: skip


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def resident() -> int:
    """Bytes of memory that this process has now; on systems that do not tell, the most that it had."""
    return _status("VmRSS") or greatest()


def greatest() -> int:
    """Bytes of memory that this process had at most.

    On Linux that is the kernel's high-water mark, since `getrusage` counts what the parent had when it made the child.
    """
    unit = 1 if platform.system() == "Darwin" else 1024
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(key: str) -> int | None:
    """A field of Linux's status of this process, in bytes; None elsewhere."""
    file = Path("/proc/self/status")
    lines = file.read_text("ascii", "replace").splitlines() if file.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), None)
