"""The examples run, each as a script, and print what they say."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"

PRINTED = {
    "first_graph.py": r"\[\[6\. 6\.\]\n( \[6\. 6\.\]\n){2} \[6\. 6\.\]\]\n",
    "own_layer.py": r"loss (\d\.\d\d), after ten updates (\d\.\d\d)\n",
    "own_operation.py": r"(x +-?\d+\.\d  gradient (\d\.\d{6})  known \2\n){5}",
}
"""For each example a pattern of all that it prints."""


def test_every_example_is_here() -> None:
    assert sorted(file.name for file in EXAMPLES.glob("*.py")) == sorted(PRINTED)


@pytest.mark.parametrize("name", list(PRINTED))
def test_an_example_runs_and_prints_what_it_should(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.fullmatch(PRINTED[name], printed)


def test_a_layer_of_ones_own_learns(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "own_layer.py"))["main"]()
    before, after = map(float, re.findall(r"\d\.\d\d", capsys.readouterr().out))
    assert after < before / 2


@pytest.mark.parametrize("name", list(PRINTED))
def test_an_example_is_short_and_documented(name: str) -> None:
    text = (EXAMPLES / name).read_text("utf-8")
    tree = ast.parse(text)
    assert len(text.splitlines()) <= 80
    assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            assert ast.get_docstring(node), f"{node.name} has no docstring"


def test_the_first_graph_is_the_one_of_the_readme() -> None:
    """Line by line, so that neither is changed without the other."""
    block, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    example = (EXAMPLES / "first_graph.py").read_text("utf-8")
    lines = [line.strip() for line in block.splitlines() if line.strip() and not line.startswith("import")]
    assert 8 <= len(lines) <= 12
    assert lines == [line.strip() for line in example.splitlines() if line.strip() in lines]
