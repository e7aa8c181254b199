"""Whether an example holds: its composition against the serial graph, step by step, in whatever way it is run.

`check_example` asks, after each step: did anything fail or race; does every piece hold the serial graph's values
(rule R9), which a *judge* decides; does every blob of the composed graph hold the bits that the serial executor gives
for that graph, and do all pieces of one box hold the same bits (rule R8). Exact examples are judged by `exact_judge`
(rule R10), to which any difference is a fault, others by `bounded_judge` (rule R11), within derived bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from purine_ref.conformance.bounded import Bounded, SerialStep, held_by
from purine_ref.conformance.comparison import differing_elements
from purine_ref.conformance.examples import Example
from purine_ref.conformance.feeds import Feeds
from purine_ref.conformance.networks import places, refiners, require_fit, serial_graph
from purine_ref.conformance.running import open_session
from purine_ref.conformance.session import Session, part_of
from purine_ref.conformance.verify import comparable
from purine_ref.devices import CpuDevice, kernel_set
from purine_ref.errors import GraphError, OperatorError, Refused
from purine_ref.executors import Executor, Serial
from purine_ref.graph import Graph
from purine_ref.operation import Array
from purine_ref.parallel import Composed, Network, Refiner, compose


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two tensors differ first: in element `index` of `tensor`, at `place`, after step `step`, counted from 1.

    `bound` is by how much they may differ.
    """

    tensor: str
    place: str
    step: int
    index: tuple[int, ...]
    got: float
    want: float
    bound: float = 0.0

    def __str__(self) -> str:
        where = f"{self.tensor!r}{list(self.index)} at {self.place}, step {self.step}"
        bound = f"; they may differ by {self.bound:.3g}" if self.bound else ""
        return f"{where}: got {self.got!r}, want {self.want!r}{bound}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of an example: `outcome` is pass, fail or unknown, and `kind` says of what sort.

    A pass is `agrees`. A failure is `differs` (from the serial graph), `schedule` (two runs of one graph differ),
    `replicas` (two pieces of one box differ), `race`, or `error`. Unknown is `refused` (the composition, or the
    schedule, does not fit), `inexact` (no exact feed was found), or `kink` (some elements depend on a decision within
    the spread of rounding errors). `difference` is the first tensor that differs, in topological order. `operators`
    counts those of the composed graph, `compared` tensors.
    """

    outcome: str
    kind: str
    reason: str = ""
    difference: Difference | None = None
    operators: int = 0
    compared: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One step that both have run, as a judge sees it.

    `held` is what every source blob of the serial graph held when the step began, by name; `names` are the blobs to
    compare, in topological order.
    """

    number: int
    serial: Executor
    held: Mapping[str, Array]
    names: Sequence[str]


Judge = Callable[[Step], Difference | str | None]
"""Whether a step's values are right: None where they are, the first difference where not, why where that is unknown."""

Judging = Callable[[Session], Judge]
"""From a session that has not been run to its judge, which is asked after every step."""


def check_example(example: Example, judging: Judging | None = None) -> Verdict:
    """Build, run and judge an example; see the module's text. `judging` replaces the judge that it names.

    Raises GraphError for a network that cannot be built, and what running it serially raises.
    """
    graph = serial_graph(example)
    try:
        parts = refiners(example)
        require_fit(Network(graph), parts)
        require_places(example, parts)
    except GraphError as error:
        return Verdict("unknown", "refused", str(error))
    try:
        composed = compose(graph, parts, places(example), reduction=example.composition.reduction)
    except Exception as error:
        return Verdict("fail", "error", f"{type(error).__name__}: {error}")
    chosen = judging or (exact_judge if example.feeding.exact else bounded_judge)
    return replace(_run(example, graph, composed, chosen), operators=len(composed.ops))


def require_places(example: Example, parts: Sequence[Refiner]) -> None:
    """Raise GraphError unless an example has as many places as its refiners divide into."""
    width = math.prod(part.width for part in parts)
    if len(example.composition.places) != width:
        raise GraphError(f"the composition needs {width} places, got {len(example.composition.places)}")


def _run(example: Example, graph: Graph, composed: Composed, judging: Judging) -> Verdict:
    seed = example.feeding.seed
    one = CpuDevice(kernel_set())
    with Serial(graph, seed=seed) as serial, Serial(composed, seed=seed, devices=lambda _: one) as reference:
        try:
            session = open_session(example, graph, composed)
        except Refused as error:
            return Verdict("unknown", "refused", str(error))
        except Exception as error:
            return Verdict("fail", "error", f"{type(error).__name__}: {error}")
        with session:
            return _steps(example, serial, session, Session(reference, graph), judging(session))


