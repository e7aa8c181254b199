"""`purine-ref check`: drive another implementation, judge what it gives, and make smaller what fails."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from purine_ref.cli.report import (
    CODES,
    json_option,
    number,
    output,
    output_file,
    progress_bar,
    seed_option,
    write_json,
    write_text,
)
from purine_ref.cli.strength import strength
from purine_ref.conformance.cases.golden import golden_makers, read_manifest
from purine_ref.conformance.cases.reading import read_case
from purine_ref.conformance.driving import (
    CHECKS,
    LIMIT,
    OneShotPort,
    Options,
    PortFault,
    Result,
    SessionPort,
    Trial,
    check_port,
    counts,
    never_run,
    open_port,
    scratch,
    verdict,
)
from purine_ref.conformance.driving.checking import Named, replay_case
from purine_ref.conformance.driving.junit import junit
from purine_ref.conformance.driving.keeping import Kept, described, keep
from purine_ref.conformance.driving.results import STOP
from purine_ref.conformance.driving.trying import trace_judge
from purine_ref.conformance.strength import EXAMPLES

FEW = 100
"""Random graphs of the check of a port, unless the user says otherwise."""

MOST_LINES = 4
"""Failures of one check that are printed beside those that were made smaller."""

EPILOG = """\b
Examples:
  purine-ref check --port ./port
  purine-ref check --port "node port.js" --one-shot --only golden --keep failures
  purine-ref check --port ipc:///tmp/port --examples 1000 --seed 7 --junit check.xml
  purine-ref check --port ./port --only "operators/Conv2d/*" --only random
  purine-ref check --port ./port --case failures/random-1
  purine-ref check --strength
