"""Short training runs, and what they leave, to the bit, for tests to compare."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

from purine_ref.data import Dataset, load_digits
from purine_ref.snapshot import Snapshot
from purine_ref.training import DEFAULTS, Settings, Step, Trainer

SAMPLES, BATCH = 55, 16
"""Of the digits, few enough to train in a moment; the last batch of an epoch has 7."""


def few_digits(dtype: str = "float32") -> Dataset:
    """The first `SAMPLES` training and the first 20 test images."""
    data = load_digits(dtype)
    return Dataset(
        data.train_images[:SAMPLES], data.train_labels[:SAMPLES], data.test_images[:20], data.test_labels[:20]
    )


def small(model: str = "mlp-digits", **changes: Any) -> Settings:
    """Settings of a short run on `few_digits`."""
    return replace(DEFAULTS[model], **{"epochs": 3, "batch": BATCH, "seed": 5, **changes})


def trainer(settings: Settings, snapshot: Snapshot | None = None) -> Trainer:
    """A trainer on `few_digits`."""
    return Trainer(settings, snapshot, few_digits(settings.dtype))


def bits(snapshot: Snapshot) -> dict[str, Any]:
    """Everything in a snapshot, comparable to the bit."""
    arrays = {name: (a.dtype.name, a.shape, a.tobytes()) for name, a in snapshot.arrays.items()}
    return {"arrays": arrays, "extra": snapshot.extra, "at": (snapshot.iteration, snapshot.epoch, snapshot.position)}


def trained(settings: Settings, snapshot: Snapshot | None = None) -> tuple[list[Step], dict[str, Any]]:
    """Train to the end; all steps, and the bits of the last snapshot."""
    with trainer(settings, snapshot) as run:
        steps = list(run.steps())
        return steps, bits(run.snapshot())


def stopped(settings: Settings, after: int, snapshot: Snapshot | None = None) -> Snapshot:
    """The snapshot after so many iterations."""
    with trainer(settings, snapshot) as run:
        list(islice(run.steps(), after))
        return run.snapshot()
