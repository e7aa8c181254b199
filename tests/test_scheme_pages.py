"""The pages on schemes: their formulas of bytes moved hold for real graphs, their pictures and tables are complete.

The letters of a formula are counted here from the serial graph alone, never from the copies that a composition made.
"""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from purine_ref.conformance import parse_scheme, scheme_forms
from purine_ref.graph import Blob, Graph
from purine_ref.models import training_graph
from purine_ref.ops import Conv2d, Linear, SoftmaxCrossEntropy, TopKAccuracy
from purine_ref.parallel import Data, Pipeline, Placed, Refiner, compose
from purine_ref.parallel.phases import FORWARD, phases
from purine_ref.parallel.traffic import moved, transfers
from purine_ref.tensor import Location

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {file.stem: file.read_text("utf-8") for file in sorted((DOCS / "schemes").glob("*.md"))}


def load_figures() -> ModuleType:
    """The module that makes the pictures; it lies beside Sphinx's configuration, outside any package."""
    spec = importlib.util.spec_from_file_location("scheme_figures", DOCS / "scheme_figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["scheme_figures"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


figures = load_figures()

Network = Callable[[], Graph]


def model(name: str) -> Network:
    return lambda: training_graph(name, 7, "float32")


DIGITS = (model("mlp-digits"), model("lenet-digits"))
CHAINS = (figures.two_layers, figures.convolution_and_linear)


def formulas() -> dict[str, str]:
    """Every row of the tables of bytes moved: the scheme as the page has it, and its formula."""
    found: dict[str, str] = {}
    for text in PAGES.values():
        for table in re.findall(r"^\| scheme \| bytes moved in a run \|\n\|-+\|-+\|\n((?:\|.*\n)+)", text, re.M):
            rows = re.findall(r"^\| (.+) \| `([^`]+)` \|$", table, re.M)
            assert len(rows) == table.count("\n")
            found |= dict(rows)
    return found


FORMULAS = formulas()


@dataclass(frozen=True)
class Case:
    """A row of a page's table, how to count the bytes that a real graph moves, and the letters of the row's formula."""

    row: str
    count: Callable[[], float]
    letters: dict[str, float]

    def __str__(self) -> str:
        return f"{self.row}: {self.letters}"


# Letters ------------------------------------------------------------------------------------------------------------


def size(blobs: list[Blob]) -> int:
    return sum(blob.tensor.nbytes for blob in blobs)


def common(graph: Graph) -> dict[str, float]:
    """P, S and s."""
    scalars = [b for b in graph.blobs if not b.shape and b.producers and b.name in ("loss", "accuracy")]
    return {"P": size(graph.parameters), "S": size(scalars), "s": 4}


def first_share(blob: Blob, axis: int, parts: int) -> int:
    """The bytes of the first of nearly equal parts of a blob."""
    return blob.tensor.nbytes // blob.shape[axis] * math.ceil(blob.shape[axis] / parts)


def channel_letters(graph: Graph, parts: int) -> dict[str, float]:
    """A, A0, Z, Y, Y0 and s."""
    products = [op for op in graph.ops if isinstance(op.operation, Conv2d | Linear)]
    inner = [op.inputs[0] for op in products if op.inputs[0].producers]
    scores = [op.inputs[0] for op in graph.ops if isinstance(op.operation, SoftmaxCrossEntropy)]
    return {
        "N": parts,
        "A": size(inner),
        "A0": sum(first_share(blob, 1, parts) for blob in inner),
        "Z": size([op.outputs[0] for op in products]),
        "Y": size(scores),
        "Y0": sum(first_share(blob, 1, parts) for blob in scores),
        "s": 4,
    }


def crossing(graph: Graph, place_of: Callable[[str], int]) -> float:
    """B: what forward operators make at one place, once for every other place where forward operators read it."""
    forward = set(phases(graph).forward)
    total = 0
    for op in forward:
        for blob in op.outputs:
            readers = {place_of(reader.name) for reader, _ in blob.consumers if reader in forward}
            total += blob.tensor.nbytes * len(readers - {place_of(op.name)})
    return total


# Cases --------------------------------------------------------------------------------------------------------------


def total(graph: Graph) -> int:
    return sum(moved(graph).values())


def under(scheme: str, network: Network) -> Callable[[], int]:
    return lambda: total(parse_scheme(f"{scheme}@ranks").compose(network()))


def thread_cases() -> Iterator[Case]:
    for network in DIGITS:
        yield Case("`threads:N`", under("threads:3", network), {})


def data_cases() -> Iterator[Case]:
    for network in (*DIGITS, *CHAINS, figures.one_layer):
        for count in (1, 2, 3, 5):
            letters = {**common(network()), "N": count}
            for words in ("", ",server", ",tree", ",ring"):
                if count == 1 and words == ",ring":
                    continue
                yield Case(f"`data:N{words}`", under(f"data:{count}{words}", network), letters)


def ranks_cases() -> Iterator[Case]:
    """Between ranks alone, with several places on each."""
    for network in (*DIGITS, figures.two_layers):
        for ranks, devices in ((2, 2), (3, 2), (2, 3)):
            row = "`data:N`, between ranks, N places on each of R"
            letters = {**common(network()), "R": ranks, "N": devices}
            yield Case(row, partial(between_ranks, network, ranks, devices), letters)


def between_ranks(network: Network, ranks: int, devices: int) -> int:
    places = [Location(rank, device) for rank in range(ranks) for device in range(devices)]
    found = transfers(compose(network(), [Data(ranks * devices)], places))
    return sum(each.bytes for each in found if each.source.rank != each.target.rank)


def sender_cases() -> Iterator[Case]:
    """The most that one place sends of the gradient of `fc1/weight`, of 128 rows."""
    rows = {"": "`data:N`, the most that one place sends of the gradient of one parameter",
            ",ring": "`data:N,ring`, the same, where N divides the parameter's rows"}  # fmt: skip
    for words, row in rows.items():
        for count in (2, 4):
            yield Case(row, partial(most_sent, f"data:{count}{words}@ranks"), {"N": count, "G": 4 * 128 * 64})


def most_sent(scheme: str) -> int:
    sent: Counter[Location] = Counter()
    for each in transfers(parse_scheme(scheme).compose(model("mlp-digits")())):
        if each.blob.startswith("fc1/weight/grad"):
            sent[each.source] += each.bytes
    return max(sent.values())


def model_cases() -> Iterator[Case]:
    for count in (2, 3):
        for network in (*CHAINS, *DIGITS):
            letters = channel_letters(network(), count)
            row = "`model:N`, softmax loss" if letters["Y"] else "`model:N`, squared error"
            yield Case(row, under(f"model:{count}", network), letters)
        for network in (figures.two_layers, model("nin")):  # digits have one channel, which cannot be divided
            yield Case("`model:N,input`", under(f"model:{count},input", network), channel_letters(network(), count))


def pipeline_cases() -> Iterator[Case]:
    for network in (figures.two_layers, *DIGITS):
        for stages in (2, 3):
            graph = network()
            pipeline = Pipeline(stages, 1)
            cut = crossing(graph, lambda name, p=pipeline, g=graph: p.stage_of(g, g.op(name)))
            for micro in (1, 2, 4):
                yield Case("`pipeline:SxM`", under(f"pipeline:{stages}x{micro}", network), {"B": cut})
            for count in (2, 3):
                letters = {**common(graph), "N": count, "B": cut}
                scheme = f"data:{count}/pipeline:{stages}x2"
                yield Case("`data:N/pipeline:SxM`", under(scheme, network), letters)


def hybrid_cases() -> Iterator[Case]:
    network = figures.convolution_and_linear
    graph = network()
    features = graph.op("y").inputs[0]
    for groups, parts in ((1, 2), (2, 3), (3, 2), (1, 4), (1, 1), (6, 1)):
        first = math.ceil(6 / (groups * parts)) * groups / 6
        letters = {
            "D": groups,
            "M": parts,
            "C": graph["w1"].tensor.nbytes,
            "W": graph["w2"].tensor.nbytes,
            "F": features.tensor.nbytes,
            "F0": features.tensor.nbytes * first,
            "s": 4,
        }
        yield Case("`hybrid:DxM`", under(f"hybrid:{groups}x{parts}", network), letters)


def placed_cases() -> Iterator[Case]:
    for patterns in ({"y": 1, "loss": 1}, {"y": 1}, {"r": 1, "loss": 1}):
        graph = figures.two_layers()
        refiner: Refiner = Placed(2, patterns)
        composed = partial(compose, graph, [refiner], [Location(0), Location(1)])
        letters = {"B": crossing(graph, lambda name, p=patterns: p.get(name, 0))}
        yield Case("`Placed`", lambda c=composed: total(c()), letters)


CASES = [
    *thread_cases(), *data_cases(), *ranks_cases(), *sender_cases(), *model_cases(), *pipeline_cases(), *hybrid_cases(),
    *placed_cases(),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_formula_gives_the_bytes_that_a_graph_moves(case: Case) -> None:
    assert eval(FORMULAS[case.row], {"__builtins__": {}}, case.letters) == case.count()


def test_every_formula_is_checked_and_explained() -> None:
    assert {case.row for case in CASES} == set(FORMULAS)
    letters = {letter for formula in FORMULAS.values() for letter in re.findall(r"[A-Za-z]\w*", formula)}
    for letter in letters - {"N", "R", "D", "M"}:  # these are numbers of places, as the schemes are written
        assert any(re.search(rf"`{letter}`(?:, `\w+`)?(?:\s|\|)", text) for text in PAGES.values()), letter


# Figures ------------------------------------------------------------------------------------------------------------


def test_every_scheme_has_a_page_with_a_picture_and_what_it_moves() -> None:
    names = {form.partition(":")[0] for form in scheme_forms()} - {"serial", "captured"}
    assert names | {"placed", "data-pipeline", "index"} == set(PAGES)
    for name in names | {"placed", "data-pipeline"}:
        assert f"{{figure}} made/{name}.svg" in PAGES[name]
        assert "| scheme | bytes moved in a run |" in PAGES[name]


def test_pages_show_all_that_is_made_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MADE", tmp_path / "made")
    figures.write_all()
    made = {file.name for file in (tmp_path / "made").iterdir()}
    texts = [*PAGES.values(), (DOCS / "gpu.md").read_text("utf-8").replace("schemes/made/", "made/")]
    shown = {name for text in texts for name in re.findall(r"^```\{\w+\} made/(\S+)$", text, re.M)}
    assert shown <= made
    assert {name for name in made - shown if name.endswith(".svg")} == set()


def test_a_table_of_what_moved_is_the_graphs_own_count() -> None:
    for figure in figures.FIGURES.values():
        graph = figure.graph()
        rows = [line.split(" | ") for line in figures.moved_table(graph).splitlines()[2:]]
        counts = [int(re.sub(r"\D", "", row[-1])) for row in rows]
        assert counts[-1] == sum(counts[:-1]) == total(graph)


def test_the_orders_of_a_pipeline_have_every_part_once_and_backward_parts_after_their_forward_ones() -> None:
    rows = figures.order_table(figures.two_layers, 3, 4).splitlines()[2:]
    assert len(rows) == 6
    for row in rows:
        words = row.split(" | ")[2].removesuffix(" |").split()
        assert sorted(words) == [f"{letter}{number}" for letter in "BF" for number in range(4)]
        assert all(words.index(f"F{number}") < words.index(f"B{number}") for number in range(4))
    assert rows[5] == "| 1f1b | 2 | F0 B0 F1 B1 F2 B2 F3 B3 |"


def test_the_pictures_networks_are_small_and_trained_to_the_end() -> None:
    for figure in figures.FIGURES.values():
        graph = figure.network()
        assert len(graph.ops) <= 14
        assert FORWARD in phases(graph).phase.values()
        assert not any(isinstance(op.operation, TopKAccuracy) for op in graph.ops)
