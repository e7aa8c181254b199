"""One rank of a graph, in step with the others, which are other processes: on other hosts, or here.

Every rank has the whole graph and runs its own part; there is no controller. All that they agree on is said by
messages, over one transport of the world: each rank tells all others when its part of a run has succeeded, and a run
counts where all have said so; whoever has a blob that is fetched sends it to all. So every rank must do the same: open
the same graphs, run them for the same iterations, and fetch the same blobs, in the same order.

A rank whose part fails, or is interrupted, aborts the transport, and the run ends with `PeerLost` on all others. The
next run then opens a new transport, with all ranks that are still there, and so it does whenever iterations do not
rise; no message outlives its run. One thing cannot be had: a rank that is lost in the very moment in which a run ends
may have been heard by some, for whom the run counts, and not by others. What they open next is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from purine_ref.devices import kernel_set
from purine_ref.errors import GraphError, Refused
from purine_ref.executors.base import PATIENCE, Executor, Run
from purine_ref.executors.joint import JointBinding
from purine_ref.executors.memory import Binding, overwritten, require_feed
from purine_ref.executors.parts import Parts
from purine_ref.executors.routes import END, HEADING, routes
from purine_ref.fingerprint import fingerprint
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Array
from purine_ref.parallel.ranks import world as ranks_of
from purine_ref.tensor import Tensor
from purine_ref.transports import EARLY, Transport, World


class Hosts(Parts):
    """Runs this rank's part of a graph over several ranks, beside the others of `world`, which must do the same.

    The keywords are those of `Ranks`. `feed` takes what is fed anywhere and keeps what is here. `run` returns when it
    counts on every rank. `fetch` gives every rank the same array, and every rank must call it. The observer sees this
    rank's operators. Raises GraphError for a graph over more ranks than there are, and as `Ranks` does; Refused where
    another rank opens another graph; PeerLost. What fails on one rank is raised there, and PeerLost on the others.
    """

    def __init__(self, graph: Graph, *, world: World, early: int = EARLY, **keywords: Any) -> None:
        if ranks_of(graph) > world.size:
            raise GraphError(
                f"graph {graph.name!r} is over {ranks_of(graph)} ranks, and {world.size} have joined: start as many"
            )
        self._world = world
        self._early = early
        self._routes = routes(graph, world.size)
        self._peers = [rank for rank in range(world.size) if rank != world.rank]
        self._session: Transport
        self._sound = True  # whether no run over the session, and no fetch, has failed here
        self._last = -1  # the iteration of its last run
        self._fetched = 0  # how often all have fetched over it
        self._fetching = False
        self._ends: dict[int, threading.Event] = {}  # by peer: whether it has ended its part of the run, or is lost
        super().__init__(graph, [world.rank], **keywords)

    def _join(self) -> Binding:
        self._open()
        return _HereBinding(self._parts[0], self._world.rank, self._collect)

    def _open(self) -> None:
        """Open a session with all ranks that has seen nothing yet."""
        equal = fingerprint(self.graph, self.seed, self.iteration, self._early, kernel_set())
        messages = self._routes
        self._session = self._world.open(
            self.graph.name, equal, messages.incoming, early=self._early, words=messages.words
        )
        self.transport = self._session
        self._sound, self._last, self._fetched = True, -1, 0

    # Running ----------------------------------------------------------------------------------------------------

    def _start(self, run: Run) -> None:
        if not self._crew.halt(0.0):
            self._refuse_while_computing()
        if not self._sound or self.iteration <= self._last:
            before = self._session
            self._open()  # if that fails the one before stays, and says who was lost
            before.close()
        self._sound, self._last = False, self.iteration
        self._parts[0].transport = self._session
        self._ends = {peer: threading.Event() for peer in self._peers}
        for peer, ended in self._ends.items():
            self._expect(peer, self._routes.end, self.iteration, ended)
        self._call(run)

    def _agree(self) -> None:
        """Tell all others that this part has succeeded, and wait until all have said so."""
        here = _array(END)
        try:
            for peer in self._peers:
                self._session.send(peer, self._routes.end, self.iteration, here)
            for peer, ended in self._ends.items():
                _wait(ended)
                self._session.take(peer, self._routes.end, self.iteration, here)
        except BaseException as error:
            self._abort(f"its run failed: {type(error).__name__}: {error}")
            raise

    def commit(self) -> None:
        """Make the run count: see `Executor.commit`."""
        super().commit()
        self._sound = True

    def _halt(self, seconds: float) -> bool:
        if self._run is not None:
            self._session.abort("the run was ended")
        return self._crew.halt(seconds)

    def _stop(self) -> None:
        if self._fetching:
            self._session.abort("it was closed while it fetched")
        super()._stop()

    def _drive(self, number: int) -> None:
        super()._drive(number)
        self._session.close()  # here, where nothing can use it any more

    # Fetching ---------------------------------------------------------------------------------------------------

    def _collect(self, blob: Blob) -> Array:
        """A copy of a blob's array, on every rank."""
        if blob in self.plan.lost:
            raise overwritten(blob, in_place=True)
        self._fetching = True
        try:
            return self._give(blob) if blob.location.rank == self._world.rank else self._get(blob)
        except GraphError:  # every rank has been told
            raise
        except BaseException as error:
            self._sound = False
            self._session.abort(f"its fetch of {blob.name!r} failed: {type(error).__name__}: {error}")
            raise
        finally:
            self._fetched += 1
            self._fetching = False

    def _give(self, blob: Blob) -> Array:
        """Send all others a blob that is here, or that its value is gone."""
        try:
            array = self._parts[0].fetch(blob.name)
        except GraphError:
            self._head(blob, 0)
            raise
        self._head(blob, 1)
        for peer in self._peers:
            self._session.send(peer, self._routes.array(blob), self._fetched, array)
        return array

    def _head(self, blob: Blob, there: int) -> None:
        heading = np.array([blob.index, there], HEADING.dtype)
        for peer in self._peers:
            self._session.send(peer, self._routes.heading, self._fetched, heading)

    def _get(self, blob: Blob) -> Array:
        """Receive a blob from the rank that has it."""
        index, there = map(int, self._receive(blob, self._routes.heading, HEADING))
        if index != blob.index:
            raise Refused(
                f"rank {blob.location.rank} fetches blob {index} of graph {self.graph.name!r}, this rank blob "
                f"{blob.index}, {blob.name!r}: every rank must fetch the same blobs in the same order"
            )
        if not there:
            raise overwritten(blob, in_place=False)
        return self._receive(blob, self._routes.array(blob), blob.tensor)

    def _receive(self, blob: Blob, tag: int, tensor: Tensor) -> Array:
        arrived, into = threading.Event(), _array(tensor)
        self._expect(blob.location.rank, tag, self._fetched, arrived)
        _wait(arrived)
        self._session.take(blob.location.rank, tag, self._fetched, into)
        return into

    def _expect(self, peer: int, tag: int, number: int, arrived: threading.Event) -> None:
        try:
            self._session.expect(peer, tag, number, arrived.set)
        except Refused as error:
            error.add_note(f"rank {peer} does something else than rank {self._world.rank}: all must do the same")
            raise


class _HereBinding(JointBinding):
    """The binding of one rank's part: what is fed elsewhere is only checked, and what is fetched goes to all."""

    def __init__(self, part: Executor, rank: int, collect: Callable[[Blob], Array]) -> None:
        super().__init__([part])
        self._rank = rank
        self._collect = collect

    def read(self, blob: Blob) -> Array:
        """A copy of a blob's array, from whichever rank has it."""
        return self._collect(blob)

    def write(self, blob: Blob, array: Array) -> None:
        """Fill a blob that no operator writes, if it is here."""
        require_feed(blob, array)
        if blob.location.rank == self._rank:
            self._parts[0].feed({blob.name: array})


def _array(tensor: Tensor) -> Array:
    return np.empty(tensor.shape, tensor.dtype)


def _wait(arrived: threading.Event) -> None:
    """Sleep until a message is there, or will never be; signals are looked for now and then."""
    while not arrived.wait(PATIENCE):
        pass
