"""Schemes by their written names, such as `serial` or `threads:4`: each is one registration.

A `Scheme` opens an executor for a serial graph: it may compose the graph first, and whatever it does, the executor
that it opens is fed and fetched from by the serial graph's names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from purine_ref.executors import Executor, Serial, Threaded
from purine_ref.graph import Graph


@dataclass(frozen=True, slots=True)
class Scheme:
    """A scheme as written (`text`), and `open(graph, seed)`, which returns an executor for the graph under it."""

    text: str
    open: Callable[[Graph, int], Executor]


Parser = Callable[[str], Callable[[Graph, int], Executor]]
"""From what follows the colon ('' where there is none) to `Scheme.open`. Raises ValueError for a wrong argument."""

_registered: dict[str, tuple[str, Parser]] = {}


def register(form: str) -> Callable[[Parser], Parser]:
    """Register a parser under its written form: `@register("threads:N")`. Raises ValueError for a taken name."""
    name = form.partition(":")[0]

    def add(parser: Parser) -> Parser:
        if name in _registered:
            raise ValueError(f"scheme {name!r} is registered already, as {_registered[name][0]!r}")
        _registered[name] = (form, parser)
        return parser

    return add


def scheme_forms() -> tuple[str, ...]:
    """The written forms of all schemes, in the order of registration."""
    return tuple(form for form, _ in _registered.values())


def parse_scheme(text: str) -> Scheme:
    """The scheme that `text` names. Raises ValueError, with what is accepted, for another name or argument."""
    name, _, argument = text.partition(":")
    if name not in _registered:
        raise ValueError(f"no scheme {text!r}; there are {', '.join(scheme_forms())}")
    form, parser = _registered[name]
    try:
        return Scheme(text, parser(argument))
    except ValueError as error:
        raise ValueError(f"scheme {text!r} must be like {form!r}: {error}") from None


@register("serial")
def _serial(argument: str) -> Callable[[Graph, int], Executor]:
    if argument:
        raise ValueError(f"it takes no argument, got {argument!r}")
    return lambda graph, seed: Serial(graph, seed=seed)


@register("threads:N")
def _threads(argument: str) -> Callable[[Graph, int], Executor]:
    if not argument.isascii() or not argument.isdecimal() or not 1 <= int(argument) <= 1024:
        raise ValueError(f"N must be an integer from 1 to 1024, got {argument!r}")
    return lambda graph, seed: Threaded(graph, threads=int(argument), seed=seed)
