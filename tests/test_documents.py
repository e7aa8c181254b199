"""That what is written holds: the examples in the documents run, every rule names its tests, values are right."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from purine_ref._fast import loops
from purine_ref.cli import run
from purine_ref.conformance import schemes
from purine_ref.conformance.schedules import order_of
from purine_ref.graph import Graph
from purine_ref.ops import ReLU, Sum
from purine_ref.plan import prepare

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
SEMANTICS = (ROOT / "docs" / "semantics.md").read_text("utf-8")

PAGES = {"README": README} | {file.stem: file.read_text("utf-8") for file in (ROOT / "docs" / "schemes").glob("*.md")}

PYTHON = re.compile(r"```python\n(.*?)```\n(?:\nprints\n\n```text\n(.*?)```)?", re.DOTALL)
"""A Python block, and the output that follows it after a line `prints`, or nothing."""

EXAMPLES = {
    f"{name} {number}": found for name, text in PAGES.items() for number, found in enumerate(PYTHON.findall(text))
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_prints_what_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemes, "_registered", dict(schemes._registered))  # an example registers one
    source, said = EXAMPLES[name]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, f"example {name}", "exec"), {"__name__": "__main__"})
    assert said in ("", printed.getvalue())


def test_the_examples_have_output() -> None:
    assert [name for name, (_, said) in EXAMPLES.items() if said] == ["README 0", "README 1", "index 0", "index 1"]


def test_what_show_prints_is_what_the_readme_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "--model", "lenet-digits", "--part", "forward"]) == 0
    printed = capsys.readouterr().out
    [said] = [text for text in re.findall(r"```text\n(.*?)```", README, re.DOTALL) if text.startswith("lenet: ")]
    assert printed.startswith(said)


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


def test_the_schedules_in_the_rules_start_what_is_said() -> None:
    graph = Graph("three")
    x = graph.blob("x", (2, 3))
    y, z = (graph.blob(name, (2, 3)) for name in "yz")
    graph.connect([x], ReLU(), [y], name="a")
    graph.connect([x], ReLU(), [z], name="b")
    graph.connect([y, z], Sum(), [graph.blob("w", (2, 3))], name="c")
    rows = re.findall(r"^\| `(s1:\S+)` \| ([a-c, ]+) \|$", SEMANTICS, re.MULTILINE)
    assert len(rows) == 2
    for schedule, starts in rows:
        assert order_of(prepare(graph), schedule) == starts.split(", ")


SHELL = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
COMMANDS = [line.removeprefix(".venv/bin/") for line in SHELL if line.startswith(".venv/bin/purine-ref")]
COMMANDS += re.findall(r"`(purine-ref [^`\n]*--[^`\n]*)`", README)
ELSEWHERE = ("purine-ref trace FILE --graph CASE", "purine-ref check --strength")
"""Has names that stand for files; takes minutes. Both commands have tests of their own."""


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in ELSEWHERE])
def test_a_command_in_the_readme_works(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training for one epoch; `verify` with fewer steps, and with one scheme where it names none; small benchmarks."""
    monkeypatch.chdir(tmp_path)
    words = command.split(" > ")[0].split()[1:]
    if words[0] == "train":
        words += ["--epochs", "1"]
    if words[:2] == ["bench", "scaling"]:
        words += ["--model", "lenet", "--batch", "4", "--runs", "1"]
    if "--replay" in words:
        assert run(["verify", "--scheme", "data:2@ranks", "--steps", "1", "--record", words[-1]]) == 0
    elif words[0] == "verify":
        words += ["--steps", "1", *([] if "--scheme" in words else ["--scheme", "data:2@ranks"])]
    assert run(words) == 0
