"""Composition: what a composed graph computes (R9), what it copies and where, and what it refuses."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest

from hooks import bits
from purine_ref import layers, optim
from purine_ref.conformance.exact_feeds import ExactFeeds
from purine_ref.conformance.session import Session, part_of
from purine_ref.conformance.stand_ins import exact_form
from purine_ref.devices import CpuDevice
from purine_ref.devices.virtual import VirtualMachine
from purine_ref.errors import GraphError
from purine_ref.executors import Memory, Serial, Simulated, Threaded, simulate
from purine_ref.executors.ranks import Ranks
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph
from purine_ref.models import MODELS, training_graph
from purine_ref.ops import Constant, Copy, Linear, ReduceSum, Scale, SoftmaxCrossEntropy, SquaredError, Sum
from purine_ref.parallel import (
    Composed,
    Data,
    Hybrid,
    Model,
    Network,
    Pipeline,
    Placed,
    Refiner,
    compose,
    pipeline_ranks,
)
from purine_ref.parallel.fetching import incoming, prefetch
from purine_ref.parallel.phases import BACKWARD, FORWARD, phases
from purine_ref.parallel.pipeline import balanced, micro_batches
from purine_ref.parallel.traffic import moved, transfers
from purine_ref.plan import prepare
from purine_ref.tensor import Location
from purine_ref.traversal import needed

CPU = CpuDevice()
"""Stands for every device: what a composed graph computes does not depend on what its places are."""

REDUCTIONS = ("central", "tree", "ring")


def ranks(count: int) -> list[Location]:
    return [Location(rank) for rank in range(count)]


def devices(count: int, rank: int = 0) -> list[Location]:
    return [Location(rank, device) for device in range(count)]


def tiny(dtype: str = "float64", batch: int = 8) -> Graph:
    """A convolution, a pool, two linear layers: all dimensions different."""
    graph = Graph("tiny")
    x, label = graph.blob("x", (batch, 3, 6, 5), dtype), graph.blob("label", (batch,), "int64")
    h = layers.conv(x, 7, kernel=3, pad=1, activation="relu", name="conv1")
    h = layers.max_pool(h, kernel=2, name="pool1")
    h = layers.dropout(h, ratio=0.5, name="drop1")
    h = layers.linear(h, 9, activation="relu", name="fc1")
    layers.softmax_loss(layers.linear(h, 4, name="fc2"), label)
    return graph


SCHEMES: list[tuple[str, list[Refiner], list[Location]]] = [
    ("data:1", [Data(1)], ranks(1)),
    ("data:3", [Data(3)], ranks(3)),
    ("data by sizes", [Data(3, sizes=(1, 5, 2))], devices(3)),
    ("server", [Data(2, update="server")], ranks(2)),
    ("server elsewhere", [Data(3, update="server", server=2)], ranks(3)),
    ("server by parameter", [Data(3, updates={"fc1/*": "server:1", "*/bias": "server"})], devices(3)),
    ("model:2", [Model(2)], ranks(2)),
    ("model:3 uneven", [Model(3)], devices(3)),
    ("model by input", [Model(2, "input", {"conv1/weight": "input", "fc1/weight": "output"})], ranks(2)),
    ("pipeline:2x4", [Pipeline(2, 4)], ranks(2)),
    ("pipeline uneven", [Pipeline(3, 3, sizes=(1, 4, 3))], devices(3)),
    ("pipeline given", [Pipeline(2, 2, begins=("fc1/*",))], ranks(2)),
    ("hybrid:2x2", [Hybrid(2, 2)], ranks(4)),
    ("data over pipeline", [Data(2), Pipeline(2, 3)], [*devices(2), *devices(2, rank=1)]),
    ("data over pipeline over model", [Data(2), Pipeline(2, 2), Model(2)], [*devices(4), *devices(4, rank=1)]),
    ("placed", [Placed(2, {"fc*": 1})], ranks(2)),
    ("one place", [Data(3)], [Location()] * 3),
]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("refiners", "places"), [s[1:] for s in SCHEMES], ids=[s[0] for s in SCHEMES])
def test_r9_every_scheme_equals_the_serial_graph_to_the_bit_in_exact_mode(
    refiners: list[Refiner], places: list[Location], reduction: str
) -> None:
    graph = exact_form(tiny())
    rng = np.random.default_rng(5)
    batches = rng.random((3, *graph["x"].shape))
    feeds = ExactFeeds(graph, lambda step: batches[step], seed=3)
    composed = compose(graph, refiners, places, reduction=reduction)
    stale = {following.name for _, following in graph.pairs}
    threaded = Threaded(composed, threads=3, seed=7, devices=lambda _: CPU)
    with Serial(graph, seed=7) as serial, Session(threaded, graph) as session:
        for step in range(3):
            arrays = feeds(step, serial)
            serial.feed(arrays)
            serial.run()
            session.feed(arrays)
            session.run()
            assert any(serial.fetch(f"{blob.name}/grad").any() for blob in graph.parameters)
            for blob in graph.blobs:
                for piece, array in session.pieces(blob.name) if blob.name not in stale else ():
                    np.testing.assert_array_equal(array, part_of(serial.fetch(blob.name), piece.box), blob.name)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_r8_replicas_hold_the_same_bits_after_50_iterations(reduction: str) -> None:
    graph = tiny("float32", batch=10)
    optim.sgd(backward(graph["loss"]), decay=1e-3)
    composed = compose(graph, [Data(3)], ranks(3), reduction=reduction)
    rng = np.random.default_rng(0)
    with Session(Threaded(composed, threads=2), graph) as session:
        for _ in range(50):
            x = rng.standard_normal(graph["x"].shape).astype("float32")
            session.feed({"x": x, "label": rng.integers(0, 4, 10), "rate": np.float32(0.05)})
            session.run()
        for blob in graph.parameters:
            held = [array for _, array in session.pieces(blob.name)]
            assert len(held) == 3
            assert all(array.tobytes() == held[0].tobytes() for array in held)
            assert np.isfinite(held[0]).all()


def test_r8_what_ends_first_changes_no_sum() -> None:
    """In any order of the operators the bits are the same, though every other order of the terms gives others."""
    graph = Graph("case")
    x, w = graph.blob("x", (4, 3)), graph.blob("w", (5, 3), persistent=True)
    (y,) = graph.apply(Linear(), [x, w], "y")
    (loss,) = graph.apply(ReduceSum(), [y], "loss")
    backward(loss, [w])
    graph.apply(Scale(1.0), [graph["w/grad"]], "used")
    values = np.outer([1e8, 1, -1e8, 3], [1, 2, 3]).astype("float32")
    rng = np.random.default_rng(4)
    for reduction in REDUCTIONS:
        composed = compose(graph, [Data(4)], ranks(4), reduction=reduction)
        found = set()
        for _ in range(6):
            order = Simulated(composed, seconds=rng.random(len(composed.ops)).tolist()).timeline.order
            with Session(Serial(composed, order=order), graph) as session:
                session.feed({"x": values, "w": np.ones((5, 3), "float32")})
                session.run()
                found.add(tuple(sorted(bits(session.executor).items())))
        assert len(found) == 1, reduction


@pytest.mark.parametrize("refiner", [Data(2), Model(2), Model(2, "input"), Pipeline(2, 2), Hybrid(2, 2)], ids=repr)
def test_r7_pieces_of_parameters_begin_as_the_parts_of_the_serial_ones(refiner: Refiner) -> None:
    graph = tiny()
    composed = compose(graph, [refiner], ranks(refiner.width))
    with Serial(graph, seed=6) as serial, Session(Serial(composed, seed=6), graph) as session:
        for blob in graph.parameters:
            whole = serial.fetch(blob.name)
            assert whole.any() or blob.name.endswith("bias")
            for piece, array in session.pieces(blob.name):
                np.testing.assert_array_equal(array, part_of(whole, piece.box), blob.name)


def test_a_composition_can_be_composed_again() -> None:
    graph = tiny()
    optim.sgd(backward(graph["loss"]))
    once = compose(graph, [Data(2)], ranks(2))
    twice = compose(once, [Pipeline(2, 2)], ranks(4))
    at_once = compose(graph, [Data(2), Pipeline(2, 2)], ranks(4))
    assert [op.name for op in twice.ops] == [op.name for op in at_once.ops]
    assert twice.serial is graph


# Copies ---------------------------------------------------------------------------------------------------------------


def test_nothing_is_copied_where_the_place_is_the_same() -> None:
    graph = tiny()
    optim.sgd(backward(graph["loss"]))
    for refiners in ([Data(3)], [Model(2)], [Pipeline(2, 2)], [Hybrid(2, 2)]):
        width = int(np.prod([refiner.width for refiner in refiners]))
        composed = compose(graph, refiners, [Location()] * width)
        assert not any(isinstance(op.operation, Copy) for op in composed.ops)


@pytest.mark.parametrize(("refiners", "places"), [s[1:] for s in SCHEMES], ids=[s[0] for s in SCHEMES])
def test_a_blob_is_copied_once_to_each_destination_along_the_routes(
    refiners: list[Refiner], places: list[Location]
) -> None:
    graph = tiny()
    optim.sgd(backward(graph["loss"]))
    composed = compose(graph, refiners, places)
    made = [(op.inputs[0], op.outputs[0].location) for op in composed.ops if isinstance(op.operation, Copy)]
    assert len(made) == len(set(made))
    for op in composed.ops:
        if isinstance(op.operation, Copy):
            source, target = op.inputs[0].location, op.outputs[0].location
            assert source != target
            if source.rank != target.rank:
                assert source.is_cpu
                assert target.is_cpu
            elif source.is_cpu:
                assert (op.location, op.stream) == (target, "inbound")
            else:
                assert (op.location, op.stream) == (source, "outbound")


def test_one_transfer_per_remote_rank_then_local_fan_out() -> None:
    graph = Graph("fan")
    x = graph.blob("x", (4, 3))
    (y,) = graph.apply(Scale(2.0), [x], "y")
    for name in ("a0", "a1", "b0", "b1"):
        graph.apply(Scale(3.0), [y], name)
    places = [Location(), *devices(2, rank=1), *devices(2, rank=2)]
    composed = compose(graph, [Placed(5, {"a0": 1, "a1": 2, "b0": 3, "b1": 4})], places)
    crossing = [t for t in transfers(composed) if t.source.rank != t.target.rank]
    assert sorted((t.source.rank, t.target.rank) for t in crossing) == [(0, 1), (0, 2)]
    assert len(transfers(composed)) == 2 + 4


def test_aggregation_adds_within_a_rank_first_and_sends_one_sum_per_rank() -> None:
    graph = Graph("sum")
    x, w = graph.blob("x", (8, 3)), graph.parameter("w", (5, 3), "float32", Constant(1.0, (5, 3), "float32"))
    (y,) = graph.apply(Linear(), [x, w], "y")
    (loss,) = graph.apply(ReduceSum(), [y], "loss")
    backward(loss)
    composed = compose(graph, [Data(4, update="server")], [Location(0), Location(0, 0), *devices(2, rank=1)])
    crossing = [t for t in transfers(composed) if t.source.rank != t.target.rank and t.bytes == w.tensor.nbytes]
    assert [(t.source.rank, t.target.rank) for t in crossing] == [(1, 0)]


@pytest.mark.parametrize(("reduction", "factor"), [("central", 2 * 3), ("tree", 2 * 3), ("ring", 2 * 3)])
def test_data_parallel_moves_every_gradient_out_and_back(reduction: str, factor: int) -> None:
    """All three move 2 (N - 1) times the parameters in all; the ring spreads it evenly over the places."""
    graph = Graph("net")
    x, label = graph.blob("x", (8, 8)), graph.blob("label", (8,), "int64")
    layers.softmax_loss(layers.linear(x, 16, name="fc"), label)
    optim.sgd(backward(graph["loss"]))
    composed = compose(graph, [Data(4)], ranks(4), reduction=reduction)
    sizes = sum(blob.tensor.nbytes for blob in graph.parameters)
    of_parameters = [t for t in transfers(composed) if "fc" in t.blob]
    assert sum(t.bytes for t in of_parameters) == factor * sizes
    if reduction == "ring":
        assert len({total for pair, total in moved(composed).items() if pair[1].rank == (pair[0].rank + 1) % 4}) <= 2


def updates(composed: Composed) -> dict[str, list[Location]]:
    """Where the parameters are updated, by the serial operator's name."""
    found: dict[str, list[Location]] = {}
    for op, (serial, _) in composed.origin.items():
        if phases(composed.serial).phase[serial] == "update":
            found.setdefault(serial.name, []).append(op.location)
    return found


