"""Training: that a resumed run gives the same bits, that threads and evaluations change none, and that it learns."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from purine_ref.data import Dataset
from purine_ref.errors import GraphError, Refused
from purine_ref.executors import base
from purine_ref.snapshot import load, save
from purine_ref.training import DEFAULTS, Position, Settings, Step, Trainer
from purine_ref.training import trainer as trainer_module
from training_runs import SAMPLES, bits, few_digits, small, stopped, trained, trainer


@pytest.mark.parametrize("model", list(DEFAULTS))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dp_06_a_resumed_run_gives_the_bits_of_a_straight_one(model: str, dtype: str, tmp_path: Path) -> None:
    """DP-06: stopped within an epoch, through a file: losses, weights, histories, masks, and the place in the data."""
    settings = small(model, dtype=dtype)
    steps, want = trained(settings)
    after = len(steps) // 2 + 1
    assert steps[after].position.batch % 4 != 0
    save(tmp_path / "half.npz", stopped(settings, after))
    rest, got = trained(settings, load(tmp_path / "half.npz"))
    assert rest == steps[after:]
    assert got == want


AUTOENCODER = small("autoencoder-digits", epochs=2)


@pytest.fixture(scope="module")
def straight() -> tuple[list[Step], dict[str, Any]]:
    """A run of `AUTOENCODER` that never stopped: four stages of two epochs of four batches."""
    return trained(AUTOENCODER)


@pytest.mark.parametrize("after", [0, 1, 4, 7, 8, 9, 15, 16, 24, 30, 32])
def test_dp_06_wherever_it_was_stopped(after: int, straight: tuple[list[Step], dict[str, Any]]) -> None:
    """DP-06: before the first and after the last iteration, and at the ends of epochs and of stages."""
    steps, want = straight
    assert len(steps) == 32
    rest, got = trained(AUTOENCODER, stopped(AUTOENCODER, after))
    assert rest == steps[after:]
    assert got == want


def test_a_finished_run_goes_on_for_more_epochs() -> None:
    short, long = small("nin-digits", epochs=2), small("nin-digits", epochs=5)
    steps, want = trained(long)
    rest, got = trained(long, stopped(short, len(steps)))
    assert rest == steps[8:]
    assert got == want


@pytest.mark.parametrize("model", list(DEFAULTS))
def test_r8_threads_change_no_bit(model: str) -> None:
    serial = trained(small(model, threads=1))
    assert trained(small(model, threads=4)) == serial


def test_r8_shared_memory_and_fused_operators_change_no_bit() -> None:
    settings = small("nin-digits", epochs=1)
    want = trained(settings)
    with (
        mock.patch.object(trainer_module, "fuse", lambda graph, keep: graph),
        mock.patch.object(base, "share_memory", lambda plan, keep: plan),
    ):
        assert trained(settings) == want


def test_dp_09_evaluations_do_not_shift_the_masks() -> None:
    """DP-09: three forward runs in the testing form before each step change nothing."""
    settings = small("nin-digits")
    steps, want = trained(settings)
    with trainer(settings) as run:
        got: list[Step] = []
        todo = run.steps()
        for _ in range(len(steps)):
            assert len({run.evaluate() for _ in range(3)}) == 1
            got.append(next(todo))
        assert got == steps
        assert bits(run.snapshot()) == want


def test_evaluation_changes_nothing_that_is_kept() -> None:
    with trainer(small("nin-digits")) as run:
        list(islice(run.steps(), 5))
        before = bits(run.snapshot())
        run.evaluate()
        assert bits(run.snapshot()) == before


def test_the_last_batch_of_an_epoch_may_be_smaller() -> None:
    """Every image is seen once an epoch, and the loss of the small batch is the mean over its own 7 images."""
    settings = small(epochs=2)
    data = few_digits()
    with trainer(settings) as run:
        seen: list[int] = []
        places = []
        for step in run.steps():
            places.append((step.position.epoch, step.position.batch))
            seen += run.order.batch_indices(step.position.epoch, step.position.batch).tolist()
        assert run.total == 8
    assert places == [(epoch, batch) for epoch in range(2) for batch in range(4)]
    assert [len(run.order.batch_indices(0, batch)) for batch in range(4)] == [16, 16, 16, 7]
    assert sorted(seen[:SAMPLES]) == sorted(seen[SAMPLES:]) == list(range(SAMPLES))
    assert seen[:SAMPLES] != seen[SAMPLES:]
    assert last_loss(settings, data) == one_batch_loss(settings, data)


def last_loss(settings: Settings, data: Dataset) -> float:
    """The loss of the small batch, the fourth."""
    with Trainer(settings, None, data) as run:
        return list(islice(run.steps(), 4))[-1].loss


def one_batch_loss(settings: Settings, data: Dataset) -> float:
    """The same by hand: the testing form's loss on these 7 images alone, after three steps (mlp has no dropout)."""
    with Trainer(settings, None, data) as run:
        list(islice(run.steps(), 3))
        chosen = run.order.batch_indices(0, 3)
        run.data = replace(data, test_images=data.train_images[chosen], test_labels=data.train_labels[chosen])
        return run.evaluate().loss


