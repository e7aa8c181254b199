"""Who can take part in `bench compute` and `bench scaling`: a `Spec` names a side, and `Child` runs it in a process.

Every contender has a process of its own, so that neither the threads, nor the memory allocator, nor the limits of one
library touch another's figures, and so that the most memory that each ever had can be asked for. A child is asked by a
line of JSON and answers by one (`serving`); between two questions it sleeps. Nothing is unpickled. A child is a
session of its own: Ctrl-C reaches the parent alone, which ends its children.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PATIENCE = 900
"""Seconds that a child may take for one answer."""

_ROOT = Path(__file__).parents[2]
"""The folder that the package lies in: a child must measure the same code, wherever that was imported from."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What a child is to run.

    `side` is `purine`, `torch` or `matmul`; `how` is, for purine, how it uses its workers (see `steps.EXECUTORS`), for
    torch its memory layout. `model` is a name of `models.MODELS`, `kernels` a kernel set, `cores` the cores that it is
    held to, all where that is empty.
    """

    side: str
    model: str
    batch: int
    workers: int = 1
    how: str = "split"
    kernels: str = "numpy"
    cores: tuple[int, ...] = ()
    seed: int = 0


class Child:
    """A process that serves one spec. Raises RuntimeError, with the child's own words, for what fails in it."""

    def __init__(self, spec: Spec, process: subprocess.Popen[str]) -> None:
        self.spec = spec
        self._process = process

    def ask(self, what: str, **facts: object) -> Any:
        """The answer to one question."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"ask": what, **facts}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"{self._name()} ended before it was asked for {what}") from None
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            raise RuntimeError(f"{self._name()} did not answer within {PATIENCE} s when asked for {what}")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name()} ended without an answer when asked for {what}: too little memory?")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self._name()}, asked for {what}: {answer['error']}")
        return answer["answer"]

    def _name(self) -> str:
        spec = self.spec
        return f"the process of {spec.side} {spec.how} ({spec.model}, batch {spec.batch}, {spec.workers} workers)"


@contextlib.contextmanager
def children(specs: Sequence[Spec]) -> Iterator[list[Child]]:
    """A child for each spec, started side by side; all are ended afterwards."""
    command = [sys.executable, "-P", "-m", "purine_ref.benchmarks.serving"]
    with contextlib.ExitStack() as stack:
        found = []
        for spec in specs:
            process = subprocess.Popen(
                [*command, json.dumps(asdict(spec))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env=_environment(), start_new_session=True,
            )  # fmt: skip
            stack.callback(_end, process)
            found.append(Child(spec, process))
        yield found


def _environment() -> Mapping[str, str]:
    """The parent's, with the package where the parent has it."""
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _end(process: subprocess.Popen[str]) -> None:
    """End a child at once: it holds nothing that would have to be saved."""
    process.kill()
    process.communicate()
