"""Several hosts as one contender: a process for each rank, all asked the same at once."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from purine_ref.benchmarks.asking import start
from purine_ref.benchmarks.contenders import Child, Spec
from purine_ref.benchmarks.namespaces import Host

PORT = 5555
"""Where rank 0 listens in a network namespace of its own, in which nobody else does."""


class Team:
    """The ranks of a spec. It is asked as a `Child` is: `ask` has one answer for all of them, `ask_all` each rank's."""

    def __init__(self, spec: Spec, ranks: Sequence[Child]) -> None:
        self.spec = spec
        self._ranks = ranks

    def ask(self, what: str, **facts: object) -> Any:
        """The one answer of all. Of times, the wall's is the slowest rank's, and the processors' is the sum of all.

        Raises RuntimeError where ranks that must answer the same do not.
        """
        answers = self.ask_all(what, **facts)
        if what == "time":
            return {
                "wall": max(answer["wall"] for answer in answers),
                "processor": sum(answer["processor"] for answer in answers),
            }
        if any(answer != answers[0] for answer in answers):
            raise RuntimeError(f"the ranks of {self.spec.model} answer {what} differently: {answers}")
        return answers[0]

    def ask_all(self, what: str, **facts: object) -> list[Any]:
        """Each rank's answer."""
        for rank in self._ranks:
            rank.tell(what, **facts)
        return [rank.answer(what) for rank in self._ranks]

    def trace(self, files: Sequence[Path], count: int) -> list[float]:
        """Have each rank write a trace of `count` steps, after one; returns the offsets from rank 0's clock."""
        for rank, file in zip(self._ranks, files, strict=True):
            rank.tell("trace", file=str(file), count=count)
        offsets: list[list[float]] = [rank.answer("trace") for rank in self._ranks]
        return offsets[0]


@contextlib.contextmanager
def team(spec: Spec, hosts: Sequence[Host] = ()) -> Iterator[Team]:
    """The ranks of a spec, `workers` of them, on hosts of their own or all here; they are ended afterwards.

    `cores` has a core for each rank, or is empty.
    """
    connect = f"tcp://{hosts[0].address}:{PORT}" if hosts else _free_address()
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(spec.workers):
            own = replace(spec, rank=rank, connect=connect, cores=spec.cores[rank : rank + 1])
            before = hosts[rank].before if hosts else ()
            ranks.append(Child(own, start("benchmarks.serving", asdict(own), before)))
            stack.callback(ranks[-1].end)
        made = Team(spec, ranks)
        yield made
        made.ask_all("leave")


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"
