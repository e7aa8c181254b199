"""Each rank's part of a graph: which nodes it has, what became of the copies between ranks, and what is refused."""

from __future__ import annotations

import pytest

from hooks import SHAPE, Swallow, call
from purine_ref.errors import GraphError
from purine_ref.graph import Blob, Graph, Op
from purine_ref.ops import Copy, Gaussian, Identity, Scale, Tanh
from purine_ref.ops.transfer import Receive, Send
from purine_ref.parallel.ranks import crosses, incoming, local_graph, world
from purine_ref.plan import prepare
from purine_ref.tensor import Location, Tensor


def moved(graph: Graph, blob: Blob, rank: int, name: str) -> Blob:
    """A copy of a blob at another rank's CPU."""
    return graph.apply(Copy(Location(rank)), [blob], name)[0]


def there_and_back() -> Graph:
    """x at rank 0, doubled at rank 2, and back."""
    graph = Graph("trip")
    x = graph.blob("x", (2, 3))
    (doubled,) = graph.apply(Scale(2.0), [moved(graph, x, 2, "x there")], "doubled")
    graph.apply(Tanh(), [moved(graph, doubled, 0, "back")], "y")
    return graph


def names(nodes: list[Op] | list[Blob]) -> list[str]:
    return [node.name for node in nodes]


def test_every_rank_has_its_own_nodes_under_their_names() -> None:
    graph = there_and_back()
    parts = [local_graph(graph, rank) for rank in range(world(graph))]
    assert [names(part.blobs) for part in parts] == [["x", "back", "y"], [], ["x there", "doubled"]]
    assert [names(part.ops) for part in parts] == [["x there", "back", "y"], [], ["x there", "doubled", "back"]]
    assert {part.name for part in parts} == {"trip"}
    assert names(graph.ops) == ["x there", "doubled", "back", "y"]  # as it was
    for part in parts:
        prepare(part)


def test_a_copy_between_ranks_is_a_send_and_a_receive_of_one_tag() -> None:
    graph = there_and_back()
    zero, two = local_graph(graph, 0), local_graph(graph, 2)
    assert zero.op("x there").operation == Send(2, 0)
    assert two.op("x there").operation == Receive(0, 0, (2, 3), "float32")
    assert two.op("back").operation == Send(0, 2)
    assert zero.op("back").operation == Receive(2, 2, (2, 3), "float32")
    assert [(op.location, op.stream) for op in (zero.op("x there"), zero.op("back"))] == [
        (Location(0), "outbound"),
        (Location(0), "inbound"),
    ]
    assert [(op.location, op.stream) for op in (two.op("x there"), two.op("back"))] == [
        (Location(2), "inbound"),
        (Location(2), "outbound"),
    ]
    assert incoming(zero) == {(2, 2): Tensor((2, 3), "float32", Location(0))}
    assert incoming(two) == {(0, 0): Tensor((2, 3), "float32", Location(2))}


def test_a_copy_may_be_at_either_end() -> None:
    graph = Graph("ends")
    x = graph.blob("x", (2, 3))
    for number, place in enumerate((Location(0), Location(1))):
        y = graph.blob(f"y{number}", (2, 3), location=Location(1))
        graph.connect([x], Copy(Location(1)), [y], location=place)
    assert [op.operation.name for op in local_graph(graph, 0).ops] == ["Send", "Send"]
    assert [op.operation.name for op in local_graph(graph, 1).ops] == ["Receive", "Receive"]


def test_only_copies_to_another_rank_cross() -> None:
    graph = Graph("crossing")
    x = graph.blob("x", (2, 3))
    near = graph.apply(Copy(Location(0, 0)), [x], "device")[0]
    graph.apply(Copy(), [near], "same place")
    graph.connect([x], Swallow(lambda x: None), [], name="sink")
    graph.apply(Gaussian((2, 3)), [], "source")
    moved(graph, x, 1, "rank")
    assert [op.name for op in graph.ops if crosses(op)] == ["rank"]