def _steps(example: Example, serial: Executor, session: Session, reference: Session, judge: Judge) -> Verdict:
    """Run all sides in lock step, until one fails."""
    feeds = Feeds(serial.graph, example.feeding)
    names = list(comparable(serial))
    compared, unknown = 0, ""
    for number in range(1, example.running.iterations + 1):
        try:
            fed = feeds(number - 1, serial)
        except OperatorError as error:
            return Verdict("unknown", "inexact", str(error), compared=compared)
        for side in (serial, reference, session):
            side.feed(fed)
        step = Step(number, serial, held_by(serial), names)
        serial.run()
        reference.run()
        verdict = _failure(session) or _judged(step, judge) or _same_bits(step, session, reference)
        if verdict is not None and verdict.outcome == "fail":
            return replace(verdict, compared=compared)
        unknown = unknown or (verdict.reason if verdict is not None else "")
        compared += len(names)
    if unknown:
        return Verdict("unknown", "kink", unknown, compared=compared)
    return Verdict("pass", "agrees", compared=compared)


def _failure(session: Session) -> Verdict | None:
    """Run the session; a verdict when that fails or races."""
    try:
        session.run()
    except Exception as error:
        notes = "; ".join(getattr(error, "__notes__", ()))
        return Verdict("fail", "error", f"{type(error).__name__}: {error}" + (f" ({notes})" if notes else ""))
    faults = session.faults()
    return Verdict("fail", "race", faults[0]) if faults else None


def _judged(step: Step, judge: Judge) -> Verdict | None:
    found = judge(step)
    if isinstance(found, Difference):
        return Verdict("fail", "differs", str(found), found)
    return Verdict("unknown", "kink", found) if found else None


def exact_judge(session: Session) -> Judge:
    """Every piece must hold the serial graph's values to the bit, but for the sign of zero, on which order may tell."""

    def judge(step: Step) -> Difference | str | None:
        """The first element that differs, or None."""
        for name in step.names:
            want = step.serial.fetch(name)
            for piece, got in session.pieces(name):
                found = first_difference(name, str(piece.location), step.number, got + 0, part_of(want, piece.box) + 0)
                if found is not None:
                    index = tuple(start + i for (start, _), i in zip(piece.box, found.index, strict=True))
                    return replace(found, index=index)
        return None

    return judge


def bounded_judge(session: Session) -> Judge:
    """Every piece must hold the serial graph's values within the bound that is derived for it (rule R11)."""
    bounded = Bounded(session)
    unknown: list[str] = []

    def judge(step: Step) -> Difference | str | None:
        """The first element beyond its bound, or why it cannot be told, or None."""
        if unknown:  # from then on the two states are apart by more than rounding errors
            return unknown[0]
        report = bounded.compare(SerialStep(step.serial, step.held))
        if report.first is not None:
            first = report.first
            return Difference(first.tensor, first.place, step.number, first.index, first.got, first.want, first.bound)
        if report.unknown:
            unknown.append(f"step {step.number}: {report.unknown} of {report.elements} elements depend on a kink")
            return unknown[0]
        return None

    return judge


def first_difference(name: str, place: str, step: int, got: Array, want: Array) -> Difference | None:
    """The first element, in C order, whose bits differ; None where none do."""
    if not differing_elements(got, want):
        return None
    if got.shape != want.shape:
        return Difference(name, place, step, (), math.nan, math.nan)
    pairs = enumerate(zip(got.ravel(), want.ravel(), strict=True))
    flat, (one, other) = next(pair for pair in pairs if differing_elements(*map(np.asarray, pair[1])))
    index = tuple(int(i) for i in np.unravel_index(flat, want.shape))
    return Difference(name, place, step, index, one.item(), other.item())


def _same_bits(step: Step, session: Session, reference: Session) -> Verdict | None:
    """Rule R8: the serial executor's bits of the same composed graph, and one box's bits wherever it is."""
    for name in comparable(reference.executor):
        got, want = session.executor.fetch(name), reference.executor.fetch(name)
        found = first_difference(name, str(reference.graph[name].location), step.number, got, want)
        if found is not None:
            return Verdict("fail", "schedule", f"two runs of the composed graph: {found}", found)
    for name in step.names:
        first: dict[object, Array] = {}
        for piece, got in reference.pieces(name):
            want = first.setdefault(piece.box, got)
            found = first_difference(name, str(piece.location), step.number, got, want)
            if found is not None:
                return Verdict("fail", "replicas", f"two pieces of one box: {found}", found)
    return None
