"""The plain twin of the readiness tracker: counters of a graph's edges, and the loop that runs a graph by them.

`Edges` is what no run changes. A `Tracker` is one run over them: for each operator the input edges still unsatisfied,
for each blob the producers still to deliver (rule R2). It is not thread-safe. Operators and blobs are numbers from 0.
The compiled twin `_tracker.pyx` has the same names, signatures, errors and order of results; it reads the edges as flat
int32 arrays, where this one walks the lists. `purine_ref.schedule` gives both a plan; nobody else calls them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from purine_ref._fast.calls import Call as Call
from purine_ref._fast.calls import Calls as Calls
from purine_ref._fast.edges import FINISHED, RELEASED, flatten, in_words, numbers, require_rows
from purine_ref._fast.rows import Rows
from purine_ref._fast.team import Team as Team
from purine_ref._fast.walkers import Walkers as Walkers


class Edges:
    """The edges of a graph, and how many of them there are.

    `outputs[op]` lists a blob for each output edge, `consumers[blob]` an operator for each consuming edge. The counts
    from which a run starts are `waiting[op]` and `producers[blob]`. `external` operators have one more edge, which is
    counted in `waiting` and satisfied from outside. `names` are for messages, one for each operator. Raises ValueError
    for counts and numbers that are out of range, and for more than int32 can count.
    """

    def __init__(
        self,
        names: Sequence[object],
        waiting: Sequence[int],
        producers: Sequence[int],
        outputs: Sequence[Sequence[int]],
        consumers: Sequence[Sequence[int]],
        external: Sequence[int] = (),
    ) -> None:
        self.waiting = numbers("waiting", waiting).tolist()
        self.producers = numbers("producers", producers).tolist()
        require_rows("names", names, len(waiting))
        require_rows("outputs", outputs, len(waiting))
        require_rows("consumers", consumers, len(producers))
        flatten("outputs", outputs, len(producers) - 1)
        flatten("consumers", consumers, len(waiting) - 1)
        self.external = frozenset(numbers("external", external, len(waiting) - 1).tolist())
        self.names = names
        self.outputs = outputs.lists() if isinstance(outputs, Rows) else outputs
        self.consumers = consumers.lists() if isinstance(consumers, Rows) else consumers
        self.behind = [self._behind(row) for row in self.outputs]

    def _behind(self, blobs: Sequence[int]) -> Sequence[int] | None:
        """The operators behind an operator with these output edges, one an edge; None if it shares a blob with others.

        A blob of one producer is complete when that has run, so there is nothing to count before its consumers.
        """
        if len(blobs) == 1 and self.producers[blobs[0]] == 1:
            return self.consumers[blobs[0]]
        if any(self.producers[blob] > 1 for blob in blobs):
            return None
        return [consumer for blob in blobs for consumer in self.consumers[blob]]


class Tracker:
    """The readiness of one run. `halted` ends `run`; `current` is the operator that `run` is at, or was at last."""

    def __init__(self, edges: Edges) -> None:
        self._edges = edges
        self._outputs = edges.outputs
        self._consumers = edges.consumers
        self._waiting: list[int] = edges.waiting.copy()
        self._missing: list[int] = edges.producers.copy()
        self._left = len(self._waiting)
        self._outside = set(edges.external)
        self.halted = False
        self.current = -1

    def active(self) -> bool:
        """Whether an operator has yet to be released. An empty graph is never active (rule R3)."""
        return self._left > 0

    def finish(self, op: int) -> list[int]:
        """Count `op` as run; returns the blobs that have now got every contribution. Raises RuntimeError for misuse."""
        if self._waiting[op] != 0:
            raise RuntimeError(f"{self._edges.names[op]!r} cannot finish: it is {self.state(op)}")
        self._waiting[op] = FINISHED
        missing = self._missing
        complete = []
        for blob in self._outputs[op]:
            missing[blob] -= 1
            if missing[blob] == 0:
                complete.append(blob)
        return complete

    def release(self, op: int, complete: Sequence[int]) -> list[int]:
        """Open the consumers' edges of the `complete` blobs that `finish(op)` returned; returns who may now start."""
        if self._waiting[op] != FINISHED:
            raise RuntimeError(f"{self._edges.names[op]!r} cannot be released: it is {self.state(op)}")
        self._waiting[op] = RELEASED
        self._left -= 1
        waiting, consumers = self._waiting, self._consumers
        ready = []
        for blob in complete:
            for consumer in consumers[blob]:
                waiting[consumer] -= 1
                if waiting[consumer] == 0:
                    ready.append(consumer)
        return ready

    def done(self, op: int) -> list[int]:
        """`finish` and `release` at once: returns the operators that may now start."""
        return self.release(op, self.finish(op))

    def arrive(self, op: int) -> list[int]:
        """Open the edge of an external operator; returns the operator, if it may now start.

        Raises RuntimeError for one that has no such edge, or whose edge is open already.
        """
        if op not in self._outside:
            raise RuntimeError(f"{self._edges.names[op]!r} awaits nothing from outside: it is {self.state(op)}")
        self._outside.remove(op)
        self._waiting[op] -= 1
        return [op] if self._waiting[op] == 0 else []

    def awaits(self) -> bool:
        """Whether an external operator's edge has yet to be opened."""
        return bool(self._outside)

    def state(self, op: int) -> str:
        """The operator's state in words."""
        return in_words(self._waiting[op])

    def run(
        self, first: Sequence[int], calls: Sequence[Call], kernels: Sequence[Any], combine: Callable[[int], object]
    ) -> None:
        """Run operators, first ready, first run, from the `first` until none is ready or `halted` is set.

        Each is `compute(kernels[place], inputs, outputs)` of its call, nothing where `compute` is None; then `combine`
        is called with each blob of several producers that is now complete (rule R4). Raises what these raise, with
        `current` saying at which operator, and RuntimeError for one that is taken and not ready.
        """
        calls = calls if isinstance(calls, Calls) else Calls(calls)
        waiting, behind = self._waiting, self._edges.behind
        ready = deque(first)
        take, add = ready.popleft, ready.append
        while ready and not self.halted:
            self.current = op = take()
            if waiting[op] != 0:
                raise RuntimeError(f"{self._edges.names[op]!r} cannot finish: it is {self.state(op)}")
            compute, place, inputs, outputs = calls[op]
            if compute is not None:
                compute(kernels[place], inputs, outputs)
            consumers = behind[op]
            if consumers is None:
                ready.extend(self._add_up(op, combine))
                continue
            waiting[op] = RELEASED  # here `finish` and `release` would find the same, and take three times as long
            self._left -= 1
            for consumer in consumers:
                waiting[consumer] -= 1
                if waiting[consumer] == 0:
                    add(consumer)

    def _add_up(self, op: int, combine: Callable[[int], object]) -> list[int]:
        """Finish and release an operator that shares an output blob with others; returns who may now start."""
        complete = self.finish(op)
        for blob in complete:
            if self._edges.producers[blob] > 1:
                combine(blob)
        return self.release(op, complete)

    def walk(self, first: Sequence[int]) -> int:
        """Count every operator as run, from the `first` on, in the order of `run`; returns how many there were.

        Nothing is computed: this is what readiness alone costs. Raises RuntimeError as `run` does.
        """
        ready, walked = deque(first), 0
        while ready:
            walked += 1
            ready.extend(self.done(ready.popleft()))
        return walked
