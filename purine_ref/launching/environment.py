"""Which rank a process is, by what it was told and by the variables of whatever started it.

`RANK` and `WORLD_SIZE`, Open MPI's variables and those of PMI (MPICH, Intel MPI) must agree with each other and with
what was said by options. SLURM's count only for what nobody else says: what `srun` starts is often not the rank but
what starts ranks (`mpiexec`, `torchrun`, a shell), and hands its variables down to all of them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Environment = Mapping[str, str]

FIRST_PORT, PORTS = 20_000, 10_000
"""A SLURM step without MASTER_PORT has one of these, by its number; below the ports that systems give away."""

RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
"""Variables of a rank and of the number of ranks that must agree with one another."""

SLURM_RANK, SLURM_SIZES = "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
SLURM_NODES = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|[0-9A-Fa-f:]+(%\w+)?")


@dataclass(frozen=True, slots=True)
class Place:
    """Which of how many ranks, where rank 0 listens, and which run it is; None is what nobody says."""

    rank: int | None = None
    world: int | None = None
    connect: str | None = None
    run_id: str | None = None


def find_place(environ: Environment, said: Place) -> Place:
    """`said`, by options, with what is missing from `environ`.

    An address that was said stands, whatever MASTER_ADDR and MASTER_PORT are: where `torchrun` sets them, it listens
    there itself. Raises ValueError where two say different ranks, for a variable that is no number, for a rank
    outside the world, and for a list of hosts that cannot be read.
    """
    rank, world = _Agreed("rank", 0), _Agreed("the number of ranks", 1)
    rank.hear("--rank", said.rank)
    world.hear("--world", said.world)
    for rank_name, world_name in RANKS:
        rank.read(environ, rank_name)
        world.read(environ, world_name)
    by_slurm = SLURM_RANK in environ and (rank.value is None or world.value is None)
    if by_slurm:
        rank.read(environ, SLURM_RANK)
        world.read(environ, *SLURM_SIZES)
    if rank.value is not None and world.value is not None and rank.value >= world.value:
        raise ValueError(
            f"rank {rank.value} ({rank.speaker}) is not one of {world.value} ({world.speaker}): ranks count from 0"
        )
    connect = said.connect or _address(environ, by_slurm)
    return Place(rank.value, world.value, connect, said.run_id or _run_id(environ, by_slurm))


def without_ranks(environ: Environment) -> dict[str, str]:
    """`environ` for a rank that is told by options which one it is."""
    names = {name for pair in RANKS for name in pair}
    names |= {SLURM_RANK, *SLURM_SIZES, "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}
    return {name: value for name, value in environ.items() if name not in names}


class _Agreed:
    """One number that several may say, and who said it first. Raises ValueError where another says another."""

    def __init__(self, what: str, least: int) -> None:
        self.value: int | None = None
        self.speaker = ""
        self._what = what
        self._least = least

    def hear(self, speaker: str, value: int | None) -> None:
        """`speaker` says `value`, or nothing."""
        if value is None:
            return
        if self.value is None:
            self.value, self.speaker = value, speaker
        elif self.value != value:
            raise ValueError(
                f"{self._what} is {self.value} by {self.speaker}, and {value} by {speaker}; unset the one that is wrong"
            )

    def read(self, environ: Environment, *names: str) -> None:
        """Hear the first of those variables that is set."""
        for name in names:
            if environ.get(name):
                self.hear(name, _number(name, environ[name], self._least))
                return


def _number(name: str, text: str, least: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise ValueError(f"{name}: expected a whole number of {least} or more, got {text!r}")
    return int(text)


def _address(environ: Environment, by_slurm: bool) -> str | None:
    """Where rank 0 listens, by MASTER_ADDR and MASTER_PORT; in a SLURM step its first host, and a port of its own."""
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if by_slurm:
        host = host or _slurm_host(environ)
        port = port or str(_slurm_port(environ))
    if not host or not port:
        return None
    if not _HOST.fullmatch(host):
        raise ValueError(f"MASTER_ADDR: expected the name or the address of a host, got {host!r}")
    number = _number("MASTER_PORT", port, 1)
    if number > 65535:
        raise ValueError(f"MASTER_PORT: expected a port of at most 65535, got {port}")
    return f"tcp://[{host}]:{number}" if ":" in host else f"tcp://{host}:{number}"


def _slurm_host(environ: Environment) -> str | None:
    """The step's first host, where SLURM places its task 0; else the one on which `srun` was called."""
    for name in SLURM_NODES:
        if environ.get(name):
            host = first_host(environ[name])
            if not _HOST.fullmatch(host):
                raise ValueError(f"{name}: expected a list of hosts such as node[01-04], got {environ[name]!r}")
            return host
    return environ.get("SLURM_LAUNCH_NODE_IPADDR")


def first_host(hosts: str) -> str:
    """The first of a list of hosts in SLURM's form: `node03` of `node[03-07,12],gpu1`."""
    end = next(_commas(hosts), len(hosts))
    return re.sub(r"\[([0-9]+)[-,0-9]*\]", r"\1", hosts[:end])


def _commas(text: str) -> Iterator[int]:
    """Where `text` has commas outside of brackets."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            yield position


def _slurm_step(environ: Environment) -> str:
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or "0"
    return f"{job}.{environ.get('SLURM_STEP_ID') or environ.get('SLURM_STEPID') or '0'}"


def _slurm_port(environ: Environment) -> int:
    return FIRST_PORT + zlib.crc32(_slurm_step(environ).encode()) % PORTS


def _run_id(environ: Environment, by_slurm: bool) -> str | None:
    return f"slurm-{_slurm_step(environ)}" if by_slurm else environ.get("TORCHELASTIC_RUN_ID") or None
