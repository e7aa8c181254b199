"""Arrays on the wire: 64-bit sizes, chunks that are put together again, and what else than the next one is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from purine_ref.errors import Refused
from purine_ref.tensor import DTYPES, Tensor
from purine_ref.transports.zeromq.parcel import Parcel, wire_bytes
from purine_ref.transports.zeromq.session import Session
from purine_ref.transports.zeromq.shared import Shared
from purine_ref.transports.zeromq.wire import CHUNK, Malformed, chunks, decode, encode, encode_data
from suites.transports import Call

GIB = 2**30


def data(**fields: Any) -> dict[str, Any]:
    """The header of a chunk of iteration 0 along tag 2 of the first session."""
    return {
        "kind": "data", "seq": 1, "ack": 0, "session": 0, "tag": 2, "iteration": 0, "dtype": "float64", "shape": [3],
        "offset": 0,
    } | fields  # fmt: skip


@pytest.mark.parametrize("size", [2**31 - 1, 2**31, 2**32 + 1, 2**53 + 1, 2**63 - 1])
def test_mq_10_lengths_of_64_bits_come_back_as_they_were(size: int) -> None:
    header = data(shape=[size, 1], offset=size - 1, iteration=size)
    assert decode(encode(header)) == header


@pytest.mark.parametrize("size", [2**63, -1, 1.0, True, "1", None])
def test_mq_10_other_lengths_are_refused(size: object) -> None:
    with pytest.raises(Malformed, match=r"^a header of kind data with a wrong shape$"):
        decode(encode(data(shape=[3, size])))


COUNTS = st.integers(0, 2**63 - 1) | st.sampled_from([0, 9, 10, 10**18 - 1, 10**18, 2**63 - 1])


@given(
    fields=st.fixed_dictionaries(
        {key: COUNTS for key in ("session", "tag", "iteration", "offset", "seq", "ack")}
        | {"dtype": st.sampled_from(DTYPES), "shape": st.lists(COUNTS, max_size=64)}
    )
)
def test_headers_of_data_are_written_and_read_as_all_others(fields: dict[str, Any]) -> None:
    header = data(**fields)
    assert json.loads(encode_data(header)) == header
    for written in (encode_data(header), encode(header), json.dumps(header).encode()):
        assert decode(written) == header


def decoded(written: str) -> dict[str, Any] | None:
    """The header, if it is one."""
    try:
        return decode(written.encode())
    except Malformed:
        return None


@pytest.mark.parametrize("shape", [[], [3, 10], [1] * 64, [1] * 65])
def test_headers_of_data_with_an_error_are_refused_as_all_others(shape: list[int]) -> None:
    """At each place, each of some texts is put in, or written over one character."""
    written = encode_data(data(shape=shape, iteration=10)).decode()
    for place in range(len(written)):
        for text in ("", "0", "-", "1", ".", ",", "[", "]", "}", '"', " ", "e", "\n", "\u0661", "9" * 18, "9" * 19):
            for end in (place, place + 1):
                changed = written[:place] + text + written[end:]
                assert decoded(changed) == decoded(" " + changed)  # after a space, the decoder has to read it


@given(size=st.integers(0, 40 * CHUNK) | st.sampled_from([0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * GIB, 3 * GIB + 5]))
def test_mq_10_chunks_cover_an_array_once_in_order(size: int) -> None:
    """3 GiB too: the numbers of its chunks are checked without its bytes."""
    ends = list(chunks(size))
    assert [start for start, _ in ends] == [0, *(end for _, end in ends[:-1])]
    assert ends[-1][1] == size
    assert all(end - start == CHUNK for start, end in ends[:-1])
    assert len(ends) == max(1, math.ceil(size / CHUNK))


def test_mq_10_a_parcel_of_3_gib_takes_no_memory_before_it_comes() -> None:
    parcel = Parcel("float32", (3, GIB // 4), 0)
    assert parcel.size == 3 * GIB
    parcel.received = 3 * GIB - 5
    assert (parcel.next_end(), parcel.complete) == (3 * GIB, False)


class Receiver:
    """Rank 1 of two, without sockets: it is handed what rank 0 sends along tag 2."""

    def __init__(self, tensor: Tensor, early: int = 2) -> None:
        self.tensor = tensor
        shared = Shared(1, 2, timeout=1.0, patience=1.0)
        self.session = Session(shared, 0, "net", [{}, {(0, 2): tensor}], early, {})

    def send(self, payload: bytes, offset: int, iteration: int = 0, **fields: Any) -> list[Any]:
        """One chunk; returns whom to call."""
        header = data(dtype=self.tensor.dtype, shape=list(self.tensor.shape), offset=offset, iteration=iteration)
        return self.session.receive(0, header | fields, zmq.Frame(payload))

    def send_all(self, array: Any, iteration: int = 0) -> list[Any]:
        """All chunks of an array; returns whom to call."""
        flat = wire_bytes(array)
        return [
            call
            for offset, end in chunks(flat.size)
            for call in self.send(flat[offset:end].tobytes(), offset, iteration)
        ]


@pytest.mark.parametrize("size", [0, 3, CHUNK - 1, CHUNK, 10 * 2**20 + 3])
@pytest.mark.parametrize("strided", [False, True])
def test_mq_10_chunks_are_put_together_bit_for_bit(size: int, strided: bool) -> None:
    """10 MiB and 3 bytes are rounded to whole elements; nothing at all arrives as nothing."""
    tensor = Tensor((size // 4,), "float32")
    array = np.random.default_rng(size).integers(0, 255, size // 4 * 4, np.uint8).view("float32")
    receiver, arrived = Receiver(tensor), Call()
    receiver.session.expect(0, 2, 0, arrived)
    calls = receiver.send_all(array)
    assert calls == [arrived]
    into = np.full((size // 4, 2), 7, "float32")[:, 0] if strided else np.full(tensor.shape, 7, "float32")
    receiver.session.take(0, 2, 0, into)
    assert into.tobytes() == array.tobytes()


def test_chunks_go_where_the_array_does_as_they_come() -> None:
    """Those that came before it was known too; and none any more when a rank is lost."""
    receiver = Receiver(Tensor((3 * CHUNK // 8,), "float64"))
    into = np.full(receiver.tensor.shape, 7.0)
    receiver.send(bytes(CHUNK), 0)
    receiver.session.expect(0, 2, 0, Call(), into)
    receiver.send(bytes(CHUNK), CHUNK)
    assert np.count_nonzero(into) == CHUNK // 8
    receiver.session.abort("no power")
    assert receiver.send(bytes(CHUNK), 2 * CHUNK) == []
    assert np.count_nonzero(into) == CHUNK // 8


def test_chunks_of_another_iteration_go_nowhere_before_they_are_taken() -> None:
    receiver = Receiver(Tensor((3,), "float64"))
    into = np.full(3, 7.0)
    receiver.session.expect(0, 2, 1, Call(), into)
    receiver.send_all(np.zeros(3), 0)
    assert into.tolist() == [7.0, 7.0, 7.0]
    with pytest.raises(Refused, match=r"iteration 0, from rank 0 to rank 1: expected iteration 1, which is due$"):
        receiver.session.take(0, 2, 1, into)


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        ((0, CHUNK), r"bytes 0 to 524288 along tag 2, where 524288 to 1048576 of iteration 0 come next"),
        ((2 * CHUNK, CHUNK), r"bytes 1048576 to 1572864 along tag 2, where 524288 to 1048576"),
        ((CHUNK, CHUNK - 1), r"bytes 524288 to 1048575 along tag 2, where 524288 to 1048576"),
        ((CHUNK, CHUNK + 1), r"bytes 524288 to 1048577 along tag 2, where 524288 to 1048576"),
        ((CHUNK, CHUNK, 1), r"a chunk of iteration 1 of bytes .*, where .* of iteration 0 come next"),
    ],
)
def test_mq_10_a_chunk_that_does_not_come_next_is_refused(chunk: tuple[int, ...], expected: str) -> None:
    """Twice, out of order, short, long, or of another iteration."""
    offset, size, *iteration = chunk
    receiver = Receiver(Tensor((3 * CHUNK,), "float64"))
    receiver.send(bytes(CHUNK), 0)
    with pytest.raises(Malformed, match=expected):
        receiver.send(bytes(size), offset, *iteration)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"shape": [4]}, r"expected float64\[3\], got float64\[4\]"),
        ({"shape": [2**62]}, r"expected float64\[3\], got float64\[4611686018427387904\]"),
        ({"dtype": "int64"}, r"expected float64\[3\], got int64\[3\]"),
        ({"tag": 3}, r"expected a tag of 2"),
    ],
)
def test_what_is_not_in_the_graph_is_refused_before_memory_is_taken(fields: dict[str, Any], expected: str) -> None:
    receiver = Receiver(Tensor((3,), "float64"))
    with pytest.raises(Refused, match=expected):
        receiver.send(bytes(24), 0, **fields)
    assert receiver.send_all(np.arange(3.0)) == []


def test_more_early_messages_than_there_is_room_for_are_refused() -> None:
    receiver = Receiver(Tensor((3,), "float64"), early=2)
    for iteration in range(2):
        receiver.send_all(np.arange(3.0), iteration)
    with pytest.raises(Malformed, match=r"^a message of tag 2, iteration 2, for which there is no room$"):
        receiver.send_all(np.arange(3.0), 2)


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3).T, np.array(2.5)])
def test_bytes_go_in_c_order_and_little_endian(array: Any) -> None:
    want = np.array(array, array.dtype.newbyteorder("<"), order="C").tobytes()
    assert wire_bytes(array).tobytes() == want
