"""All ranks of a graph in one process: an executor for each, driven by a thread of its own, over an in-process hub.

Every rank has its own part of the graph, its own blobs and its own workers, and shares nothing with another but
messages. A run counts on all ranks or on none: pairs are swapped once every rank has succeeded. A rank that fails ends
them all; then, and whenever iterations do not rise, the next run gets a new hub, so no message outlives its run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from purine_ref.devices import Device
from purine_ref.errors import PeerLost
from purine_ref.executors.base import Executor, Run
from purine_ref.executors.crew import Crew
from purine_ref.executors.joint import JointBinding
from purine_ref.executors.memory import Binding
from purine_ref.executors.observer import OperatorsOnly
from purine_ref.executors.threaded import Threaded
from purine_ref.graph import Graph
from purine_ref.parallel.ranks import incoming, local_graph, world
from purine_ref.schedule import order_ranks, require_one_each
from purine_ref.tensor import Location
from purine_ref.transports import EARLY, Hub


class Ranks(Executor):
    """Runs a graph over several ranks. `executor` makes each rank's: `Threaded` with its `threads`, or `Serial`.

    `order` and `ranks` are those of `Threaded`, for the whole graph. `early` is how many messages from one rank may
    wait at another. The other keywords are those of `Executor`; the observer sees every rank's operators, a copy
    between ranks as a `Send` and a `Receive` of its name. A blob is at one rank, so a `memory` for all shares no array
    between them. Raises GraphError for a copy between ranks that is not from CPU to CPU.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        executor: Callable[..., Executor] = Threaded,
        threads: int | None = None,
        order: Sequence[str] | None = None,
        ranks: Sequence[float] | None = None,
        early: int = EARLY,
        reuse: bool = False,
        keep: Iterable[str] = (),
        **keywords: Any,
    ) -> None:
        self._make = executor
        self._options = {} if threads is None else {"threads": threads}
        self._order = order
        self._ranks = ranks
        self._early = early
        self._reuse, self._keep = reuse, tuple(keep)  # for each rank's part
        self._hub: Hub | None = None
        self._last = -1  # the iteration of the last run over the hub
        self._parts: list[Executor] = []
        self._errors: dict[int, BaseException] = {}  # what ended each rank's part of the run, the first one first
        super().__init__(graph, **keywords)
        self._incoming = [incoming(part.graph) for part in self._parts]
        self._crew = Crew(len(self._parts))
        self._drivers = [
            threading.Thread(target=self._drive, args=(rank,), name=f"{graph.name}-rank{rank}", daemon=True)
            for rank in range(len(self._parts))
        ]
        for driver in self._drivers:
            driver.start()

    def _bind(self, devices: Callable[[Location], Device]) -> Binding:
        """Make every rank's executor; returns their bindings as one."""
        if self._order is not None:
            order_ranks(self.plan, self._order)
        if self._ranks is not None:
            require_one_each(self.plan, "ranks", self._ranks)
        observer = None if self._observer is None else OperatorsOnly(self._observer)
        shared = {"seed": self.seed, "memory": self.memory, "observer": observer, "devices": devices}
        shared["computing"] = self._computing  # operators of all ranks belong to this executor
        try:
            for rank in range(world(self.graph)):
                local = local_graph(self.graph, rank)
                keep = [name for name in self._keep if self.graph[name].location.rank == rank]
                own = {"reuse": self._reuse, "keep": keep, **self._priorities(local)}
                self._parts.append(self._make(local, **shared, **self._options, **own))
        except BaseException:
            for part in self._parts:
                part.close()
            raise
        return JointBinding(self._parts)

    def _priorities(self, local: Graph) -> dict[str, Any]:
        """The order and the ranks of one rank's operators."""
        own = {op.name for op in local.ops}
        chosen: dict[str, Any] = {}
        if self._order is not None:
            chosen["order"] = [name for name in self._order if name in own]
        if self._ranks is not None:
            chosen["ranks"] = [self._ranks[self.graph.op(op.name).index] for op in local.ops]
        return chosen

    # Running ----------------------------------------------------------------------------------------------------

    def _start(self, run: Run) -> None:
        if not self._crew.halt(0.0):
            self._refuse_while_computing()
        if self._hub is None or self._hub.lost is not None or self.iteration <= self._last:
            self._hub = Hub(self._incoming, early=self._early)
        self._last = self.iteration
        self._errors.clear()
        for part, transport in zip(self._parts, self._hub.transports, strict=True):
            part.transport = transport
            part.iteration = self.iteration
        self._crew.call(run)

    def _wait(self, run: Run) -> None:
        self._crew.wait(run)

    def _report_swaps(self) -> None:
        """Every rank has reported its own."""

    def _end(self, run: Run) -> None:
        """Raise what went wrong, with a note of the ranks that it ended too."""
        failed, self._errors = self._errors, {}
        causes = [error for error in failed.values() if not isinstance(error, PeerLost)]
        if not causes and self._binding is not None:  # else `commit` says that the executor was closed
            causes = list(failed.values())[:1]
        if not causes:
            return
        error = causes[0]
        if len(causes) > 1:
            error = BaseExceptionGroup(f"{len(causes)} ranks of graph {self.graph.name!r} failed", causes)
        others = [str(rank) for rank, other in sorted(failed.items()) if other not in causes]
        if others:
            error.add_note(f"ranks that ended with it: {', '.join(others)}")
        raise error

    def _halt(self, seconds: float) -> bool:
        if self._hub is not None:
            self._hub.transports[0].abort("the run was ended")
        return self._crew.halt(seconds)

    def _stop(self) -> None:
        self._crew.close()
        if self._halt_soon():  # else the ranks that still compute go when they have ended
            for driver in self._drivers:
                driver.join()
        if self._hub is not None:
            self._hub.close()

    def _drive(self, rank: int) -> None:
        """One rank: begin, compute, end, until the executor closes. It never dies of a failure (rule R12)."""
        part = self._parts[rank]
        while self._crew.take(rank):
            try:
                part.run_async()
                part.sync(commit=False)
            except BaseException as error:
                own = error.__traceback__  # this frame comes first; it lives on, so leave it out
                self._errors[rank] = error.with_traceback(own and own.tb_next)
                del own
            self._crew.end()
        part.close()
