"""`timeline`: a run as a drawing, with a row for each lane, such as a stream, along one axis of time."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from purine_ref.executors import Span

COLOURS = {"computes": "#0072B2", "copies": "#E69F00", "adds": "#009E73", "enqueues": "#999999"}
"""What a bar does, and its colour, of Okabe and Ito's, which people who are colour-blind can tell apart."""

_WIDTH, _LEFT, _MARGIN, _ROW, _BAR = 960.0, 150.0, 16.0, 34.0, 22.0
_LETTER = 6.2
"""Width of a letter, about: a name is written where it fits."""

_STYLE = """
svg { font-family: Verdana, 'DejaVu Sans', 'Segoe UI', Helvetica, Arial, sans-serif }
text { fill: #1c2733; font-size: 11px }
.title { font-size: 16px; font-weight: bold }
.lane { text-anchor: end }
.tick { text-anchor: middle; fill: #45566a }
.grid { stroke: #dfe4ea; stroke-width: 1 }
.name { fill: #fff; font-size: 10px; text-anchor: middle }
.wide { stroke: #fff; stroke-width: 0.8 }
"""


def timeline(
    spans: Iterable[Span],
    title: str,
    *,
    copies: Collection[str] = (),
    adds: Collection[str] = (),
    enqueued: Iterable[Span] = (),
) -> str:
    """Spans as SVG text: a row for each lane in alphabetical order, time to the right, from the first start.

    What is among `copies` is orange, what is among `adds` green, all else blue; a bar has its operator and its times as
    a tooltip, and its operator as text where there is room. What a host `enqueued`, grey, has a row above the others.
    Self-contained, without scripts or foreign fonts.
    """
    host = list(enqueued)
    found = sorted([*spans, *host], key=lambda span: (span.start, span.lane, span.op))
    first = sorted({span.lane for span in host})
    lanes = [*first, *sorted({span.lane for span in found}.difference(first))]
    begin = min((span.start for span in found), default=0.0)
    length = max((span.end for span in found), default=0.0) - begin or 1e-9
    top = 2 * _MARGIN + 34
    height = top + len(lanes) * _ROW + 2 * _MARGIN + 14
    root = Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {_WIDTH:g} {height:g}", width=f"{_WIDTH:g}",
                   height=f"{height:g}", role="img")  # fmt: skip
    SubElement(root, "title").text = title
    SubElement(root, "style").text = _STYLE
    SubElement(root, "rect", width="100%", height="100%", fill="#fff")
    _text(root, _MARGIN, _MARGIN + 12, title, "title")
    _legend(root)
    _axis(root, length, top, len(lanes))
    for row, lane in enumerate(lanes):
        _text(root, _LEFT - 8, top + row * _ROW + _BAR / 2 + 4, lane, "lane")
    scale = (_WIDTH - _LEFT - _MARGIN) / length
    for span in found:
        kind = "enqueues" if span.lane in first else "copies" if span.op in copies else "computes"
        colour = COLOURS["adds" if kind == "computes" and span.op in adds else kind]
        at = _LEFT + (span.start - begin) * scale, top + lanes.index(span.lane) * _ROW
        root.append(_bar(span, at, max((span.end - span.start) * scale, 1.0), colour, begin))
    ElementTree.indent(root, " ")
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _bar(span: Span, at: tuple[float, float], width: float, colour: str, begin: float) -> Element:
    """One span."""
    group = Element("g")
    start, end = ((when - begin) * 1e6 for when in (span.start, span.end))
    SubElement(group, "title").text = f"{span.op}: {start:.0f} to {end:.0f} microseconds"
    x, y = at
    where = {"x": f"{x:.2f}", "y": f"{y:.2f}", "width": f"{width:.2f}", "height": f"{_BAR:g}"}
    SubElement(group, "rect", {**where, "fill": colour, "class": "wide" if width > 3 else "narrow"})
    if len(span.op) * _LETTER < width:
        _text(group, x + width / 2, y + _BAR / 2 + 4, span.op, "name")
    return group


def _axis(root: Element, length: float, top: float, rows: int) -> None:
    """Lines at round times."""
    step = _step(length)
    for number in range(math.floor(length / step) + 1):
        x = _LEFT + number * step / length * (_WIDTH - _LEFT - _MARGIN)
        SubElement(root, "line", {"class": "grid", "x1": f"{x:.2f}", "x2": f"{x:.2f}", "y1": f"{top - 6:g}",
                                  "y2": f"{top + rows * _ROW:g}"})  # fmt: skip
        _text(root, x, top + rows * _ROW + 14, f"{number * step * 1e3:.10g} ms", "tick")


def _step(length: float) -> float:
    """The least of 1, 2 and 5 times a power of 10 that divides `length` into 8 steps or fewer."""
    power = 10.0 ** math.floor(math.log10(length / 8))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * 8 >= length)


def _legend(root: Element) -> None:
    x = _MARGIN
    for word, colour in COLOURS.items():
        SubElement(root, "rect", x=f"{x:g}", y=f"{_MARGIN + 22:g}", width="12", height="12", fill=colour)
        _text(root, x + 17, _MARGIN + 32, word, "entry")
        x += 34 + len(word) * _LETTER


def _text(parent: Element, x: float, y: float, text: str, kind: str) -> None:
    SubElement(parent, "text", {"x": f"{x:.2f}", "y": f"{y:.2f}", "class": kind}).text = text
