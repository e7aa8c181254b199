"""Training under schemes: the bits do not depend on the place, replicas agree, and snapshots hold whole arrays."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from purine_ref import cli, snapshot
from purine_ref.conformance import Driven, Session, schemes
from purine_ref.errors import GraphError, ResultDiffers
from purine_ref.executors import Serial, Threaded
from purine_ref.graph import Graph
from purine_ref.training import DEFAULTS, KEPT, Settings, Trainer
from purine_ref.training.state import State, assembled
from training_runs import bits, few_digits, small, stopped, trained, trainer

SCHEMES = ["data:3", "data:3,server", "data:2,ring", "model:2", "pipeline:2x4", "pipeline:3x2,1f1b", "hybrid:2x2"]


def bits_at(settings: Settings, scheme: str) -> object:
    """Steps and last snapshot under a scheme."""
    return trained(replace(settings, scheme=scheme))


PLACED = [("mlp-digits", scheme) for scheme in SCHEMES] + [("nin-digits", "data:2/pipeline:2x3")]


@pytest.mark.parametrize(("model", "scheme"), PLACED)
def test_r8_the_place_changes_no_bit(model: str, scheme: str) -> None:
    """On `virtual` no two graphs share memory, so all that one leaves is handed on to the next as whole arrays."""
    settings = small(model, epochs=2)
    want = bits_at(settings, f"{scheme}@ranks")
    assert bits_at(settings, f"{scheme}@virtual") == want


@pytest.mark.parametrize("scheme", ["data:2", "pipeline:2x2"])
def test_r8_layers_that_change_places_from_stage_to_stage_keep_their_values(scheme: str) -> None:
    settings = small("autoencoder-digits", epochs=1)
    want = bits_at(settings, f"{scheme}@ranks")
    assert bits_at(settings, f"{scheme}@virtual") == want


COMPARED = [
    pytest.param(model, scheme, marks=[] if model in ("nin-digits", "mlp-digits") else pytest.mark.long)
    for model in DEFAULTS
    for scheme in SCHEMES
]


@pytest.mark.parametrize(("model", "scheme"), COMPARED)
def test_r9_a_scheme_computes_what_the_whole_graph_does(model: str, scheme: str) -> None:
    """In float64, where roundings are so small that the losses and weights agree to the last place of a float32."""
    settings = small(model, dtype="float64", epochs=1)
    want, _ = trained(settings)
    with trainer(replace(settings, scheme=f"{scheme}@ranks")) as run:
        got = list(run.steps())
        replicas = run.replicas()
        left = run.snapshot().arrays
    assert replicas.differing == 0
    assert (replicas.compared > 0) == scheme.startswith(("data", "hybrid"))
    assert [step.position for step in got] == [step.position for step in want]
    same(np.array([step.loss for step in got]), np.array([step.loss for step in want]))
    for name, array in stopped(settings, len(want)).arrays.items():
        same(left[name], array)


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Float64 values that agree within one place of a float32 of the array's largest value."""
    assert np.abs(got - want).max() <= np.spacing(np.float32(np.abs(want).max()))


STOPPED = [
    ("nin-digits", None),
    ("nin-digits", "data:3@ranks"),
    ("mlp-digits", "data:2,server@ranks"),
    ("mlp-digits", "pipeline:2x4,1f1b@ranks"),
]


@pytest.mark.parametrize(("model", "scheme"), STOPPED)
def test_dp_06_25_iterations_and_25_more_give_the_bits_of_50(model: str, scheme: str | None, tmp_path: Path) -> None:
    """DP-06: dropout's masks, histories and the order of the data go on where they were, in every piece."""
    settings = small(model, epochs=13, scheme=scheme)
    want = stopped(settings, 50)
    snapshot.save(tmp_path / "half.npz", stopped(settings, 25))
    half = snapshot.load(tmp_path / "half.npz")
    assert half.iteration == 25
    assert bits(stopped(settings, 25, half)) == bits(want)


def test_a_run_goes_on_under_any_other_scheme() -> None:
    """A snapshot does not say by which scheme it was made: whole arrays alone, which the next scheme divides."""
    settings = small("nin-digits", dtype="float64", epochs=3)
    want = stopped(settings, 12)
    at: snapshot.Snapshot | None = None
    for scheme in (None, "data:2@ranks", "pipeline:2x2@virtual", "model:2@ranks", "data:3,server", None):
        at = stopped(replace(settings, scheme=scheme), 2, at)
    assert at is not None
    assert (at.iteration, at.epoch, at.position) == (12, 3, 0) == (want.iteration, want.epoch, want.position)
    assert at.extra == want.extra
    for name, array in want.arrays.items():
        same(at.arrays[name], array)


