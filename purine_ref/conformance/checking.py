"""Whether an example holds: its composition against the serial graph, step by step, in whatever way it is run.

`check_example` asks, after each step: did anything fail or race; does every piece hold the serial graph's values
(rule R9), which a *judge* decides; does every blob of the composed graph hold the bits that the serial executor gives
for that graph, and do all pieces of one box hold the same bits (rule R8). Exact examples are judged by `exact_judge`
(rule R10): any difference is a fault. For others give a judge that knows a bound (rule R11); without one, all but rule R9
is checked, and the verdict is at best `unknown`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from purine_ref.conformance.comparison import differing_elements
from purine_ref.conformance.examples import Example
from purine_ref.conformance.feeds import Feeds
from purine_ref.conformance.networks import places, refiners, require_fit, serial_graph
from purine_ref.conformance.running import open_session
from purine_ref.conformance.session import Session, part_of
from purine_ref.devices import CpuDevice
from purine_ref.errors import GraphError, OperatorError, Refused
from purine_ref.executors import Executor, Serial
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Array
from purine_ref.parallel import Composed, Network, Refiner, compose
from purine_ref.plan import Plan


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two tensors differ first: in element `index` of `tensor`, at `place`, after step `step` (from 1).

    `elements` of the piece's `size` differ.
    """

    tensor: str
    place: str
    step: int
    index: tuple[int, ...]
    got: float
    want: float
    elements: int
    size: int

    def __str__(self) -> str:
        where = f"{self.tensor!r}{list(self.index)} at {self.place}, step {self.step}"
        return f"{where}: got {self.got!r}, want {self.want!r}; {self.elements} of {self.size} elements differ"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of an example: `outcome` is pass, fail or unknown, and `kind` says of what sort.

    A pass is `agrees`. A failure is `differs` (from the serial graph), `schedule` (two runs of one graph differ),
    `replicas` (two pieces of one box differ), `race`, or `error`. Unknown is `refused` (the composition does not fit the
    network), `inexact` (no exact feed was found), or `unjudged`. `difference` is the first tensor that differs, in
    topological order. `operators` counts those of the composed graph, `compared` tensors.
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
    session: Session
    held: Mapping[str, Array]
    names: list[str]


Judge = Callable[[Step], Difference | str | None]
"""Whether a step's values are right: None where they are, the first difference where not, why where that is unknown."""


def check_example(example: Example, judge: Judge | None = None) -> Verdict:
    """Build, run and judge an example; see the module's text.

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
        return Verdict("fail", "error", f"compose: {type(error).__name__}: {error}")
    judge = exact_judge if example.feeding.exact else judge
    return replace(_run(example, graph, composed, judge), operators=len(composed.ops))


def require_places(example: Example, parts: Sequence[Refiner]) -> None:
    """Raise GraphError unless an example has as many places as its refiners divide into."""
    width = math.prod(part.width for part in parts)
    if len(example.composition.places) != width:
        raise GraphError(f"the composition needs {width} places, got {len(example.composition.places)}")


def _run(example: Example, graph: Graph, composed: Composed, judge: Judge | None) -> Verdict:
    seed = example.feeding.seed
    with Serial(graph, seed=seed) as serial, Serial(composed, seed=seed, devices=lambda _: CpuDevice()) as reference:
        try:
            session = open_session(example, graph, composed)
        except Refused as error:
            return Verdict("unknown", "refused", str(error))
        except Exception as error:
            return Verdict("fail", "error", f"{type(error).__name__}: {error}")
        with session:
            return _steps(example, serial, session, Session(reference, graph), judge)


def _steps(example: Example, serial: Executor, session: Session, reference: Session, judge: Judge | None) -> Verdict:
    feeds = Feeds(serial.graph, example.feeding)
    names = names_in_order(serial.plan)
    compared, unknown = 0, "" if judge is not None else "no judge knows a bound for it"
    for number in range(1, example.running.iterations + 1):
        try:
            fed = feeds(number - 1, serial)
        except OperatorError as error:
            return Verdict("unknown", "inexact", str(error), compared=compared)
        for side in (serial, reference, session):
            side.feed(fed)
        step = Step(number, serial, session, _held(serial), names)
        serial.run()
        reference.run()
        verdict = _failure(session) or _judged(step, judge) or _same_bits(step, reference)
        if verdict is not None and verdict.outcome == "fail":
            return replace(verdict, compared=compared)
        unknown = unknown or (verdict.reason if verdict is not None else "")
        compared += len(names)
    if unknown:
        return Verdict("unknown", "unjudged", unknown, compared=compared)
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


def _judged(step: Step, judge: Judge | None) -> Verdict | None:
    found = judge(step) if judge is not None else None
    if isinstance(found, Difference):
        return Verdict("fail", "differs", str(found), found)
    return Verdict("unknown", "unjudged", found) if found else None


def exact_judge(step: Step) -> Difference | str | None:
    """Every piece must hold the serial graph's values to the bit, but for the sign of zero, on which order may tell."""
    for name in step.names:
        want = step.serial.fetch(name)
        for piece, got in step.session.pieces(name):
            place = str(piece.location)
            found = first_difference(name, place, step.number, unsigned(got), unsigned(part_of(want, piece.box)))
            if found is not None:
                start = tuple(first for first, _ in piece.box)
                return replace(found, index=tuple(a + b for a, b in zip(start, found.index, strict=True)))
    return None


def unsigned(array: Array) -> Array:
    """The array with every zero positive."""
    return array + 0.0 if array.dtype.kind == "f" else array


def first_difference(name: str, place: str, step: int, got: Array, want: Array) -> Difference | None:
    """The first element, in C order, whose bits differ; None where none do."""
    elements = differing_elements(got, want)
    if not elements:
        return None
    if got.shape != want.shape:
        return Difference(name, place, step, (), float("nan"), float("nan"), elements, int(want.size))
    differs = [differing_elements(np.asarray(a), np.asarray(b)) for a, b in zip(got.flat, want.flat, strict=True)]
    flat = differs.index(1)
    index = tuple(int(i) for i in np.unravel_index(flat, want.shape))
    return Difference(name, place, step, index, got.flat[flat].item(), want.flat[flat].item(), elements, int(want.size))


def _same_bits(step: Step, reference: Session) -> Verdict | None:
    """Rule R8: the serial executor's bits of the same composed graph, and one box's bits wherever it is."""
    for name in names_in_order(reference.executor.plan):
        got, want = step.session.executor.fetch(name), reference.executor.fetch(name)
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


def _held(serial: Executor) -> dict[str, Array]:
    return {blob.name: serial.fetch(blob.name) for blob in serial.graph.blobs if not blob.producers and blob.view is None}


def names_in_order(plan: Plan) -> list[str]:
    """The blobs that hold their value after a run, in the topological order of what made these values.

    Left out: what was overwritten in place, and what a swap filled with the values before the update. What a swap
    brought in was made where the update wrote it (rule R6).
    """
    brought_in = dict(plan.graph.pairs)
    stale = set(brought_in.values())
    position = {op: place for place, op in enumerate(plan.order)}

    def made(blob: Blob) -> tuple[int, int]:
        producers = brought_in.get(blob, blob).producers
        return max((position[op.index] for op, _ in producers), default=-1), blob.index

    kept: Iterator[Blob] = (blob for blob in plan.graph.blobs if blob not in plan.lost and blob not in stale)
    return [blob.name for blob in sorted(kept, key=made)]
