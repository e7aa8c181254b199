"""Wrong devices, and wrong use of them: events not waited for, memory that is shared, races that are not seen."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from faults.fault import Fault, Plant, around, replaced
from faults.parallel import exact
from purine_ref import hazards
from purine_ref.devices import Event, Work, races, virtual
from purine_ref.devices.races import RaceDetector
from purine_ref.devices.streams import Host, Queues, Recording
from purine_ref.devices.streams import _Queue as Queue
from purine_ref.devices.virtual import VirtualHost, VirtualMachine, VirtualMark, VirtualStream
from purine_ref.devices.virtual_tape import TapeStream, VirtualTape
from purine_ref.devices.work import HOST
from purine_ref.executors import captured, launches, memory
from purine_ref.executors.launches import Launches, Signals
from purine_ref.graph import Op
from purine_ref.operation import RunKey
from purine_ref.ops import Copy
from purine_ref.ops.transfer import Receive
from purine_ref.plan import Plan

Array = Any


def devices(name: str) -> str:
    """A check of virtual devices."""
    return f"test_virtual_devices: {name}"


def streams(name: str) -> str:
    """A check of the logic of streams."""
    return f"test_streams: {name}"


def captures(name: str) -> str:
    """A check of the capturing executor."""
    return f"test_captured: {name}"


COPIES = devices("test_a_copy_waits_for_what_it_reads_and_is_waited_for")
ADDITIONS = devices("test_r4_additions_wait_for_all_contributions_and_are_waited_for")
PLACEMENTS = devices("test_r8_random_placements_on_devices_give_the_serial_bits_without_a_race")


WAITS = devices("test_work_waits_for_the_events_of_other_queues")
CROSSING = streams("test_a_composed_graph_makes_an_event_for_each_blob_that_crosses_and_none_elsewhere")
DROPPED = streams("test_any_wait_that_is_dropped_from_a_composed_graph_is_a_race")


# Events


def waiting(needed: Callable[[Work, Event], bool]) -> Plant:
    """Work waits only for some of the events that it should wait for."""

    def lacks(right: Any, self: Any, work: Work) -> Any:
        return [event for event in right(self, work) if needed(work, event)]

    return around(Queue, "lacks", lacks)


def on_another_device(work: Work, event: Event) -> bool:
    return event.queue.rpartition("/")[0] != str(work.location)


def without_event(right: Any, self: Launches, blob: int, *more: Any) -> None:
    """The sum is as ready as its terms."""
    before = self._events[blob]
    right(self, blob, *more)
    self._events[blob] = before


def forgetting_when_idle(right: Any, self: Launches, index: int, compute: Any, *more: Any) -> None:
    if compute is not None:
        right(self, index, compute, *more)


def of_the_last_alone(right: Any, self: Launches, index: int, *more: Any) -> None:
    """Of several producers of a blob the last one's event counts."""
    for blob in self._plan.outputs[index]:
        self._events[blob] = []
    right(self, index, *more)


def marked_early(right: Any, self: Queues, work: Work) -> Event | None:
    """The mark is made, and then the work is launched."""
    mark = None if work.location.is_cpu else self.stream(work.location, work.stream).mark()
    event = right(self, work)
    return event if event is None or mark is None else replace(event, mark=mark)


def however_late(right: Any, self: Any, work: Work) -> list[Event]:
    """A queue that was waited for is never waited for again."""
    return [event for event in right(self, work) if event.queue not in self.waited]


def as_if_never(right: Any, self: Any, work: Work) -> list[Event]:
    """A queue waits for every event of another, whatever it has waited for."""
    return [event for event in work.after if event.queue in (HOST,) or event.queue != work.queue]


def not_signalling(drop: Callable[[Plan, Signals], None]) -> Plant:
    """Some work is said to be read by nobody elsewhere."""

    def found(right: Any, plan: Plan) -> Signals:
        signals = right(plan)
        drop(plan, signals)
        return signals

    return around(launches, "signals", found)


def of_ops(silent: Callable[[Plan, Op], bool]) -> Callable[[Plan, Signals], None]:
    """Some operators do not signal."""
    return lambda plan, found: found.ops.difference_update(op.index for op in plan.graph.ops if silent(plan, op))


def read_as_a_view(plan: Plan, op: Op) -> bool:
    return any(reader in plan.idle for blob in op.outputs for reader, _ in blob.consumers)


