"""What `purine-ref verify` says of divided schemes: refusals before anything runs, and elements that stay unknown."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from purine_ref import cli
from purine_ref.conformance import Comparison, Scheme


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit code, the output and the errors of a call in this process."""
    code = cli.run(["verify", *arguments])
    return code, *capsys.readouterr()


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were verified; nothing is run, and each scheme has three unknown elements."""
    models: list[str] = []

    def noted(workload: Any, schemes: Sequence[Scheme], seed: int, progress: Callable[[Any], None]) -> list[Comparison]:
        models.append(workload.model)
        counts = {"operators": 1, "compared": 1, "differing": 5, "bounded": True, "ratio": 0.5, "kinks": 2}
        return [Comparison(s.text, workload.model, workload.dtype, **counts, unknown=1234) for s in schemes]  # type: ignore[arg-type]

    monkeypatch.setattr(importlib.import_module("purine_ref.cli.jobs"), "verify", noted)
    return models


def test_a_scheme_that_fits_not_all_models_is_refused_before_the_first_is_run(
    verified: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The first has layers enough for so many stages."""
    code, out, err = called(capsys, "--model", "nin-digits", "--model", "lenet-digits", "--scheme", "pipeline:25x2")
    assert (code, out, verified) == (2, "", [])
    assert "too few for 25 stages" in err


def test_elements_that_were_not_compared_are_told(verified: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capsys, "--model", "mlp-digits", "--dtype", "float32", "--scheme", "data:2")
    assert (code, verified) == (0, ["mlp-digits"])
    told = (
        "data:2 mlp-digits float32: 1,234 elements depend on a kink that was decided otherwise, and were not compared"
    )
    assert told in out.splitlines()
