"""Schemes by their written names, such as `threads:4`, `data:3,ring@ranks` or `data:2/pipeline:2x4@hosts:2`.

A scheme is one or more *parts* joined by `/`, the outermost first, and a *place* after `@`. Each part and each place is
one registration. A part says how the graph is divided (`refiners`), how partial sums are added (`reduction`), or how
many threads run it; a place says where the divisions go, and opens an executor there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from purine_ref.conformance.schedules import replay_order
from purine_ref.conformance.session import Session
from purine_ref.devices import Device, device_for, kernel_set
from purine_ref.devices.virtual import VirtualMachine, virtual_locations
from purine_ref.errors import GraphError
from purine_ref.executors import Executor, Hosts, Memory, Observer, Serial, Threaded
from purine_ref.executors.ranks import Ranks
from purine_ref.graph import Graph
from purine_ref.parallel import Composed, Data, Hybrid, Model, Pipeline, Refiner, compose, pipeline_ranks
from purine_ref.tensor import Location
from purine_ref.transports import World, current

Opener = Callable[[Graph, int], Executor | Session]
"""From a serial graph and a seed to what runs it."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A scheme as written, and what it means: `open` runs a serial graph under it, `compose` only makes the graph.

    `divides` says that the graph is composed, so that sums may be added in another order than in the serial graph.
    `drive` opens as `open` does, but starts operators by a schedule string, or for an observer to see; None for a
    scheme that stands alone. `ranks` is how many must have joined a world before it is opened: 0 says all of any world,
    None that it needs no world.
    """

    text: str
    open: Opener
    compose: Callable[[Graph], Graph] = lambda graph: graph
    divides: bool = False
    drive: Callable[[Graph, int, Driven], Session] | None = None
    ranks: int | None = None


@dataclass(frozen=True, slots=True)
class Driven:
    """How a run is driven or watched: a schedule string (see `schedules`), and an observer.

    `memory` is to hold the persistent pieces, for several graphs under one scheme to share them by name, but at places
    whose memory goes with what they run on, such as `virtual`. With `keep`, blobs share memory where they may, and only
    the pieces of the serial blobs that it names are sure to be there after a run, beside what is fed or persists.
    """

    schedule: str | None = None
    observer: Observer | None = None
    memory: Memory | None = None
    keep: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """What one part of a scheme says; None where it says nothing. `threads` of 0 are the serial executor."""

    refiners: tuple[Refiner, ...] = ()
    reduction: str | None = None
    threads: int | None = None
    order: str | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """What a place opens: an executor, what else may go wrong there, and how to end what it ran on."""

    executor: Executor
    faults: Callable[[], Sequence[object]] = tuple
    close: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """What an executor is opened with: `threads` of 0 mean the serial one; `ranks` or a `schedule`, or neither."""

    seed: int
    threads: int
    ranks: Sequence[float] | None
    driven: Driven

    def sharing(self, graph: Graph) -> dict[str, Any]:
        """The executor's keywords `memory`, `reuse` and `keep` for `graph`, which may be composed."""
        keep = self.driven.keep or ()
        if isinstance(graph, Composed):
            keep = tuple(piece.blob.name for name in keep for piece in graph.pieces[name])
        return {"memory": self.driven.memory, "reuse": self.driven.keep is not None, "keep": keep}

    def order(self, graph: Graph, devices: Callable[[Location], Device] = device_for) -> list[str] | None:
        """The order of starts that the schedule names. Raises Refused where it is no schedule of the graph."""
        schedule = self.driven.schedule
        return None if schedule is None else replay_order(graph, schedule, devices)


@dataclass(frozen=True, slots=True)
class Place:
    """A place: the locations for a number of divisions, and how a graph is opened there; `ranks` as in `Scheme`."""

    locations: Callable[[int], list[Location]]
    open: Callable[[Graph, Running], Opened]
    ranks: int | None = None


Parser = Callable[[str], "Part | Opener"]
"""From what follows a part's colon ('' where there is none) to what it says, or, for a scheme that always stands alone,
to its opener. Raises ValueError for a wrong argument."""

