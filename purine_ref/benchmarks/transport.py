"""What it costs to bring an array to another process: our transport, in its ways, beside what others have.

Two processes for each way (`links`), all at once, taking turns. For each size there are two measurements. `round trip`
is how long an array takes there and back, in microseconds. `throughput` is GB/s (bytes per nanosecond) of arrays sent
one after the other, until all lie in arrays of the receiver's: what arrived in some buffer does not count, a copy out
of it does. What arrived is compared with what was sent, when no clock runs.

Ways: `raw tcp`, sockets without any header, received straight into the array; `purine tcp`, `purine curve`, encrypted,
and `purine ipc`, ours; `pyzmq message`, one ZeroMQ message for each array; `shared memory`, copied in and out;
`mpi4py`, blocking send and receive. In ratios, of unit x, `A / raw tcp` is A's figure over raw TCP's: of throughput
more is better, of round trips less. Between two network namespaces only what goes by TCP takes part.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from purine_ref.benchmarks.asking import Asked, start
from purine_ref.benchmarks.links.joining import BASE, WAYS
from purine_ref.benchmarks.namespaces import Host, two_hosts
from purine_ref.benchmarks.timing import Contestant, Found, Series, measure
from purine_ref.transports.keys import make_keys

SIZES = tuple(4096 * 4**power for power in range(8))
"""4 KiB to 64 MiB."""

ROUND_TRIP, THROUGHPUT = "round trip", "throughput"

MOST_AT_ONCE, BYTES_AT_ONCE = 256, 2**25
"""So many arrays, or bytes, are sent one after the other in one measurement; two arrays at least."""

MOST_TRIPS, BYTES_OF_TRIPS = 200, 2**24

PROGRAM = "benchmarks.links.end"
PORT = 5555
"""Where end 0 listens in a network namespace of its own, in which nobody else does."""


def run(sizes: Sequence[int], ways: Sequence[str], runs: int, namespaces: bool) -> Found:
    """The sizes in bytes, by the ways of `WAYS`; `BASE` is always there.

    Raises NoNamespaces, RuntimeError where an end fails or other bytes arrive than were sent.
    """
    wanted = [way for way in WAYS if way in ways or way == BASE]
    skipped = {way: reason for way in wanted if (reason := left_out(way, namespaces))}
    notes = [
        f"two processes, {'in network namespaces joined by veth' if namespaces else 'by loopback'}; ratios are taken "
        "within a round; of round trips less is better",
        *(f"{way} is left out: {reason}" for way, reason in skipped.items()),
    ]
    series: list[Series] = []
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(two_hosts()) if namespaces else None
        counts = {size: at_once(size) for size in sizes}
        made = {way: stack.enter_context(ends(way, counts, hosts)) for way in wanted if way not in skipped}
        for size in sizes:
            series += _case(made, size, runs)
        for end in made.values():
            end.ask("stop")
    return Found(series, notes, list(skipped.values()))


def left_out(way: str, namespaces: bool) -> str | None:
    """Why a way cannot take part, or None."""
    _, address, needs = WAYS[way]
    if namespaces and address != "tcp":
        return "it does not go from one network namespace to another"
    if needs and importlib.util.find_spec(needs) is None:
        return f"it is not installed; pip install {needs}"
    if address == "mpi" and mpiexec() is None:
        return "there is no mpiexec, neither beside Python nor on the path"
    return None


def mpiexec() -> str | None:
    """The command that starts processes of MPI: the one beside Python, where MPI is a package too, or another."""
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return shutil.which("mpiexec", path=beside)


def at_once(size: int) -> int:
    """How many arrays of this size are sent one after the other."""
    return max(2, min(MOST_AT_ONCE, BYTES_AT_ONCE // size))


def trips(size: int) -> int:
    """How many round trips one measurement has."""
    return max(1, min(MOST_TRIPS, BYTES_OF_TRIPS // size))


@contextlib.contextmanager
def ends(way: str, counts: Mapping[int, int], hosts: tuple[Host, Host] | None) -> Iterator[Asked]:
    """Both ends of a way, of which the one that is asked is given; they are ended afterwards."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        keys = ""
        if way == "purine curve":
            keys = str(folder / "keys")
            make_keys(keys)
        there = stack.enter_context(address(way, folder, hosts))
        facts = {"way": way, "address": there, "counts": counts, "keys": keys}
        if WAYS[way].address == "mpi":
            launcher = (str(mpiexec()), "-n", "2")
            started = [Asked(f"the ends of {way}", start(PROGRAM, {**facts, "end": None}, launcher))]
        else:
            started = [
                Asked(f"end {end} of {way}", start(PROGRAM, {**facts, "end": end}, hosts[end].before if hosts else ()))
                for end in range(2)
            ]
        for one in started:
            stack.callback(one.end)
        yield started[0]


@contextlib.contextmanager
def address(way: str, folder: Path, hosts: tuple[Host, Host] | None) -> Iterator[str]:
    """Where the ends of a way meet: a file in the folder, or a port here, which nobody else is given meanwhile."""
    if WAYS[way].address == "ipc":
        yield f"ipc://{folder / 'end0'}"
    elif hosts is not None:
        yield f"tcp://{hosts[0].address}:{PORT + list(WAYS).index(way)}"
    else:
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so end 0, which does so too, can bind it
            held.bind(("127.0.0.1", 0))
            yield f"tcp://127.0.0.1:{held.getsockname()[1]}"


class Turn:
    """A contestant's `once`: one measurement of each kind."""

    def __init__(self, end: Asked, size: int) -> None:
        self._end, self._size = end, size

    def __call__(self) -> Mapping[str, float]:
        """Seconds of one round trip, and of one array of many."""
        return {
            ROUND_TRIP: self._end.ask("round_trip", size=self._size, count=trips(self._size)),
            THROUGHPUT: self._end.ask("stream", size=self._size, count=at_once(self._size)),
        }


def _case(made: Mapping[str, Asked], size: int, runs: int) -> list[Series]:
    """All rows of one size."""
    case = words(size)
    contestants = [Contestant(way, case, size, Turn(end, size), 2) for way, end in made.items()]
    found = [_figure(one) for one in measure(contestants, runs, f"arrays of {case}")]
    base = {one.metric: one for one in found if one.name == BASE}
    ratios = [one.over(base[one.metric], f"{one.name} / {BASE}") for one in found if one.name != BASE]
    return [*found, *ratios]


def _figure(one: Series) -> Series:
    """Nanoseconds for each byte, as microseconds of a round trip or as GB/s."""
    if one.metric == ROUND_TRIP:
        return replace(one, unit="us", values=tuple(value * one.items / 1e3 for value in one.values))
    return replace(one, unit="GB/s", values=tuple(1 / value for value in one.values))


def words(size: int) -> str:
    """A size for people: `4 KiB`."""
    for unit, name in ((2**20, "MiB"), (2**10, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"
