"""Golden cases: the same bytes on every machine, every operation often enough, and what they must be able to tell."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from purine_ref.conformance.cases import (
    MANIFEST,
    OPERATIONS,
    SUITES,
    Case,
    case_files,
    changed_files,
    compare,
    golden_makers,
    largest_ratio,
    read_case,
    read_manifest,
    run_case,
    write_golden,
)
from purine_ref.conformance.cases.building import plan_of
from purine_ref.conformance.cases.suites import graphs
from purine_ref.conformance.cases.suites.operators import LEAST
from purine_ref.errors import Refused

SHARE = 8
"""One of so many cases is in a sample."""

MAKERS = golden_makers()


def sample(part: int) -> list[str]:
    """Names of a part of all cases, the same in every process."""
    return [name for name in MAKERS if zlib.crc32(name.encode()) % SHARE == part or name == "training/dropout/01"]


def digest(names: list[str]) -> str:
    """Of all bytes of those cases."""
    found = hashlib.sha256()
    for name in names:
        for file, content in case_files(MAKERS[name]()).items():
            found.update(f"{name}/{file} {len(content)}\n".encode() + content)
    return found.hexdigest()


DIGEST = """
import sys
from test_cases_golden import MAKERS, digest, sample
print(digest(list(MAKERS) if sys.argv[1] == "all" else sample(int(sys.argv[1]))))
"""

ELSEWHERE = {
    "PURINE_REF_FAST": "0",
    "OPENBLAS_CORETYPE": "Prescott",
    "OPENBLAS_NUM_THREADS": "2",
    "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
    "PYTHONHASHSEED": "7",
}
"""What makes another machine of this one, as far as that goes: other kernels of BLAS, other vector functions."""


def digest_elsewhere(part: str) -> str:
    """The digest that a process gives which sees another machine."""
    tests = Path(__file__).parent
    path = os.pathsep.join([str(tests), str(tests.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    known = {name: value for name, value in os.environ.items() if name != "PURINE_REF_FAST"}
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", DIGEST, part],
        env={**known, **ELSEWHERE, "PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=170,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_cases_have_the_same_bytes_on_another_machine() -> None:
    names = sample(0)
    assert {name.partition("/")[0] for name in names} == set(SUITES)
    assert digest_elsewhere("0") == digest(names)


@pytest.mark.long
def test_all_cases_have_the_same_bytes_on_another_machine() -> None:
    assert digest_elsewhere("all") == digest(list(MAKERS))


@pytest.mark.parametrize("suite", SUITES)
def test_cases_agree_with_the_executors(suite: str) -> None:
    """Nothing is left out, everything is within its bound, on one executor and on the next."""
    names = [name for name in sample(1) if name.startswith(suite)]
    assert names
    for number, name in enumerate(names):
        require_sound(MAKERS[name](), "threads" if number % 2 else "serial")


@pytest.mark.long
@pytest.mark.parametrize("executor", ["serial", "threads", "ranks"])
def test_all_cases_agree_with_the_executors(executor: str) -> None:
    for make in MAKERS.values():
        case = make()
        if executor != "ranks" or all(blob.location.is_cpu for blob in case.graph.blobs):
            require_sound(case, executor)


def require_sound(case: Case, executor: str) -> None:
    """All blobs are expected where any of that iteration is, and the executor gives them."""
    lost = plan_of(case.graph).lost
    readable = {blob.name for blob in case.graph.blobs if blob.producers and blob not in lost}
    assert {entry.blob for entry in case.expected if entry.iteration == 0} == readable, case.name
    results = run_case(case, executor, threads=3)
    assert [str(finding) for finding in compare(case, results)] == [], case.name
    assert all(largest_ratio(entry, results[entry.iteration, entry.blob]) <= 1 for entry in case.expected)


def test_every_operation_has_its_cases() -> None:
    counts = Counter(name.split("/")[1] for name in MAKERS if name.startswith("operators/"))
    assert counts.keys() == OPERATIONS.keys()
    assert min(counts.values()) >= LEAST == 8


def test_the_cases_of_an_operation_are_of_all_kinds() -> None:
    """By what the cases themselves hold, not by what they say."""
    cases = [make() for name, make in MAKERS.items() if name.startswith("operators/Conv2d/")]
    windows = [case.graph.ops[0].operation for case in cases]
    assert {window.groups for window in windows} >= {1, 2, 4}  # type: ignore[attr-defined]
    assert any(window.stride[0] != window.stride[1] for window in windows)  # type: ignore[attr-defined]
    assert any(begin != end for window in windows for begin, end in window.pads)  # type: ignore[attr-defined]
    assert any(window.dilation[0] != window.dilation[1] for window in windows)  # type: ignore[attr-defined]
    assert {"float32", "float64"} <= {dtype for case in cases for dtype in case.dtypes}
    assert any(case.graph["x0"].shape[0] == 0 for case in cases if "x0" in case.graph)
    assert any(np.isnan(array).any() for case in cases for array in case.feeds[0].values())
    assert any(len(case.graph["y"].producers) == 3 and case.initial["y"].min() == 7 for case in cases)
    assert any("Conv2dWeightGradient" in case.operations for case in cases)
    assert any(entry.exact for case in cases for entry in case.expected)


def test_parallel_cases_have_copies_between_locations() -> None:
    case = MAKERS["parallel/perceptron-data-3-uneven/00"]()
    assert len({blob.location for blob in case.graph.blobs}) == 3
    assert "Copy" in case.operations


def test_training_has_ten_steps_and_a_rate_that_changes() -> None:
    case = MAKERS["training/sgd/00"]()
    rates = [float(feed["rate"]) for feed in case.feeds]
    assert len(rates) == 10
    assert len(set(rates)) == 2
    assert {entry.iteration for entry in case.expected} == set(range(10))


@pytest.mark.parametrize("name", graphs.EXACT)
def test_exact_networks_are_exact(name: str) -> None:
    [case] = [MAKERS[each]() for each in MAKERS if each == f"graphs/{name}/02"]
    assert all(entry.exact for entry in case.expected)


def test_an_order_of_arrival_shows() -> None:
    """Rule R4: the same additions in another order give other bits, and the case tells."""
    case = MAKERS["graphs/fan-in/00"]()
    fed = [case.feeds[0][f"x{i}"] for i in range(9)]
    total = np.zeros(4, "f4")
    for part in fed[::-1]:
        total = total + part
    assert compare(case, {(0, "y"): total})


# The folder ------------------------------------------------------------


@pytest.fixture
def golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of four cases of each of two suites."""
    for suite in ("operators", "graphs"):
        few = dict(list(SUITES[suite]().items())[:4])
        monkeypatch.setitem(SUITES, suite, lambda few=few: few)  # type: ignore[misc, arg-type]
    write_golden(tmp_path / "cases", ("operators", "graphs"))
    return tmp_path / "cases"