def test_a_parameter_server_is_at_any_place_for_any_parameter() -> None:
    graph = tiny()
    optim.sgd(backward(graph["loss"]))
    how = Data(3, update="server", server=2, updates={"fc1/*": "server:1", "fc2/weight": "replicated"})
    composed = compose(graph, [how], ranks(3))
    at = updates(composed)
    assert at["conv1/weight/update"] == at["fc2/bias/update"] == [Location(2)]
    assert at["fc1/weight/update"] == at["fc1/bias/update"] == [Location(1)]
    assert at["fc2/weight/update"] == ranks(3)
    gradients = [t for t in transfers(composed) if t.blob.startswith("conv1/weight/grad")]
    assert {(t.source, t.target) for t in gradients} == {(Location(0), Location(2)), (Location(1), Location(2))}


def test_the_update_of_a_layer_starts_as_soon_as_its_gradient_exists() -> None:
    """Overlap is a matter of the graph: nothing of the first layer's gradient comes before the last layer's update."""
    graph = tiny()
    optim.sgd(backward(graph["loss"]))
    composed = compose(graph, [Data(2)], ranks(2))
    plan = prepare(composed, lambda _: CPU)
    timeline = simulate(plan, [1.0] * len(composed.ops), threads=1)
    start = {span.op: span.start for span in timeline.spans}
    for rank in ("", "@r1"):
        assert start[f"fc2/weight/update{rank}"] < start[f"conv1/weight/update{rank}"]
    before, _ = needed([composed["fc2/weight/next"]])
    assert not any(blob.name.startswith("conv1/weight/grad") for blob in before)


