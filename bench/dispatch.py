"""What dispatching costs per operator; `purine-ref bench dispatch` as a script, for a source tree.

Run it from the repository's root. What is measured is told in `purine_ref/benchmarks/dispatch.py`.
"""

from __future__ import annotations

import click
from script import save, show, start

from purine_ref.benchmarks.dispatch import run
from purine_ref.benchmarks.options import peers_option, runs_option, small_option

EPILOG = """\b
Examples:
  python bench/dispatch.py
  python bench/dispatch.py --operators 2000 --runs 3
  python bench/dispatch.py --json dispatch.json
"""


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--operators", type=click.IntRange(1), default=100_000, show_default=True, help="Size of each graph.")
@runs_option
@peers_option
@small_option(10_000)
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Write the rows there; - is the output.")
def main(operators: int, runs: int, peers: tuple[str, ...], small: int, json_file: str | None) -> None:
    """Nanoseconds per operator of readiness and dispatch, for operators that do nothing, beside peers."""
    series, notes, *_ = run(operators, small, runs, peers)
    if json_file != "-":
        show("dispatch", series, "operators", notes)
    save(json_file, series, notes)


if __name__ == "__main__":
    start(main)
