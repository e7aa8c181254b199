"""What every suite shares: how hypothesis searches, and how much, and that a run which executed no test fails."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from faults import scoreboard

EXAMPLES = {"dev": 50, "ci": 300, "long": 10_000}
"""Hypothesis profiles: examples per property. HYPOTHESIS_PROFILE chooses; unset, it is ci where CI is set, else dev."""

for variable in ("FORCE_COLOR", "NO_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"):
    os.environ.pop(variable, None)  # what commands print, here and in processes, is what they print by themselves

for name, examples in EXAMPLES.items():
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        print_blob=True,
        derandomize=name != "long",  # the same examples on every machine; the long search draws new ones
        suppress_health_check=[HealthCheck.too_slow],  # which a busy machine is
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder for Unix sockets, whose paths must be short, wherever temporary files are."""
    with tempfile.TemporaryDirectory(prefix="purine-ref-", dir="/tmp") as folder:
        yield Path(folder)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--must-run", action="store_true", help="fail unless at least one test was executed and passed")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """With --must-run, turn a session in which everything was skipped into a failed one."""
    if exitstatus == pytest.ExitCode.OK and showed_nothing(session.config):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The score of the planted faults, and why a session that showed nothing failed."""
    scoreboard.write(terminalreporter, terminalreporter.write_line)
    if showed_nothing(config):
        terminalreporter.write_line("no test was executed and passed, so nothing is shown: --must-run fails")


def showed_nothing(config: pytest.Config) -> bool:
    """Whether --must-run was given and no test has passed; always false in a worker of pytest-xdist."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return bool(config.getoption("--must-run") and reporter and not reporter.stats.get("passed"))