def test_activations_stay_split_where_the_next_layer_takes_them_split() -> None:
    graph = Graph("two")
    x, target = graph.blob("x", (5, 6), "float64"), graph.blob("target", (5, 3), "float64")
    h = layers.linear(x, 8, activation="relu", name="fc1")
    layers.squared_error(layers.linear(h, 3, name="fc2"), target)
    split = compose(graph, [Model(2, layers={"fc2/weight": "input"})], ranks(2))
    gathered = compose(graph, [Model(2)], ranks(2))
    moves = [{re.split(r"[\[@~]", t.blob)[0] for t in transfers(c)} for c in (split, gathered)]
    assert moves == [{"fc2/linear"}, {"fc1/relu", "loss"}]


@pytest.mark.parametrize("refiners", [[Data(2)], [Pipeline(2, 3)], [Data(2), Model(2)]], ids=["data", "pipe", "grid"])
def test_r8_every_executor_gives_the_same_bits_for_a_composed_graph(refiners: list[Refiner]) -> None:
    graph = tiny("float32")
    optim.sgd(backward(graph["loss"]))
    places = ranks(int(np.prod([refiner.width for refiner in refiners])))
    composed = compose(graph, refiners, places, reduction="tree")
    rng = np.random.default_rng(2)
    arrays = {"x": rng.random((8, 3, 6, 5), "float32"), "label": rng.integers(0, 4, 8), "rate": np.float32(0.1)}
    makers = [Serial, partial(Threaded, threads=4), partial(Simulated, threads=3), partial(Ranks, threads=2)]
    held: list[dict[str, bytes]] = []
    for make in makers:
        with Session(make(composed, seed=3), graph) as session:
            for _ in range(2):
                session.feed(arrays)
                session.run()
            pieces = [pair for blob in graph.blobs for pair in session.pieces(blob.name)]
            held.append({piece.blob.name: array.tobytes() for piece, array in pieces})
    assert all(each == held[0] for each in held)
    assert len(held[0]) > len(graph.blobs)


