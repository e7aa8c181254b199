"""Snapshots: everything that a run needs to go on as if it had never stopped, in one file that is whole or absent.

A `Snapshot` holds named arrays (parameters and the optimiser's histories), the counters that random numbers and the
order of the data are indexed by, and a few plain facts. The file is a zip that `numpy.load` opens too, uncompressed:
a JSON header first, then one .npy member per array. The header repeats every name, shape and dtype with the SHA-256
of the elements, so a file is never half believed. Equal snapshots make equal files, byte for byte.

`save` writes beside the old file and renames, so a reader finds the old snapshot or the new one, whatever happens.
`encode_npy` and `decode_npy` are for every part that keeps arrays in files. Nothing is pickled or unpickled.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import secrets
import zipfile
from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from purine_ref.errors import Refused
from purine_ref.tensor import DTYPES

FORMAT = "purine-ref/snapshot/1"
"""What the header's field `format` says."""

HEADER = "snapshot.json"
"""The name of the header's member; every other member ends in .npy."""

LONGEST_NPY_HEADER = 4096
"""The most bytes of the header of a .npy file that are believed."""

_COUNTERS = ("iteration", "seed", "epoch", "position")
_FIELDS = {"format", *_COUNTERS, "extra", "arrays"}
_ENTRY_FIELDS = {"name", "shape", "dtype", "sha256"}
_NPY_MAGIC = b"\x93NUMPY\x01\x00"
_NPY_DTYPES = {f"{order}{code}": name for order in "<>" for code, name in zip(("f4", "f8", "i8"), DTYPES, strict=True)}
_ZIP_START, _ZIP_END, _ZIP_END_LENGTH = b"PK\x03\x04", b"PK\x05\x06", 22
# What zipfile and json raise when they are given damaged bytes.
_DAMAGE = (zipfile.BadZipFile, EOFError, OSError, RuntimeError, ValueError)

