"""Arguments for the loops, and what the loops must give for them.

A shape and a seed are drawn, elements are not. Expected values come from nested loops over single elements, in the
order of additions that the loops promise, so that bits can be compared. Nothing here uses the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

Array = Any
Pair = tuple[int, int]

SPECIAL = [np.nan, -np.inf, np.inf, -1.0, -0.0, 0.0, 1.0, 2.0]


@dataclass(frozen=True)
class Case:
    """Arguments of a loop over windows, and how to fill and lay out its arrays."""

    shape: tuple[int, int, int, int]
    kernel: Pair
    stride: Pair
    pads: tuple[Pair, Pair]
    dilation: Pair
    size: Pair
    dtype: str
    layout: str
    seed: int

    def array(self, shape: tuple[int, ...], special: bool = False) -> Array:
        """Random elements in this case's layout; `special` ones hold ties, NaN, infinities and zeros of both signs."""
        rng = np.random.default_rng(self.seed)
        return lay_out(elements(rng, shape, self.dtype, special), self.layout)

    @property
    def taps(self) -> tuple[Pair, Pair, tuple[Pair, Pair], Pair]:
        """The arguments of a convolution's window."""
        return self.kernel, self.stride, self.pads, self.dilation

    @property
    def windows(self) -> tuple[Pair, Pair, tuple[Pair, Pair]]:
        """The arguments of a pooling window."""
        return self.kernel, self.stride, self.pads


UNEVEN = Case((2, 3, 4, 7), (3, 4), (2, 3), ((0, 2), (1, 2)), (1, 1), (2, 3), "float32", "contiguous", 11)
"""A pool whose last windows lie on more end padding than there is begin padding."""


def elements(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, special: bool = False) -> Array:
    """Random elements; `special` ones hold ties, NaN, infinities and zeros of both signs."""
    if special:
        return rng.choice(SPECIAL, shape, p=[0.06, 0.3] + [0.64 / 6] * 6).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def lay_out(array: Array, layout: str) -> Array:
    """The same elements with other strides, and read-only, so that no loop may rely on either."""
    view = room(array.shape, array.dtype, layout)
    view[...] = array
    view.flags.writeable = False
    return view


def room(shape: tuple[int, ...], dtype: Any, layout: str) -> Array:
    """An array of sevens to be written to, in some order of memory.

    "pixels" is channels-last, "planes" and "channels" are slices of the channels of a larger array, in C order and in
    channels-last.
    """
    front, wide, back = shape[:1], (shape[1] + 3,) if len(shape) > 1 else (), shape[2:]
    forth = (0, len(shape) - 1, *range(1, len(shape) - 1)) if len(shape) > 1 else (0,)
    if layout == "reversed":
        return np.full(shape, 7, dtype)[(slice(None, None, -1),) * len(shape)]
    if layout == "transposed":
        return np.full(shape[::-1], 7, dtype).T
    if layout == "sliced":
        return np.full([2 * length + 1 for length in shape], 7, dtype)[(slice(1, None, 2),) * len(shape)]
    if layout == "pixels":
        return np.full((*front, *back, *shape[1:2]), 7, dtype).transpose(forth)
    if layout == "channels" and wide:
        return np.full((*front, *back, *wide), 7, dtype).transpose(forth)[:, 2 : 2 + shape[1]]
    if layout == "planes" and wide:
        return np.full((*front, *wide, *back), 7, dtype)[:, 2 : 2 + shape[1]]
    return np.full(shape, 7, dtype)


LAYOUT_NAMES = ["contiguous", "pixels", "channels", "planes", "reversed", "transposed", "sliced"]
LAYOUTS = st.sampled_from(LAYOUT_NAMES)
DTYPES = st.sampled_from(["float32", "float64"])
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    """Any kernel, stride, uneven padding and dilation that fit the padded image; the batch may be empty."""
    shape = draw(st.tuples(st.sampled_from([0, 2]), st.sampled_from([1, 3]), st.integers(4, 6), st.integers(7, 9)))
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 4)))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 4)))
    dilation = draw(st.tuples(st.integers(1, 3), st.integers(1, 2)))
    pad = st.integers(0, 3)
    pads = draw(st.tuples(st.tuples(pad, pad), st.tuples(pad, pad)))
    room = [shape[a + 2] + sum(pads[a]) - dilation[a] * (kernel[a] - 1) - 1 for a in (0, 1)]
    assume(min(room) >= 0)
    size = (room[0] // stride[0] + 1, room[1] // stride[1] + 1)
    return Case(shape, kernel, stride, pads, dilation, size, draw(DTYPES), draw(LAYOUTS), draw(SEEDS))


@st.composite
def pools(draw: st.DrawFn) -> Case:
    """Any pooling whose windows all meet the image: fewer than fit, as many as fit, or with an overhang."""
    shape = draw(st.tuples(st.sampled_from([0, 2]), st.sampled_from([1, 3]), st.integers(4, 6), st.integers(7, 9)))
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 4)))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 4)))
    pad = [st.integers(0, kernel[a] - 1) for a in (0, 1)]
    pads = draw(st.tuples(st.tuples(pad[0], pad[0]), st.tuples(pad[1], pad[1])))
    most = [len(range(-pads[a][0], shape[a + 2], stride[a])) for a in (0, 1)]
    size = draw(st.tuples(st.integers(1, most[0]), st.integers(1, most[1])))
    return Case(shape, kernel, stride, pads, (1, 1), size, draw(DTYPES), draw(LAYOUTS), draw(SEEDS))


# Expected values.


