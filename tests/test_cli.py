"""The command: exit codes, what scripts and people read, pipes, interrupts, and training that survives a kill."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from hooks import slowness
from purine_ref import cli, snapshot
from purine_ref.conformance import Comparison, Scheme, register, scheme_forms, schemes
from purine_ref.errors import GraphError
from purine_ref.executors import Executor, Serial
from purine_ref.graph import Graph
from purine_ref.models import MODELS
from purine_ref.training import DEFAULTS

PROGRAM = [sys.executable, "-P", "-c", "from purine_ref.cli import main; main()"]
"""The command in a process of its own, wherever its script was installed."""

WATCH = 60.0
"""Seconds after which a process counts as hanging."""

COMMANDS = [
    "verify", "train", "show", "info", "bench", "trace", "golden", "run", "diff", "check", "keygen", "launch", "worker",
]  # fmt: skip

WRAPPERS = {"launch", "worker"}
"""Commands whose seed and JSON are those of the command that they run."""

SCHEME_KEYS = {
    "scheme": str, "model": str, "dtype": str, "exact": bool, "operators": int, "compared": int, "differing": int,
    "verdict": str, "seconds": float,
}  # fmt: skip
"""What each entry of `schemes` in the object of `verify` must hold, beside `max_error_over_bound`."""

SHORT_VERIFY = ["verify", "--model", "mlp-digits", "--dtype", "float32", "--steps", "3", "--batch", "9"]
SHORT_TRAIN = ["train", "--model", "mlp-digits", "--batch", "200", "--threads", "1"]


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit code, the output and the errors of a call in this process."""
    code = cli.run(arguments)
    return code, *capsys.readouterr()


def read_json(path: str) -> dict[str, Any]:
    """The object in a file; refuses NaN and infinities, which are no JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    read: dict[str, Any] = json.loads(Path(path).read_text("utf-8"), parse_constant=refuse)
    return read


# Options, help, usage ------------------------------------------------------------------------------------------------


def test_the_script_is_the_command() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="purine-ref")
    assert script.value == "purine_ref_command:main"  # which hands over to `cli.main`
    done = subprocess.run([*PROGRAM, "--version"], capture_output=True, text=True, timeout=WATCH, check=True)
    assert importlib.metadata.version("purine_ref") in done.stdout


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_has_examples_that_the_command_understands(
    command: list[str], capsys: pytest.CaptureFixture[str], in_tmp: Path
) -> None:
    code, out, err = called(capsys, *command, "--help")
    assert (code, err) == (0, "")
    examples = re.findall(r"^ +purine-ref (\w+)([^|>\n]*)", out.partition("Examples:")[2], re.MULTILINE)
    assert examples
    assert all(name in COMMANDS for name, _ in examples)
    assert not command or command[0] in {name for name, _ in examples}
    for name, rest in examples:
        arguments = shlex.split(rest)
        for argument in arguments:  # what an example reads must be there
            if ("/" in argument and "://" not in argument) or argument == "results":
                Path(argument).mkdir(parents=True, exist_ok=True)
            elif argument.endswith((".json", ".jsonl", ".npz")):
                Path(argument).touch()
        cli.group.commands[name].make_context(name, arguments)


def test_every_command_has_a_seed_and_json() -> None:
    assert sorted(cli.group.commands) == sorted(COMMANDS)
    commands = [command for name, command in cli.group.commands.items() if name not in WRAPPERS]
    for command in commands:
        if isinstance(command, click.Group):
            commands += command.commands.values()
            continue
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--seed", "--json"} <= options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Usage: "),
        (["verfy"], "No such command 'verfy'"),
        (["verify", "--fast"], "No such option"),
        (["verify", "--steps", "0"], "Invalid value for '--steps'"),
        (["verify", "--dtype", "float16"], "'float16' is not one of 'float64', 'float32'"),
        (["verify", "--batch", "2000"], "there are 1501 training images, got 2000"),
        (["verify", "--json", "nowhere/x.json"], "'nowhere/x.json' is in a folder that is not there"),
        (["verify", "--seed", "-1"], "Invalid value for '--seed'"),
        (["verify", "--seed", str(2**64)], "Invalid value for '--seed'"),
        (["train", "--lr", "0"], "must be a number above 0, got 0.0"),
        (["train", "--lr", "nan"], "must be a number above 0, got nan"),
        (["train", "--lr", "fast"], "'fast' is not a valid float"),
        (["train", "--threads", "0"], "Invalid value for '--threads'"),
        (["train", "--epochs", "0"], "Invalid value for '--epochs'"),
        (["train", "--resume", "absent.npz"], "'absent.npz' does not exist"),
        (["train", "--save", "nowhere/x.npz"], "'nowhere/x.npz' is in a folder that is not there"),
        (["show", "--format", "png"], "'png' is not one of"),
    ],
)
def test_wrong_usage_exits_with_64(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], in_tmp: Path
) -> None:
    code, out, err = called(capsys, *arguments)
    assert (code, out) == (64, "")
    assert message in err
    assert list(in_tmp.iterdir()) == []


@pytest.mark.parametrize("command", ["verify", "train", "show"])
def test_an_unknown_model_is_refused_with_those_that_are_known(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = called(capsys, command, "--model", "alexnet")
    assert code == 64
    known = list(DEFAULTS if command == "train" else MODELS)
    assert f"'alexnet' is not one of {', '.join(map(repr, known))}" in " ".join(err.split())


@pytest.mark.parametrize("scheme", ["thread:2", "threads:0", "threads", "serial:2"])
def test_an_unknown_scheme_is_refused_with_those_that_are_known(
    scheme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = called(capsys, "verify", "--scheme", scheme)
    assert code == 64
    form = next((form for form in scheme_forms() if form.partition(":")[0] == scheme.partition(":")[0]), None)
    accepted = f"must be like {form!r}" if form else f"there are {', '.join(scheme_forms())}"
    assert f"{scheme!r}" in err
    assert accepted in err


# Verify --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the registered schemes, that the test may add to."""
    monkeypatch.setattr(schemes, "_registered", dict(schemes._registered))


