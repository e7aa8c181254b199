"""Layers: what each builds, under which names, with which initial values; and what each refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from purine_ref import layers
from purine_ref.errors import GraphError, ShapeError
from purine_ref.executors import Serial
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph
from purine_ref.ops import (
    LRN,
    AveragePool2d,
    Bernoulli,
    Bias,
    Concat,
    Constant,
    Conv2d,
    Dropout,
    GlobalAveragePool2d,
    Linear,
    MaxPool2d,
    ReLU,
    Reshape,
    Sigmoid,
    Softmax,
    SoftmaxCrossEntropy,
    SquaredError,
    Tanh,
    TopKAccuracy,
)
from purine_ref.tensor import Location

IMAGES = (5, 4, 7, 6)


def images(dtype: str = "float64", shape: tuple[int, ...] = IMAGES) -> Blob:
    """The blob `x` of a new graph."""
    return Graph("net").blob("x", shape, dtype)


def initial(graph: Graph, name: str, seed: int = 0) -> np.ndarray:
    """What a blob holds before the first run."""
    with Serial(graph, seed=seed) as executor:
        return executor.fetch(name)


def test_a_convolution_names_what_it_makes_after_itself() -> None:
    y = layers.conv(images(), 8, kernel=(3, 2), stride=(2, 1), pad=(1, 0), groups=2, activation="relu", name="a/conv")
    graph = y.graph
    assert [blob.name for blob in graph.blobs] == [
        "x", "a/conv/weight", "a/conv/bias", "a/conv/conv", "a/conv/bias_added", "a/conv/relu",
    ]  # fmt: skip
    assert graph["a/conv/weight"].shape == (8, 2, 3, 2)
    assert graph["a/conv/bias"].shape == (8,)
    assert (y.name, y.shape, y.dtype) == ("a/conv/relu", (5, 8, 4, 5), "float64")
    assert [op.operation for op in graph.ops] == [Conv2d((2, 1), (1, 0), 1, 2), Bias(), ReLU()]


def test_a_linear_layer_flattens_its_input() -> None:
    y = layers.linear(images("float32"), 9, name="fc")
    graph = y.graph
    assert [blob.name for blob in graph.blobs] == ["x", "fc/weight", "fc/bias", "fc/linear", "fc/bias_added"]
    assert graph["fc/weight"].shape == (9, 4 * 7 * 6)
    assert (y.name, y.shape, y.dtype) == ("fc/bias_added", (5, 9), "float32")
    assert [op.operation for op in graph.ops] == [Linear(), Bias()]


def test_the_bias_moves_twice_as_fast_and_does_not_decay() -> None:
    x = images()
    layers.linear(layers.conv(x, 3, kernel=2, rate=0.25, name="slow"), 2, name="fc")
    assert x.graph.multipliers == {
        "slow/weight": (0.25, 1.0), "slow/bias": (0.5, 0.0), "fc/weight": (1.0, 1.0), "fc/bias": (2.0, 0.0),
    }  # fmt: skip


def test_a_layer_is_where_its_input_is() -> None:
    place = Location(rank=2)
    x = Graph("far").blob("x", IMAGES, "float64", place)
    layers.dropout(layers.conv(x, 3, kernel=2, activation="tanh", name="conv"), name="drop")
    assert {blob.location for blob in x.graph.blobs} == {place}
    assert {op.location for op in x.graph.ops} == {place}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_initial_values_depend_on_seed_and_name_alone(dtype: str) -> None:
    """R7: neither on what else is in the graph, nor on the order of building."""
    alone, among = images(dtype), images(dtype)
    layers.conv(alone, 8, kernel=3, bias=0.5, name="one")
    layers.linear(layers.conv(among, 8, kernel=3, name="other"), 11, name="fc")
    layers.conv(among, 8, kernel=3, bias=0.5, name="one")
    weight = initial(alone.graph, "one/weight")
    assert weight.dtype == dtype
    assert weight.tobytes() == initial(among.graph, "one/weight").tobytes()
    assert (initial(among.graph, "other/weight") != weight).mean() > 0.99
    assert (initial(alone.graph, "one/weight", seed=1) != weight).mean() > 0.99
    np.testing.assert_array_equal(initial(alone.graph, "one/bias"), np.full(8, 0.5, dtype))


def test_weights_start_with_the_deviation_that_is_asked_for() -> None:
    """Of n draws the sample deviation has relative deviation sqrt(1/2n), so 5 of these is never passed by chance."""
    x = images(shape=(5, 12, 9, 10))
    layers.conv(x, 70, kernel=(3, 4), groups=2, name="conv")
    layers.linear(x, 13, std=0.125, name="fc")
    for name, deviation in (("conv/weight", np.sqrt(2 / (6 * 3 * 4))), ("fc/weight", 0.125)):
        weight = initial(x.graph, name)
        slack = 5 / np.sqrt(2 * weight.size)
        assert abs(weight.std() / deviation - 1) < slack
        assert abs(weight.mean() / deviation) < 5 / np.sqrt(weight.size)


def test_a_convolution_layer_and_its_gradients_agree_with_torch() -> None:
    """On small integers every sum is exact, so in any order it has the same bits (R10)."""
    rng = np.random.default_rng(1)
    x = images()
    y = layers.conv(x, 6, kernel=(2, 3), stride=2, pad=1, groups=2, activation="relu", name="conv")
    target = x.graph.blob("target", y.shape, "float64")
    backward(layers.squared_error(y, target, reduction="sum"), [x, *x.graph.parameters])
    names = ("x", "conv/weight", "conv/bias", "target")
    values = {name: rng.integers(-3, 4, x.graph[name].shape).astype("float64") for name in names}
    with Serial(x.graph) as executor:
        executor.feed(values)
        executor.run()
        got = {name: executor.fetch(name) for name in (y.name, *(f"{name}/grad" for name in names[:3]))}

    tensors = {name: torch.tensor(value, requires_grad=name != "target") for name, value in values.items()}
    want = torch.relu(
        torch.nn.functional.conv2d(tensors["x"], tensors["conv/weight"], tensors["conv/bias"], 2, 1, 1, 2)
    )
    (((want - tensors["target"]) ** 2).sum() / 2).backward()
    np.testing.assert_array_equal(got[y.name], want.detach().numpy())
    for name in names[:3]:
        np.testing.assert_array_equal(got[f"{name}/grad"], tensors[name].grad.numpy(), err_msg=name)


def test_a_linear_layer_agrees_with_torch() -> None:
    rng = np.random.default_rng(2)
    y = layers.linear(images(), 9, name="fc")
    names = ("x", "fc/weight", "fc/bias")
    values = {name: rng.integers(-3, 4, y.graph[name].shape).astype("float64") for name in names}
    with Serial(y.graph) as executor:
        executor.feed(values)
        executor.run()
        got = executor.fetch(y.name)
    x, weight, bias = (torch.tensor(value) for value in values.values())
    np.testing.assert_array_equal(got, torch.nn.functional.linear(x.flatten(1), weight, bias).numpy())


@pytest.mark.parametrize("kind", ["relu", "sigmoid", "tanh"])
def test_an_activation_in_place_takes_the_memory_and_keeps_the_gradient(kind: str) -> None:
    """R5: `x -> fc -> activation` in place and not, the same bits forward and backward."""
    rng = np.random.default_rng(3)
    values = rng.standard_normal(IMAGES)
    results = []
    for in_place in (False, True):
        x = images()
        h = layers.linear(x, 9, name="fc")
        y = layers.activation(h, kind, in_place=in_place, name="act")
        assert (y.view is not None and y.view.parent is h) == in_place
        backward(layers.squared_error(y, x.graph.blob("target", y.shape, "float64")))
        with Serial(x.graph) as executor:
            executor.feed(x=values)
            executor.run()
            results.append([executor.fetch(name).tobytes() for name in (y.name, "fc/weight/grad", "fc/bias/grad")])
            if in_place:
                with pytest.raises(GraphError, match=r"^blob 'fc/bias_added' was overwritten in place: .*$"):
                    executor.fetch(h.name)
    assert y.name == f"act/{kind}"
    assert results[0] == results[1]


Build = Callable[[Blob], Blob]


@pytest.mark.parametrize(
    ("build", "operation", "shape"),
    [
        (lambda x: layers.max_pool(x, kernel=3, stride=2, pad=1, rounding="floor", name="y"),
         MaxPool2d(3, 2, 1, "floor"), (5, 4, 4, 3)),
        (lambda x: layers.max_pool(x, kernel=3, name="y"), MaxPool2d(3), (5, 4, 3, 2)),
        (lambda x: layers.average_pool(x, kernel=3, stride=2, pad=1, rounding="floor", count="valid", name="y"),
         AveragePool2d(3, 2, 1, "floor", "valid"), (5, 4, 4, 3)),
        (lambda x: layers.average_pool(x, kernel=2, name="y"), AveragePool2d(2), (5, 4, 4, 3)),
        (lambda x: layers.global_average_pool(x, name="y"), GlobalAveragePool2d(), (5, 4, 1, 1)),
        (lambda x: layers.lrn(x, n=3, alpha=0.5, beta=0.25, k=2.0, name="y"), LRN(3, 0.5, 0.25, 2.0), IMAGES),
        (lambda x: layers.concat([x, x], axis=3, name="y"), Concat(3), (5, 4, 7, 12)),
        (lambda x: layers.concat([x, x, x], name="y"), Concat(1), (5, 12, 7, 6)),
        (lambda x: layers.flatten(x, name="y"), Reshape((5, 168)), (5, 168)),
        (lambda x: layers.softmax(x, axis=2, name="y"), Softmax(2), IMAGES),
        (lambda x: layers.squared_error(x, x, reduction="sum", name="y"), SquaredError("sum"), ()),
    ],
)  # fmt: skip
def test_a_layer_of_one_operation(build: Build, operation: Any, shape: tuple[int, ...]) -> None:
    """Each keyword reaches the operation, and the output has the layer's name."""
    y = build(images())
    assert (y.name, y.shape, y.dtype) == ("y", shape, "float64")
    assert [op.operation for op in y.graph.ops] == [operation]


