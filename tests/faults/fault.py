"""What a planted fault is, and the few ways to plant one: all patch one attribute, and put it back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

LOOPS = "test_values_are_those_of_the_loops"
REFERENCE = "test_values_and_gradients_are_those_of_the_reference"
SLOPES = "test_gradients_are_the_slopes_of_the_values"
EXACT = "test_r10_integers_give_exact_results_within_the_certificate"
"""Checks of the operations' suite that many faults name."""

Plant = Callable[[], AbstractContextManager[object]]
"""Makes the context in which the fault is in the package."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A wrong package: `wrong` says in one sentence what is, and `checks` names the checks that must each fail.

    Names are those of `checks.find`. An `isolated` fault can keep a check from ever ending, or end a thread: it is
    judged in a process of its own, where a check that does not end is killed by its time limit.
    """

    name: str
    wrong: str
    plant: Plant
    checks: tuple[str, ...]
    isolated: bool = False


def replaced(owner: Any, name: str, wrong: object) -> Plant:
    """`owner.name` is `wrong`."""
    return lambda: mock.patch.object(owner, name, wrong)


def around(owner: Any, name: str, wrong: Callable[..., Any]) -> Plant:
    """Calls of `owner.name` are calls of `wrong` with the right function and then the arguments."""

    def plant() -> AbstractContextManager[object]:
        right = getattr(owner, name)

        def replacement(*arguments: Any, **keywords: Any) -> Any:
            return wrong(right, *arguments, **keywords)

        static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        return mock.patch.object(owner, name, staticmethod(replacement) if static else replacement)

    return plant


def computing(kind: Any, body: Callable[..., None]) -> Plant:
    """`compute` of an operation is `body` of the operation, its inputs, and its outputs."""
    return replaced(kind, "compute", lambda self, kernels, inputs, outputs: body(self, *inputs, *outputs))


def misread(kind: Any, change: Callable[[Any], Any], *methods: str) -> Plant:
    """An operation's `methods` (by default `compute`) see it as `change` makes it."""

    def plant() -> AbstractContextManager[object]:
        right = {name: getattr(kind, name) for name in methods or ("compute",)}
        wrong = {
            name: lambda self, *arguments, method=method: method(change(self), *arguments)
            for name, method in right.items()
        }
        return mock.patch.multiple(kind, **wrong)

    return plant


def together(*plants: Plant) -> Plant:
    """Several patches, for what is one mistake in two places."""

    @contextmanager
    def plant() -> Iterator[None]:
        with ExitStack() as stack:
            for each in plants:
                stack.enter_context(each())
            yield

    return plant
