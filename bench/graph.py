"""What a graph costs per node over its life; `purine-ref bench graph` as a script, for a source tree.

Run it from the repository's root. What is measured is told in `purine_ref/benchmarks/graph.py`.
"""

from __future__ import annotations

import click
from script import save, show, start

from purine_ref.benchmarks.graph import run
from purine_ref.benchmarks.options import runs_option, size_options

EPILOG = """\b
Examples:
  python bench/graph.py
  python bench/graph.py --operators 2000 --peak 0 --runs 3
  python bench/graph.py --json graph.json
"""


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@size_options
@runs_option
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Write the rows there; - is the output.")
def main(operators: int, peak: int, runs: int, json_file: str | None) -> None:
    """Nanoseconds per node of building, preparing, binding, running and freeing graphs of three sizes, and memory."""
    series, notes = run(operators, peak, runs)
    if json_file != "-":
        show("graph", series, "nodes", notes)
    save(json_file, series, notes)


if __name__ == "__main__":
    start(main)
