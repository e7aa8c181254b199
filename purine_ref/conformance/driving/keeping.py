"""A failure on disk: a case folder like any other, and beside its case a text that says how to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from purine_ref.conformance.cases.case import Case
from purine_ref.conformance.cases.writing import write_case
from purine_ref.conformance.driving.results import Result
from purine_ref.conformance.driving.shrinking import Smaller

TEXT = "failure.txt"
"""The text's file, in the case's folder."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A failure that was kept: its folder, and the commands that run it again, on the port and on the reference."""

    folder: Path
    port: str
    reference: str


def keep(result: Result, smaller: Smaller, folder: Path, port: Sequence[str]) -> Kept:
    """Write a failure into a new folder below `folder`. `port` are the options that name the port.

    Raises OSError when it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while (folder / f"{result.check}-{number}").exists():
        number += 1
    target = (folder / f"{result.check}-{number}").absolute()
    about = f"made smaller from {result.check} {result.name}: {smaller.fault.kind}"
    write_case(replace(smaller.case, name=target.name, about=about), target)
    again = shlex.join(["purine-ref", "check", *port, "--case", str(target)])
    kept = Kept(target, again, shlex.join(["purine-ref", "run", str(target)]))
    (target / TEXT).write_text("\n".join(described(result, smaller, kept)) + "\n", "utf-8")
    return kept


def described(result: Result, smaller: Smaller, kept: Kept | None) -> list[str]:
    """What failed, what is left of it, and how to run that again, line by line."""
    lines = [f"{result.check} {result.name}: {result.kind}: {result.reason}"]
    count = len(smaller.case.graph.ops)
    lines.append(f"smallest case found, of {smaller.tried} tried: {count} operator{'s' * (count != 1)}, "
                 f"{smaller.case.iterations} iteration{'s' * (smaller.case.iterations != 1)}")  # fmt: skip
    lines += [f"  {line}" for line in graph_lines(smaller.case)]
    lines.append(f"  {smaller.fault.kind}: {smaller.fault.reason}")
    if kept is not None:
        lines += [f"the port:      {kept.port}", f"the reference: {kept.reference}"]
    return lines


def graph_lines(case: Case, most: int = 8) -> list[str]:
    """The operators, one a line, with attributes and shapes; and the schedule, if there is one."""
    ops = case.graph.ops
    lines = [
        f"{op.name}: {{ {', '.join(f'{b.name} {b.tensor}' for b in op.inputs)} }} >> {op.operation!r} >> "
        f"{{ {', '.join(f'{b.name} {b.tensor}' for b in op.outputs)} }}"
        for op in ops[:most]
    ]
    if len(ops) > most:
        lines.append(f"and {len(ops) - most} more")
    if case.schedule is not None:
        lines.append(f"schedule: {', '.join(case.schedule[: 3 * most])}")
    return lines
