"""What a GPU reaches: training steps beside PyTorch on the same GPU, where their time goes, and the loops' bandwidth.

Contenders are our step, launched operator by operator (`purine`), and recorded once (`purine captured`, CUDA graphs),
and PyTorch eager, channels-last, with TF32 off and on; each in a process of its own, taking turns (`contenders`), timed
by events in the stream. Before anything is timed, all must compute the same losses, within the oracle's bounds; but for
TF32 in float32, which rounds more than that.

Then our step alone says where its time goes, by events around its parts: `product share` is the time within cuBLAS over
that of the step; `hidden copies`, of a step divided into two replicas on two sets of streams, the share of the copies'
time during which another stream computes. `bandwidth` is what each loop reaches on large arrays, and `of copy` that
over what a copy of memory reaches in the same round.

A part that fails is named, and the others go on.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from purine_ref.benchmarks import torch_gpu
from purine_ref.benchmarks.agreement import require_agreement
from purine_ref.benchmarks.compute import THROUGHPUT, Case, Turns
from purine_ref.benchmarks.contenders import Spec, children
from purine_ref.benchmarks.gpu_kernels import COPY
from purine_ref.benchmarks.timing import Contestant, Found, Series, measure, number
from purine_ref.devices.cuda import gpu_facts
from purine_ref.errors import PurineError

CASES = {"nin": Case("nin", 128), "googlenet": Case("googlenet", 64), "lenet": Case("lenet-digits", 32)}
"""What is measured: NIN on CIFAR-10's geometry, GoogLeNet on 224x224 pixels, LeNet on 8x8 digits."""

DEFAULT_CASES = ("nin", "googlenet")

OURS = {"purine": "streams", "purine captured": "captured"}
"""Our rows, and how each launches a step."""

STRICT, LOOSE = (f"torch {how}" for how in torch_gpu.HOWS)
"""PyTorch's rows."""

OF_TORCH, OF_COPY, HIDDEN = 0.7, 0.7, 0.95
"""The least that is wanted: of PyTorch's images per second with TF32 off, of a copy's bandwidth, of copies hidden."""

SETS = 2
"""Sets of streams of the step whose copies are looked at."""


class Asked(NamedTuple):
    """What is asked for: cases by their names in `CASES`, a batch for all or None, rounds, the seed, loops alone, and
    on how many images loops work, 0 for no loops."""

    cases: Sequence[str]
    batch: int | None
    runs: int
    seed: int = 0
    kernels_only: bool = False
    images: int = 128


def run(asked: Asked) -> Found:
    """Measure.

    Raises GraphError, in one line, where there is no GPU to be had.
    """
    gpus = gpu_facts()
    notes = [f"GPU {one['index']}: {one['name']}, compute capability {one['capability']}" for one in gpus]
    skipped: list[str] = []
    failed: list[str] = []
    series: list[Series] = []

    def part(name: str, work: Callable[[], list[Series]]) -> None:
        """Add what some work measures, or that it failed."""
        try:
            series.extend(work())
        except (PurineError, RuntimeError) as error:
            failed.append(f"{name} failed: {' '.join(str(error).split())}")

    if asked.images:
        part("loops", partial(_loops, asked))
    if not asked.kernels_only:
        lack = torch_gpu.lack()
        skipped += [] if lack is None else [lack]
        for name in asked.cases:
            model, usual = CASES[name]
            spec = Spec("gpu", model, asked.batch or usual, how="streams", seed=asked.seed)
            part(f"{name}, throughput", partial(_throughput, name, spec, asked.runs, torch=lack is None))
            part(f"{name}, products", partial(_products, name, spec, asked.runs))
            part(f"{name}, copies", partial(_copies, name, spec, asked.runs))
    return Found(series, [*notes, *judged(series), *skipped, *failed], skipped, failed)


def judged(series: Sequence[Series]) -> list[str]:
    """For each row with a target, whether its median reaches it."""
    found = []
    for one in series:
        if one.target is not None:
            median = statistics.median(one.values)
            word = "reached" if median >= one.target else "missed"
            found.append(f"{one.case}, {one.name}, {one.metric}: {number(median)}, wanted {one.target:g}: {word}")
    return found


