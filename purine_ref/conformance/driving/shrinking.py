"""A failing case made smaller: fewer operators and iterations, smaller dimensions, simpler attributes, zeros, no order.

A greedy search in the manner of delta debugging (Zeller and Hildebrandt, IEEE TSE 28, 2002): *reductions* propose
smaller material, and what still fails in the same way takes its place, until nothing helps or time is over. The value
that differs first names the operators to begin with. A fault that shows only now and then is tried several times
before a proposal counts as passing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from purine_ref.conformance.cases.case import Case
from purine_ref.conformance.driving.faults import PortFault, Unsupported
from purine_ref.conformance.driving.material import Material, cut, whole
from purine_ref.conformance.driving.reducing import REDUCTIONS, Reduction
from purine_ref.conformance.driving.solving import Solved, Unjudged, solve
from purine_ref.errors import PurineError

Fails = Callable[[Case], PortFault | None]
"""What is wrong with a case on the port. May raise Unsupported."""

MOST_TRIED = 2000
"""So many proposals are tried at most."""

ALIKE = (frozenset({"differs", "unsteady"}),)
"""Kinds of faults that may be one fault: which one shows depends on chance."""


@dataclass(frozen=True, slots=True)
class Smaller:
    """The smallest failing case found, its fault, and how many cases were tried for it."""

    case: Case
    fault: PortFault
    tried: int


def shrink(case: Case, fault: PortFault, fails: Fails, *, seconds: float = 60.0) -> Smaller:
    """The smallest case found within about so many seconds that fails as `case` does, with `fault`.

    It is `case` itself where the reference cannot judge it anew, or where it does not fail again.
    """
    search = _Search(fails, fault, time.monotonic() + seconds)
    try:
        with np.errstate(all="ignore"):
            solved = solve(case)
    except (PurineError, NotImplementedError):
        return Smaller(case, fault, 0)
    search.take(solved, fault)
    search.fewer_operators()
    before = None
    while search.best is not before:
        before = search.best
        for reduction in REDUCTIONS:
            search.reduce(reduction)
        search.fewer_operators()
    if search.best is solved:
        return Smaller(case, fault, search.tried)
    return Smaller(search.best.case, search.fault, search.tried)


class _Search:
    """One call of `shrink`. `best` is the smallest failing case yet, and `fault` what is wrong with it."""

    best: Solved

    def __init__(self, fails: Fails, fault: PortFault, deadline: float) -> None:
        self.fault = fault
        self.tried = 0
        self._fails = fails
        self._deadline = deadline
        self._kinds = next((kinds for kinds in ALIKE if fault.kind in kinds), frozenset({fault.kind}))

    @property
    def late(self) -> bool:
        """Whether time is over, or enough was tried."""
        return time.monotonic() >= self._deadline or self.tried >= MOST_TRIED

    def take(self, solved: Solved, fault: PortFault) -> None:
        """Go on from a smaller case."""
        self.best, self.fault = solved, fault

    def attempt(self, propose: Callable[[], Material]) -> bool:
        """Build a proposal and try it; whether it fails in the right way and was taken."""
        if self.late:
            return False
        try:
            with np.errstate(all="ignore"):
                solved = propose().solved()
            self.tried += 1
            fault = self._fails(solved.case)
        except (Unsupported, Unjudged):
            return False
        except Exception:  # a proposal need not be possible: operations meet shapes and values that never fit
            return False
        if fault is None or fault.kind not in self._kinds:
            return False
        self.take(solved, fault)
        return True

    def reduce(self, reduction: Reduction) -> None:
        """Take proposals of one reduction for as long as some helps."""
        going_on = True
        while going_on and not self.late:
            proposals = reduction(self.best, whole(self.best))
            going_on = any(self.attempt(partial(_itself, proposal)) for proposal in proposals)

    def fewer_operators(self) -> None:
        """First only what makes the value that differs; then without ever smaller groups of operators."""
        self.only_guilty()
        count = 2
        while count <= 2 * len(self.names()) and not self.late:
            names = self.names()
            size = max(1, len(names) // count)
            groups = [set(names[i : i + size]) for i in range(0, len(names), size)]
            if len(names) > 1 and any(self.keep(set(names) - group, self.iterations()) for group in groups):
                count = max(2, count - 1)
            elif size == 1:
                return
            else:
                count *= 2

    def only_guilty(self) -> None:
        """The operators that write the blob which differs first, when it does; then fewer iterations."""
        finding = self.fault.finding
        if finding is not None and finding.blob in self.best.case.graph:
            guilty = {op.name for op, _ in self.best.case.graph[finding.blob].producers}
            if guilty and len(guilty) < len(self.names()):
                spans = ((finding.iteration,), self.iterations())
                if any(self.keep(guilty, span) for span in spans):
                    return
        every = self.iterations()
        for span in (*((i,) for i in every), *(every[:length] for length in range(2, len(every)))):
            if len(every) > 1 and self.keep(set(self.names()), span):
                return

    def keep(self, names: set[str], iterations: Sequence[int]) -> bool:
        """Whether these operators alone fail in these iterations; then they are all that is left."""
        return self.attempt(partial(cut, self.best, names, iterations))

    def names(self) -> list[str]:
        """The operators that are left."""
        return [op.name for op in self.best.case.graph.ops]

    def iterations(self) -> range:
        """The iterations that are left."""
        return range(len(self.best.before))


def _itself(material: Material) -> Material:
    return material
