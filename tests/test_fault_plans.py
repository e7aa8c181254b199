"""Ranks on hosts of their own, and what goes wrong: each run ends right, or in an error that names the culprit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from separation.__main__ import describe, perform
from separation.arena import COMMANDS, HARD_LIMIT, Arena, Undisturbed
from separation.execution import Outcome, execute, judge, named
from separation.namespaces import missing
from separation.plans import KINDS, NAMED, PHASES, RIGHT, Plan, drawn, every_kind
from separation.ranks import Rank

apart = pytest.mark.skipif(missing() is not None, reason=f"fault plans need network namespaces: {missing()}")

BASE = Plan(0, "kill -9", "iteration", "train", 3, False, 1, None, True, True, 0.5, "noise")

SAMPLE = [
    replace(BASE, kind="late join", phase="connect", target=0),
    replace(BASE, kind="delay", phase="handshake", place=0.1),
    replace(BASE, kind="stall", peer=2, both=False),
    replace(BASE, kind="stall", within=False, target=2),
    replace(BASE, kind="cut and heal", peer=0),
    replace(BASE, kind="cut and heal", phase="handshake", target=0, both=False, place=0.356),
    replace(BASE, kind="pulled cable", target=0),
    replace(BASE, kind="cut for good", peer=0),
    replace(BASE, kind="kill -9", secure=True),
    replace(BASE, kind="kill -9", phase="closing", target=2),
    replace(BASE, kind="SIGSTOP", target=0),
    replace(BASE, kind="stranger", phase="handshake", stranger="ZeroMQ"),
    replace(BASE, kind="stranger", stranger="a rank of another run"),
    replace(BASE, kind="second rank 1", phase="connect"),
    replace(BASE, kind="second rank 1"),
    replace(BASE, kind="disk full", target=0),
]
"""One plan of each kind, or two, at places where they hurt."""


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """One arena for all plans."""
    with Arena(tmp_path_factory.mktemp("arena")) as made:
        yield made


def require_sound(outcome: Outcome) -> None:
    """Fail, with all that was said, unless the plan ended in what it may."""
    assert not outcome.faults, describe(outcome)


@apart
@pytest.mark.parametrize("plan", SAMPLE, ids=lambda plan: f"{plan.kind}-{plan.phase}")
def test_a_plan_of_each_kind(arena: Arena, plan: Plan) -> None:
    outcome = execute(arena, plan)
    require_sound(outcome)
    if plan.phase == "iteration" and outcome.ending == NAMED:
        assert outcome.resumed, "the run was to break after its first snapshot and before its last"


@apart
def test_hosts_give_the_bits_of_ranks_in_one_process(arena: Arena, tmp_path: Path) -> None:
    saved = tmp_path / "snapshot.npz"
    alone = Rank("alone", [*COMMANDS["train"], "--scheme", "data:3@ranks", "--save", str(saved)], tmp_path)
    try:
        assert wait([alone.sentinel], HARD_LIMIT)
        assert alone.code == 0, alone.complained()
    finally:
        alone.end()
    for secure in (False, True):
        assert arena.undisturbed("train", 3, secure).result == saved.read_bytes()


@apart
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_hundred_plans() -> None:
    wrong = [outcome for outcome in perform(drawn(200), jobs=2) if outcome.faults]
    assert not wrong, "\n".join(map(describe, wrong))


@apart
def test_what_goes_wrong_with_a_plan_itself_is_raised_and_ends_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    def fail(_: Arena, plan: Plan) -> Outcome:
        begun.append(plan)
        raise IndexError("planted")

    monkeypatch.setattr("separation.__main__.execute", fail)
    with pytest.raises(IndexError, match="planted"):
        list(perform(drawn(20), jobs=2))
    assert len(begun) <= 2


def test_plans_are_drawn_from_their_seed_and_cover_every_kind_at_every_phase() -> None:
    plans = drawn(200, seed=3)
    assert plans == drawn(200, seed=3)
    assert plans != drawn(200, seed=4)
    assert [plan.number for plan in plans] == list(range(200))
    counts = Counter((plan.kind, plan.phase) for plan in plans)
    assert set(counts) == set(every_kind())
    assert max(counts.values()) - min(counts.values()) <= 1
    assert {phase for _, phase in counts} == set(PHASES)
    assert set(KINDS) == {plan.kind for plan in SAMPLE}
    for plan in plans:
        assert 0 <= plan.target < plan.ranks
        assert plan.peer != plan.target
        assert all(0 <= rank < plan.ranks for way in plan.ways for rank in way)


def test_an_error_names_who_is_lost_before_others() -> None:
    assert named("rank 2 is lost: silent; rank 0 waits for rank 1") == {2}
    assert named("rank 2 is lost: to it, this rank, 1, is lost: silent") == {1, 2}
    assert named("error: rank 1 refuses: another graph") == {1}
    assert named("error: no space left") == set()


@dataclass
class Ended:
    """A process as the judge sees it."""

    name: str
    code: int | None
    said: str = ""

    def complained(self) -> str:
        """The standard error."""
        return self.said


class Past:
    """A run as the judge sees it."""

    def __init__(self, folder: Path, ranks: list[Ended], result: bytes = b"right") -> None:
        self.ranks = {rank.name: rank for rank in ranks}
        self.saved = folder / "snapshot.npz"
        self.saved.write_bytes(result)

    def result(self) -> bytes:
        """What was saved."""
        return self.saved.read_bytes()

    def complaints(self) -> dict[str, str]:
        """By process."""
        return {name: rank.said for name, rank in self.ranks.items()}


GOOD = [Ended("rank0", 0), Ended("rank1", 0), Ended("rank2", 0)]
LOST = [Ended("rank0", 2, "rank 1 is lost"), Ended("rank1", -9), Ended("rank2", 2, "rank 1 is lost")]
DISK = [Ended(f"rank{rank}", 2, said) for rank, said in enumerate(["No space left", "rank 0 is lost", "rank 0"])]


def judged(folder: Path, plan: Plan, ranks: list[Ended], result: bytes = b"right", seconds: float = 1.0) -> Outcome:
    """What the judge finds."""
    outcome = Outcome(plan, seconds=seconds)
    run: Any = Past(folder, ranks, result)
    judge(run, Undisturbed(b"right", {}), outcome)
    return outcome


def test_the_judge_passes_what_may_be(tmp_path: Path) -> None:
    for plan, ranks, ending in [
        (replace(BASE, kind="delay"), GOOD, RIGHT),
        (BASE, LOST, NAMED),
        (replace(BASE, phase="closing"), LOST, NAMED),
        (replace(BASE, phase="closing"), [GOOD[0], LOST[1], GOOD[2]], RIGHT),
        (replace(BASE, phase="closing"), [GOOD[0], LOST[1], LOST[2]], NAMED),
        (replace(BASE, kind="disk full", target=0), DISK, NAMED),
        (replace(BASE, kind="second rank 1"), [*GOOD, Ended("rank1-on-host3", 2, "another process")], RIGHT),
        (
            replace(BASE, kind="second rank 1", phase="connect"),
            [GOOD[0], Ended("rank1", 2, "another process"), GOOD[2], Ended("rank1-on-host3", 0)],
            RIGHT,
        ),
    ]:
        outcome = judged(tmp_path, plan, ranks)
        assert (outcome.ending, outcome.faults) == (ending, []), str(plan)


@pytest.mark.parametrize(
    ("plan", "ranks", "fault"),
    [
        (BASE, GOOD, "expected: named error"),
        (replace(BASE, kind="delay"), LOST, "expected: right result"),
        (BASE, [GOOD[0], *LOST[1:]], r"only the ranks \[2\] say that it failed"),
        (BASE, [Ended("rank0", None), *LOST[1:]], "rank0 still runs"),
        (BASE, [replace(LOST[0], said="rank 2 is lost"), *LOST[1:]], r"rank 0 names \[2\], not \[1\]"),
        (BASE, [replace(LOST[0], said="Traceback ... rank 1 is lost"), *LOST[1:]], "rank0 shows a traceback"),
        (replace(BASE, kind="stranger"), [*GOOD, Ended("rank1-on-host3", 0)], "rank1-on-host3 was let in"),
        (replace(BASE, kind="second rank 1"), [*GOOD, Ended("rank1-on-host3", 2, "rank 0")], "host3 was not told why"),
        (replace(BASE, kind="disk full", target=0), [replace(DISK[0], said="full"), *DISK[1:]], "no space left"),
    ],
)
def test_the_judge_finds_what_may_not_be(tmp_path: Path, plan: Plan, ranks: list[Ended], fault: str) -> None:
    found = judged(tmp_path, plan, ranks).faults
    assert any(re.search(fault, each) for each in found), found


def test_the_judge_compares_results_files_and_times(tmp_path: Path) -> None:
    assert judged(tmp_path, replace(BASE, kind="delay"), GOOD, b"wrong").faults == [
        "the result differs from that of a run without a fault"
    ]
    assert judged(tmp_path, BASE, LOST, seconds=100.0).faults == ["took 100.0 s, over 16.0"]
    (tmp_path / "snapshot.npz.tmp").touch()
    plan = replace(BASE, kind="disk full", target=0)
    [fault] = judged(tmp_path, plan, DISK).faults
    assert "not the earlier snapshot alone" in fault
