"""What strangers and broken peers send: no crash, no growth, the run's result unchanged, and every refusal counted."""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import selectors
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from zmq.utils import z85

from hooks import WATCH, bits
from meshes import Worlds, opened
from purine_ref.errors import PeerLost
from purine_ref.executors import Hosts
from purine_ref.transports.keys import Keys
from purine_ref.transports.zeromq import Joining, Mesh, Session, join
from purine_ref.transports.zeromq.wire import FIELDS, HEADER_LIMIT, Malformed, decode, encode
from ranked import serial_bits, training
from strangers import BOMBS, JUNK, MESSAGES, Attack, bent, greeting, message, ready, text
from suites.transports import all_to_all

SECRET = z85.encode(bytes(range(32)))
KEYS = Keys(zmq.curve_public(SECRET), SECRET, frozenset(), zmq.curve_public(SECRET))

RANDOM = st.randoms(use_true_random=False)


# Headers -------------------------------------------------------------------------------------------------------------


def plain(value: object) -> bool:
    """Whether a value is made of what a header may hold, and can be written down."""
    if isinstance(value, list):
        return all(map(plain, value))
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode() == value
    return (type(value) is int and 0 <= value < 2**63) or (type(value) is float and math.isfinite(value))


def judged(data: bytes) -> None:
    """What is decoded is right by the table, field by field; anything else is refused, and by no other error."""
    try:
        header = decode(data)
    except Malformed:
        return
    kind = header.pop("kind")
    if kind == "hello" and header["version"] != 1:
        return
    assert header.keys() == FIELDS[kind].keys()
    assert all(map(plain, header.values()))
    assert decode(encode({"kind": kind, **header})) == {"kind": kind, **header}


def test_there_is_a_right_header_of_each_kind() -> None:
    assert MESSAGES.keys() == FIELDS.keys()
    for kind, fields in MESSAGES.items():
        assert decode(encode({"kind": kind, **fields})) == {"kind": kind, **fields}


@pytest.mark.parametrize("bomb", BOMBS, ids=range(len(BOMBS)))
def test_a_bomb_is_refused_at_once(bomb: bytes) -> None:
    start = time.thread_time()
    with pytest.raises(Malformed):
        decode(bomb)
    assert time.thread_time() - start < 1


@pytest.mark.parametrize("kind", MESSAGES)
def test_no_field_takes_junk(kind: str) -> None:
    right = {key: json.dumps(value) for key, value in MESSAGES[kind].items()}
    for key in right:
        refused = 0
        for junk in JUNK:
            judged(text(kind, {**right, key: junk}))
            try:
                decode(text(kind, {**right, key: junk}))
            except Malformed:
                refused += 1
        assert refused > len(JUNK) / 2
        without = {name: value for name, value in right.items() if name != key}
        with pytest.raises(Malformed):
            decode(text(kind, without))
    with pytest.raises(Malformed):
        decode(text(kind, {**right, "extra": "1"}))


@given(st.binary(max_size=300))
def test_bytes_are_no_header(data: bytes) -> None:
    judged(data)


@given(st.sampled_from(sorted(MESSAGES)), RANDOM)
@settings(max_examples=20 * settings().max_examples)
def test_a_bent_header_is_right_or_refused(kind: str, draw: Any) -> None:
    judged(bent(draw, encode({"kind": kind, **MESSAGES[kind]})))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(st.sampled_from(sorted(MESSAGES)), st.data())
@settings(max_examples=4 * settings().max_examples)
def test_a_header_with_other_values_is_right_or_refused(kind: str, data: st.DataObject) -> None:
    keys = sorted(MESSAGES[kind])
    drawn = data.draw(st.dictionaries(st.sampled_from([*keys, "extra"]), json_values, max_size=3))
    judged(json.dumps({"kind": kind, **MESSAGES[kind], **drawn}).encode()[:HEADER_LIMIT])


# Strangers at the port of a run --------------------------------------------------------------------------------------


