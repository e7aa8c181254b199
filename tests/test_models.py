"""The networks: their sizes as published, and that each runs forward and backward."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from purine_ref import models, optim
from purine_ref.errors import GraphError
from purine_ref.executors import Memory, Serial, Threaded
from purine_ref.gradients import backward
from purine_ref.graph import Graph
from purine_ref.ops import LRN, SGD, Dropout

GOOGLENET_LIMIT = 60.0
"""Seconds of the processor that one GoogLeNet of batch 2 may take to build, run forward and run backward."""

DIGITS = ("nin-digits", "lenet-digits", "mlp-digits", "autoencoder-digits")


def operations(graph: Graph, kind: type[Any]) -> list[Any]:
    """All operations of one kind in a graph."""
    return [op.operation for op in graph.ops if isinstance(op.operation, kind)]


def feed_noise(run: Serial | Threaded, graph: Graph) -> None:
    """Images drawn from a seed; labels 3, 7, 3, 7, ..."""
    x = graph["x"]
    run.feed(x=np.random.default_rng(6).standard_normal(x.shape).astype(x.dtype))
    if "label" in graph:
        run.feed(label=np.resize(np.array([3, 7]), graph["label"].shape))


def run_both_ways(graph: Graph) -> tuple[float, dict[str, np.ndarray]]:
    """The loss, and the gradient of each parameter."""
    gradients = backward(graph["loss"])
    with Threaded(graph, threads=2, seed=1) as run:
        feed_noise(run, graph)
        run.run()
        return float(run.fetch("loss")), {blob.name: run.fetch(gradient.name) for blob, gradient in gradients.items()}


@pytest.mark.parametrize(
    ("build", "tensors", "elements"),
    [
        (models.nin, 18, 966_986),
        (models.googlenet, 116, 6_998_552),
        (partial(models.googlenet, with_lrn=True), 116, 6_998_552),
        (models.lenet, 8, 431_080),
        (models.MODELS["nin-digits"], 18, 17_862),
        (models.MODELS["lenet-digits"], 8, 13_706),
        (models.mlp, 6, 17_226),
        (models.autoencoder, 12, 10_480),
        (models.inception_module, 12, 163_696),
    ],
)
def test_a_network_has_as_many_parameters_as_published(
    build: Callable[..., Graph], tensors: int, elements: int
) -> None:
    """NIN on CIFAR-10, GoogLeNet without auxiliary heads, and Caffe's LeNet have these numbers elsewhere too."""
    parameters = build(2).parameters
    assert len(parameters) == tensors
    assert sum(blob.tensor.size for blob in parameters) == elements


@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        (models.nin, {
            "x": (3, 3, 32, 32), "nin1/conv/relu": (3, 192, 32, 32), "nin1/cccp2/relu": (3, 96, 32, 32),
            "nin1/pool": (3, 96, 16, 16), "nin2/cccp2/relu": (3, 192, 16, 16), "nin2/pool": (3, 192, 8, 8),
            "nin3/cccp2/bias_added": (3, 10, 8, 8), "pool": (3, 10, 1, 1), "logits": (3, 10), "loss": (),
        }),
        (models.googlenet, {
            "conv1/relu": (3, 64, 112, 112), "pool1": (3, 64, 56, 56), "conv2/relu": (3, 192, 56, 56),
            "pool2": (3, 192, 28, 28), "inception_3a/concat": (3, 256, 28, 28), "inception_3b/concat": (3, 480, 28, 28),
            "pool3": (3, 480, 14, 14), "inception_4a/concat": (3, 512, 14, 14), "inception_4e/concat": (3, 832, 14, 14),
            "pool4": (3, 832, 7, 7), "inception_5b/concat": (3, 1024, 7, 7), "pool5": (3, 1024, 1, 1),
            "classes/bias_added": (3, 1000), "loss": (), "accuracy": (),
        }),
        (models.lenet, {
            "conv1/bias_added": (3, 20, 24, 24), "pool1": (3, 20, 12, 12), "conv2/bias_added": (3, 50, 8, 8),
            "pool2": (3, 50, 4, 4), "fc1/relu": (3, 500), "fc2/bias_added": (3, 10),
        }),
        (models.autoencoder, {
            "flat": (3, 64), "encode1/sigmoid": (3, 48), "encode3/sigmoid": (3, 16), "decode1/sigmoid": (3, 64),
        }),
    ],
)  # fmt: skip
def test_known_layers_have_their_shapes(build: Callable[..., Graph], shapes: dict[str, tuple[int, ...]]) -> None:
    graph = build(3, dtype="float64")
    assert {name: graph[name].shape for name in shapes} == shapes
    assert {blob.dtype for blob in graph.blobs if blob.tensor.is_float} == {"float64"}


