"""Data sets are read right or refused, and the order of batches is a pure function that any language can repeat."""

from __future__ import annotations

import gzip
import hashlib
import re
import struct
import tracemalloc
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purine_ref.data import BatchOrder, Dataset, digits, load_cifar10, load_digits, load_mnist, read_idx
from purine_ref.errors import Refused, ShapeError

# The embedded digits


def test_digits_have_the_documented_shapes_and_values() -> None:
    data = load_digits()
    assert data.train_images.shape == (1501, 1, 8, 8)
    assert data.test_images.shape == (296, 1, 8, 8)
    assert data.train_labels.shape == (1501,)
    assert data.test_labels.shape == (296,)
    assert data.train_labels.dtype == data.test_labels.dtype == np.int64
    images = np.concatenate([data.train_images, data.test_images])
    assert set(np.unique(images * 16)) == set(range(17))


def test_digits_are_those_of_the_source() -> None:
    with np.load(Path(digits.__file__).parent.parent / "datasets" / "digits.npz", allow_pickle=False) as stored:
        sums = {name: hashlib.sha256(stored[name].tobytes()).hexdigest() for name in ("images", "labels")}
    note = (Path(digits.__file__).parent.parent / "datasets" / "digits.txt").read_text("utf-8")
    assert all(f"{name} {value}" in note for name, value in sums.items())
    sklearn = pytest.importorskip("sklearn.datasets").load_digits()
    data = load_digits("float64")
    test = digits.held_out(sklearn.target)
    np.testing.assert_array_equal(data.train_images[:, 0] * 16, sklearn.images[~test])
    np.testing.assert_array_equal(data.test_images[:, 0] * 16, sklearn.images[test])
    np.testing.assert_array_equal(data.train_labels, sklearn.target[~test])
    np.testing.assert_array_equal(data.test_labels, sklearn.target[test])


