"""Fetching the next batch beside the run: two graphs that alternate over one memory (rule R6).

The fetching graph copies what is fed to it, in each place's CPU memory, to where the network reads it; after its run
the network's blobs and these are swapped. Start the network, feed and start the fetching graph, wait for the network,
then for the fetching graph: its run hides behind the network's.
"""

from __future__ import annotations

from collections.abc import Sequence

from purine_ref.graph import Blob, Graph
from purine_ref.operation import Array
from purine_ref.ops import Copy, Identity
from purine_ref.parallel.composition import Composed
from purine_ref.parallel.pieces import Piece, whole
from purine_ref.tensor import CPU, Location


def prefetch(graph: Graph, names: Sequence[str]) -> Graph:
    """The graph that fetches the blobs `names` of `graph`, which become persistent, so executors made later share them.

    { <blob>/incoming, on the CPU } >> Copy >> { <blob>/following }, swapped with { <blob> }; one for each piece where
    `graph` is composed and `names` are the serial graph's. Raises GraphError for a blob that there is not.
    """
    fetch = Graph(f"{graph.name}/prefetch")
    for piece in (piece for name in names for piece in _pieces(graph, name)):
        blob = piece.blob
        blob.persistent = True
        current = fetch.blob(blob.name, blob.shape, blob.dtype, blob.location, persistent=True)
        host = Location(blob.location.rank, CPU)
        arrived = fetch.blob(f"{blob.name}/incoming", blob.shape, blob.dtype, host)
        following = fetch.blob(f"{blob.name}/following", blob.shape, blob.dtype, blob.location)
        if host == blob.location:
            fetch.connect([arrived], Identity(), [following])
        else:
            fetch.connect([arrived], Copy(blob.location), [following], location=blob.location, stream="inbound")
        fetch.swap(current, following)
    return fetch


def incoming(graph: Graph, **arrays: Array) -> dict[str, Array]:
    """What to feed the fetching graph of `graph`, from arrays by the serial graph's names."""
    return {
        f"{piece.blob.name}/incoming": array[tuple(slice(start, stop) for start, stop in piece.box)]
        for name, array in arrays.items()
        for piece in _pieces(graph, name)
    }


def _pieces(graph: Graph, name: str) -> list[Piece]:
    if isinstance(graph, Composed):
        graph.serial[name]  # an unknown name is refused with the serial graph's names
        return graph.pieces[name]
    blob: Blob = graph[name]
    return [Piece(whole(blob), blob.location, blob)]
