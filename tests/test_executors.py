"""The executors: the suite of their contract for each, and what is particular to the threaded one."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from purine_ref.executors import Observer, Serial, Simulated, Threaded
from purine_ref.graph import Graph
from purine_ref.ops import Mul
from suites.executors import ConcurrentSuite, ExecutorSuite, Make


class TestSerial(ExecutorSuite):
    @pytest.fixture
    def make(self) -> Make:
        return Serial


class TestSimulated(ExecutorSuite):
    @pytest.fixture
    def make(self) -> Make:
        return partial(Simulated, threads=3)


class TestThreadedByOne(ExecutorSuite):
    @pytest.fixture
    def make(self) -> Make:
        return partial(Threaded, threads=1)


class TestThreaded(ConcurrentSuite):
    @pytest.fixture(params=[2, 4, 8])
    def workers(self, request: pytest.FixtureRequest) -> Any:
        return request.param

    @pytest.fixture
    def make(self, workers: int) -> Make:
        return partial(Threaded, threads=workers)


class TestWatched(ConcurrentSuite):
    """With an observer the threaded executor has lanes; without, as above, a pool."""

    @pytest.fixture(params=[2, 4])
    def workers(self, request: pytest.FixtureRequest) -> Any:
        return request.param

    @pytest.fixture
    def make(self, workers: int) -> Make:
        return partial(Threaded, threads=workers, observer=Observer())


def test_overflow_and_nan_are_values_and_warn_nobody() -> None:
    """With warnings as errors, as here, infinity times zero must still be NaN, on every thread."""
    graph = Graph("values")
    x, y = graph.blob("x", (3,)), graph.blob("y", (3,))
    graph.apply(Mul(), [x, y], "product")
    arrays = {"x": np.float32([np.inf, 3e38, 1]), "y": np.float32([0, 10, 2])}
    for executor in (Serial(graph), Threaded(graph, threads=2), Simulated(graph)):
        with executor:
            executor.feed(arrays)
            executor.run()
            np.testing.assert_array_equal(executor.fetch("product"), [np.nan, np.inf, 2])
