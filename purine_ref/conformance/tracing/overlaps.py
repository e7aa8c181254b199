"""Which blobs share memory through declared views: for each, the others that it overlaps. A function; no state."""

from __future__ import annotations

from collections import defaultdict

from purine_ref.graph import Blob, Graph
from purine_ref.hazards import Region, regions


def overlaps(graph: Graph) -> list[list[int]]:
    """For each blob of a graph, the indices of the others that share an element with it; empty where there are none.

    Raises ValueError where a strided part is seen in another shape, which would be a copy.
    """
    found: list[list[int]] = [[] for _ in graph.blobs]
    views = {blob: blob.view for blob in graph.blobs if blob.view is not None}
    groups: dict[Blob, list[tuple[Blob, Region]]] = defaultdict(list)
    for blob, region in regions(graph, views).items():
        groups[region.root].append((blob, region))
    for group in groups.values():
        _overlaps_in(group, found)
    return found


def _overlaps_in(group: list[tuple[Blob, Region]], found: list[list[int]]) -> None:
    """Compare those of one memory whose flat intervals meet, which a walk in the order of their starts finds."""
    group.sort(key=lambda member: member[1].interval)
    open_ones: list[tuple[Blob, Region]] = []
    for blob, region in group:
        open_ones = [(other, place) for other, place in open_ones if place.interval[1] > region.interval[0]]
        for other, place in open_ones:
            if region.overlaps(place):
                found[blob.index].append(other.index)
                found[other.index].append(blob.index)
        open_ones.append((blob, region))
