"""`purine-ref worker`: one rank by hand, what it is told, what it tells the others, and how it ends."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest

from purine_ref import cli
from purine_ref.errors import OperatorError, PeerLost
from purine_ref.launching import Place, without_ranks
from purine_ref.transports import World, current

PROGRAM = [sys.executable, "-P", "-m", "purine_ref_command"]

WATCH = 60.0
"""Seconds after which a process counts as hanging."""

SHORT = ["verify", "--model", "mlp-digits", "--dtype", "float32", "--steps", "2", "--batch", "9", "--scheme"]

module = importlib.import_module("purine_ref.cli.worker")


class Alone:
    """A world of one rank, that notes how it was left."""

    rank, size, transport = 0, 1, "none"

    def __init__(self) -> None:
        self.left: list[str] = []
        self.wish: Any = None

    def close(self) -> None:
        self.left.append("closed")

    def abort(self, reason: str) -> None:
        self.left.append(reason)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Alone:
    """The world that every worker of this process joins; no variables say which rank it is."""
    world = Alone()

    def join(wish: Any) -> World:
        world.wish = wish
        return world  # type: ignore[return-value]

    monkeypatch.setitem(module.TRANSPORTS, "zeromq", join)
    for name in os.environ.keys() - without_ranks(os.environ).keys():
        monkeypatch.delenv(name)
    return world


def command(monkeypatch: pytest.MonkeyPatch, body: Any) -> None:
    """Add a command `do` that calls `body`."""

    @click.command("do")
    def do() -> int:
        """Do."""
        return int(body() or 0)

    monkeypatch.setitem(cli.group.commands, "do", do)


# What it is told ------------------------------------------------------------------------------------------------------


def test_options_and_environment_say_which_rank_it_is(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    command(monkeypatch, lambda: None)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "alpha")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert cli.run(["worker", "--world", "2", "--run-id", "seven", "--timeout", "2", "--", "do"]) == 0
    assert alone.wish.place == Place(1, 2, "tcp://alpha:29500", "seven")
    assert (alone.wish.timeout, alone.wish.patience, alone.wish.keys, alone.wish.insecure) == (2.0, 60.0, None, False)
    options = ["--connect", "ipc://x", "--listen", "ipc://y", "--advertise", "ipc://z", "--keys", "k"]
    assert cli.run(["worker", "--rank", "1", "--world", "2", *options, "--patience", "3", "do"]) == 0
    assert alone.wish.place == Place(1, 2, "ipc://x")
    assert (alone.wish.listen, alone.wish.advertise) == ("ipc://y", "ipc://z")
    assert (alone.wish.keys, alone.wish.patience) == ("k", 3.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'COMMAND...'"),
        (["--", "verfy"], "expected one of bench, check, diff, golden, info,"),
        (["--", "worker", "--", "info"], "got 'worker'"),
        (["--", "launch", "--hosts", "2", "--", "info"], "got 'launch'"),
        (["--", "verify", "--steps", "0"], "Invalid value for '--steps'"),
        (["--keys", "k", "--insecure", "--", "info"], "--keys and --insecure exclude each other"),
        (["--rank", "2", "--world", "2", "--", "info"], "rank 2 (--rank) is not one of 2 (--world)"),
        (["--rank", "0", "--", "info"], "the number of ranks"),
        (["--transport", "pigeon", "--", "info"], "'pigeon' is not"),
        (["--timeout", "0", "--", "info"], "Invalid value for '--timeout'"),
    ],
)
def test_wrong_usage_exits_with_64_before_anything_is_joined(
    arguments: Sequence[str], message: str, alone: Alone, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if message.startswith("the number"):
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("PMI_SIZE", "3")
    code = cli.run(["worker", *arguments])
    assert (code, alone.wish) == (64, None)
    assert message in " ".join(capsys.readouterr().err.split())


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["worker", "--rank", "0", "--", "info"]) == 64
    assert "expected --world, --connect, or in the environment RANK, WORLD_SIZE" in capsys.readouterr().err


def test_help_of_the_command_joins_nobody(alone: Alone, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["worker", "--", "info", "--help"]) == 0
    assert "Usage:" in capsys.readouterr().out
    assert alone.wish is None


# What it tells the others ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_command_that_ends_leaves_in_peace(code: int, alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = []
    command(monkeypatch, lambda: worlds.append(current()) or code)
    assert cli.run(["worker", "--", "do"]) == code
    assert worlds == [alone]
    assert current() is None
    assert alone.left == ["closed"]


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (OperatorError("label 11\nis not one of 10"), 2, "OperatorError: label 11"),
        (PeerLost(1, "gone"), 2, "PeerLost: rank 1 is lost: gone"),
        (OSError(28, "No space left on device"), 2, "OSError: [Errno 28] No space left on device"),
        (click.UsageError("neither"), 64, "UsageError: neither"),
        (ZeroDivisionError(), 2, "ZeroDivisionError: no message"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (SystemExit(1), 2, "SystemExit: 1"),
    ],
)
def test_the_others_are_told_of_an_error(
    error: BaseException, code: int, reason: str, alone: Alone, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fail() -> None:
        raise error

    command(monkeypatch, fail)
    assert cli.run(["worker", "--", "do"]) == code
    assert alone.left == [reason]
    assert current() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_others_are_told_of_a_signal(
    number: signal.Signals, alone: Alone, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    command(monkeypatch, lambda: signal.raise_signal(number))
    assert cli.run(["worker", "--", "do"]) == 128 + number
    assert alone.left == [f"ended by {number.name}"]
    assert capsys.readouterr().err == f"ended by {number.name}\n"
    assert signal.getsignal(number) == before


def test_a_world_that_cannot_be_left_is_an_error(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    def close() -> None:
        raise PeerLost(1, "silent")

    monkeypatch.setattr(alone, "close", close)
    command(monkeypatch, lambda: None)
    assert cli.run(["worker", "--", "do"]) == 2
    assert alone.left == ["PeerLost: rank 1 is lost: silent"]


# By hand --------------------------------------------------------------------------------------------------------------


@contextmanager
def by_hand(environments: Sequence[dict[str, str]], *arguments: str) -> Iterator[list[subprocess.Popen[str]]]:
    """A worker in each environment."""
    base = without_ranks(os.environ)
    with contextlib.ExitStack() as stack:
        workers = []
        for environment in environments:
            command = [*PROGRAM, "worker", *arguments]
            process = stack.enter_context(subprocess.Popen(
                command, env={**base, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ))  # fmt: skip
            stack.callback(process.kill)
            workers.append(process)
        yield workers


@contextmanager
def free_port() -> Iterator[int]:
    """A port that nobody is given as long as nobody listens there."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_workers_that_find_each_other_by_their_environment() -> None:
    """The last rank first; what one prints is what a run in one process prints, and the other prints nothing."""
    with free_port() as port:
        common = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        environments = [common | {"RANK": rank} for rank in ("1", "0")]
        with by_hand(environments, "--", *SHORT, "data:2@hosts") as (second, first):
            out, err = first.communicate(timeout=WATCH)
            assert second.communicate(timeout=WATCH) == ("", "")
    assert (first.returncode, second.returncode, err) == (0, 0, "")
    assert out.splitlines()[-1] == "verdict: pass"


def test_ranks_of_another_run_are_refused(socket_folder: Path) -> None:
    """Rank 1 comes first: rank 0 waits for it for a short time only."""
    zero, one = ({"RANK": rank, "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": f"run{rank}"} for rank in ("0", "1"))
    options = ["--connect", f"ipc://{socket_folder}/rank0", "--patience"]
    with by_hand([one], *options, str(WATCH), "--", "info") as (second,):
        deadline = time.monotonic() + WATCH
        while not (socket_folder / "rank0.1").exists():  # where it listens, before it looks for rank 0
            assert time.monotonic() < deadline, "rank 1 never came"
            os.sched_yield()
        with by_hand([zero], *options, "3", "--", "info") as (first,):
            errors = [worker.communicate(timeout=WATCH)[1] for worker in (first, second)]
    assert (first.returncode, second.returncode) == (2, 2)
    assert all("error: " in error and "run" in error and "Traceback" not in error for error in errors), errors
