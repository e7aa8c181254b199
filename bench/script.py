"""What the scripts here share: a table and a file of what was measured, and how a script's process ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from purine_ref.benchmarks import machine
from purine_ref.benchmarks.timing import WIDTH, Series, table

USAGE, INTERRUPTED = 64, 130
"""Exit codes: wrong usage, and Ctrl-C."""


def show(title: str, series: Sequence[Series], items: str, notes: Sequence[str] = ()) -> None:
    """Print the series as a table, `items` being what the counts count; then the notes, then the machine."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    console.print(table(title, series, items))
    for note in (*notes, machine.line()):
        console.print(note, soft_wrap=True)


def save(target: str | None, series: Sequence[Series], notes: Sequence[str] = ()) -> None:
    """Write the rows for scripts to the file `target`, or to the output where it is "-"; nothing when it is None."""
    if target is None:
        return
    rows = [one.row() for one in series]
    facts = {"schema": "purine-ref/bench/1", "machine": machine.describe(), "rows": rows, "notes": list(notes)}
    text = json.dumps(facts, indent=2)
    if target == "-":
        click.echo(text)
    else:
        Path(target).write_text(text + "\n", "utf-8")


def start(command: click.Command) -> None:
    """Run a script's command with the process's arguments, and end the process; Ctrl-C ends it with a word."""
    try:
        command.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(USAGE)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
