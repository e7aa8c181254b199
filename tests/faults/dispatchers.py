"""Wrong dispatchers: counts of edges, starts and ends, additions, swaps, and what happens after a failure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from faults.fault import Fault, Plant, around, replaced, together
from purine_ref.executors import Executor, Serial, Threaded, base, lanes, memory
from purine_ref.plan import Plan
from purine_ref.schedule import ReadyQueue, Schedule

Array = Any

GC_01 = "test_gc_01_a_gradient_adds_to_what_is_there"
ENDS = "test_r3_every_kind_of_end_is_done_exactly_once"
EDGES = "test_r2_an_operator_waits_for_every_edge"
AGAIN = "test_r3_two_hundred_immediate_runs_again"
TWICE = "test_sc_01_one_blob_wired_twice"
PRODUCERS = "test_sc_02_eight_producers_of_one_blob"
ORDER = "test_sc_02_the_order_of_the_edges_is_the_order_of_the_sum"
RAISES = "test_sc_04_an_operator_that_raises"
FAN_OUT = "test_gradients: test_op_10_every_executor"
SAME_BITS = "test_random_graphs: test_every_executor_gives_the_same_bits"


def replanned(change: Callable[[Plan], Plan]) -> Plant:
    """Executors run by another plan than the right one."""
    return around(base, "prepare", lambda right, *arguments: change(right(*arguments)))


# Readiness


def without_second_input(plan: Plan) -> Plan:
    """An operator of several inputs does not wait for the second of them."""
    waiting, consumers = list(plan.waiting), [list(ops) for ops in plan.consumers]
    for op, inputs in enumerate(plan.inputs):
        waited = [blob for blob in dict.fromkeys(inputs) if plan.producers[blob]]
        if len(waited) > 1:
            waiting[op] -= inputs.count(waited[1])
            consumers[waited[1]] = [consumer for consumer in consumers[waited[1]] if consumer != op]
    return replace(plan, waiting=waiting, consumers=consumers)


def waiting_for_blobs(plan: Plan) -> Plan:
    """What an operator waits for is counted in a set."""
    return replace(plan, waiting=[len({blob for blob in inputs if plan.producers[blob]}) for inputs in plan.inputs])


def delivering_to_operators(plan: Plan) -> Plan:
    """Whom a blob delivers to is a set."""
    return replace(plan, consumers=[list(dict.fromkeys(ops)) for ops in plan.consumers])


def one_producer(plan: Plan) -> Plan:
    return replace(plan, producers=[min(count, 1) for count in plan.producers])


def one_by_one() -> AbstractContextManager[object]:
    """Not a fault: the serial executor calls what the threaded one calls, and no loop of the schedule's own."""
    return mock.patch.object(Serial, "_uninterrupted", return_value=False)


def first_alone(right: Any, self: Schedule, *arguments: Any) -> list[int]:
    return right(self, *arguments)[:1]


COUNTED: dict[int, Schedule] = {}
"""The first schedule of each plan, by the plan's identity; the schedule keeps it alive."""


def counted_before(right: Any, schedule: Schedule, kernels: Any, attended: bool) -> Any:
    return right(COUNTED.setdefault(id(schedule._plan), schedule), kernels, attended)


def twice(right: Any, self: Executor, run: Any, index: int) -> Any:
    return right(self, run, index) or right(self, run, index)


def sinks_twice(right: Any, self: Executor, observer: Any, op: Any) -> None:
    right(self, observer, op)
    if not any(blob.consumers for blob in op.outputs):
        right(self, observer, op)


