"""Sphinx reads this: Markdown by MyST, the furo theme, and API pages from docstrings."""

from __future__ import annotations

import re
from typing import Any

import purine_ref

project = "purine_ref"
author = "the purine_ref authors"
copyright = author
version = release = purine_ref.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
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


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", to_restructured_text)
