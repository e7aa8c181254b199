"""`purine-ref verify`: the main job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from purine_ref.cli import exploring
from purine_ref.cli.comparisons import as_json, overall, print_comparisons
from purine_ref.cli.jobs import (
    DEFAULT_MODELS,
    DTYPES,
    STEPS,
    Job,
    Wishes,
    replay_jobs,
    require_fit,
    require_recordable,
    run,
    run_recorded,
)
from purine_ref.cli.ranked import RankedCommand, relaunched
from purine_ref.cli.report import (
    CODES,
    json_option,
    kernels_option,
    output,
    output_file,
    progress_bar,
    seed_option,
    write_json,
    write_text,
)
from purine_ref.conformance import (
    Comparison,
    Recorded,
    Scheme,
    is_recording,
    load_recording,
    parse_scheme,
    place_names,
    recording_text,
    replay_failure,
    scheme_forms,
)
from purine_ref.devices import kernel_set
from purine_ref.models import MODELS

EPILOG = """\b
Examples:
  purine-ref verify
  purine-ref verify --model mlp-digits --scheme threads:3 --dtype float32 --steps 100
  purine-ref verify --model nin-digits --scheme data:3,ring@ranks --scheme pipeline:2x4@virtual
  purine-ref verify --model lenet-digits --scheme data:2/model:2@virtual --exact
  purine-ref verify --scheme data:2@hosts:2 --scheme pipeline:2x4@hosts:2
  purine-ref verify --scheme threads:4 --record schedule.json
  purine-ref verify --replay schedule.json
  purine-ref verify --explore --scheme data:2 --scheme pipeline:2x2@virtual
"""


def parse_schemes(_: click.Context, parameter: click.Parameter, texts: Sequence[str]) -> list[Scheme]:
    """The schemes as written, such as `threads:4`. Raises BadParameter, with what is accepted, for another."""
    try:
        return [parse_scheme(text) for text in texts]
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from None


@click.command(cls=RankedCommand, epilog=EPILOG)
@click.option("--model", "models", type=click.Choice(list(MODELS)), multiple=True,
              help=f"Repeatable; by default {' and '.join(DEFAULT_MODELS)}.")  # fmt: skip
@click.option("--scheme", "schemes", metavar="SCHEME", callback=parse_schemes, multiple=True,
              help=f"Repeatable; {', '.join(scheme_forms())}, joined by /, the outermost first, and a place: "
                   f"{', '.join('@' + name for name in place_names())}. By default all of them.")  # fmt: skip
@click.option("--dtype", "dtypes", type=click.Choice(DTYPES), multiple=True, help="Repeatable; by default both.")
@click.option("--steps", type=click.IntRange(min=1), help=f"Update steps; by default {STEPS}, fewer where divided.")
@click.option("--batch", type=click.IntRange(min=1), default=32, show_default=True, help="Images in a batch.")
@click.option("--exact", is_flag=True, help="Run the exact form of each model, where every bit must agree.")
@output_file("--record", "record", help="Write the schedule of each scheme's first step there.")
@click.option("--replay", type=click.Path(exists=True, dir_okay=False),
              help="Run what that file holds: recorded schedules, or a failing example.")  # fmt: skip
@click.option("--explore", is_flag=True,
              help="Run all schedules that could differ of small networks, or of a --model.")  # fmt: skip
@kernels_option
@seed_option
@json_option
def verify(record: str | None, replay: str | None, explore: bool, json_file: str | None, **wishes: Any) -> int:
    """Compare parallel schemes with the serial executor.

    Trains each model on the embedded digits under every scheme, in lock step with the serial executor, and compares
    all tensors after every update: outputs, gradients, histories, and parameters. Where sums keep their order, and in
    exact mode, every bit must agree; elsewhere errors must stay within a bound that is derived, not chosen. Schemes
    @hosts:N run on N processes of this machine, unless the command was launched on so many ranks already; then all
    divided schemes are @hosts where none is named.
    """
    start = time.perf_counter()
    console = output(json_file)
    if record is not None:
        require_recordable(wishes["schemes"])
    if (code := relaunched(wishes["schemes"])) is not None:
        return code
    if explore:
        exact = wishes.pop("exact")
        if exact or record is not None or replay is not None:
            raise click.UsageError("--explore goes with none of --record, --replay and --exact")
        return _explore(console, json_file, start, wishes)
    if replay is not None and not is_recording(Path(replay)):
        return _replay_failure(console, Path(replay), json_file, start)
    planned = Wishes(**wishes).jobs() if replay is None else replay_jobs(load_recording(Path(replay)))
    if (code := relaunched(scheme for job in planned for scheme in job.schemes)) is not None:
        return code  # a record may be of a scheme on hosts
    require_fit(planned)
    rows, records = _run(console, planned, record is not None)
    if record is not None:
        write_text(record, recording_text(records))
    verdict = overall(rows)
    print_comparisons(console, rows, verdict)
    facts = {
        "executed": sum(1 for row in rows if row.compared),
        "skipped": sum(1 for row in rows if not row.compared),
        "seconds": time.perf_counter() - start,
        "seed": wishes["seed"],
        "batch": wishes["batch"],
        "kernels": kernel_set(),
        "schemes": [as_json(row) for row in rows],
    }
    write_json(json_file, "verify", verdict, facts)
    return CODES[verdict]


def _run(console: Console, jobs: Sequence[Job], recording: bool) -> tuple[list[Comparison], list[Recorded]]:
    """Run all jobs behind a progress bar."""
    rows: list[Comparison] = []
    records: list[Recorded] = []
    with progress_bar(console) as bar:
        task = bar.add_task("verify", total=sum(job.total for job in jobs), note="")

        def progress(row: Comparison) -> None:
            """Advance the bar by one scheme's step."""
            bar.update(task, advance=1, note=f"{row.model} {row.dtype} {row.scheme}")

        for job in jobs:
            compared, recorded = run_recorded(job, progress) if recording else (run(job, progress), [])
            rows += compared
            records += recorded
    return rows, records


def _explore(console: Console, json_file: str | None, start: float, wishes: dict[str, Any]) -> int:
    """Explore the schedules of what is wished for."""
    try:
        rows = list(exploring.explored(**wishes))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--batch") from None
    verdict = exploring.verdict_of(rows)
    exploring.print_explored(console, rows, verdict)
    facts = {
        "executed": len(rows),
        "skipped": 0,
        "seconds": time.perf_counter() - start,
        "seed": wishes["seed"],
        "schemes": [],
        "explorations": [exploring.as_json(row) for row in rows],
    }
    write_json(json_file, "verify", verdict, facts)
    return CODES[verdict]


def _replay_failure(console: Console, path: Path, json_file: str | None, start: float) -> int:
    """Check the example of a failure's file again."""
    verdict = replay_failure(path)
    console.print(f"{path}: {verdict.kind}" + (f": {verdict.reason}" if verdict.reason else ""), soft_wrap=True)
    if verdict.difference is not None:
        console.print(f"first difference: {verdict.difference}", soft_wrap=True)
    console.print(f"verdict: {verdict.outcome}")
    facts = {"executed": verdict.compared, "skipped": 0, "seconds": time.perf_counter() - start, "kind": verdict.kind}
    write_json(json_file, "verify", verdict.outcome, {**facts, "schemes": []})
    return CODES[verdict.outcome]
