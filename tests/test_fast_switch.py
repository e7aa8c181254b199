"""PURINE_REF_FAST: a closed set of values; what is asked for is never replaced; a bad build never falls back."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from purine_ref import _fast
from purine_ref._fast import ABI, select


@pytest.fixture
def module_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a module of the given source; returns its name, which nothing has imported yet."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source: str) -> str:
        name = f"stand_in_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


@pytest.mark.parametrize("setting", ["", "yes", "2", "AUTO", "true"])
def test_a_setting_outside_the_closed_set_is_an_error(setting: str) -> None:
    message = rf"^PURINE_REF_FAST: expected auto, 1 or 0, got '{setting}'; unset it for auto$"
    with pytest.raises(ValueError, match=message):
        select(setting)


def test_without_a_build_auto_is_plain_and_1_says_how_to_build() -> None:
    plain = select("0")
    assert plain.__name__ == "purine_ref._fast.loops"
    assert select("auto", "absent_loops") is plain
    message = r"^PURINE_REF_FAST=1 .* absent_loops is not built; build it .*, or set PURINE_REF_FAST=0 .*$"
    with pytest.raises(ImportError, match=message):
        select("1", "absent_loops")


@pytest.mark.parametrize("setting", ["auto", "1"])
def test_a_good_build_is_chosen(setting: str, module_file: Callable[[str], str]) -> None:
    name = module_file(f"ABI = {ABI}")
    assert select(setting, name).__name__ == name
    assert select("0", name).__name__ == "purine_ref._fast.loops"


@pytest.mark.parametrize("setting", ["auto", "1"])
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise ImportError('undefined symbol')", r"present but cannot be loaded \(undefined symbol\)"),
        ("1 / 0", r"present but cannot be loaded \(division by zero\)"),
        (f"ABI = {ABI + 1}", rf"stale: expected ABI {ABI}, it was built for {ABI + 1}"),
        ("", rf"stale: expected ABI {ABI}, it was built for None"),
    ],
)
def test_a_broken_or_stale_build_raises_and_never_falls_back(
    setting: str, source: str, message: str, module_file: Callable[[str], str]
) -> None:
    name = module_file(source)
    with pytest.raises(ImportError, match=rf"^{name} is {message}; build it .*, or set PURINE_REF_FAST=0 .*$"):
        select(setting, name)


def run_python(setting: str, code: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter with PURINE_REF_FAST set."""
    root = str(Path(_fast.__file__).parents[2])
    environment = os.environ | {"PURINE_REF_FAST": setting, "PYTHONPATH": root}
    return subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_environment_decides_at_import() -> None:
    shown = "from purine_ref._fast import FAST, loops; import purine_ref._fast.loops; print(FAST, loops.__name__)"
    plain = run_python("0", shown)
    assert plain.stdout == "False purine_ref._fast.loops\n", plain.stderr
    wrong = run_python("yes", shown)
    assert wrong.returncode != 0
    assert "ValueError: PURINE_REF_FAST: expected auto, 1 or 0, got 'yes'" in wrong.stderr


def test_this_process_uses_what_its_environment_says() -> None:
    setting = os.environ.get("PURINE_REF_FAST", "auto")
    built = importlib.util.find_spec("purine_ref._fast._loops") is not None
    assert _fast.FAST == (setting == "1" or (setting == "auto" and built))
    assert _fast.loops is select("1" if _fast.FAST else "0")


def test_one_compiled_twin_without_its_fellow_is_refused() -> None:
    if importlib.util.find_spec("purine_ref._fast._loops") is None:
        pytest.skip("the compiled loops are not built; run python setup.py build_ext --inplace")
    hidden = (
        "import importlib.util as util; find = util.find_spec; "
        "util.find_spec = lambda name: None if name.endswith('_tracker') else find(name); import purine_ref._fast"
    )
    refused = run_python("auto", hidden)
    assert refused.returncode != 0
    some = "ImportError: of purine_ref._fast._loops, _tracker, _judge and _lines only some are built; build it"
    assert some in refused.stderr
    assert run_python("0", hidden).returncode == 0


ENTRY = "from purine_ref_command import main; main()"
"""What the installed command `purine-ref` runs."""


def test_the_command_tells_a_wrong_setting_in_one_line() -> None:
    refused = run_python("yes", ENTRY)
    said = "error: PURINE_REF_FAST: expected auto, 1 or 0, got 'yes'; unset it for auto\n"
    assert (refused.returncode, refused.stdout, refused.stderr) == (64, "", said)


def test_the_command_tells_in_one_line_that_loops_are_not_built() -> None:
    refused = run_python("1", f"import importlib.util as util; util.find_spec = lambda name: None; {ENTRY}")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: PURINE_REF_FAST=1 asks for the compiled loops, but ")
    assert refused.stderr.count("\n") == 1


def test_the_command_explains_no_other_error() -> None:
    broken = run_python("0", f"import sys; sys.modules['purine_ref.cli'] = None; {ENTRY}")
    assert broken.returncode == 1
    assert "Traceback" in broken.stderr


def test_the_installed_command_starts_there() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["scripts"] == {"purine-ref": "purine_ref_command:main"}
