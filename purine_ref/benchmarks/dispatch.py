"""What dispatching costs per operator: readiness alone, the executors, and peers, on operators that do nothing.

`counters` is the least that plain Python can do with the plan's lists, with no checks. The row `NO_OP` is the readiness
tracker of this process (see `purine_ref._fast`) driven by its own loop: compiled, each operator is a C function that
does nothing; the row `TEAM` is several threads that share such operators. `readiness` is the same tracker asked from
Python, operator by operator. `serial` and `threaded` are whole runs of the executors, in which operators are Python
functions. The others are peers, described in `peers` and `native/`: peers that are not there are left out, and a note
says what to install; those with `+blobs` have a task for each blob too.
"""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from purine_ref._fast import FAST, Walkers
from purine_ref.benchmarks import handover, native, peers
from purine_ref.benchmarks.shapes import SHAPES, Predecessors, build
from purine_ref.benchmarks.timing import Contestant, Found, Series, measure, seconds, status
from purine_ref.executors import Serial, Threaded
from purine_ref.plan import Plan
from purine_ref.schedule import Schedule

THREADS = (1, 2)

NO_OP, TEAM = ("C no-op loop", "C no-op team") if FAST else ("plain no-op loop", "plain no-op team")
"""The rows of the tracker's own loop, and of threads that share it."""

PEERS = ("graphlib", "futures", "dask", "autograd", "taskflow", "onetbb")
"""Who may be asked for; `graphlib` and `futures` are in the standard library."""

PROGRAMS = {"taskflow": ("Taskflow", native.TASKFLOW), "onetbb": ("oneTBB", native.ONETBB)}
"""The peers in C++ by their options: the row's name, and the program."""

SLOW = ("futures", "dask", "autograd")
"""Peers whose graphs are scaled down, since they take long."""

RATIOS = (
    ("graphlib", "readiness"), ("graphlib", "serial"), ("threaded", "serial"), ("futures", "threaded"),
    ("dask.threaded", "threaded"), ("autograd", "serial"),
    *((f"{peer}{blobs}", ours) for peer in ("Taskflow", "oneTBB") for blobs in ("", "+blobs")
      for ours in (NO_OP, TEAM)),
)  # fmt: skip
"""Pairs of rows, of the same number of workers; the second alone may have one worker where the first has more."""


def count_down(plan: Plan, outputs: Sequence[Sequence[int]], consumers: Sequence[Sequence[int]]) -> None:
    """The counters of rule R2, and nothing else."""
    waiting, missing = list(plan.waiting), list(plan.producers)
    queue = deque(plan.first)
    while queue:
        for blob in outputs[queue.popleft()]:
            missing[blob] -= 1
            if missing[blob] == 0:
                for consumer in consumers[blob]:
                    waiting[consumer] -= 1
                    if waiting[consumer] == 0:
                        queue.append(consumer)


def readiness(plan: Plan) -> None:
    """A run's readiness, as an executor asks for it."""
    schedule = Schedule(plan)
    queue = deque(schedule.ready())
    while queue:
        queue.extend(schedule.done(queue.popleft()))
    if schedule.active():
        raise RuntimeError("operators are left over")


def walk(plan: Plan) -> None:
    """A run's readiness by the tracker's own loop."""
    if Schedule(plan).walk(plan.first) != len(plan.order):
        raise RuntimeError("operators are left over")


def again(work: Callable[[], object]) -> dict[str, float]:
    """The medians of as many runs in a row as the programs in C++ make, so that both find their graphs in caches."""
    found = [seconds(work) for _ in range(native.ROUNDS)]
    return {metric: statistics.median(one[metric] for one in found) for metric in found[0]}


@contextlib.contextmanager
def team(plan: Plan, workers: int) -> Iterator[Callable[[], None]]:
    """A run's readiness by threads that share the operators; they are sent home afterwards."""
    walkers = Walkers(plan.edges, workers)
    helpers = [threading.Thread(target=walkers.serve, args=(number,), daemon=True) for number in range(1, workers)]

    def once() -> None:
        """One walk by all."""
        if walkers.walk(Schedule(plan), plan.first) != len(plan.order):
            raise RuntimeError("operators are left over")

    for helper in helpers:
        helper.start()
    try:
        yield once
    finally:
        walkers.close()
        for helper in helpers:
            helper.join()


