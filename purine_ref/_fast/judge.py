"""The plain twin of the trace judge: the state of a dispatcher's run, and whether the next event may follow.

A `Judge` is given a graph's `Wiring`, and rows of integers (see `events`). Each event costs as much as the operator has
edges. It stops for good at the first bad event: `fault` is the number of what is wrong, `a` and `b` name who else is
concerned, and the state stays as it was before that event. The compiled twin `_judge.pyx` has the same names,
signatures, errors and numbers. `purine_ref.conformance.tracing` feeds both and puts faults into words.
"""

from __future__ import annotations

from typing import Any

from purine_ref._fast.events import (
    ABSENT,
    BEGIN,
    BETWEEN,
    FAILED_RUN,
    FAULTS,
    HAS_END,
    HAS_FAILED,
    HAS_FAILED_THERE,
    HAS_RECEIVED,
    HAS_SENT,
    HAS_START,
    IDLE,
    RECEIVED,
    RUNNING,
    START,
    STOP,
    STOPPED,
    SWAPPED,
    UNKNOWN,
    Wiring,
    require_rows,
)

Array = Any  # a numpy array of int64, a row of six columns for each event


_BROKEN = HAS_FAILED | HAS_FAILED_THERE

_F = {name: number for number, name in enumerate(FAULTS)}


