"""Text, DOT, SVG, JSON and traces: each shows the whole graph, once, whatever it is named, the same every time."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purine_ref import ops, view
from purine_ref.conformance import parse_scheme
from purine_ref.errors import CycleError, GraphError
from purine_ref.executors import Rates, Serial, Simulated, Span, Threaded
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph, Op
from purine_ref.models import MODELS, training_graph
from purine_ref.operation import Operation
from purine_ref.parallel import Composed
from purine_ref.parallel.traffic import transfers
from purine_ref.tensor import Location, Tensor
from purine_ref.view.alignment import GAP, Alignment, backbones
from purine_ref.view.parts import Kind, byte_size, edges, kinds, nodes, scopes
from purine_ref.view.picture import HEIGHT, Line, Mark, compose, line_spans, text_width
from purine_ref.view.rows import mirrored_rows, reading_order, straight_rows
from purine_ref.view.text import paths

SVG = "{http://www.w3.org/2000/svg}"
PLAIN = ("a", "b/c", "b/d", "b/c/e")
NASTY = ('say "x"', "a<b>&amp;&c;", "back\\slash\\n", "ünï/日本", "it's (not) [a] {list}; #1", "--/*")


@dataclass(frozen=True)
class Fan(Operation):
    """{ x1, x2, ... } >> Fan >> { y1, y2, ... }, as many of each as one likes, all (3, 5)."""

    count: int

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (Tensor((3, 5)),) * self.count


def random_graph(seed: int, size: int, words: Sequence[str] = PLAIN) -> Graph:
    """An acyclic graph, operators in any order: fan-out, several producers, one blob twice, dead ends, lone nodes."""
    rng = np.random.default_rng(seed)
    graph = Graph("random")
    place = Location(2, 1) if rng.random() < 0.3 else Location()
    blobs: list[Blob] = []
    for number in range(size):
        name = f"{words[rng.integers(len(words))]}{number}"
        if rng.random() < 0.3:
            gradient = f"{blobs[rng.integers(number)].name if number else name}/grad"
            name = name if gradient in graph else gradient
        blobs.append(graph.blob(name, (3, 5), location=place, persistent=bool(rng.random() < 0.2)))
    for number in range(int(rng.integers(size + 1))):
        cut = int(rng.integers(size + 1))
        inputs = [blobs[i] for i in rng.integers(0, cut, rng.integers(4))] if cut else []
        outputs = [blobs[i] for i in rng.permutation(np.arange(cut, size))[: rng.integers(3)]]
        name = f"{words[rng.integers(len(words))]}{number}/op"
        graph.connect(inputs, Fan(len(outputs)), outputs, name=name, location=place)
    return graph


graphs = st.builds(random_graph, st.integers(0, 2**32 - 1), st.integers(0, 14))
nasty_graphs = st.builds(random_graph, st.integers(0, 2**32 - 1), st.integers(0, 14), st.just(NASTY))


def lenet() -> Graph:
    return training_graph("lenet-digits", 7, "float32")


def key(node: Blob | Op) -> str:
    return f"({node.name})" if isinstance(node, Op) else node.name


def edge_names(graph: Graph) -> Counter[tuple[str, str]]:
    """Every edge as a pair of names, found without the package's own enumeration."""
    found = Counter((blob.name, f"({op.name})") for blob in graph.blobs for op, _ in blob.consumers)
    return found + Counter((f"({op.name})", blob.name) for blob in graph.blobs for op, _ in blob.producers)


# Text ---------------------------------------------------------------------------------------------------------------


def text_paths(text: str) -> list[list[str]]:
    """The paths of a text, as names; continued lines joined."""
    body = text.split("\n\n", 1)[1].partition("\nswapped after each run:")[0] if "\n\n" in text else ""
    lines = body.replace("\n  -> ", " -> ").splitlines()
    steps = [line.split(" -> ") for line in lines if line and not line.endswith(":")]
    return [[f"({s[1:-1].split(' ')[0]})" if s[0] == "(" else s.split(" ")[0] for s in path] for path in steps]


@given(graphs)
def test_text_shows_every_edge_once_and_every_node(graph: Graph) -> None:
    found = text_paths(view.text(graph))
    assert Counter(pair for path in found for pair in itertools.pairwise(path)) == edge_names(graph)
    assert {name for path in found for name in path} == {key(node) for node in nodes(graph)}


@given(graphs)
def test_paths_could_not_be_longer(graph: Graph) -> None:
    long = [path for path in paths(reading_order(graph)) if len(path) > 1]
    assert {path[0] for path in long}.isdisjoint(path[-1] for path in long)


