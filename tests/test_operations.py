"""Every operation that the package exports, through the operations' suite."""

from __future__ import annotations

from operation_cases import ALL
from suites.operations import OperationContract

from purine_ref import ops


class TestOperations(OperationContract):
    cases = ALL


def test_every_operation_has_a_case() -> None:
    assert {case.operation.name for case in ALL} == set(ops.__all__)
    names = [case.name for case in ALL]
    assert len(set(names)) == len(names)
