"""Options that the command and the scripts in `bench/` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from purine_ref.benchmarks.dispatch import PEERS

F = TypeVar("F", bound=Callable[..., Any])


def runs_option(function: F) -> F:
    """`--runs`, how many rounds are counted."""
    return click.option(
        "--runs", type=click.IntRange(1), default=5, show_default=True, help="Rounds after the warm-up."
    )(function)


def peers_option(function: F) -> F:
    """`--peers`, a tuple of names."""
    words = f"Who to compare with, joined by commas: {', '.join(PEERS)}; or all, or none."
    return click.option("--peers", default="all", show_default=True, callback=_peers, help=words)(function)


def small_option(default: int) -> Callable[[F], F]:
    """`--small`, the size of the graphs of slow peers."""
    words = "At most so many operators for dask, futures and autograd, which take long; 0 leaves them out."
    return click.option(
        "--small", "--dask-operators", "small", type=click.IntRange(0), default=default, show_default=True, help=words
    )


def size_options(function: F) -> F:
    """`--operators` and `--peak` of `graph`."""
    largest = "Operators in the largest graph; others have a tenth and three tenths."
    alone = "Operators of the graph whose memory is measured, in a process of its own; 0 leaves it out."
    peak = click.option("--peak", type=click.IntRange(0), default=1_000_000, show_default=True, help=alone)
    operators = click.option("--operators", type=click.IntRange(1), default=100_000, show_default=True, help=largest)
    return operators(peak(function))


def _peers(_: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    names = {"all": PEERS, "none": ()}.get(text) or tuple(name for name in text.split(",") if text != "none")
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise click.BadParameter(
            f"expected all, none, or some of {', '.join(PEERS)}; got {', '.join(map(repr, unknown))}", param=parameter
        )
    return names