class Run:
    """Two ranks of this process that train a small graph over ZeroMQ, run by run, whatever else goes on."""

    def __init__(self, keys: Keys | None = None, timeout: float = WATCH) -> None:
        self.graph = training(2)
        self.runs = 0
        self.pool = ThreadPoolExecutor(2)
        addresses: list[Future[str]] = [Future(), Future()]

        def one(rank: int) -> Mesh:
            connect = addresses[0].result(WATCH) if rank else "tcp://127.0.0.1:0"
            return join(Joining(rank, 2, connect, keys=keys, timeout=timeout, bound=addresses[rank].set_result))

        self.meshes = list(self.pool.map(one, range(2)))
        self.hosts = list(self.pool.map(lambda mesh: Hosts(self.graph, world=mesh, threads=1), self.meshes))
        self.ports = [int(address.result(0).rpartition(":")[2]) for address in addresses]

    def run(self) -> None:
        """Run once, on both ranks."""
        for _ in self.pool.map(lambda hosts: hosts.run(), self.hosts):
            pass
        self.runs += 1

    def run_beside(self, attack: Attack, seed: int, inputs: int) -> None:
        """Run again and again until so many inputs have been sent, and each message of them counted."""
        before = self.refused() - attack.messages
        failures: list[BaseException] = []

        def go() -> None:
            try:
                attack.go(seed, inputs)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=go, daemon=True)
        thread.start()
        while thread.is_alive():
            self.run()
        assert failures == []
        deadline = time.monotonic() + WATCH
        while self.refused() - before < attack.messages:
            assert time.monotonic() < deadline, f"{attack.messages - self.refused() + before} messages were not counted"
            self.run()

    def refused(self) -> int:
        """What was refused of strangers, on both ranks."""
        return sum(mesh.refused.get("stranger", 0) for mesh in self.meshes)

    def bits(self) -> list[dict[str, bytes]]:
        """The bits of all blobs, as each rank has them."""
        return list(self.pool.map(bits, self.hosts))

    def close(self) -> None:
        for things in (self.hosts, self.meshes):
            for _ in self.pool.map(lambda thing: thing.close(), things):
                pass
        self.pool.shutdown()


@contextmanager
def running(keys: Keys | None = None, **options: Any) -> Iterator[Run]:
    run = Run(keys, **options)
    try:
        yield run
    finally:
        run.close()


