"""Wrong places: events that nobody waits for, memory that is shared, races that are not seen, ranks, and transports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from faults.fault import Fault, Plant, around, replaced, together
from faults.parallel import exact
from purine_ref import hazards
from purine_ref.devices import Event, Work, races, virtual
from purine_ref.devices.races import RaceDetector
from purine_ref.devices.virtual import VirtualDevice, VirtualEvent, VirtualMachine
from purine_ref.executors import Executor, memory
from purine_ref.executors import ranks as executor
from purine_ref.executors.memory import Binding
from purine_ref.graph import Graph, Op
from purine_ref.operation import Operation
from purine_ref.ops import Copy
from purine_ref.ops.transfer import Receive, Send
from purine_ref.transports import Inbox, InProcess, inproc

Array = Any


def devices(name: str) -> str:
    """A check of virtual devices."""
    return f"test_virtual_devices: {name}"


def ranks(name: str) -> str:
    """A check of ranks in one process."""
    return f"test_ranks: {name}"


def transport(name: str) -> str:
    """A check of the transports' suite."""
    return f"InProcess: {name}"


COPIES = devices("test_a_copy_waits_for_what_it_reads_and_is_waited_for")
ADDITIONS = devices("test_r4_additions_wait_for_all_contributions_and_are_waited_for")
PLACEMENTS = devices("test_r8_random_placements_on_devices_give_the_serial_bits_without_a_race")


# Events


def waiting(needed: Callable[[Work, Event], bool]) -> Plant:
    """Work waits only for some of the events that it should wait for."""

    def after(right: Any, self: Binding, work: Work) -> Any:
        return right(self, replace(work, after=tuple(event for event in work.after if needed(work, event))))

    return around(Binding, "_after", after)


def on_another_device(work: Work, event: Event) -> bool:
    return event.queue.rpartition("/")[0] != str(work.location)


def without_event(right: Any, self: Binding, blob: int) -> None:
    """The sum is as ready as its terms."""
    before = self._events[blob]
    right(self, blob)
    self._events[blob] = before


def forgetting_when_idle(right: Any, self: Binding, index: int, call: Any, kernels: Any) -> None:
    if not call.idle:
        right(self, index, call, kernels)


def of_the_last_alone(right: Any, self: Binding, index: int, call: Any, kernels: Any) -> None:
    """Of several producers of a blob the last one's event counts."""
    for blob in self.plan.outputs[index]:
        self._events[blob] = []
    right(self, index, call, kernels)


EVENTS = [
    Fault(
        "event not waited for: between two streams",
        "Streams of one device do not wait for each other.",
        waiting(on_another_device),
        (exact("data:2@virtual"), COPIES, ADDITIONS, PLACEMENTS),
    ),
    Fault(
        "event not waited for: a copy to a device",
        "What a copy brings to a device is read before it is there.",
        waiting(lambda work, event: not event.queue.endswith("/inbound")),
        (COPIES, devices("test_a_composed_graph_over_cpus_and_devices"), PLACEMENTS),
    ),
    Fault(
        "event not waited for: a copy from a device",
        "What a copy takes from a device is read elsewhere before it is there.",
        waiting(lambda work, event: not event.queue.endswith("/outbound")),
        (exact("data:2@virtual"), exact("pipeline:2x4@virtual"), COPIES, PLACEMENTS),
    ),
    Fault(
        "event not waited for: what a copy takes",
        "A copy from a device begins before the value is there.",
        waiting(lambda work, event: work.stream != "outbound"),
        (exact("data:3,ring@virtual"), COPIES, ADDITIONS, PLACEMENTS),
    ),
    Fault(
        "event not waited for: by the host",
        "The host reads what a device has yet to write.",
        waiting(lambda work, event: work.queue != "host"),
        (COPIES, devices("test_a_composed_graph_over_cpus_and_devices"), PLACEMENTS),
    ),
    Fault(
        "event not waited for: of additions",
        "Whoever reads a sum waits for its terms alone.",
        around(Binding, "_submit_sum", without_event),
        (exact("data:2/pipeline:1x2@virtual"), ADDITIONS),
    ),
    Fault(
        "event not waited for: through what moves nothing",
        "Whoever reads a view waits for nobody.",
        around(Binding, "_submit", forgetting_when_idle),
        (devices("test_what_moves_nothing_passes_its_events_on"), exact("model:2@virtual")),
    ),
    Fault(
        "gradient added before it is there",
        "The additions to a blob wait for none of the contributions.",
        waiting(lambda work, event: not work.name.startswith("additions")),
        (ADDITIONS, PLACEMENTS),
    ),
    Fault(
        "gradient added when the last one is there",
        "The additions to a blob wait for the last contribution alone.",
        around(Binding, "_submit", of_the_last_alone),
        (ADDITIONS, PLACEMENTS),
    ),
]


