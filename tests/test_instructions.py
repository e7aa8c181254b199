"""How many instructions the compiled tracker takes for an operator, counted by valgrind: the same number every time.

A time depends on the machine and on what else it does, so no test asserts one. Instructions depend on the code and its
compiler alone. They are counted within `Tracker.walk`, in a process that imports nothing of the package but the
tracker, for each shape of graph that the benchmarks run: in two sizes, whose difference is what operators take.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import purine_ref
from purine_ref.benchmarks.shapes import SHAPES, build
from purine_ref.plan import prepare

PACKAGE = Path(purine_ref.__file__).parent  # the one that was installed, with what was built for it
SIZES = (1010, 2020)
BOUNDS = {"chain": 100, "layers of 100": 110, "random": 115}
"""Instructions per operator and its blob: what gcc 12 makes takes about a tenth less."""

REQUESTS = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; }
void told(const char *name) { CALLGRIND_DUMP_STATS_AT(name); }
"""
"""What a program can ask of valgrind: to begin, since Python's own start takes long; and to write a count."""

PROGRAM = """
import ctypes, json, sys, types
package = types.ModuleType("purine_ref")  # the package itself imports all of it, which takes long here
package.__path__ = [sys.argv[1]]
sys.modules["purine_ref"] = package
from purine_ref._fast import _tracker
requests = ctypes.CDLL(sys.argv[2])
runs = []
for name, first, *lists in json.load(open(sys.argv[3])):
    runs.append((name, first, _tracker.Tracker(_tracker.Edges(*lists))))
requests.start()
for name, first, run in runs:
    run.walk(first)
    requests.told(name.encode())
"""


def skip_without_tools() -> None:
    """Skips, with the reason, where something is not there that the count needs."""
    if os.environ.get("PURINE_REF_FAST") == "0" or importlib.util.find_spec("purine_ref._fast._tracker") is None:
        pytest.skip("the compiled tracker is not in use")
    for tool in ("valgrind", "gcc"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def graphs() -> list[list[object]]:
    """For each shape and size its name, the operators that start, and what `Edges` takes."""
    found: list[list[object]] = []
    for case, shape in SHAPES.items():
        for size in SIZES:
            plan = prepare(build(shape(size), case))
            lists = [[""] * size, list(plan.waiting), list(plan.producers), list(plan.outputs), list(plan.consumers)]
            found.append([f"{case}: {size}", plan.first, *lists])
    return found


def counted(folder: Path) -> dict[str, int]:
    """The instructions of each graph's `walk`, by its name."""
    (folder / "requests.c").write_text(REQUESTS)
    library = folder / "requests.so"
    built = subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", str(folder / "requests.c"), "-o", str(library)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if built.returncode != 0:
        pytest.skip(f"valgrind's header is not installed: {built.stderr.splitlines()[0]}")
    (folder / "graphs.json").write_text(json.dumps(graphs()))
    options = ["--tool=callgrind", "--instr-atstart=no", "--toggle-collect=__pyx_pw_*Tracker*walk"]
    program = [sys.executable, "-P", "-S", "-c", PROGRAM, str(PACKAGE), str(library), "graphs.json"]
    environment = os.environ | {"PURINE_REF_FAST": "1", "PYTHONPATH": str(Path(np.__file__).parent.parent)}
    done = subprocess.run(
        ["valgrind", *options, "--callgrind-out-file=counts", *program],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    dumps = "\n".join(path.read_text() for path in folder.glob("counts.*"))
    found = re.findall(r"Client Request: ([^\n]+)\n.*?^totals: (\d+)$", dumps, re.MULTILINE | re.DOTALL)
    return {name: int(total) for name, total in found}


def test_an_operator_takes_few_instructions(tmp_path: Path) -> None:
    skip_without_tools()
    counts = counted(tmp_path)
    small, large = SIZES
    each = {case: (counts[f"{case}: {large}"] - counts[f"{case}: {small}"]) / (large - small) for case in SHAPES}
    assert all(0 < each[case] <= BOUNDS[case] for case in SHAPES), each
