"""Cases as plain files: what is written is read again, and whatever is not a case is refused with its place."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purine_ref import optim
from purine_ref.conformance.cases import (
    EXECUTORS,
    OPERATIONS,
    Case,
    compare,
    golden_makers,
    make_case,
    read_case,
    read_results,
    run_case,
    write_case,
    write_results,
)
from purine_ref.conformance.cases.building import graph_from_data, graph_to_data
from purine_ref.conformance.cases.files import new_folder
from purine_ref.errors import GraphError, Refused
from purine_ref.executors import Observer
from purine_ref.gradients import backward
from purine_ref.graph import Graph, Op
from purine_ref.layers import squared_error
from purine_ref.ops import Bernoulli, Constant, Conv2d, Copy, Gaussian, Linear, Mul, ReLU, Scale, Sum, Uniform
from purine_ref.tensor import Location


def example() -> Case:
    """Two steps of a small network: parameters, pairs, a rate, and what is fed."""
    graph = Graph("small")
    x = graph.blob("x", (3, 2))
    weight = graph.parameter("fc/weight", (4, 2), "float32", Constant(0.5, (4, 2)))
    (y,) = graph.apply(Linear(), [x, weight], "fc/y")
    target = graph.blob("target", (3, 4))
    optim.sgd(backward(squared_error(y, target, reduction="sum", name="loss")), momentum=0.5)
    rng = np.random.default_rng(0)
    feeds = [
        {"x": rng.random((3, 2), "f4"), "target": rng.random((3, 4), "f4"), "rate": np.float32(0.1) * np.ones((), "f4")}
        for _ in range(2)
    ]
    return make_case(
        graph, name="small", about="two steps", feeds=feeds, initial={"fc/weight": rng.random((4, 2), "f4")}
    )


@pytest.fixture(scope="module")
def case() -> Case:
    return example()


@pytest.fixture
def folder(case: Case, tmp_path: Path) -> Path:
    """The case, written."""
    write_case(case, tmp_path / "case")
    return tmp_path / "case"


def described(folder: Path) -> Any:
    """What `case.json` says."""
    return json.loads((folder / "case.json").read_text("utf-8"))


def rewrite(folder: Path, data: Any) -> None:
    (folder / "case.json").write_text(json.dumps(data), "utf-8")


# Writing and reading ------------------------------------------------------------


def test_what_is_written_is_read_again(case: Case, folder: Path) -> None:
    again = read_case(folder)
    assert graph_to_data(again.graph) == graph_to_data(case.graph)
    assert (again.name, again.about, again.seed, again.schedule) == (case.name, case.about, case.seed, None)
    assert again.initial.keys() == case.initial.keys()
    for got, want in zip(again.feeds, case.feeds, strict=True):
        assert all(np.array_equal(got[name], want[name]) for name in want)
    for got, want in zip(again.expected, case.expected, strict=True):
        assert (got.iteration, got.blob, got.reason) == (want.iteration, want.blob, want.reason)
        assert np.array_equal(got.value, want.value)
        assert np.array_equal(got.bound, want.bound) if want.bound is not None else got.bound is None


def test_a_case_that_was_read_writes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    write_case(read_case(folder), tmp_path / "again")
    files = sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    assert files == sorted(f.relative_to(tmp_path / "again") for f in (tmp_path / "again").rglob("*") if f.is_file())
    for file in files:
        assert (folder / file).read_bytes() == (tmp_path / "again" / file).read_bytes(), file


def test_pairs_are_exchanged_after_what_is_expected_was_read(case: Case) -> None:
    """Two steps of SGD by hand: `fc/weight/next` of the second one builds on that of the first."""
    weight, history = case.initial["fc/weight"].astype(float), np.zeros((4, 2))
    for iteration, feed in enumerate(case.feeds):
        x, target, rate = (feed[name].astype(float) for name in ("x", "target", "rate"))
        history = 0.5 * history + rate * ((x @ weight.T - target).T @ x)
        weight = weight - history
        (entry,) = (e for e in case.expected if (e.iteration, e.blob) == (iteration, "fc/weight/next"))
        assert np.allclose(entry.value, weight, rtol=1e-6)
        assert not entry.exact


@pytest.mark.parametrize("executor", ["serial", "threads", "ranks"])
def test_every_executor_gives_what_is_expected(folder: Path, executor: str) -> None:
    case = read_case(folder)
    assert compare(case, run_case(case, executor, threads=3)) == []


def test_results_are_written_and_read_under_the_names_of_the_entries(folder: Path, tmp_path: Path) -> None:
    case = read_case(folder)
    results = run_case(case)
    write_results(case, results, tmp_path / "out")
    again = read_results(case, tmp_path / "out")
    assert again.keys() == results.keys()
    assert all(np.array_equal(again[key], results[key]) for key in results)


def test_the_schema_agrees_with_what_is_written(folder: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(read_case.__code__.co_filename).parent / "case.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    data = described(folder)
    assert list(validator.iter_errors(data)) == []
    for change in (lambda d: d.update(more=1), lambda d: d.pop("seed"), lambda d: d["expected"][0].update(exact=0)):
        wrong = copy.deepcopy(data)
        change(wrong)
        assert list(validator.iter_errors(wrong))


@pytest.mark.parametrize("kind", ["file", "full", "link"])
def test_a_folder_of_somebody_else_is_not_written_over(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "case"
    if kind == "file":
        target.write_text("mine")
    elif kind == "full":
        target.mkdir()
        (target / "mine").write_text("mine")
    else:
        target.symlink_to(tmp_path)
    with pytest.raises(Refused, match="expected"), new_folder(target):
        pass
    assert sorted(tmp_path.iterdir()) == [target]


def interrupt_writing(target: Path) -> None:
    with new_folder(target, replace=True) as beside:
        (beside / "new").write_text("new")
        raise KeyboardInterrupt


def test_nothing_is_left_when_writing_fails(tmp_path: Path) -> None:
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "old").write_text("old")
    with pytest.raises(KeyboardInterrupt):
        interrupt_writing(tmp_path / "case")
    assert [file.name for file in tmp_path.rglob("*")] == ["case", "old"]


# Refusals ------------------------------------------------------------


def changed(*path: Any, to: Any) -> Callable[[Any], None]:
    """A change of one place of case.json."""

    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        if to is None and isinstance(data, dict) and path[-1] not in ("schedule", "bound"):
            del data[path[-1]]
        else:
            data[path[-1]] = to

    return change


REFUSED = {
    "another version": (changed("format", to="purine-case/2"), r"format: expected 'purine-case/1'"),
    "a field too many": (changed("more", to=1), r"more"),
    "a field too few": (changed("seed", to=None), r"case\.json\.seed: expected this field"),
    "a negative seed": (changed("seed", to=-1), r"seed: expected an integer"),
    "a seed that is true": (changed("seed", to=True), r"seed: expected an integer"),
    "no iterations": (changed("iterations", to=0), r"iterations: expected"),
    "iterations without feeds": (changed("iterations", to=3), r"feeds: expected 3 objects"),
    "an unknown operator": (changed("graph", "operators", 0, "operation", to="Linaer"), r"operators\[0\]\.operation"),
    "an operator of no case": (changed("graph", "operators", 0, "operation", to="Send"), r"operators\[0\]\.operation"),
    "an unknown attribute": (changed("graph", "operators", 0, "attributes", to={"bias": 1}), r"attributes\.'bias'"),
    "a dangling name": (changed("graph", "operators", 0, "inputs", 0, to="z"), r"operators\[0\]\.inputs\[0\]: .*'z'"),
    "an input that is no name": (changed("graph", "operators", 0, "inputs", 0, to=[1]), r"inputs\[0\]: .* a list"),
    "another shape": (changed("graph", "blobs", 0, "shape", to=[3, 3]), r"operators\[0\]: .*'fc/y'"),
    "a negative shape": (changed("graph", "blobs", 0, "shape", to=[3, -2]), r"blobs\[0\]\.shape\[1\]"),
    "a shape of floats": (changed("graph", "blobs", 0, "shape", to=[3.0, 2]), r"blobs\[0\]\.shape\[0\]"),
    "an absurd shape": (changed("graph", "blobs", 0, "shape", to=[2**40, 2**40]), r"graph\.blobs: expected \d+ bytes"),
    "an enormous number": (changed("graph", "blobs", 0, "shape", to=[10**400]), r"blobs\[0\]\.shape\[0\]: .*bits"),
    "too many axes": (changed("graph", "blobs", 0, "shape", to=[1] * 33), r"blobs\[0\]\.shape: expected at most 32"),
    "another dtype": (changed("graph", "blobs", 0, "dtype", to="float16"), r"blobs\[0\]\.dtype"),
    "a dtype that the operator refuses": (changed("graph", "blobs", 0, "dtype", to="int64"), r"operators\[0\]"),
    "a name twice": (changed("graph", "blobs", 1, "name", to="x"), r"blobs\[1\]: .*already has"),
    "a malformed name": (changed("graph", "blobs", 0, "name", to="a//b"), r"blobs\[0\]: a name must"),
    "a surrogate": (changed("graph", "blobs", 0, "name", to="\ud800"), r"blobs\[0\]\.name: expected a string"),
    "a negative rank": (changed("graph", "blobs", 0, "location", "rank", to=-1), r"blobs\[0\]\.location\.rank"),
    "another place": (changed("graph", "blobs", 0, "location", "rank", to=1), r"operators\[0\]: .*put a Copy"),
    "a pair of one": (changed("graph", "pairs", 0, to=["fc/weight"]), r"pairs\[0\]: expected \[current, following\]"),
    "a pair of unlike blobs": (changed("graph", "pairs", 0, 1, to="x"), r"pairs\[0\]: expected two persistent"),
    "a file outside": (changed("feeds", 0, "x", to="../x.npy"), r"feeds\[0\]\.x: expected a path inside"),
    "an absolute file": (changed("feeds", 0, "x", to="/tmp/x.npy"), r"feeds\[0\]\.x: expected a path inside"),
    "a hidden file": (changed("feeds", 0, "x", to="feeds/.x.npy"), r"feeds\[0\]\.x: expected a path inside"),
    "a file that is not there": (changed("feeds", 0, "x", to="feeds/9/x.npy"), r"feeds\[0\]\.x: expected a file"),
    "a source that is not fed": (changed("feeds", 0, "x", to=None), r"feeds\[0\]: expected an array for 'x'"),
    "a produced blob that is fed": (changed("feeds", 0, "fc/y", to="feeds/0/0-x.npy"), r"feeds\[0\]\.fc/y: expected a"),
    "an initial value fed": (changed("initial", "x", to="feeds/0/0-x.npy"), r"initial\.x: expected a persistent"),
    "nothing expected": (changed("expected", to=[]), r"expected: expected one entry or more"),
    "an iteration that is not run": (changed("expected", 0, "iteration", to=2), r"expected\[0\]\.iteration"),
    "an unknown blob": (changed("expected", 0, "blob", to="nothing"), r"expected\[0\]\.blob"),
    "a file twice": (lambda d: d["expected"].append(d["expected"][0]), r"expected\[\d+\]\.file: expected a file for"),
    "exact with a bound": (changed("expected", 0, "exact", to=True), r"expected\[0\]\.exact"),
    "no bound, not exact": (changed("expected", 0, "bound", to=None), r"expected\[0\]\.exact"),
    "a negative bound": (changed("expected", 0, "bound", to=-1.0), r"expected\[0\]\.bound"),
    "a bound of words": (changed("expected", 0, "bound", to="1e-6"), r"expected\[0\]\.bound"),
    "a schedule of one": (changed("schedule", to=["fc/y"]), r"schedule: an order must name"),
    "a schedule of numbers": (changed("schedule", to=[1]), r"schedule\[0\]: expected a string"),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_what_is_no_case_is_refused_with_its_place(folder: Path, fault: str) -> None:
    change, place = REFUSED[fault]
    data = described(folder)
    change(data)
    rewrite(folder, data)
    with pytest.raises(Refused, match=place) as refused:
        read_case(folder)
    assert str(refused.value).startswith(str(folder))
    assert len(str(refused.value)) < 1500


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected JSON"),
        ("[1, 2", "expected JSON"),
        ("[" * 100_000, "expected JSON"),
        ('{"format": "purine-case/1", "format": "purine-case/1"}', "a name twice"),
        ('{"format": NaN}', "no JSON"),
        ("[]", "format"),
        ('"purine-case/1"', "format"),
        ('{"format": ' + "9" * 10_000 + "}", "expected"),
    ],
)
def test_a_file_that_is_not_strict_json_is_refused(folder: Path, text: str, why: str) -> None:
    (folder / "case.json").write_text(text, "utf-8")
    with pytest.raises(Refused, match=why):
        read_case(folder)


def test_bytes_that_are_no_utf8_are_refused(folder: Path) -> None:
    (folder / "case.json").write_bytes(b'{"format": "\xff"}')
    with pytest.raises(Refused, match="expected JSON"):
        read_case(folder)


def test_a_cycle_is_refused(tmp_path: Path) -> None:
    graph = Graph("cycle")
    a, b = graph.blob("a", (2,)), graph.blob("b", (2,))
    graph.connect([a], ReLU(), [b])
    graph.connect([b], ReLU(), [a])
    with pytest.raises(Refused, match=r"graph: .*cycle: .*a"):
        graph_from_data(graph_to_data(graph))


def npy(header: str, body: bytes = b"\x00" * 24, version: bytes = b"\x01\x00") -> bytes:
    text = (header + "\n").encode("latin-1")
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + body


ARRAYS = {
    "object": npy("{'descr': '|O', 'fortran_order': False, 'shape': (3, 2), }"),
    "big-endian": npy("{'descr': '>f4', 'fortran_order': False, 'shape': (3, 2), }"),
    "Fortran order": npy("{'descr': '<f4', 'fortran_order': True, 'shape': (3, 2), }"),
    "order that is 0": npy("{'descr': '<f4', 'fortran_order': 0, 'shape': (3, 2), }"),
    "another dtype": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (3, 2), }", b"\x00" * 48),
    "another shape": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"),
    "a shape of booleans": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3, True), }"),
    "an absurd shape": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 2), }"),
    "too short": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }", b"\x00" * 23),
    "too long": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }", b"\x00" * 25),
    "version 2": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }", version=b"\x02\x00"),
    "code for a header": npy("__import__('os').abort()"),
    "nothing": b"",
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_an_array_file_that_is_not_plain_is_refused(folder: Path, kind: str) -> None:
    (folder / "feeds" / "0" / "0-x.npy").write_bytes(ARRAYS[kind])
    with pytest.raises(Refused, match=r"feeds\[0\]\.x: feeds/0/0-x\.npy"):
        read_case(folder)


def test_a_file_that_is_too_long_is_refused_before_it_is_read(folder: Path) -> None:
    os.truncate(folder / "feeds" / "0" / "0-x.npy", 1 << 34)  # of which the disk holds nothing
    with pytest.raises(Refused, match=r"0-x\.npy: expected 128 bytes of header and 24 of .*, got 17179869184"):
        read_case(folder)


def test_a_link_out_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    file = folder / "feeds" / "0" / "0-x.npy"
    file.rename(tmp_path / "outside.npy")
    file.symlink_to(tmp_path / "outside.npy")
    with pytest.raises(Refused, match=r"feeds\[0\]\.x: .*a link leads"):
        read_case(folder)


def test_a_link_within_the_folder_is_taken(folder: Path) -> None:
    file = folder / "feeds" / "0" / "0-x.npy"
    file.rename(folder / "x.npy")
    file.symlink_to(folder / "x.npy")
    assert np.array_equal(read_case(folder).feeds[0]["x"], example().feeds[0]["x"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(folder: Path) -> None:
    file = folder / "feeds" / "0" / "0-x.npy"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(Refused, match=r"feeds\[0\]\.x: expected a file"):
        read_case(folder)


def test_a_case_that_needs_more_memory_than_is_given_is_refused(folder: Path) -> None:
    with pytest.raises(Refused, match=r"graph\.blobs: expected 64 bytes in all"):
        read_case(folder, memory=64)
    needed = sum(read_case(folder).graph.memory().values())
    with pytest.raises(Refused, match=r"expected arrays of \d+ bytes in all"):
        read_case(folder, memory=needed)


VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=4), st.just([]), st.just({}),
    st.sampled_from(["x", "fc/weight", "inf", "Conv2d", "../x.npy", 10**400, [1, 2], {"rank": 0, "device": -1}]),
)  # fmt: skip


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a tree of JSON."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


@pytest.fixture(scope="module")
def written(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the fuzzer rewrites."""
    folder = tmp_path_factory.mktemp("fuzz") / "case"
    write_case(case, folder)
    (folder / "sound.json").write_bytes((folder / "case.json").read_bytes())
    return folder


