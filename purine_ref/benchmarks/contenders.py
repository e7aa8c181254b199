"""Who can take part in `bench compute` and `bench scaling`: a `Spec` names a side, and `Child` runs it in a process.

Every contender has a process of its own, so that neither the threads, nor the memory allocator, nor the limits of one
library touch another's figures, and so that the most memory that each ever had can be asked for. A child is asked by a
line of JSON and answers by one (`serving`); between two questions it sleeps.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from purine_ref.benchmarks.asking import Asked, start


@dataclass(frozen=True, slots=True)
class Spec:
    """What a child is to run.

    `side` is `purine`, `torch` or `matmul`, or on a GPU `gpu` or `torch gpu`; `how` is, for purine, how it uses its
    workers (see `steps.EXECUTORS`), for torch its memory layout, and on a GPU as `gpu_steps` and `torch_gpu` say.
    `model` is a name of `models.MODELS`, `kernels` a kernel set, `cores` the cores that it is
    held to, all where that is empty. `reduction` is how replicas add gradients. One of several hosts is `rank`, and
    joins the others at `connect`.
    """

    side: str
    model: str
    batch: int
    workers: int = 1
    how: str = "split"
    kernels: str = "numpy"
    cores: tuple[int, ...] = ()
    seed: int = 0
    reduction: str = "central"
    rank: int = 0
    connect: str = ""


class Contender(Protocol):
    """Who can be asked: a `Child`, or several processes that do one thing together."""

    spec: Spec

    def ask(self, what: str, **facts: object) -> Any:
        """The answer to one question."""


class Child(Asked):
    """A process that serves one spec."""

    def __init__(self, spec: Spec, process: subprocess.Popen[str]) -> None:
        workers = f"{spec.workers} workers"
        super().__init__(
            f"the process of {spec.side} {spec.how} ({spec.model}, batch {spec.batch}, {workers})", process
        )
        self.spec = spec


@contextlib.contextmanager
def children(specs: Sequence[Spec]) -> Iterator[list[Child]]:
    """A child for each spec, started side by side; all are ended afterwards."""
    with contextlib.ExitStack() as stack:
        found = []
        for spec in specs:
            child = Child(spec, start("benchmarks.serving", asdict(spec)))
            stack.callback(child.end)
            found.append(child)
        yield found
