"""How the tests run several ranks at once in one process: each on a thread of its own, in which its world is joined."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hooks import WATCH
from purine_ref.errors import PeerLost
from purine_ref.transports import World, joined, local_worlds

LIMIT = 2 * WATCH
"""Seconds in which all ranks must be done: some of them train."""


def outcomes(worlds: Sequence[World], action: Callable[[World], Any], limit: float = LIMIT) -> list[Any]:
    """What `action` returns or raises on each rank. One that is not done within `limit` seconds fails the test."""
    found: list[Any] = [None] * len(worlds)

    def work(place: int, world: World) -> None:
        try:
            with joined(world):
                found[place] = action(world)
        except BaseException as error:
            found[place] = error

    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in enumerate(worlds)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    hung = [world.rank for world, thread in zip(worlds, threads, strict=True) if thread.is_alive()]
    for world in worlds if hung else ():
        world.abort("the test gave up")
    assert not hung, f"ranks {hung} were not done within {limit} s; the others: {found}"
    return found


def together(worlds: Sequence[World], action: Callable[[World], Any], limit: float = LIMIT) -> list[Any]:
    """What `action` returns on each rank. Raises what one raises, the loss of another only where nothing else is."""
    found = outcomes(worlds, action, limit)
    errors = [each for each in found if isinstance(each, BaseException)]
    for error in sorted(errors, key=lambda error: isinstance(error, PeerLost)):
        raise error
    return found


def locally(size: int, action: Callable[[World], Any], limit: float = LIMIT) -> list[Any]:
    """`together`, in a new world in this process."""
    return together(local_worlds(size), action, limit)
