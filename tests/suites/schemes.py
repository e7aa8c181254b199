"""What is asked of a scheme: on a model, at a place, it has the serial run's tensors, and nothing else goes wrong."""

from __future__ import annotations

from purine_ref.conformance import exact_workload, parse_scheme, training_workload, verify

BATCH = 7
"""A batch that nothing divides."""

STEPS = 2
"""The second step starts from what the first one left."""


def agrees(model: str, scheme: str, *, exact: bool) -> None:
    """Every piece of every tensor agrees (rule R9); nothing races.

    To the bit where sums are `exact` (rule R10), else within its bound (rule R11).
    """
    workload = (exact_workload if exact else training_workload)(model, "float64", BATCH, STEPS, 1)
    [result] = verify(workload, [parse_scheme(scheme)], seed=1)
    assert result.verdict == "pass", result.first or result.verdict
