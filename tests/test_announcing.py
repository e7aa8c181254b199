"""What rank 0 reads or writes for all: the others get its bytes, or its error."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from hosted import locally, outcomes
from purine_ref.errors import PeerLost, Refused
from purine_ref.transports import World, local_worlds
from purine_ref.transports.announcing import PART, Announcements


def content(size: int) -> bytes:
    """So many bytes, of which none is like the one before."""
    return bytes(number % 251 for number in range(size))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_all_ranks_get_what_rank_0_makes(ranks: int) -> None:
    sizes = [0, 1, 8, PART - 1, PART, PART + 1, 3 * PART, 0, 5]

    def work(world: World) -> list[bytes]:
        with Announcements(world) as all_of_us:
            assert all_of_us.first == (world.rank == 0)
            return [all_of_us.from_first(made(size) if world.rank == 0 else uncalled) for size in sizes]

    assert locally(ranks, work) == [[content(size) for size in sizes]] * ranks


def made(size: int) -> Callable[[], bytes]:
    return lambda: content(size)


def uncalled() -> bytes:
    raise AssertionError("only rank 0 makes anything")


def test_one_that_is_alone_makes_it() -> None:
    with Announcements(None) as alone:
        assert alone.first
        assert alone.from_first(lambda: b"mine") == b"mine"


def test_an_error_of_the_system_is_raised_everywhere_and_the_ranks_go_on() -> None:
    def full() -> bytes:
        raise OSError(28, "No space left on device", "nín.npz")

    def work(world: World) -> tuple[str, bytes]:
        with Announcements(world) as all_of_us:
            with pytest.raises(OSError, match="No space left") as caught:
                all_of_us.from_first(full)
            return str(caught.value), all_of_us.from_first(lambda: b"next")

    first, *others = locally(3, work)
    assert first == ("[Errno 28] No space left on device: 'nín.npz'", b"next")
    assert others == [("rank 0: [Errno 28] No space left on device: 'nín.npz'", b"next")] * 2


def test_ranks_that_do_not_agree_on_what_to_do_are_refused() -> None:
    found = outcomes(local_worlds(2), lambda world: Announcements(world, "train", ("lr", 0.1 + world.rank)))
    assert [type(error) for error in found] == [Refused] * 2
    assert all(str(error).startswith("graph 'train' of rank 1 is not that of rank 0: ") for error in found)
    assert len(locally(2, lambda world: Announcements(world, "train", ("lr", 0.1)))) == 2


def test_ranks_that_wait_hear_that_rank_0_is_lost() -> None:
    waiting = threading.Event()

    def work(world: World) -> bytes:
        with Announcements(world) as all_of_us:
            if world.rank == 0:
                waiting.wait(10)
                world.abort("ValueError: no reason")
                raise ValueError("no reason")
            waiting.set()
            return all_of_us.from_first(uncalled)

    own, *others = outcomes(local_worlds(3), work)
    assert isinstance(own, ValueError)
    assert [str(error) for error in others] == ["rank 0 is lost: ValueError: no reason"] * 2
    assert all(isinstance(error, PeerLost) for error in others)
