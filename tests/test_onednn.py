"""The kernel set `onednn`: found or refused clearly, the operations suite, and no bit that depends on who computes."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operation_cases import ALL
from purine_ref import cli, models
from purine_ref.cli.info import described
from purine_ref.devices import CpuDevice, cpu_devices, default_kernels
from purine_ref.devices.kernels import NumpyKernels, OneDnnKernels, PlainKernels, channels_last, onednn, unusable
from purine_ref.devices.kernels.rows import settled
from purine_ref.devices.onednn import library, primitives, products
from purine_ref.errors import GraphError
from purine_ref.executors import Serial, Threaded
from purine_ref.operation import RunKey, Window
from purine_ref.optim import RATE
from suites.operation_calls import same_bits
from suites.operations import OperationContract

ABSENT = unusable("onednn")
PATIENCE = 30.0
"""Seconds after which a wait has failed."""

present = pytest.mark.skipif(bool(ABSENT), reason=ABSENT)


@pytest.fixture
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Look for the library anew, in this test and after it."""
    library.library.cache_clear()
    yield monkeypatch
    library.library.cache_clear()


@contextmanager
def everything() -> Iterator[None]:
    """Every float32 convolution is oneDNN's, small and slow ones too, and is cut."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WORTH", "SHARED", "SUM_ROWS"):
            patch.setattr(onednn, name, 1)
        patch.setattr(onednn, "SLOWER", ())
        onednn.planned.cache_clear()
        yield
    onednn.planned.cache_clear()


@contextmanager
def by_products() -> Iterator[None]:
    """Every float32 convolution is made of oneDNN's products of matrices, small ones too, and is cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onednn, "WORTH", 1 << 60)
        patch.setattr(products, "WORTH", 1)
        for name in ("SUM_ROWS", "MOST_SUM_ROWS"):
            patch.setattr(onednn, name, 2)
        for name in ("SHARED", "FEW_ROWS", "SMALL"):
            patch.setattr(channels_last, name, 2)
        for cache in (onednn.planned, channels_last.geometry):
            cache.cache_clear()
        yield
    for cache in (onednn.planned, channels_last.geometry):
        cache.cache_clear()


WAYS = [everything, by_products]


@pytest.fixture
def small() -> Iterator[None]:
    """`everything`, for a whole test."""
    with everything():
        yield


# Found, or refused


def test_a_missing_library_is_an_error_that_says_what_to_install(afresh: pytest.MonkeyPatch) -> None:
    afresh.setattr(library, "find", lambda: None)
    message = (
        r"^kernel set 'onednn' needs the oneDNN library \(libdnnl, 3\.x\); install it: "
        r'pip install "purine_ref\[onednn\]"$'
    )
    with pytest.raises(GraphError, match=message):
        cpu_devices("onednn")
    with pytest.raises(GraphError, match=message), default_kernels("onednn"):
        pass
    assert described("onednn").startswith("onednn (cannot be used: kernel set 'onednn' needs")
    assert unusable("numpy") == ""


def test_what_is_no_library_is_refused(afresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "libdnnl.so"
    path.write_bytes(b"not a library")
    afresh.setattr(library, "find", lambda: str(path))
    with pytest.raises(GraphError, match=r"^oneDNN at .*libdnnl\.so cannot be loaded \(.+\); install it"):
        library.library()
    other = ctypes.util.find_library("m") or ctypes.util.find_library("c")
    with pytest.raises(GraphError, match=r"cannot be loaded \(.*dnnl_version"):
        library.Library(str(other))


@present
@pytest.mark.parametrize(("major", "runtime", "message"), [
    (2, library.OPENMP, r"is version 2\.2\.0, but 3\.x is needed; install it"),
    (4, library.OPENMP, r"is version 4\.2\.0, but 3\.x is needed; install it"),
    (3, 4, r"shares work by neither OpenMP nor nothing \(runtime 4\)"),
])  # fmt: skip
def test_another_version_or_threading_is_refused(
    afresh: pytest.MonkeyPatch, major: int, runtime: int, message: str
) -> None:
    afresh.setattr(library, "_version", lambda _: library._Version(major, 2, 0, b"", runtime, 0))
    with pytest.raises(GraphError, match=message):
        library.library()


def test_without_the_package_the_system_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: f"lib{name}.so.3")
    assert library.find() == "libdnnl.so.3"


@present
def test_a_failed_call_says_which_and_why() -> None:
    with pytest.raises(RuntimeError, match=r"^oneDNN's dnnl_memory_desc_create_with_tag: invalid arguments$"):
        primitives._described(primitives.Layout((-1, 2, 3, 4), None))
    with pytest.raises(AttributeError, match=r"^oneDNN's dnnl_nothing is not declared here$"):
        _ = library.library().nothing