def _throughput(case: str, spec: Spec, runs: int, torch: bool) -> list[Series]:
    """Images per second of all contenders, and ours over PyTorch's."""
    specs = {name: replace(spec, how=how) for name, how in OURS.items()}
    if torch:
        specs |= {f"torch {how}": replace(spec, side="torch gpu", how=how) for how in torch_gpu.HOWS}
    with children(list(specs.values())) as made:
        require_agreement([child for name, child in zip(specs, made, strict=True) if name != LOOSE],
                          spec.model, spec.batch, spec.seed)  # fmt: skip
        contestants = [
            Contestant(name, case, spec.batch, Turns(child)) for name, child in zip(specs, made, strict=True)
        ]
        measured = measure(contestants, runs, f"{case}, batch {spec.batch}")
    rows = [_speed(one) for one in measured if one.metric == "gpu"]
    return [*rows, *_ratios(rows)]


def _speed(one: Series) -> Series:
    """Nanoseconds per image as images per second."""
    return replace(one, metric=THROUGHPUT, unit="images/s", values=tuple(1e9 / taken for taken in one.values))


def _ratios(rows: Sequence[Series]) -> list[Series]:
    """Ours over each of PyTorch's, and captured over not; that with TF32 off, which rounds as ours does, has a target.

    It is the better of ours that is to reach it.
    """
    by = {one.name: one for one in rows}
    ours = [by[name] for name in OURS]
    best = max(ours, key=lambda one: statistics.median(one.values))
    found = [ours[1].over(ours[0], f"{ours[1].name} / {ours[0].name}")]
    for mine in ours:
        for other in (STRICT, LOOSE):
            if other in by:
                ratio = mine.over(by[other], f"{mine.name} / {other}")
                found.append(replace(ratio, target=OF_TORCH) if mine is best and other == STRICT else ratio)
    return found


def _alone(spec: Spec, what: str, **facts: object) -> list[Mapping[str, float]]:
    """What a process of our own answers that is asked nothing else."""
    with children([spec]) as made:
        answer: list[Mapping[str, float]] = made[0].ask(what, **facts)
        return answer


def _products(case: str, spec: Spec, runs: int) -> list[Series]:
    """How long a step takes from its first operator to its last, and the share of products in it."""
    found = _alone(spec, "products", count=runs)
    row = Series("purine", case, spec.batch, 1, "", "", ())
    return [
        replace(row, metric="step", unit="ms", values=tuple(each["step"] * 1e3 for each in found)),
        replace(row, metric="product share", unit="x", values=tuple(each["products"] / each["step"] for each in found)),
    ]


def _copies(case: str, spec: Spec, runs: int) -> list[Series]:
    """How long the copies of a divided step take, and how much of that is hidden."""
    found = _alone(replace(spec, workers=SETS), "copies", count=runs)
    row = Series(f"purine data:{SETS}", case, spec.batch, SETS, "", "", ())
    return [
        replace(row, metric="copies", unit="ms", values=tuple(each["copies"] * 1e3 for each in found)),
        replace(row, metric="hidden copies", unit="x", target=HIDDEN,
                values=tuple(each["hidden"] / each["copies"] for each in found)),
    ]  # fmt: skip


def _loops(asked: Asked) -> list[Series]:
    """Each loop's bandwidth, and over that of the copy."""
    with children([Spec("gpu", "loops", asked.images, how="streams")]) as made:
        answer = made[0].ask("bandwidths", images=asked.images, runs=asked.runs)
    rows = [
        Series(name, "loops", asked.images, 1, "bandwidth", "GB/s", tuple(value / 1e9 for value in values))
        for name, values in answer
    ]
    copy = next(one for one in rows if one.name == COPY)
    ratios = [one.over(copy, f"{one.name} / {COPY}") for one in rows if one is not copy]
    return [*rows, *(replace(one, metric="of copy", target=OF_COPY) for one in ratios)]