def all_signalling(right: Any, plan: Plan) -> Signals:
    """All work is said to be read elsewhere."""
    signals = right(plan)
    signals.ops = {op.index for op in plan.graph.ops}
    return signals


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
        waiting(lambda work, event: work.queue != HOST),
        (COPIES, devices("test_a_composed_graph_over_cpus_and_devices"), PLACEMENTS),
    ),
    Fault(
        "event not waited for: of additions",
        "Whoever reads a sum waits for its terms alone.",
        around(Launches, "addition", without_event),
        (exact("data:2/pipeline:1x2@virtual"), ADDITIONS),
    ),
    Fault(
        "event not waited for: through what moves nothing",
        "Whoever reads a view waits for nobody.",
        around(Launches, "operator", forgetting_when_idle),
        (
            devices("test_what_moves_nothing_passes_its_events_on"),
            devices("test_parts_that_were_copied_into_one_whole"),
            exact("model:2@virtual"),
        ),
    ),
    Fault(
        "event not waited for: a later one of a queue",
        "Work that waits for what a queue did first counts as ordered after all that it does later.",
        around(Queue, "lacks", however_late),
        (streams("test_a_wait_that_a_later_one_has_made_is_left_out"), CROSSING, exact("data:2@virtual")),
    ),
    Fault(
        "event waited for again",
        "Work waits for what its queue has waited for.",
        around(Queue, "lacks", as_if_never),
        (streams("test_a_wait_that_a_later_one_has_made_is_left_out"), CROSSING),
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
        around(Launches, "operator", of_the_last_alone),
        (ADDITIONS,),
    ),
    Fault(
        "mark: made before the work",
        "Who waits for work waits for what came before it in its queue.",
        around(Queues, "submit", marked_early),
        (WAITS, COPIES, ADDITIONS, PLACEMENTS, exact("pipeline:2x4@virtual")),
    ),
    Fault(
        "mark: none for a copy to a device",
        "What a copy brings to a device is said to be read by nobody on another stream.",
        not_signalling(of_ops(lambda plan, op: op.stream == "inbound")),
        (COPIES, devices("test_a_composed_graph_over_cpus_and_devices"), CROSSING),
    ),
    Fault(
        "mark: none for a sum",
        "A sum is said to be read by nobody on another stream.",
        not_signalling(lambda plan, found: found.sums.clear()),
        (ADDITIONS, exact("data:2/pipeline:1x2@virtual")),
    ),
    Fault(
        "mark: none for what is read as a view",
        "Work whose first reader moves nothing is said to be read by nobody elsewhere.",
        not_signalling(of_ops(read_as_a_view)),
        (devices("test_what_moves_nothing_passes_its_events_on"), exact("model:2@virtual")),
    ),
    Fault(
        "mark: for all work",
        "An event is made for every operator, whoever reads what it writes.",
        around(launches, "signals", all_signalling),
        (CROSSING, streams("test_operators_that_move_nothing_make_no_event_and_pass_on_that_one_is_needed")),
    ),
]


# Memory


def one_landing(right: Any, plan: Any, *more: Any) -> Any:
    """Copies of one shape land in one buffer of their place, though the last one may still be read."""
    places = right(plan, *more)
    landed: dict[Any, Any] = {}
    for blob in plan.graph.blobs:
        if lands(blob) and blob not in plan.views:
            places[blob.index] = landed.setdefault(blob.tensor, places[blob.index])
    return places


def lands(blob: Any) -> bool:
    return not blob.persistent and any(isinstance(op.operation, (Copy, Receive)) for op, _ in blob.producers)


def unseen_by_copies(right: Any, self: hazards.HazardCheck, op: Op) -> None:
    if not hasattr(op.operation, "to"):
        right(self, op)


MEMORY = [
    Fault(
        "memory: reused while it is read",
        "Copies of one shape land in one buffer of their place.",
        around(memory, "_bind_blobs", one_landing),
        (exact("pipeline:2x4@virtual"), exact("data:3,ring@virtual")),
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
        replaced(VirtualMachine, "require_own_memory", lambda self, work: None),
        (devices("test_memory_of_another_place_is_refused_but_to_copies"),),
    ),
]


# Virtual devices themselves


def before_its_work(right: Any, self: VirtualStream) -> VirtualMark:
    mark = right(self)
    mark.set()
    return mark


def own_entry(right: Any, self: VirtualStream) -> VirtualMark:
    mark = right(self)
    mark.clock = {self._knowledge.queue: mark.clock.get(self._knowledge.queue, 0)}
    return mark


def going_on(right: Any, self: VirtualStream, work: Work) -> None:
    """What failed is forgotten at once."""
    right(self, work)
    self._failures.clear()
    self._failed = False


class LastFirst:
    """The module `queue`, but that its queues give out the last first."""

    SimpleQueue = queue.LifoQueue


def without_the_host(right: Any, self: RaceDetector, work: str, queue_name: str, *more: Any) -> None:
    if queue_name != "host":
        right(self, work, queue_name, *more)


RACES = devices("test_whatever_races_is_found_and_nothing_else")