@given(st.data())
def test_a_case_with_changes_is_refused_or_read(written: Path, data: st.DataObject) -> None:
    """Whatever is changed, nothing but Refused comes out; and what is read can be written again."""
    sound = json.loads((written / "sound.json").read_text("utf-8"))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(sound)[1:]))
        holder = sound
        for step in path[:-1]:
            holder = holder[step]
        change = data.draw(st.sampled_from(["value", "drop", "twice", "other"]))
        if change == "drop":
            del holder[path[-1]]
        elif change == "twice" and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[path[-1]]))
        elif change == "other":
            other = data.draw(st.sampled_from(places(sound)[1:]))
            value = sound
            for step in other:
                value = value[step]
            holder[path[-1]] = copy.deepcopy(value)
        else:
            holder[path[-1]] = data.draw(VALUES)
        if not isinstance(sound, dict) or len(places(sound)) < 2:
            break
    (written / "case.json").write_text(json.dumps(sound), "utf-8")
    try:
        case = read_case(written)
    except Refused:
        return
    assert graph_to_data(graph_from_data(graph_to_data(case.graph))) == graph_to_data(case.graph)


@given(st.binary(max_size=40), st.integers(0, 200))
def test_an_array_with_changes_is_refused_or_read(written: Path, noise: bytes, place: int) -> None:
    (written / "case.json").write_bytes((written / "sound.json").read_bytes())
    file = written / "feeds" / "0" / "0-x.npy"
    sound = file.read_bytes()
    file.write_bytes(sound[:place] + noise + sound[place + len(noise) :])
    try:
        read_case(written)
    except Refused:
        pass
    finally:
        file.write_bytes(sound)


