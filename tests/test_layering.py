"""The one-way order of `docs/architecture.md`: who may import whom. The checker is itself shown planted breaches."""

from __future__ import annotations

import ast
import graphlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "purine_ref"
ARCHITECTURE = Path(__file__).parent.parent / "docs" / "architecture.md"

Rows = dict[str, int]
Sources = dict[str, str]


def package_root() -> Path:
    """Where the package under test lies, found without importing it."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    [path] = set(spec.submodule_search_locations or ())
    return Path(path)


def read_sources(root: Path) -> Sources:
    """The text of every module, by its dotted name; a package's is its `__init__`."""
    sources = {}
    for file in sorted(root.rglob("*.py")):
        parts = (PACKAGE, *file.relative_to(root).with_suffix("").parts)
        sources[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file.read_text("utf-8")
    return sources


def read_rows(table: str) -> Rows:
    """The row of each unit (a module or package at the top), from the lines `| row | `name`, `name` | sentence |`."""
    rows = {}
    for row, units in re.findall(r"^\| (\d+) \| ([^|]+) \|", table, re.MULTILINE):
        rows |= dict.fromkeys(re.findall(r"`(\w+)`", units), int(row))
    return rows


def unit(module: str) -> str:
    """The module or package at the top that `module` belongs to; the root itself is `__init__`."""
    return module.partition(".")[2].partition(".")[0] or "__init__"


def imports(module: str, source: str, known: Sources) -> Iterator[tuple[str, bool]]:
    """Each own module that `source` imports, and whether inside a function. The root stands for all it re-exports."""
    pending: list[tuple[ast.AST, bool]] = [(ast.parse(source), False)]
    while pending:
        node, deferred = pending.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, deferred) for alias in node.names if alias.name.split(".")[0] == PACKAGE)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: line {node.lineno}: write imports absolutely"
            base = node.module or ""
            if base.split(".")[0] == PACKAGE:
                names = (f"{base}.{alias.name}" for alias in node.names)
                yield from ((name if name in known else base, deferred) for name in names)
        inside = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        pending.extend((child, inside) for child in ast.iter_child_nodes(node))


def breaches(sources: Sources, rows: Rows) -> list[str]:
    """Every import against the order, one sentence each."""
    found = [f"{unit(m)} is in no row" for m in sources if unit(m) not in rows]
    found += [f"row {rows[name]} names {name}, which is not there" for name in rows.keys() - set(map(unit, sources))]
    edges: dict[str, set[str]] = {module: set() for module in sources}
    for module, source in sources.items():
        for target, deferred in imports(module, source, sources):
            edges[module].add(target)
            here, there = rows.get(unit(module), -1), rows.get(unit(target), -1)
            if target == PACKAGE:
                found.append(f"{module} imports the package root")
            if deferred:
                found.append(f"{module} imports {target} inside a function")
            if unit(target) != unit(module) and there >= here:
                found.append(f"{module} (row {here}) imports {target} (row {there})")
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        found.append("a cycle of imports: " + " -> ".join(error.args[1]))
    return found


def test_every_import_goes_to_an_earlier_row() -> None:
    rows = read_rows(ARCHITECTURE.read_text("utf-8"))
    assert breaches(read_sources(package_root()), rows) == []


ALONE = """
import importlib, sys, types
path, *modules = sys.argv[1:]
for module in modules:
    for loaded in [name for name in sys.modules if name.split(".")[0] == "purine_ref"]:
        del sys.modules[loaded]
    root = types.ModuleType("purine_ref")
    root.__path__ = [path]
    sys.modules["purine_ref"] = root
    importlib.import_module(module)
    print(module, flush=True)
"""
"""A fresh interpreter imports each module with an empty root, so that none leans on what another has loaded."""


@pytest.mark.timeout(600)
def test_every_module_can_be_imported_alone() -> None:
    root = package_root()
    modules = [module for module in read_sources(root) if module != PACKAGE]
    command = [sys.executable, "-P", "-W", "error", "-c", ALONE, str(root), *modules]
    done = subprocess.run(command, capture_output=True, text=True, timeout=570, check=False)
    assert (done.stdout.split(), done.returncode) == (modules, 0), done.stderr


ROWS = {"errors": 0, "tensor": 1, "graph": 2, "ops": 2, "__init__": 3}
SOUND = {
    "purine_ref": "from purine_ref.graph import Graph",
    "purine_ref.errors": "",
    "purine_ref.tensor": "import math\nfrom purine_ref.errors import ShapeError",
    "purine_ref.graph": "from purine_ref import tensor",
    "purine_ref.ops": "from purine_ref.ops.linear import Linear",
    "purine_ref.ops.linear": "from purine_ref.ops import shape",
    "purine_ref.ops.shape": "import purine_ref.tensor",
}


def test_sound_sources_pass() -> None:
    assert breaches(SOUND, ROWS) == []


@pytest.mark.parametrize(
    ("module", "source", "breach"),
    [
        ("errors", "import purine_ref.tensor", "purine_ref.errors (row 0) imports purine_ref.tensor (row 1)"),
        ("graph", "import purine_ref.ops.shape", "purine_ref.graph (row 2) imports purine_ref.ops.shape (row 2)"),
        ("graph", "from purine_ref import Graph", "purine_ref.graph imports the package root"),
        ("graph", "import purine_ref", "purine_ref.graph imports the package root"),
        (
            "graph",
            "def f():\n    from purine_ref.errors import ShapeError",
            "purine_ref.graph imports purine_ref.errors inside a function",
        ),
        ("extra", "", "extra is in no row"),
    ],
)
def test_a_planted_breach_is_found(module: str, source: str, breach: str) -> None:
    assert breach in breaches(SOUND | {f"{PACKAGE}.{module}": source}, ROWS)


def test_a_planted_cycle_is_found() -> None:
    [cycle] = breaches(SOUND | {f"{PACKAGE}.ops.shape": "from purine_ref.ops.linear import Linear"}, ROWS)
    assert cycle.startswith("a cycle of imports: ")
    assert set(cycle.partition(": ")[2].split(" -> ")) == {"purine_ref.ops.linear", "purine_ref.ops.shape"}


def test_a_row_without_its_module_is_found() -> None:
    assert breaches(SOUND, ROWS | {"plan": 2}) == ["row 2 names plan, which is not there"]


def test_rows_are_read_from_the_table() -> None:
    assert read_rows("| row | unit |\n|---|---|\n| 0 | `errors`, `_fast` | a |\n| 10 | `cli` | b |") == {
        "errors": 0,
        "_fast": 0,
        "cli": 10,
    }
