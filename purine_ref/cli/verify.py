"""`purine-ref verify`: the main job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from purine_ref.cli.report import CODES, json_option, output, progress_bar, seed_option, write_json
from purine_ref.conformance import Comparison, Scheme, Workload, parse_scheme, scheme_forms
from purine_ref.conformance import verify as compare
from purine_ref.data import BatchOrder, load_digits
from purine_ref.models import MODELS, training_graph
from purine_ref.operation import Array
from purine_ref.optim import RATE

DEFAULT_MODELS = ("nin-digits", "lenet-digits")
DEFAULT_SCHEMES = ("threads:1", "threads:2", "threads:4", "threads:8")
DTYPES = ("float64", "float32")
LEARNING_RATE = 0.05

EPILOG = """\b
Examples:
  purine-ref verify
  purine-ref verify --model mlp-digits --scheme threads:3 --dtype float32 --steps 100
  purine-ref verify --json report.json
"""


def parse_schemes(_: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> list[Scheme]:
    """The schemes as written, such as `threads:4`. Raises BadParameter, with what is accepted, for another."""
    try:
        return [parse_scheme(text) for text in texts]
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from None


@click.command(epilog=EPILOG)
@click.option("--model", "models", type=click.Choice(list(MODELS)), multiple=True, default=DEFAULT_MODELS,
              show_default=True, help="Repeatable.")  # fmt: skip
@click.option("--scheme", "schemes", metavar="SCHEME", callback=parse_schemes, multiple=True, default=DEFAULT_SCHEMES,
              show_default=True, help=f"Repeatable; one of {', '.join(scheme_forms())}.")  # fmt: skip
@click.option("--dtype", "dtypes", type=click.Choice(DTYPES), multiple=True, default=DTYPES, show_default=True,
              help="Repeatable.")  # fmt: skip
@click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True, help="Update steps.")
@click.option("--batch", type=click.IntRange(min=1), default=32, show_default=True, help="Images in a batch.")
@seed_option
@json_option
def verify(
    models: Sequence[str],
    schemes: Sequence[Scheme],
    dtypes: Sequence[str],
    steps: int,
    batch: int,
    seed: int,
    json_file: str | None,
) -> int:
    """Compare schemes with the serial executor, bit for bit.

    Trains each model on the embedded digits under every scheme, in lock step with the serial executor, and compares
    all tensors after every update: outputs, gradients, histories, and parameters.
    """
    start = time.perf_counter()
    console = output(json_file)
    rows: list[Comparison] = []
    with progress_bar(console) as bar:
        task = bar.add_task("verify", total=len(models) * len(dtypes) * len(schemes) * steps, note="")

        def progress(row: Comparison) -> None:
            bar.update(task, advance=1, note=f"{row.model} {row.dtype} {row.scheme}")

        for model in models:
            for dtype in dtypes:
                rows += compare(workload(model, dtype, batch, steps, seed), schemes, seed, progress)
    verdict = _verdict(rows)
    _print(console, rows, verdict)
    facts = {
        "executed": sum(1 for row in rows if row.compared),
        "skipped": sum(1 for row in rows if not row.compared),
        "seconds": time.perf_counter() - start,
        "seed": seed,
        "steps": steps,
        "batch": batch,
        "schemes": [_as_json(row) for row in rows],
    }
    write_json(json_file, "verify", verdict, facts)
    return CODES[verdict]


def workload(model: str, dtype: str, batch: int, steps: int, seed: int) -> Workload:
    """Training steps of `model`: on the digits where its images are 8x8, else on images drawn from the seed."""
    graph = training_graph(model, batch, dtype)
    rate = np.array(LEARNING_RATE, dtype)
    if graph["x"].shape[1:] != (1, 8, 8):
        return Workload(model, dtype, graph, lambda step: {**_drawn(graph, seed, step), RATE: rate}, steps)
    data = load_digits(dtype)
    images = len(data.train_images)
    if batch > images:
        raise click.BadParameter(f"there are {images} training images, got {batch}", param_hint="--batch")
    order = BatchOrder(images, batch, seed, drop_last=True)

    def feeds(step: int) -> dict[str, Array]:
        indices = order.batch_indices(*order.place(step))
        fed = {"x": data.train_images[indices], "label": data.train_labels[indices], RATE: rate}
        return {name: array for name, array in fed.items() if name in graph}

    return Workload(model, dtype, graph, feeds, steps)


def _drawn(graph: Any, seed: int, step: int) -> dict[str, Array]:
    rng = np.random.default_rng([seed, step])
    x, label = graph["x"], graph["label"]
    return {
        "x": rng.standard_normal(x.shape).astype(x.dtype),
        "label": rng.integers(0, 10, label.shape),
    }


def _verdict(rows: Sequence[Comparison]) -> str:
    verdicts = {row.verdict for row in rows}
    return "fail" if "fail" in verdicts else "pass" if verdicts == {"pass"} else "unknown"


def _print(console: Console, rows: Sequence[Comparison], verdict: str) -> None:
    table = Table(title="each scheme against the serial executor")
    for name, justify in (
        ("scheme", "left"),
        ("model", "left"),
        ("dtype", "left"),
        ("operators run", "right"),
        ("tensors compared", "right"),
        ("differing bits", "right"),
        ("seconds", "right"),
        ("verdict", "left"),
    ):
        table.add_column(name, justify=justify, no_wrap=justify == "left")  # type: ignore[arg-type]
    for row in rows:
        counts = (f"{row.operators:,}", f"{row.compared:,}", f"{row.differing:,}", f"{row.seconds:.2f}")
        table.add_row(row.scheme, row.model, row.dtype, *counts, row.verdict)
    console.print(table)
    for row in rows:
        if row.first is not None:
            console.print(f"{row.scheme} {row.model} {row.dtype}: first difference: {row.first}", soft_wrap=True)
    console.print(f"verdict: {verdict}")


def _as_json(row: Comparison) -> dict[str, Any]:
    return {
        "scheme": row.scheme,
        "model": row.model,
        "dtype": row.dtype,
        "exact": row.exact,
        "operators": row.operators,
        "compared": row.compared,
        "differing": row.differing,
        "max_error_over_bound": row.max_error_over_bound,
        "verdict": row.verdict,
        "seconds": row.seconds,
        "first_difference": row.first,
    }