READINESS = [
    Fault(
        "early fire",
        "An operator of several inputs starts before the second of them is there.",
        replanned(without_second_input),
        (f"Serial: {EDGES}", f"Threaded: {EDGES}"),
    ),
    Fault(
        "early fire: first delivery completes a blob",
        "A blob of several producers counts as ready when one of them has delivered.",
        replanned(one_producer),
        (f"Serial: {PRODUCERS}", f"Serial: {EDGES}", f"Threaded: {PRODUCERS}"),
    ),
    Fault(
        "double fire",
        "Every operator is computed twice.",
        around(Executor, "_execute", twice),
        (f"Serial: {ENDS}", f"Threaded: {ENDS}"),
    ),
    Fault(
        "sink finished twice",
        "The end of an operator that nobody waits for is told twice.",
        around(Executor, "_finished", sinks_twice),
        (f"Serial: {ENDS}", f"Threaded: {ENDS}"),
    ),
    Fault(
        "lost count",
        "Of several operators that become ready at once only the first is started.",
        together(one_by_one, around(Schedule, "release", first_alone), around(Schedule, "done", first_alone)),
        (f"Serial: {TWICE}", f"Simulated: {TWICE}", "test_schedule: test_a_run_of_a_diamond"),
    ),
    Fault(
        "lost count: a run that never ends",
        "Of several operators that become ready at once the workers are given only the first.",
        around(Schedule, "release", first_alone),
        (f"Watched: {TWICE}",),
        isolated=True,
    ),
    Fault(
        "stale counters on the next run",
        "A run goes on with the counters that the last one left.",
        around(base, "Run", counted_before),
        (f"Serial: {AGAIN}", f"Simulated: {AGAIN}"),
    ),
    Fault(
        "readiness on a set: what an operator waits for",
        "A blob that is wired twice into an operator is waited for once, but delivers twice.",
        replanned(waiting_for_blobs),
        (f"Serial: {EDGES}", f"Serial: {TWICE}"),
    ),
    Fault(
        "readiness on a set: whom a blob delivers to",
        "A blob that is wired twice into an operator is waited for twice, but delivers once.",
        replanned(delivering_to_operators),
        (f"Serial: {EDGES}", f"Serial: {TWICE}"),
    ),
    Fault(
        "replay: turn ignored",
        "A recorded order is kept within each queue alone.",
        around(ReadyQueue, "__init__", lambda right, self, ranks=None, turn=None: right(self, ranks)),
        ("test_schedule: test_a_turn_gives_out_only_the_next_of_a_full_order",),
    ),
]


# Additions and swaps


def overwritten(total: Array, parts: Sequence[Array]) -> None:
    for part in parts:
        np.copyto(total, part)


def noting_arrival(right: Any, self: memory.Binding, op: int, *arguments: Any) -> None:
    right(self, op, *arguments)
    arrivals = self.__dict__.setdefault("arrivals", (itertools.count(), {}))
    arrivals[1][op] = next(arrivals[0])


def in_order_of_arrival(right: Any, self: memory.Binding, blob: int) -> None:
    producers = [op.index for op, _ in self.plan.graph.blobs[blob].producers]
    arrays = [memory._array(self._places[blob]), *self._later.get(blob, ())]
    arrived = sorted(range(len(arrays)), key=lambda edge: self.__dict__["arrivals"][1][producers[edge]])
    total = arrays[arrived[0]].copy()
    for edge in arrived[1:]:
        total += arrays[edge]
    arrays[0][...] = total


def accumulated(right: Any, self: memory.Binding, blob: int) -> None:
    """What the blob held after the last run is added to it."""
    right(self, blob)
    kept = self.__dict__.setdefault("kept", {})
    total = memory._array(self._places[blob])
    total += kept.get(blob, 0)
    kept[blob] = total.copy()


def by_copying(self: memory.Binding) -> None:
    for current, following in self._pairs:
        current.array[...] = following.array


def cut_once(whole: Any, view: Any) -> memory.Slot:
    return memory.Slot(memory._cut(whole.array, view))


def bound_for_ever(right: Any, self: memory.Binding, *arguments: Any) -> None:
    right(self, *arguments)
    self._lasting.clear()


def swapping_first(right: Any, self: Executor, run: Any) -> None:
    if run.failures:
        self._bound.swap()
    right(self, run)