# Making and comparing ------------------------------------------------------------


def simple(operation: Any, *arrays: Any, **facts: Any) -> Case:
    """The case of one operator."""
    graph = Graph("one")
    feed = {f"x{i}": np.asarray(array) for i, array in enumerate(arrays)}
    blobs = [graph.blob(name, array.shape, array.dtype.name) for name, array in feed.items()]
    graph.apply(operation, blobs, "y")
    return make_case(graph, name="one", about="", feeds=[feed], **facts)


def test_small_integers_are_expected_exactly() -> None:
    case = simple(Linear(), np.float32([[1, 2], [3, -4]]), np.float32([[2, 1]]))
    (entry,) = case.expected
    assert entry.exact
    assert entry.value.tolist() == [[4.0], [2.0]]
    assert "R10" in entry.reason


def test_a_bound_is_just_wide_enough_for_a_product_in_float32() -> None:
    rng = np.random.default_rng(1)
    x, weight = rng.random((5, 60), "f4"), rng.random((3, 60), "f4")
    (entry,) = simple(Linear(), x, weight).expected
    off = np.abs(np.cumsum(x[:, None] * weight, axis=-1)[..., -1] - entry.value)
    assert (off <= entry.bound).all()
    assert np.all(entry.bound <= 62 * 2.0**-24 * 1.01 * (x.astype("f8") @ weight.T.astype("f8")))


