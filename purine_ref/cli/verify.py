"""`purine-ref verify`: the main job."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from purine_ref.cli.report import CODES, json_option, output, progress_bar, seed_option, write_json
from purine_ref.conformance import (
    Comparison,
    Scheme,
    exact_workload,
    parse_scheme,
    place_names,
    scheme_forms,
    training_workload,
)
from purine_ref.conformance import verify as compare
from purine_ref.models import MODELS

DEFAULT_MODELS = ("nin-digits", "lenet-digits")
DTYPES = ("float64", "float32")
STEPS = 20

THREADS = ("threads:1", "threads:2", "threads:4", "threads:8")
DIVIDED = (
    "data:2",
    "data:3,server",
    "data:3,tree",
    "data:3,ring",
    "model:2",
    "pipeline:2x4",
    "hybrid:2x2",
    "data:2/pipeline:2x3",
)
PLACES = ("virtual", "ranks")

EPILOG = """\b
Examples:
  purine-ref verify
  purine-ref verify --model mlp-digits --scheme threads:3 --dtype float32 --steps 100
  purine-ref verify --model nin-digits --scheme data:3,ring@ranks --scheme pipeline:2x4@virtual
  purine-ref verify --model lenet-digits --scheme data:2/model:2@virtual --exact
  purine-ref verify --json report.json
"""


@dataclass(frozen=True, slots=True)
class Job:
    """One workload under some schemes."""

    model: str
    dtype: str
    schemes: tuple[Scheme, ...]
    steps: int
    exact: bool = False


def parse_schemes(_: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> list[Scheme]:
    """The schemes as written, such as `threads:4`. Raises BadParameter, with what is accepted, for another."""
    try:
        return [parse_scheme(text) for text in texts]
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from None


@click.command(epilog=EPILOG)
@click.option("--model", "models", type=click.Choice(list(MODELS)), multiple=True,
              help=f"Repeatable; by default {' and '.join(DEFAULT_MODELS)}.")  # fmt: skip
@click.option("--scheme", "schemes", metavar="SCHEME", callback=parse_schemes, multiple=True,
              help=f"Repeatable; {', '.join(scheme_forms())}, joined by /, the outermost first, and a place: "
                   f"{', '.join('@' + name for name in place_names())}. By default all of them.")  # fmt: skip
@click.option("--dtype", "dtypes", type=click.Choice(DTYPES), multiple=True, help="Repeatable; by default both.")
@click.option("--steps", type=click.IntRange(min=1), help=f"Update steps; by default {STEPS}, fewer where divided.")
@click.option("--batch", type=click.IntRange(min=1), default=32, show_default=True, help="Images in a batch.")
@click.option("--exact", is_flag=True, help="Run the exact form of each model, where every bit must agree.")
@seed_option
@json_option
def verify(
    models: Sequence[str],
    schemes: Sequence[Scheme],
    dtypes: Sequence[str],
    steps: int | None,
    batch: int,
    exact: bool,
    seed: int,
    json_file: str | None,
) -> int:
    """Compare parallel schemes with the serial executor.

    Trains each model on the embedded digits under every scheme, in lock step with the serial executor, and compares
    all tensors after every update: outputs, gradients, histories, and parameters. Where sums keep their order, and in
    exact mode, every bit must agree; elsewhere errors must stay within a bound that is derived, not chosen.
    """
    start = time.perf_counter()
    console = output(json_file)
    rows: list[Comparison] = []
    planned = jobs(models, schemes, dtypes, steps, exact)
    with progress_bar(console) as bar:
        task = bar.add_task("verify", total=sum(len(job.schemes) * job.steps for job in planned), note="")

        def progress(row: Comparison) -> None:
            """Advance the bar by one scheme's step."""
            bar.update(task, advance=1, note=f"{row.model} {row.dtype} {row.scheme}")

        for job in planned:
            rows += run(job, batch, seed, progress)
    verdict = _verdict(rows)
    _print(console, rows, verdict)
    facts = {
        "executed": sum(1 for row in rows if row.compared),
        "skipped": sum(1 for row in rows if not row.compared),
        "seconds": time.perf_counter() - start,
        "seed": seed,
        "batch": batch,
        "schemes": [_as_json(row) for row in rows],
    }
    write_json(json_file, "verify", verdict, facts)
    return CODES[verdict]