def test_a_snapshot_fixes_no_scheme() -> None:
    assert "scheme" not in KEPT
    assert not {"scheme", "threads"} & set(stopped(small(scheme="data:2@ranks"), 1).extra)


def session(settings: Settings, scheme: str, state: State) -> Session:
    """A session of the testing form, over the state's memory."""
    chosen = schemes.parse_scheme(scheme)
    assert chosen.drive is not None
    with trainer(settings) as run:
        graph = run.stages[0].graph(settings, 8, True)
    return chosen.drive(graph, settings.seed, Driven(memory=state.memory, keep=("loss",)))


@pytest.mark.parametrize("scheme", [*SCHEMES, "model:2,input"])
def test_values_are_restored_into_every_piece(scheme: str) -> None:
    """Bit for bit, and the same from every replica."""
    settings = small("autoencoder-digits")
    arrays = stopped(settings, 3).arrays
    state = State()
    state.restore(arrays)
    with session(settings, f"{scheme}@ranks", state) as opened:
        state.add(opened)
        state.refresh(opened)
        for name in [name for name in arrays if name in opened.serial]:
            array, replicas = assembled(opened, name)
            assert array.tobytes() == arrays[name].tobytes()
            assert replicas.differing == 0


def spoil(run: Trainer, name: str) -> None:
    """Change the last bit of one element of a piece, by its name in the composed graph."""
    ours = next(iter(run._sessions.values()))
    array = ours.executor.fetch(name)
    array.reshape(-1).view(f"u{array.itemsize}")[0] ^= 1
    ours.executor.feed({name: array})


@pytest.mark.parametrize("piece", ["fc1/weight@r1", "fc1/weight", "fc2/bias/history@r2"])
def test_r8_replicas_that_differ_in_one_bit_are_found_and_not_saved(piece: str) -> None:
    with trainer(small(scheme="data:3@ranks")) as run:
        list(islice(run.steps(), 2))
        assert (run.replicas().compared, run.replicas().differing) == (24, 0)
        spoil(run, piece)
        # Both others differ from the first piece, if it is that one.
        assert run.replicas().differing == (1 if "@" in piece else 2)
        name = piece.partition("@")[0]
        with pytest.raises(ResultDiffers, match=rf"^tensor '{name}': expected the same bits in all of its replicas"):
            run.snapshot()


def test_replicas_of_a_part_are_compared_too() -> None:
    with trainer(small(scheme="hybrid:2x2@ranks")) as run:
        list(islice(run.steps(), 1))
        assert run.replicas().differing == 0
        spoil(run, "fc1/bias[0:64]@r2")
        assert run.replicas().differing == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheme": "data:8"}, "last batch of an epoch: a batch of 7 cannot be divided over 8 replicas: .*"),
        ({"scheme": "data:17"}, "a batch of 16 cannot be divided over 17 replicas: .*"),
        ({"scheme": "data:21", "batch": 22}, "last batch of an epoch: a batch of 11 cannot be divided over 21 .*"),
        ({"scheme": "data:21", "batch": 55}, "held-out images: a batch of 20 cannot be divided over 21 replicas: .*"),
        ({"scheme": "pipeline:40x2"}, "graph 'mlp' has 8 forward operators, too few for 40 stages"),
    ],
)
def test_a_scheme_that_does_not_fit_is_refused_before_anything_runs(changes: dict[str, str], message: str) -> None:
    with pytest.raises(GraphError, match=f"^{message}$"):
        Trainer(small(**changes), None, few_digits())