def test_losses_and_accuracy_have_names_of_their_own() -> None:
    logits = layers.linear(images("float32"), 3, name="fc")
    label = logits.graph.blob("label", (5,), "int64")
    loss = layers.softmax_loss(logits, label, reduction="sum", ignore=2)
    share = layers.accuracy(logits, label, k=2)
    assert (loss.name, loss.shape, loss.dtype) == ("loss", (), "float32")
    assert (share.name, share.shape, share.dtype) == ("accuracy", (), "float32")
    assert [op.operation for op in logits.graph.ops[2:]] == [SoftmaxCrossEntropy("sum", 2), TopKAccuracy(2)]


@pytest.mark.parametrize(("kind", "operation"), [("relu", ReLU()), ("sigmoid", Sigmoid()), ("tanh", Tanh())])
def test_activations_by_name(kind: str, operation: Any) -> None:
    y = layers.activation(images(), kind, name="act")
    assert y.name == f"act/{kind}"
    assert y.graph.ops[0].operation == operation


def test_dropout_draws_a_mask_in_training_only() -> None:
    x = images("float32", (40, 50, 3, 2))
    y = layers.dropout(x, ratio=0.25, scale="test", name="drop")
    z = layers.dropout(x, ratio=0.25, scale="test", train=False, name="testing")
    operations = {op.name: op.operation for op in x.graph.ops}
    assert operations == {
        "drop/mask": Bernoulli(x.shape, "float32", keep=0.75, stream="drop/mask"),
        "drop/dropout": Dropout(0.25, "test", True),
        "testing/dropout": Dropout(0.25, "test", False),
    }
    with Serial(x.graph, seed=4) as executor:
        executor.feed(x=np.ones(x.shape, "float32"))
        executor.run()
        first = executor.fetch(y.name)
        np.testing.assert_array_equal(executor.fetch(z.name), np.full(x.shape, 0.75, "float32"))
        executor.run()
        second = executor.fetch(y.name)
        executor.iteration = 0
        executor.run()
        assert executor.fetch(y.name).tobytes() == first.tobytes()
    assert set(np.unique(first)) == {0.0, 1.0}
    assert abs(first.mean() - 0.75) < 5 * np.sqrt(0.75 * 0.25 / first.size)
    assert abs((first == second).mean() - (0.75**2 + 0.25**2)) < 5 / np.sqrt(first.size)


