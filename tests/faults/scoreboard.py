"""The table of planted faults at the end of a session: who killed whom, and how many of all.

Each fault's test records a property `planted_fault`, which pytest carries from whatever process ran the test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

PROPERTY = "planted_fault"
"""The property's name; its value is a dictionary with `name` and `killers`."""


def write(terminal: object, line: Callable[[str], None]) -> None:
    """Write the table by `line`, if any fault was judged in the session that `terminal` reports."""
    rows = _judged(getattr(terminal, "stats", {}))
    if not rows:
        return
    width = max(map(len, rows))
    line("")
    line(f"{'planted fault':{width}} | killed by")
    line(f"{'-' * width}-|-{'-' * 40}")
    for name, killers in rows.items():
        line(f"{name:{width}} | {_shown(killers)}")
    killed = sum(bool(killers) for killers in rows.values())
    line(f"planted faults: {killed} of {len(rows)} killed")


def _shown(killers: list[str]) -> str:
    """The first one, and how many more."""
    more = f", and {len(killers) - 1} more" if len(killers) > 1 else ""
    return f"{killers[0]}{more}" if killers else "nobody: IT SURVIVES"


def _judged(stats: Mapping[str, list[object]]) -> dict[str, list[str]]:
    """For each fault the checks that killed it, in the order of the reports."""
    reports = [report for outcome in ("passed", "failed") for report in stats.get(outcome, [])]
    properties = [pair for report in reports for pair in getattr(report, "user_properties", [])]
    return {value["name"]: value["killers"] for key, value in properties if key == PROPERTY}
