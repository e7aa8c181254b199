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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from purine_ref.conformance.checking import Verdict, check_example
from purine_ref.conformance.examples import Example, from_json, to_json
from purine_ref.conformance.networks import composed_graph
from purine_ref.conformance.reductions import REDUCTIONS, Reduction
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
    search.signature = signature(verdict)
    before = None
    while example != before:
        before = example
        for reduction in REDUCTIONS:
            example, verdict = search.reduced(example, verdict, reduction)
    return Shrunk(example, verdict, search.tried)


def signature(verdict: Verdict) -> str:
    """The sort of failure, and of an error the class: what must stay the same while an example shrinks."""
    return f"{verdict.kind} {verdict.reason.partition(':')[0]}" if verdict.kind == "error" else verdict.kind


class _Search:
    """One call of `shrink`: what was tried, and until when."""

    def __init__(self, check: Check, attempts: int, deadline: float) -> None:
        self.signature: str | None = None
        self.tried = 0
        self._check = check
        self._attempts = attempts
        self._deadline = deadline
        self._seen: set[Example] = set()

    def reduced(self, example: Example, verdict: Verdict, reduction: Reduction) -> tuple[Example, Verdict]:
        """The example after as many proposals of one reduction as still fail."""
        going_on = True
        while going_on:
            going_on = False
            for candidate in reduction(example, verdict):
                smaller = self.failure(candidate)
                if smaller is not None:
                    example, verdict, going_on = candidate, smaller, True
                    break
        return example, verdict

    def failure(self, example: Example) -> Verdict | None:
        """The verdict of an example that has not been tried and that fails in the right way; else None."""
        if example in self._seen or time.monotonic() > self._deadline:
            return None
        self._seen.add(example)
        for _ in range(self._attempts):
            self.tried += 1
            try:
                verdict = self._check(example)
            except PurineError:  # it cannot be built, or the serial graph itself cannot be run
                return None
            if verdict.outcome == "fail" and self.signature in (None, signature(verdict)):
                return verdict
        return None


# Files ----------------------------------------------------------------------------------------------------------------


def save(path: Path, shrunk: Shrunk) -> dict[str, Any]:
    """Write a failure to a JSON file; returns what was written.

    Beside the example it holds what a reader wants to know: the verdict, the operators of the composed graph, and the
    command that replays it.
    """
    graph = composed_graph(shrunk.example)
    data = {
        "schema": SCHEMA,
        "command": f"purine-ref verify --replay {path}",
        "verdict": asdict(shrunk.verdict),
        "operators": [op.describe() for op in graph.ops],
        "tried": shrunk.tried,
        "example": to_json(shrunk.example),
    }
    path.write_text(json.dumps(data, indent=2) + "\n", "utf-8")
    return data


def load(path: Path) -> Example:
    """The example in a failure's file, or in a file that holds an example alone.

    Raises Refused for another file, OSError for one that cannot be read.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise Refused(f"{path}: not JSON: {error}") from None
    if isinstance(data, dict) and data.get("schema") == SCHEMA:
        data = data.get("example")
    try:
        return from_json(data)
    except Refused as error:
        raise Refused(f"{path}: {error}") from None


def replay(path: Path, check: Check = check_example) -> Verdict:
    """Check the example in a file again: what `purine-ref verify --replay FILE` does. Raises as `load` and `check`."""
    return check(load(path))