def test_text_of_a_small_graph_word_for_word() -> None:
    graph = Graph("small")
    x = graph.blob("x", (2, 6), persistent=True)
    part = graph.view(x, "part", [(0, 2), (1, 4)])
    (y,) = graph.apply(ops.ReLU(), [part], "y")
    (z,) = graph.apply(ops.Sum(), [y, y], "z")
    graph.apply(ops.Copy(Location(1, 0)), [z], "far", stream="out")
    graph.blob("alone", (), "int64")
    assert view.text(graph) == (
        "small: 3 operators, 6 blobs, 7 edges\n"
        "memory before reuse: cpu 104 B, rank1/device0 24 B\n"
        "\n"
        "forward:\n"
        "part float32[2, 3] @ cpu in x[0:2, 1:4]\n"
        "  -> (y ReLU @ cpu) -> y float32[2, 3] @ cpu\n"
        "  -> (z Sum @ cpu) -> z float32[2, 3] @ cpu\n"
        "  -> (far Copy @ cpu/out) -> far float32[2, 3] @ rank1/device0\n"
        "y -> (z)\n"
        "x float32[2, 6] @ cpu persistent\n"
        "alone int64[] @ cpu\n"
    )


def test_text_of_a_training_graph_begins_with_the_way_down_and_ends_with_the_swaps() -> None:
    lines = view.text(lenet()).splitlines()
    assert lines[2:5] == [
        "",
        "forward:",
        "x float32[7, 1, 8, 8]",
    ]
    assert lines[lines.index("gradient:") + 1].startswith("(loss/grad Constant @ cpu) -> loss/grad float32[]")
    assert [line for line in lines if line.endswith(":")] == [
        "forward:", "gradient:", "update:", "from part to part:", "swapped after each run:",
    ]  # fmt: skip
    assert lines[-16] == "conv1/weight <-> conv1/weight/next"


# DOT ----------------------------------------------------------------------------------------------------------------

QUOTED = r'"((?:[^"\\]|\\.)*)"'


def unquoted(text: str) -> str:
    """What Graphviz makes of a label: escapes, then entities."""
    plain = re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text)
    return plain.replace("&amp;", "&")


@given(nasty_graphs)
def test_dot_shows_every_node_and_edge_once_under_its_own_name(graph: Graph) -> None:
    text = view.dot(graph)
    declared = re.findall(rf"^  ((?:op|blob)\d+) \[shape=(?:box|ellipse), .*tooltip={QUOTED}", text, re.MULTILINE)
    names = {identity: unquoted(name) for identity, name in declared}
    assert len(declared) == len(names) == len(nodes(graph))
    joined = re.findall(r"^  (\w+) -> (\w+);$", text, re.MULTILINE)
    shown = Counter(tuple(f"({names[end]})" if end.startswith("op") else names[end] for end in pair) for pair in joined)
    assert shown == edge_names(graph)
    assert text.count("{") - "".join(re.findall(QUOTED, text)).count("{") == len(re.findall(r"^  }$", text, re.M)) + 1


def test_dot_clusters_nest_by_scope_and_label_nodes_within_it() -> None:
    graph = Graph("nest")
    for name in ("a/b/c", "a/d", "e", "f/g"):
        graph.blob(name, (2,))
    graph.blob("a/d/grad", (2,))  # a/d is a blob, so it is no scope
    lines = view.dot(graph).splitlines()[5:-1]
    shown = [match[1] for line in lines if (match := re.search(rf"label={QUOTED}", line))]
    assert shown == [
        "e\\nfloat32[2]",
        "a",
        "d\\nfloat32[2]",
        "d/grad\\nfloat32[2]",
        "a/b",
        "c\\nfloat32[2]",
        "f",
        "g\\nfloat32[2]",
    ]
    assert [number - len(lines) for number, line in enumerate(lines) if line.strip() == "}"] == [-5, -4, -1]
    assert {node.name: scope for node, scope in scopes(lenet()).items()}["conv1/weight/history/next"] == "conv1"


def test_dot_tints_kinds_and_colours_places() -> None:
    graph = lenet()
    x = graph.blob("other", (2,), location=Location(0, 0))
    graph.connect([x], Fan(0), [], name="end")
    text = view.dot(graph)
    tint = {m[1]: m[2] for m in re.finditer(r'tooltip="([^"]*)", fillcolor="(#\w+)"', text)}
    assert len({tint["conv1/conv"], tint["conv1/conv/Conv2dWeightGradient"], tint["conv1/weight/update"]}) == 3
    colours = {m[2]: m[1] for m in re.finditer(r' color="(#\w+)", tooltip="([^"]*)"', text)}
    assert colours["other"] == colours["end"] != colours["x"] == colours["conv1/conv"]
    assert 'label="end\\nFan\\ndevice0"' in text


