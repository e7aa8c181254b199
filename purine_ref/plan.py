"""From a graph to a plan: every check that needs the whole graph, and the graph as flat lists of integers.

`prepare` finds every fault at once and raises one error that lists them. A `Plan` is frozen; it holds what no run
changes: the edge counts of rule R2, the topological order, the views of rule R5. Schedules and executors read it.
Nothing here holds an array of a blob.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from purine_ref._fast import Edges
from purine_ref.devices import Device, device_for
from purine_ref.errors import GraphError
from purine_ref.graph import Blob, Graph, Op, View
from purine_ref.hazards import HazardCheck, moves_nothing, place_views, regions
from purine_ref.memory_order import reorders, row_major
from purine_ref.tensor import Location
from purine_ref.traversal import Flat, flatten, order_of


class Place(NamedTuple):
    """Something that needs memory: a root blob, or what `edge`, (operator, slot), adds to a blob (rule R4)."""

    blob: int
    edge: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Sharing:
    """Who shares memory with others: the offset of each, in an array of so many `bytes` at its location."""

    offsets: dict[Place, int]
    bytes: dict[Location, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """A graph that passed every check, flattened. Operators and blobs are named by their index in the graph.

    `inputs[op]` and `outputs[op]` are blob indices, one an edge. `producers[blob]` counts its producing edges;
    `consumers[blob]` lists an operator for each consuming edge, so twice where it is wired twice. `waiting[op]` counts
    the input edges that are not satisfied when a run starts, and `first` are the operators where that is 0, in the
    order of their making. `external` operators have one more such edge, from outside the graph, which is counted too.
    `idle` operators move nothing, since their blobs are views of each other. `row_major` are the blobs whose memory
    must be in C order, whatever the device prefers. `edges` are the counts and lists above, as the readiness tracker
    reads them. `sharing` is None where every blob has memory of its own (see `lifetimes`).
    """

    graph: Graph
    order: tuple[int, ...]
    inputs: Sequence[Sequence[int]]
    outputs: Sequence[Sequence[int]]
    producers: Sequence[int]
    consumers: Sequence[Sequence[int]]
    waiting: Sequence[int]
    first: tuple[int, ...]
    external: tuple[int, ...]
    views: dict[Blob, View]
    idle: frozenset[Op]
    lost: frozenset[Blob]
    row_major: frozenset[Blob] = frozenset()
    sharing: Sharing | None = None
    edges: Edges = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        edges = Edges(self.graph.ops, self.waiting, self.producers, self.outputs, self.consumers, self.external)
        object.__setattr__(self, "edges", edges)


def prepare(graph: Graph, devices: Callable[[Location], Device] = device_for) -> Plan:
    """Check the whole graph and flatten it.

    Raises CycleError (R1); GraphError listing every unordered aliasing (R5), every operator whose device lacks a
    kernel or is not there (R13), and every source blob of a swapped pair that nobody writes (R6).
    """
    flat = flatten(graph)
    order = order_of(graph, flat)
    problems = [*_missing_kernels(graph, devices), *_idle_pairs(graph)]
    views = place_views(graph, partial(reorders, devices=devices))
    try:
        where = regions(graph, views)
    except ValueError as error:
        raise GraphError([*problems, f"graph {graph.name!r}: {error}"]) from None
    idle = {op for op in graph.ops if op.operation.rearranges and moves_nothing(op, where)}
    hazards = HazardCheck(graph, [graph.ops[op] for op in order], where, idle)
    problems += hazards.problems
    if problems:
        raise GraphError(problems)
    return _plan(graph, flat, order, views, idle, hazards.lost)


def _missing_kernels(graph: Graph, devices: Callable[[Location], Device]) -> list[str]:
    found: dict[Location, Device] = {}
    problems: list[str] = []
    mentioned = [*[op.location for op in graph.ops], *[blob.tensor.location for blob in graph.blobs]]
    few = {id(place): place for place in mentioned}.values()  # hashing a Location takes longer than its identity
    for place in sorted(set(few)):
        try:
            found[place] = devices(place)
        except GraphError as error:
            problems.append(f"graph {graph.name!r}: {error}")
    for op in graph.ops:
        device = found.get(op.location) if op.operation.loops else None
        missing = device.missing(op.operation.loops) if device else ()
        if device and missing:
            problems.append(f"{op.describe()}: device {device.name!r} has no kernel {', '.join(missing)}")
    return problems


def _idle_pairs(graph: Graph) -> list[str]:
    return [
        f"swapped pair {current.name!r}, {following.name!r}: no operator writes {following.name!r}, so a run would "
        f"put stale values into {current.name!r}"
        for current, following in graph.pairs
        if not following.producers
    ]


def _plan(graph: Graph, flat: Flat, order: list[int], views: dict[Blob, View], idle: set[Op], lost: set[Blob]) -> Plan:
    external = tuple([op.index for op in graph.ops if op.operation.external])
    waiting = flat.waiting[:]
    for op in external:
        waiting[op] += 1
    return Plan(
        graph=graph,
        order=tuple([graph.ops[op].index for op in order]),  # the same numbers, which are there already
        inputs=flat.inputs,
        outputs=flat.outputs,
        producers=flat.producers,
        consumers=flat.consumers,
        waiting=waiting,
        first=tuple([op for op, count in enumerate(waiting) if count == 0]),
        external=external,
        views=views,
        idle=frozenset(idle),
        lost=frozenset(lost),
        row_major=row_major(graph, views),
    )