"""


@click.command(epilog=EPILOG)
@click.option("--port", metavar="CMD", help="The command of the port, or tcp://... or ipc://...")
@click.option("--strength", "strong", is_flag=True,
              help="In place of a port: measure which check finds which planted fault.")  # fmt: skip
@click.option("--one-shot", is_flag=True, help="Start CMD CASE OUT for each case, in place of a session.")
@click.option("--case", "cases", type=click.Path(exists=True, file_okay=False), multiple=True,
              help="Run only the case in that folder; repeatable.")  # fmt: skip
@click.option("--golden", type=click.Path(exists=True, file_okay=False),
              help="Take golden cases from that folder, in place of making them.")  # fmt: skip
@click.option("--only", multiple=True, metavar="CHECK",
              help=f"{', '.join(CHECKS)}, or a pattern of golden cases' names; repeatable.")  # fmt: skip
@click.option("--examples", type=click.IntRange(min=0), help="Random graphs.  [default: 100, for --strength 200]")
@click.option("--time", "seconds", type=click.FloatRange(min=0, min_open=True), help="Begin no case after SECONDS.")
@click.option("--reply-time", type=click.FloatRange(min=0, min_open=True), default=LIMIT, show_default=True,
              help="Seconds that a reply may take.")  # fmt: skip
@click.option("--min-executed", type=click.IntRange(min=1), default=1, show_default=True,
              help="Do not pass unless so many cases were run.")  # fmt: skip
@click.option("--keep", type=click.Path(file_okay=False), help="Write failing cases below that folder.")
@output_file("--junit", help="Write a JUnit file; - is the output.")
@seed_option
@json_option
def check(port: str | None, strong: bool, one_shot: bool, reply_time: float, **wishes: Any) -> int:
    """Check a port, another implementation of the paradigm.

    Runs on it the golden cases that it says it can run, then random graphs of its operations, then orders of events and
    repeated runs. Values must lie within derived bounds, traces must be legal. What fails comes back as the smallest
    case that shows it.
    """
    if strong:
        return _strength(port, wishes)
    if port is None:
        raise click.UsageError("--port is missing: the command of the port to check")
    start = time.perf_counter()
    console = output(wishes["json_file"])
    named = ["--port", port, *(["--one-shot"] if one_shot else [])]
    with open_port(port, one_shot=one_shot, limit=reply_time) as opened:
        results, hello, problem = _run(console, opened, wishes)
    kept = _keep(results, wishes["keep"], named)
    outcome = verdict(results, wishes["min_executed"])
    _print(console, results, kept, hello, problem, outcome)
    if wishes["junit"] is not None:
        write_text(wishes["junit"], junit(results, port))
    facts = {**_facts(results, kept, hello), "seconds": time.perf_counter() - start, "seed": wishes["seed"],
             "problem": problem}  # fmt: skip
    write_json(wishes["json_file"], "check", outcome, facts)
    return CODES[outcome]


def _strength(port: str | None, wishes: dict[str, Any]) -> int:
    """The other use of the command: how strong its checks are."""
    if port is not None:
        raise click.UsageError("--strength measures the checks on a port of its own; leave --port out")
    examples = EXAMPLES if wishes["examples"] is None else wishes["examples"]
    return strength(_golden(wishes["golden"]), wishes["only"], examples, wishes["seed"], wishes["json_file"])


def _run(
    console: Console, port: SessionPort | OneShotPort, wishes: dict[str, Any]
) -> tuple[list[Result], dict[str, Any], str]:
    """All results; what the port said of itself; and why it could not be asked, or nothing."""
    results: list[Result] = []
    with ExitStack() as stack:
        work = Path(stack.enter_context(scratch()))
        bar = stack.enter_context(progress_bar(console))
        task = bar.add_task("check", total=None, note="")
        try:
            hello = port.hello
        except PortFault as fault:
            return [], {}, f"the port does not say what it can do: {fault}"
        for result in _results(Trial(port, work, trace_judge), wishes):
            results.append(result)
            bar.update(task, advance=1, note=f"{result.check} {result.name}")
    try:
        port.close()
    except PortFault as fault:
        results.append(Result(STOP, STOP, "fail", fault.kind, fault.reason))
    told = {"name": hello.name, "version": hello.version, "operations": sorted(hello.operations),
            "dtypes": sorted(hello.dtypes), "workers": hello.workers}  # fmt: skip
    return results, told, ""


def _results(trial: Trial, wishes: dict[str, Any]) -> Iterator[Result]:
    """Those of the cases that are named, or else of all checks."""
    if wishes["cases"]:
        yield from (replay_case(trial, str(folder), read_case(folder), Path(folder)) for folder in wishes["cases"])
        return
    examples = FEW if wishes["examples"] is None else wishes["examples"]
    options = Options(examples, wishes["seed"], wishes["seconds"], wishes["only"])
    golden = _golden(wishes["golden"]) if "golden" in options.checks else ()
    yield from check_port(trial, golden, options)


def _golden(folder: str | None) -> Named:
    """Golden cases, from a folder, or else made here, each when its turn comes."""
    if folder is not None:
        names = [case["name"] for case in read_manifest(folder)["cases"]]
        return [(name, partial(read_case, Path(folder) / name)) for name in names]
    return golden_makers().items()


def _keep(results: Sequence[Result], folder: str | None, port: Sequence[str]) -> dict[int, Kept]:
    """Write the failures that come with a case; by their position among the results."""
    failed = {i: (result, result.smaller) for i, result in enumerate(results) if result.smaller is not None}
    if not failed:
        return {}
    target = Path(folder) if folder is not None else Path(tempfile.mkdtemp(prefix="purine-ref-check-"))
    return {i: keep(result, smaller, target, port) for i, (result, smaller) in failed.items()}


# What people and scripts read -----------------------------------------------------------------------------------------


def _print(
    console: Console,
    results: Sequence[Result],
    kept: dict[int, Kept],
    hello: dict[str, Any],
    problem: str,
    outcome: str,
) -> None:
    """A table of checks, the failures, and the verdict."""
    if problem:
        console.print(problem, markup=False, soft_wrap=True)
    else:
        console.print(f"{hello['name']} {hello['version']}: {len(hello['operations'])} operations, "
                      f"{', '.join(hello['dtypes'])}, {hello['workers']} workers", markup=False)  # fmt: skip
        console.print(_table(results))
        idle = never_run(results, hello["operations"])
        if idle:
            console.print(f"never run: {', '.join(idle)}", markup=False)
    for line in _failures(results, kept):
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"verdict: {outcome}")


def _failures(results: Sequence[Result], kept: dict[int, Kept]) -> Iterator[str]:
    """Each failure that was made smaller, in full; of the others the first few of each check."""
    plain: Counter[str] = Counter()
    for i, result in enumerate(results):
        if i in kept and result.smaller is not None:
            yield from described(result, result.smaller, kept[i])
        elif result.outcome == "fail":
            plain[result.check] += 1
            if plain[result.check] <= MOST_LINES:
                yield f"{result.check} {result.name}: {result.kind}: {result.reason}"
    for check, count in plain.items():
        if count > MOST_LINES:
            yield f"{check}: and {count - MOST_LINES} more have failed; --json or --junit names all"


def _table(results: Sequence[Result]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("check", no_wrap=True)
    for name in ("executed", "failed", "unsupported", "skipped", "seconds"):
        table.add_column(name, justify="right")
    for row in _rows(results):
        cells = [f"{row[name]:,}" for name in ("executed", "failed", "unsupported", "skipped")]
        table.add_row(row["check"], *cells, f"{row['seconds']:.1f}")
    return table


def _rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One object for each check."""
    rows = []
    for name in dict.fromkeys(result.check for result in results):
        own = [result for result in results if result.check == name]
        found = counts(own)
        rows.append({"check": name, "executed": sum(result.executed for result in own), "failed": found["fail"],
                     "unsupported": found["unsupported"], "skipped": found["skipped"],
                     "seconds": sum(result.seconds for result in own)})  # fmt: skip
    return rows