def place(case: Case, p: int, q: int, i: int, j: int) -> Pair | None:
    """The image element that kernel position (p, q) of window (i, j) lies on; None in the padding."""
    row = i * case.stride[0] + p * case.dilation[0] - case.pads[0][0]
    column = j * case.stride[1] + q * case.dilation[1] - case.pads[1][0]
    return (row, column) if 0 <= row < case.shape[2] and 0 <= column < case.shape[3] else None


def expected_im2col(case: Case, x: Array) -> Array:
    """`im2col`, element by element."""
    cols = np.full((*case.shape[:2], *case.kernel, *case.size), 7, x.dtype)
    for n, c, p, q, i, j in np.ndindex(cols.shape):
        at = place(case, p, q, i, j)
        cols[n, c, p, q, i, j] = 0 if at is None else x[(n, c, *at)]
    return cols


def expected_col2im(case: Case, cols: Array) -> Array:
    """`col2im`, adding in the order of the columns' elements."""
    x = np.zeros(case.shape, cols.dtype)
    for n, c, p, q, i, j in np.ndindex(cols.shape):
        at = place(case, p, q, i, j)
        if at is not None:
            x[(n, c, *at)] += cols[n, c, p, q, i, j]
    return x


def expected_unfold(case: Case, x: Array) -> Array:
    """`unfold`, all rows, element by element."""
    images, channels = case.shape[:2]
    rows = np.full((images, *case.size, *case.kernel, channels), 7, x.dtype)
    for n, i, j, p, q, c in np.ndindex(rows.shape):
        at = place(case, p, q, i, j)
        rows[n, i, j, p, q, c] = 0 if at is None else x[(n, c, *at)]
    return rows.reshape(images * case.size[0] * case.size[1], case.kernel[0] * case.kernel[1] * channels)


def columns_of(case: Case, rows: Array) -> Array:
    """The matrix of rows in the order of `im2col`, (N, C, kh, kw, oh, ow)."""
    patches = rows.reshape(case.shape[0], *case.size, *case.kernel, case.shape[1])
    return np.ascontiguousarray(patches.transpose(0, 5, 3, 4, 1, 2))


def window(case: Case, i: int, j: int) -> list[Pair]:
    """The image elements of a pooling window, in row-major order."""
    found = [place(case, p, q, i, j) for p, q in np.ndindex(case.kernel)]
    return [at for at in found if at is not None]


def expected_max_pool(case: Case, x: Array) -> tuple[Array, Array]:
    """`max_pool`, window by window."""
    y = np.full((*case.shape[:2], *case.size), 7, x.dtype)
    index = np.full(y.shape, 7, np.int64)
    for n, c, i, j in np.ndindex(y.shape):
        places = window(case, i, j)
        values = [x[(n, c, *at)] for at in places]
        nans = [k for k, value in enumerate(values) if np.isnan(value)]
        best = nans[0] if nans else values.index(max(values))
        y[n, c, i, j] = values[best]
        index[n, c, i, j] = places[best][0] * case.shape[3] + places[best][1]
    return y, index


def expected_divisor(case: Case, i: int, j: int, count: str) -> int:
    """How many elements the window has in the image, or in the image and its declared padding."""
    if count == "valid":
        return len(window(case, i, j))
    (_, bottom), (_, right) = case.pads
    top, left = (k * case.stride[a] - case.pads[a][0] for a, k in enumerate((i, j)))
    rows = [r for r in range(top, top + case.kernel[0]) if r < case.shape[2] + bottom]
    columns = [c for c in range(left, left + case.kernel[1]) if c < case.shape[3] + right]
    return len(rows) * len(columns)


def expected_average_pool(case: Case, x: Array, count: str) -> Array:
    """`average_pool`, window by window."""
    y = np.full((*case.shape[:2], *case.size), 7, x.dtype)
    for n, c, i, j in np.ndindex(y.shape):
        total = x.dtype.type(0)
        for at in window(case, i, j):
            total += x[(n, c, *at)]
        y[n, c, i, j] = total / x.dtype.type(expected_divisor(case, i, j, count))
    return y


def expected_average_pool_scatter(case: Case, dy: Array, count: str) -> Array:
    """`average_pool_scatter`, in the order of kernel positions."""
    dx = np.zeros(case.shape, dy.dtype)
    for n, c, p, q, i, j in np.ndindex((*case.shape[:2], *case.kernel, *case.size)):
        at = place(case, p, q, i, j)
        if at is not None:
            dx[(n, c, *at)] += dy[n, c, i, j] / dy.dtype.type(expected_divisor(case, i, j, count))
    return dx


def philox_block(counter: list[int], key: list[int]) -> list[int]:
    """Philox 4x64-10 in whole numbers, after Salmon et al. 2011, figure 2 and table 2."""
    mask = 2**64 - 1
    for round_ in range(10):
        k0, k1 = key[0] + round_ * 0x9E3779B97F4A7C15 & mask, key[1] + round_ * 0xBB67AE8584CAA73B & mask
        left, right = 0xD2E7470EE14C6C93 * counter[0], 0xCA5A826395121157 * counter[2]
        counter = [right >> 64 ^ counter[1] ^ k0, right & mask, left >> 64 ^ counter[3] ^ k1, left & mask]
    return counter


def expected_philox(seed: int, stream: str, iteration: int, start: int, count: int) -> list[int]:
    """`philox`, word by word."""
    name = 14695981039346656037
    for byte in stream.encode():
        name = ((name ^ byte) * 1099511628211) & (2**64 - 1)
    key = [seed & (2**64 - 1), name]
    return [philox_block([i // 4, iteration, 0, 0], key)[i % 4] for i in range(start, start + count)]


def assert_same(got: Array, want: Array) -> None:
    """Equal shape, dtype, memory order and bits, where one NaN is as good as another."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert got.flags.c_contiguous
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got) & ~np.isnan(got), np.signbit(want) & ~np.isnan(want))
