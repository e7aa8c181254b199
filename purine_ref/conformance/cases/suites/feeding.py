"""What whole networks are fed in cases: by the names and the uses of their source blobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from purine_ref.conformance.cases.case import Case
from purine_ref.conformance.cases.suites.drawing import draw, integers, links, real, whole
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Array
from purine_ref.optim import RATE
from purine_ref.parallel import Composed

LOSSES = ("SoftmaxCrossEntropy", "SquaredError")


def network_feed(graph: Graph, stream: str, rate: float = 0.125, exact: bool = False) -> dict[str, Array]:
    """Inputs, targets, labels and the rate of one iteration, by name. `exact` ones are small integers."""
    how = integers if exact else real
    feed = {}
    for blob in graph.blobs:
        if blob.producers or blob.persistent or blob.view is not None:
            continue
        if blob.name == RATE:
            feed[blob.name] = np.array(rate, blob.dtype)
        elif blob.tensor.is_float:
            feed[blob.name] = draw(f"{stream}/{blob.name}", blob.shape, blob.dtype, how)
        else:
            feed[blob.name] = draw(f"{stream}/{blob.name}", blob.shape, blob.dtype, whole(_classes(blob)))
    return feed


def network_start(graph: Graph, stream: str, exact: bool = False) -> dict[str, Array]:
    """Parameters before iteration 0: of a size that keeps values near 1, or -1, 0 and 1; histories are zeros."""
    start = {}
    for blob in graph.blobs:
        if not blob.persistent or blob.producers:
            continue
        if blob.name not in graph.multipliers:
            start[blob.name] = np.zeros(blob.shape, blob.dtype)
            continue
        drawn = draw(f"{stream}/{blob.name}", blob.shape, blob.dtype, links if exact else real)
        inputs = int(np.prod(blob.shape[1:]))
        start[blob.name] = drawn if exact else (drawn * _power_near(inputs**-0.5)).astype(blob.dtype)
    return start


def _power_near(x: float) -> float:
    """The power of two just above a positive number, times which nothing is rounded."""
    return float(np.ldexp(1.0, int(np.frexp(x)[1])))


def _classes(label: Blob) -> int:
    """The number of classes among which a label chooses: axis 1 of the logits that a loss reads with it."""
    return int(label.consumers[0][0].inputs[-2].shape[1])


def thinned(case: Case, whole: Collection[int] = (0,)) -> Case:
    """The case with fewer entries: all of the iterations `whole`, of the others what lasts, and losses.

    A first difference mostly shows in the first iteration; what goes wrong later shows in what is handed on.
    """
    graph = case.graph
    handed_on = {following.name for _, following in graph.pairs} | {b.name for b in graph.blobs if _is_loss(b)}
    kept = tuple(e for e in case.expected if e.iteration in whole or e.blob in handed_on)
    return replace(case, expected=kept)


def _is_loss(blob: Blob) -> bool:
    return any(op.operation.name in LOSSES for op, _ in blob.producers)


def in_pieces(composed: Composed, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays of the serial graph's blobs as those of the composed graph's pieces."""
    return {
        piece.blob.name: np.ascontiguousarray(array[tuple(slice(a, b) for a, b in piece.box)]) if piece.box else array
        for name, array in arrays.items()
        for piece in composed.pieces[name]
    }
