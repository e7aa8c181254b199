"""Where fault plans are run: three hosts and a stranger's, in namespaces of their own, with a proxy between them."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

from separation.namespaces import Namespace, address, gated
from separation.proxy import Proxy, Way
from separation.ranks import Disk, Rank

HOSTS = 4
OUTSIDER = HOSTS - 1
"""The host on which no rank belongs."""

TIMEOUT = 4.0
"""Seconds after which a silent rank counts as lost (`--timeout`)."""

PATIENCE = 8.0
"""Seconds after which a rank that has not come counts as lost (`--patience`)."""

GRACE = 12.0
"""Seconds that may pass, beyond those, until every rank has ended: processes that share few processors are slow."""

HARD_LIMIT = 90.0
"""Seconds after which a run has hung."""

COMMANDS = {
    "train": ("train", "--model", "mlp-digits", "--epochs", "3", "--batch", "64", "--threads", "1"),
    "verify": ("verify", "--model", "mlp-digits", "--dtype", "float32", "--steps", "2"),
    "large": ("verify", "--model", "lenet", "--dtype", "float32", "--steps", "1", "--batch", "6"),
}
"""What the ranks run: `large` sends arrays that go in several messages each."""

Key = tuple[str, int, bool]


@dataclass(slots=True)
class Undisturbed:
    """What a run gives that nothing disturbs, and the bytes that flow on each way in it."""

    result: bytes
    passed: dict[Way, int]


class Arena:
    """Hosts for one run at a time. `folder` gets the files of the runs. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._undisturbed: dict[Key, Undisturbed] = {}
        self._ports = itertools.count(5000)

    def __enter__(self) -> Arena:
        with ExitStack() as stack:
            self.network, self._gates = stack.enter_context(gated(HOSTS))
            keygen = Rank("keygen", ["keygen", str(self.folder / "keys")], self.folder)
            stack.callback(keygen.end)
            wait([keygen.sentinel], GRACE)
            assert keygen.code == 0, keygen.complained()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def undisturbed(self, command: str, ranks: int, secure: bool) -> Undisturbed:
        """The run without a fault, once for each kind."""
        key = command, ranks, secure
        if key not in self._undisturbed:
            with self.run(command, ranks, secure) as run:
                for rank in range(ranks):
                    run.start(rank)
                run.wait(HARD_LIMIT)
                codes = [rank.code for rank in run.ranks.values()]
                assert codes == [0] * ranks, f"an undisturbed run of {key} ended with {codes}: {run.complaints()}"
                passed = {way: run.proxy.passed(way) for way in itertools.permutations(range(ranks), 2)}
                self._undisturbed[key] = Undisturbed(run.result(), passed)
        return self._undisturbed[key]

    @contextlib.contextmanager
    def run(self, command: str, ranks: int, secure: bool, seed: int = 0) -> Iterator[Run]:
        """A run whose ranks are not yet started; at the end none of them is left."""
        port = next(self._ports)
        folder = self.folder / str(port)
        folder.mkdir()
        with Proxy(seed) as proxy:
            for near, far in itertools.permutations(range(HOSTS), 2):
                there = (address(far), port)
                door = self._gates[near].listen(there)
                proxy.relay((near, far), door, partial(self._dial, near, far), there)
            run = Run(self, proxy, folder, port, command, ranks, secure)
            try:
                yield run
            finally:
                run.end()

    def _dial(self, near: int, far: int) -> socket.socket:
        """A socket that reaches a host as another one would."""
        end = self._gates[far].socket()
        end.bind((address(near), 0))
        return end


class Run:
    """One run: a proxy, a folder, and processes. Rank r lives on host r."""

    def __init__(
        self, arena: Arena, proxy: Proxy, folder: Path, port: int, command: str, size: int, secure: bool
    ) -> None:
        self.proxy = proxy
        self.folder = folder
        self.ranks: dict[str, Rank] = {}
        self._arena = arena
        self._port = port
        self._command = command
        self._size = size
        self._secure = secure
        self._threads: list[threading.Thread] = []

    @property
    def saved(self) -> Path:
        """The snapshot."""
        return self.folder / "saved" / "snapshot.npz"

    def start(
        self,
        rank: int,
        *,
        host: int | None = None,
        run_id: str = "plan",
        resume: Path | None = None,
        disk: int | None = None,
    ) -> Rank:
        """Start a rank, on the host of its number unless told another."""
        at = rank if host is None else host
        name = f"rank{rank}" if host is None else f"rank{rank}-on-host{host}"
        folder = self.folder if host is None else self.folder / f"host{host}"
        for made in (folder, folder / "saved"):
            made.mkdir(exist_ok=True)
        port = self._port
        worker = ["worker", "--rank", str(rank), "--world", str(self._size), "--run-id", run_id]
        worker += ["--connect", f"tcp://{address(0)}:{port}", "--listen", f"tcp://{address(at)}:{port}"]
        worker += ["--timeout", str(TIMEOUT), "--patience", str(PATIENCE)]
        worker += ["--keys", str(self._arena.folder / "keys")] if self._secure else ["--insecure"]
        command = [*COMMANDS[self._command], "--scheme", f"data:{self._size}@hosts:{self._size}"]
        command += ["--json", str(folder / "result.json")]
        if self._command == "train":
            command += ["--save", str(folder / "saved" / "snapshot.npz")]
            command += [] if resume is None else ["--resume", str(resume)]
        small = None if disk is None else Disk(folder / "saved", disk)
        made_rank = Rank(name, [*worker, "--", *command], folder, self._host(at), small)
        self.ranks[name] = made_rank
        return made_rank

    def _host(self, number: int) -> Namespace:
        return self._arena.network.hosts[number]

    def wait(self, seconds: float, but: frozenset[str] = frozenset()) -> None:
        """Wait until all processes have ended, but for those named, or so long."""
        deadline = time.monotonic() + seconds
        while True:
            alive = [rank.sentinel for name, rank in self.ranks.items() if name not in but and rank.code is None]
            left = deadline - time.monotonic()
            if not alive or left <= 0:
                return
            wait(alive, min(left, 1.0))

    def result(self) -> bytes:
        """What must be equal to the bit: the snapshot, or the report without its times."""
        if self._command == "train":
            return self.saved.read_bytes()
        report = json.loads((self.folder / "result.json").read_text("utf-8"))
        return json.dumps(_timeless(report), sort_keys=True).encode()

    def complaints(self) -> dict[str, str]:
        """What each process has printed to its standard error."""
        return {name: rank.complained().strip() for name, rank in self.ranks.items()}

    def visit(self, host: int, visit: bytes) -> None:
        """Let a stranger connect to a host, say something, and stay until it is shown the door, or a second."""

        def body() -> None:
            with self._host(OUTSIDER).socket() as end, contextlib.suppress(OSError):
                end.settimeout(1.0)
                end.connect((address(host), self._port))
                end.sendall(visit)
                while end.recv(1 << 12):
                    pass

        thread = threading.Thread(target=body)
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        """Leave nothing behind."""
        for rank in self.ranks.values():
            rank.end()
        for thread in self._threads:
            thread.join()


def _timeless(value: object) -> object:
    """A report without its measured times."""
    if isinstance(value, dict):
        return {name: _timeless(part) for name, part in value.items() if name != "seconds"}
    return [_timeless(part) for part in value] if isinstance(value, list) else value
