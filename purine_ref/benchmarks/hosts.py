"""What a second host brings: data parallel training steps in a process for each rank, over our transport.

Contestants are one worker with the serial graph; the ranks of one process (see `scaling`); and `hosts`, the same ranks
as processes that have joined over ZeroMQ, each held to a core with all its threads. With rates, the hosts are network
namespaces, and what goes between them is limited so that a step's bytes, one way, take so many times as long as its
computing, on one host: `hosts 0.5`. So the question is not how fast the wire is, but what hides behind computing.

Rows beside those of `scaling`: `sent`, megabytes of arrays that the transports of all ranks sent in a step, headers not
counted, and `counted`, what the graph's copies move by the graph's own count. From merged traces of further steps, by
one clock: `compute`, how long a rank computes; `transfer`, how long something is on its way to a rank, over all ranks,
or where the rate is known the time that the bytes take at that rate; `exposed`, for how much of it that rank computes
nothing; and `hidden transfers`, the share that is not exposed. `predicted` is that share in a simulated run, in which
operators take as long as they did without a limit, bytes take their time at the rate, and nothing else takes any. Each
merged trace is judged: one that is not lawful is an error. Notes say which transfers ranks wait for.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from purine_ref.benchmarks.agreement import require_agreement
from purine_ref.benchmarks.compute import CASES, THROUGHPUT, Turns, available, cores_here, speed
from purine_ref.benchmarks.contenders import Spec, children
from purine_ref.benchmarks.hiding import Step, predicted, steps_of
from purine_ref.benchmarks.namespaces import Host, two_hosts
from purine_ref.benchmarks.scaling import EFFICIENCY
from purine_ref.benchmarks.steps import divided, urgency
from purine_ref.benchmarks.team import Team, team
from purine_ref.benchmarks.timing import Contestant, Found, Series, measure
from purine_ref.conformance.tracing import judge_trace, merge_traces
from purine_ref.errors import ResultDiffers
from purine_ref.graph import Graph
from purine_ref.parallel.traffic import moved

SENT, COUNTED = "sent", "counted"
COMPUTE, TRANSFER, EXPOSED = "compute", "transfer", "exposed"
HIDDEN, PREDICTED = "hidden transfers", "predicted"

BLAMED = 3
"""So many transfers are named, those that ranks wait for longest."""


@dataclass(frozen=True, slots=True)
class Between:
    """How many `hosts` there are, how they add gradients, and the `rates` of transfer to compute, for two of them."""

    hosts: int
    reduction: str = "ring"
    rates: tuple[float, ...] = ()


def run(cases: Sequence[str], batch: int | None, kernels: str, between: Between, runs: int, seed: int = 0) -> Found:
    """The cases, by their names in `compute.CASES`, each with its usual batch or that one.

    Raises as `compute.run`; NoNamespaces; GraphError for more hosts than images; RuntimeError where ranks answer
    differently; ResultDiffers for an unlawful trace.
    """
    hosts = between.hosts
    present, skipped = available([kernels])
    cores = tuple(range(hosts)) if cores_here() >= hosts else ()
    held = "each rank is held to a core" if cores else "ranks are not held to cores: there are fewer"
    added = f"gradients are added by {between.reduction}"
    notes = [f"data parallel, the same batch for all; {added}; {held}; ratios are taken within a round", *skipped]
    series: list[Series] = []
    for name in cases if present else ():
        model, usual = CASES[name]
        spec = Spec("purine", model, batch or usual, hosts, "hosts", kernels, cores, seed, between.reduction)
        found, words = _case(name, spec, between.rates, runs)
        series += found
        notes += words
    return Found(series, notes, skipped)


@dataclass(frozen=True, slots=True)
class Limit:
    """What may go from host to host: so many bytes a second, by which a step's take `share` times its computing."""

    share: float
    rate: float
    hosts: Sequence[Host]

    @contextmanager
    def set(self) -> Iterator[None]:
        """Hold the limit inside the block."""
        for host in self.hosts:
            host.limit(self.rate)
        try:
            yield
        finally:
            for host in self.hosts:
                host.limit(None)


@dataclass(frozen=True, slots=True)
class Limited:
    """A contestant's `once` under a limit."""

    turns: Callable[[], Mapping[str, float]]
    limit: Limit

    def __call__(self) -> Mapping[str, float]:
        """What the turns take."""
        with self.limit.set():
            return self.turns()