_registered: dict[str, tuple[str, Parser]] = {}
_places: dict[str, tuple[str, Callable[[str], Place]]] = {}
DEFAULT_PLACE = "cpu"
DEFAULT_THREADS = 2


def register(form: str) -> Callable[[Parser], Parser]:
    """Register a part under its written form: `@register("threads:N")`. Raises ValueError for a taken name."""
    name = form.partition(":")[0]

    def add(parser: Parser) -> Parser:
        """Register the parser, and return it."""
        if name in _registered:
            raise ValueError(f"scheme {name!r} is registered already, as {_registered[name][0]!r}")
        _registered[name] = (form, parser)
        return parser

    return add


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


def scheme_forms() -> tuple[str, ...]:
    """The written forms of all parts, in the order of registration."""
    return tuple(form for form, _ in _registered.values())


def place_names() -> tuple[str, ...]:
    """The written forms of all places."""
    return tuple(form for form, _ in _places.values())


def parse_scheme(text: str) -> Scheme:
    """The scheme that `text` names. Raises ValueError, with what is accepted, for anything else."""
    names, at, place = text.partition("@")
    chosen = _parse_place(text, place if at else DEFAULT_PLACE)
    parts = [_parse_part(text, part) for part in names.split("/")]
    alone = [part for part in parts if not isinstance(part, Part)]
    if alone and (len(parts) > 1 or at):
        raise ValueError(f"scheme {text!r}: {names!r} stands alone, and takes no other part and no place")
    if alone:
        return Scheme(text, alone[0])
    return _scheme(text, [part for part in parts if isinstance(part, Part)], chosen)


def _parse_place(text: str, place: str) -> Place:
    name, colon, argument = place.partition(":")
    if name not in _places or (colon and not argument):
        raise ValueError(f"scheme {text!r}: no place {place!r}; there are {', '.join(place_names())}")
    form, parser = _places[name]
    try:
        return parser(argument)
    except ValueError as error:
        raise ValueError(f"scheme {text!r}: the place must be like {form!r}: {error}") from None


def _parse_part(text: str, part: str) -> Part | Opener:
    name, _, argument = part.partition(":")
    if name not in _registered:
        raise ValueError(f"no scheme {text!r}; there are {', '.join(scheme_forms())}")
    form, parser = _registered[name]
    try:
        return parser(argument)
    except (ValueError, GraphError) as error:
        raise ValueError(f"scheme {text!r} must be like {form!r}: {error}") from None


def _scheme(text: str, parts: Sequence[Part], place: Place) -> Scheme:
    """What the parts say together: all their refiners, and the first word about anything else."""
    refiners = tuple(refiner for part in parts for refiner in part.refiners)
    reduction = next((part.reduction for part in parts if part.reduction is not None), "central")
    threads = next((part.threads for part in parts if part.threads is not None), DEFAULT_THREADS)
    order = next((part.order for part in parts if part.order is not None), None)

    def composed(graph: Graph) -> Graph:
        """The graph under the scheme."""
        if not refiners:
            return graph
        return compose(graph, refiners, place.locations(prod(r.width for r in refiners)), reduction=reduction)

    def driven(graph: Graph, seed: int, how: Driven) -> Session:
        """A session of the graph under the scheme, at its place."""
        made = composed(graph)
        ranks = None
        if order is not None and isinstance(made, Composed) and how.schedule is None:
            ranks = pipeline_ranks(made, order)
        opening = place.open(made, Running(seed, threads, ranks, how))
        return Session(opening.executor, graph, faults=opening.faults, close=opening.close)

    opener = partial(driven, how=Driven())
    return Scheme(text, opener, composed, bool(refiners), driven, place.ranks)


