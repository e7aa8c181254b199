"""Traces: what a dispatcher did, in which order, written as lines, and judged against a graph.

The format is `docs/porting/traces.md`. `TraceWriter` is an observer that writes it, `judge_trace` the judge, and
`merge_traces` makes one trace of those of several ranks.
"""

from purine_ref.conformance.tracing.judging import Verdict, judge_trace
from purine_ref.conformance.tracing.merging import merge_traces
from purine_ref.conformance.tracing.recorder import TraceWriter
from purine_ref.conformance.tracing.structure import Structure, read_structure, structure_of

__all__ = ["Structure", "TraceWriter", "Verdict", "judge_trace", "merge_traces", "read_structure", "structure_of"]