# SVG ----------------------------------------------------------------------------------------------------------------


def groups(root: ElementTree.Element, role: str) -> list[ElementTree.Element]:
    """The marks or strokes of a class, outside the legend."""
    body = root.findall(f"{SVG}g")[1]
    return [child for child in body if role in (child.get("class") or "").split()]


@given(nasty_graphs, st.booleans())
def test_svg_shows_every_node_and_edge_under_its_own_name(graph: Graph, compress: bool) -> None:
    root = ElementTree.fromstring(view.svg(graph, compress=compress))
    titles = [stroke.findtext(f"{SVG}title") or "" for stroke in groups(root, "edge")]
    assert Counter(tuple(title.split(" → ")) for title in titles) == edge_names(graph)
    shown = [group for role in ("blob", "operator") for group in groups(root, role)]
    first = [group for group in shown if "again" not in str(group.get("class"))]
    names = Counter(str(group.findtext(f"{SVG}title")).partition(": ")[0] for group in first)
    assert names == Counter(node.name for node in nodes(graph))


@given(graphs, st.booleans())
def test_nothing_in_a_drawing_overlaps(graph: Graph, compress: bool) -> None:
    check_apart(graph, compress)


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("name", ["lenet-digits", "inception", "nin-digits"])
def test_nothing_in_a_models_drawing_overlaps(name: str, compress: bool) -> None:
    check_apart(training_graph(name, 7, "float32"), compress)


def check_apart(graph: Graph, compress: bool) -> None:
    """Marks of a row stay apart, labels within them, strokes pass between them, all within the picture."""
    picture = compose(graph, compress=compress)
    rows: dict[float, list[tuple[float, float]]] = {}
    for mark in picture.marks:
        rows.setdefault(mark.y, []).append((mark.x - mark.width / 2, mark.x + mark.width / 2))
        assert all(fits(mark, line, span) for line, span in zip(mark.lines, line_spans(mark.lines), strict=True))
        assert not (mark.again and isinstance(mark.node, Blob) and mark.node.producers)
        assert HEIGHT / 2 <= mark.y <= picture.height - HEIGHT / 2
    for row in rows.values():
        row.sort()
        assert row[0][0] >= -1e-6
        assert row[-1][1] <= picture.width + 1e-6
        assert all(right + GAP <= left + 1e-6 for (_, right), (left, _) in itertools.pairwise(row))
    order = list(picture.bands)
    at = {mark.node: (_place(mark, order), list(Kind).index(mark.kind)) for mark in picture.marks}
    for stroke in picture.strokes:
        for (x, y0), (x1, y1) in itertools.islice(itertools.pairwise(stroke.points), 1, None, 2):
            assert x == x1
            assert all(not left < x < right for left, right in rows.get((y0 + y1) / 2, ()))
            kind = max(at[stroke.edge.tail], at[stroke.edge.head])
            beside = [mark for mark in picture.marks if mark.y == (y0 + y1) / 2 and compress]
            assert all(mark.x < x for mark in beside if at[mark.node] < kind)
            assert all(mark.x > x for mark in beside if at[mark.node] > kind)


def _place(mark: Mark, order: Sequence[Location]) -> int:
    return order.index(mark.node.location) if order else 0


def fits(mark: Mark, line: Line, span: tuple[float, float]) -> bool:
    """Whether the corners of a line lie within its box or ellipse."""
    reach = text_width(line.text, line.size) / mark.width
    off = 0.0 if isinstance(mark.node, Op) else max(map(abs, span)) / (HEIGHT / 2)
    return reach**2 + off**2 < 1


def test_a_training_graph_has_its_gradient_beside_it_and_updates_at_the_right() -> None:
    graph = lenet()
    picture = compose(graph, compress=True)
    at = {mark.node: mark for mark in picture.marks}
    for blob in graph.blobs:
        if f"{blob.name}/grad" in graph:
            assert at[blob].y == at[graph[f"{blob.name}/grad"]].y, blob
    assert at[graph.op("conv2/conv")].y == at[graph.op("conv2/conv/Conv2dDataGradient")].y
    order = list(Kind)
    for one, other in itertools.product(picture.marks, repeat=2):
        if one.y == other.y and order.index(one.kind) < order.index(other.kind):
            assert one.x < other.x
    long = [stroke for stroke in picture.strokes if abs(stroke.points[0][1] - stroke.points[-1][1]) > 3 * HEIGHT]
    assert long == []


