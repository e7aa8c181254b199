"""What came of a check: one result for each case, the counts, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from purine_ref.conformance.driving.shrinking import Smaller

STOP = "stop"
"""The check that a port ends as it should."""

OUTCOMES = ("pass", "fail", "unsupported", "skipped")
"""What may come of a case."""


@dataclass(frozen=True, slots=True)
class Result:
    """One case of one check. `kind` and `reason` say what is wrong with it, or why it was not run.

    `operators` counts the graph's, `operations` are their kinds, where it was run; `smaller` is a failure made smaller.
    """

    check: str
    name: str
    outcome: str
    kind: str = ""
    reason: str = ""
    operators: int = 0
    operations: tuple[str, ...] = ()
    seconds: float = 0.0
    smaller: Smaller | None = None

    @property
    def executed(self) -> bool:
        """Whether the port ran it; how the port ended, `STOP`, is no run."""
        return self.outcome in ("pass", "fail") and self.check != STOP


def verdict(results: Sequence[Result], min_executed: int) -> str:
    """fail if any case failed; unknown if fewer ran than must; else pass. What ran nothing never passes."""
    if any(result.outcome == "fail" for result in results):
        return "fail"
    return "pass" if sum(result.executed for result in results) >= max(1, min_executed) else "unknown"


def counts(results: Sequence[Result]) -> dict[str, int]:
    """How many cases had each outcome."""
    found = Counter(result.outcome for result in results)
    return {outcome: found[outcome] for outcome in OUTCOMES}


def never_run(results: Sequence[Result], operations: Collection[str]) -> list[str]:
    """The operations that the port says it has, and that no case has shown to run."""
    ran = {name for result in results if result.executed for name in result.operations}
    return sorted(set(operations) - ran)
