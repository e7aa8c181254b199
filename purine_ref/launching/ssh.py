"""Ranks on other hosts: a file that lists them, and the call of the system's `ssh` that starts one there.

    # the host that runs rank 0 comes first
    node1 slots=2
    user@node2

`ssh` must get in without asking (a key, an agent): there is nobody to answer for N ranks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from purine_ref.errors import Refused

OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5")
"""Ask nothing; and notice within seconds, and not hours, that a host does not answer, or no longer."""

_NAME = re.compile(r"([A-Za-z0-9._-]+@)?([A-Za-z0-9_][A-Za-z0-9._-]*|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(%\w+)?)")
_SLOTS = re.compile(r"slots=([1-9][0-9]{0,4})")


@dataclass(frozen=True, slots=True)
class Host:
    """A host as `ssh` is to be told it, perhaps with a user, and how many ranks it takes."""

    name: str
    slots: int = 1

    @property
    def address(self) -> str:
        """Without the user."""
        return self.name.rpartition("@")[2]


def read_hosts(path: str | Path) -> list[Host]:
    """The hosts of a file, one a line: `[user@]host [slots=N]`; what follows a # is a comment.

    Raises Refused, with the number of the line, for one that says anything else, and for a file without hosts; OSError.
    """
    hosts = []
    for number, line in enumerate(Path(path).read_text("utf-8", "replace").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = _SLOTS.fullmatch(words[1]) if len(words) > 1 else None
        if not _NAME.fullmatch(words[0]) or len(words) > 2 or (len(words) == 2 and slots is None):
            expected = "'[user@]host' or '[user@]host slots=N'"
            raise Refused(f"{path}, line {number}: expected {expected}, got {line.strip()!r}")
        hosts.append(Host(words[0], int(slots[1]) if slots else 1))
    if not hosts:
        raise Refused(f"{path}: expected a host on each line, such as 'node1 slots=2', got none")
    return hosts


def spread(hosts: Sequence[Host], ranks: int | None) -> list[Host]:
    """The host of each rank: hosts in their order, each with as many ranks as it has slots; by default all slots.

    Raises Refused for more ranks than slots.
    """
    places = [host for host in hosts for _ in range(host.slots)]
    if ranks is not None and ranks > len(places):
        raise Refused(f"{ranks} ranks: the hosts have {len(places)} slots; list more hosts, or give one 'slots=N'")
    return places[:ranks]


def over_ssh(
    ssh: Sequence[str], host: Host, command: Sequence[str], folder: str, environment: Mapping[str, str]
) -> list[str]:
    """The local command that runs `command` on `host`, in `folder` there, with a few variables set.

    Its exit code is the command's, 128 + n for signal n, and 255 where `ssh` fails; 2 where `folder` is not there.
    """
    variables = [f"{name}={value}" for name, value in environment.items()]
    words = shlex.join(["env", *variables, *command] if variables else command)
    # The last command of a shell may take its place; then `ssh` would not tell by which signal it ended.
    there = f"cd {shlex.quote(folder)} || exit 2; {words}; exit $?"
    return [*ssh, *OPTIONS, "--", host.name, there]