def test_contributions_that_are_not_rounded_fix_every_bit() -> None:
    graph = Graph("order")
    feed = {f"x{i}": np.float32([value]) for i, value in enumerate((2.0**24, 1.0, -(2.0**24), 1.0))}
    y = graph.blob("y", (1,))
    for name in feed:
        graph.connect([graph.blob(name, (1,))], Scale(1.0), [y], name=f"add-{name}")
    case = make_case(graph, name="order", about="", feeds=[feed])
    (entry,) = case.expected
    assert (entry.exact, entry.value.tolist()) == (True, [1.0])  # 2**24 + 1 is 2**24 in float32
    assert compare(case, run_case(case)) == []
    assert compare(case, {(0, "y"): np.float32([2.0])})


def test_what_hangs_on_a_kink_is_not_expected() -> None:
    graph = Graph("kink")
    x, w = graph.blob("x", (2, 2)), graph.blob("w", (1, 2))
    (product,) = graph.apply(Linear(), [x, w], "product")
    graph.apply(ReLU(), [product], "y")
    feed = {"x": np.float32([[0.1, 0.3], [1.0, 1.0]]), "w": np.float32([[0.3, -0.1]])}
    target = graph.blob("target", (2, 1))
    backward(squared_error(graph["y"], target, reduction="sum", name="loss"), [w])
    feed["target"] = np.ones((2, 1), "f4")
    case = make_case(graph, name="kink", about="", feeds=[feed])
    assert "product" in {entry.blob for entry in case.expected}
    assert "w/grad" not in {entry.blob for entry in case.expected}


