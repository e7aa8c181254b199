"""`read_case`: a case from its folder. Anything that is not just what the format says is refused, with its place."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from purine_ref.conformance.cases.attributes import (
    require_integer,
    require_list,
    require_object,
    require_text,
    shortened,
)
from purine_ref.conformance.cases.building import MEMORY, graph_from_data, plan_of
from purine_ref.conformance.cases.case import CASE_FILE, FORMAT, Case, Expected
from purine_ref.conformance.cases.files import inside, read_array, require_file_name
from purine_ref.errors import GraphError, Refused
from purine_ref.graph import Blob, Graph
from purine_ref.operation import Array
from purine_ref.schedule import order_ranks
from purine_ref.tensor import Tensor

LONGEST_JSON = 1 << 26
"""Bytes of the largest `case.json` that is read."""

MOST_ITERATIONS = 1_000_000
"""Runs of a case, and no more."""

LARGEST_BOUND = 1e300
"""A bound, and no more."""

FIELDS = ("format", "name", "about", "seed", "iterations", "graph", "initial", "feeds", "expected", "schedule")


def read_case(path: str | os.PathLike[str], *, memory: int = MEMORY) -> Case:
    """The case in the folder `path`. `memory` limits the bytes of all blobs, and those of all arrays that are read.

    Raises Refused, with the file and the place in it, for anything that is not a case as `docs/porting/cases.md` has
    it, and OSError when a file cannot be read.
    """
    folder = Path(path)
    try:
        return _Reader(folder, memory).case(read_json(inside(folder, CASE_FILE, CASE_FILE)))
    except Refused as error:
        raise Refused(f"{folder}: {error}") from error.__cause__


def read_json(path: Path) -> Any:
    """What a JSON file says. Raises Refused for what is not strict JSON."""
    if path.stat().st_size > LONGEST_JSON:
        raise Refused(f"{path.name}: expected at most {LONGEST_JSON} bytes, got {path.stat().st_size}")
    try:
        return json.loads(path.read_bytes().decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path.name}: expected JSON, got something else: {str(error)[:200]}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"an object has a name twice: {', '.join(shortened(name) for name, _ in pairs[:8])}")
    return found


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


class _Reader:
    """Reads one case. `left` are the bytes of arrays that may still be read."""

    def __init__(self, folder: Path, memory: int) -> None:
        self.folder = folder
        self.memory = memory
        self.left = memory

    def case(self, data: object) -> Case:
        """The case of what `case.json` says. Raises Refused."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            came = data.get("format") if isinstance(data, dict) else data
            raise Refused(f"format: expected {FORMAT!r}, got {shortened(came)}; read it with what wrote it")
        given = require_object(data, "case.json", FIELDS)
        graph = graph_from_data(given["graph"], self.memory)
        iterations = require_integer(given["iterations"], "iterations", 1, MOST_ITERATIONS)
        return Case(
            require_text(given["name"], "name"),
            require_text(given["about"], "about"),
            require_integer(given["seed"], "seed", 0, 2**64 - 1),
            graph,
            self.initial(given["initial"], graph),
            self.feeds(given["feeds"], graph, iterations),
            self.expected(given["expected"], graph, iterations),
            _schedule(given["schedule"], graph),
        )

    def array(self, name: object, tensor: Tensor, where: str) -> Array:
        """The array in the file of that name. Raises Refused."""
        file = require_file_name(name, where)
        if tensor.nbytes > self.left:
            raise Refused(f"{where}: expected arrays of {self.memory} bytes in all at most, got more with {file!r}")
        self.left -= tensor.nbytes
        return read_array(self.folder, file, tensor, where)

    def initial(self, data: object, graph: Graph) -> Mapping[str, Array]:
        """Persistent blobs before iteration 0. Raises Refused."""
        found = {}
        for name, file in _mapping(data, "initial").items():
            blob = _known(graph, name, "initial")
            if not blob.persistent:
                raise Refused(f"initial.{name}: expected a persistent blob, got {blob!r}; feed it")
            found[name] = self.array(file, blob.tensor, f"initial.{name}")
        return found

    def feeds(self, data: object, graph: Graph, iterations: int) -> tuple[Mapping[str, Array], ...]:
        """What is fed, for every iteration. Raises Refused."""
        given = require_list(data, "feeds")
        if len(given) != iterations:
            raise Refused(f"feeds: expected {iterations} objects, one for each iteration, got {len(given)}")
        return tuple(self.feed(each, graph, f"feeds[{i}]") for i, each in enumerate(given))

    def feed(self, data: object, graph: Graph, where: str) -> Mapping[str, Array]:
        """What is fed before one iteration. Raises Refused."""
        given = _mapping(data, where)
        for name in given:
            if _known(graph, name, where).producers:
                raise Refused(f"{where}.{name}: expected a blob that no operator writes")
        for blob in graph.blobs:
            if must_be_fed(blob) and blob.name not in given:
                raise Refused(f"{where}: expected an array for {blob.name!r}, which nothing writes, got none")
        order = sorted(given, key=lambda name: graph[name].index)
        return {name: self.array(given[name], graph[name].tensor, f"{where}.{name}") for name in order}

    def expected(self, data: object, graph: Graph, iterations: int) -> tuple[Expected, ...]:
        """The entries, of which there is at least one. Raises Refused."""
        given = require_list(data, "expected")
        if not given:
            raise Refused("expected: expected one entry or more, got none: such a case would judge nothing")
        lost = {blob.name for blob in plan_of(graph).lost}
        entries = [self.entry(each, graph, iterations, f"expected[{i}]") for i, each in enumerate(given)]
        seen: set[str] = set()
        for index, entry in enumerate(entries):
            if entry.file.lower() in seen:
                raise Refused(f"expected[{index}].file: expected a file for each entry, got {entry.file!r} again")
            seen.add(entry.file.lower())
            if entry.blob in lost:
                raise Refused(f"expected[{index}].blob: {entry.blob!r} is overwritten in place, and cannot be read")
        return tuple(entries)

    def entry(self, data: object, graph: Graph, iterations: int, where: str) -> Expected:
        """One entry of `expected`. Raises Refused."""
        given = require_object(data, where, ("iteration", "blob", "file", "exact", "bound", "reason"))
        iteration = require_integer(given["iteration"], f"{where}.iteration", 0, iterations - 1)
        blob = _known(graph, given["blob"], f"{where}.blob")
        file = require_file_name(given["file"], f"{where}.file")
        value = self.array(file, blob.tensor, f"{where}.file")
        if type(given["exact"]) is not bool or given["exact"] != (given["bound"] is None):
            raise Refused(f"{where}.exact: expected true with the bound null, or false with a bound")
        bound = self.bound(given["bound"], blob, f"{where}.bound")
        return Expected(iteration, blob.name, value, bound, require_text(given["reason"], f"{where}.reason"), file)

    def bound(self, data: object, blob: Blob, where: str) -> Array | float | None:
        """A bound: None, a number, or the array of a file; finite and not negative. Raises Refused."""
        if data is None:
            return None
        if isinstance(data, dict):
            file = require_object(data, where, ("file",))["file"]
            bound = self.array(file, Tensor(blob.shape, "float64"), f"{where}.file")
        else:
            bound = np.array(_number(data), np.float64)
        if not (np.isfinite(bound) & (bound >= 0)).all():
            raise Refused(f"{where}: expected finite numbers of 0 or more, got {shortened(data)}")
        return bound if isinstance(data, dict) else float(bound)