def test_verify_passes_and_says_so(capsys: pytest.CaptureFixture[str], in_tmp: Path) -> None:
    code, out, err = called(capsys, *SHORT_VERIFY, "--scheme", "threads:3", "--scheme", "serial", "--json", "r.json")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "verdict: pass"
    for word in ("threads:3", "serial", "mlp-digits", "float32", "differing", "seconds"):
        assert word in out
    report = read_json("r.json")
    assert (report["schema"], report["verdict"]) == ("purine-ref/verify/1", "pass")
    assert (report["executed"], report["skipped"], report["seed"]) == (2, 0, 0)
    assert report["seconds"] > 0
    assert [row["scheme"] for row in report["schemes"]] == ["threads:3", "serial"]
    for row in report["schemes"]:
        for key, kind in SCHEME_KEYS.items():
            assert type(row[key]) is kind, key
        assert (row["model"], row["dtype"], row["verdict"], row["differing"]) == ("mlp-digits", "float32", "pass", 0)
        assert row["max_error_over_bound"] == 0.0
        assert row["operators"] % 3 == row["compared"] % 3 == 0 < row["compared"]


def test_verify_runs_every_model_in_every_dtype(capsys: pytest.CaptureFixture[str], in_tmp: Path) -> None:
    """The default but for shorter runs: two models, two dtypes, and 1, 2, 4 and 8 threads; then the other models."""
    code, _, _ = called(capsys, "verify", "--steps", "2", "--batch", "6", "--json", "r.json")
    rows = read_json("r.json")["schemes"]
    assert code == 0
    assert {(row["model"], row["dtype"]) for row in rows} == {
        (model, dtype) for model in ("nin-digits", "lenet-digits") for dtype in ("float64", "float32")
    }
    assert {f"threads:{n}" for n in (1, 2, 4, 8)} <= {row["scheme"] for row in rows}
    others = [word for model in ("autoencoder-digits", "nin", "inception") for word in ("--model", model)]
    short = ["--dtype", "float32", "--steps", "1", "--batch", "3", "--scheme", "threads:2"]
    code, _, _ = called(capsys, "verify", *others, *short, "--json", "r.json")
    assert (code, read_json("r.json")["executed"]) == (0, 3)