@pytest.mark.parametrize("virtual", [False, True])
def test_the_next_batch_is_fetched_beside_the_run(virtual: bool) -> None:
    """Two graphs alternate (R6): while one computes, the other copies the next batch in, and then they are swapped."""
    graph = tiny("float32")
    optim.sgd(backward(graph["loss"]))
    places = devices(2) if virtual else ranks(2)
    plain, fetched = compose(graph, [Data(2)], places), compose(graph, [Data(2)], places)
    fetch = prefetch(fetched, ["x", "label"])
    rng = np.random.default_rng(0)
    batches = [(rng.random((8, 3, 6, 5), "float32"), rng.integers(0, 4, 8)) for _ in range(5)]
    machine = VirtualMachine(seed=1)
    where = {"devices": machine.device} if virtual else {"devices": lambda _: CPU}
    memory = Memory()
    with (
        Session(Serial(plain, devices=lambda _: CPU), graph) as expected,
        Session(Threaded(fetched, memory=memory, **where), graph) as main,
        Serial(fetch, memory=memory, **where) as ahead,
    ):
        ahead.feed(incoming(fetched, x=batches[0][0], label=batches[0][1]))
        ahead.run()
        for number, (x, label) in enumerate(batches):
            expected.feed({"x": x, "label": label, "rate": np.float32(0.1)})
            expected.run()
            main.feed({"rate": np.float32(0.1)})
            main.executor.run_async()
            following = batches[(number + 1) % len(batches)]
            ahead.feed(incoming(fetched, x=following[0], label=following[1]))
            ahead.run_async()
            main.executor.sync()
            ahead.sync()
            for name in ("loss", "conv1/weight", "fc2/bias/grad"):
                for (_, got), (_, want) in zip(main.pieces(name), expected.pieces(name), strict=True):
                    assert got.tobytes() == want.tobytes()
    assert machine.races == []
    machine.close()


