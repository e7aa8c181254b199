"""The files of a case: names that stay inside its folder, arrays that are read only after they were measured.

Also how a folder is written: beside, and renamed when it is whole.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from purine_ref.conformance.cases.attributes import shortened
from purine_ref.errors import Refused
from purine_ref.operation import Array
from purine_ref.snapshot import LONGEST_NPY_HEADER, decode_npy, npy_header
from purine_ref.tensor import Tensor

LONGEST_NAME = 200
"""Characters of a file's name in a case."""

DESCRIPTIONS = {"float32": "<f4", "float64": "<f8", "int64": "<i8"}
"""What an array file's header calls each dtype."""

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")


def require_file_name(data: object, where: str) -> str:
    """`data` itself, if it may name an array's file in a case. Raises Refused."""
    fits = isinstance(data, str) and len(data) <= LONGEST_NAME and data.endswith(".npy") and _NAME.fullmatch(data)
    if not isinstance(data, str) or not fits:
        raise Refused(
            f"{where}: expected a path inside the case of A-Z a-z 0-9 _ . - and /, no part of which starts with a dot, "
            f"at most {LONGEST_NAME} long and ending in .npy; got {shortened(data)}"
        )
    return data


def inside(folder: Path, name: str, where: str) -> Path:
    """The file of that name in `folder`. Raises Refused when a link leads out of it, or when it is no file."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise Refused(f"{where}: expected a file inside {folder}, but a link leads from {name!r} to {path}")
    if not path.is_file():
        raise Refused(f"{where}: expected a file {name!r} in {folder}, got none")
    return path


def read_array(folder: Path, name: str, tensor: Tensor, where: str) -> Array:
    """The array in a file, of just that shape and dtype. Its header and length are compared before it is read.

    Raises Refused.
    """
    path = inside(folder, name, where)
    place = f"{where}: {name}"
    with path.open("rb") as file:
        header, start = npy_header(file.read(10 + LONGEST_NPY_HEADER), place)
        _require_header(header, tensor, place)
        length = os.fstat(file.fileno()).st_size
        if length != start + tensor.nbytes:
            raise Refused(f"{place}: expected {start} bytes of header and {tensor.nbytes} of {tensor}, got {length}")
        file.seek(0)
        return decode_npy(file.read(length), place)


def _require_header(header: dict[str, Any], tensor: Tensor, place: str) -> None:
    """Raise Refused unless the header is that of `tensor`, little-endian and in C order."""
    expected = {"descr": DESCRIPTIONS[tensor.dtype], "fortran_order": False, "shape": tensor.shape}
    if header != expected or type(header["fortran_order"]) is not bool or _has_booleans(header["shape"]):
        raise Refused(f"{place}: expected the header {expected}, got {shortened(str(header))}")


def _has_booleans(shape: tuple[object, ...]) -> bool:
    """Whether True or False, which equal 1 and 0, stand for lengths."""
    return any(type(axis) is not int for axis in shape)


@contextmanager
def new_folder(target: Path, replace: bool = False) -> Iterator[Path]:
    """A folder beside `target` to write into, which takes its name when all went well, and else is gone.

    Raises Refused when there is something in `target` that may not be replaced.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise Refused(f"{target}: expected a folder or nothing, got something else; choose another name")
    if not replace and target.is_dir() and any(target.iterdir()):
        raise Refused(f"{target}: expected an empty folder or none, got one with files; choose another, or remove it")
    beside = target.with_name(f"{target.name}.{secrets.token_hex(8)}.tmp")
    beside.mkdir(parents=True)
    try:
        yield beside
        _take_place(beside, target)
    except BaseException:  # Ctrl-C too must leave nothing behind
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _take_place(beside: Path, target: Path) -> None:
    """Rename, with the old folder out of the way for as long as that takes."""
    if not target.exists():
        beside.rename(target)
        return
    old = target.with_name(f"{target.name}.{secrets.token_hex(8)}.old")
    target.rename(old)
    try:
        beside.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old)
