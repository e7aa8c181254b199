"""`purine-ref train` on several processes: the very file that ranks in one process leave, and going on after a loss."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mpi_ranks import MPIEXEC, mpiexec
from purine_ref import cli, snapshot

PROGRAM = [sys.executable, "-P", "-m", "purine_ref_command"]
WATCH = 60.0
"""Seconds after which processes count as hanging."""

TRAIN = ["train", "--model", "mlp-digits", "--batch", "160", "--epochs", "12"]
"""Epochs of ten batches."""

SOON = 15.0
"""Seconds in which all must have ended that hear of a loss."""

FEW_BYTES = 4096
"""Less than a snapshot takes."""


@contextmanager
def started(call: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own, of which nothing is left afterwards."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(call, start_new_session=True, **pipes, **options) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def ended(call: Sequence[str], **options: Any) -> tuple[int, str, str]:
    """Exit code, output and errors of a process that ends in time."""
    with started(call, **options) as process:
        out, err = process.communicate(timeout=WATCH)
        return process.returncode, out, err


def facts(path: Path) -> dict[str, Any]:
    """The object of `--json`."""
    read: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return read


def on_ranks(path: Path, *more: str) -> bytes:
    """The snapshot that data:3 on ranks of this process leaves."""
    assert cli.run([*TRAIN, "--scheme", "data:3@ranks", *more, "--save", str(path)]) == 0
    return path.read_bytes()


def by_itself(words: list[str], folder: Path) -> list[str]:
    """The command starts its ranks."""
    return [*PROGRAM, *words]


def with_keys(words: list[str], folder: Path) -> list[str]:
    """Over TCP with CURVE."""
    assert cli.run(["keygen", str(folder / "keys")]) == 0
    where = ["--address", "tcp://127.0.0.1:0", "--keys", str(folder / "keys")]
    return [*PROGRAM, "launch", "--hosts", "3", *where, "--", *words]


def under_mpi(words: list[str], folder: Path) -> list[str]:
    """`mpiexec` starts the ranks."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed", exc_type=ImportError)
    if not MPIEXEC.exists():
        pytest.skip(f"there is no {MPIEXEC.name} beside the interpreter")
    return [*mpiexec(3, *PROGRAM[2:]), "worker", "--transport", "mpi", "--", *words]


STARTS = [(by_itself, "zeromq"), (with_keys, "zeromq"), (under_mpi, "mpi")]


@pytest.mark.parametrize(("start", "transport"), STARTS, ids=["ipc", "CURVE", "mpi"])
def test_r8_50_iterations_on_3_hosts_leave_equal_replicas_and_the_bits_of_ranks(
    start: Callable[[list[str], Path], list[str]], transport: str, tmp_path: Path
) -> None:
    path, report = tmp_path / "hosts.npz", tmp_path / "r.json"
    words = [*TRAIN, "--iterations", "50", "--scheme", "data:3@hosts:3", "--save", str(path), "--json", str(report)]
    code, out, err = ended(start(words, tmp_path))
    assert (code, err) == (0, "")
    assert out.count("replicas: 24 compared, 0 differ") == 1  # rank 0 alone prints and writes
    assert {line[:4] for line in out.splitlines() if line.startswith("[")} <= {"[0] "}
    read = facts(report)
    assert (read["verdict"], read["executed"], read["world"], read["transport"]) == ("pass", 50, 3, transport)
    assert (read["scheme"], read["replicas"]) == ("data:3@hosts:3", {"compared": 24, "differing": 0})
    assert path.read_bytes() == on_ranks(tmp_path / "ranks.npz", "--iterations", "50")


