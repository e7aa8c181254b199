"""One suite for both twins of the loops that a device may lack; and the operations with and without them."""

from __future__ import annotations

import inspect
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from purine_ref._fast import select
from purine_ref.devices import CpuDevice
from purine_ref.devices.kernels import LoopKernels
from purine_ref.errors import OperatorError
from purine_ref.operation import Operation, RunKey
from purine_ref.ops import Linear, SoftmaxCrossEntropy, SoftmaxCrossEntropyGradient, TopKAccuracy
from twin_cases import DTYPES, LAYOUTS, SEEDS, Array, assert_same, elements, lay_out, room
from twins import compiled, twin

SAMPLES = st.tuples(st.integers(0, 6), st.sampled_from([1, 2, 3, 4, 5, 8, 11, 19]))
LOST = -np.inf
BARE = SimpleNamespace(xp=np, refuse=LoopKernels.refuse)
"""A vocabulary without any loop."""


@pytest.fixture(scope="module", params=["py", "cy"])
def loops(request: pytest.FixtureRequest) -> ModuleType:
    """Each twin in turn."""
    return twin(request.param)


def samples(shape: tuple[int, int], dtype: str, layout: str, seed: int, special: bool) -> tuple[Array, Array]:
    """Logits and labels in some layout, both read-only."""
    rng = np.random.default_rng(seed)
    logits = lay_out(elements(rng, shape, dtype, special) * (1 if special else 3), layout)
    return logits, lay_out(rng.integers(0, shape[1], shape[0]), layout)


