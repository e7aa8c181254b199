"""Hosts in network namespaces: apart, slow, cut off and joined again, and gone with the process that made them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from separation import namespaces
from separation.namespaces import Namespace, Network, address6, bridged, gated, new_namespace
from separation.ranks import Rank

pytestmark = pytest.mark.skipif(namespaces.missing() is not None, reason=str(namespaces.missing()))

WATCH = 30.0
SHORT = 0.2
PORT = 5000
"""A fixed port harms nobody: a new namespace has all of its ports free."""


def joined(network: Network, near: int, far: int) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection that one host made to another."""
    with network.hosts[far].listen((network.addresses[far], 0)) as server:
        server.settimeout(WATCH)
        end = network.hosts[near].socket()
        end.settimeout(WATCH)
        end.connect(server.getsockname())
        other, _ = server.accept()
    other.settimeout(WATCH)
    return end, other


def read(end: socket.socket, count: int) -> bytes:
    """So many bytes."""
    parts = b""
    while len(parts) < count and (part := end.recv(count - len(parts))):
        parts += part
    return parts


def test_each_host_has_an_address_of_its_own() -> None:
    with bridged(3) as network:
        for near, far in ((0, 1), (1, 2), (2, 0)):
            end, other = joined(network, near, far)
            with end, other:
                assert end.getpeername()[0] == network.addresses[far]
                assert other.getpeername()[0] == network.addresses[near]
                end.sendall(b"hello")
                assert read(other, 5) == b"hello"


def test_hosts_of_two_networks_do_not_meet() -> None:
    with bridged(1) as one, bridged(2) as two:
        with two.hosts[1].listen((two.addresses[1], PORT)), one.hosts[0].socket() as end:
            end.settimeout(SHORT)
            with pytest.raises(OSError, match=r"timed out|No route"):
                end.connect((two.addresses[1], PORT))


def test_a_gate_stands_for_the_other_hosts() -> None:
    """What host 0 sends to host 1 comes to the gate of 0; the gate of 1 reaches host 1 from the address of 0."""
    with gated(2) as (network, gates):
        there = (network.addresses[1], PORT)
        with gates[0].listen(there) as gate, network.hosts[0].socket() as end:
            end.connect(there)
            came, peer = gate.accept()
            came.close()
            assert peer[0] == network.addresses[0]
        with network.hosts[1].listen(there) as server, gates[1].socket() as end:
            end.bind((network.addresses[0], 0))
            end.connect(there)
            came, peer = server.accept()
            came.close()
            assert peer[0] == network.addresses[0]


def test_a_pulled_cable_lets_nothing_through_until_it_is_plugged() -> None:
    with bridged(2) as network:
        end, other = joined(network, 0, 1)
        with end, other:
            network.pull(1)
            end.sendall(b"late")
            other.settimeout(SHORT)
            with pytest.raises(TimeoutError):
                other.recv(4)
            network.plug(1)
            other.settimeout(WATCH)
            assert read(other, 4) == b"late"


def test_a_limit_is_kept_both_ways_and_taken_off() -> None:
    size, rate = 400_000, 1_000_000.0
    with bridged(2) as network:
        end, other = joined(network, 0, 1)
        with end, other:
            network.limit(1, rate)
            for source, target in ((end, other), (other, end)):
                begun = time.monotonic()
                thread = threading.Thread(target=source.sendall, args=(bytes(size),))
                thread.start()
                read(target, size)
                thread.join()
                assert time.monotonic() - begun >= 0.8 * (size - 2 * 64_000) / rate  # a bucket's worth is free
            network.limit(1, None)
            assert "tbf" not in network.hosts[1].run("tc", "qdisc", "show")


HOLDER = """
import sys, threading
from separation.namespaces import new_namespace

host = new_namespace()
host.run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "far", "netns", sys.argv[1])
print("made", flush=True)
threading.Event().wait(60)
"""


def links(namespace: Namespace) -> set[str]:
    """The names of the network devices inside."""
    return {line.split(":")[1].split("@")[0].strip() for line in namespace.run("ip", "-o", "link").splitlines()}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_leaves_no_namespace(number: signal.Signals) -> None:
    """Its end of a cable goes with its namespace, and so our end does."""
    ours = new_namespace()
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-P", "-c", HOLDER, ours.path]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == "made\n"
        assert "far" in links(ours)
        started.send_signal(number)
        started.wait(WATCH)
        deadline = time.monotonic() + WATCH
        while "far" in links(ours):
            assert time.monotonic() < deadline, "the namespace of a process that is gone is still there"
    finally:
        started.kill()
        started.communicate()
        ours.close()


