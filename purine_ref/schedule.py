"""Readiness without threads: which operators may start, as a value that executors drive.

A `Schedule` is one run's state over a `Plan`: for each operator the input edges still unsatisfied, for each blob the
producers still to deliver (rule R2). It calls nothing and waits for nothing. It is not thread-safe: an executor with
threads calls it under its own lock. A finished operator goes through two steps, so that the additions of rule R4 can
happen between them, outside any lock:

    complete = schedule.finish(op)         # blobs whose last producer this was
    ...                                    # add up the contributions to those that have several producers
    ready = schedule.release(op, complete) # operators that may now start

`done(op)` is both at once. `arrive(op)` satisfies the edge of an operator that comes from outside the graph. `run` does
all of it for every operator, for an executor that has no more to do between two of them. After
`graphlib.TopologicalSorter`, with edges counted instead of nodes. The counting itself is `purine_ref._fast.tracker`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from purine_ref._fast import Tracker
from purine_ref.graph import Op
from purine_ref.plan import Plan


class Schedule(Tracker):
    """The readiness of one run of `plan`: the tracker of its edges, whose methods are documented by its plain twin."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.edges)
        self._plan = plan

    def ready(self) -> tuple[int, ...]:
        """The operators that may start when the run does, in the order of their making."""
        return self._plan.first

    def running(self) -> Op:
        """The operator that `run` is at."""
        return self._plan.graph.ops[self.current]


class Turn:
    """A count of the operators started, shared by the queues of one run that replays a full order."""

    def __init__(self) -> None:
        self.taken = 0


class ReadyQueue:
    """Ready operators, in the order in which to start them: first come, first served, or by rank, least first.

    With a `turn`, ranks 0, 1, 2, ... are a full order recorded elsewhere, and an operator is given out only when its
    rank is the count of those that all queues of the turn have given out.
    """

    def __init__(self, ranks: Sequence[float] | None = None, turn: Turn | None = None) -> None:
        self._ranks = ranks
        self._turn = turn
        self._fifo: deque[int] = deque()
        self._heap: list[tuple[float, int]] = []

    def push(self, op: int) -> None:
        """Add a ready operator."""
        if self._ranks is None:
            self._fifo.append(op)
        else:
            heapq.heappush(self._heap, (self._ranks[op], op))

    def extend(self, ops: Sequence[int]) -> None:
        """Add ready operators, in their order."""
        if self._ranks is None:
            self._fifo.extend(ops)
        else:
            for op in ops:
                heapq.heappush(self._heap, (self._ranks[op], op))

    def pop(self) -> int | None:
        """Take the next to start; None when there is none, or when it is another operator's turn."""
        if self._ranks is None:
            return self._fifo.popleft() if self._fifo else None
        if not self._heap or (self._turn and self._heap[0][0] != self._turn.taken):
            return None
        if self._turn:
            self._turn.taken += 1
        return heapq.heappop(self._heap)[1]

    def __len__(self) -> int:
        return len(self._fifo) + len(self._heap)


def order_ranks(plan: Plan, order: Sequence[str]) -> list[int]:
    """For each operator its position in `order`, which lists all operators' names once, in a topological order.

    Raises ValueError when it is not such an order, naming the first operator that is out of place.
    """
    index = {op.name: op.index for op in plan.graph.ops}
    if sorted(order) != sorted(index):
        odd = next(iter(set(order) ^ set(index)), "a name twice")
        raise ValueError(f"an order must name each of the {len(index)} operators once; see {odd!r}")
    ranks = [0] * len(index)
    schedule = Schedule(plan)
    for op in plan.external:
        schedule.arrive(op)
    for position, name in enumerate(order):
        if schedule.state(index[name]) != "ready":
            raise ValueError(f"order position {position}: operator {name!r} is {schedule.state(index[name])}")
        schedule.done(index[name])
        ranks[index[name]] = position
    return ranks


def require_one_each(plan: Plan, what: str, numbers: Sequence[float]) -> None:
    """Raise ValueError unless there is one number for each operator."""
    if len(numbers) != len(plan.graph.ops):
        raise ValueError(
            f"{what} must hold one number for each of the {len(plan.graph.ops)} operators of graph "
            f"{plan.graph.name!r}, got {len(numbers)}"
        )


def critical_path(plan: Plan, seconds: Sequence[float]) -> list[float]:
    """Ranks by critical path: for each operator minus the longest time from its start to the end of a run.

    `seconds[op]` is how long each takes. Least first, so the operator with most work behind it starts first.
    Raises ValueError unless there is one time for each operator.
    """
    require_one_each(plan, "seconds", seconds)
    after = [0.0] * len(seconds)
    for op in reversed(plan.order):
        follow = [after[c] for blob in plan.outputs[op] for c in plan.consumers[blob]]
        after[op] = seconds[op] + max(follow, default=0.0)
    return [-time for time in after]
