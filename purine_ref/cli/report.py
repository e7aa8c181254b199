"""What all subcommands share: options, the JSON object of `--json`, and a console for tables and progress."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

CODES = {"pass": 0, "fail": 1, "unknown": 2}
"""Exit codes by verdict."""

F = TypeVar("F", bound=Callable[..., Any])


def output() -> Console:
    """The console of results: the standard output, as wide as the terminal, or 100 columns in a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=100)


def progress_bar() -> Progress:
    """A progress bar on the standard error, gone when done; silent where that is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.fields[note]}"), console=console, transient=True,
                    disable=not console.is_terminal)  # fmt: skip


def seed_option(function: F) -> F:
    """`--seed`, an unsigned 64-bit integer."""
    return click.option(
        "--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="Keys everything random."
    )(function)


def json_option(function: F) -> F:
    """`--json FILE`."""
    return click.option(
        "--json", "json_file", type=click.Path(dir_okay=False), help="Write one JSON object there; - is the output."
    )(function)


def write_json(target: str | None, command: str, verdict: str, facts: Mapping[str, Any]) -> None:
    """Write the object that scripts read, beside and renamed; nothing when `target` is None."""
    if target is None:
        return
    text = json.dumps({"schema": f"purine-ref/{command}/1", "verdict": verdict, **facts}, indent=2) + "\n"
    if target == "-":
        click.echo(text, nl=False)
        return
    path = Path(target)
    beside = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
