"""All schedules of a small graph, by running only those that could differ.

Two operators *conflict* when they touch a common buffer and at least one of them writes it; views make buffers common,
and so do several producers of one blob, whose sum is a buffer of all of them (rule R4). Swapping two neighbours that do
not conflict changes nothing, so only the order within conflicting pairs matters (Mazurkiewicz, "Trace Theory", 1987):
all schedules that agree on it are one *trace*, and one of them is run for all.

The traces are found without running anything: take a conflicting pair that nothing orders yet, add either order to the
partial order of the graph, close it, and go on with the next pair. What is then a partial order on which all pairs are
ordered is one trace, each comes up once, and none is a dead end. A graph that obeys rules R4 and R5 has conflicts only
where several producers add up; whatever the schedule, all runs must give the same bits (rule R8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from purine_ref.conformance.schedules import order_of, pct_schedule, schedule_of
from purine_ref.executors import Executor, Serial
from purine_ref.graph import Blob, Graph, Op
from purine_ref.hazards import Region, regions
from purine_ref.operation import Array
from purine_ref.plan import Plan

Bits = Mapping[str, bytes]
"""What a run left in every blob that can be fetched, by name."""

Runner = Callable[[list[str]], Bits]
"""Runs a graph with its operators in the order given, from the same state every time."""

MOST_RUNS = 20_000
"""Traces that an exploration runs before it stops and says that it is not complete."""

MOST_STATES = 1 << 18
"""Sets of operators that counting schedules may look at before it gives up."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Two schedules of one graph that leave different bits in `blob`, the first in the order of the graph's making."""

    one: str
    other: str
    blob: str


@dataclass(frozen=True, slots=True)
class Exploration:
    """What was run: `schedules` there are (None where they are too many to count), of which `runs` were run.

    `complete` says that every schedule is equivalent to one that was run.
    """

    operators: int
    conflicts: int
    schedules: int | None
    runs: int
    complete: bool
    disagreement: Disagreement | None = None

    @property
    def verdict(self) -> str:
        """fail where two schedules disagree; pass where all agree and none is left out; else unknown."""
        if self.disagreement is not None:
            return "fail"
        return "pass" if self.complete and self.runs else "unknown"

    def __str__(self) -> str:
        there_are = "uncounted" if self.schedules is None else f"{self.schedules:,}"
        agree = "all agree bit for bit"
        if self.disagreement is not None:
            one, other, blob = self.disagreement.one, self.disagreement.other, self.disagreement.blob
            agree = f"blob {blob!r} differs between schedules {one} and {other}"
        how = "which stand for all" if self.complete else "a sample"
        return (
            f"{self.operators} operators, {there_are} schedules, {self.conflicts} conflicting pairs; "
            f"{self.runs:,} run, {how}: {agree}"
        )


def explore(plan: Plan, run: Runner, *, most: int = MOST_RUNS) -> Exploration:
    """Run one schedule of every trace, up to `most`, and compare what they leave, bit for bit.

    Stops at the first disagreement. Raises what `run` raises.
    """
    orders = (_by_order(plan, before) for before in traces(plan))
    return _compare(plan, run, orders, most, exhaustive=True)


def sample(plan: Plan, run: Runner, *, runs: int, seed: int = 0, changes: int = 2) -> Exploration:
    """Run a larger graph under `runs` schedules by random priorities (`pct_schedule`), and compare what they leave.

    Never complete, unless there is only one schedule. Raises what `run` raises.
    """
    orders = (order_of(plan, pct_schedule(plan, seed + number, changes)) for number in range(runs))
    return _compare(plan, run, orders, runs, exhaustive=False)


def _compare(plan: Plan, run: Runner, orders: Iterable[list[str]], most: int, *, exhaustive: bool) -> Exploration:
    first_order: list[str] = []
    first: Bits = {}
    disagreement, runs, complete = None, 0, exhaustive
    for order in orders:
        if runs == most:
            complete = False
            break
        bits = run(order)
        runs += 1
        if runs == 1:
            first_order, first = order, bits
        odd = next((name for name in first if bits[name] != first[name]), None)
        if odd is not None:
            disagreement = Disagreement(schedule_of(plan, first_order), schedule_of(plan, order), odd)
            complete = False
            break
    schedules = count_schedules(plan)
    return Exploration(
        len(plan.graph.ops), len(conflicts(plan)), schedules, runs, complete or schedules == 1, disagreement
    )


