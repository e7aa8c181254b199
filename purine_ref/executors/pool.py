"""The pool of a graph in which nothing but the graph has a say: workers that share its operators, without lanes.

The team of `purine_ref._fast` decides who runs what, and when a sleeping worker is woken; here is the waiting for a run
to end, which operators are worth a wake, and whether whoever starts a run takes part in it. Fixed: the team. Changing
state is the team's own; `_ended` is notified when a run has ended, and `_waiting` counts who waits for that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from purine_ref._fast import Team
from purine_ref._fast.pace import WORTH
from purine_ref.executors.base import PATIENCE, Run
from purine_ref.executors.memory import Binding
from purine_ref.graph import Op
from purine_ref.plan import Plan

FLOPS = 1e11
"""FLOP/s of one core where it is fast: what takes `WORTH` seconds at this rate takes no less elsewhere."""

BANDWIDTH = 2e10
"""Bytes/s of one core, in its caches."""

LONG = 1e-3
"""Seconds that an operator is expected to take, at these rates, for which the thread that runs a graph is no guest of
its workers: an interrupt from the keyboard must not wait for operators, and a wake is nothing beside this one."""


class Pool:
    """`threads` workers for one plan, whose operators are all on the CPU."""

    def __init__(self, plan: Plan, threads: int) -> None:
        self._plan = plan
        self._ended = threading.Condition()
        self._waiting = 0
        heavy, longest = bytearray(), 0.0
        for op in plan.graph.ops:
            time = expected(op)
            heavy.append(time >= WORTH)
            longest = max(longest, time)
        self.team = Team(plan.edges, threads, bytes(heavy), self._tell)
        self.takes_guests = longest < LONG
        self.guest = Place(self, threads)

    # For the thread that runs the graph -------------------------------------------------------------------------

    def start(self, run: Run, binding: Binding, guest: bool) -> bool:
        """Start a run; False, and nothing is done, while operators of an earlier run compute.

        With a `guest` nobody is woken: whoever starts the run must work next, as the guest.
        """
        schedule = run.schedule
        return self.team.start(run, schedule, schedule.ready(), binding.calls, run.kernels, binding.combine, guest)

    def wait(self, run: Run) -> None:
        """Sleep until no operator of the run computes and none will start."""
        if self.team.busy(run):
            while not self._wait_for(lambda: not self.team.busy(run), PATIENCE):
                pass  # look for signals, and sleep again
        self.team.forget(run)

    def halt(self, seconds: float) -> bool:
        """Start nothing more, and wait so long for operators that compute; returns whether all have ended."""
        self.team.halt()
        self._tell()
        return self._wait_for(lambda: self.team.computing() == 0, seconds)

    def close(self) -> None:
        """Send the workers home, those that compute when they have ended."""
        self.team.close()
        self._tell()

    def _tell(self) -> None:
        if self._waiting:  # one who begins to wait now finds that the run has ended
            with self._ended:
                self._ended.notify_all()

    def _wait_for(self, ended: Callable[[], bool], seconds: float) -> bool:
        with self._ended:
            self._waiting += 1
            try:
                return self._ended.wait_for(ended, seconds)
            finally:
                self._waiting -= 1

    # For the workers --------------------------------------------------------------------------------------------

    def task(self, number: int) -> tuple[Run, Op] | None:
        """The run and the operator that a worker is at; None where it is at none."""
        found = self.team.task(number)
        if found is None or not isinstance(found[0], Run):
            return None
        return found[0], self._plan.graph.ops[found[1]]


class Place:
    """Worker `number` of a pool, or its guest, as one of those who compute."""

    def __init__(self, pool: Pool, number: int) -> None:
        self._pool = pool
        self.number = number

    def running(self) -> Op | None:
        """The operator that the worker is at."""
        task = self._pool.task(self.number)
        return None if task is None else task[1]


def expected(op: Op) -> float:
    """Seconds that an operator takes at the least, by its cost; from `WORTH` on another worker is woken for it."""
    cost = op.operation.cost([blob.tensor for blob in op.inputs], [blob.tensor for blob in op.outputs])
    return max(cost.flops / FLOPS, cost.bytes / BANDWIDTH)
