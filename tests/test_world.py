"""Worlds: the suite of their contract for the one in this process, and which world a thread has joined."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from hosted import locally, outcomes
from purine_ref.errors import PeerLost, Refused
from purine_ref.transports import Opening, Transport, World, current, difference, joined, local_worlds
from suites.transports import Connect, TransportContract
from suites.worlds import Join, WorldContract, opened, round_trip


class TestLocalWorld(WorldContract):
    @pytest.fixture
    def join(self) -> Join:
        return local_worlds


class TestTransportsOfALocalWorld(TransportContract):
    @pytest.fixture
    def connect(self) -> Connect:
        def connected(incoming: Sequence[object], **keywords: object) -> Sequence[Transport]:
            return locally(len(incoming), lambda world: world.open("graph", "", incoming, **keywords))

        return connected


def test_a_world_has_one_rank_or_more() -> None:
    with pytest.raises(ValueError, match=r"^local_worlds: there must be 1 rank or more, got 0$"):
        local_worlds(0)


def test_the_current_world_is_that_of_the_thread() -> None:
    one, two = local_worlds(2)
    found: list[World | None] = []
    assert current() is None
    with joined(one):
        thread = threading.Thread(target=lambda: found.append(current()))
        thread.start()
        thread.join()
        with joined(two):
            assert current() is two
        assert current() is one
    assert current() is None
    assert found == [None]


def test_the_current_world_ends_with_an_error() -> None:
    with pytest.raises(KeyError), joined(local_worlds(1)[0]):
        raise KeyError("boom")
    assert current() is None


def test_what_ranks_open_is_compared() -> None:
    same = {rank: Opening("net", "a" * 64) for rank in range(3)}
    assert difference(same) is None
    assert difference({0: same[0]}) is None
    assert difference({**same, 2: Opening("net", "b" * 64)}) == (
        "graph 'net' of rank 2 is not that of rank 0: fingerprints bbbbbbbbbbbb and aaaaaaaaaaaa; every rank must "
        "build the same graph, with the same seed and options, by the same version"
    )
    assert difference({2: Opening("net", "b" * 64), 1: Opening("two", "a" * 64)}) == (
        "rank 2 opens graph 'net' where rank 1 opens 'two': every rank must run the same command"
    )


def test_a_loss_between_two_that_meet_is_not_missed() -> None:
    """The last to come finds all there, one of whom is lost before the others have woken up."""
    for _ in range(200):
        worlds = local_worlds(3)

        def work(world: World) -> None:
            transport = opened(world)
            if world.rank == 1:
                world.abort("no power")
            round_trip(transport, 1)

        found = outcomes(worlds, work)
        assert [type(error) for error in found] == [PeerLost] * 3
        assert {(error.rank, error.reason) for error in found} == {(1, "no power")}


def test_an_odd_one_among_many_meetings() -> None:
    """Refusals keep the ranks in step, whoever comes first."""
    def work(world: World) -> list[bool]:
        refused = []
        for number in range(60):
            try:
                round_trip(opened(world, f"graph {number}", str(number % 3 == world.rank)), number)
                refused.append(False)
            except Refused:
                refused.append(True)
        return refused

    assert locally(4, work) == [[True] * 60] * 4
