"""A small dispatcher in this process as a port, into which faults are planted: what `check` must find and make small.

It runs one operator after the other, with edge counts and with additions in the order of the edges; each fault changes
one line of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from purine_ref.conformance.cases import OPERATIONS, Case
from purine_ref.conformance.driving import Hello, Played, PortFault, Unsupported
from purine_ref.devices.cpu import CpuKernels
from purine_ref.graph import Op
from purine_ref.operation import Array, Operation, RunKey

SMALL = frozenset(
    {
        *("Linear", "LinearDataGradient", "LinearWeightGradient", "Bias", "BiasGradient", "ReLU", "ReLUGradient"),
        *("Conv2d", "Conv2dDataGradient", "Conv2dWeightGradient", "MaxPool2d", "MaxPool2dGradient", "Sum", "Mul"),
        *("SquaredError", "SquaredErrorGradient", "SGD", "Concat", "Slice", "Copy", "Identity", "Constant"),
    }
)
"""What a small port has."""

Wrong = Callable[[Operation, Sequence[Array], Sequence[Array]], None]
"""Changes what an operation has computed from its inputs."""


@dataclass
class MiniPort:
    """A port with a planted fault of the dispatcher (`fault`), of operations (`wrong`), or with none.

    A fault that shows now and then does so at every run whose number `every` divides.
    """

    fault: str = ""
    wrong: dict[str, Wrong] = field(default_factory=dict)
    every: int = 1
    operations: frozenset[str] = SMALL
    limit: float = 30.0
    runs: int = 0

    @property
    def hello(self) -> Hello:
        dtypes = frozenset({"float32", "float64", "int64"})
        names = frozenset(OPERATIONS) if self.operations == {"all"} else self.operations
        return Hello("mini", "1", names, dtypes, schedules=True, streams=True, locations=True, views=False)

    def play(self, folder: Path, case: Case, out: Path, trace: bool = True) -> Played:
        if self.fault == "unsupported":
            raise Unsupported("load: not today")
        self.runs += 1
        return Played(_Run(case, self, self.fault if self.runs % self.every == 0 else "").results())

    def close(self) -> None:
        pass


class _Run:
    """One run of a case."""

    def __init__(self, case: Case, port: MiniPort, fault: str) -> None:
        self.case = case
        self.port = port
        self.fault = fault
        self.held: dict[str, Array] = {b.name: np.zeros(b.shape, b.dtype) for b in case.graph.blobs}
        self.held |= case.initial

    def results(self) -> dict[tuple[int, str], Array]:
        found = {}
        for iteration, feeds in enumerate(self.case.feeds):
            if iteration and self.fault != "pairs":
                for current, following in ((a.name, b.name) for a, b in self.case.graph.pairs):
                    self.held[current], self.held[following] = self.held[following], self.held[current]
            if not (iteration and self.fault == "stale"):
                self.held |= feeds
            self.iterate(iteration)
            for entry in self.case.expected:
                if entry.iteration == iteration:
                    found[iteration, entry.blob] = self.held[entry.blob].copy()
        return found

    def iterate(self, iteration: int) -> None:
        """Run every operator once its edges are satisfied."""
        kernels = CpuKernels(RunKey(self.case.seed, 0 if self.fault == "iteration" else iteration))
        ops = self.case.graph.ops
        missing = {op: sum(len(blob.producers) for blob in op.inputs) for op in ops}
        if self.fault == "nodes":  # counts blobs, not edges, so that it starts too early
            missing = {op: sum(bool(blob.producers) for blob in op.inputs) for op in ops}
        delivered: dict[str, dict[tuple[str, int], Array]] = {blob.name: {} for blob in self.case.graph.blobs}
        waiting = list(ops) if self.case.schedule is None else [self.case.graph.op(n) for n in self.case.schedule]
        if self.fault == "schedule" and self.case.schedule is not None and len(ops) > 1:
            raise PortFault("crashed", "run: the port was killed by SIGSEGV")
        if self.fault == "deadlock" and any(len(op.inputs) != len(set(op.inputs)) for op in ops):
            raise PortFault("hung", "run: no reply in 2 s")  # a blob that is read twice is counted once
        while waiting:
            op = next((each for each in waiting if missing[each] <= 0), None)
            if op is None:
                raise PortFault("hung", "run: no reply in 30 s")
            waiting.remove(op)
            self.compute(op, kernels, delivered)
            for blob in op.outputs:
                for consumer, _ in blob.consumers:
                    missing[consumer] -= 1

    def compute(self, op: Op, kernels: CpuKernels, delivered: dict[str, dict[tuple[str, int], Array]]) -> None:
        inputs = [self.held[blob.name] for blob in op.inputs]
        outputs = [np.zeros(blob.shape, blob.dtype) for blob in op.outputs]
        op.operation.compute(kernels, inputs, outputs)
        if op.operation.name in self.port.wrong:
            self.port.wrong[op.operation.name](op.operation, inputs, outputs)
        for slot, (blob, array) in enumerate(zip(op.outputs, outputs, strict=True)):
            edges = delivered[blob.name]
            edges[op.name, slot] = array
            order = [(producer.name, at) for producer, at in blob.producers if (producer.name, at) in edges]
            self.held[blob.name] = self.added([edges[edge] for edge in order], len(blob.producers))

    def added(self, parts: list[Array], producers: int) -> Array:
        """The sum of several contributions."""
        if self.fault == "reverse" and len(parts) == producers:
            parts = parts[::-1]
        if self.fault == "lost" and len(parts) == producers > 1:
            parts = parts[:-1]
        if self.fault == "overwrite":
            parts = parts[-1:]
        if self.fault == "mean" and len(parts) == producers > 1:
            return np.asarray(sum(parts[1:], start=parts[0]) / np.asarray(producers, parts[0].dtype))
        if self.fault == "double" and len(parts) == producers > 1:
            parts = [*parts, parts[0]]
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        return total
