"""`purine-ref bench`: what this machine reaches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from purine_ref.benchmarks import compute as computing
from purine_ref.benchmarks import dispatch as dispatching
from purine_ref.benchmarks import gpu as accelerators
from purine_ref.benchmarks import graph as graphs
from purine_ref.benchmarks import hosts as several
from purine_ref.benchmarks import machine, plots
from purine_ref.benchmarks import scaling as scalings
from purine_ref.benchmarks import transport as transports
from purine_ref.benchmarks.namespaces import NoNamespaces
from purine_ref.benchmarks.options import (
    gpu_options,
    hosts_options,
    kernel_sets_option,
    network_options,
    peers_option,
    runs_option,
    size_options,
    sizes_option,
    small_option,
    ways_option,
    workers_option,
)
from purine_ref.benchmarks.timing import WIDTH, Found, table
from purine_ref.cli.report import CODES, json_option, kernels_option, output, output_file, seed_option, write_json
from purine_ref.devices import kernel_set

EPILOG = """\b
Examples:
  purine-ref bench dispatch
  purine-ref bench dispatch --operators 100000 --runs 3 --small 0
  purine-ref bench dispatch --peers taskflow,onetbb --json dispatch.json
  purine-ref bench graph
  purine-ref bench compute --model nin --plot nin.png
  purine-ref bench scaling --model nin
  purine-ref bench transport
  purine-ref bench gpu
"""

GRAPH_EPILOG = """\b
Examples:
  purine-ref bench graph
  purine-ref bench graph --operators 2000 --peak 0 --runs 3
  purine-ref bench graph --peak 1000000 --json graph.json
"""


COMPUTE_EPILOG = """\b
Examples:
  purine-ref bench compute
  purine-ref bench compute --model nin --workers 2 --runs 7
  purine-ref bench compute --model googlenet --batch 32 --kernels numpy,plain --plot googlenet.png
"""

SCALING_EPILOG = """\b
Examples:
  purine-ref bench scaling
  purine-ref bench scaling --model nin --runs 7 --plot scaling.png
  purine-ref bench scaling --model nin --hosts 2
  purine-ref bench scaling --model nin --hosts 2 --rate 0.25,0.5,0.9 --reduction ring
"""

GPU_EPILOG = """\b
Examples:
  purine-ref bench gpu
  purine-ref bench gpu --kernels-only
  purine-ref bench gpu --model nin --batch 128 --runs 7 --json gpu.json --plot gpu.png
"""

TRANSPORT_EPILOG = """\b
Examples:
  purine-ref bench transport
  purine-ref bench transport --sizes 4,256 --ways "purine tcp,purine ipc" --runs 9
  purine-ref bench transport --namespaces --plot transport.png
