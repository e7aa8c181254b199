"""Driving a port: whatever it does there is a verdict in time, never a stack trace, and no process is left behind."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from purine_ref.conformance.cases import Case, make_case, read_case, write_case
from purine_ref.conformance.driving import OneShotPort, PortFault, SessionPort, Unsupported, open_port
from purine_ref.conformance.driving.process import Process
from purine_ref.conformance.driving.reference import Server, serve_lines
from purine_ref.conformance.driving.session import DriveSession
from purine_ref.errors import Refused
from purine_ref.graph import Graph
from purine_ref.ops import Identity

BAD_PORT = Path(__file__).parent / "bad_port.py"
REFERENCE = f"{sys.executable} -P -m purine_ref.conformance.driving.reference"

LIMIT = 20.0
"""Seconds for a reply that comes: many more than it takes, even on a busy machine."""

HURRY = 0.3
"""Seconds for a reply that does not come."""


def bad(how: str, *more: str) -> SessionPort:
    """A port that misbehaves."""
    port = open_port(" ".join([sys.executable, str(BAD_PORT), how, *more]), limit=LIMIT)
    assert isinstance(port, SessionPort)
    return port


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """{ x } >> Identity >> { y }, of the one zero that a bad port writes."""
    graph = Graph("one")
    graph.connect([graph.blob("x", (1,), "float64")], Identity(), [graph.blob("y", (1,), "float64")])
    write_case(make_case(graph, name="one", about="", feeds=[{"x": np.zeros(1)}]), tmp_path / "case")
    return read_case(tmp_path / "case")


def play(port: SessionPort | OneShotPort, case: Case, tmp_path: Path) -> object:
    """Play the case once."""
    out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
    out.mkdir()
    return port.play(tmp_path / "case", case, out).results


def test_a_good_port_gives_arrays_and_stops(case: Case, tmp_path: Path) -> None:
    with bad("good") as port:
        assert port.hello.name == "bad"
        assert play(port, case, tmp_path) == {(0, "y"): np.zeros(1)}
        port.close()
        assert port.opened == 1


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("garbage", "garbage", "hello, world"),
        ("bytes", "garbage", "xff"),
        ("deep", "garbage", "JSON"),
        ("list", "garbage", "object"),
        ("nan", "garbage", "NaN"),
        ("no-ok", "garbage", '"ok"'),
        ("long", "garbage", "1,048,576"),
        ("endless", "garbage", "1,048,576"),
        ("error-kind", "garbage", "kind"),
        ("error-text", "garbage", "message"),
        ("seq", "disorder", "request 4, got that to 3"),
        ("twice", "disorder", "fetch: "),
        ("exit", "crashed", "exit code 7 before its reply; its last words: first | out of  [31mideas"),
        ("killed", "crashed", "killed by SIGKILL"),
        ("closed", "crashed", "closed its standard output"),
        ("definite", "error", "run: no  [31m luck"),
        ("indefinite", "error", "run: no"),
        ("no-file", "missing", "not there"),
        ("short", "missing", "bytes"),
        ("pickle", "missing", "header"),
    ],
)
def test_what_a_port_does_wrong_is_told(
    how: str, kind: str, words: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how in ("exit", "killed"):  # it ends, if not at once
        monkeypatch.setattr("purine_ref.conformance.driving.process.CLOSING", LIMIT)
    with bad(how) as port:
        with pytest.raises(PortFault) as caught:
            _ = [play(port, case, tmp_path) for _ in range(2)]
        assert caught.value.kind == kind
        assert words in caught.value.reason
        assert "\x1b" not in caught.value.reason


@pytest.mark.parametrize(("how", "sessions"), [("definite", 1), ("indefinite", 2), ("garbage", 2), ("no-file", 1)])
def test_another_session_is_begun_where_the_old_one_is_of_no_use(
    how: str, sessions: int, case: Case, tmp_path: Path
) -> None:
    with bad(how) as port:
        for _ in range(2):
            with pytest.raises(PortFault):
                play(port, case, tmp_path)
        assert port.opened == sessions


@pytest.mark.parametrize("how", ["hang", "half"])
def test_a_port_that_does_not_reply_has_hung(
    how: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = DriveSession.run

    def hurried(session: DriveSession, *arguments: Any) -> None:
        session.limit = HURRY  # for this request alone: the others have their reply
        run(session, *arguments)

    monkeypatch.setattr(DriveSession, "run", hurried)
    with bad(how) as port:
        with pytest.raises(PortFault, match=r"run: no reply in 0\.3 s") as caught:
            play(port, case, tmp_path)
        assert caught.value.kind == "hung"


def test_a_port_that_never_reads_has_hung() -> None:
    process = Process([sys.executable, str(BAD_PORT), "mute"])
    try:
        with pytest.raises(PortFault, match="no reply"):
            process.exchange(b"x" * (1 << 20), HURRY, "hello")
    finally:
        process.close()


def test_unsupported_is_no_fault(case: Case, tmp_path: Path) -> None:
    with bad("unsupported") as port, pytest.raises(Unsupported, match="run: no"):
        play(port, case, tmp_path)


def test_much_on_the_standard_error_does_not_block(case: Case, tmp_path: Path) -> None:
    with bad("flood") as port:
        assert play(port, case, tmp_path)


@pytest.mark.parametrize(
    ("how", "words"),
    [("protocol", "purine-drive/9"), ("operations", "list of text"), ("dtypes", "float16"), ("workers", "1 or more")],
)
def test_a_wrong_hello_is_garbage(how: str, words: str) -> None:
    with bad(how) as port, pytest.raises(PortFault, match=words) as caught:
        _ = port.hello
    assert caught.value.kind == "garbage"


def test_a_port_that_ends_at_once_has_crashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purine_ref.conformance.driving.process.CLOSING", LIMIT)
    with bad("gone") as port, pytest.raises(PortFault, match="hello: the port ended with exit code 3"):
        _ = port.hello


def test_a_command_that_is_not_there_is_refused() -> None:
    with open_port("/no/such/port") as port, pytest.raises(Refused, match="cannot be started"):
        _ = port.hello
    for wrong in ("", "'", "   "):
        with pytest.raises(Refused):
            open_port(wrong)
    with pytest.raises(Refused, match="one-shot"):
        open_port("tcp://127.0.0.1:1", one_shot=True)


@pytest.mark.parametrize(
    ("how", "kind"), [("stop-code", "crashed"), ("stop-more", "disorder"), ("stop-hang", "hung")]
)
def test_a_port_must_end_well(how: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purine_ref.conformance.driving.process.STOPPING", HURRY if kind == "hung" else LIMIT)
    with bad(how) as port:
        assert port.hello
        with pytest.raises(PortFault) as caught:
            port.close()
        assert caught.value.kind == kind


def running(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_no_process_is_left_behind(case: Case, tmp_path: Path) -> None:
    numbers = tmp_path / "pid"
    with bad("child", str(numbers)) as port:
        assert port.hello
        pid = int(numbers.read_text())
        assert running(pid)
    deadline = time.monotonic() + LIMIT
    while running(pid):
        assert time.monotonic() < deadline
        os.sched_yield()


# The one-shot form ----------------------------------------------------------------------------------------------------


def one_shot(how: str) -> OneShotPort:
    port = open_port(f"{sys.executable} {BAD_PORT} {how}", one_shot=True, limit=LIMIT)
    assert isinstance(port, OneShotPort)
    return port


@pytest.mark.parametrize(("how", "kind", "words"), [("1", "crashed", "exit code 1"), ("0", "missing", "got none")])
def test_what_a_one_shot_port_does_wrong_is_told(how: str, kind: str, words: str, case: Case, tmp_path: Path) -> None:
    with one_shot(how) as port:
        assert port.hello.operations == {"Identity"}
        with pytest.raises(PortFault, match=words) as caught:
            play(port, case, tmp_path)
        assert caught.value.kind == kind


def test_exit_code_3_of_a_one_shot_port_is_unsupported(case: Case, tmp_path: Path) -> None:
    with one_shot("3") as port, pytest.raises(Unsupported):
        play(port, case, tmp_path)


def test_a_one_shot_port_that_hangs_is_killed(case: Case, tmp_path: Path) -> None:
    with one_shot("hang") as port:
        port.limit = HURRY
        with pytest.raises(PortFault, match="not done") as caught:
            play(port, case, tmp_path)
        assert caught.value.kind == "hung"


# The reference as a port ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", [False, True])
def test_the_reference_serves_both_forms(one: bool, case: Case, tmp_path: Path) -> None:
    with open_port(REFERENCE, one_shot=one, limit=LIMIT) as port:
        assert "Conv2d" in port.hello.operations
        assert play(port, case, tmp_path) == {(0, "y"): np.zeros(1)}
        port.close()


def test_the_reference_answers_every_request(case: Case, tmp_path: Path) -> None:
    requests = [
        b'{"seq": 1, "do": "hello", "protocol": "purine-drive/1"}',
        b'{"seq": 2, "do": "run", "schedule": null}',
        b"no JSON",
        b'{"seq": 4, "do": "dance"}',
        b'{"seq": 5, "do": "load"}',
        f'{{"seq": 6, "do": "load", "case": "{tmp_path / "case"}"}}'.encode(),
        b'{"seq": 7, "do": "feed", "iteration": 1}',
        b'{"seq": 8, "do": "fetch", "blob": "y", "file": "y.npy"}',
        b'{"seq": 9, "do": "stop"}',
    ]
    target = (tmp_path / "replies").open("w+b")
    serve_lines(Server(), iter(line + b"\n" for line in requests), target)  # type: ignore[arg-type]
    target.seek(0)
    replies = target.read().decode().splitlines()
    target.close()
    assert [('"ok": true' in line) for line in replies] == [True, *[False] * 4, True, *[False] * 2, True]


class Threaded:
    """A ZeroMQ port in a thread: the reference's server, or what `answers` holds."""

    def __init__(self, address: str, answers: list[list[bytes]] | None = None) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.REP)
        self._socket.bind(address)
        self._answers = answers
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        server = Server()
        while not server.stopped and (self._answers is None or self._answers):
            message = self._socket.recv()
            self._socket.send_multipart([server.answer(message)] if self._answers is None else self._answers.pop(0))
        self._socket.close(linger=1000)

    def join(self) -> None:
        self._thread.join(LIMIT)
        self._context.term()