Fact = str | int | float


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of a run after `iteration` iterations.

    `arrays` maps names such as "conv1/weight" to arrays of a dtype of `DTYPES`, in any memory order. The next batch is
    batch `position` of `epoch`. `extra` holds plain facts, such as the model's name or the batch size.
    Raises ValueError for names, dtypes, counters or facts that a file cannot hold.
    """

    arrays: dict[str, NDArray[Any]]
    iteration: int = 0
    seed: int = 0
    epoch: int = 0
    position: int = 0
    extra: dict[str, Fact] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _COUNTERS:
            _require_counter(name, getattr(self, name))
        for name, fact in self.extra.items():
            _require_fact(name, fact)
        for name, array in self.arrays.items():
            _require_name(name)
            if not isinstance(array, np.ndarray) or array.dtype.name not in DTYPES:
                came = getattr(array, "dtype", type(array).__name__)
                raise ValueError(f"snapshot array {name!r}: expected an array of {', '.join(DTYPES)}, got {came}")

    def matching(self, expected: Mapping[str, tuple[tuple[int, ...], str]]) -> Snapshot:
        """This snapshot, if it holds exactly the tensors that `expected` maps to (shape, dtype).

        Raises Refused that names the first tensor which differs, is missing, or is not expected.
        """
        remedy = "load it into the model that it was saved from"
        for name, (shape, dtype) in expected.items():
            if name not in self.arrays:
                raise Refused(f"snapshot tensor {name!r}: expected {_describe(shape, dtype)}, got none; {remedy}")
            array = self.arrays[name]
            if (array.shape, array.dtype.name) != (tuple(shape), dtype):
                came = _describe(array.shape, array.dtype.name)
                raise Refused(f"snapshot tensor {name!r}: expected {_describe(shape, dtype)}, got {came}; {remedy}")
        for name, array in self.arrays.items():
            if name not in expected:
                came = _describe(array.shape, array.dtype.name)
                raise Refused(f"snapshot tensor {name!r}: expected no such tensor, got {came}; {remedy}")
        return self


def save(path: str | os.PathLike[str], snapshot: Snapshot) -> None:
    """Write `snapshot` to `path`; the file there is the old one or, once this returns, the new one on the disk.

    A process that is killed meanwhile may leave a file `path.*.tmp` behind, which may be deleted.
    Raises OSError when the file cannot be written; the old one is then untouched, and nothing is left behind.
    """
    target = Path(path)
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            _write(file, snapshot)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:  # Ctrl-C too must leave nothing behind.
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(target.parent)


def load(path: str | os.PathLike[str]) -> Snapshot:
    """The snapshot in the file `path`. Raises as `read`, and OSError when the file cannot be opened."""
    with open(path, "rb") as file:
        return read(file, str(path))


def read(file: IO[bytes], name: str) -> Snapshot:
    """The snapshot in a seekable file; arrays are in native byte order, C order, and writable.

    Raises Refused, naming `name`, for anything but a whole snapshot.
    """
    try:
        _require_envelope(file)
        with zipfile.ZipFile(file) as archive:
            return _read(archive, file.seek(0, os.SEEK_END))
    except Refused as error:
        raise Refused(f"{name}: {error}") from error.__cause__
    except _DAMAGE as error:
        why = str(error) or type(error).__name__
        raise Refused(f"{name}: expected a whole snapshot, got a damaged one ({why}); use an older one") from error


def encode_npy(array: NDArray[Any]) -> bytes:
    """The bytes of a .npy file, version 1.0: little-endian, C order, whatever the memory order of `array`.

    Raises ValueError for object arrays.
    """
    file = io.BytesIO()
    np.lib.format.write_array(file, _canonical(array), version=(1, 0), allow_pickle=False)
    return file.getvalue()


def decode_npy(data: bytes, name: str) -> NDArray[Any]:
    """The array in the bytes of a .npy file, version 1.0, of either byte order and either memory order.

    Returns a writable array of a dtype of `DTYPES`, in native byte order and C order.
    Raises Refused, naming `name`, for other dtypes (object arrays above all), damage, and trailing bytes.
    """
    header, start = npy_header(data, name)
    descr, fortran, shape = header.get("descr"), header.get("fortran_order"), header.get("shape")
    if not isinstance(descr, str) or descr not in _NPY_DTYPES:
        raise Refused(f"{name}: expected elements of {', '.join(sorted(_NPY_DTYPES))}, got {descr!r}")
    if set(header) != {"descr", "fortran_order", "shape"} or not isinstance(fortran, bool) or not _is_shape(shape):
        raise Refused(f"{name}: expected an .npy header of descr, fortran_order and shape, got {header!r}")
    dtype = np.dtype(descr)
    expected = math.prod(shape) * dtype.itemsize
    if len(data) - start != expected:
        raise Refused(f"{name}: expected {expected} bytes of elements for shape {shape}, got {len(data) - start}")
    try:
        array: NDArray[Any] = np.ndarray(shape, dtype, data, start, order="F" if fortran else "C")
    except (ValueError, OverflowError) as error:
        raise Refused(f"{name}: expected a shape that numpy can hold, got {shape} ({error})") from error
    return array.astype(dtype.newbyteorder("="), order="C")


def npy_header(data: bytes, name: str) -> tuple[dict[str, Any], int]:
    """The dictionary in the header of a .npy file, and where the elements start, from the file's first bytes.

    Raises Refused, naming `name`, when there is no such header of at most `LONGEST_NPY_HEADER` bytes.
    """
    if data[:8] != _NPY_MAGIC or len(data) < 10:
        raise Refused(f"{name}: expected an .npy file of version 1.0 ({_NPY_MAGIC!r}), got {data[:10]!r}")
    length = int.from_bytes(data[8:10], "little")
    text = data[10 : 10 + length].decode("latin-1")
    if len(text) < length or length > LONGEST_NPY_HEADER:
        raise Refused(f"{name}: expected an .npy header of {length} bytes (4096 at most), got {len(text)}")
    try:
        # No header has a reason to hold a backslash, and the parser warns about those that mean nothing.
        header = None if "\\" in text else literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise Refused(f"{name}: expected an .npy header that is a dictionary, got {text[:80]!r}")
    return header, 10 + length


def _write(file: IO[bytes], snapshot: Snapshot) -> None:
    """Write the zip: the header, then the arrays in their order."""
    entries = [_entry(name, array) for name, array in snapshot.arrays.items()]
    counters = {name: int(getattr(snapshot, name)) for name in _COUNTERS}
    header = {"format": FORMAT, **counters, "extra": snapshot.extra, "arrays": entries}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_member(HEADER), json.dumps(header, indent=1, allow_nan=False))
        for name, array in snapshot.arrays.items():
            archive.writestr(_member(f"{name}.npy"), encode_npy(array))


def _member(name: str) -> zipfile.ZipInfo:
    """A member with a constant date and system, so that equal snapshots make equal files."""
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = 0o644 << 16
    return info


def _entry(name: str, array: NDArray[Any]) -> dict[str, Any]:
    return {"name": name, "shape": list(array.shape), "dtype": array.dtype.name, "sha256": _digest(array)}


def _sync_directory(directory: Path) -> None:
    """Put a rename on the disk. Windows cannot open directories, and orders renames by itself."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _require_envelope(file: IO[bytes]) -> None:
    """Raise Refused unless the file starts and ends as a zip without a comment does."""
    start = file.read(len(_ZIP_START))
    if start != _ZIP_START:
        raise Refused(f"expected a snapshot, which starts with {_ZIP_START!r}, got {start!r}")
    file.seek(max(0, file.seek(0, os.SEEK_END) - _ZIP_END_LENGTH))
    if file.read(len(_ZIP_END)) != _ZIP_END:
        raise Refused("expected a whole snapshot, got one without its end, or with bytes after it; use an older one")


