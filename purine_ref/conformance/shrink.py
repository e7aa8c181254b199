"""Joint shrinking: of a failing example, the graph, the composition, the schedule and the inputs get smaller together.

A greedy search in the manner of delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing
Input", IEEE TSE 28, 2002): *reductions* propose examples with something left out or made smaller, and one that still
fails in the same way takes the place of the example; until no reduction helps. A run that fails only now and then, as
on threads, is tried several times before it counts as passing.

The result is one JSON file that anyone can replay: `save` writes it, `replay` checks what it holds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from purine_ref.conformance.checking import Verdict, check_example
from purine_ref.conformance.examples import Example, from_json, to_json
from purine_ref.conformance.networks import composed_graph
from purine_ref.conformance.reductions import reductions
from purine_ref.errors import PurineError, Refused

SCHEMA = "purine-ref/failure/1"
"""The version of a failure's file."""

Check = Callable[[Example], Verdict]
"""What decides whether an example fails: `check_example`, or that with a judge."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest failing example found, its verdict, and how many examples were tried."""

    example: Example
    verdict: Verdict
    tried: int

    @property
    def operators(self) -> int:
        """Operators of the composed graph."""
        return self.verdict.operators


def shrink(example: Example, check: Check = check_example, *, attempts: int = 1, seconds: float = 120.0) -> Shrunk:
    """The smallest example found that fails as `example` does, within about so many seconds.

    `attempts` is how often an example is tried before it counts as passing. Raises ValueError when `example` itself
    does not fail.
    """
    search = _Search(check, attempts, time.monotonic() + seconds)
    verdict = search.failure(example)
    if verdict is None:
        raise ValueError("there is nothing to shrink: the example does not fail")
    search.kind = verdict.kind
    shrunk = True
    while shrunk:
        shrunk = False
        for candidate in reductions(example, verdict):
            smaller = search.failure(candidate)
            if smaller is not None:
                example, verdict, shrunk = candidate, smaller, True
                break
    return Shrunk(example, verdict, search.tried)
