"""Runs the checks of a fault while it is planted, and says of each whether it failed, and why.

Run as a module, `python -m faults.judge NAME`, it judges one fault and prints a line of JSON for each check. A check
that takes longer than `LIMIT` ends that process; no check takes a tenth of it when nothing is planted.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.catalogue import ALL
from faults.checks import find
from faults.fault import Fault

LIMIT = 5.0
"""Seconds that a check may take in a process of its own."""

TIME_OUT = "did not end"

HERE = Path(__file__).parent


class Misplanted(Exception):
    """A planted fault raised an error of its own: that is no kill, since any check would notice it."""


def outcome(check: Callable[[], None]) -> str | None:
    """None when the check passes, else what it raised. Raises Misplanted when the catalogue's own code raised it."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            check()
    except (Exception, pytest.fail.Exception) as error:
        if _raised_here(error):
            raise Misplanted(_told(error)) from error
        return _told(error)
    return None


def judge(fault: Fault) -> dict[str, str]:
    """The checks of the fault that fail while it is planted, each with the reason."""
    if fault.isolated:
        return _judge_in_a_process(fault.name)
    checks = {name: find(name) for name in fault.checks}
    with fault.plant():
        told = {name: outcome(check) for name, check in checks.items()}
    return {name: reason for name, reason in told.items() if reason is not None}


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _raised_here(error: BaseException) -> bool:
    """Whether the error came out of the catalogue itself."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).parent == HERE


def _judge_in_a_process(name: str) -> dict[str, str]:
    """What `main` prints; the check that it was at when its time was over did not end."""
    paths = [str(HERE.parent), str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "faults.judge", name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20 * LIMIT, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    begun = {line["check"]: line.get("reason", TIME_OUT) for line in lines}
    if not begun or (done.returncode and TIME_OUT not in begun.values()):
        raise Misplanted(f"fault {name!r} could not be judged:\n{done.stderr}")
    return {check: reason for check, reason in begun.items() if reason is not None}


def main(name: str) -> None:
    """Judge one fault in this process: before each check its name is printed, and afterwards also what it raised."""
    [fault] = [fault for fault in ALL if fault.name == name]
    checks = {name: find(name) for name in fault.checks}
    with fault.plant():
        for name, check in checks.items():
            print(json.dumps({"check": name}), flush=True)
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            reason = outcome(check)
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps({"check": name, "reason": reason}), flush=True)
    os._exit(0)  # a fault may have left threads behind that nobody can wait for


if __name__ == "__main__":
    main(sys.argv[1])
