"""Places, the written ends of schemes such as `@virtual`, `@cuda:2` or `@hosts`: where the divisions of a graph go, and
how a graph is opened there. Each is one registration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from purine_ref.conformance.schedules import replay_order
from purine_ref.devices import Device, device_for, kernel_set
from purine_ref.devices.cuda import cuda_machine
from purine_ref.devices.virtual import VirtualMachine, virtual_locations
from purine_ref.errors import GraphError
from purine_ref.executors import Captured, Executor, Hosts, Memory, Observer, Serial, Threaded
from purine_ref.executors.ranks import Ranks
from purine_ref.graph import Graph
from purine_ref.parallel import Composed
from purine_ref.tensor import Location
from purine_ref.transports import World, current
from purine_ref.view import GpuClock, StreamRecorder

DEFAULT_PLACE = "cpu"


@dataclass(frozen=True, slots=True)
class Driven:
    """How a run is driven or watched: a schedule string (see `schedules`), and an observer.

    `memory` is to hold the persistent pieces, for several graphs under one scheme to share them by name, but at places
    whose memory goes with what they run on, such as `virtual`. With `keep`, blobs share memory where they may, and only
    the pieces of the serial blobs that it names are sure to be there after a run, beside what is fed or persists.
    `streams` records what each stream of a device does, at places that have some.
    """

    schedule: str | None = None
    observer: Observer | None = None
    memory: Memory | None = None
    keep: tuple[str, ...] | None = None
    streams: StreamRecorder | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """What a place opens: an executor, what else may go wrong there, how to end what it ran on, and its devices where
    these add in another order than the CPU."""

    executor: Executor
    faults: Callable[[], Sequence[object]] = tuple
    close: Callable[[], None] | None = None
    devices: Callable[[Location], Device] | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """What an executor is opened with: `threads` of 0 mean the serial one; `ranks` or a `schedule`, or neither.

    `captured` asks for the one that replays.
    """

    seed: int
    threads: int
    ranks: Sequence[float] | None
    driven: Driven
    captured: bool = False

    def sharing(self, graph: Graph) -> dict[str, Any]:
        """The executor's keywords `memory`, `reuse` and `keep` for `graph`, which may be composed."""
        keep = self.driven.keep or ()
        if isinstance(graph, Composed):
            keep = tuple(piece.blob.name for name in keep for piece in graph.pieces[name])
        return {"memory": self.driven.memory, "reuse": self.driven.keep is not None, "keep": keep}

    def watched(self, devices: Callable[[Location], Device]) -> Callable[[Location], Device]:
        """The devices, recorded where that is asked for."""
        return devices if self.driven.streams is None else self.driven.streams.watch(devices)

    def order(self, graph: Graph, devices: Callable[[Location], Device] = device_for) -> list[str] | None:
        """The order of starts that the schedule names. Raises Refused where it is no schedule of the graph."""
        schedule = self.driven.schedule
        return None if schedule is None else replay_order(graph, schedule, devices)


@dataclass(frozen=True, slots=True)
class Place:
    """A place: the locations for a number of divisions, and how a graph is opened there; `ranks` as in `Scheme`.

    `computes` says that it computes by itself, and not as a CPU does: then a graph that is not divided goes there too,
    and it is known to add in another order.
    """

    locations: Callable[[int], list[Location]]
    open: Callable[[Graph, Running], Opened]
    ranks: int | None = None
    computes: bool = False


_places: dict[str, tuple[str, Callable[[str], Place]]] = {}


def register_place(form: str, place: Place | Callable[[str], Place]) -> None:
    """Register a place under its written form: `virtual`, or `hosts[:N]` with what makes a place of the argument.

    That is called with '' where none is written, and raises ValueError for a wrong one. Raises ValueError for a taken
    name.
    """
    name = re.split(r"[:\[]", form, maxsplit=1)[0]
    if name in _places:
        raise ValueError(f"place {name!r} is registered already")
    _places[name] = (form, partial(_alone, place) if isinstance(place, Place) else place)


def _alone(place: Place, argument: str) -> Place:
    """A place that takes no argument."""
    if argument:
        raise ValueError(f"it takes no argument, got {argument!r}")
    return place


def place_names() -> tuple[str, ...]:
    """The written forms of all places."""
    return tuple(form for form, _ in _places.values())


def parse_place(text: str, place: str) -> Place:
    """The place that the scheme `text` names as `place`. Raises ValueError, with what is accepted, for another."""
    name, colon, argument = place.partition(":")
    if name not in _places or (colon and not argument):
        raise ValueError(f"scheme {text!r}: no place {place!r}; there are {', '.join(place_names())}")
    form, parser = _places[name]
    try:
        return parser(argument)
    except ValueError as error:
        raise ValueError(f"scheme {text!r}: the place must be like {form!r}: {error}") from None


