"""The main job: run a graph under several schemes beside the serial executor, and compare every tensor after each step.

All run in lock step: each step feeds the same arrays to all, runs all, and compares every piece of what each holds with
what the serial executor holds: activations, gradients, update histories, and the parameters for the next step. Where a
scheme does not divide the graph, and in exact mode (rule R10), every bit must agree. Elsewhere sums may be added in
another order, and a `Judge` says how far the difference may go (rule R11).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from purine_ref.conformance.comparison import differing_elements
from purine_ref.conformance.schemes import Scheme
from purine_ref.conformance.session import Session, part_of
from purine_ref.executors import Executor, Serial
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Array
from purine_ref.parallel import Piece


class Judge(Protocol):
    """How far a composed graph may be from the serial one, step by step; one for each scheme."""

    def begin(self, arrays: dict[str, Array]) -> None:
        """A step begins that is fed with `arrays`, by the serial graph's names."""

    def ratio(self, name: str, piece: Piece, got: Array, want: Array) -> float:
        """The largest |got - want| / bound over a piece of the blob `name`; decisions within the spread left out."""

    @property
    def kinks(self) -> int:
        """How many decisions lay within the spread of rounding errors so far."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What to run: a graph, and what to feed it at each step, by blob name.

    `exact_feeds`, if given, makes the feeds from the step and the serial executor instead, so that all sums are exact;
    `judge` makes the judge for a scheme's session.
    """

    model: str
    dtype: str
    graph: Graph
    feeds: Callable[[int], dict[str, Array]]
    steps: int
    exact_feeds: Callable[[int, Executor], dict[str, Array]] | None = None
    judge: Callable[[Session], Judge] | None = None


@dataclass(slots=True)
class Comparison:
    """One scheme's result on one workload, growing step by step.

    `operators` counts operators run, `compared` pieces of tensors compared, `differing` elements that differ in any bit,
    over all steps. `exact` says that none may, `ratio` is the largest error over its bound where some may, and `kinks`
    counts decisions within the spread of rounding errors. `first` tells the first tensor that differed by more than it
    may, in topological order, with the step; or another fault, such as a race.
    """

    scheme: str
    model: str
    dtype: str
    exact: bool = False
    operators: int = 0
    compared: int = 0
    differing: int = 0
    seconds: float = 0.0
    first: str | None = None
    ratio: float | None = None
    kinks: int = 0
    steps: int = field(default=0, repr=False)
    bounded: bool = field(default=False, repr=False)

    @property
    def verdict(self) -> str:
        """fail at a fault, or a difference beyond what is allowed; unknown if nothing was compared, or not judged."""
        if self.first is not None or (self.differing and not self.bounded):
            return "fail"
        judged = self.ratio is not None or not self.differing
        return "pass" if self.compared and self.operators and judged else "unknown"

    @property
    def max_error_over_bound(self) -> float | None:
        """0 where every bit agrees; else the largest error over its bound, or None where no bound was derived."""
        if not self.compared:
            return None
        return self.ratio if self.differing else 0.0


def verify(
    workload: Workload, schemes: Sequence[Scheme], seed: int, progress: Callable[[Comparison], None] = lambda _: None
) -> list[Comparison]:
    """Compare every scheme with the serial executor; `progress` is called after each scheme's step.

    Raises what the executors raise: GraphError for a scheme that does not fit the graph, and operators' own errors.
    """
    exact = workload.exact_feeds is not None
    sessions: list[Session] = []
    with Serial(workload.graph, seed=seed) as serial:
        names = list(comparable(serial))
        try:
            for scheme in schemes:
                opened = scheme.open(workload.graph, seed)
                sessions.append(opened if isinstance(opened, Session) else Session(opened, workload.graph))
            runs = [_Run(workload, scheme, session) for scheme, session in zip(schemes, sessions, strict=True)]
            for step in range(workload.steps):
                arrays = workload.exact_feeds(step, serial) if workload.exact_feeds else workload.feeds(step)
                serial.feed(arrays)
                serial.run()
                want = {name: serial.fetch(name) for name in names}
                for run in runs:
                    run.step(arrays, want)
                    progress(run.result)
        finally:
            for session in sessions:
                session.close()
    for run in runs:
        run.result.exact = exact
    return [run.result for run in runs]


def comparable(executor: Executor) -> Iterator[str]:
    """The names of all blobs that hold their value after a run, in the topological order of what made these values.

    Left out: what was overwritten in place, and the blobs that a swap filled with the values before the update. What
    the swap brought in was made where the update wrote it.
    """
    swapped_in = dict(executor.graph.pairs)
    stale = set(swapped_in.values())
    position = {index: place for place, index in enumerate(executor.plan.order)}

    def made(blob: Blob) -> tuple[int, int]:
        producers = swapped_in.get(blob, blob).producers
        return max((position[op.index] for op, _ in producers), default=-1), blob.index

    for blob in sorted(executor.graph.blobs, key=made):
        if blob not in executor.plan.lost and blob not in stale:
            yield blob.name


class _Run:
    """One scheme beside the serial executor."""

    def __init__(self, workload: Workload, scheme: Scheme, session: Session) -> None:
        bounded = scheme.divides and workload.exact_feeds is None
        exact = workload.exact_feeds is not None
        self.result = Comparison(scheme.text, workload.model, workload.dtype, exact, bounded=bounded)
        self._session = session
        self._judge = workload.judge(session) if bounded and workload.judge is not None else None

    def step(self, arrays: dict[str, Array], want: dict[str, Array]) -> None:
        """Feed, run, and compare everything."""
        result = self.result
        self._session.feed(arrays)
        start = time.perf_counter()
        self._session.run()
        result.seconds += time.perf_counter() - start
        result.operators += len(self._session.graph.ops)
        result.steps += 1
        if self._judge is not None:
            self._judge.begin(arrays)
        for name, array in want.items():
            for piece, got in self._session.pieces(name):
                self._compare(name, piece, got, part_of(array, piece.box))
        if self._judge is not None:
            result.kinks = self._judge.kinks
        for fault in self._session.faults()[:1]:
            result.first = result.first or f"{fault} at step {result.steps}"

    def _compare(self, name: str, piece: Piece, got: Array, want: Array) -> None:
        result = self.result
        result.compared += 1
        differing = differing_elements(got, want)
        result.differing += differing
        where = f"{piece.blob.name} at step {result.steps}"
        if differing and not result.bounded:
            result.first = result.first or f"{where}: {differing} of {want.size} elements differ{_values(got, want)}"
        elif self._judge is not None:
            ratio = self._judge.ratio(name, piece, got, want) if differing else 0.0
            result.ratio = max(ratio, result.ratio or 0.0)
            if ratio > 1:
                result.first = result.first or f"{where}: {ratio:.3g} times its bound{_values(got, want)}"


def _values(got: Array, want: Array) -> str:
    """Both values where they differ most, for the eye; nothing where the shapes differ."""
    if got.shape != want.shape or got.dtype.kind != "f" or got.size == 0:
        return ""
    with np.errstate(all="ignore"):
        index = np.unravel_index(np.nanargmax(np.nan_to_num(np.abs(got - want), nan=0.0)), got.shape)
    return f", at {list(map(int, index))} {got[index]!r} for {want[index]!r}"
