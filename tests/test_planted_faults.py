"""Each planted fault fails the suites' own checks that it names, and without a fault every one of them passes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from faults.catalogue import ALL
from faults.checks import combinations, find
from faults.fault import Fault, around, computing, misread, replaced, together
from faults.judge import Misplanted, judge, judge_in_a_process, killers, outcome
from faults.scoreboard import PROPERTY
from purine_ref.devices.cpu import CpuKernels
from purine_ref.graph import Graph
from purine_ref.ops import ReLU, Scale
from support import apply

CHECKS = sorted({check for fault in ALL for check in fault.checks})
FEWEST = 90
"""How many faults there are at least: one that is left out by mistake shows."""

Record = Callable[[str, object], None]


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.name)
def test_the_suites_kill(fault: Fault, record_property: Record) -> None:
    killed: dict[str, str] = {}
    try:
        killed = judge(fault)
    finally:
        record_property(PROPERTY, {"name": fault.name, "killers": killers(killed)})
    assert list(killed) == list(fault.checks), f"{fault.name} ({fault.wrong}) survives a check"


@pytest.mark.parametrize("check", CHECKS)
def test_without_a_fault_a_check_passes(check: str) -> None:
    find(check)()


def test_without_a_fault_they_pass_in_a_process_of_their_own_too() -> None:
    checks = sorted({check for fault in ALL if fault.isolated for check in fault.checks})
    assert len(checks) > 2
    assert judge_in_a_process("", checks) == {}


# The catalogue


def test_there_are_enough_and_each_says_what_is_wrong() -> None:
    assert len({fault.name for fault in ALL}) == len(ALL) >= FEWEST
    for fault in ALL:
        assert re.fullmatch(r"[A-Z].*[^.]\.", fault.wrong), fault.name
        assert fault.checks, fault.name
        assert len(set(fault.checks)) == len(fault.checks), fault.name


# How faults are planted and judged


VALUES, EMPTY = "Scale: test_values_are_those_of_the_loops", "Scale: test_an_empty_batch_is_legal"
"""A check that notices when `Scale` does too much, and one that does not."""


def doubling(right: Any, self: Scale, kernels: Any, inputs: Any, outputs: Any) -> None:
    right(self, kernels, [2 * inputs[0]], outputs)


def test_only_the_checks_that_fail_are_killers() -> None:
    fault = Fault("doubled", "Everything is doubled.", around(Scale, "compute", doubling), (EMPTY, VALUES))
    assert list(judge(fault)) == [VALUES]


def test_a_harmless_fault_survives() -> None:
    harmless = around(Scale, "compute", lambda right, *call: right(*call))
    assert judge(Fault("none", "Nothing.", harmless, (EMPTY, VALUES))) == {}


def test_a_fault_is_in_the_package_only_while_it_is_planted() -> None:
    for plant in (
        around(Scale, "compute", lambda right, self, kernels, inputs, outputs: outputs[0].fill(5)),
        computing(Scale, lambda self, x, y: y.fill(5)),
        misread(Scale, lambda self: Scale(5.0)),
        together(replaced(Graph, "sinks", ()), computing(Scale, lambda self, x, y: y.fill(5))),
    ):
        with plant():
            assert apply(Scale(2.0), [1.0])[0].tolist() == [5]
        assert apply(Scale(2.0), [1.0])[0].tolist() == [2]
        assert Graph("any").sinks == []


def test_a_kernel_stays_a_function_without_self() -> None:
    right = CpuKernels.window_sum
    with around(CpuKernels, "window_sum", lambda right, x, n: (x, n))():
        assert CpuKernels(None).window_sum(1, 2) == (1, 2)
    assert CpuKernels.window_sum is right


def test_an_error_of_the_fault_itself_is_no_kill() -> None:
    no_function = around(ReLU, "compute", None)  # type: ignore[arg-type]
    with no_function(), pytest.raises(Misplanted, match=r"^TypeError: 'NoneType' object is not callable$"):
        outcome(find("ReLU: test_values_are_those_of_the_loops"))


@pytest.mark.parametrize(
    "name",
    [
        "Scale: test_of_nothing",
        "Scale: cases",
        "Copy: test_r10_what_would_round_is_refused",
        "Serial: test_of_nothing",
        "test_graph: cycle_of",
    ],
)
def test_a_check_that_is_not_there_is_no_check(name: str) -> None:
    with pytest.raises(LookupError):
        find(name)()


def test_what_cannot_be_judged_in_a_process_of_its_own_is_no_kill() -> None:
    with pytest.raises(Misplanted, match=r"^fault 'absent' could not be judged:\n(.*\n)*KeyError: 'absent'\n$"):
        judge_in_a_process("absent", ["Serial: test_r3_an_empty_graph_runs"])


def test_every_combination_of_parameters_is_called() -> None:
    @pytest.mark.parametrize("a", [1, 2])
    @pytest.mark.parametrize(("b", "c"), [(3, 4), (5, 6)])
    def test(a: int, b: int, c: int) -> None: ...

    called = {(chosen["a"], chosen["b"], chosen["c"]) for chosen in combinations(test)}
    assert called == {(1, 3, 4), (2, 3, 4), (1, 5, 6), (2, 5, 6)}