def counted(text: str, name: str) -> int:
    """The number that is written. Raises ValueError, which calls it `name`, for what is none from 1 to 1024."""
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise ValueError(f"{name} must be an integer from 1 to 1024, got {text!r}")
    return int(text)


def _plain(graph: Graph, how: Running) -> Opened:
    _require_uncaptured(graph, how)
    return Opened(_executor(graph, how, device_for, how.sharing(graph)))


def _virtual(graph: Graph, how: Running) -> Opened:
    machine = VirtualMachine(seed=how.seed, kernels=kernel_set())
    sharing = {**how.sharing(graph), "memory": None}  # arrays of one machine are not to be touched by another
    devices = how.watched(machine.device)
    return Opened(_executor(graph, how, devices, sharing), lambda: machine.races, machine.close)


def _gpus(argument: str) -> Place:
    """Sets of streams on the GPUs of this machine: N of them, or one for each division."""
    count = counted(argument, "N") if argument else None

    def locations(width: int) -> list[Location]:
        """Set d is on GPU d, modulo their number."""
        return [Location(0, place.rank) for place in _spread(width, count or width)]

    return Place(locations, _cuda, computes=True)


def _cuda(graph: Graph, how: Running) -> Opened:
    machine = cuda_machine()  # what is missing is said here, once
    try:
        if how.driven.streams is not None:
            how.driven.streams.clock = GpuClock(machine.cupy)
        sharing = {**how.sharing(graph), "memory": None}  # arrays go with the machine
        executor = _executor(graph, how, how.watched(machine.device), sharing)
    except BaseException:
        machine.close()
        raise
    return Opened(executor, close=machine.close, devices=machine.device)


def _executor(
    graph: Graph, how: Running, devices: Callable[[Location], Device], sharing: dict[str, Any]
) -> Executor:
    order, observer = how.order(graph, devices), how.driven.observer
    shared: dict[str, Any] = {"seed": how.seed, "devices": devices, "order": order, "observer": observer, **sharing}
    if how.captured:
        return Captured(graph, **shared)
    if how.threads == 0:
        return Serial(graph, **shared)
    return Threaded(graph, threads=how.threads, ranks=how.ranks, **shared)


def _ranks(graph: Graph, how: Running) -> Opened:
    _require_uncaptured(graph, how)
    shared: dict[str, Any] = {"seed": how.seed, "order": how.order(graph), "observer": how.driven.observer}
    shared |= how.sharing(graph)
    return Opened(Ranks(graph, threads=max(how.threads, 1), ranks=how.ranks, **shared))


def _spread(width: int, ranks: int) -> list[Location]:
    """The places of `width` divisions over `ranks` ranks, neighbours together; there may be none left for some."""
    ranks = min(ranks, width)
    return [Location(division * ranks // width) for division in range(width)]


def _ranks_here(argument: str) -> Place:
    """Ranks of this process: N of them, or one for each division."""
    count = counted(argument, "N") if argument else None
    return Place(lambda width: _spread(width, count or width), _ranks)


def _hosts(argument: str) -> Place:
    """The ranks of the world that this one joined: N of them, or all."""
    count = counted(argument, "N") if argument else 0
    return Place(lambda width: _spread(width, _ranks_of(count)), _here, count)


def _ranks_of(count: int) -> int:
    """So many ranks, or for 0 all that have joined. Raises GraphError where fewer have."""
    world = current() if count else _joined()
    if world is not None and count > world.size:
        raise GraphError(f"a scheme @hosts:{count} needs {count} ranks, and {world.size} have joined: start as many")
    return count or _joined().size


def _joined() -> World:
    """The world that was joined. Raises GraphError where none was."""
    world = current()
    if world is None:
        raise GraphError(
            "a scheme @hosts runs on the ranks of a world, and none was joined: start as many ranks with `purine-ref "
            "launch --hosts N -- ...`, or say with @hosts:N how many to start"
        )
    return world


def _require_uncaptured(graph: Graph, how: Running) -> None:
    """Raise GraphError where iterations are to be recorded without streams, or on several ranks."""
    if how.captured:
        raise GraphError(f"graph {graph.name!r} can be captured on devices with streams alone: @virtual or @cuda")


def _here(graph: Graph, how: Running) -> Opened:
    world = _joined()
    _require_uncaptured(graph, how)
    shared: dict[str, Any] = {"seed": how.seed, "order": how.order(graph), "observer": how.driven.observer}
    shared |= how.sharing(graph)
    return Opened(Hosts(graph, world=world, threads=max(how.threads, 1), ranks=how.ranks, **shared))


register_place("cpu", Place(lambda width: [Location()] * width, _plain))
register_place("virtual", Place(virtual_locations, _virtual))
register_place("cuda[:N]", _gpus)
register_place("ranks[:N]", _ranks_here)
register_place("hosts[:N]", _hosts)
