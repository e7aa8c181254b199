"""The contract of a world, as a suite, for any implementation: `purine_ref.transports.World` says it in words.

Subclass `WorldContract` and override the fixture `join`: a function that takes the number of ranks, and the keyword
`patience`, the seconds for which a rank waits for the others, and returns the ranks' worlds, joined, in this process.
Each is used by a thread of its own; every wait ends after `WATCH` seconds.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from hooks import WATCH
from hosted import outcomes, together
from purine_ref.errors import PeerLost, Refused
from purine_ref.transports import Transport, World
from suites.transports import MOMENT, VECTOR, all_to_all, beside, expect, receive, take, vector

Join = Callable[..., Sequence[World]]

ENOUGH = 5.0
"""Seconds that an end may take that needs no waiting for anybody."""


def opened(world: World, name: str = "graph", fingerprint: str = "0" * 64, **keywords: Any) -> Transport:
    """A transport with a route of tag 2 between any two ranks."""
    return world.open(name, fingerprint, all_to_all(world.size, (2,)), **keywords)


def round_trip(transport: Transport, number: float) -> None:
    """Every rank sends its number to all others, which find it right."""
    others = [peer for peer in range(transport.world) if peer != transport.rank]
    calls = {peer: expect(transport, peer, 2, 0) for peer in others}
    for peer in others:
        transport.send(peer, 2, 0, vector(number + transport.rank))
    for peer, call in calls.items():
        call.wait()
        np.testing.assert_array_equal(take(transport, peer, 2, 0), vector(number + peer))


class WorldContract:
    """What every world must do."""

    @pytest.fixture
    def join(self) -> Join:
        """How to join the worlds under test."""
        raise NotImplementedError("override the fixture join")

    @pytest.fixture
    def worlds(self, join: Join) -> Iterator[Join]:
        """The same; all that was joined ends with the test."""
        made: list[World] = []

        def joining(size: int, **keywords: Any) -> Sequence[World]:
            worlds = join(size, **keywords)
            made.extend(worlds)
            return worlds

        yield joining
        for world in made:
            world.abort("the test is over")
            world.close()

    # Joining and opening ------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_each_knows_its_rank_and_what_joins_them(self, worlds: Join, size: int) -> None:
        ranks = worlds(size)
        assert [world.rank for world in ranks] == list(range(size))
        assert {world.size for world in ranks} == {size}
        [name] = {world.transport for world in ranks}
        assert name.isidentifier()

    def test_clocks_of_one_machine_are_nearly_one(self, worlds: Join) -> None:
        for world in worlds(3):
            for peer in range(3):
                assert math.isfinite(world.offset(peer))
                assert abs(world.offset(peer)) < 0.1

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_graphs_are_opened_one_after_the_other(self, worlds: Join, size: int) -> None:
        def work(world: World) -> None:
            for number in range(5):
                transport = opened(world, f"graph {number}")
                assert (transport.rank, transport.world) == (world.rank, world.size)
                round_trip(transport, 10.0 * number)
                transport.close()

        together(worlds(size), work)

    def test_graphs_are_open_side_by_side(self, worlds: Join) -> None:
        """Messages of one never come out of another, though routes and iterations are the same."""

        def work(world: World) -> None:
            transports = [opened(world, f"graph {number}") for number in range(3)]
            for number in (2, 0, 1):
                round_trip(transports[number], 10.0 * number)
            for transport in transports:
                transport.close()

        together(worlds(3), work)

    def test_a_graph_is_open_when_all_have_opened_it(self, worlds: Join) -> None:
        one, other = worlds(2)
        with beside(opened, one) as opening:
            with pytest.raises(TimeoutError):
                opening.result(MOMENT)
            late = opened(other)
            early = opening.result(WATCH)
        late.send(0, 2, 0, vector(1))
        np.testing.assert_array_equal(receive(early, 1, 2), vector(1))

    def test_a_message_may_be_sent_before_the_peer_knows_that_all_have_opened(self, worlds: Join) -> None:
        def work(world: World) -> None:
            for number in range(30):
                transport = opened(world, f"graph {number}")
                if world.rank == 0:
                    for peer in (1, 2):
                        transport.send(peer, 2, 0, vector(number))
                else:
                    np.testing.assert_array_equal(receive(transport, 0, 2), vector(number))
                transport.close()

        together(worlds(3), work)

    def test_room_for_early_messages_is_as_opened(self, worlds: Join) -> None:
        def work(world: World) -> Transport:
            return world.open("graph", "0" * 64, [{}, {(0, 2): VECTOR}], early=1)

        sender, receiver = together(worlds(2), work)
        sender.send(1, 2, 0, vector(0))
        with beside(sender.send, 1, 2, 1, vector(1)) as sending:
            with pytest.raises(TimeoutError):
                sending.result(MOMENT)
            for iteration in (0, 1):
                np.testing.assert_array_equal(receive(receiver, 0, 2, iteration), vector(iteration))
            sending.result(WATCH)

    # Refusals -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("odd", [0, 1, 2])
    def test_another_graph_is_refused_on_every_rank(self, worlds: Join, odd: int) -> None:
        """The ranks stay in step: what they open next is opened."""

        def work(world: World) -> None:
            fingerprint = ("f" if world.rank == odd else "0") * 64
            with pytest.raises(Refused, match=r"(?s)graph 'net'.*rank \d") as caught:
                opened(world, "net", fingerprint)
            assert f"rank {odd or 1}" in str(caught.value)
            round_trip(opened(world, "other"), 1)

        together(worlds(3), work)

    def test_a_graph_of_another_name_is_refused_on_every_rank(self, worlds: Join) -> None:
        def work(world: World) -> None:
            with pytest.raises(Refused, match=r"(?s)'two'.*'one'|'one'.*'two'"):
                opened(world, "two" if world.rank == 2 else "one", str(world.rank // 2) * 64)
            round_trip(opened(world), 1)

        together(worlds(3), work)

    # Losses -------------------------------------------------------------------------------------------------------

    def test_a_transport_that_is_aborted_leaves_the_world(self, worlds: Join) -> None:
        """A run that failed ends its graph alone: others go on, and more can be opened."""

        all_open = threading.Barrier(3)

        def work(world: World) -> None:
            broken, beside_it = opened(world, "broken"), opened(world, "beside")
            all_open.wait(WATCH)
            if world.rank == 1:
                broken.abort("an operator failed")
            expect(broken, 2 if world.rank == 0 else 0, 2).wait()
            with pytest.raises(PeerLost, match=r"^rank 1 is lost: an operator failed") as caught:
                take(broken, 2 if world.rank == 0 else 0, 2)
            assert caught.value.rank == 1
            broken.close()
            round_trip(beside_it, 1)
            round_trip(opened(world, "next"), 2)

        together(worlds(3), work)

    def test_who_aborts_is_lost_to_all_that_is_open_and_to_what_is_opened_later(self, worlds: Join) -> None:
        all_open = threading.Barrier(3)

        def work(world: World) -> None:
            transports = [opened(world, f"graph {number}") for number in range(2)]
            all_open.wait(WATCH)
            if world.rank == 1:
                world.abort("no power")
                return
            for transport in transports:
                expect(transport, 2 - world.rank, 2).wait()
                with pytest.raises(PeerLost, match=r"^rank 1 is lost: no power"):
                    take(transport, 2 - world.rank, 2)
            with pytest.raises(PeerLost, match=r"^rank 1 is lost: no power"):
                opened(world, "next")

        together(worlds(3), work)

    def test_who_aborts_ends_those_that_wait_for_it_to_open(self, worlds: Join) -> None:
        ranks = worlds(3)
        with beside(opened, ranks[0]) as one, beside(opened, ranks[2]) as other:
            with pytest.raises(TimeoutError):
                one.result(MOMENT)
            ranks[1].abort("no power")
            for opening in (one, other):
                with pytest.raises(PeerLost, match=r"^rank 1 is lost: no power"):
                    opening.result(WATCH)

    def test_who_closes_ends_those_that_wait_for_it_to_open(self, worlds: Join) -> None:
        ranks = worlds(3)
        with beside(opened, ranks[0]) as one, beside(opened, ranks[2]) as other:
            with pytest.raises(TimeoutError):
                one.result(MOMENT)
            with beside(ranks[1].close) as closing:
                for opening in (one, other):
                    with pytest.raises(PeerLost, match=r"^rank 1 is lost: ") as caught:
                        opening.result(WATCH)
                    assert caught.value.rank == 1
                closing.result(WATCH)

    def test_who_does_not_come_in_time_is_lost(self, worlds: Join) -> None:
        ranks = worlds(3, patience=1.0)
        begun = time.monotonic()
        found = outcomes([ranks[0], ranks[2]], opened)
        assert time.monotonic() - begun < 1.0 + ENOUGH
        for error in found:
            assert isinstance(error, PeerLost), error
            assert error.rank == 1, error

    # Leaving ------------------------------------------------------------------------------------------------------

    def test_what_was_sent_is_delivered_after_leaving(self, worlds: Join) -> None:
        def work(world: World) -> None:
            transport = opened(world)
            if world.rank == 0:
                for peer in (1, 2):
                    transport.send(peer, 2, 0, vector(5))
            else:
                np.testing.assert_array_equal(receive(transport, 0, 2), vector(5))
            world.close()

        together(worlds(3), work)

    def test_leaving_ends_soon_whoever_has_gone(self, worlds: Join) -> None:
        all_open = threading.Barrier(3)

        def work(world: World) -> None:
            opened(world)
            all_open.wait(WATCH)
            begun = time.monotonic()
            if world.rank == 1:
                world.abort("no power")
            else:
                world.close()
            world.close()
            world.abort("closed already")
            assert time.monotonic() - begun < 2 * ENOUGH

        together(worlds(3), work)

    def test_who_has_left_opens_nothing(self, worlds: Join) -> None:
        [world] = worlds(1)
        opened(world)
        world.close()
        with pytest.raises(RuntimeError, match=r"^rank 0 has left its world, and cannot open graph 'next': join anew$"):
            opened(world, "next")


