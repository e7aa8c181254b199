"""`purine-ref worker`: one rank of several. It joins the others, and runs a command as one of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from purine_ref.cli.joining import MOST, invoke, joining_options, require_keys_or_none, require_understood
from purine_ref.launching import Place, Terminated, find_place, terminable, tie
from purine_ref.transports import World, joined
from purine_ref.transports.keys import load_keys
from purine_ref.transports.mpi import join_mpi
from purine_ref.transports.zeromq import Joining, join

EPILOG = """\b
Examples:
  purine-ref worker --rank 0 --world 2 --connect tcp://127.0.0.1:29500 -- verify --scheme data:2@hosts:2
  purine-ref worker --rank 1 --world 2 --connect tcp://127.0.0.1:29500 -- verify --scheme data:2@hosts:2
  purine-ref worker --keys keys -- train --scheme data:4@hosts:4
  mpiexec -n 3 purine-ref worker --transport mpi -- verify --scheme data:3@hosts:3

The third runs under `srun`, or wherever RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set.
"""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the options say about joining; a rank, a world or an address may be missing."""

    place: Place
    listen: str | None
    advertise: str | None
    timeout: float
    patience: float
    keys: str | None
    insecure: bool


def _join_zeromq(wish: Wish) -> World:
    place = wish.place
    said = {"--rank": place.rank, "--world": place.world, "--connect": place.connect}
    missing = [option for option, value in said.items() if value is None]
    if missing:
        raise click.UsageError(
            f"expected {', '.join(missing)}, or in the environment RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or "
            "Open MPI's, PMI's or SLURM's variables, got none that says so"
        )
    assert place.rank is not None
    assert place.world is not None
    assert place.connect is not None
    return join(Joining(
        rank=place.rank, size=place.world, connect=place.connect, listen=wish.listen, advertise=wish.advertise,
        run_id=place.run_id or "", timeout=wish.timeout, patience=wish.patience,
        keys=None if wish.keys is None else load_keys(wish.keys), insecure=wish.insecure,
    ))  # fmt: skip


def _join_mpi(wish: Wish) -> World:
    given = {"--listen": wish.listen, "--advertise": wish.advertise, "--keys": wish.keys}
    given |= {"--insecure": "" if wish.insecure else None}
    if useless := [option for option, value in given.items() if value is not None]:
        raise click.UsageError(f"{', '.join(useless)}: not with --transport mpi, which connects the ranks by itself")
    place = wish.place
    world = join_mpi(timeout=wish.timeout, patience=wish.patience, run_id=place.run_id or "")
    for what, said, is_so in (("rank", place.rank, world.rank), ("number of ranks", place.world, world.size)):
        if said not in (None, is_so):
            world.abort(f"it was told another {what}")
            raise click.UsageError(f"the {what} is {is_so} by MPI, and {said} by what was said: leave it to MPI")
    return world


TRANSPORTS: dict[str, Callable[[Wish], World]] = {"zeromq": _join_zeromq, "mpi": _join_mpi}
"""How to join, by what carries the arrays."""


@click.command(epilog=EPILOG, context_settings={"allow_interspersed_args": False})
@click.option("--rank", type=click.IntRange(min=0), help="Which rank this is, from 0.")
@click.option("--world", type=click.IntRange(1, MOST), help="How many ranks there are.")
@click.option("--connect", metavar="ADDRESS", help="Where rank 0 listens: tcp://HOST:PORT, or ipc://PATH.")
@click.option("--listen", metavar="ADDRESS", help="Where this rank listens; by default a free port.")
@click.option("--advertise", metavar="ADDRESS", help="Where the others reach this rank, if not where it listens.")
@click.option("--run-id", metavar="TEXT", help="A name of the run; ranks of another run are refused.")
@click.option("--transport", type=click.Choice(list(TRANSPORTS)), default="zeromq", show_default=True,
              help="What carries the arrays.")  # fmt: skip
@click.option("--tied", is_flag=True, hidden=True, help="End with the standard input: given by a launcher.")
@joining_options
@click.pass_context
def worker(
    context: click.Context, /, words: Sequence[str], transport: str, tied: bool, **options: Any
) -> int:
    """Run COMMAND as one rank of several; every rank is to run the same.

    Rank, world and address that are not given are read from the environment. The exit code is COMMAND's, 130 after
    SIGINT, 143 after SIGTERM; the other ranks then end too. Results are rank 0's to print.
    """
    if tied:
        tie()
    try:
        with terminable():
            return _run(context, transport, words, **options)
    except Terminated as ended:  # click would take it for an interrupt from the keyboard, whose code is another
        click.echo(str(ended), err=True)
        return 128 + ended.signal


def _run(
    context: click.Context,
    transport: str,
    words: Sequence[str],
    *,
    rank: int | None,
    world: int | None,
    connect: str | None,
    run_id: str | None,
    keys: str | None,
    insecure: bool,
    **times: Any,
) -> int:
    require_keys_or_none(keys, insecure)
    try:
        place = find_place(os.environ, Place(rank, world, connect, run_id))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if not place.rank:  # the others' hosts need not have the files that rank 0 reads and writes
        require_understood(context, words)
    ranks = TRANSPORTS[transport](Wish(place, keys=keys, insecure=insecure, **times))
    return run_in(ranks, lambda: invoke(context, words))


def run_in(world: World, command: Callable[[], int]) -> int:
    """Run `command` as one rank of `world`, and leave; returns its exit code.

    Whatever it raises goes on, once the other ranks have been told.
    """
    try:
        with joined(world):
            code = command()
        world.close()
        return code
    except BaseException as error:
        with contextlib.suppress(Exception):  # what ended the command is what there is to tell
            world.abort(_reason(error))
        raise


def _reason(error: BaseException) -> str:
    """An error in one line, for the other ranks."""
    if isinstance(error, KeyboardInterrupt):
        return str(error) or "interrupted"
    said = error.format_message() if isinstance(error, click.ClickException) else str(error)
    return f"{type(error).__name__}: {said.splitlines()[0] if said else 'no message'}"