def test_a_case_of_which_nothing_can_be_expected_is_an_error() -> None:
    graph = Graph("nothing")
    graph.blob("x", (2,))
    with pytest.raises(GraphError, match="no blob can be expected"):
        make_case(graph, name="nothing", about="", feeds=[{"x": np.zeros(2, "f4")}])


def test_a_draw_is_expected_by_seed_and_iteration() -> None:
    graph = Graph("draw")
    graph.apply(Bernoulli((40,)), [], "y")
    case = make_case(graph, name="draw", about="", feeds=[{}, {}], seed=3)
    first, second = (entry.value for entry in case.expected)
    assert not np.array_equal(first, second)
    assert compare(case, run_case(case)) == []
    assert compare(case, run_case(replace(case, seed=4)))


def test_what_is_computed_from_a_gaussian_is_not_expected() -> None:
    """Another logarithm may round otherwise, and how far that carries is not known."""
    graph = Graph("gaussian")
    (drawn,) = graph.apply(Gaussian((4,)), [], "drawn")
    graph.apply(Scale(0.3), [drawn], "y")
    (even,) = graph.apply(Uniform((4,), high=2.0), [], "even")
    graph.apply(Scale(0.3), [even], "z")
    case = make_case(graph, name="gaussian", about="", feeds=[{}])
    assert {entry.blob: entry.exact for entry in case.expected} == {"drawn": False, "even": True, "z": False}
    assert compare(case, run_case(case)) == []


