"""`purine-ref launch`: ranks here and over ssh, what they print, how they end, and that none is left."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from purine_ref import cli
from purine_ref.cli.launch import launch_self

PROGRAM = [sys.executable, "-P", "-m", "purine_ref_command"]

WATCH = 60.0
"""Seconds after which a process counts as hanging."""

SOON = 15.0
"""Seconds within which all must have ended, whatever died: the time limit of 1 below, and what the launcher adds."""

SHORT = ["verify", "--model", "mlp-digits", "--dtype", "float32", "--steps", "2", "--batch", "9", "--scheme"]
ENDLESS = ["train", "--model", "mlp-digits", "--threads", "1", "--epochs", "1000000", "--scheme", "data:2@hosts:2"]


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, and one for temporary files, which must be empty afterwards."""
    (tmp_path / "here").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path / "here"


def done(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, run to its end."""
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=WATCH, check=False)


def verdicts(path: str) -> list[dict[str, Any]]:
    """What a verification found, but for its seconds."""
    rows: list[dict[str, Any]] = json.loads(Path(path).read_text("utf-8"))["schemes"]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


# On this machine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        [],
        pytest.param(["--address", "tcp://127.0.0.1:0"], marks=pytest.mark.long),
        pytest.param(["--address", "tcp://[::1]:0"], marks=pytest.mark.long),
        pytest.param(["--address", "ipc://./socket"], marks=pytest.mark.long),
    ],
)
def test_ranks_on_this_machine_verify_as_ranks_of_one_process_do(address: list[str], in_tmp: Path) -> None:
    here = done("launch", "--hosts", "2", *address, "--", *SHORT, "data:2@hosts:2", "--json", "hosts.json")
    assert (here.returncode, here.stderr) == (0, "")
    lines = here.stdout.splitlines()
    assert all(line.startswith("[0] ") for line in lines)
    assert lines[-1] == "[0] verdict: pass"
    assert cli.run([*SHORT, "data:2@ranks", "--json", "ranks.json"]) == 0
    [hosts], [ranks] = verdicts("hosts.json"), verdicts("ranks.json")
    assert hosts.pop("scheme") == "data:2@hosts:2"
    assert ranks.pop("scheme") == "data:2@ranks"
    assert hosts == ranks
    assert os.listdir(in_tmp.parent / "tmp") == []


def test_ranks_with_keys_let_each_other_in(in_tmp: Path) -> None:
    assert cli.run(["keygen", "keys"]) == 0
    options = ["--hosts", "2", "--address", "tcp://127.0.0.1:0", "--keys", "keys"]
    ended = done("launch", *options, "--", *SHORT, "data:2@hosts:2")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1] == "[0] verdict: pass"


def test_keys_that_nobody_has_made_are_told_of_once(in_tmp: Path) -> None:
    Path("keys").mkdir(mode=0o700)
    ended = done("launch", "--hosts", "2", "--keys", "keys", "--", "info")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.fullmatch(r"error: no private key \(\*\.key_secret\) in keys: .*\n", ended.stderr)


def test_a_command_launches_itself(
    in_tmp: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `verify --scheme data:2@hosts:2` does: rank 0 prints what the command would. Other launchers do not matter."""
    for name, value in {"RANK": "5", "WORLD_SIZE": "9", "SLURM_PROCID": "3"}.items():
        monkeypatch.setenv(name, value)
    assert launch_self(2, ["info", "--json", "-"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert (facts["schema"], facts["world"]) == ("purine-ref/info/1", 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "info"], "expected --hosts N,"),
        (["--hosts", "0", "--", "info"], "Invalid value for '--hosts'"),
        (["--hosts", "2"], "Missing argument 'COMMAND...'"),
        (["--hosts", "2", "--", "verfy"], "got 'verfy'"),
        (["--hosts", "2", "--", "launch", "--hosts", "2", "--", "info"], "got 'launch'"),
        (["--hosts", "2", "--", "verify", "--steps", "0"], "Invalid value for '--steps'"),
        (["--hosts", "2", "--ssh", "ssh", "--", "info"], "--ssh: only with --hostfile"),
        (["--hosts", "2", "--keys", "k", "--insecure", "--", "info"], "--keys and --insecure exclude each other"),
        (["--hosts", "2", "--address", "node1:1", "--", "info"], "expected tcp://HOST:PORT or ipc://PATH, got 'node1"),
        (["--hosts", "2", "--address", "tcp://192.0.2.1:0", "--", "info"], "is no address of this machine"),
        (["--hostfile", "absent", "--", "info"], "No such file or directory"),
        (["--hostfile", "empty", "--", "info"], "expected a host on each line"),
        (["--hostfile", "two", "--hosts", "3", "--", "info"], "3 ranks: the hosts have 2 slots"),
        (["--hostfile", "two", "--address", "tcp://node1:0", "--", "info"], "expected a port, got 0"),
        (["--hostfile", "mixed", "--", "info"], "rank 0's host is localhost, which is not where node1 reaches it"),
        (["--hostfile", "two", "--", "info"], "node1:"),
        (["--hosts", "2", "--address", "tcp://0.0.0.0:29500", "--", "info"], "give --keys DIR with the keys"),
        (["--hostfile", "two", "--ssh", "'", "--", "info"], "No closing quotation"),
    ],
)
def test_wrong_usage_exits_with_64_before_anything_starts(
    arguments: list[str], message: str, in_tmp: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    Path("empty").touch()
    Path("two").write_text("node1 slots=2\n", "utf-8")
    Path("mixed").write_text("localhost\nnode1\n", "utf-8")
    module = importlib.import_module("purine_ref.cli.launch")
    monkeypatch.setattr(module, "run_ranks", lambda *_, **__: pytest.fail("ranks were started"))
    assert cli.run(["launch", *arguments]) == 64
    assert message in " ".join(capsys.readouterr().err.split())


# Ends -----------------------------------------------------------------------------------------------------------------


def test_an_error_of_all_ranks_is_told_by_each_and_is_the_exit_code(in_tmp: Path) -> None:
    Path("broken.npz").write_text("no snapshot", "utf-8")
    ended = done("launch", "--hosts", "2", "--", "train", "--resume", "broken.npz")
    assert (ended.returncode, ended.stdout) == (2, "")
    lines = ended.stderr.splitlines()
    assert sorted(line.partition(":")[0] for line in lines if line[0] == "[") == ["[0] error", "[1] error"]
    assert sorted(line for line in lines if line[0] != "[") == [
        f"launch: rank {rank} ended with exit code 2" for rank in range(2)
    ]


def workers() -> dict[int, int]:
    """The processes by rank that run as workers in this folder, whoever started them."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"purine_ref_command" in words and b"worker" in words and (folder / "cwd").readlink() == Path.cwd():
                found[int(words[words.index(b"--rank") + 1])] = int(folder.name)
    return found


def is_alive(process: int) -> bool:
    """Whether a process runs: one that has ended and was not yet asked for its exit code does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until(what: Any, seconds: float = WATCH) -> None:
    """Look again and again until it is so."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not come in time"
        os.sched_yield()


class Launched:
    """A launcher, the processes of its ranks, and what it prints from then on."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, "launch", *options, "--timeout", "1", "--", *ENDLESS],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.ranks: dict[int, int] = {}

    def wait_for_the_first_line(self) -> None:
        """Then all ranks have computed together, and go on."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.ranks = workers()
        assert line.startswith("[0] all layers, epoch 1"), (line, *self.process.communicate(timeout=WATCH))

    def end(self) -> tuple[int, str, float]:
        """Wait for the end; returns the exit code, the errors, and the seconds that it took. No rank may be left."""
        begun = time.monotonic()
        _, err = self.process.communicate(timeout=WATCH)
        took = time.monotonic() - begun
        assert not any(map(is_alive, self.ranks.values()))
        return self.process.returncode, err, took

    def kill(self) -> None:
        """End everything, however a test ended."""
        for process in (self.process.pid, *self.ranks.values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.communicate(timeout=WATCH)


@contextmanager
def launched(*options: str) -> Iterator[Launched]:
    """Two ranks that train without end, and have begun to; on this machine unless `options` say otherwise."""
    run = Launched(*(options or ("--hosts", "2")))
    try:
        run.wait_for_the_first_line()
        yield run
    finally:
        run.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_to_the_launcher_ends_all(number: signal.Signals, in_tmp: Path) -> None:
    with launched() as run:
        run.process.send_signal(number)
        code, err, took = run.end()
    assert (code, took < SOON) == (128 + number, True)
    assert "Traceback" not in err
    assert "killed" not in err
    assert os.listdir(in_tmp.parent / "tmp") == []


@pytest.mark.parametrize(
    ("number", "rank"),
    [
        (signal.SIGINT, 1),
        (signal.SIGTERM, 0),
        (signal.SIGKILL, 1),
        pytest.param(signal.SIGINT, 0, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, 1, marks=pytest.mark.long),
        pytest.param(signal.SIGKILL, 0, marks=pytest.mark.long),
    ],
)
def test_a_signal_to_one_rank_ends_all(number: signal.Signals, rank: int, in_tmp: Path) -> None:
    """The exit code is its; the other rank says who was lost, before anyone ends it."""
    with launched() as run:
        os.kill(run.ranks[rank], number)
        code, err, took = run.end()
    assert (code, took < SOON) == (128 + number, True), err
    assert f"[{1 - rank}] error: rank {rank} is lost: " in err
    verb = "killed" if number == signal.SIGKILL else "ended"
    told = [line for line in err.splitlines() if line.startswith("launch: ")]
    assert told == [
        f"launch: rank {rank} was {verb} by {number.name}",
        f"launch: rank {1 - rank} ended with exit code 2",
    ]
    assert "Traceback" not in err


@pytest.mark.long
def test_a_stopped_rank_is_lost_and_ended(in_tmp: Path) -> None:
    """It does not hear SIGTERM, so it is killed."""
    with launched() as run:
        os.kill(run.ranks[1], signal.SIGSTOP)
        code, err, took = run.end()
    assert (code, took < SOON) == (2, True)
    assert "[0] error: rank 1 is lost: " in err


def test_no_rank_outlives_a_launcher_that_was_killed(in_tmp: Path) -> None:
    with launched() as run:
        run.process.kill()
        wait_until(lambda: not any(map(is_alive, run.ranks.values())), SOON)


@pytest.mark.long
def test_a_reader_that_goes_ends_all(in_tmp: Path) -> None:
    """As in `purine-ref launch ... | head -1`."""
    with launched() as run:
        assert run.process.stdout is not None
        run.process.stdout.close()
        assert run.process.wait(WATCH) == 2
        assert not any(map(is_alive, run.ranks.values()))


# On a terminal --------------------------------------------------------------------------------------------------------


def test_the_progress_of_rank_0_shows_on_a_terminal_and_the_other_ranks_keep_to_lines(in_tmp: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    arguments = ["launch", "--hosts", "2", "--timeout", "1", "--", *ENDLESS]
    process = subprocess.Popen([*PROGRAM, *arguments], stdout=theirs, stderr=theirs, env=environment)
    ranks: dict[int, int] = {}
    text = b""
    try:
        os.close(theirs)
        while "━".encode() not in text:
            text += os.read(ours, 65536)
        ranks = workers()
        os.kill(ranks[0], signal.SIGTERM)
        with contextlib.suppress(OSError):  # the other end is closed
            while True:
                text += os.read(ours, 65536)
        assert process.wait(WATCH) == 143
    finally:
        for each in (process.pid, *ranks.values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        process.wait(WATCH)
        os.close(ours)
    shown = text.decode()
    assert "[0]" not in shown
    assert re.search(r"\r\x1b\[2K\[1\] error: rank 0 is lost: [^\r\n]*\r\n", shown)


# Over ssh -------------------------------------------------------------------------------------------------------------

FAKE_SSH = """#!{python} -P
import os, sys
*options, name, command = sys.argv[1:]
with open({log!r}, "a") as log:
    print(*options, name, file=log)
os.execvp("sh", ["sh", "-c", command])
"""
"""A call that goes nowhere: it notes its options and runs the command here, in a shell, as the other end would."""


@pytest.fixture
def fake_ssh(in_tmp: Path) -> str:
    """An `ssh` whose other end is here; it writes what it was told into the file `log`."""
    script = in_tmp / "fake-ssh"
    script.write_text(FAKE_SSH.format(python=sys.executable, log=str(in_tmp / "log")), "utf-8")
    script.chmod(0o755)
    return str(script)


def test_a_hostfile_starts_ranks_over_ssh(fake_ssh: str) -> None:
    Path("hosts").write_text("127.0.0.1  # both\nme@127.0.0.1\n", "utf-8")
    options = ["--hostfile", "hosts", "--ssh", f"{fake_ssh} -p 22"]
    ended = done("launch", *options, "--", *SHORT, "data:2@hosts:2", "--json", "hosts.json")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1] == "[0] verdict: pass"
    assert verdicts("hosts.json")[0]["verdict"] == "pass"
    calls = sorted(Path("log").read_text("utf-8").splitlines())
    assert [call.split()[-1] for call in calls] == ["127.0.0.1", "me@127.0.0.1"]
    assert all(call.startswith("-p 22 -o BatchMode=yes ") for call in calls)


def test_a_host_that_cannot_be_reached_is_named(in_tmp: Path) -> None:
    Path("hosts").write_text("127.0.0.1\n", "utf-8")
    failing = "sh -c 'echo Connection refused >&2; exit 255'"
    ended = done("launch", "--hostfile", "hosts", "--ssh", failing, "--", "info")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.splitlines() == [
        "[0] Connection refused",
        "launch: rank 0 on 127.0.0.1 cannot be reached: ssh ended with exit code 255",
    ]


@pytest.mark.parametrize(("option", "code"), [("--directory", 2), ("--python", 127)])
def test_a_folder_or_an_interpreter_that_is_not_there_is_said(fake_ssh: str, option: str, code: int) -> None:
    Path("hosts").write_text("127.0.0.1\n", "utf-8")
    ended = done("launch", "--hostfile", "hosts", "--ssh", fake_ssh, option, "/absent", "--", "info")
    assert ended.returncode == code
    assert [line for line in ended.stderr.splitlines() if line.startswith("[0] ") and "/absent" in line]
    assert ended.stderr.splitlines()[-1] == f"launch: rank 0 on 127.0.0.1 ended with exit code {code}"


SSHD_CONFIG = """
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
PidFile none
"""


@pytest.fixture
def real_ssh(in_tmp: Path) -> str:
    """An `ssh` whose other end is a real `sshd`, here, that nobody else can reach: it speaks to it through pipes."""
    sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if sshd is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        pytest.skip("needs ssh, ssh-keygen and sshd (Debian: openssh-client, openssh-server)")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # as the service does; only root's sshd looks for it
    folder = in_tmp.parent / "ssh"
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(key, check=True, timeout=WATCH, stdin=subprocess.DEVNULL)
    (folder / "sshd_config").write_text(SSHD_CONFIG.format(folder=folder), "utf-8")
    known = (folder / "host.pub").read_text("utf-8")
    (folder / "known").write_text(f"127.0.0.1 {known}", "utf-8")
    (folder / "config").write_text(
        f"ProxyCommand {sshd} -i -f {folder}/sshd_config\nIdentityFile {folder}/user\nIdentitiesOnly yes\n"
        f"UserKnownHostsFile {folder}/known\nLogLevel ERROR\n", "utf-8",
    )  # fmt: skip
    Path("hosts").write_text("127.0.0.1 slots=2\n", "utf-8")
    return f"ssh -F {folder}/config"


def test_ranks_over_a_real_ssh(real_ssh: str) -> None:
    ended = done("launch", "--hostfile", "hosts", "--ssh", real_ssh, "--", *SHORT, "data:2@hosts:2")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines()[-1] == "[0] verdict: pass"


@pytest.mark.parametrize(
    "who", ["launcher, killed", *(pytest.param(who, marks=pytest.mark.long) for who in ("launcher", "rank, killed"))]
)
def test_no_rank_is_left_over_a_real_ssh(real_ssh: str, who: str) -> None:
    with launched("--hostfile", "hosts", "--ssh", real_ssh) as run:
        if who == "launcher":
            run.process.send_signal(signal.SIGTERM)
            code, err, took = run.end()
            assert (code, took < SOON) == (143, True), err
        elif who == "launcher, killed":
            run.process.kill()
            wait_until(lambda: not any(map(is_alive, run.ranks.values())), SOON)
        else:
            os.kill(run.ranks[1], signal.SIGKILL)
            code, err, took = run.end()
            assert (code, took < SOON) == (137, True), err
            assert "[0] error: rank 1 is lost: " in err
