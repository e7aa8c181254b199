"""Ranks on the workers of a Dask cluster: a real scheduler, and workers that are processes, on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hooks import WATCH
from process_tree import children, is_alive
from purine_ref import cli, snapshot
from purine_ref.launching import dask_rank

pytest.importorskip("distributed", reason="distributed is not installed", exc_type=ImportError)

LAUNCH = [sys.executable, "-P", "-m", "purine_ref_command", "launch"]
TRAIN = ["train", "--model", "mlp-digits", "--batch", "160", "--epochs", "2000"]
"""Longer than any test waits: what is to be broken off has not come to its end before."""

SOON = 20.0
"""Seconds in which all must have ended that hear of a loss."""


def until(what: Callable[[], Any], seconds: float = 2 * WATCH) -> Any:
    """What `what` gives, once that is true."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)
    return found


class Dask:
    """A scheduler and its workers, each in a process group of its own, all ended by `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "scheduler.json"
        self.started: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        self.address = ""

    def open(self) -> None:
        """Start the scheduler."""
        self._start("scheduler", "--scheduler-file", str(self.file))
        until(self.file.exists)
        self.address = json.loads(until(self.file.read_text))["address"]

    def fill(self) -> None:
        """As many new workers as are missing to three, of one thread each; they have registered when this returns."""
        logs = []
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < 3:
            name = f"worker{len(self.started)}"
            logs.append(self.folder / f"{name}.log")
            self.workers.append(self._start("worker", self.address, "--nthreads", "1", "--no-nanny", "--name", name))
        for log in logs:
            until(lambda log=log: "Registered to" in log.read_text("utf-8"))

    def ranks(self) -> dict[int, int]:
        """The process of each rank that runs on a worker."""
        found = {}
        for worker in self.workers:
            for process in children(worker.pid):
                with contextlib.suppress(OSError, ValueError):
                    words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
                    found[int(words[words.index(b"--rank") + 1])] = process
        return found

    def worker_of(self, rank: int) -> subprocess.Popen[bytes]:
        """The worker that a rank runs on."""
        process = self.ranks()[rank]
        [worker] = [worker for worker in self.workers if process in children(worker.pid)]
        return worker

    def close(self) -> None:
        """Kill all that was started."""
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, what: str, *arguments: str) -> subprocess.Popen[bytes]:
        name = arguments[-1] if what == "worker" else what
        port = ["--port", "0"] if what == "scheduler" else ["--worker-port", "0", "--local-directory", str(self.folder)]
        command = [sys.executable, "-P", "-m", f"distributed.cli.dask_{what}", "--host", "127.0.0.1", "--no-dashboard"]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *port, *arguments], stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        self.started.append(process)
        return process


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dask]:
    """A cluster for all tests."""
    made = Dask(tmp_path_factory.mktemp("dask"))
    try:
        made.open()
        yield made
    finally:
        made.close()


@pytest.fixture
def dask(cluster: Dask) -> Dask:
    """A cluster of three workers."""
    cluster.fill()
    return cluster


@contextmanager
def launched(dask: Dask, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """`launch --dask` in a process that is gone afterwards; the ranks must be gone too, soon."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
    command = [*options.pop("command", LAUNCH), "--dask", dask.address, *arguments]
    with subprocess.Popen(command, **pipes, **options) as process:
        try:
            yield process
        finally:
            process.kill()
    until(lambda: not dask.ranks(), SOON)


