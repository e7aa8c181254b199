"""Recorded schedules: what `verify --record` writes, `verify --replay` runs, on every executor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from purine_ref.cli import run
from purine_ref.conformance import (
    Driven,
    Recording,
    Scheme,
    load_recording,
    parse_scheme,
    recording_text,
    replayed,
    training_workload,
    verify,
)
from purine_ref.conformance.schedules import Recorder, order_of
from purine_ref.conformance.session import Session
from purine_ref.errors import Refused
from purine_ref.executors import Serial
from purine_ref.plan import Plan

SCHEMES = ["serial", "threads:3", "data:3,ring@ranks", "pipeline:2x4,1f1b@virtual"]


def record(tmp_path: Path, *schemes: str) -> Path:
    file = tmp_path / "schedules.json"
    options = [word for scheme in schemes for word in ("--scheme", scheme)]
    assert run(["verify", "--model", "mlp-digits", "--dtype", "float32", "--steps", "2", "--batch", "12",
                "--record", str(file), *options]) == 0  # fmt: skip
    return file


def starts(plan: Plan, schedule: str) -> dict[int, list[str]]:
    """The order of starts at each rank; what starts at one rank has no order beside what starts at another."""
    order = order_of(plan, schedule)
    rank = {op.name: op.location.rank for op in plan.graph.ops}
    return {number: [name for name in order if rank[name] == number] for number in sorted(set(rank.values()))}


def test_a_recorded_schedule_is_replayed_by_every_executor(tmp_path: Path) -> None:
    records = load_recording(record(tmp_path, *SCHEMES))
    assert [record.scheme for record in records] == SCHEMES
    for recorded in records:
        workload = training_workload(recorded.model, recorded.dtype, recorded.batch, 1, recorded.seed)
        recorder = Recorder()
        drive = parse_scheme(recorded.scheme).drive
        assert drive is not None
        with drive(workload.graph, recorded.seed, Driven(recorded.schedule, recorder)) as session:
            session.feed(workload.feeds(0))
            session.run()
            plan = session.executor.plan
            assert starts(plan, recorder.schedule(plan)) == starts(plan, recorded.schedule)
        (result,) = verify(workload, [replayed(recorded)], recorded.seed)
        assert result.verdict == "pass"


def test_the_command_replays_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, report = record(tmp_path, *SCHEMES), tmp_path / "report.json"
    capsys.readouterr()
    assert run(["verify", "--replay", str(file), "--json", str(report)]) == 0
    schemes = json.loads(report.read_text("utf-8"))["schemes"]
    assert [(row["scheme"], row["verdict"]) for row in schemes] == [(scheme, "pass") for scheme in SCHEMES]


def test_a_schedule_of_another_graph_is_refused(tmp_path: Path) -> None:
    (recorded,) = load_recording(record(tmp_path, "threads:3"))
    workload = training_workload("lenet-digits", "float32", 12, 1, 0)
    with pytest.raises(Refused):
        verify(workload, [replayed(recorded)], 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "purine-ref/schedules/2"}, r"expected a file of schedules, 'purine-ref/schedules/1'$"),
        ({"runs": {}}, r"expected a file of schedules, 'purine-ref/schedules/1'$"),
        ({"runs": [{}]}, r"run 0: expected the fields scheme, model, .*$"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    file = record(tmp_path, "threads:2")
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **change}), "utf-8")
    with pytest.raises(Refused, match=rf"^{file}: {message}"):
        load_recording(file)


@pytest.mark.parametrize(("field", "value"), [("steps", "2"), ("steps", -1), ("exact", 0), ("schedule", None)])
def test_a_wrong_field_is_refused(tmp_path: Path, field: str, value: object) -> None:
    file = record(tmp_path, "threads:2")
    data = json.loads(file.read_text("utf-8"))
    data["runs"][0][field] = value
    file.write_text(json.dumps(data), "utf-8")
    with pytest.raises(Refused, match=rf"^{file}: run 0: '{field}' must be \w+, got {value!r}$"):
        load_recording(file)


def test_what_is_not_json_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "other.json"
    file.write_text("{", "utf-8")
    with pytest.raises(Refused, match=rf"^{file}: not JSON: .*$"):
        load_recording(file)
    assert run(["verify", "--replay", str(file)]) == 2
    assert "not JSON" in capsys.readouterr().err


def test_a_scheme_that_stands_alone_cannot_be_recorded() -> None:
    alone = Scheme("alone", lambda graph, seed: Session(Serial(graph, seed=seed), graph))
    with pytest.raises(Refused, match=r"^scheme 'alone' stands alone, and its schedule cannot be recorded$"):
        Recording(alone)
    with pytest.raises(ValueError, match=r"^scheme 'serial' was not run, so there is no schedule of it$"):
        Recording(parse_scheme("serial")).schedule()


def test_records_survive_their_file(tmp_path: Path) -> None:
    records = load_recording(record(tmp_path, "threads:2"))
    file = tmp_path / "again.json"
    file.write_text(recording_text(records), "utf-8")
    assert load_recording(file) == records
