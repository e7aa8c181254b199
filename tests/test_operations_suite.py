"""The operations' suite on an operation from outside: a right one passes, and each planted fault fails its check."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest

from oracles import each, movement, values
from purine_ref.errors import ShapeError
from purine_ref.operation import Cost, Operation, traffic
from purine_ref.ops import Concat, Mean
from suites.operation_case import Case, Input
from suites.operations import OperationContract, failed_checks

SHAPE = (5, 4, 3)


@dataclass(frozen=True)
class Product(Operation):
    """{ x1, x2 } >> Product >> { y }

    All of one shape, floating point. y = factor x1 x2.
    """

    factor: float

    in_place = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", float(self.factor))

    @property
    def exact(self) -> bool:
        return math.frexp(abs(self.factor))[0] == 0.5

    def infer(self, inputs: Any) -> Any:
        self.require_inputs(inputs, "x1 x2")
        self.require_same(inputs)
        return (inputs[0],)

    def compute(self, kernels: Any, inputs: Any, outputs: Any) -> None:
        outputs[0][...] = inputs[0] * inputs[1] * self.factor

    def gradient(self, wiring: Any) -> None:
        for index in (0, 1):
            if wiring.wants[index]:
                wiring.add(self, [wiring.gradient(0), wiring.inputs[1 - index]], [index])

    def cost(self, inputs: Any, outputs: Any) -> Cost:
        return Cost(2 * outputs[0].size, traffic(inputs, outputs))

    def magnitude(self, kernels: Any, inputs: Any, bounds: Any, outputs: Any) -> None:
        replace(self, factor=abs(self.factor)).compute(kernels, bounds, outputs)

    def quantum(self, exponents: Any, inputs: Any, outputs: Any) -> Any:
        return (sum(exponents) + math.frexp(self.factor)[1] - 1,)


def case(kind: Any, factor: float, note: str) -> Case:
    worth = Fraction(factor)

    def oracle(a: Any, b: Any) -> Any:
        return each(lambda v, w: v * w * worth, a, b)

    def reference(arrays: Any, arrived: Any) -> Any:
        a, b = arrays
        return [a * b * factor], [dy * x * factor for dy in arrived for x in (b, a)]

    return Case(kind(factor), (Input(SHAPE), Input(SHAPE)), oracle, reference, note)


def concat_case(kind: Any) -> Case:
    shapes = (Input((5, 4, 3)), Input((5, 2, 3)))
    return Case(kind(1), shapes, lambda *xs: movement.concat(1, *xs), free=True, moves_integers=True, variadic=True)


def mean_case(kind: Any) -> Case:
    return Case(kind(), (Input(SHAPE),) * 3, values.mean, certified=False, variadic=True)


class TestForeignOperations(OperationContract):
    cases = (case(Product, -0.5, "exact"), case(Product, 0.3, "rounding"), concat_case(Concat), mean_case(Mean))


def with_parts(kind: Any, **parts: Any) -> Any:
    """A class like `kind`, its docstring too, with other members."""
    return type(kind.__name__, (kind,), {"__doc__": kind.__doc__, **parts})


def computing(body: Callable[[Product, Any, Any, Any], None]) -> dict[str, Any]:
    """`compute` is `body` of the operation, both inputs and the output."""
    return {"compute": lambda self, kernels, inputs, outputs: body(self, *inputs, *outputs)}


def wiring(body: Callable[[Product, Any, int], None], every: bool = False) -> dict[str, Any]:
    """`gradient` is `body` of the operation, the wiring, and each index that is wanted."""

    def gradient(self: Product, wires: Any) -> None:
        for index in (0, 1):
            if every or wires.wants[index]:
                body(self, wires, index)

    return {"gradient": gradient}


def wire(operation: Operation, wires: Any, index: int, other: int) -> None:
    wires.add(operation, [wires.gradient(0), wires.inputs[other]], [index])


def all_but_the_last(self: Product, a: Any, b: Any, y: Any) -> None:
    y[:-1] = (a * b * self.factor)[:-1]


def adding_to_what_is_there(self: Product, a: Any, b: Any, y: Any) -> None:
    y += a * b * self.factor


def writing_its_input(self: Product, a: Any, b: Any, y: Any) -> None:
    a *= self.factor
    y[...] = a * b


def flattening(self: Product, a: Any, b: Any, y: Any) -> None:
    y.reshape(-1)[...] = (a * b * self.factor).reshape(-1)


def in_the_order_of_memory(self: Product, a: Any, b: Any, y: Any) -> None:
    y[...] = a * b * self.factor + 1e-6 * (a.ravel(order="K")[1] - a.ravel()[1])


def writing_first(self: Product, a: Any, b: Any, y: Any) -> None:
    y[...] = 0
    y += a * b * self.factor


def finding_the_largest(self: Product, a: Any, b: Any, y: Any) -> None:
    y[...] = a / a.max() * b * self.factor * a.max()


def slightly_off(self: Product, a: Any, b: Any, y: Any) -> None:
    y[...] = a * b * self.factor
    y[2, 1, 1] *= 1 + 1e-5


def counting(flops: Any, more_bytes: int) -> dict[str, Any]:
    """Another cost."""
    return {"cost": lambda self, inputs, outputs: Cost(flops, traffic(inputs, outputs) + more_bytes)}


def unnamed(self: Product, inputs: Any) -> Any:
    if len({(tensor.shape, tensor.dtype) for tensor in inputs}) != 1 or len(inputs) != 2 or not inputs[0].is_float:
        raise ShapeError("these inputs do not agree")
    return (inputs[0],)


def promoted(self: Product, inputs: Any) -> Any:
    return (replace(Product.infer(self, inputs)[0], dtype="float64"),)


FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("test_values_are_those_of_the_loops", computing(all_but_the_last)),
    ("test_values_are_those_of_the_loops", computing(slightly_off)),
    ("test_values_and_gradients_are_those_of_the_reference", computing(slightly_off)),
    (
        "test_values_and_gradients_are_those_of_the_reference",
        wiring(lambda self, wires, index: wire(Product(-self.factor), wires, index, 1 - index)),
    ),
    ("test_what_goes_in_comes_out_and_no_numpy_scalar_promotes_it", {"infer": promoted}),
    ("test_what_goes_in_comes_out_and_no_numpy_scalar_promotes_it", {"__post_init__": lambda self: None}),
    (
        "test_gradients_are_the_slopes_of_the_values",
        wiring(lambda self, wires, index: wire(self, wires, index, index)),
    ),
    (
        "test_gradients_are_the_slopes_of_the_values",
        wiring(lambda self, wires, index: wire(Product(self.factor * (1 + index * 1e-5)), wires, index, 1 - index)),
    ),
    (
        "test_gradients_are_the_slopes_of_the_values",
        wiring(lambda self, wires, index: [wire(self, wires, index, 1 - index) for _ in range(2)]),
    ),
    (
        "test_float32_gradients_are_the_float64_ones_rounded",
        wiring(
            lambda self, wires, index: wire(
                Product(self.factor * (1 + 1e-3 * (wires.inputs[0].tensor.dtype == "float32"))), wires, index, 1 - index
            )
        ),
    ),
    ("test_only_wanted_gradients_are_wired", wiring(lambda self, wires, i: wire(self, wires, i, 1 - i), every=True)),
    ("test_strides_change_no_bit", computing(flattening)),
    ("test_strides_change_no_bit", computing(in_the_order_of_memory)),
    ("test_inputs_are_left_as_they_are", computing(writing_its_input)),
    ("test_what_buffers_held_changes_no_bit", computing(adding_to_what_is_there)),
    ("test_what_buffers_held_changes_no_bit", computing(all_but_the_last)),
    ("test_gc_01_every_output_adds_to_what_is_there", computing(adding_to_what_is_there)),
    ("test_in_place_changes_no_bit", computing(writing_first)),
    ("test_an_empty_batch_is_legal", computing(finding_the_largest)),
    ("test_cost_counts_flops_and_bytes", counting(3, 8)),
    ("test_cost_counts_flops_and_bytes", counting(3.0, 0)),
    ("test_cost_counts_flops_and_bytes", counting(0, 0)),
    ("test_it_uses_the_loops_that_it_names", {"loops": frozenset({"im2col"})}),
    ("test_it_uses_the_loops_that_it_names", {"compute": lambda self, kernels, x, y: kernels.window_sum(x[0], 3)}),
    ("test_the_docstring_starts_with_the_connection", {"__doc__": "Multiplies."}),
    ("test_r10_integers_give_exact_results_within_the_certificate", {"exact": True}),
    ("test_r10_integers_give_exact_results_within_the_certificate", {"magnitude": Operation.magnitude}),
    ("test_r10_integers_give_exact_results_within_the_certificate", {"quantum": lambda self, e, x, y: (sum(e),)}),
    ("test_r10_integers_give_exact_results_within_the_certificate", {"quantum": Operation.quantum}),
    ("test_another_number_of_inputs_is_refused", {"infer": lambda self, inputs: (inputs[0],)}),
    ("test_another_number_of_inputs_is_refused", {"infer": unnamed}),
    ("test_another_dtype_is_refused", {"infer": lambda self, inputs: (inputs[0],)}),
    ("test_another_dtype_is_refused", {"infer": unnamed}),
]


@pytest.mark.parametrize(("check", "parts"), FAULTS, ids=lambda value: value if isinstance(value, str) else "")
def test_each_planted_fault_fails_its_check(check: str, parts: dict[str, Any]) -> None:
    kind = with_parts(Product, **parts)
    assert check in [*failed_checks(case(kind, -0.5, "exact")), *failed_checks(case(kind, 0.3, "rounding"))]


def test_the_right_operation_fails_no_check() -> None:
    kind = with_parts(Product)
    assert failed_checks(case(kind, -0.5, "exact")) == failed_checks(case(kind, 0.3, "rounding")) == []


def test_boxes_that_are_elsewhere_fail_their_check() -> None:
    wrong = with_parts(Concat, boxes=lambda self, x, y: Concat.boxes(self, x[::-1], y)[::-1])
    assert failed_checks(concat_case(Concat)) == []
    assert failed_checks(concat_case(wrong)) == ["test_boxes_are_where_the_parts_lie"]


def test_a_rounding_that_is_not_refused_fails_its_check() -> None:
    wrong = with_parts(Mean, quantum=lambda self, exponents, x, y: (min(exponents),))
    assert failed_checks(mean_case(Mean)) == []
    assert failed_checks(mean_case(wrong)) == ["test_r10_what_would_round_is_refused"]


def test_every_check_has_a_planted_fault() -> None:
    planted = {check for check, _ in FAULTS}
    elsewhere = {"test_boxes_are_where_the_parts_lie", "test_r10_what_would_round_is_refused"}
    by_the_executor = {"test_gc_01_a_gradient_adds_to_what_is_there"}
    checks = {name for name in vars(OperationContract) if name.startswith("test_")}
    assert planted | elsewhere | by_the_executor == checks


def test_a_gradient_that_is_overwritten_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """GC-01: a dispatcher that lets the last producer win."""

    def overwrite(self: Any, blob: int) -> None:
        for staging in self._later.get(blob, ()):
            self._places[blob][0][...] = staging

    monkeypatch.setattr("purine_ref.executors.memory.Binding.combine", overwrite)
    failed = failed_checks(case(Product, -0.5, "exact"))
    assert "test_gc_01_a_gradient_adds_to_what_is_there" in failed
    assert "test_gc_01_every_output_adds_to_what_is_there" in failed
    assert "test_gradients_are_the_slopes_of_the_values" in failed