def footprint() -> dict[str, int]:
    """What this process holds."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[1])
    descriptors = len(os.listdir("/proc/self/fd"))
    return {"bytes": pages * os.sysconf("SC_PAGESIZE"), "objects": len(gc.get_objects()), "descriptors": descriptors}


def survives(keys: Keys | None, seed: int, inputs: int, caplog: pytest.LogCaptureFixture) -> None:
    """A run goes on while so many malformed inputs come, and ends with the bits that it has without them."""
    with running(keys) as run, caplog.at_level(logging.WARNING):
        attack = Attack(run.ports, keys)
        run.run_beside(attack, seed, 200)  # buffers have their size after that, and what is imported late is there
        before, started = footprint(), time.monotonic()
        run.run_beside(attack, seed + 1, inputs)
        after, seconds = footprint(), time.monotonic() - started
        growth = {name: after[name] - before[name] for name in before}
        held = run.bits()
        assert held == [serial_bits(run.graph, run.runs)] * 2
        assert run.refused() >= attack.messages
        assert all("peer" not in mesh.refused for mesh in run.meshes)
        assert growth["bytes"] < 32 * 2**20, growth
        assert growth["objects"] < 1000, growth
        assert growth["descriptors"] < 8, growth
        lines = [record for record in caplog.records if "refused a stranger" in record.getMessage()]
        assert 0 < len(lines) < 2 * (seconds + 10)
        assert all(len(line.getMessage()) < 500 and "\n" not in line.getMessage() for line in lines)
        print(f"{attack.sent} inputs, {attack.messages} messages, {run.runs} runs, {run.refused()} refused, {growth}")


@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "keys"])
def test_a_run_survives_malformed_inputs(keys: Keys | None, caplog: pytest.LogCaptureFixture) -> None:
    survives(keys, 1, 1000, caplog)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "keys"])
def test_a_run_survives_100_000_malformed_inputs(keys: Keys | None, caplog: pytest.LogCaptureFixture) -> None:
    survives(keys, 2, 100_000, caplog)


def test_a_stranger_that_never_reads_fills_no_memory() -> None:
    """It is refused 50,000 times, and each time told why."""
    hello = message(encode({"kind": "hello", **MESSAGES["hello"], "run": "x" * 80}))
    with running() as run, socket.create_connection(("127.0.0.1", run.ports[0]), WATCH) as connection:
        connection.sendall(greeting() + ready())
        while b"READY" not in connection.recv(4096, socket.MSG_PEEK):
            pass
        counts = []
        for number in (5_000, 45_000):
            for _ in range(number // 100):
                connection.sendall(hello * 100)
            deadline = time.monotonic() + WATCH
            while run.refused() < number:
                assert time.monotonic() < deadline, run.refused()
                run.run()
            counts.append(footprint()["bytes"])
    assert counts[1] - counts[0] < 4 * 2**20


@pytest.mark.parametrize("flags", [0, 1, 4], ids=["message", "part", "command"])
def test_a_frame_that_is_too_long_is_cut_off(flags: int) -> None:
    """The rank ends the connection when the length is announced: it does not take in what follows."""
    size = 64 * 2**20
    with running() as run, socket.create_connection(("127.0.0.1", run.ports[0]), WATCH) as connection:
        connection.sendall(greeting() + ready())
        while b"READY" not in connection.recv(4096, socket.MSG_PEEK):
            pass
        connection.sendall(bytes([flags | 2]) + size.to_bytes(8, "big"))
        with pytest.raises(ConnectionError):
            connection.sendall(bytes(size))
        run.run()


def test_strangers_that_say_nothing_are_sent_away() -> None:
    """Within the time in which a peer must be heard; the run goes on meanwhile."""
    with running(timeout=2.0) as run, ExitStack() as stack:
        port = run.ports[0]
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port), WATCH)) for _ in range(100)]
        for number, connection in enumerate(silent):
            connection.sendall(greeting()[: number % 65])
        selector = stack.enter_context(selectors.DefaultSelector())
        for connection in silent:
            selector.register(connection, selectors.EVENT_READ)
        deadline = time.monotonic() + WATCH
        while selector.get_map():
            assert time.monotonic() < deadline, f"{len(selector.get_map())} are still there"
            run.run()
            for key, _ in selector.select(0):
                assert isinstance(key.fileobj, socket.socket)
                with suppress(ConnectionResetError):
                    if key.fileobj.recv(4096):
                        continue
                selector.unregister(key.fileobj)
        assert run.bits() == [serial_bits(run.graph, run.runs)] * 2


# Broken peers --------------------------------------------------------------------------------------------------------

DATA = {"kind": "data", "session": 0, "tag": 2, "iteration": 0, "dtype": "float64", "shape": [3], "offset": 0}
PAYLOAD = bytes(24)

BROKEN: dict[str, tuple[dict[str, Any], bytes | None]] = {
    "session": ({**DATA, "session": 1}, PAYLOAD),
    "tag": ({**DATA, "tag": 3}, PAYLOAD),
    "dtype": ({**DATA, "dtype": "int64"}, PAYLOAD),
    "unknown dtype": ({**DATA, "dtype": "object"}, PAYLOAD),
    "shape": ({**DATA, "shape": [1, 3]}, PAYLOAD),
    "huge shape": ({**DATA, "shape": [2**31, 2**31]}, PAYLOAD),
    "huge shape of many axes": ({**DATA, "shape": [2**62] * 60}, PAYLOAD),
    "offset": ({**DATA, "offset": 8}, PAYLOAD),
    "short": (DATA, PAYLOAD[:-1]),
    "long": (DATA, PAYLOAD + b"x"),
    "no payload": (DATA, None),
    "payload of what has none": ({"kind": "close", "session": 0}, PAYLOAD),
    "negative": ({**DATA, "iteration": -1}, PAYLOAD),
    "open": ({"kind": "open", "session": 9, "name": "net", "fingerprint": "f", "early": 1}, None),
    "expect": ({"kind": "expect", "routes": [[0, 9, 0]]}, None),
    "table": ({"kind": "table", "ranks": [["tcp://127.0.0.1:9", "0" * 32, ""]] * 2}, None),
    "kind": ({"kind": "abort", "session": 0}, None),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_peer_that_breaks_the_protocol_is_lost_by_name(fault: str) -> None:
    """Its rank 1 sends what no rank may: both ranks say who did, and no memory is taken for what it announced."""
    header, payload = BROKEN[fault]
    with pair() as (meshes, sessions):
        lost: list[Future[PeerLost]] = [Future(), Future()]
        for session, future in zip(sessions, lost, strict=True):
            session.watch(future.set_result)
        tracemalloc.start()
        try:
            meshes[1]._shared.post(0, dict(header), payload)
            errors = [future.result(WATCH) for future in lost]
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert errors[0].rank == 1
    assert all("it broke the protocol, as rank 0 saw: " in error.reason for error in errors)
    assert peak < 2**20


@contextmanager
def pair() -> Iterator[tuple[list[Mesh], list[Session]]]:
    """Two ranks, with a route of tag 2 both ways."""
    worlds = Worlds()
    try:
        meshes = worlds.join(2)
        yield meshes, opened(meshes, all_to_all(2, (2,)))
    finally:
        worlds.close()
