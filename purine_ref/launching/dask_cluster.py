"""Ranks on the workers of a Dask cluster, one on each. Dask places and starts them; they talk among themselves.

A rank is pinned to its worker and never started again: a worker that is gone takes its rank with it, and the others
find that out by themselves. What ranks print comes back through a queue at the scheduler.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import queue
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from purine_ref.errors import Refused
from purine_ref.launching.dask_rank import free_port, run_rank
from purine_ref.launching.exits import UNKNOWN, Ended
from purine_ref.launching.output import Lines, Sink
from purine_ref.launching.processes import Start

CONNECT = 10.0
"""Seconds until a scheduler that does not answer is given up."""

BEAT = 1.0
"""Seconds between two beats, by which tasks know that their launcher is there."""

SILENCE = 10.0
"""Seconds after which tasks give up a launcher that is silent, and the launcher a scheduler."""

POLL = 0.2
"""Seconds of one wait for output."""

GONE = 128 + signal.SIGKILL
"""The exit code of a rank whose worker is gone: a rank does not outlive it."""

REMEDY = 'install Dask here and on the workers: pip install "purine_ref[cluster]"'


@contextlib.contextmanager
def cluster(scheduler: str) -> Iterator[Cluster]:
    """The cluster of the scheduler at an address such as `tcp://host:8786`; nothing of the run is left there after it.

    Raises Refused where Dask is not installed, and where no scheduler answers.
    """
    try:
        distributed = importlib.import_module("distributed")
    except ImportError as error:
        raise Refused(f"{error}: {REMEDY}") from None
    for logger in ("distributed", "distributed.client"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)  # a scheduler that is lost is told once, here
    try:
        client = distributed.Client(scheduler, timeout=CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise Refused(f"no Dask scheduler answers at {scheduler}: {error}") from None
    with client:
        joined = Cluster(distributed, client)
        try:
            yield joined
        finally:
            joined.close()


class Cluster:
    """The connection to a Dask scheduler, for one run. Made by `cluster`."""

    def __init__(self, distributed: Any, client: Any) -> None:
        self._client = client
        self._name = f"purine-ref-{secrets.token_hex(8)}"
        self._queue = distributed.Queue(self._name, client=client, maxsize=1000)
        self._variable = distributed.Variable(self._name, client=client)
        self._orders: dict[str, int] = {}
        self._outputs: dict[tuple[int, int], Output] = {}
        self._told = threading.Event()  # there is an order that the tasks have not been told
        self._workers: set[str] = set()
        self._looked = -BEAT  # when that was asked
        self._ending = False
        self._heard = time.monotonic()  # when the scheduler did what it was asked for, last
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._beat, self._read)]
        for thread in self._threads:
            thread.start()

    def places(self, ranks: int | None) -> list[str]:
        """The workers of the ranks, one for each, in the order of their addresses; by default all there are.

        Raises Refused where there are too few.
        """
        workers = self.workers()
        wanted = max(ranks or len(workers), 1)
        if len(workers) < wanted:
            raise Refused(
                f"{wanted} ranks: the Dask cluster has {len(workers)} workers, each for one rank; start more of them"
            )
        return sorted(workers)[:wanted]

    def workers(self) -> set[str]:
        """The addresses of the workers that there are, or were a short time ago."""
        if time.monotonic() > self._looked + BEAT:
            self._looked = time.monotonic()
            with contextlib.suppress(OSError):  # no scheduler
                self._workers = set(self._client.scheduler_info(n_workers=-1)["workers"])
        return self._workers

    def address(self, worker: str) -> str:
        """An address on a worker's host where a rank can listen. Raises Refused where the worker does not answer."""
        host = urlsplit(worker).hostname or ""
        future = self._client.submit(free_port, host, workers=[worker], allow_other_workers=False, pure=False)
        try:
            port = future.result(timeout=CONNECT)
        except Exception as error:
            future.cancel()
            raise Refused(
                f"Dask worker {worker} cannot start a rank: {error!r}; it must be free, and have purine_ref installed"
            ) from None
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    def child(self, start: Start, sinks: Sequence[Sink], directory: str | None) -> DaskChild:
        """Start a rank on the worker that is its host."""
        future = self._client.submit(
            run_rank, start.rank, list(start.command), dict(start.environment or {}), directory, self._name, SILENCE,
            key=f"{self._name}-{start.rank}", workers=[start.host], allow_other_workers=False, pure=False, retries=0,
        )  # fmt: skip
        outputs = [Output(), Output()]
        self._outputs |= {(start.rank, number): output for number, output in enumerate(outputs)}
        return DaskChild(self, start, future, outputs, sinks)

    def order(self, rank: int, number: signal.Signals) -> None:
        """Have a signal sent to a rank."""
        self._orders = self._orders | {str(rank): int(number)}
        self._told.set()

    @property
    def silent(self) -> bool:
        """Whether the scheduler has not answered for too long."""
        return time.monotonic() - self._heard > SILENCE

    @property
    def connected(self) -> bool:
        """Whether there is a connection to the scheduler now."""
        return bool(self._client.status == "running")

    def close(self) -> None:
        """Let go of what is shared with the tasks, which then end if they have not."""
        self._ending = True
        self._told.set()
        for thread in self._threads:
            thread.join(SILENCE)
        with contextlib.suppress(Exception):  # a scheduler that is gone has let go of it
            self._variable.delete()
            self._queue.close()

    def _beat(self) -> None:
        """Show the tasks that their launcher is there, and what it orders."""
        beat = 0
        while not self._ending:
            self._told.clear()
            beat += 1
            with contextlib.suppress(Exception):
                self._variable.set((beat, self._orders), timeout=SILENCE)
                self._heard = time.monotonic()
            self._told.wait(BEAT)

    def _read(self) -> None:
        """Hand on what the ranks print. An output ends when its rank has, and nothing more has come."""
        while not self._ending:
            over = [output for output in self._outputs.values() if output.over]
            try:
                rank, number, data = self._queue.get(timeout=POLL)
                self._outputs[rank, number].put(data)
                continue
            except TimeoutError:
                pass
            except Exception:  # no scheduler
                self._told.wait(POLL)
            for output in over:
                output.put(b"")


