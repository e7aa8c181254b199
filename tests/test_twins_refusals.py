"""Arguments that make no sense, which both twins of every loop refuse in the same words."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from twins import twin

NO_PADS = ((0, 0), (0, 0))


@pytest.fixture(scope="module", params=["py", "cy"])
def loops(request: pytest.FixtureRequest) -> ModuleType:
    """Each twin in turn."""
    return twin(request.param)


X = np.zeros((2, 3, 4, 5))
POOL: dict[str, Any] = {"kernel": (2, 3), "stride": (1, 2), "pads": NO_PADS, "size": (3, 2)}
CONV: dict[str, Any] = {"kernel": (2, 3), "stride": (1, 2), "pads": NO_PADS, "dilation": (1, 1)}
COLS, INDEX = np.zeros((2, 3, 2, 3, 3, 2)), np.zeros(X.shape, np.int64)
PLACED: dict[str, Any] = {"dy": X, "index": INDEX, "shape": X.shape}
SPREAD: dict[str, Any] = {"dy": X, "shape": X.shape, "count": "valid"} | {
    "kernel": (1, 1),
    "stride": (1, 1),
    "pads": NO_PADS,
}
OUT, C, BEST, FROZEN = np.zeros((4, 18)), np.zeros(3), np.zeros((2, 3, 3, 2)), np.zeros(X.shape)
FROZEN.flags.writeable = False
ROWS: dict[str, Any] = CONV | {"x": X, "stride": (1, 1), "pads": ((0, 0), (1, 0)), "first": 0, "out": OUT}
LRN: dict[str, Any] = {"x": X, "n": 3, "alpha": 0.1, "beta": 0.75, "k": 1.0, "out": X.copy()}
STEP: dict[str, Any] = dict.fromkeys(["weight", "gradient", "history", "new_weight", "new_history"], C) | {
    "rate": 0.1,
    "momentum": 0.9,
    "decay": 0.0,
}
GROW: dict[str, Any] = dict.fromkeys(["weight", "gradient", "squares", "new_weight", "new_squares"], C) | {
    "rate": 0.1,
    "epsilon": 1e-8,
    "decay": 0.0,
}
DRAW: dict[str, Any] = {"seed": 1, "stream": "s", "iteration": 0, "start": 0, "count": 4}
MISSED = r"expected at least one window, each with an element of the image of"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("im2col", CONV | {"x": X[0]}, r"x: expected 4 axes of float32 or float64, got shape \(3, 4, 5\) of float64; .*"),
    ("im2col", CONV | {"x": X.astype(int)}, r"x: expected 4 axes .*, got shape \(2, 3, 4, 5\) of int64; .* first"),
    ("im2col", CONV | {"x": X.astype(">f8")}, r"x: expected 4 axes .*, got shape \(2, 3, 4, 5\) of >f8; .* first"),
    ("im2col", CONV | {"x": X, "kernel": (5, 3)}, r"axis 2: expected a kernel extent of at most the padded 4, got 5"),
    ("im2col", CONV | {"x": X, "dilation": (1, 3)}, r"axis 3: expected a kernel extent of at most .* 5, got 7"),
    ("im2col", CONV | {"x": X, "kernel": (0, 3)}, r"kernel: expected at least 1 per axis, got \(0, 3\)"),
    ("im2col", CONV | {"x": X, "stride": (1, 0)}, r"stride: expected at least 1 per axis, got \(1, 0\)"),
    ("im2col", CONV | {"x": X, "dilation": (0, 1)}, r"dilation: expected at least 1 per axis, got \(0, 1\)"),
    ("im2col", CONV | {"x": X, "pads": ((0, 0), (0, -1))}, r"pads: expected 0 or more on every side, got .*-1\)\)"),
    ("col2im", CONV | {"cols": X, "shape": X.shape}, r"cols: expected 6 axes of .*, got shape \(2, 3, 4, 5\) of .*"),
    ("col2im", CONV | {"cols": COLS[..., 1:], "shape": X.shape}, r"cols: expected shape \(2, 3, 2, 3, 3, 2\), got .*"),
    (
        "max_pool",
        POOL | {"x": X, "pads": ((2, 0), (0, 0))},
        rf"axis 2: {MISSED} 4; got 3 .* ending before 0, .*",
    ),
    ("max_pool", POOL | {"x": X, "size": (3, 4)}, rf"axis 3: {MISSED} 5; got 4 windows, .*, the last starting at 6"),
    ("max_pool", POOL | {"x": X, "size": (0, 2)}, rf"axis 2: {MISSED} 4; got 0 windows, .*"),
    ("max_pool_scatter", PLACED | {"index": X}, r"index: expected int64 of shape \(2, 3, 4, 5\), got float64 .*"),
    ("max_pool_scatter", PLACED | {"index": INDEX[:, :2]}, r"index: expected int64 of .*, got int64 of .* 2, 4, 5\)"),
    ("max_pool_scatter", PLACED | {"index": INDEX - 1}, r"index: expected 0 to 19, got -1 to -1"),
    ("max_pool_scatter", PLACED | {"index": INDEX + 20}, r"index: expected 0 to 19, got 20 to 20"),
    ("max_pool_scatter", PLACED | {"shape": (2, 4, 4, 5)}, r"shape: expected 4 axes that start with \(2, 3\), got .*"),
    ("average_pool", POOL | {"x": X, "count": "all"}, r"count: expected 'padded' or 'valid', got 'all'"),
    ("average_pool", POOL | {"x": X, "count": "valid", "size": (5, 2)}, rf"axis 2: {MISSED} 4; got 5 windows, .*"),
    ("average_pool_scatter", SPREAD | {"count": "none"}, r"count: expected 'padded' or 'valid', got 'none'"),
    ("average_pool_scatter", SPREAD | {"shape": (2, 5, 4, 5)}, r"dy: expected shape \(2, 5, 4, 5\), got .*"),
    ("average_pool_scatter", SPREAD | {"shape": (2, 3, 3, 5)}, rf"axis 2: {MISSED} 3; got 4 windows, .*"),
    ("window_sum", {"x": X, "n": 6}, r"window n: expected an odd number of channels, at least 1, got 6"),
    ("window_sum", {"x": X, "n": -1}, r"window n: expected an odd number of channels, at least 1, got -1"),
    ("window_sum", {"x": X[0, 0, 0], "n": 3}, r"x: expected 2 axes of .*, got shape \(5,\) of float64; .*"),
    ("pixel_rows", {"array": X[0]}, r"array: expected 4 axes .*"),
    ("unfold", ROWS | {"first": -1}, r"first: expected 4 rows among the 24 patches, got those from -1"),
    ("unfold", ROWS | {"first": 21}, r"first: expected 4 rows among the 24 patches, got those from 21"),
    ("unfold", ROWS | {"out": OUT[:, 1:]}, r"out: expected \(4, 18\) of float64 in C order, got \(4, 17\) of .* not"),
    ("unfold", ROWS | {"out": OUT.astype("f")}, r"out: expected \(4, 18\) of float64 in C order, got .* float32"),
    ("unfold", ROWS | {"x": X[0]}, r"x: expected 4 axes of float32 or float64, got shape \(3, 4, 5\) of .*"),
    ("unfold", ROWS | {"kernel": (5, 3)}, r"axis 2: expected a kernel extent of at most the padded 4, got 5"),
    ("fold", CONV | {"rows": OUT, "dx": X.copy()}, r"rows: expected \(12, 18\) of float64 in C order, got .*"),
    ("fold", CONV | {"rows": OUT, "dx": FROZEN}, r"dx: expected a writable array of .*, got .* float64, read-only"),
    ("im2col", CONV | {"x": X, "out": COLS.astype("f")}, r"out: expected a writable array of .* got .* of float32"),
    ("col2im", CONV | {"cols": COLS, "shape": X.shape, "out": X[1:]}, r"out: expected a writable array of .*"),
    ("max_pool", POOL | {"x": X, "out": (X, INDEX)}, r"out y: expected a writable array of shape \(2, 3, 3, 2\) .*"),
    ("max_pool", POOL | {"x": X, "out": (BEST, BEST)}, r"out index: expected a writable array of .* of int64, .*"),
    ("max_pool_scatter", PLACED | {"out": FROZEN}, r"out: expected a writable array of .*, read-only"),
    ("average_pool", POOL | {"x": X, "count": "valid", "out": X}, r"out: expected a writable array of .*"),
    ("average_pool_scatter", SPREAD | {"out": FROZEN}, r"out: expected a writable array of .*, read-only"),
    ("window_sum", {"x": X, "n": 3, "out": X[1:]}, r"out: expected a writable array of shape \(2, 3, 4, 5\) .*"),
    ("add_bias", {"x": X, "bias": C[1:], "out": X}, r"bias: expected shape \(3,\) of float64, got shape \(2,\) .*"),
    ("bias_relu", {"x": X, "bias": C[1:], "out": X}, r"bias: expected shape \(3,\) of float64, got shape \(2,\) .*"),
    ("add_bias", {"x": X, "bias": C.astype("f"), "out": X}, r"bias: expected .* float64, got shape \(3,\) of float32"),
    ("bias_relu", {"x": X, "bias": C.astype("f"), "out": X}, r"bias: expected .* float64, got shape \(3,\) of float32"),
    ("add_bias", {"x": X, "bias": C, "out": FROZEN}, r"out: expected a writable array of .*, read-only"),
    ("bias_relu", {"x": X, "bias": C, "out": FROZEN}, r"out: expected a writable array of .*, read-only"),
    ("add_bias", {"x": C, "bias": C, "out": C}, r"x: expected 2 axes of float32 or float64, got shape \(3,\) .*"),
    ("bias_relu", {"x": C, "bias": C, "out": C}, r"x: expected 2 axes of float32 or float64, got shape \(3,\) .*"),
    ("bias_gradient", {"dy": X.astype("f"), "dbias": INDEX[0, :, 0, 0]}, r"dbias: .* of float32, got .* int64"),
    ("bias_gradient", {"dy": X, "dbias": C[1:]}, r"dbias: expected a writable array of shape \(3,\) of float64, .*"),
    ("relu_bias_gradient", {"dy": X, "y": X[1:], "dx": X, "dbias": C}, r"y: expected shape .*, as dy, got .*"),
    ("relu_bias_gradient", {"dy": X, "y": X, "dx": FROZEN, "dbias": C}, r"dx: expected a writable array .*"),
    ("relu", {"x": INDEX, "out": INDEX}, r"x: expected 4 axes of float32 or float64, got .* of int64; .*"),
    ("relu", {"x": X, "out": FROZEN}, r"out: expected a writable array of .*, read-only"),
    ("relu_gradient", {"dy": X, "y": X.astype("f"), "out": X}, r"y: expected .* of float64, as dy, got .* of float32"),
    ("lrn", LRN | {"n": 2}, r"window n: expected an odd number of channels, at least 1, got 2"),
    ("lrn", LRN | {"out": X[1:]}, r"out: expected a writable array of shape \(2, 3, 4, 5\) of float64, got .*"),
    ("lrn_gradient", LRN | {"dy": X[1:]}, r"dy: expected shape \(2, 3, 4, 5\) of float64, as x, got .*"),
    ("lrn_gradient", LRN | {"dy": X, "out": FROZEN, "beta": 0.5}, r"out: expected a writable array .*, read-only"),
    ("momentum_update", STEP | {"gradient": C[1:]}, r"gradient: expected shape \(3,\) of float64, as weight, got .*"),
    ("torch_update", STEP | {"new_history": C[1:]}, r"new_history: expected a writable array of shape \(3,\) .*"),
    ("adagrad_update", GROW | {"squares": C.astype("f")}, r"squares: expected .*, as weight, got .* of float32"),
    ("philox", DRAW | {"start": -1}, r"philox: expected elements from 0 to 2\*\*66 - 1, got 4 from -1"),
    ("philox", DRAW | {"start": 2**66 - 3}, r"philox: expected elements from 0 to 2\*\*66 - 1, got 4 from 7\d+"),
    ("philox", DRAW | {"count": -1}, r"philox: expected elements from 0 to 2\*\*66 - 1, got -1 from 0"),
    ("philox", DRAW | {"iteration": -1}, r"philox: expected an iteration from 0 to 2\*\*64 - 1, got -1"),
    ("philox", DRAW | {"iteration": 2**64}, r"philox: expected an iteration from 0 to 2\*\*64 - 1, got 1\d+"),
]


@pytest.mark.parametrize(("name", "arguments", "message"), REFUSED)
def test_arguments_that_make_no_sense_are_refused(
    loops: ModuleType, name: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        getattr(loops, name)(**arguments)
