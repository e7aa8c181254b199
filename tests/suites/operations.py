"""The contract of an operation, as a suite: give it cases, and it checks them against independent values.

Subclass `OperationContract` in a test module, as `class TestMine(OperationContract): cases = [...]`, for the package's
operations or for your own. Each check runs for every case and dtype that it applies to, and its id names both.
`failed_checks` runs them without pytest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest

from gradient_checker import check_gradient
from oracles import each, numbers
from oracles.traced import Traced, traced
from purine_ref.devices.cpu import CpuKernels
from purine_ref.errors import OperatorError, ShapeError
from purine_ref.executors import Serial
from purine_ref.gradients import backward as add_gradients
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Operation
from purine_ref.ops import Constant, Mul, ReduceSum
from purine_ref.tensor import DTYPES, Tensor
from suites.operation_case import FLOATS, RUN, Case
from support import ArrayWiring, backward, describe

Array = Any
Check = Callable[[Any, Case, str], None]
Condition = Callable[[Case], object]

EXPONENTS = (-2, -1, -3, -1)
"""In exact mode, input i is a multiple of 2 to the power EXPONENTS[i]."""

INTEGER_BITS = {"float32": 24, "float64": 53}


def only(condition: Condition, dtypes: Sequence[str] = DTYPES) -> Callable[[Check], Check]:
    """Say to which cases, and in which dtypes, a check applies."""

    def mark(check: Check) -> Check:
        check.applies = lambda case, dtype: bool(condition(case)) and dtype in dtypes  # type: ignore[attr-defined]
        return check

    return mark


every = only(lambda case: True)
with_gradient = only(lambda case: case.has_gradient, FLOATS)
certified = only(lambda case: case.operation.exact and case.certified, FLOATS)


# Calling one operation


def filled(tensor: Tensor, junk: float) -> Array:
    """A buffer full of `junk`; where that is NaN, integers get their least."""
    worst = np.iinfo(np.int64).min if junk != junk and not tensor.is_float else junk
    return np.full(tensor.shape, worst, tensor.dtype)


def compute(
    operation: Operation,
    inputs: Sequence[Array],
    junk: float = 7,
    layout: Callable[[Array], Array] | None = None,
    kernels: Any = None,
) -> list[Array]:
    """The outputs, in buffers that held `junk` and were laid out by `layout`; the inputs may not be written to."""
    given = [read_only(array) for array in inputs]
    buffers = [filled(tensor, junk) for tensor in operation.infer([describe(array) for array in inputs])]
    outputs = buffers if layout is None else [layout(buffer) for buffer in buffers]
    operation.compute(kernels or CpuKernels(RUN), given, outputs)
    return outputs


def read_only(array: Array) -> Array:
    """The same memory, which numpy refuses to write to through this array."""
    view = array.view()
    view.flags.writeable = False
    return view


def transposed(array: Array) -> Array:
    """The same elements, column by column."""
    return np.array(array, order="F")


def turned(array: Array) -> Array:
    """The same elements, from the last to the first in memory."""
    view = np.empty_like(array)[(*[slice(None, None, -1)] * array.ndim, ...)]
    view[...] = array
    return view


def spread(array: Array) -> Array:
    """The same elements, every second one of a wider array along every axis."""
    wide = np.full([2 * length + 1 for length in array.shape], 7, array.dtype)
    view = wide[(*[slice(1, None, 2)] * array.ndim, ...)]
    view[...] = array
    return view


LAYOUTS = (transposed, turned, spread)


def same_bits(got: Sequence[Array], want: Sequence[Array]) -> None:
    """Equal in dtype, shape and every bit."""
    for index, (one, other) in enumerate(zip(got, want, strict=True)):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), f"output {index}"
        if one.tobytes() != other.tobytes():
            differ = [at for at in np.ndindex(one.shape) if one[at].tobytes() != other[at].tobytes()]
            first = f"first at {differ[0]}: {one[differ[0]]!r} is not {other[differ[0]]!r}"
            pytest.fail(f"output {index}: {len(differ)} of {one.size} elements differ, {first}")


def near(got: Sequence[Array], want: Sequence[Array], ulps: float) -> None:
    """Equal within `ulps` of the largest; integers are equal."""
    for index, (one, other) in enumerate(zip(got, want, strict=True)):
        assert one.shape == other.shape, f"output {index}"
        if one.dtype.kind == "i":
            np.testing.assert_array_equal(one, other.astype(np.int64))
            continue
        wanted = np.asarray(other).astype(np.float64)
        error, largest = np.abs(one.astype(np.float64) - wanted).max(initial=0), np.abs(wanted).max(initial=0)
        wrong = error / (np.finfo(one.dtype).eps * largest) if largest else float(error)
        assert wrong <= ulps, f"output {index} is wrong by {wrong:.3g} ulp:\n{one}\nexpected\n{wanted}"


def arrived_at(outputs: Sequence[Array]) -> list[Array | None]:
    """A random gradient for every output that can have one."""
    rng = np.random.default_rng(5)
    return [rng.standard_normal(y.shape).astype(y.dtype) if y.dtype.kind == "f" else None for y in outputs]


class OwnLoops:
    """Kernels with no other loop than those that an operation names; `asked` are those that it used."""

    def __init__(self, loops: frozenset[str]) -> None:
        self._loops = loops
        self._kernels = CpuKernels(RUN)
        self.asked: set[str] = set()
        self.xp, self.key = self._kernels.xp, self._kernels.key

    def __getattr__(self, name: str) -> Any:
        assert name in self._loops, f"kernels.{name} is used and not in `loops`"
        self.asked.add(name)
        return getattr(self._kernels, name)


# A graph around the operation


class Around:
    """A graph in which an operation is used on the same blobs `uses` times, each use with its own loss.

    A use's loss is the sum of its outputs times random numbers. Every gradient so has one producer per use; with
    `ahead`, one more, which is first and adds 7. `value` and `gradients` run the graph on the CPU, one operator after
    the other.
    """

    def __init__(self, case: Case, dtype: str, uses: int = 2, ahead: bool = False) -> None:
        self.graph, self.feeds = Graph("around"), {}
        self.arrays = case.draw(dtype)
        self.blobs = [self._source(f"x{i}", array) for i, array in enumerate(self.arrays)]
        slots = [i for i, blob in enumerate(self.blobs) if blob.tensor.is_float]
        self.slots = [i for i in slots if case.operation.differentiable(i)]
        self.losses: dict[Blob, float] = {}
        for use in range(uses):
            for index, y in enumerate(self.graph.apply(case.operation, self.blobs, f"use{use}")):
                if y.tensor.is_float:
                    self._add_loss(y, f"loss{use}.{index}", (1.0, -0.5)[use])
        if ahead:
            for i in self.slots:
                [total] = self.graph.apply(ReduceSum(), [self.blobs[i]], f"total{i}")
                self.losses[total] = 7.0
        self.wanted = add_gradients(self.losses, [self.blobs[i] for i in self.slots])
        self.executor = Serial(self.graph, seed=RUN.seed)

    def _source(self, name: str, array: Array) -> Blob:
        self.feeds[name] = array
        return self.graph.blob(name, array.shape, array.dtype.name)

    def _add_loss(self, y: Blob, name: str, factor: float) -> None:
        rng = np.random.default_rng(len(self.losses))
        factors = self._source(f"{name}/factors", rng.standard_normal(y.shape).astype(y.dtype).reshape(y.shape))
        [product] = self.graph.apply(Mul(), [y, factors], f"{name}/product")
        [loss] = self.graph.apply(ReduceSum(), [product], name)
        self.losses[loss] = factor

    def value(self, point: Sequence[Array]) -> float:
        """The weighted losses, with `point` for the inputs that have gradients."""
        self._run(point)
        return float(sum(factor * self.executor.fetch(loss.name) for loss, factor in self.losses.items()))

    def gradients(self, point: Sequence[Array] | None = None) -> list[Array]:
        """The gradients at `point`, by default at the drawn inputs."""
        self._run(self.point if point is None else point)
        return [self.executor.fetch(self.wanted[self.blobs[i]].name) for i in self.slots]

    @property
    def point(self) -> list[Array]:
        """The drawn inputs that have gradients."""
        return [self.arrays[i] for i in self.slots]

    def _run(self, point: Sequence[Array]) -> None:
        moved = {self.blobs[i].name: array for i, array in zip(self.slots, point, strict=True)}
        self.executor.feed({**self.feeds, **moved})
        self.executor.run()


# The suite


class OperationContract:
    """Every check of an operation. Subclasses set `cases`; checks that need more than one value say what they compare."""

    cases: ClassVar[Sequence[Case]] = ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test for every case and dtype that a check applies to."""
        if {"case", "dtype"} <= set(metafunc.fixturenames):
            rows = list(applications(metafunc.function, self.cases))
            ids = [f"{case.name}-{dtype}" for case, dtype in rows]
            metafunc.parametrize(("case", "dtype"), rows, ids=ids)

    # Values

    @every
    def test_values_are_those_of_the_loops(self, case: Case, dtype: str) -> None:
        arrays = case.draw(dtype)
        outputs = compute(case.operation, arrays)
        near(outputs, case.expected([numbers(array) for array in arrays]), case.ulps)

    @only(lambda case: case.reference)
    def test_values_and_gradients_are_those_of_the_reference(self, case: Case, dtype: str) -> None:
        arrays, rule = case.draw(dtype), case.has_gradient and dtype in FLOATS
        outputs = compute(case.operation, arrays)
        arrived = arrived_at(outputs) if rule else []
        values, gradients = case.reference(arrays, arrived)
        near(outputs, values, 2 * case.ulps)
        if rule:
            got = backward(case.operation, arrays, arrived, seed=RUN.seed, iteration=RUN.iteration)
            wanted = [i for i, gradient in enumerate(got) if gradient is not None]
            near([got[i] for i in wanted], [gradients[i] for i in wanted], 4 * case.ulps)

    @every
    def test_what_goes_in_comes_out_and_no_numpy_scalar_promotes_it(self, case: Case, dtype: str) -> None:
        """GC-02: attributes may be numpy's float64 and int64."""
        arrays, operation = case.draw(dtype), with_numpy_scalars(case.operation)
        outputs = compute(operation, arrays)
        same_bits(outputs, compute(case.operation, arrays))
        assert {y.dtype.name for y in outputs if y.dtype.kind == "f"} <= {dtype}
        assert operation == case.operation

    # Gradients

    @only(lambda case: case.has_gradient, ["float64"])
    def test_gradients_are_the_slopes_of_the_values(self, case: Case, dtype: str) -> None:
        """Two uses in a graph, so that every gradient has two producers (rule R4)."""
        around = Around(case, dtype)
        check_gradient(around.value, around.gradients(), around.point, distance=case.distance)

    @only(lambda case: case.has_gradient, ["float32"])
    def test_float32_gradients_are_the_float64_ones_rounded(self, case: Case, dtype: str) -> None:
        single, double = Around(case, dtype), Around(case, "float64")
        double.feeds = {name: as_float64(array) for name, array in single.feeds.items()}
        got, want = single.gradients(), double.gradients([as_float64(array) for array in single.point])
        assert {gradient.dtype.name for gradient in got} == {dtype}
        near(got, want, 4 * case.ulps + 2)

    @with_gradient
    def test_gc_01_a_gradient_adds_to_what_is_there(self, case: Case, dtype: str) -> None:
        """Every gradient has a producer that delivers 7, and then the operation's."""
        alone = Around(case, dtype, uses=1).gradients()
        ahead = Around(case, dtype, uses=1, ahead=True).gradients()
        for gradient, total in zip(alone, ahead, strict=True):
            same_bits([total], [gradient + np.asarray(7, dtype)])

    @with_gradient
    def test_only_wanted_gradients_are_wired(self, case: Case, dtype: str) -> None:
        arrays = case.draw(dtype)
        outputs = compute(case.operation, arrays)
        slots = [i for i, x in enumerate(arrays) if x.dtype.kind == "f" and case.operation.differentiable(i)]
        for wanted in [None, *slots]:
            wants = [slot == wanted for slot in range(len(arrays))]
            wiring = ArrayWiring(arrays, outputs, arrived_at(outputs), wants)
            case.operation.gradient(wiring)
            assert [gradient is not None for gradient in wiring.gradients] == wants
            assert bool(wiring.added) == any(wants)

    # Buffers

    @every
    def test_strides_change_no_bit(self, case: Case, dtype: str) -> None:
        arrays = case.draw(dtype)
        want = compute(case.operation, arrays)
        for layout in LAYOUTS:
            strided = [layout(array) for array in arrays]
            same_bits(compute(case.operation, strided), want)
            same_bits(compute(case.operation, arrays, layout=layout), want)
            same_bits(compute(case.operation, strided, layout=layout), want)

    @every
    def test_inputs_are_left_as_they_are(self, case: Case, dtype: str) -> None:
        arrays = case.draw(dtype)
        before = [array.copy() for array in arrays]
        outputs = [filled(tensor, 7) for tensor in case.operation.infer([describe(array) for array in arrays])]
        case.operation.compute(CpuKernels(RUN), arrays, outputs)
        same_bits(arrays, before)
        assert not any(np.shares_memory(x, y) for x in arrays for y in outputs)

    @every
    def test_what_buffers_held_changes_no_bit(self, case: Case, dtype: str) -> None:
        arrays = case.draw(dtype)
        same_bits(compute(case.operation, arrays, np.nan), compute(case.operation, arrays, 7))

    @every
    def test_gc_01_every_output_adds_to_what_is_there(self, case: Case, dtype: str) -> None:
        """In a graph, `Constant(7)` is the first producer of every output, and the operation is the second."""
        arrays, graph = case.draw(dtype), Graph("add")
        inputs = [graph.blob(f"x{i}", array.shape, array.dtype.name) for i, array in enumerate(arrays)]
        made = case.operation.infer([blob.tensor for blob in inputs])
        outputs = [graph.blob(f"y{i}", tensor.shape, tensor.dtype) for i, tensor in enumerate(made)]
        for y in outputs:
            graph.connect([], Constant(7, y.shape, y.dtype), [y])
        graph.connect(inputs, case.operation, outputs, name="operation")
        with Serial(graph, seed=RUN.seed) as executor:
            executor.iteration = RUN.iteration
            executor.feed({f"x{i}": array for i, array in enumerate(arrays)})
            executor.run()
            got = [executor.fetch(y.name) for y in outputs]
        same_bits(got, [np.asarray(7, y.dtype) + y for y in compute(case.operation, arrays)])

    @only(lambda case: case.operation.in_place)
    def test_in_place_changes_no_bit(self, case: Case, dtype: str) -> None:
        arrays = case.draw(dtype)
        want = compute(case.operation, arrays)
        others = [filled(describe(y), 7) for y in want[1:]]
        case.operation.compute(CpuKernels(RUN), arrays, [arrays[0], *others])
        same_bits([arrays[0], *others], want)

    @only(lambda case: case.operation.rearranges)
    def test_boxes_are_where_the_parts_lie(self, case: Case, dtype: str) -> None:
        """Rule R5: a view of the whole has the bits that `compute` moves."""
        arrays = case.draw(dtype)
        outputs = compute(case.operation, arrays)
        boxes = case.operation.boxes([describe(x) for x in arrays], [describe(y) for y in outputs])
        whole, parts = (outputs[0], arrays) if case.operation.rearranges == "join" else (arrays[0], outputs)
        for box, part in zip(boxes, parts, strict=True):
            same_bits([whole[tuple(slice(*ends) for ends in box)].reshape(part.shape)], [part])

    @only(lambda case: case.has_batch)
    def test_an_empty_batch_is_legal(self, case: Case, dtype: str) -> None:
        """OP-14: empty outputs, zero gradients, losses of 0; nothing of what the buffers held."""
        arrays, operation = case.draw(dtype, samples=0), case.empty or case.operation
        outputs = compute(operation, arrays, np.nan)
        if case.inputs:
            near(outputs, case.expected([numbers(array) for array in arrays]), 0)
        else:
            assert not any(y.size for y in outputs)
        assert [y.dtype for y in outputs] == [y.dtype for y in compute(case.operation, case.draw(dtype))]

    # What it states of itself

    @every
    def test_cost_counts_flops_and_bytes(self, case: Case, dtype: str) -> None:
        arrays = case.draw(dtype)
        outputs = compute(case.operation, arrays)
        cost = case.operation.cost([describe(x) for x in arrays], [describe(y) for y in outputs])
        assert type(cost.flops) is int
        assert cost.flops >= 0
        assert (cost.flops == 0) == case.free
        assert type(cost.bytes) is int
        assert cost.bytes == sum(array.nbytes for array in (*arrays, *outputs))

    @every
    def test_it_uses_the_loops_that_it_names(self, case: Case, dtype: str) -> None:
        """Rule R13: a device without one of them can be refused beforehand."""
        kernels = OwnLoops(case.operation.loops)
        compute(case.operation, case.draw(dtype), kernels=kernels)
        assert kernels.asked == case.operation.loops

    @every
    def test_the_docstring_starts_with_the_connection(self, case: Case, dtype: str) -> None:
        first = (type(case.operation).__doc__ or "").partition("\n")[0]
        assert re.match(rf"\{{.*\}} >> {case.operation.name} >> \{{ .+ \}}", first), first

    @certified
    def test_r10_integers_give_exact_results_within_the_certificate(self, case: Case, dtype: str) -> None:
        """Results equal those in fractions; limits, quanta and every partial sum keep within what is stated."""
        exponents, arrays = exact_arrays(case, dtype)
        outputs = compute(case.operation, arrays)
        want = case.expected([traced(array) for array in arrays])
        limits = limits_of(case.operation, arrays)
        quanta = case.operation.quantum(exponents, case.tensors(dtype), [describe(y) for y in outputs])
        for y, exact, limit, quantum in zip(outputs, want, limits, quanta, strict=True):
            if y.dtype.kind == "i":
                np.testing.assert_array_equal(y, exact.astype(np.int64))
                continue
            for got, wanted, most in zip(*(each(as_traced, array).flat for array in (y, exact, limit)), strict=True):
                assert got == wanted
                assert abs(got.value) <= most.value
                assert (got.value / Fraction(2) ** quantum).denominator == 1
                room = most.value / Fraction(2) ** quantum
                assert wanted.peak <= room <= 2 ** INTEGER_BITS[dtype]

    @only(lambda case: case.operation.exact and not case.certified, FLOATS)
    def test_r10_what_would_round_is_refused(self, case: Case, dtype: str) -> None:
        tensors = case.tensors(dtype)
        with pytest.raises(OperatorError, match=rf"^{case.operation.name} is exact only where .*$"):
            case.operation.quantum([0] * len(tensors), tensors, case.operation.infer(tensors))

    @every
    def test_another_number_of_inputs_is_refused(self, case: Case, dtype: str) -> None:
        tensors = case.tensors(dtype)
        wrong = [[*tensors, tensors[-1] if tensors else Tensor((3, 2), dtype)]] if not case.variadic else []
        for inputs in [*wrong, *([[]] if case.variadic else [tensors[:-1]] if tensors else [])]:
            refuses(case.operation, inputs)

    @every
    def test_another_dtype_is_refused(self, case: Case, dtype: str) -> None:
        tensors = case.tensors(dtype)
        floats = [i for i, tensor in enumerate(tensors) if tensor.is_float]
        for index, tensor in enumerate(tensors):
            others = [other for other in DTYPES if other != tensor.dtype]
            if case.moves_integers and len(tensors) == 1:
                others = []
            elif floats == [index]:
                others = ["int64"]  # the other float dtype is as good
            for other in others:
                refuses(case.operation, [*tensors[:index], replace(tensor, dtype=other), *tensors[index + 1 :]])


