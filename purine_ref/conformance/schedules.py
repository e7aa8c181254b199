"""Schedule strings: which ready operator starts next, in a form that any executor, in any language, can replay.

A run of a graph is a sequence of choices, one for each operator. What a choice means is fixed by the *ready list*:

1. At the start it holds the operators that have no unsatisfied input edge, in the order of their making. An input edge
   is unsatisfied while an operator that writes its blob has not run; an edge from outside the graph never is.
2. Choice k takes the operator at position k, counted from 0, out of the list; those behind it move up.
3. The operators that it makes ready are appended: for each of its output edges, in their order, whose blob now has all
   of its contributions, and for each edge that consumes that blob, in their order, the consumer is appended if this
   was its last unsatisfied input edge.

Only the order of starts is chosen. Operators may overlap: step 3 is counted when the operator is taken, and an executor
that replays an order waits, where it must, for what an operator needs.

The text is `s1:COUNT:CHOICES`: the format's version, the number of operators, and the choices with commas between
them, each a decimal number, `KxN` standing for N times K. Choices of 0 at the end are left out, so `s1:9:` starts the
operators of a graph of 9 first ready, first started. Nothing here runs anything or keeps state between calls, but for
`Recorder`, which belongs to one executor.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from purine_ref.devices import Device, device_for
from purine_ref.errors import Refused
from purine_ref.executors import Observer
from purine_ref.graph import Graph, Op
from purine_ref.plan import Plan, prepare
from purine_ref.schedule import Schedule, order_ranks, require_one_each
from purine_ref.tensor import Location

VERSION = "s1"
"""The version of the format: a change of what a choice means is another one."""

_ITEM = "[0-9]{1,7}(?:x[1-9][0-9]{0,6})?"
_TEXT = re.compile(f"{VERSION}:([0-9]{{1,7}}):((?:{_ITEM}(?:,{_ITEM})*)?)")


class ReadyList:
    """The ready list of one run of `plan`; see the module's text. `ready` holds operators by their index."""

    def __init__(self, plan: Plan) -> None:
        self._schedule = Schedule(plan)
        self.ready = list(self._schedule.ready())
        for op in plan.external:
            self.ready += self._schedule.arrive(op)
        self.ready.sort()

    def take(self, choice: int) -> int:
        """Take the operator at position `choice`, and append those that it makes ready; returns the operator."""
        op = self.ready.pop(choice)
        self.ready += self._schedule.done(op)
        return op


def encode(choices: Sequence[int]) -> str:
    """The schedule string of a list of choices. Raises ValueError for a negative one."""
    if min(choices, default=0) < 0:
        raise ValueError(f"choices are 0 or more, got {min(choices)}")
    length = max((i + 1 for i, choice in enumerate(choices) if choice), default=0)
    runs = [(choice, len(list(run))) for choice, run in groupby(choices[:length])]
    items = [str(choice) if times == 1 else f"{choice}x{times}" for choice, times in runs]
    return f"{VERSION}:{len(choices)}:{','.join(items)}"