# Public cases -----------------------------------------------------------------------------------------------------


def _weighted(samples: np.ndarray, reduction: str, refiner: Refiner, places: list[Location]) -> float:
    """d/dw of the loss 0.5 (w x)^2 over samples, w = 1, in a composed graph."""
    graph = Graph("case")
    x = graph.blob("x", (len(samples), 1), "float64")
    w = graph.blob("w", (1, 1), "float64", persistent=True)
    target = graph.blob("target", (len(samples), 1), "float64")
    (y,) = graph.apply(Linear(), [x, w], "y")
    (loss,) = graph.apply(SquaredError(reduction), [y, target], "loss")
    backward(loss, [w])
    composed = compose(graph, [refiner], places)
    with Session(Serial(composed, devices=lambda _: CPU), graph) as session:
        session.feed({"x": samples.reshape(-1, 1), "w": np.ones((1, 1)), "target": np.zeros((len(samples), 1))})
        session.run()
        return float(next(array for _, array in session.pieces("w/grad"))[0, 0])


@pytest.mark.parametrize("sizes", [(3, 1), (1, 3), (2, 2)])
def test_dp_01_gradients_are_weighted_by_samples(sizes: tuple[int, int]) -> None:
    samples = np.array([1.0, 2.0, 3.0, 10.0])
    assert _weighted(samples, "mean", Data(2, sizes=sizes), ranks(2)) == 28.5
    samples = np.sqrt(np.array([1.0, 5.0, 5.0, 5.0]))  # machine 1 has a replica with gradient 1, machine 2 three with 5
    places = [Location(0), *devices(3, rank=1)]
    assert _weighted(samples, "mean", Data(4), places) == pytest.approx(4.0, abs=1e-15)
    samples = np.array([-1.0, 2.0, -3.0, 4.0]) * np.sqrt(2)  # the loss is then (w x)^2
    assert _weighted(samples, "sum", Data(2, sizes=sizes), ranks(2)) == pytest.approx(60.0, abs=1e-13)
    assert _weighted(samples, "mean", Data(2, sizes=sizes), ranks(2)) == pytest.approx(15.0, abs=1e-14)


