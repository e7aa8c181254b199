"""Runs the checks of a fault while it is planted, and says of each whether it failed, and why.

Run as a module, `python -m faults.judge NAME CHECK ...`, it plants one fault, or nothing for an empty name, and prints
a line of JSON when a check begins and when it ends. A check that takes longer than `LIMIT` ends that process, and the
checks after it are run in another one; none takes a tenth of it when nothing is planted and the machine is not busy.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from faults.catalogue import ALL, PARALLEL
from faults.checks import find
from faults.fault import Fault

LIMIT = 5.0
"""Seconds that a check may take in a process of its own."""

UNHURRIED = 12 * LIMIT
"""The same where nothing is planted, so that none is thought to hang that does not."""

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
        return judge_in_a_process(fault.name, fault.checks)
    checks = {name: find(name) for name in fault.checks}
    with fault.plant():
        told = {name: outcome(check) for name, check in checks.items()}
    return {name: reason for name, reason in told.items() if reason is not None}


def killers(killed: Mapping[str, str]) -> list[str]:
    """The checks that `judge` found to fail, for a table."""
    return [f"{check} (time-out)" if reason == TIME_OUT else check for check, reason in killed.items()]


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _raised_here(error: BaseException) -> bool:
    """Whether the error came out of the catalogue itself."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).parent == HERE


def judge_in_a_process(name: str, checks: Sequence[str]) -> dict[str, str]:
    """The checks that fail in a process of their own, each with the reason, while the fault of that name is planted.

    The check that the process was at when its time was over did not end. Raises Misplanted when no check could begin.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    told: dict[str, str | None] = {}
    while left := [check for check in checks if check not in told]:
        command = [sys.executable, "-P", "-m", "faults.judge", name, *left]
        most = 20 * LIMIT * len(left)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=most, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        found = {line["check"]: line.get("reason", TIME_OUT) for line in lines}
        if not found or (done.returncode and TIME_OUT not in found.values()):
            raise Misplanted(f"fault {name!r} could not be judged:\n{done.stderr}")
        told |= found
    return {check: reason for check, reason in told.items() if reason is not None}


def main(name: str, *names: str) -> None:
    """Judge one fault in this process by the checks of these names."""
    checks = {check: find(check) for check in names}
    plants = {fault.name: fault.plant for fault in (*ALL, *PARALLEL)} | {"": contextlib.nullcontext}
    with plants[name]():
        for check, call in checks.items():
            print(json.dumps({"check": check}), flush=True)
            faulthandler.dump_traceback_later(LIMIT if name else UNHURRIED, exit=True)
            reason = outcome(call)
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps({"check": check, "reason": reason}), flush=True)
    os._exit(0)  # a fault may have left threads behind that nobody can wait for


if __name__ == "__main__":
    main(*sys.argv[1:])
