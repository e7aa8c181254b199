"""Options that the command and the scripts in `bench/` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from purine_ref.benchmarks.compute import CASES
from purine_ref.benchmarks.dispatch import PEERS
from purine_ref.benchmarks.gpu import CASES as GPU_CASES
from purine_ref.benchmarks.gpu import DEFAULT_CASES as GPU_DEFAULTS
from purine_ref.benchmarks.links.joining import WAYS
from purine_ref.benchmarks.transport import SIZES
from purine_ref.devices.kernels import KERNEL_SETS
from purine_ref.parallel.reduce import REDUCTIONS

MOST_KIB = 2**20
"""The largest array of `bench transport`: 1 GiB."""

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


def network_options(function: F) -> F:
    """`--model`, a tuple of names, and `--batch` of `compute` and `scaling`."""
    words = f"Which networks, joined by commas: {', '.join(CASES)}; or all."
    model = click.option("--model", "models", default="all", show_default=True, callback=_models, help=words)
    sizes = ", ".join(f"{case.batch} for {name}" for name, case in CASES.items())
    batch = click.option("--batch", type=click.IntRange(1), help=f"Images in a step; by default {sizes}.")
    return model(batch(function))


def gpu_options(function: F) -> F:
    """`--model`, a tuple of names, `--batch`, `--kernels-only` and `--images` of `gpu`."""
    words = f"Which networks, joined by commas: {', '.join(GPU_CASES)}; or all."
    usual = ",".join(GPU_DEFAULTS)
    model = click.option("--model", "models", default=usual, show_default=True, callback=_gpu_models, help=words)
    sizes = ", ".join(f"{case.batch} for {name}" for name, case in GPU_CASES.items())
    batch = click.option("--batch", type=click.IntRange(1), help=f"Images in a step; by default {sizes}.")
    alone = click.option("--kernels-only", is_flag=True, help="Measure the loops alone, and no training step.")
    words = "Images that each loop works on; 0 leaves loops out."
    images = click.option("--images", type=click.IntRange(0), default=128, show_default=True, help=words)
    return model(batch(alone(images(function))))


def _gpu_models(_: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    return _names(parameter, text, tuple(GPU_CASES))


def kernel_sets_option(function: F) -> F:
    """`--kernels`, a tuple of names."""
    words = f"Which kernel sets, joined by commas: {', '.join(KERNEL_SETS)}; or all."
    return click.option("--kernels", default="numpy", show_default=True, callback=_kernels, help=words)(function)


def workers_option(function: F) -> F:
    """`--workers`, a tuple of numbers."""
    words = "How many workers, joined by commas; what is more than the cores is left out."
    return click.option("--workers", default="1,2", show_default=True, callback=_workers, help=words)(function)


def hosts_options(function: F) -> F:
    """`--hosts`, `--rate`, a tuple of numbers, and `--reduction` of `scaling`."""
    words = "Processes that talk ZeroMQ, one for each replica, beside one worker and as many ranks in one process."
    hosts = click.option("--hosts", type=click.IntRange(2, 64), is_eager=True, help=words)
    words = "With two hosts: how often what goes one way takes as long as its computing, joined by commas; as root."
    rate = click.option("--rate", "rates", default="", callback=_rates, help=words)
    words = "How hosts add gradients."
    reduction = click.option(
        "--reduction", type=click.Choice(REDUCTIONS), default="ring", show_default=True, help=words
    )
    return hosts(rate(reduction(function)))


def _rates(context: click.Context, parameter: click.Parameter, text: str) -> tuple[float, ...]:
    if not text:
        return ()
    if context.params.get("hosts") != 2:
        raise click.BadParameter("what goes between hosts is limited for two of them: say --hosts 2", param=parameter)
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0.01 <= rate <= 100 for rate in found):
        raise click.BadParameter(f"expected numbers from 0.01 to 100, joined by commas; got {text!r}", param=parameter)
    return found


def sizes_option(function: F) -> F:
    """`--sizes`, a tuple of bytes."""
    words = "Which sizes of arrays, joined by commas, in KiB: or all, the powers of 4 from 4 to 65536."
    return click.option("--sizes", default="all", show_default=True, callback=_sizes, help=words)(function)


def ways_option(function: F) -> F:
    """`--ways`, a tuple of names."""
    words = f"What to measure, joined by commas: {', '.join(WAYS)}; or all. The first always takes part."
    return click.option("--ways", default="all", show_default=True, callback=_ways, help=words)(function)


def _sizes(_: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    if text == "all":
        return SIZES
    numbers = [int(word) if word.isascii() and word.isdecimal() else 0 for word in text.split(",")]
    if not all(1 <= number <= MOST_KIB for number in numbers):
        raise click.BadParameter(
            f"expected all, or numbers from 1 to {MOST_KIB}, joined by commas; got {text!r}", param=parameter
        )
    return tuple(number * 1024 for number in sorted(set(numbers)))


def _ways(_: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    return _names(parameter, text, tuple(WAYS))


def _models(_: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    return _names(parameter, text, tuple(CASES))


def _kernels(_: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    return _names(parameter, text, tuple(KERNEL_SETS))


def _names(parameter: click.Parameter, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """The names that the text joins by commas, each once."""
    names = known if text == "all" else tuple(dict.fromkeys(text.split(",")))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.BadParameter(
            f"expected all, or some of {', '.join(known)}; got {', '.join(map(repr, unknown))}", param=parameter
        )
    return names


def _workers(_: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    numbers = [int(word) if word.isdecimal() else 0 for word in text.split(",")]
    if min(numbers) < 1:
        raise click.BadParameter(f"expected numbers of 1 or more, joined by commas; got {text!r}", param=parameter)
    return tuple(sorted(set(numbers)))


def _peers(_: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    names = {"all": PEERS, "none": ()}.get(text) or tuple(name for name in text.split(",") if text != "none")
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise click.BadParameter(
            f"expected all, none, or some of {', '.join(PEERS)}; got {', '.join(map(repr, unknown))}", param=parameter
        )
    return names
