"""The comparison within derived bounds (rule R11): a session against the serial executor, tensor by tensor, each step.

Two results of one computation may differ by `KAPPA` standard deviations of their difference, which are found by one
more run of each graph (`bounds.spread`), from the values that the step began with. How far the two states were apart
then is taken as it was, since the step before has compared them. Each run is followed along the branch that it took.
Where both took the same one, a decision within the spread is a kink, which is counted, and no more. Where they took
different ones, and the decision lies within the spread, what depends on it is unknown: it is counted, and neither
passed nor failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from purine_ref.conformance.bounds import Estimate, Spread, cut, spread
from purine_ref.conformance.comparison import differing_elements
from purine_ref.conformance.session import Session, part_of
from purine_ref.executors import Executor
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Array, Box, RunKey
from purine_ref.parallel import Piece
from purine_ref.rounding import KAPPA

Pieces = Mapping[str, list[tuple[Piece, Array]]]
"""For each serial blob its pieces in a session, with their arrays."""

Masks = dict[str, Array]
"""Boolean arrays by blob name."""


@dataclass(frozen=True, slots=True)
class Excess:
    """The element of a tensor that is furthest beyond its bound, by its index in the serial tensor."""

    tensor: str
    place: str
    index: tuple[int, ...]
    got: float
    want: float
    bound: float

    def lies_in(self, box: Box) -> bool:
        """Whether the element lies in a box of the serial tensor."""
        return all(start <= at < stop for at, (start, stop) in zip(self.index, box, strict=True))

    def __str__(self) -> str:
        where = f"{self.tensor!r}{list(self.index)} at {self.place}"
        return f"{where}: got {self.got!r}, want {self.want!r}; they may differ by {self.bound:.3g}"


@dataclass(slots=True)
class Report:
    """One step: max(|got - want| / bound) of each tensor, in topological order, and the first that is beyond its bound.

    `kinks` are decisions of the serial run within the spread; they are looked for when any bit differs. Of `elements`
    compared, `unknown` could be neither passed nor failed.
    """

    ratios: dict[str, float] = field(default_factory=dict)
    first: Excess | None = None
    kinks: int = 0
    unknown: int = 0
    elements: int = 0

    @property
    def worst(self) -> float:
        """The largest of all ratios."""
        return max(self.ratios.values(), default=0.0)


class SerialStep:
    """A step that the serial executor has just run: what its sources `held` before it, and what it made (`want`)."""

    def __init__(self, serial: Executor, held: Mapping[str, Array]) -> None:
        self.graph = serial.graph
        self.key = RunKey(serial.seed, serial.iteration - 1)
        self.held = held
        stale = {following for _, following in self.graph.pairs}
        kept = [b for b in self.graph.blobs if b not in serial.plan.lost and b not in stale]
        self.want = {blob.name: serial.fetch(blob.name) for blob in kept}
        self.decided = decisions(serial)

    @cached_property
    def estimates(self) -> Estimates:
        """The spread of the step, along the branch that it took."""
        return self.with_undecided({})

    def with_undecided(self, undecided: Masks) -> Estimates:
        """The same, where some decisions are not known."""
        found = spread(
            self.graph, self.held, key=self.key, decided=self.decided, undecided=undecided, keep_values=False
        )
        return Estimates(self.graph, found)


class Estimates:
    """The estimates of what a graph's blobs hold after a run and its swaps (rule R6), and the number of kinks."""

    def __init__(self, graph: Graph, made: Spread) -> None:
        self._made = made.estimates
        self._swapped_in = {current.name: following.name for current, following in graph.pairs}
        self._place = {name: number for number, name in enumerate(self._made)}
        self.kinks = sum(made.kinks.values())

    def __getitem__(self, name: str) -> Estimate:
        """The estimate of what is fetched under that name."""
        return self._made[self._swapped_in.get(name, name)]

    def place(self, name: str) -> int:
        """The place of what is fetched under that name in the order in which values were made."""
        return self._place[self._swapped_in.get(name, name)]


def held_by(executor: Executor) -> dict[str, Array]:
    """The arrays of all source blobs, to be taken between feeding and running."""
    sources = [blob for blob in executor.graph.blobs if not blob.producers and blob.view is None]
    return {blob.name: executor.fetch(blob.name) for blob in sources}


def decisions(executor: Executor) -> dict[str, Array]:
    """What operators of the last run selected by: masks, indices, outputs of ReLUs; but what was overwritten."""
    selecting = dict.fromkeys(  # in one order, for on hosts all ranks fetch together
        blob
        for op in executor.graph.ops
        for slot, blob in enumerate(op.inputs)
        if slot in op.operation.selectors or not blob.tensor.is_float
    )
    return {blob.name: executor.fetch(blob.name) for blob in selecting if blob not in executor.plan.lost}


