"""Recorded schedules: which operators each scheme started, in which order, as a file that replays it.

The file is JSON: what was run, and for each scheme a schedule string (see `schedules`) of the first step.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from purine_ref.conformance.places import Driven
from purine_ref.conformance.schedules import Recorder
from purine_ref.conformance.schemes import Scheme, parse_scheme
from purine_ref.conformance.session import Session
from purine_ref.errors import Refused
from purine_ref.graph import Graph

SCHEMA = "purine-ref/schedules/1"
"""The version of a file of schedules."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One scheme's run: what it was given, and the schedule of its first step."""

    scheme: str
    model: str
    dtype: str
    exact: bool
    steps: int
    batch: int
    seed: int
    schedule: str


class Recording:
    """A scheme whose first step is recorded: verify `scheme`, then ask for `schedule`."""

    def __init__(self, scheme: Scheme) -> None:
        self._recorder = Recorder()
        self._session: Session | None = None
        self.scheme = replace(scheme, open=self._open(scheme))

    def _open(self, scheme: Scheme) -> Callable[[Graph, int], Session]:
        if scheme.drive is None:
            raise Refused(f"scheme {scheme.text!r} stands alone, and its schedule cannot be recorded")
        if scheme.ranks is not None:
            raise Refused(
                f"scheme {scheme.text!r} is on hosts, where each rank sees its own operators alone: record it "
                "@ranks:N, whose graph is the same"
            )
        drive = scheme.drive

        def opened(graph: Graph, seed: int) -> Session:
            """The session, watched by the recorder."""
            self._session = drive(graph, seed, Driven(observer=self._recorder))
            return self._session

        return opened

    def schedule(self) -> str:
        """The schedule string of the first step. Raises ValueError when nothing was run."""
        if self._session is None:
            raise ValueError(f"scheme {self.scheme.text!r} was not run, so there is no schedule of it")
        return self._recorder.schedule(self._session.executor.plan)


def replayed(recorded: Recorded) -> Scheme:
    """The scheme of a record, whose every step starts operators as recorded.

    Raises ValueError for a scheme that there is not, Refused for one that stands alone.
    """
    scheme = parse_scheme(recorded.scheme)
    if scheme.drive is None:
        raise Refused(f"scheme {scheme.text!r} stands alone, and takes no schedule")
    drive = scheme.drive
    return replace(scheme, open=lambda graph, seed: drive(graph, seed, Driven(schedule=recorded.schedule)))


def to_text(records: list[Recorded]) -> str:
    """The text of a file of schedules."""
    return json.dumps({"schema": SCHEMA, "runs": [asdict(record) for record in records]}, indent=2) + "\n"


def load(path: Path) -> list[Recorded]:
    """The records in a file. Raises Refused for another file, OSError for one that cannot be read."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise Refused(f"{path}: not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("runs"), list):
        raise Refused(f"{path}: expected a file of schedules, {SCHEMA!r}")
    return [_record(path, number, run) for number, run in enumerate(data["runs"])]


def is_recording(path: Path) -> bool:
    """Whether a file says that it holds schedules. Raises OSError for one that cannot be read."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except ValueError:
        return False
    return isinstance(data, dict) and data.get("schema") == SCHEMA


def _record(path: Path, number: int, run: object) -> Recorded:
    kinds = {"exact": bool, "steps": int, "batch": int, "seed": int}
    names = [field.name for field in fields(Recorded)]
    if not isinstance(run, dict) or sorted(run) != sorted(names):
        raise Refused(f"{path}: run {number}: expected the fields {', '.join(names)}")
    for name in names:
        kind = kinds.get(name, str)
        if type(run[name]) is not kind or (kind is int and not 0 <= run[name] < 2**64):
            raise Refused(f"{path}: run {number}: {name!r} must be {kind.__name__}, got {run[name]!r}")
    return Recorded(**run)
