"""The contract of a transport, as a suite, for any implementation: `purine_ref.transports.Transport` says it in words.

Subclass `TransportContract` and override the fixture `connect`: a function that takes what may come in at each rank,
a mapping from routes to tensors, and the keyword `early`, and returns the ranks' transports, connected, in this
process. Nothing here assumes that a message is there when `send` returns; every wait ends after `WATCH` seconds.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from hooks import WATCH
from purine_ref.errors import PeerLost, Refused
from purine_ref.tensor import Tensor
from purine_ref.transports import Route, Transport

Array = Any
Connect = Callable[..., Sequence[Transport]]

VECTOR = Tensor((3,), "float64")
MOMENT = 0.05
"""Seconds in which something is seen not to happen; if it happened later, the test would pass all the same."""


class Call:
    """A callback that counts its calls, keeps what it was given, and can be waited for."""

    def __init__(self, transport: Transport | None = None) -> None:
        self.given: list[tuple[Any, ...]] = []
        self._called = threading.Event()
        self._wait = self._called.wait if transport is None else partial(transport.wait, self._called)

    def __call__(self, *given: Any) -> None:
        self.given.append(given)
        self._called.set()

    def wait(self) -> None:
        """Wait for the first call, by the transport's own way if there is one."""
        assert self._wait(WATCH), "the callback was never called"


def vector(number: float) -> Array:
    """An array for a route of `VECTOR`."""
    return np.array([number, -number, 0.5], VECTOR.dtype)


def expect(transport: Transport, peer: int, tag: int, iteration: int = 0) -> Call:
    """Expect a message; returns the callback."""
    call = Call(transport)
    transport.expect(peer, tag, iteration, call)
    return call


def take(transport: Transport, peer: int, tag: int, iteration: int = 0, tensor: Tensor = VECTOR) -> Array:
    """Take a message that has arrived, in a buffer that held 7."""
    into = np.full(tensor.shape, 7, tensor.dtype)
    transport.take(peer, tag, iteration, into)
    return into


def receive(transport: Transport, peer: int, tag: int, iteration: int = 0, tensor: Tensor = VECTOR) -> Array:
    """Expect a message, wait for it, and take it."""
    expect(transport, peer, tag, iteration).wait()
    return take(transport, peer, tag, iteration, tensor)