@pytest.mark.parametrize(("micro", "sizes"), [(1, None), (2, None), (2, (3, 1)), (4, None), (3, (1, 1, 2))])
def test_dp_03_micro_batches_combine_to_the_whole_batch(micro: int, sizes: tuple[int, ...] | None) -> None:
    samples = np.array([1.0, 2.0, 3.0, 10.0])
    assert _weighted(samples, "mean", Pipeline(1, micro, sizes=sizes), ranks(1)) == 28.5
    accumulated = np.sqrt(np.array([1.0, 3.0, 5.0, 7.0]))
    assert _weighted(accumulated, "mean", Pipeline(1, micro, sizes=sizes), ranks(1)) == pytest.approx(4.0, abs=1e-14)


@pytest.mark.parametrize(("reduction", "expected"), [("central", 1.0), ("tree", 0.0)])
def test_dp_07_every_rank_holds_the_sum_in_one_fixed_order(reduction: str, expected: float) -> None:
    graph = Graph("case")
    x, w = graph.blob("x", (4, 1)), graph.blob("w", (1, 1), persistent=True)
    (y,) = graph.apply(Linear(), [x, w], "y")
    (loss,) = graph.apply(ReduceSum(), [y], "loss")
    backward(loss, [w])
    graph.apply(Scale(1.0), [graph["w/grad"]], "used")
    composed = compose(graph, [Data(4)], ranks(4), reduction=reduction)
    for threads in (1, 4):
        with Session(Threaded(composed, threads=threads), graph) as session:
            values = np.array([[1e8], [1], [-1e8], [1]], "float32")
            session.feed({"x": values, "w": np.ones((1, 1), "float32")})
            session.run()
            used = [float(array[0, 0]) for _, array in session.pieces("used")]
            assert used == [expected] * 4


