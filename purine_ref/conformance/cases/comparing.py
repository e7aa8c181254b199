"""`compare`: the results of a run against what a case expects, in topological order.

An element is right as `docs/porting/cases.md` says under "What is expected": within the bound; NaN for NaN; 0.0 and
-0.0 alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from purine_ref.conformance.cases.case import Case, Expected, Results
from purine_ref.graph import Graph
from purine_ref.operation import Array
from purine_ref.traversal import topological_order


@dataclass(frozen=True, slots=True)
class Finding:
    """One tensor that is not what it should be.

    `index` is the element that is furthest beyond its bound, with what came, `got`, what should have, `want`, the
    `bound`, and in how many elements the tensor is `wrong`. Where the tensor is not there, or of another shape or
    dtype, `index` is None and `problem` says so.
    """

    iteration: int
    blob: str
    index: tuple[int, ...] | None = None
    got: float = math.nan
    want: float = math.nan
    bound: float = 0.0
    wrong: int = 0
    problem: str = ""

    def __str__(self) -> str:
        place = f"iteration {self.iteration}, blob {self.blob!r}"
        if self.index is None:
            return f"{place}: {self.problem}"
        allowed = f"may be off by {self.bound:.6g}" if self.bound else "must be equal"
        return (
            f"{place}, element {list(self.index)}: got {self.got!r}, want {self.want!r}; {allowed} "
            f"({self.wrong} elements are wrong)"
        )


def compare(case: Case, results: Results) -> list[Finding]:
    """What is wrong with `results`, the first tensor in topological order first; nothing where all is right."""
    found = [find(entry, results.get((entry.iteration, entry.blob))) for entry in in_order(case)]
    return [finding for finding in found if finding is not None]


def in_order(case: Case) -> list[Expected]:
    """The entries by iteration, and in each in topological order: producers before what is computed from them."""
    place = _places(case.graph)
    return sorted(case.expected, key=lambda entry: (entry.iteration, place[entry.blob]))


def _places(graph: Graph) -> dict[str, int]:
    """For each blob the position of the last of its producers in topological order; source blobs are first."""
    place = {blob.name: -1 for blob in graph.blobs}
    for position, op in enumerate(topological_order(graph)):
        place |= {blob.name: position for blob in op.outputs}
    return place


def find(entry: Expected, got: Array | None) -> Finding | None:
    """What is wrong with one tensor, or None."""
    if got is None:
        return Finding(entry.iteration, entry.blob, problem=f"expected {_described(entry.value)}, got none")
    if (got.shape, got.dtype) != (entry.value.shape, entry.value.dtype):
        problem = f"expected {_described(entry.value)}, got {_described(got)}"
        return Finding(entry.iteration, entry.blob, problem=problem)
    wrong = np.argwhere(~right(entry, got))
    if not len(wrong):
        return None
    bound = np.broadcast_to(np.float64(0.0 if entry.bound is None else entry.bound), got.shape)
    places = [tuple(map(int, place)) for place in wrong]
    index = max(places, key=lambda place: _beyond(got[place], entry.value[place], float(bound[place])))
    ends = got[index].item(), entry.value[index].item(), float(bound[index])
    return Finding(entry.iteration, entry.blob, index, *ends, len(wrong))


def right(entry: Expected, got: Array) -> Array:
    """For each element of an array of the entry's shape and dtype, whether it is right."""
    want = entry.value
    same = (got == want) | ((got != got) & (want != want))
    if entry.exact:
        return np.asarray(same)
    with np.errstate(all="ignore"):
        off = np.abs(got.astype(np.float64) - want.astype(np.float64))
        near = off <= entry.bound  # bounds are finite: no infinity is near anything, and NaN is not
    return np.asarray(same | near)


def largest_ratio(entry: Expected, got: Array) -> float:
    """The largest |got - want| / bound of the tensor's elements; infinite where one that has no bound is wrong."""
    return max((_beyond(g, w, b) for g, w, b in _elements(entry, got)), default=0.0)


def _elements(entry: Expected, got: Array) -> zip[tuple[float, float, float]]:
    bound = np.broadcast_to(np.float64(0.0 if entry.bound is None else entry.bound), got.shape)
    return zip(got.ravel().tolist(), entry.value.ravel().tolist(), bound.ravel().tolist(), strict=True)


def _beyond(got: float, want: float, bound: float) -> float:
    """By how many times the bound an element is off. Exact for integers of any size."""
    got, want = (each.item() if isinstance(each, np.generic) else each for each in (got, want))
    if got == want or (got != got and want != want):
        return 0.0
    if not (math.isfinite(got) and math.isfinite(want)) or bound == 0:
        return math.inf
    return float(abs(got - want) / bound)


def _described(array: Array) -> str:
    return f"{array.dtype.name}{list(array.shape)}"