@pytest.mark.parametrize(
    ("scheme", "threads", "workers"),
    [
        ("data:2/threads:5@ranks", 3, 10),
        ("data:2@ranks", 3, 6),
        ("data:2", 3, 3),
        ("data:2/serial", 3, 0),
        (None, 3, 3),
    ],
)
def test_threads_run_each_rank_unless_the_scheme_says_how_many(
    scheme: str | None, threads: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    right = Threaded.__init__

    def counted(self: Threaded, graph: Graph, *, threads: int, **keywords: Any) -> None:
        made.append(threads)
        right(self, graph, threads=threads, **keywords)

    monkeypatch.setattr(Threaded, "__init__", counted)
    with trainer(small(scheme=scheme, threads=threads)):
        assert sum(made) == workers


@pytest.mark.parametrize("text", ["dat:2", "data:0", "data:2@moon", "data:2@", ""])
def test_what_is_no_scheme_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"scheme '{re.escape(text)}'"):
        trainer(small(scheme=text))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the registered schemes, that the test may add to."""
    monkeypatch.setattr(schemes, "_registered", dict(schemes._registered))


@pytest.mark.usefixtures("registry")
def test_a_scheme_that_only_opens_is_none_to_train_under() -> None:
    schemes.register("alone")(lambda argument: lambda graph, seed: Serial(graph, seed=seed))
    with pytest.raises(ValueError, match=r"^scheme 'alone' is one to compare with, and none to train under$"):
        trainer(small(scheme="alone"))


# The command ---------------------------------------------------------------------------------------------------------

TRAIN = ["train", "--model", "mlp-digits", "--batch", "160", "--epochs", "2"]


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(*arguments: str, code: int = 0) -> dict[str, object]:
    """The object of `--json` of a call that must end with `code`."""
    assert cli.run([*TRAIN, *arguments, "--json", "r.json"]) == code
    read: dict[str, object] = json.loads(Path("r.json").read_text("utf-8"))
    return read


@pytest.mark.usefixtures("in_tmp")
def test_the_command_trains_under_a_scheme_and_stops_after_so_many_iterations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    facts = report("--scheme", "data:3@ranks", "--iterations", "13", "--save", "m.npz")
    assert (facts["verdict"], facts["executed"], facts["iterations"]) == ("pass", 13, 13)
    assert (facts["scheme"], facts["replicas"]) == ("data:3@ranks", {"compared": 24, "differing": 0})
    assert snapshot.load("m.npz").iteration == 13
    assert "replicas: 24 compared, 0 differ" in capsys.readouterr().out
    rest = report("--scheme", "data:3@ranks", "--iterations", "500", "--resume", "m.npz", "--save", "m.npz")
    assert (rest["executed"], rest["iterations"]) == (7, 500)
    whole = report("--scheme", "data:3@ranks", "--save", "straight.npz")
    assert (whole["executed"], whole["iterations"]) == (20, None)
    assert Path("m.npz").read_bytes() == Path("straight.npz").read_bytes()


@pytest.mark.usefixtures("in_tmp")
def test_the_command_without_a_scheme_has_no_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    facts = report("--iterations", "1")
    assert (facts["scheme"], facts["replicas"]) == (None, {"compared": 0, "differing": 0})
    assert "replicas" not in capsys.readouterr().out


@pytest.mark.usefixtures("in_tmp")
def test_the_command_fails_where_replicas_differ_and_keeps_the_snapshot_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report("--scheme", "data:3@ranks", "--iterations", "5", "--save", "m.npz")
    before = Path("m.npz").read_bytes()
    right, spoils = Trainer.evaluate, []

    def evaluate(run: Trainer) -> object:
        """After the first epoch, one bit of one replica flips."""
        if not spoils:
            spoil(run, "fc2/weight@r1")
            spoils.append(run.position.iteration)
        return right(run)

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    facts = report("--scheme", "data:3@ranks", "--resume", "m.npz", "--save", "m.npz", code=1)
    assert (facts["verdict"], facts["executed"]) == ("fail", 5)
    assert (facts["replicas"], spoils) == ({"compared": 24, "differing": 1}, [10])
    assert "error: tensor 'fc2/weight': expected the same bits" in capsys.readouterr().err
    assert Path("m.npz").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scheme", "dat:3"], "no scheme 'dat:3'; there are "),
        (["--scheme", "data:*@ranks"], "* is the number of ranks, and there are none: start them with"),
        (["--scheme", "data:*@hosts"], "a scheme @hosts runs on all ranks of a world: say how many with @hosts:N"),
        (["--scheme", "dat:*@hosts:2"], "no scheme 'dat:1@hosts:2'; there are "),
        (["--iterations", "0"], "'--iterations'"),
    ],
)
def test_the_command_refuses_a_wrong_scheme(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*TRAIN, *arguments]) == 64
    assert words in capsys.readouterr().err
