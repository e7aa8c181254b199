"""The executors: the suite of their contract for each, and what is particular to the threaded one."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from purine_ref.executors import Serial, Simulated, Threaded
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