def in_fours(terms: list[float]) -> float:
    """The sum of a channel's terms in the order that the loops promise."""
    total = 0.0
    for k in range(0, len(terms) // 4 * 4, 4):
        a, b, c, d = terms[k : k + 4]
        total += (a + b) + (c + d)
    left = terms[len(terms) // 4 * 4 :]
    return total + sum(left[1:], left[0]) if left else total


def powers(row: Array) -> tuple[list[float], list[float], float]:
    """One row less its largest element, the exponentials of that, and their sum."""
    largest = np.nan if np.isnan(row).any() or row.max() == np.inf else float(row.max())
    shifted = [float(each) - largest for each in row]
    raised = [float(np.exp(np.float64(each))) for each in shifted]
    return shifted, raised, in_fours(raised)


@given(SAMPLES, DTYPES, LAYOUTS, LAYOUTS, SEEDS, st.booleans())
def test_losses_and_their_slopes_are_those_of_each_sample(
    loops: ModuleType, shape: tuple[int, int], dtype: str, layout: str, other: str, seed: int, special: bool
) -> None:
    logits, label = samples(shape, dtype, layout, seed, special)
    losses, dlogits = room(shape[:1], "float64", other), room(shape, dtype, other)
    with np.errstate(all="raise", under="ignore"):
        found = loops.cross_entropy(logits, label, losses), loops.cross_entropy_gradient(logits, label, 0.3, dlogits)
    lost = bool((logits == LOST).all(axis=1).any())
    assert found == (not lost, not lost)
    if lost:
        return
    wanted, slopes = np.zeros(shape[0]), np.zeros(shape)
    with np.errstate(invalid="ignore"):
        for n, (row, own) in enumerate(zip(logits, label, strict=True)):
            shifted, raised, total = powers(row)
            wanted[n] = np.log(np.float64(total)) - shifted[own]
            slopes[n] = [(each / total - (k == own)) * 0.3 for k, each in enumerate(raised)]
        assert_same(np.ascontiguousarray(losses), wanted)
        assert_same(np.ascontiguousarray(dlogits), slopes.astype(dtype))


def test_slopes_are_rounded_to_the_dtype_of_where_they_go(loops: ModuleType) -> None:
    logits, label = samples((5, 10), "float32", "contiguous", 3, False)
    wide, narrow = np.zeros((5, 10)), np.zeros((5, 10), "float32")
    assert loops.cross_entropy_gradient(logits, label, 1.0, wide)
    assert loops.cross_entropy_gradient(logits, label, 1.0, narrow)
    assert_same(narrow, wide.astype("float32"))
    assert (wide != narrow).any()


@given(SAMPLES, DTYPES, LAYOUTS, SEEDS, st.booleans(), st.integers(1, 20))
def test_hits_are_labels_among_the_first_when_sorted(
    loops: ModuleType, shape: tuple[int, int], dtype: str, layout: str, seed: int, special: bool, k: int
) -> None:
    logits, label = samples(shape, dtype, layout, seed, special)
    wanted = 0
    for row, own in zip(logits, label, strict=True):
        order = sorted(range(shape[1]), key=lambda c: (0 if np.isnan(row[c]) else 1, -row[c], c))
        wanted += not np.isnan(row[own]) and order.index(own) < min(k, shape[1])
    assert loops.count_hits(logits, label, min(k, shape[1])) == wanted


@pytest.mark.parametrize("wrong", [-1, 3, 2**62, -(2**62)])
def test_a_label_that_is_no_class_has_no_result(loops: ModuleType, wrong: int) -> None:
    logits, label = np.zeros((4, 3)), np.array([0, 2, 1, wrong])
    assert not loops.cross_entropy(logits, label, np.zeros(4))
    assert not loops.cross_entropy_gradient(logits, label, 1.0, np.zeros((4, 3)))
    assert loops.count_hits(logits, label, 1) == -1


@given(st.tuples(*[st.integers(0, 3)] * 4), DTYPES, LAYOUTS, SEEDS)
@example((2, 17, 2, 3), "float32", "pixels", 1)
@example((2, 17, 3, 2), "float64", "channels", 1)
def test_images_as_rows_are_in_the_order_of_their_axes(
    loops: ModuleType, shape: tuple[int, ...], dtype: str, layout: str, seed: int
) -> None:
    x = lay_out(elements(np.random.default_rng(seed), shape, dtype, True), layout)
    guarded = np.full((shape[0] + 2, int(np.prod(shape[1:]))), 7, dtype)
    loops.flatten(x, guarded[1:-1])
    assert_same(guarded[1:-1], np.array(x.tolist(), dtype).reshape(guarded[1:-1].shape))
    assert (guarded[[0, -1]] == 7).all()


L, X, N = np.zeros((4, 3)), np.zeros((2, 3, 4, 5)), np.zeros(4, np.int64)
FROZEN = np.zeros((4, 3))
FROZEN.flags.writeable = False
SAMPLED: dict[str, Any] = {"logits": L, "label": N}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("cross_entropy", {"logits": L[0], "label": N, "losses": L[:, 0]}, r"logits: expected 2 axes of .*\(3,\) .*"),
    ("cross_entropy", {"logits": N[:, None], "label": N, "losses": L[:, 0]}, r"logits: expected .* of int64; .*"),
    ("cross_entropy", {"logits": L[:, :0], "label": N, "losses": L[:, 0]}, r"logits: expected one class or more, .*"),
    ("cross_entropy", {"logits": L, "label": N[1:], "losses": L[:, 0]}, r"label: expected int64 of shape \(4,\), .*"),
    ("cross_entropy", {"logits": L, "label": N.astype("i4"), "losses": L[:, 0]}, r"label: .*, got int32 of shape .*"),
    ("cross_entropy", {"logits": L, "label": N.astype(">i8"), "losses": L[:, 0]}, r"label: .*, got >i8 of shape .*"),
    ("cross_entropy", SAMPLED | {"losses": L[:, 0].astype("f")}, r"losses: expected .* float64, .* of float32"),
    ("cross_entropy", SAMPLED | {"losses": FROZEN[:, 0]}, r"losses: expected a writable array of .*, read-only"),
    ("cross_entropy_gradient", SAMPLED | {"factor": 1.0, "dlogits": L[1:]}, r"dlogits: expected .*\(3, 3\) .*"),
    ("cross_entropy_gradient", SAMPLED | {"factor": 1.0, "dlogits": FROZEN}, r"dlogits: expected .*, read-only"),
    ("cross_entropy_gradient", SAMPLED | {"factor": 1.0, "dlogits": L.astype(int)}, r"dlogits: expected .* of int64"),
    ("count_hits", {"logits": L, "label": L[:, 0], "k": 1}, r"label: .*, got float64 of shape \(4,\)"),
    ("flatten", {"x": L, "out": L}, r"x: expected 4 axes of float32 or float64, got shape \(4, 3\) .*"),
    ("flatten", {"x": X, "out": np.zeros((2, 59))}, r"out: expected .* of shape \(2, 60\) .*, got shape \(2, 59\) .*"),
    ("flatten", {"x": X, "out": np.zeros((2, 60), "f")}, r"out: expected .* of float64, .* of float32"),
    ("flatten", {"x": X, "out": np.zeros((60, 2)).T}, r"out: expected an array in C order, got strides .*"),
]


@pytest.mark.parametrize(("name", "arguments", "message"), REFUSED)
def test_what_makes_no_sense_is_refused(
    loops: ModuleType, name: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        getattr(loops, name)(**arguments)


@pytest.mark.parametrize("name", select("0").CPU_ONLY)
def test_twins_have_one_signature(name: str) -> None:
    py, cy = (inspect.signature(getattr(module, name)) for module in (select("0"), compiled()))
    assert list(cy.parameters) == list(py.parameters)


# The operations that have these loops where the device does, and are spelled out where it does not.


def computed(operation: Operation, kernels: Any, arrays: list[Array], shape: tuple[int, ...], dtype: str) -> Array:
    """What an operation writes."""
    out = np.full(shape, 7, dtype)
    operation.compute(kernels, arrays, [out])
    return out


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("ignore", [None, 2])
@pytest.mark.parametrize("back", [(), (2, 3)])
def test_operations_mean_the_same_without_loops(dtype: str, ignore: int | None, back: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    logits, label = rng.standard_normal((6, 5, *back)).astype(dtype), rng.integers(0, 5, (6, *back))
    dloss, device = np.array(0.7, dtype), CpuDevice().kernels(RunKey())
    for reduction in ("mean", "sum"):
        loss, slope = SoftmaxCrossEntropy(reduction, ignore), SoftmaxCrossEntropyGradient(reduction, ignore)
        got, want = (computed(loss, kernels, [logits, label], (), dtype) for kernels in (device, BARE))
        np.testing.assert_allclose(got, want, rtol=4 * np.finfo(dtype).eps)
        arrays = [dloss, logits, label]
        got, want = (computed(slope, kernels, arrays, logits.shape, dtype) for kernels in (device, BARE))
        np.testing.assert_allclose(got, want, rtol=(4 if dtype == "float32" else 64) * np.finfo(dtype).eps)
        assert ignore is None or not np.moveaxis(got, 1, -1)[label == ignore].any()
    if not back:
        got, want = (computed(TopKAccuracy(2), kernels, [logits, label], (), dtype) for kernels in (device, BARE))
        assert got == want


@pytest.mark.parametrize("kernels", [BARE, CpuDevice().kernels(RunKey())], ids=["bare", "cpu"])
def test_what_has_no_loss_is_refused_with_loops_and_without(kernels: Any) -> None:
    logits, label, loss = np.zeros((3, 4)), np.array([0, 3, 4]), SoftmaxCrossEntropy()
    outside = r": expected labels from 0 to 3, got 4 at index \[2\]$"
    for operation, arrays, shape in (
        (loss, [logits, label], ()),
        (SoftmaxCrossEntropyGradient(), [np.array(1.0), logits, label], (3, 4)),
        (TopKAccuracy(), [logits, label], ()),
    ):
        with pytest.raises(OperatorError, match=f"^{operation.name}{outside}"):
            computed(operation, kernels, arrays, shape, "float64")
    logits[1], label[2] = -np.inf, 0
    with pytest.raises(OperatorError, match=r"one element or more above -inf along axis 1, got none in 1 of 3 rows$"):
        computed(loss, kernels, [logits, label], (), "float64")


def test_an_image_is_flattened_whatever_its_memory_order() -> None:
    rng = np.random.default_rng(6)
    x, weight = rng.standard_normal((3, 4, 2, 5)), rng.standard_normal((6, 40))
    device = CpuDevice().kernels(RunKey())
    want = computed(Linear(), device, [x, weight], (3, 6), "float64")
    assert_same(computed(Linear(), device, [lay_out(x, "pixels"), weight], (3, 6), "float64"), want)
    np.testing.assert_allclose(want, x.reshape(3, 40) @ weight.T)
