"""Run fault plans and print a table: `PYTHONPATH=tests python -P -m separation --plans 200`."""

from __future__ import annotations

import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from separation.arena import Arena
from separation.execution import Outcome, execute
from separation.namespaces import missing
from separation.plans import KINDS, NAMED, RIGHT, Plan, drawn


@click.command()
@click.option("--plans", "count", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Draws the plans.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Plans that run at a time.")
@click.option("--only", multiple=True, type=int, help="Run only the plan of that number. Repeatable.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Run only that kind. Repeatable.")
def main(count: int, seed: int, jobs: int, only: Sequence[int], kinds: Sequence[str]) -> None:
    """Run fault plans; the exit code is 1 when one of them ends in what it may not."""
    why = missing()
    if why is not None:
        raise click.ClickException(f"fault plans need network namespaces: {why}")
    plans = [plan for plan in drawn(count, seed) if plan.number in (only or (plan.number,))]
    plans = [plan for plan in plans if plan.kind in (kinds or KINDS)]
    console = Console() if sys.stdout.isatty() else Console(width=100)
    outcomes: list[Outcome] = []
    for outcome in track(perform(plans, jobs), "fault plans", len(plans), console=Console(stderr=True)):
        outcomes.append(outcome)
        if outcome.faults:
            console.print(describe(outcome), markup=False, highlight=False, soft_wrap=True)
    console.print(table(outcomes))
    raise SystemExit(int(any(outcome.faults for outcome in outcomes)))


def perform(plans: Sequence[Plan], jobs: int) -> Iterator[Outcome]:
    """The outcomes, in the order in which they come: `jobs` arenas take the next plan each. Raises what one raised."""
    ready, done = deque(plans), SimpleQueue[Outcome | BaseException]()

    def take() -> Plan | None:
        try:
            return ready.popleft()
        except IndexError:
            return None

    def work(folder: Path) -> None:
        try:
            folder.mkdir()
            with Arena(folder) as arena:
                while (plan := take()) is not None:
                    done.put(execute(arena, plan))
        except BaseException as error:
            done.put(error)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        try:
            for number in range(jobs):
                pool.submit(work, Path(folder) / str(number))
            for _ in plans:
                outcome = done.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
        finally:
            ready.clear()  # whatever happened: what runs is the last that does


def describe(outcome: Outcome) -> str:
    """A plan that failed, in words."""
    lines = [str(outcome.plan), *(f"  FAULT {fault}" for fault in outcome.faults)]
    for name, complaint in outcome.complaints.items():
        lines += [f"  {name}: {line}" for line in complaint.splitlines() or ["(silent)"]]
    return "\n".join(lines)


def table(outcomes: Sequence[Outcome]) -> Table:
    """One row for each kind and phase."""
    shown = Table("kind", "phase")
    for name in ("plans", RIGHT, NAMED, "resumed", "wrong", "slowest [s]"):
        shown.add_column(name, justify="right")
    for kind, phases in KINDS.items():
        for phase in phases:
            rows = [each for each in outcomes if (each.plan.kind, each.plan.phase) == (kind, phase)]
            if rows:
                shown.add_row(kind, phase, *_figures(rows))
    shown.add_section()
    shown.add_row("all", "", *_figures(outcomes))
    return shown


def _figures(rows: Sequence[Outcome]) -> list[str]:
    good = [row for row in rows if not row.faults]
    counts = [
        len(rows),
        sum(row.ending == RIGHT for row in good),
        sum(row.ending == NAMED for row in good),
        sum(row.resumed for row in good),
        len(rows) - len(good),
    ]
    return [*map(str, counts), f"{max((row.seconds for row in rows), default=0):.1f}"]


if __name__ == "__main__":
    main()
