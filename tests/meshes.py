"""How the tests make worlds over ZeroMQ, of threads of this process and of other processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hooks import WATCH
from purine_ref.tensor import Tensor
from purine_ref.transports import Route
from purine_ref.transports.zeromq import Joining, Mesh, Session, join

LOOPBACK = "tcp://127.0.0.1:0"


def at_once(actions: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each action returns, or the error that it raises, each on a thread of its own."""

    def attempt(action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:
            return error

    with ThreadPoolExecutor(max(1, len(actions))) as pool:
        return list(pool.map(attempt, actions))


def ranks(size: int, address: str = LOOPBACK, **options: Any) -> list[Callable[[], Mesh]]:
    """What each rank does to join: rank 0 binds `address`, and the others are told what it bound."""
    where: Future[str] = Future()

    def one(rank: int) -> Mesh:
        if rank == 0:
            return join(Joining(0, size, address, bound=where.set_result, **options))
        return join(Joining(rank, size, where.result(WATCH).replace("0.0.0.0", "127.0.0.1"), **options))

    return [lambda rank=rank: one(rank) for rank in range(size)]


def all_of(found: list[Any]) -> list[Any]:
    """What was found, if none of it is an error."""
    for error in found:
        if isinstance(error, Exception):
            raise error
    return found


def opened(meshes: Sequence[Mesh], incoming: Sequence[Mapping[Route, Tensor]], **options: Any) -> list[Session]:
    """A transport on each mesh, opened at once."""
    return all_of(at_once([lambda mesh=mesh: mesh.open("net", "f" * 64, incoming, **options) for mesh in meshes]))


class Worlds:
    """Makes worlds of this process, each at an address of its own. What was made is closed with `close`."""

    def __init__(self, address: Callable[[], str] = lambda: LOOPBACK) -> None:
        self._address = address
        self._made: list[Mesh] = []

    def join(self, size: int, **options: Any) -> list[Mesh]:
        """A world of `size` ranks."""
        found = at_once(ranks(size, self._address(), **options))
        self._made += [mesh for mesh in found if isinstance(mesh, Mesh)]
        return all_of(found)

    def close(self) -> None:
        """Close all."""
        all_of(at_once([mesh.close for mesh in self._made]))


@contextmanager
def process(rank: int, size: int, address: str, timeout: float) -> Iterator[subprocess.Popen[str]]:
    """A rank in a process of its own: see `mesh_rank.py`. It is killed in the end."""
    program = Path(__file__).with_name("mesh_rank.py")
    arguments = json.dumps([rank, size, address, timeout])
    started = subprocess.Popen([sys.executable, "-P", program, arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def line(started: subprocess.Popen[str]) -> str:
    """The next line that a process says."""
    assert started.stdout is not None
    return started.stdout.readline().strip()