def test_r4_edges_keep_their_order() -> None:
    """The second of three producers comes from another rank; the sum is added up in that order all the same."""
    graph = Graph("sum")
    total = graph.blob("total", SHAPE, "float64")
    far = graph.blob("far", SHAPE, "float64", Location(1))
    near = [call(graph, name) for name in ("a", "c")]
    graph.connect([near[0]], Identity(), [total], name="first")
    graph.connect([far], Copy(Location(0)), [total], name="second")
    graph.connect([near[1]], Identity(), [total], name="third")
    local = local_graph(graph, 0)
    assert names([op for op, _ in local["total"].producers]) == ["first", "second", "third"]


def test_parameters_pairs_and_views_are_kept() -> None:
    graph = Graph("kept")
    for rank in (0, 1):
        with graph.scope(f"r{rank}"):
            w = graph.parameter(
                "w", (4, 3), "float32", Gaussian((4, 3)), rate=2.0, decay=0.0, location=Location(rank)
            )
            new = graph.blob("new", (4, 3), location=Location(rank))
            graph.connect([w], Scale(0.5), [new])
            graph.swap(w, new)
            graph.apply(Tanh(), [graph.view(w, "rows", [(1, 3), (0, 3)])], "seen")
    for rank in (0, 1):
        local = local_graph(graph, rank)
        assert names(local.blobs) == [f"r{rank}/{name}" for name in ("w", "new", "rows", "seen")]
        assert [(a.name, b.name) for a, b in local.pairs] == [(f"r{rank}/w", f"r{rank}/new")]
        assert [blob.persistent for blob in local.blobs] == [True, True, False, False]
        assert local.initial == {f"r{rank}/w": graph.initial[f"r{rank}/w"]}
        assert local.multipliers == {f"r{rank}/w": (2.0, 0.0)}
        view = local[f"r{rank}/rows"].view
        assert view is not None
        assert (view.parent, view.box) == (local[f"r{rank}/w"], ((1, 3), (0, 3)))
        prepare(local)


def test_operators_keep_their_streams_draws_and_what_they_are_the_gradient_of() -> None:
    graph = Graph("details")
    noise = graph.blob("noise", (2, 3), location=Location(1))
    draw = graph.connect([], Gaussian((2, 3)), [noise], name="draw", stream="side")
    back = graph.blob("back", (2, 3), location=Location(1))
    graph.connect([noise], Scale(3.0), [back], name="gradient", of=draw)
    away = moved(graph, back, 0, "away")
    graph.connect([away], Tanh(), [graph.blob("t", (2, 3))], name="t", of=draw)
    local = local_graph(graph, 1)
    assert local.op("draw").operation == Gaussian((2, 3), stream="draw")
    assert local.op("draw").stream == "side"
    assert local.op("gradient").of is local.op("draw")
    assert local_graph(graph, 0).op("t").of is None  # what it belongs to is on another rank


@pytest.mark.parametrize("device", ["source", "target"])
def test_only_memory_of_cpus_is_sent(device: str) -> None:
    graph = Graph("devices")
    places = (Location(0, 0), Location(1)) if device == "source" else (Location(0), Location(1, 0))
    x = graph.blob("x", (2, 3), location=places[0])
    graph.apply(Copy(places[1]), [x], "y", stream="outbound")
    place = str(places[0])
    message = (
        f"operator 'y' \\(Copy\\) at {place}, inputs: x float32\\[2, 3\\] goes to {places[1]}: only memory of CPUs is "
        "sent from rank to rank, so copy to the CPU first, and from the CPU after it"
    )
    for rank in (0, 1):
        with pytest.raises(GraphError, match=f"^{message}$"):
            local_graph(graph, rank)


def test_the_world_has_the_highest_rank_and_at_least_one() -> None:
    assert world(Graph("empty")) == 1
    graph = Graph("one")
    graph.blob("x", (2, 3), location=Location(3))
    assert world(graph) == 4
    assert [len(local_graph(graph, rank).blobs) for rank in range(4)] == [0, 0, 0, 1]
