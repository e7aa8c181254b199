"""The CUDA kernels' own sources, on a machine without a GPU: by the suites of the twins, and on their own.

The kernels are compiled as C++ and launched by loops over the grid (`cuda_shim.py`), with guards around all memory.
What this cannot show is what only a GPU does: how fast they are, and what its own arithmetic units round.
"""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import test_twins
import test_twins_channels
import test_twins_refusals
from cuda_shim import (
    SANITIZE,
    SHAPES,
    HostLaunch,
    Shape,
    build,
    folder,
    gpu_loops,
    guarded,
    host_loops,
    require_compiler,
)
from purine_ref._fast import select
from purine_ref.devices.cuda.arguments import by_pixels
from purine_ref.devices.cuda.loops import CudaLoops
from purine_ref.devices.cuda.sources import FAMILIES, FOLDER, SHARED, kernels, source
from twin_cases import DTYPES, LAYOUT_NAMES, LAYOUTS, SEEDS, Array, Case, assert_same, elements, lay_out, pools, room

PLAIN = select("0")
EVERY = {(family, kernel) for family in FAMILIES for kernel in kernels(family)}
PADS = ((1, 0), (0, 1))


GPU = [pytest.param("gpu", marks=pytest.mark.gpu)] if importlib.util.find_spec("cupy") else []


@pytest.fixture(scope="module", params=["cpu", *GPU])
def loops(request: pytest.FixtureRequest) -> CudaLoops:
    """The kernels, in the place of a twin: built for the CPU, and on a GPU where there is one."""
    require_compiler()
    return host_loops() if request.param == "cpu" else gpu_loops()


@pytest.mark.gpu
def test_there_is_a_gpu() -> None:
    """Where CuPy is missing, the one test that says why none of the others runs on a GPU."""
    gpu_loops()


# The suites of the twins, with the fixture above in the place of theirs.

VALUES = ("-1 to -1", "20 to 20")
"""How messages end that refuse an index by its values, which only the twins look at."""


def test_refusals_are_those_of_the_twins(loops: CudaLoops) -> None:
    refused = [case for case in test_twins_refusals.REFUSED if not case[2].endswith(VALUES)]
    assert len(refused) == len(test_twins_refusals.REFUSED) - len(VALUES)
    for name, arguments, message in refused:
        with pytest.raises(ValueError, match=f"^{message}$"):
            getattr(loops, name)(**arguments)


def _shared(suite: Any) -> dict[str, Callable[..., None]]:
    """The tests of a suite that take loops, under names that say whose they are."""
    tests = {name: test for name, test in vars(suite).items() if name.startswith("test_")}
    taken = {name: test for name, test in tests.items() if "loops" in inspect.signature(test).parameters}
    return {name.replace("test_", f"{suite.__name__}_", 1): test for name, test in taken.items()}


globals().update(_shared(test_twins) | _shared(test_twins_channels))  # pytest finds tests by their names in a module


@pytest.mark.parametrize("name", PLAIN.__all__)
def test_signatures_are_those_of_the_twins(name: str) -> None:
    plain, own = (inspect.signature(getattr(where, name)) for where in (PLAIN, CudaLoops(np, HostLaunch())))
    assert list(own.parameters) == list(plain.parameters)


# On their own.


def everything(loops: Any, dtype: str, layout: str) -> list[Array]:
    """The results of a call of every loop that has bits to compare."""
    rng = np.random.default_rng(7)
    x, dy, other = (lay_out(elements(rng, (2, 5, 6, 7), dtype), layout) for _ in range(3))
    bias, taps = elements(rng, (5,), dtype), ((2, 3), (2, 1), PADS, (1, 2))
    outs = [room(x.shape, dtype, layout) for _ in range(9)]
    y, index = loops.max_pool(x, (3, 2), (2, 2), PADS, (3, 4))
    cols = loops.im2col(x, *taps)
    rows = np.zeros((2 * cols.shape[4] * cols.shape[5], 2 * 3 * 5), dtype)
    loops.unfold(x, *taps, 0, rows)
    loops.fold(rows, outs[0], *taps)
    loops.lrn(x, 3, 0.1, 0.75, 1.0, outs[1])
    loops.lrn_gradient(dy, x, 3, 0.1, 0.75, 1.0, outs[2])
    loops.add_bias(x, bias, outs[3])
    loops.bias_relu(x, bias, outs[4])
    sums = np.zeros((2, 5))
    loops.relu_bias_gradient(dy, x, outs[5], sums[0])
    loops.bias_gradient(dy, sums[1])
    loops.relu(x, outs[6])
    steps = [np.zeros((2, *x.shape), dtype) for _ in range(3)]
    for rule, step in zip(("momentum_update", "torch_update", "adagrad_update"), steps, strict=True):
        getattr(loops, rule)(x, dy, abs(other), 0.1, 0.9, 0.01, *step)
    return [
        *(np.ascontiguousarray(out) for out in outs[:7]),
        *(y, index, cols, rows, sums, *steps),
        loops.col2im(cols, x.shape, *taps),
        loops.max_pool_scatter(y, index, x.shape),
        loops.average_pool(x, (3, 2), (2, 2), PADS, (3, 4), "padded"),
        loops.average_pool_scatter(y, x.shape, (3, 2), (2, 2), PADS, "valid"),
        loops.window_sum(x, 3),
        loops.philox(3, "s", 5, 7, 39),
    ]