VALUES = [
    Fault(
        "additions: overwrite instead of add",
        "Of several producers the last one's contribution replaces the others'.",
        replaced(memory, "_add_up", overwritten),
        (f"Linear: {GC_01}", f"Serial: {PRODUCERS}", f"Threaded: {PRODUCERS}", FAN_OUT),
    ),
    Fault(
        "additions: last edge first",
        "Contributions are added in the opposite order of the edges.",
        around(memory, "_add_up", lambda right, total, parts: right(total, parts[::-1])),
        (f"Serial: {ORDER}", f"Threaded: {ORDER}"),
    ),
    Fault(
        "additions: in the order of arrival",
        "Contributions are added in the order in which their producers end.",
        together(
            one_by_one,
            around(memory.Binding, "call", noting_arrival),
            around(memory.Binding, "combine", in_order_of_arrival),
        ),
        ("Threaded: test_sc_02_the_order_of_the_sum_is_not_that_of_the_ends", SAME_BITS),
    ),
    Fault(
        "additions: to what the last run left",
        "A blob of several producers is not emptied between runs.",
        around(memory.Binding, "combine", accumulated),
        (f"Serial: {PRODUCERS}", f"Serial: {ORDER}", FAN_OUT),
    ),
    Fault(
        "swap: forgotten",
        "What a run computed does not become the next run's value.",
        replaced(memory.Binding, "swap", lambda self: None),
        (
            "Serial: test_r6_pairs_are_swapped_between_runs_and_not_copied",
            "Threaded: test_r6_pairs_are_swapped_between_runs_and_not_copied",
            "test_optim: test_r6_two_graphs_over_one_memory_take_turns",
        ),
    ),
    Fault(
        "swap: doubled",
        "Every pair is exchanged and exchanged back.",
        around(memory.Binding, "swap", lambda right, self: (right(self), right(self))),
        (
            "Serial: test_r6_pairs_are_swapped_between_runs_and_not_copied",
            f"Serial: {AGAIN}",
            "Threaded: test_r6_two_graphs_take_turns_on_one_memory",
        ),
    ),
    Fault(
        "swap: copied",
        "The next value is copied over the current one.",
        replaced(memory.Binding, "swap", by_copying),
        (
            "Serial: test_r6_pairs_are_swapped_between_runs_and_not_copied",
            "test_optim: test_r6_a_pair_is_exchanged_and_not_copied",
        ),
    ),
    Fault(
        "swap: operators keep the old arrays",
        "Operators go on with the arrays that they had before the exchange.",
        around(memory.Binding, "__init__", bound_for_ever),
        ("Serial: test_r6_pairs_are_swapped_between_runs_and_not_copied", f"Serial: {AGAIN}"),
    ),
    Fault(
        "swap: views stay behind",
        "A view of a swapped blob shows the array that the blob had at first.",
        replaced(memory, "Part", cut_once),
        ("Serial: test_r6_a_view_follows_the_swap",),
    ),
    Fault(
        "swap: after a failure too",
        "A run that failed leaves half of its results behind.",
        around(Executor, "_end", swapping_first),
        ("Serial: test_r6_a_failed_run_swaps_nothing", "Threaded: test_r6_a_failed_run_swaps_nothing"),
    ),
    Fault(
        "fetch: the buffer itself",
        "Whoever fetches an array can write into the graph's memory.",
        replaced(memory.Binding, "read", lambda self, blob: memory._array(self._places[blob.index])),
        ("Serial: test_feed_and_fetch_copy", "Serial: test_fetch_errors"),
    ),
]


# Failures


def raising(right: Any, self: Threaded, run: Any, index: int) -> None:
    """What an operator raises goes out of the worker."""
    error = right(self, run, index)
    if error is not None:
        raise error


def keeping_quiet(right: Any, self: lanes.Lanes, run: Any, op: int, complete: Any, error: Any, lane: Any) -> None:
    if error is None:
        right(self, run, op, complete, error, lane)
    else:
        self._started -= 1
        run.failures.append(error)


def going_on(right: Any, self: lanes.Lanes, run: Any, op: int, complete: Any, error: Any, lane: Any) -> None:
    if error is not None:
        run.failures.append(error)
    right(self, run, op, complete, None, lane)


def waking_one(right: Any, self: lanes.Lanes, ready: Sequence[int], own: Any) -> None:
    """Of all workers that have something to do one is told, or none where the caller takes an operator itself."""
    for op in ready:
        self._lane_of[op].queue.push(op)
    for op in ready[:1] if own is None else ():
        self._lane_of[op].work.notify()


FAILURES = [
    Fault(
        "failure swallowed",
        "An operator that raised counts as one that has computed.",
        around(Executor, "_failed", lambda right, self, op, error: None),
        (f"Serial: {RAISES}", f"Threaded: {RAISES}"),
    ),
    Fault(
        "failure: the run goes on",
        "Operators that wait for one that failed are started all the same.",
        around(lanes.Lanes, "retire", going_on),
        (f"Watched: {RAISES}", "Watched: test_r12_nothing_starts_after_a_failure"),
    ),
    Fault(
        "failure: worker dies",
        "The worker whose operator raised is gone.",
        around(Threaded, "_execute", raising),
        (f"Watched: {RAISES}",),
        isolated=True,
    ),
    Fault(
        "failure: hang",
        "Nobody tells the waiting thread that the run is over.",
        around(lanes.Lanes, "retire", keeping_quiet),
        (f"Watched: {RAISES}",),
        isolated=True,
    ),
    Fault(
        "failure: arrays kept alive",
        "The frames of an operator's error hold the arrays that it worked on.",
        around(base, "tidy", lambda right, error, op: error.add_note(op.describe())),
        ("Serial: test_r12_no_traceback_keeps_arrays_alive", "Threaded: test_r12_no_traceback_keeps_arrays_alive"),
    ),
    Fault(
        "workers: lost wake-up",
        "Of the workers that sleep one is woken, however many operators are ready.",
        around(lanes.Lanes, "_push", waking_one),
        ("Watched: test_as_many_operators_run_at_once_as_there_are_workers",),
        isolated=True,
    ),
    Fault(
        "run: started again while it runs",
        "Nothing keeps a second run from starting in the middle of the first.",
        replaced(Executor, "_refuse_while_running", lambda self, what: None),
        ("Threaded: test_r3_starting_again_while_it_runs_is_refused_and_changes_nothing",),
        isolated=True,
    ),
]

ALL = [*READINESS, *VALUES, *FAILURES]