@present
def test_oneDNN_keeps_to_one_thread_and_puts_the_limit_back() -> None:
    lib, seen = library.library(), []

    def limited() -> None:
        """OpenMP's limit belongs to a thread."""
        lib._set_threads(3)
        with lib.alone():
            seen.append(lib._threads())
        seen.append(lib._threads())
        lib._set_threads(1)
        with lib.alone():
            seen.append(lib._threads())

    thread = threading.Thread(target=limited)
    thread.start()
    thread.join(PATIENCE)
    assert seen == [1, 3, 1]


@present
def test_every_call_keeps_to_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the process allows: also where a primitive is made, since there oneDNN cuts the work."""
    lib, limits = library.library(), []
    for name in ("primitive_execute", "convolution_forward_primitive_desc_create", "reorder_primitive_desc_create"):
        real = getattr(lib, name)
        watched = lambda *given, real=real: (limits.append(lib._threads()), real(*given))[1]  # noqa: E731
        monkeypatch.setattr(lib, name, watched)
    before = lib._threads()
    lib._set_threads(2)
    try:
        with everything():
            calls(OneDnnKernels(RunKey()), arrays_of(1, (3, 4, 6, 5), (5, 4, 3, 3), (3, 5, 4, 3)), Window())
        assert lib._threads() == 2
    finally:
        lib._set_threads(before)
    assert set(limits) == {1}
    assert len(limits) >= 6


def test_verify_passes_within_the_bounds_of_the_set(capsys: pytest.CaptureFixture[str]) -> None:
    """Replicas cut the sums otherwise; the bounds follow from what the set says that it adds."""
    arguments = ["verify", "--model", "nin-digits", "--scheme", "data:2", "--kernels", "onednn", "--json", "-"]
    with everything():
        code = cli.run(arguments)
        used = onednn.planned.cache_info().currsize
    out, err = capsys.readouterr()
    if ABSENT:
        assert (code, err) == (2, f"error: {ABSENT}\n")
        return
    assert code == 0
    assert used > 0
    assert json.loads(out[out.index("{"):])["kernels"] == "onednn"


# The operations suite


@present
@pytest.mark.usefixtures("small")
class TestOneDnnKernels(OperationContract):
    cases = [case for case in ALL if case.operation.name.startswith("Conv2d")]  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _onednn(self) -> Iterator[None]:
        with default_kernels("onednn"):
            yield


# What is oneDNN's


def arrays_of(seed: int, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def calls(kernels: Any, arrays: list[Any], window: Window, layouts: Any = (np.asarray,) * 3) -> list[Any]:
    """y, dx and dweight for x, weight and dy, each array in a layout of its own."""
    x, weight, dy = arrays
    results = []
    for call, given_arrays, like in ((kernels.convolution, (x, weight), dy),
                                     (kernels.convolution_data, (dy, weight), x),
                                     (kernels.convolution_weight, (dy, x), weight)):  # fmt: skip
        out = layouts[2](np.full(like.shape, 7, like.dtype))
        call(*[layout(array) for layout, array in zip(layouts, given_arrays, strict=False)], out, window)
        results.append(np.ascontiguousarray(out))
    return results


def refuse(*_: object) -> None:
    raise AssertionError("this is not for oneDNN")


@present
def test_small_and_float64_convolutions_are_those_of_the_default_set(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, window = arrays_of(1, (3, 4, 6, 5), (5, 4, 3, 3), (3, 5, 4, 3)), Window()
    own, default = (kind(RunKey()) for kind in (OneDnnKernels, NumpyKernels))
    monkeypatch.setattr(primitives.Primitive, "run", refuse)
    same_bits(calls(own, arrays, window), calls(default, arrays, window))
    wide = [array.astype(np.float64) for array in arrays]
    with everything():
        same_bits(calls(own, wide, window), calls(default, wide, window))
        with pytest.raises(AssertionError, match="not for oneDNN"):
            calls(own, arrays, window)


@present
def test_what_oneDNN_has_but_slow_code_for_is_the_default_sets(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, window = arrays_of(1, (3, 4, 6, 5), (5, 4, 3, 3), (3, 5, 4, 3)), Window()
    own, default = (kind(RunKey()) for kind in (OneDnnKernels, NumpyKernels))
    shapes = "forward", *(array.shape for array in arrays), False, window
    plan = onednn.planned(*shapes)
    assert plan is not None
    monkeypatch.setattr(onednn, "SLOWER", {one.implementation for one in plan.primitives.values()})
    onednn.planned.cache_clear()
    assert onednn.planned(*shapes) is None
    same_bits(calls(own, arrays, window)[:1], calls(default, arrays, window)[:1])


def sliced(array: Any) -> Any:
    """The same elements as some channels of a wider channels-last array."""
    n, c, h, w = array.shape
    view = np.full((n, h, w, c + 3), np.nan, array.dtype).transpose(0, 3, 1, 2)[:, 2 : c + 2]
    view[...] = array
    return view


SHAPES = st.tuples(
    *[st.integers(1, n) for n in (9, 5, 6, 6)], st.integers(1, 5), st.tuples(st.integers(1, 3), st.integers(1, 3)),
    *[st.tuples(st.integers(low, 2), st.integers(low, 2)) for low in (1, 0, 0, 1)], st.integers(1, 3),
)  # fmt: skip
"""Images, channels of a group, height, width, outputs of a group; kernel, stride, pads at the begin and at the end,
dilation; groups."""


@present
@settings(max_examples=100)
@given(SHAPES, st.sampled_from(WAYS), st.data())
def test_values_are_right_and_slices_and_strides_change_no_bit(drawn: Any, way: Any, data: Any) -> None:
    """Within the bound of the operations: what `convolution_..._terms` say is checked against float64."""
    n, c, h, w, k, kernel, stride, begin, end, dilation, groups = drawn
    axes = zip((h, w), begin, end, dilation, kernel, strict=True)
    spare = [size + before + after - step * (taps - 1) - 1 for size, before, after, step, taps in axes]
    if min(spare) < 0:
        return
    out = [room // step + 1 for room, step in zip(spare, stride, strict=True)]
    arrays = arrays_of(7, (n, c * groups, h, w), (k * groups, c, *kernel), (n, k * groups, *out))
    window = Window(stride, tuple(zip(begin, end, strict=True)), dilation, groups)
    with way():
        own = OneDnnKernels(RunKey())
        got = calls(own, arrays, window)
        layouts = [data.draw(st.sampled_from([settled, sliced, np.asfortranarray])) for _ in range(3)]
        same_bits(calls(own, arrays, window, layouts), got)
    plain = PlainKernels(RunKey())
    want = calls(plain, [array.astype(np.float64) for array in arrays], window)
    limits = calls(plain, [np.abs(array).astype(np.float64) for array in arrays], window)
    inner, _ = own.convolution_weight_terms(arrays[2].shape)
    terms = (c * kernel[0] * kernel[1], own.convolution_data_terms(arrays[1].shape, groups), inner + 2)
    for a, b, limit, count in zip(got, want, limits, terms, strict=True):
        assert np.all(np.abs(a - b) <= limit * count * 2.0**-24)


@present
def test_rounding_terms_cover_every_product() -> None:
    assert OneDnnKernels.convolution_data_terms((6, 4, 3, 5), 2) == 3 * 15
    for shape in ((1, 2, 3, 4), (64, 2, 32, 32), (31, 2, 7, 7), (0, 2, 3, 4)):
        inner, wide = OneDnnKernels.convolution_weight_terms(shape)
        assert inner * max(wide - 1, 1) >= shape[0] * shape[2] * shape[3]
        assert inner >= max((stop - start for start, stop in onednn._sums(shape)), default=0) * shape[2] * shape[3]


# Rule R8


@present
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("images", [1, 2, 9, 16])
def test_r08_threads_change_no_bit_of_a_convolution(images: int, kernel: int, way: Any) -> None:
    arrays = arrays_of(3, (images, 4, 6, 7), (3, 4, kernel, kernel), (images, 3, 6, 7))
    window = Window(pads=((kernel // 2, kernel // 2),) * 2)
    with way():
        want = calls(CpuDevice("onednn").kernels(RunKey()), arrays, window)
        for threads in (2, 3):
            same_bits(calls(CpuDevice("onednn", threads).kernels(RunKey()), arrays, window), want)


@present
def test_r08_a_training_step_has_the_same_bits_on_every_executor_and_any_number_of_threads(small: None) -> None:
    graph = models.training_graph("nin-digits", 24, "float32")
    x, labels = arrays_of(1, graph["x"].shape)[0], np.arange(24) % 10
    feeds = {"x": x, "label": labels, RATE: np.array(0.05, np.float32)}

    def bits(make: Callable[..., Any], threads: int) -> dict[str, bytes]:
        with make(graph, seed=3, devices=cpu_devices("onednn", threads)) as executor:
            executor.feed(feeds)
            for _ in range(2):
                executor.run()
            return {b.name: executor.fetch(b.name).tobytes() for b in graph.blobs if b not in executor.plan.lost}

    want = bits(Serial, 1)
    assert onednn.planned.cache_info().currsize > 0
    for threads in (1, 2, 3):
        for workers in (1, 2, 3):
            assert bits(lambda graph, n=workers, **rest: Threaded(graph, threads=n, **rest), threads) == want


@present
def test_a_thread_that_ends_takes_its_memory_objects_along(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = primitives.Layout((2, 3, 4, 5), (60, 20, 5, 1))
    change = primitives.reorder(layout, primitives.Layout((2, 3, 4, 5), (60, 1, 15, 3)))
    destroyed: list[Any] = []
    real = library.library().memory_destroy
    monkeypatch.setattr(library.library(), "memory_destroy", lambda each: (destroyed.append(each), real(each)))
    x = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    y = settled(np.zeros_like(x))

    def once() -> None:
        change.run(lambda slot, shape, dtype: np.empty(shape, dtype), x, y)

    thread = threading.Thread(target=once)
    thread.start()
    thread.join(PATIENCE)
    np.testing.assert_array_equal(x, y)
    del thread
    assert len(destroyed) == 3