@contextmanager
def beside(action: Callable[..., Any], *arguments: Any) -> Iterator[Future[Any]]:
    """`action` goes on, on a thread of its own, while the block does; it must have ended soon after."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(action(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()  # one that hangs keeps nobody
    yield future
    future.exception(WATCH)


def beside_result(action: Callable[..., Any], *arguments: Any) -> Any:
    """What `action` gives on a thread of its own."""
    with beside(action, *arguments) as future:
        return future.result(WATCH)


def all_to_all(world: int, tags: Sequence[int] = (0,), tensor: Tensor = VECTOR) -> list[dict[Route, Tensor]]:
    """Routes from every rank to every other."""
    return [{(p, tag): tensor for p in range(world) if p != rank for tag in tags} for rank in range(world)]


ARRAYS = {
    "float32": np.linspace(-1, 1, 20, dtype="float32").reshape(4, 5),
    "float64": np.array([[np.nan, -0.0, np.inf], [5e-324, -1.5, 1e300]]),
    "int64": np.array([2**63 - 1, -(2**63), 0]),
    "scalar": np.array(2.5),
    "empty": np.zeros((4, 0, 3), "float32"),
    "transposed": np.arange(20.0).reshape(4, 5).T,
    "strided": np.arange(24.0).reshape(4, 6)[::-2, 1::2],
    "large": np.arange(300_000, dtype="float32").reshape(300, 1000),
}


class TransportContract:
    """What every transport must do."""

    @pytest.fixture
    def connect(self) -> Connect:
        """How to connect the transports under test."""
        raise NotImplementedError("override the fixture connect")

    @pytest.fixture
    def pair(self, connect: Connect) -> Iterator[Sequence[Transport]]:
        """Two ranks, with routes of tags 2 and 5 both ways."""
        yield from self._closed_after(connect(all_to_all(2, (2, 5))))

    @pytest.fixture
    def three(self, connect: Connect) -> Iterator[Sequence[Transport]]:
        """Three ranks, with routes of tags 2 and 5 among all."""
        yield from self._closed_after(connect(all_to_all(3, (2, 5))))

    @staticmethod
    def _closed_after(transports: Sequence[Transport]) -> Iterator[Sequence[Transport]]:
        yield transports
        for transport in transports:
            transport.close()

    # Messages ---------------------------------------------------------------------------------------------------

    def test_each_knows_its_rank_and_the_world(self, three: Sequence[Transport]) -> None:
        assert [(transport.rank, transport.world) for transport in three] == [(0, 3), (1, 3), (2, 3)]

    @pytest.mark.parametrize("kind", ARRAYS)
    def test_an_array_arrives_bit_for_bit(self, connect: Connect, kind: str) -> None:
        array = ARRAYS[kind]
        tensor = Tensor(array.shape, array.dtype.name)
        before = array.tobytes()
        sender, receiver = connect([{}, {(0, 3): tensor}])
        sender.send(1, 3, 0, array)
        assert receive(receiver, 0, 3, 0, tensor).tobytes() == before
        assert array.tobytes() == before
        sender.close()
        receiver.close()

    def test_it_is_taken_into_an_array_of_any_layout(self, pair: Sequence[Transport]) -> None:
        wide = np.full((3, 4), 7.0)
        call = expect(pair[1], 0, 2)
        pair[0].send(1, 2, 0, vector(4))
        call.wait()
        pair[1].take(0, 2, 0, wide[::-1, 1])
        np.testing.assert_array_equal(wide[:, 1], vector(4)[::-1])
        np.testing.assert_array_equal(np.delete(wide, 1, axis=1), np.full((3, 3), 7.0))

    @pytest.mark.parametrize("expected_first", [True, False])
    def test_mq_01_the_sender_may_write_over_the_array_when_send_returns(
        self, pair: Sequence[Transport], expected_first: bool
    ) -> None:
        array = vector(1)
        call = expect(pair[1], 0, 2) if expected_first else None
        pair[0].send(1, 2, 0, array)
        array[...] = -1
        (call or expect(pair[1], 0, 2)).wait()
        np.testing.assert_array_equal(take(pair[1], 0, 2), vector(1))

    @pytest.mark.parametrize("taken_into", ["the same", "another"])
    @pytest.mark.parametrize("strided", [False, True])
    @pytest.mark.parametrize("expected_first", [True, False])
    def test_a_receiver_may_say_early_where_a_message_goes(
        self, connect: Connect, expected_first: bool, strided: bool, taken_into: str
    ) -> None:
        """It may come there as it comes; whatever was said, `take` writes into the array that it is given."""
        tensor = Tensor((200_000,), "float64")
        sender, receiver = connect([{}, {(0, 2): tensor}])
        into = np.full((200_000, 2), 7.0)[:, 0] if strided else np.full(tensor.shape, 7.0)
        call = Call()
        if expected_first:
            receiver.expect(0, 2, 0, call, into)
        sender.send(1, 2, 0, np.arange(200_000.0))
        if not expected_first:
            receiver.expect(0, 2, 0, call, into)
        call.wait()
        given = into if taken_into == "the same" else np.full(tensor.shape, 7.0)
        receiver.take(0, 2, 0, given)
        np.testing.assert_array_equal(given, np.arange(200_000.0))
        sender.close()
        receiver.close()

    def test_ranks_share_no_memory(self, pair: Sequence[Transport]) -> None:
        array = vector(1)
        pair[0].send(1, 2, 0, array)
        taken = receive(pair[1], 0, 2)
        taken[...] = 9
        np.testing.assert_array_equal(array, vector(1))

    @pytest.mark.parametrize("expected_first", [True, False])
    def test_the_callback_comes_once(self, pair: Sequence[Transport], expected_first: bool) -> None:
        call = expect(pair[1], 0, 2) if expected_first else None
        pair[0].send(1, 2, 0, vector(1))
        call = call or expect(pair[1], 0, 2)
        call.wait()
        take(pair[1], 0, 2)
        pair[0].send(1, 2, 1, vector(2))
        receive(pair[1], 0, 2, 1)
        assert call.given == [()]

    def test_the_callback_does_not_come_before_the_message(self, pair: Sequence[Transport]) -> None:
        call, other = expect(pair[1], 0, 2), expect(pair[1], 0, 5)
        pair[0].send(1, 5, 0, vector(1))
        other.wait()
        assert call.given == []

    def test_a_callback_may_use_the_transport(self, pair: Sequence[Transport]) -> None:
        """Each rank answers from its callback with one more, twenty times there and back."""
        ended, numbers = threading.Event(), []

        def answer(rank: int, iteration: int) -> None:
            number = take(pair[rank], 1 - rank, 2, iteration)[0]
            numbers.append(number)
            if iteration < 19:
                expect_answer(rank, iteration + 1)
            if rank == 0 and iteration == 19:
                ended.set()
            elif rank == 0:
                pair[0].send(1, 2, iteration + 1, vector(number + 1))
            else:
                pair[1].send(0, 2, iteration, vector(number + 1))

        def expect_answer(rank: int, iteration: int) -> None:
            pair[rank].expect(1 - rank, 2, iteration, lambda: answer(rank, iteration))

        for rank in (0, 1):
            expect_answer(rank, 0)
        pair[0].send(1, 2, 0, vector(1))
        assert ended.wait(WATCH)
        assert numbers == list(range(1, 41))

    # Order ------------------------------------------------------------------------------------------------------

    def test_routes_overtake_each_other(self, connect: Connect) -> None:
        """Ten messages, sent in one order, expected in another, taken in a third."""
        tags = list(range(10))
        sender, receiver = connect([{}, {(0, tag): VECTOR for tag in tags}])
        rng = np.random.default_rng(3)
        calls: dict[int, Call] = {}
        for iteration in range(5):
            for tag in rng.permutation(tags)[:5]:
                calls[int(tag)] = expect(receiver, 0, int(tag), iteration)
            for tag in rng.permutation(tags):
                sender.send(1, int(tag), iteration, vector(100 * iteration + int(tag)))
            for tag in tags:
                if tag not in calls:
                    calls[tag] = expect(receiver, 0, tag, iteration)
            for tag in map(int, rng.permutation(tags)):
                calls.pop(tag).wait()
                np.testing.assert_array_equal(take(receiver, 0, tag, iteration), vector(100 * iteration + tag))
        sender.close()
        receiver.close()

    def test_one_tag_may_come_from_every_peer_and_go_to_it(self, three: Sequence[Transport]) -> None:
        for sender in three:
            for peer in range(3):
                if peer != sender.rank:
                    sender.send(peer, 2, 0, vector(10 * sender.rank + peer))
        for receiver in three:
            for peer in range(3):
                if peer != receiver.rank:
                    np.testing.assert_array_equal(receive(receiver, peer, 2), vector(10 * peer + receiver.rank))

    def test_messages_of_later_iterations_wait_until_they_are_expected(self, pair: Sequence[Transport]) -> None:
        """The sender is three iterations ahead, one of which it skips; the receiver still gets each one's own."""
        call = expect(pair[1], 0, 2, 4)
        for iteration in (4, 5, 7):
            pair[0].send(1, 2, iteration, vector(iteration))
        call.wait()
        np.testing.assert_array_equal(take(pair[1], 0, 2, 4), vector(4))
        for iteration in (5, 7):
            np.testing.assert_array_equal(receive(pair[1], 0, 2, iteration), vector(iteration))

    def test_a_later_iteration_overtakes_an_earlier_one_of_another_route(self, pair: Sequence[Transport]) -> None:
        call = expect(pair[1], 0, 5, 0)
        pair[0].send(1, 2, 0, vector(1))
        pair[0].send(1, 2, 1, vector(2))
        pair[0].send(1, 5, 0, vector(3))
        call.wait()
        np.testing.assert_array_equal(take(pair[1], 0, 5, 0), vector(3))
        np.testing.assert_array_equal(receive(pair[1], 0, 2, 0), vector(1))
        np.testing.assert_array_equal(receive(pair[1], 0, 2, 1), vector(2))

    # Room for early messages --------------------------------------------------------------------------------------

    def test_a_sender_far_ahead_waits_for_the_receiver(self, connect: Connect) -> None:
        sender, receiver = connect([{}, {(0, 2): VECTOR}], early=3)
        sent = []

        def send_all() -> None:
            for iteration in range(9):
                sender.send(1, 2, iteration, vector(iteration))
                sent.append(iteration)

        with beside(send_all) as sending:
            with pytest.raises(TimeoutError):
                sending.result(MOMENT)
            assert len(sent) <= 3
            for iteration in range(9):
                np.testing.assert_array_equal(receive(receiver, 0, 2, iteration), vector(iteration))
            sending.result(WATCH)
        sender.close()
        receiver.close()

    def test_what_is_expected_does_not_wait_behind_what_is_early(self, connect: Connect) -> None:
        sender, receiver = connect([{}, {(0, 2): VECTOR, (0, 5): VECTOR}], early=1)
        sender.send(1, 2, 0, vector(1))
        call = expect(receiver, 0, 5)
        with beside(sender.send, 1, 2, 1, vector(2)), beside(sender.send, 1, 5, 0, vector(3)):
            call.wait()
            np.testing.assert_array_equal(take(receiver, 0, 5), vector(3))
            for iteration in (0, 1):
                np.testing.assert_array_equal(receive(receiver, 0, 2, iteration), vector(iteration + 1))
        sender.close()
        receiver.close()

    def test_a_message_without_room_goes_when_it_is_expected(self, connect: Connect) -> None:
        sender, receiver = connect([{}, {(0, 2): VECTOR}], early=0)
        with beside(sender.send, 1, 2, 0, vector(1)) as sending:
            with pytest.raises(TimeoutError):
                sending.result(MOMENT)
            np.testing.assert_array_equal(receive(receiver, 0, 2), vector(1))
        sender.close()
        receiver.close()

    def test_peers_do_not_take_each_others_room(self, connect: Connect) -> None:
        transports = connect(all_to_all(3, (2,)), early=1)
        for rank in (0, 1):
            with beside(transports[rank].send, 2, 2, 0, vector(rank + 1)) as sending:
                sending.result(WATCH)
        np.testing.assert_array_equal(receive(transports[2], 0, 2), vector(1))
        np.testing.assert_array_equal(receive(transports[2], 1, 2), vector(2))
        for transport in transports:
            transport.close()

    # Refusals ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            ((1, 3, 0, vector(1)), "a tag of 2, 5"),
            ((1, 2, 0, np.zeros((3, 1))), r"float64\[3\], got float64\[3, 1\]"),
            ((1, 2, 0, np.zeros(3, "float32")), r"float64\[3\], got float32\[3\]"),
            ((1, 2, 0, np.zeros(3, ">f8")), r"float64\[3\], got >f8\[3\]"),
            ((1, 2, -1, vector(1)), "one above -1, the last sent"),
        ],
    )
    def test_a_message_that_the_peer_does_not_take_is_refused(
        self, pair: Sequence[Transport], message: tuple[int, int, int, Array], expected: str
    ) -> None:
        _, tag, iteration, _ = message
        named = f"message of tag {tag}, iteration {iteration}, from rank 0 to rank 1"
        with pytest.raises(Refused, match=f"^{named}: expected {expected}$"):
            pair[0].send(*message)
        pair[0].send(1, 2, 0, vector(1))
        np.testing.assert_array_equal(receive(pair[1], 0, 2), vector(1))

    @pytest.mark.parametrize("peer", [-1, 3])
    def test_a_message_to_nobody_is_refused(self, three: Sequence[Transport], peer: int) -> None:
        named = f"message of tag 2, iteration 0, to rank {peer}"
        with pytest.raises(Refused, match=f"^{named}: there are 3 ranks$"):
            three[0].send(peer, 2, 0, vector(1))

    def test_a_message_to_oneself_is_refused(self, pair: Sequence[Transport]) -> None:
        named = "message of tag 2, iteration 0, from rank 0 to rank 0"
        with pytest.raises(Refused, match=f"^{named}: expected none from that rank$"):
            pair[0].send(0, 2, 0, vector(1))

    @pytest.mark.parametrize("taken", [True, False])
    @pytest.mark.parametrize("iteration", [4, 3])
    def test_a_duplicate_is_refused(self, pair: Sequence[Transport], taken: bool, iteration: int) -> None:
        pair[0].send(1, 2, 4, vector(1))
        if taken:
            receive(pair[1], 0, 2, 4)
        named = f"message of tag 2, iteration {iteration}, from rank 0 to rank 1"
        with pytest.raises(Refused, match=f"^{named}: expected one above 4, the last sent$"):
            pair[0].send(1, 2, iteration, vector(2))
        if not taken:
            np.testing.assert_array_equal(receive(pair[1], 0, 2, 4), vector(1))

    @pytest.mark.parametrize("sent", [3, 6])
    def test_an_iteration_that_is_not_expected_is_refused(self, pair: Sequence[Transport], sent: int) -> None:
        """By the sender's call, or by the receiver's, but nobody waits for what cannot come any more."""
        call = expect(pair[1], 0, 2, 5)
        named = f"message of tag 2, iteration {sent}, from rank 0 to rank 1"

        def exchange() -> None:
            pair[0].send(1, 2, sent, vector(1))
            call.wait()
            take(pair[1], 0, 2, 5)

        with pytest.raises(Refused, match=f"^{named}: expected iteration 5, which is due$"):
            exchange()

    def test_expecting_another_iteration_than_the_one_that_came_is_refused(self, pair: Sequence[Transport]) -> None:
        other = expect(pair[1], 0, 5)
        pair[0].send(1, 2, 6, vector(1))
        pair[0].send(1, 5, 0, vector(1))
        other.wait()  # on one connection, what was sent before is here too
        for iteration in (5, 7):
            named = f"message of tag 2, iteration {iteration}, from rank 0 to rank 1"
            with pytest.raises(Refused, match=f"^{named}: expected iteration 6, which has come$"):
                expect(pair[1], 0, 2, iteration)
        np.testing.assert_array_equal(receive(pair[1], 0, 2, 6), vector(1))

    def test_expecting_what_no_route_brings_is_refused(self, pair: Sequence[Transport]) -> None:
        for peer, tag in ((0, 3), (1, 2), (9, 2)):
            expected = "a tag of 2, 5" if peer == 0 else "none from that rank"
            named = f"message of tag {tag}, iteration 0, from rank {peer} to rank 1"
            with pytest.raises(Refused, match=f"^{named}: expected {expected}$"):
                expect(pair[1], peer, tag)

    def test_expecting_out_of_turn_is_refused(self, pair: Sequence[Transport]) -> None:
        call = expect(pair[1], 0, 2, 3)
        named = "message of tag 2, iteration {}, from rank 0 to rank 1: expected"
        for iteration in (3, 4):
            with pytest.raises(Refused, match=f"^{named.format(iteration)} iteration 3 to be taken first$"):
                expect(pair[1], 0, 2, iteration)
        pair[0].send(1, 2, 3, vector(1))
        call.wait()
        take(pair[1], 0, 2, 3)
        with pytest.raises(Refused, match=f"^{named.format(3)} one above 3, the last expected$"):
            expect(pair[1], 0, 2, 3)

    def test_taking_what_is_not_due_or_not_there_is_refused(self, pair: Sequence[Transport]) -> None:
        named = "message of tag 2, iteration {}, from rank 0"
        nothing = "to rank 1: expected nothing to be taken, for none is due"
        pair[0].send(1, 2, 0, vector(1))
        with pytest.raises(Refused, match=f"^{named.format(0)} {nothing}$"):
            take(pair[1], 0, 2)
        receive(pair[1], 0, 2)
        with pytest.raises(Refused, match=f"^{named.format(0)} {nothing}$"):
            take(pair[1], 0, 2)
        call = expect(pair[1], 0, 2, 1)
        with pytest.raises(Refused, match=f"^{named.format(2)} to rank 1: expected iteration 1, which is due$"):
            take(pair[1], 0, 2, 2)
        with pytest.raises(Refused, match=f"^{named.format(1)} has not arrived$"):
            take(pair[1], 0, 2, 1)
        pair[0].send(1, 2, 1, vector(2))
        call.wait()
        np.testing.assert_array_equal(take(pair[1], 0, 2, 1), vector(2))

    @pytest.mark.parametrize("into", [Tensor((3, 1), "float64"), Tensor((3,), "float32")])
    def test_taking_into_another_array_is_refused(self, pair: Sequence[Transport], into: Tensor) -> None:
        pair[0].send(1, 2, 0, vector(1))
        expect(pair[1], 0, 2).wait()
        named = "message of tag 2, iteration 0, from rank 0 to rank 1"
        with pytest.raises(Refused, match=f"^{named}: expected {re.escape(f'float64[3], got {into}')}$"):
            take(pair[1], 0, 2, 0, into)
        np.testing.assert_array_equal(take(pair[1], 0, 2), vector(1))

    # A lost peer ------------------------------------------------------------------------------------------------

    def test_all_ranks_learn_who_was_lost_first_and_why(self, three: Sequence[Transport]) -> None:
        waiting = [expect(three[0], 1, 2), expect(three[2], 0, 5)]
        watchers = [Call(), Call(), Call()]
        for transport, watcher in zip(three, watchers, strict=True):
            transport.watch(watcher)
        three[1].abort("no power")
        for call in (*waiting, *watchers):
            call.wait()
        three[2].abort("too late to be first")
        for receiver, peer, tag in ((three[0], 1, 2), (three[2], 0, 5)):
            with pytest.raises(PeerLost, match=r"^rank 1 is lost: no power$") as caught:
                take(receiver, peer, tag)
            assert (caught.value.rank, caught.value.reason) == (1, "no power")
        for sender in three:
            with pytest.raises(PeerLost, match=r"^rank 1 is lost: no power$"):
                sender.send((sender.rank + 1) % 3, 2, 0, vector(1))
        [errors] = zip(*[call for watcher in watchers for call in watcher.given], strict=True)
        assert [(error.rank, error.reason) for error in errors] == [(1, "no power")] * 3
        assert len({id(error) for error in errors}) == 3  # notes on one do not show on another

    def test_after_a_loss_whoever_asks_is_answered_at_once(self, pair: Sequence[Transport]) -> None:
        pair[0].send(1, 2, 0, vector(1))
        expect(pair[1], 0, 2).wait()
        pair[0].abort("no power")
        watcher = Call()
        pair[1].watch(watcher)
        watcher.wait()
        for _ in range(2):  # what was due may be asked for again
            expect(pair[1], 0, 5).wait()
        for tag in (2, 5):  # what had arrived is gone too: all is lost at one time, for all
            with pytest.raises(PeerLost, match=r"^rank 0 is lost: no power$"):
                take(pair[1], 0, tag)
        assert len(watcher.given) == 1

    def test_a_later_watcher_takes_over(self, pair: Sequence[Transport]) -> None:
        first, second = Call(), Call()
        pair[1].watch(first)
        pair[1].watch(second)
        pair[0].abort("no power")
        second.wait()
        assert (len(first.given), len(second.given)) == (0, 1)

    def test_a_callback_is_not_called_again_when_a_peer_is_lost(self, pair: Sequence[Transport]) -> None:
        call, still = expect(pair[1], 0, 2), expect(pair[1], 0, 5)
        pair[0].send(1, 2, 0, vector(1))
        call.wait()
        pair[0].abort("no power")
        still.wait()
        assert (len(call.given), len(still.given)) == (1, 1)

    @pytest.mark.parametrize("who", [0, 1])
    def test_a_loss_ends_a_sender_that_waits_for_room(self, connect: Connect, who: int) -> None:
        transports = connect([{}, {(0, 2): VECTOR}], early=0)
        with beside(transports[0].send, 1, 2, 0, vector(1)) as sending:
            with pytest.raises(TimeoutError):
                sending.result(MOMENT)
            transports[who].abort("no power")
            with pytest.raises(PeerLost, match=f"^rank {who} is lost: no power$"):
                sending.result(WATCH)
        for transport in transports:
            transport.close()

    # Closing ----------------------------------------------------------------------------------------------------

    def test_mq_04_what_was_sent_is_delivered_after_closing(self, connect: Connect) -> None:
        """The sender closes at once, beside a receiver that has not asked yet."""
        tensor = Tensor((1_250_000,), "float64")
        sender, receiver = connect([{}, {(0, 2): tensor}])
        array = np.arange(1_250_000.0)
        sender.send(1, 2, 0, array)
        with beside(sender.close):
            assert receive(receiver, 0, 2, 0, tensor).tobytes() == array.tobytes()
        receiver.close()

    def test_more_of_a_closed_peer_never_comes(self, three: Sequence[Transport]) -> None:
        waiting = expect(three[0], 1, 2)
        watcher = Call()
        three[0].watch(watcher)
        three[1].close()
        waiting.wait()
        expect(three[0], 1, 5).wait()
        for tag in (2, 5):
            with pytest.raises(PeerLost, match=r"^rank 1 is lost: .+$") as caught:
                take(three[0], 1, tag)
            assert caught.value.rank == 1
        with pytest.raises(PeerLost, match=r"^rank 1 is lost: .+$"):
            three[0].send(1, 2, 0, vector(1))
        assert watcher.given == []

    def test_closing_loses_nothing_among_the_others(self, three: Sequence[Transport]) -> None:
        call = expect(three[0], 2, 2)
        three[1].close()
        three[1].abort("closed already")
        assert call.given == []
        three[2].send(0, 2, 0, vector(1))
        call.wait()
        np.testing.assert_array_equal(take(three[0], 2, 2), vector(1))
        assert call.given == [()]

    def test_closing_ends_a_sender_that_waits_for_room(self, connect: Connect) -> None:
        sender, receiver = connect([{}, {(0, 2): VECTOR}], early=0)
        with beside(sender.send, 1, 2, 0, vector(1)) as sending:
            with pytest.raises(TimeoutError):
                sending.result(MOMENT)
            receiver.close()
            with pytest.raises(PeerLost, match=r"^rank 1 is lost: .+$"):
                sending.result(WATCH)
        sender.close()

    def test_a_closed_transport_is_of_no_more_use(self, pair: Sequence[Transport]) -> None:
        watcher, waiting = Call(), expect(pair[0], 1, 5)
        pair[0].watch(watcher)
        pair[0].close()
        pair[0].close()
        pair[0].abort("closed already")
        uses: list[Callable[[], object]] = [
            lambda: pair[0].send(1, 2, 0, vector(1)),
            lambda: expect(pair[0], 1, 2),
            lambda: take(pair[0], 1, 5),
            lambda: pair[0].watch(watcher),
        ]
        for use in uses:
            with pytest.raises(RuntimeError, match=r"^transport of rank 0 is closed: make a new one$"):
                use()
        pair[1].abort("no power")
        assert (watcher.given, waiting.given) == ([], [])

    def test_closing_after_a_loss(self, pair: Sequence[Transport]) -> None:
        pair[1].abort("no power")
        for transport in pair:
            transport.close()
            with pytest.raises(RuntimeError, match=f"^transport of rank {transport.rank} is closed: make a new one$"):
                expect(transport, 1 - transport.rank, 2)

    # Threads ----------------------------------------------------------------------------------------------------

    def test_mq_07_many_threads_use_it_at_once(self, connect: Connect) -> None:
        """Four ranks, four tags between any two, each rank's messages by four threads, thirty iterations."""
        tags = range(4)
        transports = connect(all_to_all(4, tags))

        def value(source: int, target: int, tag: int, iteration: int) -> Array:
            return vector(((source * 4 + target) * 4 + tag) * 100 + iteration)

        def work(transport: Transport, tag: int) -> None:
            peers = [peer for peer in range(4) if peer != transport.rank]
            for iteration in range(30):
                calls = {peer: expect(transport, peer, tag, iteration) for peer in peers}
                for peer in peers:
                    transport.send(peer, tag, iteration, value(transport.rank, peer, tag, iteration))
                for peer, call in calls.items():
                    call.wait()
                    got = take(transport, peer, tag, iteration)
                    np.testing.assert_array_equal(got, value(peer, transport.rank, tag, iteration))

        with ExitStack() as stack:
            futures = [stack.enter_context(beside(work, one, tag)) for one in transports for tag in tags]
            for future in futures:
                future.result(WATCH)
        for transport in transports:
            transport.close()

    def test_threads_that_wait_answer_each_other(self, connect: Connect) -> None:
        """Three threads at each of two ranks, each with a peer of its own: there and back, a hundred times."""
        tags = range(3)
        transports = connect(all_to_all(2, tags))

        def work(transport: Transport, tag: int) -> None:
            peer = 1 - transport.rank
            for iteration in range(100):
                call = expect(transport, peer, tag, iteration)
                if transport.rank == 0:
                    transport.send(peer, tag, iteration, vector(iteration))
                call.wait()
                held = take(transport, peer, tag, iteration)
                if transport.rank == 1:
                    transport.send(peer, tag, iteration, held)
                np.testing.assert_array_equal(held, vector(iteration))

        with ExitStack() as stack:
            futures = [stack.enter_context(beside(work, one, tag)) for one in transports for tag in tags]
            for future in futures:
                future.result(WATCH)
        for transport in transports:
            transport.close()

    @pytest.mark.parametrize("who", [0, 1])
    def test_a_loss_ends_those_who_wait(self, pair: Sequence[Transport], who: int) -> None:
        calls = [expect(pair[0], 1, tag) for tag in (2, 5)]
        with beside(calls[0].wait) as one, beside(calls[1].wait) as other:
            with pytest.raises(TimeoutError):
                one.result(MOMENT)
            pair[who].abort("no power")
            one.result(WATCH)
            other.result(WATCH)

    def test_waiting_ends_in_time(self, pair: Sequence[Transport]) -> None:
        for wait in (pair[0].wait, lambda *given: beside_result(pair[0].wait, *given)):
            assert not wait(threading.Event(), MOMENT)
        call = expect(pair[0], 1, 2)
        pair[1].send(0, 2, 0, vector(1))
        call.wait()  # on the main thread, and then what has come already
        with beside(call.wait) as waiting:
            waiting.result(WATCH)

    def test_an_early_message_leaves_its_room_when_it_is_expected(self, connect: Connect) -> None:
        sender, receiver = connect([{}, {(0, 2): VECTOR}], early=1)
        for iteration in range(3):  # each is early: nobody expects it before it has been sent
            with beside(sender.send, 1, 2, iteration, vector(iteration)) as sending:
                sending.result(WATCH)
            np.testing.assert_array_equal(receive(receiver, 0, 2, iteration), vector(iteration))
        sender.close()
        receiver.close()

    def test_ranks_that_expect_before_they_send_never_wait_in_a_circle(self, connect: Connect) -> None:
        """A ring of four, each free to run ahead, with room for no early message: nobody gets stuck."""
        routes: list[Mapping[Route, Tensor]] = [{((rank - 1) % 4, 2): VECTOR} for rank in range(4)]
        transports = connect(routes, early=0)

        def work(transport: Transport) -> Array:
            held = vector(transport.rank)
            for iteration in range(40):
                call = expect(transport, (transport.rank - 1) % 4, 2, iteration)
                transport.send((transport.rank + 1) % 4, 2, iteration, held)
                call.wait()
                held = take(transport, (transport.rank - 1) % 4, 2, iteration)
            return held

        with ExitStack() as stack:
            futures = [stack.enter_context(beside(work, transport)) for transport in transports]
            ends = [future.result(WATCH) for future in futures]
        for rank, end in enumerate(ends):
            np.testing.assert_array_equal(end, vector(rank))
        for transport in transports:
            transport.close()