def applications(check: Check, cases: Sequence[Case]) -> Iterator[tuple[Case, str]]:
    """The cases, each with its dtypes, that a check applies to."""
    for case in cases:
        for dtype in case.dtypes:
            if check.applies(case, dtype):  # type: ignore[attr-defined]
                yield case, dtype


def failed_checks(case: Case) -> list[str]:
    """The names of the checks that a case fails, in any dtype."""
    failed = []
    for name, check in vars(OperationContract).items():
        if name.startswith("test_"):
            for row in applications(check, [case]):
                try:
                    check(OperationContract(), *row)
                except (Exception, pytest.fail.Exception):
                    failed.append(name)
                    break
    return failed


def as_float64(array: Array) -> Array:
    """Floats as float64; integers as they are."""
    return array if array.dtype.kind == "i" else array.astype(np.float64)


def with_numpy_scalars(operation: Operation) -> Operation:
    """The same operation, with numpy's float64 and int64 for the numbers among its attributes."""
    values = {each.name: getattr(operation, each.name) for each in fields(operation)}  # type: ignore[arg-type]
    return replace(operation, **{name: as_numpy(value) for name, value in values.items()})  # type: ignore[type-var]


def as_numpy(value: Any) -> Any:
    """A number as numpy's, a tuple with its numbers so, anything else as it is."""
    if isinstance(value, tuple):
        return tuple(map(as_numpy, value))
    return {float: np.float64, int: np.int64}.get(type(value), lambda same: same)(value)


