"""What `launch` and `worker` share: options about joining, and the command that they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

TIMEOUT, PATIENCE = 5.0, 60.0
"""Seconds until a silent peer is lost, and until a rank that never came is."""

MOST = 256
"""The most ranks: each is connected to each."""

WRAPPERS = ("launch", "worker")
"""Commands that run a command; neither runs the other."""


def joining_options(function: F) -> F:
    """`--timeout`, `--patience`, `--keys`, `--insecure`, and the command as `words`."""
    seconds = click.FloatRange(min=0, min_open=True, max=1e6)
    options = (
        click.option("--timeout", type=seconds, default=TIMEOUT, show_default=True,
                     help="Seconds after which a rank that is silent is lost."),
        click.option("--patience", type=seconds, default=PATIENCE, show_default=True,
                     help="Seconds to wait for all ranks to come."),
        click.option("--keys", type=click.Path(file_okay=False), metavar="DIR",
                     help="Let in only ranks with keys from there; see `purine-ref keygen`."),
        click.option("--insecure", is_flag=True, help="Listen beyond this machine without keys."),
        click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def require_keys_or_none(keys: str | None, insecure: bool) -> None:
    """Raise UsageError for both --keys and --insecure."""
    if keys is not None and insecure:
        raise click.UsageError("--keys and --insecure exclude each other: with keys, nothing is insecure")


def wrapped(context: click.Context, words: Sequence[str]) -> click.Command:
    """The subcommand that `words` begin with. Raises UsageError where it is none, or one that runs others itself."""
    group = context.find_root().command
    assert isinstance(group, click.Group)
    command = group.get_command(context, words[0])
    if command is None or words[0] in WRAPPERS:
        names = ", ".join(name for name in group.list_commands(context) if name not in WRAPPERS)
        raise click.UsageError(f"expected one of {names} behind the options, got {words[0]!r}")
    return command


def require_understood(context: click.Context, words: Sequence[str]) -> None:
    """Raise UsageError now where the command would not understand its arguments; show its help where that is asked."""
    with wrapped(context, words).make_context(words[0], list(words[1:]), parent=context):
        pass


def invoke(context: click.Context, words: Sequence[str]) -> int:
    """Run the command in this process; returns its exit code."""
    command = wrapped(context, words)
    with command.make_context(words[0], list(words[1:]), parent=context) as made:
        return int(command.invoke(made) or 0)
