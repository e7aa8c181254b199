"""What every contender of `bench compute` is to its process: something that makes steps on data that is at hand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np

from purine_ref.benchmarks.timing import seconds
from purine_ref.graph import Graph
from purine_ref.models import training_graph
from purine_ref.operation import Kernels, RunKey
from purine_ref.optim import RATE

Array = Any
"""A numpy array."""

LEARNING_RATE = 0.01
MOMENTUM, DECAY = 0.9, 1e-4


class Side(ABC):
    """A contender that is ready: data fed, parameters at their initial values. Use it as a context manager."""

    planned: float | None = None
    """Bytes of its arrays, where it plans them."""

    @abstractmethod
    def step(self) -> None:
        """One training step on the same images: forward, backward, update."""

    @abstractmethod
    def checked_step(self) -> float:
        """One step, with random masks as the graph draws them; returns the loss before the update."""

    def seconds(self, work: Callable[[], object]) -> Mapping[str, float]:
        """How long one call of `work`, which makes steps, takes, by each clock that there is; `wall` is one."""
        return seconds(work)

    def facts(self) -> dict[str, float]:
        """Counts of one step: `flops` of products of matrices, `layout` bytes moved only to lie in another order."""
        return {}

    def close(self) -> None:  # noqa: B027  # most have nothing to end
        """Let go of threads."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def network(model: str, batch: int, dtype: str) -> Graph:
    """The training graph that all sides compute."""
    return training_graph(model, batch, dtype, momentum=MOMENTUM, decay=DECAY)


def data(graph: Graph, seed: int) -> dict[str, Array]:
    """Images, labels and the learning rate for the graph, the same for every side."""
    rng = np.random.default_rng(seed)
    classes = min(10, *(blob.shape[0] for blob in graph.parameters[-1:]))
    x, label = graph["x"], graph["label"]
    return {
        "x": rng.standard_normal(x.shape).astype(x.dtype),
        "label": rng.integers(0, classes, label.shape),
        RATE: np.array(LEARNING_RATE, x.dtype),
    }


def initial_values(graph: Graph, kernels: Kernels) -> dict[str, Array]:
    """What each parameter starts with, by name; `kernels` has the key of the seed."""
    found = {}
    for blob in graph.parameters:
        found[blob.name] = np.zeros(blob.shape, blob.dtype)
        graph.initial[blob.name].compute(kernels, (), (found[blob.name],))
    return found


def start_key(seed: int) -> RunKey:
    """The key that initial values are drawn with."""
    return RunKey(seed)
