"""A graph's fingerprint: a SHA-256 of all that decides what it computes, for ranks to compare before they run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from purine_ref.graph import Blob, Graph, Op


def fingerprint(graph: Graph, *more: object) -> str:
    """64 hexadecimal digits, the same in every process, for equal graphs and equal `more`, such as the seed.

    Names, shapes, dtypes, places, views, operations with their attributes, edges in their order, swaps and initial
    values count; what was computed does not.
    """
    digest = hashlib.sha256()
    for line in _lines(graph, more):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _lines(graph: Graph, more: tuple[object, ...]) -> Iterator[str]:
    yield repr((graph.name, more))
    for blob in graph.blobs:
        yield repr(("blob", blob.name, blob.shape, blob.dtype, blob.location, blob.persistent, *_view(blob)))
    for op in graph.ops:
        yield repr(("op", op.name, op.operation, op.location, op.stream, *_ends(op)))
    for current, following in graph.pairs:
        yield repr(("swap", current.name, following.name))
    for name, operation in graph.initial.items():
        yield repr(("initial", name, operation))


def _view(blob: Blob) -> tuple[object, ...]:
    return () if blob.view is None else (blob.view.parent.name, blob.view.box, blob.view.shape)


def _ends(op: Op) -> tuple[list[str], list[str]]:
    return [blob.name for blob in op.inputs], [blob.name for blob in op.outputs]