def test_the_split_holds_out_a_sixth_of_every_class() -> None:
    data = load_digits()
    train, test = np.bincount(data.train_labels), np.bincount(data.test_labels)
    np.testing.assert_array_equal(test, (train + test) // 6)


def test_every_sixth_of_a_class_is_held_out() -> None:
    classes = np.array([3] * 5 + [4] * 7 + [3] * 8, np.uint8)
    assert np.flatnonzero(digits.held_out(classes)).tolist() == [10, 12, 18]


def test_digits_are_the_same_in_both_dtypes_and_each_call_has_its_own() -> None:
    single, double = load_digits("float32"), load_digits("float64")
    assert single.train_images.dtype.name == "float32"
    assert double.train_images.dtype.name == "float64"
    np.testing.assert_array_equal(single.train_images, double.train_images)
    single.train_images[:] = 7
    assert load_digits("float32").train_images.max() == 1


def test_damaged_embedded_digits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "digits.npz"
    monkeypatch.setattr(digits, "_FILE", path)
    np.savez(path, x=np.zeros(3))
    other = path.read_bytes()
    for content in (b"text", other[:-9], other[:9] + b"?" + other[10:], other):
        path.write_bytes(content)
        with pytest.raises(Refused, match=r"^.*digits\.npz: expected the embedded digits, got .*; install .*$"):
            load_digits()
    np.savez(path, images=np.zeros((3, 8, 8), np.uint8), labels=np.zeros(3, np.uint8))
    with pytest.raises(Refused, match=r"^.*digits\.npz: expected uint8 images \(1797, 8, 8\) .*, got uint8 \(3, .*$"):
        load_digits()


@pytest.mark.parametrize("dtype", ["int64", "float16", "uint8", ""])
def test_other_dtypes_are_refused(tmp_path: Path, dtype: str) -> None:
    message = rf"^images: expected dtype float32 or float64, got '{dtype}'$"
    with pytest.raises(ShapeError, match=message):
        load_digits(dtype)
    with pytest.raises(ShapeError, match=message):
        load_mnist(tmp_path, dtype)
    with pytest.raises(ShapeError, match=message):
        load_cifar10(tmp_path, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gc_02_pixels_become_floats_before_the_mean_is_subtracted(tmp_path: Path, dtype: str) -> None:
    """A pixel of 10 less a mean of 20 is -10, never 246, and float32 stays float32."""
    pixels = np.array([10, 30, 20, 20], np.uint8).reshape(4, 1, 1)
    files = {"train-images-idx3": pixels, "train-labels-idx1": classes(4, 3, 2, 1), "t10k-images-idx3": pixels + 5}
    write_mnist(tmp_path, {f"{name}-ubyte": idx(array) for name, array in files.items()})
    data = load_mnist(tmp_path, dtype)
    centred = data.centred()
    assert centred.train_images.dtype == centred.test_images.dtype == dtype
    np.testing.assert_allclose(centred.train_images.ravel() * 255, [-10, 10, 0, 0], atol=1e-4)
    np.testing.assert_allclose(centred.test_images.ravel() * 255, [-5, 15, 5, 5], atol=1e-4)
    assert centred.train_labels is data.train_labels


def test_the_mean_image_is_summed_in_float64() -> None:
    images = np.full((1 << 15, 1, 1, 1), 0.1, np.float32)
    labels = np.zeros(1 << 15, np.int64)
    centred = Dataset(images, labels, images[:3], labels[:3]).centred()
    assert not centred.train_images.any()


# IDX and MNIST

IDX_CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx(array: np.ndarray[Any, Any]) -> bytes:
    """The bytes of an IDX file."""
    code = IDX_CODES[array.dtype.str[1:]]
    header = bytes([0, 0, code, array.ndim]) + b"".join(struct.pack(">I", axis) for axis in array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def classes(*values: int) -> np.ndarray[Any, Any]:
    """Labels as the files have them."""
    return np.array(values, np.uint8)


def write_mnist(directory: Path, changes: dict[str, bytes] | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """Four files of 7 and 4 images of 3x5, after `changes`; returns the arrays."""
    rng = np.random.default_rng(5)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "train-images-idx3-ubyte": rng.integers(0, 256, (7, 3, 5), np.uint8),
        "train-labels-idx1-ubyte": classes(9, 0, 1, 2, 3, 4, 5),
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (4, 3, 5), np.uint8),
        "t10k-labels-idx1-ubyte": classes(6, 7, 8, 9),
    }
    for name, data in {**{name: idx(array) for name, array in arrays.items()}, **(changes or {})}.items():
        (directory / name).write_bytes(data)
    return arrays


@pytest.mark.parametrize("code", IDX_CODES)
@pytest.mark.parametrize("shape", [(), (6,), (2, 3, 5), (0, 3)])
def test_idx_files_of_every_type_are_read(tmp_path: Path, code: str, shape: tuple[int, ...]) -> None:
    want = np.random.default_rng(2).integers(-120, 120, shape).astype(code)
    (tmp_path / "x").write_bytes(idx(want))
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx(want)))
    for name in ("x", "x.gz"):
        got = read_idx(tmp_path / name)
        assert got.dtype == np.dtype(code)
        assert got.dtype.isnative
        assert got.flags.writeable
        np.testing.assert_array_equal(got, want)
        assert got.shape == shape


def test_an_idx_file_cut_anywhere_or_too_long_is_refused(tmp_path: Path) -> None:
    whole = idx(np.arange(30, dtype=np.int16).reshape(2, 3, 5))
    packed = gzip.compress(whole)
    cut = [*(("x", whole[:k]) for k in range(len(whole))), *(("x.gz", packed[:k]) for k in range(len(packed)))]
    long = [("x", whole + b"\0"), ("x.gz", packed + b"\1"), ("x.gz", gzip.compress(whole + b"\0")), ("x.gz", whole)]
    short = [("x.gz", gzip.compress(whole[:k])) for k in range(len(whole))]
    for name, data in cut + long + short:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(Refused, match=rf"^{re.escape(str(tmp_path / name))}: expected .*(got|hold) .*$"):
            read_idx(tmp_path / name)


