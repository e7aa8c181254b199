"""Ranks as processes in namespaces: `purine-ref ...` without the second that it takes to import everything.

They are forked from a server process that has imported the package and done nothing with it (Python's `forkserver`),
so each is what the command would be, but for its start. A rank dies with that server, and the server with this
process, whatever ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from separation import namespaces

PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of the kernel."""

NEW_MOUNTS = 0x00020000
"""CLONE_NEWNS of the kernel."""

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["purine_ref.cli"])


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system of `size` bytes that a rank sees at `folder`; what it leaves there lies in `folder` at the end."""

    folder: Path
    size: int


class Rank:
    """One process, `name` in messages. Its output and errors go to files in `folder`."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        folder: Path,
        namespace: namespaces.Namespace | None = None,
        disk: Disk | None = None,
    ) -> None:
        self.name = name
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        self.out.touch()
        self.err.touch()
        where = None if namespace is None else namespace.path
        made = _server.Process(target=_body, args=(list(arguments), str(self.out), str(self.err), where, disk))
        made.start()
        self._process = made
        self._lock = threading.Lock()  # the server tells the exit code once, to who asks first

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal, or None while it runs."""
        with self._lock:
            return self._process.exitcode

    @property
    def sentinel(self) -> int:
        """A file that can be read once the process has ended."""
        return self._process.sentinel

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when the process has ended."""
        if self._process.pid is not None and self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def end(self) -> None:
        """Kill it if it runs, and wait until it is gone."""
        self.send(signal.SIGKILL)
        with self._lock:
            self._process.join()

    def said(self) -> str:
        """What it has printed."""
        return self.out.read_text("utf-8", "replace")

    def complained(self) -> str:
        """What it has printed to the standard error."""
        return self.err.read_text("utf-8", "replace")


def _body(arguments: list[str], out: str, err: str, namespace: str | None, disk: Disk | None) -> None:
    """What the forked process does: become the command."""
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if namespace is not None:
        namespaces.enter(namespace)
    for path, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_TRUNC), descriptor)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    if disk is not None:
        _small(disk)
    from purine_ref.cli import run  # what the server has imported; this process alone runs it

    code = run(arguments)
    if disk is not None:
        _take_out(disk)
    sys.exit(code)


def _small(disk: Disk) -> None:
    """Put a small file system on the folder, for this process alone: it is gone when the process is."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_MOUNTS) != 0:
        raise OSError(ctypes.get_errno(), "unshare of mounts")
    for command in (
        ["mount", "--make-rprivate", "/"],
        ["mount", "-t", "tmpfs", "-o", f"size={disk.size}", "tmpfs", str(disk.folder)],
    ):
        subprocess.run(command, check=True, timeout=namespaces.WATCH)


def _take_out(disk: Disk) -> None:
    """Copy what was left on the small file system to the folder below it."""
    kept = {path.name: path.read_bytes() for path in disk.folder.iterdir()}
    subprocess.run(["umount", "--lazy", str(disk.folder)], check=True, timeout=namespaces.WATCH)
    for name, content in kept.items():
        (disk.folder / name).write_bytes(content)
