"""The lanes of the threaded executor: which operators wait for which workers. A monitor: one lock guards all of it.

A *lane* is a queue of ready operators, and the condition on which its workers sleep: one lane for all CPUs, and one
for each (device, stream) elsewhere. Fixed: the lanes. Changing, guarded by `lock`: each lane's queue; `_current`, the
run that operators are taken from; `_started`, which counts operators that were taken and have not ended; `_accepting`,
which is false once the run must start nothing more; and `_closed`, after which workers are sent home.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from purine_ref.executors.base import PATIENCE, Run
from purine_ref.graph import Op
from purine_ref.plan import Plan
from purine_ref.schedule import ReadyQueue, Turn

LaneKey = tuple[int, str] | None
"""(device, stream), or None for the pool of all CPUs."""


class Lane:
    """A queue of ready operators, and the condition on which its workers sleep."""

    def __init__(self, lock: threading.Lock) -> None:
        self.queue = ReadyQueue()
        self.work = threading.Condition(lock)


class Lanes:
    """The lanes of one plan. Operators start by `ranks`, or first ready, first started; `strict` ranks are an order."""

    def __init__(self, plan: Plan, ranks: Sequence[float] | None, strict: bool) -> None:
        self.lock = threading.Lock()
        self._ended = threading.Condition(self.lock)  # notified when a run's last operator has ended
        self._ranks = ranks
        self._strict = strict
        lane_of = [_lane_key(op) for op in plan.graph.ops]
        self.by_key = {key: Lane(self.lock) for key in [None, *lane_of]}
        self._lane_of = [self.by_key[key] for key in lane_of]
        self._current: Run | None = None
        self._started = 0
        self._accepting = False
        self._closed = False

    # For the thread that runs the graph -------------------------------------------------------------------------

    def start(self, run: Run) -> bool:
        """Queue a run's first operators; False, and nothing is done, while operators of an earlier run compute."""
        with self.lock:
            if self._started:
                return False
            turn = Turn() if self._strict else None
            for lane in self.by_key.values():
                lane.queue = ReadyQueue(self._ranks, turn)
            self._current = run
            self._accepting = True
            self._push(run.schedule.ready(), None)
            return True

    def arrive(self, run: Run, op: int) -> None:
        """Queue an external operator whose message is there, unless the run is over."""
        with self.lock:
            if self._current is run and self._accepting:
                self._push(run.schedule.arrive(op), None)

    def wait(self, run: Run) -> None:
        """Sleep until no operator of the run computes and none will start."""
        with self.lock:
            while not self._ended.wait_for(lambda: not self._busy(run), PATIENCE):
                pass  # look for signals, and sleep again
            if self._current is run:
                self._current = None  # so that nobody keeps an ended run, and its errors, alive

    def halt(self, seconds: float) -> bool:
        """Start nothing more, and wait so long for operators that compute; returns whether all have ended."""
        with self.lock:
            self._accepting = False
            self._ended.notify_all()
            return self._ended.wait_for(lambda: self._started == 0, seconds)

    def close(self) -> None:
        """Send the workers home, those that compute when they have ended."""
        with self.lock:
            self._closed = True
            for lane in self.by_key.values():
                lane.work.notify_all()

    # For the workers, which hold the lock -----------------------------------------------------------------------

    def take(self, lane: Lane) -> tuple[Run, int] | None:
        """The next operator of the lane, sleeping until there is one; None when the lanes are closed."""
        while not self._closed:
            op = lane.queue.pop() if self._accepting else None
            if op is not None and self._current is not None:
                self._started += 1
                if self._strict:  # the next in the order may be ready in any lane
                    for other in self.by_key.values():
                        other.work.notify_all()
                return self._current, op
            lane.work.wait()
        return None

    def retire(self, run: Run, op: int, complete: list[int] | None, error: BaseException | None, lane: Lane) -> None:
        """Count an operator as ended, and queue those that it made ready; `complete` is what `finish` returned."""
        self._started -= 1
        if error is not None:
            run.failures.append(error)
            self._accepting = False
        else:
            complete = run.schedule.finish(op) if complete is None else complete
            self._push(run.schedule.release(op, complete), lane)
        if not self._busy(run):
            self._ended.notify_all()

    def _busy(self, run: Run) -> bool:
        return self._current is run and (self._started > 0 or (self._accepting and run.schedule.active()))

    def _push(self, ready: Sequence[int], own: Lane | None) -> None:
        """Queue ready operators, and wake a worker for each, but for one that the calling worker takes itself."""
        for op in ready:
            lane = self._lane_of[op]
            lane.queue.push(op)
            if lane is own:
                own = None
            else:
                lane.work.notify()


def _lane_key(op: Op) -> LaneKey:
    return None if op.location.is_cpu else (op.location.device, op.stream)
