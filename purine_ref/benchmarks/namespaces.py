"""Two hosts on one machine: network namespaces, joined by a cable (a veth pair) whose rate can be limited.

A namespace has no name: it is an open file of this process, by which other processes enter it. So the kernel takes it
away when the processes that have it or are in it end, by whatever means. Needs Linux, root, and iproute2.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

NEW_NETWORK = 0x40000000
"""CLONE_NEWNET."""

WATCH = 30
"""Seconds that a command may take."""

ADDRESSES = ("10.9.0.1", "10.9.0.2")
DEVICE = "eth0"


class NoNamespaces(Exception):
    """There can be none here; the message says why."""


@dataclass(frozen=True, slots=True)
class Host:
    """One end of the cable: its address, and the file of its namespace."""

    address: str
    file: int

    @property
    def before(self) -> list[str]:
        """What goes before a command to run it there."""
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self.file}", "--"]

    def limit(self, rate: float | None) -> None:
        """Let at most `rate` bytes a second out, by a token bucket (`tc tbf`); None for as many as go."""
        if rate is None:
            _command(*self.before, *f"tc qdisc del dev {DEVICE} root".split())
            return
        bucket = max(64_000, round(rate / 100))  # ten milliseconds' worth, and never below one large packet
        shape = f"tbf rate {round(rate * 8)}bit burst {bucket} latency 200ms"
        _command(*self.before, *f"tc qdisc replace dev {DEVICE} root {shape}".split())


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts, for as long as the block lasts. Raises NoNamespaces."""
    missing = [name for name in ("ip", "tc", "nsenter") if shutil.which(name) is None]
    if missing:
        raise NoNamespaces(f"namespaces need {', '.join(missing)}: install iproute2 and util-linux")
    with ExitStack() as stack:
        try:
            hosts = _joined_hosts(stack)
        except OSError as error:
            raise NoNamespaces(f"no network namespaces, for which one must be root: {error}") from error
        yield hosts


def _joined_hosts(stack: ExitStack) -> tuple[Host, Host]:
    """Two namespaces and the cable, until the stack is left. Raises OSError."""
    hosts = []
    for address in ADDRESSES:
        hosts.append(Host(address, _namespace()))
        stack.callback(os.close, hosts[-1].file)
    one, two = hosts
    far = f"/proc/{os.getpid()}/fd/{two.file}"
    _command(*one.before, *f"ip link add {DEVICE} type veth peer name {DEVICE} netns {far}".split())
    for host in hosts:
        for words in ("link set lo up", f"address add {host.address}/24 dev {DEVICE}", f"link set {DEVICE} up"):
            _command(*host.before, "ip", *words.split())
    return one, two


def _namespace() -> int:
    """The file of a new namespace: a thread moves there, opens it and ends. Raises OSError."""
    found: list[int | OSError] = []
    libc = ctypes.CDLL(None, use_errno=True)

    def enter() -> None:
        """The thread."""
        try:
            if libc.unshare(NEW_NETWORK) != 0:
                raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
            found.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


def _command(*words: str) -> None:
    """Run a command. Raises OSError with what it said when it fails."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=WATCH, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
