"""Network namespaces as hosts: each with an address of its own, joined by veth pairs; links can be slowed and cut.

A namespace has no name here: it is an open file of this process, and commands and processes enter it through
`/proc`. So nothing can be left behind: when this process ends, by whatever means, and the processes in the namespaces
with it, the kernel takes them away with all that is in them. For the same reason any number of test processes can use
the same addresses side by side.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of the kernel."""

WATCH = 30
"""Seconds after which a command of iproute2 is given up."""

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: int) -> None:
    """A call of the C library's that answers 0, or sets errno. Raises OSError."""
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _elsewhere(function: Callable[[], T]) -> T:
    """What `function` returns on a thread of its own: one that may move to another namespace, and ends there."""
    found: list[T] = []
    failed: list[BaseException] = []

    def body() -> None:
        try:
            found.append(function())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


@functools.cache
def missing() -> str | None:
    """Why there can be no namespaces here, or None."""
    for command in ("ip", "tc", "nsenter"):
        if shutil.which(command) is None:
            return f"the command {command} is not installed"
    try:
        with bridged(1):
            return None
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no network namespaces without root and CAP_NET_ADMIN: {error}"


@dataclass(frozen=True, slots=True)
class Namespace:
    """A network namespace, for as long as its file is open or a process is in it."""

    descriptor: int

    @property
    def path(self) -> str:
        """Where other processes of this user find it."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    def command(self, *command: str) -> list[str]:
        """The command line that runs `command` inside."""
        return ["nsenter", f"--net={self.path}", "--", *command]

    def run(self, *command: str, text: str = "") -> str:
        """The output of a command inside, which reads `text`. Raises OSError with what it said when it fails."""
        done = subprocess.run(
            self.command(*command), input=text, capture_output=True, text=True, timeout=WATCH, check=False
        )
        if done.returncode != 0:
            raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
        return done.stdout

    def call(self, function: Callable[[], T]) -> T:
        """What `function` returns on a thread inside: a socket that it makes stays there."""

        def body() -> T:
            _call("setns", self.descriptor, NEW_NETWORK)
            return function()

        return _elsewhere(body)

    def listen(self, address: tuple[str, int]) -> socket.socket:
        """A socket that listens inside."""
        return self.call(lambda: socket.create_server(address, backlog=64))

    def socket(self) -> socket.socket:
        """A TCP socket inside, not connected."""
        return self.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)


def enter(path: str) -> None:
    """Move this thread, and all that it starts from here on, into the namespace at `path`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _call("setns", descriptor, NEW_NETWORK)
    finally:
        os.close(descriptor)


def new_namespace() -> Namespace:
    """A new namespace, with its loopback up. Raises OSError where this process may not make one."""

    def body() -> Namespace:
        _call("unshare", NEW_NETWORK)
        return Namespace(os.open("/proc/thread-self/ns/net", os.O_RDONLY))

    namespace = _elsewhere(body)
    assert os.fstat(namespace.descriptor).st_ino != os.stat("/proc/self/ns/net").st_ino, "this machine's own network"
    namespace.run("ip", "link", "set", "lo", "up")
    return namespace


class Network:
    """Hosts and the cables between them. `addresses[i]` is the IPv4 address of `hosts[i]`.

    The other end of the cable of each host lies in `cables[i]`: a namespace, and the name of the end in it.
    """

    def __init__(self, hosts: list[Namespace], cables: list[tuple[Namespace, str]]) -> None:
        self.hosts = hosts
        self.cables = cables
        self.addresses = [address(number) for number in range(len(hosts))]

    def pull(self, host: int) -> None:
        """Take the cable of a host out: nothing gets through, and neither side is told."""
        far, name = self.cables[host]
        far.run("ip", "link", "set", name, "down")

    def plug(self, host: int) -> None:
        """Put it back."""
        far, name = self.cables[host]
        far.run("ip", "link", "set", name, "up")

    def limit(self, host: int, rate: float | None) -> None:
        """Let at most `rate` bytes a second through the cable of a host, each way, by a token bucket; None: all."""
        far, name = self.cables[host]
        for namespace, device in ((self.hosts[host], "eth0"), (far, name)):
            if rate is None:
                namespace.run("tc", "qdisc", "del", "dev", device, "root")
            else:
                bucket = max(64_000, round(rate / 100))  # ten milliseconds' worth, and never below one large packet
                bits = round(rate * 8)
                namespace.run("tc", *f"qdisc replace dev {device} root tbf rate {bits}bit burst {bucket}".split(),
                              "latency", "200ms")  # fmt: skip


def address(host: int) -> str:
    """The address of a host."""
    return f"10.9.{host + 1}.1"


def address6(host: int) -> str:
    """Its address of version 6."""
    return f"fd09::{host + 1}"


@contextmanager
def bridged(count: int) -> Iterator[Network]:
    """`count` hosts at the ports of one switch."""
    with _namespaces(count + 1) as (switch, *hosts):
        switch.run("ip", "-batch", "-", text="link add br0 type bridge\nlink set br0 up\n")
        for number, host in enumerate(hosts):
            port = f"port{number}"
            _cable(host, number, switch, port)
            switch.run("ip", "-batch", "-", text=f"link set {port} master br0\nlink set {port} up\n")
        yield Network(hosts, [(switch, f"port{number}") for number in range(count)])


@contextmanager
def gated(count: int) -> Iterator[tuple[Network, list[Namespace]]]:
    """`count` hosts, each of which has a gate of its own, a namespace that has the addresses of all other hosts.

    Whoever listens in the gate of host i at the address of host j meets what i sends to j; and whoever connects from
    the gate of host j reaches j: see `proxy`. Between the gates nothing is joined.
    """
    with _namespaces(2 * count) as whole:
        hosts, gates = whole[:count], whole[count:]
        for number, (host, gate) in enumerate(zip(hosts, gates, strict=True)):
            _cable(host, number, gate, "port")
            others = [other for other in range(count) if other != number]
            lines = [f"address add {address(other)}/16 dev port\n" for other in others]
            gate.run("ip", "-batch", "-", text="".join([*lines, "link set port up\n"]))
        yield Network(hosts, [(gate, "port") for gate in gates]), gates


@contextmanager
def _namespaces(count: int) -> Iterator[list[Namespace]]:
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(new_namespace())
            stack.callback(made[-1].close)
        yield made


def _cable(host: Namespace, number: int, far: Namespace, name: str) -> None:
    """A veth pair: `eth0` at the host, with its addresses, and `name` at the far end."""
    lines = (
        f"link add eth0 type veth peer name {name} netns {far.path}",
        f"address add {address(number)}/16 dev eth0",
        f"address add {address6(number)}/64 dev eth0 nodad",
        "link set eth0 up",
    )
    host.run("ip", "-batch", "-", text="\n".join(lines) + "\n")