def launch(dask: Dask, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a launch that ends in time."""
    with launched(dask, *arguments) as process:
        out, err = process.communicate(timeout=2 * WATCH)
        return process.returncode, out, err


def epoch(process: subprocess.Popen[str], number: int) -> None:
    """Wait until so many epochs are over."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"[0] all layers, epoch {number}:"):
            return
    raise AssertionError("it ended before")


def test_dp_06_a_worker_is_lost_and_those_that_are_left_go_on(dask: Dask, tmp_path: Path) -> None:
    """Three ranks train, one on each worker; one worker is killed; what is left resumes from the snapshot, as two."""
    path, report = tmp_path / "m.npz", tmp_path / "report.json"
    call = ["--timeout", "2", "--", *TRAIN, "--scheme", "data:*@hosts", "--save", str(path)]
    with launched(dask, *call) as process:
        epoch(process, 2)
        assert sorted(dask.ranks()) == [0, 1, 2]
        assert {len(children(worker.pid)) for worker in dask.workers} == {1}
        begun = time.monotonic()
        dask.worker_of(1).kill()
        _, err = process.communicate(timeout=2 * WATCH)
        assert time.monotonic() - begun < SOON
    assert process.returncode == 128 + signal.SIGKILL
    assert {line[:33] for line in err.splitlines() if "error: " in line} == {
        f"[{rank}] error: rank 1 is lost: it was" for rank in (0, 2)
    }
    assert "launch: rank 1 on tcp://127.0.0.1:" in err
    left = tmp_path / "left.npz"
    left.write_bytes(path.read_bytes())
    assert snapshot.load(left).iteration >= 10
    rest = ["--iterations", "30"]
    code, out, err = launch(dask, *call, *rest, "--resume", str(path), "--json", str(report))
    assert (code, err) == (0, "")
    assert {line[:4] for line in out.splitlines()} == {"[0] "}
    read = json.loads(report.read_text("utf-8"))
    assert (read["verdict"], read["world"], read["transport"]) == ("pass", 2, "zeromq")
    assert read["replicas"] == {"compared": 12, "differing": 0}
    assert cli.run([*TRAIN, *rest, "--scheme", "data:2@ranks", "--resume", str(left), "--save", str(left)]) == 0
    assert path.read_bytes() == left.read_bytes()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)], ids=lambda number: number.name
)
def test_a_signal_to_the_launcher_ends_all(dask: Dask, number: signal.Signals) -> None:
    with launched(dask, "--hosts", "2", "--", *TRAIN, "--scheme", "data:2@hosts:2") as process:
        epoch(process, 1)
        begun = time.monotonic()
        process.send_signal(number)
        process.communicate(timeout=2 * WATCH)
        assert time.monotonic() - begun < SOON
    assert process.returncode == 128 + number


@pytest.mark.long
def test_no_rank_outlives_a_launcher_that_was_killed(dask: Dask) -> None:
    with launched(dask, "--hosts", "3", "--", *TRAIN, "--scheme", "data:3@hosts:3") as process:
        epoch(process, 1)
        process.kill()


@pytest.mark.long
def test_a_rank_that_stands_still_is_lost_and_ended(dask: Dask) -> None:
    call = ["--timeout", "2", "--", *TRAIN, "--scheme", "data:*@hosts"]
    with launched(dask, *call) as process:
        epoch(process, 1)
        os.kill(dask.ranks()[1], signal.SIGSTOP)
        _, err = process.communicate(timeout=2 * WATCH)
    assert process.returncode == 2
    assert err.count("error: rank 1 is lost: it was silent for ") == 2


@pytest.mark.long
def test_a_scheduler_that_is_gone_ends_all(tmp_path: Path) -> None:
    own = Dask(tmp_path)
    try:
        own.open()
        own.fill()
        with launched(own, "--", *TRAIN, "--scheme", "data:*@hosts") as process:
            epoch(process, 1)
            own.started[0].kill()
            _, err = process.communicate(timeout=2 * WATCH)
        assert process.returncode == 2
        assert err.count("error: the Dask scheduler is gone") == 3
    finally:
        own.close()


@pytest.mark.long
def test_schemes_on_dask_pass_with_keys(dask: Dask, tmp_path: Path) -> None:
    schemes = [f"--scheme={scheme}@hosts:3" for scheme in ("data:3", "data:2/pipeline:2x3", "hybrid:2x2")]
    keys, report = str(tmp_path / "keys"), tmp_path / "report.json"
    assert cli.run(["keygen", keys]) == 0
    verify = ["verify", "--model", "mlp-digits", *schemes, "--json", str(report)]
    code, _, err = launch(dask, "--hosts", "3", "--keys", keys, "--", *verify)
    assert (code, err) == (0, "")
    assert json.loads(report.read_text("utf-8"))["verdict"] == "pass"


def test_what_cannot_be_started_is_said(dask: Dask) -> None:
    code, _, err = launch(dask, "--hosts", "9", "--", "info")
    assert code == 2
    assert "error: 9 ranks: the Dask cluster has 3 workers, each for one rank; start more of them" in err
    code, _, err = launch(dask, "--hosts", "1", "--directory", "/nowhere", "--", "info")
    assert code == 2
    assert "[0] error: FileNotFoundError" in err


