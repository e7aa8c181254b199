"""In which order blobs lie in memory: the device's own, but for what a declared view sees in another shape.

A device may keep 4-D arrays channels-last. Such memory cannot be seen as another shape, as a reshape means C order. So
what a declared view reshapes stays in C order, and where nothing is declared, Reshape copies (`hazards.place_views`).
Values do not depend on the order, nor do bits (rule R8).
"""

from __future__ import annotations

from collections.abc import Callable

from purine_ref.devices import Device
from purine_ref.errors import GraphError
from purine_ref.graph import Blob, Graph, View
from purine_ref.tensor import Location


def reorders(blob: Blob, devices: Callable[[Location], Device]) -> bool:
    """Whether the device of `blob` keeps such an array in another order than C; no where there is no device."""
    if len(blob.shape) < 2:
        return False
    try:
        return devices(blob.location).reorders(blob.tensor)
    except GraphError:  # `prepare` reports it
        return False


def row_major(graph: Graph, views: dict[Blob, View]) -> frozenset[Blob]:
    """The roots that must lie in C order: those of reshaping views, and what swaps its array with such a one."""
    found: set[Blob] = set()
    for view in views.values():
        if view.shape != tuple(stop - start for start, stop in view.box):
            root = view.parent
            while root in views:
                root = views[root].parent
            found.add(root)
    for pair in graph.pairs:
        if not found.isdisjoint(pair):
            found.update(pair)
    return frozenset(found)
