"""Readers of the user's own MNIST (IDX) and CIFAR-10 (binary) files; nothing is ever unpickled.

A file is not believed: what its header claims is compared with what the file can hold before memory is asked for, and
with what it does hold afterwards. Whatever disagrees raises Refused with the file, what was expected, and what came.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from purine_ref.data.dataset import Bytes, Dataset, require_float, scaled
from purine_ref.errors import Refused

CLASSES = 10
"""Both data sets label their images 0 to 9."""

CIFAR_IMAGE = (3, 32, 32)
"""Channels (red, green, blue), height and width of a CIFAR-10 image."""

_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CHUNK = 1 << 20
# Beyond these numpy cannot hold a shape, even one with an empty axis.
_MOST_AXES, _MOST_ELEMENTS = 32, 2**59
# A deflate stream is never shorter than this fraction of what it inflates to (zlib technical details).
_DEFLATE_RATIO = 1032


def load_mnist(directory: str | os.PathLike[str], dtype: str = "float32") -> Dataset:
    """The MNIST files in `directory`, plain or .gz: images (N, 1, height, width) in [0, 1] as `dtype`.

    Also reads data sets that come in the same four files with other sizes or counts, such as Fashion-MNIST.
    Raises ShapeError unless `dtype` is float32 or float64, and Refused for absent, damaged or disagreeing files.
    """
    require_float(dtype)
    train, train_labels = _mnist_part(Path(directory), "train", dtype)
    test, test_labels = _mnist_part(Path(directory), "t10k", dtype)
    if train.shape[1:] != test.shape[1:]:
        raise Refused(f"{directory}: expected images of one size, got {train.shape[2:]} and {test.shape[2:]}")
    return Dataset(train, train_labels, test, test_labels)


def load_cifar10(directory: str | os.PathLike[str], dtype: str = "float32", records: int = 10_000) -> Dataset:
    """The binary CIFAR-10 files in `directory`: images (N, 3, 32, 32) in [0, 1] as `dtype`.

    Reads data_batch_1.bin to data_batch_5.bin and test_batch.bin, each of exactly `records` samples.
    Raises ShapeError unless `dtype` is float32 or float64, ValueError unless `records` is above 0, and Refused for
    absent or damaged files.
    """
    require_float(dtype)
    if records < 1:
        raise ValueError(f"load_cifar10: expected records above 0, got {records}")
    parts = [_cifar_records(_find(Path(directory), f"data_batch_{i}.bin"), records) for i in range(1, 6)]
    test = _cifar_records(_find(Path(directory), "test_batch.bin"), records)
    train = np.concatenate(parts)
    return Dataset(*_cifar_split(train, dtype), *_cifar_split(test, dtype))


def read_idx(path: str | os.PathLike[str]) -> NDArray[Any]:
    """The array in an IDX file, in native byte order; a name that ends in .gz is decompressed.

    The format: two zero bytes, a type byte, the number of axes, each axis as a big-endian 32-bit count, then the
    elements in C order, big-endian (LeCun, Cortes, Burges: THE MNIST DATABASE).
    Raises Refused when the file is damaged, and OSError when it cannot be opened.
    """
    path = Path(path)
    packed = path.suffix == ".gz"
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not packed:
            return _read_idx(path, file, size)
        try:
            with gzip.GzipFile(fileobj=file) as stream:
                return _read_idx(path, stream, size * _DEFLATE_RATIO)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise Refused(f"{path}: expected a whole gzip file, got a damaged one ({error}); fetch it again") from error


def _read_idx(path: Path, stream: BinaryIO | gzip.GzipFile, capacity: int) -> NDArray[Any]:
    """The array in `stream`, which cannot hold more than `capacity` bytes. Raises Refused."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _IDX_TYPES or magic[3] > _MOST_AXES:
        raise Refused(f"{path}: expected an IDX file (00 00, type 08 to 0E, axes), got the bytes {magic.hex(' ')!r}")
    axes = stream.read(4 * magic[3])
    if len(axes) < 4 * magic[3]:
        raise Refused(f"{path}: expected {4 * magic[3]} bytes of lengths of {magic[3]} axes, got {len(axes)}")
    shape = struct.unpack(f">{magic[3]}I", axes)
    dtype = np.dtype(_IDX_TYPES[magic[2]])
    expected = math.prod(shape) * dtype.itemsize
    claim = f"{path}: expected {expected} bytes of elements for shape {shape}"
    if expected > capacity or math.prod(axis or 1 for axis in shape) > _MOST_ELEMENTS:
        raise Refused(f"{claim}, but the file cannot hold more than {capacity}")
    data = _read_up_to(stream, expected + 1)
    if len(data) != expected:
        raise Refused(f"{claim}, got {'more' if len(data) > expected else len(data)}")
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _read_up_to(stream: BinaryIO | gzip.GzipFile, limit: int) -> bytes:
    """At most `limit` bytes, in chunks: a stream that ends early never costs the memory of its claim."""
    chunks = []
    while limit and (chunk := stream.read(min(limit, _CHUNK))):
        chunks.append(chunk)
        limit -= len(chunk)
    return b"".join(chunks)