def test_a_stroke_from_the_forward_part_to_its_gradient_passes_at_the_right() -> None:
    graph = Graph("skip")
    x = graph.blob("x", (2, 3))
    (first,) = graph.apply(ops.ReLU(), [x], "y")
    y = first
    for number in range(4):
        (y,) = graph.apply(ops.Tanh(), [y], f"y{number}")
    graph.apply(ops.Mul(), [y, first], "loss")
    backward(graph["loss"], [x])
    picture = compose(graph, compress=True)
    right = max(mark.x + mark.width / 2 for mark in picture.marks if mark.kind is Kind.FORWARD)
    [long] = [stroke for stroke in picture.strokes if stroke.across and len(stroke.points) > 2]
    assert long.edge.tail is first
    assert all(x > right for x, _ in long.points[1:])


COMPOSED = ("data:2@ranks", "data:3,ring@ranks", "model:2@virtual", "pipeline:2x3@ranks", "data:2/pipeline:2x2@ranks")


@pytest.mark.parametrize("scheme", COMPOSED)
def test_a_composed_graph_has_each_place_on_a_ground_of_its_own(scheme: str) -> None:
    graph = parse_scheme(scheme).compose(training_graph("mlp-digits", 7, "float32"))
    check_apart(graph, True)
    check_apart(graph, False)
    picture = compose(graph, compress=True)
    assert list(picture.bands) == sorted({node.location for node in nodes(graph)})
    sides = [end for band in picture.bands.values() for end in band]
    assert sides == sorted(sides)
    for mark in picture.marks:
        left, right = picture.bands[mark.node.location]
        assert left - 1e-6 <= mark.x - mark.width / 2 <= mark.x + mark.width / 2 <= right + 1e-6
    root = ElementTree.fromstring(view.svg(graph))
    assert [band.findtext(f"{SVG}text") for band in groups(root, "band")] == [str(place) for place in picture.bands]
    moving = [stroke.findtext(f"{SVG}title") or "" for stroke in groups(root, "moving")]
    assert len(moving) == len(transfers(graph)) > 0
    assert all(title.startswith("(") for title in moving)


def test_a_composed_graphs_nodes_are_of_the_kind_of_what_they_are_parts_of() -> None:
    serial = training_graph("mlp-digits", 7, "float32")
    graph = parse_scheme("data:2,server@ranks").compose(serial)
    assert isinstance(graph, Composed)
    found, own = kinds(graph), kinds(serial)
    assert all(found[op] is own[graph.origin[op][0]] for op in graph.origin)
    assert all(found[piece.blob] is own[serial[name]] for name, pieces in graph.pieces.items() for piece in pieces)
    moved = {op.name: found[op] for op in graph.ops if isinstance(op.operation, ops.Copy)}
    assert moved["loss@r1~>r0"] is Kind.FORWARD
    assert moved["fc1/weight/grad@r1~>r0"] is Kind.GRADIENT
    assert moved["fc1/weight/next>r1"] is Kind.UPDATE


def test_an_operator_added_to_a_composed_graph_is_drawn() -> None:
    graph = parse_scheme("data:2@ranks").compose(training_graph("mlp-digits", 7, "float32"))
    graph.connect([], Fan(0), [], name="added")
    assert kinds(graph)[graph.op("added")] is Kind.FORWARD
    assert "added: Fan" in view.svg(graph)


def test_the_gradient_of_each_part_is_beside_it() -> None:
    graph = parse_scheme("data:2@ranks").compose(training_graph("mlp-digits", 7, "float32"))
    at = {mark.node: mark for mark in compose(graph, compress=True).marks}
    for part in ("[0:4,:]", "[4:7,:]@r1"):
        blob, gradient = at[graph[f"fc1/relu{part}"]], at[graph[f"fc1/relu/grad{part}"]]
        assert blob.y == gradient.y
        assert blob.x < gradient.x


def test_a_name_on_the_ground_of_a_place_leaves_the_place_out() -> None:
    def label(name: str, words: str) -> None:
        [line] = [line.text for mark in marks if mark.node.name == name for line in mark.lines if line.role == "name"]
        assert line == words

    graph = parse_scheme("data:2@ranks").compose(training_graph("mlp-digits", 7, "float32"))
    marks = compose(graph, compress=True).marks
    label("x[4:7,:,:,:]@r1", "x[4:7,:,:,:]")
    label("loss@r1~", "loss~")
    label("fc1/linear/LinearWeightGradient[n=4:7]@r1", "linear[n=4:7]")


def test_two_edges_between_the_same_nodes_lie_beside_each_other() -> None:
    graph = Graph("square")
    x = graph.blob("x", (2, 3))
    graph.apply(ops.Mul(), [x, x], "y")
    one, other, single = compose(graph, compress=True).strokes
    assert [b[0] - a[0] for a, b in zip(one.points, other.points, strict=True)] == [8.0, 8.0]
    assert single.points[0][0] == sum(stroke.points[1][0] for stroke in (one, other)) / 2


