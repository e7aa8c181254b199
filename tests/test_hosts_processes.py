"""Schemes on ranks that are processes: over ZeroMQ, without and with keys, and MPI, the bits of in-process ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hosts_program import digests
from mpi_ranks import MPIEXEC
from purine_ref.transports.keys import make_keys

PROGRAM = [sys.executable, "-P", str(Path(__file__).with_name("hosts_program.py"))]

WATCH = 120.0
"""Seconds after which a process counts as hanging."""

TWO = ("data:2", "model:2", "pipeline:2x4", "hybrid:2x2", "exact data:3", "exact hybrid:2x2")
THREE = ("data:3", "data:2/pipeline:2x3", "hybrid:2x2", "exact data:3", "exact data:2/pipeline:2x3")


@contextmanager
def process(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that is gone after the block, with all that it has started."""
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        yield started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


def said(text: str) -> list[dict[str, Any]]:
    """What the ranks have said, line by line."""
    return [json.loads(line) for line in text.splitlines()]


def over_zeromq(size: int, address: str, keys: str, schemes: Sequence[str]) -> list[dict[str, Any]]:
    """What all ranks find."""
    with ExitStack() as stack:
        first = stack.enter_context(process([*PROGRAM, "zeromq", "0", str(size), address, keys, *schemes]))
        assert first.stdout is not None
        bound = json.loads(first.stdout.readline())["address"]
        others = [[*PROGRAM, "zeromq", str(rank), str(size), bound, keys, *schemes] for rank in range(1, size)]
        ranks = [first, *[stack.enter_context(process(other)) for other in others]]
        with ThreadPoolExecutor(size) as pool:  # all are read at once, so that none waits for its reader
            texts = list(pool.map(lambda rank: rank.communicate(timeout=WATCH)[0], ranks))
        assert [rank.returncode for rank in ranks] == [0] * size
    return [line for text in texts for line in said(text)]


def check(found: Sequence[dict[str, Any]], size: int, schemes: Sequence[str]) -> None:
    """Assert that every rank has found what in-process ranks give, for every scheme."""
    for scheme in schemes:
        expected = digests(scheme.replace("hosts", "ranks"))
        rows = [row for row in found if row["scheme"] == scheme]
        assert sorted(row["rank"] for row in rows) == list(range(size))
        for row in rows:
            assert row["digests"] == expected, f"{scheme} on rank {row['rank']}"


def on_hosts(schemes: Sequence[str], size: int) -> list[str]:
    """The schemes on so many ranks."""
    return [f"{scheme}@hosts:{size}" for scheme in schemes]


@pytest.mark.parametrize(("size", "schemes"), [(2, TWO), (3, THREE)], ids=["2", "3"])
def test_r8_r10_over_zeromq(size: int, schemes: Sequence[str], socket_folder: Path) -> None:
    texts = on_hosts(schemes, size)
    check(over_zeromq(size, f"ipc://{socket_folder}/0", "-", texts), size, texts)


def test_r8_r10_over_zeromq_with_keys(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    texts = on_hosts(THREE[:1] + THREE[3:4], 3)
    check(over_zeromq(3, "tcp://127.0.0.1:0", str(tmp_path / "keys"), texts), 3, texts)


def test_r8_r10_over_mpi() -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed", exc_type=ImportError)
    if not MPIEXEC.exists():
        pytest.skip(f"there is no {MPIEXEC.name} beside the interpreter")
    texts = on_hosts(THREE[:2] + THREE[3:4], 3)
    with process([str(MPIEXEC), "-n", "3", *PROGRAM, "mpi", *texts]) as ranks:
        found = said(ranks.communicate(timeout=WATCH)[0])
    assert ranks.returncode == 0
    check(found, 3, texts)
