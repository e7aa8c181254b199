"""`purine-ref launch`: start all ranks of a run, here, over ssh or by Dask, and end with the exit code of the worst."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from purine_ref.cli.joining import (
    MOST,
    PATIENCE,
    TIMEOUT,
    joining_options,
    require_keys_or_none,
    require_understood,
    wrapped,
)
from purine_ref.errors import Refused
from purine_ref.launching import Start, over_ssh, read_hosts, run_ranks, spread, without_ranks, worst
from purine_ref.launching.dask_cluster import cluster
from purine_ref.launching.dask_rank import INTERPRETER
from purine_ref.launching.exits import badness
from purine_ref.launching.output import Sink
from purine_ref.launching.processes import Child, Running
from purine_ref.launching.ssh import Host
from purine_ref.transports.keys import load_keys
from purine_ref.transports.zeromq.admission import require_protection

EPILOG = """\b
Examples:
  purine-ref launch --hosts 2 -- verify --scheme data:2@hosts:2
  purine-ref launch --hosts 3 --address tcp://127.0.0.1:0 -- train --scheme data:3@hosts:3
  purine-ref launch --hostfile hosts.txt --keys keys -- verify --scheme data:2@hosts:2
  purine-ref launch --dask tcp://scheduler:8786 --hosts 4 -- train --scheme 'data:*@hosts'