def test_operators_start_in_the_order_of_the_schedule() -> None:
    class Starts(Observer):
        """The names of what started."""

        names: ClassVar[list[str]] = []

        def started(self, op: Op, at: float) -> None:
            self.names.append(op.name)

    case = golden_makers()["graphs/branches/01"]()
    for executor in EXECUTORS:
        Starts.names.clear()
        run_case(case, executor, threads=3, observer=Starts())
        assert Starts.names == list(case.schedule or ()), executor


def one_entry(want: Any, bound: Any) -> Case:
    """A case that expects `want` of one blob."""
    case = simple(ReLU(), np.zeros_like(want))
    return replace(case, expected=(replace(case.expected[0], value=np.asarray(want), bound=bound),))


@pytest.mark.parametrize(
    ("want", "got", "bound", "right"),
    [
        (1.0, 1.0, None, True),
        (1.0, np.nextafter(np.float32(1), 2), None, False),
        (0.0, -0.0, None, True),
        (math.nan, -math.nan, None, True),
        (math.nan, 1.0, 1e30, False),
        (1.0, math.nan, 1e30, False),
        (math.inf, math.inf, 1.0, True),
        (math.inf, -math.inf, 1.0, False),
        (math.inf, 3e38, 1e300, False),
        (1.0, 1.5, 0.5, True),
        (1.0, 1.5001, 0.5, False),
    ],
)
def test_when_an_element_is_right(want: float, got: float, bound: float | None, right: bool) -> None:
    case = one_entry(np.float32([want]), bound)
    assert (compare(case, {(0, "y"): np.float32([got])}) == []) is right


