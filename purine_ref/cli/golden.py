"""`purine-ref golden`: write cases as plain files."""

from __future__ import annotations

import time
from pathlib import Path

import click

from purine_ref.cli.report import CODES, json_option, output, progress_bar, seed_option, write_json
from purine_ref.conformance.cases import SUITES, Case, write_golden

EPILOG = """\b
Examples:
  purine-ref golden cases
  purine-ref golden operators --suite operators
  purine-ref run cases/operators/Conv2d/03

The files are the same on every machine, and for every seed. Their format is in the documentation under "Porting".
"""


@click.command(epilog=EPILOG)
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--suite", type=click.Choice([*SUITES, "all"]), default="all", show_default=True, help="Which cases.")
@click.option("--force", is_flag=True, help="Replace a folder that has other files in it.")
@seed_option
@json_option
def golden(folder: str, suite: str, force: bool, seed: int, json_file: str | None) -> int:
    """Write cases into DIR: graphs, what they are fed, what they must give, and how nearly."""
    start = time.perf_counter()
    console = output(json_file)
    suites = list(SUITES) if suite == "all" else [suite]
    with progress_bar(console) as progress:
        task = progress.add_task("cases", total=None, note="")

        def written(case: Case) -> None:
            """Show one more case."""
            progress.update(task, advance=1, note=case.name)

        manifest = write_golden(Path(folder), suites, replace=force, written=written)
    counts: dict[str, int] = manifest["counts"]
    for name, count in counts.items():
        console.print(f"{name:12} {count:5} cases")
    size = sum(facts["bytes"] for facts in manifest["files"].values())
    console.print(f"{sum(counts.values())} cases in {len(manifest['files']):,} files, {size:,} bytes: {folder}")
    facts = {
        "executed": sum(counts.values()),
        "skipped": 0,
        "seconds": time.perf_counter() - start,
        "seed": seed,
        "counts": counts,
        "operations": manifest["operations"],
        "files": len(manifest["files"]),
        "bytes": size,
    }
    write_json(json_file, "golden", "pass", facts)
    return CODES["pass"]
