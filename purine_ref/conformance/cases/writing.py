"""`write_case`: a case as a folder of plain files. The same case gives the same bytes on every machine."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from purine_ref.conformance.cases.building import graph_to_data
from purine_ref.conformance.cases.case import CASE_FILE, FORMAT, Case, Expected
from purine_ref.conformance.cases.files import new_folder
from purine_ref.graph import Graph
from purine_ref.operation import Array
from purine_ref.snapshot import encode_npy

LONGEST_PART = 60
"""Characters of a blob's name that its files repeat."""


def write_case(case: Case, path: str | os.PathLike[str], *, replace: bool = False) -> None:
    """Write `case` into the folder `path`, beside and renamed; files get names after their blobs.

    Raises Refused when there are files in the folder already, unless they are to be replaced; OSError.
    """
    with new_folder(Path(path), replace) as folder:
        for name, content in case_files(case).items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)


def case_files(case: Case) -> dict[str, bytes]:
    """The files of a case, by their names in its folder. Raises GraphError for an attribute without a JSON form."""
    files: dict[str, bytes] = {}

    def put(folder: str, blob: str, array: Array) -> str:
        """Keep an array as a file; returns its name."""
        name = f"{folder}/{file_name(case.graph, blob)}"
        files[name] = encode_npy(np.asarray(array))
        return name

    data = {
        "format": FORMAT,
        "name": case.name,
        "about": case.about,
        "seed": case.seed,
        "iterations": case.iterations,
        "graph": graph_to_data(case.graph),
        "initial": {blob: put("initial", blob, array) for blob, array in case.initial.items()},
        "feeds": [_feed(case.feeds, i, put) for i in range(case.iterations)],
        "expected": [_entry(entry, put) for entry in case.expected],
        "schedule": None if case.schedule is None else list(case.schedule),
    }
    text = json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    return {CASE_FILE: text.encode("utf-8"), **files}


def file_name(graph: Graph, blob: str) -> str:
    """A name that every file system takes: the blob's number, and as much of its name as is safe."""
    return f"{graph[blob].index}-{re.sub(r'[^A-Za-z0-9_-]', '-', blob)[:LONGEST_PART]}.npy"


def _feed(feeds: tuple[Mapping[str, Array], ...], iteration: int, put: Any) -> dict[str, str]:
    """The files of one iteration. An array that is fed again has one file."""
    named = {}
    for blob, array in feeds[iteration].items():
        first = next(i for i, feed in enumerate(feeds) if feed.get(blob) is array)
        named[blob] = put(f"feeds/{first}", blob, array)
    return named


def _entry(entry: Expected, put: Any) -> dict[str, Any]:
    bound: Any = entry.bound
    if isinstance(bound, np.ndarray):
        bound = {"file": put(f"bounds/{entry.iteration}", entry.blob, bound)}
    return {
        "iteration": entry.iteration,
        "blob": entry.blob,
        "file": put(f"expected/{entry.iteration}", entry.blob, entry.value),
        "exact": entry.exact,
        "bound": bound,
        "reason": entry.reason,
    }
