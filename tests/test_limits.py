"""The limits that keep the package readable: sizes, docstrings, and that every error says something."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MODULE_LINES = 400
FUNCTION_LINES = 60
LONG_FUNCTIONS: frozenset[str] = frozenset()
"""Functions that may be longer, as `module.py:name`. None is."""

Check = Callable[[ast.Module], Iterator[str]]


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method, nested ones too."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def long_functions(tree: ast.Module) -> Iterator[str]:
    """Functions over the limit, with their size."""
    for node in functions(tree):
        size = (node.end_lineno or 0) - node.lineno + 1
        if size > FUNCTION_LINES:
            yield f"{node.name}: {size} lines"


def undocumented(tree: ast.Module) -> Iterator[str]:
    """The module, and the public classes, functions and methods, that have no docstring."""
    if not ast.get_docstring(tree):
        yield "the module: no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not node.name.startswith("_") and not ast.get_docstring(node):
                yield f"{node.name}: no docstring"


def silent_raises(tree: ast.Module) -> Iterator[str]:
    """Raises of an exception's class, or of an instance made without a message. Re-raising a caught one is no fault."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Raise) or node.exc is None:
            continue
        made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        name = ast.unparse(made).rpartition(".")[2]
        silent = not isinstance(node.exc, ast.Call) or not _says_something(node.exc)
        if name[:1].isupper() and silent:
            yield f"line {node.lineno}: {name} without a message"


def _says_something(call: ast.Call) -> bool:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(not (isinstance(value, ast.Constant) and value.value in ("", None)) for value in given)


def modules() -> list[tuple[str, str]]:
    """(path within the package, text) of every module under test, found without importing it."""
    spec = importlib.util.find_spec("purine_ref")
    assert spec is not None
    [path] = set(spec.submodule_search_locations or ())
    root = Path(path)
    return [(str(file.relative_to(root)), file.read_text("utf-8")) for file in sorted(root.rglob("*.py"))]


def faults(check: Check) -> list[str]:
    """What `check` finds in the package, each with its module."""
    return [f"{path}: {fault}" for path, text in modules() for fault in check(ast.parse(text))]


def test_modules_are_short() -> None:
    sizes = {path: text.count("\n") for path, text in modules()}
    assert sizes
    assert {path: size for path, size in sizes.items() if size > MODULE_LINES} == {}


def test_functions_are_short() -> None:
    found = {fault.rpartition(": ")[0].replace(": ", ":"): fault for fault in faults(long_functions)}
    assert found.keys() == LONG_FUNCTIONS, found


def test_everything_public_has_a_docstring() -> None:
    assert faults(undocumented) == []


def test_every_raise_has_a_message() -> None:
    assert faults(silent_raises) == []


@pytest.mark.parametrize(
    ("check", "source", "found"),
    [
        (long_functions, "def f():\n" + "    x = 1\n" * FUNCTION_LINES, ["f: 61 lines"]),
        (long_functions, "def f():\n" + "    x = 1\n" * (FUNCTION_LINES - 1), []),
        (undocumented, "x = 1", ["the module: no docstring"]),
        (undocumented, '"""M."""\nclass A:\n    "A."\n    def f(self): ...\n    def _g(): ...', ["f: no docstring"]),
        (undocumented, '"""M."""\nclass A: ...\nasync def f(): "F."', ["A: no docstring"]),
        (silent_raises, "raise ValueError", ["line 1: ValueError without a message"]),
        (silent_raises, "raise errors.ShapeError()", ["line 1: ShapeError without a message"]),
        (silent_raises, "raise ValueError('')", ["line 1: ValueError without a message"]),
        (silent_raises, "raise ValueError(f'expected 1, got {x}') from None", []),
        (silent_raises, "try:\n    f()\nexcept ValueError as error:\n    raise error\nelse:\n    raise", []),
    ],
)
def test_a_planted_fault_is_found(check: Check, source: str, found: list[str]) -> None:
    assert list(check(ast.parse(source))) == found
