"""The program of a child process: `python -m purine_ref.benchmarks.serving SPEC` answers questions, a line each.

A question is `{"ask": NAME, ...}`, an answer `{"answer": ...}` or `{"error": TEXT}`; `_ANSWERS` has the names. It ends
with its input. What libraries print goes to the standard error.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from purine_ref.benchmarks import products, steps, torch_peer
from purine_ref.benchmarks.contenders import Spec
from purine_ref.benchmarks.machine import greatest, resident
from purine_ref.benchmarks.side import Side
from purine_ref.benchmarks.timing import seconds

SIDES: dict[str, Callable[[Spec, str], Side]] = {
    "purine": steps.side, "torch": torch_peer.side, "matmul": products.side,
}  # fmt: skip
"""From a spec and a dtype to a side that is ready to run."""


class Server:
    """Answers for one spec. The side is made by the first question that needs it."""

    def __init__(self, spec: Spec) -> None:
        if spec.cores:
            os.sched_setaffinity(0, spec.cores)
        if spec.side == "torch":
            torch_peer.version()
        self._spec = spec
        self._side: Side | None = None
        self._empty = resident()

    @property
    def side(self) -> Side:
        """The side, which has run one step."""
        if self._side is None:
            self._side = SIDES[self._spec.side](self._spec, "float32")
            self._side.step()
            pin_ranks(self._spec.cores)
        return self._side

    def time(self, count: int) -> Mapping[str, float]:
        """Seconds of `count` steps, after one that is not counted where they are many: they are short then."""
        side = self.side
        if count > 1:
            side.step()

        def work() -> None:
            """All steps of one side."""
            for _ in range(count):
                side.step()

        return seconds(work)

    def losses(self, batch: int, dtype: str, count: int) -> list[float]:
        """The losses of the first steps of a side like this one, with as many images and in this dtype."""
        small = replace(self._spec, batch=batch)
        with SIDES[self._spec.side](small, dtype) as side:
            return [side.checked_step() for _ in range(count)]

    def memory(self) -> Mapping[str, float]:
        """Bytes: `process`, the most that this process ever had; `network`, by how much that is above what it had
        before the network was made, libraries imported; `planned`, where the side plans its arrays.
        """
        planned = {} if self.side.planned is None else {"planned": self.side.planned}
        return {"process": greatest(), "network": greatest() - self._empty, **planned}

    def facts(self) -> dict[str, float]:
        """What is counted, not measured: see `side.Side.facts`."""
        return self.side.facts()

    def overlap(self, count: int) -> list[Mapping[str, float]]:
        """Where the copies of each of `count` steps went: see `steps.overlap`."""
        return steps.overlap(self._spec, count)


_ANSWERS = ("time", "losses", "memory", "facts", "overlap")


def pin_ranks(cores: tuple[int, ...]) -> None:
    """Hold the thread of each rank to its own core, the first rank's to the first."""
    for thread in threading.enumerate():
        number = thread.name.rpartition("-rank")[2]
        if len(cores) > 1 and number.isdecimal() and thread.native_id is not None:
            os.sched_setaffinity(thread.native_id, {cores[int(number)]})


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the way of the answers is theirs alone
    facts = json.loads(sys.argv[1])
    server = Server(Spec(**{**facts, "cores": tuple(facts["cores"])}))
    for line in sys.stdin:
        question = json.loads(line)
        name = question.pop("ask")
        try:
            assert name in _ANSWERS
            answer = {"answer": getattr(server, name)(**question)}
        except Exception as error:
            answer = {"error": "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])}
        try:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        except BrokenPipeError:
            os._exit(1)  # the parent is gone, and nobody is left to be told


if __name__ == "__main__":
    main()
