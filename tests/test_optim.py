"""Updates: the values of each form, what is kept between runs, and that a resumed run gives the same bits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from purine_ref import optim
from purine_ref.devices import CpuDevice
from purine_ref.errors import GraphError, Refused, ShapeError
from purine_ref.executors import Memory, Serial, Threaded
from purine_ref.graph import Blob, Graph
from purine_ref.ops import SGD, AdaGrad, Constant, TorchSGD
from purine_ref.snapshot import Snapshot, load

UPDATES = {"sgd": optim.sgd, "torch": optim.torch_sgd, "adagrad": optim.adagrad}
SHAPE = (3, 4)


def fed_gradient(
    name: str, shape: tuple[int, ...] = SHAPE, dtype: str = "float64", start: float = 0.0, **multipliers: float
) -> tuple[Graph, dict[Blob, Blob]]:
    """A graph with one parameter and, as its gradient, a source blob `<name>/grad` to be fed."""
    graph = Graph("update")
    weight = graph.parameter(name, shape, dtype, Constant(start, shape, dtype), **multipliers)
    return graph, {weight: graph.blob(f"{name}/grad", shape, dtype)}


def weights(graph: Graph, gradients: Sequence[np.ndarray], rates: Sequence[float]) -> Iterator[np.ndarray]:
    """`w` after each step, fed one gradient and one rate a step."""
    with Serial(graph) as executor:
        for gradient, rate in zip(gradients, rates, strict=True):
            dtype = graph["w"].dtype
            executor.feed({"w/grad": gradient.astype(dtype), "rate": np.array(rate, dtype)})
            executor.run()
            yield executor.fetch("w")


def scalar_steps(update: Callable[..., None], gradients: Sequence[float], rates: Sequence[float], **keywords: float):
    """The values of a scalar parameter, from `start`, after each step."""
    start = keywords.pop("start", 0.0)
    graph, pairs = fed_gradient("w", (), start=start)
    update(pairs, **keywords)
    return [float(w) for w in weights(graph, [np.array(g) for g in gradients], rates)]


def test_dp_05_decay_goes_through_the_rate_and_the_momentum() -> None:
    """DP-05: .999, .997101 (.998001 if decay came after the momentum, .99 if it were not times the rate)."""
    assert scalar_steps(optim.sgd, [0, 0], [0.1, 0.1], start=1.0, momentum=0.9, decay=0.01) == pytest.approx(
        [0.999, 0.997101], abs=1e-15
    )


def test_dp_05_a_bias_moves_twice_as_fast_and_does_not_decay() -> None:
    """DP-05: 0 - 2 * 0.1 * 1; a decay that was not taken off would show, as the bias starts at 4 the second time."""
    for start, gradient, want in ((0.0, 1.0, -0.2), (4.0, 0.0, 4.0)):
        graph, pairs = fed_gradient("w", (), start=start, rate=2.0, decay=0.0)
        optim.sgd(pairs, decay=0.01)
        assert [float(w) for w in weights(graph, [np.array(gradient)], [0.1])] == pytest.approx([want], abs=1e-15)


HALF_A_RUN = """
import sys, numpy as np
from purine_ref import optim, snapshot
from purine_ref.executors import Memory, Serial
from purine_ref.graph import Graph
from purine_ref.ops import Constant

path, dtype, resumed = sys.argv[1], sys.argv[2], sys.argv[3] == "resumed"
graph = Graph("half")
weight = graph.parameter("w", (), dtype, Constant(0.0, (), dtype))
optim.sgd({weight: graph.blob("w/grad", (), dtype)}, momentum=0.9)
memory = Memory()
if resumed:
    held = snapshot.load(path)
    for name, array in held.matching({"w": ((), dtype), "w/history": ((), dtype)}).arrays.items():
        memory.put(name, graph[name].tensor, array)
with Serial(graph, memory=memory) as executor:
    executor.iteration = held.iteration if resumed else 0
    executor.feed({"w/grad": np.array(1.0, dtype), "rate": np.array(0.1, dtype)})
    executor.run()
    executor.run()
    kept = {name: memory.get(name) for name in ("w", "w/history")}
    snapshot.save(path, snapshot.Snapshot(kept, executor.iteration))
