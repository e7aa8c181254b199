"""Snapshots: what is loaded is what was saved or is refused, and the old file survives every failure to save."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import re
import subprocess
import sys
import textwrap
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from purine_ref import snapshot
from purine_ref.errors import Refused
from purine_ref.snapshot import FORMAT, HEADER, Snapshot, decode_npy, encode_npy, load, save

posix = pytest.mark.skipif(os.name == "nt", reason="needs fork and SIGKILL")
NAMES = st.from_regex(r"[a-z0-9 _é]{1,6}(/[a-z0-9_]{1,5}){0,2}", fullmatch=True).filter(str.isprintable)
ARRAYS = st.sampled_from(["<f4", ">f4", "<f8", ">f8", "<i8", ">i8"]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
)
DTYPE_NAMES = "float32, float64, int64"
COUNTERS = st.integers(0, 2**64 - 1)
FACTS = st.text(max_size=9) | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)


def sample() -> Snapshot:
    """Two parameters, a history, an empty and a 0-d array, and facts of every type."""
    rng = np.random.default_rng(8)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "conv1/weight": rng.standard_normal((4, 3, 2, 5)).astype(np.float32),
        "conv1/weight/history": rng.standard_normal((4, 3, 2, 5)).astype(np.float32),
        "fc/bias": rng.standard_normal(7),
        "empty": np.zeros((0, 3), np.float32),
        "rate": np.array(0.1),
        "count": np.array([2**62, -3]),
    }
    return Snapshot(arrays, 12, 2**64 - 1, 3, 4, {"model": "lenet", "batch": 32, "lr": 0.1})


def assert_same(got: Snapshot, want: Snapshot) -> None:
    """The same names in the same order, shapes, dtypes, bits, counters and facts."""
    assert list(got.arrays) == list(want.arrays)
    for name, array in want.arrays.items():
        loaded = got.arrays[name]
        assert (loaded.shape, loaded.dtype.name) == (array.shape, array.dtype.name)
        assert loaded.dtype.isnative
        assert loaded.flags.c_contiguous
        assert loaded.flags.writeable
        assert loaded.tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes()
    for name in ("iteration", "seed", "epoch", "position", "extra"):
        assert getattr(got, name) == getattr(want, name)
    assert [type(fact) for fact in got.extra.values()] == [type(fact) for fact in want.extra.values()]


def run_python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run code in a new process that can import what this one can."""
    command = [sys.executable, "-P", "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=True)


def environment() -> dict[str, str]:
    """One BLAS thread, so that the process may fork."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}


# Round trips


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    save(path, sample())
    assert_same(load(path), sample())
    assert os.listdir(tmp_path) == ["run.npz"]


@given(
    st.builds(
        Snapshot,
        st.dictionaries(NAMES, ARRAYS, max_size=4),
        COUNTERS,
        COUNTERS,
        COUNTERS,
        COUNTERS,
        st.dictionaries(st.text(max_size=5), FACTS, max_size=3),
    )
)
def test_round_trip_of_any_snapshot(tmp_path_factory: pytest.TempPathFactory, want: Snapshot) -> None:
    path = tmp_path_factory.getbasetemp() / "any.npz"
    save(path, want)
    assert_same(load(path), want)


def test_equal_snapshots_make_equal_files_whatever_the_memory_order(tmp_path: Path) -> None:
    values = np.arange(24.0).reshape(2, 3, 4)
    orders = [values, np.asfortranarray(values), values.astype(">f8"), np.repeat(values, 2, axis=1)[:, ::2]]
    for index, array in enumerate(orders):
        save(tmp_path / f"{index}.npz", Snapshot({"x": array}, extra={"lr": 0.1}))
    assert len({(tmp_path / f"{index}.npz").read_bytes() for index in range(len(orders))}) == 1


def test_numpy_reads_the_file(tmp_path: Path) -> None:
    save(tmp_path / "run.npz", sample())
    with np.load(tmp_path / "run.npz", allow_pickle=False) as members:
        np.testing.assert_array_equal(members["conv1/weight"], sample().arrays["conv1/weight"])
        assert json.loads(members[HEADER])["format"] == FORMAT


def test_pk_03_bytes_of_text_mode_are_read_back_equal(tmp_path: Path) -> None:
    data = b"\x0a\x1a\x0d\x0a\x1a\x00\x0d\x0a" * 3
    save(tmp_path / "run.npz", Snapshot({"x": np.frombuffer(data, "<i8"), "y": np.frombuffer(data, "<f4")}))
    assert (tmp_path / "run.npz").read_bytes().count(data) == 2
    loaded = load(tmp_path / "run.npz").arrays
    assert loaded["x"].astype("<i8").tobytes() == data
    assert loaded["y"].astype("<f4").tobytes() == data


def test_the_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    save(tmp_path / "run.npz", sample())
    assert (tmp_path / "run.npz").stat().st_mode == (tmp_path / "other").stat().st_mode


TRAINING = """
    import sys
    import numpy as np
    from pathlib import Path
    from purine_ref.snapshot import Snapshot, load, save

    path, steps, first = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "first"
    run = Snapshot({"w": np.zeros(1), "w/history": np.zeros(1)}) if first else load(path)
    w, history = run.arrays["w"], run.arrays["w/history"]
    for _ in range(steps):
        history = 0.9 * history + 0.1
        w = w - history
    save(path, Snapshot({"w": w, "w/history": history}, run.iteration + steps))
"""


def test_dp_06_resuming_in_a_new_process_is_bit_equal(tmp_path: Path) -> None:
    run_python(TRAINING, tmp_path / "straight.npz", 4, "first")
    run_python(TRAINING, tmp_path / "resumed.npz", 2, "first")
    run_python(TRAINING, tmp_path / "resumed.npz", 2, "again")
    straight, resumed = load(tmp_path / "straight.npz"), load(tmp_path / "resumed.npz")
    assert_same(resumed, straight)
    assert resumed.iteration == 4
    assert resumed.arrays["w"][0] == pytest.approx(-0.9049, abs=1e-15)


# What a snapshot must match, and what it may hold


def test_dp_06_swapped_layer_shapes_of_equal_byte_count_are_refused() -> None:
    saved = Snapshot({"a/weight": np.zeros((3, 4), np.float32), "b/weight": np.zeros((4, 3), np.float32)})
    expected = {"a/weight": ((4, 3), "float32"), "b/weight": ((3, 4), "float32")}
    message = "snapshot tensor 'a/weight': expected float32[4, 3], got float32[3, 4]; "
    with pytest.raises(Refused, match=f"^{re.escape(message)}load it into the model that it was saved from$"):
        saved.matching(expected)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"a": ((2, 3), "float64"), "b": ((5,), "int64")}, "'a': expected float64[2, 3], got float32[2, 3]"),
        ({"a": ((2, 3), "float32"), "c": ((5,), "int64")}, "'c': expected int64[5], got none"),
        ({"a": ((2, 3), "float32")}, "'b': expected no such tensor, got int64[5]"),
    ],
)
def test_dp_06_the_first_mismatch_is_named(expected: dict[str, Any], message: str) -> None:
    saved = Snapshot({"a": np.zeros((2, 3), np.float32), "b": np.zeros(5, np.int64)})
    with pytest.raises(Refused, match=rf"^snapshot tensor {re.escape(message)}; load it into the model .*$"):
        saved.matching(expected)


def test_a_match_returns_the_snapshot_itself() -> None:
    saved = Snapshot({"a": np.zeros((2, 3), ">f4")})
    assert saved.matching({"a": ((2, 3), "float32")}) is saved


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"iteration": -1}, "iteration: expected an integer from 0 to 2**64 - 1, got -1"),
        ({"seed": 2**64}, "seed: expected an integer from 0 to 2**64 - 1, got 18446744073709551616"),
        ({"epoch": 1.0}, "epoch: expected an integer from 0 to 2**64 - 1, got 1.0"),
        ({"position": True}, "position: expected an integer from 0 to 2**64 - 1, got True"),
        ({"extra": {"lr": np.float32(0.5)}}, "extra 'lr': expected a str, int or float, got np.float32(0.5)"),
        ({"extra": {"lr": float("nan")}}, "extra 'lr': expected a finite number, got nan"),
        ({"extra": {3: "x"}}, "extra 3: expected a str, int or float, got 'x'"),
        ({"arrays": {"x": np.array([None])}}, "array 'x': expected an array of float32, float64, int64, got object"),
        (
            {"arrays": {"x": np.zeros(2, np.uint8)}},
            "array 'x': expected an array of float32, float64, int64, got uint8",
        ),
        ({"arrays": {"x": [1.0]}}, "array 'x': expected an array of float32, float64, int64, got list"),
    ],
)
def test_what_a_file_cannot_hold_is_refused_before_it_is_saved(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^snapshot {re.escape(message)}$"):
        Snapshot(**{"arrays": {}, **arguments})


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "a\nb", "a\0", "\ud800", 3, "x" * 1001]
)
def test_names_that_no_unzip_should_write_are_refused(name: Any) -> None:
    with pytest.raises(ValueError, match=rf"^snapshot array {re.escape(repr(name))}: expected .*$"):
        Snapshot({name: np.zeros(2)})


# Files that are not what they claim


def refused_or_same(path: Path, want: Snapshot) -> bool:
    """Whether the file is refused; if it is not, it must hold `want`."""
    message = ""
    try:
        assert_same(load(path), want)
    except Refused as error:
        message = str(error)
    assert message == "" or message.startswith((f"{path}: expected ", f"{path}: array "))
    return message != ""


def test_dp_06_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    save(path, sample())
    whole = path.read_bytes()
    for length in range(0, len(whole), 3):
        path.write_bytes(whole[:length])
        assert refused_or_same(path, sample()), f"cut to {length} bytes"


def test_dp_06_one_wrong_byte_anywhere_is_refused_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    save(path, sample())
    whole = np.frombuffer(path.read_bytes(), np.uint8)
    flips = np.random.default_rng(3).integers(1, 256, len(whole), np.uint8)
    refused = 0
    for offset in range(len(whole)):
        wrong = whole.copy()
        wrong[offset] ^= flips[offset]
        path.write_bytes(wrong.tobytes())
        refused += refused_or_same(path, sample())
    assert refused > 0.8 * len(whole)  # The rest are dates, permissions and the like.


@pytest.mark.parametrize("extra", [b"\0", b"\n", b"PK\x05\x06", b"x" * 30])
def test_gc_07_bytes_before_or_after_the_file_are_refused(tmp_path: Path, extra: bytes) -> None:
    path = tmp_path / "run.npz"
    save(path, sample())
    whole = path.read_bytes()
    for content in (whole + extra, extra + whole):
        path.write_bytes(content)
        assert refused_or_same(path, sample())


class Trap:
    """Unpickling it makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return os.mkdir, (self.path,)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    for content in (b"", b"step 1\n", pickle.dumps({"w": [0.5]}), encode_npy(np.zeros(3)), b"\x89PNG\r\n\x1a\n"):
        path.write_bytes(content)
        starts = re.escape(repr(content[:4]))
        with pytest.raises(Refused, match=rf"^.*run\.npz: expected a snapshot, which starts .*, got {starts}$"):
            load(path)


def test_gc_07_another_npz_is_refused_and_never_unpickled(tmp_path: Path) -> None:
    path, sprung = tmp_path / "run.npz", tmp_path / "sprung"
    np.savez(path, x=np.array([Trap(sprung)], object))
    with pytest.raises(Refused, match=r"^.*run\.npz: expected a snapshot with a member snapshot\.json, got x\.npy$"):
        load(path)
    assert not sprung.exists()


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.npz")


def forge(path: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None], **options: Any) -> None:
    """Save a snapshot with one array x = [[1, 2, 3], [4, 5, 6]], after `change` to its header and members."""
    save(path, Snapshot({"x": np.array([[1, 2, 3], [4, 5, 6]], np.float32)}, 7))
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(members[HEADER])
    change(header, members)
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, data in {**members, HEADER: json.dumps(header).encode()}.items():
            archive.writestr(name, data)