def _case(case: str, spec: Spec, rates: Sequence[float], runs: int) -> tuple[list[Series], list[str]]:
    """All rows of one case, and its notes."""
    graph, _, _ = divided(spec, "float32")
    one = replace(spec, workers=1, how="data", cores=spec.cores[:1])
    with ExitStack() as stack:
        hosts = stack.enter_context(two_hosts()) if rates else ()
        serial, ranks = stack.enter_context(children([one, replace(spec, how="data")]))
        apart = stack.enter_context(team(spec, hosts))
        require_agreement([serial, ranks, apart], spec.model, spec.batch, spec.seed)
        found, notes = _Traces(case, spec, graph, apart, runs), []
        rows = [*found.rows(), *_bytes(case, spec, graph, apart)]
        contestants = [
            Contestant(f"purine {spec.kernels}", case, spec.batch, Turns(serial), 1),
            Contestant(f"purine {spec.kernels}", case, spec.batch, Turns(ranks), spec.workers),
            Contestant(_name(spec), case, spec.batch, Turns(apart), spec.workers),
        ]
        for share in rates:
            rate = max(moved(graph).values()) / (share * found.compute)
            limit = Limit(share, rate, hosts)
            limited = _Traces(case, spec, graph, apart, runs, limit)
            rows += [*limited.rows(), limited.prediction(graph, found.took)]
            notes += limited.notes()
            turns = Limited(Turns(apart), limit)
            contestants.append(Contestant(_name(spec, share), case, spec.batch, turns, spec.workers))
        measured = [speed(row) for row in measure(contestants, runs, f"{case}, batch {spec.batch}")]
    return [*measured, *_gains(measured), *rows], [*found.notes(), *notes]


def _name(spec: Spec, share: float | None = None) -> str:
    return f"purine {spec.kernels} hosts{'' if share is None else f' {share:g}'}"


def _gains(measured: Sequence[Series]) -> list[Series]:
    """How many times more images than one worker all others make, and that for each of their workers."""
    rows = [one for one in measured if one.metric == THROUGHPUT]
    found = []
    for one in rows[1:]:
        gain = one.over(rows[0], f"{one.name} x {one.workers} / 1")
        each = tuple(value / one.workers for value in gain.values)
        found += [gain, replace(gain, metric=EFFICIENCY, values=each)]
    return found


def _bytes(case: str, spec: Spec, graph: Graph, apart: Team) -> list[Series]:
    """What the sockets were given in a step, beside what the graph's copies move."""
    row = Series(_name(spec), case, spec.batch, spec.workers, SENT, "MB", (sum(apart.ask_all("sent", count=2)) / 1e6,))
    counted = sum(moved(graph).values()) / 1e6
    return [row, replace(row, metric=COUNTED, values=(counted,))]


class _Traces:
    """Some steps of a team, traced, merged and judged."""

    def __init__(self, case: str, spec: Spec, graph: Graph, apart: Team, runs: int, limit: Limit | None = None) -> None:
        self._limit = limit
        self._row = Series(
            _name(spec, None if limit is None else limit.share), case, spec.batch, spec.workers, "", "ms", ()
        )
        self._moved = sum(moved(graph).values())
        with tempfile.TemporaryDirectory() as folder:
            self._steps = _traced(Path(folder), graph, apart, runs, limit)

    @property
    def compute(self) -> float:
        """Seconds that a rank computes in a step."""
        return statistics.median(step.compute() for step in self._steps)

    def rows(self) -> list[Series]:
        """The figures of all steps."""
        transfers = [step.transfer() if self._limit is None else self._moved / self._limit.rate for step in self._steps]
        exposed = [step.exposed() for step in self._steps]
        shares = tuple(max(0.0, 1 - bare / whole) for bare, whole in zip(exposed, transfers, strict=True))
        times = {COMPUTE: [step.compute() for step in self._steps], TRANSFER: transfers, EXPOSED: exposed}
        found = [replace(self._row, metric=name, values=tuple(1e3 * t for t in each)) for name, each in times.items()]
        return [*found, replace(self._row, metric=HIDDEN, unit="x", values=shares)]

    @property
    def took(self) -> dict[str, float]:
        """Seconds of each operator that is no transfer."""
        return {op: statistics.median(step.took[op] for step in self._steps) for op in self._steps[0].took}

    def prediction(self, graph: Graph, took: Mapping[str, float]) -> Series:
        """The share that would be hidden, by a simulated run, of operators that take so long."""
        assert self._limit is not None
        step = predicted(graph, took, urgency(graph), self._limit.rate)
        share = max(0.0, 1 - step.exposed() * self._limit.rate / self._moved)
        return replace(self._row, metric=PREDICTED, unit="x", values=(share,))

    def notes(self) -> list[str]:
        """Which transfers ranks wait for."""
        total: Counter[str] = Counter()
        for step in self._steps:
            total.update(step.blame())
        worst = [f"{name} {1e3 * taken / len(self._steps):.3g} ms" for name, taken in total.most_common(BLAMED)]
        where = "" if self._limit is None else f", at {self._limit.rate / 1e6:.3g} MB/s"
        return [f"{self._row.case}, {self._row.name}{where}: ranks wait for {', '.join(worst) or 'no transfer'}"]


def _traced(folder: Path, graph: Graph, apart: Team, runs: int, limit: Limit | None) -> list[Step]:
    """Steps of a lawful trace. Raises ResultDiffers for another."""
    files = [folder / f"rank{rank}.jsonl" for rank in range(apart.spec.workers)]
    with nullcontext() if limit is None else limit.set():
        offsets = apart.trace(files, runs)
    merge_traces(files, offsets, folder / "whole.jsonl")
    verdict = judge_trace(folder / "whole.jsonl", graph)
    if not verdict.passed:
        raise ResultDiffers(f"the trace of {apart.spec.model} on {apart.spec.workers} hosts: {verdict.words}", "trace")
    return steps_of(folder / "whole.jsonl")[1:]