"""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dp_06_two_steps_and_two_in_another_process_are_four(dtype: str, tmp_path: Path) -> None:
    """DP-06: -0.9049 both ways, bit-equal; without the history it would be -0.58."""
    graph, pairs = fed_gradient("w", (), dtype)
    optim.sgd(pairs, momentum=0.9)
    straight = list(weights(graph, [np.array(1.0)] * 4, [0.1] * 4))[-1]
    path = tmp_path / "half.npz"
    for half in ("new", "resumed"):
        subprocess.run([sys.executable, "-P", "-c", HALF_A_RUN, path, dtype, half], check=True, timeout=60)
    got = load(path)
    assert got.iteration == 4
    assert got.arrays["w"].tobytes() == straight.tobytes()
    assert float(straight) == pytest.approx(-0.9049, abs=10 * float(np.finfo(dtype).eps))


def test_dp_06_shapes_that_are_swapped_are_refused() -> None:
    """DP-06: (2, 3) and (3, 2) have as many bytes."""
    snapshot = Snapshot({"w": np.zeros((2, 3)), "v": np.zeros((3, 2))})
    with pytest.raises(Refused, match=r"^snapshot tensor 'w': expected float64\[3, 2\], got float64\[2, 3\]; .*$"):
        snapshot.matching({"w": ((3, 2), "float64"), "v": ((2, 3), "float64")})


def test_a_rate_that_changes_acts_on_new_gradients_alone() -> None:
    """history .1, .19, .9 * .19 + .01 = .181"""
    got = scalar_steps(optim.sgd, [1, 1, 1], [0.1, 0.1, 0.01], momentum=0.9)
    assert got == pytest.approx([-0.1, -0.29, -0.471], abs=1e-15)


def test_in_the_form_of_torch_it_acts_on_old_gradients_too() -> None:
    """history 1, 1.9, 2.71; the last step is .01 * 2.71."""
    got = scalar_steps(optim.torch_sgd, [1, 1, 1], [0.1, 0.1, 0.01], momentum=0.9)
    assert got == pytest.approx([-0.1, -0.29, -0.3171], abs=1e-15)


@pytest.mark.parametrize("kind", ["torch", "adagrad"])
def test_updates_agree_with_torch(kind: str) -> None:
    """25 steps of drawn gradients with a falling rate; each step rounds each element a few times."""
    rng = np.random.default_rng(5)
    steps = 25
    gradients = list(rng.standard_normal((steps, *SHAPE)))
    rates = [0.2 / (1 + step) for step in range(steps)]
    graph, pairs = fed_gradient("w", start=0.5)
    parameter = torch.full(SHAPE, 0.5, dtype=torch.float64, requires_grad=True)
    if kind == "torch":
        optim.torch_sgd(pairs, momentum=0.875, decay=0.03)
        optimiser = torch.optim.SGD([parameter], lr=1.0, momentum=0.875, weight_decay=0.03)
    else:
        optim.adagrad(pairs, epsilon=1e-3, decay=0.03)
        optimiser = torch.optim.Adagrad([parameter], lr=1.0, eps=1e-3, weight_decay=0.03)
    for step, got in enumerate(weights(graph, gradients, rates)):
        optimiser.param_groups[0]["lr"] = rates[step]
        parameter.grad = torch.from_numpy(gradients[step])
        optimiser.step()
        assert np.abs(got - parameter.detach().numpy()).max() <= 8 * (step + 1) * np.finfo("float64").eps


@pytest.mark.parametrize("name", list(UPDATES))
def test_r6_a_run_swaps_new_parameters_in_and_leaves_the_old_ones_beside(name: str) -> None:
    graph, pairs = fed_gradient("w", start=2.0)
    UPDATES[name](pairs)
    assert [(a.name, b.name) for a, b in graph.pairs] == [("w", "w/next"), ("w/history", "w/history/next")]
    assert all(blob.persistent for pair in graph.pairs for blob in pair)
    with Threaded(graph, threads=2) as executor:
        executor.feed({"w/grad": np.full(SHAPE, 3.0), "rate": np.array(0.5)})
        assert not executor.fetch("w/history").any()
        before = executor.fetch("w")
        for _ in range(3):
            executor.run()
            np.testing.assert_array_equal(executor.fetch("w/next"), before)
            assert (executor.fetch("w") < before).all()
            before = executor.fetch("w")


def test_r6_a_pair_is_exchanged_and_not_copied() -> None:
    graph, pairs = fed_gradient("w")
    optim.sgd(pairs)
    memory = Memory()
    with Serial(graph, memory=memory) as executor:
        slots = [memory.slot(graph[name], CpuDevice(), 0) for name in ("w", "w/next")]
        arrays = [slot.array for slot in slots]
        executor.run()
        assert slots[0].array is arrays[1]
        assert slots[1].array is arrays[0]


def test_r6_two_graphs_over_one_memory_take_turns() -> None:
    """What one learns the other goes on from: parameter and history."""
    one, two = (fed_gradient("w", start=1.0) for _ in range(2))
    for _, pairs in (one, two):
        optim.sgd(pairs, momentum=0.5)
    memory = Memory()
    with Serial(one[0], memory=memory) as even, Serial(two[0], memory=memory) as odd:
        weight, history = np.ones(SHAPE), np.zeros(SHAPE)
        for step in range(5):
            executor = odd if step % 2 else even
            gradient = np.full(SHAPE, float(2**step))
            executor.feed({"w/grad": gradient, "rate": np.array(0.25)})
            executor.run()
            history = 0.5 * history + 0.25 * gradient
            weight = weight - history
            np.testing.assert_array_equal(even.fetch("w"), weight)
            np.testing.assert_array_equal(odd.fetch("w"), weight)


@pytest.mark.parametrize("name", list(UPDATES))
def test_gc_02_float32_stays_float32_through_100_steps(name: str) -> None:
    """GC-02: the rate comes from a float64 schedule every step."""
    graph, pairs = fed_gradient("w", dtype="float32", start=1.0)
    UPDATES[name](pairs, decay=0.01)
    rates = np.float64(0.1) / np.sqrt(np.arange(1, 101))
    with Serial(graph) as executor:
        for step, rate in enumerate(rates):
            executor.feed({"w/grad": np.full(SHAPE, np.float32(0.1 * step))})
            executor.feed(rate=np.array(rate, "float32"))
            executor.run()
            assert {executor.fetch(blob.name).dtype.name for blob in graph.blobs} == {"float32"}
        with pytest.raises(ShapeError, match=r"^blob 'rate' takes float32\[\], got float64\[\]$"):
            executor.feed(rate=rates[0])


@pytest.mark.parametrize(
    ("name", "keywords", "operation"),
    [
        ("sgd", {"momentum": 0.5, "decay": 0.25}, SGD(0.5, 0.75, 2.0)),
        ("torch", {"momentum": 0.5, "decay": 0.25}, TorchSGD(0.5, 0.75, 2.0)),
        ("adagrad", {"epsilon": 0.125, "decay": 0.25}, AdaGrad(0.125, 0.75, 2.0)),
    ],
)
def test_multipliers_of_a_parameter_reach_its_update(name: str, keywords: dict[str, float], operation: object) -> None:
    graph, pairs = fed_gradient("layer/w", rate=2.0, decay=3.0)
    with graph.scope("elsewhere"):
        UPDATES[name](pairs, **keywords)
    update = graph.op("layer/w/update")
    assert update.operation == operation
    assert [blob.name for blob in update.inputs] == ["layer/w", "layer/w/grad", "layer/w/history", "rate"]
    assert [blob.name for blob in update.outputs] == ["layer/w/next", "layer/w/history/next"]


def test_parameters_share_one_rate() -> None:
    graph = Graph("two")
    pairs = {}
    for name in ("a", "b"):
        weight = graph.parameter(name, SHAPE, "float32", Constant(0.0, SHAPE, "float32"))
        pairs[weight] = graph.blob(f"{name}/grad", SHAPE)
    optim.sgd(pairs)
    assert (graph["rate"].shape, graph["rate"].dtype) == ((), "float32")
    assert [op.name for op, _ in graph["rate"].consumers] == ["a/update", "b/update"]


def test_a_blob_that_is_no_parameter_has_multipliers_of_one() -> None:
    graph = Graph("plain")
    weight, gradient = graph.blob("w", SHAPE, persistent=True), graph.blob("w/grad", SHAPE)
    optim.sgd({weight: gradient}, momentum=0.25, decay=0.5)
    assert graph.op("w/update").operation == SGD(0.25, 0.5, 1.0)


def test_an_update_of_nothing_is_refused() -> None:
    for update in UPDATES.values():
        with pytest.raises(
            GraphError, match=r"^an update needs at least one parameter with its gradient, as backward returns them$"
        ):
            update({})


def test_a_gradient_of_another_shape_is_refused() -> None:
    graph, pairs = fed_gradient("w")
    with pytest.raises(ShapeError, match=r"^operator 'w/update': SGD: expected inputs of one shape, got .*$"):
        optim.sgd({weight: graph.blob("other", (4, 3), "float64") for weight in pairs})


@pytest.mark.parametrize("keyword", ["momentum", "decay"])
def test_a_negative_factor_is_refused(keyword: str) -> None:
    _, pairs = fed_gradient("w")
    with pytest.raises(ShapeError, match=rf"^SGD: expected a {keyword} of 0 or more, got -0.5$"):
        optim.sgd(pairs, **{keyword: -0.5})
