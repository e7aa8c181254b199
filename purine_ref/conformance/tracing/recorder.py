"""`TraceWriter`: an observer that writes what it sees of a run as `purine-trace/1`, for `judge_trace`.

It writes beside the file and renames when it is closed, so that a file of the name given is a whole trace.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from purine_ref.conformance.tracing.reading import HEADER
from purine_ref.executors import Observer
from purine_ref.graph import Blob, Op
from purine_ref.ops.transfer import Receive, Send
from purine_ref.parallel.ranks import crosses
from purine_ref.tensor import Location


class TraceWriter(Observer):
    """Writes the events of all runs that it observes, of executors of one graph that run one after the other.

    Give it to an executor as `observer`; use it as a context manager, or call `close`, after the executor is closed.
    `target` is a file's name or a text stream, which stays open. Lines are written under a lock, in the order of the
    calls; with `times` each has the executor's clock, by which `merge_traces` puts the traces of several ranks into one
    order. Raises OSError where the file cannot be made.
    """

    def __init__(self, target: str | os.PathLike[str] | io.TextIOBase, *, times: bool = False) -> None:
        self._lock = threading.Lock()
        self._times = times
        self._path = None if isinstance(target, io.TextIOBase) else Path(target)
        self._beside = self._path and self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}.tmp")
        self._file: Any = target
        if self._beside is not None:
            self._file = open(self._beside, "w", encoding="utf-8", newline="\n")
        self._seq = 0
        self._iteration = 0
        self._closed = False
        self._workers: dict[int, str] = {}
        self._places: dict[tuple[Location, str], str] = {}
        self._file.write(HEADER + "\n")

    # Runs -------------------------------------------------------------------------------------------------------

    def began(self, iteration: int, at: float) -> None:
        """Write `begin`."""
        self._iteration = iteration
        self._write("begin", "", at)

    def ended(self, iteration: int, at: float, error: BaseException | None) -> None:
        """Write `finish`, or the `failed` of a run."""
        self._write("finish" if error is None else "failed", "", at)

    def swapped(self, current: Blob, following: Blob, at: float) -> None:
        """Write `swapped`."""
        self._write("swapped", f', "blob": {json.dumps(current.name)}', at)

    # Operators and blobs ------------------------------------------------------------------------------------------

    def started(self, op: Op, at: float) -> None:
        """Write `start`, or for the half of a copy that receives, `received`."""
        if isinstance(op.operation, Receive):
            self._operator("received", op, op.location, at)
        else:
            self._operator("start", op, op.inputs[0].location if crosses(op) else op.location, at)

    def copied(self, op: Op, at: float) -> None:
        """Write `sent` and `received` for a copy between ranks that is one operator here."""
        if crosses(op):
            self._operator("sent", op, op.inputs[0].location, at)
            self._operator("received", op, op.outputs[0].location, at)

    def finished(self, op: Op, at: float) -> None:
        """Write `end`, or for the half of a copy that sends, `sent`."""
        here = op.outputs[0].location if crosses(op) else op.location
        self._operator("sent" if isinstance(op.operation, Send) else "end", op, here, at)

    def failed(self, op: Op, at: float, error: BaseException) -> None:
        """Write `failed`, in place of the operator's end."""
        self._operator("failed", op, op.inputs[0].location if crosses(op) else op.location, at)

    def added(self, op: Op, blob: Blob, at: float) -> None:
        """Write `added`."""
        self._write("added", f', "op": {json.dumps(op.name)}, "blob": {json.dumps(blob.name)}', at)

    def ready(self, blob: Blob, at: float) -> None:
        """Write `ready`."""
        self._write("ready", f', "blob": {json.dumps(blob.name)}', at)

    # Writing ----------------------------------------------------------------------------------------------------

    def _operator(self, event: str, op: Op, location: Location, at: float) -> None:
        """A line of an operator, with the worker, and where it is; the halves of a copy are on no stream."""
        stream = "" if crosses(op) or isinstance(op.operation, (Send, Receive)) else op.stream
        place = self._places.get((location, stream))
        if place is None:
            place = f', "location": {{"rank": {location.rank}, "device": {location.device}}}'
            place = f', "stream": {json.dumps(stream)}{place}' if stream else place
            self._places[location, stream] = place
        self._write(event, f', "op": {json.dumps(op.name)}{place}', at)

    def _write(self, event: str, rest: str, at: float) -> None:
        """A line. Raises RuntimeError after `close`."""
        thread = threading.get_ident()
        if self._times:
            rest += f', "time": {float(at)!r}'
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the trace was closed before {event!r}: close the executor first")
            worker = self._workers.setdefault(thread, f"w{len(self._workers)}")
            head = f'{{"seq": {self._seq}, "event": "{event}", "iteration": {self._iteration}'
            self._file.write(f'{head}{rest}, "worker": "{worker}"}}\n')
            self._seq += 1

    def close(self) -> None:
        """Write `stop`, and give the file its name. Once; further calls do nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._file.write(f'{{"seq": {self._seq}, "event": "stop"}}\n')
            if self._beside is None or self._path is None:
                return
            try:
                self._file.close()
                os.replace(self._beside, self._path)
            except BaseException:
                with contextlib.suppress(OSError):
                    self._beside.unlink(missing_ok=True)
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
