"""The example ports in C, JavaScript and plain Python: each builds, and does what a port must, in both of its forms."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from purine_ref import cli
from purine_ref.conformance.cases import read_case, write_case
from purine_ref.conformance.cases.golden import golden_makers

PORTS = Path(__file__).parent.parent / "examples" / "ports"

CASES = (
    "graphs/concat-views/00",
    "graphs/split-views/00",
    "graphs/fan-in/00",
    "graphs/twice/00",
    "graphs/ends/00",
    "parallel/convolution-data-2/01",
    "training/sgd/00",
)
"""Golden cases that are run in the one-shot form: views, several producers, locations, pairs."""

SOME = ("operators/MaxPool2d/*", "graphs/split-views/*")
"""Golden cases that are run in a session."""


def missing(*programs: str) -> str:
    """Which of these programs is not there, in words; empty where all are."""
    return next((f"{program} is not there" for program in programs if shutil.which(program) is None), "")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds the port in C with a sanitizer, once for each."""
    done: dict[str, Path] = {}

    def build(sanitizer: str) -> Path:
        reason = missing("gcc", "make")
        if not reason and not Path("/usr/include/cjson/cJSON.h").exists():
            reason = "cJSON's header is not there (Debian: libcjson-dev)"
        if reason:
            pytest.skip(reason)
        if sanitizer not in done:
            folder = tmp_path_factory.mktemp("c") / "port"
            shutil.copytree(PORTS / "c", folder, ignore=shutil.ignore_patterns("port"))
            flags = f"-g -Wall -Wextra -Werror -fsanitize={sanitizer} -fno-sanitize-recover=all"
            make = ["make", "-C", folder, f"CFLAGS={flags}"]
            made = subprocess.run(make, capture_output=True, text=True, timeout=120)
            assert made.returncode == 0, made.stderr
            done[sanitizer] = folder / "port"
        return done[sanitizer]

    return build


@pytest.fixture(params=["c", "javascript", "python"])
def command(request: pytest.FixtureRequest, built: Callable[[str], Path]) -> list[str]:
    """The command of each port."""
    if request.param == "c":
        return [str(built("address,undefined"))]
    if request.param == "python":
        return [sys.executable, str(PORTS / "python" / "port.py")]
    if missing("node"):
        pytest.skip(missing("node"))
    return ["node", str(PORTS / "javascript" / "port.js")]


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden cases of the one-shot form."""
    folder = tmp_path_factory.mktemp("cases")
    for name in CASES:
        write_case(golden_makers()[name](), folder / name)
    return folder


def check(capsys: pytest.CaptureFixture[str], command: list[str], *arguments: str) -> dict[str, object]:
    """The object of a check, which passes."""
    code = cli.run(["check", "--port", shlex.join(command), "--json", "-", *arguments])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    assert (code, found["verdict"], found["failures"]) == (0, "pass", [])
    return found


def test_the_one_shot_form_writes_results_and_a_legal_trace(
    command: list[str], cases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(CASES):
        out = tmp_path / str(number)
        out.mkdir()
        done = subprocess.run([*command, cases / name, out], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, ""), name
        assert cli.run(["diff", str(cases / name), str(out)]) == 0, capsys.readouterr().out
        assert cli.run(["trace", str(out / "trace.jsonl"), "--graph", str(cases / name)]) == 0, capsys.readouterr().out
        capsys.readouterr()


def test_a_case_of_other_operations_is_unsupported(command: list[str], tmp_path: Path) -> None:
    write_case(golden_makers()["operators/Tanh/00"](), tmp_path / "case")
    (tmp_path / "out").mkdir()
    done = subprocess.run([*command, tmp_path / "case", tmp_path / "out"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "Tanh" in done.stderr


def test_sessions_pass_every_check(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    only = [f"--only={name}" for name in (*SOME, "random", "schedules", "repeat")]
    found = check(capsys, command, "--examples", "4", *only)
    checks = found["checks"]
    assert isinstance(checks, list)
    assert all(row["executed"] for row in checks)


def test_the_one_shot_form_passes_a_check(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = check(capsys, command, "--one-shot", "--only", "graphs/twice/*")
    assert found["executed"]


def test_the_threads_of_the_port_in_c_do_not_race(
    built: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    port = built("thread")
    steady = ["setarch", "-R", str(port)]  # the sanitizer's memory layout does not meet random addresses
    if missing("setarch") or subprocess.run([*steady, "--hello"], capture_output=True, timeout=60).returncode != 0:
        pytest.skip("no program runs here under the thread sanitizer")
    check(capsys, steady, "--examples", "8", "--only", "repeat")


def test_the_ports_agree_on_what_they_can_do(command: list[str]) -> None:
    told = json.loads(subprocess.run([*command, "--hello"], capture_output=True, timeout=60).stdout)
    small = {"Linear", "Bias", "ReLU", "Conv2d", "MaxPool2d", "Sum", "Mul", "SquaredError", "SGD", "Concat"}
    assert small <= set(told["operations"])
    assert all(told[feature] for feature in ("schedules", "streams", "locations", "views", "trace"))


def test_the_cases_are_those_of_the_ports(cases: Path) -> None:
    several = [read_case(cases / name) for name in CASES]
    assert any(len({blob.location for blob in case.graph.blobs}) > 1 for case in several)
    assert any(blob.view is not None for case in several for blob in case.graph.blobs)
    assert any(case.graph.pairs and case.iterations > 1 for case in several)