@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_grid_block_or_order_of_threads_changes_a_bit(shape: Shape, falling: bool) -> None:
    require_compiler()
    loops = host_loops(shape, falling=falling)
    for dtype, layout in (("float32", "contiguous"), ("float64", "pixels"), ("float32", "channels")):
        for got, want in zip(everything(loops, dtype, layout), everything(PLAIN, dtype, layout), strict=True):
            assert_same(got, want)


def test_no_kernel_goes_without_a_launch() -> None:
    require_compiler()
    launch = HostLaunch()
    loops = CudaLoops(np, launch)
    for dtype in ("float32", "float64"):
        everything(loops, dtype, "contiguous")
        x, out = np.zeros((2, 2, 3, 4, 4), dtype)
        loops.lrn(x, 3, 0.1, 0.5, 1.0, out)
        loops.lrn_gradient(x, x, 3, 0.1, 0.5, 1.0, out)
        loops.change_layout(x, out)
        loops.max_pool_gather(x, np.zeros(x.shape, np.int64), x.shape, (1, 1), (1, 1), ((0, 0), (0, 0)))
    assert launch.launched >= {(family, kernel, "float32") for family, kernel in EVERY}
    assert launch.launched >= {(family, kernel, "float64") for family, kernel in EVERY if family != "draws"}


@given(pools(), LAYOUTS, st.booleans())
def test_gathered_gradients_of_maxima_are_those_that_were_scattered(
    loops: CudaLoops, case: Case, layout: str, special: bool
) -> None:
    _, index = PLAIN.max_pool(case.array(case.shape, special), *case.windows, case.size)
    dy = case.array(index.shape, special)
    out = room(case.shape, case.dtype, layout)
    assert loops.max_pool_gather(dy, lay_out(index, layout), case.shape, *case.windows, out=out) is out
    assert_same(np.ascontiguousarray(out), PLAIN.max_pool_scatter(dy, index, case.shape))


def test_an_index_that_points_out_of_its_plane_is_left_out(loops: CudaLoops) -> None:
    """Without a write elsewhere: on a GPU nobody looks at values first."""
    dy, index = np.ones((2, 1, 2, 2)), np.full((2, 1, 2, 2), 3)
    index[1, 0] = [[-1, 20], [2**62, -(2**62)]]
    dx = loops.max_pool_scatter(dy, index, (2, 1, 4, 5))
    assert dx[0, 0, 0].tolist() == [0, 0, 0, 4, 0]
    assert not dx[1].any()


def test_a_maximum_of_many_windows_gathers_in_their_order(loops: CudaLoops) -> None:
    """One element that wins 5 x 4 windows, with terms whose sum in another order has other bits."""
    rng = np.random.default_rng(3)
    x, dy = np.zeros((8, 2, 9, 9), "float32"), rng.standard_normal((8, 2, 5, 6)).astype("float32")
    x[:, :, 4, 4] = 1
    windows = ((5, 4), (1, 1), ((0, 0), (0, 0)))
    _, index = PLAIN.max_pool(x, *windows, (5, 6))
    want = PLAIN.max_pool_scatter(dy, index, x.shape)
    backwards = PLAIN.max_pool_scatter(dy[:, :, ::-1, ::-1], index[:, :, ::-1, ::-1], x.shape)
    assert (want != backwards).any()
    assert_same(loops.max_pool_gather(dy, index, x.shape, *windows), want)


@given(st.sampled_from([(2, 3, 4, 5), (3, 7), (2, 3, 2, 2, 3), (5,), (2, 0, 3)]), DTYPES, LAYOUTS, LAYOUTS, SEEDS)
def test_a_change_of_layout_moves_bits(
    loops: CudaLoops, shape: tuple[int, ...], dtype: str, layout: str, other: str, seed: int
) -> None:
    x, out = lay_out(elements(np.random.default_rng(seed), shape, dtype, True), layout), room(shape, dtype, other)
    loops.change_layout(x, out)
    assert_same(np.ascontiguousarray(out), np.ascontiguousarray(x))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("beta", [0.5, 0.6, 1.0])
def test_other_powers_are_within_a_few_roundings_of_numpys(loops: CudaLoops, beta: float, dtype: str) -> None:
    x, dy = np.random.default_rng(5).standard_normal((2, 2, 7, 3, 2)).astype(dtype)
    got, want = np.zeros((2, 2, *x.shape), dtype)
    for one, outs in ((loops, got), (PLAIN, want)):
        one.lrn(x, 3, 0.7, beta, 1.5, outs[0])
        one.lrn_gradient(dy, x, 3, 0.7, beta, 1.5, outs[1])
    np.testing.assert_allclose(got, want, rtol=0, atol=8 * np.finfo(dtype).eps * abs(want).max())