def test_no_scheduler_is_said() -> None:
    quick = (
        "from purine_ref.launching import dask_cluster as d; from purine_ref.cli import main; d.CONNECT = 0.5; main()"
    )
    command = [sys.executable, "-P", "-c", quick, "launch", "--dask", "tcp://127.0.0.1:1", "--", "info"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * WATCH)
    assert done.returncode == 2
    assert "error: no Dask scheduler answers at tcp://127.0.0.1:1: " in done.stderr


def test_without_dask_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert cli.run(["launch", "--dask", "tcp://127.0.0.1:1", "--", "info"]) == 2
    assert 'pip install "purine_ref[cluster]"' in capsys.readouterr().err
    assert cli.run(["launch", "--dask", "tcp://127.0.0.1:1", "--ssh", "ssh", "--", "info"]) == 64


# The side of the worker, alone ----------------------------------------------------------------------------------------


class Shared:
    """A scheduler's queue and variable, in this process."""

    def __init__(self) -> None:
        self.queue: queue.Queue[tuple[int, int, bytes]] = queue.Queue()
        self.orders: dict[str, int] = {}
        self.beat = 0
        self.silent = False

    def get(self, timeout: float) -> tuple[int, dict[str, int]]:
        """The beat, and the orders, which are given once the rank has printed something."""
        self.beat += not self.silent
        return self.beat, self.orders if self.printed(0) else {}

    def printed(self, number: int) -> bytes:
        """All that has come of one stream."""
        return b"".join(data for _, which, data in list(self.queue.queue) if which == number)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Shared:
    made = Shared()
    module = SimpleNamespace(Queue=lambda name: made.queue, Variable=lambda name: made)
    monkeypatch.setitem(sys.modules, "distributed", module)
    return made


def run_here(code: str, silence: float = WATCH, **environment: str) -> int:
    command = [dask_rank.INTERPRETER, "-c", code]
    return dask_rank.run_rank(1, command, environment, None, "run", silence)


def test_a_task_passes_on_what_its_rank_prints_and_how_it_ends(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "7")  # the Dask worker itself was started by mpiexec
    code = "import os, sys; print(os.environ['HERE'], os.getenv('PMI_RANK')); print('x', file=sys.stderr); sys.exit(3)"
    assert run_here(code, HERE="there") == 3
    assert (shared.printed(0), shared.printed(1)) == (b"there None\n", b"x\n")
    assert run_here("import os; os.kill(os.getpid(), 9)") == 128 + 9


def test_a_task_passes_on_signals_and_ends_what_its_rank_has_started(shared: Shared) -> None:
    """The rank is told to end, and leaves a process behind that holds its output."""
    shared.orders["1"] = signal.SIGTERM
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    begun = time.monotonic()
    assert run_here(code) == 128 + signal.SIGTERM
    assert time.monotonic() - begun < WATCH
    until(lambda: not is_alive(int(shared.printed(0))), 5.0)


def test_a_task_whose_launcher_is_silent_ends_its_rank(shared: Shared) -> None:
    shared.silent = True
    begun = time.monotonic()
    assert run_here("import time; time.sleep(60)", silence=0.5) == 128 + signal.SIGTERM
    assert time.monotonic() - begun < WATCH


def test_a_task_holds_output_back_while_nobody_reads_it(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is full at first."""
    monkeypatch.setattr(dask_rank, "PUT", 0.01)
    shared.queue.maxsize = 1
    shared.queue.put((1, 1, b"before\n"))
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(run_here, "print('x' * 100_000)")
        until(lambda: shared.beat > 1)
        assert shared.queue.get(timeout=WATCH) == (1, 1, b"before\n")
        came = b""
        while len(came) < 100_001:
            came += shared.queue.get(timeout=WATCH)[2]
        assert came == b"x" * 100_000 + b"\n"
        assert ending.result(WATCH) == 0


def test_a_task_that_fails_leaves_nothing(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in the task, its process is gone when it ends."""
    processes: list[subprocess.Popen[bytes]] = []

    def fail(process: subprocess.Popen[bytes], *_: Any) -> None:
        processes.append(process)
        raise RuntimeError("planned")

    monkeypatch.setattr(dask_rank, "_obey", fail)
    with pytest.raises(RuntimeError, match=r"^planned$"):
        run_here("import time; time.sleep(60)")
    assert processes[0].returncode == -signal.SIGKILL