def runner(
    graph: Graph,
    feeds: Mapping[str, Array],
    *,
    iterations: int = 1,
    make: Callable[..., Executor] = Serial,
    **keywords: object,
) -> Runner:
    """A runner by `make(graph, order=..., **keywords)`, new for each run, fed once and run `iterations` times."""

    def run(order: list[str]) -> Bits:
        """The bits of all blobs after runs in that order."""
        with make(graph, order=order, **keywords) as executor:
            executor.feed(dict(feeds))
            for _ in range(iterations):
                executor.run()
            return bits_of(executor)

    return run


def bits_of(executor: Executor) -> dict[str, bytes]:
    """The bits of every blob that can be fetched, by name, in the order of their making."""
    return {
        blob.name: np.ascontiguousarray(executor.fetch(blob.name)).tobytes()
        for blob in executor.graph.blobs
        if blob not in executor.plan.lost
    }


# Which operators must run before which, as sets of operators: bit i of a mask is the operator of index i


def predecessors(plan: Plan) -> list[int]:
    """For each operator the mask of all operators that the graph orders before it."""
    before = [0] * len(plan.graph.ops)
    makers = [0] * len(plan.graph.blobs)
    for op in plan.order:
        for blob in plan.inputs[op]:
            before[op] |= makers[blob]
        for blob in plan.outputs[op]:
            makers[blob] |= before[op] | 1 << op
    return before


def count_schedules(plan: Plan, most: int = MOST_STATES) -> int | None:
    """How many schedules there are: the linear extensions of the graph's order, counted exactly.

    Counts, for every set of operators that may have run, in how many orders they may have: the sum over which one ran
    last. Returns None when there are more than `most` such sets.
    """
    before = predecessors(plan)
    ways = {0: 1}
    looked_at = 0
    for _ in before:
        following: dict[int, int] = {}
        for done, count in ways.items():
            for op, needed in enumerate(before):
                if not done >> op & 1 and needed & ~done == 0:
                    following[done | 1 << op] = following.get(done | 1 << op, 0) + count
            if looked_at + len(following) > most:
                return None
        ways = following
        looked_at += len(ways)
    return sum(ways.values())


def traces(plan: Plan) -> Iterator[list[int]]:
    """Every trace once, as the mask of predecessors of each operator; see the module's text."""
    pairs = conflicts(plan)
    pending = [(predecessors(plan), 0)]
    while pending:
        before, at = pending.pop()
        while at < len(pairs) and _ordered(before, *pairs[at]):
            at += 1
        if at == len(pairs):
            yield before
            continue
        one, other = pairs[at]
        pending += [(_with(before, other, one), at + 1), (_with(before, one, other), at + 1)]


def _ordered(before: Sequence[int], one: int, other: int) -> bool:
    return bool(before[one] >> other & 1 or before[other] >> one & 1)


def _with(before: Sequence[int], first: int, second: int) -> list[int]:
    """The order `before` and `first` before `second`, closed: all that must follow `second` follows `first` too."""
    more = before[first] | 1 << first
    return [mask | more if op == second or mask >> second & 1 else mask for op, mask in enumerate(before)]


def _by_order(plan: Plan, before: Sequence[int]) -> list[str]:
    """Names in an order that agrees with `before`: who comes first has fewer predecessors."""
    ops = plan.graph.ops
    return [ops[op].name for op in sorted(range(len(ops)), key=lambda op: (before[op].bit_count(), op))]


# Which operators touch a common buffer --------------------------------------------------------------------------------


def conflicts(plan: Plan) -> list[tuple[int, int]]:
    """The pairs of operators that touch a common buffer, one of them to write, and that the graph does not order."""
    where = regions(plan.graph, plan.views)
    before = predecessors(plan)
    ops = [op for op in plan.graph.ops if op not in plan.idle]
    return [
        (one.index, other.index)
        for one, other in combinations(ops, 2)
        if not _ordered(before, one.index, other.index) and _conflict(one, other, where)
    ]


def _conflict(one: Op, other: Op, where: Mapping[Blob, Region]) -> bool:
    return (
        _touch(one.outputs, other.inputs, where)
        or _touch(one.inputs, other.outputs, where)
        or _touch(one.outputs, other.outputs, where)
    )


def _touch(some: Sequence[Blob], others: Sequence[Blob], where: Mapping[Blob, Region]) -> bool:
    """Whether a blob of `some` shares memory with one of `others`; only blobs in `where` can without being the same."""
    return any(a is b or (a in where and b in where and where[a].overlaps(where[b])) for a in some for b in others)
