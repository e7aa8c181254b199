"""The contract of an operation, as a suite: give it cases, and it checks them against independent values.

Subclass `OperationContract` in a test module, as `class TestMine(OperationContract): cases = [...]`, for the package's
operations or for your own. Each check runs for every case and dtype that it applies to, and its id names both.
`failed_checks` runs them without pytest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest

from gradient_checker import check_gradient
from oracles import each, numbers
from oracles.traced import traced, tracing
from purine_ref.errors import OperatorError, ShapeError
from purine_ref.executors import Serial
from purine_ref.graph import Graph
from purine_ref.operation import Operation
from purine_ref.ops import Constant
from purine_ref.tensor import DTYPES, Tensor
from suites.around import Around
from suites.operation_calls import (
    LAYOUTS,
    OwnLoops,
    arrived_at,
    as_float64,
    compute,
    exact_arrays,
    filled,
    limits_of,
    near,
    same_bits,
    vocabulary,
    with_numpy_scalars,
)
from suites.operation_case import FLOATS, RUN, Case
from support import ArrayWiring, backward, describe

Check = Callable[[Any, Case, str], None]
Condition = Callable[[Case], object]

INTEGER_BITS = {"float32": 24, "float64": 53}
"""Integers of so many bits are exact."""


def only(condition: Condition, dtypes: Sequence[str] = DTYPES) -> Callable[[Check], Check]:
    """Say to which cases, and in which dtypes, a check applies."""

    def mark(check: Check) -> Check:
        check.applies = lambda case, dtype: bool(condition(case)) and dtype in dtypes  # type: ignore[attr-defined]
        return check

    return mark


every = only(lambda case: True)
with_gradient = only(lambda case: case.has_gradient, FLOATS)
certified = only(lambda case: case.operation.exact and case.certified, FLOATS)


class OperationContract:
    """Every check of an operation. A subclass sets `cases`; pytest collects it if its name starts with Test."""

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
        case.operation.compute(vocabulary(), arrays, outputs)
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
        case.operation.compute(vocabulary(), arrays, [arrays[0], *others])
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
            for got, wanted, most in zip(*(each(tracing, array).flat for array in (y, exact, limit)), strict=True):
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


def refuses(operation: Operation, inputs: Sequence[Tensor]) -> None:
    """Assert that `infer` refuses the inputs with a ShapeError that names the operation."""
    with pytest.raises(ShapeError, match=rf"^{operation.name}: expected .+, got .+$"):
        operation.infer(inputs)
