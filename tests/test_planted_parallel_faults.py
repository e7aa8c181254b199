"""Each planted fault of parallel execution fails the checks that it names; without a fault every one of them passes."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from faults.catalogue import ALL, PARALLEL
from faults.checks import find
from faults.fault import Fault
from faults.judge import judge, judge_in_a_process, killers
from faults.scoreboard import PROPERTY
from purine_ref.errors import GraphError

CHECKS = sorted({check for fault in PARALLEL for check in fault.checks})
FEWEST = 100
"""How many faults there are at least: one that is left out by mistake shows."""


@pytest.mark.parametrize("fault", PARALLEL, ids=lambda fault: fault.name)
def test_the_suites_kill(fault: Fault, record_property: Callable[[str, object], None]) -> None:
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
    checks = sorted({check for fault in PARALLEL if fault.isolated for check in fault.checks})
    assert checks
    assert judge_in_a_process("", checks) == {}


def test_there_are_enough_and_each_says_what_is_wrong() -> None:
    assert len({fault.name for fault in [*ALL, *PARALLEL]}) == len(ALL) + len(PARALLEL)
    assert len(PARALLEL) >= FEWEST
    for fault in PARALLEL:
        assert re.fullmatch(r"[A-Z].*[^.]\.", fault.wrong), fault.name
        assert fault.checks, fault.name
        assert len(set(fault.checks)) == len(fault.checks), fault.name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("InProcess: test_of_nothing", r"^<.*> has no check 'test_of_nothing'$"),
        ("verify: lenet-digits data:9@cpu", r"^a batch of 7 cannot be divided over 9 replicas: .*$"),
        ("verify --exact: lenet-digits data:2@moon", r"^scheme 'data:2@moon': no place 'moon'; there are cpu, .*$"),
        ("verify: lenett data:2@cpu", r"^no model 'lenett'.*$"),
    ],
)
def test_a_check_that_is_not_there_is_no_check(name: str, message: str) -> None:
    with pytest.raises((LookupError, GraphError, ValueError), match=message):
        find(name)()
