"""`PortSuite`: it passes a right port, fails a wrong one, and is no pass where nothing runs. `FunctionPort`."""

from __future__ import annotations

import io
import unittest
from pathlib import Path

import numpy as np
import pytest

from mini_port import MiniPort
from purine_ref.conformance import FunctionPort, Port, PortFault, PortSuite, Unsupported
from purine_ref.conformance.cases import Case, make_case, read_case, run_case, write_case, write_results
from purine_ref.conformance.driving.ports import TRACE
from purine_ref.conformance.tracing import TraceWriter
from purine_ref.graph import Graph
from purine_ref.ops import ReLU

HELLO = {"name": "mine", "version": "1", "operations": ["ReLU", "Sum", "Identity"], "dtypes": ["float32", "float64"],
         "views": True, "streams": True, "schedules": True, "trace": True}  # fmt: skip


def run(folder: Path, out: Path) -> None:
    """The one-shot form, in this process, on the executors here."""
    case = read_case(folder)
    lines = io.StringIO()
    with TraceWriter(lines) as writer:
        write_results(case, run_case(case, observer=writer), out)
    (out / TRACE).write_text(lines.getvalue(), "utf-8")


class Small(PortSuite):
    """Few cases."""

    examples = 6
    golden = ("operators/ReLU/*", "graphs/fan-in/*")


class TestRight(Small):
    """The package itself passes, as a function."""

    def make_port(self) -> Port:
        return FunctionPort(run, HELLO)


class Wrong(Small):
    """A dispatcher that forgets a contribution."""

    def make_port(self) -> Port:
        return MiniPort("lost")


class Idle(Small):
    """A port that leaves everything out, orders too."""

    def make_port(self) -> Port:
        def refuse(folder: Path, out: Path) -> None:
            raise Unsupported("not today")

        return FunctionPort(refuse, {**HELLO, "schedules": False})


def test_a_wrong_port_fails_with_its_smallest_case() -> None:
    with pytest.raises(AssertionError) as failure:
        Wrong().test_repeat()
    assert "smallest case found" in str(failure.value)
    assert "differs" in str(failure.value)


def test_a_port_that_runs_nothing_does_not_pass() -> None:
    for check in (Idle().test_golden, Idle().test_random):
        with pytest.raises(AssertionError, match="0 cases were run, expected 1"):
            check()
    with pytest.raises(unittest.SkipTest, match="no schedules"):
        Idle().test_schedules()


def test_a_suite_needs_its_port() -> None:
    with pytest.raises(NotImplementedError, match="PortSuite needs a method make_port"):
        PortSuite().test_random()


def relu_case(folder: Path) -> Case:
    """A case of one ReLU, in a folder."""
    graph = Graph("one")
    graph.connect([graph.blob("x", (3,))], ReLU(), [graph.blob("y", (3,))])
    write_case(make_case(graph, name="one", about="", feeds=[{"x": np.ones(3, "float32")}]), folder)
    return read_case(folder)


def test_what_a_function_does_wrong_is_a_fault(tmp_path: Path) -> None:
    case = relu_case(tmp_path / "case")
    (tmp_path / "out").mkdir()

    def broken(folder: Path, out: Path) -> None:
        raise KeyError("x")

    for function, kind in ((broken, "crashed"), (lambda folder, out: None, "missing")):
        with pytest.raises(PortFault) as told:
            FunctionPort(function, HELLO).play(tmp_path / "case", case, tmp_path / "out")
        assert told.value.kind == kind
    with pytest.raises(PortFault, match="operations"):
        FunctionPort(run, {"name": "x", "version": "1", "dtypes": []})


def test_a_function_may_write_a_trace(tmp_path: Path) -> None:
    case = relu_case(tmp_path / "case")
    for number, (hello, trace) in enumerate(((HELLO, True), ({**HELLO, "trace": False}, True), (HELLO, False))):
        out = tmp_path / str(number)
        out.mkdir()
        played = FunctionPort(run, hello).play(tmp_path / "case", case, out, trace)
        assert (played.trace is not None) == (number == 0)
