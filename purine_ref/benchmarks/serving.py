"""The program of a child process: `python -m purine_ref.benchmarks.serving SPEC` answers questions, a line each.

`_ANSWERS` has their names.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from purine_ref.benchmarks import gpu_kernels, gpu_steps, products, steps, torch_gpu, torch_peer
from purine_ref.benchmarks.asking import serve
from purine_ref.benchmarks.contenders import Spec
from purine_ref.benchmarks.machine import greatest, resident
from purine_ref.benchmarks.side import Side
from purine_ref.conformance.tracing import TraceWriter
from purine_ref.transports import joined
from purine_ref.transports.zeromq import Joining, Mesh, join

SIDES: dict[str, Callable[[Spec, str], Side]] = {
    "purine": steps.side, "torch": torch_peer.side, "matmul": products.side,
    "gpu": gpu_steps.side, "torch gpu": torch_gpu.side,
}  # fmt: skip
"""From a spec and a dtype to a side that is ready to run."""


SILENCE = 30.0
"""Seconds without a word after which one of several hosts is lost: a busy machine is no reason."""


class Server:
    """Answers for one spec. The side is made by the first question that needs it."""

    def __init__(self, spec: Spec) -> None:
        if spec.cores:
            os.sched_setaffinity(0, spec.cores)
        if spec.side.startswith("torch"):
            torch_peer.version()
        self._spec = spec
        self._world: Mesh | None = None
        self._stack = ExitStack()  # for as long as this process lives
        if spec.connect:  # without keys: ranks on this machine, or in namespaces of it
            self._world = join(Joining(spec.rank, spec.workers, spec.connect, timeout=SILENCE, insecure=True))
            self._stack.enter_context(joined(self._world))
        self._side: Side | None = None
        self._empty = resident()

    @property
    def side(self) -> Side:
        """The side, which has run one step."""
        if self._side is None:
            self._side = SIDES[self._spec.side](self._spec, "float32")
            self._side.step()
            pin_ranks(self._spec.cores)
        return self._side

    def time(self, count: int) -> Mapping[str, float]:
        """Seconds of `count` steps, after one that is not counted where they are many: they are short then."""
        side = self.side
        if count > 1:
            side.step()

        def work() -> None:
            """All steps of one side."""
            for _ in range(count):
                side.step()

        return side.seconds(work)

    def losses(self, batch: int, dtype: str, count: int) -> list[float]:
        """The losses of the first steps of a side like this one, with as many images and in this dtype."""
        small = replace(self._spec, batch=batch)
        with SIDES[self._spec.side](small, dtype) as side:
            return [side.checked_step() for _ in range(count)]

    def memory(self) -> Mapping[str, float]:
        """Bytes: `process`, the most that this process ever had; `network`, by how much that is above what it had
        before the network was made, libraries imported; `planned`, where the side plans its arrays.
        """
        planned = {} if self.side.planned is None else {"planned": self.side.planned}
        return {"process": greatest(), "network": greatest() - self._empty, **planned}

    def facts(self) -> dict[str, float]:
        """What is counted, not measured: see `side.Side.facts`."""
        return self.side.facts()

    def overlap(self, count: int) -> list[Mapping[str, float]]:
        """Where the copies of each of `count` steps went: see `steps.overlap`."""
        return steps.overlap(self._spec, count)

    def products(self, count: int) -> list[Mapping[str, float]]:
        """How long each of `count` steps on a GPU takes, and its products of matrices: see `gpu_steps.products`."""
        return gpu_steps.products(self._spec, count)

    def copies(self, count: int) -> list[Mapping[str, float]]:
        """Where the copies of each of `count` steps on a GPU went: see `gpu_steps.copies`."""
        return gpu_steps.copies(self._spec, count)

    def bandwidths(self, images: int, runs: int) -> list[tuple[str, list[float]]]:
        """Bytes a second of the loops of a GPU: see `gpu_kernels.bandwidths`."""
        return gpu_kernels.bandwidths(images, runs)

    def trace(self, file: str, count: int) -> list[float]:
        """Write what this rank does in `count` steps, after one, as `purine-trace/1`; returns the offset of each rank's
        clock from this one's."""
        with TraceWriter(file, times=True) as observer, steps.Network(self._spec, "float32", observer) as traced:
            for _ in range(1 + count):
                traced.step()
        world = self._joined()
        return [world.offset(rank) for rank in range(world.size)]

    def sent(self, count: int) -> float:
        """Bytes of arrays that this rank sends in a step, over the mean of `count`, as its transport counted them."""
        side, world = self.side, self._joined()
        before = world.payload
        for _ in range(count):
            side.step()
        return (world.payload - before) / count

    def leave(self) -> None:
        """Close the side and leave the world: one of several hosts is asked nothing after it."""
        if self._side is not None:
            self._side.close()
        self._joined().close()

    def _joined(self) -> Mesh:
        if self._world is None:
            raise RuntimeError(f"the process of {self._spec.side} {self._spec.how} has joined no other")
        return self._world


_ANSWERS = (
    "time", "losses", "memory", "facts", "overlap", "products", "copies", "bandwidths", "trace", "sent", "leave",
)  # fmt: skip


def pin_ranks(cores: tuple[int, ...]) -> None:
    """Hold the thread of each rank to its own core, the first rank's to the first."""
    for thread in threading.enumerate():
        number = thread.name.rpartition("-rank")[2]
        if len(cores) > 1 and number.isdecimal() and thread.native_id is not None:
            os.sched_setaffinity(thread.native_id, {cores[int(number)]})


def answers(facts: dict[str, Any]) -> Mapping[str, Callable[..., object]]:
    """What a process can be asked that serves the spec of these facts."""
    server = Server(Spec(**{**facts, "cores": tuple(facts["cores"])}))
    return {name: getattr(server, name) for name in _ANSWERS}


if __name__ == "__main__":
    serve(answers, json.loads(sys.argv[1]))
