"""The transport over MPI: its contract on ranks that are processes, and commands under `mpiexec`."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpi_ranks
from hooks import WATCH
from process_tree import children, is_alive
from purine_ref import cli
from purine_ref.errors import PeerLost, Refused
from purine_ref.launching import without_ranks
from purine_ref.tensor import Tensor
from purine_ref.transports import EARLY, Route, Transport, World
from purine_ref.transports.mpi import frames, join_mpi
from suites.transports import VECTOR, Connect, TransportContract, all_to_all, expect, receive, take, vector
from suites.worlds import Join, WorldContract

pytest.importorskip("mpi4py", reason="mpi4py is not installed", exc_type=ImportError)
if not mpi_ranks.MPIEXEC.exists():
    pytest.skip(f"there is no {mpi_ranks.MPIEXEC.name} beside the interpreter", allow_module_level=True)


@pytest.fixture(scope="module")
def ranks() -> Iterator[mpi_ranks.Ranks]:
    with mpi_ranks.started(4) as ranks:
        yield ranks


class TestMpi(TransportContract):
    @pytest.fixture
    def connect(self, ranks: mpi_ranks.Ranks) -> Iterator[Connect]:
        joined = []

        def connected(incoming: Sequence[Mapping[Route, Tensor]], early: int = EARLY) -> Sequence[Transport]:
            worlds = ranks.join(len(incoming))
            joined.append(worlds)
            with_others = [world.begin_open("net", "0" * 64, incoming, early=early) for world in worlds]
            return [opening() for opening in with_others]

        yield connected
        for worlds in joined:
            ranks.leave(worlds)


class TestMpiWorld(WorldContract):
    @pytest.fixture
    def join(self, ranks: mpi_ranks.Ranks) -> Iterator[Join]:
        joined = []

        def join(size: int, **options: float) -> Sequence[World]:
            joined.append(ranks.join(size, **options))
            return joined[-1]

        yield join
        for worlds in joined:
            for world in worlds:
                world.abort("the test is over")
            ranks.leave(worlds)


# A world over MPI --------------------------------------------------------------------------------------------------


@pytest.fixture
def three(ranks: mpi_ranks.Ranks) -> Iterator[list[mpi_ranks.FarWorld]]:
    """A world of three ranks with a short limit."""
    worlds = ranks.join(3, timeout=2.0)
    yield worlds
    for world in worlds:
        world.abort("the test is over")
    ranks.leave(worlds)


def opened(worlds: Sequence[mpi_ranks.FarWorld], tensor: Tensor = VECTOR) -> list[Transport]:
    """A graph with a route of tag 2 between any two ranks, open on all."""
    opening = [world.begin_open("net", "0" * 64, all_to_all(len(worlds), (2,), tensor)) for world in worlds]
    return [end() for end in opening]


def test_a_large_array_goes_in_pieces(ranks: mpi_ranks.Ranks, three: list[mpi_ranks.FarWorld]) -> None:
    """The last one is shorter; MPI never sees a message above the limit, which is where its counts may end."""
    tensor = Tensor((12_345,), "float64")
    array = np.arange(12_345.0)
    for piece in (10_000, frames.PIECE):
        for far in ranks.far:
            far.call("limit", piece)
        ends = opened(three, tensor)
        ends[0].send(2, 2, 0, array)
        np.testing.assert_array_equal(receive(ends[2], 0, 2, 0, tensor), array)


def test_a_rank_of_another_run_is_refused_on_all(ranks: mpi_ranks.Ranks) -> None:
    joining = ranks.begin_join({"run_id": "one"}, {"run_id": "one"}, {"run_id": "two"})
    for _, future in joining:
        with pytest.raises(Refused, match=r"^rank 2 has run id 'two', and rank 0 'one': every rank must run the same"):
            future.result(WATCH)
    ranks.leave([world for world, _ in joining])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "nonsense", "session": 0, "tag": 2, "iteration": 0}, "frame of kind 'nonsense' is unknown"),
        ({"kind": "nonsense", "session": 7}, "frame of kind 'nonsense' for graph 7: no such graph is open"),
        ({"kind": "ask", "session": 0, "tag": 2}, "expected 'iteration' to be an integer from 0 up"),
        ({"kind": "ask", "session": 0, "tag": 3, "iteration": 0}, "message of tag 3, iteration 0"),
        ({"kind": "data", "session": 0, "tag": 9, "iteration": 0}, "message of tag 9 from rank 1: expected none"),
        ({"kind": "data", "session": 0, "tag": 2, "iteration": 0}, "expected 24 bytes of an array, got 0"),
        (
            {"kind": "open", "session": 5, "name": "", "fingerprint": ""},
            "opening of graph 5: expected 1; this rank has opened 1",
        ),
        ({"kind": "lost", "rank": 1, "reason": "", "waits": [1]}, "expected 'waits' to be lines of text"),
        ({"kind": "beat", "waits": [["receive", 0, "1", 0, 0]]}, "expected 'waits' to be a list of waits"),
        ({"kind": "open", "session": 0, "name": "net", "fingerprint": ""}, "opening of graph 0: expected 1;"),
        ({"kind": "open", "session": -1}, "expected 'session' to be an integer from 0 up"),
        ({"kind": "open", "session": 1, "name": 3, "fingerprint": ""}, "expected 'name' to be text"),
    ],
)
def test_who_breaks_the_protocol_is_lost(
    three: list[mpi_ranks.FarWorld], fields: Mapping[str, object], said: str
) -> None:
    ends = opened(three)
    calls = [expect(ends[0], 2, 2), expect(ends[2], 0, 2)]
    three[1].far.call("post", three[1].key, 0, fields)
    for call, end, peer in zip(calls, (ends[0], ends[2]), (2, 0), strict=True):
        call.wait()
        with pytest.raises(PeerLost, match=r"^rank 1 is lost: it broke the protocol: ") as caught:
            take(end, peer, 2)
        assert said in caught.value.reason


def test_a_loss_says_who_waits_for_what(three: list[mpi_ranks.FarWorld]) -> None:
    words = {(0, 1, 2): "operator 'x>0' for blob 'x'", (2, 1, 2): "operator 'x>2' for blob 'x'"}
    routes = all_to_all(3, (2,))
    opening = [world.begin_open("net", "0" * 64, routes, early=0, words=words) for world in three]
    ends = [end() for end in opening]
    calls = [expect(ends[rank], 1, 2) for rank in (0, 2)]
    stopped = three[1].far.process
    os.kill(stopped, signal.SIGSTOP)
    try:
        for call in calls:
            call.wait()
    finally:
        os.kill(stopped, signal.SIGCONT)
    for rank in (0, 2):
        with pytest.raises(
            PeerLost, match=r"^rank 1 is lost: it was last heard \d+\.\d s ago, and the limit is 2 s"
        ) as caught:
            take(ends[rank], 1, 2)
        assert set(caught.value.waits) >= {
            f"rank {rank} waits for rank 1: operator 'x>{rank}' for blob 'x', message of iteration 0" for rank in (0, 2)
        }


def test_graphs_that_all_have_closed_are_forgotten(three: list[mpi_ranks.FarWorld]) -> None:
    for _ in range(6):
        ends = opened(three)
        ends[0].send(1, 2, 0, vector(1))
        receive(ends[1], 0, 2)
        for end in ends:
            end.close()
    assert max(world.far.call("sessions", world.key) for world in three) <= 2


def test_a_forked_child_is_refused(three: list[mpi_ranks.FarWorld]) -> None:
    [end, *_] = opened(three)
    told = three[0].far.call("forked", end.key)
    said = (
        r"transport of rank 0 was made in process PARENT and used after fork in \d+: join anew in a process of its own"
    )
    assert len(told) == 2
    for line in told:
        assert re.fullmatch(said, line)


@given(st.binary(max_size=200))
def test_a_frame_is_read_or_refused(data: bytes) -> None:
    for frame in (data, len(data).to_bytes(4, "little") + data):
        try:
            fields, _ = frames.unpack(memoryview(frame))
        except Refused:
            continue
        assert isinstance(fields["kind"], str)


def test_a_frame_and_its_array_come_out_as_they_went_in() -> None:
    fields, rest = frames.unpack(memoryview(frames.pack({"kind": "data", "tag": 3}, vector(5))))
    assert (fields, bytes(rest)) == ({"kind": "data", "tag": 3}, vector(5).tobytes())
    with pytest.raises(Refused, match=r"^frame of \d+ bytes: expected fields of at most 65536, got \d+$"):
        frames.unpack(memoryview(frames.pack({"kind": "x" * frames.LIMIT})))


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(Refused, match=r"needs mpi4py and an MPI library .*pip install \"purine_ref\[mpi\]\""):
        join_mpi()
    assert cli.run(["worker", "--transport", "mpi", "--", "info"]) == 2
    assert cli.run(["worker", "--transport", "mpi", "--insecure", "--", "info"]) == 64
    assert "--insecure: not with --transport mpi" in capsys.readouterr().err


@pytest.mark.parametrize("said", [["--rank", "1"], ["--world", "2"]], ids=["rank", "world"])
def test_what_is_said_must_be_what_mpi_says(
    said: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    aborted: list[str] = []
    world = SimpleNamespace(rank=0, size=3, abort=aborted.append)
    monkeypatch.setattr(importlib.import_module("purine_ref.cli.worker"), "join_mpi", lambda **_: world)
    for name in os.environ.keys() - without_ranks(os.environ).keys():
        monkeypatch.delenv(name)
    assert cli.run(["worker", "--transport", "mpi", *said, "--", "info"]) == 64
    assert "by MPI, and" in capsys.readouterr().err
    assert len(aborted) == 1


# Commands under mpiexec ---------------------------------------------------------------------------------------------

WORKER = ("-m", "purine_ref_command", "worker", "--transport", "mpi")
TRAIN = ("train", "--model", "mlp-digits", "--batch", "160", "--epochs", "2000")


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`worker ARGUMENTS` on three ranks, whose launcher has ended afterwards; so have they, then."""
    command = mpi_ranks.mpiexec(3, *WORKER, *arguments)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as launcher:  # type: ignore[call-overload]
        try:
            yield launcher
        finally:
            for process in (*ranks_of(launcher).values(), launcher.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


def ranks_of(launcher: subprocess.Popen[str]) -> dict[int, int]:
    """The processes of the ranks, by rank: children of the launcher, or of what that starts."""
    found = {}
    started = children(launcher.pid)
    for process in (*started, *(one for other in started for one in children(other))):
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{process}/environ").read_bytes()
            found |= {int(rank): process for rank in re.findall(rb"\0(?:PMI|OMPI_COMM_WORLD)_RANK=(\d+)", variables)}
    return found


def wait_for_the_end(processes: Iterable[int]) -> None:
    """Wait until none of them runs: who is killed with its launcher may end a little later than that."""
    deadline = time.monotonic() + WATCH
    while any(map(is_alive, processes)):
        assert time.monotonic() < deadline, "a rank goes on"
        os.sched_yield()


def test_r8_training_over_mpi_gives_the_bits_of_ranks(tmp_path: Path) -> None:
    train = [*TRAIN, "--iterations", "50", "--save"]
    path, report = tmp_path / "mpi.npz", tmp_path / "report.json"
    with started("--", *train, str(path), "--scheme", "data:3@hosts:3", "--json", str(report)) as launcher:
        out, err = launcher.communicate(timeout=2 * WATCH)
    assert (launcher.returncode, err) == (0, "")
    assert out.count("replicas: 24 compared, 0 differ") == 1
    read = json.loads(report.read_text("utf-8"))
    assert (read["verdict"], read["executed"], read["world"], read["transport"]) == ("pass", 50, 3, "mpi")
    assert cli.run([*train, str(tmp_path / "ranks.npz"), "--scheme", "data:3@ranks"]) == 0
    assert path.read_bytes() == (tmp_path / "ranks.npz").read_bytes()


LONG = [pytest.param(number, marks=pytest.mark.long) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL, *LONG], ids=lambda number: number.name)
def test_whatever_ends_a_rank_ends_all(number: signal.Signals) -> None:
    """Who is stopped is found by its silence, and told; who is killed takes all with it: the launcher sees to that."""
    with started("--timeout", "2", "--", *TRAIN, "--scheme", "data:3@hosts:3") as launcher:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            if "epoch 2:" in line:
                break
        ranks = ranks_of(launcher)
        os.kill(ranks[1], number)
        _, err = launcher.communicate(timeout=WATCH)
        assert launcher.returncode != 0
        wait_for_the_end(ranks.values())
    if number == signal.SIGSTOP:
        told = re.findall(r"error: rank 1 is lost: it was last heard (\d+\.\d) s ago, and the limit is 2 s", err)
        assert len(told) == 2
        assert all(float(seconds) >= 2 for seconds in told)
        assert "waits for rank 1: its end of the run" in err
    elif number != signal.SIGKILL:
        assert sum("rank 1 is lost: " in line for line in err.splitlines()) == 2
        assert launcher.returncode == 128 + number


def test_an_error_of_all_ranks_is_told_by_each(tmp_path: Path) -> None:
    path = tmp_path / "wrong.npz"
    path.write_text("no snapshot")
    with started("--", *TRAIN, "--scheme", "data:3@hosts:3", "--resume", str(path)) as launcher:
        _, err = launcher.communicate(timeout=WATCH)
    assert launcher.returncode == 2
    assert err.count("error: ") == 3


def test_mpi_alone_says_which_rank_it_is() -> None:
    with started("--world", "2", "--", "info") as launcher:
        _, err = launcher.communicate(timeout=WATCH)
    assert launcher.returncode == 64
    assert "the number of ranks is" in err
