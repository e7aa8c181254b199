"""`check_port`: golden cases, random graphs, schedules and repeated runs, on a port; and what came of each.

Every case has a result: passed, failed, unsupported (the port leaves it out), or skipped (time was over). A failure is
made smaller and kept as a case folder.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from purine_ref.conformance.cases.building import everywhere
from purine_ref.conformance.cases.case import Case
from purine_ref.conformance.driving.drawing import draw_graph
from purine_ref.conformance.driving.faults import PortFault, Unsupported
from purine_ref.conformance.driving.filling import fill
from purine_ref.conformance.driving.results import Result
from purine_ref.conformance.driving.shrinking import Smaller, shrink
from purine_ref.conformance.driving.solving import only
from purine_ref.conformance.driving.trying import Trial, lacking
from purine_ref.conformance.schedules import order_of, pct_schedule, random_schedule
from purine_ref.graph import Graph
from purine_ref.plan import prepare

CHECKS = ("golden", "random", "schedules", "repeat")
"""The checks, in their order."""

SHARES = {"random": 1.0, "schedules": 0.5, "repeat": 0.25}
"""Graphs that each check draws, as a share of `examples`."""

FANS = {"random": 0.2, "schedules": 0.5, "repeat": 0.7}
"""The share of each check's graphs in which the order of additions decides every bit."""

RUNS = 20
"""How often each graph of the check `repeat` is run."""

ORDERS = 3
"""How many orders each graph of the check `schedules` is run in."""

MOST_SHRUNK = 3
"""Of the failures of one check, so many are made smaller, each of another kind or first operation."""

MOST_FAILURES = 10
"""A check of random graphs ends after so many failures: what is wrong is known then."""

MOST_HANGING = 3
"""Any check ends when so many cases have hung: each takes the whole limit."""

MOST_DRAWS = 20
"""How often a random case is drawn before there is none."""

ATTEMPTS = 300
"""How often a case is run, at most, to see whether a fault shows that shows only now and then."""

HURRY = 2.0
"""Seconds of a reply while a case that hangs is made smaller; what is found so is tried once more with all the time."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to check. `examples` are graphs of the check `random`; `seconds` is when to begin no further case.

    `only` has names of checks, and patterns of golden cases' names; empty stands for all. `shrinking` are the seconds
    that making one failure smaller may take, 0 for not at all. `first` ends everything at the first failure.
    """

    examples: int = 100
    seed: int = 0
    seconds: float | None = None
    only: tuple[str, ...] = ()
    shrinking: float = 30.0
    first: bool = False

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks to make."""
        named = tuple(check for check in CHECKS if check in self.only)
        patterned = ("golden",) if self.patterns and "golden" not in named else ()
        return (patterned + named) if self.only else CHECKS

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of golden cases' names; none stands for all of them."""
        return tuple(text for text in self.only if text not in CHECKS)

    def takes(self, name: str) -> bool:
        """Whether a golden case is asked for."""
        return not self.patterns or any(fnmatchcase(name, pattern) for pattern in self.patterns)


Named = Iterable[tuple[str, Callable[[], Case]]]
"""Names of cases, and what makes or reads each."""


def check_port(trial: Trial, golden: Named, options: Options) -> Iterator[Result]:
    """The results of all checks, one by one. `golden` are cases with the entries that they should have.

    A check that time or too many failures cut short ends with one skipped result for the rest. Raises PortFault when
    the port does not say well what it can do, Refused when it cannot be started.
    """
    yield from _Checking(trial, golden, options).results()


def replay_case(trial: Trial, name: str, case: Case, folder: Path) -> Result:
    """The result of one case in a folder, run up to `RUNS` times: a fault may show only now and then."""
    start = time.monotonic()
    size, missing = len(case.graph.ops), lacking(trial.port.hello, case)
    if missing:
        return Result("case", name, "unsupported", reason=missing, operators=size)
    try:
        fault = trial.fault(case, RUNS, folder.absolute())
    except Unsupported as told:
        return Result("case", name, "unsupported", reason=str(told), operators=size)
    facts = {"operators": size, "operations": case.operations, "seconds": time.monotonic() - start}
    if fault is None:
        return Result("case", name, "pass", **facts)  # type: ignore[arg-type]
    return Result("case", name, "fail", fault.kind, fault.reason, **facts)  # type: ignore[arg-type]


