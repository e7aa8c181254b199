"""What a training step reaches: images per second of forward, backward and momentum update, beside PyTorch.

Contenders are our own kernel sets and PyTorch eager in both of its memory layouts, each with every number of workers,
each in a process of its own (`contenders`), taking turns. Data are fed before; a turn is as many steps as take about
`TURN` seconds. Before anything is timed, all must compute the same losses, within the oracle's bounds (`agreement`).

Rows of a contender: `throughput`, images per second by the clock on the wall; `core time`, milliseconds of processors
per image, which other processes on the machine change less; `peak memory`, the most that its process ever had, Python
and libraries included; `network memory`, how much of that came after the libraries had been imported; `planned memory`,
the bytes of all our arrays; and `layout changes`, the bytes that a step writes only to have them in another order.

Ratios, of unit x, are taken round by round. `A / B` is how many times more of the metric A has than B; `torch best` is
PyTorch in the layout and with the number of workers, as many or fewer, that has the best throughput here. `matmul` is
the most that numpy's product of large matrices reaches on as many workers; `A / matmul` is the share of that arithmetic
which A's products of matrices would need for its throughput, had it done nothing else.

On GoogLeNet, whose modules have four branches, the default kernel set competes in two ways more: `branches` runs
operators side by side, each on one worker, by the threaded executor; `both` also splits each operator. Other rows split
each operator over the workers, one operator after the other.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from purine_ref.benchmarks.agreement import require_agreement
from purine_ref.benchmarks.contenders import Child, Contender, Spec, children
from purine_ref.benchmarks.timing import Contestant, Found, Series, measure
from purine_ref.benchmarks.torch_peer import LAYOUTS
from purine_ref.devices.kernels import KERNEL_SETS
from purine_ref.errors import GraphError

TURN = 0.25
"""Seconds that the steps of one turn take, about; one step where that takes longer."""


class Case(NamedTuple):
    """A network by its name in `models.MODELS`, and the batch that it is measured with."""

    model: str
    batch: int


CASES = {"nin": Case("nin", 128), "googlenet": Case("googlenet", 16), "lenet": Case("lenet-digits", 32)}
"""What is measured: NIN on CIFAR-10's geometry, GoogLeNet on 224x224 pixels, LeNet on 8x8 digits."""

THROUGHPUT, CORE_TIME, ARITHMETIC = "throughput", "core time", "arithmetic"
MATMUL = "matmul"
MEMORY = {"process": "peak memory", "network": "network memory", "planned": "planned memory"}


class Turns:
    """A contestant's `once`: a child makes so many steps, and what each took comes back."""

    def __init__(self, child: Contender) -> None:
        self.child = child
        self._steps = 0

    def __call__(self) -> Mapping[str, float]:
        """Seconds of one step by metric. The first call finds out how many steps make a turn."""
        if self._steps == 0:
            self.child.ask("time", count=1)  # the first steps are slower: memory is touched for the first time
            self._steps = max(1, min(1000, round(TURN / self.child.ask("time", count=1)["wall"])))
        found = self.child.ask("time", count=self._steps)
        return {metric: taken / self._steps for metric, taken in found.items()}


def run(
    cases: Sequence[str], batch: int | None, kernels: Sequence[str], workers: Sequence[int], runs: int, seed: int = 0
) -> Found:
    """The cases, by their names in `CASES`, each with its usual batch or that one.

    Raises ResultDiffers where a contender computes something else, RuntimeError where its process fails, GraphError for
    a kernel set that there is not.
    """
    sets, skipped = available(kernels)
    cores = cores_here()
    torch = importlib.util.find_spec("torch") is not None
    if not torch:
        skipped.append("torch is left out: it is not installed; pip install torch")
    many = [n for n in workers if n > cores]
    skipped += [f"{n} workers are left out: this process may use {cores} cores" for n in many]
    counts = [n for n in workers if n not in many]
    notes = ["images per second by the wall's clock; ratios are taken within a round", *skipped]
    series: list[Series] = []
    for name in cases:
        model, usual = CASES[name]
        series += _case(name, _specs(model, batch or usual, sets, counts, torch, seed), runs)
    return Found(series, notes, skipped)


def available(kernels: Sequence[str]) -> tuple[list[str], list[str]]:
    """The wanted kernel sets that are here, and what to say of the others. Raises GraphError for an unknown name."""
    present, skipped = [], []
    for name in kernels:
        if name not in KERNEL_SETS:
            raise GraphError(f"no kernel set {name!r}; there are {', '.join(KERNEL_SETS)}")
        try:
            KERNEL_SETS[name].require()
        except GraphError as error:
            skipped.append(f"{name} kernels are left out: {error}")
        else:
            present.append(name)
    return present, skipped


