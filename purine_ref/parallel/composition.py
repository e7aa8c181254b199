"""From a serial graph and the tasks of its operators to a composed graph. Nothing here computes.

`compose` walks the serial graph once, in topological order, and wires every task's part operator between *pieces*: a
piece is a box of a serial blob, at a location, as a blob of the composed graph. What a task needs and does not find at
its place is moved there (`parallel.move`), once for each destination. Where several tasks each give a partial sum,
the sums are reduced (`parallel.reduce`). Fed and persistent blobs have a piece wherever a task reads one; the pairs
that a run swaps (rule R6) are swapped piece by piece, so every copy of a parameter gets its update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from purine_ref.errors import GraphError
from purine_ref.graph import Blob, Graph, Op
from purine_ref.operation import Axis
from purine_ref.ops import Identity
from purine_ref.parallel.move import Mover
from purine_ref.parallel.pieces import Piece, Pieces, piece_name, place_name
from purine_ref.parallel.reduce import Reducer
from purine_ref.parallel.tasks import Box, Network, Refiner, Task, box_of, part_of
from purine_ref.tensor import Location
from purine_ref.traversal import topological_order


class Composed(Graph):
    """A composed graph: `serial` is what it computes, `refiners` how it was divided, `places` where.

    `pieces` maps each serial blob's name to its pieces, all of which hold the serial blob's values in their box;
    `tasks` are those of each serial operator, and `origin` maps each operator made from one to it and to its task.
    """

    def __init__(self, network: Network, refiners: Sequence[Refiner], places: Sequence[Location]) -> None:
        super().__init__(network.graph.name)
        self.serial = network.graph
        self.network = network
        self.tasks: dict[Op, list[Task]] = {}
        self.origin: dict[Op, tuple[Op, Task]] = {}
        self.refiners = tuple(refiners)
        self.places = tuple(places)
        self.pieces: dict[str, list[Piece]] = {}


def compose(
    graph: Graph,
    refiners: Sequence[Refiner],
    places: Sequence[Location] | None = None,
    *,
    reduction: str = "central",
) -> Composed:
    """Divide `graph` by `refiners`, the outermost first, over `places`.

    The number of places is the product of the refiners' widths; all are the graph's own CPU when none are given. A
    composed graph is composed again from its serial graph, inside the refiners that it has. `reduction` is how
    partial sums from different places are added: `central`, `tree` or `ring`.

    Raises GraphError for a scheme that does not fit the graph, before anything is made.
    """
    if isinstance(graph, Composed):
        refiners = (*graph.refiners, *refiners)
        graph = graph.serial
    width = 1
    for refiner in refiners:
        width *= refiner.width
    places = [Location()] * width if places is None else list(places)
    if len(places) != width:
        raise GraphError(f"graph {graph.name!r}: the scheme needs {width} places, got {len(places)}")
    network = Network(graph)
    tasks = {op: refined(network, op, refiners) for op in graph.ops}
    return _Composition(network, tasks, Composed(network, refiners, places), reduction).build()


def refined(network: Network, op: Op, refiners: Sequence[Refiner]) -> list[Task]:
    """The tasks of one operator under all refiners."""
    tasks = [Task()]
    for refiner in refiners:
        tasks = [part for task in tasks for part in refiner.refine(network, op, task)]
    return tasks


@dataclass(frozen=True, slots=True)
class _Output:
    """What one task gives of one output: which box, where, and whether it is only a partial sum."""

    box: Box
    location: Location
    partial: bool


class _Composition:
    """One call of `compose`."""

    def __init__(self, network: Network, tasks: dict[Op, list[Task]], target: Composed, reduction: str) -> None:
        self.network = network
        self.tasks = target.tasks = {op: _once_each(parts, target.places) for op, parts in tasks.items()}
        self.target = target
        self.pieces = Pieces(target)
        self.mover = Mover(target, self.pieces)
        self.reducer = Reducer(target, self.mover, reduction)
        self.uniform = {blob: self._is_uniform(blob) for blob in network.graph.blobs if blob.producers}
        self.contributions: dict[Blob, dict[int, dict[_Output, Blob]]] = {}

    def build(self) -> Composed:
        """Wire everything."""
        serial = self.network.graph
        for blob in serial.blobs:
            if not blob.producers:
                self.pieces.add_source(blob, serial.initial.get(blob.name))
        wired: set[Op] = set()
        for op in _in_order(serial):
            for task in self.tasks[op]:
                self._wire(op, task)
            wired.add(op)
            for blob in dict.fromkeys(op.outputs):
                if all(producer in wired for producer, _ in blob.producers):
                    self._settle(blob)
        self._swap()
        self.target.pieces = self.pieces.by_name()
        return self.target

    # One task ---------------------------------------------------------------------------------------------------

    def _wire(self, op: Op, task: Task) -> None:
        axes = {axis.name: axis for axis in self.network.axes(op)}
        location = self.target.places[task.place]
        inputs = []
        for slot, blob in enumerate(op.inputs):
            inputs.append(self.mover.obtain(blob, self._input_box(op, slot, task), location))
        outputs = [self._contribution(op, slot, self._output(op, slot, task)) for slot in range(len(op.outputs))]
        name = self.target.free_name(_task_name(op, task, axes, location))
        made = self.target.connect(inputs, part_of(op.operation, axes, task), outputs, name=name, location=location)
        self.target.origin[made] = (op, task)

    def _output(self, op: Op, slot: int, task: Task) -> _Output:
        axes = {axis.name: axis for axis in self.network.axes(op)}
        ends = [(axes[name].outputs[slot], (start, stop)) for name, start, stop in task.cuts]
        partial = any(
            axes[name].outputs[slot] is None and (start, stop) != (0, axes[name].extent)
            for name, start, stop in task.cuts
        )
        return _Output(box_of(op.outputs[slot], ends), self.target.places[task.place], partial)

    def _contribution(self, op: Op, slot: int, output: _Output) -> Blob:
        """The blob that an output of a task writes, or adds to (rule R4).

        Where all edges of a serial blob give the same pieces, they share blobs; else each edge has blobs of its own.
        """
        blob = op.outputs[slot]
        edge = 0 if self.uniform[blob] else blob.producers.index((op, slot))
        made = self.contributions.setdefault(blob, {}).setdefault(edge, {})
        if output not in made:
            name = piece_name(blob, output.box, output.location)
            name = f"{name}~" if output.partial else name
            made[output] = self.pieces.new_blob(name, blob, output.box, output.location)
        return made[output]

    # One blob ---------------------------------------------------------------------------------------------------

    def _is_uniform(self, blob: Blob) -> bool:
        """Whether all edges give the same pieces, so that their operators can share blobs."""
        edges = [{self._output(op, slot, task) for task in self.tasks[op]} for op, slot in blob.producers]
        return all(edge == edges[0] for edge in edges)

    def _settle(self, blob: Blob) -> None:
        """Make the pieces of a blob from what its edges contributed: reduce partial sums, add edges that differ."""
        edges = [self._reduced(blob, made) for _, made in sorted(self.contributions[blob].items())]
        if len(edges) > 1:
            edges = [self._added(blob, edges)]
        self.pieces.settle(blob, edges[0])

    def _reduced(self, blob: Blob, made: dict[_Output, Blob]) -> list[Piece]:
        """The pieces of one edge, with partial sums of the same box added up over all places."""
        pieces = [Piece(out.box, out.location, new) for out, new in made.items() if not out.partial]
        boxes = dict.fromkeys(out.box for out in made if out.partial)
        for box in boxes:
            parts = [Piece(box, out.location, new) for out, new in made.items() if out.partial and out.box == box]
            pieces += self.reducer.reduce(blob, parts, self._home(blob, box, parts[0].location))
        return pieces

    def _home(self, blob: Blob, box: Box, default: Location) -> Location:
        """Where the box of a blob is read first, by a task that reads just that; else `default`."""
        for op, slot in blob.consumers:
            for task in self.tasks[op]:
                if self._input_box(op, slot, task) == box:
                    return self.target.places[task.place]
        return default

    def _input_box(self, op: Op, slot: int, task: Task) -> Box:
        axes = {axis.name: axis for axis in self.network.axes(op)}
        return box_of(op.inputs[slot], [(axes[name].inputs[slot], (a, b)) for name, a, b in task.cuts])

    def _added(self, blob: Blob, edges: list[list[Piece]]) -> list[Piece]:
        """Edges that lie differently: the first edge's boxes and places, with the others' parts moved and added."""
        sums = []
        for piece in edges[0]:
            name = f"{piece_name(blob, piece.box, piece.location)}+"
            total = self.pieces.new_blob(self.target.free_name(name), blob, piece.box, piece.location)
            for edge in edges:
                part = self.mover.obtain_from(blob, edge, piece.box, piece.location)
                self.target.connect([part], Identity(), [total], location=piece.location)
            sums.append(Piece(piece.box, piece.location, total))
        return sums

    # Between runs -----------------------------------------------------------------------------------------------

    def _swap(self) -> None:
        for current, following in self.network.graph.pairs:
            for piece in self.pieces.of(current):
                fresh = self.mover.obtain(following, piece.box, piece.location)
                self.target.swap(piece.blob, self._own(fresh))

    def _own(self, fresh: Blob) -> Blob:
        """A blob that no other pair swaps and that is no view: `fresh` itself, or a copy of it at its place."""
        if not any(fresh in pair for pair in self.target.pairs):
            return fresh
        name = self.target.free_name(f"{fresh.name}'")
        return self.target.apply(Identity(), [fresh], name, location=fresh.location)[0]


def _in_order(graph: Graph) -> list[Op]:
    """The operators in the order of their making, if that is topological, so that edges keep their order (rule R4)."""
    edges = ((producer, op) for op in graph.ops for blob in op.inputs for producer, _ in blob.producers)
    return graph.ops if all(before.index < after.index for before, after in edges) else topological_order(graph)


def _once_each(tasks: Sequence[Task], places: Sequence[Location]) -> list[Task]:
    """The tasks without those that would compute the same part at the same location again."""
    kept: dict[tuple[tuple[tuple[str, int, int], ...], Location], Task] = {}
    for task in tasks:
        kept.setdefault((tuple(sorted(task.cuts)), places[task.place]), task)
    return list(kept.values())


def _task_name(op: Op, task: Task, axes: dict[str, Axis], location: Location) -> str:
    cuts = ",".join(f"{name}={start}:{stop}" for name, start, stop in sorted(task.cuts))
    where = "" if location == Location() else f"@{place_name(location)}"
    return f"{op.name}{f'[{cuts}]' if cuts else ''}{where}"