"""

plot_option = output_file("--plot", "plot_file", help="Draw a picture there, a PNG; needs the extra `plot`.")
"""`--plot FILE`."""


@click.group(epilog=EPILOG)
def bench() -> None:
    """Measure this machine: medians with their spread, beside peers that are installed."""


@bench.command(epilog=EPILOG)
@click.option("--operators", type=click.IntRange(1), default=10_000, show_default=True, help="Size of each graph.")
@runs_option
@peers_option
@small_option(1_000)
@seed_option
@json_option
@plot_option
def dispatch(
    operators: int,
    runs: int,
    small: int,
    peers: tuple[str, ...],
    seed: int,
    json_file: str | None,
    plot_file: str | None,
) -> int:
    """Nanoseconds per operator, its blob included, for operators that do nothing.

    Graphs are a chain, layers of 100 that fan out and in, and random layers with 2.5 edges to an operator. Peers that
    are not installed are left out, with a word on what to install.
    """
    start = _begin(plot_file)
    found = dispatching.run(operators, small, runs, peers)
    _report("dispatch", "operators", found, start, seed, json_file, plot_file)
    return CODES["pass"]


@bench.command(epilog=GRAPH_EPILOG)
@size_options
@runs_option
@seed_option
@json_option
@plot_option
def graph(operators: int, peak: int, runs: int, seed: int, json_file: str | None, plot_file: str | None) -> int:
    """Nanoseconds per node of a graph's life, and the memory that it takes.

    A graph is built, prepared, bound to memory, run once, and freed.
    """
    start = _begin(plot_file)
    series, notes = graphs.run(operators, peak, runs)
    _report("graph", "nodes", Found(series, notes, []), start, seed, json_file, plot_file)
    return CODES["pass"]


@bench.command(epilog=COMPUTE_EPILOG)
@network_options
@kernel_sets_option
@workers_option
@runs_option
@seed_option
@json_option
@plot_option
def compute(
    models: tuple[str, ...],
    batch: int | None,
    kernels: tuple[str, ...],
    workers: tuple[int, ...],
    runs: int,
    seed: int,
    json_file: str | None,
    plot_file: str | None,
) -> int:
    """Images per second of a training step, next to PyTorch.

    A step is forward, backward and momentum update. PyTorch runs eagerly, in both of its memory layouts; if it is not
    installed it is left out. All must compute the same losses, within the oracle's bounds, before they are timed.
    """
    start = _begin(plot_file)
    found = computing.run(models, batch, kernels, workers, runs, seed)
    _report("compute", "images", found, start, seed, json_file, plot_file)
    return CODES["pass" if found.series else "unknown"]


@bench.command(epilog=SCALING_EPILOG)
@network_options
@kernels_option
@workers_option
@hosts_options
@runs_option
@seed_option
@json_option
@plot_option
def scaling(
    models: tuple[str, ...],
    batch: int | None,
    workers: tuple[int, ...],
    hosts: int | None,
    rates: tuple[float, ...],
    reduction: str,
    runs: int,
    seed: int,
    json_file: str | None,
    plot_file: str | None,
) -> int:
    """What more workers bring to data parallel training steps: images per second, efficiency, hidden copies.

    Workers are held to a core each. With --hosts, processes that talk ZeroMQ instead: the bytes that they send, and
    how much of the time that these take is hidden behind computing, from merged traces.
    """
    start = _begin(plot_file)
    if hosts is None:
        found = scalings.run(models, batch, kernel_set(), workers, runs, seed)
    else:
        between = several.Between(hosts, reduction, rates)
        with _namespaces():
            found = several.run(models, batch, kernel_set(), between, runs, seed)
    _report("scaling", "images", found, start, seed, json_file, plot_file)
    return CODES["pass" if found.series else "unknown"]


@bench.command(epilog=TRANSPORT_EPILOG)
@sizes_option
@ways_option
@click.option("--namespaces", is_flag=True, help="Between two network namespaces joined by veth; one must be root.")
@runs_option
@seed_option
@json_option
@plot_option
def transport(
    sizes: tuple[int, ...],
    ways: tuple[str, ...],
    namespaces: bool,
    runs: int,
    seed: int,
    json_file: str | None,
    plot_file: str | None,
) -> int:
    """How long an array takes to another process and back, and GB/s into the receiver's arrays.

    Ours goes by TCP, encrypted, and by ipc, beside raw TCP, one pyzmq message, shared memory, and MPI.
    """
    start = _begin(plot_file)
    with _namespaces():
        found = transports.run(sizes, ways, runs, namespaces)
    _report("transport", "bytes", found, start, seed, json_file, plot_file)
    return CODES["pass"]


@bench.command(epilog=GPU_EPILOG)
@gpu_options
@runs_option
@seed_option
@json_option
@plot_option
def gpu(
    models: tuple[str, ...],
    batch: int | None,
    kernels_only: bool,
    images: int,
    runs: int,
    seed: int,
    json_file: str | None,
    plot_file: str | None,
) -> int:
    """What a GPU reaches: training steps beside PyTorch, where their time goes, and the bandwidth of each loop.

    By CUDA events. Rows that have a target say so in --json, and below the table whether it is reached. Without a GPU
    it says what is missing.
    """
    start = _begin(plot_file)
    found = accelerators.run(accelerators.Asked(models, batch, runs, seed, kernels_only, images))
    _report("gpu", "images", found, start, seed, json_file, plot_file)
    return CODES[found.verdict]


@contextmanager
def _namespaces() -> Iterator[None]:
    """Say in one line why there can be no namespaces, where that is so."""
    try:
        yield
    except NoNamespaces as error:
        raise click.ClickException(str(error)) from None


def _begin(plot_file: str | None) -> float:
    """When the command began. Raises ClickException, so before anything is measured, if no picture can be drawn."""
    if plot_file is not None:
        try:
            plots.require()
        except plots.NoMatplotlib as error:
            raise click.ClickException(str(error)) from None
    return time.perf_counter()


def _report(
    bench_name: str, items: str, found: Found, start: float, seed: int, json_file: str | None, plot_file: str | None
) -> None:
    """The table, the picture, and the object for scripts."""
    console = output(json_file)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table(bench_name, found.series, items))
    for note in (*found.notes, machine.line()):
        console.print(note, soft_wrap=True)
    if plot_file is not None:
        plots.draw(bench_name, found.series, plot_file, machine.line())
    facts = {
        "executed": len(found.series),
        "skipped": len(found.skipped),
        "seconds": time.perf_counter() - start,
        "seed": seed,
        "machine": machine.describe(),
        "rows": [one.row() for one in found.series],
        "notes": found.notes,
    }
    write_json(json_file, "bench", found.verdict, facts)
