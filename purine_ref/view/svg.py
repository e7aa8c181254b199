"""`svg`: a graph as a drawing for people, in one self-contained SVG file without scripts or foreign fonts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from purine_ref.graph import Graph, Op
from purine_ref.tensor import Location
from purine_ref.view.legend import LINE, Entry, entries, flow
from purine_ref.view.parts import TINTS, place_colours, place_of, printable, summary
from purine_ref.view.picture import HEIGHT, Mark, Stroke, compose, line_spans

_MARGIN = 24.0
_LEAST_WIDTH = 640.0
_AROUND = 14.0
"""How far the ground of a place reaches beyond what is at the place."""

_STYLE = """
svg { font-family: Verdana, 'DejaVu Sans', 'Segoe UI', Helvetica, Arial, sans-serif }
text { fill: #1c2733; text-anchor: middle }
.legend > text { text-anchor: start; font-size: 11px }
.legend > .title { font-size: 16px; font-weight: bold }
.scope { fill: #68778a }
.detail { fill: #45566a }
.blob ellipse, .blob rect { fill: #fff; stroke-width: 1.2 }
.operator rect { stroke-width: 1.4 }
.persistent ellipse { stroke-width: 2.6 }
.again ellipse { stroke-dasharray: 4 3 }
.band text { font-size: 14px; font-weight: bold; fill: inherit }
.edge { fill: none; stroke: #56657a; stroke-width: 1.2; marker-end: url(#near) }
.across { stroke: #aab5c3; marker-end: url(#far) }
.moving { stroke: #1c2733; stroke-width: 2.4; marker-end: url(#near) }
"""


def svg(graph: Graph, *, compress: bool = True) -> str:
    """The graph as SVG text: rounded boxes for operators, ellipses for blobs, the border in the colour of the place.

    Compressed, the forward part is on the left, running down; its gradient beside it, running up; updates on the right.
    Names are short under their scope, the commonest dtype is left out, and a source that is read in many rows, such as
    a learning rate, is shown again where it is read. Otherwise all runs down, under full names.

    Raises CycleError for a cyclic graph, and ModuleNotFoundError, saying what to install, where igraph is missing.
    """
    picture = compose(graph, compress=compress)
    colours = place_colours(graph)
    lines = flow(entries(graph, picture, colours), max(picture.width, _LEAST_WIDTH))
    header = (len(lines) + 1 + bool(picture.bands)) * LINE + 2 * _MARGIN
    width = max(picture.width, _LEAST_WIDTH) + 2 * _MARGIN
    root = _document(graph, width, header + picture.height + _MARGIN)
    root.append(_legend(graph, lines))
    body = SubElement(root, "g", transform=f"translate({_n(_MARGIN)} {_n(header)})")
    body.extend([_band(*band, picture.height, colours) for band in picture.bands.items()])
    body.extend([_path(stroke) for stroke in sorted(picture.strokes, key=lambda stroke: not stroke.across)])
    body.extend([_group(mark, colours) for mark in picture.marks])
    ElementTree.indent(root, " ")
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _document(graph: Graph, width: float, height: float) -> Element:
    size = {"viewBox": f"0 0 {_n(width)} {_n(height)}", "width": _n(width), "height": _n(height)}
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size})
    SubElement(root, "title").text = printable(graph.name)
    SubElement(root, "style").text = _STYLE
    definitions = SubElement(root, "defs")
    for name, colour in (("near", "#56657a"), ("far", "#aab5c3")):
        box = {"viewBox": "0 0 8 8", "refX": "7.5", "refY": "4", "markerWidth": "8.4", "markerHeight": "8.4"}
        looks = {"id": name, "orient": "auto", "markerUnits": "userSpaceOnUse", **box}
        marker = SubElement(definitions, "marker", looks)
        SubElement(marker, "path", d="M0 0.8 L8 4 L0 7.2 z", fill=colour)
    SubElement(root, "rect", width="100%", height="100%", fill="#fff")
    return root


def _legend(graph: Graph, lines: list[list[tuple[float, Entry]]]) -> Element:
    group = Element("g", {"class": "legend", "transform": f"translate({_n(_MARGIN)} {_n(_MARGIN)})"})
    SubElement(group, "text", {"class": "title", "y": "12"}).text = f"{printable(graph.name)}: {summary(graph)}"
    for number, line in enumerate(lines, 1):
        for x, entry in line:
            middle = 12 + number * LINE - 4
            if entry.role:
                group.append(_swatch(entry, x, middle))
            words = SubElement(group, "text", x=_n(x + entry.indent), y=_n(middle + 4))
            words.text = entry.text
    return group


def _band(place: Location, sides: tuple[float, float], height: float, colours: Mapping[Location, str]) -> Element:
    """The part of the drawing that is at one place: a tinted ground under its name."""
    left, right = sides[0] - _AROUND, sides[1] + _AROUND
    group = Element("g", {"class": "band"})
    size = {"width": _n(right - left), "height": _n(height + 2 * _AROUND + LINE)}
    corner = {"x": _n(left), "y": _n(-_AROUND - LINE), "rx": "10"}
    SubElement(group, "rect", {**corner, **size, "fill": colours[place], "fill-opacity": "0.07"})
    name = {"x": _n((left + right) / 2), "y": _n(-_AROUND - 6), "fill": colours[place]}
    SubElement(group, "text", name).text = str(place)
    return group


def _swatch(entry: Entry, x: float, middle: float) -> Element:
    """A small mark that shows what a look means."""
    group = Element("g", {"class": entry.role})
    if entry.role.startswith("blob"):
        shape = {"cx": _n(x + 11), "cy": _n(middle), "rx": "11", "ry": "7"}
        SubElement(group, "ellipse", {**shape, "stroke": entry.stroke})
    else:
        shape = {"x": _n(x), "y": _n(middle - 7), "width": "22", "height": "14", "rx": "4"}
        SubElement(group, "rect", {**shape, "fill": entry.fill, "stroke": entry.stroke})
    return group


def _path(stroke: Stroke) -> Element:
    """A curve that leaves and enters upright, so that it stays in the gap between two rows; straight through a row."""
    points = stroke.points
    parts = [f"M{_n(points[0][0])} {_n(points[0][1])}"]
    for number, ((x0, y0), (x1, y1)) in enumerate(pairwise(points)):
        if number % 2:
            parts.append(f"V{_n(y1)}")
        else:
            bend = (y0 + y1) / 2 if y0 != y1 else y0 + HEIGHT / 2  # within one row: down into the gap and back
            parts.append(f"C{_n(x0)} {_n(bend)} {_n(x1)} {_n(bend)} {_n(x1)} {_n(y1)}")
    moving = stroke.edge.tail.location != stroke.edge.head.location
    roles = ["edge", *["across"] * stroke.across, *["moving"] * moving]
    path = Element("path", {"class": " ".join(roles), "d": "".join(parts)})
    SubElement(path, "title").text = f"{_titled(stroke.edge.tail)} → {_titled(stroke.edge.head)}"
    return path


def _titled(node: object) -> str:
    return f"({node.name})" if isinstance(node, Op) else getattr(node, "name", "")


def _group(mark: Mark, colours: Mapping[Location, str]) -> Element:
    """A node with its label; its full description shows when a pointer rests on it."""
    node = mark.node
    stroke = colours[node.location]
    if isinstance(node, Op):
        group = Element("g", {"class": "operator"})
        SubElement(group, "title").text = printable(f"{node.name}: {node.operation!r} at {place_of(node)}")
        corner = {"x": _n(mark.x - mark.width / 2), "y": _n(mark.y - HEIGHT / 2), "rx": "8"}
        size = {"width": _n(mark.width), "height": _n(HEIGHT)}
        SubElement(group, "rect", {**corner, **size, "fill": TINTS[mark.kind], "stroke": stroke})
    else:
        roles = ["blob", *["persistent"] * node.persistent, *["again"] * mark.again]
        group = Element("g", {"class": " ".join(roles)})
        SubElement(group, "title").text = f"{node.name}: {node.tensor} at {node.location}"
        radii = {"rx": _n(mark.width / 2), "ry": _n(HEIGHT / 2)}
        SubElement(group, "ellipse", {"cx": _n(mark.x), "cy": _n(mark.y), **radii, "stroke": stroke})
    for line, (_, bottom) in zip(mark.lines, line_spans(mark.lines), strict=True):
        baseline = mark.y + bottom - 0.2 * line.size
        attributes = {"class": line.role, "x": _n(mark.x), "y": _n(baseline), "font-size": _n(line.size)}
        SubElement(group, "text", attributes).text = line.text
    return group


def _n(number: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{number:.1f}".removesuffix(".0")
