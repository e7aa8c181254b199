"""That what is written holds: the README's examples run, every rule names its tests."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from purine_ref._fast import loops

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
SEMANTICS = (ROOT / "docs" / "semantics.md").read_text("utf-8")

EXAMPLES = re.findall(r"```python\n(.*?)```\n(?:\nprints\n\n```text\n(.*?)```)?", README, re.DOTALL)
"""The README's Python blocks, each with the output that follows it after a line `prints`, or an empty string."""


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_a_readme_example_runs_and_prints_what_is_said(number: int) -> None:
    source, said = EXAMPLES[number]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, f"README example {number + 1}", "exec"), {"__name__": "__main__"})
    assert said in ("", printed.getvalue())


def test_the_readme_has_examples_with_output() -> None:
    assert any(said for _, said in EXAMPLES)


def test_the_readme_has_two_commands_to_start_with() -> None:
    first, second = re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)
    assert first.endswith("purine-ref verify")
    assert second.endswith("tox run -e py,pure")


def test_every_rule_names_tests_that_exist() -> None:
    rules = re.findall(r"^### (R\d+) ", SEMANTICS, re.MULTILINE)
    rows = dict(re.findall(r"^\| (R\d+) \| (.+) \|$", SEMANTICS, re.MULTILINE))
    assert rules == [f"R{number}" for number in range(1, 14)]
    assert list(rows) == rules
    for rule, tests in rows.items():
        files = re.findall(r"`((?:suites/)?\w+\.py)`", tests)
        assert files, f"{rule} names no test"
        for file in files:
            text = (ROOT / "tests" / file).read_text("utf-8")
            assert re.search(rf"\b{rule}\b", text), f"{file} is said to check {rule} and does not mention it"


def test_the_generator_in_the_rules_gives_the_values_beside_it() -> None:
    rows = re.findall(r"^\| (\d+) \| (\S+) \| (\d+) \| (\d+) \| `([0-9A-F]{16})` \|$", SEMANTICS, re.MULTILINE)
    assert len(rows) > 4
    for seed, stream, iteration, element, bits in rows:
        name = "" if stream == "(empty)" else stream.strip("`")
        assert [int(bits, 16)] == loops.philox(int(seed), name, int(iteration), int(element), 1).tolist()
