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
from purine_ref.devices.virtual import VirtualDevice, VirtualEvent, VirtualMachine
from purine_ref.executors import memory
from purine_ref.executors.memory import Binding
from purine_ref.graph import Op
from purine_ref.ops import Copy
from purine_ref.ops.transfer import Receive

Array = Any


def devices(name: str) -> str:
    """A check of virtual devices."""
    return f"test_virtual_devices: {name}"


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
    if self.plan.graph.ops[index] not in self.plan.idle:
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
        (
            devices("test_what_moves_nothing_passes_its_events_on"),
            devices("test_parts_that_were_copied_into_one_whole"),
            exact("model:2@virtual"),
        ),
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
        (ADDITIONS,),
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


class LastFirst:
    """The module `queue`, but that its queues give out the last first."""

    SimpleQueue = queue.LifoQueue


def without_the_host(right: Any, self: RaceDetector, work: str, queue_name: str, *more: Any) -> None:
    if queue_name != "host":
        right(self, work, queue_name, *more)


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
        replaced(virtual._Queue, "idle", True),
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


ALL = [*EVENTS, *MEMORY, *DEVICES]
