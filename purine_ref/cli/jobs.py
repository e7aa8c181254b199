"""What `verify` is to run: jobs from the options of the command, or from a file of recorded schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import click

from purine_ref.conformance import (
    Comparison,
    Recorded,
    Recording,
    Scheme,
    Workload,
    exact_workload,
    parse_scheme,
    replayed,
    training_workload,
    verify,
)
from purine_ref.transports import current

DEFAULT_MODELS = ("nin-digits", "lenet-digits")
DTYPES = ("float64", "float32")
STEPS = 20
DIVIDED_STEPS = 4
"""Update steps where nothing else is asked for; fewer where each step is compared within bounds."""

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
JOINED_PLACES = ("hosts",)


@dataclass(frozen=True, slots=True)
class Job:
    """One workload under some schemes."""

    model: str
    dtype: str
    schemes: tuple[Scheme, ...]
    steps: int
    batch: int
    seed: int
    exact: bool = False

    @property
    def total(self) -> int:
        """Schemes' steps, for a progress bar."""
        return len(self.schemes) * self.steps


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the options of the command say; empty or None where they say nothing."""

    models: Sequence[str]
    schemes: Sequence[Scheme]
    dtypes: Sequence[str]
    steps: int | None
    batch: int
    seed: int
    exact: bool

    def jobs(self) -> list[Job]:
        """What to run. Without any wish: threads on two models, then all divided schemes on one, and its exact form.

        On one rank of several: the divided schemes on all ranks, and no threads, which every rank would run alone.
        """
        if self.schemes or self.exact:
            schemes = tuple(self.schemes or divided())
            plain = not self.exact and not any(scheme.divides for scheme in schemes)
            steps = self.steps or (STEPS if plain else DIVIDED_STEPS)
            dtypes = self.dtypes or (("float64",) if self.exact else DTYPES)
            return [self._job(m, d, schemes, steps, self.exact) for m in self.models or DEFAULT_MODELS for d in dtypes]
        threads = tuple(parse_scheme(text) for text in THREADS)
        pairs = [(m, d) for m in self.models or DEFAULT_MODELS for d in self.dtypes or DTYPES if current() is None]
        jobs = [self._job(model, dtype, threads, self.steps or STEPS, False) for model, dtype in pairs]
        for model in self.models or DEFAULT_MODELS[:1]:
            dtype = (self.dtypes or ("float32",))[0]
            jobs.append(self._job(model, dtype, divided(), self.steps or DIVIDED_STEPS, False))
            jobs.append(self._job(model, "float64", divided(), self.steps or DIVIDED_STEPS, True))
        return jobs

    def _job(self, model: str, dtype: str, schemes: tuple[Scheme, ...], steps: int, exact: bool) -> Job:
        return Job(model, dtype, schemes, steps, self.batch, self.seed, exact)


def divided() -> tuple[Scheme, ...]:
    """Every divided scheme, at each place in this process, or on the ranks of the world that was joined."""
    places = PLACES if current() is None else JOINED_PLACES
    return tuple(parse_scheme(f"{text}@{place}") for text in DIVIDED for place in places)


def replay_jobs(records: Sequence[Recorded]) -> list[Job]:
    """A job for each recorded run, whose operators start as recorded. Raises as `replayed`."""
    return [Job(r.model, r.dtype, (replayed(r),), r.steps, r.batch, r.seed, r.exact) for r in records]


def require_fit(jobs: Sequence[Job]) -> None:
    """Raise GraphError for a scheme that does not fit one of several models: before the first is run, not after.

    The schemes of the first job are opened before anything runs, so they are left out. Raises BadParameter as `run`.
    """
    others = [job for job in jobs if job.model != jobs[0].model]
    for job in {(job.model, job.exact, job.schemes): job for job in others}.values():
        graph = _workload(job).graph
        for scheme in job.schemes:
            scheme.compose(graph)


def require_recordable(schemes: Sequence[Scheme]) -> None:
    """Raise Refused for a scheme whose schedule cannot be recorded."""
    for scheme in schemes:
        Recording(scheme)


def run(job: Job, progress: Callable[[Comparison], None]) -> list[Comparison]:
    """Compare one job's schemes. Raises BadParameter for a batch that is too large."""
    return verify(_workload(job), job.schemes, job.seed, progress)


def _workload(job: Job) -> Workload:
    make = exact_workload if job.exact else training_workload
    try:
        return make(job.model, job.dtype, job.batch, job.steps, job.seed)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--batch") from None


def run_recorded(job: Job, progress: Callable[[Comparison], None]) -> tuple[list[Comparison], list[Recorded]]:
    """The same, with the schedule of each scheme's first step. Raises Refused for a scheme that stands alone."""
    recordings = [Recording(scheme) for scheme in job.schemes]
    rows = run(replace(job, schemes=tuple(recording.scheme for recording in recordings)), progress)
    what = job.model, job.dtype, job.exact, job.steps, job.batch, job.seed
    return rows, [Recorded(recording.scheme.text, *what, recording.schedule()) for recording in recordings]
