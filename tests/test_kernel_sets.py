"""The CPU's kernel sets: the same operations suite for each, and no bit that depends on memory, threads or executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operation_cases import ALL
from purine_ref import models
from purine_ref._fast import loops
from purine_ref.devices import CpuDevice, cpu_devices, default_kernels, device_for, kernel_set
from purine_ref.devices.cpu import CpuKernels
from purine_ref.devices.kernels import KERNEL_SETS, channels_last
from purine_ref.devices.kernels.rows import by_pixels, settled
from purine_ref.devices.virtual import VirtualMachine
from purine_ref.errors import GraphError
from purine_ref.executors import Executor, Memory, Serial, Threaded
from purine_ref.gradients import backward
from purine_ref.graph import Blob, Graph
from purine_ref.operation import RunKey, Window
from purine_ref.ops import Concat, Conv2d, Gaussian, MaxPool2d, ReduceSum, ReLU, Reshape, Split
from purine_ref.optim import RATE
from purine_ref.tensor import Location, Tensor
from suites.operation_calls import same_bits
from suites.operations import OperationContract

OWN = ["numpy", "plain"]
"""The sets that need nothing but numpy; others are extras."""

CONVOLUTIONS = [case for case in ALL if case.operation.name.startswith("Conv2d")]


class TestPlainKernels(OperationContract):
    """The default set is that of `test_operations.py`; sets differ in nothing but convolutions, and memory order."""

    cases = CONVOLUTIONS

    @pytest.fixture(autouse=True)
    def _plain(self) -> Iterator[None]:
        with default_kernels("plain"):
            yield


def test_a_set_is_chosen_by_name() -> None:
    assert list(KERNEL_SETS)[:2] == OWN == ["numpy", "plain"]
    assert kernel_set() == CpuDevice().kernel_set == "numpy"
    with default_kernels("plain"):
        assert kernel_set() == "plain"
        assert device_for(Location()).kernels(RunKey()).name == "plain"
        with default_kernels(None):
            assert kernel_set() == "plain"
    assert kernel_set() == "numpy"
    with pytest.raises(GraphError, match=r"^no kernel set 'fast'; there are numpy, plain\b"):
        cpu_devices("fast")
    with pytest.raises(ValueError, match=r"^a CPU needs 1 thread or more, got 0$"):
        cpu_devices(threads=0)
    with pytest.raises(GraphError, match=r"^no device at .+: only CPUs \(device below 0\) are available here"):
        cpu_devices()(Location(0, 1))


# Memory order


def test_the_numpy_set_keeps_images_channels_last() -> None:
    device = CpuDevice()
    array = device.allocate(Tensor((2, 3, 4, 5)))
    assert (array.shape, array.strides) == ((2, 3, 4, 5), (240, 4, 60, 12))
    assert not array.any()
    for tensor in (Tensor((2, 1, 4, 5)), Tensor((2, 3, 1, 1)), Tensor((2, 3, 4)), Tensor(())):
        assert not device.reorders(tensor)
        assert device.allocate(tensor).flags.c_contiguous
    assert device.allocate(Tensor((2, 3, 4, 5)), row_major=True).flags.c_contiguous
    assert CpuDevice("plain").allocate(Tensor((2, 3, 4, 5))).flags.c_contiguous
    flat = np.arange(120.0)
    assert device.arrange(flat, Tensor((2, 3, 4, 5), "float64"))[1, 2, 3, 4] == 119
    assert np.shares_memory(device.arrange(flat, Tensor((2, 3, 4, 5), "float64")), flat)


def test_what_lies_by_pixels_is_a_matrix_of_the_same_memory() -> None:
    whole = np.arange(2.0 * 4 * 5 * 6).reshape(2, 4, 5, 6).transpose(0, 3, 1, 2)
    for array in (whole, whole[:, 1:4], whole[1:], whole[:, 2:3]):
        assert by_pixels(array)
        assert np.shares_memory(loops.pixel_rows(array), array)
        assert settled(array) is array
        np.testing.assert_array_equal(loops.pixel_rows(array), array.transpose(0, 2, 3, 1).reshape(-1, array.shape[1]))
    for array in (whole[:, :, 1:], whole[:, :, :, ::2], whole[:, ::2], whole[::-1], whole.copy()):
        assert not by_pixels(array)
        assert by_pixels(settled(array))
        np.testing.assert_array_equal(settled(array), array)


def reshaped(declared: bool) -> Graph:
    """x through a ReLU, seen as rows: by a declared view, or by an operator."""
    graph = Graph("reshaped")
    x = graph.blob("x", (2, 3, 4, 5))
    if declared:
        y = graph.blob("y", x.shape)
        graph.connect([x], ReLU(), [y])
        rows = graph.view(y, "rows", shape=(2, 60))
        graph.connect([y], Reshape((2, 60)), [rows])
    else:
        (y,) = graph.apply(ReLU(), [x], "y")
        (rows,) = graph.apply(Reshape((2, 60)), [y], "rows")
    graph.apply(ReduceSum((1,)), [rows], "sum")
    return graph


@pytest.mark.parametrize("declared", [False, True])
def test_a_reshape_of_an_image_is_right_declared_or_not(declared: bool) -> None:
    graph, x = reshaped(declared), np.arange(120, dtype="float32").reshape(2, 3, 4, 5)
    with Serial(graph) as executor:
        executor.feed(x=x)
        executor.run()
        np.testing.assert_array_equal(executor.fetch("rows"), x.reshape(2, 60))
        assert executor.fetch("y").flags.c_contiguous
        assert (graph["rows"] in executor.plan.views) is declared
        assert executor.plan.row_major == ({graph["y"]} if declared else set())


def test_a_restored_parameter_lies_as_the_device_likes_it() -> None:
    graph = Graph("restored")
    weight = graph.parameter("w", (2, 3, 4, 5), "float32", Gaussian((2, 3, 4, 5)))
    graph.apply(ReLU(), [weight], "y")
    memory, values = Memory(), np.arange(120, dtype="float32").reshape(2, 3, 4, 5)
    memory.put("w", weight.tensor, values)
    with Serial(graph, memory=memory) as executor:
        executor.run()
        np.testing.assert_array_equal(executor.fetch("y"), values)
        assert not memory.slot(weight, CpuDevice(), 0).array.flags.c_contiguous
        assert memory.slot(weight, CpuDevice(), 0, row_major=True).array.flags.c_contiguous
        executor.run()
        np.testing.assert_array_equal(executor.fetch("y"), values)
    assert memory.get("w").flags.c_contiguous


# Convolutions: no bit depends on the cutting, and every chunking is right


def random_arrays(seed: int, dtype: str, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def sliced(array: Any) -> Any:
    """The same elements as some channels of a wider channels-last array."""
    n, c, h, w = array.shape
    view = np.full((n, h, w, c + 3), np.nan, array.dtype).transpose(0, 3, 1, 2)[:, 2 : c + 2]
    view[...] = array
    return view


@settings(max_examples=200)
@given(
    st.tuples(*[st.integers(1, n) for n in (3, 4, 6, 6)]), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2),
    st.integers(0, 1), st.integers(1, 2), st.integers(1, 2), st.sampled_from(["float32", "float64"]), st.data(),
)  # fmt: skip
def test_slices_and_strides_change_no_bit(
    x_shape: Any, outputs: int, kernel: int, stride: int, pad: int, dilation: int, groups: int, dtype: str, data: Any
) -> None:
    """Of none of the three, on any side: channels of a wider array, C order, or channels-last alone."""
    n, c, h, w = x_shape
    c, outputs = c * groups, outputs * groups
    weight_shape = (outputs, c // groups, kernel, kernel)
    size = [(length + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for length in (h, w)]
    if min(size) < 1:
        return
    x, weight, dy = random_arrays(7, dtype, (n, c, h, w), weight_shape, (n, outputs, *size))
    window = Window((stride, stride), ((pad, pad), (pad, pad)), (dilation, dilation), groups)
    kernels = CpuKernels(RunKey())
    calls = ((kernels.convolution, (x, weight), dy.shape), (kernels.convolution_data, (dy, weight), x.shape),
             (kernels.convolution_weight, (dy, x), weight_shape))  # fmt: skip
    for call, arrays, shape in calls:
        want = np.full(shape, 7, dtype)
        call(*arrays, want, window)
        layouts = [data.draw(st.sampled_from([settled, sliced, np.asfortranarray])) for _ in range(3)]
        out = layouts[2](np.full(shape, 7, dtype))
        call(*[layout(array) for layout, array in zip(layouts, arrays, strict=False)], out, window)
        same_bits([np.ascontiguousarray(out)], [want])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("channels", "outputs", "groups"), [(1, 2, 1), (2, 1, 1), (1, 1, 1), (3, 3, 3), (2, 4, 2)])
def test_products_with_vectors_have_the_same_bits_where_rows_lie_apart(
    channels: int, outputs: int, groups: int, dtype: str
) -> None:
    """BLAS multiplies by a vector in another way, in which bits depend on strides."""
    x, weight, dy = random_arrays(
        1, dtype, (3, channels, 7, 9), (outputs, channels // groups, 1, 1), (3, outputs, 7, 9)
    )
    window, kernels = Window(groups=groups), CpuKernels(RunKey())
    for call, arrays, shape in ((kernels.convolution, (x, weight), dy.shape),
                                (kernels.convolution_data, (dy, weight), x.shape),
                                (kernels.convolution_weight, (dy, x), weight.shape)):  # fmt: skip
        results = []
        for layout in (settled, sliced):
            out = layout(np.full(shape, 7, dtype))
            call(*[layout(array) for array in arrays], out, window)
            results.append(np.ascontiguousarray(out))
        same_bits(results[:1], results[1:])


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit_of_a_convolution(kernel: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SHARED", 1), ("CHUNK", 1), ("LEAST_ROWS", 5), ("MOST_ROWS", 11), ("SUM_ROWS", 7)):
        monkeypatch.setattr(channels_last, name, value)
    x, weight, dy = random_arrays(3, "float64", (5, 4, 6, 7), (3, 4, kernel, kernel), (5, 3, 6, 7))
    window = Window(pads=((kernel // 2, kernel // 2),) * 2)
    results = []
    for count in (1, threads):
        kernels = CpuDevice(threads=count).kernels(RunKey())
        y, dx, dweight = (np.full(array.shape, 7.0) for array in (dy, x, weight))
        kernels.convolution(x, weight, y, window)
        kernels.convolution_data(dy, weight, dx, window)
        kernels.convolution_weight(dy, x, dweight, window)
        results.append([y, dx, dweight])
    same_bits(*results)


@pytest.mark.parametrize(("channels", "outputs", "kernel"), [(4, 3, 1), (4, 3, 3), (1, 3, 3), (1, 3, 1), (4, 1, 1)])
@pytest.mark.parametrize("sum_rows", [7, 30, 100, 1000])
def test_a_small_weight_gradient_adds_its_chunks_in_float64(
    channels: int, outputs: int, kernel: int, sum_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels_last, "SUM_ROWS", sum_rows)
    monkeypatch.setattr(channels_last, "geometry", channels_last.geometry.__wrapped__)  # which remembers nothing
    shapes = (5, channels, 6, 7), (outputs, channels, kernel, kernel), (5, outputs, 6, 7)
    x, dweight, dy = random_arrays(4, "float32", *shapes)
    window, kernels = Window(pads=((kernel // 2, kernel // 2),) * 2), CpuKernels(RunKey())
    patches = np.zeros((5 * 6 * 7, kernel * kernel * channels), "float32")
    loops.unfold(x, (kernel, kernel), window.stride, window.pads, window.dilation, 0, patches)
    rows = loops.pixel_rows(settled(dy))
    exact = rows.T.astype("float64") @ patches.astype("float64")
    results = []
    for layout in (settled, sliced):
        got = layout(np.zeros(dweight.shape, "float32"))
        kernels.convolution_weight(layout(dy), layout(x), got, window)
        results.append(np.ascontiguousarray(got.transpose(0, 2, 3, 1)).reshape(outputs, -1))
    same_bits(results[:1], results[1:])
    np.testing.assert_allclose(results[0], exact, rtol=1e-4, atol=1e-4)
    if sum_rows < 210:
        chunks = [slice(start, start + sum_rows) for start in range(0, 210, sum_rows)]
        total = sum(np.matmul(rows[each].T, patches[each]).astype("float64") for each in chunks)
        same_bits(results[:1], [total.astype("float32")])


def test_rounding_terms_cover_every_product() -> None:
    for kind in map(KERNEL_SETS.__getitem__, OWN):
        for shape in ((1, 2, 3, 4), (64, 2, 32, 32), (0, 2, 3, 4)):
            inner, wide = kind.convolution_weight_terms(shape)
            assert inner * max(wide, 1) >= shape[0] * shape[2] * shape[3]


# Rule R8: whole training steps


def drawn(graph: Graph, name: str, shape: tuple[int, ...]) -> Blob:
    return graph.parameter(name, shape, "float32", Gaussian(shape))


def inception() -> Graph:
    """Three branches over one image, joined along channels and split again, all of which may be views."""
    graph = Graph("inception")
    x, branches = graph.blob("x", (6, 5, 9, 8)), []
    for name, width, kernel in (("a", 4, 1), ("b", 1, 3), ("c", 3, 5)):
        weight = drawn(graph, f"{name}/w", (width, 5, kernel, kernel))
        (y,) = graph.apply(Conv2d(pads=kernel // 2), [x, weight], f"{name}/y")
        branches.append(y)
    joined = graph.blob("joined", (6, 8, 9, 8))
    graph.connect(branches, Concat(1), [joined])
    (pooled, _) = graph.apply(MaxPool2d(3, 2), [joined], "pooled")
    parts = graph.apply(Split(1, (3, 5)), [pooled], "part")
    for part, name in zip(parts, ("left", "right"), strict=True):
        weight = drawn(graph, f"{name}/w", (2, part.shape[1], 3, 3))
        graph.apply(Conv2d(), [part, weight], f"{name}/y")
    (loss,) = graph.apply(ReduceSum((0, 1, 2, 3)), [graph["right/y"]], "loss")
    backward(loss)
    return graph


MAKE: dict[str, Callable[..., Executor]] = {
    "serial": Serial,
    **{f"threads:{n}": (lambda graph, n=n, **keywords: Threaded(graph, threads=n, **keywords)) for n in (1, 2, 4)},
}


def results_of(graph: Graph, feeds: dict[str, Any], make: Callable[..., Executor], devices: Any) -> dict[str, bytes]:
    with make(graph, seed=3, devices=devices) as executor:
        for name, array in feeds.items():
            executor.feed({name: array})
        for _ in range(2):
            executor.run()
        lost = executor.plan.lost
        return {blob.name: executor.fetch(blob.name).tobytes() for blob in graph.blobs if blob not in lost}


def training() -> tuple[Graph, dict[str, Any]]:
    """In float64, where sums in float64 show their order."""
    graph = models.training_graph("nin-digits", 24, "float64")
    rng = np.random.default_rng(1)
    images = rng.standard_normal(graph["x"].shape)
    return graph, {"x": images, "label": rng.integers(0, 10, 24), RATE: np.array(0.05)}


@pytest.mark.parametrize("kernels", OWN)
def test_r08_a_training_step_has_the_same_bits_on_every_executor_and_any_number_of_threads(
    kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels_last, "SHARED", 1 << 12)  # share even small products
    monkeypatch.setattr(channels_last, "SUM_ROWS", 64)
    monkeypatch.setattr("purine_ref.ops.sharing.PIECE", 1 << 8)
    graph, feeds = training()
    want = results_of(graph, feeds, Serial, cpu_devices(kernels))
    for make in MAKE.values():
        for threads in (1, 2, 3):
            assert results_of(graph, feeds, make, cpu_devices(kernels, threads)) == want


def test_r08_views_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, feeds = inception(), {"x": random_arrays(5, "float32", (6, 5, 9, 8))[0]}
    want = results_of(graph, feeds, Serial, cpu_devices())
    with Serial(graph) as executor:
        assert {graph["a/y"], graph["b/y"], graph["part"]} <= set(executor.plan.views)
    monkeypatch.setattr("purine_ref.plan.place_views", lambda graph, reorders: {})
    assert results_of(graph, feeds, Serial, cpu_devices()) == want


def test_r08_virtual_devices_have_the_same_bits_and_no_race() -> None:
    graph, feeds = inception(), {"x": random_arrays(5, "float32", (6, 5, 9, 8))[0]}
    want = results_of(graph, feeds, Serial, cpu_devices())
    machine = VirtualMachine(seed=1)
    try:
        assert results_of(graph, feeds, Serial, machine.device) == want
        assert machine.races == []
    finally:
        machine.close()
