"""Sphinx reads this: Markdown by MyST, the furo theme, and API pages from docstrings.

At every build the page `api.md` is written anew: every module, in the order of the table in `architecture.md`. So are
the pictures and tables of the pages in `schemes/`, by `scheme_figures.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import purine_ref
from purine_ref import _fast

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import scheme_figures  # noqa: E402  - it lies beside this file

TWINS = ", ".join(name for name, value in vars(_fast).items() if isinstance(value, ModuleType))
"""The loops that `_fast` chose: modules, which have sections of their own."""

project = "purine_ref"
author = "the purine_ref authors"
copyright = author
version = release = purine_ref.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build", "schemes/made"]
suppress_warnings = ["ref.python"]  # a name such as Array is one in several modules; each means its own
html_theme = "furo"
html_title = f"purine_ref {version}"

autodoc_default_options = {"members": True, "ignore-module-all": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
myst_heading_anchors = 3


def to_restructured_text(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring, plain text with code in backticks or indented after an empty line, into what Sphinx reads."""
    text, before, in_code = lines[:], "", False
    lines.clear()
    for line in text:
        indented = line.startswith("    ")
        if indented and not before:
            in_code = True
            lines.extend(["::", ""])
        in_code = in_code and (indented or not line)
        lines.append(line if in_code else escaped(line))
        before = line


def escaped(line: str) -> str:
    """A line of plain text, with single backticks doubled, and nothing else that means something to Sphinx."""
    parts = re.split(r"(`[^`]+`)", line)
    parts[0::2] = [re.sub(r"([*|_\\])", r"\\\1", text) for text in parts[0::2]]
    parts[1::2] = [f"`{code}`" for code in parts[1::2]]
    return "".join(parts)


def write_api_page(*_: object) -> None:
    """Write `api.md`: a section for each unit of the row table, an `automodule` for each of its modules."""
    package = Path(purine_ref.__file__).parent
    lines = ["# API", "", "Every module, in the [one-way order](architecture.md#the-one-way-order).", ""]
    for unit in re.findall(r"^\| \d+ \| `(\w+)` \|", (HERE / "architecture.md").read_text("utf-8"), re.MULTILINE):
        modules = [unit] if unit != "__init__" else []
        modules += sorted(name for name in _modules_in(package / unit, unit) if name != unit)
        lines += [f"## {unit}", ""] if modules else []
        for module in modules:
            hidden = [f"   :exclude-members: {TWINS}"] if module == "_fast" else []
            lines += ["```{eval-rst}", f".. automodule:: purine_ref.{module}", *hidden, "```", ""]
    (HERE / "api.md").write_text("\n".join(lines), "utf-8")


def _modules_in(folder: Path, unit: str) -> Iterator[str]:
    """The dotted names of a package's modules, itself included; of a plain module none."""
    for file in folder.rglob("*.py"):
        place = file.parent if file.stem == "__init__" else file.with_suffix("")
        if file.stem != "__main__":
            yield ".".join((unit, *place.relative_to(folder).parts))


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("config-inited", write_api_page)
    app.connect("config-inited", lambda *_: scheme_figures.write_all())
    app.connect("autodoc-process-docstring", to_restructured_text)
