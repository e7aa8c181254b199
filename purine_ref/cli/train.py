"""`purine-ref train`: train, evaluate, snapshot, resume."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, TaskID

from purine_ref import snapshot as snapshots
from purine_ref.cli.report import (
    CODES,
    json_option,
    kernels_option,
    number,
    output,
    output_file,
    progress_bar,
    seed_option,
    write_json,
)
from purine_ref.devices import kernel_set
from purine_ref.training import DEFAULTS, Evaluation, Settings, Step, Trainer

EPILOG = """\b
Examples:
  purine-ref train --model lenet-digits
  purine-ref train --model nin-digits --epochs 5 --save nin.npz
  purine-ref train --model nin-digits --epochs 40 --resume nin.npz --save nin.npz
"""


@click.command(epilog=EPILOG)
@click.option("--model", type=click.Choice(list(DEFAULTS)), default="lenet-digits", show_default=True)
@click.option("--epochs", type=click.IntRange(min=1), help="Passes over the images, for each stage.")
@click.option("--batch", type=click.IntRange(min=1), help="Images in a batch.")
@click.option("--lr", type=float, help="Learning rate.")
@click.option("--threads", type=click.IntRange(1, 1024), help="CPU workers; they do not change the result.")
@click.option("--dtype", type=click.Choice(["float32", "float64"]))
@output_file("--save", help="Write a snapshot there after every epoch and at the end.")
@click.option("--resume", type=click.Path(exists=True, dir_okay=False), help="Go on from that snapshot.")
@kernels_option
@seed_option
@json_option
def train(
    model: str, save: str | None, resume: str | None, json_file: str | None, **options: Any
) -> int:
    """Train a network on the embedded handwritten digits, and evaluate it on the held-out part.

    A resumed run gives the very bits of a run that never stopped. The autoencoder is trained layer by layer, then as a
    whole.
    """
    start = time.perf_counter()
    settings = replace(DEFAULTS[model], **{name: value for name, value in options.items() if value is not None})
    if not (math.isfinite(settings.lr) and settings.lr > 0):
        raise click.BadParameter(f"must be a number above 0, got {settings.lr}", param_hint="--lr")
    console = output(json_file)
    snapshot = None if resume is None else snapshots.load(resume)
    with Trainer(settings, snapshot) as trainer, progress_bar(console) as bar:
        task = bar.add_task(model, total=trainer.total, completed=trainer.position.iteration, note="")
        before = trainer.position.iteration
        history = _train(trainer, bar, task, save, console)
        result = trainer.evaluate()
        executed = trainer.position.iteration - before
    verdict = "unknown" if not executed else "pass" if math.isfinite(result.loss) else "fail"
    console.print(f"{settings.model}: {executed} iterations, {_note('held-out', *_pair(result))}")
    console.print(f"verdict: {verdict}")
    facts = _facts(settings, result, executed, history, time.perf_counter() - start)
    write_json(json_file, "train", verdict, facts)
    return CODES[verdict]


def _train(
    trainer: Trainer, bar: Progress, task: TaskID, save: str | None, console: Console
) -> list[dict[str, Any]]:
    """Train to the end; returns the held-out loss and accuracy after each epoch."""
    history: list[dict[str, Any]] = []
    for step in trainer.steps():
        bar.update(task, advance=1, note=_note(step.stage, step.loss, step.accuracy))
        if trainer.position.batch == 0:
            result = trainer.evaluate()
            history.append(_epoch(step, result))
            console.print(f"{step.stage}, epoch {step.position.epoch + 1}: {_note('held-out', *_pair(result))}")
            if save is not None:
                snapshots.save(save, trainer.snapshot())
    if save is not None:
        snapshots.save(save, trainer.snapshot())
        console.print(f"saved {save}", soft_wrap=True)
    return history


def _pair(result: Evaluation) -> tuple[float, float | None]:
    return result.loss, result.accuracy


def _note(name: str, loss: float, accuracy: float | None) -> str:
    return f"{name} loss {loss:.4f}" + ("" if accuracy is None else f" accuracy {accuracy:.2%}")


def _epoch(step: Step, result: Evaluation) -> dict[str, Any]:
    facts = {"loss": number(result.loss), "accuracy": number(result.accuracy)}
    return {"stage": step.stage, "epoch": step.position.epoch + 1, **facts}


def _facts(
    settings: Settings, result: Evaluation, executed: int, history: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    return {
        "executed": executed,
        "skipped": 0,
        "seconds": seconds,
        "model": settings.model,
        "epochs": settings.epochs,
        "accuracy": number(result.accuracy),
        "loss": number(result.loss),
        "seed": settings.seed,
        "batch": settings.batch,
        "lr": settings.lr,
        "dtype": settings.dtype,
        "threads": settings.threads,
        "kernels": kernel_set(),
        "history": history,
    }