def test_the_manifest_counts_and_digests_every_file(golden: Path) -> None:
    manifest = read_manifest(golden)
    assert manifest["counts"] == {"operators": 4, "graphs": 4}
    assert manifest["operations"].keys() == OPERATIONS.keys()
    assert manifest["operations"]["AdaGrad"] == 4
    files = {file.relative_to(golden).as_posix(): file for file in golden.rglob("*") if file.is_file()}
    assert files.keys() - {MANIFEST} == manifest["files"].keys()
    for name, facts in manifest["files"].items():
        content = files[name].read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (facts["bytes"], facts["sha256"])
    assert [read_case(golden / case["name"]).name for case in manifest["cases"]] == [
        case["name"] for case in manifest["cases"]
    ]
    assert changed_files(golden) == []


def test_changed_files_are_found(golden: Path) -> None:
    first, second = list(read_manifest(golden)["files"])[1:3]
    (golden / first).write_bytes(b"x" + (golden / first).read_bytes()[1:])
    (golden / second).unlink()
    assert changed_files(golden) == [first, second]


def test_a_golden_folder_is_written_again_and_another_is_not(golden: Path) -> None:
    write_golden(golden, ("graphs",))
    assert read_manifest(golden)["counts"] == {"graphs": 4}
    assert not (golden / "operators").exists()
    (golden / "mine.txt").write_text("mine")
    with pytest.raises(Refused, match="expected an empty folder"):
        write_golden(golden, ("graphs",))
    assert (golden / "mine.txt").exists()
    write_golden(golden, ("graphs",), replace=True)
    assert not (golden / "mine.txt").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(format="purine-golden/2"),
        lambda m: m.pop("files"),
        lambda m: m["cases"][0].update(name="../other"),
        lambda m: m["cases"][0].update(name="/etc"),
        lambda m: m["cases"][0].pop("dtypes"),
        lambda m: m["files"].update({"../x": {"bytes": 1, "sha256": ""}}),
    ],
)
def test_a_manifest_that_is_none_is_refused(golden: Path, change: Any) -> None:
    manifest = read_manifest(golden)
    change(manifest)
    (golden / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(Refused, match=MANIFEST):
        read_manifest(golden)


def test_a_case_with_another_value_differs(golden: Path) -> None:
    """Each element of an exact entry, and each that is pushed past its bound, is found."""
    tried = 0
    for each in read_manifest(golden)["cases"]:
        case = read_case(golden / each["name"])
        results = run_case(case)
        entry = next((e for e in case.expected if e.value.size and np.isfinite(e.value).all()), None)
        if entry is None:  # an empty batch, or NaN
            continue
        wrong = entry.value.copy()
        largest = 0.0 if entry.exact else float(np.max(entry.bound))  # type: ignore[arg-type]
        wrong.reshape(-1)[-1] += 2 * largest + np.spacing(np.abs(wrong.reshape(-1)[-1]))
        (finding,) = compare(replace(case, expected=(entry,)), {**results, (entry.iteration, entry.blob): wrong})
        assert finding.index == tuple(n - 1 for n in entry.value.shape)
        tried += 1
    assert tried >= 6
