"""What executors of graphs over several ranks share: the parts that are here, each driven by a thread of its own.

A part is one rank's graph in an executor for one rank, which has blobs and workers of its own. The whole run begins
when its drivers are called, and ends when all have come back. How the parts reach each other, and the others, is the
subclasses' business.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from purine_ref.devices import Device
from purine_ref.errors import PeerLost
from purine_ref.executors.base import Executor, Run
from purine_ref.executors.crew import Crew
from purine_ref.executors.failures import one_error
from purine_ref.executors.memory import Binding
from purine_ref.executors.observer import OperatorsOnly
from purine_ref.executors.threaded import Threaded
from purine_ref.graph import Graph
from purine_ref.parallel.ranks import local_graph
from purine_ref.schedule import order_ranks, require_one_each
from purine_ref.tensor import Location


class Parts(Executor):
    """Runs the parts of a graph for the ranks that are `here`. The keywords are those of `Ranks`."""

    def __init__(
        self,
        graph: Graph,
        here: Sequence[int],
        *,
        executor: Callable[..., Executor] = Threaded,
        threads: int | None = None,
        order: Sequence[str] | None = None,
        ranks: Sequence[float] | None = None,
        reuse: bool = False,
        keep: Iterable[str] = (),
        **keywords: Any,
    ) -> None:
        self._here = here
        self._make = executor
        self._options = {} if threads is None else {"threads": threads}
        self._order = order
        self._ranks = ranks
        self._reuse, self._keep = reuse, tuple(keep)  # for each part
        self._parts: list[Executor] = []
        self._errors: dict[int, BaseException] = {}  # what ended each rank's part of the run, the first one first
        super().__init__(graph, **keywords)
        self._crew = Crew(len(self._parts))
        self._drivers = [
            threading.Thread(target=self._drive, args=(number,), name=f"{graph.name}-rank{rank}", daemon=True)
            for number, rank in enumerate(here)
        ]
        for driver in self._drivers:
            driver.start()

    def _bind(self, devices: Callable[[Location], Device]) -> Binding:
        """Make every part's executor; returns their bindings as one."""
        if self._order is not None:
            order_ranks(self.plan, self._order)
        if self._ranks is not None:
            require_one_each(self.plan, "ranks", self._ranks)
        observer = None if self._observer is None else OperatorsOnly(self._observer)
        shared = {"seed": self.seed, "memory": self.memory, "observer": observer, "devices": devices}
        shared["computing"] = self._computing  # operators of all parts belong to this executor
        try:
            for rank in self._here:
                local = local_graph(self.graph, rank)
                keep = [name for name in self._keep if self.graph[name].location.rank == rank]
                own = {"reuse": self._reuse, "keep": keep, **self._priorities(local)}
                self._parts.append(self._make(local, **shared, **self._options, **own))
            return self._join()
        except BaseException:
            for part in self._parts:
                part.close()
            raise

    @abstractmethod
    def _join(self) -> Binding:
        """The parts' bindings as one. If it raises, the parts are closed."""

    def _priorities(self, local: Graph) -> dict[str, Any]:
        """The order and the ranks of one part's operators."""
        own = {op.name for op in local.ops}
        chosen: dict[str, Any] = {}
        if self._order is not None:
            chosen["order"] = [name for name in self._order if name in own]
        if self._ranks is not None:
            chosen["ranks"] = [self._ranks[self.graph.op(op.name).index] for op in local.ops]
        return chosen

    # Running ----------------------------------------------------------------------------------------------------

    def _call(self, run: Run) -> None:
        """Have every driver begin the run, over the transport that its part has."""
        self._errors.clear()
        for part in self._parts:
            part.iteration = self.iteration
        self._crew.call(run)

    def _wait(self, run: Run) -> None:
        self._crew.wait(run)

    def _agree(self) -> None:
        """What a driver does when its part has succeeded, before the run ends."""

    def _report_swaps(self) -> None:
        """Every part has reported its own."""

    def _end(self, run: Run) -> None:
        """Raise what went wrong, with a note of the ranks that it ended too."""
        failed, self._errors = self._errors, {}
        if run.failures:  # `fail` was called, and ended all parts
            raise one_error(self.graph.name, run.failures)
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

    def _stop(self) -> None:
        self._crew.close()
        if self._halt_soon():  # else the parts that still compute go when they have ended
            for driver in self._drivers:
                driver.join()

    def _drive(self, number: int) -> None:
        """One part: begin, compute, end, until the executor closes. It never dies of a failure (rule R12)."""
        part, rank = self._parts[number], self._here[number]
        while self._crew.take(number):
            try:
                part.run_async()
                part.sync(commit=False)
                self._agree()
            except BaseException as error:
                own = error.__traceback__  # this frame comes first; it lives on, so leave it out
                self._errors[rank] = error.with_traceback(own and own.tb_next)
                del own
            self._crew.end()
        part.close()
