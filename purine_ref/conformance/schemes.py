"""Schemes by their written names, such as `threads:4`, `data:3,ring@ranks` or `data:2/pipeline:2x4@hosts:2`.

A scheme is one or more *parts* joined by `/`, the outermost first, and a *place* after `@`. Each part and each place is
one registration. A part says how the graph is divided (`refiners`), how partial sums are added (`reduction`), or how
many threads run it; a place says where the divisions go, and opens an executor there (`places`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from purine_ref.conformance.places import DEFAULT_PLACE, Driven, Place, Running, counted, parse_place
from purine_ref.conformance.session import Session
from purine_ref.errors import GraphError
from purine_ref.executors import Executor
from purine_ref.graph import Graph
from purine_ref.parallel import Composed, Data, Hybrid, Model, Pipeline, Refiner, compose, pipeline_ranks

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
class Part:
    """What one part of a scheme says; None where it says nothing. `threads` of 0 are the serial executor; `captured`
    says that iterations are recorded and replayed."""

    refiners: tuple[Refiner, ...] = ()
    reduction: str | None = None
    threads: int | None = None
    order: str | None = None
    captured: bool = False


Parser = Callable[[str], "Part | Opener"]
"""From what follows a part's colon ('' where there is none) to what it says, or, for a scheme that always stands alone,
to its opener. Raises ValueError for a wrong argument."""

_registered: dict[str, tuple[str, Parser]] = {}
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


def scheme_forms() -> tuple[str, ...]:
    """The written forms of all parts, in the order of registration."""
    return tuple(form for form, _ in _registered.values())


def parse_scheme(text: str) -> Scheme:
    """The scheme that `text` names. Raises ValueError, with what is accepted, for anything else."""
    names, at, place = text.partition("@")
    chosen = parse_place(text, place if at else DEFAULT_PLACE)
    parts = [_parse_part(text, part) for part in names.split("/")]
    alone = [part for part in parts if not isinstance(part, Part)]
    if alone and (len(parts) > 1 or at):
        raise ValueError(f"scheme {text!r}: {names!r} stands alone, and takes no other part and no place")
    if alone:
        return Scheme(text, alone[0])
    return _scheme(text, [part for part in parts if isinstance(part, Part)], chosen)


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
    captured = any(part.captured for part in parts)
    moved = bool(refiners) or place.computes or captured

    def composed(graph: Graph) -> Graph:
        """The graph under the scheme."""
        if not moved:
            return graph
        return compose(graph, refiners, place.locations(prod(r.width for r in refiners)), reduction=reduction)

    def driven(graph: Graph, seed: int, how: Driven) -> Session:
        """A session of the graph under the scheme, at its place."""
        made = composed(graph)
        ranks = None
        if order is not None and isinstance(made, Composed) and how.schedule is None:
            ranks = pipeline_ranks(made, order)
        opening = place.open(made, Running(seed, threads, ranks, how, captured))
        return Session(
            opening.executor, graph, faults=opening.faults, close=opening.close, devices=opening.devices
        )  # fmt: skip

    opener = partial(driven, how=Driven())
    return Scheme(text, opener, composed, bool(refiners) or place.computes, driven, place.ranks)


def _grid(text: str, names: str) -> tuple[int, int]:
    first, cross, second = text.partition("x")
    if not cross:
        raise ValueError(f"expected {names}, got {text!r}")
    return counted(first, names[0]), counted(second, names[-1])


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
    return Part(threads=counted(argument, "N"))


@register("captured")
def _captured(argument: str) -> Part:
    if argument:
        raise ValueError(f"it takes no argument, got {argument!r}")
    return Part(captured=True)


@register("data:N[,server|tree|ring]")
def _data(argument: str) -> Part:
    count, *words = argument.split(",")
    choice = _choice(words, ("server", "central", "tree", "ring"))
    update = "server" if choice == "server" else "replicated"
    return Part((Data(counted(count, "N"), update=update),), None if choice == "server" else choice)


@register("model:N[,input]")
def _model(argument: str) -> Part:
    count, *words = argument.split(",")
    return Part((Model(counted(count, "N"), _choice(words, ("output", "input")) or "output"),))


@register("pipeline:SxM[,1f1b]")
def _pipeline(argument: str) -> Part:
    grid, *words = argument.split(",")
    return Part((Pipeline(*_grid(grid, "SxM")),), order=_choice(words, ("gpipe", "1f1b")))


@register("hybrid:DxM")
def _hybrid(argument: str) -> Part:
    return Part((Hybrid(*_grid(argument, "DxM")),))