HOSTFILE has a host on each line, `[user@]host [slots=N]`; the first is where rank 0 runs.
"""

PROGRAM = ("-P", "-m", "purine_ref_command")
"""The command, behind an interpreter."""

LONGEST_PATH = 100
"""Bytes of a path that a Unix socket can surely have."""

SETTLE = 2.0
"""Seconds, beyond the time limit, in which the other ranks find out by themselves that one is lost."""

PASSED_ON = ("PURINE_REF_FAST",)
"""Variables that ranks on other hosts get from here."""


@dataclass(frozen=True, slots=True)
class Joiner:
    """What every rank is told about joining, beside its number."""

    timeout: float = TIMEOUT
    patience: float = PATIENCE
    keys: str | None = None
    insecure: bool = False

    def command(self, interpreter: str, rank: int, world: int, address: str, run_id: str) -> list[str]:
        """The command of one rank, up to what it is to run."""
        command = [interpreter, *PROGRAM, "worker", "--tied", "--rank", str(rank), "--world", str(world)]
        command += ["--connect", address, "--run-id", run_id]
        command += ["--timeout", str(self.timeout), "--patience", str(self.patience)]
        command += [] if self.keys is None else ["--keys", self.keys]
        return [*command, *(["--insecure"] if self.insecure else []), "--"]


@dataclass(frozen=True, slots=True)
class Remote:
    """How ranks on other hosts are started: the words of `ssh`, the interpreter and the folder there."""

    ssh: Sequence[str]
    python: str
    directory: str


@click.command(epilog=EPILOG, context_settings={"allow_interspersed_args": False})
@click.option("--hosts", type=click.IntRange(1, MOST),
              help="How many ranks; by default all slots of --hostfile, or all workers of --dask.")  # fmt: skip
@click.option("--hostfile", type=click.Path(dir_okay=False), help="Start them over ssh, on the hosts in that file.")
@click.option("--dask", "scheduler", metavar="ADDRESS",
              help="Start them on the workers of the Dask cluster of that scheduler, one on each.")  # fmt: skip
@click.option("--address", metavar="ADDRESS",
              help="Where rank 0 listens: tcp://HOST:PORT, port 0 for a free one on this machine, or ipc://PATH. "
                   "By default a private ipc socket; on other hosts the first of them, at a drawn port.")  # fmt: skip
@click.option("--ssh", metavar="WORDS", help="The ssh to call, with options: 'ssh -p 2222'. By default ssh.")
@click.option("--python", metavar="PATH", help="The interpreter on the hosts; by default this one's path, or Dask's.")
@click.option("--directory", metavar="DIR", help="Where to run on the hosts; by default this folder's path, or Dask's.")
@joining_options
@click.pass_context
def launch(
    context: click.Context,
    words: Sequence[str],
    hosts: int | None,
    hostfile: str | None,
    scheduler: str | None,
    address: str | None,
    ssh: str | None,
    python: str | None,
    directory: str | None,
    timeout: float,
    patience: float,
    keys: str | None,
    insecure: bool,
) -> int:
    """Run COMMAND as several ranks: all run the same, and each its own part of the graphs.

    Lines are printed behind the rank that wrote them. The exit code is the worst of all: of a crash, then 1, 2, 64, 0.
    When one rank dies the others end too. On a terminal rank 0 writes there itself, so that its progress shows.
    """
    require_keys_or_none(keys, insecure)
    joiner = Joiner(timeout, patience, keys, insecure)
    if scheduler is not None:
        if useless := [option for option, value in (("--hostfile", hostfile), ("--ssh", ssh)) if value is not None]:
            raise click.UsageError(f"{', '.join(useless)}: not with --dask, whose workers are the hosts")
        wrapped(context, words)
        there = (python or INTERPRETER, directory)
        return _launch_on_dask(scheduler, hosts, words, address, there, joiner)
    if hostfile is None:
        given = {"--ssh": ssh, "--python": python, "--directory": directory}
        if useless := [option for option, value in given.items() if value is not None]:
            raise click.UsageError(f"{', '.join(useless)}: only with --hostfile")
        if hosts is None:
            raise click.UsageError("expected --hosts N, --hostfile FILE or --dask ADDRESS, got none")
        require_understood(context, words)
        return _launch_here(hosts, words, address, joiner)
    wrapped(context, words)  # its arguments may name files that are only there
    remote = Remote(_ssh(ssh or "ssh"), python or sys.executable, directory or str(Path.cwd()))
    return _launch_there(_places(hostfile, hosts), words, address, remote, joiner)


def launch_self(hosts: int, arguments: Sequence[str]) -> int:
    """Run the command again as `hosts` ranks on this machine: for one that is not yet a rank; returns the exit code.

    What rank 0 prints is printed as it is, for it is what the command alone would print.
    """
    return _launch_here(hosts, arguments, None, Joiner(), plain=True)


# On this machine -------------------------------------------------------------------------------------------------


def _launch_here(
    ranks: int, words: Sequence[str], address: str | None, joiner: Joiner, *, plain: bool = False
) -> int:
    environment = without_ranks(os.environ)
    if joiner.keys is not None:
        load_keys(joiner.keys)  # raises here, once, what every rank would
    with _address_here(address) as connect:
        _require_protection(connect, joiner)
        run_id = secrets.token_hex(8)
        return _run([
            Start(
                rank, [*joiner.command(sys.executable, rank, ranks, connect, run_id), *words], environment,
                plain=plain and rank == 0,
            )
            for rank in range(ranks)
        ], joiner)  # fmt: skip


@contextlib.contextmanager
def _address_here(address: str | None) -> Iterator[str]:
    """Where rank 0 is to listen: by default a socket in a folder that only this user can enter, removed afterwards."""
    if address is None:
        folder = tempfile.mkdtemp(prefix="purine-ref-")
        if len(os.fsencode(folder)) > LONGEST_PATH - len("/rank0"):
            os.rmdir(folder)
            folder = tempfile.mkdtemp(prefix="purine-ref-", dir="/tmp")
        try:
            yield f"ipc://{folder}/rank0"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    host, port = _tcp(address)
    if port != 0:
        yield address
        return
    with _reserved(host) as free:
        yield f"{address.removesuffix(':0')}:{free}"


def _tcp(address: str) -> tuple[str, int]:
    """Host and port of a tcp address; no host and a port that is not 0 for an ipc one. Raises UsageError for others."""
    if re.fullmatch(r"ipc://.+", address):
        return "", -1
    found = re.fullmatch(r"tcp://(?:\[([0-9A-Fa-f:.%\w]+)\]|([^:\[\]/\s]+)):([0-9]{1,5})", address)
    if found is None or int(found[3]) > 65535:
        raise click.UsageError(f"--address: expected tcp://HOST:PORT or ipc://PATH, got {address!r}")
    return found[1] or found[2], int(found[3])


@contextlib.contextmanager
def _reserved(host: str) -> Iterator[int]:
    """A free port of an address of this machine, kept from being given to others until rank 0 listens there.

    Two sockets may be bound to one port as long as neither listens and both set SO_REUSEADDR, as ZeroMQ does.
    """
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, kind) as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(where)
            yield held.getsockname()[1]
    except OSError as error:
        raise click.UsageError(f"--address: {host!r} is no address of this machine: {error}") from None


# On other hosts --------------------------------------------------------------------------------------------------


def _ssh(words: str) -> list[str]:
    try:
        split = shlex.split(words)
    except ValueError as error:
        raise click.BadParameter(f"{words!r}: {error}", param_hint="--ssh") from None
    if not split or shutil.which(split[0]) is None:
        raise click.ClickException(f"--ssh: {words!r} is not there; install an ssh client, or say where it is")
    return split


def _places(hostfile: str, ranks: int | None) -> list[Host]:
    """The host of each rank. Raises BadParameter for a file that cannot be read, or that has too few slots."""
    try:
        return spread(read_hosts(hostfile), ranks)
    except (Refused, OSError) as error:
        raise click.BadParameter(str(error), param_hint="--hostfile") from None


def _launch_there(
    places: Sequence[Host], words: Sequence[str], address: str | None, remote: Remote, joiner: Joiner
) -> int:
    connect = address or _address_there(places)
    _require_usable_there(connect, joiner)
    run_id = secrets.token_hex(8)
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    starts = []
    for rank, host in enumerate(places):
        command = [*joiner.command(remote.python, rank, len(places), connect, run_id), *words]
        there = over_ssh(remote.ssh, host, command, remote.directory, passed_on)
        starts.append(Start(rank, there, host=host.name))
    return _run(starts, joiner)


def _address_there(places: Sequence[Host]) -> str:
    """The first host by the name that `ssh` is told, which the others must know too, and a port that is likely free."""
    names = {place.address for place in places}
    first = places[0].address
    if first in ("localhost", "127.0.0.1", "::1") and names != {first}:
        others = ", ".join(sorted(names - {first}))
        raise click.UsageError(f"rank 0's host is {first}, which is not where {others} reaches it: give --address")
    port = 20_000 + secrets.randbelow(10_000)  # below those that systems give away
    return f"tcp://[{first}]:{port}" if ":" in first else f"tcp://{first}:{port}"


# On a Dask cluster -----------------------------------------------------------------------------------------------


def _launch_on_dask(
    scheduler: str,
    ranks: int | None,
    words: Sequence[str],
    address: str | None,
    there: tuple[str, str | None],
    joiner: Joiner,
) -> int:
    """`there` are the interpreter and the folder on the workers."""
    python, directory = there
    run_id = secrets.token_hex(8)
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    with cluster(scheduler) as dask:
        places = dask.places(ranks)
        connect = address or dask.address(places[0])
        _require_usable_there(connect, joiner)
        starts = [
            Start(rank, [*joiner.command(python, rank, len(places), connect, run_id), *words], passed_on, place)
            for rank, place in enumerate(places)
        ]
        return _run(starts, joiner, lambda start, sinks: dask.child(start, sinks, directory))


# All -----------------------------------------------------------------------------------------------------------


def _require_usable_there(address: str, joiner: Joiner) -> None:
    """Raise UsageError where rank 0 cannot listen at an address of another host, or must not without keys."""
    if _tcp(address)[1] == 0:
        raise click.UsageError("--address: expected a port, got 0: nobody here knows which are free on another host")
    _require_protection(address, joiner)


def _require_protection(address: str, joiner: Joiner) -> None:
    """Raise UsageError for an address beyond this machine without keys, where that is not said to be meant."""
    try:
        require_protection(address, None, joiner.insecure or joiner.keys is not None)
    except Refused as error:
        raise click.UsageError(str(error)) from None


def _run(starts: Sequence[Start], joiner: Joiner, begin: Callable[[Start, Sequence[Sink]], Running] = Child) -> int:
    """Run all ranks; say which ended badly by themselves, the worst first: the others may have ended for its sake."""
    ends, number = run_ranks(starts, settle=joiner.timeout + SETTLE, begin=begin)
    for end in sorted(ends, key=lambda end: badness(end.code), reverse=True):
        if end.code != 0 and not end.asked:
            click.echo(f"launch: {end}", err=True)
    return 128 + number if number else worst(ends)
