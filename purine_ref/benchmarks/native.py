"""Peers in C++: their programs are compiled on the spot, kept running, and asked for one measurement at a time.

The sources are beside this module, in `native/`; `bench.hpp` says how a program is asked and what it answers. A program
is compiled once for what it includes, into a folder that only this user can write, and found there afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from purine_ref.benchmarks.shapes import Predecessors

SOURCES = Path(__file__).parent / "native"
FLAGS = ("-std=c++20", "-O2", "-pthread")
ROUNDS = 5
"""Runs in a row each time that a program is asked, as in `bench.hpp`; what counts is the median."""

PATIENCE = 300
"""Seconds that a compiler may take."""


class Missing(Exception):
    """A program that cannot be had here; the message says what to install."""


@dataclass(frozen=True, slots=True)
class Program:
    """A source `name`.cpp, the libraries that it is linked with, and what to install where it does not compile."""

    name: str
    libraries: tuple[str, ...]
    remedy: str


TASKFLOW = Program("taskflow", (), "Debian's libtaskflow-cpp-dev, or Taskflow's headers in a folder of CPATH")
ONETBB = Program("onetbb", ("-ltbb",), "Debian's libtbb-dev")
HANDOVER = Program("handover", (), "Debian's g++")


def executable(program: Program, compiler: str = "g++") -> Path:
    """The compiled program. Raises Missing where there is no compiler or no library, OSError for a folder of others."""
    source = SOURCES / f"{program.name}.cpp"
    whole = _run([compiler, *FLAGS, "-E", str(source)], program)  # with all that it includes: that is what is compiled
    key = hashlib.sha256(b"\0".join([whole, *(flag.encode() for flag in (*FLAGS, *program.libraries))])).hexdigest()
    target = _folder() / f"{program.name}-{key[:24]}"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent) as beside:
            made = Path(beside) / program.name
            _run([compiler, *FLAGS, str(source), "-o", str(made), *program.libraries], program)
            made.replace(target)
    return target


def _run(command: Sequence[str], program: Program) -> bytes:
    """What the compiler writes. Raises Missing when it is not there, or fails."""
    try:
        return subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE).stdout
    except FileNotFoundError:
        raise Missing(f"{program.name}: there is no {command[0]}; install Debian's g++") from None
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.decode(errors="replace").splitlines() if "error" in line]
        said = lines[0] if lines else "no message"
        raise Missing(f"{program.name}: not compiled ({said}); install {program.remedy}") from None
    except subprocess.TimeoutExpired:
        raise Missing(f"{program.name}: not compiled within {PATIENCE} s; try again on a quieter machine") from None


def _folder() -> Path:
    """Where programs are kept: a folder in the system's for temporary files. Raises OSError unless it is ours alone."""
    folder = Path(tempfile.gettempdir()) / f"purine_ref-peers-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise OSError(f"{folder} must be a folder that only this user can write: remove it, or set TMPDIR to another")
    return folder


class Running:
    """A program that runs: `ask` has it measure once more."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self) -> Mapping[str, float]:
        """Seconds of one run, by the wall's clock and of processors: each the median of a few. Raises RuntimeError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(file=self._process.stdin, flush=True)
            wall, processor = map(float, self._process.stdout.readline().split())
        except (ValueError, BrokenPipeError):
            raise RuntimeError(f"a peer ended without an answer: {self._process.args!r}") from None
        return {"processor": processor, "wall": wall}


@contextlib.contextmanager
def running(path: Path, *arguments: object) -> Iterator[Running]:
    """The program, started with the arguments; it is ended afterwards."""
    command = [str(path), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Running(process)
        finally:
            process.kill()
            with contextlib.suppress(BrokenPipeError):  # what it was never told goes nowhere
                assert process.stdin is not None
                process.stdin.close()


@contextlib.contextmanager
def graph_file(predecessors: Predecessors) -> Iterator[Path]:
    """The graph as the programs read it, in a file that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph"
        path.write_text("".join(f"{' '.join(map(str, before))}\n" for before in predecessors), "ascii")
        yield path