def test_dp_09_replicas_have_the_slices_of_the_serial_mask() -> None:
    graph = tiny()
    composed = compose(graph, [Data(4)], ranks(4))
    with Serial(graph, seed=40) as serial, Session(Serial(composed, seed=40), graph) as session:
        arrays = {"x": np.ones(graph["x"].shape), "label": np.zeros(8, "int64")}
        for _ in range(2):
            serial.feed(arrays)
            serial.run()
            session.feed(arrays)
            session.run()
            mask = serial.fetch("drop1/mask")
            parts = {piece.box[0]: array for piece, array in session.pieces("drop1/mask")}
            assert sorted(parts) == [(0, 2), (2, 4), (4, 6), (6, 8)]
            for (start, stop), part in parts.items():
                np.testing.assert_array_equal(part, mask[start:stop])
            assert len({part.tobytes() for part in parts.values()}) == 4


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refiner", "message"),
    [
        (Data(9), r"^a batch of 8 cannot be divided over 9 replicas: use fewer, or a larger batch$"),
        (Pipeline(2, 9), r"^a batch of 8 cannot be divided over 9 micro-batches: use fewer, or a larger batch$"),
        (Model(5), r"^operator 'fc2/linear' .*: 4 channels cannot be divided into 5 parts$"),
        (Pipeline(40, 2), r"^graph 'tiny' has \d+ forward operators, too few for 40 stages$"),
        (Data(2, sizes=(3, 3)), r"^parts of \[3, 3\] do not divide 8$"),
        (Placed(2, {"fc9*": 1}), r"^pattern 'fc9\*' matches no operator of graph 'tiny'$"),
        (Pipeline(2, 2, begins=("fc9",)), r"^graph 'tiny' has no forward operator 'fc9' for a stage to begin at$"),
        (Pipeline(3, 2, begins=("fc2*", "fc1*")), r"^stages must begin one after the other, got .*$"),
    ],
)
def test_a_scheme_that_does_not_fit_is_refused_before_anything_runs(refiner: Refiner, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        compose(tiny(), [refiner], ranks(refiner.width))


def test_refiners_refuse_what_means_nothing() -> None:
    with pytest.raises(GraphError, match=r"^data parallelism needs 1 replica or more, got 0$"):
        Data(0)
    with pytest.raises(GraphError, match=r"^update must be 'replicated', 'server' or .* K below 2, got 'both'$"):
        Data(2, update="both")
    with pytest.raises(GraphError, match=r"^update must be 'replicated', 'server' or .* K below 2, got 'server:2'$"):
        Data(2, updates={"fc*": "server:2"})
    with pytest.raises(GraphError, match=r"^a pipeline needs 1 stage and 1 micro-batch or more, got 0x2$"):
        Pipeline(0, 2)
    with pytest.raises(GraphError, match=r"^a weight is divided by 'output' or 'input', or left 'whole'; got 'rows'$"):
        Model(2, "rows")
    with pytest.raises(GraphError, match=r"^pattern 'a' has place 2, but there are places 0 to 1$"):
        Placed(2, {"a": 2})
    with pytest.raises(GraphError, match=r"^graph 'tiny': the scheme needs 2 places, got 3$"):
        compose(tiny(), [Data(2)], ranks(3))
    with pytest.raises(GraphError, match=r"^reduction must be one of central, tree, ring, got 'star'$"):
        compose(tiny(), [Data(2)], ranks(2), reduction="star")


def test_a_mean_over_an_unknown_number_of_samples_is_refused() -> None:
    graph = Graph("ignoring")
    x, label = graph.blob("x", (6, 4)), graph.blob("label", (6,), "int64")
    graph.apply(SoftmaxCrossEntropy("mean", ignore=3), [x, label], "loss")
    message = r"^operator 'loss' .* cannot be divided along the batch, which 'x' has: use .*$"
    with pytest.raises(GraphError, match=message):
        compose(graph, [Data(2)], ranks(2))


# Structure --------------------------------------------------------------------------------------------------------


def test_several_edges_that_lie_differently_are_added_at_the_first_ones_places() -> None:
    """y is read whole by one operator and by parts by another, so its gradient comes in both forms."""
    graph = Graph("mixed")
    x, w = graph.blob("x", (6, 5), "float64"), graph.blob("w", (4, 5), "float64", persistent=True)
    v = graph.blob("v", (3, 4), "float64", persistent=True)
    (y,) = graph.apply(Linear(), [x, w], "y")
    (z,) = graph.apply(Linear(), [y, v], "z")
    (a,) = graph.apply(ReduceSum(), [z], "a")
    (b,) = graph.apply(ReduceSum(), [y], "b")
    (loss,) = graph.apply(Sum(), [a, b], "loss")
    backward(loss, [x, w, v])
    composed = compose(graph, [Placed(2, {"b": 1, "z": 0}), Data(2)], ranks(4))
    rng = np.random.default_rng(1)
    arrays = {b.name: rng.integers(-3, 4, b.shape).astype("float64") for b in (x, w, v)}
    with Serial(graph) as serial, Session(Threaded(composed), graph) as session:
        serial.feed(arrays)
        serial.run()
        session.feed(arrays)
        session.run()
        for name in ("x/grad", "w/grad", "v/grad", "loss"):
            for piece, array in session.pieces(name):
                np.testing.assert_array_equal(array, part_of(serial.fetch(name), piece.box), name)


def test_krizhevskys_hybrid_divides_connected_weights_within_a_group() -> None:
    """Of every convolution each place has all, of every fully connected layer the part that is its own in its group."""
    composed = compose(tiny(), [Hybrid(2, 2)], ranks(4))
    boxes = {
        name: {piece.location.rank: piece.box[0] for piece in composed.pieces[name]}
        for name in ("conv1/weight", "conv1/bias", "fc1/weight", "fc1/bias", "fc2/weight")
    }
    assert boxes["conv1/weight"] == boxes["conv1/bias"] == dict.fromkeys(range(4), (0, 7))
    assert boxes["fc1/weight"] == boxes["fc1/bias"] == {0: (0, 5), 1: (5, 9), 2: (0, 5), 3: (5, 9)}
    assert boxes["fc2/weight"] == {0: (0, 2), 1: (2, 4), 2: (0, 2), 3: (2, 4)}


def test_phases_and_leaders() -> None:
    graph = tiny()
    optim.sgd(backward(graph["loss"]))
    found = phases(graph)
    assert found.phase[graph.op("fc1/linear")] == FORWARD
    assert found.phase[graph.op("drop1/mask")] == FORWARD
    assert found.phase[graph["loss/grad"].producers[0][0]] == BACKWARD
    assert found.phase[graph.op("fc1/weight/update")] == "update"
    assert found.leader[graph.op("fc1/weight/update")] is graph.op("fc1/linear")
    assert found.leader[graph.op("fc1/linear/LinearDataGradient")] is graph.op("fc1/linear")


@pytest.mark.parametrize(
    ("work", "parts", "starts"),
    [([1, 1, 1, 1], 2, [2]), ([9, 1, 1, 1], 2, [1]), ([1, 1, 1, 9], 2, [3]), ([1, 2], 2, [1]), ([0, 0, 5], 3, [1, 2])],
)
def test_stages_are_balanced(work: list[int], parts: int, starts: list[int]) -> None:
    assert balanced(work, parts) == starts


def test_schedules_of_a_pipeline_are_only_ranks() -> None:
    """GPipe: all forward parts, then all backward ones. 1F1B (2 stages, 4 micro-batches): as in the literature."""
    composed = compose(training_graph("mlp-digits", 8, "float32"), [Pipeline(2, 4)], ranks(2))
    sequences = {kind: _sequences(composed, kind) for kind in ("gpipe", "1f1b")}
    assert sequences["gpipe"] == ["F0 F1 F2 F3 B0 B1 B2 B3"] * 2
    assert sequences["1f1b"] == ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]
    with pytest.raises(GraphError, match=r"^ranks need a pipeline and 'gpipe' or '1f1b'; graph 'mlp' got 'other'$"):
        pipeline_ranks(composed, "other")


