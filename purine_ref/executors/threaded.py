"""The threaded executor: a pool of workers for the CPUs, one ordered worker for each (device, stream) elsewhere.

Where nothing but the graph has a say, the workers are a `pool.Pool`, whose loop over the operators may be compiled.
There, the thread that calls `run` computes too, in place of a worker, until it finds nothing more to do: a run of small
operators wakes nobody. Not so where operators are long, since it is the one that an interrupt ends.
Else which operator may start is decided by `lanes.Lanes`, under its lock. Here are the threads. Operators compute
outside any lock, and so do the additions of rule R4. A worker that makes operators ready takes one of its lane itself,
and wakes a sleeping worker only for each of the others; in a pool, only for those that are worth it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from purine_ref.devices.cpu import quiet
from purine_ref.executors.base import Executor, Run
from purine_ref.executors.lanes import Lane, Lanes
from purine_ref.executors.pool import Place, Pool
from purine_ref.graph import Graph
from purine_ref.schedule import order_ranks, require_one_each


class Threaded(Executor):
    """Runs with `threads` CPU workers; the keywords are those of `Executor`.

    Operators start by `ranks`, least first (see `critical_path`); or in the very `order` of a list of all names; or, if
    neither is given, first ready, first started, but for what a pool's worker keeps for itself. Raises ValueError for
    fewer than one thread, an order that is not topological, ranks that are not one for each operator, and both at once.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        threads: int = 2,
        order: Sequence[str] | None = None,
        ranks: Sequence[float] | None = None,
        **keywords: Any,
    ) -> None:
        if threads < 1:
            raise ValueError(f"Threaded needs 1 thread or more, got {threads}")
        if order is not None and ranks is not None:
            raise ValueError("Threaded takes an order or ranks, got both")
        super().__init__(graph, **keywords)
        if order is not None:
            ranks = order_ranks(self.plan, order)
        elif ranks is not None:
            require_one_each(self.plan, "ranks", ranks)
        self._workers: list[threading.Thread] = []
        self._crew: Pool | Lanes
        if self._uninterrupted(ranks) and all(op.location.is_cpu for op in graph.ops):
            self._crew = pool = Pool(self.plan, threads)
            for number in range(threads):
                self._hire(partial(self._share, pool, number), f"{graph.name}-{number}")
        else:
            self._crew = lanes = Lanes(self.plan, ranks, strict=order is not None)
            for key, lane in lanes.by_key.items():
                for number in range(threads if key is None else 1):
                    self._hire(partial(self._serve, lanes, lane), f"{graph.name}-{key}-{number}")
        for worker in self._workers:
            worker.start()

    def _hire(self, work: Callable[[], None], name: str) -> None:
        self._workers.append(threading.Thread(target=_quietly, args=(work,), name=name, daemon=True))

    def _start(self, run: Run) -> None:
        crew = self._crew
        if isinstance(crew, Pool):
            guest = run.attended and crew.takes_guests
            if not crew.start(run, self._bound, guest):
                self._refuse_while_computing()
            if guest:
                self._attend(crew)
            return
        if not crew.start(run):
            self._refuse_while_computing()
        self._listen(run, partial(crew.arrive, run))

    def _wait(self, run: Run) -> None:
        self._crew.wait(run)

    def _halt(self, seconds: float) -> bool:
        return self._crew.halt(seconds)

    def _stop(self) -> None:
        self._crew.close()
        if self._halt_soon():  # else the workers that still compute go when they have ended
            for worker in self._workers:
                worker.join()

    # One worker: it runs operators until the executor closes, and never dies of an operator (rule R12) ----------

    def _share(self, pool: Pool, number: int) -> None:
        self._computing[threading.get_ident()] = Place(pool, number)
        try:
            while self._shared(pool, number) is not None:
                pass
        finally:
            del self._computing[threading.get_ident()]

    def _attend(self, pool: Pool) -> None:
        """Work for the pool as its guest. Raises the interrupt from the keyboard that came meanwhile."""
        thread = threading.get_ident()
        self._computing[thread] = pool.guest
        try:
            error = self._shared(pool, pool.guest.number)
        finally:
            del self._computing[thread]
        if isinstance(error, KeyboardInterrupt):  # it must not wait for other workers' operators to end
            raise error

    def _shared(self, pool: Pool, number: int) -> BaseException | None:
        """Work for the pool until an operator fails; returns its error, or None when there is no more to do."""
        try:
            pool.team.work(number)
            if pool.task(number) is None:
                return None
            _ = self._bound  # refuses: the executor was closed while the operator computed
        except BaseException as error:
            task = pool.task(number)
            if task is None:
                raise
            run, op = task
            try:
                failure = self._failed(op, error)
                run.failures.append(failure)
            finally:  # a guest may be interrupted anywhere
                pool.team.retire(number)
            return failure
        pool.team.retire(number)
        return None

    def _serve(self, lanes: Lanes, lane: Lane) -> None:
        with lanes.lock:
            task = lanes.take(lane)
        while task is not None:
            run, op = task
            error = self._execute(run, op)
            complete: list[int] | None = None
            if error is None and (self._additive[op] or self._observer is not None):
                with lanes.lock:
                    complete = run.schedule.finish(op)
            if error is None:
                error = self._combine(op, complete or ())
            with lanes.lock:
                lanes.retire(run, op, complete, error, lane)
                if error is not None:
                    self._report_failure(op, error)
                run = task = error = None  # type: ignore[assignment]  # a sleeping worker keeps none of them alive
                task = lanes.take(lane)


def _quietly(work: Callable[[], None]) -> None:
    """What a worker's thread does."""
    with quiet():
        work()
