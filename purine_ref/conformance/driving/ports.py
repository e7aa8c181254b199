"""A port, whatever its form: it is given a case folder and gives back arrays, or a fault. `docs/porting/drive.md`.

`SessionPort` keeps one session open for as long as it is of use, and begins another when it is not. `OneShotPort`
starts a process for each case. Neither leaves a process behind once it is closed.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from purine_ref.conformance.cases.case import Case, Expected
from purine_ref.conformance.cases.files import read_array
from purine_ref.conformance.driving.faults import PortFault, Unsupported
from purine_ref.conformance.driving.messages import Hello, decode, hello_of
from purine_ref.conformance.driving.process import GOOD_END, Channel, Process
from purine_ref.conformance.driving.session import LIMIT, DriveSession
from purine_ref.conformance.driving.zeromq import Socket, is_address
from purine_ref.errors import Refused
from purine_ref.operation import Array

UNSUPPORTED = 3
"""The exit code of a one-shot port that does not do a case on purpose."""

TRACE = "trace.jsonl"
"""The file of a trace, in a folder of results."""


@dataclass(frozen=True, slots=True)
class Played:
    """What a port gave: arrays by iteration and blob, and the file of the trace, if there is one."""

    results: dict[tuple[int, str], Array]
    trace: Path | None = None


class Port(Protocol):
    """Something that runs cases. `limit` are seconds for each reply, and may be changed between cases."""

    limit: float

    @property
    def hello(self) -> Hello:
        """What it says that it can do. Raises PortFault when it does not say it well."""

    def play(self, folder: Path, case: Case, out: Path, trace: bool = True) -> Played:
        """Run the case in `folder`, whose content is `case`; files go to `out`, an empty folder.

        Raises PortFault, or Unsupported when the port leaves it out on purpose.
        """

    def close(self) -> None:
        """End it. Raises PortFault when it does not end well."""


def open_port(text: str, *, one_shot: bool = False, limit: float = LIMIT) -> SessionPort | OneShotPort:
    """The port of a command line, or at a ZeroMQ address. Nothing is started yet. Raises Refused for an empty one."""
    if is_address(text):
        if one_shot:
            raise Refused(f"{text!r} is the address of a session; --one-shot needs a command")
        return SessionPort(lambda: Socket(text), limit)
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise Refused(f"the port {text!r} is no command: {error}") from None
    if not command:
        raise Refused("the port's command is empty")
    return OneShotPort(command, limit) if one_shot else SessionPort(lambda: Process(command), limit)


class SessionPort:
    """A port that is driven by sessions. `opened` counts them."""

    def __init__(self, connect: Callable[[], Channel], limit: float = LIMIT) -> None:
        self.limit = limit
        self.opened = 0
        self._connect = connect
        self._session: DriveSession | None = None
        self._hello: Hello | None = None

    @property
    def hello(self) -> Hello:
        """What the first session said."""
        if self._hello is None:
            self._hello = self._open().hello
        return self._hello

    def _open(self) -> DriveSession:
        """The session, a new one where there is none. Raises PortFault; Refused when none could be begun ever."""
        if self._session is None:
            try:
                self._session = DriveSession(self._connect(), self.limit)
            except Refused as error:
                if self.opened:
                    raise PortFault("crashed", f"it cannot be started again: {error}") from None
                raise
            self.opened += 1
        self._session.limit = self.limit
        return self._session

    def play(self, folder: Path, case: Case, out: Path, trace: bool = True) -> Played:
        """Load, feed, run and fetch."""
        session = self._open()
        try:
            return self._play(session, folder, case, out, trace and session.hello.trace)
        except Unsupported:
            raise
        except PortFault as fault:
            if fault.ending:
                self._drop()
            raise
        except BaseException:
            self._drop()
            raise

    def _play(self, session: DriveSession, folder: Path, case: Case, out: Path, trace: bool) -> Played:
        order = case.schedule if session.hello.schedules else None
        results: dict[tuple[int, str], Array] = {}
        session.load(folder)
        for iteration in range(case.iterations):
            session.feed(iteration)
            session.run(order)
            for entry in case.expected:
                if entry.iteration == iteration:
                    name = f"{len(results)}.npy"
                    session.fetch(entry.blob, out / name)
                    results[iteration, entry.blob] = _read(out, name, case, entry)
        if not trace:
            return Played(results)
        session.trace(out / TRACE)
        return Played(results, out / TRACE)

    def _drop(self) -> None:
        """Give the session up."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def close(self) -> None:
        """Stop the session, if there is one. Raises PortFault when it does not stop well."""
        session, self._session = self._session, None
        if session is not None:
            session.limit = self.limit
            session.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()


class OneShotPort:
    """A port that is started anew for each case."""

    def __init__(self, command: Sequence[str], limit: float = LIMIT) -> None:
        self.limit = limit
        self._command = tuple(command)
        self._hello: Hello | None = None

    @property
    def hello(self) -> Hello:
        """What `CMD --hello` says."""
        if self._hello is None:
            process = Process((*self._command, "--hello"))
            try:
                self._end(process, "--hello")
                self._hello = hello_of(decode(process.output))
            finally:
                process.close()
        return self._hello

    def play(self, folder: Path, case: Case, out: Path, trace: bool = True) -> Played:
        """Run the command on the case, and read what it wrote."""
        process = Process((*self._command, str(folder), str(out)))
        try:
            self._end(process, "the run")
        finally:
            process.close()
        results = {(entry.iteration, entry.blob): _read(out, entry.file, case, entry) for entry in case.expected}
        found = trace and self.hello.trace and (out / TRACE).is_file()
        return Played(results, out / TRACE if found else None)

    def _end(self, process: Process, what: str) -> None:
        """Wait until a process has ended well. Raises PortFault, Unsupported."""
        process.close_input()
        ended = process.wait(self.limit)
        if not ended:
            raise PortFault("hung", f"{what}: not done in {self.limit:g} s{process.last_words()}")
        if ended == f"ended with exit code {UNSUPPORTED}":
            raise Unsupported(f"{what}: unsupported{process.last_words()}")
        if ended != GOOD_END:
            raise PortFault("crashed", f"{what}: the port {ended}{process.last_words()}")

    def close(self) -> None:
        """Nothing is running."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is running."""


def _read(folder: Path, name: str, case: Case, entry: Expected) -> Array:
    """The array that a port has written for an entry. Raises PortFault "missing" for a file that is not just that."""
    where = f"iteration {entry.iteration}, blob {entry.blob!r}"
    try:
        return read_array(folder, name, case.graph[entry.blob].tensor, where)
    except (Refused, OSError) as error:
        raise PortFault("missing", str(error)) from None


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder for cases and results, in memory where the system has such a place."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix="purine-", dir=memory if memory.is_dir() else None)
