"""Wrong ranks and transports: messages, tags, iterations, runs that count, and losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from faults.fault import Fault, Plant, around, replaced, together
from faults.parallel import exact
from purine_ref.executors import Executor, parts
from purine_ref.executors import ranks as executor
from purine_ref.executors.memory import Binding
from purine_ref.graph import Graph, Op
from purine_ref.operation import Operation
from purine_ref.ops.transfer import Receive, Send
from purine_ref.transports import Inbox, InProcess, inproc

Array = Any


def ranks(name: str) -> str:
    """A check of ranks in one process."""
    return f"test_ranks: {name}"


def transport(name: str) -> str:
    """A check of the transports' suite."""
    return f"InProcess: {name}"


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

    return around(parts, "local_graph", local_graph)


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


def counted_twice(right: Any, self: Executor) -> None:
    right(self)
    if self.transport is not None:
        right(self)


def counted_at_once(right: Any, self: Executor, commit: bool = True) -> None:
    right(self, True)


def counted_already(self: executor.Ranks) -> None:
    self.iteration += 1


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
        around(Executor, "commit", counted_twice),
        (exact("data:2@ranks"), ranks("test_r4_r6_r7_several_iterations_under_delays")),
    ),
    Fault(
        "ranks: a run counts where it succeeded",
        "A rank does not wait for the others before its run counts.",
        together(around(Executor, "sync", counted_at_once), replaced(executor.Ranks, "commit", counted_already)),
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
    if right(self, peer, tag, iteration, arrived):
        return True
    arrived()
    return False


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

ALL = [*RANKS, *TRANSPORTS]