def _read(archive: zipfile.ZipFile, size: int) -> Snapshot:
    """The snapshot in a zip of `size` bytes. Raises Refused, or something of `_DAMAGE`."""
    members = archive.infolist()
    stored = all(info.compress_type == zipfile.ZIP_STORED and info.file_size == info.compress_size for info in members)
    if not stored or sum(info.file_size for info in members) > size:
        raise Refused(f"expected stored members of {size} bytes in all at most, got others")
    header = _header(archive)
    entries = header["arrays"]
    expected = [HEADER, *(f"{entry['name']}.npy" for entry in entries)]
    if len(set(expected)) < len(expected):
        raise Refused(f"expected a header that lists every array once, got {_some(expected)}")
    if [info.filename for info in members] != expected:
        raise Refused(f"expected the members {_some(expected)}, got {_some([info.filename for info in members])}")
    arrays = {entry["name"]: _array(archive, entry) for entry in entries}
    return Snapshot(arrays, **{name: header[name] for name in _COUNTERS}, extra=header["extra"])


def _header(archive: zipfile.ZipFile) -> dict[str, Any]:
    """The header, its fields' types checked but for what Snapshot checks itself. Raises Refused."""
    if HEADER not in archive.namelist():
        raise Refused(f"expected a snapshot with a member {HEADER}, got {_some(archive.namelist())}")
    header = json.loads(archive.read(HEADER))
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        came = header.get("format") if isinstance(header, dict) else type(header).__name__
        raise Refused(f"expected the format {FORMAT!r}, got {came!r}; load it with the version that saved it")
    if set(header) != _FIELDS or not isinstance(header["arrays"], list) or not isinstance(header["extra"], dict):
        raise Refused(f"expected a header of {_some(sorted(_FIELDS))}, got {_some(sorted(header))}")
    for entry in header["arrays"]:
        _require_entry(entry)
    return header


def _require_entry(entry: Any) -> None:
    """Raise Refused unless the header's `entry` describes an array."""
    if not isinstance(entry, dict) or set(entry) != _ENTRY_FIELDS or not isinstance(entry["name"], str):
        raise Refused(f"expected arrays with {_some(sorted(_ENTRY_FIELDS))}, got {entry!r}")
    shape = entry["shape"]
    if not isinstance(shape, list) or not _is_shape(tuple(shape)) or entry["dtype"] not in DTYPES:
        raise Refused(f"array {entry['name']!r}: expected a shape and a dtype, got {shape!r} and {entry['dtype']!r}")


def _array(archive: zipfile.ZipFile, entry: dict[str, Any]) -> NDArray[Any]:
    """The array that `entry` of the header describes. Raises Refused."""
    array = decode_npy(archive.read(f"{entry['name']}.npy"), f"array {entry['name']!r}")
    expected, came = _describe(entry["shape"], entry["dtype"]), _describe(array.shape, array.dtype.name)
    if came != expected:
        raise Refused(f"array {entry['name']!r}: expected {expected} as in the header, got {came}")
    if _digest(array) != entry["sha256"]:
        raise Refused(f"array {entry['name']!r}: expected the SHA-256 {entry['sha256']!r}, got {_digest(array)!r}")
    return array


def _canonical(array: NDArray[Any]) -> NDArray[Any]:
    """The array in little-endian C order, which is how files and digests have it."""
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def _digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(_canonical(array).tobytes()).hexdigest()


def _describe(shape: tuple[int, ...] | list[int], dtype: str) -> str:
    return f"{dtype}{list(shape)}"


def _is_shape(shape: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(shape, tuple) and all(type(axis) is int and axis >= 0 for axis in shape)


def _some(names: list[str]) -> str:
    """The names, or the first few when they are many."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _require_counter(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise ValueError(f"snapshot {name}: expected an integer from 0 to 2**64 - 1, got {value!r}")


def _require_fact(name: object, fact: object) -> None:
    if not isinstance(name, str) or not isinstance(fact, (str, int, float)):
        raise ValueError(f"snapshot extra {name!r}: expected a str, int or float, got {fact!r}")
    if isinstance(fact, float) and not math.isfinite(fact):
        raise ValueError(f"snapshot extra {name!r}: expected a finite number, got {fact!r}")


def _require_name(name: object) -> None:
    """Raise ValueError unless `name` is a relative path of printable characters, which any unzip can write."""
    if not isinstance(name, str) or not re.fullmatch(r"[^/\\]+(/[^/\\]+)*", name) or not name.isprintable():
        raise ValueError(f"snapshot array {name!r}: expected a name of printable parts joined by '/'")
    if len(name) > 1000 or {".", ".."} & set(name.split("/")):
        raise ValueError(f"snapshot array {name!r}: expected at most 1000 characters and no part '.' or '..'")
