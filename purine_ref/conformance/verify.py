"""The main job: run a graph under several schemes beside the serial executor, and compare every tensor after each step.

All run in lock step: each step feeds the same arrays to all, runs all, and compares every piece of what each holds with
what the serial executor holds: activations, gradients, update histories, and the parameters for the next step. Where a
scheme does not divide the graph, and in exact mode (rule R10), every bit must agree. Elsewhere sums may be added in
another order, and the difference must stay within the bound that is derived for it (rule R11).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from purine_ref.conformance.bounded import Bounded, Report, SerialStep, held_by
from purine_ref.conformance.comparison import differing_elements
from purine_ref.conformance.schemes import Scheme
from purine_ref.conformance.session import Session, part_of
from purine_ref.executors import Executor, Serial
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Array
from purine_ref.parallel import Composed, Piece


@dataclass(frozen=True, slots=True)
class Workload:
    """What to run: a graph, and what to feed it at each step, by blob name.

    `exact_feeds`, if given, makes the feeds from the step and the serial executor instead, so that all sums are exact.
    """

    model: str
    dtype: str
    graph: Graph
    feeds: Callable[[int], dict[str, Array]]
    steps: int
    exact_feeds: Callable[[int, Executor], dict[str, Array]] | None = None


@dataclass(slots=True)
class Comparison:
    """One scheme's result on one workload, growing step by step.

    Over all steps, `operators` counts operators run, `compared` pieces of tensors compared, `differing` elements
    that differ in any bit. `exact` says that the exact form was run. Where bits may differ (`bounded`), `ratio` is
    the largest error over its bound, `kinks` counts decisions within the spread of rounding errors, and `unknown`
    elements that depend on one that was taken differently. `first` tells the first tensor, in topological order,
    that differs by more than it may, with the step; or another fault, such as a race.
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
    bounded: bool = False
    ratio: float | None = None
    kinks: int = 0
    unknown: int = 0
    steps: int = field(default=0, repr=False)

    @property
    def mode(self) -> str:
        """What is demanded: `exact` and `bits` that every bit agrees, `bound` that errors stay within their bounds."""
        return "exact" if self.exact else "bound" if self.bounded else "bits"

    @property
    def verdict(self) -> str:
        """fail at a difference beyond what is allowed, or another fault; unknown if nothing was compared."""
        if self.first is not None or (self.differing and not self.bounded):
            return "fail"
        return "pass" if self.compared and self.operators else "unknown"

    @property
    def max_error_over_bound(self) -> float | None:
        """0 where every bit agrees; else the largest error over its bound, None where no bound was asked for."""
        if not self.compared:
            return None
        return self.ratio if self.differing else 0.0


def verify(
    workload: Workload, schemes: Sequence[Scheme], seed: int, progress: Callable[[Comparison], None] = lambda _: None
) -> list[Comparison]:
    """Compare every scheme with the serial executor; `progress` is called after each scheme's step.

    Raises what the executors raise: GraphError for a scheme that does not fit the graph, and operators' own errors.
    """
    sessions: list[Session] = []
    with Serial(workload.graph, seed=seed) as serial:
        try:
            for scheme in schemes:  # one by one: if the next fails to open, those before it are closed
                opened = scheme.open(workload.graph, seed)
                sessions.append(opened if isinstance(opened, Session) else Session(opened, workload.graph))
            names = list(comparable(serial))
            runs = [_Run(workload, *pair, names) for pair in zip(schemes, sessions, strict=True)]
            for step in range(workload.steps):
                arrays = workload.exact_feeds(step, serial) if workload.exact_feeds else workload.feeds(step)
                serial.feed(arrays)
                held = held_by(serial)
                serial.run()
                reference = SerialStep(serial, held)
                for run in runs:
                    run.step(arrays, reference)
                    progress(run.result)
        finally:
            for session in sessions:
                session.close()
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
        """The place in the order of the operator that made the blob's value last."""
        producers = swapped_in.get(blob, blob).producers
        return max((position[op.index] for op, _ in producers), default=-1), blob.index

    for blob in sorted(executor.graph.blobs, key=made):
        if blob not in executor.plan.lost and blob not in stale:
            yield blob.name


class _Run:
    """One scheme beside the serial executor."""

    def __init__(self, workload: Workload, scheme: Scheme, session: Session, names: Sequence[str]) -> None:
        exact = workload.exact_feeds is not None
        bounded = scheme.divides and not exact
        self.result = Comparison(scheme.text, workload.model, workload.dtype, exact, bounded=bounded)
        self._session = session
        self._bounded = Bounded(session) if bounded else None
        self._names = names

    def step(self, arrays: dict[str, Array], reference: SerialStep) -> None:
        """Feed, run, and compare everything with the serial executor's step."""
        result = self.result
        self._session.feed(arrays)
        start = time.perf_counter()
        self._session.run()
        result.seconds += time.perf_counter() - start
        result.operators += len(self._session.graph.ops)
        result.steps += 1
        for name in self._names:
            for piece, got in self._session.pieces(name):
                self._compare(piece, got, part_of(reference.want[name], piece.box))
        if self._bounded is not None:
            report = self._bounded.compare(reference)
            self._add(report)
            if report.unknown:
                self._bounded.restart(reference)
        for fault in self._session.faults()[:1]:
            result.first = result.first or f"{fault}, at step {result.steps}"

    def _compare(self, piece: Piece, got: Array, want: Array) -> None:
        """Count the elements whose bits differ."""
        result = self.result
        result.compared += 1
        differing = differing_elements(got, want)
        result.differing += differing
        if differing and not result.bounded and result.first is None:
            where = f"{piece.blob.name} at step {result.steps}"
            between = made_by(self._session.graph, piece.blob)
            result.first = f"{where}: {differing} of {want.size} elements differ{_values(got, want)}{between}"

    def _add(self, report: Report) -> None:
        """Take over what the comparison within bounds found."""
        result = self.result
        result.ratio = max(report.worst, result.ratio or 0.0)
        result.kinks += report.kinks
        result.unknown += report.unknown
        if report.first is not None and result.first is None:
            at = report.first
            here = (piece for piece in self._session.pieces_of(at.tensor) if str(piece.location) == at.place)
            pieces = (piece for piece in here if at.lies_in(piece.box))
            between = "".join(made_by(self._session.graph, piece.blob) for piece in itertools.islice(pieces, 1))
            result.first = f"{at}, at step {result.steps}{between}"


def made_by(graph: Graph, blob: Blob) -> str:
    """For a message: the operators between this blob and the blobs that it was computed from.

    In a composed graph these are the part of the serial operator, and what moved and added up its results; blobs before
    it were compared, and agreed.
    """
    swapped_in = dict(graph.pairs)
    origin = graph.origin if isinstance(graph, Composed) else {op: op for op in graph.ops}
    names: dict[str, None] = {}
    stack = [swapped_in.get(blob, blob)]
    while stack:
        for op, _ in stack.pop().producers:
            if op.name not in names:
                names[op.name] = None
                stack += () if op in origin else op.inputs
    return f"; made by {', '.join(reversed(names))}" if names else ""


def _values(got: Array, want: Array) -> str:
    """Both values where they differ most, for the eye; nothing where the shapes differ."""
    if got.shape != want.shape or got.dtype.kind != "f" or got.size == 0:
        return ""
    with np.errstate(all="ignore"):
        index = np.unravel_index(np.nanargmax(np.nan_to_num(np.abs(got - want), nan=0.0)), got.shape)
    return f", at {list(map(int, index))} {got[index]!r} for {want[index]!r}"
