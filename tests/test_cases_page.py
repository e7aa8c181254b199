"""The reader of `docs/porting/cases.md`: it is extracted, run without the package, and agrees with the package."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from purine_ref.conformance.cases import compare, golden_makers, read_case, run_case, write_case, write_results

PAGE = (Path(__file__).parent.parent / "docs" / "porting" / "cases.md").read_text("utf-8")

NAMES = (
    "operators/Conv2d/02",
    "operators/MaxPool2d/06",
    "operators/Constant/05",
    "operators/ReduceSum/00",
    "graphs/gated/00",
    "graphs/fan-in/00",
    "parallel/perceptron-data-2/01",
)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's program, in a file."""
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path_factory.mktemp("reader") / "reader.py"
    file.write_text(program, "utf-8")
    return file


def test_the_page_is_a_page(reader: Path) -> None:
    text = reader.read_text("utf-8")
    assert len(text.splitlines()) <= 110
    assert not re.search(r"^\s*(import|from) .*(numpy|purine)", text, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_it_reads_what_the_package_reads(reader: Path, tmp_path: Path, name: str) -> None:
    write_case(golden_makers()[name](), tmp_path / "case")
    case = read_case(tmp_path / "case")
    found = runpy.run_path(str(reader))["read_case"](str(tmp_path / "case"))
    for blob, array in case.initial.items():
        assert same(found["initial"][blob], array)
    for feed, arrays in zip(found["feeds"], case.feeds, strict=True):
        assert feed.keys() == arrays.keys()
        assert all(same(feed[blob], array) for blob, array in arrays.items())
    for entry, expected in zip(found["expected"], case.expected, strict=True):
        assert same(entry["value"], expected.value)
        bound = np.broadcast_to(np.float64(0 if expected.bound is None else expected.bound), expected.value.shape)
        assert same(entry["bounds"], bound)


def same(flat: list[Any], array: Any) -> bool:
    return np.array_equal(np.array(flat, array.dtype), array.reshape(-1), equal_nan=array.dtype.kind == "f")


def test_it_judges_as_the_package_does(reader: Path, tmp_path: Path) -> None:
    write_case(golden_makers()["graphs/gated/00"](), tmp_path / "case")
    case = read_case(tmp_path / "case")
    results = run_case(case)
    write_results(case, results, tmp_path / "right")
    results[1, "loss0"] = results[1, "loss0"] + np.float32(0.01)
    write_results(case, results, tmp_path / "wrong")
    assert len(compare(case, results)) == 1
    for folder, code in (("right", 0), ("wrong", 1)):
        command = [sys.executable, "-I", str(reader), str(tmp_path / "case"), str(tmp_path / folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done.stderr
        assert ("iteration 1, loss0, element 0: got" in done.stdout) is bool(code)


@pytest.mark.parametrize("name", ["../x.npy", "/x.npy", "a/.b.npy", "x.txt"])
def test_it_refuses_names_that_lead_elsewhere(reader: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="may not name"):
        runpy.run_path(str(reader))["read_array"](str(tmp_path), name, [1], "float32")


@pytest.mark.parametrize("descr", ["<f8", "|O", ">f4"])
def test_it_refuses_other_arrays(reader: Path, tmp_path: Path, descr: str) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3), descr), allow_pickle=True)
    with pytest.raises(ValueError, match="is not"):
        runpy.run_path(str(reader))["read_array"](str(tmp_path), "x.npy", [2, 3], "float32")


def test_the_page_of_operations_is_what_the_operations_say() -> None:
    """`python docs/operations_page.py` writes it anew."""
    docs = Path(__file__).parent.parent / "docs"
    page = runpy.run_path(str(docs / "operations_page.py"))["page"]()
    assert (docs / "porting" / "operations.md").read_text("utf-8") == page