@contextlib.contextmanager
def ours(predecessors: Predecessors, case: str) -> Iterator[list[Contestant]]:
    """The tracker and the executors, on one shape of graph; closed afterwards."""
    with contextlib.ExitStack() as stack:
        graph = build(predecessors, case)
        serial = stack.enter_context(Serial(graph))
        running = [("serial", 1, serial.run)]
        running += [("threaded", n, stack.enter_context(Threaded(graph, threads=n)).run) for n in THREADS]
        plan = serial.plan
        lists = [list(plan.outputs), list(plan.consumers)]
        alone: list[tuple[str, int, Callable[[], object]]] = [
            ("counters", 1, partial(count_down, plan, *lists)),
            (NO_OP, 1, partial(walk, plan)),
            *((TEAM, n, stack.enter_context(team(plan, n))) for n in THREADS),
            ("readiness", 1, partial(readiness, plan)),
        ]
        size = len(predecessors)
        yield [
            Contestant(name, case, size, partial(again if name in (NO_OP, TEAM) else seconds, work), n)
            for name, n, work in [*alone, *running]
        ]


@contextlib.contextmanager
def others(
    predecessors: Predecessors, small: Predecessors, case: str, wanted: Sequence[str], programs: dict[str, Path]
) -> Iterator[list[Contestant]]:
    """The wanted peers, on the same graph, or on the small one; ended afterwards."""
    size = len(predecessors)
    found = []
    if "graphlib" in wanted:
        found.append(Contestant("graphlib", case, size, partial(peers.time_sort, predecessors)))
    for name, row, once in (("futures", "futures", peers.time_futures), ("dask", "dask.threaded", peers.time_dask)):
        if name in wanted:
            found += [Contestant(row, case, len(small), partial(once, small, n), n) for n in THREADS]
    if "autograd" in wanted:
        work, nodes = peers.backward(small)
        found.append(Contestant("autograd", case, nodes, partial(seconds, work)))
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(native.graph_file(predecessors))
        for name, path in programs.items():
            for blobs, words in ((0, ""), (1, "+blobs")):
                for n in THREADS:
                    asked = stack.enter_context(native.running(path, file, n, blobs))
                    found.append(Contestant(PROGRAMS[name][0] + words, case, size, asked.ask, n))
        yield found


def ratios(series: list[Series]) -> list[Series]:
    """How many times the processor time of ours others take, round by round."""
    found = {(one.name, one.workers): one for one in series if one.metric == "processor"}
    pairs = [(a, b, n) for a, b in RATIOS for n in THREADS if (a, n) in found and (b, 1) in found]
    return [found[a, n].over(found.get((b, n), found[b, 1]), f"{a} / {b}") for a, b, n in pairs]


def available(wanted: Sequence[str]) -> tuple[list[str], dict[str, Path], list[str]]:
    """Of the wanted peers those that are here, the programs among them compiled; and what to say of the others."""
    present, programs, skipped = [], {}, []
    for name in wanted:
        module = {"dask": "dask", "autograd": "torch"}.get(name)
        if module is not None and importlib.util.find_spec(module) is None:
            skipped.append(f"{name} is left out: {module} is not installed; pip install {module}")
        elif name in PROGRAMS:
            try:
                with status(f"compiling {name}, which takes up to a minute the first time"):
                    programs[name] = native.executable(PROGRAMS[name][1])
            except native.Missing as error:
                skipped.append(f"{name} is left out: {error}")
        else:
            present.append(name)
    return present, programs, skipped


def between_threads(runs: int) -> list[Series]:
    """What a hand-over costs."""
    try:
        path = native.executable(native.HANDOVER)
    except native.Missing:  # whoever asked for a program in C++ has been told
        return measure(handover.contestants(None), runs, handover.CASE)
    with native.running(path) as program:
        return measure(handover.contestants(program), runs, handover.CASE)


def run(operators: int, small: int, runs: int, wanted: Sequence[str] = PEERS) -> Found:
    """All shapes, the wanted peers included; slow ones get graphs of at most `small` operators, none if that is 0."""
    small = min(operators, small)
    if small == 0:
        wanted = [name for name in wanted if name not in SLOW]
    present, programs, skipped = available(wanted)
    notes = ["time per operator, processor time over all threads; ratios are taken within a round", *skipped]
    scaled = [name for name in present if name in SLOW]
    if scaled and small < operators:
        notes.append(f"{', '.join(scaled)}: on graphs scaled down to {small:,} operators")
    if programs:
        notes.append(f"peers in C++, {NO_OP} and {TEAM}: the median of {native.ROUNDS} runs in a row, in every round")
    series = []
    for case, shape in SHAPES.items():
        graph = shape(operators)
        with ours(graph, case) as own, others(graph, shape(small), case, present, programs) as theirs:
            found = measure([*own, *theirs], runs, case)
        series += [*found, *ratios(found)]
    return Found([*series, *between_threads(runs)], notes, skipped)
