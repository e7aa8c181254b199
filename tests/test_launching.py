"""The parts of launching, without a world: how ranks are told which they are, listed, printed, ended and judged."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import purine_ref
from hooks import WATCH
from process_tree import children
from purine_ref.errors import Refused
from purine_ref.launching import (
    Ended,
    Host,
    Place,
    Start,
    find_place,
    over_ssh,
    read_hosts,
    run_ranks,
    spread,
    without_ranks,
    worst,
)
from purine_ref.launching.environment import first_host
from purine_ref.launching.output import LONGEST, PIECE, ROOM, Lines, Sink

# Which rank a process is ----------------------------------------------------------------------------------------------

GENERIC = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "3"}
SLURM = {
    "SLURM_PROCID": "1", "SLURM_NTASKS": "3", "SLURM_JOB_ID": "812", "SLURM_STEP_ID": "4",
    "SLURM_STEP_NODELIST": "node[03-04,7],gpu1", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.9",
}  # fmt: skip


@pytest.mark.parametrize("environ", [GENERIC, OPEN_MPI, PMI, SLURM, OPEN_MPI | PMI, GENERIC | OPEN_MPI])
def test_the_variables_of_what_starts_ranks_are_understood(environ: dict[str, str]) -> None:
    place = find_place(environ, Place())
    assert (place.rank, place.world) == (1, 3)
    assert place.connect == ("tcp://10.0.0.1:29500" if "MASTER_ADDR" in environ else place.connect)


@pytest.mark.parametrize(
    ("environ", "connect"),
    [
        ({}, None),
        (OPEN_MPI, None),
        ({"MASTER_ADDR": "node1"}, None),
        ({"MASTER_PORT": "29500"}, None),
        ({"MASTER_ADDR": "node1", "MASTER_PORT": "65535"}, "tcp://node1:65535"),
        ({"MASTER_ADDR": "fd00::1", "MASTER_PORT": "1"}, "tcp://[fd00::1]:1"),
        (SLURM | {"MASTER_PORT": "29500"}, "tcp://node03:29500"),
        (SLURM | {"MASTER_PORT": "29500", "SLURM_STEP_NODELIST": ""}, "tcp://10.0.0.9:29500"),
        (SLURM | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}, "tcp://10.0.0.1:29500"),
    ],
)
def test_where_rank_0_listens(environ: dict[str, str], connect: str | None) -> None:
    assert find_place(environ, Place()).connect == connect


def test_steps_of_slurm_have_ports_and_names_of_their_own_that_all_ranks_agree_on() -> None:
    steps = [SLURM | {"SLURM_STEP_ID": str(step), "SLURM_PROCID": str(rank)} for step in range(20) for rank in (0, 2)]
    places = [find_place(environ, Place()) for environ in steps]
    ports = [int((place.connect or "").rpartition(":")[2]) for place in places]
    assert all(20_000 <= port < 30_000 for port in ports)
    assert ports[::2] == ports[1::2]
    assert len(set(ports)) == 20
    assert places[3].run_id == "slurm-812.1"
    assert find_place(GENERIC | {"TORCHELASTIC_RUN_ID": "seven"}, Place()).run_id == "seven"
    assert find_place(GENERIC | {"TORCHELASTIC_RUN_ID": "seven"}, Place(run_id="mine")).run_id == "mine"


def test_what_is_said_fills_in_and_an_address_that_is_said_stands() -> None:
    assert find_place({"RANK": "1"}, Place(world=2)) == Place(1, 2)
    assert find_place(GENERIC, Place(connect="ipc://x")).connect == "ipc://x"
    assert find_place(OPEN_MPI, Place(1, 3, "ipc://x", "r")) == Place(1, 3, "ipc://x", "r")


@pytest.mark.parametrize("environ", [GENERIC, OPEN_MPI, PMI])
def test_slurm_does_not_number_what_its_task_starts(environ: dict[str, str]) -> None:
    """`srun` starts one `mpiexec` or `torchrun` on each node, whose ranks all have its variables."""
    place = find_place(environ | SLURM | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, Place())
    assert (place.rank, place.world) == (1, 3)
    assert find_place(SLURM, Place(0, 2, "ipc://x")) == Place(0, 2, "ipc://x")


@pytest.mark.parametrize(
    ("environ", "said", "message"),
    [
        (GENERIC, Place(rank=2), "rank is 2 by --rank, and 1 by RANK; unset the one that is wrong"),
        (GENERIC, Place(world=4),
         "the number of ranks is 4 by --world, and 3 by WORLD_SIZE; unset the one that is wrong"),
        (GENERIC | {"PMI_RANK": "0"}, Place(), "rank is 1 by RANK, and 0 by PMI_RANK; unset the one that is wrong"),
        (SLURM, Place(world=4),
         "the number of ranks is 4 by --world, and 3 by SLURM_NTASKS; unset the one that is wrong"),
        ({"RANK": "3"}, Place(world=3), "rank 3 (RANK) is not one of 3 (--world): ranks count from 0"),
        ({"RANK": "-1"}, Place(), "RANK: expected a whole number of 0 or more, got '-1'"),
        ({"RANK": "one"}, Place(), "RANK: expected a whole number of 0 or more, got 'one'"),
        ({"WORLD_SIZE": "0"}, Place(), "WORLD_SIZE: expected a whole number of 1 or more, got '0'"),
        ({"MASTER_ADDR": "a b", "MASTER_PORT": "1"}, Place(),
         "MASTER_ADDR: expected the name or the address of a host, got 'a b'"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "65536"}, Place(),
         "MASTER_PORT: expected a port of at most 65535, got 65536"),
        (SLURM | {"SLURM_STEP_NODELIST": "node[3"}, Place(),
         "SLURM_STEP_NODELIST: expected a list of hosts such as node[01-04], got 'node[3'"),
    ],
)  # fmt: skip
def test_contradictions_and_nonsense_are_refused(environ: dict[str, str], said: Place, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        find_place(environ, said)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("node1", "node1"), ("a,b", "a"), ("n[007-100],m", "n007"), ("r[2,1]n[3-4].x", "r2n3.x"), ("n[1,2],m[3,4]", "n1")],
)
def test_the_first_of_slurms_hosts(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


def test_a_launched_rank_sees_no_other_number() -> None:
    everything = GENERIC | OPEN_MPI | PMI | SLURM | {"TORCHELASTIC_RUN_ID": "x", "HOME": "/h"}
    left = without_ranks(everything)
    assert find_place(left, Place()) == Place()
    assert left["HOME"] == "/h"


# Hosts ----------------------------------------------------------------------------------------------------------------


def test_a_hostfile(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# all\n\nnode1 slots=2  # rank 0\nme@10.0.0.2\nfe80::1%eth0 slots=10\n", "utf-8")
    hosts = read_hosts(file)
    assert hosts == [Host("node1", 2), Host("me@10.0.0.2"), Host("fe80::1%eth0", 10)]
    assert hosts[1].address == "10.0.0.2"
    assert [host.name for host in spread(hosts, 4)] == ["node1", "node1", "me@10.0.0.2", "fe80::1%eth0"]
    assert len(spread(hosts, None)) == 13
    with pytest.raises(Refused, match=r"^14 ranks: the hosts have 13 slots; list more hosts, or give one 'slots=N'$"):
        spread(hosts, 14)


@pytest.mark.parametrize(
    "line",
    ["node1 2", "node1 slots=0", "node1 slots=2 max_slots=3", "node1:2", "-oProxyCommand=x", "a;b", "$(x)", "a@"],
)
def test_a_line_that_is_no_host_is_refused(line: str, tmp_path: Path) -> None:
    """Among them what `ssh` would take for an option."""
    file = tmp_path / "hosts"
    file.write_text(f"node0\n{line}\n", "utf-8")
    with pytest.raises(Refused) as caught:
        read_hosts(file)
    assert str(caught.value) == f"{file}, line 2: expected '[user@]host' or '[user@]host slots=N', got {line!r}"


def test_a_file_without_hosts_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# none\n", "utf-8")
    with pytest.raises(Refused, match=r"expected a host on each line, such as 'node1 slots=2', got none$"):
        read_hosts(file)


@pytest.mark.parametrize("shell", [name for name in ("sh", "bash", "zsh") if shutil.which(name)])
def test_what_a_shell_at_the_other_end_makes_of_the_command(shell: str, tmp_path: Path) -> None:
    """Words, folders and variables arrive as they were, whatever they hold; and so do exit codes and signals."""
    folder = tmp_path / "it's a $folder"
    folder.mkdir()
    show = "import os, sys; print(os.getcwd(), os.environ['A'], sys.argv[1:])"

    def there(code: str, *words: str, at: Path = folder) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-c", code, *words]
        ssh = over_ssh(["ssh", "-p", "22"], Host("me@node1"), command, str(at), {"A": "b c"})
        assert ssh[:3] == ["ssh", "-p", "22"]
        assert ssh[-3:-1] == ["--", "me@node1"]
        return subprocess.run([shell, "-c", ssh[-1]], capture_output=True, text=True, timeout=WATCH, check=False)

    words = ["two words", "$HOME", "`x`", "'", '"', "\\", "*"]
    assert there(show, *words).stdout == f"{folder} b c {words}\n"
    assert there("import sys; sys.exit(64)").returncode == 64
    assert there("import os; os.kill(os.getpid(), 9)").returncode == 137
    assert there("", at=tmp_path / "absent").returncode == 2


# Exit codes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codes", "code"),
    [([0, 0], 0), ([0, 64], 64), ([64, 2, 0], 2), ([2, 1], 1), ([1, 137, 139], 137), ([2, 143], 143), ([3, 1], 3)],
)
def test_the_worst_exit_code_stands_for_all(codes: Sequence[int], code: int) -> None:
    assert worst([Ended(rank, ended) for rank, ended in enumerate(codes)]) == code


def test_a_rank_that_was_told_to_end_does_not_count() -> None:
    ends = [Ended(1, 2), Ended(0, 143, asked=True), Ended(2, 137, asked=True)]
    assert worst(ends) == 2
    assert worst(ends[1:]) == 143
    assert worst([Ended(0, 255, host="node1"), Ended(1, 0)]) == 2


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (Ended(0, 2), "rank 0 ended with exit code 2"),
        (Ended(1, 137), "rank 1 was killed by SIGKILL"),
        (Ended(1, 139, host="node1"), "rank 1 on node1 was killed by SIGSEGV"),
        (Ended(3, 130), "rank 3 was ended by SIGINT"),
        (Ended(1, 255, host="node1"), "rank 1 on node1 cannot be reached: ssh ended with exit code 255"),
        (Ended(1, 255), "rank 1 ended with exit code 255"),
    ],
)
def test_an_end_in_words(end: Ended, words: str) -> None:
    assert str(end) == words


# Output ---------------------------------------------------------------------------------------------------------------


def test_lines_are_whole_behind_their_rank() -> None:
    stream = io.StringIO()
    sink = Sink(stream)
    first, second = Lines("[0] ", sink), Lines("[1] ", sink)
    for data, into in ((b"a", first), (b"x\ny", second), (b"b\n\nc", first), (b"z\n", second)):
        into.feed(data)
    second.feed(b"")
    first.feed(b"")
    assert stream.getvalue() == "[1] x\n[0] ab\n[0] \n[1] yz\n[0] c\n"


def test_a_line_without_an_end_is_broken() -> None:
    stream = io.StringIO()
    Lines("[0] ", Sink(stream)).feed(b"x" * (LONGEST + 1))
    assert stream.getvalue() == "[0] " + "x" * (LONGEST + 1) + "\n"


@contextmanager
def piped() -> Iterator[tuple[Sink, int]]:
    """A sink into a pipe, and the other end."""
    reading, writing = os.pipe()
    with open(writing, "w", encoding="utf-8") as stream:
        try:
            yield Sink(stream), reading
        finally:
            os.close(reading)


def test_a_reader_that_does_not_read_blocks_nobody() -> None:
    with piped() as (sink, reading):
        sent = [b"%07d\n" % number for number in range(8 * ROOM // 8)]
        begun = time.monotonic()
        for line in sent:
            sink.put(line)
        assert time.monotonic() - begun < WATCH
        assert sink.full
        got = b""
        while len(got) < len(sent) * 8:
            got += os.read(reading, PIECE)
            sink.write()
        assert got == b"".join(sent)
        assert sink.empty


def test_a_reader_that_has_gone_is_an_error() -> None:
    reading, writing = os.pipe()
    with open(writing, "w", encoding="utf-8") as stream:
        sink = Sink(stream)
        os.close(reading)
        with pytest.raises(BrokenPipeError):
            sink.put(b"x\n")


# Processes ------------------------------------------------------------------------------------------------------------


def ranks(*bodies: str, **options: Any) -> tuple[list[Ended], int]:
    """Run Python programs as ranks, in this process."""
    starts = [Start(rank, [sys.executable, "-P", "-c", body]) for rank, body in enumerate(bodies)]
    return run_ranks(starts, **{"settle": 0.1, "grace": 0.5, **options})


FOREVER = "import signal; signal.pause()"
DEAF = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({pipe!r}, 'w').close(); signal.pause()"
"""Ignores SIGTERM, and lets whoever reads the pipe know."""


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    """A named pipe: opened by two, so that one knows where the other is."""
    path = str(tmp_path / "pipe")
    os.mkfifo(path)
    return path


def test_all_that_ranks_print_comes_out_in_lines(capfd: pytest.CaptureFixture[str]) -> None:
    body = "import sys\nfor i in range(2000): print(RANK, i, 'x' * 50)\nsys.stderr.write('last words')"
    ends, number = ranks(*(f"RANK = {rank}\n{body}" for rank in range(3)))
    out, err = capfd.readouterr()
    assert sorted((end.rank, end.code, end.asked) for end in ends) == [(rank, 0, False) for rank in range(3)]
    assert number == 0
    for rank in range(3):
        wanted = [f"[{rank}] {rank} {i} {'x' * 50}" for i in range(2000)]
        assert [line for line in out.splitlines() if line.startswith(f"[{rank}]")] == wanted
    assert sorted(err.splitlines()) == [f"[{rank}] last words" for rank in range(3)]


def test_a_rank_that_ends_badly_ends_the_others() -> None:
    ends, _ = ranks("import sys; sys.exit(2)", FOREVER)
    assert ends == [Ended(0, 2), Ended(1, 143, asked=True)]


def test_the_others_have_time_to_say_what_they_found(pipe: str, capfd: pytest.CaptureFixture[str]) -> None:
    killed = f"import os; held = open({pipe!r}, 'w'); os.kill(os.getpid(), 9)"
    finder = f"import sys; open({pipe!r}).read(); print('rank 0 is lost'); sys.exit(2)"  # reads to the other's end
    ends, _ = ranks(killed, finder, settle=WATCH)
    assert sorted(ends, key=lambda end: end.rank) == [Ended(0, 137), Ended(1, 2)]  # they may be noticed at once
    assert capfd.readouterr().out == "[1] rank 0 is lost\n"


def test_a_rank_that_does_not_listen_is_killed(pipe: str) -> None:
    ends, _ = ranks(f"import sys; open({pipe!r}).read(); sys.exit(1)", DEAF.format(pipe=pipe))
    assert ends == [Ended(0, 1), Ended(1, 137, asked=True)]


def test_what_a_rank_has_started_ends_with_it(pipe: str) -> None:
    starts_one = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {HOLDS!r}, {pipe!r}])"
    ends, _ = ranks(starts_one + f"; assert open({pipe!r}).read(1)", settle=WATCH)
    assert ends == [Ended(0, 0)]
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert os.read(descriptor, 1) == b""  # nobody holds the other end
    finally:
        os.close(descriptor)


HOLDS = "import signal, sys; held = open(sys.argv[1], 'w'); held.write('x'); held.flush(); signal.pause()"
"""Writes into a pipe, and keeps it open."""


def test_a_command_that_is_not_there_is_refused_and_leaves_nobody() -> None:
    before = set(children("self"))  # other tests of this process may have left theirs, such as a server that they share
    starts = [Start(0, [sys.executable, "-P", "-c", FOREVER]), Start(1, ["absent-command"])]
    with pytest.raises(Refused, match=r"^rank 1: 'absent-command' cannot be started: No such file or directory$"):
        run_ranks(starts, settle=0.1)
    assert set(children("self")) <= before


# A launcher that dies or is signalled ---------------------------------------------------------------------------------

ALONE = f"""
import signal, sys, types
root = types.ModuleType("purine_ref")  # launching needs little of the package, and the rest takes a while to import
root.__path__ = {list(purine_ref.__path__)!r}
sys.modules["purine_ref"] = root
from purine_ref.launching import Start, Terminated, run_ranks, terminable, tie
"""

LAUNCHER = """
starts = [Start(rank, [sys.executable, "-P", "-c", {body!r}], host={host!r}) for rank in range(2)]
ends, number = run_ranks(starts, settle=30.0, grace=30.0)
print("ends", *(end.code for end in ends), "signal", number, flush=True)
"""

TIED = """
try:
    with terminable():
        {prepare}
        tie(grace=0.2)
        held = open({pipe!r}, "w")
        held.write("x")
        held.flush()
        {wait}