def test_a_batch_larger_than_the_data_is_all_of_it() -> None:
    steps, _ = trained(small(batch=100))
    assert [step.position for step in steps] == [Position(0, epoch, 0, epoch) for epoch in range(3)]


def test_gc_02_everything_stays_float32_through_100_steps() -> None:
    """GC-02: rates come from a schedule in Python floats; what is kept and what is shown stays float32."""
    with trainer(small("nin-digits", epochs=25)) as run:
        kept = [{array.dtype.name for array in run.snapshot().arrays.values()} for _ in run.steps()]
    assert kept == [{"float32"}] * 100


def test_the_rate_cools_with_the_epochs_of_a_stage() -> None:
    """By lr / (1 + cooling e): with no momentum and no decay, the first step of an epoch moves weights by its rate."""
    moves = []
    for cooling in (0.0, 1.0):
        settings = small(cooling=cooling, momentum=0.0, decay=0.0, dtype="float64", epochs=2)
        warm = stopped(replace(settings, cooling=0.0), 4)
        start = replace(warm, extra={**warm.extra, "cooling": cooling})
        with trainer(settings, start) as run:
            next(run.steps())
            moves.append(run.snapshot().arrays["fc1/weight"] - warm.arrays["fc1/weight"])
    np.testing.assert_allclose(moves[0], 2 * moves[1], rtol=0, atol=1e-15)
    assert moves[0].any()


@pytest.mark.parametrize(
    "change",
    [{"model": "lenet-digits"}, {"seed": 6}, {"dtype": "float64"}, {"batch": 15}, {"lr": 0.06}, {"momentum": 0.8},
     {"decay": 0.0}, {"cooling": 0.0}],
)  # fmt: skip
def test_a_snapshot_of_another_run_is_refused(change: dict[str, Any]) -> None:
    ((name, value),) = change.items()
    settings = small()
    message = f"snapshot setting {name!r}: this run has {value!r}, the snapshot {getattr(settings, name)!r}"
    with pytest.raises(Refused, match=f"^{re.escape(message)}$"):
        trainer(replace(settings, **change), stopped(settings, 1))


def test_threads_and_more_epochs_are_taken() -> None:
    _, want = trained(small(epochs=4))
    assert trained(small(epochs=4, threads=3), stopped(small(), 6))[1] == want


@pytest.mark.parametrize("after", [9, 12])
def test_a_snapshot_beyond_the_end_is_refused(after: int) -> None:
    snapshot = stopped(small(), after)
    assert (snapshot.epoch, snapshot.position) == divmod(after, 4)
    message = f"snapshot is in epoch {after // 4 + 1}; this run has 2: give it more epochs"
    with pytest.raises(Refused, match=f"^{message}$"):
        trainer(small(epochs=2), snapshot)


def test_later_stages_keep_the_epochs_of_those_before() -> None:
    """A straight run of 3 epochs a stage would have trained the first stage longer."""
    snapshot = stopped(AUTOENCODER, 10)
    assert snapshot.extra["stage"] == 1
    with pytest.raises(
        Refused, match=r"^snapshot is of a run of 2 epochs a stage, at stage 1; this run has 3$"
    ):
        trainer(replace(AUTOENCODER, epochs=3), snapshot)
    _, want = trained(replace(AUTOENCODER, epochs=3))
    assert trained(replace(AUTOENCODER, epochs=3), stopped(AUTOENCODER, 8))[1] == want


