"""The suite `training`: ten steps, with a rate that changes, by every update rule; serial and over two ranks.

After each step the losses and all new parameters and histories are expected; after the first and the last, every blob.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from purine_ref import optim
from purine_ref.conformance.cases.case import Case, Makers
from purine_ref.conformance.cases.making import make_case
from purine_ref.conformance.cases.suites.feeding import in_pieces, network_feed, network_start, thinned
from purine_ref.conformance.cases.suites.parallel import CONVOLUTION, PERCEPTRON, ranks
from purine_ref.conformance.examples import Architecture, Layer, Loss
from purine_ref.conformance.networks import network_graph
from purine_ref.gradients import backward
from purine_ref.graph import Graph
from purine_ref.operation import Array
from purine_ref.parallel import Composed, Data, compose

STEPS = 10
RATES = (0.0625, 0.01)
"""The rate of the first half of the steps, and of the second."""

DROPPED = Architecture(
    6,
    (8,),
    (
        Layer("linear", (0,), size=7),
        Layer("tanh", (1,)),
        Layer("dropout", (2,), size=25),
        Layer("linear", (3,), size=5),
    ),
    (Loss("softmax", 4, "mean"),),
    "update",
    "float32",
)

Update = Callable[[Any], None]
TRAININGS: Mapping[str, tuple[Architecture, Update]] = {
    "sgd": (PERCEPTRON, lambda gradients: optim.sgd(gradients, momentum=0.9, decay=0.0005)),
    "sgd-plain": (PERCEPTRON, lambda gradients: optim.sgd(gradients, momentum=0.0)),
    "torch-sgd": (PERCEPTRON, lambda gradients: optim.torch_sgd(gradients, momentum=0.9, decay=0.0005)),
    "adagrad": (PERCEPTRON, lambda gradients: optim.adagrad(gradients, epsilon=1e-3, decay=0.001)),
    "dropout": (DROPPED, lambda gradients: optim.sgd(gradients, momentum=0.5)),
    "convolution": (CONVOLUTION, lambda gradients: optim.sgd(gradients, momentum=0.9, decay=0.0005)),
    "float64": (replace(CONVOLUTION, dtype="float64"), lambda gradients: optim.sgd(gradients, momentum=0.9)),
}
"""Networks, and how they are updated."""

PARALLEL = ("sgd", "dropout", "convolution")
"""Those that are trained over two ranks as well."""


def training_graph(network: Architecture, update: Update) -> Graph:
    """A network with its gradients and an update of its parameters."""
    graph = network_graph(replace(network, phase="forward"))
    losses = {graph[f"loss{i}"]: loss.weight for i, loss in enumerate(network.losses)}
    update(backward(losses))
    return graph


def training_cases() -> Makers:
    """All cases of the suite."""
    serial = {f"training/{name}/00": partial(_case, f"training/{name}/00", name, False) for name in TRAININGS}
    parallel = {f"training/{name}/01": partial(_case, f"training/{name}/01", name, True) for name in PARALLEL}
    return {**serial, **parallel}


def _case(name: str, training: str, parallel: bool) -> Case:
    serial = training_graph(*TRAININGS[training])
    graph = compose(serial, [Data(2)], ranks(2)) if parallel else serial
    stream = f"training/{training}"
    rates = [RATES[step >= STEPS // 2] for step in range(STEPS)]
    feeds = [_placed(graph, network_feed(serial, f"{stream}/{i}", rate)) for i, rate in enumerate(rates)]
    start = _placed(graph, network_start(serial, stream))
    where = "over two ranks" if parallel else "serially"
    about = f"{STEPS} steps of {training}, {where}; the rate falls from {RATES[0]} to {RATES[1]} half-way"
    return thinned(make_case(graph, name=name, about=about, feeds=feeds, initial=start, seed=13), (0, STEPS - 1))


def _placed(graph: Graph, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays as those of the graph's blobs, whether it is composed or serial."""
    return in_pieces(graph, arrays) if isinstance(graph, Composed) else dict(arrays)
