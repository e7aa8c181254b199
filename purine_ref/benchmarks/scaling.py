"""What a second worker brings: data parallel training steps on 1 and on more workers, each pinned to a core of its own.

With one worker the serial graph runs on one core. With n, the batch is divided over n replicas (`parallel.Data`), each
of which is a rank with a thread of its own, held to one core; gradients cross between them as messages and are added in
a fixed order. The batch is the same for all: this is strong scaling. Where a system has no way to pin, nothing is held.

Rows: `throughput`, images per second by the clock on the wall; `core time`, milliseconds of processors per image. In
ratios, of unit x and taken round by round, `n workers / 1` has how many times more `throughput` n have than one, and
`efficiency`, that divided by n: 1 is ideal, and what is missing went into copies and additions that the serial graph
does not have, and into waiting. `hidden copies` is the share of the time of all copies during which another worker
computed something that is no copy, from the trace of further runs, that are not timed: 1 when copies cost nothing
because others go on meanwhile, 0 when all wait for them. A worker that waits for a message is in no operator, so
waiting shows in the efficiency, not there. `copies` is that time itself, in milliseconds per step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from purine_ref.benchmarks.agreement import require_agreement
from purine_ref.benchmarks.compute import CASES, THROUGHPUT, Turns, available, cores_here, speed
from purine_ref.benchmarks.contenders import Child, Spec, children
from purine_ref.benchmarks.timing import Contestant, Found, Series, measure

COPIES, HIDDEN, EFFICIENCY = "copies", "hidden copies", "efficiency"


def run(
    cases: Sequence[str], batch: int | None, kernels: str, workers: Sequence[int], runs: int, seed: int = 0
) -> Found:
    """The cases, by their names in `compute.CASES`, each with its usual batch or that one; 1 worker is always there.

    Raises as `compute.run`; GraphError for more workers than images.
    """
    present, skipped = available([kernels])
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    here = cores_here()
    skipped += [f"{n} workers are left out: this process may use {here} cores" for n in workers if n > here]
    counts = sorted({1, *(n for n in workers if n <= here)})
    pinned = "each worker is held to a core" if cores else "workers are not held to cores: this system cannot"
    notes = [f"data parallel, the same batch for all; {pinned}; ratios are taken within a round", *skipped]
    series: list[Series] = []
    for name in cases if present else ():
        model, usual = CASES[name]
        size = batch or usual
        specs = [Spec("purine", model, size, n, "data", kernels, tuple(cores[:n]), seed) for n in counts]
        series += _case(name, specs, runs)
    return Found(series, notes, skipped)


def _case(case: str, specs: Sequence[Spec], runs: int) -> list[Series]:
    """All rows of one case."""
    with children(specs) as made:
        require_agreement(made, specs[0].model, specs[0].batch, specs[0].seed)
        contestants = [
            Contestant(_name(child.spec), case, child.spec.batch, Turns(child), child.spec.workers) for child in made
        ]
        measured = measure(contestants, runs, f"{case}, batch {specs[0].batch}")
        found = [speed(one) for one in measured]
        traced = [row for child in made if child.spec.workers > 1 for row in _copies(case, child, runs)]
    return [*found, *gains(found), *traced]


def _name(spec: Spec) -> str:
    return f"purine {spec.kernels}"


def gains(measured: Sequence[Series]) -> list[Series]:
    """How many times more images n workers make than one, and that for each of them."""
    rows = [one for one in measured if one.metric == THROUGHPUT]
    single = next(one for one in rows if one.workers == 1)
    found = []
    for one in rows:
        if one.workers > 1:
            gain = one.over(single, f"{one.workers} workers / 1")
            each = tuple(value / one.workers for value in gain.values)
            found += [gain, replace(gain, metric=EFFICIENCY, values=each)]
    return found


def _copies(case: str, child: Child, runs: int) -> list[Series]:
    """The copies of some steps: how long they took, and the share that was hidden; nothing where there were none."""
    spec = child.spec
    steps = [step for step in child.ask("overlap", count=runs) if step["copies"] > 0]
    if not steps:
        return []
    times = tuple(step["copies"] * 1e3 for step in steps)
    shares = tuple(step["hidden"] / step["copies"] for step in steps)
    return [
        Series(_name(spec), case, spec.batch, spec.workers, COPIES, "ms", times),
        Series(_name(spec), case, spec.batch, spec.workers, HIDDEN, "x", shares),
    ]
