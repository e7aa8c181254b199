"""`bench transport`, at small sizes, and the links that it compares. No figure is judged."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from purine_ref.benchmarks import namespaces, transport
from purine_ref.benchmarks.links.end import Asker, obey
from purine_ref.benchmarks.links.joining import BASE, WAYS
from purine_ref.benchmarks.links.link import CONTROL, Ends, Link
from purine_ref.benchmarks.links.message import Message
from purine_ref.benchmarks.links.own import Own
from purine_ref.benchmarks.links.shared import SharedMemory
from purine_ref.benchmarks.links.sockets import Sockets
from purine_ref.cli import run as run_command
from purine_ref.operation import Array
from purine_ref.transports.local import local_worlds

Meet = Callable[[str], str]

COUNTS = {CONTROL: 1, 1024: 5, 300_000: 3}


def pair(make: Callable[[Ends], Link], address: str) -> tuple[Link, Link]:
    """Both ends of a link, made side by side."""
    ends: dict[int, Link] = {}

    def join(end: int) -> None:
        ends[end] = make(Ends("", end, address, COUNTS))

    threads = [threading.Thread(target=join, args=(end,)) for end in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return ends[0], ends[1]


def own() -> Callable[[Ends], Link]:
    """Our transport, within this process."""
    worlds = local_worlds(2)
    return lambda ends: Own(ends, worlds[ends.end])


LINKS: dict[str, Callable[[], Callable[[Ends], Link]]] = {
    "sockets": lambda: Sockets, "shared": lambda: SharedMemory, "message": lambda: Message, "own": own,
}  # fmt: skip


@pytest.fixture
def meet(socket_folder: Path) -> Iterator[Meet]:
    """Where the ends of a link meet."""
    with ExitStack() as stack:

        def found(link: str) -> str:
            way = {"sockets": BASE, "message": "pyzmq message"}.get(link, "shared memory")
            return stack.enter_context(transport.address(way, socket_folder, None))

        yield found


@pytest.mark.parametrize("link", LINKS)
def test_every_link_brings_every_byte(link: str, meet: Meet) -> None:
    one, two = pair(LINKS[link](), meet(link))
    other = threading.Thread(target=obey, args=(two,))
    other.start()
    asker = Asker(one)
    for _ in range(2):
        for size, count in ((1024, 5), (300_000, 3)):
            assert 0 < asker.round_trip(size, 4) < 60
            assert 0 < asker.stream(size, count) < 60
    asker.stop()
    other.join(60)
    assert not other.is_alive()


class Liar(Sockets):
    """A receiver that gets one byte wrong, in arrays of one size."""

    def receive(self, into: Array, place: int) -> None:
        """Receive, and spoil it."""
        super().receive(into, place)
        if into.size == 1024:
            into[-1] ^= 1


@pytest.mark.parametrize("lies", [0, 1])
def test_bytes_that_change_on_their_way_are_no_result(lies: int, meet: Meet) -> None:
    one, two = pair(lambda ends: (Liar if ends.end == lies else Sockets)(ends), meet("sockets"))
    other = threading.Thread(target=obey, args=(two,))
    other.start()
    asker = Asker(one)
    with pytest.raises(RuntimeError, match="an array of 1024 bytes came back as another"):
        asker.round_trip(1024, 2)
    if lies == 1:
        with pytest.raises(RuntimeError, match="arrays of 1024 bytes arrived as others"):
            asker.stream(1024, 2)
    asker.stop()
    other.join(60)


def test_who_is_left_alone_ends(meet: Meet) -> None:
    one, two = pair(Sockets, meet("sockets"))
    one.close()
    with pytest.raises(EOFError, match="closed after 0 of 32 bytes"):
        obey(two)
    two.close()


def test_the_command_has_rows_for_every_way_and_their_ratios(tmp_path: Path) -> None:
    target = tmp_path / "transport.json"
    ways = ["purine tcp", "shared memory"]
    arguments = ["--sizes", "4,256", "--ways", ",".join(ways), "--runs", "2", "--json", str(target)]
    code = run_command(["bench", "transport", *arguments])
    report = json.loads(target.read_text("utf-8"))
    assert (code, report["schema"], report["verdict"], report["skipped"]) == (0, "purine-ref/bench/1", "pass", 0)
    rows = {(row["case"], row["name"], row["metric"]): row for row in report["rows"]}
    names = {BASE: ("us", "GB/s"), **dict.fromkeys(ways, ("us", "GB/s"))}
    names |= {f"{way} / {BASE}": ("x", "x") for way in ways}
    assert {key: row["unit"] for key, row in rows.items()} == {
        (case, name, metric): unit
        for case in ("4 KiB", "256 KiB")
        for name, units in names.items()
        for metric, unit in zip(("round trip", "throughput"), units, strict=True)
    }
    assert all(0 < row["min"] <= row["median"] <= row["max"] and row["runs"] == 2 for row in report["rows"])
    assert {row["items"] for row in report["rows"]} == {4096, 262_144}


def test_between_namespaces_goes_what_goes_by_tcp() -> None:
    try:
        found = transport.run([4096], list(WAYS), 1, namespaces=True)
    except namespaces.NoNamespaces as error:
        pytest.skip(str(error))
    assert {one.name for one in found.series if one.unit != "x"} == {
        way for way, facts in WAYS.items() if facts.address == "tcp"
    }
    assert len(found.skipped) == len(WAYS) - 4
    assert "purine ipc is left out: it does not go from one network namespace to another" in found.notes


def test_a_rate_holds_between_namespaces() -> None:
    """A megabyte at a limit of four a second takes a quarter of one, but for what the bucket lets through."""
    try:
        with namespaces.two_hosts() as hosts:
            hosts[0].limit(4e6)
            with transport.ends(BASE, {2**20: 2}, hosts) as end:
                slow = end.ask("stream", size=2**20, count=2)
                hosts[0].limit(None)
                fast = min(end.ask("stream", size=2**20, count=2) for _ in range(5))  # the machine may be busy
    except namespaces.NoNamespaces as error:
        pytest.skip(str(error))
    assert 0.15 < slow < 60
    assert fast < slow


def test_what_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert transport.left_out("mpi4py", False) == "it is not installed; pip install mpi4py"
    assert transport.left_out(BASE, True) is None
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert "there is no mpiexec" in str(transport.left_out("mpi4py", False))
    with pytest.raises(namespaces.NoNamespaces, match="install iproute2"), namespaces.two_hosts():
        pass


def test_an_end_that_fails_is_told() -> None:
    with transport.ends(BASE, {2048: 2}, None) as end:
        with pytest.raises(RuntimeError, match="end 0 of raw tcp, asked for fly: AssertionError"):
            end.ask("fly")
        end.ask("stop")


@pytest.mark.parametrize("way", [BASE, "purine ipc", "mpi4py"])
def test_both_ends_go_when_nobody_asks_any_more(way: str) -> None:
    """As when the process that asks is killed. Under MPI one process has both ends below it."""
    if reason := transport.left_out(way, False):
        pytest.skip(reason)
    with transport.ends(way, {4096: 2}, None) as end:
        assert end.ask("round_trip", size=4096, count=1) > 0
        assert end._process.stdin is not None
        end._process.stdin.close()
        assert end._process.wait(60) == 0
        end._process.stdin = None


@pytest.mark.parametrize("text", ["0", "x", "4,,8", "-4", "1048577", "4.5"])
def test_sizes_that_are_none_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bench", "transport", "--sizes", text]) == 64
    assert "expected all, or numbers from 1 to 1048576" in " ".join(capsys.readouterr().err.split())


def test_sizes_have_words() -> None:
    assert [transport.words(size) for size in (4096, 2**26, 1000)] == ["4 KiB", "64 MiB", "1000 bytes"]
    assert [(transport.at_once(size), transport.trips(size)) for size in (4096, 2**18, 2**26)] == [
        (256, 200), (128, 64), (2, 1),
    ]  # fmt: skip
