"""The suite `parallel`: networks composed over several locations (rule R9), with the copies between them.

Each network is composed by every kind of scheme, over ranks and over devices of one rank, in parts of uneven sizes.
What is expected of the first iteration are all blobs of the composed graph, and so all pieces of the serial graph's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from purine_ref.conformance.cases.case import Case, Makers
from purine_ref.conformance.cases.making import make_case
from purine_ref.conformance.cases.suites.feeding import in_pieces, network_feed, network_start, thinned
from purine_ref.conformance.examples import Architecture, Layer, Loss
from purine_ref.conformance.networks import network_graph
from purine_ref.parallel import Composed, Data, Hybrid, Model, Pipeline, Placed, Refiner, compose
from purine_ref.tensor import Location

PERCEPTRON = Architecture(
    7,
    (5,),
    (Layer("linear", (0,), size=6), Layer("relu", (1,)), Layer("linear", (2,), size=4)),
    (Loss("squared", 3, "mean"),),
    "update",
    "float32",
)
CONVOLUTION = Architecture(
    5,
    (2, 6, 5),
    (
        Layer("conv", (0,), size=4, kernel=3, pad=1),
        Layer("relu", (1,)),
        Layer("max_pool", (2,), kernel=2, stride=2),
        Layer("flatten", (3,)),
        Layer("linear", (4,), size=3),
    ),
    (Loss("softmax", 5, "mean"),),
    "update",
    "float32",
)
NETWORKS: Mapping[str, Architecture] = {"perceptron": PERCEPTRON, "convolution": CONVOLUTION}
EXACT: Mapping[str, Architecture] = {
    "perceptron": replace(PERCEPTRON, losses=(Loss("squared", 3, "sum"),)),
    "convolution": replace(CONVOLUTION, losses=(Loss("squared", 5, "sum"),)),
}
"""The same, with a loss whose sums are exact for small integers (rule R10)."""


def ranks(count: int) -> list[Location]:
    """The CPUs of so many ranks."""
    return [Location(rank) for rank in range(count)]


def devices(count: int) -> list[Location]:
    """So many devices of one rank."""
    return [Location(0, device) for device in range(count)]


SCHEMES: Mapping[str, tuple[Sequence[Refiner], Sequence[Location], str]] = {
    "data-2": ([Data(2)], ranks(2), "central"),
    "data-3-uneven": ([Data(3, (1, 3, 3))], ranks(3), "central"),
    "data-3-tree": ([Data(3)], devices(3), "tree"),
    "data-3-ring": ([Data(3)], ranks(3), "ring"),
    "data-2-server": ([Data(2, None, "server")], ranks(2), "central"),
    "model-2": ([Model(2)], ranks(2), "central"),
    "model-2-input": ([Model(2, "input")], devices(2), "central"),
    "pipeline-2x2": ([Pipeline(2, 2)], ranks(2), "central"),
    "pipeline-2x3": ([Pipeline(2, 3)], devices(2), "central"),
    "hybrid-2x2": ([Hybrid(2, 2)], [Location(0), Location(0, 0), Location(1), Location(1, 0)], "central"),
    "data-2-model-2": ([Data(2), Model(2)], ranks(4), "central"),
    "placed-2": ([Placed(2, {"*": 0, "l2*": 1})], ranks(2), "central"),
}
"""Refiners, the outermost first; places; how partial sums are added."""

SIZES: Mapping[str, tuple[int, ...]] = {"perceptron": (1, 3, 3), "convolution": (2, 1, 2)}
"""The uneven batches of three replicas."""


def composed(network: str, scheme: str, exact: bool = False) -> Composed:
    """A network, or the exact one of that name, under a scheme."""
    refiners, places, reduction = SCHEMES[scheme]
    if scheme == "data-3-uneven":
        refiners = [Data(3, SIZES[network])]
    return compose(network_graph((EXACT if exact else NETWORKS)[network]), refiners, places, reduction=reduction)


def parallel_cases() -> Makers:
    """All cases of the suite: two iterations with every bit drawn, and one of small integers."""
    return {
        f"parallel/{network}-{scheme}/{number:02}": partial(
            _case, network, scheme, f"parallel/{network}-{scheme}/{number:02}", exact
        )
        for network in NETWORKS
        for scheme in SCHEMES
        for number, exact in enumerate((False, True))
    }


def _case(network: str, scheme: str, name: str, exact: bool) -> Case:
    graph = composed(network, scheme, exact)
    serial = graph.serial
    stream = f"parallel/{network}"  # one for all schemes: pieces of different schemes may be compared
    feeds = [in_pieces(graph, network_feed(serial, f"{stream}/{i}", exact=exact)) for i in range(1 if exact else 2)]
    start = in_pieces(graph, network_start(serial, stream, exact=exact))
    about = f"{network} composed as {scheme}, with updates" + ("; small integers" if exact else "")
    return thinned(make_case(graph, name=name, about=about, feeds=feeds, initial=start, seed=7))