@pytest.mark.parametrize("place", [{"stage": 1}, {"stage": -1}, {"stage": "one"}, {"position": 4}])
def test_a_place_that_the_run_does_not_pass_is_refused(place: dict[str, Any]) -> None:
    snapshot = stopped(small(), 1)
    stage, position = place.get("stage", 0), place.get("position", 1)
    odd = replace(snapshot, position=position, extra={**snapshot.extra, "stage": stage})
    message = f"snapshot is at stage {stage!r}, batch {position}; this run has 1 stages of 4 batches an epoch"
    with pytest.raises(Refused, match=f"^{re.escape(message)}$"):
        trainer(small(), odd)


def test_a_snapshot_without_its_histories_is_refused() -> None:
    snapshot = stopped(small(), 1)
    weights_only = {name: array for name, array in snapshot.arrays.items() if not name.endswith("/history")}
    with pytest.raises(
        Refused, match=r"^snapshot tensor 'fc1/weight/history': expected float32\[128, 64\], got none; .*$"
    ):
        trainer(small(), replace(snapshot, arrays=weights_only))


def test_a_snapshot_holds_parameters_and_histories_and_nothing_else() -> None:
    arrays = stopped(small(), 2).arrays
    parameters = {f"{layer}/{kind}" for layer in ("fc1", "fc2", "classes") for kind in ("weight", "bias")}
    assert set(arrays) == parameters | {f"{name}/history" for name in parameters}


def test_dp_06_layers_of_swapped_shapes_are_refused() -> None:
    """DP-06: as many bytes in all, but another tensor."""
    snapshot = stopped(small(), 1)
    swapped = {name: array.T.copy() if name == "fc2/weight" else array for name, array in snapshot.arrays.items()}
    with pytest.raises(
        Refused, match=r"^snapshot tensor 'fc2/weight': expected float32\[64, 128\], got float32\[128, 64\]; .*$"
    ):
        trainer(small(), replace(snapshot, arrays=swapped))


def test_a_model_that_cannot_be_trained_is_refused() -> None:
    message = f"model 'googlenet' cannot be trained; there are {', '.join(DEFAULTS)}"
    with pytest.raises(GraphError, match=f"^{message}$"):
        Trainer(Settings("googlenet", 1, 2, 0.1))


def test_the_autoencoder_learns_layer_by_layer_and_then_as_a_whole() -> None:
    """In each of the four stages the held-out reconstruction error goes down, and layers not in training stay."""
    settings = small("autoencoder-digits", epochs=8)
    with Trainer(settings) as run:
        errors: dict[str, list[float]] = {}
        kept: dict[str, np.ndarray] = {}
        for step in run.steps():
            at = step.position
            if (at.epoch, at.batch) == (0, 0):
                kept = run.snapshot().arrays
            if run.position.batch == 0:
                errors.setdefault(step.stage, []).append(run.evaluate().loss)
                if run.position.epoch == settings.epochs:
                    assert moved(kept, run.snapshot().arrays) == stage_layers(at.stage)
    assert list(errors) == ["layer 1", "layer 2", "layer 3", "all layers"]
    for stage, losses in errors.items():
        assert losses[-1] < 0.9 * losses[0], stage
        assert sum(after < before for before, after in pairwise(losses)) >= 5, stage


def stage_layers(stage: int) -> set[str]:
    """The layers that a stage trains; the last trains all."""
    numbers: Iterable[int] = range(1, 4) if stage == 3 else [stage + 1]
    return {f"{kind}{number}" for number in numbers for kind in ("encode", "decode")}


def moved(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[str]:
    """The layers whose weights differ. The first step of the stage was done before `before` was taken."""
    return {name.split("/")[0] for name in before if before[name].tobytes() != after[name].tobytes()}


def test_a_short_run_learns() -> None:
    with Trainer(replace(DEFAULTS["mlp-digits"], epochs=2)) as run:
        first = run.evaluate()
        steps = list(run.steps())
        last = run.evaluate()
    assert last.loss < first.loss / 2
    assert last.accuracy is not None
    assert last.accuracy > 0.85
    assert steps[-1].accuracy is not None


def test_an_autoencoder_has_no_accuracy() -> None:
    with trainer(small("autoencoder-digits")) as run:
        assert next(run.steps()).accuracy is None
        assert run.evaluate().accuracy is None
