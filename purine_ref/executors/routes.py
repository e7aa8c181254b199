"""What ranks in several processes send each other for one graph: its own messages, and those that keep them together.

Beside the crossing copies, whose tags are their indices, there are three kinds of messages between any two ranks. Their
tags follow: the end of a run, the heading of a fetch, and one tag for each kind of array that a fetch can bring. So an
array that is fetched needs no route of its own, and every rank finds the same tags by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from purine_ref.graph import Blob, Graph
from purine_ref.parallel.ranks import crosses
from purine_ref.tensor import Tensor
from purine_ref.transports import Route

END = Tensor((0,), "int64")
"""The end of a rank's part of a run: nothing but that it comes."""

HEADING = Tensor((2,), "int64")
"""What comes before an array that is fetched: the index of its blob; 1 where the array follows, 0 where it is gone."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The messages of one graph: `incoming` for each rank, and in `words` who waits for each (see `World.open`)."""

    end: int
    heading: int
    arrays: Mapping[Tensor, int]
    incoming: Sequence[Mapping[Route, Tensor]]
    words: Mapping[tuple[int, int, int], str]

    def array(self, blob: Blob) -> int:
        """The tag with which the array of a blob comes that is fetched."""
        return self.arrays[_anywhere(blob.tensor)]


def routes(graph: Graph, size: int) -> Routes:
    """The messages of `graph` among `size` ranks."""
    incoming: list[dict[Route, Tensor]] = [{} for _ in range(size)]
    words: dict[tuple[int, int, int], str] = {}
    for op in graph.ops:
        if crosses(op):
            (source,), (target,) = op.inputs, op.outputs
            ends = target.location.rank, source.location.rank
            incoming[ends[0]][ends[1], op.index] = target.tensor
            words[*ends, op.index] = f"operator {op.name!r} for blob {source.name!r}"
    end, heading = len(graph.ops), len(graph.ops) + 1
    arrays: dict[Tensor, int] = {}
    for blob in graph.blobs:
        arrays.setdefault(_anywhere(blob.tensor), heading + 1 + len(arrays))
    tensors = {end: END, heading: HEADING, **{tag: tensor for tensor, tag in arrays.items()}}
    waits = {end: "its end of the run", heading: "a fetch"}
    for rank in range(size):
        for peer in range(size):
            if peer != rank:
                incoming[rank] |= {(peer, tag): tensor for tag, tensor in tensors.items()}
                words |= {(rank, peer, tag): waits.get(tag, f"a fetch of {tensor}") for tag, tensor in tensors.items()}
    return Routes(end, heading, arrays, incoming, words)


def _anywhere(tensor: Tensor) -> Tensor:
    """The description without the place."""
    return Tensor(tensor.shape, tensor.dtype)