def test_only_rank_0_needs_the_files(tmp_path: Path, socket_folder: Path) -> None:
    """Two workers by hand, each in a folder of its own as on a host of its own; the snapshot is in that of rank 0."""
    folders = [tmp_path / "0", tmp_path / "1"]
    for folder in folders:
        folder.mkdir()
    on_ranks(folders[0] / "m.npz", "--iterations", "2")
    words = [*TRAIN, "--scheme", "data:*@hosts", "--iterations", "2", "--resume", "m.npz", "--save", "m.npz"]
    join = ["--world", "2", "--connect", f"ipc://{socket_folder}/socket"]
    calls = [[*PROGRAM, "worker", "--rank", str(rank), *join, "--", *words] for rank in range(2)]
    with started(calls[0], cwd=folders[0]) as first, started(calls[1], cwd=folders[1]) as second:
        assert second.communicate(timeout=WATCH) == ("", "")
        assert "saved m.npz" in first.communicate(timeout=WATCH)[0]
    assert (first.returncode, second.returncode) == (0, 0)
    assert snapshot.load(folders[0] / "m.npz").iteration == 4
    assert list(folders[1].iterdir()) == []


def limited() -> None:
    """Let the process write files of `FEW_BYTES` at most, as on a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (FEW_BYTES, FEW_BYTES))


def test_a_full_disk_is_told_on_every_rank_and_the_earlier_snapshot_survives(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    arguments = [*PROGRAM, *TRAIN, "--scheme", "data:3@hosts:3", "--save", str(path)]
    before = on_ranks(path, "--iterations", "4")
    code, out, err = ended([*arguments, "--resume", str(path)], preexec_fn=limited)
    assert code == 2
    assert "saved" not in out
    told = sorted(line for line in err.splitlines() if line.startswith("["))
    fault = "[Errno 27] File too large"
    assert told == [f"[0] error: {fault}", f"[1] error: rank 0: {fault}", f"[2] error: rank 0: {fault}"]
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def rank_process(rank: int, path: Path) -> int:
    """The process that is one rank of those that write `path`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has gone meanwhile
            words = (process / "cmdline").read_bytes().decode().split("\0")
            if str(path) in words and ["--rank", str(rank)] in map(list, pairwise(words)):
                found.append(int(process.name))
    (only,) = found
    return only


def test_dp_06_what_is_left_of_3_hosts_goes_on(tmp_path: Path) -> None:
    """DP-06: kill -9 of one rank ends all. Started anew, three end as if nothing had been; two go on too."""
    path, report = tmp_path / "m.npz", tmp_path / "r.json"
    endless = [*TRAIN, "--epochs", "2000"]  # longer than the test waits before it breaks it off
    call = [*endless, "--save", str(path)]
    with started([*PROGRAM, *call, "--scheme", "data:3@hosts:3"]) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "all layers, epoch 2" in line:  # the snapshot of the first is on the disk
                break
        begun = time.monotonic()
        os.kill(rank_process(2, path), signal.SIGKILL)
        _, err = process.communicate(timeout=WATCH)
        assert time.monotonic() - begun < SOON
    assert process.returncode not in (0, 1)
    assert err.count("error: rank 2 is lost: ") == 2
    left, last = path.read_bytes(), snapshot.load(path).iteration
    assert last >= 10
    rest = ["--iterations", "30", "--resume", str(path)]
    code, _, err = ended([*PROGRAM, *call, "--scheme", "data:3@hosts:3", *rest])
    assert (code, err) == (0, "")
    assert path.read_bytes() == on_ranks(tmp_path / "ranks.npz", *endless[-2:], "--iterations", str(last + 30))
    path.write_bytes(left)
    fewer = [*PROGRAM, "launch", "--hosts", "2", "--", *call, "--scheme", "data:*@hosts"]
    code, _, err = ended([*fewer, *rest, "--json", str(report)])
    assert (code, err) == (0, "")
    read = facts(report)
    assert (read["scheme"], read["verdict"]) == ("data:2@hosts", "pass")
    assert read["replicas"] == {"compared": 12, "differing": 0}
    assert snapshot.load(path).iteration == last + 30