def _sequences(composed: Composed, kind: str) -> list[str]:
    pipeline = composed.refiners[0]
    assert isinstance(pipeline, Pipeline)
    ranked = pipeline_ranks(composed, kind)
    found: dict[int, dict[float, str]] = {0: {}, 1: {}}
    for op, (serial, micro) in micro_batches(composed, pipeline).items():
        phase = phases(composed.serial).phase[serial]
        if micro is not None and phase in (FORWARD, BACKWARD):
            stage = pipeline.stage_of(composed.serial, serial)
            found[stage][ranked[op.index]] = f"{phase[0].upper()}{micro}"
    return [" ".join(text for _, text in sorted(found[stage].items())) for stage in (0, 1)]


def test_the_same_dimension_is_found_across_operators() -> None:
    graph = tiny()
    backward(graph["loss"])
    network = Network(graph)
    names = ("x", "conv1/relu", "fc2/bias_added", "fc1/relu/grad", "label")
    batch: list[Blob] = [graph[name] for name in names]
    assert len({network.class_of(blob, 0) for blob in batch}) == 1
    ends = {"conv1/weight": 0, "conv1/bias": 0, "pool1": 1, "conv1/weight/grad": 0}
    channels = [(graph[name], axis) for name, axis in ends.items()]
    assert len({network.class_of(*pair) for pair in channels}) == 1
    assert network.batch_size == 8


@pytest.mark.parametrize("name", ["nin-digits", "lenet-digits", "mlp-digits", "autoencoder-digits"])
def test_the_models_compose(name: str) -> None:
    graph = MODELS[name](12, dtype="float32")
    optim.sgd(backward(graph["loss"]))
    for refiner in (Data(5), Pipeline(3, 4), Hybrid(2, 2), Model(2)):
        composed = compose(graph, [refiner], ranks(refiner.width))
        assert len(composed.parameters) >= len(graph.parameters)