def cores_here() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _specs(
    model: str, batch: int, sets: Sequence[str], counts: Sequence[int], torch: bool, seed: int
) -> list[tuple[str, Spec]]:
    """The contenders of one case, with the names of their rows."""
    found = []
    for n in counts:
        ways = ["split"] + (["branches", "both"] if model == "googlenet" and n > 1 else [])
        for kernels in sets:
            for how in ways if kernels == sets[0] else ways[:1]:
                word = "" if how == "split" else f" ({how})"
                found.append((f"purine {kernels}{word}", Spec("purine", model, batch, n, how, kernels, seed=seed)))
        if torch:
            found += [(f"torch {how}", Spec("torch", model, batch, n, how, seed=seed)) for how in LAYOUTS]
        found.append((MATMUL, Spec(MATMUL, model, batch, n, seed=seed)))
    return found


def _case(case: str, specs: Sequence[tuple[str, Spec]], runs: int) -> list[Series]:
    """All rows of one case."""
    with children([spec for _, spec in specs]) as made:
        competing = [child for child in made if child.spec.side != MATMUL]
        if not competing:
            return []
        first = competing[0].spec
        require_agreement(competing, first.model, first.batch, first.seed)
        contestants = [
            Contestant(name, case, 1 if spec.side == MATMUL else spec.batch, Turns(child), spec.workers)
            for (name, spec), child in zip(specs, made, strict=True)
        ]
        measured = measure(contestants, runs, f"{case}, batch {first.batch}")
        facts = {(of.name, of.workers): child.ask("facts") for of, child in zip(contestants, made, strict=True)}
        sizes = [row for of, child in zip(contestants, made, strict=True) for row in _sizes(of, child)]
    found = [speed(one, facts[one.name, one.workers].get("flops", 0.0)) for one in measured]
    flops = next((each["flops"] for each in facts.values() if "layout" in each), 0.0) / first.batch
    return [*found, *ratios(found), *shares(found, flops), *sizes]


def speed(one: Series, flops: float = 0.0) -> Series:
    """Nanoseconds per image as `CORE_TIME` or `THROUGHPUT`; of products of matrices, of so many `flops`, the latter."""
    if one.metric == "processor":
        return replace(one, metric=CORE_TIME, unit="ms", values=tuple(taken / 1e6 for taken in one.values))
    amount, unit = (flops, "GFLOP/s") if one.name == MATMUL else (1e9, "images/s")
    return replace(one, metric=THROUGHPUT, unit=unit, values=tuple(amount / taken for taken in one.values))


def ratios(measured: Sequence[Series]) -> list[Series]:
    """Ours over PyTorch's; and every other way to use workers over the usual one.

    Throughput is compared with both layouts on as many workers, and as well as core time with the best of PyTorch: the
    layout and number of workers, of as many or fewer, with the best median.
    """
    found = []
    by = {(one.name, one.workers, one.metric): one for one in measured}
    for own in (one for one in measured if one.name.startswith("purine") and one.metric == THROUGHPUT):
        torch = [
            one for one in measured
            if one.name.startswith("torch") and one.metric == THROUGHPUT and one.workers <= own.workers
        ]  # fmt: skip
        usual = by.get((own.name.partition(" (")[0], own.workers, THROUGHPUT), own)
        found += [own.over(usual, f"{own.name} / {usual.name}")] if usual is not own else []
        found += [own.over(one, f"{own.name} / {one.name}") for one in torch if one.workers == own.workers]
        if torch:
            best = max(torch, key=lambda one: statistics.median(one.values))
            for metric in (THROUGHPUT, CORE_TIME):
                mine, other = by[own.name, own.workers, metric], by[best.name, best.workers, metric]
                found.append(mine.over(other, f"{own.name} / torch best"))
    return found


def shares(measured: Sequence[Series], flops: float) -> list[Series]:
    """The arithmetic of everyone's throughput, at `flops` an image, over what `matmul` reaches with as many workers."""
    rows = [one for one in measured if one.metric == THROUGHPUT]
    peaks = {one.workers: one for one in rows if one.name == MATMUL}
    found = []
    for one in rows:
        if one.name != MATMUL and one.workers in peaks and flops:
            ratio = one.over(peaks[one.workers], f"{one.name} / {MATMUL}")
            found.append(replace(ratio, metric=ARITHMETIC, values=tuple(v * flops / 1e9 for v in ratio.values)))
    return found


def _sizes(of: Contestant, child: Child) -> list[Series]:
    """Memory, and what is written only for its order, in millions of bytes."""
    if child.spec.side == MATMUL:
        return []
    found = {MEMORY[key]: value for key, value in child.ask("memory").items()}
    facts = child.ask("facts")
    if "layout" in facts:
        found["layout changes"] = facts["layout"]
    row = Series(of.name, of.case, of.items, of.workers, "", "MB", ())
    return [replace(row, metric=metric, values=(value / 1e6,)) for metric, value in found.items()]
