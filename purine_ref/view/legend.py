"""The legend of an SVG: what its looks mean, as entries that flow into lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from purine_ref.graph import Blob, Graph
from purine_ref.tensor import Location
from purine_ref.view.parts import TINTS, byte_size
from purine_ref.view.picture import Picture, text_width

LINE = 24.0
"""The height of a line of the legend."""

_SIZE = 11.0
_BETWEEN = 22.0
_GREY = "#56657a"


@dataclass(frozen=True, slots=True)
class Entry:
    """Some words, after a swatch of the class `role` where there is one."""

    text: str
    role: str = ""
    fill: str = "#fff"
    stroke: str = _GREY

    @property
    def indent(self) -> float:
        """Where the words start."""
        return 29.0 if self.role else 0.0

    @property
    def width(self) -> float:
        """The width of swatch and words."""
        return self.indent + text_width(self.text, _SIZE)


def entries(graph: Graph, picture: Picture, colours: Mapping[Location, str]) -> list[Entry]:
    """Only what occurs: kinds of operators, sorts of blobs, places with their memory, the dtype that is left out."""
    kinds = {mark.kind for mark in picture.marks if not isinstance(mark.node, Blob)}
    found = [Entry(kind, "operator", fill) for kind, fill in TINTS.items() if kind in kinds]
    found.append(Entry("blob", "blob"))
    if any(blob.persistent for blob in graph.blobs):
        found.append(Entry("kept between runs", "blob persistent"))
    if any(mark.again for mark in picture.marks):
        found.append(Entry("shown again", "blob again"))
    bytes_at = graph.memory()
    for place, colour in colours.items():
        found.append(Entry(f"{place}, {byte_size(bytes_at.get(place, 0))}", "operator", "#fff", colour))
    if picture.usual:
        found.append(Entry(f"{picture.usual} unless marked"))
    return found


def flow(found: Iterable[Entry], width: float) -> list[list[tuple[float, Entry]]]:
    """The entries in lines of at most `width`, each with its x."""
    lines: list[list[tuple[float, Entry]]] = [[]]
    x = 0.0
    for entry in found:
        if x > 0 and x + entry.width > width:
            lines.append([])
            x = 0.0
        lines[-1].append((x, entry))
        x += entry.width + _BETWEEN
    return lines