def test_much_of_a_branched_drawing_is_upright() -> None:
    picture = compose(training_graph("inception", 2, "float32"), compress=True)
    pieces = [abs(a[0] - b[0]) for s in picture.strokes for a, b in zip(s.points[::2], s.points[1::2], strict=True)]
    assert sum(piece < 0.5 for piece in pieces) > len(pieces) / 3


def test_a_source_that_is_read_everywhere_is_shown_again_near_its_readers() -> None:
    root = ElementTree.fromstring(view.svg(lenet()))
    again = [group.findtext(f"{SVG}title") for group in groups(root, "again")]
    assert set(again) == {"rate: float32[] at cpu"}
    assert len(again) == 7
    assert groups(ElementTree.fromstring(view.svg(lenet(), compress=False)), "again") == []


def test_svg_legend_says_what_occurs_and_no_more() -> None:
    def words(graph: Graph) -> list[str | None]:
        root = ElementTree.fromstring(view.svg(graph))
        return [element.text for element in root.findall(f"{SVG}g")[0].iter(f"{SVG}text")]

    small = Graph("small")
    small.blob("x", (3, 256), "float64", Location(1, 0))
    assert words(small) == [
        "small: 0 operators, 1 blob, 0 edges",
        "blob",
        "rank1/device0, 6.0 KiB",
        "float64 unless marked",
    ]
    assert words(lenet())[1:7] == ["forward", "gradient", "update", "blob", "kept between runs", "shown again"]


def test_svg_is_self_contained() -> None:
    text = view.svg(lenet())
    assert re.findall(r"(?:href|src|@import|url\((?!#)|<script|<image)", text) == []
    root = ElementTree.fromstring(text)
    left, top, width, height = map(float, str(root.get("viewBox")).split())
    assert (left, top, width, height) == (0, 0, float(str(root.get("width"))), float(str(root.get("height"))))


def test_long_names_are_elided_in_the_label_and_whole_in_the_tooltip() -> None:
    graph = Graph("long")
    graph.blob("x" * 60 + "y", (2,))
    root = ElementTree.fromstring(view.svg(graph))
    [blob] = groups(root, "blob")
    assert [t.text for t in blob.iter(f"{SVG}text")] == ["x" * 14 + "…" + "x" * 14 + "y", "2"]
    assert blob.findtext(f"{SVG}title") == "x" * 60 + "y: float32[2] at cpu"


def test_an_igraph_that_lacks_something_itself_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "igraph.py").write_text("import a_part_of_igraph")
    monkeypatch.delitem(sys.modules, "igraph", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'a_part_of_igraph'$"):
        view.svg(lenet())


def test_without_igraph_svg_says_what_to_install_and_the_rest_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "igraph", None)
    message = r"^drawing an SVG needs igraph, which is not installed; run: pip install 'purine_ref\[plot\]'$"
    with pytest.raises(ModuleNotFoundError, match=message):
        view.svg(lenet())
    for draw in (view.text, view.dot, view.to_json):
        assert draw(lenet())


# Rows and alignment -------------------------------------------------------------------------------------------------


@given(graphs)
def test_rows_go_down_along_every_edge(graph: Graph) -> None:
    rows = straight_rows(graph)
    assert all(rows[edge.tail] < rows[edge.head] for edge in edges(graph))
    assert min(rows.values(), default=0) == 0
    kind = kinds(graph)
    mirrored = mirrored_rows(graph, kind)
    assert mirrored.keys() == rows.keys()
    for edge in edges(graph):
        if kind[edge.tail] is kind[edge.head] is Kind.FORWARD:
            assert mirrored[edge.tail] < mirrored[edge.head]
        elif Kind.FORWARD not in (kind[edge.tail], kind[edge.head]):
            assert mirrored[edge.tail] > mirrored[edge.head]


def test_the_reading_order_is_that_of_the_making_where_it_can_be() -> None:
    order = reading_order(lenet())
    assert [node.index for node in order if isinstance(node, Op)] == list(range(41))
    assert [node.name for node in order[:3]] == ["x", "conv1/weight", "conv1/conv"]


def test_a_chain_is_upright_and_two_stand_apart() -> None:
    widths = [30.0, 50.0] * 6
    order = [[2 * row, 2 * row + 1] for row in range(6)]
    links = [(2 * row + side, 2 * row + side + 2) for row in range(5) for side in (0, 1)]
    x = Alignment(widths, [0] * 12, order, links).x
    assert {round(v, 6) for v in x[::2]} == {round(x[0], 6)}
    assert {round(v, 6) for v in x[1::2]} == {round(x[1], 6)}
    assert x[1] - x[0] == pytest.approx(40 + GAP)