# Memory


def one_landing(right: Any, blob: Any, view: Any, slots: Any, *more: Any) -> Any:
    """Copies of one shape land in one buffer of their place, though the last one may still be read."""
    slot = right(blob, view, slots, *more)
    for other, taken in slots.items():
        if lands(blob) and lands(other) and other.tensor == blob.tensor and view is None:
            return memory.Slot(taken.array)
    return slot


def lands(blob: Any) -> bool:
    return not blob.persistent and any(isinstance(op.operation, (Copy, Receive)) for op, _ in blob.producers)


def unseen_by_copies(right: Any, self: hazards.HazardCheck, op: Op) -> None:
    if not hasattr(op.operation, "to"):
        right(self, op)


MEMORY = [
    Fault(
        "memory: reused while it is read",
        "Copies of one shape land in one buffer of their place.",
        around(memory, "_bind_blob", one_landing),
        (exact("pipeline:2x4@virtual"), exact("pipeline:2x4@ranks"), exact("data:3,ring@ranks")),
    ),
    Fault(
        "memory: overwritten beside a copy",
        "A copy does not count as a reader of what is overwritten in place.",
        around(hazards.HazardCheck, "_read", unseen_by_copies),
        (devices("test_r5_memory_that_a_copy_still_reads_is_not_overwritten"),),
    ),
    Fault(
        "memory: of another place let through",
        "Work may touch the memory of any device.",
        replaced(VirtualMachine, "_require_own_memory", lambda self, work: None),
        (devices("test_memory_of_another_place_is_refused_but_to_copies"),),
    ),
]


# Virtual devices themselves


def before_its_work(right: Any, self: Any, work: Work, event: VirtualEvent) -> None:
    event.set()
    right(self, work, event)


def own_entry(right: Any, self: VirtualEvent, queue: str, clock: dict[str, int]) -> None:
    right(self, queue, {queue: clock.get(queue, 0)})


def going_on(right: Any, self: Any, work: Work) -> bool:
    """What failed is forgotten at once."""
    right(self, work)
    self._failures.clear()
    return True


WAITS = devices("test_work_waits_for_the_events_of_other_queues")
RACES = devices("test_whatever_races_is_found_and_nothing_else")

