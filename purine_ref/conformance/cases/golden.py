"""`write_golden`: the cases of all suites in one folder, with a manifest of counts and of every file's SHA-256.

Everything is a function of the package's version alone: two calls, on whatever machine, write the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from purine_ref.conformance.cases.attributes import (
    OPERATIONS,
    require_integer,
    require_list,
    require_object,
    require_text,
)
from purine_ref.conformance.cases.case import Case, Makers
from purine_ref.conformance.cases.files import new_folder
from purine_ref.conformance.cases.reading import read_json
from purine_ref.conformance.cases.suites.graphs import graph_cases
from purine_ref.conformance.cases.suites.operators import operator_cases
from purine_ref.conformance.cases.suites.parallel import parallel_cases
from purine_ref.conformance.cases.suites.training import training_cases
from purine_ref.conformance.cases.writing import case_files
from purine_ref.errors import Refused

FORMAT = "purine-golden/1"
"""What the manifest's field `format` says."""

MANIFEST = "manifest.json"

SUITES: Mapping[str, Callable[[], Makers]] = {
    "operators": operator_cases,
    "graphs": graph_cases,
    "parallel": parallel_cases,
    "training": training_cases,
}
"""The cases of every suite, by its name; a case's name starts with it."""

FIELDS = ("format", "counts", "operations", "cases", "files")


def golden_makers(suites: Sequence[str] = tuple(SUITES)) -> Makers:
    """The cases of those suites by name, in their order, none of them made yet. Raises KeyError for no suite."""
    return {name: make for suite in suites for name, make in SUITES[suite]().items()}


def golden_cases(suites: Sequence[str] = tuple(SUITES)) -> Iterator[Case]:
    """The cases of those suites, one after the other. Raises KeyError for a suite that there is not."""
    for make in golden_makers(suites).values():
        yield make()


def write_golden(
    path: str | os.PathLike[str],
    suites: Sequence[str] = tuple(SUITES),
    *,
    replace: bool = False,
    written: Callable[[Case], None] = lambda case: None,
) -> dict[str, Any]:
    """Write the cases of `suites` into the folder `path`, beside and renamed; returns the manifest.

    `written` is called after each case. A folder with files is refused, but for one that this function has written,
    and any with `replace`. Raises Refused, OSError, KeyError.
    """
    target = Path(path)
    with new_folder(target, replace or is_golden(target)) as folder:
        manifest = _Manifest(suites)
        for case in golden_cases(suites):
            files = {f"{case.name}/{name}": content for name, content in case_files(case).items()}
            for name, content in files.items():
                file = folder / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            manifest.add(case, files)
            written(case)
        whole = manifest.data()
        (folder / MANIFEST).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    return whole


class _Manifest:
    """Grows with every case."""

    def __init__(self, suites: Sequence[str]) -> None:
        self.counts = dict.fromkeys(suites, 0)
        self.operations: Counter[str] = Counter(dict.fromkeys(OPERATIONS, 0))
        self.cases: list[dict[str, Any]] = []
        self.files: dict[str, dict[str, Any]] = {}

    def add(self, case: Case, files: Mapping[str, bytes]) -> None:
        """Count a case and its files."""
        self.counts[case.name.partition("/")[0]] += 1
        self.operations.update(case.operations)
        self.cases.append(
            {
                "name": case.name,
                "operations": list(case.operations),
                "dtypes": list(case.dtypes),
                "locations": len({blob.location for blob in case.graph.blobs}),
                "iterations": case.iterations,
            }
        )
        self.files |= {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in files.items()
        }

    def data(self) -> dict[str, Any]:
        """The manifest as it is written."""
        return {
            "format": FORMAT,
            "counts": self.counts,
            "operations": dict(sorted(self.operations.items())),
            "cases": self.cases,
            "files": self.files,
        }


def is_golden(path: Path) -> bool:
    """Whether `path` is a folder that `write_golden` has written: nothing in it is somebody's own."""
    try:
        manifest = read_manifest(path)
    except (Refused, OSError):
        return False
    found = {file.relative_to(path).as_posix() for file in path.rglob("*") if not file.is_dir()}
    return found <= {MANIFEST, *manifest["files"]}


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of a folder of cases. Raises Refused for what is none, OSError when it cannot be read.

    Case names are paths inside the folder; that the files are as the manifest says is for `changed_files`.
    """
    file = Path(path) / MANIFEST
    if not file.is_file():
        raise Refused(f"{path}: expected a folder with {MANIFEST}, as purine-ref golden writes it, got none")
    try:
        given = read_json(file)
        if not isinstance(given, dict) or given.get("format") != FORMAT:
            raise Refused(f"format: expected {FORMAT!r}")
        require_object(given, MANIFEST, FIELDS)
        for number, case in enumerate(require_list(given["cases"], "cases")):
            _require_case(case, f"cases[{number}]")
        for name, facts in require_object(given["files"], "files", (), given["files"]).items():
            _require_inside(name, "files")
            require_text(require_object(facts, f"files.{name}", ("bytes", "sha256"))["sha256"], f"files.{name}.sha256")
    except Refused as error:
        raise Refused(f"{file}: {error}") from None
    return given


def _require_case(case: object, where: str) -> None:
    fields = ("name", "operations", "dtypes", "locations", "iterations")
    given = require_object(case, where, fields)
    _require_inside(require_text(given["name"], f"{where}.name"), where)
    for field in ("operations", "dtypes"):
        for name in require_list(given[field], f"{where}.{field}"):
            require_text(name, f"{where}.{field}")
    for field in ("locations", "iterations"):
        require_integer(given[field], f"{where}.{field}", 1)


def _require_inside(name: str, where: str) -> None:
    """Raise Refused for a path that leads out of the folder."""
    parts = name.split("/")
    if not name or "\\" in name or ":" in name or any(part in ("", ".", "..") for part in parts):
        raise Refused(f"{where}: expected a path inside the folder, got {name[:80]!r}")


def changed_files(path: str | os.PathLike[str]) -> list[str]:
    """The files of a folder of cases that are not as its manifest says, or not there. Raises as `read_manifest`."""
    folder = Path(path)
    return [name for name, facts in read_manifest(folder)["files"].items() if not _is_as_told(folder / name, facts)]


def _is_as_told(file: Path, facts: Mapping[str, Any]) -> bool:
    if not file.is_file() or file.stat().st_size != facts["bytes"]:
        return False
    return bool(hashlib.sha256(file.read_bytes()).hexdigest() == facts["sha256"])
