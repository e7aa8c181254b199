"""What every executor shares: binding, feeding and fetching, the states of a run, and how failures come out.

An executor is idle, running, or closed. `run_async` makes it running, `sync` waits, raises what went wrong, and makes
it idle again; `run` is both (rule R3). Fixed after construction: plan, binding, seed. Changing: the current `Run`,
guarded by `_guard`; `_computing`, the operator that each thread computes, or who knows it, each thread writing its own
entry; and `iteration`, which counts the runs that succeeded and keys random operations. How operators are started is
the subclasses' only business: `_start`, `_wait`, `_halt` and `_stop`.

An executor of one rank's graph has a `transport`, and expects all messages of a run when the run starts. A run that
fails or ends early aborts the transport, so that no other rank waits for it; a rank that is lost fails the run.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from purine_ref.devices import Device, UpstreamFailed, device_for
from purine_ref.devices.cpu import limit_blas, quiet
from purine_ref.errors import GraphError, PeerLost
from purine_ref.executors.failures import one_error, tidy
from purine_ref.executors.memory import Binding, Memory
from purine_ref.executors.observer import Observer, notify
from purine_ref.executors.reporting import Reporting, Several, operator_of
from purine_ref.graph import Blob, Graph, Op
from purine_ref.lifetimes import share_memory
from purine_ref.operation import Array, Kernels, RunKey
from purine_ref.plan import Plan, prepare
from purine_ref.schedule import Schedule
from purine_ref.sharing import check_sharing
from purine_ref.tensor import Location
from purine_ref.transports import Transport

PATIENCE = 0.25
"""Seconds of one sleep of the waiting thread. Python looks for signals before a thread sleeps and when it wakes: one
that comes in between, such as an interrupt from the keyboard, is seen only when the sleep ends."""

GRACE = 0.25
"""Seconds that an interrupted or closing run waits for operators that are computing."""

_log = logging.getLogger("purine_ref")


class Run:
    """One run: its schedule, its kernels, and the failures so far.

    `attended` says that whoever starts it waits for it next, and may compute meanwhile. `starting` is held until
    `_start` has returned.
    """

    def __init__(self, schedule: Schedule, kernels: Sequence[Kernels], attended: bool = False) -> None:
        self.schedule = schedule
        self.kernels = kernels
        self.attended = attended
        self.failures: list[BaseException] = []
        self.starting = threading.Lock()
        self.starting.acquire()


class Executor(Reporting, ABC):
    """Runs a graph. `seed` keys parameters' initial values and random operators (rule R7).

    `memory` holds the persistent blobs; give one memory to several executors to share these by name. `observer` sees
    operators start and end. `transport` leads to the other ranks, where the graph is one rank's; it may be replaced
    between runs, and whoever made it closes it. With `reuse`, blobs that live at different times share memory, where
    the graph orders them; then only those in `keep` are sure to be there for `fetch` after a run, beside persistent
    blobs and those that no operator writes. `computing` is what each thread computes, where executors make up another
    one and share it. Use the executor as a context manager, or call `close`. Raises what `prepare` raises.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        seed: int = 0,
        memory: Memory | None = None,
        observer: Observer | None = None,
        devices: Callable[[Location], Device] = device_for,
        transport: Transport | None = None,
        reuse: bool = False,
        keep: Iterable[str] = (),
        computing: dict[int, Op | Several] | None = None,
    ) -> None:
        limit_blas()
        self.graph = graph
        self.plan = prepare(graph, devices)
        if reuse:
            kept = tuple(keep)
            self.plan = share_memory(self.plan, kept)
            check_sharing(self.plan, kept)
        self.memory = memory if memory is not None else Memory()
        self.seed = seed
        self.iteration = 0
        self.transport = transport
        self._observer = observer
        self._additive = _additive(self.plan)
        self._guard = threading.Lock()
        self._run: Run | None = None
        self._computing: dict[int, Op | Several] = {} if computing is None else computing
        self._pid = os.getpid()
        self._clock = time.perf_counter
        self._binding: Binding | None = self._bind(devices)

    def _bind(self, devices: Callable[[Location], Device]) -> Binding:
        return Binding(self.plan, self.memory, devices, self.seed)

    # Running ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the whole graph once: `run_async`, then `sync`."""
        self._begin(True)
        self.sync()

    def run_async(self) -> None:
        """Start a run. Raises RuntimeError while one runs, after `close`, and in a forked child."""
        self._begin(False)

    def _begin(self, attended: bool) -> None:
        self._open_binding("run")  # not kept: an operator's error keeps this frame alive
        run: Run | None = None
        try:
            with self._guard:
                self._refuse_while_running("started again")
                kernels = self._bound.begin(RunKey(self.seed, self.iteration), self.transport)
                self._run = run = Run(Schedule(self.plan), kernels, attended)
            if self._observer is not None:
                notify(self._observer.began, self.iteration, self._clock())
            with quiet():
                self._start(run)
        except BaseException as error:
            if run is not None:
                self._abandon(run, error)
            raise
        finally:
            if run is not None:
                run.starting.release()

    def sync(self, commit: bool = True) -> None:
        """Wait for the run that was started; at once if there is none. The executor can then run again.

        Raises what an operator raised, with a note of its name, place and inputs; several become an ExceptionGroup
        (rule R12). Then nothing is swapped, and `iteration` stays. So it is without `commit`: the run counts when
        `commit` is called, as it must be once all ranks have succeeded. Raises PeerLost when another rank has not.
        """
        self._refuse_inside("waited for")
        run = self._run
        if run is None:
            return
        try:
            with run.starting:  # an executor that computes in `_start` may be waited for on another thread
                self._wait(run)
                self._synchronise(run)
        except BaseException as error:  # an interrupt from the keyboard
            self._abandon(run, error)
            raise
        with self._guard:
            if self._run is run:  # of several threads that wait, one ends the run
                self._run = None
                self._end_watched(run)
                if commit:
                    self.commit()

    def commit(self) -> None:
        """Make the run that succeeded count: exchange the swapped pairs (rule R6), go on to the next iteration."""
        binding = self._bound
        self._report_end(None)
        binding.swap()
        self._report_swaps()
        self.iteration += 1

    def fail(self, error: BaseException) -> None:
        """Fail the current run, if there is one, from any thread: nothing more starts, and `sync` raises `error`."""
        run = self._run
        if run is not None:
            run.failures.append(error)
            self._halt(0.0)

    def _uninterrupted(self, ranks: Sequence[float] | None) -> bool:
        """Whether nothing but the graph has a say in what happens between two operators."""
        chosen = self._observer is not None or ranks is not None
        return not (chosen or self.plan.external or self._bound.asynchronous)

    def _synchronise(self, run: Run) -> None:
        """Wait for asynchronous devices. A failure there is reported once, not again by all that it made skip."""
        failures = self._binding.synchronise() if self._binding is not None else []
        if failures:
            run.failures = [error for error in run.failures if not isinstance(error, UpstreamFailed)] + failures

    def _end(self, run: Run) -> None:
        """Raise what went wrong in a run that has ended."""
        if run.failures:
            error = one_error(self.graph.name, run.failures)
            self._abort(f"its run failed: {type(error).__name__}: {error}")  # a device may have been last to fail
            raise error
        if run.schedule.active():
            raise RuntimeError(f"executor of graph {self.graph.name!r} was closed while it ran")

    def _end_watched(self, run: Run) -> None:
        """Raise what went wrong in a run that has ended, and tell the observer."""
        try:
            self._end(run)
        except BaseException as error:
            self._report_end(error)
            raise

    def _abandon(self, run: Run, error: BaseException) -> None:
        """Make the executor idle again without the end of the run."""
        try:
            self._abort("its run was interrupted")
            self._halt_soon()
        finally:
            with self._guard:
                abandoned = self._run is run
                if abandoned:
                    self._run = None
            if abandoned:
                self._report_end(error)

    def close(self) -> None:
        """Let go of threads and arrays. In the middle of a run it stops new starts and lets running operators end."""
        self._refuse_inside("closed")
        if self._run is not None:
            self._abort("it was closed while it ran")
        self._stop()
        self._binding = None

    @abstractmethod
    def _start(self, run: Run) -> None:
        """Begin to run operators."""

    @abstractmethod
    def _wait(self, run: Run) -> None:
        """Return when no operator of the run will start any more and none is running."""

    def _halt(self, seconds: float) -> bool:
        """Start nothing more, and wait so long for operators that compute; returns whether all have ended."""
        return True

    def _halt_soon(self) -> bool:
        """Start nothing more, and give operators that are computing a moment; returns whether all have ended."""
        ended = self._halt(GRACE)
        if not ended:
            _log.warning("graph %r: still computing after %s s: %s", self.graph.name, GRACE, self._busy_names())
        return ended

    def _stop(self) -> None:  # most executors have nothing to end
        """Start nothing any more, and end what belongs to the executor."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Data -------------------------------------------------------------------------------------------------------

    def feed(self, arrays: dict[str, Array] | None = None, /, **more: Array) -> None:
        """Fill source blobs by name, as a dictionary (for names with slashes) or by keyword.

        Raises GraphError for a blob that is not there or that an operator writes, ShapeError for another shape or
        dtype, RuntimeError while a run is going on.
        """
        binding = self._open_binding("be fed")
        with self._guard:
            self._refuse_while_running("fed")
            for name, array in {**(arrays or {}), **more}.items():
                binding.write(self._blob(name), array)

    def fetch(self, name: str) -> Array:
        """A copy of a blob's array.

        Raises GraphError when it is not there or was overwritten, RuntimeError while a run is going on.
        """
        binding = self._open_binding("be fetched from")
        with self._guard:
            self._refuse_while_running("fetched from")
            return binding.read(self._blob(name))

    def _blob(self, name: str) -> Blob:
        blob = self.graph[name]
        if blob.index >= len(self.plan.producers):
            raise GraphError(f"blob {name!r} is newer than this executor of graph {self.graph.name!r}: make a new one")
        return blob

    # For subclasses ---------------------------------------------------------------------------------------------

    def _listen(self, run: Run, arrived: Callable[[int], None]) -> None:
        """Have `arrived` called, on any thread, with each external operator that may start; fail if a rank is lost."""
        if self.transport is not None:
            self.transport.watch(self._lost)
        for index in self.plan.external:
            try:
                self._bound.expect(index, run.kernels, partial(arrived, index))
            except BaseException as error:
                error.add_note(self.graph.ops[index].describe())
                raise

    def _lost(self, error: PeerLost) -> None:
        """Fail the run since a rank was lost. If it was this one, that is known where it came from."""
        if self.transport is not None and error.rank == self.transport.rank:
            self._halt(0.0)
        else:
            self.fail(error)

    def _abort(self, reason: str) -> None:
        if self.transport is not None:
            self.transport.abort(reason)

    def _execute(self, run: Run, index: int) -> BaseException | None:
        """Compute one operator; returns what it raised."""
        op = self.graph.ops[index]
        thread = threading.get_ident()
        self._computing[thread] = op
        try:
            if self._observer is not None:
                notify(self._observer.started, op, self._clock())
            self._bound.call(index, run.kernels)
        except BaseException as error:
            return self._failed(op, error)
        finally:
            del self._computing[thread]
        return None

    def _combine(self, index: int, complete: Sequence[int]) -> BaseException | None:
        """Add up the contributions to the `complete` blobs after operator `index`; returns what went wrong."""
        try:
            binding = self._bound  # refuses where the executor was closed meanwhile
            if self._additive[index]:
                for blob in complete:
                    binding.combine(blob)
                    self._report_sum(blob)
            if self._observer is not None:
                self._finished(self._observer, self.graph.ops[index])
                for blob in complete:
                    notify(self._observer.ready, self.graph.blobs[blob], self._clock())
        except BaseException as error:
            return self._failed(self.graph.ops[index], error)
        return None

    def _failed(self, op: Op, error: BaseException) -> BaseException:
        """The error with a note that names the operator, and without frames that keep arrays alive (rule R12)."""
        tidy(error, op)
        self._abort(f"operator {op.name!r} failed: {type(error).__name__}: {error}")
        return error

    @property
    def _bound(self) -> Binding:
        if self._binding is None:
            raise RuntimeError(f"executor of graph {self.graph.name!r} was closed while it ran")
        return self._binding

    def _open_binding(self, what: str) -> Binding:
        self._refuse_fork(what)
        if self._binding is None:
            raise RuntimeError(f"executor of graph {self.graph.name!r} is closed and cannot {what}: make a new one")
        return self._binding

    def _refuse_inside(self, what: str) -> None:
        self._refuse_fork(what)
        computed = self._computing.get(threading.get_ident())
        op = None if computed is None else operator_of(computed)
        if op is not None:
            own = f"its own operator {op.name!r}"
            raise RuntimeError(f"executor of graph {self.graph.name!r} cannot be {what} from {own}")

    def _refuse_while_running(self, what: str) -> None:
        if self._run is not None:
            raise RuntimeError(f"executor of graph {self.graph.name!r} cannot be {what} while it runs: call sync first")

    def _refuse_while_computing(self) -> None:
        name, busy = self.graph.name, self._busy_names()
        raise RuntimeError(f"executor of graph {name!r}: an interrupted run still computes {busy}")

    def _refuse_fork(self, what: str) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"executor of graph {self.graph.name!r} was made in process {self._pid} and used after fork in "
                f"{os.getpid()} ({what}): make a new executor in the child"
            )


def _additive(plan: Plan) -> bytearray:
    """For each operator, whether a blob that it writes has other producers too (rule R4)."""
    found = bytearray(len(plan.graph.ops))
    for blob, count in enumerate(plan.producers):
        if count > 1:
            for op, _ in plan.graph.blobs[blob].producers:
                found[op.index] = 1
    return found