def test_a_chain_that_must_bend_is_upright_before_and_after() -> None:
    widths = [40.0, 200.0] * 6
    order = [[2 * row, 2 * row + 1] if row < 3 else [2 * row + 1, 2 * row] for row in range(6)]
    links = [(2 * row + side, 2 * row + side + 2) for row in range(5) for side in (0, 1)]
    x = Alignment(widths, [0] * 12, order, links).x
    narrow = [round(v, 6) for v in x[::2]]
    assert [len(list(same)) for _, same in itertools.groupby(narrow)] == [3, 3]


def test_backbones_leave_out_what_ends_sooner() -> None:
    assert backbones([(0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 6)]) == {(0, 2), (2, 3), (3, 4), (4, 6)}


# JSON ---------------------------------------------------------------------------------------------------------------


@given(nasty_graphs)
def test_json_has_every_edge_once_and_survives_writing(graph: Graph) -> None:
    described = view.to_json(graph)
    assert json.loads(json.dumps(described, allow_nan=False)) == described
    shown = Counter((name, f"({op['name']})") for op in described["operators"] for name in op["inputs"])
    shown += Counter((f"({op['name']})", name) for op in described["operators"] for name in op["outputs"])
    assert shown == edge_names(graph)
    assert [blob["name"] for blob in described["blobs"]] == [blob.name for blob in graph.blobs]


def test_json_of_a_small_graph_key_by_key() -> None:
    graph = Graph("small")
    w = graph.parameter("w", (2, 6), "float64", ops.Constant(0.5, (2, 6), "float64"), rate=2.0, decay=0.0)
    graph.view(w, "part", [(0, 2), (1, 4)])
    following = graph.blob("next", (2, 6), "float64")
    graph.connect([w], ops.Scale(3), [following], stream="side")
    graph.swap(w, following)
    here = {"rank": 0, "device": -1}
    whole = {"shape": [2, 6], "dtype": "float64", "location": here, "persistent": True}
    part = {"name": "part", "shape": [2, 3], "dtype": "float64", "location": here, "persistent": False}
    scale = {"name": "next", "operation": "Scale", "attributes": {"factor": 3.0}}
    initial = {"operation": "Constant", "attributes": {"value": 0.5, "shape": [2, 6], "dtype": "float64"}}
    assert view.to_json(graph) == {
        "schema": "purine-ref/graph/1",
        "name": "small",
        "blobs": [
            {"name": "w", **whole},
            {**part, "view": {"parent": "w", "box": [[0, 2], [1, 4]]}},
            {"name": "next", **whole},
        ],
        "operators": [{**scale, "inputs": ["w"], "outputs": ["next"], "location": here, "stream": "side"}],
        "pairs": [["w", "next"]],
        "parameters": [{"name": "w", "initial": initial, "rate": 2.0, "decay": 0.0}],
    }


@pytest.mark.parametrize(
    ("operation", "shapes"),
    [
        (ops.Conv2d((2, 1), ((0, 1), (2, 3)), 1, 2), [(3, 4, 9, 8), (6, 2, 3, 2)]),
        (ops.MaxPool2d(3, None, 1, "floor"), [(2, 3, 7, 9)]),
        (ops.Concat(1), [(2, 3), (2, 5)]),
        (ops.Dropout(0.25, "test", train=False), [(2, 3)]),
        (ops.LRN(5, 1, 0.75, 2), [(2, 7, 3, 4)]),
        (ops.ReduceSum(None), [(2, 3)]),
        (ops.Gaussian(shape=(2, 3), dtype="float64", stream="stream/of x", mean=1, std=1e-300), []),
        (ops.Constant(0.1, (), "float32"), []),
        (ops.Copy(Location(3, 2)), [(2, 3)]),
        (ops.WeightedSum((1, -0.5)), [(2, 3), (2, 3)]),
    ],
)
def test_attributes_come_back_with_value_and_type(operation: Operation, shapes: list[tuple[int, ...]]) -> None:
    graph = Graph()
    graph.apply(operation, [graph.blob(f"x{i}", shape) for i, shape in enumerate(shapes)], "y")
    [described] = json.loads(json.dumps(view.to_json(graph)))["operators"]
    values = {name: _frozen(value) for name, value in described["attributes"].items()}
    rebuilt = getattr(ops, described["operation"])(**values)
    assert rebuilt == graph.op("y").operation
    for field in dataclasses.fields(rebuilt):
        assert type(getattr(rebuilt, field.name)) is type(getattr(operation, field.name)), field.name


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return Location(**value)
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@dataclass(frozen=True)
class Holder(Operation):
    """{} >> Holder >> {}, with an attribute of any type."""

    value: object

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return ()


