"""`purine-ref info`: what this installation is and what it found on the machine."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import time
from typing import Any

import click
import numpy as np
from rich.table import Table

from purine_ref import _fast
from purine_ref.cli.report import CODES, json_option, output, seed_option, write_json
from purine_ref.conformance import place_names, scheme_forms
from purine_ref.devices import device_for, kernel_set
from purine_ref.devices.cpu import blas_threads, limit_blas
from purine_ref.devices.cuda import gpu_facts
from purine_ref.devices.kernels import KERNEL_SETS, unusable
from purine_ref.errors import GraphError
from purine_ref.models import MODELS
from purine_ref.tensor import Location

EPILOG = """\b
Examples:
  purine-ref info
  purine-ref info --json -
"""


@click.command(epilog=EPILOG)
@seed_option
@json_option
def info(seed: int, json_file: str | None) -> int:
    """Versions, loops, devices, BLAS, cores."""
    start = time.perf_counter()
    facts = {**gather(), "seed": seed}
    table = Table(show_header=False)
    for name, value in facts.items():
        shown = [gpu_line(item) if isinstance(item, dict) else str(item) for item in _listed(value)]
        table.add_row(name.replace("_", " "), ("\n" if name == "gpus" else ", ").join(shown))
    output(json_file).print(table)
    counts = {"executed": 1, "skipped": 0, "seconds": time.perf_counter() - start}
    write_json(json_file, "info", "pass", {**counts, **facts})
    return CODES["pass"]


def gather() -> dict[str, Any]:
    """The facts, in the order in which to show them."""
    before = blas_threads()
    limit_blas()
    after = blas_threads()
    gpu, gpus = found_gpus()
    return {
        "purine_ref": importlib.metadata.version("purine_ref"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "loops": "compiled" if _fast.FAST else "plain",
        "devices": [device_for(Location()).name],
        "gpu": gpu,
        "gpus": gpus,
        "kernels": [described(name) for name in KERNEL_SETS],
        "blas": [f"{name}: {count} threads, held to {after[name]}" for name, count in before.items()] or ["unknown"],
        "models": list(MODELS),
        "schemes": list(scheme_forms()),
        "places": list(place_names()),
    }


def found_gpus() -> tuple[str, list[dict[str, Any]]]:
    """In a line what there is of GPUs, or is missing and what to do; and the facts of each, as `gpu_facts` has them."""
    try:
        facts = gpu_facts()
    except GraphError as error:
        return str(error), []
    return f"{len(facts)} with CuPy {importlib.import_module('cupy').__version__}", facts


def gpu_line(facts: dict[str, Any]) -> str:
    """A GPU for people."""
    memory = f"{facts['memory'] / 2**30:,.1f} GiB"
    return f"{facts['index']}: {facts['name']}, compute capability {facts['capability']}, {memory}"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def described(name: str) -> str:
    """A kernel set, and what is to be known of it here."""
    if reason := unusable(name):
        return f"{name} (cannot be used: {reason})"
    facts = [*(["default"] if name == kernel_set() else []), *filter(None, [KERNEL_SETS[name].describe()])]
    return f"{name} ({'; '.join(facts)})" if facts else name
