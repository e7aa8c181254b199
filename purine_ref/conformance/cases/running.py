"""`run_case`: a case on an executor of this package, as `docs/porting/cases.md` says that it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from purine_ref.conformance.cases.building import everywhere
from purine_ref.conformance.cases.case import Case, Results
from purine_ref.conformance.cases.files import inside, new_folder, read_array
from purine_ref.errors import Refused
from purine_ref.executors import Executor, Memory, Observer, Serial, Threaded
from purine_ref.executors.ranks import Ranks
from purine_ref.operation import Array
from purine_ref.snapshot import encode_npy

EXECUTORS: dict[str, Callable[..., Executor]] = {"serial": Serial, "threads": Threaded, "ranks": Ranks}
"""How a case can be run: one operator after the other, by several threads, and by an executor for each rank."""


def run_case(
    case: Case, executor: str = "serial", *, threads: int = 2, observer: Observer | None = None
) -> dict[tuple[int, str], Array]:
    """Run `case`; returns what its entries of `expected` name, by iteration and blob. All locations are the CPU.

    `executor` is a key of `EXECUTORS`; all but serial have so many `threads`, ranks so many each. The case's schedule
    holds on all of them. Raises what an operator raises, GraphError for a graph that cannot run there, ValueError for
    another executor.
    """
    if executor not in EXECUTORS:
        raise ValueError(f"executor: expected one of {', '.join(EXECUTORS)}, got {executor!r}")
    memory = Memory()
    for name, array in case.initial.items():
        memory.put(name, case.graph[name].tensor, array)
    options = {} if executor == "serial" else {"threads": threads}
    results: dict[tuple[int, str], Array] = {}
    with EXECUTORS[executor](
        case.graph, seed=case.seed, order=case.schedule, memory=memory, devices=everywhere, observer=observer, **options
    ) as running:
        for iteration, feed in enumerate(case.feeds):
            running.feed(dict(feed))
            running.run_async()
            running.sync(commit=False)  # until then the new values have names of their own
            wanted = [entry.blob for entry in case.expected if entry.iteration == iteration]
            results |= {(iteration, blob): running.fetch(blob) for blob in wanted}
            running.commit()
    return results


def write_results(case: Case, results: Results, path: str | os.PathLike[str], *, replace: bool = False) -> None:
    """Write results under the names that the case's entries have; see "Results" in `docs/porting/cases.md`.

    Raises Refused when there are files in the folder already, unless they are to be replaced; OSError.
    """
    with new_folder(Path(path), replace) as folder:
        for entry in case.expected:
            file = folder / entry.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encode_npy(results[entry.iteration, entry.blob]))


def read_results(case: Case, path: str | os.PathLike[str]) -> dict[tuple[int, str], Array]:
    """What a folder of results has for the case's entries; entries without a file are left out.

    Raises Refused when the folder is not there, and for a file that is not an array of the entry's shape and dtype.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise Refused(f"{folder}: expected a folder of results, got none")
    results = {}
    for entry in case.expected:
        if (folder / entry.file).exists():
            inside(folder, entry.file, "result")
            tensor = case.graph[entry.blob].tensor
            results[entry.iteration, entry.blob] = read_array(folder, entry.file, tensor, f"result {entry.blob!r}")
    return results