def test_a_gzip_file_with_one_wrong_byte_is_refused_or_the_same(tmp_path: Path) -> None:
    want = np.random.default_rng(1).integers(0, 256, (2, 3, 5), np.uint8)
    packed = np.frombuffer(gzip.compress(idx(want)), np.uint8)
    for offset in range(len(packed)):
        wrong = packed.copy()
        wrong[offset] ^= 0x55
        (tmp_path / "x.gz").write_bytes(wrong.tobytes())
        try:
            got = read_idx(tmp_path / "x.gz")
        except Refused:
            continue
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"P5 3 5\n", "expected an IDX file (00 00, type 08 to 0E, axes), got the bytes '50 35 20 33'"),
        (b"\0\0\x0a\1\0\0\0\0", "expected an IDX file (00 00, type 08 to 0E, axes), got the bytes '00 00 0a 01'"),
        (
            b"\0\0\x08\xff" + bytes(1020),
            "expected an IDX file (00 00, type 08 to 0E, axes), got the bytes '00 00 08 ff'",
        ),
        (b"\0\0\x08\3\0\0\0\1", "expected 12 bytes of lengths of 3 axes, got 4"),
        (b"\0\0\x08\1\0\0\0\3abcd", "expected 3 bytes of elements for shape (3,), got more"),
        (
            b"\0\0\x0d\1\0\0\0\7abcd",
            "expected 28 bytes of elements for shape (7,), but the file cannot hold more than 12",
        ),
        (b"\0\0\x0d\1\0\0\0\3abcd", "expected 12 bytes of elements for shape (3,), got 4"),
        (
            b"\0\0\x0e\2" + b"\xff" * 8,
            "expected 147573952520956936200 bytes of elements for shape (4294967295, 4294967295), "
            "but the file cannot hold more than 12",
        ),
        (
            b"\0\0\x08\3\0\0\0\0" + b"\xff" * 8,
            "expected 0 bytes of elements for shape (0, 4294967295, 4294967295), but the file cannot hold more than 16",
        ),
    ],
)
def test_a_wrong_idx_header_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(Refused, match=f"^{re.escape(str(tmp_path / 'x') + ': ' + message)}$"):
        read_idx(tmp_path / "x")


def test_a_packed_header_claims_no_memory_that_does_not_come(tmp_path: Path) -> None:
    """The claim is within what a gzip file of that length could hold, but the data end at once."""
    rest = np.random.default_rng(0).bytes(1 << 18)
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"\0\0\x08\1" + struct.pack(">I", 200 << 20) + rest))
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match=r"^.*x\.gz: expected 209715200 bytes of elements .*, got 262144$"):
            read_idx(tmp_path / "x.gz")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_missing_idx_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_idx(tmp_path / "none")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rename", ["{}", "{}.gz", "dots"])
def test_mnist_is_read_from_every_spelling(tmp_path: Path, dtype: str, rename: str) -> None:
    arrays = write_mnist(tmp_path)
    for path in list(tmp_path.iterdir()):
        data = path.read_bytes()
        path.unlink()
        name = path.name.replace("-idx", ".idx") if rename == "dots" else rename.format(path.name)
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    data_set = load_mnist(tmp_path, dtype)
    for part, images, labels in (
        ("train", data_set.train_images, data_set.train_labels),
        ("t10k", data_set.test_images, data_set.test_labels),
    ):
        pixels = arrays[f"{part}-images-idx3-ubyte"]
        assert images.dtype == dtype
        assert images.shape == (len(pixels), 1, 3, 5)
        np.testing.assert_array_equal(images[:, 0], pixels.astype(dtype) / np.dtype(dtype).type(255))
        assert labels.dtype == np.int64
        np.testing.assert_array_equal(labels, arrays[f"{part}-labels-idx1-ubyte"])


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (
            "train-labels-idx1-ubyte",
            idx(classes(0, 1, 10, 2, 11, 3, 4)),
            "expected labels from 0 to 9, got 10 for sample 2",
        ),
        ("t10k-labels-idx1-ubyte", idx(classes(1, 2, 3)), r"expected 4 labels, for the images in .*, got 3"),
        (
            "train-images-idx3-ubyte",
            idx(np.zeros((7, 15), np.uint8)),
            r"expected uint8 .* 3 axes, .*, got uint8 \(7, 15\)",
        ),
        ("train-images-idx3-ubyte", idx(np.zeros((7, 1, 1), np.int16)), r"expected uint8 .*, got int16 \(7, 1, 1\)"),
        (
            "train-images-idx3-ubyte",
            idx(np.zeros((0, 1, 1), np.uint8)),
            r"expected .*none empty, got uint8 \(0, 1, 1\)",
        ),
        (
            "t10k-labels-idx1-ubyte",
            idx(classes(1, 2, 3, 4)[:, np.newaxis]),
            r"expected .* 1 axes, .*, got uint8 \(4, 1\)",
        ),
        ("t10k-images-idx3-ubyte", idx(np.zeros((4, 3, 5), np.uint8))[:-1], r"expected 60 bytes .*, got 59"),
    ],
)
def test_mnist_files_that_disagree_are_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    write_mnist(tmp_path, {name: data})
    with pytest.raises(Refused, match=f"^{re.escape(str(tmp_path / name))}: {message}$"):
        load_mnist(tmp_path)