def test_a_command_that_fails_says_why() -> None:
    with bridged(1) as network, pytest.raises(OSError, match=r"ip link set none up: .*none"):
        network.hosts[0].run("ip", "link", "set", "none", "up")


VERIFY = ["verify", "--model", "mlp-digits", "--dtype", "float32", "--steps", "2", "--scheme", "data:2@hosts:2"]


@contextmanager
def two(
    network: Network,
    folder: Path,
    options: Callable[[int], list[str]],
    at: Callable[[int], str],
    patience: float = WATCH,
) -> Iterator[list[Rank]]:
    """Two ranks that verify, each on its host, with `options` of its own; afterwards they have ended."""
    ranks = []
    try:
        for number in range(2):
            worker = ["worker", "--rank", str(number), "--world", "2", "--timeout", "5", "--patience", str(patience)]
            worker += ["--connect", f"tcp://{at(0)}:{PORT}", "--listen", f"tcp://{at(number)}:{PORT}"]
            report = ["--json", str(folder / "report.json")]
            command = [*worker, *options(number), "--", *VERIFY, *report]
            ranks.append(Rank(f"rank{number}", command, folder, network.hosts[number]))
        yield ranks
        deadline = time.monotonic() + 3 * WATCH
        while alive := [rank.sentinel for rank in ranks if rank.code is None]:
            assert wait(alive, deadline - time.monotonic()), [rank.complained() for rank in ranks]
    finally:
        for rank in ranks:
            rank.end()


def keygen(folder: Path) -> list[str]:
    """The option for new keys in a folder."""
    rank = Rank("keygen", ["keygen", str(folder)], folder.parent)
    try:
        assert wait([rank.sentinel], WATCH)
        assert rank.code == 0, rank.complained()
    finally:
        rank.end()
    return ["--keys", str(folder)]


def passed(folder: Path, ranks: list[Rank]) -> dict[str, object]:
    """The report of a verification that has passed, without its times."""
    assert [rank.code for rank in ranks] == [0, 0], [rank.complained() for rank in ranks]
    report = json.loads((folder / "report.json").read_text("utf-8"))
    assert report["verdict"] == "pass"
    return {name: value for name, value in report.items() if name not in ("seconds", "results")}


@pytest.mark.parametrize("version", ["IPv4", "IPv6"])
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "keys"])
def test_hosts_verify_a_scheme(tmp_path: Path, version: str, secure: bool) -> None:
    with bridged(2) as network:
        at = (lambda host: network.addresses[host]) if version == "IPv4" else lambda host: f"[{address6(host)}]"
        option = keygen(tmp_path / "keys") if secure else ["--insecure"]
        with two(network, tmp_path, lambda _: option, at) as ranks:
            pass
        passed(tmp_path, ranks)


def test_a_slow_network_changes_no_result(tmp_path: Path) -> None:
    with bridged(2) as network:
        network.limit(0, 2_000_000.0)
        with two(network, tmp_path, lambda _: ["--insecure"], lambda host: network.addresses[host]) as ranks:
            pass
        passed(tmp_path, ranks)


def test_listening_beyond_this_machine_needs_keys(tmp_path: Path) -> None:
    with bridged(2) as network:
        with two(network, tmp_path, lambda _: [], lambda host: network.addresses[host]) as ranks:
            pass
        for rank in ranks:
            assert rank.code not in (0, None)
            assert "--insecure" in rank.complained()
            assert "--keys" in rank.complained()


def test_a_wrong_key_is_told_from_a_dead_network(tmp_path: Path) -> None:
    with bridged(2) as network:
        keys, at = [keygen(tmp_path / f"keys{number}") for number in range(2)], lambda host: network.addresses[host]
        with two(network, tmp_path, lambda number: keys[number], at, patience=4) as ranks:
            pass
        for rank in ranks:
            assert rank.code not in (0, None)
            assert "key" in rank.complained()
        network.pull(1)
        with two(network, tmp_path, lambda _: keys[0], at, patience=4) as ranks:
            pass
        for number, rank in enumerate(ranks):
            assert rank.code not in (0, None)
            assert f"rank {1 - number}" in rank.complained()
            assert "key" not in rank.complained()
