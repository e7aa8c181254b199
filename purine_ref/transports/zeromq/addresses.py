"""Endpoints: `tcp://host:port`, with a name, an IPv4 or a bracketed IPv6 address, and `ipc://path`.

Names are resolved here and not by ZeroMQ, IPv4 first, so that every socket knows which family it is of, and that rank 0
binds the very address that the others connect to.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass

from purine_ref.errors import Refused

PATH_LIMIT = 107
"""Most bytes of the path of an `ipc` endpoint: what the system's socket addresses hold."""

ANY = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address with nothing left to resolve: `host` is numeric, or the path of `ipc`, whose `port` is 0."""

    scheme: str
    host: str
    port: int = 0

    @property
    def ipv6(self) -> bool:
        """Whether it is a TCP address of version 6."""
        return self.scheme == "tcp" and ":" in self.host

    @property
    def wild(self) -> bool:
        """Whether it stands for all of a host's addresses, and so cannot be connected to."""
        return self.host in ANY

    def __str__(self) -> str:
        if self.scheme == "ipc":
            return f"ipc://{self.host}"
        return f"tcp://[{self.host}]:{self.port}" if self.ipv6 else f"tcp://{self.host}:{self.port}"


def parse(text: str, resolve: Callable[[str, str], str] | None = None) -> Endpoint:
    """The endpoint of an address. Raises Refused for what is none, and for a name that does not resolve."""
    if text.startswith("ipc://"):
        path = text.removeprefix("ipc://")
        if not path or len(path.encode()) > PATH_LIMIT:
            raise Refused(f"address {text!r}: a path of 1 to {PATH_LIMIT} bytes is expected")
        return Endpoint("ipc", path)
    found = re.fullmatch(r"tcp://(?:\[([^\]]+)\]|([^:\[\]/]+)):(\d{1,5})", text)
    if found is None or int(found[3]) > 65535:
        raise Refused(f"address {text!r}: expected tcp://HOST:PORT, tcp://[IPv6]:PORT or ipc://PATH")
    return Endpoint("tcp", (resolve or _resolve)(text, found[1] or found[2]), int(found[3]))


def parse_numeric(text: str) -> Endpoint:
    """The endpoint of an address that a peer has told: nothing is looked up. Raises Refused also for a name in it."""
    endpoint = parse(text, _refuse_name)
    if endpoint.scheme == "tcp" and (endpoint.port == 0 or endpoint.wild):
        raise Refused(f"address {text!r}: nobody can connect to it")
    return endpoint


def _refuse_name(text: str, host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        raise Refused(f"address {text!r}: expected numbers, got the name {host!r}") from None


def _resolve(text: str, host: str) -> str:
    if host == "*":
        return ANY[0]
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Refused(f"address {text!r}: the name {host!r} does not resolve: {error}") from None
    addresses = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return str(addresses[0][4][0])


def own_address(towards: Endpoint) -> str:
    """The address of this host from which `towards` is reached. Raises Refused where there is no way to it."""
    family = socket.AF_INET6 if towards.ipv6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # connecting one of these sends nothing
            probe.connect((towards.host, towards.port or 1))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise Refused(f"no way from this host to {towards}: {error}") from None


def default_listen(rank: int, first: Endpoint) -> Endpoint:
    """Where a rank listens unless told: any free port on the address that reaches rank 0, or a file beside its file."""
    if first.scheme == "ipc":
        return parse(f"{first}.{rank}")
    return Endpoint("tcp", own_address(first), 0)
