"""All ranks of a graph in one process: an executor for each, driven by a thread of its own, over an in-process hub.

Every rank has its own part of the graph, its own blobs and its own workers, and shares nothing with another but
messages. A run counts on all ranks or on none: pairs are swapped once every rank has succeeded. A rank that fails ends
them all; then, and whenever iterations do not rise, the next run gets a new hub, so no message outlives its run.
"""

from __future__ import annotations

from typing import Any

from purine_ref.executors.base import Run
from purine_ref.executors.joint import JointBinding
from purine_ref.executors.memory import Binding
from purine_ref.executors.parts import Parts
from purine_ref.graph import Graph
from purine_ref.parallel.ranks import incoming, world
from purine_ref.transports import EARLY, Hub


class Ranks(Parts):
    """Runs a graph over several ranks. `executor` makes each rank's: `Threaded` with its `threads`, or `Serial`.

    `order` and `ranks` are those of `Threaded`, for the whole graph. `early` is how many messages from one rank may
    wait at another. The other keywords are those of `Executor`; the observer sees every rank's operators, a copy
    between ranks as a `Send` and a `Receive` of its name. A blob is at one rank, so a `memory` for all shares no array
    between them. Raises GraphError for a copy between ranks that is not from CPU to CPU.
    """

    def __init__(self, graph: Graph, *, early: int = EARLY, **keywords: Any) -> None:
        self._early = early
        self._hub: Hub | None = None
        self._last = -1  # the iteration of the last run over the hub
        super().__init__(graph, range(world(graph)), **keywords)
        self._incoming = [incoming(part.graph) for part in self._parts]

    def _join(self) -> Binding:
        return JointBinding(self._parts)

    def _start(self, run: Run) -> None:
        if not self._crew.halt(0.0):
            self._refuse_while_computing()
        if self._hub is None or self._hub.lost is not None or self.iteration <= self._last:
            self._hub = Hub(self._incoming, early=self._early)
        self._last = self.iteration
        for part, transport in zip(self._parts, self._hub.transports, strict=True):
            part.transport = transport
        self._call(run)

    def _halt(self, seconds: float) -> bool:
        if self._hub is not None:
            self._hub.transports[0].abort("the run was ended")
        return self._crew.halt(seconds)

    def _stop(self) -> None:
        super()._stop()
        if self._hub is not None:
            self._hub.close()