def _count(text: str, name: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise ValueError(f"{name} must be an integer from 1 to 1024, got {text!r}")
    return int(text)


def _grid(text: str, names: str) -> tuple[int, int]:
    first, cross, second = text.partition("x")
    if not cross:
        raise ValueError(f"expected {names}, got {text!r}")
    return _count(first, names[0]), _count(second, names[-1])


def _choice(words: Sequence[str], accepted: Sequence[str]) -> str | None:
    if len(words) > 1 or any(word not in accepted for word in words):
        raise ValueError(f"after a comma goes one of {', '.join(accepted)}, got {','.join(words)!r}")
    return words[0] if words else None


@register("serial")
def _serial(argument: str) -> Part:
    if argument:
        raise ValueError(f"it takes no argument, got {argument!r}")
    return Part(threads=0)


@register("threads:N")
def _threads(argument: str) -> Part:
    return Part(threads=_count(argument, "N"))


@register("data:N[,server|tree|ring]")
def _data(argument: str) -> Part:
    count, *words = argument.split(",")
    choice = _choice(words, ("server", "central", "tree", "ring"))
    update = "server" if choice == "server" else "replicated"
    return Part((Data(_count(count, "N"), update=update),), None if choice == "server" else choice)


@register("model:N[,input]")
def _model(argument: str) -> Part:
    count, *words = argument.split(",")
    return Part((Model(_count(count, "N"), _choice(words, ("output", "input")) or "output"),))


@register("pipeline:SxM[,1f1b]")
def _pipeline(argument: str) -> Part:
    grid, *words = argument.split(",")
    return Part((Pipeline(*_grid(grid, "SxM")),), order=_choice(words, ("gpipe", "1f1b")))


@register("hybrid:DxM")
def _hybrid(argument: str) -> Part:
    return Part((Hybrid(*_grid(argument, "DxM")),))


def _plain(graph: Graph, how: Running) -> Opened:
    return Opened(_executor(graph, how, device_for, how.sharing(graph)))


def _virtual(graph: Graph, how: Running) -> Opened:
    machine = VirtualMachine(seed=how.seed, kernels=kernel_set())
    sharing = {**how.sharing(graph), "memory": None}  # arrays of one machine are not to be touched by another
    return Opened(_executor(graph, how, machine.device, sharing), lambda: machine.races, machine.close)


def _executor(
    graph: Graph, how: Running, devices: Callable[[Location], Device], sharing: dict[str, Any]
) -> Executor:
    order, observer = how.order(graph, devices), how.driven.observer
    shared: dict[str, Any] = {"seed": how.seed, "devices": devices, "order": order, "observer": observer, **sharing}
    if how.threads == 0:
        return Serial(graph, **shared)
    return Threaded(graph, threads=how.threads, ranks=how.ranks, **shared)


def _ranks(graph: Graph, how: Running) -> Opened:
    shared: dict[str, Any] = {"seed": how.seed, "order": how.order(graph), "observer": how.driven.observer}
    shared |= how.sharing(graph)
    return Opened(Ranks(graph, threads=max(how.threads, 1), ranks=how.ranks, **shared))


def _spread(width: int, ranks: int) -> list[Location]:
    """The places of `width` divisions over `ranks` ranks, neighbours together; there may be none left for some."""
    ranks = min(ranks, width)
    return [Location(division * ranks // width) for division in range(width)]


def _ranks_here(argument: str) -> Place:
    """Ranks of this process: N of them, or one for each division."""
    count = _count(argument, "N") if argument else None
    return Place(lambda width: _spread(width, count or width), _ranks)


def _hosts(argument: str) -> Place:
    """The ranks of the world that this one joined: N of them, or all."""
    count = _count(argument, "N") if argument else 0
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


def _here(graph: Graph, how: Running) -> Opened:
    world = _joined()
    shared: dict[str, Any] = {"seed": how.seed, "order": how.order(graph), "observer": how.driven.observer}
    shared |= how.sharing(graph)
    return Opened(Hosts(graph, world=world, threads=max(how.threads, 1), ranks=how.ranks, **shared))


register_place("cpu", Place(lambda width: [Location()] * width, _plain))
register_place("virtual", Place(virtual_locations, _virtual))
register_place("ranks[:N]", _ranks_here)
register_place("hosts[:N]", _hosts)
