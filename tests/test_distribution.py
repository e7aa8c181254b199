"""What is handed out: the source archive has every file, and what is built from it without git is the whole package.

A machine without a compiler is told so at once, and that PURINE_REF_FAST=0 does without.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WATCH = 900.0
"""Seconds after which a build counts as hanging."""

BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
"""What a build frontend runs in the folder of the sources: a hook of PEP 517, and the folder for what it makes."""

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("setuptools") is None, reason="setuptools is not here; install the extra `test`"
)


def files_in_git() -> list[str]:
    """The files of the checkout, or a skip where there is none."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout, so there is no list to compare with")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    return sorted(name for name in listed.split("\0") if name and (ROOT / name).is_file())


def build(kind: str, source: Path, out: Path, **setting: str) -> subprocess.CompletedProcess[str]:
    """Run a hook in `source`, in a fresh interpreter with the settings in its environment."""
    out.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", BUILD, f"build_{kind}", str(out)],
        cwd=source,
        env=os.environ | setting,
        capture_output=True,
        text=True,
        timeout=WATCH,
        check=False,
    )


def build_ext(source: Path, **setting: str) -> subprocess.CompletedProcess[str]:
    """The step that compiles, alone, in `source`."""
    return subprocess.run(
        [sys.executable, "setup.py", "build_ext"],
        cwd=source,
        env={name: value for name, value in os.environ.items() if name != "PURINE_REF_FAST"} | setting,
        capture_output=True,
        text=True,
        timeout=WATCH,
        check=False,
    )


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive of a clean copy of the checkout."""
    work = tmp_path_factory.mktemp("checkout")
    for name in files_in_git():
        (work / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, work / "copy" / name)
    done = build("sdist", work / "copy", work / "dist", PURINE_REF_FAST="0")
    assert done.returncode == 0, done.stderr
    [made] = (work / "dist").iterdir()
    return made


@pytest.fixture(scope="module")
def unpacked(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive's content, where there is no git."""
    place = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as content:
        content.extractall(place, filter="data")
    return place / archive.name.removesuffix(".tar.gz")


def test_the_source_archive_has_every_file_of_the_checkout_and_no_other(archive: Path) -> None:
    with tarfile.open(archive) as content:
        names = {member.name.partition("/")[2] for member in content.getmembers() if member.isfile()}
    made = {name for name in names if name.startswith("purine_ref.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    assert names - made == set(files_in_git())


def test_a_wheel_is_built_without_compiler_and_git_and_has_the_whole_package(unpacked: Path, tmp_path: Path) -> None:
    done = build("wheel", unpacked, tmp_path / "dist", PURINE_REF_FAST="0", CC="/absent/cc")
    assert done.returncode == 0, done.stderr
    [wheel] = (tmp_path / "dist").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as content:
        packed = {name for name in content.namelist() if not name.split("/")[0].endswith((".dist-info", ".data"))}
    package = (file for top in ("purine_ref", "purine_ref_command") for file in (unpacked / top).rglob("*"))
    assert packed == {str(file.relative_to(unpacked)) for file in package if file.is_file()}


def test_a_missing_compiler_is_told_at_once_with_both_ways_out(unpacked: Path) -> None:
    """Before Cython has taken its time, and in every way of building: `build_ext` is a step of all of them."""
    done = build_ext(unpacked, CC="/absent/cc")
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.startswith("error: a file that only includes Python.h could not be compiled (")
    assert "'/absent/cc'" in said
    assert "; install a C compiler and Python's headers (" in said
    assert said.endswith("), or set PURINE_REF_FAST=0 to build without compiled loops and run the plain ones")
    assert "Cythonizing" not in done.stdout


def test_a_build_refuses_a_setting_outside_the_closed_set(unpacked: Path) -> None:
    done = build_ext(unpacked, PURINE_REF_FAST="yes")
    said = "PURINE_REF_FAST: expected auto, 1 or 0, got 'yes'; unset it for auto\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.long
@pytest.mark.timeout(WATCH)
def test_a_wheel_of_the_compiled_loops_runs(unpacked: Path, tmp_path: Path) -> None:
    """Every loop's source has become a module in it, no C is left in it, and it is the one that is chosen."""
    if importlib.util.find_spec("Cython") is None or shutil.which("gcc") is None:
        pytest.skip("Cython or gcc is not here")
    done = build("wheel", unpacked, tmp_path / "dist", PURINE_REF_FAST="1")
    assert done.returncode == 0, done.stderr
    [wheel] = (tmp_path / "dist").iterdir()
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path / "installed")
    fast = tmp_path / "installed" / "purine_ref" / "_fast"
    sources = {file.stem for file in (unpacked / "purine_ref" / "_fast").glob("*.pyx")}
    assert {file.name.partition(".")[0] for file in fast.glob("*.so")} == sources
    assert list((tmp_path / "installed" / "purine_ref").rglob("*.c")) == []  # the example ports have some
    code = "from purine_ref import _fast; print(_fast.FAST, _fast.__file__)"
    shown = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=os.environ | {"PURINE_REF_FAST": "1", "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.stdout == f"True {fast / '__init__.py'}\n", shown.stderr
