"""The compiled loops and teams under GCC's sanitizers, by `sanitize.sh`; by command, since each takes minutes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "sanitize.sh"
NEEDED = ("gcc", "setarch", "sh")
NO_LIBRARY, WRONG_USAGE = 69, 64
WATCH = 3000.0
"""Seconds after which a run counts as hanging."""


def sanitize(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script with this interpreter."""
    command = ["sh", str(SCRIPT), *arguments]
    return subprocess.run(
        command,
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=WATCH,
        check=False,
    )


def test_an_unknown_kind_is_wrong_usage() -> None:
    refused = sanitize("memory")
    assert (refused.returncode, refused.stderr) == (WRONG_USAGE, "expected address or thread, got memory\n")


@pytest.mark.long
@pytest.mark.timeout(WATCH)
@pytest.mark.parametrize("kind", ["address", "thread"])
def test_the_compiled_loops_and_teams_pass(kind: str) -> None:
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing or importlib.util.find_spec("Cython") is None:
        pytest.skip(f"not here: {', '.join([*missing, 'Cython'])}")
    done = sanitize(kind)
    if done.returncode == NO_LIBRARY:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert " passed" in done.stdout