def set_header(**fields: Any) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    """A change of fields of the header."""
    return lambda header, _: header.update(fields)


def set_entry(**fields: Any) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    """A change of fields of the header's only array."""
    return lambda header, _: header["arrays"][0].update(fields)


def set_member(**members: bytes) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    """A change of .npy members."""
    return lambda _, before: before.update({f"{name}.npy": data for name, data in members.items()})


def npy(header: str, data: bytes) -> bytes:
    """An .npy file of version 1.0 with that header."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode("latin-1") + data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            set_header(format="purine-ref/snapshot/2"),
            "expected the format 'purine-ref/snapshot/1', got 'purine-ref/snapshot/2'",
        ),
        (set_header(seed=-1), "got a damaged one (snapshot seed: expected an integer"),
        (set_header(iteration="7"), "got a damaged one (snapshot iteration: expected an integer"),
        (set_header(extra={"lr": [1]}), "got a damaged one (snapshot extra 'lr': expected a str"),
        (set_header(extra=[]), "expected a header of arrays, epoch"),
        (set_header(more=1), "expected a header of arrays, epoch"),
        (set_header(arrays=[1]), "expected arrays with dtype, name, sha256, shape, got 1"),
        (set_header(arrays=[]), "expected the members snapshot.json, got snapshot.json, x.npy"),
        (set_entry(name="y"), "expected the members snapshot.json, y.npy, got snapshot.json, x.npy"),
        (set_entry(shape=[3, 2]), "array 'x': expected float32[3, 2] as in the header, got float32[2, 3]"),
        (set_entry(shape=[2, -3]), "array 'x': expected a shape and a dtype, got [2, -3] and 'float32'"),
        (set_entry(shape=[2, True]), "array 'x': expected a shape and a dtype, got [2, True]"),
        (set_entry(dtype="float64"), "array 'x': expected float64[2, 3] as in the header, got float32[2, 3]"),
        (set_entry(dtype="object"), "array 'x': expected a shape and a dtype, got [2, 3] and 'object'"),
        (set_entry(sha256="0" * 64), "array 'x': expected the SHA-256 '0000"),
        (set_entry(crc=1), "expected arrays with dtype, name, sha256, shape, got {"),
        (
            set_member(y=encode_npy(np.zeros(2))),
            "expected the members snapshot.json, x.npy, got snapshot.json, x.npy, y",
        ),
        (set_member(x=encode_npy(np.zeros((2, 3), np.float32))), "array 'x': expected the SHA-256 '"),
        (set_member(x=b"text"), "array 'x': expected an .npy file of version 1.0"),
    ],
)
def test_a_forged_snapshot_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "run.npz"
    forge(path, change)
    with pytest.raises(Refused, match=rf"^.*run\.npz: .*{re.escape(message)}.*$"):
        load(path)


def test_gc_07_a_fortran_order_or_big_endian_member_is_read_as_it_is_meant(tmp_path: Path) -> None:
    want = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    for array in (np.asfortranarray(want), want.astype(">f4")):
        member = io.BytesIO()
        np.save(member, array, allow_pickle=False)
        forge(tmp_path / "run.npz", set_member(x=member.getvalue()))
        assert_same(load(tmp_path / "run.npz"), Snapshot({"x": want}, 7))


def test_absurd_sizes_are_refused_before_memory_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    huge = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2000000000, 2000000000), }\n", b"1234")
    forge(path, set_member(x=huge))
    with pytest.raises(Refused, match=r"^.*run\.npz: array 'x': expected 16000000000000000000 bytes .*, got 4$"):
        load(path)
    forge(path, set_member(y=bytes(10**6)), compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(Refused, match=r"^.*run\.npz: expected stored members of \d+ bytes in all at most, got others$"):
        load(path)


def test_a_member_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    forge(path, lambda header, _: header["arrays"].append(header["arrays"][0]))
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("x.npy", archive.read("x.npy"))
    with pytest.raises(Refused, match=r"^.*run\.npz: expected a header that lists every array once, got .*x\.npy$"):
        load(path)


@pytest.mark.parametrize("offset", [2**64 - 1, 2**63, 2**62, 2**40, 5])
def test_a_member_that_is_said_to_lie_elsewhere_is_refused(tmp_path: Path, offset: int) -> None:
    path = tmp_path / "run.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(HEADER, "{}")
        archive.filelist[0].header_offset = offset
    with pytest.raises(Refused, match=r"^.*run\.npz: expected a whole snapshot, got a damaged one \(.*$"):
        load(path)


def test_a_deeply_nested_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(HEADER, "[" * 200_000)
    with pytest.raises(Refused, match=r"^.*run\.npz: expected a whole snapshot, got a damaged one \(.*$"):
        load(path)


# .npy files


@given(ARRAYS, st.sampled_from("CF"))
def test_gc_07_npy_round_trip_agrees_with_numpy(array: np.ndarray[Any, Any], order: Any) -> None:
    encoded = encode_npy(np.asarray(array, order=order))
    descr = {"float32": "<f4", "float64": "<f8", "int64": "<i8"}[array.dtype.name]
    assert encoded.startswith(b"\x93NUMPY\x01\x00")
    assert f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {array.shape!r}, }}".encode() in encoded
    written = io.BytesIO()
    np.save(written, np.asarray(array, order=order), allow_pickle=False)
    for data in (encoded, written.getvalue()):
        decoded = decode_npy(data, "x")
        assert decoded.dtype.isnative
        np.testing.assert_array_equal(decoded, array)
        assert decoded.shape == array.shape


def test_gc_07_the_public_vectors() -> None:
    columns = np.array([1, 4, 2, 5, 3, 6], "<f4").tobytes()
    fortran = npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }\n", columns)
    np.testing.assert_array_equal(decode_npy(fortran, "x"), [[1, 2, 3], [4, 5, 6]])
    big = npy("{'shape': (2,), 'fortran_order': False, 'descr': '>f4'}", bytes.fromhex("3f80000040000000"))
    np.testing.assert_array_equal(decode_npy(big, "x"), [1, 2])
    assert decode_npy(big, "x").dtype == np.float32
    for shape in ((), (0, 3), (184,)):
        assert decode_npy(encode_npy(np.ones(shape)), "x").shape == shape


def test_gc_07_an_object_array_is_refused_and_never_unpickled(tmp_path: Path) -> None:
    sprung, written = tmp_path / "sprung", io.BytesIO()
    np.save(written, np.array([Trap(sprung)], object), allow_pickle=True)
    with pytest.raises(Refused, match=r"^x: expected elements of <f4, <f8, <i8, >f4, >f8, >i8, got '\|O'$"):
        decode_npy(written.getvalue(), "x")
    assert not sprung.exists()
    with pytest.raises(ValueError, match=r"^Object arrays cannot be saved when allow_pickle=False$"):
        encode_npy(np.array([None]))


def test_gc_07_a_cut_npy_file_and_trailing_bytes_are_refused() -> None:
    whole = encode_npy(np.arange(6.0).reshape(2, 3))
    for data in (*(whole[:length] for length in range(len(whole))), whole + b"\0", whole + whole):
        with pytest.raises(Refused, match=r"^x: expected .*, got .*$"):
            decode_npy(data, "x")


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [1]}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1.0,)}",
        "{'descr': '<f4', 'shape': (1,)}",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f2', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)",
        "__import__('os')",
        "('\\d',)",
        "(" * 4000,
        "-" * 4000 + "1",
        "{[]: 1}",
        "1" * 4096,
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}" + " " * 4096,
        "[1]",
        "\0",
    ],
)
def test_gc_07_a_strange_npy_header_is_refused_without_a_warning(header: str, recwarn: pytest.WarningsRecorder) -> None:
    warnings.simplefilter("always")
    with pytest.raises(Refused, match=r"^x: expected .*, got (?s:.*)$"):
        decode_npy(npy(header, b"\0\0\x80\x3f"), "x")
    assert not recwarn.list


@pytest.mark.parametrize("shape", [(0, 2**63), (0, 2**62, 2**62), (1,) * 65])
def test_gc_07_a_shape_that_numpy_cannot_hold_is_refused(shape: tuple[int, ...]) -> None:
    data = npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}", bytes(0 if 0 in shape else 4))
    with pytest.raises(Refused, match=r"^x: expected a shape that numpy can hold, got \(.*$"):
        decode_npy(data, "x")


# Saving that fails


def test_dp_06_a_full_disk_leaves_the_old_file_whole(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "run.npz"
    save(path, sample())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            save(path, Snapshot({"x": np.zeros(200_000)}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_same(load(path), sample())
    assert os.listdir(tmp_path) == ["run.npz"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_dp_06_a_failure_at_the_last_moment_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, failure: BaseException
) -> None:
    path = tmp_path / "run.npz"
    save(path, sample())

    def fail(*_: object) -> None:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(snapshot.os, step, fail)  # type: ignore[attr-defined]
        with pytest.raises(type(failure)):
            save(path, Snapshot({"x": np.zeros(3)}))
    assert_same(load(path), sample())
    assert os.listdir(tmp_path) == ["run.npz"]


def test_dp_06_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def noted(step: str) -> Callable[..., None]:
        function = getattr(os, step)

        def call(*arguments: Any) -> None:
            steps.append(step)
            function(*arguments)

        return call

    for step in ("fsync", "replace"):
        monkeypatch.setattr(os, step, noted(step))
    save(tmp_path / "run.npz", sample())
    assert steps == (["fsync", "replace"] if os.name == "nt" else ["fsync", "replace", "fsync"])


EVERY_MOMENT = """
    import os, signal, sys
    from pathlib import Path
    import numpy as np
    from purine_ref.snapshot import Snapshot, load, save

    path = Path(sys.argv[1])
    old, new = (Snapshot({"x": np.full(50, float(k))}, k) for k in (1, 2))

    def save_until(event):
        seen = 0
        def trace(frame, kind, argument):
            nonlocal seen
            seen += kind == "line"
            if seen == event:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace
        sys.settrace(trace)
        save(path, new)
        sys.settrace(None)
        os._exit(0)

    save(path, old)
    found, killed, event = set(), True, 0
    while killed:
        event += 1
        child = os.fork()
        if child == 0:
            save_until(event)
        killed = os.waitpid(child, 0)[1] == signal.SIGKILL
        got = load(path)
        assert (got.arrays["x"] == got.iteration).all() and got.iteration in (1, 2), (event, got)
        assert killed or got.iteration == 2
        found.add((killed, got.iteration))
        if got.iteration == 2:
            save(path, old)
        for rest in path.parent.glob("*.tmp"):
            rest.unlink()
    print(event, sorted(found))
