"""Fusing: the same bits from fewer operators (rule R8), and everything else of the graph carried over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hooks import bits
from purine_ref import layers, models, optim
from purine_ref.conformance.bounded import Bounded, SerialStep, held_by
from purine_ref.conformance.bounds import spread
from purine_ref.conformance.session import Session
from purine_ref.devices import cpu_devices
from purine_ref.executors import Executor, Serial, Threaded
from purine_ref.fusing import fuse, vanished
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph
from purine_ref.operation import RunKey
from purine_ref.ops import Bias, BiasGradient, Copy, Gaussian, ReLU, Scale, Tanh
from purine_ref.parallel import Data, Model, compose
from purine_ref.tensor import Location
from random_networks import random_network

BATCH = {"inception": 2}


def kinds(graph: Graph) -> list[str]:
    """The operations' names, in order."""
    return [op.operation.name for op in graph.ops]


def layer(activation: str | None = "relu") -> Graph:
    """A layer with an update."""
    graph = Graph("layer")
    y = layers.conv(graph.blob("x", (2, 3, 5, 4)), 6, kernel=3, activation=activation, bias=0.25, name="conv")
    loss = layers.squared_error(y, graph.blob("target", y.shape))
    optim.sgd(backward(loss), decay=0.1)
    return graph


def feeds(graph: Graph) -> dict[str, Any]:
    """Values for what no operator writes."""
    rng = np.random.default_rng(5)
    found: dict[str, Any] = {}
    for blob in graph.blobs:
        if blob.producers or blob.persistent or blob.view is not None:
            continue
        drawn = rng.standard_normal(blob.shape) if blob.tensor.is_float else rng.integers(0, 3, blob.shape)
        found[blob.name] = np.asarray(0.01 if blob.name == "rate" else drawn).astype(blob.dtype)
    return found


def ran(executor: Executor, fed: dict[str, Any]) -> dict[str, bytes]:
    """The bits of all blobs after two runs."""
    with executor:
        executor.feed(fed)
        executor.run()
        executor.run()
        return bits(executor)


def same_bits(graph: Graph, fused: Graph, fed: dict[str, Any], **keywords: Any) -> None:
    """Every blob of the fused graph has the bits that it had."""
    want = ran(Serial(graph, seed=4, **keywords), fed)
    for executor in (Serial(fused, seed=4, **keywords), Threaded(fused, seed=4, threads=2, **keywords)):
        got = ran(executor, fed)
        assert {name: want[name] for name in got if name in want} == {n: got[n] for n in got if n in want}
        assert set(want) - set(got) <= {*vanished(graph), *(b.name for b in executor.plan.lost)}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", ["lenet-digits", "nin-digits", "mlp-digits", "autoencoder-digits", "inception"])
def test_r8_all_models_give_the_same_bits(model: str, dtype: str) -> None:
    graph = models.training_graph(model, BATCH.get(model, 6), dtype)
    fused = fuse(graph)
    pairs = kinds(graph).count("ReLU")
    assert kinds(fused).count("BiasReLU") == kinds(fused).count("BiasReLUGradient") == pairs
    assert len(fused.ops) == len(graph.ops) - 2 * pairs
    for kernels in ("numpy", "plain"):
        same_bits(graph, fused, feeds(graph), devices=cpu_devices(kernels))


@pytest.mark.parametrize("kernels", ["plain", "numpy"])
def test_r8_what_is_shared_among_threads_gives_the_same_bits(kernels: str) -> None:
    """Tensors that are large enough to be cut into pieces."""
    graph = Graph("large")
    y = layers.conv(graph.blob("x", (9, 3, 70, 60)), 8, kernel=1, activation="relu", name="conv")
    backward(layers.squared_error(y, graph.blob("target", y.shape), reduction="sum"))
    same_bits(graph, fuse(graph), feeds(graph), devices=cpu_devices(kernels, threads=3))


@given(seed=st.integers(0, 10**6))
def test_r8_random_networks_give_the_same_bits(seed: int) -> None:
    net = random_network(seed)
    fused = fuse(net.graph)
    same_bits(net.graph, fused, net.feed())
    assert {blob.name for blob in net.graph.blobs} - {blob.name for blob in fused.blobs} == {*vanished(net.graph)}


def test_what_is_carried_over() -> None:
    graph = layer()
    fused = fuse(graph)
    assert vanished(graph) == ["conv/bias_added"]
    assert "conv/bias_added" not in fused
    assert [(p.name, p.tensor) for p in fused.parameters] == [(p.name, p.tensor) for p in graph.parameters]
    assert (fused.initial, fused.multipliers) == (graph.initial, graph.multipliers)
    assert [(a.name, b.name) for a, b in fused.pairs] == [(a.name, b.name) for a, b in graph.pairs]
    assert all(blob.graph is fused for pair in fused.pairs for blob in pair)
    gradient = fused.op("conv/bias_added/BiasGradient")
    assert (gradient.operation.name, gradient.of) == ("BiasReLUGradient", fused.op("conv/relu"))
    assert [blob.name for blob in gradient.outputs] == ["conv/bias_added/grad", "conv/bias/grad"]
    assert len(graph.ops) == 2 + len(fused.ops)  # the graph itself is as it was


def test_fusing_twice_changes_nothing_more() -> None:
    fused = fuse(layer())
    assert kinds(fuse(fused)) == kinds(fused)


def test_a_kept_blob_stays() -> None:
    fused = fuse(layer(), keep=["conv/bias_added"])
    assert "BiasReLU" not in kinds(fused)
    assert "BiasReLUGradient" in kinds(fused)
    assert vanished(layer(), keep=["conv/bias_added"]) == []