def _facts(results: Sequence[Result], kept: dict[int, Kept], hello: dict[str, Any]) -> dict[str, Any]:
    """The keys that scripts read."""
    found = counts(results)
    return {
        "executed": sum(result.executed for result in results),
        "unsupported": found["unsupported"],
        "skipped": found["skipped"],
        "port": hello,
        "checks": _rows(results),
        "not_run": _not_run(results),
        "never_run": never_run(results, hello.get("operations", ())),
        "failures": [_failure(r, kept.get(i)) for i, r in enumerate(results) if r.outcome == "fail"],
    }


def _not_run(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Why cases were not run, and how many for each reason, the most first."""
    idle = [result for result in results if result.outcome in ("unsupported", "skipped")]
    found = Counter((result.outcome, result.reason) for result in idle)
    return [{"outcome": outcome, "reason": reason, "cases": count} for (outcome, reason), count in found.most_common()]


def _failure(result: Result, kept: Kept | None) -> dict[str, Any]:
    """One failure; `smallest` is null where it was not kept."""
    facts: dict[str, Any] = {"check": result.check, "name": result.name, "kind": result.kind, "reason": result.reason,
                             "operators": result.operators, "smallest": None}  # fmt: skip
    if kept is None or result.smaller is None:
        return facts
    smaller, finding = result.smaller, result.smaller.fault.finding
    facts["smallest"] = {
        "folder": str(kept.folder),
        "operators": len(smaller.case.graph.ops),
        "operations": list(smaller.case.operations),
        "tried": smaller.tried,
        "kind": smaller.fault.kind,
        "reason": smaller.fault.reason,
        "command": kept.port,
        "reference": kept.reference,
        "blob": None if finding is None else finding.blob,
        "iteration": None if finding is None else finding.iteration,
        "index": None if finding is None or finding.index is None else list(finding.index),
        "got": None if finding is None else number(finding.got),
        "want": None if finding is None else number(finding.want),
        "bound": None if finding is None else number(finding.bound),
    }
    return facts