DEVICES = [
    Fault(
        "device: does not wait for events",
        "Queues start their work whatever it should wait for.",
        replaced(VirtualStream, "_wait", lambda self, mark: None),
        (WAITS,),
    ),
    Fault(
        "device: the host does not wait",
        "Work on the CPU is done before what it should wait for.",
        replaced(Host, "wait", lambda self, mark: None),
        (WAITS,),
    ),
    Fault(
        "device: an event happens before its work",
        "An event happens when its work is enqueued.",
        around(VirtualStream, "mark", before_its_work),
        (devices("test_an_event_happens_when_its_work_is_done"), WAITS),
    ),
    Fault(
        "device: failures forgotten",
        "What fails on a device is not told, and what needs it goes on.",
        around(VirtualStream, "_do", going_on),
        (devices("test_r12_what_needs_failed_work_is_skipped_and_the_failure_is_told_once"),),
    ),
    Fault(
        "device: work out of order",
        "A queue starts what was submitted last.",
        replaced(virtual, "queue", LastFirst),
        (devices("test_submitting_does_not_wait_and_a_queue_keeps_its_order"),),
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
        "races: of the host not seen",
        "What the host does counts as ordered after all devices.",
        around(RaceDetector, "check", without_the_host),
        (devices("test_the_host_races_with_devices_that_it_does_not_wait_for"),),
    ),
    Fault(
        "races: forgotten too early",
        "What a device did is forgotten while another still works.",
        replaced(VirtualStream, "idle", True),
        (devices("test_nothing_races_with_what_was_waited_for"),),
    ),
    Fault(
        "races: never forgotten",
        "What was waited for counts as going on.",
        replaced(RaceDetector, "forget", lambda self: None),
        (devices("test_nothing_races_with_what_was_waited_for"),),
    ),
    Fault(
        "races: events of events not known",
        "An event orders its own queue alone, and not what that had waited for.",
        around(VirtualStream, "mark", own_entry),
        (devices("test_work_that_is_ordered_does_not_race"),),
    ),
    Fault(
        "races: parts of a buffer taken for the whole",
        "Accesses to different parts of one buffer count as conflicts.",
        replaced(races, "_share", lambda one, other: True),
        (devices("test_parts_of_a_buffer_race_if_they_share_an_element"), RACES),
    ),
]


# Recordings


def without_fork(right: Any, self: Recording, location: Any, name: str) -> Any:
    return right(self, location, name) if self._first is None else self._tape.open(location, name)


def deaf(self: VirtualHost, mark: VirtualMark) -> None:
    """The host waits, and does not know for what."""
    Host.wait(self, mark)


APART = captures("test_a_recording_without_fork_or_join_is_refused")
REPLAYS = captures("test_r8_replays_have_the_bits_of_the_serial_executor")
TURNS = captures("test_r6_two_graphs_take_turns_on_one_memory")
FORKED = streams("test_a_recording_is_forked_from_its_first_stream_and_joined_to_it")

RECORDINGS = [
    Fault(
        "recording: not forked",
        "The other streams of a recording do not begin behind the first.",
        around(Recording, "_open", without_fork),
        (FORKED, REPLAYS),
    ),
    Fault(
        "recording: not joined",
        "A recording ends while streams other than the first go on.",
        replaced(Recording, "join", lambda self: self._tape.end()),
        (FORKED, REPLAYS),
    ),
    Fault(
        "recording: waits left out",
        "What is recorded waits for no other stream of the recording.",
        replaced(TapeStream, "wait", lambda self, mark: setattr(self, "_part", True)),
        (REPLAYS,),
    ),
    Fault(
        "recording: one for all arrangements",
        "What was recorded with one arrangement of the persistent arrays is replayed with any.",
        replaced(memory.Binding, "persistent", lambda self: ()),
        (REPLAYS, TURNS),
    ),
    Fault(
        "recording: the iteration of its making",
        "Every replay draws the random numbers of the iteration in which it was recorded.",
        replaced(captured, "RunKey", lambda seed, iteration: RunKey(seed, 1)),
        (captures("test_r7_every_replay_draws_by_its_own_iteration"), REPLAYS),
    ),
    Fault(
        "recording: replayed once",
        "What was recorded is gone when it has been replayed.",
        around(VirtualTape, "replay", lambda right, self: (right(self), self.close())),
        (captures("test_what_is_fed_to_the_host_is_copied_in_by_every_replay"),),
    ),
    Fault(
        "recording: kept though it failed",
        "What was recorded before an error is replayed ever after.",
        replaced(Recording, "discard", lambda self: None),
        (streams("test_a_recording_that_fails_is_discarded_and_takes_nothing_of_the_host"),),
    ),
    Fault(
        "races: what the host waited for not passed on",
        "Work behind that of the host does not count as behind what the host has waited for.",
        replaced(VirtualHost, "wait", deaf),
        (COPIES, PLACEMENTS),
    ),
]

ALL = [*EVENTS, *MEMORY, *DEVICES, *RECORDINGS]