def exact_arrays(case: Case, dtype: str) -> tuple[list[int], list[Array]]:
    """The exponent of each input's quantum, and inputs that are such multiples; what only chooses is not scaled."""
    arrays, exponents = case.draw(dtype, exact=True), []
    for index, array in enumerate(arrays):
        chooses = array.dtype.kind == "i" or index in case.operation.selectors
        exponents.append(0 if chooses else EXPONENTS[index % len(EXPONENTS)])
        if not chooses:
            arrays[index] = np.asarray(array * 2.0 ** exponents[index], dtype)
    return exponents, arrays


def limits_of(operation: Operation, arrays: Sequence[Array]) -> list[Array]:
    """The limits of the outputs' partial sums, computed in float64 as a certificate does."""
    made = operation.infer([describe(array) for array in arrays])
    limits = [filled(tensor if not tensor.is_float else replace(tensor, dtype="float64"), 7) for tensor in made]
    operation.magnitude(CpuKernels(RUN), arrays, [np.abs(array) for array in arrays], limits)
    return limits


def as_traced(number: Any) -> Traced:
    """A number that traces."""
    return number if isinstance(number, Traced) else Traced(number)


def refuses(operation: Operation, inputs: Sequence[Tensor]) -> None:
    """Assert that `infer` refuses the inputs with a ShapeError that names the operation."""
    with pytest.raises(ShapeError, match=rf"^{operation.name}: expected .+, got .+$"):
        operation.infer(inputs)