except Terminated as ended:
    print(ended, flush=True)
    sys.exit(128 + ended.signal)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""
"""A rank as `worker --tied` is one: it writes into a pipe, and keeps that open until it ends."""

WAIT, COMPUTE = "signal.pause()", "[None for _ in iter(int, 1)]"
DEAF_TIED = "signal.signal(signal.SIGTERM, lambda *_: print('no', flush=True))"
HOLDING = "import ctypes; ctypes.PyDLL(None).pause()"
"""Waits in a library with the interpreter's lock held, so that no other thread runs."""

BLOCKED = "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})"


def tied(pipe: str, prepare: str = "pass", wait: str = WAIT) -> str:
    """The program of a tied rank."""
    return ALONE + TIED.format(pipe=pipe, prepare=prepare, wait=wait)


@contextmanager
def launcher(
    pipe: str, prepare: str = "pass", wait: str = WAIT, host: str | None = None
) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """A process that launches two tied ranks, and the pipe that both hold open; both are there when it is given."""
    program = ALONE + LAUNCHER.format(body=tied(pipe, prepare, wait), host=host)
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as held:
        started = subprocess.Popen(
            [sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            os.set_blocking(held.fileno(), True)
            with open(pipe, "wb"):  # so that the pipe has no end before the ranks are there
                assert read_in_time(held, 2) == b"xx"
            yield started, held
        finally:
            started.kill()
            started.communicate(timeout=WATCH)


def read_in_time(held: Any, size: int) -> bytes:
    """So many bytes of a pipe; fewer where all others have closed it. Fails when neither comes in time."""
    got: list[bytes] = []

    def read() -> None:
        while sum(map(len, got)) < size and (data := held.read(size)):
            got.append(data)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(WATCH)
    assert not thread.is_alive(), f"expected {size} bytes or the end of the pipe, got {b''.join(got)!r}"
    return b"".join(got)


def assert_all_ended(held: Any) -> None:
    """Nobody holds the pipe open any more."""
    assert read_in_time(held, 1) == b""


@pytest.mark.parametrize("host", [None, "elsewhere"])
@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM")]
)
def test_a_signal_to_the_launcher_reaches_all_ranks(
    pipe: str, host: str | None, number: signal.Signals, said: str
) -> None:
    """Down the lifeline, where the rank is on another host and no signal gets there."""
    with launcher(pipe, host=host) as (started, held):
        started.send_signal(number)
        out, _ = started.communicate(timeout=WATCH)
        lines = out.splitlines()
        assert sorted(lines[:2]) == [f"[0] {said}", f"[1] {said}"]
        assert lines[2:] == [f"ends {128 + number} {128 + number} signal {number}"]
        assert_all_ended(held)


SLOWLY_READ = """
from purine_ref.launching import processes

class Clock:
    now = late = 0

    def monotonic(self):  # a second a call, so that no time that is waited for passes between two looks
        self.now += 1
        if self.now == self.late:
            print("late", file=sys.stderr, flush=True)
        return self.now

class Noted(processes.Child):
    def kill(self):  # called when its end has been seen
        clock.late = clock.now + 30
        super().kill()

clock = processes.time = Clock()
processes.DRAIN = 15  # what is left is read in less than half as many looks
body = "import fcntl; fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)\\nfor _ in range({lines}): print('x' * 99)"
run_ranks([Start(0, [sys.executable, "-P", "-c", body])], settle=1.0, begin=Noted)
"""


def test_a_slow_reader_gets_everything() -> None:
    """Also what the rank had written, and nobody had read, when it ended."""
    lines = 4000  # more than the reader's pipe and the launcher hold, and less than the rank's own pipe, made wider
    command = [sys.executable, "-P", "-c", ALONE + SLOWLY_READ.format(lines=lines)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as started:
        try:
            assert started.stderr is not None
            assert started.stderr.readline() == b"late\n"
            out, err = started.communicate(timeout=WATCH)
        finally:
            started.kill()
    assert (out, err) == (f"[0] {'x' * 99}\n".encode() * lines, b"")


def test_a_second_signal_kills(pipe: str) -> None:
    with launcher(pipe, prepare=DEAF_TIED, wait=COMPUTE) as (started, held):
        assert started.stdout is not None
        started.send_signal(signal.SIGTERM)
        assert sorted(started.stdout.readline() for _ in range(2)) == ["[0] no\n", "[1] no\n"]
        started.send_signal(signal.SIGTERM)
        assert started.communicate(timeout=WATCH)[0] == "ends 137 137 signal 15\n"
        assert_all_ended(held)


@pytest.mark.parametrize(
    ("prepare", "wait"),
    [("pass", WAIT), ("pass", COMPUTE), (DEAF_TIED, COMPUTE), (BLOCKED, WAIT), ("pass", HOLDING)],
)
def test_no_rank_outlives_a_launcher_that_was_killed(pipe: str, prepare: str, wait: str) -> None:
    """Not one that waits, nor computes, nor does not listen."""
    with launcher(pipe, prepare, wait) as (started, held):
        started.kill()
        assert_all_ended(held)


@pytest.mark.parametrize(("prepare", "code", "said"), [("pass", 143, "ended by SIGTERM\n"), (BLOCKED, -9, "")])
def test_a_rank_whose_line_ends_ends_in_order_and_is_killed_if_it_does_not(
    pipe: str, prepare: str, code: int, said: str
) -> None:
    """What a rank on another host sees of a launcher that died: the end of its standard input."""
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0):
        command = [sys.executable, "-P", "-c", tied(pipe, prepare)]
        done = subprocess.run(command, input="", capture_output=True, text=True, timeout=WATCH, check=False)
    assert (done.returncode, done.stdout) == (code, said)