def jobs(
    models: Sequence[str], schemes: Sequence[Scheme], dtypes: Sequence[str], steps: int | None, exact: bool
) -> list[Job]:
    """What to run. Without any wish: threads on two models, then every divided scheme on one, then its exact form."""
    if schemes or exact:
        wanted = tuple(schemes or divided())
        count = steps or (STEPS if all(not scheme.divides for scheme in wanted) and not exact else 4)
        kinds = dtypes or (("float64",) if exact else DTYPES)
        return [Job(model, dtype, wanted, count, exact) for model in models or DEFAULT_MODELS for dtype in kinds]
    threads = tuple(parse_scheme(text) for text in THREADS)
    planned = [Job(m, d, threads, steps or STEPS) for m in models or DEFAULT_MODELS for d in dtypes or DTYPES]
    for model in models or DEFAULT_MODELS[:1]:
        planned.append(Job(model, (dtypes or ("float32",))[0], divided(), steps or 4))
        planned.append(Job(model, "float64", divided(), steps or 3, exact=True))
    return planned


def divided() -> tuple[Scheme, ...]:
    """Every divided scheme, at each place."""
    return tuple(parse_scheme(f"{text}@{place}") for text in DIVIDED for place in PLACES)


def run(job: Job, batch: int, seed: int, progress: Callable[[Comparison], None]) -> list[Comparison]:
    """Compare one job's schemes. Raises BadParameter for a batch that is too large."""
    make = exact_workload if job.exact else training_workload
    try:
        workload = make(job.model, job.dtype, batch, job.steps, seed)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--batch") from None
    return compare(workload, job.schemes, seed, progress)


def _verdict(rows: Sequence[Comparison]) -> str:
    verdicts = {row.verdict for row in rows}
    return "fail" if "fail" in verdicts else "pass" if verdicts == {"pass"} else "unknown"


MUST = {
    "bits": "every bit must agree",
    "bound": "errors must stay within their bounds",
    "exact": "exact form, every bit must agree",
}
"""What is demanded of a comparison, by its mode."""


def _print(console: Console, rows: Sequence[Comparison], verdict: str) -> None:
    """A table for each model, dtype and demand; then what was found, and the verdict."""
    for (model, dtype, mode), group in itertools.groupby(rows, lambda row: (row.model, row.dtype, row.mode)):
        table = Table(title=f"{model}, {dtype}: {MUST[mode]}", title_justify="left")
        table.add_column("scheme", no_wrap=True)
        for name in ("operators run", "tensors compared", "differing bits"):
            table.add_column(name, justify="right")
        for name in ("error / bound", "kinks") if mode == "bound" else ():
            table.add_column(name, justify="right")
        table.add_column("seconds", justify="right")
        table.add_column("verdict", no_wrap=True)
        for row in group:
            table.add_row(*_cells(row))
        console.print(table)
    for row in rows:
        if row.first is not None:
            console.print(f"{row.scheme} {row.model} {row.dtype}: first difference: {row.first}", soft_wrap=True)
    console.print(f"verdict: {verdict}")


def _cells(row: Comparison) -> list[str]:
    cells = [row.scheme, f"{row.operators:,}", f"{row.compared:,}", f"{row.differing:,}"]
    if row.bounded:
        cells += ["-" if row.ratio is None else f"{row.ratio:.3f}", f"{row.kinks:,}"]
    return [*cells, f"{row.seconds:.2f}", row.verdict]


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
        "kinks": row.kinks,
        "unknown": row.unknown,
        "first_difference": row.first,
    }