@pytest.mark.usefixtures("registry")
def test_the_seed_reaches_the_runs(capsys: pytest.CaptureFixture[str], in_tmp: Path) -> None:
    seeds: list[int] = []

    @register("seen")
    def _seen(argument: str) -> Callable[[Graph, int], Executor]:
        def open_it(graph: Graph, seed: int) -> Executor:
            seeds.append(seed)
            return Serial(graph, seed=seed)

        return open_it

    code, _, _ = called(capsys, *SHORT_VERIFY, "--scheme", "seen", "--seed", "77", "--json", "r.json")
    assert (code, seeds, read_json("r.json")["seed"]) == (0, [77], 77)


@pytest.mark.usefixtures("registry")
def test_verify_fails_on_a_wrong_scheme_and_names_the_first_difference(
    capsys: pytest.CaptureFixture[str], in_tmp: Path
) -> None:
    @register("wrong")
    def _wrong(argument: str) -> Callable[[Graph, int], Executor]:
        return lambda graph, seed: Serial(graph, seed=seed + 1)

    code, out, _ = called(capsys, *SHORT_VERIFY, "--scheme", "serial", "--scheme", "wrong", "--json", "r.json")
    assert code == 1
    assert out.splitlines()[-1] == "verdict: fail"
    first = "fc1/linear at step 1: 1152 of 1152 elements differ"
    assert f"wrong mlp-digits float32: first difference: {first}" in out
    report = read_json("r.json")
    assert report["verdict"] == "fail"
    right, wrong = report["schemes"]
    assert (right["verdict"], wrong["verdict"]) == ("pass", "fail")
    assert wrong["differing"] > 0
    assert wrong["max_error_over_bound"] is None