def decode(text: str) -> tuple[int, ...]:
    """The choices of a schedule string, one for each operator. Raises Refused for anything else."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise Refused(f"a schedule is like '{VERSION}:9:2,0x3,1', got {text!r}")
    count = int(match[1])
    choices: list[int] = []
    for item in match[2].split(",") if match[2] else []:
        choice, _, times = item.partition("x")
        if len(choices) + int(times or 1) > count:
            raise Refused(f"schedule {text!r} has more choices than its {count} operators")
        choices += [int(choice)] * int(times or 1)
    return (*choices, *(0,) * (count - len(choices)))


def order_of(plan: Plan, schedule: str) -> list[str]:
    """The operators' names in the order in which `schedule` starts them: an `order` for any executor.

    Raises Refused for text that is no schedule, or that is one of another graph.
    """
    choices = decode(schedule)
    ops = plan.graph.ops
    if len(choices) != len(ops):
        raise Refused(
            f"schedule {schedule!r} is for a graph of {len(choices)} operators, but graph {plan.graph.name!r} has "
            f"{len(ops)}"
        )
    ready = ReadyList(plan)
    order = []
    for position, choice in enumerate(choices):
        if choice >= len(ready.ready):
            raise Refused(
                f"schedule {schedule!r}, choice {position + 1}: {choice} is out of range, since graph "
                f"{plan.graph.name!r} has {len(ready.ready)} ready operators then"
            )
        order.append(ops[ready.take(choice)].name)
    return order


def schedule_of(plan: Plan, order: Sequence[str]) -> str:
    """The schedule string that starts the operators in `order`, a list of all their names.

    Raises ValueError for an order that is not topological.
    """
    ranks = order_ranks(plan, order)
    return encode(list(_choices_by(plan, ranks)))


def ranked_schedule(plan: Plan, ranks: Sequence[float]) -> str:
    """The schedule that starts, of the ready operators, that of the least rank, the first of several.

    Raises ValueError unless there is one rank for each operator.
    """
    require_one_each(plan, "ranks", ranks)
    return encode(list(_choices_by(plan, ranks)))


def random_schedule(plan: Plan, seed: int) -> str:
    """A schedule of which every choice is drawn evenly from the ready list."""
    rng = random.Random(f"random {seed}")
    ready = ReadyList(plan)
    choices = []
    while ready.ready:
        choices.append(rng.randrange(len(ready.ready)))
        ready.take(choices[-1])
    return encode(choices)


def pct_schedule(plan: Plan, seed: int, changes: int = 2) -> str:
    """A schedule by random priorities: of the ready operators, the one on the chain of the highest priority starts.

    At `changes` steps, drawn before, the chain that is about to go on falls behind all others first. A draw at every
    step hardly ever delays an operator for long; this does, and finds any fault that takes few such delays with a
    probability that is known (Burckhardt, Kothari, Musuvathi and Nagarakatti, "A Randomized Scheduler with
    Probabilistic Guarantees of Finding Bugs", ASPLOS 2010; for chains of a partial order in place of threads: Ozkan
    and others, "Randomized Testing of Distributed Systems with Probabilistic Guarantees", OOPSLA 2018).
    """
    rng = random.Random(f"pct {seed} {changes}")
    chain = chains(plan)
    count = max(chain, default=-1) + 1
    priority = rng.sample(range(count), count)
    points = set(rng.sample(range(len(chain)), min(changes, len(chain))))
    ready = ReadyList(plan)
    choices = []
    for step in range(len(chain)):
        if step in points:
            priority[chain[max(ready.ready, key=lambda op: priority[chain[op]])]] = -1 - step
        choices.append(max(range(len(ready.ready)), key=lambda k: priority[chain[ready.ready[k]]]))
        ready.take(choices[-1])
    return encode(choices)


def chains(plan: Plan) -> list[int]:
    """For each operator the number of its chain: it goes on with a chain that ends at one of its producers, if any."""
    chain = [-1] * len(plan.graph.ops)
    ends: set[int] = set()
    started = 0
    for index in plan.order:
        producers = (op.index for blob in plan.graph.ops[index].inputs for op, _ in blob.producers)
        before = next((producer for producer in producers if producer in ends), None)
        if before is None:
            chain[index], started = started, started + 1
        else:
            chain[index] = chain[before]
            ends.remove(before)
        ends.add(index)
    return chain


def _choices_by(plan: Plan, ranks: Sequence[float]) -> Iterator[int]:
    """The choices that take, of the ready list, the operator of the least rank; the first of several."""
    ready = ReadyList(plan)
    while ready.ready:
        choice = min(range(len(ready.ready)), key=lambda k: ranks[ready.ready[k]])
        yield choice
        ready.take(choice)


# For the command line -------------------------------------------------------------------------------------------------


class Recorder(Observer):
    """Turns a run's starts into a schedule string: give it to an executor as its observer.

    With several ranks, what counts is when a copy between two is sent. Not shared by executors that run at once.
    """

    def __init__(self) -> None:
        self._started: dict[str, None] = {}

    def started(self, op: Op, at: float) -> None:
        """Remember that the operator started, and after which others."""
        self._started.setdefault(op.name)

    def schedule(self, plan: Plan) -> str:
        """The schedule of the run that has ended, whose graph's plan is `plan`; then it is forgotten.

        Raises ValueError when not all operators started.
        """
        order, self._started = list(self._started), {}
        return schedule_of(plan, order)


def replay_order(graph: Graph, schedule: str, devices: Callable[[Location], Device] = device_for) -> list[str]:
    """The `order` with which an executor of `graph` replays a schedule. Raises Refused for one of another graph."""
    return order_of(prepare(graph, devices), schedule)