@pytest.mark.parametrize(
    ("build", "kind", "message"),
    [
        (lambda x: layers.conv(x, 6, kernel=3, groups=3, name="c"), ShapeError,
         r"layer 'c': expected an input \(N, C, H, W\) with C a multiple of the 3 groups, "
         r"got 'x' float64\[5, 4, 7, 6\]"),
        (lambda x: layers.conv(layers.flatten(x, name="flat"), 6, kernel=3, name="c"), ShapeError,
         r"layer 'c': expected an input \(N, C, H, W\) with C a multiple of the 1 groups, "
         r"got 'flat' float64\[5, 168\]"),
        (lambda x: layers.conv(x, 6, kernel=(8, 2), name="c"), ShapeError,
         r"operator 'c/conv': Conv2d: expected a kernel that fits the padded input .*, got weight \(6, 4, 8, 2\), .*"),
        (lambda x: layers.conv(x, 6, kernel=3, activation="gelu", name="c"), GraphError,
         r"activation of 'c' must be one of relu, sigmoid, tanh, got 'gelu'"),
        (lambda x: layers.linear(x.graph.blob("label", (5, 2), "int64"), 3, name="fc"), ShapeError,
         r"layer 'fc': expected an input of float32 or float64, got 'label' int64\[5, 2\]"),
        (lambda x: layers.linear(x, 3, std=-1.0, name="fc"), ShapeError,
         r"Gaussian: expected a std of 0 or more, got -1.0"),
        (lambda x: [layers.linear(x, 3, name="fc"), layers.linear(x, 3, name="fc")], GraphError,
         r"graph 'net' already has a blob 'fc/weight'; blob names must be unique"),
        (lambda x: layers.concat([], name="joined"), GraphError,
         r"concat 'joined' needs at least one blob"),
        (lambda x: layers.concat([x, layers.flatten(x, name="flat")], name="joined"), ShapeError,
         r"operator 'joined': Concat: expected inputs that agree with float64\[5, 4, 7, 6\] but for axis 1, got .*"),
        (lambda x: layers.dropout(x, ratio=1.0, name="drop"), ShapeError,
         r"Dropout: expected a ratio of 0 or more and below 1, got 1.0"),
        (lambda x: layers.softmax_loss(layers.linear(x, 3, name="fc"), x.graph.blob("label", (4,), "int64")),
         ShapeError, r"operator 'loss': SoftmaxCrossEntropy: expected label int64\[5\], got int64\[4\] .*"),
        (lambda x: layers.squared_error(x, layers.flatten(x, name="flat")), ShapeError,
         r"operator 'loss': SquaredError: expected inputs of one shape, got .*"),
    ],
)  # fmt: skip
def test_what_a_layer_refuses(build: Callable[[Blob], object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{message}$"):
        build(images())


def test_a_bias_starts_where_it_is_told_to() -> None:
    x = images()
    layers.linear(x, 3, bias=0.2, name="fc")
    assert x.graph.initial["fc/bias"] == Constant(0.2, (3,), "float64")
