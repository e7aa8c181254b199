"""Commands that may need several ranks: called on their own, they start themselves again as so many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from purine_ref.cli.launch import launch_self
from purine_ref.conformance import Scheme
from purine_ref.transports import current

_WRITTEN = "purine_ref.cli.ranked"
"""Where a context keeps what was written behind the name of the command."""


class RankedCommand(click.Command):
    """A command that remembers how it was called."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; see `click.Command`."""
        ctx.meta[_WRITTEN] = [str(ctx.info_name), *args]
        return super().parse_args(ctx, args)


def relaunched(schemes: Iterable[Scheme]) -> int | None:
    """Run the current command again on as many ranks as its schemes need; returns the exit code.

    None where it is to go on here: no scheme needs a world, or one was joined. Raises UsageError where a scheme needs
    one and none says how many ranks.
    """
    needed = [scheme.ranks for scheme in schemes if scheme.ranks is not None]
    if not needed or current() is not None:
        return None
    if not max(needed):
        raise click.UsageError(
            "a scheme @hosts runs on all ranks of a world: say how many with @hosts:N, or start them with `purine-ref "
            "launch --hosts N -- ...`"
        )
    written: list[Any] = click.get_current_context().meta[_WRITTEN]
    return launch_self(max(needed), written)