def test_verify_that_compared_nothing_is_unknown(
    capsys: pytest.CaptureFixture[str], in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(workload: Any, schemes: Sequence[Scheme], *_: Any) -> list[Comparison]:
        return [Comparison(scheme.text, workload.model, workload.dtype) for scheme in schemes]

    monkeypatch.setattr(importlib.import_module("purine_ref.cli.jobs"), "verify", nothing)
    code, out, _ = called(capsys, *SHORT_VERIFY, "--scheme", "serial", "--json", "r.json")
    report = read_json("r.json")
    assert (code, report["verdict"], report["executed"], report["skipped"]) == (2, "unknown", 0, 1)
    assert out.splitlines()[-1] == "verdict: unknown"


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("error", [GraphError("no such place"), RuntimeError("no such luck")])
def test_what_could_not_run_is_2_and_no_failure(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """An error that nobody foresaw has its traceback; Python's own exit code for it, 1, would say `fail`."""

    @register("broken")
    def _broken(argument: str) -> Callable[[Graph, int], Executor]:
        def refuse(graph: Graph, seed: int) -> Executor:
            raise error

        return refuse

    code, out, err = called(capsys, *SHORT_VERIFY, "--scheme", "broken")
    assert (code, out) == (2, "")
    assert str(error) in err
    assert ("Traceback" in err) == isinstance(error, RuntimeError)


# JSON on the output, and the other commands -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [[*SHORT_VERIFY, "--scheme", "serial"], [*SHORT_TRAIN, "--epochs", "2"], ["info"], ["show"]]
)
def test_json_goes_down_a_pipe_alone(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = called(capsys, *arguments, "--json", "-")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert (report["schema"], report["verdict"]) == (f"purine-ref/{arguments[0]}/1", "pass")
    assert (report["executed"] > 0, report["skipped"], report["seconds"] > 0) == (True, 0, True)


def test_a_report_is_whole_or_the_old_one(capsys: pytest.CaptureFixture[str], in_tmp: Path) -> None:
    Path("r.json").write_text("old", "utf-8")
    assert called(capsys, "info", "--json", "r.json")[0] == 0
    assert read_json("r.json")["schema"] == "purine-ref/info/1"
    assert [path.name for path in in_tmp.iterdir()] == ["r.json"]


def test_info_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capsys, "info")
    report = json.loads(called(capsys, "info", "--json", "-")[1])
    assert code == 0
    assert report["purine_ref"] == importlib.metadata.version("purine_ref")
    assert report["numpy"] == np.__version__
    assert report["loops"] in ("compiled", "plain")
    assert report["models"] == list(MODELS)
    assert report["schemes"] == list(scheme_forms())
    assert all(re.fullmatch(r".* threads, held to 1", blas) for blas in report["blas"])
    for word in (np.__version__, "lenet-digits", "threads:N", report["loops"]):
        assert word in out


@pytest.mark.parametrize(("form", "start"), [("text", ""), ("dot", "digraph"), ("svg", "<svg"), ("json", "{")])
@pytest.mark.parametrize("part", ["forward", "backward", "update"])
def test_show_draws(form: str, start: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = called(capsys, "show", "--model", "mlp-digits", "--format", form, "--part", part, "--batch", "3")
    assert (code, err) == (0, "")
    assert out.startswith(start)
    assert "fc1" in out
    assert ("fc1/weight/grad" in out) == (part != "forward") or form == "svg"


# Pipes and terminals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [[*SHORT_VERIFY, "--scheme", "serial"], [*SHORT_TRAIN, "--epochs", "2"], ["info"], ["info", "--json", "-"],
     ["show", "--format", "json"], ["train", "--help"]],
)  # fmt: skip
def test_a_reader_that_has_gone_ends_it_quietly(arguments: list[str]) -> None:
    """As `purine-ref ... | head -0`: no traceback, and no exit code that would say that something differs."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(
            [*PROGRAM, *arguments], stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=WATCH, check=False
        )
    assert (done.returncode, done.stderr) == (2, "")


def test_head_gets_its_line() -> None:
    command = f"{shlex.join([*PROGRAM, 'show', '--model', 'nin-digits', '--format', 'json'])} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=WATCH, check=True)
    assert (done.stdout, done.stderr) == ("{\n", "")


@contextlib.contextmanager
def on_terminal(*arguments: str, **streams: Any) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command with its errors, and unless told otherwise its output, on a terminal; and our end of that."""
    ours, theirs = pty.openpty()
    streams = {"stdout": theirs, "stderr": theirs, **streams}
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    try:
        with subprocess.Popen([*PROGRAM, *arguments], env=environment, **streams) as process:
            os.close(theirs)
            try:
                yield process, ours
            finally:
                process.kill()
    finally:
        os.close(ours)


def read_terminal(ours: int, until: bytes | None = None) -> bytes:
    """What is written on the terminal, up to `until`, or to its end."""
    text = b""
    while until is None or until not in text:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the other end is closed
            return text
        if not chunk:
            return text
        text += chunk
    return text


def test_the_results_and_the_bar_share_a_terminal_line_by_line() -> None:
    with on_terminal(*SHORT_TRAIN, "--epochs", "4") as (process, ours):
        text = read_terminal(ours).decode()
        assert process.wait(WATCH) == 0
    assert "━" in text
    for epoch in range(1, 5):
        assert re.search(rf"(\n|\x1b\[2K)all layers, epoch {epoch}: held-out loss [\d.]+ accuracy [\d.]+%\r\n", text)
    assert re.search(r"(\n|\x1b\[2K)verdict: pass\r\n$", text)


def test_json_is_alone_on_a_terminal_too() -> None:
    with on_terminal("info", "--json", "-") as (process, ours):
        text = read_terminal(ours).decode()
        assert process.wait(WATCH) == 0
    assert json.loads(text)["schema"] == "purine-ref/info/1"