def test_the_worst_element_is_told_with_both_values_and_the_bound() -> None:
    case = one_entry(np.float32([[1, 2], [3, 4]]), np.array([[0.5, 0.5], [0.5, 0.001]]))
    (finding,) = compare(case, {(0, "y"): np.float32([[1, 4], [3, 4.5]])})
    assert (finding.index, finding.got, finding.want, finding.bound, finding.wrong) == ((1, 1), 4.5, 4.0, 0.001, 2)
    assert "iteration 0, blob 'y', element [1, 1]: got 4.5, want 4.0; may be off by 0.001" in str(finding)


def test_large_integers_are_compared_as_integers() -> None:
    case = simple(Sum(), np.float32([1]))
    entry = replace(case.expected[0], value=np.array([2**53 + 1]), bound=None)
    assert compare(replace(case, expected=(entry,)), {(0, "y"): np.array([2**53])})


@pytest.mark.parametrize("got", [None, np.zeros((2, 1), "f4"), np.zeros((1, 2), "f8")])
def test_a_tensor_of_another_kind_is_told(got: Any) -> None:
    case = one_entry(np.float32([[1, 2]]), None)
    (finding,) = compare(case, {} if got is None else {(0, "y"): got})
    assert "expected float32[1, 2], got" in str(finding)


def test_findings_are_in_topological_order_whatever_the_order_of_the_entries(case: Case) -> None:
    results = {key: array + 1 for key, array in run_case(case).items()}
    turned = replace(case, expected=case.expected[::-1])
    found = [(finding.iteration, finding.blob) for finding in compare(turned, results)]
    assert found[0] == (0, "fc/y")
    assert [iteration for iteration, _ in found] == sorted(iteration for iteration, _ in found)
    names = [blob for iteration, blob in found if iteration == 0]
    assert names.index("fc/y") < names.index("loss")
    assert names.index("fc/y/grad") < names.index("fc/weight/grad") < names.index("fc/weight/next")


# Attributes ------------------------------------------------------------


def test_attributes_of_all_kinds_go_to_json_and_back() -> None:
    graph = Graph("attributes")
    x, w = graph.blob("x", (2, 4, 6, 5)), graph.blob("w", (6, 2, 2, 3))
    (y,) = graph.apply(Conv2d((1, 2), ((0, 1), (2, 0)), 1, 2), [x, w], "y")
    (there,) = graph.apply(Copy(Location(1, 0)), [y], "there")
    graph.apply(Mul(), [there, there], "z", location=Location(1, 0), stream="side")
    graph.apply(Bernoulli((3, 2), window=((4, 4), (1, 2)), stream="größe"), [], "b")
    graph.apply(Constant(2**62 + 1, (2,), "int64"), [], "c")
    graph.view(y, "v", [(0, 1)] + [(0, n) for n in y.shape[1:]])
    again = graph_from_data(json.loads(json.dumps(graph_to_data(graph))))
    assert [op.operation for op in again.ops] == [op.operation for op in graph.ops]
    assert graph_to_data(again) == graph_to_data(graph)


@pytest.mark.parametrize("wrong", [True, 1.5, "1", [1], [1, 2, 3], {}, None, -1, 0, 2**64, [[1, 2], [3, 4]]])
def test_an_attribute_of_another_type_is_refused(wrong: Any) -> None:
    graph = Graph("attributes")
    graph.apply(Conv2d(), [graph.blob("x", (1, 1, 4, 4)), graph.blob("w", (1, 1, 2, 2))], "y")
    data = graph_to_data(graph)
    data["operators"][0]["attributes"]["stride"] = wrong
    with pytest.raises(Refused, match=r"graph\.operators\[0\]\.attributes"):
        graph_from_data(data)


def test_every_operation_has_attributes_that_can_be_read() -> None:
    for name in OPERATIONS:
        with pytest.raises(Refused, match="attributes"):
            graph_from_data(
                {"name": "g", "blobs": [], "pairs": [], "operators": [
                    {"name": "o", "operation": name, "attributes": {"no such": 1}, "inputs": [], "outputs": [],
                     "location": {"rank": 0, "device": -1}, "stream": "main"}]}
            )  # fmt: skip