def test_json_has_words_for_what_is_not_finite_and_refuses_what_has_no_form() -> None:
    graph = Graph()
    for number, value in enumerate([float("inf"), float("-inf"), float("nan"), True, (1, (2.0, None))]):
        graph.connect([], Holder(value), [], name=f"op{number}")
    found = [op["attributes"]["value"] for op in view.to_json(graph)["operators"]]
    assert found == ["inf", "-inf", "nan", True, [1, [2.0, None]]]
    graph.connect([], Holder({1}), [], name="bad")
    message = (
        r"^operator 'bad': attribute 'value' has no JSON form: expected None, a boolean, a number, a string, a tuple "
        r"or a dataclass of these, got set \{1\}$"
    )
    with pytest.raises(GraphError, match=message):
        view.to_json(graph)


# What holds for all -------------------------------------------------------------------------------------------------

DRAW: dict[str, Callable[[Graph], str]] = {
    "text": view.text,
    "dot": view.dot,
    "svg": view.svg,
    "whole svg": lambda graph: view.svg(graph, compress=False),
    "json": lambda graph: json.dumps(view.to_json(graph)),
}


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)
def test_degenerate_graphs_are_drawn(draw: Callable[[Graph], str]) -> None:
    graph = Graph("empty")
    assert "empty" in draw(graph)
    graph.connect([], Fan(0), [], name="lone operator")
    graph.blob("lone blob", (0, 3))
    assert "lone operator" in draw(graph)
    assert "lone blob" in draw(graph)


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)
def test_control_characters_in_a_graphs_name_do_no_harm(draw: Callable[[Graph], str]) -> None:
    graph = Graph('a\n"b"\x00\x1b[31m&\ud800</svg>')
    graph.connect([], Fan(0), [], name="op", stream="\x00\n")
    drawn = draw(graph)
    drawn.encode()
    assert not set(drawn) & {"\x00", "\x1b"}
    if draw is view.svg:
        assert ElementTree.fromstring(drawn).findtext(f"{SVG}title") == 'a�"b"��[31m&�</svg>'


def digests() -> str:
    """A digest of all that is drawn of two graphs."""
    made = [lenet(), random_graph(3, 40, NASTY)]
    return hashlib.sha256("".join(draw(graph) for graph in made for draw in DRAW.values()).encode()).hexdigest()


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_drawings_are_the_same_in_every_process(hash_seed: str) -> None:
    command = [sys.executable, "-P", "-c", "import test_view; print(test_view.digests())"]
    environment = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(path for path in sys.path if path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    assert done.stdout.strip() == digests()


def chain(length: int) -> Graph:
    graph = Graph("chain")
    blob = graph.blob("x", (2, 3))
    for number in range(length):
        (blob,) = graph.apply(ops.ReLU(), [blob], f"y{number}")
    return graph


@pytest.fixture
def shallow() -> Iterator[None]:
    """Room for few calls within each other."""
    limit = sys.getrecursionlimit()
    depth = len(list(iter_frames()))
    sys.setrecursionlimit(depth + 120)
    yield
    sys.setrecursionlimit(limit)


def iter_frames() -> Iterator[Any]:
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]


@pytest.mark.usefixtures("shallow")
def test_a_long_chain_is_drawn_without_recursion() -> None:
    graph = chain(20_000)
    assert view.text(graph).count("\n") == 20_005
    assert view.dot(graph).count(" -> ") == 40_000
    assert sum(len(op["inputs"]) for op in view.to_json(graph)["operators"]) == 20_000


@pytest.mark.usefixtures("shallow")
def test_deep_names_are_drawn_without_recursion() -> None:
    graph = Graph("deep")
    graph.blob("/".join(["a"] * 400), (2,))
    assert view.dot(graph).count("subgraph") == 399
    assert set(scopes(graph).values()) == {"/".join(["a"] * 399)}


