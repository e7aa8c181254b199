"""Which check finds which planted fault, how soon, and how small its case comes back.

The right port is checked first. It must pass, and the cases that it was given are kept: every faulty port is given the
same ones, as far as its fault can show in them. Each check goes on to its first failure.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from purine_ref.conformance.cases.case import Case
from purine_ref.conformance.cases.writing import write_case
from purine_ref.conformance.driving import Options, PortFault, SessionPort, Trial, check_port, open_port
from purine_ref.conformance.driving.checking import Named
from purine_ref.conformance.driving.trying import trace_judge, with_files
from purine_ref.conformance.strength.faults import Fault

EXAMPLES = 200
"""Random graphs of the check `random`; the other checks take a share of them."""

COLUMNS = ("golden", "random", "schedules", "repeat", "trace")
"""What may find a fault. The first four compare values; `trace` judges traces, and nothing else."""

OF_OPERATORS = ("golden", "random")
"""What a wrong operator is given. The graphs of the other checks are like those of `random`."""

MOST_OPERATORS = 4
"""The median of the cases that come back has at most so many operators."""

LIMIT = 10.0
"""Seconds that a reply may take."""

SHRINKING = 8.0
"""Seconds that making one failure smaller may take."""


Place = str | int
"""Where a case stands in its check."""


@dataclass(frozen=True, slots=True)
class Given:
    """A case that a check gives to a port, in a folder, and how often it is run.

    `place` is a golden case's name, or else the number of the random graph, from 1.
    """

    check: str
    place: Place
    case: Case
    folder: Path
    runs: int


@dataclass(frozen=True, slots=True)
class Score:
    """What became of a fault: for each column that was tried the place of the case that found it, or None.

    `operators` are those of the case that came back, None where none did; `kind` is how it failed.
    """

    fault: Fault
    found: dict[str, Place | None] = field(default_factory=dict)
    operators: int | None = None
    kind: str = ""

    @property
    def killed(self) -> bool:
        """Whether any check has found it."""
        return any(place is not None for place in self.found.values())


class _Keeping(Trial):
    """A trial that keeps what it is given, in folders of its own."""

    def __init__(self, port: SessionPort, work: Path, stock: Path) -> None:
        super().__init__(port, work, trace_judge)
        self.stock = stock
        self.kept: list[tuple[Case, Path, int]] = []

    def fault(self, case: Case, runs: int = 1, folder: Path | None = None) -> PortFault | None:
        """Write the case, note it, and try it."""
        folder = self.stock / str(len(self.kept))
        write_case(case, folder)
        self.kept.append((with_files(case), folder, runs))
        return super().fault(self.kept[-1][0], 1, folder)


class Measure:
    """Measures faults planted into the port in `source`; files go below `work`. Frozen after it is made.

    Making it runs all checks on the right port; `problem` is its first failure, or empty. `seen` is called with the
    name of each case.
    """

    def __init__(
        self, source: Path, work: Path, golden: Named, *, examples: int = EXAMPLES, seed: int = 0,
        seen: Callable[[str], None] = lambda name: None,
    ) -> None:  # fmt: skip
        self.source = source
        self.problem = ""
        self._work = work
        self._options = Options(examples=examples, seed=seed, shrinking=0.0)
        self.stock = list(self._collect(golden, seen))

    def _collect(self, golden: Named, seen: Callable[[str], None]) -> Iterator[Given]:
        (self._work / "right").mkdir()
        with _port(self.source / "port.py") as port:
            trial = _Keeping(port, self._work / "right", self._work / "stock")
            for result in check_port(trial, golden, self._options):
                seen(f"{result.check} {result.name}")
                if result.outcome == "fail" and not self.problem:
                    self.problem = f"{result.check} {result.name}: {result.kind}: {result.reason}"
                if result.executed:
                    case, folder, runs = trial.kept[-1]
                    random = result.check != "golden"
                    place: Place = int(result.name.split("/")[1]) + 1 if random else result.name
                    yield Given(result.check, place, case, folder, runs)

    def scores(self, faults: Iterable[Fault], jobs: int = 1) -> Iterator[Score]:
        """The scores of faults, in their order; `jobs` are measured at once."""
        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(self.score, faults)

    def score(self, fault: Fault) -> Score:
        """Plant a fault and see what finds it."""
        folder = self._work / fault.name
        program = fault.plant(self.source, folder / "port")
        (folder / "work").mkdir()
        try:
            with _port(program) as port:
                found = {column: self._first(fault, column, port, folder / "work") for column in self._columns(fault)}
                killers = {column: given for column, given in found.items() if given is not None}
                places = {column: None if given is None else given.place for column, given in found.items()}
                operators, kind = self._smallest(killers, port, folder / "work") if killers else (None, "")
            return Score(fault, places, operators, kind)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _columns(self, fault: Fault) -> tuple[str, ...]:
        return OF_OPERATORS if fault.operations else COLUMNS

    def _first(self, fault: Fault, column: str, port: SessionPort, work: Path) -> Given | None:
        """The first case of a column that finds a fault."""
        trial = Trial(port, work, trace_judge if column == "trace" else None)
        for given in self._given(fault, column):
            case = replace(given.case, expected=()) if column == "trace" else given.case
            if trial.fault(case, given.runs, given.folder) is not None:
                return given
        return None

    def _given(self, fault: Fault, column: str) -> Iterator[Given]:
        """The cases of a column in which a fault can show: of a wrong operator those that have it; of a wrong
        dispatcher those of more than one operation by itself. Traces are those of all graphs, random and golden.
        """
        for given in self.stock:
            alone = str(given.place).startswith("operators/")
            right = given.check in ("golden", "random") and not alone if column == "trace" else given.check == column
            if fault.operations:
                right = right and bool(fault.operations & set(given.case.operations))
            elif given.check == "golden":
                right = right and not (alone and len(given.case.graph.ops) == 1)
            if right:
                yield given

    def _smallest(self, killers: dict[str, Given], port: SessionPort, work: Path) -> tuple[int | None, str]:
        """The operators of the case that a check hands back, and how it fails; a random graph where one did."""
        for column in ("random", "schedules", "repeat", "golden", "trace"):
            if column not in killers:
                continue
            killer = killers[column]
            golden = [(killer.case.name, lambda killer=killer: killer.case)]
            options = replace(self._options, only=(killer.check,), shrinking=SHRINKING, first=True)
            for result in check_port(Trial(port, work, trace_judge), golden, options):
                if result.smaller is not None:
                    return len(result.smaller.case.graph.ops), result.smaller.fault.kind
        return None, ""


class _port(closing[SessionPort]):
    """The session of a port in plain Python, which is given up at the end, whatever state it is in."""

    def __init__(self, program: Path) -> None:
        port = open_port(shlex.join([sys.executable, "-B", str(program)]), limit=LIMIT)
        assert isinstance(port, SessionPort)
        super().__init__(port)

    def __exit__(self, *facts: object) -> None:
        with suppress(PortFault):
            super().__exit__(*facts)
