"""The tutorial for porters: its files are written and its commands run, step by step, and print what it says."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from pathlib import Path

import pytest

from purine_ref import cli

PAGE = Path(__file__).parent.parent / "docs" / "porting" / "tutorial.md"

BLOCK = re.compile(r"```(python|console)\n(.*?)```", re.DOTALL)


def key(node: ast.stmt) -> str:
    """What a statement at the top of a file defines, by which a later one replaces it."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    return ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node).split(":")[0]


def merged(text: str, changed: str) -> str:
    """A file with what is new or changed in it; what is new comes before the last statement."""
    old, new = ast.parse(text).body, ast.parse(changed).body
    replaced = {key(node): node for node in new}
    kept = [replaced.pop(key(node), node) for node in old]
    kept[-1:-1] = replaced.values()
    return ast.unparse(ast.Module(kept, []))


def write(block: str) -> None:
    """Write the file of a block, or change it, in this folder."""
    head, _, text = block.partition("\n")
    name, _, how = head.removeprefix("# ").partition(", ")
    path = Path(name)
    path.write_text(merged(path.read_text("utf-8"), text) if how == "changed" else text, "utf-8")


def rows(text: str) -> dict[str, tuple[bool, bool, bool]]:
    """For each check of a table whether anything was executed, failed, or unsupported."""
    found = re.findall(r"^ (\w+) +(\d+) +(\d+) +(\d+) +\d+ +[\d.]+ *$", text, re.MULTILINE)
    return {check: (int(ran) > 0, int(failed) > 0, int(left) > 0) for check, ran, failed, left in found}


def test_every_step_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = 0
    for kind, block in BLOCK.findall(PAGE.read_text("utf-8")):
        if kind == "python":
            write(block)
            continue
        steps += 1
        command, _, output = block.partition("\n")
        words = shlex.split(command.removeprefix("$ purine-ref "))
        words[words.index("--port") + 1] = f"{sys.executable} port.py"
        cli.run([*words, *([] if "--examples" in words else ["--examples", "12"]), "--keep", "kept"])
        printed = capsys.readouterr().out
        assert rows(printed) == rows(output), printed
        assert printed.splitlines()[-1] == output.splitlines()[-1], printed
        assert printed.splitlines()[0] == output.splitlines()[0], printed
    assert steps == 6


def test_a_changed_function_replaces_the_one_before() -> None:
    text = merged("A = 1\ndef f(): return 1\nif x: f()", "def f(): return 2\ndef g(): pass\nA = 3")
    assert [line for line in text.splitlines() if line] == [
        *("A = 3", "def f():", "    return 2", "def g():", "    pass", "if x:", "    f()")
    ]
