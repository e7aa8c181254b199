"""`purine-ref train`: train, evaluate, snapshot, resume."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, TaskID

from purine_ref import snapshot as snapshots
from purine_ref.cli.ranked import RankedCommand, relaunched
from purine_ref.cli.report import (
    CODES,
    json_option,
    kernels_option,
    number,
    output,
    output_file,
    progress_bar,
    reports,
    seed_option,
    write_json,
)
from purine_ref.conformance import parse_scheme, place_names, scheme_forms
from purine_ref.devices import kernel_set
from purine_ref.errors import ResultDiffers
from purine_ref.snapshot import Snapshot
from purine_ref.training import DEFAULTS, Evaluation, Replicas, Settings, Step, Trainer, require_scheme
from purine_ref.transports import current
from purine_ref.transports.announcing import Announcements

EPILOG = """\b
Examples:
  purine-ref train --model lenet-digits
  purine-ref train --model nin-digits --epochs 5 --save nin.npz
  purine-ref train --model nin-digits --epochs 40 --resume nin.npz --save nin.npz
  purine-ref train --scheme data:3@hosts:3 --iterations 50
  purine-ref launch --hosts 2 -- train --scheme 'data:*@hosts' --resume nin.npz --model nin-digits
"""

RANKS = "*"
"""What stands in a scheme for the number of ranks."""


def scheme_text(_: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """A scheme as written. Raises BadParameter, with what is accepted, for what is none to train under."""
    try:
        if text is not None:
            require_scheme(text.replace(RANKS, "1"))
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from None
    return text


def planned(text: str) -> str:
    """The scheme with the number of ranks that joined for each `RANKS`. Raises UsageError where there is no world."""
    world = current()
    if world is None and RANKS in text:
        raise click.UsageError(
            f"--scheme {text!r}: {RANKS} is the number of ranks, and there are none: start them with "
            "`purine-ref launch --hosts N -- ...`, or write a number"
        )
    return text if world is None else text.replace(RANKS, str(world.size))


def existing(_: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    """A path to a file. Raises BadParameter where it is not there for rank 0, which reads it for all."""
    if path is not None and reports() and not Path(path).is_file():
        raise click.BadParameter(f"File {path!r} does not exist.", param=parameter)
    return path


@click.command(cls=RankedCommand, epilog=EPILOG)
@click.option("--model", type=click.Choice(list(DEFAULTS)), default="lenet-digits", show_default=True)
@click.option("--epochs", type=click.IntRange(min=1), help="Passes over the images, for each stage.")
@click.option("--iterations", type=click.IntRange(min=1), help="Stop after so many iterations of this run.")
@click.option("--scheme", metavar="SCHEME", callback=scheme_text,
              help=f"Divide the training: {', '.join(scheme_forms())}, joined by /, the outermost first, and a place: "
                   f"{', '.join('@' + name for name in place_names())}; {RANKS} is the number of hosts.")  # fmt: skip
@click.option("--batch", type=click.IntRange(min=1), help="Images in a batch.")
@click.option("--lr", type=float, help="Learning rate.")
@click.option("--threads", type=click.IntRange(1, 1024), help="CPU workers, of each rank; they change no result.")
@click.option("--dtype", type=click.Choice(["float32", "float64"]))
@output_file("--save", help="Write a snapshot there after every epoch and at the end.")
@click.option("--resume", callback=existing, help="Go on from that snapshot, under this or another scheme.")
@kernels_option
@seed_option
@json_option
def train(
    model: str, iterations: int | None, save: str | None, resume: str | None, json_file: str | None, **options: Any
) -> int:
    """Train a network on the embedded handwritten digits, and evaluate it on the held-out part.

    A resumed run gives the very bits of a run that never stopped; under another scheme, sums are added in another
    order. The autoencoder is trained layer by layer, then as a whole. A scheme @hosts:N runs on N processes of this
    machine, unless the command was launched on ranks already; rank 0 reads and writes the snapshots.
    """
    start = time.perf_counter()
    settings = replace(DEFAULTS[model], **{name: value for name, value in options.items() if value is not None})
    if not (math.isfinite(settings.lr) and settings.lr > 0):
        raise click.BadParameter(f"must be a number above 0, got {settings.lr}", param_hint="--lr")
    if settings.scheme is not None:
        if (code := relaunched([parse_scheme(settings.scheme.replace(RANKS, "1"))])) is not None:
            return code
        settings = replace(settings, scheme=planned(settings.scheme))
    console = output(json_file)
    alike = replace(settings, threads=1), kernel_set(), iterations, save is None, resume is None
    with Announcements(current(), "train", alike) as files:
        snapshot = None if resume is None else _load(files, resume)
        with Trainer(settings, snapshot) as trainer, progress_bar(console) as bar:
            before = trainer.position.iteration
            last = trainer.total if iterations is None else min(trainer.total, before + iterations)
            task = bar.add_task(model, total=last, completed=before, note="")
            history = _train(trainer, iterations, bar, task, partial(_save, files, save), console)
            result = trainer.evaluate()
            replicas = trainer.replicas()
            executed = trainer.position.iteration - before
    sound = math.isfinite(result.loss) and not replicas.differing
    verdict = "unknown" if not executed else "pass" if sound else "fail"
    console.print(f"{settings.model}: {executed} iterations, {_note('held-out', *_pair(result))}")
    if replicas.compared:
        console.print(f"replicas: {replicas.compared} compared, {replicas.differing} differ")
    console.print(f"verdict: {verdict}")
    facts = _facts(settings, result, replicas, history)
    facts |= {"executed": executed, "skipped": 0, "seconds": time.perf_counter() - start, "iterations": iterations}
    write_json(json_file, "train", verdict, facts)
    return CODES[verdict]


def _train(
    trainer: Trainer,
    iterations: int | None,
    bar: Progress,
    task: TaskID,
    save: Callable[[Trainer, Console | None], None],
    console: Console,
) -> list[dict[str, Any]]:
    """Train to the end, or until replicas differ; returns the held-out loss and accuracy after each epoch."""
    history: list[dict[str, Any]] = []
    try:
        for step in islice(trainer.steps(), iterations):
            bar.update(task, advance=1, note=_note(step.stage, step.loss, step.accuracy))
            if trainer.position.batch == 0:
                result = trainer.evaluate()
                history.append(_epoch(step, result))
                console.print(f"{step.stage}, epoch {step.position.epoch + 1}: {_note('held-out', *_pair(result))}")
                save(trainer, None)
        save(trainer, console)
    except ResultDiffers as error:  # the snapshot before it stays
        click.echo(f"error: {error}", err=True)
    return history


def _load(files: Announcements, path: str) -> Snapshot:
    """The snapshot in rank 0's file."""
    return snapshots.read(io.BytesIO(files.from_first(Path(path).read_bytes)), path)