def _number(data: object) -> float:
    """A number of JSON as a float; NaN for anything else, and for integers that no bound is as large as."""
    if isinstance(data, bool) or not isinstance(data, int | float) or abs(data) > LARGEST_BOUND:
        return math.nan
    return float(data)


def must_be_fed(blob: Blob) -> bool:
    """Whether each iteration must feed the blob: nothing writes it, and it holds nothing by itself."""
    if blob.producers or blob.persistent:
        return False
    return blob.view is None or bool(blob.view.parent.producers)


def _mapping(data: object, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise Refused(f"{where}: expected an object from names of blobs to files, got {shortened(data)}")
    return data


def _known(graph: Graph, name: object, where: str) -> Blob:
    if not isinstance(name, str) or name not in graph:
        raise Refused(f"{where}: expected the name of a blob of the graph, got {shortened(name)}")
    return graph[name]


def _schedule(data: object, graph: Graph) -> tuple[str, ...] | None:
    """The order of all operators, or None. Raises Refused unless it is topological."""
    if data is None:
        return None
    names = [require_text(name, f"schedule[{i}]") for i, name in enumerate(require_list(data, "schedule"))]
    try:
        order_ranks(plan_of(graph), names)
    except (ValueError, GraphError) as error:
        raise Refused(f"schedule: {error}") from None
    return tuple(names)
