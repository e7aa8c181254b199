"""The pictures and tables of the pages on parallel schemes, made from real graphs: `conf.py` calls `write_all`.

Every figure composes a network that is small enough to read, draws it, and lists what its own copies move. Nothing is
drawn or counted by hand. What is written goes to `schemes/made/`, which is no part of the source tree. One figure is of
the page on GPUs: a step that is run, and what its streams did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from purine_ref import layers, ops, optim, view
from purine_ref.cli.show import draw_streams
from purine_ref.conformance import parse_scheme
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph
from purine_ref.parallel import Composed, Pipeline, Placed, compose, pipeline_ranks
from purine_ref.parallel.phases import BACKWARD, FORWARD, phases
from purine_ref.parallel.pieces import piece_name
from purine_ref.parallel.pipeline import micro_batches
from purine_ref.parallel.traffic import transfers
from purine_ref.tensor import Location

MADE = Path(__file__).parent / "schemes" / "made"
"""Where everything is written."""

PLACED = {"y": 1, "loss": 1}
"""The places of the figure `placed`."""


def _linear(x: Blob, features: int, weight: str, name: str) -> Blob:
    shape = (features, x.tensor.size // x.shape[0])
    w = x.graph.parameter(weight, shape, "float32", ops.Gaussian(shape))
    return x.graph.apply(ops.Linear(), [x, w], name)[0]


def _trained(y: Blob) -> Graph:
    """The graph of `y` with a squared error, gradients and updates."""
    target = y.graph.blob("target", y.shape)
    optim.sgd(backward(layers.squared_error(y, target, name="loss")))
    return y.graph


def product() -> Graph:
    """A linear layer, forward only."""
    graph = Graph("a linear layer")
    _linear(graph.blob("x", (6, 5)), 3, "w", "y")
    return graph


def one_layer() -> Graph:
    """A linear layer, trained."""
    return _trained(_linear(Graph("one layer").blob("x", (6, 5)), 3, "w", "y"))


def two_layers() -> Graph:
    """Two linear layers with a ReLU between them, trained."""
    h = _linear(Graph("two layers").blob("x", (6, 5)), 4, "w1", "h")
    (r,) = h.graph.apply(ops.ReLU(), [h], "r")
    return _trained(_linear(r, 3, "w2", "y"))


def convolution_and_linear() -> Graph:
    """A convolution and a linear layer, trained."""
    graph = Graph("convolution and linear layer")
    w1 = graph.parameter("w1", (3, 2, 3, 3), "float32", ops.Gaussian((3, 2, 3, 3)))
    (h,) = graph.apply(ops.Conv2d(), [graph.blob("x", (6, 2, 5, 5)), w1], "h")
    return _trained(_linear(h, 4, "w2", "y"))


@dataclass(frozen=True)
class Figure:
    """A network under a scheme, as `purine-ref` writes it; `placed` has no written form."""

    network: Callable[[], Graph]
    scheme: str

    def graph(self) -> Graph:
        """The composed graph."""
        if self.scheme == "placed":
            return compose(self.network(), [Placed(2, PLACED)], [Location(0), Location(1)])
        return parse_scheme(self.scheme).compose(self.network())


FIGURES = {
    "threads": Figure(one_layer, "threads:2"),
    "pieces-data": Figure(product, "data:2@ranks"),
    "pieces-model": Figure(product, "model:2@ranks"),
    "data": Figure(one_layer, "data:2@ranks"),
    "data-server": Figure(one_layer, "data:2,server@ranks"),
    "data-tree": Figure(one_layer, "data:3,tree@ranks"),
    "data-ring": Figure(one_layer, "data:3,ring@ranks"),
    "model": Figure(two_layers, "model:2@ranks"),
    "model-input": Figure(two_layers, "model:2,input@ranks"),
    "pipeline": Figure(two_layers, "pipeline:2x2@ranks"),
    "hybrid": Figure(convolution_and_linear, "hybrid:1x2@ranks"),
    "placed": Figure(two_layers, "placed"),
    "data-pipeline": Figure(two_layers, "data:2/pipeline:2x2@ranks"),
}
"""Every figure by its name."""


def moved_table(graph: Graph) -> str:
    """A table of all copies from place to place, and their sum."""
    found = transfers(graph)
    rows = [f"| {each.source} | {each.target} | `{each.blob}` | {each.bytes:,} |" for each in found]
    total = f"| | | **all** | **{sum(each.bytes for each in found):,}** |"
    return "\n".join(["| from | to | what | bytes |", "|---|---|---|---:|", *rows, total, ""])


def pieces_table(graph: Composed) -> str:
    """Tables of the tasks of every operator, and of the pieces of every blob."""
    lines = ["| operator | task: ranges of axes | place |", "|---|---|---|"]
    for op, tasks in graph.tasks.items():
        for task in tasks:
            cuts = ", ".join(f"{name} = {start}:{stop}" for name, start, stop in task.cuts) or "all"
            lines.append(f"| `{op.name}` | {cuts} | {graph.places[task.place]} |")
    lines += ["", "| blob | piece | place |", "|---|---|---|"]
    for name, pieces in graph.pieces.items():
        for piece in pieces:
            part = piece_name(graph.serial[name], piece.box, Location())
            lines.append(f"| `{name}` | `{part}` | {piece.location} |")
    return "\n".join([*lines, ""])


def order_table(network: Callable[[], Graph], stages: int, micro: int) -> str:
    """The order in which each stage starts its parts, for both schedules: F0 is the forward part of micro-batch 0."""
    pipeline = Pipeline(stages, micro)
    graph = compose(network(), [pipeline])
    lines = ["| schedule | stage | order |", "|---|---|---|"]
    for kind in ("gpipe", "1f1b"):
        starts = _starts(graph, pipeline, pipeline_ranks(graph, kind))
        for stage in range(stages):
            words = [word for at, _, word in sorted(starts) if at == stage]
            lines.append(f"| {kind} | {stage} | {' '.join(words)} |")
    return "\n".join([*lines, ""])


def _starts(graph: Composed, pipeline: Pipeline, ranks: list[float]) -> set[tuple[int, float, str]]:
    """For each stage's part of each micro-batch: the stage, its rank, and its word."""
    letters = {FORWARD: "F", BACKWARD: "B"}
    found = set()
    for op, (serial, number) in micro_batches(graph, pipeline).items():
        phase = phases(graph.serial).phase[serial]
        if number is not None and phase in letters:
            found.add((pipeline.stage_of(graph.serial, serial), ranks[op.index], f"{letters[phase]}{number}"))
    return found


def write_all() -> None:
    """Write every picture and table."""
    MADE.mkdir(exist_ok=True)
    for name, figure in FIGURES.items():
        graph = figure.graph()
        _write(f"{name}.svg", view.svg(graph))
        _write(f"{name}-moved.md", moved_table(graph))
        if isinstance(graph, Composed) and name.startswith("pieces"):
            _write(f"{name}.md", pieces_table(graph))
    _write("pipeline-order.md", order_table(two_layers, 3, 4))
    _write("streams.svg", draw_streams("nin-digits", parse_scheme("data:2@virtual"), 512, "float32", 0))


def _write(name: str, text: str) -> None:
    (MADE / name).write_text(text, "utf-8")