class Bounded:
    """Compares one session with the serial executor, step by step, from the first step on."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._state: dict[str, Array] = {}  # what the session's persistent sources hold between steps

    def compare(self, step: SerialStep) -> Report:
        """Compare a step that both have just run."""
        executor = self.session.executor
        pieces = {name: list(self.session.pieces(name)) for name in step.want}
        report = Report()
        if any(differing_elements(got, part_of(step.want[name], p.box)) for name in pieces for p, got in pieces[name]):
            self._compare(step, pieces, report)
        else:
            report.ratios = dict.fromkeys(step.want, 0.0)
            report.elements = sum(got.size for parts in pieces.values() for _, got in parts)
        self._state = {blob.name: executor.fetch(blob.name) for blob in _state(executor.graph)}
        return report

    def restart(self, step: SerialStep) -> None:
        """Give the session the state that the serial executor has after `step`: the next starts from equal ones.

        Call it when elements were unknown: what they lead to is then drawn anew, and not unknown for ever.
        """
        self.session.feed({blob.name: step.want[blob.name] for blob in _state(step.graph)})
        self._state = {}

    def _compare(self, step: SerialStep, pieces: Pieces, report: Report) -> None:
        want, got = step.estimates, self._estimates(step, {})
        report.kinks = want.kinks
        serial_doubts, own_doubts = _split(step, pieces, want, got)
        if serial_doubts:
            want, got = step.with_undecided(serial_doubts), self._estimates(step, own_doubts)
        for name in sorted(step.want, key=want.place):
            ratios = [0.0]
            for piece, array in pieces[name]:
                ends = want[name].part(piece.box), got[piece.blob.name]
                ratios.append(_compare_piece(name, piece, array, part_of(step.want[name], piece.box), ends, report))
            report.ratios[name] = max(ratios)

    def _estimates(self, step: SerialStep, undecided: Masks) -> Estimates:
        """The spread of the session's step. Its sources' errors are how far they were from the serial executor's."""
        feeds: dict[str, Array | Estimate] = {}
        for name, array in step.held.items():
            for piece in self.session.pieces_of(name):
                serial = part_of(array, piece.box)
                held = self._state[piece.blob.name] if piece.blob.name in self._state else serial
                apart = held.astype(np.float64) - serial.astype(np.float64)
                feeds[piece.blob.name] = Estimate(held, apart * apart) if apart.any() else held
        graph, decided = self.session.graph, decisions(self.session.executor)
        found = spread(
            graph,
            feeds,
            key=step.key,
            decided=decided,
            undecided=undecided,
            keep_values=False,
            devices=self.session.devices,
        )
        return Estimates(graph, found)


def _state(graph: Graph) -> list[Blob]:
    """The blobs that hold a value from one step to the next."""
    return [blob for blob in graph.blobs if blob.persistent and not blob.producers]


def _split(step: SerialStep, pieces: Pieces, want: Estimates, got: Estimates) -> tuple[Masks, Masks]:
    """Decisions that were taken differently and lie within the spread: masks of serial blobs, and of the pieces.

    Those of floats are their signs. Where such a sign differs, the values were compared, so they are within the bound.
    """
    serial: Masks = {}
    own: Masks = {}
    for name, decided in step.decided.items():
        for piece, array in pieces.get(name, ()):
            mine, other = (np.sign(each) for each in (array, part_of(decided, piece.box)))
            differs = mine != other
            if array.dtype.kind == "i":
                near = _either(array.shape, want[name].part(piece.box).near, got[piece.blob.name].near)
                differs = (array != part_of(decided, piece.box)) & near
            if differs.any():
                serial.setdefault(name, np.zeros(decided.shape, bool))[cut(piece.box)] |= differs
                own[piece.blob.name] = differs
    return serial, own


def _compare_piece(
    name: str, piece: Piece, got: Array, want: Array, ends: tuple[Estimate, Estimate], report: Report
) -> float:
    """The largest ratio among the known elements of a piece; counts into the report what was seen."""
    bound = KAPPA * np.sqrt(sum((end.variance for end in ends if end.variance is not None), np.zeros(got.shape)))
    is_float = got.dtype.kind == "f"
    unknown = _either(got.shape, ~np.isfinite(bound), *(end.unknown if is_float else end.undecided for end in ends))
    same = (got == want) | (np.isnan(got) & np.isnan(want)) if is_float else got == want
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.abs(got.astype(np.float64) - want.astype(np.float64)) / bound
    ratio = np.where(same | unknown, 0.0, np.where(np.isnan(ratio), np.inf, ratio))
    report.elements += got.size
    report.unknown += int(unknown.sum())
    worst = float(ratio.max(initial=0.0))
    if worst > 1 and report.first is None:
        at = np.unravel_index(int(ratio.argmax()), ratio.shape)
        index = tuple(int(i) + start for i, (start, _) in zip(at, piece.box, strict=True))
        report.first = Excess(name, str(piece.location), index, float(got[at]), float(want[at]), float(bound[at]))
    return worst


def _either(shape: tuple[int, ...], *masks: Array | None) -> Array:
    """The union of masks."""
    union = np.zeros(shape, bool)
    for mask in masks:
        if mask is not None:
            union |= mask
    return union
