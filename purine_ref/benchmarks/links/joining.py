"""The ways to send by their names, and how the two ends of each meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from purine_ref.benchmarks.links.link import Ends, Link
from purine_ref.benchmarks.links.message import Message
from purine_ref.benchmarks.links.mpi import Mpi
from purine_ref.benchmarks.links.own import Own
from purine_ref.benchmarks.links.shared import SharedMemory
from purine_ref.benchmarks.links.sockets import Sockets
from purine_ref.transports.keys import load_keys
from purine_ref.transports.zeromq import Joining, join


class Way(NamedTuple):
    """How an end is made; what an address of it begins with; what must be installed besides this package."""

    join: Callable[[Ends], Link]
    address: str = "tcp"
    needs: str = ""


def _own(ends: Ends) -> Link:
    keys = load_keys(ends.keys) if ends.keys else None
    world = join(Joining(ends.end, 2, ends.address, keys=keys, insecure=not ends.keys))
    return Own(ends, world)


BASE = "raw tcp"
WAYS = {
    BASE: Way(Sockets),
    "purine tcp": Way(_own),
    "purine curve": Way(_own),
    "purine ipc": Way(_own, "ipc"),
    "pyzmq message": Way(Message),
    "shared memory": Way(SharedMemory, "ipc"),
    "mpi4py": Way(Mpi, "mpi", "mpi4py"),
}
"""In the order of the table."""