DEVICES = [
    Fault(
        "device: does not wait for events",
        "Queues start their work whatever it should wait for.",
        around(VirtualMachine, "enqueue", lambda right, self, work, event: right(self, replace(work, after=()), event)),
        (WAITS,),
    ),
    Fault(
        "device: the host does not wait",
        "Work on the CPU is done before what it should wait for.",
        around(VirtualDevice, "submit", lambda right, self, work: right(self, at_once(self, work))),
        (WAITS,),
    ),
    Fault(
        "device: an event happens before its work",
        "An event happens when its work is enqueued.",
        around(virtual._Queue, "put", before_its_work),
        (devices("test_an_event_happens_when_its_work_is_done"), WAITS),
    ),
    Fault(
        "device: failures forgotten",
        "What fails on a device is not told, and what needs it goes on.",
        around(virtual._Queue, "_done", going_on),
        (devices("test_r12_what_needs_failed_work_is_skipped_and_the_failure_is_told_once"),),
    ),
    Fault(
        "races: none seen",
        "All accesses count as ordered.",
        replaced(races, "_known", lambda other, work, clock: True),
        (devices("test_two_accesses_race_if_one_writes"), RACES),
    ),
    Fault(
        "races: readers not seen",
        "Only writers are recorded.",
        around(RaceDetector, "check", lambda right, self, *what: right(self, *what[:4], (), what[5])),
        (devices("test_two_accesses_race_if_one_writes"), RACES),
    ),
    Fault(
        "races: events of events not known",
        "An event orders its own queue alone, and not what that had waited for.",
        around(VirtualEvent, "__init__", own_entry),
        (devices("test_work_that_is_ordered_does_not_race"),),
    ),
    Fault(
        "races: parts of a buffer taken for the whole",
        "Accesses to different parts of one buffer count as conflicts.",
        replaced(races, "_share", lambda one, other: True),
        (devices("test_parts_of_a_buffer_race_if_they_share_an_element"), RACES),
    ),
]


def at_once(device: VirtualDevice, work: Work) -> Work:
    return replace(work, after=()) if device._location.is_cpu else work


# Ranks


def ending(change: Callable[[Graph, dict[Op, Operation]], None]) -> Plant:
    """The sends and receives of every rank's graph are others."""

    def local_graph(right: Any, graph: Graph, rank: int) -> Graph:
        local = right(graph, rank)
        ends: dict[Op, Any] = {op: op.operation for op in local.ops if isinstance(op.operation, (Send, Receive))}
        change(local, ends)
        for op, operation in ends.items():
            op.operation = operation
        return local

    return around(executor, "local_graph", local_graph)


def one_tag(_: Graph, ends: dict[Op, Any]) -> None:
    for op, end in ends.items():
        ends[op] = replace(end, tag=0)


def exchanged(_: Graph, ends: dict[Op, Any]) -> None:
    """Two messages of one shape from one rank are taken for each other."""
    alike: dict[tuple[object, ...], list[Op]] = {}
    for op, end in ends.items():
        if isinstance(end, Receive):
            alike.setdefault((end.peer, end.shape, end.dtype), []).append(op)
    for one, other, *_ in (ops for ops in alike.values() if len(ops) > 1):
        tags = ends[one].tag, ends[other].tag
        ends[one], ends[other] = replace(ends[one], tag=tags[1]), replace(ends[other], tag=tags[0])


def own_seed(right: Any, self: Binding, key: Any, transport: Any = None) -> Any:
    return right(self, replace(key, seed=key.seed + transport.rank) if transport is not None else key, transport)


def counted_at_once(right: Any, self: Executor, commit: bool = True) -> None:
    right(self, True)


def through_it_again(right: Any, self: executor.Ranks, run: Any) -> None:
    """After a failure the next run goes over the same hub, with what lies in it."""
    if self._hub is not None:
        self._hub.lost = None
        self._last = -1
    right(self, run)


RANKS = [
    Fault(
        "ranks: one tag for all messages",
        "All messages from one rank to another go along one route.",
        ending(one_tag),
        (exact("data:2@ranks"), ranks("test_messages_both_ways_at_once"), ranks("test_messages_in_any_order")),
    ),
    Fault(
        "ranks: tags of two messages exchanged",
        "Two messages of one shape are taken for each other.",
        ending(exchanged),
        (exact("pipeline:2x4@ranks"), ranks("test_messages_in_any_order")),
    ),
    Fault(
        "ranks: a seed for each",
        "Ranks draw from seeds of their own.",
        around(Binding, "begin", own_seed),
        ("verify --exact: nin-digits data:2@ranks", ranks("test_r4_r6_r7_several_iterations_under_delays")),
    ),
    Fault(
        "ranks: a run counts twice",
        "What a run exchanged is exchanged back.",
        around(executor._Bindings, "swap", lambda right, self: (right(self), right(self))),
        (exact("data:2@ranks"), ranks("test_r4_r6_r7_several_iterations_under_delays")),
    ),
    Fault(
        "ranks: a run counts where it succeeded",
        "A rank does not wait for the others before its run counts.",
        together(around(Executor, "sync", counted_at_once), replaced(executor._Bindings, "swap", lambda self: None)),
        ("test_ranks_failures: test_r12_a_run_counts_on_all_ranks_or_on_none",),
    ),
    Fault(
        "ranks: messages outlive a failed run",
        "The run after a failure finds the messages of the one that failed.",
        around(executor.Ranks, "_start", through_it_again),
        ("test_ranks_failures: test_r12_a_failure_on_one_rank_ends_them_all",),
        isolated=True,
    ),
]