class _Checking:
    """One call of `check_port`. `known` are the sorts of failures that were made smaller already."""

    def __init__(self, trial: Trial, golden: Named, options: Options) -> None:
        self.trial = trial
        self.golden = golden
        self.options = options
        self.hello = trial.port.hello
        self.known: dict[str, set[tuple[str, ...]]] = {check: set() for check in CHECKS}
        self.deadline = math.inf if options.seconds is None else time.monotonic() + options.seconds

    def results(self) -> Iterator[Result]:
        """All results, until there are enough failures."""
        makers = {"golden": self.golden_cases, "random": self.random_cases,
                  "schedules": self.scheduled_cases, "repeat": self.repeated_cases}  # fmt: skip
        for check in self.options.checks:
            if check == "schedules" and not self.hello.schedules:
                yield Result(check, "all", "unsupported", reason="schedules")
                continue
            failures: Counter[str] = Counter()
            for name, make, runs in makers[check]():
                ended = self.ended(check, failures)
                if ended:
                    yield Result(check, f"{name} and the rest", "skipped", reason=ended)
                    break
                result = self.result(check, name, make, runs)
                yield result
                failures[result.kind] += result.outcome == "fail"
                if result.outcome == "fail" and self.options.first:
                    return

    def ended(self, check: str, failures: Counter[str]) -> str:
        """Why a check has come to its end, or nothing."""
        if time.monotonic() >= self.deadline:
            return "time was over"
        if failures["hung"] >= MOST_HANGING:
            return f"{failures['hung']} cases of this check have hung"
        if failures.total() >= MOST_FAILURES and check != "golden":
            return f"{failures.total()} cases of this check have failed"
        return ""

    def result(self, check: str, name: str, make: Callable[[], Case | None], runs: int) -> Result:
        """What comes of one case; `make` gives None where there is none after all."""
        start = time.monotonic()
        case = make()
        if case is None:
            return Result(check, name, "skipped", reason="no values were found that can be judged")
        size, missing = len(case.graph.ops), lacking(self.hello, case)
        if missing:
            return Result(check, name, "unsupported", reason=missing, operators=size)
        used = case.operations
        try:
            fault = self.trial.fault(case, runs)
        except Unsupported as told:
            return Result(check, name, "unsupported", reason=str(told), operators=size)
        seconds = time.monotonic() - start
        if fault is None:
            return Result(check, name, "pass", operators=size, operations=used, seconds=seconds)
        smaller = self.smaller(check, case, fault)
        return Result(check, name, "fail", fault.kind, fault.reason, size, used, seconds, smaller)

    # The checks -----------------------------------------------------------------------------------------------------

    def golden_cases(self) -> Iterator[tuple[str, Callable[[], Case | None], int]]:
        """The golden cases that are asked for."""
        for name, make in self.golden:
            if self.options.takes(name):
                yield name, make, 1

    def random_cases(self) -> Iterator[tuple[str, Callable[[], Case | None], int]]:
        """Random graphs."""
        for number in range(self.count("random")):
            name = f"{self.options.seed}/{number}"
            yield name, lambda name=name: self.drawn("random", name), 1  # type: ignore[misc]

    def scheduled_cases(self) -> Iterator[tuple[str, Callable[[], Case | None], int]]:
        """Random graphs, in orders by random priorities and in orders drawn step by step."""
        for number in range(self.count("schedules")):
            for turn in range(ORDERS):
                name = f"{self.options.seed}/{number}/{turn}"
                yield name, lambda name=name, turn=turn: self.ordered(name, turn), 1  # type: ignore[misc]

    def repeated_cases(self) -> Iterator[tuple[str, Callable[[], Case | None], int]]:
        """Random graphs in which several operators write one blob, many times."""
        for number in range(self.count("repeat")):
            name = f"{self.options.seed}/{number}"
            yield name, lambda name=name: self.drawn("repeat", name), RUNS  # type: ignore[misc]

    def count(self, check: str) -> int:
        """How many graphs a check draws."""
        return max(1, round(SHARES[check] * self.options.examples)) if self.options.examples else 0

    def drawn(self, check: str, name: str) -> Case | None:
        """The random case of that name. One that is run often is racy, and is read only where that shows."""
        rng = random.Random(f"{check}/{name}")
        often = check == "repeat"
        for _ in range(MOST_DRAWS):
            drawn = draw_graph(rng, self.hello, fans=FANS[check])
            if drawn is None or (often and not drawn.racy):
                continue
            solved = fill(drawn, rng, f"{check}/{name}", exact=0.3 if often else 0.7)
            if solved is not None:
                return only(solved.case, _ends(solved.case.graph)) if often else solved.case
        return None

    def ordered(self, name: str, turn: int) -> Case | None:
        """The random case of that name, in an order."""
        case = self.drawn("schedules", name.rpartition("/")[0])
        if case is None:
            return None
        plan = prepare(case.graph, everywhere)
        schedule = random_schedule(plan, turn) if turn == 1 else pct_schedule(plan, turn)
        return replace(case, name=f"schedules/{name}", schedule=tuple(order_of(plan, schedule)))

    # Failures -------------------------------------------------------------------------------------------------------

    def smaller(self, check: str, case: Case, fault: PortFault) -> Smaller | None:
        """The case made smaller; None where its sort of failure was made smaller before."""
        sort = fault.kind, *self.guilty(case, fault)
        known = self.known[check]
        if sort in known or len(known) >= MOST_SHRUNK:
            return None
        known.add(sort)
        if not self.options.shrinking:
            return Smaller(case, fault, 0)
        port, limit = self.trial.port, self.trial.port.limit
        again: PortFault | None = fault
        try:
            port.limit = min(limit, HURRY) if fault.kind == "hung" else limit
            attempts = self.attempts(case)
            found = shrink(case, fault, lambda c: self.trial.fault(c, attempts), seconds=self.options.shrinking)
            port.limit = limit
            if found.tried and attempts == 1:  # what shows only now and then has been seen, and may not show again
                again = self.trial.fault(found.case)
        except Unsupported:
            again = None
        finally:
            port.limit = limit
        return found if again is not None else Smaller(case, fault, 0)

    def guilty(self, case: Case, fault: PortFault) -> tuple[str, ...]:
        """The operations that write the blob which differs first."""
        if fault.finding is None or fault.finding.blob not in case.graph:
            return ()
        producers = case.graph[fault.finding.blob].producers
        return tuple(sorted({op.operation.name for op, _ in producers}))

    def attempts(self, case: Case) -> int:
        """How often a smaller case is to be run before it counts as passing: once, where this one always fails."""
        if all(self.trial.fault(case) is not None for _ in range(3)):
            return 1
        before = self.trial.played
        self.trial.fault(case, ATTEMPTS)
        return min(ATTEMPTS, 4 * (self.trial.played - before))


def _ends(graph: Graph) -> set[str]:
    """What shows a wrong order of events: blobs of several producers, and blobs that nobody reads."""
    return {blob.name for blob in graph.blobs if len(blob.producers) > 1 or not blob.consumers}