class Output:
    """One stream of a rank: bytes are put in here, and come out of a descriptor, so that it can be waited for."""

    def __init__(self) -> None:
        self.descriptor, self._end = os.pipe()
        self.over = False  # the rank has ended
        self._waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._write, daemon=True).start()

    def put(self, data: bytes) -> None:
        """More bytes; none at the end."""
        self._waiting.put(data)

    def close(self) -> None:
        """Nothing is read any more."""
        os.close(self.descriptor)
        self.put(b"")

    def _write(self) -> None:
        with open(self._end, "wb", buffering=0) as pipe, contextlib.suppress(BrokenPipeError):
            while data := self._waiting.get():
                while data:
                    data = data[pipe.write(data) :]


class DaskChild:
    """One rank on a Dask worker, as `run_ranks` deals with it."""

    def __init__(
        self, cluster: Cluster, start: Start, future: Any, outputs: Sequence[Output], sinks: Sequence[Sink]
    ) -> None:
        self.start = start
        self.asked = False  # to end
        self.lines = {out.descriptor: Lines(f"[{start.rank}] ", sink) for out, sink in zip(outputs, sinks, strict=True)}
        self._cluster = cluster
        self._future = future
        self._outputs = outputs
        self._code: int | None = None

    def ended(self) -> Ended | None:
        """How it ended; None while it runs."""
        if self._code is None:
            self._code = self._look()
            if self._code is None:
                return None
            for output in self._outputs:
                output.over = True
        return Ended(self.start.rank, self._code, self.asked, self.start.host)

    def ask(self, number: signal.Signals) -> None:
        """Ask it to end, by a signal."""
        self.asked = True
        self._order(number)

    def kill(self) -> None:
        """End it, and all of its group."""
        self.asked = True
        self._order(signal.SIGKILL)

    def close(self) -> None:
        """Kill what is left of it, and let go of its output."""
        if self._code is None:
            self.kill()
            with contextlib.suppress(Exception):
                self._future.result(timeout=SILENCE)
            self._future.cancel()
        for output in self._outputs:
            output.close()

    def _order(self, number: signal.Signals) -> None:
        if self._code is None:
            self._cluster.order(self.start.rank, number)

    def _look(self) -> int | None:
        """Its exit code, if it has ended; that of a rank that was killed, where its worker is gone."""
        status = self._future.status
        if status == "finished":
            return int(self._future.result())
        if status == "error":
            return self._failed(f"{self._future.exception()!r}")
        dropped = status in ("cancelled", "lost")
        if self._cluster.silent or (dropped and not self._cluster.connected):
            return self._failed("the Dask scheduler is gone")
        return GONE if dropped or self.start.host not in self._cluster.workers() else None

    def _failed(self, reason: str) -> int:
        self._outputs[1].put(f"error: {reason}\n".encode())
        return UNKNOWN
