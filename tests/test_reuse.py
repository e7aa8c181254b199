"""Runs with shared memory (rules R5 and R8): the same bits as without, no race, and less memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks import Delays
from purine_ref import models
from purine_ref.devices import CpuDevice, cpu_devices
from purine_ref.devices.virtual import VirtualMachine
from purine_ref.errors import GraphError
from purine_ref.executors import Executor, Ranks, Serial, Simulated, Threaded
from purine_ref.graph import Blob, Graph
from purine_ref.lifetimes import planned_bytes, share_memory
from purine_ref.ops import Copy, ReLU
from purine_ref.parallel import Data, compose
from purine_ref.plan import prepare
from purine_ref.sharing import check_sharing
from purine_ref.tensor import Location
from sharing_support import Junk, X, chain, drawn_graph, ran
from strategies import Recipe, recipes


def test_fetching_what_was_overwritten_is_refused() -> None:
    with Serial(chain("abcd"), reuse=True, keep=["b"]) as executor:
        executor.feed(x=np.full(X, 2, np.float32))
        executor.run()
        assert [float(executor.fetch(name)[0, 0]) for name in "xbd"] == [2, 16, 65536]
        with pytest.raises(
            GraphError, match=r"^blob 'a' was overwritten: to fetch it, name it in keep= of the executor$"
        ):
            executor.fetch("a")


def test_an_unknown_name_in_keep_is_refused() -> None:
    with pytest.raises(GraphError, match=r"^graph 'chain' has no blob 'B'"):
        Serial(chain("abcd"), reuse=True, keep=["B"])


def test_keeping_what_a_declared_view_overwrites_is_refused() -> None:
    graph = chain("a")
    graph.connect([graph["a"]], ReLU(), [graph.view(graph["a"], "b")], name="b")
    with pytest.raises(GraphError, match=r"^graph 'chain': blob 'a' is to be kept, but is overwritten$"):
        Serial(graph, reuse=True, keep=["a"])


@given(recipe=recipes(), data=st.data())
def test_r8_every_executor_gives_the_same_bits_with_shared_memory(recipe: Recipe, data: st.DataObject) -> None:
    graph = drawn_graph(recipe, data)
    seconds = np.random.default_rng(recipe.seed).random(len(graph.ops)).tolist()
    with ran(Serial(graph, seed=1), recipe) as expected:
        keep = data.draw(st.lists(st.sampled_from(sorted(expected)), max_size=3), "keep")
        device = Junk(data.draw(st.sampled_from(["plain", "numpy"]), "kernels"))
        share = partial(dict, seed=1, reuse=True, keep=keep, devices=lambda place: device)
        for executor in (
            Serial(graph, **share()),
            Threaded(graph, threads=3, observer=Delays(recipe.seed), **share()),
            Simulated(graph, seconds=seconds, threads=2, **share()),
        ):
            with ran(executor, recipe) as got:
                assert {name: expected[name] for name in got} == got
                assert set(keep) <= set(got)


@settings(max_examples=max(settings().max_examples // 2, 10))
@given(recipe=recipes(most=10), data=st.data())
def test_r8_on_virtual_devices_shared_memory_has_no_race(recipe: Recipe, data: st.DataObject) -> None:
    """All on one device, with each operator on one of three streams: only events order them."""
    graph = streamed(recipe, Random(recipe.seed))
    machine = VirtualMachine(seed=recipe.seed)
    try:
        with (
            ran(Serial(graph, seed=1, devices=lambda place: CpuDevice()), recipe) as expected,
            ran(Threaded(graph, seed=1, reuse=True, devices=machine.device), recipe) as got,
        ):
            assert {name: expected[name] for name in got} == got
            assert machine.races == []
    finally:
        machine.close()


def streamed(recipe: Recipe, random: Random) -> Graph:
    """The recipe's graph on device 0, operators on random streams; no declared views."""
    graph, place = Graph("streamed"), Location(0, 0)
    for name, tensor in recipe.blobs.items():
        graph.blob(name, tensor.shape, tensor.dtype, place)
    for name, node in recipe.nodes.items():
        ends = [[graph[blob] for blob in side] for side in (node.inputs, node.outputs)]
        stream = random.choice(["main", "side", "third"])
        operation = replace(node.operation, to=None) if isinstance(node.operation, Copy) else node.operation
        graph.connect(ends[0], operation, ends[1], name=name, location=place, stream=stream)
    return graph