class Judge:
    """The state that a trace has reached. `starts` counts operators, `finished` and `failed` the runs that were.

    `computing` counts the operators, or halves of them, that are at work; `iteration` is the run's number.
    """

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._waiting0, self._missing0 = wiring.waiting, wiring.missing
        self._shared = [bool(row) for row in wiring.overlaps]
        self._aliased = [
            any(self._shared[blob] for blob in (*inputs, *outputs))
            for inputs, outputs in zip(wiring.inputs, wiring.outputs, strict=True)
        ]
        self._held = list(wiring.held)
        self._pair = {first: number for number, (first, _) in enumerate(wiring.pairs)}
        self._swapped = [True] * len(wiring.pairs)
        self.phase = IDLE
        self.iteration = self.last = -1
        self.fault = self.a = self.b = 0
        self.starts = self.finished = self.failed = 0
        self._handlers = (
            self._begin, self._start, self._sent, self._received, self._end, self._add, self._ready,
            self._fail, self._fail_there, self._finish, self._swap, self._stop,
        )  # fmt: skip
        self._reset()

    def _reset(self) -> None:
        """The state at the beginning of a run."""
        wiring = self._wiring
        self._bits = [0] * len(wiring.needs)
        self._waiting, self._missing = self._waiting0.copy(), self._missing0.copy()
        self._added = [0] * len(wiring.producers)
        self._announced = [False] * len(wiring.producers)
        self._busy = [-1] * (1 + max(wiring.queues, default=-1))
        self._lost = [False] * (1 + max((*wiring.source_ranks, *wiring.target_ranks), default=-1))
        self._spent: set[int] = set()
        self._readers, self._writers = [0] * len(wiring.producers), [0] * len(wiring.producers)
        self._over = [-1] * len(wiring.producers)
        for blob, held in enumerate(wiring.held):
            if not wiring.lasts[blob]:
                self._held[blob] = held
        self._ops_left = len(wiring.needs)
        self._blobs_left = sum(1 for count in self._missing if count)
        self.computing = 0

    # What words need --------------------------------------------------------------------------------------------

    def begun(self, op: int) -> int:
        """The events of an operator in this run, as bits."""
        return self._bits[op]

    def lacks(self, blob: int) -> int:
        """How many ends and additions a blob waits for."""
        return self._missing[blob]

    def additions(self, blob: int) -> int:
        """How many contributions have been added to a blob."""
        return self._added[blob]

    # Judging ----------------------------------------------------------------------------------------------------

    def feed(self, rows: Array) -> int:
        """Judge rows, in order; returns how many are legal, and 0 after a fault. Raises ValueError for no events."""
        require_rows(rows, len(self._bits), len(self._missing))
        for index, (seq, kind, iteration, op, blob, worker) in enumerate(rows.tolist()):
            self.fault = self.fault or self._expected(seq, kind, iteration, op, blob)
            self.fault = self.fault or self._handlers[kind](iteration, op, blob, worker)
            if self.fault:
                return index
            self.last = seq
        return len(rows)

    def _expected(self, seq: int, kind: int, iteration: int, op: int, blob: int) -> int:
        """What is wrong with an event whatever its operator has done."""
        if self.phase == STOPPED:
            return _F["after_stop"]
        if seq <= self.last:
            return self._bad("sequence", self.last)
        if op < ABSENT:
            return _F["op_name" if op == UNKNOWN else "place"]
        if blob < ABSENT:
            return _F["blob_name"]
        if kind in (BEGIN, STOP):
            return 0
        if self.phase == FAILED_RUN and (op == ABSENT or kind in (START, RECEIVED) or blob != ABSENT):
            return _F["after_failure"]  # only what computes may end
        if self.phase == (RUNNING if kind == SWAPPED else BETWEEN) or self.phase == IDLE:
            return _F["swap_running" if kind == SWAPPED else "no_run"]
        return self._bad("iteration", self.iteration) if iteration != self.iteration else 0

    def _bad(self, fault: str, a: int, b: int = -1) -> int:
        self.a, self.b = a, b
        return _F[fault]

    def _begin(self, iteration: int, op: int, blob: int, worker: int) -> int:
        if self.phase == RUNNING:
            return _F["begin_running"]
        expected = self.iteration + (self.phase == BETWEEN)
        if self.phase != IDLE and iteration != expected:
            return self._bad("begin_number", expected)
        if self.phase == FAILED_RUN and self.computing:
            return self._bad("begin_busy", self._computed())
        if self.phase == BETWEEN and not all(self._swapped):
            return self._bad("not_swapped", self._wiring.pairs[self._swapped.index(False)][0])
        self.phase, self.iteration = RUNNING, iteration
        self._reset()
        return 0

    def _start(self, iteration: int, op: int, blob: int, worker: int) -> int:
        needs, bits, queue = self._wiring.needs[op], self._bits[op], self._wiring.queues[op]
        rank = self._wiring.source_ranks[op]
        if not needs & HAS_START:
            return _F["no_half"]
        if bits & HAS_START:
            return _F["twice"]
        if self._lost[rank] and (worker < 0 or worker in self._spent):
            return _F["after_failure"]
        if self._waiting[op]:
            blob = next(blob for blob in self._wiring.inputs[op] if self._missing[blob])
            return self._bad("edge", blob, self._owing(blob))
        if queue >= 0 and self._busy[queue] >= 0:
            return self._bad("stream", self._busy[queue])
        if self._aliased[op]:
            fault = self._reads(op) or (0 if needs & HAS_RECEIVED else self._writes(op))
            if fault:
                return fault
            self._open_reads(op, 1)
            if not needs & HAS_RECEIVED:
                self._open_writes(op)
        if queue >= 0:
            self._busy[queue] = op
        self._opened(op, HAS_START, rank, worker)
        self.starts += 1
        return 0

    def _received(self, iteration: int, op: int, blob: int, worker: int) -> int:
        needs, bits, rank = self._wiring.needs[op], self._bits[op], self._wiring.target_ranks[op]
        if not needs & HAS_RECEIVED:
            return _F["no_half"]
        if bits & HAS_RECEIVED:
            return _F["twice"]
        if needs & HAS_START and not bits & HAS_START:
            return _F["not_started"]
        if bits & HAS_FAILED or (self._lost[rank] and (worker < 0 or worker in self._spent)):
            return _F["after_failure"]
        if self._aliased[op]:
            fault = self._writes(op)
            if fault:
                return fault
            self._open_writes(op)
        self._opened(op, HAS_RECEIVED, rank, worker)
        self.starts += not needs & HAS_START
        return 0

    def _sent(self, iteration: int, op: int, blob: int, worker: int) -> int:
        fault = self._closable(op, HAS_SENT, HAS_START)
        if fault:
            return fault
        if self._aliased[op]:
            self._open_reads(op, -1)
        self._closed(op, HAS_SENT, self._wiring.source_ranks[op], worker)
        self._count(op)
        return 0

    def _end(self, iteration: int, op: int, blob: int, worker: int) -> int:
        fault = self._closable(op, HAS_END, HAS_RECEIVED if self._wiring.needs[op] & HAS_RECEIVED else HAS_START)
        if fault:
            return fault
        self._close(op)
        self._closed(op, HAS_END, self._wiring.target_ranks[op], worker)
        for blob in self._wiring.outputs[op]:
            self._deliver(blob)
        self._count(op)
        return 0

    def _closable(self, op: int, event: int, opening: int) -> int:
        if not self._wiring.needs[op] & event:
            return _F["no_half"]
        if self._bits[op] & event:
            return _F["twice"]
        return 0 if self._bits[op] & opening else _F["not_started"]

    def _close(self, op: int) -> None:
        """Let go of the stream and the memory of an operator that writes no more."""
        needs, queue = self._wiring.needs[op], self._wiring.queues[op]
        if queue >= 0:
            self._busy[queue] = -1
        if self._aliased[op]:
            if not needs & HAS_SENT:
                self._open_reads(op, -1)
            for blob in self._wiring.outputs[op] if self._wiring.moves[op] else ():
                self._writers[blob] -= 1

    def _opened(self, op: int, event: int, rank: int, worker: int) -> None:
        self._bits[op] |= event
        self.computing += 1
        if self._lost[rank]:
            self._spent.add(worker)

    def _closed(self, op: int, event: int, rank: int, worker: int) -> None:
        self._bits[op] |= event
        self.computing -= 1
        if self._lost[rank]:
            self._spent.add(worker)

    def _count(self, op: int) -> None:
        needs = self._wiring.needs[op]
        if self._bits[op] & (needs | _BROKEN) == needs:
            self._ops_left -= 1

    def _deliver(self, blob: int) -> None:
        """Count an end or an addition; the last opens the edges of the blob's consumers."""
        self._missing[blob] -= 1
        if self._missing[blob] == 0:
            self._blobs_left -= 1
            if self._shared[blob]:
                self._held[blob] = 1
            for consumer in self._wiring.consumers[blob]:
                self._waiting[consumer] -= 1

    def _add(self, iteration: int, op: int, blob: int, worker: int) -> int:
        producers, count = self._wiring.producers[blob], self._added[blob]
        if len(producers) < 2:
            return _F["add_single"]
        if count == len(producers) or producers[count] != op:
            return self._bad("add_order", producers[count] if count < len(producers) else -1)
        if not self._bits[op] & (HAS_RECEIVED if self._wiring.needs[op] & HAS_RECEIVED else HAS_START):
            return _F["add_early"]
        self._added[blob] += 1
        self._deliver(blob)
        return 0

    def _ready(self, iteration: int, op: int, blob: int, worker: int) -> int:
        if self._missing[blob]:
            return self._bad("ready_early", self._owing(blob))
        if self._announced[blob]:
            return _F["ready_twice"]
        for consumer in self._wiring.consumers[blob]:
            if self._bits[consumer] & HAS_START:
                return self._bad("ready_late", consumer)
        self._announced[blob] = True
        return 0

    def _fail(self, iteration: int, op: int, blob: int, worker: int) -> int:
        if op == ABSENT:
            self.phase = FAILED_RUN
            self.failed += 1
            return 0
        needs, bits = self._wiring.needs[op], self._bits[op]
        closing = HAS_SENT if needs & HAS_SENT else HAS_END
        opening = HAS_START if needs & HAS_START else HAS_RECEIVED
        if not bits & opening or bits & closing:
            return _F["failed_idle"]
        if closing == HAS_END:
            self._close(op)
        elif self._aliased[op]:
            self._open_reads(op, -1)
        rank = self._wiring.source_ranks[op]
        self._lost[rank] = True
        self._closed(op, closing | HAS_FAILED, rank, worker)
        return 0

    def _fail_there(self, iteration: int, op: int, blob: int, worker: int) -> int:
        """The half of a copy between ranks that writes has failed."""
        if not self._bits[op] & HAS_RECEIVED or self._bits[op] & HAS_END:
            return _F["failed_idle"]
        self._close(op)
        rank = self._wiring.target_ranks[op]
        self._lost[rank] = True
        self._closed(op, HAS_END | HAS_FAILED_THERE, rank, worker)
        return 0

    def _finish(self, iteration: int, op: int, blob: int, worker: int) -> int:
        if self.computing:
            return self._bad("finish_op", self._computed())
        if self._ops_left:
            return self._bad("finish_op", self._undone())
        if self._blobs_left:
            blob = next(blob for blob, count in enumerate(self._missing) if count)
            return self._bad("finish_blob", blob, self._owing(blob))
        self.phase = BETWEEN
        self.finished += 1
        self._swapped = [False] * len(self._wiring.pairs)
        return 0

    def _swap(self, iteration: int, op: int, blob: int, worker: int) -> int:
        number = self._pair.get(blob, -1)
        if number < 0:
            return _F["swap_no_pair"]
        if self._swapped[number]:
            return _F["swap_twice"]
        self._swapped[number] = True
        for other in (blob, *self._wiring.overlaps[blob]):  # a new value, and so have the views into it
            self._held[other] = self._held[other] or self._wiring.held[other]
        return 0

    def _stop(self, iteration: int, op: int, blob: int, worker: int) -> int:
        if self.phase == RUNNING:
            return _F["stop_running"]
        self.phase = STOPPED
        return 0

    # Shared memory (rule R5) --------------------------------------------------------------------------------------

    def _reads(self, op: int) -> int:
        for blob in self._wiring.inputs[op]:
            if self._shared[blob] and not self._held[blob]:
                return self._bad("read_lost", blob, self._over[blob])
        return 0

    def _writes(self, op: int) -> int:
        """Whether others read or write what the operator is about to write. Its own reading is not yet counted."""
        if not self._wiring.moves[op]:
            return 0
        for blob in self._wiring.outputs[op]:
            for other in (blob, *self._wiring.overlaps[blob]) if self._shared[blob] else ():
                if self._readers[other]:
                    return self._bad("write_over_read", blob, other)
                if self._writers[other] and other != blob:
                    return self._bad("write_over_write", blob, other)
        return 0

    def _open_reads(self, op: int, change: int) -> None:
        for blob in self._wiring.inputs[op]:
            self._readers[blob] += change

    def _open_writes(self, op: int) -> None:
        for blob in self._wiring.outputs[op] if self._wiring.moves[op] else ():
            self._writers[blob] += 1
            for other in (blob, *self._wiring.overlaps[blob]) if self._shared[blob] else ():
                self._held[other], self._over[other] = 0, op

    # Who is to blame ----------------------------------------------------------------------------------------------

    def _owing(self, blob: int) -> int:
        """The first producer that has not delivered to a blob that is not ready."""
        producers = self._wiring.producers[blob]
        for producer in producers:
            if self._bits[producer] & (HAS_END | _BROKEN) != HAS_END:
                return producer
        return producers[self._added[blob]] if self._added[blob] < len(producers) else producers[0]

    def _undone(self) -> int:
        """The first operator that could run and has not, or else the first that has not."""
        undone = [op for op, needs in enumerate(self._wiring.needs) if self._bits[op] & (needs | _BROKEN) != needs]
        return next((op for op in undone if not self._waiting[op]), undone[0])

    def _computed(self) -> int:
        """The first operator that computes."""
        for op, needs in enumerate(self._wiring.needs):
            bits = self._bits[op]
            sends, writes = HAS_SENT if needs & HAS_SENT else HAS_END, bits & HAS_RECEIVED and not bits & HAS_END
            if (bits & HAS_START and not bits & sends) or writes:
                return op
        return -1
