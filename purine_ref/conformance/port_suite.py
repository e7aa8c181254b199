"""The checks of `purine-ref check` as pytest classes, for a port that lives in Python.

    from purine_ref.conformance import FunctionPort, PortSuite

    class TestMyPort(PortSuite):
        def make_port(self):
            return FunctionPort(my_port.run, my_port.HELLO)

pytest then runs `test_golden`, `test_random`, `test_schedules` and `test_repeat`. It is not needed to import this.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from purine_ref.conformance.cases.case import Case
from purine_ref.conformance.cases.files import read_array
from purine_ref.conformance.cases.golden import golden_makers
from purine_ref.conformance.driving import (
    Options,
    Played,
    Port,
    PortFault,
    Result,
    Trial,
    Unsupported,
    check_port,
    scratch,
    verdict,
)
from purine_ref.conformance.driving.keeping import described
from purine_ref.conformance.driving.messages import PROTOCOL, Hello, hello_of
from purine_ref.conformance.driving.ports import TRACE
from purine_ref.conformance.driving.trying import trace_judge
from purine_ref.errors import Refused


class FunctionPort:
    """A port that is a function of this process: `run(case_folder, out_folder)` does what the one-shot form does.

    It writes an array for each expected entry and, if it can, `trace.jsonl`, and raises `Unsupported` for a case that
    it leaves out on purpose. `hello` has the keys of a reply to `hello`; `protocol` need not be among them. Schedules
    are those of `case.json`. A function that hangs is not interrupted: give pytest a time limit.
    """

    def __init__(self, run: Callable[[Path, Path], None], hello: Mapping[str, Any]) -> None:
        """Raises PortFault when `hello` lacks a key or has a wrong one."""
        self.limit = 0.0
        self.hello: Hello = hello_of({"protocol": PROTOCOL, **hello})
        self._run = run

    def play(self, folder: Path, case: Case, out: Path, trace: bool = True) -> Played:
        """Call the function, and read what it wrote. Raises PortFault, Unsupported."""
        try:
            self._run(folder, out)
        except Unsupported:
            raise
        except Exception as error:
            raise PortFault("crashed", f"the run: {type(error).__name__}: {error}") from error
        results = {}
        for entry in case.expected:
            try:
                tensor = case.graph[entry.blob].tensor
                results[entry.iteration, entry.blob] = read_array(out, entry.file, tensor, f"blob {entry.blob!r}")
            except (Refused, OSError) as error:
                raise PortFault("missing", str(error)) from None
        found = trace and self.hello.trace and (out / TRACE).is_file()
        return Played(results, out / TRACE if found else None)

    def close(self) -> None:
        """Nothing is running."""


class PortSuite:
    """Override `make_port`, and the attributes as you like; name the subclass `Test...`, and pytest collects it.

    `examples` are random graphs, keyed by `seed`; `golden` are patterns of golden cases' names; `min_executed` is how
    many cases a check must have run to pass. A failure is made smaller, and its message has all of it.
    """

    examples = 50
    seed = 0
    golden: Sequence[str] = ("*",)
    min_executed = 1

    def make_port(self) -> Port:
        """A new port: a `FunctionPort`, what `open_port` gives, or anything with the methods of `Port`."""
        raise NotImplementedError(f"{type(self).__name__} needs a method make_port that returns the port to check")

    def test_golden(self) -> None:
        """Every golden case that the port says it can run."""
        self.check(*self.golden)

    def test_random(self) -> None:
        """Random graphs of the port's operations."""
        self.check("random")

    def test_schedules(self) -> None:
        """Random graphs, in orders that the checker draws. Skipped where the port understands none."""
        self.check("schedules")

    def test_repeat(self) -> None:
        """Random graphs again and again: always the same bits."""
        self.check("repeat")

    def check(self, *only: str) -> None:
        """Run one check. Raises AssertionError for a failure, or where too few cases were run; SkipTest."""
        port = self.make_port()
        try:
            with scratch() as work:
                options = Options(self.examples, self.seed, only=only)
                trial = Trial(port, Path(work), trace_judge)
                results = list(check_port(trial, golden_makers().items(), options))
        finally:
            port.close()
        if [result.reason for result in results] == ["schedules"]:
            raise unittest.SkipTest("the port understands no schedules")
        failures = [line for result in results if result.outcome == "fail" for line in told(result)]
        assert not failures, "\n".join(failures)
        ran = sum(result.executed for result in results)
        assert verdict(results, self.min_executed) == "pass", f"{ran} cases were run, expected {self.min_executed}"


def told(result: Result) -> list[str]:
    """A failure in words, with the smallest case that shows it."""
    if result.smaller is None:
        return [f"{result.check} {result.name}: {result.kind}: {result.reason}"]
    return described(result, result.smaller, None)
