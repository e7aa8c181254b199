"""MPI: a blocking send and a blocking receive for each array, by mpi4py. Both ends are started by one `mpiexec`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from purine_ref.benchmarks.links.link import CONTROL, Ends
from purine_ref.operation import Array

NAP = 0.001
"""Seconds between two looks for a message of control: MPI waits in a busy loop, which would be felt by the others."""


class Mpi:
    """See `Link`. Raises ImportError where mpi4py is not installed."""

    def __init__(self, ends: Ends) -> None:
        from mpi4py import MPI  # a peer, which need not be there

        self._world = MPI.COMM_WORLD
        self._peer = 1 - ends.end
        self._resting = ends.end == 1

    def expect(self, arrays: Sequence[Array]) -> None:
        """Nothing: the library holds what is early."""

    def send(self, array: Array, place: int) -> None:
        """Send the bytes."""
        self._world.Send(array, self._peer)

    def receive(self, into: Array, place: int) -> None:
        """Receive into the array."""
        while self._resting and into.size == CONTROL and not self._world.Iprobe(self._peer):
            time.sleep(NAP)
        self._world.Recv(into, self._peer)

    def close(self) -> None:
        """Nothing: MPI ends with the process."""
