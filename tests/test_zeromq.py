"""The transport over ZeroMQ under the suites of every transport and of every world, over tcp and over ipc."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from meshes import LOOPBACK, Worlds, opened
from purine_ref.tensor import Tensor
from purine_ref.transports import EARLY, Route, Transport
from suites.transports import Connect, TransportContract
from suites.worlds import Join, WorldContract


@pytest.fixture(params=["tcp", "ipc"])
def made(request: pytest.FixtureRequest, socket_folder: Path) -> Iterator[Worlds]:
    """Worlds over tcp on the loopback, and over ipc."""
    numbers = iter(range(100))
    worlds = Worlds(lambda: LOOPBACK if request.param == "tcp" else f"ipc://{socket_folder}/{next(numbers)}")
    yield worlds
    worlds.close()


class TestZeroMQ(TransportContract):
    @pytest.fixture
    def connect(self, made: Worlds) -> Connect:
        def connected(incoming: Sequence[Mapping[Route, Tensor]], early: int = EARLY) -> Sequence[Transport]:
            return opened(made.join(len(incoming)), incoming, early=early)

        return connected


class TestMesh(WorldContract):
    @pytest.fixture
    def join(self, made: Worlds) -> Join:
        return made.join