def test_the_bar_of_a_resumed_run_starts_where_that_stopped(in_tmp: Path) -> None:
    subprocess.run([*PROGRAM, *SHORT_TRAIN, "--epochs", "2", "--save", "m.npz"], check=True, timeout=WATCH)
    with on_terminal(*SHORT_TRAIN, "--epochs", "3", "--resume", "m.npz") as (process, ours):
        counts = re.findall(r"(\d+)/24", read_terminal(ours).decode())
        assert process.wait(WATCH) == 0
    assert (counts[0], counts[-1]) == ("16", "24")


def test_the_bar_stays_out_of_a_pipe() -> None:
    with on_terminal(*SHORT_TRAIN, "--epochs", "4", stdout=subprocess.PIPE) as (process, ours):
        assert process.stdout is not None
        lines = process.stdout.read().decode().splitlines()
        text = read_terminal(ours).decode()
        assert process.wait(WATCH) == 0
    assert [line.partition(":")[0] for line in lines] == [
        *(f"all layers, epoch {epoch}" for epoch in range(1, 5)), "mlp-digits", "verdict",
    ]  # fmt: skip
    assert "mlp-digits" in text
    assert "held-out" not in text


# Interrupts and kills ------------------------------------------------------------------------------------------------

SOON = 1.0
"""Seconds within which Ctrl-C must end a run, in one of `TRIES`: a busy machine may hold up any."""

TRIES = 3


@pytest.mark.parametrize(
    "arguments",
    [["train", "--model", "nin-digits", "--epochs", "1000", "--save", "nin.npz"],
     ["train", "--model", "autoencoder-digits", "--epochs", "10000", "--threads", "1", "--save", "nin.npz"],
     ["verify", "--steps", "1000000"]],
)  # fmt: skip
def test_sc_12_ctrl_c_ends_a_run_within_a_second(arguments: list[str], in_tmp: Path) -> None:
    """SC-12: exit code 130, no traceback; R12. A snapshot is whole, and nothing is left beside it."""
    assert any(ctrl_c_ends(arguments, in_tmp) < SOON * slowness() for _ in range(TRIES))


def ctrl_c_ends(arguments: list[str], folder: Path) -> float:
    """The seconds from Ctrl-C to the end of the command, which must have ended as it should."""
    with on_terminal(*arguments, stdout=subprocess.PIPE) as (process, ours):
        assert process.stdout is not None
        if arguments[0] == "train":
            assert process.stdout.readline().startswith(b"all layers" if "nin-digits" in arguments else b"layer 1")
        read_terminal(ours, until="━".encode())  # the progress bar: operators are running
        begun = time.perf_counter()
        process.send_signal(signal.SIGINT)
        code = process.wait(WATCH)
        took = time.perf_counter() - begun
        process.stdout.read()
        text = read_terminal(ours).decode()
    assert code == 130
    assert "Traceback" not in text
    assert text.rstrip().endswith("interrupted")
    assert all(path.name == "nin.npz" for path in folder.iterdir())
    for path in folder.iterdir():
        assert snapshot.load(path).iteration > 0
    return took


KILLED = [*SHORT_TRAIN, "--batch", "400", "--epochs", "100000", "--seed", "3", "--save", "run.npz"]
"""It does not come to its end before it is killed, however long that takes."""