@pytest.mark.parametrize("with_lrn", [False, True])
def test_googlenet_runs_forward_and_backward(with_lrn: bool) -> None:
    """Batch 2 of 224x224: a finite loss, and a finite gradient that is not all 0 for each of 116 parameters."""
    begun = time.process_time()
    graph = models.googlenet(2, with_lrn=with_lrn)
    assert len(operations(graph, LRN)) == (2 if with_lrn else 0)
    loss, gradients = run_both_ways(graph)
    assert time.process_time() - begun < GOOGLENET_LIMIT
    assert np.isfinite(loss)
    assert len(gradients) == 116
    check_gradients(gradients)


@pytest.mark.parametrize("name", [name for name in models.MODELS if name != "googlenet"])
def test_every_network_runs_forward_and_backward(name: str) -> None:
    loss, gradients = run_both_ways(models.MODELS[name](2))
    assert np.isfinite(loss)
    check_gradients(gradients)


def check_gradients(gradients: dict[str, np.ndarray]) -> None:
    """Each finite, of float32, and somewhere not 0."""
    for name, gradient in gradients.items():
        assert gradient.dtype == "float32", name
        assert np.isfinite(gradient).all(), name
        assert gradient.any(), name


@pytest.mark.parametrize("name", [name for name in models.MODELS if "digits" in name or name == "nin"])
def test_the_testing_form_has_the_same_parameters_and_draws_nothing(name: str) -> None:
    build = models.MODELS[name]
    training, testing = build(3), build(3, train=False)
    assert {blob.name: blob.tensor for blob in training.parameters} == {
        blob.name: blob.tensor for blob in testing.parameters
    }
    assert testing.initial == training.initial
    assert not [op.name for op in testing.ops if not op.inputs]
    dropouts = operations(testing, Dropout)
    assert len(dropouts) == len(operations(training, Dropout)) == (2 if "nin" in name else 0)
    assert not any(dropout.train for dropout in dropouts)
    assert all(dropout.train for dropout in operations(training, Dropout))


def test_the_testing_form_passes_dropout_by() -> None:
    graph = models.MODELS["nin-digits"](3, train=False)
    with Serial(graph) as run:
        feed_noise(run, graph)
        run.run()
        for block in ("nin1", "nin2"):
            np.testing.assert_array_equal(run.fetch(f"{block}/drop/dropout"), run.fetch(f"{block}/pool"))


def test_two_forms_share_parameters_through_one_memory() -> None:
    """The testing form sees what the training form learnt."""
    memory = Memory()
    training, testing = models.training_graph("mlp-digits", 4, "float32"), models.mlp(6, train=False)
    with Serial(training, seed=2, memory=memory) as trainer, Serial(testing, seed=2, memory=memory) as tester:
        feed_noise(trainer, training)
        trainer.feed(rate=np.array(0.1, "float32"))
        before = tester.fetch("fc1/weight")
        trainer.run()
        assert (tester.fetch("fc1/weight") != before).any()
        np.testing.assert_array_equal(tester.fetch("fc1/weight"), trainer.fetch("fc1/weight"))


def test_the_classes_of_a_nin_learn_at_a_tenth_of_the_rate() -> None:
    graph = models.nin(2)
    slow = {name: pair for name, pair in graph.multipliers.items() if pair[0] < 1}
    assert slow == {"nin3/cccp2/weight": (0.1, 1.0), "nin3/cccp2/bias": (0.2, 0.0)}
    assert "nin3/cccp2/relu" not in graph


def test_a_stage_of_an_autoencoder_is_one_layer_over_those_before() -> None:
    whole, stage = models.autoencoder(4), models.autoencoder(4, stage=2)
    names = [f"{part}/{kind}" for part in ("encode1", "encode2", "decode2") for kind in ("weight", "bias")]
    assert [blob.name for blob in stage.parameters] == names
    for name in names:
        assert stage[name].tensor == whole[name].tensor
        assert stage.initial[name] == whole.initial[name]
    loss = stage.op("loss")
    assert [blob.name for blob in loss.inputs] == ["decode2/sigmoid", "encode1/sigmoid"]
    assert [blob.name for blob in whole.op("loss").inputs] == ["decode1/sigmoid", "flat"]


@pytest.mark.parametrize("stage", [0, 4, -1])
def test_a_stage_that_is_not_there_is_refused(stage: int) -> None:
    with pytest.raises(GraphError, match=rf"^autoencoder: expected a stage from 1 to 3, got {stage}$"):
        models.autoencoder(4, stage=stage)


def test_a_training_graph_updates_every_parameter() -> None:
    graph = models.training_graph("lenet-digits", 4, "float64", momentum=0.5, decay=0.25)
    updates = {op.name: op.operation for op in graph.ops if isinstance(op.operation, SGD)}
    assert updates == {
        f"{layer}/{name}/update": operation
        for layer in ("conv1", "conv2", "fc1", "fc2")
        for name, operation in (("weight", SGD(0.5, 0.25, 1.0)), ("bias", SGD(0.5, 0.0, 2.0)))
    }
    assert graph[optim.RATE].dtype == "float64"


def test_a_network_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(GraphError, match=rf"^no model 'alexnet'; there are {', '.join(models.MODELS)}$"):
        models.training_graph("alexnet", 4, "float32")
