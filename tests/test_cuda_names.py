"""The names of CuPy that are used, and that they are there in CuPy 13 and 14, which need no GPU to be imported.

What the sources use is found by reading them. It must be what `cupy_names.txt` lists; and the long test, which installs
both versions into a temporary folder, holds that list against them. So a new name is looked up once.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import purine_ref

PACKAGE = Path(purine_ref.__file__).parent
LISTED = Path(__file__).with_name("cupy_names.txt")

ALIASES = {
    **dict.fromkeys(("xp", "_xp", "cupy", "_cupy", "_module", "module"), ""),
    **dict.fromkeys(("runtime", "_runtime"), "cuda.runtime."),
    **dict.fromkeys(("cuda", "_cuda"), "cuda."),
    "linalg": "_core._routines_linalg.",
}
"""What a name, or an attribute, stands for where another is taken from it."""

VERSIONS = {"13": ("cupy-cuda12x==13.*", "fastrlock"), "14": ("cupy-cuda13x==14.*", "cuda-pathfinder")}
"""What is installed for each version; no library of CUDA."""

LOOK_UP = """
import inspect, json, sys, warnings
warnings.simplefilter("ignore")
import cupy
from cupy.cuda import Event, Graph, Stream

def found(name):
    where, _, path = name.partition(":")
    owners = {"cupy": [cupy, Stream, Event], "array": [cupy.ndarray], "cuda": [Stream, Event, Graph]}[where]
    for owner in owners:
        for part in path.split("."):
            if not hasattr(owner, part) and f".{part} (" not in (owner.__doc__ or ""):
                break
            owner = getattr(owner, part, True)
        else:
            return owner
    return None

def takes(function, keyword):
    if isinstance(function, cupy.ufunc):
        return keyword in ("out", "dtype", "casting", "where")
    texts = [function.__doc__ or "", getattr(function, "__init__", function).__doc__ or ""]
    try:
        texts.append(str(inspect.signature(function)))
    except (TypeError, ValueError):
        pass
    return any(keyword in text for text in texts)

missing = []
for line in json.load(sys.stdin):
    name, *keywords = line.split()
    thing = found(name)
    missing += [name] if thing is None else [f"{name} {key}" for key in keywords if not takes(thing, key)]
print(json.dumps([cupy.__version__, missing]))
"""


def dotted(node: ast.expr) -> list[str]:
    """The names of a chain of attributes, from the last one that is not an attribute on; empty for another thing."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [*dotted(node.value), node.attr]
    return []


def of_cupy(node: ast.expr) -> str | None:
    """What a chain of attributes means within CuPy, where it does."""
    names = dotted(node)
    for place in reversed(range(len(names) - 1)):
        if names[place] in ALIASES:
            return ALIASES[names[place]] + ".".join(names[place + 1 :])
    return None


NOT_OF_ARRAYS = set("__init__ __setattr__ base ctypes item mean partition prod put std tobytes tolist var".split())
"""What arrays of numpy have too and only others are asked for, or only these."""

STREAMS = {"begin_capture", "end_capture", "launch", "record", "synchronize", "wait_event"}
"""Methods of streams, events and graphs."""


def uses(tree: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """Names of CuPy in a source with the keywords that they are called with; methods of arrays and streams too."""
    called = {id(node.func): node.keywords for node in ast.walk(tree) if isinstance(node, ast.Call)}
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        keywords = {word.arg for word in called.get(id(node), ()) if word.arg}
        name = of_cupy(node)
        if name is not None:
            if id(node) not in inner:  # the whole of a chain
                yield f"cupy:{name}", keywords
        elif hasattr(np.ndarray, node.attr) and node.attr not in NOT_OF_ARRAYS:
            yield f"array:{node.attr}", keywords
        elif node.attr in STREAMS:
            yield f"cuda:{node.attr}", keywords


def names_used() -> list[str]:
    """A line for each name: where it is looked for, the name, and the keywords that it is called with."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text("utf-8")
        if path.parent.name in ("ops", "cuda") or ("cupy" in text and path.name != "operation.py"):
            for name, keywords in uses(ast.parse(text)):
                found.setdefault(name, set()).update(keywords)
    return [" ".join([name, *sorted(keywords)]) for name, keywords in sorted(found.items())]


def test_names_are_those_that_are_listed() -> None:
    """Another is looked up by the long test, once it stands in the list."""
    listed = LISTED.read_text("utf-8").splitlines()
    assert names_used() == listed
    assert {"cupy:RawModule code options", "cupy:where", "cupy:cuda.runtime.memcpyPeerAsync"} <= set(listed)


def test_what_names_mean() -> None:
    code = "k.xp.minimum(y, 1.0, out=y); _runtime.getDevice(); y.sum(axis=0).flags.b; s.cupy.ptr; g.launch(stream=s)"
    found = dict(uses(ast.parse(code)))
    assert found == {
        "cupy:minimum": {"out"},
        "cupy:cuda.runtime.getDevice": set(),
        "array:sum": {"axis"},
        "array:flags": set(),
        "cupy:ptr": set(),
        "cuda:launch": {"stream"},
    }


@pytest.mark.long
@pytest.mark.parametrize("version", list(VERSIONS))
def test_listed_names_are_in_cupy(version: str, tmp_path: Path) -> None:
    """With the keywords that they are called with, as far as signatures and docstrings tell."""
    command = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path)]
    command += VERSIONS[version]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if installed.returncode:
        pytest.skip(f"CuPy {version} is not to be had here: {installed.stderr.strip().splitlines()[-1:]}")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    names = LISTED.read_text("utf-8").splitlines()
    for more in ([], ["cupy:of_no_version", "cupy:zeros of_none"]):
        done = subprocess.run(
            [sys.executable, "-P", "-c", LOOK_UP],
            input=json.dumps([*names, *more]),
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        found, missing = json.loads(done.stdout)
        assert found.startswith(f"{version}.")
        assert missing == more
