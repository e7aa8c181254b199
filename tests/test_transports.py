"""Transports: the suite of their contract for the in-process one, and the receiving side without any thread."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purine_ref.errors import Refused
from purine_ref.tensor import Tensor
from purine_ref.transports import EARLY, Hub, Inbox, Route, Transport
from suites.transports import VECTOR, Connect, TransportContract, all_to_all, expect, vector

REFUSED = r"^message of tag \d, iteration \d+, from rank 3 to rank 9: expected .+$"


class TestInProcess(TransportContract):
    @pytest.fixture
    def connect(self) -> Connect:
        def connected(incoming: Sequence[Mapping[Route, Tensor]], early: int = EARLY) -> Sequence[Transport]:
            return Hub(incoming, early=early).transports

        return connected


def test_a_hub_refuses_less_than_no_room() -> None:
    with pytest.raises(ValueError, match=r"^Hub: early must be 0 or more, got -1$"):
        Hub([], early=-1)


def test_a_hub_closes_all_its_transports() -> None:
    hub = Hub(all_to_all(3))
    hub.close()
    for transport in hub.transports:
        with pytest.raises(RuntimeError, match=f"^transport of rank {transport.rank} is closed: make a new one$"):
            expect(transport, 0, 0)


def test_hubs_share_nothing() -> None:
    one, other = Hub(all_to_all(2)), Hub(all_to_all(2))
    one.transports[0].send(1, 0, 0, vector(1))
    one.transports[0].abort("no power")
    other.transports[0].send(1, 0, 0, vector(2))
    assert expect(other.transports[1], 0, 0).given == [()]


def test_a_loss_and_closing_let_go_of_the_messages() -> None:
    for end in ("abort", "close"):
        hub = Hub(all_to_all(2))
        hub.transports[0].send(1, 0, 0, vector(1))
        [channel] = hub.transports[1]._inbox._channels.values()
        message = weakref.ref(channel.messages[0])
        if end == "abort":
            hub.transports[0].abort("no power")
        else:
            hub.transports[1].close()
        gc.collect()
        assert message() is None


def test_a_message_that_was_taken_is_let_go() -> None:
    inbox = Inbox(1, {(0, 2): VECTOR})
    array = vector(1)
    message = weakref.ref(array)
    inbox.put(0, 2, 0, array)
    assert inbox.expect(0, 2, 0, lambda: None)
    assert inbox.take(0, 2, 0, np.empty(3)) is array
    del array
    assert message() is None


@given(steps=st.lists(st.tuples(st.sampled_from(["put", "expect", "take"]), st.integers(0, 2)), max_size=60))
def test_any_order_of_sending_expecting_and_taking_brings_each_iteration_its_message(
    steps: list[tuple[str, int]],
) -> None:
    """Against a model that is only counters: per route, how many were sent, expected and taken."""
    inbox = Inbox(9, {(3, tag): Tensor(()) for tag in range(3)}, early=2)
    sent, asked, taken = [0, 0, 0], [0, 0, 0], [0, 0, 0]
    called: list[tuple[int, int]] = []
    for step, tag in steps:
        early = sum(max(0, sent[t] - asked[t]) for t in range(3))
        due = asked[tag] > taken[tag]
        if step == "put" and (sent[tag] < asked[tag] or early < 2):
            assert inbox.has_room(3, tag)
            message = np.array(sent[tag], "float32")
            inbox.check(3, tag, sent[tag], message)
            arrived = inbox.put(3, tag, sent[tag], message)
            assert (arrived is not None) == (sent[tag] < asked[tag])
            if arrived is not None:
                arrived()
                assert called.pop() == (tag, sent[tag])
            sent[tag] += 1
        elif step == "put":
            assert not inbox.has_room(3, tag)
        elif step == "expect" and not due:
            here = inbox.expect(3, tag, asked[tag], lambda key=(tag, asked[tag]): called.append(key))
            assert here == (sent[tag] > asked[tag])
            asked[tag] += 1
        elif step == "expect":
            with pytest.raises(Refused, match=REFUSED):
                inbox.expect(3, tag, asked[tag], lambda: None)
        elif not due:
            with pytest.raises(Refused, match=REFUSED):
                inbox.take(3, tag, taken[tag], np.empty((), "float32"))
        else:
            message = inbox.take(3, tag, taken[tag], np.empty((), "float32"))
            assert (message is None) == (sent[tag] <= taken[tag])
            if message is not None:
                assert message == taken[tag]
                taken[tag] += 1
    assert called == []
    assert len(inbox.missing()) == sum(asked[t] > sent[t] for t in range(3))
    assert inbox.missing() == []
