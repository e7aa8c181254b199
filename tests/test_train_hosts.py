"""Training on several ranks of a world: every rank gets the bits of ranks in one process, and can go on from them."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from hosted import locally, outcomes
from purine_ref import snapshot
from purine_ref.errors import GraphError, PeerLost, ResultDiffers
from purine_ref.training import Evaluation, Replicas, Settings, Trainer
from purine_ref.transports import World, local_worlds
from purine_ref.transports.announcing import Announcements
from training_runs import bits, few_digits, small, stopped, trained, trainer

Outcome = tuple[list[object], Evaluation, dict[str, object], Replicas]


def whole_run(settings: Settings) -> Outcome:
    """Everything that a run gives: its steps, an evaluation, the last snapshot, and how its replicas compare."""
    with trainer(settings) as run:
        return list(run.steps()), run.evaluate(), bits(run.snapshot()), run.replicas()


RUNS = [
    pytest.param("nin-digits", "data:3", 3),
    pytest.param("mlp-digits", "data:3,server", 3),
    pytest.param("mlp-digits", "data:3,ring", 3),
    pytest.param("mlp-digits", "model:2", 2),
    pytest.param("mlp-digits", "pipeline:3x2,1f1b", 3),
    pytest.param("mlp-digits", "hybrid:2x2", 4),
    pytest.param("autoencoder-digits", "data:2", 2),
    pytest.param("autoencoder-digits", "pipeline:2x2", 2),
    pytest.param("nin-digits", "hybrid:2x2", 4, marks=pytest.mark.long),
    pytest.param("nin-digits", "data:2/pipeline:2x3", 4, marks=pytest.mark.long),
    pytest.param("lenet-digits", "data:3,tree", 3, marks=pytest.mark.long),
    pytest.param("lenet-digits", "model:2", 2, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("model", "scheme", "ranks"), RUNS)
def test_r8_every_host_gets_the_bits_of_ranks_in_one_process(model: str, scheme: str, ranks: int) -> None:
    settings = small(model, epochs=1)
    want = whole_run(replace(settings, scheme=f"{scheme}@ranks"))
    assert want[3].differing == 0
    on_hosts = replace(settings, scheme=f"{scheme}@hosts:{ranks}")
    assert locally(ranks, lambda world: whole_run(on_hosts)) == [want] * ranks


def test_more_divisions_than_hosts_leave_equal_replicas() -> None:
    settings = small(scheme="hybrid:2x2@hosts", epochs=1)
    for _, _, _, replicas in locally(2, lambda world: whole_run(settings)):
        assert replicas.compared > 0 == replicas.differing


@pytest.mark.parametrize("scheme", ["data:3", "pipeline:3x2"])
def test_dp_06_25_iterations_and_25_more_on_3_hosts_give_the_bits_of_50(scheme: str, tmp_path: Path) -> None:
    """DP-06: and of 50 on ranks of one process. All replicas are equal at the end."""
    settings = small("mlp-digits", epochs=13, scheme=f"{scheme}@hosts:3")
    want = bits(stopped(replace(settings, scheme=f"{scheme}@ranks"), 50))

    def halves(world: World) -> tuple[object, object, Replicas]:
        """Straight on, and stopped half-way and gone on from a file, which rank 0 alone has written."""
        straight = bits(stopped(settings, 50))
        half = stopped(settings, 25)
        path = tmp_path / f"half{world.rank}.npz"
        snapshot.save(path, half)
        with trainer(settings, snapshot.load(path)) as run:
            steps = run.steps()
            for _ in range(25):
                next(steps)
            return straight, bits(run.snapshot()), run.replicas()

    compared = 24 if scheme.startswith("data") else 0
    assert locally(3, halves) == [(want, want, Replicas(compared, 0))] * 3
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_a_run_on_3_hosts_goes_on_on_2() -> None:
    """To the bit as ranks of one process that do the same."""
    settings = small("nin-digits", epochs=2)

    def gone_on(place: str) -> object:
        half = stopped(replace(settings, scheme=f"data:3@{place}"), 5)
        return trained(replace(settings, scheme=f"data:2@{place}"), half)

    want = gone_on("ranks")
    (half,) = {str(bits(each)): each for each in locally(3, lambda world: stopped(hosted(settings, 3), 5))}.values()
    assert locally(2, lambda world: trained(hosted(settings, 2), half)) == [want] * 2


def test_rank_0_reads_a_snapshot_for_all_and_writes_it(tmp_path: Path) -> None:
    """The others have no such file, and no such folder; they get every bit, and wait until it is on the disk."""
    command = importlib.import_module("purine_ref.cli.train")
    held = stopped(small(scheme="data:2"), 2)
    snapshot.save(tmp_path / "m.npz", held)

    def work(world: World) -> tuple[object, bool]:
        """Load, go on, save."""
        here = tmp_path if world.rank == 0 else tmp_path / "absent"
        with Announcements(world) as files:
            found = command._load(files, str(here / "m.npz"))
            with trainer(small(scheme="data:2@hosts"), found) as run:
                next(run.steps())
                command._save(files, str(here / "n.npz"), run, None)
            return bits(found), (tmp_path / "n.npz").exists()

    assert locally(2, work) == [(bits(held), True)] * 2
    assert snapshot.load(tmp_path / "n.npz").iteration == 3


def hosted(settings: Settings, ranks: int) -> Settings:
    return replace(settings, scheme=f"data:{ranks}@hosts")


def test_replicas_that_differ_are_found_on_every_rank_and_saved_on_none() -> None:
    def spoiled(world: World) -> tuple[Replicas, str]:
        """Rank 1 has one bit that the others have not."""
        with trainer(small(scheme="data:3@hosts")) as run:
            next(run.steps())
            (session,) = run._sessions.values()
            array = session.executor.fetch("fc1/bias@r1")
            if world.rank == 1:
                array.view("u4")[0] ^= 1
            session.executor.feed({"fc1/bias@r1": array})
            with pytest.raises(ResultDiffers) as caught:
                run.snapshot()
            return run.replicas(), str(caught.value)

    (found,) = set(locally(3, spoiled))
    assert found[0] == Replicas(24, 1)
    assert found[1].startswith("tensor 'fc1/bias': expected the same bits in all of its replicas (rule R8), got others")


def test_a_rank_that_fails_ends_the_run_on_all() -> None:
    def failing(world: World) -> None:
        with trainer(small(scheme="data:3@hosts")) as run:
            for step in run.steps():
                if world.rank == 2 and step.position.iteration == 2:
                    world.abort("MemoryError: no more")
                    raise MemoryError("no more")

    *others, own = outcomes(local_worlds(3), failing)
    assert isinstance(own, MemoryError)
    assert [(type(error), str(error)) for error in others] == [(PeerLost, "rank 2 is lost: MemoryError: no more")] * 2


def test_a_scheme_that_does_not_fit_is_refused_on_every_rank() -> None:
    found = outcomes(local_worlds(2), lambda world: Trainer(small(scheme="data:8@hosts"), None, few_digits()))
    assert [type(error) for error in found] == [GraphError] * 2
    assert len({str(error) for error in found}) == 1
