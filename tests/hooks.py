"""Operations, observers and helpers with which the tests of the dispatcher look inside a run, and steer it.

Nothing here sleeps: an operator that must be slow waits for an event, and every wait ends after `WATCH` seconds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from purine_ref.executors import Observer
from purine_ref.graph import Blob, Graph, Op
from purine_ref.operation import Operation
from purine_ref.tensor import Tensor

WATCH = 60.0
"""Seconds after which a wait gives up: far more than anything here takes, so that only a hang reaches it."""

BUSY = 4.0
"""Seconds by which a busy machine may hold up what takes a moment: what is not done within them waits for `WATCH`."""

START = 0.05
"""Seconds within which a quiet machine starts and ends an interpreter that does nothing; a quick one takes a third."""

SHAPE = (3, 2)
"""The shape of the blobs of `Call`."""


def slowness() -> float:
    """How many times longer than on a quiet machine processes take now; 1 at least. Time limits are to be as long."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-I", "-S", "-c", ""], check=True, timeout=WATCH)
    return max(1.0, (time.perf_counter() - begun) / START)


def nothing() -> None:
    """An action that does nothing."""


@dataclass(frozen=True)
class Call(Operation):
    """{ x1, x2, ... } >> Call >> { y }: calls `action`, then y = 1 + x1 + x2 + ..., float64; no input is legal."""

    action: Callable[[], object] = nothing

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (Tensor(SHAPE, "float64"),)

    def compute(self, kernels: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.action()
        outputs[0][...] = 1
        for x in inputs:
            outputs[0][...] += x


@dataclass(frozen=True)
class Swallow(Operation):
    """{ x1, x2, ... } >> Swallow >> { }: calls `action` with copies of its inputs."""

    action: Callable[..., object]

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return ()

    def compute(self, kernels: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.action(*(x.copy() for x in inputs))


@dataclass(frozen=True)
class Apply(Operation):
    """{ x1, x2, ... } >> Apply >> { y }, of the shape of x1: `function(inputs, outputs)` computes."""

    function: Callable[[Sequence[Any], Sequence[Any]], object]

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (inputs[0],)

    def compute(self, kernels: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.function(inputs, outputs)


def call(graph: Graph, name: str, inputs: Sequence[Blob] = (), action: Callable[[], object] = nothing) -> Blob:
    """A new blob `name`, made by a `Call`."""
    blob = graph.blob(name, SHAPE, "float64")
    graph.connect(inputs, Call(action), [blob], name=name)
    return blob


def fail_with(error: BaseException) -> Callable[[], None]:
    """An action that raises `error`."""

    def action() -> None:
        raise error

    return action


def raised_by(name: str, message: str, inputs: str = "none", operation: str = "Call") -> str:
    """The pattern of an error's message and its note, which names the operator, its place and its inputs."""
    return f"^{message}\noperator '{name}' \\({operation}\\) at cpu, inputs: {re.escape(inputs)}$"


class Gate:
    """An action that says that it was entered, and then waits to be let on."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self.go.wait(WATCH), "nobody let the operator on"


@contextmanager
def running(executor: Any, gate: Gate) -> Iterator[Future[None]]:
    """`executor` runs on another thread while the block is entered, held at `gate`; after the block it is let on."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(executor.run)
        try:
            assert gate.entered.wait(WATCH), "the operator was never started"
            yield future
        finally:
            gate.go.set()


@dataclass
class Trace(Observer):
    """Records (event, operator's name), in the order in which they came."""

    events: list[tuple[str, str]] = field(default_factory=list)

    def started(self, op: Op, at: float) -> None:
        self.events.append(("started", op.name))

    def finished(self, op: Op, at: float) -> None:
        self.events.append(("finished", op.name))

    def failed(self, op: Op, at: float, error: BaseException) -> None:
        self.events.append(("failed", op.name))

    def names(self, event: str) -> list[str]:
        """The operators of one kind of event, in order."""
        return [name for kind, name in self.events if kind == event]


class Delays(Observer):
    """Holds operators up for a time that depends on `seed` and their names, giving the others the processor.

    On a busy machine each time takes as long as the others like: after `LONGEST` seconds it is enough.
    """

    LONGEST = 0.002

    def __init__(self, seed: int, most: int = 40) -> None:
        self.seed = seed
        self.most = most

    def _hold(self, moment: str, op: Op) -> None:
        until = time.perf_counter() + self.LONGEST
        for _ in range(zlib.crc32(f"{self.seed}/{moment}/{op.name}".encode()) % self.most):
            os.sched_yield()
            if time.perf_counter() > until:
                return

    def started(self, op: Op, at: float) -> None:
        self._hold("started", op)

    def finished(self, op: Op, at: float) -> None:
        self._hold("finished", op)


class InTurn(Observer):
    """Makes the operators of `names` end one after the other, each started at any time; needs a thread for each."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.ended = {name: threading.Event() for name in names}

    def started(self, op: Op, at: float) -> None:
        place = self.names.index(op.name) if op.name in self.names else 0
        if place > 0:
            assert self.ended[self.names[place - 1]].wait(WATCH), "the operator before it never ended"

    def finished(self, op: Op, at: float) -> None:
        if op.name in self.names:
            self.ended[op.name].set()


def bits(executor: Any) -> dict[str, bytes]:
    """The bits of every blob that can be fetched, by name, with shape and dtype."""
    held = {}
    for blob in executor.graph.blobs:
        if blob not in executor.plan.lost:
            array = executor.fetch(blob.name)
            held[blob.name] = f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes()
    return held