MODELS = ("lenet-digits", "nin-digits", "inception")


def trained(graph: Graph, make: Callable[..., Executor], **keywords: Any) -> list[bytes]:
    """Losses of three steps, and the parameters after them."""
    rng = np.random.default_rng(0)
    found = []
    with make(graph, seed=3, **keywords) as executor:
        x, label = (graph[name] for name in ("x", "label"))
        executor.feed({"x": rng.standard_normal(x.shape).astype(x.dtype), "label": rng.integers(0, 10, label.shape)})
        executor.feed({"rate": np.array(0.01, x.dtype)})
        for _ in range(3):
            executor.run()
            found.append(executor.fetch("loss").tobytes())
        return found + [executor.fetch(blob.name).tobytes() for blob in graph.parameters]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kernels", ["plain", "numpy"])
def test_r8_models_train_to_the_same_bits(model: str, kernels: str) -> None:
    graph = models.training_graph(model, 2, "float32")
    expected = trained(graph, Serial, devices=cpu_devices(kernels))
    devices = Junk(kernels)
    share = {"reuse": True, "keep": ["loss"], "devices": lambda place: devices}
    assert trained(graph, Serial, **share) == expected
    assert trained(graph, partial(Threaded, threads=3), **share) == expected


@pytest.mark.parametrize(
    ("model", "batch", "alone", "reused", "pytorch"),
    [("nin", 128, 1675, 582, 785), ("googlenet", 16, 1644, 676, 970), ("googlenet", 32, 3155, 1219, 1480)],
)
def test_a_training_step_needs_less_memory_than_in_pytorch(
    model: str, batch: int, alone: int, reused: int, pytorch: int
) -> None:
    """In MiB, as `docs/architecture.md` says. PyTorch's are peaks that were measured."""
    plan = prepare(models.training_graph(model, batch, "float32"))
    shared_plan = share_memory(plan, ["loss", "accuracy"])
    check_sharing(shared_plan, ["loss", "accuracy"])
    assert [round(planned_bytes(p)[Location()] / 2**20) for p in (plan, shared_plan)] == [alone, reused]
    assert reused < pytorch


@pytest.mark.parametrize("ranks", [False, True])
def test_r9_replicas_share_memory_each_in_its_place(ranks: bool) -> None:
    places_ = [Location(rank) if ranks else Location(0, rank - 1) for rank in range(3)]
    graph = compose(models.training_graph("lenet-digits", 6, "float32"), [Data(3)], places_)
    machine = VirtualMachine(seed=1)
    feeds = {blob.name: feed(blob) for blob in graph.blobs if not blob.producers and not blob.persistent}
    found = []
    for reuse in (False, True):
        make = partial(Ranks, threads=2) if ranks else partial(Threaded, threads=2, devices=machine.device)
        losses = [blob.name for blob in graph.blobs if blob.name.split("@")[0] == "loss" and blob.producers]
        with make(graph, seed=2, reuse=reuse, keep=losses) as executor:
            executor.feed(feeds)
            executor.run()
            executor.run()
            found.append([executor.fetch(name).tobytes() for name in [*losses, *[p.name for p in graph.parameters]]])
    machine.close()
    assert found[0] == found[1]
    assert machine.races == []


def feed(blob: Blob) -> np.ndarray:
    rng = np.random.default_rng(blob.index)
    if blob.dtype == "int64":
        return rng.integers(0, 10, blob.shape)
    return (rng.standard_normal(blob.shape) if blob.shape else np.array(0.01)).astype(blob.dtype)
