"""The package's own executors as a port: `python -m purine_ref.conformance.driving.reference`.

It serves `purine-drive/1` on its standard streams or, with `--bind ADDRESS`, over ZeroMQ; with a case folder and a
folder for results it is a one-shot port. It must pass every check, and it is an example of the protocol.
"""

from __future__ import annotations

import argparse
import inspect
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from purine_ref import ops
from purine_ref.conformance.cases.building import everywhere
from purine_ref.conformance.cases.case import Case
from purine_ref.conformance.cases.reading import read_case
from purine_ref.conformance.cases.running import EXECUTORS, run_case, write_results
from purine_ref.conformance.driving.messages import DTYPES, PROTOCOL, encode
from purine_ref.conformance.tracing import TraceWriter
from purine_ref.errors import PurineError
from purine_ref.executors import Executor, Memory
from purine_ref.operation import Operation
from purine_ref.snapshot import encode_npy

OPERATIONS = tuple(
    name
    for name in ops.__all__
    if inspect.isclass(getattr(ops, name)) and issubclass(getattr(ops, name), Operation)
)
"""All operations, by their names in cases."""

HELLO = {
    "protocol": PROTOCOL,
    "name": "purine_ref",
    "version": "reference",
    "operations": OPERATIONS,
    "dtypes": DTYPES,
    "schedules": True,
    "streams": True,
    "locations": True,
    "views": True,
    "trace": True,
}
"""What it says of itself."""


class Failed(Exception):
    """A request that is answered with an error of this kind."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class Server:
    """Answers requests. Changing: the case that is loaded; the executor that runs it, made when it first runs, since
    the order is known then; and `_due`, whether that executor's pairs are to be exchanged at the next feed.
    """

    def __init__(self, executor: str = "serial", threads: int = 2) -> None:
        self.stopped = False
        self._kind = executor
        self._options: dict[str, Any] = {} if executor == "serial" else {"threads": threads}
        self._hello = {**HELLO, "workers": threads if executor != "serial" else 1}
        self._case: Case | None = None
        self._running: Executor | None = None
        self._order: tuple[str, ...] | None = None
        self._due = False
        self._iteration = 0
        self._memory = Memory()
        self._trace: TraceWriter | None = None
        self._lines = io.StringIO()
        self._actions: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
            "hello": lambda _: self._hello,
            "load": self._load,
            "feed": self._feed,
            "run": self._run,
            "fetch": self._fetch,
            "trace": self._write_trace,
            "stop": self._stop,
        }

    def answer(self, raw: bytes) -> bytes:
        """The reply to a request."""
        seq = 0
        try:
            request = json.loads(raw)
            seq = request["seq"]
            if request["do"] not in self._actions:
                raise Failed("definite", f"there is no request {request['do']!r}")
            return encode({"seq": seq, "ok": True, **self._actions[request["do"]](request)})
        except Failed as error:
            kind, message = error.kind, str(error)
        except (PurineError, RuntimeError, OSError, ValueError, KeyError, TypeError) as error:
            kind, message = "definite", f"{type(error).__name__}: {error}"
        return encode({"seq": seq, "ok": False, "error": {"kind": kind, "message": message[:2000]}})

    def close(self) -> None:
        """Let go of the executor."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def _load(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self.close()
        self._case, self._due, self._memory = None, False, Memory()
        self._lines = io.StringIO()
        self._trace = TraceWriter(self._lines)
        case = read_case(request["case"])
        for name, array in case.initial.items():
            self._memory.put(name, case.graph[name].tensor, array)
        self._case = case
        return {}

    def _feed(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Exchange pairs; the arrays are put in when the run begins."""
        iteration = request["iteration"]
        if not 0 <= iteration < self._loaded().iterations:
            raise Failed("definite", f"there is no iteration {iteration}")
        if self._due and self._running is not None:
            self._running.commit()
        self._iteration, self._due = iteration, False
        return {}

    def _run(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        order = request["schedule"]
        running = self._executor(None if order is None else tuple(order))
        running.iteration = self._iteration
        running.feed(dict(self._loaded().feeds[self._iteration]))
        running.run_async()
        running.sync(commit=False)
        self._due = True
        return {}

    def _executor(self, order: tuple[str, ...] | None) -> Executor:
        """The executor for an order: another one, over the same memory, when that changes."""
        if self._running is None or order != self._order:
            case = self._loaded()
            self.close()
            options = {**self._options, "order": order, "memory": self._memory, "devices": everywhere}
            options["observer"] = self._trace
            self._running = EXECUTORS[self._kind](case.graph, seed=case.seed, **options)
            self._order = order
        return self._running

    def _fetch(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._running is None:
            raise Failed("definite", "nothing was run since the case was loaded")
        Path(request["file"]).write_bytes(encode_npy(self._running.fetch(request["blob"])))
        return {}

    def _write_trace(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self._loaded()
        if self._due and self._running is not None:
            self._running.commit()  # which ends the last run
            self._due = False
        if self._trace is not None:
            self._trace.close()
        Path(request["file"]).write_text(self._lines.getvalue(), "utf-8")
        return {}

    def _stop(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self.close()
        self.stopped = True
        return {}

    def _loaded(self) -> Case:
        if self._case is None:
            raise Failed("definite", "no case is loaded")
        return self._case


def serve_lines(server: Server, source: BinaryIO, target: BinaryIO) -> None:
    """Answer line by line until `stop`, or until there are no more."""
    for line in source:
        target.write(server.answer(line) + b"\n")
        target.flush()
        if server.stopped:
            break
    server.close()


def serve_socket(server: Server, address: str) -> None:
    """Answer at a ZeroMQ address until `stop`."""
    import zmq

    with zmq.Context() as context, context.socket(zmq.REP) as socket:
        socket.bind(address)
        while not server.stopped:
            socket.send(server.answer(socket.recv()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve in the form that the arguments name; returns the exit code."""
    parser = argparse.ArgumentParser(description="purine_ref as a port of itself")
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="a case, and where its results go")
    parser.add_argument("--hello", action="store_true", help="say what the port can do")
    parser.add_argument("--bind", metavar="ADDRESS", help="serve over ZeroMQ, at tcp://... or ipc://...")
    parser.add_argument("--executor", choices=list(EXECUTORS), default="serial")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args(arguments)
    server = Server(given.executor, given.threads)
    if given.hello:
        print(json.dumps(HELLO))
    elif len(given.folders) == 2:
        case = read_case(given.folders[0])
        results = run_case(case, given.executor, threads=given.threads)
        write_results(case, results, given.folders[1])
    elif given.folders:
        parser.error("a one-shot run takes two folders: a case, and where its results go")
    elif given.bind:
        serve_socket(server, given.bind)
    else:
        serve_lines(server, sys.stdin.buffer, sys.stdout.buffer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