def test_mnist_parts_of_different_sizes_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path, {"t10k-images-idx3-ubyte": idx(np.zeros((4, 5, 3), np.uint8))})
    with pytest.raises(
        Refused, match=rf"^{re.escape(str(tmp_path))}: expected images of one size, got \(3, 5\) and \(5, 3\)$"
    ):
        load_mnist(tmp_path)


def test_an_absent_mnist_file_is_named(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(Refused, match=r"^.*: expected a file t10k-labels-idx1-ubyte or .*\.gz, found none$"):
        load_mnist(tmp_path)


# CIFAR-10


def write_cifar(directory: Path, records: int) -> dict[str, np.ndarray[Any, Any]]:
    """Six files of so many records; returns them as (records, 3073)."""
    rng = np.random.default_rng(4)
    tables = {}
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        tables[name] = rng.integers(0, 256, (records, 3073), np.uint8)
        tables[name][:, 0] = rng.integers(0, 10, records)
        (directory / name).write_bytes(tables[name].tobytes())
    return tables


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cifar_is_read(tmp_path: Path, dtype: str) -> None:
    tables = write_cifar(tmp_path, 4)
    data = load_cifar10(tmp_path, dtype, records=4)
    assert data.train_images.shape == (20, 3, 32, 32)
    assert data.test_images.shape == (4, 3, 32, 32)
    assert data.train_images.dtype == data.test_images.dtype == dtype
    assert data.train_labels.dtype == data.test_labels.dtype == np.int64
    np.testing.assert_array_equal(data.test_labels, tables["test_batch.bin"][:, 0])
    third = tables["data_batch_3.bin"][1]
    assert data.train_labels[9] == third[0]
    for channel, row, column in ((0, 0, 0), (1, 3, 30), (2, 31, 7)):
        pixel = third[1 + channel * 1024 + row * 32 + column]
        assert data.train_images[9, channel, row, column] == np.dtype(dtype).type(pixel) / np.dtype(dtype).type(255)


@pytest.mark.parametrize("length", [0, 1, 3072, 4 * 3073 - 1, 3 * 3073, 4 * 3073 + 1, 5 * 3073])
def test_a_cifar_file_of_another_length_is_refused(tmp_path: Path, length: int) -> None:
    write_cifar(tmp_path, 4)
    path = tmp_path / "data_batch_2.bin"
    path.write_bytes(bytes(length))
    message = f"{path}: expected 4 records of 3073 bytes, 12292 in all, got {length if length < 12292 else 'more'}"
    with pytest.raises(Refused, match=f"^{re.escape(message)}$"):
        load_cifar10(tmp_path, records=4)


def test_a_wrong_cifar_label_is_refused(tmp_path: Path) -> None:
    tables = write_cifar(tmp_path, 4)
    tables["test_batch.bin"][2, 0] = 10
    (tmp_path / "test_batch.bin").write_bytes(tables["test_batch.bin"].tobytes())
    with pytest.raises(Refused, match=r"^.*test_batch\.bin: expected labels from 0 to 9, got 10 for sample 2$"):
        load_cifar10(tmp_path, records=4)


def test_cifar_arguments_and_absent_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^load_cifar10: expected records above 0, got 0$"):
        load_cifar10(tmp_path, records=0)
    with pytest.raises(Refused, match=r"^.*: expected a file data_batch_1\.bin, found none$"):
        load_cifar10(tmp_path)


# The order of batches

ORDERS = st.builds(BatchOrder, st.integers(1, 60), st.integers(1, 70), st.integers(0, 2**64 - 1))


def epoch_of(order: BatchOrder, epoch: int) -> list[int]:
    """All samples of an epoch, in order."""
    return [int(i) for index in range(order.batches) for i in order.batch_indices(epoch, index)]


@given(ORDERS, st.integers(0, 2**40))
def test_every_epoch_is_a_permutation_in_full_batches_but_the_last(order: BatchOrder, epoch: int) -> None:
    lengths = [len(order.batch_indices(epoch, index)) for index in range(order.batches)]
    assert all(length == min(order.batch, order.samples) for length in lengths[:-1])
    assert 1 <= lengths[-1] <= order.batch
    assert sorted(epoch_of(order, epoch)) == list(range(order.samples))
    assert order.batch_indices(epoch, 0).dtype == np.int64


def test_drop_last_leaves_out_what_fills_no_batch() -> None:
    kept = BatchOrder(23, 5, seed=3)
    dropped = BatchOrder(23, 5, seed=3, drop_last=True)
    assert (kept.batches, dropped.batches) == (5, 4)
    assert epoch_of(dropped, 2) == epoch_of(kept, 2)[:20]
    assert BatchOrder(20, 5, drop_last=True).batches == BatchOrder(20, 5).batches == 4


@given(ORDERS, st.integers(0, 200))
def test_dp_06_resuming_at_any_place_goes_on_as_without_a_stop(order: BatchOrder, stop: int) -> None:
    straight = list(islice(order.iterate(), stop, stop + 5))
    resumed = list(islice(order.iterate(*order.place(stop)), 5))
    assert [place[:2] for place in straight] == [place[:2] for place in resumed]
    assert [place[2].tolist() for place in straight] == [place[2].tolist() for place in resumed]
    assert straight[1][:2] == order.after(*straight[0][:2])


def test_a_batch_does_not_depend_on_what_was_asked_before() -> None:
    first = BatchOrder(41, 6, seed=9).batch_indices(3, 2).tolist()
    for epoch in (0, 7, 2, 11, 5, 3):
        batch = BatchOrder(41, 6, seed=9).batch_indices(epoch, 2)
        batch[:] = 0  # The caller's own copy: the order must not change with it.
    assert BatchOrder(41, 6, seed=9).batch_indices(3, 2).tolist() == first


def test_epochs_and_seeds_differ_and_the_batch_size_does_not_matter() -> None:
    orders = {tuple(epoch_of(BatchOrder(50, 7, seed), epoch)) for seed in range(4) for epoch in range(5)}
    assert len(orders) == 20
    assert epoch_of(BatchOrder(50, 7, 1), 2) == epoch_of(BatchOrder(50, 13, 1), 2)


def test_samples_are_equally_often_in_every_position() -> None:
    counts = np.zeros((5, 5), int)
    for epoch in range(2000):
        counts[range(5), epoch_of(BatchOrder(5, 2, 1), epoch)] += 1
    # Each count is binomial(2000, 1/5), of standard deviation 17.9; six of them are never passed by chance.
    assert np.abs(counts - 400).max() < 6 * 17.9


def philox_block(counter: Iterable[int], key: Iterable[int]) -> list[int]:
    """Philox 4x64-10 as Salmon et al. (2011) state it, in plain integers."""
    word = (1 << 64) - 1
    x, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2E7470EE14C6C93 * x[0], 0xCA5A826395121157 * x[2]
        x = [(b >> 64) ^ x[1] ^ k[0], b & word, (a >> 64) ^ x[3] ^ k[1], a & word]
        k = [(k[0] + 0x9E3779B97F4A7C15) & word, (k[1] + 0xBB67AE8584CAA73B) & word]
    return x


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (5, 1), (2**64 - 1, 2**40)])
def test_r7_the_order_is_that_of_the_documented_generator(seed: int, epoch: int) -> None:
    stream = 0xCBF29CE484222325
    for byte in b"data/order":
        stream = (stream ^ byte) * 0x100000001B3 % 2**64
    words = [word for block in range(6) for word in philox_block((block, epoch, 0, 0), (seed, stream))]
    want = sorted(range(23), key=lambda i: words[i])
    assert epoch_of(BatchOrder(23, 5, seed), epoch) == want


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 3), "expected samples and batch above 0, got 0 and 3"),
        ((3, 0), "expected samples and batch above 0, got 3 and 0"),
        ((3, 2, -1), "expected a seed from 0 to 2**64 - 1, got -1"),
        ((3, 2, 2**64), "expected a seed from 0 to 2**64 - 1, got 18446744073709551616"),
        ((3, 4, 0, True), "a batch of 4 would drop all 3 samples"),
    ],
)
def test_a_wrong_order_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^BatchOrder: {re.escape(message)}$"):
        BatchOrder(*arguments)


@pytest.mark.parametrize(("epoch", "index"), [(-1, 0), (0, -1), (0, 3)])
def test_a_place_outside_the_order_is_refused(epoch: int, index: int) -> None:
    order = BatchOrder(7, 3)
    message = rf"^BatchOrder: expected an epoch of 0 or more and an index from 0 to 2, got {epoch} and {index}$"
    for call in (order.batch_indices, order.after, lambda *place: next(order.iterate(*place))):
        with pytest.raises(ValueError, match=message):
            call(epoch, index)
    with pytest.raises(ValueError, match=r"^BatchOrder: expected an iteration of 0 or more, got -1$"):
        order.place(-1)