def test_items_count_in_the_order_in_which_the_output_lies() -> None:
    """No bit depends on it, but neighbouring threads then write neighbouring elements."""
    orders = {layout: by_pixels(room((2, 3, 4, 5), "float32", layout)) for layout in LAYOUT_NAMES}
    assert {layout for layout, pixels in orders.items() if pixels} == {"pixels", "channels", "transposed"}


# Indices of 64 bits.

CUT = """
extern "C" __global__ void divide(long long value, long long length, long long* both) {
    both[1] = cut(value, length);
    both[0] = value;
}
"""


@pytest.fixture(scope="module")
def divide() -> Callable[[int, int], tuple[int, int]]:
    """`cut` of the shared source: quotient and rest."""
    require_compiler()
    main = Path(folder().name, "cut.cpp")
    shim = Path(__file__).with_name("cuda_host_shim.h")
    main.write_text(f'#include "{shim}"\n#include "{FOLDER / SHARED}"\n{CUT}EXPORT(divide)\n', "utf-8")
    command = ["g++", "-std=c++17", "-fPIC", "-shared", "-DREAL=float", *SANITIZE]
    build([*command, "-o", str(main.with_suffix(".so")), str(main)])
    launch = ctypes.CDLL(str(main.with_suffix(".so"))).launch_divide

    def call(value: int, length: int) -> tuple[int, int]:
        both = (ctypes.c_longlong * 2)()
        values = ctypes.c_longlong(value), ctypes.c_longlong(length), ctypes.c_void_p(ctypes.addressof(both))
        launch(1, 1, 0, (ctypes.c_void_p * 3)(*(ctypes.addressof(one) for one in values)))
        return both[0], both[1]

    return call


@given(st.integers(0, 2**63 - 1), st.integers(1, 2**63 - 1), st.integers(0, 62), st.integers(0, 62))
def test_items_divide_as_whole_numbers_do(
    divide: Callable[[int, int], tuple[int, int]], value: int, length: int, less: int, shorter: int
) -> None:
    value, length = value >> less, max(length >> shorter, 1)
    assert divide(value, length) == divmod(value, length)
    for near in (2**31, 2**32):
        assert divide(near, near - 1) == (1, 1)
        assert divide(near - 1, near) == (0, near - 1)


def test_patches_are_found_behind_four_thousand_million_elements() -> None:
    """16 GiB of zeros that take no memory, and a few elements at the end; 2**32 elements, and 2**34 bytes."""
    require_compiler()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        memory = mmap.mmap(-1, 2**34 + 2**22, flags=flags)
    except OSError as error:
        pytest.skip(f"16 GiB of addresses are not to be had here: {error}")
    x = np.frombuffer(memory, np.float32).reshape(2**12 + 1, 1, 2**10, 2**10)
    x[-1, 0, -1, -4:] = [1, 2, 3, 4]
    rows = np.zeros((3, 2), np.float32)
    patches = x.shape[0] * 2**10 * (2**10 - 1)
    CudaLoops(np, HostLaunch((1, 32), guards=False)).unfold(
        x, (1, 2), (1, 1), ((0, 0), (0, 0)), (1, 1), patches - 3, rows
    )
    assert rows.tolist() == [[1, 2], [2, 3], [3, 4]]
    del x
    memory.close()


# What the tests above rest on.


@pytest.mark.skipif(bool(SANITIZE), reason="a sanitizer guards the memory itself, and ends the process")
@pytest.mark.parametrize("offset", [-1, 2, 22], ids=["before", "between", "behind"])
def test_a_byte_that_is_written_outside_an_output_is_found(offset: int) -> None:
    """The output is every second of 11 elements of 2 bytes."""
    view = np.arange(11, dtype=np.uint16)[::2]
    with (
        pytest.raises(AssertionError, match=rf"^bytes \[{offset}\] were written to, of 22"),
        guarded([view], [view]) as at,
    ):
        ctypes.memset(at[id(view)] + offset, 0xFF, 1)


def test_an_input_that_is_written_to_is_found_and_an_output_is_not() -> None:
    source_, target = np.zeros(3, np.uint8), np.zeros(3, np.uint8)
    with guarded([source_, target], [target]) as at:
        ctypes.memset(at[id(target)] + 1, 5, 1)
    assert target.tolist() == [0, 5, 0]
    with pytest.raises(AssertionError, match="were written to"), guarded([source_, target], [target]) as at:
        ctypes.memset(at[id(source_)] + 1, 5, 1)


def test_families_are_the_files_that_are_there() -> None:
    assert {path.stem for path in FOLDER.glob("*.cu")} == set(FAMILIES)
    for family in FAMILIES:
        assert kernels(family)
        assert "#include" not in source(family)
        assert "atomic" not in source(family).replace("an atomic addition", "")
