"""A graph around one operation, to see its gradients at work: with `backward`, and with several producers (rule R4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from purine_ref.executors import Serial
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph
from purine_ref.ops import Mul, ReduceSum
from suites.operation_case import RUN, Case

Array = Any


class Around:
    """A graph in which an operation is used on the same blobs `uses` times, each use with its own loss.

    A use's loss is the sum of its outputs times random numbers. Every gradient so has one producer per use; with
    `ahead`, one more, which is first and adds 7. `value` and `gradients` run the graph on the CPU, one operator after
    the other.
    """

    def __init__(self, case: Case, dtype: str, uses: int = 2, ahead: bool = False) -> None:
        self.graph, self.feeds = Graph("around"), {}
        self.arrays = case.draw(dtype)
        self.blobs = [self._source(f"x{i}", array) for i, array in enumerate(self.arrays)]
        slots = [i for i, blob in enumerate(self.blobs) if blob.tensor.is_float]
        self.slots = [i for i in slots if case.operation.differentiable(i)]
        self.losses: dict[Blob, float] = {}
        for use in range(uses):
            for index, y in enumerate(self.graph.apply(case.operation, self.blobs, f"use{use}")):
                if y.tensor.is_float:
                    self._add_loss(y, f"loss{use}.{index}", (1.0, -0.5)[use])
        if ahead:
            for i in self.slots:
                [total] = self.graph.apply(ReduceSum(), [self.blobs[i]], f"total{i}")
                self.losses[total] = 7.0
        self.wanted = backward(self.losses, [self.blobs[i] for i in self.slots])
        self.executor = Serial(self.graph, seed=RUN.seed)

    def _source(self, name: str, array: Array) -> Blob:
        self.feeds[name] = array
        return self.graph.blob(name, array.shape, array.dtype.name)

    def _add_loss(self, y: Blob, name: str, factor: float) -> None:
        rng = np.random.default_rng(len(self.losses))
        factors = self._source(f"{name}/factors", rng.standard_normal(y.shape).astype(y.dtype).reshape(y.shape))
        [product] = self.graph.apply(Mul(), [y, factors], f"{name}/product")
        [loss] = self.graph.apply(ReduceSum(), [product], name)
        self.losses[loss] = factor

    def value(self, point: Sequence[Array]) -> float:
        """The weighted losses, with `point` for the inputs that have gradients."""
        self._run(point)
        return float(sum(factor * self.executor.fetch(loss.name) for loss, factor in self.losses.items()))

    def gradients(self, point: Sequence[Array] | None = None) -> list[Array]:
        """The gradients at `point`, by default at the drawn inputs."""
        self._run(self.point if point is None else point)
        return [self.executor.fetch(self.wanted[self.blobs[i]].name) for i in self.slots]

    @property
    def point(self) -> list[Array]:
        """The drawn inputs that have gradients."""
        return [self.arrays[i] for i in self.slots]

    def _run(self, point: Sequence[Array]) -> None:
        moved = {self.blobs[i].name: array for i, array in zip(self.slots, point, strict=True)}
        self.executor.feed({**self.feeds, **moved})
        self.executor.run()
