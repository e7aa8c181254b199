"""Sphinx reads this: Markdown by MyST, the furo theme, and API pages from docstrings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

project = "purine_ref"
author = "the purine_ref authors"
copyright = author
version = release = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"purine_ref {version}"

autodoc_default_options = {"members": True, "show-inheritance": True, "ignore-module-all": True}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
myst_heading_anchors = 3


def escape_plain_text(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring, which is plain text with code in backticks, into the same text in reStructuredText."""
    for index, line in enumerate(lines):
        parts = re.split(r"(`[^`]+`)", line)
        parts[0::2] = [re.sub(r"([*|_\\])", r"\\\1", text) for text in parts[0::2]]
        parts[1::2] = [f"`{code}`" for code in parts[1::2]]
        lines[index] = "".join(parts)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", escape_plain_text)
