"""The suites' own checks, by name, as functions without arguments that raise when they fail.

A name is `WHERE: CHECK`. Where is an operation (the operations' suite, on all its cases and dtypes), an executor (the
executors' suite), a transport (theirs), or a test module; or it is `verify` or `verify --exact`, and what follows is a
model and a scheme, as for the command. Parameters are taken from the test's own marks, and all their combinations run.
A property is searched with few examples, always the same.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from purine_ref import ops
from purine_ref.executors import Observer, Serial, Simulated, Threaded
from purine_ref.transports import EARLY, Hub

Check = Callable[[], None]

WORKERS = 4
"""The threads of the threaded executor: as many as its checks need to hold several operators back at once."""

EXECUTORS: dict[str, tuple[str, Callable[..., Any]]] = {
    "Serial": ("ExecutorSuite", Serial),
    "Simulated": ("ExecutorSuite", partial(Simulated, threads=3)),
    "Threaded": ("ConcurrentSuite", partial(Threaded, threads=WORKERS)),
    "Watched": ("ConcurrentSuite", partial(Threaded, threads=WORKERS, observer=Observer())),
}
"""For each executor the suite that it must pass, and how it is made. One that is watched has lanes, and no pool."""

TRANSPORTS: dict[str, Callable[..., Any]] = {
    "InProcess": lambda incoming, early=EARLY: Hub(incoming, early=early).transports,
}
"""How the transports of each kind are connected."""

FEW = settings(
    max_examples=100,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
"""A small search that always draws the same."""


def find(name: str) -> Check:
    """The check of that name. Raises LookupError where there is none."""
    where, _, check = name.partition(": ")
    if where in ops.__all__:
        return partial(_on_operation, where, check)
    if where in EXECUTORS:
        suite, make = EXECUTORS[where]
        owner = getattr(importlib.import_module("suites.executors"), suite)()
        return partial(_call_all, _test(owner, check), {"make": make, "workers": WORKERS})
    if where in TRANSPORTS:
        return partial(_on_transport, TRANSPORTS[where], check)
    if where in ("verify", "verify --exact"):
        return partial(importlib.import_module("suites.schemes").agrees, *check.split(), exact=where != "verify")
    module = importlib.import_module(where)
    return partial(_call_all, _test(module, check), {})


def _test(owner: object, name: str) -> Callable[..., object]:
    test = getattr(owner, name, None)
    if not name.startswith("test_") or test is None:
        raise LookupError(f"{owner!r} has no check {name!r}")
    return test


def _on_operation(operation: str, name: str) -> None:
    """A check of the operations' suite, on every case of an operation. Raises LookupError when it applies to none."""
    suite = importlib.import_module("suites.operations")
    cases = [case for case in importlib.import_module("operation_cases").ALL if case.operation.name == operation]
    contract = suite.OperationContract
    rows = list(suite.applications(_test(contract, name), cases))
    if not rows:
        raise LookupError(f"{name!r} applies to no case of {operation}")
    for row in rows:
        getattr(contract, name)(contract(), *row)


def _on_transport(connect: Callable[..., Any], name: str) -> None:
    """A check of the transports' suite, with transports that are closed afterwards, for every combination."""
    suite = importlib.import_module("suites.transports")
    test = _test(suite.TransportContract(), name)
    wanted = inspect.signature(test).parameters
    for parameters in combinations(test):
        worlds = {fixture: connect(suite.all_to_all(world, (2, 5))) for fixture, world in (("pair", 2), ("three", 3))}
        known = {"connect": connect, **worlds, **parameters}
        test(**{name: known[name] for name in wanted})
        for transports in worlds.values():
            for transport in transports:
                transport.close()


def _call_all(test: Callable[..., object], fixtures: dict[str, object]) -> None:
    """Call a test as pytest would, once for every combination of its parameters."""
    for parameters in combinations(test):
        with tempfile.TemporaryDirectory() as directory:
            known = {**fixtures, "tmp_path": Path(directory)}
            wanted = inspect.signature(test).parameters
            _small(test)(**{name: known[name] for name in wanted if name in known}, **parameters)


def combinations(test: Callable[..., object]) -> Iterator[dict[str, object]]:
    """The parameters of every test that pytest would make of a function with `parametrize` marks."""
    tables = [_rows(*mark.args) for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    for chosen in itertools.product(*tables):
        yield {name: value for row in chosen for name, value in row.items()}


def _rows(names: str | tuple[str, ...], values: Any) -> list[dict[str, object]]:
    listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    return [dict(zip(listed, (value,) if len(listed) == 1 else value, strict=True)) for value in values]


def _small(test: Callable[..., object]) -> Callable[..., object]:
    """The test itself; a property with the settings `FEW`."""
    handle = getattr(test, "hypothesis", None)
    if handle is None:
        return test
    return FEW(given(**handle._given_kwargs)(handle.inner_test))
