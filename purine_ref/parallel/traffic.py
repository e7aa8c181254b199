"""What a graph moves between places in one run, counted from its own copies."""

from __future__ import annotations

from dataclasses import dataclass

from purine_ref.graph import Graph
from purine_ref.ops import Copy
from purine_ref.tensor import Location


@dataclass(frozen=True, slots=True)
class Transfer:
    """One copy: which blob, from where to where, and its size in bytes."""

    blob: str
    source: Location
    target: Location
    bytes: int


def transfers(graph: Graph) -> list[Transfer]:
    """Every copy of a graph that moves data to another place, in the order of their making."""
    return [
        Transfer(op.inputs[0].name, op.inputs[0].location, op.outputs[0].location, op.inputs[0].tensor.nbytes)
        for op in graph.ops
        if isinstance(op.operation, Copy) and op.inputs[0].location != op.outputs[0].location
    ]


def moved(graph: Graph) -> dict[tuple[Location, Location], int]:
    """Bytes that one run moves, for each pair of places (from, to)."""
    total: dict[tuple[Location, Location], int] = {}
    for transfer in transfers(graph):
        pair = (transfer.source, transfer.target)
        total[pair] = total.get(pair, 0) + transfer.bytes
    return total