def _find(directory: Path, *names: str) -> Path:
    """The first of `names` that is in `directory`. Raises Refused when none is."""
    for name in names:
        if (directory / name).is_file():
            return directory / name
    raise Refused(f"{directory}: expected a file {' or '.join(names)}, found none")


def _mnist_part(directory: Path, part: str, dtype: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The images (N, 1, height, width) and labels (N,) of `part`, train or t10k. Raises Refused."""
    image_path, pixels = _mnist_array(directory, f"{part}-images", 3)
    label_path, labels = _mnist_array(directory, f"{part}-labels", 1)
    if len(pixels) != len(labels):
        raise Refused(f"{label_path}: expected {len(pixels)} labels, for the images in {image_path}, got {len(labels)}")
    _require_labels(label_path, labels)
    return scaled(pixels[:, np.newaxis], 255, dtype), labels.astype(np.int64)


def _mnist_array(directory: Path, stem: str, axes: int) -> tuple[Path, Bytes]:
    """The file of that stem (with either of its two usual spellings) and its array. Raises Refused."""
    spellings = [f"{stem}{mark}idx{axes}-ubyte" for mark in "-."]
    path = _find(directory, *spellings, *(f"{name}.gz" for name in spellings))
    array = read_idx(path)
    if array.ndim != axes or array.dtype != np.uint8 or array.size == 0:
        raise Refused(f"{path}: expected uint8 elements on {axes} axes, none empty, got {array.dtype} {array.shape}")
    return path, array


def _cifar_records(path: Path, records: int) -> Bytes:
    """The records (N, 1 + 3072) of one file: a label, then an image. Raises Refused."""
    length = 1 + math.prod(CIFAR_IMAGE)
    expected = records * length
    with open(path, "rb") as file:
        data = _read_up_to(file, expected + 1)
    if len(data) != expected:
        came = "more" if len(data) > expected else len(data)
        raise Refused(f"{path}: expected {records} records of {length} bytes, {expected} in all, got {came}")
    table = np.frombuffer(data, np.uint8).reshape(records, length)
    _require_labels(path, table[:, 0])
    return table


def _cifar_split(table: Bytes, dtype: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The images (N, 3, 32, 32) and labels (N,) of records (N, 3073)."""
    return scaled(table[:, 1:].reshape(-1, *CIFAR_IMAGE), 255, dtype), table[:, 0].astype(np.int64)


def _require_labels(path: Path, labels: Bytes) -> None:
    """Raise Refused, naming the first, when a label is not below `CLASSES`."""
    wrong = np.flatnonzero(labels >= CLASSES)
    if wrong.size:
        raise Refused(f"{path}: expected labels from 0 to {CLASSES - 1}, got {labels[wrong[0]]} for sample {wrong[0]}")