# Transports


def in_every_run(name: str) -> Plant:
    """The iteration of a message is 0."""

    def call(right: Any, self: InProcess, peer: int, tag: int, iteration: int, what: Any) -> None:
        right(self, peer, tag, 0, what)

    return around(InProcess, name, call)


def the_newest(right: Any, self: Inbox, peer: int, tag: int, iteration: int, into: Array) -> Array | None:
    messages = self._channels[peer, tag].messages
    newest = messages.get(max(messages, default=iteration))
    message = right(self, peer, tag, iteration, into)
    return message if message is None else newest


class Uncopied:
    """numpy, but that an array made of an array is that one."""

    @staticmethod
    def array(array: Array, order: str) -> Array:
        return array


def called_at_once(right: Any, self: Inbox, peer: int, tag: int, iteration: int, arrived: Any) -> bool:
    return right(self, peer, tag, iteration, arrived) or not arrived() and False


TRANSPORTS = [
    Fault(
        "transport: an iteration's number is used again",
        "Every run's messages are those of iteration 0.",
        together(in_every_run("send"), in_every_run("expect"), in_every_run("take")),
        (exact("data:2@ranks"), ranks("test_messages_both_ways_at_once"), transport("test_the_callback_comes_once")),
    ),
    Fault(
        "transport: any iteration is taken",
        "A message that was sent before, or that nobody expects, is not refused.",
        replaced(Inbox, "_require", lambda self, *what: None),
        (
            transport("test_a_duplicate_is_refused"),
            transport("test_expecting_out_of_turn_is_refused"),
            "test_transports: test_any_order_of_sending_expecting_and_taking_brings_each_iteration_its_message",
        ),
    ),
    Fault(
        "transport: another iteration's message",
        "A rank that is behind gets the newest message along a route.",
        around(Inbox, "take", the_newest),
        (
            transport("test_messages_of_later_iterations_wait_until_they_are_expected"),
            "test_transports: test_any_order_of_sending_expecting_and_taking_brings_each_iteration_its_message",
        ),
    ),
    Fault(
        "transport: the sender's own array",
        "A message is not copied when it is sent.",
        replaced(inproc, "np", Uncopied),
        (transport("test_mq_01_the_sender_may_write_over_the_array_when_send_returns"),),
    ),
    Fault(
        "transport: room without end",
        "A rank may run ahead of the others for ever.",
        replaced(Inbox, "has_room", lambda self, peer, tag: True),
        (transport("test_a_sender_far_ahead_waits_for_the_receiver"),),
    ),
    Fault(
        "transport: called back before the message",
        "Whoever expects a message is told at once that it is there.",
        around(Inbox, "expect", called_at_once),
        (transport("test_the_callback_does_not_come_before_the_message"), transport("test_the_callback_comes_once")),
    ),
    Fault(
        "transport: nobody hears of a loss",
        "A rank that is lost tells nobody.",
        replaced(InProcess, "abort", lambda self, reason: None),
        (transport("test_after_a_loss_whoever_asks_is_answered_at_once"),),
        isolated=True,
    ),
]

ALL = [*EVENTS, *MEMORY, *DEVICES, *RANKS, *TRANSPORTS]
