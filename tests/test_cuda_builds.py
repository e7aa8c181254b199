"""The CUDA kernels under compilers: nvcc, for every compute capability that is meant, and GCC's sanitizers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_shim import require_compiler
from purine_ref.devices.cuda.sources import FAMILIES, FOLDER, OPTIONS, kernels

CAPABILITIES = ["75", "80", "90", "100"]
WATCH = 900.0
"""Seconds after which a process counts as hanging."""

ARITHMETIC = re.compile(r"\b(?:add|sub|mul|div|fma|mad|sqrt|rcp)\.[a-z0-9.]*f(?:32|64)\b")
ATOMIC = re.compile(r"\b(?:atom|red)\.[a-z.]*(?:global|shared)")
POWERS = ("lrn_power", "lrn_power_terms", "__internal_accurate_pow")
"""Where a mathematical library computes a power in its own way."""


def functions(ptx: str) -> dict[str, str]:
    """The functions of a PTX file, by name."""
    found = re.split(r"^(?:\.visible )?\.(?:entry|func) +(?:\(.*\) +)?(\w+)", ptx, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def faults(name: str, text: str) -> list[str]:
    """Instructions that the plain twins' bits, or their being the same on every run, do not allow."""
    found = [one.group() for one in ATOMIC.finditer(text)]
    if name in POWERS:
        return found
    for one in ARITHMETIC.finditer(text):
        kind, *modifiers = one.group().split(".")
        if kind in ("fma", "mad", "rcp") or "rn" not in modifiers or "ftz" in modifiers:
            found.append(one.group())
    return found


def compiled(folder: Path, capability: str, element: str, *options: str) -> dict[str, str]:
    """The functions of all families as PTX, by name."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc here: install CUDA's compiler to check the kernels as PTX")
    files = [str(FOLDER / f"{family}.cu") for family in FAMILIES]
    flags = ["-ptx", f"-arch=compute_{capability}", f"-DREAL={element}", "-Werror", "all-warnings", *options]
    command = [nvcc, *flags, *files]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=WATCH, check=False)
    if "Unsupported gpu architecture" in done.stderr:
        pytest.skip(f"this nvcc knows no compute capability {capability}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    parts = [functions((folder / f"{family}.ptx").read_text("utf-8")) for family in FAMILIES]
    return {name: text for part in parts for name, text in part.items() if "{" in text}


def check(folder: Path, capability: str, element: str) -> None:
    """All kernels are there, with none but the arithmetic that is meant."""
    found = compiled(folder, capability, element, *OPTIONS)
    assert set(found) >= {name for family in FAMILIES for name in kernels(family)}
    assert {name: faults(name, text) for name, text in found.items() if faults(name, text)} == {}


def test_the_kernels_compile_to_ptx_that_rounds_every_operation(tmp_path: Path) -> None:
    """One capability and element type; the others are checked by command."""
    check(tmp_path, CAPABILITIES[0], "float")


@pytest.mark.long
@pytest.mark.timeout(WATCH)
@pytest.mark.parametrize("element", ["float", "double"])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_kernels_compile_for_every_capability(tmp_path: Path, capability: str, element: str) -> None:
    check(tmp_path, capability, element)


@pytest.mark.long
@pytest.mark.timeout(WATCH)
def test_without_the_options_products_and_sums_are_fused(tmp_path: Path) -> None:
    """So the check sees it, and the options are needed."""
    found = compiled(tmp_path, CAPABILITIES[0], "float")
    assert "fma.rn.f32" in faults("momentum_update", found["momentum_update"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("fma.rn.f32 %f1, %f2, %f3, %f4;", ["fma.rn.f32"]),
        ("mul.f32 %f1, %f2, %f3;", ["mul.f32"]),
        ("add.rn.ftz.f32 %f1, %f2, %f3;", ["add.rn.ftz.f32"]),
        ("div.approx.f32 %f1, %f2, %f3;", ["div.approx.f32"]),
        ("sqrt.approx.ftz.f32 %f1, %f2;", ["sqrt.approx.ftz.f32"]),
        ("atom.global.add.f32 %f1, [%rd1], %f2;", ["atom.global", "add.f32"]),
        ("red.global.add.f64 [%rd1], %fd2;", ["red.global", "add.f64"]),
        ("mul.rn.f64 %fd1, %fd2, %fd3; div.rn.f32 %f1, %f2, %f3; mul.lo.s64 %rd1, %rd2, 4;", []),
    ],
)
def test_instructions_that_are_not_meant_are_found(text: str, found: list[str]) -> None:
    assert faults("a_kernel", text) == found


# Sanitizers.

OVERRUN = """
import sys
import numpy as np
from cuda_shim import HostLaunch
from purine_ref.devices.cuda.arguments import axes, strides
x, y = np.ones((1, 1, 1, 9), "f"), np.zeros((1, 1, 1, 8), "f")
arguments = x, strides(x), y, strides(y), axes(x.shape), np.int64(0)
HostLaunch()("layout", "change_layout", x.dtype, 9, arguments)
"""
"""A kernel that is told of an element more than there is."""

REPORTED = 66


def sanitized(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Python under AddressSanitizer and UndefinedBehaviorSanitizer, with kernels that are built with them."""
    require_compiler()
    missing = [name for name in ("gcc", "setarch") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not here: {', '.join(missing)}")
    where = ["gcc", "-print-file-name=libasan.so"]
    loaded = subprocess.run(where, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    if not Path(loaded).is_absolute():
        pytest.skip("gcc has no libasan.so here")
    tests = str(Path(__file__).parent)
    environment = os.environ | {
        "ASAN_OPTIONS": f"exitcode={REPORTED}:detect_leaks=0",
        "CUDA_SHIM_SANITIZE": "-fsanitize=address,undefined -fno-sanitize-recover=all -g1",
        "LD_PRELOAD": loaded,
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join([str(Path(tests).parent), tests]),
        "TMPDIR": str(folder),
    }
    ran = ["setarch", "-R", sys.executable, "-P", *command]
    return subprocess.run(
        ran, env=environment, cwd=Path(tests).parent, capture_output=True, text=True, timeout=WATCH, check=False
    )


def under_sanitizers(folder: Path, *options: str) -> None:
    """The tests of the kernels pass there."""
    tests = str(Path(__file__).with_name("test_cuda_kernels.py"))
    pytest_options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "0"]
    done = sanitized(folder, "-m", "pytest", *pytest_options, *options, tests)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert re.search(r"\b\d+ passed", done.stdout)


def test_every_kernel_passes_under_sanitizers(tmp_path: Path) -> None:
    under_sanitizers(tmp_path, "-k", "test_no_kernel_goes_without_a_launch")


@pytest.mark.long
@pytest.mark.timeout(WATCH)
def test_the_whole_suite_passes_under_sanitizers(tmp_path: Path) -> None:
    under_sanitizers(tmp_path)


def test_an_overrun_is_seen_by_the_guards_and_by_the_sanitizer(tmp_path: Path) -> None:
    done = sanitized(tmp_path, "-c", OVERRUN)
    assert done.returncode == REPORTED, done.stderr
    assert "heap-buffer-overflow" in done.stderr
    require_compiler()
    with pytest.raises(AssertionError, match="were written to"):
        exec(OVERRUN, {})
