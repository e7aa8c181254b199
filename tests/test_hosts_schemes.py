"""Schemes on hosts: where divisions go, the bits of in-process ranks, and what a command does on each rank."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hosted import locally, outcomes
from hosts_program import digests
from purine_ref import cli
from purine_ref.cli import report
from purine_ref.cli.jobs import DIVIDED, Wishes
from purine_ref.cli.ranked import RankedCommand, relaunched
from purine_ref.conformance import (
    Driven,
    Recorded,
    Recording,
    Session,
    parse_scheme,
    place_names,
    replayed,
    training_workload,
    verify,
)
from purine_ref.errors import GraphError, Refused
from purine_ref.executors import Hosts
from purine_ref.graph import Graph
from purine_ref.models import training_graph
from purine_ref.transports import World, joined, local_worlds
from suites.schemes import agrees

SPREAD = [
    ("data:2", 2),
    ("data:3", 3),
    ("data:3,ring", 2),
    ("data:2,server", 2),
    ("model:2", 2),
    ("pipeline:2x4", 2),
    ("pipeline:2x4,1f1b", 2),
    ("hybrid:2x2", 2),
    ("hybrid:2x2", 3),
    ("data:2/pipeline:2x3", 3),
    ("data:2/model:2", 4),
]


def ranks_of(graph: Graph) -> list[int]:
    """The ranks that a graph is over."""
    return sorted({blob.location.rank for blob in graph.blobs})


@pytest.mark.parametrize(
    ("scheme", "ranks"),
    [
        ("data:4@hosts:4", [0, 1, 2, 3]),
        ("data:4@hosts:2", [0, 1]),
        ("data:2@hosts:3", [0, 1]),
        ("data:2@hosts:5", [0, 1]),
        ("data:3@hosts:1", [0]),
        ("threads:2@hosts:2", [0]),
        ("data:4@ranks:3", [0, 1, 2]),
        ("data:4@ranks", [0, 1, 2, 3]),
    ],
)
def test_divisions_are_spread_in_blocks(scheme: str, ranks: list[int]) -> None:
    graph = parse_scheme(scheme).compose(training_graph("mlp-digits", 8, "float32"))
    assert ranks_of(graph) == ranks


def test_neighbours_share_a_rank() -> None:
    graph = parse_scheme("data:5@hosts:2").compose(training_graph("mlp-digits", 10, "float32"))
    pieces = graph.pieces["x"]  # type: ignore[attr-defined]
    assert [piece.location.rank for piece in sorted(pieces, key=lambda piece: piece.box)] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("scheme", "needs"), [("data:2@hosts:3", 3), ("data:2@hosts", 0), ("data:2@ranks", None), ("serial", None)]
)
def test_a_scheme_says_how_many_ranks_it_needs(scheme: str, needs: int | None) -> None:
    assert parse_scheme(scheme).ranks == needs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data:2@hosts:0", r"scheme 'data:2@hosts:0': the place must be like 'hosts\[:N\]': N must be .+'0'"),
        ("data:2@hosts:two", r"scheme 'data:2@hosts:two': the place must be like 'hosts\[:N\]': N must be .+'two'"),
        ("data:2@hosts:", r"scheme 'data:2@hosts:': no place 'hosts:'; there are cpu, virtual, .*hosts\[:N\]"),
        ("data:2@cpu:3", r"scheme 'data:2@cpu:3': the place must be like 'cpu': it takes no argument, got '3'"),
        ("data:2@", r"scheme 'data:2@': no place ''; there are cpu, .*"),
    ],
)
def test_a_wrong_place_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        parse_scheme(text)


def test_the_places_are_said_as_they_are_written() -> None:
    assert place_names() == ("cpu", "virtual", "cuda[:N]", "ranks[:N]", "hosts[:N]")


@pytest.mark.parametrize("place", ["hosts", "hosts:2"])
def test_without_a_world_nothing_is_opened(place: str) -> None:
    scheme = parse_scheme(f"data:2@{place}")
    with pytest.raises(GraphError, match=r"^a scheme @hosts runs on the ranks of a world, and none was joined: .+$"):
        scheme.open(training_graph("mlp-digits", 8, "float32"), 0)


# The same bits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "hosts"), SPREAD, ids=lambda value: str(value))
def test_r8_every_piece_has_the_bits_of_in_process_ranks(scheme: str, hosts: int) -> None:
    """On every rank; and all replicas of a part have one digest."""
    expected = digests(f"{scheme}@ranks:{hosts}")
    assert len(expected) > 100
    assert len({tuple(row[:3]) for row in expected}) == len(expected)
    assert locally(hosts, lambda world: digests(f"{scheme}@hosts:{hosts}")) == [expected] * hosts


@pytest.mark.parametrize(("scheme", "hosts"), [("data:3", 3), ("hybrid:2x2", 2), ("data:2/pipeline:2x3", 3)])
def test_r10_the_exact_form_has_the_bits_of_the_serial_executor(scheme: str, hosts: int) -> None:
    locally(hosts, lambda world: agrees("lenet-digits", f"{scheme}@hosts", exact=True))


def test_r11_several_schemes_and_ranks_that_some_leave_idle() -> None:
    """Over three ranks, of which schemes take one, two or all; each rank compares everything, and finds the same."""
    schemes = [parse_scheme(text) for text in ("data:2@hosts:2", "threads:2@hosts", "model:2@hosts:1", "data:3@hosts")]

    def work(world: World) -> list[tuple[str, int, int, float | None]]:
        rows = verify(training_workload("mlp-digits", "float32", 7, 2, 1), schemes, 1)
        return [(row.verdict, row.compared, row.differing, row.ratio) for row in rows]

    found = locally(3, work)
    assert found == [found[0]] * 3
    assert [row[0] for row in found[0]] == ["pass"] * 4


def test_a_world_that_is_too_small_is_refused() -> None:
    """Also where the divisions would find room on fewer ranks than the scheme names."""
    graph = training_graph("mlp-digits", 8, "float32")
    for scheme in ("data:3@hosts:3", "data:2@hosts:3"):
        for error in outcomes(local_worlds(2), lambda world, text=scheme: parse_scheme(text).open(graph, 0)):
            assert str(error) == "a scheme @hosts:3 needs 3 ranks, and 2 have joined: start as many"


def test_a_schedule_of_in_process_ranks_is_replayed_on_hosts() -> None:
    workload = training_workload("mlp-digits", "float64", 7, 2, 1)
    recording = Recording(parse_scheme("data:3@ranks:2"))
    [row] = verify(workload, [recording.scheme], 1)
    assert row.verdict == "pass"
    record = Recorded("data:3@hosts:2", "mlp-digits", "float64", False, 2, 7, 1, recording.schedule())
    found = locally(2, lambda world: verify(workload, [replayed(record)], 1))
    for [again] in found:
        assert (again.verdict, again.differing, again.ratio) == ("pass", row.differing, row.ratio)


def test_a_schedule_on_hosts_cannot_be_recorded() -> None:
    message = r"^scheme 'data:2@hosts:2' is on hosts, where each rank sees its own operators alone: record it @ranks:N"
    with pytest.raises(Refused, match=message):
        Recording(parse_scheme("data:2@hosts:2"))


def test_a_session_on_hosts_is_driven_with_an_observer_and_priorities() -> None:
    graph = training_graph("mlp-digits", 8, "float32")
    scheme = parse_scheme("threads:1/pipeline:2x4,1f1b@hosts:2")
    assert scheme.drive is not None

    def work(world: World) -> None:
        session = scheme.drive(graph, 0, Driven())
        with session:
            assert isinstance(session, Session)
            assert isinstance(session.executor, Hosts)
            assert session.executor._ranks is not None
            assert session.faults() == []

    locally(2, work)


# The command on each rank -------------------------------------------------------------------------------------------


@pytest.fixture(params=[0, 1])
def rank(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_rank_0_alone_prints_and_writes(rank: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with joined(local_worlds(2)[rank]):
        report.output().print("a table")
        report.write_text("-", "text\n")
        report.write_text(str(tmp_path / "text"), "text\n")
        report.write_json(str(tmp_path / "json"), "verify", "pass", {"executed": 1})
        assert report.reports() == (rank == 0)
    assert capsys.readouterr().out == ("a table\ntext\n" if rank == 0 else "")
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == (["json", "text"] if rank == 0 else [])
    if rank == 0:
        assert json.loads((tmp_path / "json").read_text("utf-8")) == {
            "schema": "purine-ref/verify/1",
            "verdict": "pass",
            "world": 2,
            "transport": "local",
            "executed": 1,
        }


def test_rank_0_alone_shows_progress(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal)
    with joined(local_worlds(2)[rank]), report.progress_bar(report.output("-")) as bar:
        bar.add_task("work", total=1, note="")
        bar.refresh()
    assert bool(terminal.getvalue()) == (rank == 0)


def test_alone_the_object_says_nothing_of_a_world(tmp_path: Path) -> None:
    report.write_json(str(tmp_path / "json"), "info", "pass", {})
    assert json.loads((tmp_path / "json").read_text("utf-8")).keys() == {"schema", "verdict"}


def test_only_rank_0_needs_the_folder_of_a_file(rank: int, tmp_path: Path) -> None:
    @click.command()
    @report.output_file("--json", help="")
    def command(json: str | None) -> None:
        click.echo(json)

    with joined(local_worlds(2)[rank]):
        done = CliRunner().invoke(command, ["--json", str(tmp_path / "gone" / "file")])
    assert done.exit_code == (2 if rank == 0 else 0)
    assert ("is in a folder that is not there" in done.output) == (rank == 0)


def test_a_command_starts_itself_as_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[int, list[str]]] = []

    def launch_self(hosts: int, arguments: list[str]) -> int:
        called.append((hosts, arguments))
        return 1

    monkeypatch.setattr("purine_ref.cli.ranked.launch_self", launch_self)
    arguments = ["verify", "--scheme", "data:2@hosts:2", "--scheme=data:3@hosts:3", "--scheme", "data:2", "--seed", "5"]
    assert cli.run(arguments) == 1
    assert called == [(3, arguments)]
    assert cli.run([*arguments[:3], "--model", "mlp-digits", "--explore"]) == 1
    assert called[1] == (2, [*arguments[:3], "--model", "mlp-digits", "--explore"])


def test_a_recording_of_a_scheme_on_hosts_starts_itself_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr("purine_ref.cli.ranked.launch_self", lambda hosts, arguments: called.append(hosts) or 0)
    file = tmp_path / "schedules"
    assert cli.run(["verify", "--model", "mlp-digits", "--dtype", "float64", "--batch", "7", "--steps", "1",
                    "--scheme", "data:3@ranks:2", "--record", str(file)]) == 0  # fmt: skip
    assert called == []
    file.write_text(file.read_text("utf-8").replace("@ranks:2", "@hosts:2"), "utf-8")
    assert cli.run(["verify", "--replay", str(file)]) == 0
    assert called == [2]


def test_how_many_ranks_must_be_said_where_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["verify", "--scheme", "data:2@hosts"]) == 64
    assert "say how many with @hosts:N, or start them with `purine-ref launch --hosts N" in capsys.readouterr().err


def test_what_cannot_be_recorded_is_said_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("purine_ref.cli.ranked.launch_self", lambda hosts, arguments: pytest.fail("it was started"))
    assert cli.run(["verify", "--scheme", "data:2@hosts:2", "--record", str(tmp_path / "schedules")]) == 2
    assert "record it @ranks:N" in capsys.readouterr().err


def test_without_a_wish_a_rank_of_several_runs_what_is_divided_on_all() -> None:
    wishes = Wishes((), (), (), None, 32, 0, False)
    with joined(local_worlds(2)[1]):
        jobs = wishes.jobs()
        exact = replace(wishes, exact=True).jobs()
    assert [job.exact for job in jobs] == [False, True]
    texts = {scheme.text for job in [*jobs, *exact] for scheme in job.schemes}
    assert texts == {f"{text}@hosts" for text in DIVIDED}
    assert not any("hosts" in scheme.text for job in wishes.jobs() for scheme in job.schemes)


def test_a_command_on_a_rank_goes_on_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("purine_ref.cli.ranked.launch_self", lambda hosts, arguments: pytest.fail("it was started"))
    with joined(local_worlds(2)[1]), click.Context(RankedCommand("verify")):
        assert relaunched([parse_scheme("data:2@hosts:2")]) is None
    with click.Context(RankedCommand("verify")):
        assert relaunched([parse_scheme("data:2@ranks:2")]) is None
