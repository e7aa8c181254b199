"""Our side on a GPU: a training step of the fused graph, with memory reused, over one or more sets of streams; and
where its time goes, by CUDA events in the streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from purine_ref.benchmarks.contenders import Spec
from purine_ref.benchmarks.intervals import covered, hidden_time
from purine_ref.benchmarks.side import Side, data, network
from purine_ref.benchmarks.steps import flops, fused
from purine_ref.benchmarks.timing import paused_collector
from purine_ref.devices import Device
from purine_ref.devices.cuda import cuda_machine
from purine_ref.executors import Captured, Executor, Serial
from purine_ref.lifetimes import planned_bytes
from purine_ref.operation import Kernels, RunKey
from purine_ref.parallel import Data, compose
from purine_ref.tensor import Location
from purine_ref.view import Clock, GpuClock, StreamRecorder

EXECUTORS: dict[str, Callable[..., Executor]] = {"streams": Serial, "captured": Captured}
"""How a step is launched: every operator in every step, or recorded once, and launched as a whole."""


class GpuNetwork(Side):
    """A training graph, on as many sets of streams as the spec has workers; more than one are replicas.

    Raises GraphError where there is no GPU, and what executors raise.
    """

    def __init__(self, spec: Spec, dtype: str, recorder: StreamRecorder | None = None) -> None:
        serial = network(spec.model, spec.batch, dtype)
        places = [Location(0, number) for number in range(spec.workers)]
        divided = compose(serial, [Data(spec.workers)] if spec.workers > 1 else [], places)
        graph, keep, pieces = fused(serial, divided)
        self._machine = cuda_machine()
        self._executor: Executor | None = None
        try:
            if recorder is not None:
                recorder.clock = GpuClock(self._machine.cupy)
            devices = self._machine.device if recorder is None else recorder.watch(self._machine.device)
            make = EXECUTORS[spec.how]
            self._executor = make(graph, devices=devices, reuse=True, keep=keep, seed=spec.seed)
            for name, array in data(serial, spec.seed).items():
                self._executor.feed({blob.name: array[part] for blob, part in pieces[name]})
        except BaseException:
            self.close()
            raise
        self._loss = keep[0]
        self.planned = float(sum(planned_bytes(self._executor.plan).values()))

    @property
    def executor(self) -> Executor:
        """What runs the graph."""
        assert self._executor is not None
        return self._executor

    def step(self) -> None:
        """One run; the host waits for the end of it."""
        self.executor.run()

    def checked_step(self) -> float:
        """One run, whose masks are the graph's own anyway."""
        self.executor.run()
        return float(self.executor.fetch(self._loss))

    def seconds(self, work: Callable[[], object]) -> Mapping[str, float]:
        """By the clock on the wall and, as `gpu`, between two events in a stream: nothing runs before and after."""
        with self._machine.current(Location(0, 0), "main"), paused_collector():
            clock = GpuClock(self._machine.cupy)
            wall, start = time.perf_counter(), clock.now()
            work()
            end = clock.now()
            end[1].synchronize()
            wall = time.perf_counter() - wall
        return {"gpu": clock.seconds(end) - clock.seconds(start), "wall": wall}

    def facts(self) -> dict[str, float]:
        """`flops`: see `steps.flops`."""
        return {"flops": flops(self.executor.plan.graph)}

    def close(self) -> None:
        """Close the executor, and the streams."""
        if self._executor is not None:
            self._executor.close()
        self._machine.close()


def side(spec: Spec, dtype: str) -> Side:
    """The network of a spec, on a GPU."""
    return GpuNetwork(spec, dtype)


def products(spec: Spec, count: int) -> list[Mapping[str, float]]:
    """For each of `count` steps, after two: seconds from its first operator's start to its last one's end (`step`), and
    seconds within calls of cuBLAS (`products`), between events around each of them."""
    recorder = ProductRecorder()

    def seen() -> Mapping[str, float]:
        """Of one step."""
        spans = recorder.spans
        step = max(span.end for span in spans) - min(span.start for span in spans)
        return {"step": step, "products": covered(recorder.products)}

    return _recorded(spec, count, recorder, seen)


def copies(spec: Spec, count: int) -> list[Mapping[str, float]]:
    """For each of `count` steps, after two: seconds of all `copies`, and how many of them were `hidden` behind what
    other streams computed."""
    recorder = StreamRecorder()

    def seen() -> Mapping[str, float]:
        """Of one step."""
        moving = [span for span in recorder.spans if span.op in recorder.copies]
        others = [span for span in recorder.spans if span.op not in recorder.copies]
        total = sum(span.end - span.start for span in moving)
        return {"copies": total, "hidden": hidden_time(moving, others)}

    return _recorded(spec, count, recorder, seen)


def _recorded(
    spec: Spec, count: int, recorder: StreamRecorder, seen: Callable[[], Mapping[str, float]]
) -> list[Mapping[str, float]]:
    """What is `seen` of each of `count` steps, after two."""
    found: list[Mapping[str, float]] = []
    with GpuNetwork(spec, "float32", recorder) as traced:
        for number in range(count + 2):
            recorder.clear()
            traced.step()
            if number > 1:
                found.append(seen())
    return found


class ProductRecorder(StreamRecorder):
    """Records products of matrices as well, which are calls of `matmul`."""

    def __init__(self) -> None:
        super().__init__()
        self._moments: list[tuple[Any, Any]] = []

    def watch(self, devices: Callable[[Location], Device]) -> Callable[[Location], Device]:
        """The same devices, with all their work and its products recorded."""
        return super().watch(lambda location: cast(Device, _Multiplying(devices(location), self)))

    @property
    def products(self) -> list[tuple[float, float]]:
        """From when to when each product took."""
        return [(self.clock.seconds(start), self.clock.seconds(end)) for start, end in self._moments]

    def clear(self) -> None:
        """Forget what was recorded."""
        self._moments.clear()
        super().clear()

    def module(self, xp: Any) -> Any:
        """CuPy, with its products recorded."""
        return _Module(xp, self.clock, self._moments)


class _Multiplying:
    """A device whose vocabularies record their products."""

    def __init__(self, device: Device, recorder: ProductRecorder) -> None:
        self._device = device
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def kernels(self, key: RunKey) -> Kernels:
        """The vocabulary for one run."""
        kernels = self._device.kernels(key)
        kernels.xp = self._recorder.module(kernels.xp)
        return kernels


class _Module:
    """CuPy, as operations see it."""

    def __init__(self, xp: Any, clock: Clock, moments: list[tuple[Any, Any]]) -> None:
        self._xp = xp
        self._clock = clock
        self._moments = moments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._xp, name)

    def matmul(self, *arguments: Any, **keywords: Any) -> Any:
        """The product, between two moments."""
        start = self._clock.now()
        result = self._xp.matmul(*arguments, **keywords)
        self._moments.append((start, self._clock.now()))
        return result