def calls(work: Callable[[], object]) -> int:
    """How many functions `work` calls: a measure of its time that no other load on the machine disturbs."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", ["text", "dot", "json"])
def test_work_is_linear(name: str) -> None:
    small, large = (calls(lambda graph=graph: DRAW[name](graph)) for graph in (chain(500), chain(2000)))
    assert large < 4.1 * small


def test_a_cycle_is_drawn_where_order_does_not_matter_and_else_an_error() -> None:
    graph = Graph("loop")
    a, b = graph.blob("a", (2,)), graph.blob("b", (2,))
    graph.connect([a], ops.ReLU(), [b], name="there")
    graph.connect([b], ops.ReLU(), [a], name="back")
    assert view.dot(graph).count(" -> ") == 4
    assert len(view.to_json(graph)["operators"]) == 2
    message = r"^graph 'loop' has a cycle: (there -> b -> back -> a -> there|back -> a -> there -> b -> back); .*$"
    for draw in (view.text, view.svg):
        with pytest.raises(CycleError, match=message):
            draw(graph)


def test_kinds_follow_what_operators_write_and_read() -> None:
    graph = lenet()
    found = kinds(graph)
    assert found[graph.op("conv1/conv")] is found[graph["conv1/weight"]] is found[graph["label"]] is Kind.FORWARD
    assert found[graph.op("loss/grad")] is found[graph["loss/grad"]] is Kind.GRADIENT
    assert found[graph.op("pool1/MaxPool2dGradient")] is found[graph["pool1/grad"]] is Kind.GRADIENT
    (kept,) = graph.apply(ops.Identity(), [graph["x"]], "kept")
    graph.swap(graph.blob("before", kept.shape), kept)
    assert kinds(graph)[graph.op("kept")] is kinds(graph)[kept] is Kind.UPDATE
    assert found[graph.op("fc1/bias/update")] is found[graph["rate"]] is found[graph["fc1/bias/history"]] is Kind.UPDATE


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (10240, "10 KiB"), (3 << 29, "1.5 GiB"), (5 << 50, "5120 TiB")],
)
def test_byte_sizes(count: int, words: str) -> None:
    assert byte_size(count) == words


# Traces -------------------------------------------------------------------------------------------------------------


def complete_events(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_simulated_run_becomes_a_trace_without_overlaps_in_a_track(threads: int) -> None:
    graph = training_graph("inception", 2, "float32")
    timeline = Simulated(graph, rates=Rates(), threads=threads).timeline
    trace = json.loads(json.dumps(view.chrome_trace(timeline), allow_nan=False))
    events = complete_events(trace)
    assert [event["name"] for event in events] == timeline.order
    assert max(event["ts"] + event["dur"] for event in events) == pytest.approx(timeline.seconds * 1e6)
    tracks: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        tracks.setdefault(event["tid"], []).append(event)
    assert len(tracks) == threads
    for track in tracks.values():
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in itertools.pairwise(track))
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert list(names.values()) == ["cpu", "cpu #2", "cpu #3"][:threads]


def test_spans_of_one_lane_take_the_first_free_track() -> None:
    spans = [
        Span("c", "l", 12.0, 13.0),
        Span("a", "l", 10.0, 12.5),
        Span("b", "l", 10.5, 11.0),
        Span("d", "m", 10.0, 10.0),
    ]
    found = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in complete_events(view.chrome_trace(spans))]
    assert found == [("a", 0, 0.0, 2.5e6), ("d", 1, 0.0, 0.0), ("b", 2, 0.5e6, 0.5e6), ("c", 2, 2e6, 1e6)]
    assert view.chrome_trace([]) == {"displayTimeUnit": "ms", "traceEvents": []}


@pytest.mark.parametrize("executor", [Serial, Threaded])
def test_a_recorder_sees_every_operator_of_every_run(executor: type[Serial] | type[Threaded]) -> None:
    graph = Graph("two")
    x = graph.blob("x", (2, 3))
    (y,) = graph.apply(ops.ReLU(), [x], "y")
    graph.apply(ops.Sum(), [y, x], "z")
    recorder = view.TraceRecorder()
    with executor(graph, observer=recorder) as run:
        run.feed({"x": np.ones((2, 3), "float32")})
        run.run()
        run.run()
    assert [span.op for span in recorder.spans] == ["y", "z", "y", "z"]
    assert all(a.end <= b.start and a.start <= a.end for a, b in itertools.pairwise(recorder.spans))
    assert len(complete_events(view.chrome_trace(recorder.spans))) == 4


def test_a_recorder_closes_the_span_of_what_failed() -> None:
    recorder = view.TraceRecorder()
    graph = Graph()
    graph.connect([], Fan(0), [], name="bad")
    recorder.failed(graph.op("bad"), 1.0, ValueError("before it started"))
    assert recorder.spans == ()
    recorder.started(graph.op("bad"), 2.0)
    recorder.failed(graph.op("bad"), 3.5, ValueError("while it ran"))
    assert [(span.op, span.start, span.end) for span in recorder.spans] == [("bad", 2.0, 3.5)]


def test_every_model_is_drawn_in_all_formats() -> None:
    for name in MODELS:
        graph = MODELS[name](2)
        for draw in DRAW.values():
            assert name.partition("-")[0] in draw(graph)