def sums(**keywords: Any) -> tuple[Graph, Blob]:
    """x + bias, in a graph of its own."""
    graph = Graph("sums")
    (y,) = graph.apply(Bias(), [graph.blob("x", (2, 3)), graph.blob("b", (3,))], "y", **keywords)
    return graph, y


def test_what_others_have_to_do_with_is_not_fused() -> None:
    """A second reader, another activation, a second producer, a view, another stream, and what outlives the run."""
    graph, y = sums()
    graph.apply(ReLU(), [y], "z")
    assert kinds(fuse(graph)) == ["BiasReLU"]
    graph.apply(Tanh(), [y], "other")
    assert kinds(fuse(graph)) == ["Bias", "ReLU", "Tanh"]
    graph, y = sums()
    graph.apply(Tanh(), [y], "z")
    assert kinds(fuse(graph)) == ["Bias", "Tanh"]
    graph, y = sums()
    graph.connect([graph["x"]], Scale(2.0), [y])
    graph.apply(ReLU(), [y], "z")
    assert kinds(fuse(graph)) == ["Bias", "Scale", "ReLU"]
    graph, y = sums()
    graph.connect([y], ReLU(), [graph.view(y, "z")], name="z")
    assert kinds(fuse(graph)) == ["Bias", "ReLU"]
    assert fuse(graph)["z"].view is not None
    graph, y = sums(stream="side")
    graph.apply(ReLU(), [y], "z")
    assert kinds(fuse(graph)) == ["Bias", "ReLU"]
    graph, y = sums()
    graph.apply(ReLU(), [y], "z")
    graph.swap(graph.blob("before", y.shape), y)
    assert kinds(fuse(graph)) == ["Bias", "ReLU"]


def test_a_fused_operator_stays_where_its_blobs_are() -> None:
    graph, y = sums()
    (there,) = graph.apply(Copy(Location(1)), [y], "there")
    (moved,) = graph.apply(Bias(), [there, graph.blob("b1", (3,), location=Location(1))], "moved")
    graph.apply(ReLU(), [moved], "z", location=Location(1))
    assert [(op.operation.name, op.location) for op in fuse(graph).ops][-1] == ("BiasReLU", Location(1))


def test_r4_the_order_of_producers_stays() -> None:
    """The gradient of a bias that is used twice has two producers; and so has what two ReLUs write."""
    graph = Graph("shared bias")
    bias, total = graph.parameter("b", (3,), "float32", Gaussian((3,))), graph.blob("total", (2, 3))
    for number in (1, 2):
        (y,) = graph.apply(Bias(), [graph.blob(f"x{number}", (2, 3)), bias], f"y{number}")
        graph.connect([y], ReLU(), [total], name=f"relu{number}")
    backward(layers.squared_error(total, graph.blob("target", (2, 3))))
    fused = fuse(graph)
    several = [blob for blob in graph.blobs if len(blob.producers) > 1]
    assert [blob.name for blob in several] == ["total", "b/grad"]
    for blob in several:
        assert [op.name for op, _ in fused[blob.name].producers] == [op.name for op, _ in blob.producers]
    same_bits(graph, fused, feeds(graph))


def test_r11_errors_spread_as_they_did() -> None:
    """The variances of all blobs that are left are those of the graph that was fused."""
    graph = models.training_graph("nin-digits", 4, "float32")
    fed = {name: array * 1.0 for name, array in feeds(graph).items()}
    with Serial(graph) as serial:
        state = {blob.name: serial.fetch(blob.name) for blob in graph.blobs if blob.persistent and not blob.producers}
    fed = {name: array.astype("int64") if name == "label" else array for name, array in fed.items()}
    one, two = (spread(g, {**fed, **state}, key=RunKey(0)) for g in (graph, fuse(graph)))
    for name, estimate in two.estimates.items():
        want = one.estimates[name]
        np.testing.assert_array_equal(estimate.value, want.value)
        assert (estimate.variance is None) == (want.variance is None)
        if estimate.variance is not None:
            np.testing.assert_allclose(estimate.variance, want.variance, rtol=1e-6)


@pytest.mark.parametrize(("refiner", "width"), [(Data(3), 3), (Model(2), 2)])
def test_r9_a_fused_graph_can_be_composed(refiner: Any, width: int) -> None:
    graph = fuse(models.training_graph("nin-digits", 7, "float32"))
    fed = feeds(graph)
    with Serial(graph) as serial:
        serial.feed(fed)
        held = held_by(serial)
        serial.run()
        step = SerialStep(serial, held)
    composed = compose(graph, [refiner], [Location(0)] * width)
    with Session(Threaded(composed), graph) as session:
        session.feed(fed)
        session.run()
        report = Bounded(session).compare(step)
    assert report.first is None, str(report.first)
    assert 0 < report.worst < 1


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_any_axis(axis: int) -> None:
    graph = Graph("axis")
    x = graph.parameter("x", (3, 4, 5), "float32", Gaussian((3, 4, 5)))
    bias = graph.parameter("b", (x.shape[axis],), "float32", Gaussian((x.shape[axis],)))
    (y,) = graph.apply(Bias(axis), [x, bias], "y")
    backward(layers.squared_error(graph.apply(ReLU(), [y], "z")[0], graph.blob("t", x.shape)))
    fused = fuse(graph)
    assert {"BiasReLU", "BiasReLUGradient"} <= set(kinds(fused))
    assert not any(isinstance(op.operation, BiasGradient) for op in fused.ops)
    same_bits(graph, fused, feeds(graph))
