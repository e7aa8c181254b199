"""What a drawn graph is fed: small integers, so that sums are exact (rule R10), or Gaussian numbers.

A source's *role* says what it takes: `input` and `weight`, `history`, `squares` (not negative), `rate`, `mask` (0 and
1), `label:K` (below K).
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np

from purine_ref.conformance.cases.case import Case
from purine_ref.conformance.driving.drawing import DrawnGraph
from purine_ref.conformance.driving.solving import Solved, Unjudged, solve
from purine_ref.graph import Blob
from purine_ref.operation import Array

TRIES = 4
"""How often values are drawn anew before a graph is given up."""

LINKS = 3
"""How many weights of a row are not 0, on average, where sums are to be exact."""


def fill(drawn: DrawnGraph, rng: random.Random, name: str, *, exact: float = 0.7) -> Solved | None:
    """A case of the graph, with what it must give; None where no draw of values can be judged.

    Of all cases a share `exact` gets integers. A case runs several times where it has pairs to exchange.
    """
    integers = rng.random() < exact and not drawn.fanned
    iterations = rng.randint(1, 3) if drawn.graph.pairs else rng.choice((1, 1, 2))
    seed = rng.randrange(2**16)
    for attempt in range(TRIES):
        if attempt == TRIES - 1:
            iterations = 1
        fed = _Values(drawn, integers, seed + attempt)
        initial = {b.name: fed.array(b, -1) for b in drawn.graph.blobs if b.persistent and not b.producers}
        feeds = tuple(fed.feeds(iteration) for iteration in range(iterations))
        case = Case(name, "drawn at random", seed, drawn.graph, initial, feeds, ())
        try:
            with np.errstate(all="ignore"):
                solved = solve(case)
        except Unjudged:
            continue
        if _finite(solved):
            return solved
    return None


def _finite(solved: Solved) -> bool:
    """Whether no float has overflowed, in no iteration."""
    return all(np.isfinite(a).all() for values in solved.after for a in values.values() if a.dtype.kind == "f")


class _Values:
    """The values of one attempt: a function of the seed, of a blob's name, and of the iteration."""

    def __init__(self, drawn: DrawnGraph, integers: bool, seed: int) -> None:
        self.drawn = drawn
        self.integers = integers
        self.seed = seed

    def feeds(self, iteration: int) -> Mapping[str, Array]:
        """What is fed before a run."""
        fed = [b for b in self.drawn.graph.blobs if not b.producers and not b.persistent and b.view is None]
        return {blob.name: self.array(blob, iteration) for blob in fed}

    def array(self, blob: Blob, iteration: int) -> Array:
        """One source's values."""
        rng = np.random.default_rng([self.seed, iteration + 1, *blob.name.encode()])
        role = self.drawn.roles.get(blob.name, "input")
        if role.startswith("label:"):
            return rng.integers(0, int(role[6:]), blob.shape)
        values: Array
        if role == "mask":
            values = np.asarray(rng.integers(0, 2, blob.shape))
        elif role == "rate":
            values = np.array(1.0 if self.integers else 0.25 / (iteration + 2))
        elif self.integers:
            values = self._integers(rng, blob, role)
        else:
            values = rng.standard_normal(blob.shape)
        return (np.abs(values) if role == "squares" else values).astype(blob.dtype)

    def _integers(self, rng: np.random.Generator, blob: Blob, role: str) -> Array:
        if role != "weight":
            return rng.integers(-3, 4, blob.shape)
        row = max(1, blob.tensor.size // max(1, blob.shape[0] if blob.shape else 1))
        signs = rng.integers(0, 2, blob.shape) * 2 - 1
        return signs * (rng.random(blob.shape) < LINKS / row)