def _save(files: Announcements, path: str | None, trainer: Trainer, console: Console | None) -> None:
    """Save a snapshot as rank 0's file, if there is a path; returns, on every rank, when it is on the disk."""
    if path is None:
        return
    snapshot = trainer.snapshot()

    def write() -> bytes:
        """Write the file; there is nothing to tell."""
        snapshots.save(path, snapshot)
        return b""

    files.from_first(write)
    if console is not None:
        console.print(f"saved {path}", soft_wrap=True)


def _pair(result: Evaluation) -> tuple[float, float | None]:
    return result.loss, result.accuracy


def _note(name: str, loss: float, accuracy: float | None) -> str:
    return f"{name} loss {loss:.4f}" + ("" if accuracy is None else f" accuracy {accuracy:.2%}")


def _epoch(step: Step, result: Evaluation) -> dict[str, Any]:
    facts = {"loss": number(result.loss), "accuracy": number(result.accuracy)}
    return {"stage": step.stage, "epoch": step.position.epoch + 1, **facts}


def _facts(settings: Settings, result: Evaluation, replicas: Replicas, history: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "model": settings.model,
        "epochs": settings.epochs,
        "accuracy": number(result.accuracy),
        "loss": number(result.loss),
        "seed": settings.seed,
        "batch": settings.batch,
        "lr": settings.lr,
        "dtype": settings.dtype,
        "threads": settings.threads,
        "scheme": settings.scheme,
        "replicas": {"compared": replicas.compared, "differing": replicas.differing},
        "kernels": kernel_set(),
        "history": history,
    }
