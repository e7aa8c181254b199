"""One case on a port: whether the port can run it, what it gives, and what is wrong with that."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from purine_ref.conformance.cases.case import Case
from purine_ref.conformance.cases.comparing import compare
from purine_ref.conformance.cases.writing import file_name, write_case
from purine_ref.conformance.comparison import differing_elements
from purine_ref.conformance.driving.faults import PortFault, Unsupported
from purine_ref.conformance.driving.messages import Hello
from purine_ref.conformance.driving.ports import Played, Port
from purine_ref.conformance.tracing import judge_trace
from purine_ref.errors import Refused

Judge = Callable[[Case, Path], str]
"""Why the trace in a file is not that of a legal run of the case; empty where it is."""


def trace_judge(case: Case, trace: Path) -> str:
    """The judge of this package: see `purine_ref.conformance.tracing`."""
    try:
        verdict = judge_trace(trace, case.graph)
    except (Refused, OSError) as error:
        return f"refused: {error}"
    return "" if verdict.passed else f"{verdict.verdict}: {verdict.words}"


def lacking(hello: Hello, case: Case) -> str:
    """What a case needs that the port does not say it has; empty where that is nothing."""
    missing = sorted(set(case.operations) - hello.operations)
    if missing:
        return f"operations {', '.join(missing)}"
    missing = sorted(set(case.dtypes) - hello.dtypes)
    if missing:
        return f"dtypes {', '.join(missing)}"
    places = {blob.location for blob in case.graph.blobs} | {op.location for op in case.graph.ops}
    if len(places) > 1 and not hello.locations:
        return "several locations"
    if len({(op.location, op.stream) for op in case.graph.ops}) > len({op.location for op in case.graph.ops}):
        if not hello.streams:
            return "several streams"
    if any(blob.view is not None for blob in case.graph.blobs) and not hello.views:
        return "views"
    return ""


class Trial:
    """Tries cases on `port`, one after the other, in folders below `work`. `played` counts the runs of cases."""

    def __init__(self, port: Port, work: Path, judge: Judge | None = None) -> None:
        self.port = port
        self.played = 0
        self._work = work
        self._judge = judge

    def fault(self, case: Case, runs: int = 1, folder: Path | None = None) -> PortFault | None:
        """What is wrong with so many runs of a case, or None. `folder` holds the case, where it is in files already.

        Raises Unsupported.
        """
        if folder is None:
            folder = self._work / "case"
            write_case(case, folder, replace=True)
            case = with_files(case)
        first: Played | None = None
        try:
            for number in range(runs):
                played = self._play(folder, case, number)
                fault = self._wrong(case, played)
                if fault is None and first is not None:
                    fault = _unsteady(case, first, played, number)
                if fault is not None:
                    return fault
                first = first or played
        except Unsupported:
            raise
        except PortFault as fault:
            return fault
        return None

    def _play(self, folder: Path, case: Case, number: int) -> Played:
        out = self._work / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        self.played += 1
        return self.port.play(folder, case, out, trace=self._judge is not None)

    def _wrong(self, case: Case, played: Played) -> PortFault | None:
        found = compare(case, played.results)
        if found:
            return PortFault("differs", str(found[0]), finding=found[0])
        bad = self._judge(case, played.trace) if self._judge is not None and played.trace is not None else ""
        return PortFault("trace", bad) if bad else None


def with_files(case: Case) -> Case:
    """The case with the files that `write_case` gives to its expected entries."""
    expected = (replace(e, file=f"expected/{e.iteration}/{file_name(case.graph, e.blob)}") for e in case.expected)
    return replace(case, expected=tuple(expected))


def _unsteady(case: Case, first: Played, other: Played, number: int) -> PortFault | None:
    """A fault when two runs of a case differ in any bit (rule R8)."""
    for entry in case.expected:
        key = entry.iteration, entry.blob
        if differing_elements(other.results[key], first.results[key]):
            where = f"iteration {entry.iteration}, blob {entry.blob!r}"
            return PortFault("unsteady", f"{where}: run {number + 1} of the case gave other bits than run 1 (R8)")
    return None