@pytest.fixture
def address(socket_folder: Path) -> str:
    return f"ipc://{socket_folder}/port"


def test_the_same_messages_over_zeromq(address: str, case: Case, tmp_path: Path) -> None:
    served = Threaded(address)
    with open_port(address, limit=LIMIT) as port:
        assert play(port, case, tmp_path) == {(0, "y"): np.zeros(1)}
        port.close()
    served.join()


def test_two_frames_over_zeromq_are_garbage(address: str) -> None:
    served = Threaded(address, [[b"{}", b"{}"]])
    with open_port(address, limit=LIMIT) as port, pytest.raises(PortFault, match="one frame") as caught:
        _ = port.hello
    assert caught.value.kind == "garbage"
    served.join()


def test_an_address_where_nobody_is_has_hung(address: str) -> None:
    with open_port(address, limit=HURRY) as port, pytest.raises(PortFault, match="no reply") as caught:
        _ = port.hello
    assert caught.value.kind == "hung"
    with pytest.raises(Refused, match="cannot be connected"):
        _ = open_port("tcp://nowhere").hello


def test_a_session_counts_its_requests() -> None:
    seen: list[bytes] = []

    class Recording:
        def exchange(self, message: bytes, seconds: float, what: str) -> bytes:
            seen.append(message)
            answer = Server().answer(message)
            return answer

        def finish(self) -> None: ...

        def close(self) -> None: ...

    session = DriveSession(Recording())
    session.stop()
    assert [b'"seq": 1' in seen[0], b'"seq": 2' in seen[1], len(seen)] == [True, True, 2]