def killed_at_a_save(resume: Sequence[str], lines: int) -> None:
    """Train, read so many lines of output, and kill it when it next has a file beside the snapshot: while it saves.

    On a busy machine one may never look at the right moment: then it is killed at any.
    """
    with subprocess.Popen([*PROGRAM, *KILLED, *resume], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(lines):
            assert process.stdout.readline()
        until = time.monotonic() + 1.0
        while not list(Path().glob("*.tmp")) and time.monotonic() < until:
            pass
        process.kill()


def killed_after_a_line(resume: Sequence[str], lines: int) -> None:
    """Train, and kill it as soon as it has written so many lines: before, while or after it saves."""
    with subprocess.Popen([*PROGRAM, *KILLED, *resume], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(lines):
            assert process.stdout.readline()
        process.kill()


def test_dp_06_a_run_that_was_killed_again_and_again_ends_with_the_bits_of_one_that_was_not(
    capsys: pytest.CaptureFixture[str], in_tmp: Path
) -> None:
    """DP-06: SIGKILL at any moment leaves the previous snapshot whole; going on from it gives the same file."""
    rng = np.random.default_rng(8)
    killed_after_a_line([], 2)
    reached = [snapshot.load("run.npz").epoch]
    for kill in (killed_at_a_save, killed_after_a_line) * 2:
        kill(["--resume", "run.npz"], int(rng.integers(1, 4)))
        reached.append(snapshot.load("run.npz").epoch)
        for left in Path().glob("*.tmp"):
            left.unlink()
    assert 1 <= reached[0] < reached[-1]
    assert reached == sorted(reached)
    last = snapshot.load("run.npz").iteration
    code, out, _ = called(capsys, *KILLED, "--resume", "run.npz", "--iterations", "40")
    assert code == 0
    assert out.splitlines()[0].startswith(f"all layers, epoch {reached[-1] + 1}: ")
    assert called(capsys, *KILLED[:-1], "straight.npz", "--iterations", str(last + 40))[0] == 0
    assert Path("run.npz").read_bytes() == Path("straight.npz").read_bytes()


# Training ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["lenet-digits", "nin-digits", "mlp-digits"])
def test_the_default_settings_reach_97_percent(model: str, capsys: pytest.CaptureFixture[str], in_tmp: Path) -> None:
    code, out, err = called(capsys, "train", "--model", model, "--json", "r.json")
    report = read_json("r.json")
    assert (code, err, report["verdict"]) == (0, "", "pass")
    assert report["accuracy"] >= 0.97
    assert out.splitlines()[-1] == "verdict: pass"
    assert (report["schema"], report["model"]) == ("purine-ref/train/1", model)
    assert report["epochs"] == DEFAULTS[model].epochs == len(report["history"])
    assert report["executed"] == DEFAULTS[model].epochs * -(-1501 // DEFAULTS[model].batch)
    assert report["history"][-1]["loss"] == report["loss"] < report["history"][0]["loss"]


def test_options_reach_the_training(capsys: pytest.CaptureFixture[str], in_tmp: Path) -> None:
    options = {"epochs": 2, "batch": 300, "lr": 0.125, "threads": 3, "dtype": "float64", "seed": 9}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    code, _, _ = called(capsys, "train", "--model", "mlp-digits", *words, "--save", "m.npz", "--json", "r.json")
    report = read_json("r.json")
    assert code == 0
    assert {name: report[name] for name in options} == options
    held = snapshot.load("m.npz")
    assert (held.iteration, held.seed) == (12, 9)
    assert {"model": "mlp-digits", "batch": 300, "lr": 0.125, "dtype": "float64"}.items() <= held.extra.items()


def test_the_autoencoder_says_how_each_stage_goes(capsys: pytest.CaptureFixture[str], in_tmp: Path) -> None:
    arguments = ["train", "--model", "autoencoder-digits", "--epochs", "2", "--batch", "100", "--json", "r.json"]
    code, out, _ = called(capsys, *arguments)
    stages = ["layer 1", "layer 2", "layer 3", "all layers"]
    lines = [f"{stage}, epoch {epoch}" for stage in stages for epoch in (1, 2)]
    assert code == 0
    assert [line.partition(":")[0] for line in out.splitlines()[:8]] == lines
    assert "accuracy" not in out
    history = read_json("r.json")["history"]
    assert [(entry["stage"], entry["epoch"], entry["accuracy"]) for entry in history] == [
        (stage, epoch, None) for stage in stages for epoch in (1, 2)
    ]
    assert read_json("r.json")["accuracy"] is None


def test_a_finished_run_has_nothing_to_do_and_goes_on_for_more_epochs(
    capsys: pytest.CaptureFixture[str], in_tmp: Path
) -> None:
    """The example of `train --help`: 40 epochs after 5 are those of a straight run."""
    assert called(capsys, *SHORT_TRAIN, "--epochs", "2", "--save", "m.npz")[0] == 0
    code, out, _ = called(capsys, *SHORT_TRAIN, "--epochs", "2", "--resume", "m.npz", "--json", "r.json")
    assert (code, out.splitlines()[-1]) == (2, "verdict: unknown")
    assert (read_json("r.json")["verdict"], read_json("r.json")["executed"]) == ("unknown", 0)
    assert called(capsys, *SHORT_TRAIN, "--epochs", "5", "--resume", "m.npz", "--save", "m.npz")[0] == 0
    assert called(capsys, *SHORT_TRAIN, "--epochs", "5", "--save", "straight.npz")[0] == 0
    assert Path("m.npz").read_bytes() == Path("straight.npz").read_bytes()


@pytest.mark.parametrize("kind", ["truncated", "text", "numpy", "empty"])
def test_what_is_no_snapshot_is_refused(kind: str, capsys: pytest.CaptureFixture[str], in_tmp: Path) -> None:
    called(capsys, *SHORT_TRAIN, "--epochs", "1", "--save", "m.npz")
    if kind == "truncated":
        whole = Path("m.npz").read_bytes()
        Path("m.npz").write_bytes(whole[: len(whole) * 2 // 3])
    elif kind == "numpy":
        np.savez("m.npz", weight=np.zeros(3))
    else:
        Path("m.npz").write_text("" if kind == "empty" else "weights, as agreed", "utf-8")
    before = Path("m.npz").read_bytes()
    code, out, err = called(capsys, *SHORT_TRAIN, "--resume", "m.npz", "--save", "m.npz")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: m\.npz: expected .*, got .*\n", err)
    assert Path("m.npz").read_bytes() == before


def test_a_snapshot_of_another_run_is_refused(capsys: pytest.CaptureFixture[str], in_tmp: Path) -> None:
    called(capsys, *SHORT_TRAIN, "--epochs", "1", "--save", "m.npz")
    code, _, err = called(capsys, *SHORT_TRAIN, "--epochs", "1", "--resume", "m.npz", "--seed", "4")
    assert (code, err) == (2, "error: snapshot setting 'seed': this run has 4, the snapshot 0\n")
    code, _, err = called(capsys, "train", "--model", "lenet-digits", "--resume", "m.npz")
    message = "error: snapshot setting 'model': this run has 'lenet-digits', the snapshot 'mlp-digits'\n"
    assert (code, err) == (2, message)


def test_a_run_that_diverged_fails_and_its_report_is_json(in_tmp: Path) -> None:
    """In a process of its own, as numpy's warnings are errors here."""
    arguments = [*SHORT_TRAIN, "--epochs", "1", "--lr", "1e9", "--json", "r.json"]
    done = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=WATCH, check=False)
    assert done.returncode == 1
    report = read_json("r.json")
    assert (report["verdict"], report["loss"], report["history"][0]["loss"]) == ("fail", None, None)


def test_an_interrupt_is_130_whoever_raises_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (KeyboardInterrupt, click.Abort):

        def interrupted(*_: Any, kind: type[BaseException] = kind) -> None:
            raise kind

        monkeypatch.setattr(importlib.import_module("purine_ref.cli.jobs"), "verify", interrupted)
        code, _, err = called(capsys, *SHORT_VERIFY)
        assert (code, err.strip()) == (130, "interrupted")


def test_the_end_of_a_file_is_no_interrupt(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`click` takes every EOFError for Ctrl-D at a prompt."""
    def ended(*_: Any) -> None:
        raise EOFError("nobody is there")

    monkeypatch.setattr(importlib.import_module("purine_ref.cli.jobs"), "verify", ended)
    code, _, err = called(capsys, *SHORT_VERIFY)
    assert code == 2
    assert err.splitlines()[-1] == "EOFError: nobody is there"
