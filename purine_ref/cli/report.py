"""What all subcommands share: options, the JSON object of `--json`, and a console for tables and progress.

Where several ranks run one command, rank 0 alone prints its results and writes its files.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from purine_ref.devices import default_kernels, kernel_set
from purine_ref.devices.kernels import KERNEL_SETS
from purine_ref.transports import current

CODES = {"pass": 0, "fail": 1, "unknown": 2}
"""Exit codes by verdict."""

F = TypeVar("F", bound=Callable[..., Any])


def reports() -> bool:
    """Whether this process prints results and writes files: where it joined no world, or as its rank 0."""
    world = current()
    return world is None or world.rank == 0


class _Written(click.Path):
    """The name of a file that can be written, where it will be."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """The name; looked at only by the process that writes the file, for another host may have no such folder."""
        if not reports():
            return value
        path = super().convert(value, parameter, context)
        if not Path(str(path)).parent.is_dir():
            self.fail(f"{path!r} is in a folder that is not there; make it first", parameter, context)
        return path


def output_file(*names: str, help: str) -> Callable[[F], F]:
    """An option that names a file to write at the end; a folder that is not there is found out at the start."""
    return click.option(*names, type=_Written(dir_okay=False, writable=True), help=help)


def output(json_file: str | None = None) -> Console:
    """The console of results: the standard output, as wide as the terminal, or 100 columns in a pipe.

    It is silent where `--json -` puts the object on the output instead, and on all ranks but 0.
    """
    silent = json_file == "-" or not reports()
    console = Console(highlight=False, quiet=silent)
    return console if console.is_terminal else Console(highlight=False, quiet=silent, width=100)


def progress_bar(results: Console) -> Progress:
    """A progress bar, gone when done: above it the `results`, if they go to a terminal, else on the standard error.

    Silent where neither is a terminal, and on all ranks but 0. Two consoles on one terminal would write into each
    other's lines.
    """
    shared = results.is_terminal and not results.quiet
    console = results if shared else Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.fields[note]}"), console=console, transient=True,
                    disable=not (console.is_terminal and reports()))  # fmt: skip


def seed_option(function: F) -> F:
    """`--seed`, an unsigned 64-bit integer."""
    return click.option(
        "--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True, help="Keys everything random."
    )(function)


def json_option(function: F) -> F:
    """`--json FILE`."""
    return output_file("--json", "json_file", help="Write one JSON object there; - is the output.")(function)


def kernels_option(function: F) -> F:
    """`--kernels NAME`: the kernel set of every CPU device that the command makes."""

    def choose(context: click.Context, _: click.Parameter, name: str) -> None:
        """Have it until the command ends."""
        context.with_resource(default_kernels(name))

    return click.option(
        "--kernels", type=click.Choice(list(KERNEL_SETS)), default=kernel_set(), show_default=True,
        callback=choose, expose_value=False, help="The kernel set that computes.",
    )(function)  # fmt: skip


def number(value: float | None) -> float | None:
    """A number as JSON can hold it: None for infinities and NaN too."""
    return value if value is not None and math.isfinite(value) else None


def write_json(target: str | None, command: str, verdict: str, facts: Mapping[str, Any]) -> None:
    """Write the object that scripts read, beside and renamed, from rank 0 alone; nothing when `target` is None.

    Where several ranks ran the command, it says how many, and what carried their arrays.
    """
    if target is None:
        return
    world = current()
    joined = {} if world is None else {"world": world.size, "transport": world.transport}
    whole = {"schema": f"purine-ref/{command}/1", "verdict": verdict, **joined, **facts}
    text = json.dumps(whole, indent=2, allow_nan=False) + "\n"
    write_text(target, text)


def write_text(target: str, text: str) -> None:
    """Write a file beside and renamed, from rank 0 alone; - is the output."""
    if not reports():
        return
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