"""


@posix
def test_dp_06_a_kill_at_every_step_of_save_leaves_the_old_or_the_new_snapshot(tmp_path: Path) -> None:
    """A child is forked for each line of Python that `save` runs, its libraries' too, and kills itself there."""
    events, found = run_python(EVERY_MOMENT, tmp_path / "run.npz").stdout.split(maxsplit=1)
    assert int(events) > 200
    assert found.strip() == "[(False, 2), (True, 1), (True, 2)]"


SAVE_FOREVER = """
    import itertools, os, sys
    import numpy as np
    from purine_ref.snapshot import Snapshot, save

    def trace(frame, kind, argument):
        os.write(1, b".")
        return trace

    for k in itertools.count(1):
        snapshot = Snapshot({"x": np.full(100_000, float(k))}, k)
        sys.settrace(trace)
        save(sys.argv[1], snapshot)
        sys.settrace(None)
        os.write(1, b"\\n")
"""


@posix
def test_dp_06_a_kill_from_outside_leaves_the_last_or_the_next_snapshot(tmp_path: Path) -> None:
    """The process writes a dot for each step and a line for each save, and is killed so many steps after the first."""
    path, rng = tmp_path / "run.npz", np.random.default_rng(6)
    for count in rng.integers(1, 7000, 6):
        command = [sys.executable, "-P", "-c", textwrap.dedent(SAVE_FOREVER), str(path)]
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            written = process.stdout.readline() + process.stdout.read(count)
            process.kill()
            written += process.stdout.read()
        saved, got = written.count(b"\n"), load(path)
        assert got.iteration in (saved, saved + 1)
        assert (got.arrays["x"] == got.iteration).all()
