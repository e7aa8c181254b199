"""Ranks that an MPI launcher started, joined over MPI. Needs the extra `mpi`, and an MPI library with its `mpiexec`.

What MPI gives is an order and no loss; all else is as over the other transports: fingerprints are compared, early
messages are bounded, silence ends a run. A rank that is killed is another matter: most launchers end all ranks then,
and the code of `mpiexec` says so; nobody is left to raise PeerLost. A rank that only hangs is found by its silence.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import time
from typing import Any

from purine_ref.errors import Refused
from purine_ref.transports.mpi.world import MpiWorld

__all__ = ["MpiWorld", "join_mpi"]

_joined: list[int] = []
"""This process, once it has joined."""

MERCY = 0.25
"""Seconds that a rank stays at the end of a run in which one was lost."""


def join_mpi(*, timeout: float = 5.0, patience: float = 60.0, run_id: str = "") -> MpiWorld:
    """The world of all ranks that `mpiexec` started, for the main thread to join, once in the life of a process.

    `timeout` is in seconds until a silent rank is lost, `patience` until one is that does not come; `run_id` must be
    the same on all ranks. MPI is left at the end of the process, when every other rank has ended, too. Raises Refused
    where there is no MPI, or one that threads cannot use, or ranks differ; PeerLost; RuntimeError the second time.
    """
    mpi = _mpi()
    world = MpiWorld(mpi, mpi.COMM_WORLD, timeout=timeout, patience=patience, run_id=run_id)
    atexit.register(_finish, mpi, world)
    world.meet()
    return world


def _mpi() -> Any:
    """The module `mpi4py.MPI`, which starts MPI when it is imported first, and here does not end it by itself."""
    try:
        package = importlib.import_module("mpi4py")
        if "mpi4py.MPI" not in sys.modules:
            package.rc.finalize = False
        mpi = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise Refused(
            f'transport mpi needs mpi4py and an MPI library ({error}): pip install "purine_ref[mpi]", and where the '
            "system has no MPI, pip install mpich"
        ) from None
    if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
        raise Refused(
            f"transport mpi needs MPI's thread level {mpi.THREAD_SERIALIZED} (serialized), and this MPI has "
            f"{mpi.Query_thread()}: build it with threads"
        )
    if _joined:
        raise RuntimeError("this process has joined by MPI before, which can be done once: keep the world")
    _joined.append(os.getpid())
    return mpi


def _finish(mpi: Any, world: MpiWorld) -> None:
    """Leave MPI at the end of the process. Where a rank was lost, MPI would wait for it, and is left as it is.

    Then a launcher ends the other ranks as soon as it sees that this one has gone; `MERCY` is for what they have said.
    """
    if os.getpid() != _joined[0]:
        return  # a forked child
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        nobody_lost = world.leave()
    except KeyboardInterrupt:
        return  # no time for it
    if not nobody_lost:
        time.sleep(MERCY)
    elif not mpi.Is_finalized():
        mpi.Finalize()
