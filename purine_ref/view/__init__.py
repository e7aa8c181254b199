"""A graph or a run to look at: text, DOT, SVG and JSON of a graph, and a trace of a run. Nothing here changes a graph.

All are deterministic functions of the graph alone, linear in it, and without recursion.
"""

from __future__ import annotations

from purine_ref.view.describe import blob_to_json, location_to_json, operation_to_json, to_json
from purine_ref.view.dot import dot
from purine_ref.view.streams import Clock, GpuClock, StreamRecorder
from purine_ref.view.svg import svg
from purine_ref.view.text import text
from purine_ref.view.timeline import timeline
from purine_ref.view.trace import TraceRecorder, chrome_trace

__all__ = [
    "Clock",
    "GpuClock",
    "StreamRecorder",
    "TraceRecorder",
    "blob_to_json",
    "chrome_trace",
    "dot",
    "location_to_json",
    "operation_to_json",
    "svg",
    "text",
    "timeline",
    "to_json",
]
